// SPDX-License-Identifier: Apache-2.0
/* log_file: the file beside an arena that makes syncs durable: a journal (sync/journal.h) or a log
 * (flush/ordered.h). */
#ifndef FASTWRITE_STAGING_LOG_FILE_H
#define FASTWRITE_STAGING_LOG_FILE_H

#include "files/arena_data.h"

/* Opens it for O_DIRECT, with O_CREAT and the like in `flags`: an internal descriptor, or -errno.  Only in a
 * thread of the program: the descriptor has a low number for a moment. */
int log_file_open(const struct arena *a, int flags);
void log_file_remove(const struct arena *a);
/* False if what is written to fd lies in memory or on another machine: a sync costs nothing there, or no less
 * by a log. */
bool log_file_has_disk(int fd);
/* Makes its name durable.  0 or -errno. */
int log_file_sync_names(const struct arena *a);

#endif
