// SPDX-License-Identifier: Apache-2.0
/*
 * file: managed files (by device + inode) and open file descriptions, and their pools.
 *
 * Both structures are type-stable: never unmapped, and reused only through the pools.  So a thread with a
 * stale pointer may still take the lock in it.  Then it finds out that the pointer is stale.
 *
 * The pools are shared memory.  The processes of a family (files/family.h) use one copy of them.  So a file
 * is the same to all of them, whichever process opened it.  What differs from process to process, such as
 * descriptors, is in file_locals and ofd_locals.
 *
 * Position of an open file description.  POS_KERNEL: the kernel's offset is right.  POS_USER: ofd->pos is
 * right.  POS_STREAM: the position is the end of the last extent of the file's current block.  At most one
 * description per file is in this mode, and block_run.stream names it.  So the fast path publishes bytes and
 * moves the position with one store.
 *
 * Everything in struct file is protected by file->lock unless marked atomic.
 */
#ifndef FASTWRITE_FILES_FILE_H
#define FASTWRITE_FILES_FILE_H

#include "base/lock.h"
#include "config/config.h"
#include "files/arena_data.h"
#include "pages/overlay.h"

#include <fcntl.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

/*
 * The state of a file.  Only file_become and file_attach_undo change it, under the file's lock, and only as
 * drawn:
 *
 *      attach_file                      attach_abandon, attach_file (undone), repair
 *   +----------------> FILE_ATTACHED -------------------------------------+
 *   |                        |                                            |
 *   |  +---------------------+                                            |
 *   |  | detach_file, attach_file (undone), repair                        |
 *   |  v                                                                  v
 *  FILE_PASSIVE ---------------------------------------------------> FILE_BYPASSED
 *      ^        attach_bypass, attach_file (refused), repair              |
 *      |                                                                  |
 *      +------------------------------------------------------------------+
 *               attach_resume_all (e.g. an exec failed)
 *
 * A caller may be unable to detach or bypass a file at once: see enum file_wanted.
 */
enum file_mode {
	FILE_PASSIVE,  /* nothing is staged: calls pass to the kernel, small writes are counted */
	FILE_ATTACHED, /* small writes are staged */
	FILE_BYPASSED, /* calls pass to the kernel until the last close, or attach_resume_all */
};

/*
 * What is wanted of an attached file that could not be done at once: the caller was a signal handler, or a
 * process of the family that lacks the descriptor.  While anything is wanted, nothing more is staged.
 * attach_as_wanted does it later, under the file's lock.  A stronger wish replaces a weaker one, never the
 * reverse:
 *
 *                   detach_file                 attach_bypass, attach_to_arena
 *                 --------------->               ------------------------------->
 *   WANT_NOTHING                    WANT_DETACH                                   WANT_BYPASS
 *                 <---------------               <-------------------------------
 *            detach_file, attach_file                    attach_resume_all
 *
 * (attach_bypass and attach_to_arena also lead from WANT_NOTHING to WANT_BYPASS.)
 *
 * WANT_BYPASS has a reason; the newest one counts.  It outlives a detach: the file is bypassed at the first
 * write after it was attached again.
 */
enum file_wanted { WANT_NOTHING, WANT_DETACH, WANT_BYPASS };

enum pos_mode { POS_KERNEL, POS_USER, POS_STREAM };

/* Whose status flags and lease a description has. */
enum ofd_borrowed {
	OFD_OWN,      /* the program's, as in ofd.flags */
	OFD_BORROWED, /* those of the flush under way */
	OFD_LEFT,     /* those of a flush that is over, or whose flusher died: file_lock restores them */
};

struct file;

struct ofd {
	struct file *_Atomic file; /* stale, but set, while in the pool */
	struct ofd *next;          /* of the same file; or the pool's free list */
	uint32_t index;            /* in the pool */
	struct family_set holders; /* processes with a descriptor that refers to it */
	int flags;                 /* as F_GETFL reports: access mode, O_APPEND, O_DIRECT, O_SYNC, ... */
	uint32_t align_mask;       /* O_DIRECT: buffer and size must be multiples of this + 1; else 0 */
	uint32_t fast_mask;        /* the same for stage_fast; all ones if every write must be synced */
	enum pos_mode pos_mode;
	off_t pos;
	bool writable, readable;
	_Atomic uint32_t borrowed; /* enum ofd_borrowed */
	uint32_t errors_told;      /* file.sync.errors at the last report, see file_take_sync_error */
};

