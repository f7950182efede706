// SPDX-License-Identifier: Apache-2.0
/*
 * page_replay: brings what the overlay of pages has for a file entry into the file.
 *
 * It makes the file as short as the program once made it, writes the pages, and gives it its size.  Doing it
 * again changes nothing: what the second time cuts off, the first one has written.
 */
#ifndef FASTWRITE_RECOVERY_PAGE_REPLAY_H
#define FASTWRITE_RECOVERY_PAGE_REPLAY_H

#include "recovery/job.h"

/* fd: the file, open for writing.  0 or -errno. */
int page_replay(struct recover_job *j, uint32_t entry, int fd, const struct page_scan_file *pages);

#endif
