// SPDX-License-Identifier: Apache-2.0
/* crc32c: see base/crc32c.h. */
#include "base/crc32c.h"

#include <stdatomic.h>
#include <stdbool.h>
#include <string.h>

enum { POLYNOMIAL = 0x82f63b78u };

/* table[k][b]: byte b, followed by k zero bytes */
static uint32_t table[8][256];
static _Atomic bool table_ready;

/* Idempotent: threads that run this at the same time store the same values. */
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
/*
 * The instruction accepts 8 bytes per cycle but has a latency of three cycles.  So three thirds of the data
 * are summed in parallel.  power[k] moves the sum of one third past 8k bytes: it is x^(64k - 33) modulo the
 * polynomial, because the instruction multiplies a product of two 32-bit polynomials by x^33.
 */
enum { THIRD_WORDS_MIN = 3, THIRD_WORDS_MAX = 171 }; /* 4 KiB are one turn */
static uint32_t power[2 * THIRD_WORDS_MAX + 1];

#define BY_PROCESSOR __attribute__((target("sse4.2,pclmul")))

/* Idempotent, as make_table. */
BY_PROCESSOR static void make_powers(void)
{
	uint64_t value = 1; /* x^31, the first bit is the highest power */

	for (int k = 1; k <= 2 * THIRD_WORDS_MAX; k++) {
		__atomic_store_n(&power[k], (uint32_t)value, __ATOMIC_RELAXED);
		value = __builtin_ia32_crc32di(value, 0);
	}
}

BY_PROCESSOR static inline uint64_t multiply(uint64_t crc, uint32_t by)
{
	typedef long long pair __attribute__((vector_size(16)));

	return (uint64_t)__builtin_ia32_pclmulqdq128((pair){(long long)crc, 0}, (pair){by, 0}, 0)[0];
}

/* Copies at most 8 bytes from offset `at` and returns them.  Each byte is loaded once, so that the stored and
 * the summed bytes are equal even if the source changes. */
__attribute__((always_inline)) static inline uint64_t take(uint8_t *to, const uint8_t *from, size_t at,
                                                           size_t size)
{
	uint64_t word = 0;

	memcpy(&word, from + at, size);
	__asm__ volatile("" : "+r"(word));
	if (to)
		memcpy(to + at, &word, size);
	return word;
}

/* The last 1 to 7 bytes in one step.  Zero bytes in front fill the word; they leave a sum of 0 unchanged. */
__attribute__((always_inline)) BY_PROCESSOR static inline uint64_t sum_tail(uint64_t state, uint8_t *to,
                                                                            const uint8_t *from, size_t size)
{
	const size_t bits = 8 * size;
	uint64_t word = 0;
	size_t at = 0;

	if (size & 4) {
		word = take(to, from, 0, 4);
		at = 4;
	}
	if (size & 2) {
		word |= take(to, from, at, 2) << (8 * at);
		at += 2;
	}
	if (size & 1)
		word |= take(to, from, at, 1) << (8 * at);
	return (state >> bits) ^ __builtin_ia32_crc32di(0, (state ^ word) << (64 - bits));
}

/* Sums; also copies if `to` is not NULL. */
__attribute__((always_inline)) BY_PROCESSOR static inline uint32_t by_processor(uint32_t crc, uint8_t *to,
                                                                                const uint8_t *from,
                                                                                size_t size)
{
	uint64_t state = (uint32_t)~crc;
	size_t at = 0;

	while (size - at >= 24 * THIRD_WORDS_MIN) {
		size_t words = (size - at) / 24 < THIRD_WORDS_MAX ? (size - at) / 24 : THIRD_WORDS_MAX;
		const size_t third = 8 * words, end = at + third - 8;
		uint64_t second = 0, last = 0, word;

		for (; at < end; at += 8) {
			state = __builtin_ia32_crc32di(state, take(to, from, at, 8));
			second = __builtin_ia32_crc32di(second, take(to, from, at + third, 8));
			last = __builtin_ia32_crc32di(last, take(to, from, at + 2 * third, 8));
		}
		state = __builtin_ia32_crc32di(state, take(to, from, at, 8));
		second = __builtin_ia32_crc32di(second, take(to, from, at + third, 8));
		word = take(to, from, at + 2 * third, 8);
		word ^= multiply(state, power[2 * words]) ^ multiply(second, power[words]);
		state = __builtin_ia32_crc32di(last, word);
		at += 2 * third + 8;
	}
	for (; size - at >= 8; at += 8)
		state = __builtin_ia32_crc32di(state, take(to, from, at, 8));
	if (size > at)
		state = sum_tail(state, to ? to + at : NULL, from + at, size - at);
	return ~(uint32_t)state;
}

BY_PROCESSOR static uint32_t sum_by_processor(uint32_t crc, const uint8_t *p, size_t size)
{
	return by_processor(crc, NULL, p, size);
}

BY_PROCESSOR static uint32_t copy_by_processor(uint32_t crc, uint8_t *to, const uint8_t *from, size_t size)
{
	return by_processor(crc, to, from, size);
}

static bool processor_can(void)
{
	enum { PCLMULQDQ = 1 << 1, SSE4_2 = 1 << 20 };
	uint32_t a = 1, b, c = 0, d;

	__asm__("cpuid" : "+a"(a), "=b"(b), "+c"(c), "=d"(d));
	if ((c & (SSE4_2 | PCLMULQDQ)) != (SSE4_2 | PCLMULQDQ))
		return false;
	make_powers();
	return true;
}
#elif defined(__aarch64__)
#include <sys/auxv.h>
__attribute__((target("+crc"))) static uint32_t sum_by_processor(uint32_t crc, const uint8_t *p, size_t size)
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

static uint32_t copy_by_processor(uint32_t crc, uint8_t *to, const uint8_t *from, size_t size)
{
	memcpy(to, from, size);
	return sum_by_processor(crc, to, size);
}

static bool processor_can(void) { return getauxval(AT_HWCAP) & (1u << 7); }
#endif

/* asked once: cpuid is slow in a virtual machine */
static _Atomic enum { UNKNOWN, TABLE, PROCESSOR } how;

__attribute__((noinline)) static bool find_out(void)
{
	bool can = processor_can();

	atomic_store_explicit(&how, can ? PROCESSOR : TABLE, memory_order_release);
	return can;
}

static inline bool can_by_processor(void)
{
	int known = atomic_load_explicit(&how, memory_order_acquire);

	return __builtin_expect(known == PROCESSOR, 1) || (known == UNKNOWN && find_out());
}

uint32_t crc32c(uint32_t crc, const void *data, size_t size)
{
	return can_by_processor() ? sum_by_processor(crc, data, size) : crc32c_table(crc, data, size);
}

uint32_t crc32c_copy(uint32_t crc, void *to, const void *from, size_t size)
{
	if (can_by_processor())
		return copy_by_processor(crc, to, from, size);
	memcpy(to, from, size);
	return crc32c_table(crc, to, size);
}

uint32_t crc32c_around(const void *data, size_t size, size_t at)
{
	const uint32_t zero = 0;
	const uint8_t *bytes = data;
	size_t after = at + sizeof zero;

	return crc32c(crc32c(crc32c(0, bytes, at), &zero, sizeof zero), bytes + after, size - after);
}
