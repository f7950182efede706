// SPDX-License-Identifier: Apache-2.0
/*
 * file: managed files (by device + inode) and open file descriptions, and the pools that they live in.
 *
 * Both structures are type-stable: never unmapped, reused only through the pools, so a thread that holds a
 * stale pointer may still take the lock in it and find out under the lock that it is stale.
 *
 * The pools are shared memory: the members of a family (files/family.h) use one copy of them, so that a file
 * is the same to all of them whoever opened it.  What differs from process to process, such as descriptor
 * numbers, is in file_locals and ofd_locals.
 *
 * Position of an open file description.  POS_KERNEL: the kernel's offset is right.  POS_USER: ofd->pos is
 * right.  POS_STREAM: the end of the last extent of the file's current block is the position; there is at
 * most one such description per file, named by block_run.stream, so that the fast path publishes bytes and
 * moves the position with one store.
 *
 * Everything in struct file is protected by file->lock unless marked atomic.
 */
#ifndef FASTWRITE_FILES_FILE_H
#define FASTWRITE_FILES_FILE_H

#include "base/lock.h"
#include "config/config.h"
#include "files/arena_data.h"

#include <fcntl.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

/*
 * The state of a file.  Only file_become changes it, under the file's lock, and only as drawn:
 *
 *              attach_file                    attach_bypass, attach_abandon, repair
 *   PASSIVE ─────────────────► ENGAGED ──────────────────────────────────────────► THROUGH
 *    ▲ │ ▲                        │                                                 ▲ │
 *    │ │ └────────────────────────┘ detach_file, repair                             │ │
 *    │ └────────────────────────────────────────────────────────────── attach_bypass┘ │
 *    └──────────────────────────────── attach_resume_all: the exec failed, say ───────┘
 *
 * What a caller wants and cannot do (a signal handler, a member of the family that lacks the descriptor) is
 * noted in bypass_wanted and detach_wanted: nothing more is staged, and attach_as_wanted does it later.
 */
enum file_mode {
	FILE_PASSIVE,  /* nothing staged yet: calls pass to the kernel, small writes are counted */
	FILE_ATTACHED, /* small writes are staged */
	FILE_BYPASSED, /* bypassed for good, or until the last descriptor is closed */
};

enum {
	FILE_ATTACH_AFTER = 2,    /* the first small write passes through, the second attaches */
	FILE_ATTACH_LATER = 1024, /* when it did not pay, or could not be */
};

enum pos_mode { POS_KERNEL, POS_USER, POS_STREAM };

/* Whose a description's status flags and lease are. */
enum ofd_borrowed {
	OFD_OWN,      /* the program's, as ofd.flags says */
	OFD_BORROWED, /* those of the flush that is under way */
	OFD_LEFT,     /* those of a flush that is over, or whose flusher died: file_lock gives them back */
};

struct file;

struct ofd {
	struct file *_Atomic file; /* stays, stale, while in the pool */
	struct ofd *next;          /* of the same file; or pool free list */
	uint32_t index;            /* in the pool */
	struct family_set holders; /* members with a descriptor that refers to it */
	int flags;                 /* as F_GETFL reports: access mode, O_APPEND, O_DIRECT, O_SYNC, ... */
	uint32_t align_mask; /* O_DIRECT: what buffer and size must be a multiple of, less one; else 0 */
	uint32_t fast_mask;  /* the same for stage_fast: all ones when every write is to be synced */
	enum pos_mode pos_mode;
	off_t pos;
	bool writable, readable;
	_Atomic uint32_t borrowed; /* enum ofd_borrowed */
	uint32_t errors_told;      /* of file.sync.errors, see file_take_sync_error */
};

/* What this process has of a description. */
struct ofd_local {
	int fd;        /* one descriptor that refers to it */
	uint32_t refs; /* descriptors */
};

