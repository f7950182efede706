// SPDX-License-Identifier: Apache-2.0
/* pages_flush: writes what is staged in the overlay of pages to the file (staging/paged.h). */
#ifndef FASTWRITE_FLUSH_PAGES_FLUSH_H
#define FASTWRITE_FLUSH_PAGES_FLUSH_H

#include "files/file.h"

/* File lock held, signals blocked, no flusher at work.  0: f is not paged any more.  -errno, also in
 * f->flush.error: everything stays staged.  Keeps the lock, unless f is ordered. */
int pages_flush(struct file *f);

#endif
