// SPDX-License-Identifier: Apache-2.0
/*
 * unresolved: descriptors that were opened for writing and have not been examined yet.
 *
 * Most files get few writes and are closed: a lookup of path and rule would cost more than it can gain.  So
 * an open only notes the descriptor here, and its calls pass to the C library.  A later write resolves it
 * (staging_policy_resolve_at), or another call that needs its file.
 *
 * A dead process may have left bytes for the file (UNRESOLVED_UNSURE).  Then the first call that reads,
 * writes, seeks or stats resolves it, unless no rule matches its path.  The same holds for all descriptors in
 * a family (files/family.h), where another process may stage bytes for the file.  In a family, read-only
 * descriptors are noted, too.
 *
 * Only descriptors opened by this process are noted, and only until they are duplicated or inherited.
 * Lock-free.  Descriptors from UNRESOLVED_FDS on are never noted.
 */
#ifndef FASTWRITE_DESCRIPTORS_UNRESOLVED_H
#define FASTWRITE_DESCRIPTORS_UNRESOLVED_H

#include "files/fdtable.h"

#include <time.h>

/* Another thread may replace a descriptor while a call passes through the library (fd_dup_onto_prepare).  The
 * call then looks again, at most this often.  After that the kernel decides what the descriptor is. */
enum { ASK_TRIES = 8 };
/* Lets other threads run: yields, and sleeps 50 us every UNRESOLVED_YIELDS-th time.  The other thread may
 * need as long as a flush.  With real-time priorities a yield may let no other thread run. */
enum { UNRESOLVED_YIELDS = 64 };
void unresolved_pause(void);

/* False if fd cannot be noted. */
bool unresolved_note(int fd, int flags, const struct timespec *before, bool unsure);
static inline void unresolved_clear(int fd)
{
	/* a blocked descriptor, or one being resolved, stays as it is */
	if (unresolved_is(fd) && !fdtable_change_state(fd, UNRESOLVED_NOTED, UNRESOLVED_NONE))
		fdtable_change_state(fd, UNRESOLVED_UNSURE, UNRESOLVED_NONE);
}
/*
 * Before fd is closed or replaced: waits until another thread has resolved it, and removes its note.  The
 * table may show fd afterwards.
 */
void unresolved_end(int fd);
/* The same; threads that use fd from now on wait until it is unblocked.  The caller has all signals blocked.
 * False if fd cannot be blocked: from UNRESOLVED_FDS on, or in a signal handler, for which the other thread
 * may wait.  *noted: fd was unresolved until now, so that writes through it are counted. */
bool unresolved_block(int fd, bool *noted);
void unresolved_unblock(int fd);
/* The lowest noted descriptor from `from` on, or -1. */
int unresolved_next(int from);
/* Calls unresolved_use for all noted descriptors. */
void unresolved_use_all(void);
/* Before fork and vfork, which share the descriptions: resolves all noted descriptors.  Removes the note of
 * those that cannot be resolved. */
void unresolved_resolve_all(void);
/* Before fork and exec, which share the descriptions with another process. */
void unresolved_clear_all(void);

/* In the child of a fork: forgets all notes.  Another thread may have made a note between the kernel's copies
 * of descriptors and memory.  `alone`: there was none. */
void unresolved_fork_child(bool alone);

struct ofd *unresolved_write_noted(int fd, size_t size, uint32_t *counted);
/* Before a write of `size` bytes to any fd.  Returns the description if fd is managed.  NULL: pass the call
 * on, and call unresolved_written afterwards if *counted is not 0. */
static inline struct ofd *unresolved_write(int fd, size_t size, uint32_t *counted)
{
	*counted = 0;
	/* the state first: it ends after the description is set */
	return unresolved_is(fd) ? unresolved_write_noted(fd, size, counted) : fdtable_get(fd);
}
void unresolved_written(int fd, uint32_t counted);
/* Resolves fd if it is noted. */
void unresolved_resolve(int fd);

/* Before a sync; returns the description if fd is managed.  The file of a noted descriptor is not staged (an
 * attach makes the noted descriptors of its file known), so the kernel may make the sync as the program asked
 * for it. */
struct ofd *unresolved_synced(int fd, bool full);

/* False: it turned out that no process can have left bytes for fd. */
bool unresolved_stays_unsure(int fd);
/* Before a call that reads, seeks or stats: resolves fd only if it is UNRESOLVED_UNSURE. */
static inline void unresolved_use(int fd)
{
	if (__builtin_expect(fdtable_state(fd) >= UNRESOLVED_UNSURE, 0) && unresolved_stays_unsure(fd))
		unresolved_resolve(fd);
}

/* The same; returns the description if fd is managed. */
static inline struct ofd *unresolved_used(int fd)
{
	uintptr_t word = fdtable_word(fd);
	struct ofd *o = fdtable_description(word);

	if (__builtin_expect(!word, 1) || o)
		return o;
	unresolved_use(fd);
	return fdtable_get(fd); /* another thread may have resolved it since */
}

/* The same before a call that moves the position.  It resolves fd in any case: a thread that resolved fd
 * during the call would keep the old position. */
static inline struct ofd *unresolved_moved(int fd)
{
	uintptr_t word = fdtable_word(fd);
	struct ofd *o = fdtable_description(word);

	if (__builtin_expect(!word, 1) || o)
		return o;
	unresolved_resolve(fd);
	return fdtable_get(fd);
}

#endif
