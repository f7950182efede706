// SPDX-License-Identifier: Apache-2.0
/*
 * pages_write: a cut of the overlay goes into its file: begin (file lock held; 0 or -errno, and then there is
 * no end), pieces (file lock or flush token held) and end (file lock held; 0 or -errno).
 *
 * A large append may go there before the rest: begin, `from` and `until_ns`, pieces, and end_append, which
 * leaves the cut as it is.
 */
#ifndef FASTWRITE_FLUSH_PAGES_WRITE_H
#define FASTWRITE_FLUSH_PAGES_WRITE_H

#include "flush/route.h"

struct pages_write {
	struct route route;
	uint64_t end; /* of the file in the kernel */
	uint64_t bytes;
	uint64_t from;     /* pieces before this offset are left out */
	uint64_t until_ns; /* nothing more is written then, sys_now_ns(), and a sync follows at once; 0: no
	                      limit */
	int r;
};

int pages_write_begin(struct file *f, struct pages_write *w);
void pages_write_pieces(struct file *f, struct pages_write *w);
int pages_write_end(struct file *f, struct pages_write *w);
int pages_write_end_append(struct file *f, struct pages_write *w);

/* File lock held: the overlay has nothing that the file does not have. */
void pages_all_written(struct file *f);

#endif
