// SPDX-License-Identifier: Apache-2.0
/* journal_format: see format/journal_format.h. */
#include "format/journal_format.h"

#include "base/crc32c.h"
#include "format/arena_format.h"

#include <string.h>

void journal_name_of(const char *arena_name, char *out)
{
	size_t n = strlen(arena_name), s = sizeof ARENA_SUFFIX - 1;

	if (n >= s && strcmp(arena_name + n - s, ARENA_SUFFIX) == 0)
		n -= s;
	memcpy(out, arena_name, n);
	memcpy(out + n, JOURNAL_SUFFIX, sizeof JOURNAL_SUFFIX);
}

void journal_arena_of(const char *journal_name, char *out)
{
	size_t n = strlen(journal_name) - (sizeof JOURNAL_SUFFIX - 1);

	memcpy(out, journal_name, n);
	memcpy(out + n, ARENA_SUFFIX, sizeof ARENA_SUFFIX);
}

uint32_t journal_header_checksum(const struct journal_header *h)
{
	return crc32c_around(h, sizeof *h, offsetof(struct journal_header, checksum));
}

uint32_t journal_batch_checksum(const struct journal_batch *b)
{
	return crc32c_around(b, b->bytes, offsetof(struct journal_batch, checksum));
}
