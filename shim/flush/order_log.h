// SPDX-License-Identifier: Apache-2.0
/*
 * order_log: the log of one arena with sync = ordered, in this process: what flush/ordered.c, epoch.c and
 * ordered_names.c share.
 */
#ifndef FASTWRITE_FLUSH_ORDER_LOG_H
#define FASTWRITE_FLUSH_ORDER_LOG_H

#include "files/file.h"
#include "flush/order_directory.h"
#include "wal/transient.h"
#include "wal/wal.h"

/* Space for all pages in the log's file (wal/spare.h). */
enum spare_state {
	SPARE_NONE,
	SPARE_HELD,
	SPARE_DUE, /* no page may rely on it any more; it is given back at the end of the epoch */
};

/* (space of a log that was never written costs a commit of the file system's journal) */
enum { ORDER_LONG = 16 << 20 };

struct order_log {
	struct lock lead;            /* LOCK_LEAD: its holder is the leader */
	struct lock lock;            /* LOCK_ORDER: the leader has it, too, but for the write-back */
	struct arena *_Atomic arena; /* NULL: there is none */
	int refused;                 /* -errno: it could not be made */
	struct wal *wal;
	uint64_t dev;
	_Atomic uint32_t spare;  /* enum spare_state */
	_Atomic uint64_t looked; /* when it was last asked whether the disk is nearly full */
	/* The epoch that is being made durable. */
	uint64_t epoch;
	bool pending;              /* it has begun, and is not in the files */
	bool logged;               /* the log has it, */
	uint64_t logged_ns;        /* sys_now_ns() just before */
	struct file *gone;         /* a file that is removed with this epoch */
	struct file *going;        /* a file that is removed right after it, */
	uint64_t going_ino;        /* this one */
	_Atomic bool owed;         /* the log has it, and a thread of ours is to write it back */
	_Atomic bool dropped;      /* a file of the log is gone: the device knows it before the log ends */
	_Atomic uint64_t ended_ns; /* sys_now_ns() when the last epoch had come to the files */
	uint64_t most;             /* bytes of the log at which a checkpoint is due, up to ORDER_LONG */
	_Atomic int error;         /* -errno of the last epoch: what came after it is not durable either */
	_Atomic int broken;   /* -errno: a file could not be synced, and needs the log after a power loss */
	_Atomic bool settled; /* no epoch is under way */
	_Atomic bool quiet;   /* on the device no epoch counts, and none is under way */
	struct file **cut;    /* the files that it consists of; room for all entries of the arena */
	uint32_t count;
	uint64_t shortened_in; /* `first` of the log whose epochs made these files shorter: a bit for many
	                          files */
	uint64_t shortened;
	struct transient names;
	struct order_directory directory;
	bool voids;              /* the leader is about to void the log */
	_Atomic uint64_t voided; /* how often it was made void on the device, and 1 */
	/* when an epoch must have told of names that came, sys_now_ns(), even if no file is written; 0: none
	 */
	_Atomic uint64_t due;
};

extern struct order_log order_logs[FILE_ARENAS];
/* Logs that exist: without one no barrier has work. */
extern _Atomic uint32_t order_log_count;

static inline struct order_log *order_log_of(const struct arena *a)
{
	return &order_logs[file_arena_index(a)];
}

static inline struct arena_entry *order_entry_of(const struct file *f)
{
	return arena_entry_at(f->arena, (uint32_t)f->entry);
}

static inline void order_lead_begin(struct order_log *l)
{
	lock_take(&l->lead, LOCK_LEAD);
	lock_take(&l->lock, LOCK_ORDER);
}

static inline void order_lead_end(struct order_log *l)
{
	lock_drop(&l->lock, LOCK_ORDER);
	lock_drop(&l->lead, LOCK_LEAD);
}

#endif
