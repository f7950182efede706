// SPDX-License-Identifier: Apache-2.0
/* hook_slots: the C library's streams make their calls through us; see hooks/stream_table.c. */
#ifndef FASTWRITE_HOOK_SLOTS_H
#define FASTWRITE_HOOK_SLOTS_H

#include <stdbool.h>
#include <stdio.h>

/* Puts our functions into the stream tables and tries them; fd_streams_seen says whether that worked, and if
 * not the tables are as they were and a message says why.  Called by init. */
void slots_install(void);

/* True when this stream is one of those whose calls are seen. */
bool slots_see(const FILE *stream);

#endif
