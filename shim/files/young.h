// SPDX-License-Identifier: Apache-2.0
/*
 * young: the file that the last open of this thread has made, as long as no other descriptor or name has come
 * in this process since, and the process has started no other.  Such a file has no descriptor that is not
 * known, and has the path that the open has found.  So its first write need not search for either
 * (attach/attach.c).
 *
 * Another open calls young_other when it has its descriptor, and asks afterwards whether a file is attached.
 * An attach counts the file as attached, and asks young_is afterwards.  One of the two sees the other.
 *
 * Only files in order are young (descriptors/fd.c).  Lock-free.
 */
#ifndef FASTWRITE_FILES_YOUNG_H
#define FASTWRITE_FILES_YOUNG_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

/* How long a file is young: other programs may open or rename it, too.  (A rename is missed at any time after
 * the attach.) */
enum { YOUNG_NS = 100000000, YOUNG_PATH_MAX = 256 };

/* Counts descriptors and names that come, once an open was about to make a file in order (young_any). */
extern _Atomic uint32_t young_changes;
extern _Atomic bool young_any;

/* Before the path is found for the open, which makes the file or fails (O_EXCL).  Returns what young_made
 * needs. */
uint32_t young_coming(void);
/* The file that is coming has this path for certain, absolute and free of links.  False: it is too long. */
bool young_found(const char *path);
/* The open has made the file with this identity.  True: it is young. */
bool young_made(uint32_t coming, uint64_t dev, uint64_t ino);

/* A descriptor of any other file may have come, or a name may have changed. */
static inline void young_other(void)
{
	if (atomic_load(&young_any))
		atomic_fetch_add(&young_changes, 1);
}

bool young_is(uint64_t dev, uint64_t ino);
/* The path of the file that young_is has found, or NULL: not known.  Valid until the thread's next open. */
const char *young_path(void);
/* This thread's file is young no longer. */
void young_end(void);

#endif