/* What this process has of a file. */
struct file_local {
	_Atomic uint32_t refs;          /* descriptions; 0: the file is none of this process's business */
	_Atomic int internal_fd_plus_1; /* our own description on it, 0 = none: all of this begins as zeros */
	int internal_flags;             /* its status flags now */
	_Atomic uint32_t queued;        /* in the engine's queue */
	struct file *queue_next;
};

/* What the timer (attach/timer.h) has to do with a file. */
enum file_due {
	DUE_FLUSH, /* the oldest staged block has been there for three quarters of `lag_ms` */
	DUE_SYNC,  /* sync = relaxed: a sync was promised */
	DUE_LOG,   /* no sync was asked for since a second: entries in the log, and the lease, are needed no
	              more */
	DUE_COUNT
};

/* From its plan to its end: what finishing a flush takes, by whoever has the file lock. */
struct flush_result {
	uint64_t end;   /* of the file, at least */
	uint64_t bytes; /* that were to be written */
	int r;
};

struct file {
	struct lock lock;
	_Atomic uint32_t mode;         /* enum file_mode */
	_Atomic uint32_t inflight;     /* kernel calls under way on a passive file, or with lease.pass */
	_Atomic uint32_t small_seen;   /* small writes while passive */
	_Atomic uint32_t attach_after; /* the small write of this number attaches */
	struct habit {
		uint32_t looks, syncs; /* in a row that came after few writes */
		uint32_t asked;        /* syncs while it was staged */
		uint32_t times;        /* that it was given back for its looks or holes */
		uint32_t holes;        /* in a row that were filled by few writes */
		uint64_t writes, hole; /* file.writes at the last one; where that was */
	} habit;
	struct block_run *_Atomic current; /* open block, what the fast path looks at */

	_Atomic uint64_t dev, ino;       /* these and refs: looked at through stale pointers, too */
	_Atomic uint64_t due[DUE_COUNT]; /* by enum file_due: when, in nanoseconds; 0 = nothing is to do */
	uint32_t index;                  /* in the pool */
	struct file *hash_next;          /* or pool free list */
	struct ofd *ofds;
	_Atomic uint32_t refs;      /* descriptions, of all members */
	_Atomic bool shared;        /* has been inherited: other processes may have it, too */
	_Atomic bool cooperates;    /* the program has locked it: see visibility_is */
	_Atomic bool needs_repair;  /* a member died with the lock or the flush token: see attach/repair.h */
	struct ofd *left;           /* closed by a signal handler, and kept until that is done */
	_Atomic bool detach_wanted; /* stage nothing more before it has been released (detach_file) */
	_Atomic uint32_t bypass_wanted; /* enum bypass_reason: stage nothing more; written through as soon as
	                                   that can be */
	const struct rule *rule;
	enum bypass_reason why;
	_Atomic uint32_t give_up; /* enum bypass_reason: what process/child.h wants done with it */

	/* valid while attached */
	struct arena *arena;
	int slot;                      /* -1 = none */
	uint32_t takeovers;            /* of the slot, as far as this family knows */
	struct block_run *head, *tail; /* staged blocks by seq; tail == current while current != NULL */
	uint32_t blocks;
	enum stage_kind kind;
	uint64_t staged_lo, staged_hi; /* staged bytes lie in [lo, hi) */
	uint64_t ksize;                /* the kernel's file size as far as we know */
	uint64_t lsize; /* with everything staged; not counting the open stream, see file_logical_size */
	bool sparse;    /* bytes below ksize may be holes */
	_Atomic bool no_internal_fd; /* POSIX locks of the program, which closing a descriptor of ours would
	                                drop; or strict */

	/* a write on the slow path: whose position it moves, from where, by how much (attach/repair.h) */
	struct ofd *moving;
	uint64_t moving_from;
	uint64_t moving_bytes;

	uint64_t writes, bytes; /* absorbed; added to the slot's counters now and then */
	struct block_run *_Atomic
		pinned; /* block that an interrupted fast path may be copying into: not to be freed */

