// SPDX-License-Identifier: Apache-2.0
/*
 * credentials: the process is about to act with other rights: setuid, setgroups, capset, ...
 *
 * An arena belongs to the ids that it was made with, and so does the memory of a family: who has it mapped can forge
 * what the others write, and crash them.  So before a change everything staged is flushed, every arena that only this
 * process has is removed while the rights to do so are there, and a process whose family has other live members leaves
 * it: no memory and no descriptor of the family stays in it, and the files that both have are written through.  What is
 * opened or written afterwards is staged anew, in an arena of the new ids, if these may write to the file by its path.
 *
 * begin and end stand around the call.  Without a managed file and without a fork before they cost one load.  Between
 * them nothing is staged.  No lock is held and no signal blocked, since the C library makes every thread take part.
 */
#ifndef FASTWRITE_CREDENTIALS_H
#define FASTWRITE_CREDENTIALS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum credentials_change {
	CREDENTIALS_STAY,   /* the call changes nothing, or nothing that the library has depends on it */
	CREDENTIALS_GROUPS, /* further groups: they say which files can be opened, not whose memory this is */
	CREDENTIALS_CHANGE, /* user, group, capabilities */
};

/* real, effective, saved; -1: as it is */
enum credentials_change credentials_of_users(uint32_t real, uint32_t effective, uint32_t saved);
enum credentials_change credentials_of_groups(uint32_t real, uint32_t effective, uint32_t saved);
/* Arguments of capset. */
enum credentials_change credentials_of_capabilities(const void *header, const void *data);

/* What begin returns is for end. */
bool credentials_begin(enum credentials_change change);
void credentials_end(bool begun);

/* The calling thread alone gets other rights than the rest of the process: nothing is staged from now on. */
void credentials_of_thread(void);

#endif
