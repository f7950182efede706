// SPDX-License-Identifier: Apache-2.0
/*
 * cli_code: looks through machine code for an io_uring that is made without the C library.
 *
 * What is searched for is the system call's number as a constant that goes into a register, shortly before an
 * instruction that enters the kernel.  Both are found in liburing, linked statically or not, and in what compilers
 * make of a system call in assembly.  It is a hint, not a proof: the number may be computed, and four bytes may look
 * like it by chance.
 */
#include "command/command.h"

#include <string.h>

enum {
	SETUP = 425,  /* io_uring_setup, on every machine */
	DISTANCE = 48 /* bytes between the constant and the instruction */
};

#if defined(__x86_64__)

/* True when the four bytes at `at` are the constant that an instruction loads. */
static bool is_load(const unsigned char *code, size_t at)
{
	/* mov eax, imm32: B8 */
	if (at >= 1 && code[at - 1] == 0xb8)
		return true;
	/* mov rax, imm32: REX.W C7 C0 */
	if (at >= 3 && code[at - 3] == 0x48 && code[at - 2] == 0xc7 && code[at - 1] == 0xc0)
		return true;
	/* mov [rbp + disp8], imm32, as a compiler that does not optimize has it: C7 45 disp8 */
	return at >= 3 && code[at - 3] == 0xc7 && code[at - 2] == 0x45;
}

bool code_makes_io_uring(const unsigned char *code, size_t size)
{
	static const unsigned char number[4] = {SETUP & 0xff, SETUP >> 8, 0, 0};
	static const unsigned char enter[2] = {0x0f, 0x05}; /* syscall */
	const unsigned char *end = code + size;

	for (const unsigned char *p = code; (p = memmem(p, (size_t)(end - p), number, sizeof number)) != NULL;
	     p++) {
		size_t left = (size_t)(end - p);

		if (is_load(code, (size_t)(p - code)) &&
		    memmem(p, left < DISTANCE ? left : DISTANCE, enter, sizeof enter) != NULL)
			return true;
	}
	return false;
}

#elif defined(__aarch64__)

bool code_makes_io_uring(const unsigned char *code, size_t size)
{
	const uint32_t load = 0x52800000u | SETUP << 5 | 8; /* mov w8, #425; x8 with bit 31 */
	const uint32_t enter = 0xd4000001u;                 /* svc #0 */
	size_t since = DISTANCE;                            /* bytes since the constant */

	for (size_t at = 0; at + sizeof(uint32_t) <= size; at += sizeof(uint32_t)) {
		uint32_t word;

		memcpy(&word, code + at, sizeof word);
		if ((word & 0x7fffffffu) == load)
			since = 0;
		else if (word == enter && since < DISTANCE)
			return true;
		else if (since < DISTANCE)
			since += sizeof word;
	}
	return false;
}

#endif
