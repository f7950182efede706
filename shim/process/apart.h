// SPDX-License-Identifier: Apache-2.0
/*
 * apart: a process that copies itself past the fork handlers, and calls after which its threads no longer share what
 * threads share.  The library's own threads must not stand in the way of such a call, nor stay behind in what the
 * program has left.
 */
#ifndef FASTWRITE_APART_H
#define FASTWRITE_APART_H

#include "process/credentials.h"

#include <stdbool.h>
#include <stdint.h>

/*
 * A fork by system call: `make` performs it and returns what it returned.  Parent and child write the files that are
 * open now through; the child never stages anything, since it may not start a thread (nothing prepared the C
 * library's own locks for the copy).
 */
long apart_fork(long (*make)(const long *arguments), const long *arguments);

/* Before any other clone, of which both sides may go on in the same memory with the same thread-local variables:
 * nothing is staged from now on. */
void apart_clone(void);

/* True when the program has one thread.  False when that cannot be told. */
bool apart_alone(void);

/* The process is about to enter other namespaces (CLONE_NEW...): the children to come may have thread ids of their own
 * kind, and cannot share locks with us.  In another user namespace it has no rights over those outside. */
enum credentials_change apart_namespaces(int flags);

/* unshare, setns, close_range(CLOSE_RANGE_UNSHARE), ...: between the two the library has no thread, unless one cannot
 * be stopped within a second.  `files`: the calling thread may leave the descriptor table that the others use. */
struct apart {
	uint64_t signals;
	bool stopped;
};
struct apart apart_begin(bool files);
void apart_end(struct apart a);

/* close_range by `next`, see descriptors/fd.h; CLOSE_RANGE_UNSHARE gives this thread descriptors of its own. */
long apart_close_range(unsigned from, unsigned to, int flags,
                       long (*next)(unsigned from, unsigned to, int flags));

#endif
