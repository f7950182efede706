// SPDX-License-Identifier: Apache-2.0
/*
 * marked_fds: descriptors whose file is known to be marked as mapped (files/never_staged.h).
 *
 * A mark is never taken back.  So a program that maps or locks a file again and again need not ask each time
 * which file it is.
 *
 * The knowledge ends when the descriptor is closed or replaced.  A thread may be asking meanwhile.  So a
 * descriptor is forgotten twice: before it is closed, and after it is made.  Lock-free.
 */
#ifndef FASTWRITE_FILES_MARKED_FDS_H
#define FASTWRITE_FILES_MARKED_FDS_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

enum { MARKED_FDS = 1024 };

extern _Atomic uint64_t marked_fds[MARKED_FDS];

struct marked_fds_question {
	uint64_t number;
	uint64_t renames; /* so far */
};

/* True if the file of fd is marked as mapped; `shares`: and its rule as one that shares memory. */
bool marked_fds_is(int fd, bool shares);
/* Before the file of fd is looked up. */
struct marked_fds_question marked_fds_ask(int fd);
/* Its file is marked as mapped; `shares`: and its rule, if a rule matches. */
void marked_fds_tell(int fd, struct marked_fds_question q, bool shares);

static inline void marked_fds_forget(int fd)
{
	unsigned at = (unsigned)fd;

	if (at < MARKED_FDS && __builtin_expect(atomic_load(&marked_fds[at]) != 0, 0))
		atomic_store(&marked_fds[at], 0);
}
/* All from `from` to `to`. */
void marked_fds_forget_range(unsigned from, unsigned to);
/* In a forked process: the kernel copied the descriptors before this memory.  `alone`: no other thread ran.
 */
void marked_fds_fork_child(bool alone);
/* A file has another name, and another rule may match it. */
void marked_fds_renamed(void);

#endif
