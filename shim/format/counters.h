// SPDX-License-Identifier: Apache-2.0
/*
 * counters: what an arena counts, for each file and for all of them.  The numbers are indexes in the arena's
 * file.
 *
 * Used by: staging and stats (count), `fastwrite status` (shows).
 */
#ifndef FASTWRITE_FORMAT_COUNTERS_H
#define FASTWRITE_FORMAT_COUNTERS_H

enum arena_counter {
	COUNT_WRITES,  /* write calls staged */
	COUNT_BYTES,   /* bytes staged */
	COUNT_FLUSHES, /* flush runs */
	COUNT_FLUSH_BYTES,
	COUNT_DIRECT_BYTES, /* of these by O_DIRECT */
	COUNT_SYNCS_ASKED,
	COUNT_SYNCS_DONE,
	COUNT_DRAINS,
	COUNT_MAX,
	/* Syncs that the journal answered.  It has a field of its own in entry and header. */
	COUNT_JOURNALED = COUNT_MAX,
	COUNT_ALL
};

/* "writes", "bytes", ... */
const char *counter_name(enum arena_counter counter);

/* Why writes to a file bypass staging; index of arena_header.live.through.  New ones go to the end. */
enum bypass_reason {
	BYPASS_NONE,
	BYPASS_FORK,
	BYPASS_EXEC,
	BYPASS_MMAP,
	BYPASS_STDIO,
	BYPASS_STANDARD_FD, /* standard input, output or error refers to it (descriptors/fd.h) */
	BYPASS_UNKNOWN_FD,  /* the process holds a descriptor on it that the library did not see opened */
	BYPASS_SPLICE,
	BYPASS_UNLINKED,
	BYPASS_NO_ARENA,
	BYPASS_NO_THREAD,
	BYPASS_NO_PREALLOC,
	BYPASS_PATH,
	BYPASS_AIO,
	BYPASS_IOCTL,
	BYPASS_SYNC, /* the file system, or the file, is synchronous */
	BYPASS_EXIT,
	BYPASS_NO_LEASE,   /* visibility = strict, and no leases here */
	BYPASS_LEASE_BUSY, /* visibility = strict, while somebody else has it open */
	BYPASS_INHERITED,  /* another program has a description of it */
	BYPASS_CLONE,
	BYPASS_PASSED,    /* another process got the description by a message */
	BYPASS_IO_URING,  /* the process has an io_uring, which reads and writes where nobody sees it */
	BYPASS_ENCRYPTED, /* its file system encrypts it, but not the arena, or with another key */
	BYPASS_RIGHTS,    /* recovery could not write to it, or the process changes its ids
	                     (process/credentials.h) */
	BYPASS_SYSCALL,   /* it is read or written by syscall() */
	BYPASS_REPLACED,  /* it replaced a descriptor through which another thread may be writing */
	BYPASS_SET_ID,    /* a write takes its set-id bits or capabilities */
	BYPASS_SECCOMP,   /* the process has asked for a filter that may refuse the library's calls */
	BYPASS_COUNT
};
const char *bypass_reason_name(enum bypass_reason reason);
/* The same as the end of the sentence "PATH is bypassed: ...". */
const char *bypass_reason_text(enum bypass_reason reason);

#endif
