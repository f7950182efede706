// SPDX-License-Identifier: Apache-2.0
/*
 * user: memory that the program passed to a call may not be there, and then the call must fail with EFAULT, as natively,
 * instead of killing the program.
 *
 * What the library wants to look at before the kernel has accepted it is asked about here first.  The kernel is asked
 * by a call that reads memory and changes nothing, one for each page.  (A thread that unmaps the memory at this very
 * moment is not guarded against: natively, too, nobody could say what such a call does.)  What cannot be read the
 * library leaves to the kernel's judgement.
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

/* From the start: that of this function's own frame, where callers often have what they pass. */
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
