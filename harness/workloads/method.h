// SPDX-License-Identifier: Apache-2.0
/*
 * method: how one thread brings its records into its file.  A method is three calls on a job:
 * open (before the clock starts), put (one record; returns when the article's code would return) and
 * finish (bring what is still staged by the method itself into the file; not the sync).
 *
 *   write  E1, E2 and controls: one write(2) per record, or pwrite when the file is preallocated
 *   fwrite the same through the buffer of the C library
 *   mmap   E3: memcpy into a MAP_SHARED window of the file, munmap and mmap per window
 *   batch  E4: memcpy into one reused MAP_SHARED window of a second file, O_DIRECT pwrite when it is full
 *   anon   control: the same from anonymous memory
 */
#ifndef METHOD_H
#define METHOD_H

#include "lab.h"

#include <stdio.h>

struct options {
	const char *dir;
	const char *progress;
	uint64_t threads;
	uint64_t records; /* per thread */
	uint64_t record_bytes;
	uint64_t window;   /* bytes; mmap, batch, anon */
	uint64_t pause_us; /* sleep after every record; 0 = flat out */
	bool append, direct, prealloc, verbatim, sync;
};

/* What the fixed form of E4 keeps beside its window, so that recovery is possible: both only grow, each
 * is one aligned store.  The window holds the bytes [flushed, accepted) of the file. */
struct batch_header {
	_Atomic uint64_t accepted;
	_Atomic uint64_t flushed;
};

struct job {
	const struct options *options;
	uint64_t thread;
	int fd;
	char *record;  /* where the next record is prepared */
	char *window;  /* mmap: window of the file; batch: of batchN; anon: memory */
	uint64_t fill; /* bytes in the window */
	uint64_t base; /* file offset of the window (mmap), next file offset (batch, anon, write) */
	FILE *stream;  /* fwrite */
	struct batch_header *header; /* batch, fixed form only */
};

struct method {
	const char *name;
	void (*open)(struct job *job);
	void (*put)(struct job *job);
	void (*finish)(struct job *job);
};

/* NULL for an unknown name. */
const struct method *method_find(const char *name);

/* Bring what a killed run of the fixed E4 has left in batchN into dataN.  Returns bytes written. */
uint64_t batch_recover(const struct options *options, uint64_t thread);

#endif
