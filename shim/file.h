// SPDX-License-Identifier: Apache-2.0
/*
 * file: managed files (by device + inode) and open file descriptions, and the pools that they live in.
 *
 * Both structures are type-stable: never unmapped, reused only through the pools, so a thread that holds a
 * stale pointer may still take the lock in it and find out under the lock that it is stale.
 *
 * Position of an open file description.  POS_KERNEL: the kernel's offset is right.  POS_USER: ofd->pos is
 * right.  POS_STREAM: the end of the last extent of the file's current block is the position; there is at
 * most one such description per file, named by block_run.stream, so that the fast path publishes bytes and
 * moves the position with one store.
 *
 * Everything in struct file is protected by file->lock unless marked atomic.
 */
#ifndef FASTWRITE_FILE_H
#define FASTWRITE_FILE_H

#include "arena.h"
#include "config.h"
#include "lock.h"

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

enum file_mode {
	FILE_PASSIVE, /* nothing staged yet: calls pass to the kernel, small writes are counted */
	FILE_ENGAGED, /* small writes are staged */
	FILE_THROUGH, /* written through for good, or until the last descriptor is closed */
};

/* Why a file is written through; index of the counters in arena_header.live.through. */
enum through_reason {
	THROUGH_NONE,
	THROUGH_FORK,
	THROUGH_EXEC,
	THROUGH_MMAP,
	THROUGH_STDIO,
	THROUGH_STANDARD_FD, /* a descriptor 0..2 names it */
	THROUGH_UNKNOWN_FD,  /* the process holds a descriptor on it that the library did not see opened */
	THROUGH_SPLICE,
	THROUGH_UNLINKED,
	THROUGH_NO_ARENA,
	THROUGH_NO_THREAD,
	THROUGH_NO_PREALLOC,
	THROUGH_PATH,
	THROUGH_AIO,
	THROUGH_IOCTL,
	THROUGH_SYNC_OPEN,
	THROUGH_EXIT,
	THROUGH_COUNT
};
const char *through_reason_name(enum through_reason reason);

enum {
	FILE_ENGAGE_AFTER = 2,          /* the first small write passes through, the second engages */
	FILE_ENGAGE_AFTER_SHOWN = 1024, /* after staging proved useless */
	FILE_SHOWN_MAX = 8,
};

enum pos_mode { POS_KERNEL, POS_USER, POS_STREAM };

struct file;

struct ofd {
	struct file *_Atomic file; /* stays, stale, while in the pool */
	struct ofd *next;          /* of the same file; or pool free list */
	int flags;                 /* as F_GETFL reports: access mode, O_APPEND, O_DIRECT, O_SYNC, ... */
	int fd;                    /* one descriptor that refers to it */
	uint32_t refs;             /* descriptors of this process */
	uint32_t align_mask; /* O_DIRECT: what buffer and size must be a multiple of, less one; else 0 */
	enum pos_mode pos_mode;
	off_t pos;
	bool writable, readable;
};

struct file {
	struct lock lock;
	_Atomic uint32_t mode;       /* enum file_mode */
	_Atomic uint32_t inflight;   /* kernel calls under way on a passive file */
	_Atomic uint32_t small_seen; /* small writes while passive */
	uint32_t engage_after;       /* the small write of this number engages */
	uint32_t shown_early;        /* times in a row that nearly every write had to be shown at once */
	struct block_run *_Atomic current; /* open block, what the fast path looks at */

	uint64_t dev, ino;
	struct file *hash_next;
	struct ofd *ofds;
	uint32_t refs; /* descriptions */
	const struct rule *rule;
	enum through_reason why;

	/* valid while engaged */
	struct arena *arena;
	int slot;                      /* -1 = none */
	struct block_run *head, *tail; /* staged blocks by seq; tail == current while current != NULL */
	uint32_t blocks;
	enum stage_kind kind;
	uint64_t staged_lo, staged_hi; /* staged bytes lie in [lo, hi) */
	uint64_t ksize;                /* the kernel's file size as far as we know */
	uint64_t lsize; /* with everything staged; not counting the open stream, see file_logical_size */
	bool sparse;    /* bytes below ksize may be holes */
	bool no_own_fd; /* the program uses POSIX locks: closing a descriptor of ours would drop them */
	bool direct_ok; /* O_DIRECT works here, with at most 4096 of alignment */
	int own_fd;     /* our own description on it, -1 = none */
	int own_flags;  /* its status flags now */

	/* flush token */
	_Atomic uint32_t busy;        /* thread id of the flusher, 0 = none */
	_Atomic uint32_t busy_events; /* futex: raised when busy is given back */
	uint32_t idle_waiters;        /* threads in flush_wait_idle: a flusher goes no further than it must */
	_Atomic uint32_t busy_io_done; /* the flusher has nothing left but to take the lock and finish */
	struct flush_work *work;       /* what it would finish then; a signal handler may do it for it */
	bool busy_program_fd;          /* the flusher changed the flags of a program descriptor */
	_Atomic uint32_t queued;       /* in the engine's queue */
	struct file *queue_next;

	/* space */
	uint64_t prealloc_start; /* [start, end) is reserved by us without a gap; end 0 = nothing */
	uint64_t prealloc_end;
	uint64_t prealloc_step;

	/* sync */
	bool full_sync;          /* created or renamed here: the next sync is fsync */
	uint64_t relaxed_due_ns; /* 0 = none */
	int error;               /* -errno of the last flush, 0 when it succeeded; the bytes stay staged */
	int sync_error;          /* latched -errno of a failed background sync, reported once, then 0 */
	uint32_t append_skip;    /* bytes of the first staged block that a partial append flush wrote */
	bool lag_due;            /* the timer wants everything staged until now flushed */
	uint64_t lag_seq;        /* and up to this block that is under way */

	uint64_t writes, bytes; /* absorbed; added to the slot's counters now and then */
	struct block_run
		*pinned; /* block that an interrupted fast path may be copying into: not to be freed */
	struct file *all_next;
};

/* Creates the pools; 0 or -errno.  Called once, lazily, at the first managed open. */
int file_pools_init(void);
/* In the child of a fork: forgets every file and description of the parent. */
void file_pools_reset(void);

/* The file with this identity, with one more reference; made when missing.  NULL when the pool is full. */
struct file *file_get(uint64_t dev, uint64_t ino, const struct rule *rule);
/* One more reference to a file that the caller holds one of. */
void file_ref(struct file *f);
/* Like file_get for an existing one, without a reference; NULL when unknown.  The result may go stale. */
struct file *file_find(uint64_t dev, uint64_t ino);
void file_put(struct file *f);

struct ofd *ofd_new(struct file *f, int fd, int flags);
void ofd_release(struct ofd *o); /* file lock held; removes it from the file and drops the file reference */

/* Number of files that have ever been engaged and still exist: 0 means that no metadata hook has work. */
extern _Atomic uint32_t file_engaged_count;

/* Calls back with every file in the pools that is in use; no lock is held during the call. */
void file_for_each(void (*visit)(struct file *f, void *ctx), void *ctx);

/* File lock with all signals of this thread blocked.  `nested`: this thread held it already (we are in a
 * signal handler that interrupted the fast path). */
struct file_guard {
	uint64_t signals;
	bool nested;
};
struct file_guard file_lock(struct file *f);
void file_unlock(struct file *f, struct file_guard g);

#endif