/* A process's part of a description. */
struct ofd_local {
	int fd;        /* one descriptor that refers to it */
	uint32_t refs; /* number of such descriptors */
};

/* A process's part of a file. */
struct file_local {
	_Atomic uint32_t refs;          /* descriptions; 0: this process does not have the file */
	_Atomic int internal_fd_plus_1; /* descriptor of the library; 0 = none, as in fresh memory */
	int internal_flags;             /* its status flags now */
	_Atomic int reader_plus_1;      /* the same for reads, where the program has none that reads */
	_Atomic uint32_t draining; /* threads that drain it (flush/ordered.h): nothing is staged meanwhile */
	_Atomic uint32_t queued;   /* in the worker threads' queue */
	bool stopped;              /* file lock held: attach_stop_all has bypassed it */
	struct file *queue_next;
};

/* Deadlines of a file, for the timer (attach/timer.h). */
enum file_due {
	DUE_FLUSH,   /* the oldest staged block is three quarters of `lag_ms` old */
	DUE_SYNC,    /* sync = relaxed: a promised sync */
	DUE_JOURNAL, /* no sync for a second: journal entries and the lease are no longer needed */
	DUE_CLOSED,  /* the program closed the last description that could write `lag_ms` ago */
	DUE_COUNT
};

/* What finishing a flush takes, for any thread with the file lock.  Set from the plan of the flush to its
 * end. */
struct flush_result {
	uint64_t end;   /* the file reaches at least to here */
	uint64_t bytes; /* to be written */
	int r;
};

struct file {
	struct lock lock;
	bool nested;               /* the lock's holder is a signal handler, see file_lock */
	_Atomic uint32_t mode;     /* enum file_mode */
	_Atomic uint32_t inflight; /* kernel calls under way while passive, or with lease.pass */
	/* staging/staging_policy.h */
	struct balance {
		_Atomic uint64_t rent_ns;  /* while passive: cost of its small writes since the last try */
		_Atomic uint64_t write_ns; /* what one costs: a moving average; 0 = not measured */
		int64_t credit_ns;         /* while attached: what staging saved less what it cost */
		uint32_t doublings;        /* of the price, at which it is attached */
	} balance;
	struct block_run *_Atomic current; /* open block, read by the fast path */

	_Atomic uint64_t dev, ino;       /* these and refs are read through stale pointers, too */
	_Atomic uint64_t due[DUE_COUNT]; /* by enum file_due: nanoseconds, 0 = nothing to do */
	uint32_t index;                  /* in the pool */
	struct file *hash_next;          /* or the pool's free list */
	struct ofd *ofds;
	_Atomic uint32_t refs;     /* descriptions of all processes */
	_Atomic bool shared;       /* was inherited: other processes may have it, too */
	_Atomic bool cooperates;   /* the program has locked it, see visibility_is */
	_Atomic bool needs_repair; /* a process died with the lock or the flush token, see attach/repair.h */
	/* The program has closed it while bytes are staged: it stands for them until f is detached.  It
	 * cannot be written to, and has no descriptor. */
	struct ofd *left;
	_Atomic uint32_t wanted;       /* enum file_wanted; set by file_want and file_want_less */
	enum bypass_reason wanted_why; /* of WANT_BYPASS */
	const struct rule *rule;
	enum bypass_reason why;
	/* enum bypass_reason: bypass f after the vfork or before the spawn, see process/child.h.  Not a wish:
	 * it is set without the lock, and must not be carried out while the child runs. */
	_Atomic uint32_t give_up;

	/* staging/paged.h: overlay.pages is set while the file is paged */
	struct overlay overlay;
	bool time_shown; /* the program has seen the time of the last write: the file keeps it */

	/* valid while attached */
	struct arena *arena;
	int entry;                     /* -1 = none */
	uint32_t takeovers;            /* of the file entry, as far as this family knows */
	struct block_run *head, *tail; /* staged blocks by seq; tail == current while current != NULL */
	uint32_t blocks;
	enum stage_kind kind;
	uint64_t staged_lo, staged_hi; /* staged bytes lie in [lo, hi) */
	uint64_t ksize;                /* the kernel's file size, as far as we know */
	uint64_t lsize; /* with all staged bytes but those of the open stream, see file_logical_size */
	bool sparse;    /* bytes below ksize may be holes */
	/* have no internal descriptor: to close it would drop the program's POSIX locks; or strict */
	_Atomic bool no_internal_fd;

