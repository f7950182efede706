// SPDX-License-Identifier: Apache-2.0
/* marked_fds: see files/marked_fds.h. */
#include "files/marked_fds.h"

#include "base/fork_guard.h"
#include "base/process_pages.h"

/* The state of a descriptor.  Above it stands the number of the question (ASKED), or how many renames there
 * were when it was asked (SHARES). */
enum { UNKNOWN, ASKED, MARKED, SHARES, STATES };

_Atomic uint64_t marked_fds[MARKED_FDS] __attribute__((aligned(PROCESS_PAGE)));
static _Atomic uint64_t questions, renames;

/* The C library replaces the standard descriptors by internal calls.  A vfork child has descriptors of its
 * own. */
static bool is_remembered(int fd) { return fd > 2 && fd < MARKED_FDS && !fork_guard_elsewhere(); }

bool marked_fds_is(int fd, bool shares)
{
	uint64_t now;

	if (!is_remembered(fd))
		return false;
	now = atomic_load(&marked_fds[fd]);
	return shares ? now == atomic_load(&renames) * STATES + SHARES : now % STATES >= MARKED;
}

struct marked_fds_question marked_fds_ask(int fd)
{
	struct marked_fds_question q = {
		.number = atomic_fetch_add(&questions, 1) * STATES + ASKED,
		.renames = atomic_load(&renames),
	};

	if (is_remembered(fd))
		atomic_store(&marked_fds[fd], q.number);
	return q;
}

void marked_fds_tell(int fd, struct marked_fds_question q, bool shares)
{
	if (is_remembered(fd))
		atomic_compare_exchange_strong(&marked_fds[fd], &q.number,
		                               shares ? q.renames * STATES + SHARES : MARKED);
}

void marked_fds_forget_range(unsigned from, unsigned to)
{
	for (unsigned fd = from; fd <= to && fd < MARKED_FDS; fd++)
		marked_fds_forget((int)fd);
}

PROCESS_CODE void marked_fds_fork_child(bool alone)
{
	if (atomic_load(&questions) > 0 || !alone)
		process_pages_zero((uint64_t *)marked_fds, (uint64_t *)&marked_fds[MARKED_FDS]);
}

void marked_fds_renamed(void) { atomic_fetch_add(&renames, 1); }
