// SPDX-License-Identifier: Apache-2.0
/*
 * process_pages: what each start, fork and end of a process writes lies in few pages, and so does the code of
 * forks and ends.
 *
 * LD_PRELOAD reaches every process, and most of them gain nothing.  After a fork the first write to a page
 * copies it, in the parent and in the child, and the child maps code anew, 64 KiB at a time.  Each such page
 * fault costs as much as several system calls.
 */
#ifndef FASTWRITE_BASE_PROCESS_PAGES_H
#define FASTWRITE_BASE_PROCESS_PAGES_H

#include <stdint.h>

/* Of small variables. */
#define PROCESS_DATA __attribute__((section("process_data")))
/* Of functions: the linker puts them side by side. */
#define PROCESS_CODE __attribute__((hot))

/* A table that is emptied in the child begins a page of its own, so that nothing else is given back. */
enum { PROCESS_PAGE = 4096 };

/* In the child of a fork: zeros in a table of the library's own memory.  Whole pages are given back: they
 * cost nothing until they are used. */
void process_pages_zero(uint64_t *begin, uint64_t *end);

#endif