	/* a write on the slow path: the description that it moves, from where, by how much (for a repair) */
	struct ofd *moving;
	uint64_t moving_from;
	uint64_t moving_bytes;
	uint64_t moving_since; /* if f is paged: what page_file.published was before that write */

	uint64_t writes, bytes; /* staged so far; added to the entry's counters now and then */
	/* block that an interrupted fast path may copy into: must not be freed */
	struct block_run *_Atomic pinned;

	/* flush/flush.h: the flush token, and the result of the last flush */
	struct {
		_Atomic uint32_t busy;       /* thread id of the flusher, 0 = none */
		_Atomic uint32_t process;    /* its process, family_me */
		_Atomic uint32_t generation; /* counts the flushes: identifies this one */
		_Atomic uint32_t events;     /* futex: raised when busy becomes 0 */
		uint32_t idle_waiters;       /* threads in flush_wait_idle: a flusher ends soon */
		_Atomic uint32_t io_done;    /* the flusher only has to take the lock and finish */
		struct flush_result result;  /* valid then; a signal handler may finish instead */
		bool program_fd;             /* the flusher uses a descriptor of the program */
		bool sets_direct;            /* and sets O_DIRECT where the program may read */
		bool was_read;               /* since the last flush */
		_Atomic uint32_t reads;      /* under way without the lock; too many after a kill */
		_Atomic bool flags_left;     /* a description is OFD_LEFT */
		bool direct_ok;              /* O_DIRECT works, with an alignment of at most 4096 */
		int error;            /* -errno of the last flush, 0 if it succeeded; the bytes stay staged */
		uint32_t append_skip; /* bytes of the first staged block that a partial append flush wrote */
		/* when DUE_FLUSH last came: all blocks up to this one are to be flushed */
		uint64_t lag_seq;
	} flush;

	/* flush/visibility.h, attach/watcher.h: the write lease on one of its descriptions */
	struct {
		struct ofd *_Atomic on; /* description that has the lease, or NULL */
		bool proves;            /* see base/lease.h */
		uint64_t seen_ns;       /* sys_now_ns() when it was held for sure */
		uint32_t wait_us;       /* open elsewhere: time between two tries; 0 = it was not */
		_Atomic uint64_t retry_ns;
		_Atomic bool pass; /* until then writes go to the kernel without the lock, see inflight */
	} lease;

	/* flush/prealloc.h: what is reserved in the file */
	struct {
		uint64_t start; /* [start, end) is reserved without a gap; end 0 = nothing */
		uint64_t end;
		uint64_t step;
		uint64_t gap_end; /* offset of the last write that left a gap behind the end, or end of the
		                     file at the last vfork; 0 = none */
		uint32_t block;   /* space is given out in such blocks; a power of two */
		bool plain;       /* a page takes one page of space (wal/spare.h) */
		bool no_trim;     /* the last try to give it back failed */
		/* end of a reservation that a detach kept; 0 = none, as far as is known */
		_Atomic uint64_t kept_end;
	} space;

	/* flush/ordered.h */
	struct {
		uint64_t epoch;  /* in which the overlay was changed last; 0 = not since the attach */
		uint64_t sized;  /* `first` of the log in which an epoch has the file's ksize; 0 = none */
		uint64_t logged; /* order_log.voids when an epoch had the file last; 0 = none since the attach
		                  */
		uint8_t removal; /* enum order_removal */
		bool behind;     /* the last cut is in the file, and perhaps not on the device */
		bool fresh;      /* the kernel may have bytes from before the attach that are not durable */
		_Atomic bool passed;    /* the same of bytes that went to the kernel, not through the log */
		_Atomic uint32_t syncs; /* of the program, not counted yet */
	} order;

	/* sync/sync.h; each description reports the last failed background sync, once */
	struct {
		bool full;            /* created or renamed here: the next sync must be fsync */
		uint32_t names_given; /* counts renames: one may come during a sync */
		uint64_t attributes;  /* file_attributes() when the last fsync of the file itself began */
		int error;            /* -errno */
		uint32_t errors;
		bool told; /* it was reported: a new description need not report it */
	} sync;

