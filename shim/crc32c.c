// SPDX-License-Identifier: Apache-2.0
/* crc32c: see crc32c.h. */
#include "crc32c.h"

#include <stdatomic.h>
#include <stdbool.h>
#include <string.h>

enum { POLYNOMIAL = 0x82f63b78u };

/* table[k][b]: byte b, followed by k zero bytes */
static uint32_t table[8][256];
static _Atomic bool table_ready;

/* Idempotent: threads that come at the same time store the same values. */
static void make_table(void)
{
	for (uint32_t b = 0; b < 256; b++) {
		uint32_t crc = b;

		for (int bit = 0; bit < 8; bit++)
			crc = (crc >> 1) ^ (POLYNOMIAL & (0u - (crc & 1)));
		__atomic_store_n(&table[0][b], crc, __ATOMIC_RELAXED);
	}
	for (int k = 1; k < 8; k++)
		for (uint32_t b = 0; b < 256; b++) {
			uint32_t before = table[k - 1][b];

			__atomic_store_n(&table[k][b], (before >> 8) ^ table[0][before & 0xff],
			                 __ATOMIC_RELAXED);
		}
	atomic_store_explicit(&table_ready, true, memory_order_release);
}

uint32_t crc32c_table(uint32_t crc, const void *data, size_t size)
{
	const uint8_t *p = data;

	if (!atomic_load_explicit(&table_ready, memory_order_acquire))
		make_table();
	crc = ~crc;
	for (; size >= 8; size -= 8, p += 8) {
		uint64_t word;

		memcpy(&word, p, 8);
		word ^= crc;
		crc = 0;
		for (int k = 0; k < 8; k++)
			crc ^= table[7 - k][(word >> (8 * k)) & 0xff];
	}
	for (; size > 0; size--)
		crc = (crc >> 8) ^ table[0][(crc ^ *p++) & 0xff];
	return ~crc;
}

#if defined(__x86_64__)
__attribute__((target("sse4.2"))) static uint32_t by_processor(uint32_t crc, const uint8_t *p, size_t size)
{
	uint64_t state = ~crc;

	for (; size >= 8; size -= 8, p += 8) {
		uint64_t word;

		memcpy(&word, p, 8);
		state = __builtin_ia32_crc32di(state, word);
	}
	for (; size > 0; size--)
		state = __builtin_ia32_crc32qi((uint32_t)state, *p++);
	return ~(uint32_t)state;
}

static bool processor_can(void)
{
	uint32_t a = 1, b, c = 0, d;

	__asm__("cpuid" : "+a"(a), "=b"(b), "+c"(c), "=d"(d));
	return c & (1u << 20);
}
#elif defined(__aarch64__)
#include <sys/auxv.h>
__attribute__((target("+crc"))) static uint32_t by_processor(uint32_t crc, const uint8_t *p, size_t size)
{
	crc = ~crc;
	for (; size >= 8; size -= 8, p += 8) {
		uint64_t word;

		memcpy(&word, p, 8);
		crc = __builtin_aarch64_crc32cx(crc, word);
	}
	for (; size > 0; size--)
		crc = __builtin_aarch64_crc32cb(crc, *p++);
	return ~crc;
}

static bool processor_can(void) { return getauxval(AT_HWCAP) & (1u << 7); }
#endif

uint32_t crc32c(uint32_t crc, const void *data, size_t size)
{
	/* 0 unknown, 1 no, 2 yes: cpuid is slow where it is emulated */
	static _Atomic int can;
	int known = atomic_load_explicit(&can, memory_order_relaxed);

	if (known == 0) {
		known = processor_can() ? 2 : 1;
		atomic_store_explicit(&can, known, memory_order_relaxed);
	}
	return known == 2 ? by_processor(crc, data, size) : crc32c_table(crc, data, size);
}

uint32_t crc32c_around(const void *data, size_t size, size_t at)
{
	const uint32_t zero = 0;
	const uint8_t *bytes = data;
	size_t after = at + sizeof zero;

	return crc32c(crc32c(crc32c(0, bytes, at), &zero, sizeof zero), bytes + after, size - after);
}