	/* flush/flush.h: the token, and how the last one went */
	struct {
		_Atomic uint32_t busy;       /* thread id of the flusher, 0 = none */
		_Atomic uint32_t process;    /* its process, family_me */
		_Atomic uint32_t generation; /* counts the flushes: names the one under way */
		_Atomic uint32_t events;     /* futex: raised when busy is given back */
		uint32_t idle_waiters;       /* threads in flush_wait_idle: a flusher soon stops */
		_Atomic uint32_t io_done;   /* the flusher has nothing left but to take the lock and finish */
		struct flush_result result; /* valid then; a signal handler may finish for it */
		bool program_fd;            /* the flusher changed the flags of a program descriptor */
		_Atomic bool flags_left;    /* a description is OFD_LEFT */
		bool direct_ok;             /* O_DIRECT works here, with at most 4096 of alignment */
		int error; /* -errno of the last flush, 0 when it succeeded; the bytes stay staged */
		uint32_t append_skip; /* bytes of the first staged block that a partial append flush wrote */
		uint64_t lag_seq;     /* when DUE_FLUSH came last: everything up to this block is to go out */
	} flush;

	/* flush/visibility.h, attach/watcher.h: the write lease on one of its descriptions */
	struct {
		struct ofd *_Atomic on; /* description that the lease is on, or NULL */
		bool proves;            /* see base/lease.h */
		uint32_t wait_us; /* somebody else has it open: ask again in such steps; 0 = nobody had */
		_Atomic uint64_t retry_ns;
		_Atomic bool pass; /* until then writes go to the kernel without the lock; see inflight */
	} lease;

	/* flush/prealloc.h: what is reserved in the file, and zeros written ahead of its end */
	struct {
		uint64_t start; /* [start, end) is reserved by us without a gap; end 0 = nothing */
		uint64_t end;
		uint64_t step;
		bool no_trim;              /* it could not be given back when that was asked last */
		_Atomic uint64_t kept_end; /* up to here it was not given back at a release; 0 = nothing, as
		                              far as is known */
		uint64_t zero_end;    /* the kernel's size: zeros stand from ksize to here; 0 = none do */
		uint32_t zero_wasted; /* times in a row that they were cut off before they were of use */
		bool zero_wanted;     /* a worker is to write more */
		bool zero_never;
		bool zero_synced; /* the device has a size that counts them */
	} space;

	/* sync/sync.h; each description is told once of the last background sync that failed */
	struct {
		bool full;            /* created or renamed here: the next sync is fsync */
		uint32_t names_given; /* counts the renames: one may come while the device is asked */
		uint64_t attributes; /* file_attributes() at the start of the last fsync of the file itself */
		int error;           /* -errno */
		uint32_t errors;
		bool told; /* somebody was: a description that comes now is not concerned */
	} sync;

	/* sync/journal_file.h */
	struct {
		uint64_t changed; /* counts what reached the kernel and no journal, and no sync has covered
		                     yet */
		uint64_t durable; /* of these a sync has covered */
		uint64_t durable_epoch;
		bool refused;                /* no lease is to be had for it */
		struct arena *_Atomic arena; /* in whose journal entries of this file count, NULL = in none */
		uint64_t number;             /* of the file there */
		uint64_t named;              /* first batch of the half that has its name */
		_Atomic uint64_t first;      /* oldest batch with an entry that counts */
		uint64_t last;               /* newest */
		bool nameless;               /* the name that its slot has is gone, the file is not */
		uint64_t puts;               /* counts the times that bytes were put there */
		uint32_t asked;              /* first syncs, counted up to a few */
		uint64_t block_seq, block_commit; /* staged bytes up to here are in the journal */
		struct journal_place void_place;  /* entries before it are about to be made void, */
		uint64_t void_puts, void_ticket;  /* all of them, if no more were put since; 0 = none */
		int failed;                       /* -errno, see journal_file_failed; 0 = none */
	} journal;
};

static inline bool file_is_due(const struct file *f, enum file_due what, uint64_t now)
{
	uint64_t due = atomic_load_explicit(&f->due[what], memory_order_relaxed);

	return due && due <= now;
}