	/* sync/journal_file.h */
	struct {
		uint64_t changed; /* counts changes that reached the kernel and no journal */
		uint64_t durable; /* value of `changed` that a sync has covered */
		uint64_t durable_epoch;
		bool refused; /* it can have no lease */
		/* its journal has entries of this file that count; NULL = none has */
		struct arena *_Atomic arena;
		uint64_t number;                  /* of the file in that journal */
		uint64_t named;                   /* first batch of the half that has its name */
		_Atomic uint64_t first;           /* oldest batch with an entry that counts */
		uint64_t last;                    /* newest such batch */
		bool nameless;                    /* the name in its file entry is gone, the file is not */
		uint64_t puts;                    /* counts how often bytes were put there */
		uint32_t asked;                   /* its first syncs, counted up to a few */
		uint64_t block_seq, block_commit; /* staged bytes up to here are in the journal */
		struct journal_place void_place;  /* entries before it are about to be voided: */
		/* all entries, if no more were put since; ticket 0 = none */
		uint64_t void_puts, void_ticket;
		int failed;      /* -errno, see journal_file_failed; 0 = none */
		int64_t late_ns; /* of its JOURNAL_LATE entry that holds; 0 = none */
	} journal;

	/* sync/journal_policy.h */
	struct journal_turn {
		_Atomic uint64_t
			mean_ns[2];       /* from sync to sync, by the journal, by the device; 0 = unknown */
		_Atomic uint64_t last_ns; /* end of the last sync */
		_Atomic uint32_t syncs;   /* in this turn or trial */
		_Atomic uint32_t doublings; /* of the turn's length */
		_Atomic bool device, trial;
	} turn;
};

static inline bool file_is_due(const struct file *f, enum file_due what, uint64_t now)
{
	uint64_t due = atomic_load_explicit(&f->due[what], memory_order_relaxed);

	return due && due <= now;
}

/* From the first byte of a block to its flush: leaves time for the flushes of other files. */
static inline uint64_t file_lag_ns(const struct file *f)
{
	return (config_orders(&f->rule->set) ? f->rule->set.ordered_ms : f->rule->set.lag_ms) * 750000ull;
}

/* A power loss leaves it in order with the other files of its rule (flush/ordered.h). */
static inline bool file_is_ordered(const struct file *f) { return config_orders(&f->rule->set); }
/* Such a file may only be staged while a lease shows that nobody else has it open.  The lease stays until the
 * log has nothing of the file either: a replay must not undo what others write. */
static inline bool file_needs_lease(const struct file *f)
{
	return file_is_ordered(f) && !config_is_alone(&f->rule->set);
}

/* Bytes are staged that are not in the file: in blocks or in the overlay, never in both. */
static inline bool file_is_paged(const struct file *f) { return f->overlay.pages != NULL; }
static inline bool file_is_staged(const struct file *f) { return f->head || file_is_paged(f); }

/* File lock held, after staged blocks were added or removed. */
static inline void file_due_flush(struct file *f)
{
	f->due[DUE_FLUSH] = f->head ? f->head->opened_ns + file_lag_ns(f) : 0;
}

/* What the removal of the only name of an ordered file has come to (ordered_remove). */
enum order_removal {
	REMOVAL_NONE,
	REMOVAL_UNLOGGED, /* about to be removed; no epoch has it */
	REMOVAL_LOGGED,   /* about to be removed; the last epoch has it */
	REMOVAL_DONE,     /* its name is gone: what the epoch has of it need not go to it */
};

enum { FILE_POOL = 1 << 14, OFD_POOL = 1 << 16 };
extern struct file_local file_locals[FILE_POOL];
extern struct ofd_local ofd_locals[OFD_POOL];

static inline struct file_local *file_local(const struct file *f) { return &file_locals[f->index]; }
static inline struct ofd_local *ofd_local(const struct ofd *o) { return &ofd_locals[o->index]; }
static inline int file_internal_fd(const struct file *f) { return file_local(f)->internal_fd_plus_1 - 1; }
static inline int file_reader(const struct file *f) { return file_local(f)->reader_plus_1 - 1; }
static inline void file_set_reader(const struct file *f, int fd) { file_local(f)->reader_plus_1 = fd + 1; }
/* True if the library has a description of the file that the program does not have. */
static inline bool file_has_own_fd(const struct file *f)
{
	return file_local(f)->internal_fd_plus_1 > 0 || file_local(f)->reader_plus_1 > 0;
}
/* File lock held.  True if the program has several descriptions of the file, such as the connections of a
 * pool. */
