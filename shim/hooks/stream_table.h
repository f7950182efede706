// SPDX-License-Identifier: Apache-2.0
/* stream_table: the C library's streams make their calls through the library; see hooks/stream_table.c. */
#ifndef FASTWRITE_HOOKS_STREAM_TABLE_H
#define FASTWRITE_HOOKS_STREAM_TABLE_H

#include <stdbool.h>
#include <stdio.h>

/* Puts our functions into the stream tables and tests them.  If that works, sets fd_streams_seen.  Otherwise
 * restores the tables and logs the reason.  Called by init. */
void stream_table_install(void);

/* True if the library sees the calls of this stream. */
bool stream_table_sees(const FILE *stream);

#endif
