// SPDX-License-Identifier: Apache-2.0
/* crc32c: CRC-32C (Castagnoli), by the processor's instruction if it has one, else by table. */
#ifndef FASTWRITE_BASE_CRC32C_H
#define FASTWRITE_BASE_CRC32C_H

#include <stddef.h>
#include <stdint.h>

/* Continues `crc`, the checksum of the bytes before; 0 to begin. */
uint32_t crc32c(uint32_t crc, const void *data, size_t size);
/* Copies, and continues `crc` over the bytes stored at `to`, even if `from` changes meanwhile. */
uint32_t crc32c_copy(uint32_t crc, void *to, const void *from, size_t size);
/* The checksum of `size` bytes that contain their own checksum at `at`: its 32 bits count as zero. */
uint32_t crc32c_around(const void *data, size_t size, size_t at);
/* As crc32c, always by table.  For tests. */
uint32_t crc32c_table(uint32_t crc, const void *data, size_t size);

#endif
