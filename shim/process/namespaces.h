// SPDX-License-Identifier: Apache-2.0
/*
 * namespaces: unshare, setns, capset, close_range(CLOSE_RANGE_UNSHARE).  The kernel refuses some of these to
 * a process with several threads, and others change the calling thread only.  So the library has no thread
 * meanwhile.
 *
 * Afterwards staging goes on.  Daemons drop capabilities by capset when they start (BIND, squid, chrony), and
 * write their logs for months after that.
 */
#ifndef FASTWRITE_PROCESS_NAMESPACES_H
#define FASTWRITE_PROCESS_NAMESPACES_H

#include "process/credentials.h"

#include <stdbool.h>
#include <stdint.h>

/* True when the program has one thread.  False when that cannot be told. */
bool namespaces_one_thread(void);

/* The process is about to enter other namespaces (CLONE_NEW...): the children to come may have thread ids of
 * their own kind, and cannot share locks with us.  In another user namespace it has no rights over those
 * outside. */
enum credentials_change namespaces_change(int flags);

/* Before and after the call.  Between the two the library has no thread, unless one cannot be stopped within
 * a second.  errno is kept.  `files`: the calling thread may leave the others' descriptor table. */
struct namespaces_state {
	uint64_t signals;
	bool stopped;
};
struct namespaces_state namespaces_begin(bool files);
void namespaces_end(struct namespaces_state state);

/* close_range by `next`, see descriptors/fd.h; CLOSE_RANGE_UNSHARE gives this thread descriptors of its own.
 */
long namespaces_close_range(unsigned from, unsigned to, int flags,
                            long (*next)(unsigned from, unsigned to, int flags));

#endif
