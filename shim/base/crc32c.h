// SPDX-License-Identifier: Apache-2.0
/* crc32c: CRC-32C (Castagnoli), by the processor where it can, else by table. */
#ifndef FASTWRITE_CRC32C_H
#define FASTWRITE_CRC32C_H

#include <stddef.h>
#include <stdint.h>

/* Continues `crc`, the result for what comes before; 0 to begin. */
uint32_t crc32c(uint32_t crc, const void *data, size_t size);
/* Copies, and continues `crc` over what has been stored at `to`, whatever becomes of `from` meanwhile. */
uint32_t crc32c_copy(uint32_t crc, void *to, const void *from, size_t size);
/* Of `size` bytes that hold their own checksum, 32 bits at `at`, taken as zero. */
uint32_t crc32c_around(const void *data, size_t size, size_t at);
/* The same without the processor's help, for comparison. */
uint32_t crc32c_table(uint32_t crc, const void *data, size_t size);

#endif