bool file_is_open_twice(const struct file *f);
static inline void file_set_internal_fd(const struct file *f, int fd)
{
	file_local(f)->internal_fd_plus_1 = fd + 1;
}
/* A descriptor of this process that refers to o; -1: only other processes have one. */
static inline int ofd_fd(const struct ofd *o) { return ofd_local(o)->refs ? ofd_local(o)->fd : -1; }
/* Any descriptor of this process for the file, or -1. */
int file_fd(const struct file *f);
/* A descriptor of this process through which the file can be read, without O_DIRECT, or -1. */
int file_readable_fd(const struct file *f);

/* Creates the pools, at the first managed open: 0 or -errno. */
int file_pools_init(void);
/* In a forked child outside of the family: forgets every file and description of the parent.  A private copy
 * of them stays readable at the same addresses; in it no file is managed. */
void file_pools_reset(void);
/* In a forked child of the family: counts what it has, by its descriptors.  Calls `given` for each
 * description that the parent claimed for the child and that the child does not have. */
void file_fork_child(void (*given)(struct ofd *o));

/* The file with this identity, made if missing, with one more reference.  NULL: the pool is full. */
struct file *file_get(uint64_t dev, uint64_t ino, const struct rule *rule);
/* One more reference; the caller must hold one. */
void file_ref(struct file *f);
/* Like file_get, but makes no file and takes no reference.  NULL: unknown.  The result may go stale. */
struct file *file_find(uint64_t dev, uint64_t ino);
void file_put(struct file *f);
/* The file got a name here.  Its next sync must be an fsync, whether the file is known now or only later. */
void file_named(uint64_t dev, uint64_t ino);
/*
 * Counts the family's changes of modes, owners, times, flags and extended attributes: fdatasync leaves them
 * out.  One count for all files saves the look at which file a path or descriptor names.
 */
uint64_t file_attributes(void);
void file_attributes_changed(void); /* after the call */
static inline bool file_attributes_due(const struct file *f)
{
	return f->sync.attributes != file_attributes();
}
/* This process has closed its last descriptor of a description; other processes still have some. */
void file_leave(struct file *f);
/* Removes the reference of a description that only dead processes had.  True if it was the file's last. */
bool file_put_dead(struct file *f);

void ofd_set_align(struct ofd *o, uint32_t mask);
/* True if writes must be durable when they return.  (O_SYNC includes O_DSYNC.) */
static inline bool ofd_syncs(const struct ofd *o) { return o->flags & O_DSYNC; }
struct ofd *ofd_new(struct file *f, int fd, int flags);
/* File lock or flush token held.  The description still has a flush's flags, but the flush is over. */
void ofd_left(struct ofd *o);
/* File lock held.  Restores the flags and drops the leases that flushes left on this process's descriptions.
 * Other processes do so for theirs. */
void file_restore_locked(struct file *f);
/* Before a call that passes to the kernel without the lock. */
void file_restore_slow(struct file *f);
static inline void file_restore(struct file *f)
{
	if (__builtin_expect(atomic_load_explicit(&f->flush.flags_left, memory_order_relaxed), 0))
		file_restore_slow(f);
}
void ofd_release(struct ofd *o); /* file lock held; the reference to the file stays */

/* Number of attached files in the family.  0: no metadata hook has work. */
uint32_t file_attached(void);
/* File lock held.  `why`: for FILE_BYPASSED; otherwise only remembered. */
void file_become(struct file *f, enum file_mode to, enum bypass_reason why);
/* From FILE_ATTACHED, before anything was staged: the attach has failed. */
void file_attach_undo(struct file *f, enum file_mode to, enum bypass_reason why);
/* File lock held, also by the write that a signal handler interrupted.  Asks for `wanted`, unless something
 * stronger is wanted already.  `why`: of WANT_BYPASS. */
void file_want(struct file *f, enum file_wanted wanted, enum bypass_reason why);
/* File lock held.  If `wanted` is what is wanted, only the next weaker wish is left. */
void file_want_less(struct file *f, enum file_wanted wanted);
/* How often a file was detached, by any process.  All its staged bytes were in the kernel then. */
uint32_t file_detaches(void);