/* File lock held: a block was added to those that are staged, or some are gone.  The flush is to be over in
 * time behind those of other files. */
static inline void file_due_flush(struct file *f)
{
	f->due[DUE_FLUSH] = f->head ? f->head->opened_ns + f->rule->set.lag_ms * 750000ull : 0;
}

enum { FILE_POOL = 1 << 14, OFD_POOL = 1 << 16 };
extern struct file_local file_locals[FILE_POOL];
extern struct ofd_local ofd_locals[OFD_POOL];

static inline struct file_local *file_local(const struct file *f) { return &file_locals[f->index]; }
static inline struct ofd_local *ofd_local(const struct ofd *o) { return &ofd_locals[o->index]; }
static inline int file_internal_fd(const struct file *f) { return file_local(f)->internal_fd_plus_1 - 1; }
static inline void file_set_internal_fd(const struct file *f, int fd)
{
	file_local(f)->internal_fd_plus_1 = fd + 1;
}
/* A descriptor of this process that refers to o; -1 when only other members have one. */
static inline int ofd_fd(const struct ofd *o) { return ofd_local(o)->refs ? ofd_local(o)->fd : -1; }
/* Any descriptor of this process on the file, -1 when there is none. */
int file_fd(const struct file *f);

/* Creates the pools; 0 or -errno.  Called once, lazily, at the first managed open. */
int file_pools_init(void);
/* In the child of a fork that does not belong to the family: forgets every file and description of the
 * parent.  What is known of them stays readable where it was, as a copy of its own that says that they are
 * not managed. */
void file_pools_reset(void);
/* In one that does: counts anew what it has, by its descriptors.  `given` is called with each description
 * that the parent has counted as the child's, too, and that it does not have. */
void file_fork_child(void (*given)(struct ofd *o));

/* The file with this identity, with one more reference; made when missing.  NULL when the pool is full. */
struct file *file_get(uint64_t dev, uint64_t ino, const struct rule *rule);
/* One more reference to a file that the caller holds one of. */
void file_ref(struct file *f);
/* Like file_get for an existing one, without a reference; NULL when unknown.  The result may go stale. */
struct file *file_find(uint64_t dev, uint64_t ino);
void file_put(struct file *f);
/* The file of this identity got a name here: its next sync is an fsync, whether it is known now or later. */
void file_named(uint64_t dev, uint64_t ino);
/*
 * Counts the changes of modes, owners, times, flags and extended attributes that the family makes, of any
 * file: fdatasync leaves them out.  One count for all files needs no look at which file a path or descriptor
 * names.
 */
uint64_t file_attributes(void);
void file_attributes_changed(void); /* after the call */
static inline bool file_attributes_due(const struct file *f)
{
	return f->sync.attributes != file_attributes();
}
/* This process's last descriptor of a description is gone; other members still have some. */
void file_leave(struct file *f);
/* A description that only dead members had is gone.  True when it was the file's last. */
bool file_put_dead(struct file *f);

void ofd_set_align(struct ofd *o, uint32_t mask);
/* Writes are to be durable when they return.  (O_SYNC is O_DSYNC and one bit more.) */
static inline bool ofd_syncs(const struct ofd *o) { return o->flags & O_DSYNC; }
struct ofd *ofd_new(struct file *f, int fd, int flags);
/* File lock held, or the flush token: its flags are no flush's any more, and not right yet. */
void ofd_left(struct ofd *o);
/* File lock held: gives flags back, and leases, of the descriptions that this process has; who has the others
 * comes here, too. */
void file_restore_locked(struct file *f);
/* Before a call that passes to the kernel without the lock. */
void file_restore_slow(struct file *f);
static inline void file_restore(struct file *f)
{
	if (__builtin_expect(atomic_load_explicit(&f->flush.flags_left, memory_order_relaxed), 0))
		file_restore_slow(f);
}
void ofd_release(struct ofd *o); /* file lock held; removes it from the file, not the file's reference */

