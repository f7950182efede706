// SPDX-License-Identifier: Apache-2.0
/*
 * user: can memory that the program passed to a call be read, or written?  If not, the call must fail with
 * EFAULT, as it does natively, instead of killing the program.
 *
 * The library asks here before it uses an argument that the kernel has not accepted yet: one system call per
 * page, which changes nothing.  A call with bad memory goes to the kernel, which returns the error.  (Another
 * thread may unmap the memory right after the check.  Natively the outcome of such a call is not certain,
 * either.)
 *
 * Pages that could be written are remembered: a read into the same buffer again asks nothing.  A program that
 * reads into such memory after it was unmapped gets a segmentation fault in place of EFAULT
 * (docs/guarantees.md, gap 8).
 *
 * Called by hooks and the core on slow paths.  Takes no lock and no memory.
 */
#ifndef FASTWRITE_BASE_USER_H
#define FASTWRITE_BASE_USER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { USER_PAGE = 4096, USER_PAGES = 8 };

/* Pages found readable during this call, so that each page is asked for once. */
struct user_pages {
	uintptr_t known[USER_PAGES];
	unsigned next;
};

/* The page of this function's frame is readable, and writable: arguments often lie there. */
#define USER_PAGES_INIT {.known = {(uintptr_t)__builtin_frame_address(0) & -(uintptr_t)USER_PAGE}, .next = 1}

/* True if all n bytes at p can be read. */
bool user_reads(struct user_pages *pages, const void *p, size_t n);
/* True if all n bytes at p can be written.  They stay as they are.  A page that could be written is not asked
 * for again until user_memory_changed. */
bool user_writes(void *p, size_t n);
/* Before and after a call of the program that may forbid it to write to some of its memory.  (Before: what is
 * asked meanwhile does not count afterwards.  After: what was asked before does not count from now on.) */
void user_memory_changed(void);
/* As user_reads, for a string with its NUL. */
bool user_reads_string(struct user_pages *pages, const char *s);
/* The same for a list of strings that ends with NULL. */
bool user_reads_list(char *const *list);

static inline bool user_readable(const void *p, size_t n)
{
	struct user_pages pages = USER_PAGES_INIT;

	return user_reads(&pages, p, n);
}

static inline bool user_string_readable(const char *s)
{
	struct user_pages pages = USER_PAGES_INIT;

	return user_reads_string(&pages, s);
}

#endif