/* Counts changes of files that are seen only before they happen, see sync/journal_file.h. */
uint64_t file_epoch(void);
void file_epoch_raise(void);
/* Buffers for two batches of a's journal, aligned for O_DIRECT. */
uint8_t *file_journal_buffers(const struct arena *a);

/* Calls `visit` for every file of which this process has a description.  No lock is held during the call. */
void file_for_each(void (*visit)(struct file *f, void *ctx), void *ctx);
/* The same for every file of the family, also those that only dead processes have. */
void file_for_each_shared(void (*visit)(struct file *f, void *ctx), void *ctx);
/* The family's part of the shared memory.  NULL before file_pools_init. */
struct family *file_family(void);
/* False: no process of the family has ever had a managed file. */
bool file_any(void);
/* This process has a managed file open. */
bool file_any_open(void);
enum { FILE_ARENAS = 32 };
struct arena *file_arena_take(void); /* NULL: all in use */
/* The process that took it. */
uint32_t file_arena_taker(const struct arena *a);
void file_arena_give(const struct arena *a);
uint32_t file_arena_index(const struct arena *a);
void file_arena_for_each(void (*visit)(struct arena *a, void *ctx), void *ctx);

/* Work for a file that only upper layers can do.  attach/repair.c sets it before any file is managed.  Tests
 * of single modules leave it unset. */
struct file_care {
	/* Lock nested: the interrupted write must not publish. */
	void (*interrupt)(struct file *f);
	/* Lock held: a process died while it had the lock or the flush token. */
	void (*repair)(struct file *f);
	/* Lock held: another process staged f in an arena that is not mapped here yet. */
	void (*attach)(struct file *f);
	/* No lock held: withdraws the claims of dead processes. */
	void (*sweep)(void);
	/* Lock held: its journal has entries that count (sync/journal_file.h). */
	void (*announce)(struct file *f);
};
extern const struct file_care *file_care;
static inline void file_repair(struct file *f)
{
	if (file_care)
		file_care->repair(f);
}

/* True if the flusher of f is another process and has died.  The file lock need not be held. */
bool file_flusher_died(const struct file *f);
/* True if other living processes of the family have the file, too. */
bool file_others_have(const struct file *f);

/* For a child that has our memory and must not take locks: child_vfork_parent shall bypass the file with this
 * identity.  False: the file is not known. */
bool file_give_up(uint64_t dev, uint64_t ino, enum bypass_reason why);
void file_give_up_all(enum bypass_reason why);

/*
 * The file lock, with all signals of this thread blocked.
 *
 * This thread may have the lock already: a signal handler has interrupted the fast path (stage_fast), the
 * only code that holds the lock without blocking signals.  Then the handler works beside the interrupted
 * write, and f->nested is set until file_unlock.  The interrupted write still copies into its block, and
 * nothing but its own unlock says when it is over.  So the handler neither drops the lock nor waits for a
 * thread that needs it, and leaves that block alone.
 */
struct file_guard {
	uint64_t signals;
};
struct file_guard file_lock(struct file *f);
/* The same by a short section (base/signals.h).  What makes system calls in it hardens it first. */
struct file_guard file_lock_short(struct file *f);
void file_unlock(struct file *f, struct file_guard g);
/* The same for a caller that has blocked signals. */
void file_lock_again(struct file *f);
void file_drop(struct file *f);
/* file_lock_again without repair: a dead owner is only noted, in needs_repair.  For a caller that dropped the
 * lock for a moment, or repairs the file itself. */
void file_retake(struct file *f);

/* File lock held: the -errno of a failed background sync that o has not reported yet, or 0. */
int file_take_sync_error(struct file *f, struct ofd *o);
/* File lock held: a background sync has failed. */
void file_note_sync_error(struct file *f, int error);
/* True if a process outside of the family has flushed staged bytes of f, or is about to. */
static inline bool takeover_happened(const struct file *f)
{
	return f->shared && f->mode == FILE_ATTACHED && f->arena && f->entry >= 0 &&
	       atomic_load_explicit(&arena_entry_at(f->arena, (uint32_t)f->entry)->takeovers,
	                            memory_order_relaxed) != f->takeovers;
}

#endif