/* Files that are attached, in the whole family: 0 means that no metadata hook has work. */
uint32_t file_attached(void);
/* File lock held.  `why`: for FILE_BYPASSED; otherwise kept for whoever asks. */
void file_become(struct file *f, enum file_mode to, enum bypass_reason why);
/* From FILE_ATTACHED, before anything was staged: it could not be attached after all. */
void file_attach_undo(struct file *f, enum file_mode to, enum bypass_reason why);
/* How often one of them was given back, by any member: everything that had been staged for it was in the
 * kernel. */
uint32_t file_detaches(void);

/* Counts what changes files in ways that are seen only before they happen; see sync/journal_file.h. */
uint64_t file_epoch(void);
void file_epoch_raise(void);
/* Two batches of a's journal, aligned for O_DIRECT. */
uint8_t *file_journal_buffers(const struct arena *a);

/* Calls back with every file that this process has a description of; no lock is held during the call. */
void file_for_each(void (*visit)(struct file *f, void *ctx), void *ctx);
/* The same with every file of the family, dead members' ones as well. */
void file_for_each_shared(void (*visit)(struct file *f, void *ctx), void *ctx);
/* The rest of the shared memory.  NULL before file_pools_init. */
struct family *file_family(void);
/* False: nobody of the family has ever had a managed file. */
bool file_any(void);
enum { FILE_ARENAS = 32 };
struct arena *file_arena_take(void); /* NULL: all in use */
/* The member that took it. */
uint32_t file_arena_taker(const struct arena *a);
void file_arena_give(const struct arena *a);
uint32_t file_arena_index(const struct arena *a);
void file_arena_for_each(void (*visit)(struct arena *a, void *ctx), void *ctx);

/* What only the layers above can do for a file; attach/repair.c says how, before any file is managed.  Tests
 * of single modules do without. */
struct file_care {
	/* With the lock held: a member died while it had the lock or the flush token. */
	void (*repair)(struct file *f);
	/* The same: another member staged for f in an arena that this process has not mapped yet. */
	void (*attach)(struct file *f);
	/* No lock held: withdraws what dead members claim. */
	void (*sweep)(void);
};
extern const struct file_care *file_care;
static inline void file_repair(struct file *f)
{
	if (file_care)
		file_care->repair(f);
}

/* The flusher of f is another process that has died.  File lock held or not. */
bool file_flusher_died(const struct file *f);
/* Other members of the family have the file, too. */
bool file_others_have(const struct file *f);

/* For a child that has our memory and must not take locks: the file of this identity is to be written
 * through, with child_vfork_parent.  False when it is not known. */
bool file_give_up(uint64_t dev, uint64_t ino, enum bypass_reason why);
void file_give_up_all(enum bypass_reason why);

/* File lock with all signals of this thread blocked.  `nested`: this thread held it already (we are in a
 * signal handler that interrupted the fast path). */
struct file_guard {
	uint64_t signals;
	bool nested;
};
struct file_guard file_lock(struct file *f);
/* The lock alone, signals blocked already.  True when nested. */
bool file_lock_again(struct file *f);
/* That, and nothing is looked after: a dead owner is only noted, in `damaged`.  Of who dropped the lock for a
 * moment, or repairs himself. */
bool file_retake(struct file *f);
void file_unlock(struct file *f, struct file_guard g);

/* File lock held: the -errno of a background sync that failed and that o has not been told of, or 0. */
int file_take_sync_error(struct file *f, struct ofd *o);
/* File lock held: one has failed. */
void file_note_sync_error(struct file *f, int error);
/* A process outside of the family has flushed staged bytes of f, or is about to. */
static inline bool takeover_happened(const struct file *f)
{
	return f->shared && f->mode == FILE_ATTACHED && f->arena && f->slot >= 0 &&
	       atomic_load_explicit(&arena_slot_at(f->arena, (uint32_t)f->slot)->takeovers,
	                            memory_order_relaxed) != f->takeovers;
}

#endif
