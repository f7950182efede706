// SPDX-License-Identifier: Apache-2.0
/* handler: see base/handler.h.  Reads the stack by a system call, because its end is not known. */
#include "base/handler.h"

#include "base/sys.h"
#include "base/user.h"

#include <errno.h>
#include <signal.h>
#include <stddef.h>
#include <ucontext.h>

/* A handler that itself uses more stack than this is not found. */
enum { SEARCH_BYTES = 1 << 20, CHUNK_BYTES = 2048 };

/* Without the sanitizers, which keep what lies between a program's variables from being read. */
__attribute__((no_sanitize("address", "thread"))) static void copy_words(uint64_t *to, uintptr_t from,
                                                                         size_t size)
{
	for (size_t i = 0; i < size / sizeof *to; i++)
		to[i] = ((const volatile uint64_t *)from)[i];
}

static bool read_words(uintptr_t from, uint64_t *words, size_t size)
{
	struct iovec here = {words, size}, there = {(void *)from, size};
	long r = sys_raw(SYS_process_vm_readv, sys_getpid(), (long)&here, 1, (long)&there, 1, 0);

	/* Sandboxes forbid that call, and qemu's user emulation does not have it.  What lies behind this
	 * frame on its own stack stays while the function runs, so it is enough to ask whether it is there.
	 */
	if (r < 0 && r != -EFAULT && user_readable((const void *)from, size)) {
		copy_words(words, from, size);
		return true;
	}
	return r == (long)size;
}

#if defined(__x86_64__)
/* The kernel saves the segment registers of a 64-bit program as one word.  The context begins with flags of
 * three bits and a link that is 0. */
enum { MARK_STEP = 16, MARK_AT = 8 };

static bool is_mark(uint64_t word) { return (word & 0xffff00000000ffffu) == 0x002b000000000033u; }

static bool is_frame(uintptr_t mark)
{
	uint64_t head[2];

	return read_words(mark - offsetof(ucontext_t, uc_mcontext.gregs[REG_CSGSFS]), head, sizeof head) &&
	       head[0] < 8 && head[1] == 0;
}

/* The first word of the thread control block is its address.  (GCC has a builtin for it from 11 on.) */
static uintptr_t thread_pointer(void)
{
	uintptr_t own;

	__asm__("mov %%fs:0, %0" : "=r"(own));
	return own;
}
#elif defined(__aarch64__)
/* Magic number and size of the record of the vector registers, the first record of the frame's extensions. */
enum { MARK_STEP = 16, MARK_AT = 0 };

static bool is_mark(uint64_t word) { return word == 0x0000021046508001u; }

static bool is_frame(uintptr_t mark)
{
	(void)mark;
	return true;
}

static uintptr_t thread_pointer(void) { return (uintptr_t)__builtin_thread_pointer(); }
#endif

static bool search(uintptr_t from)
{
	uint64_t words[CHUNK_BYTES / sizeof(uint64_t)];
	uintptr_t end = from + SEARCH_BYTES, own = thread_pointer();

	from -= from % MARK_STEP;
	/* the thread control block lies at the upper end of the stack */
	if (own > from && own < end)
		end = own;
	for (uintptr_t at = from; at < end;) {
		size_t size = CHUNK_BYTES - at % CHUNK_BYTES; /* not across the end of a page */

		if (!read_words(at, words, size))
			return at == from; /* the stack's end; or nothing can be asked: in doubt, true */
		for (size_t i = 0; i < size / sizeof *words; i++)
			if ((at + i * sizeof *words) % MARK_STEP == MARK_AT && is_mark(words[i]) &&
			    is_frame(at + i * sizeof *words))
				return true;
		at += size;
	}
	return false;
}

bool handler_runs(void)
{
	stack_t stack;

	/* before search(), which needs a buffer: an alternate stack may be small */
	if (sys_raw(SYS_sigaltstack, 0, (long)&stack, 0, 0, 0, 0) == 0 && (stack.ss_flags & SS_ONSTACK))
		return true;
	return search((uintptr_t)__builtin_frame_address(0));
}
