// SPDX-License-Identifier: Apache-2.0
/* wal_format: see format/wal_format.h. */
#include "format/wal_format.h"

#include "base/crc32c.h"

#include <stddef.h>

uint32_t wal_header_checksum(const struct wal_header *h)
{
	return crc32c_around(h, sizeof *h, offsetof(struct wal_header, checksum));
}

uint32_t wal_names_checksum(const struct wal_names *h)
{
	return crc32c_around(h, h->bytes, offsetof(struct wal_names, checksum));
}

uint32_t wal_head_checksum(const struct wal_batch *head, uint32_t head_bytes)
{
	return crc32c_around(head, head_bytes, offsetof(struct wal_batch, checksum));
}
