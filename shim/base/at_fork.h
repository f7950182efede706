// SPDX-License-Identifier: Apache-2.0
/*
 * at_fork: what each fork writes, and the code that it runs, lie together in the library's memory.
 *
 * After a fork the first write to a page copies it, in the parent and in the child, and the child maps code
 * anew, 64 KiB at a time.  Each such page fault costs as much as several system calls.
 */
#ifndef FASTWRITE_BASE_AT_FORK_H
#define FASTWRITE_BASE_AT_FORK_H

#include <stdint.h>

/* Of variables. */
#define AT_FORK_DATA __attribute__((section("fork_data")))
/* Of functions: the linker puts them side by side. */
#define AT_FORK_CODE __attribute__((hot))

/* In the child of a fork: zeros in a table of the library's own memory.  Whole pages are given back: they
 * cost nothing until they are used. */
void at_fork_zero(uint64_t *begin, uint64_t *end);

/* Such a table begins a page of its own, so that nothing else is given back. */
enum { AT_FORK_PAGE = 4096 };

#endif
