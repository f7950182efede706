// SPDX-License-Identifier: Apache-2.0
/*
 * user: can memory that the program passed to a call be read?  If not, the call must fail with EFAULT, as it
 * does natively, and not kill the program.
 *
 * The library asks here before it looks at something that the kernel has not accepted yet.  One system call for
 * each page reads memory there and changes nothing.  What cannot be read is left to the kernel's judgement.
 * (Another thread may unmap the memory right after that.  What such a call does is not certain natively, either.)
 *
 * Called by hooks and the core on slow paths.  No lock, no memory of its own.
 */
#ifndef FASTWRITE_USER_H
#define FASTWRITE_USER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { USER_PAGE = 4096, USER_PAGES = 8 };

/* Pages that were readable a moment ago: several looks in one call need not ask for each. */
struct user_pages {
	uintptr_t known[USER_PAGES];
	unsigned next;
};

/* That of this function's frame is known from the start: what a caller passes is often close to it. */
#define USER_PAGES_INIT {.known = {(uintptr_t)__builtin_frame_address(0) & -(uintptr_t)USER_PAGE}, .next = 1}

/* True when all n bytes at p can be read. */
bool user_reads(struct user_pages *pages, const void *p, size_t n);
/* The same for a string and its end. */
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
