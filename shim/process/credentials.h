// SPDX-License-Identifier: Apache-2.0
/*
 * credentials: the process is about to change its rights: setuid, setgroups, capset, ...
 *
 * An arena belongs to the ids that made it, and so does the shared memory of a family: a process that has it
 * mapped can forge what the others write, and crash them.  So before a change of rights
 *   - everything staged is flushed;
 *   - every arena that only this process uses is removed, while the rights to do so last;
 *   - a process whose family has other living processes leaves the family.  It keeps no memory and no
 * descriptor of the family.  Both sides bypass the files that both have open. Later writes are staged in an
 * arena of the new ids, if these ids may write to the file by its path.
 *
 * begin and end enclose the call.  In a process that never managed a file and never forked they cost one
 * load.  Between them nothing is staged.  They hold no lock and block no signal, because the C library makes
 * every thread take part.
 */
#ifndef FASTWRITE_PROCESS_CREDENTIALS_H
#define FASTWRITE_PROCESS_CREDENTIALS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum credentials_change {
	CREDENTIALS_STAY,   /* the call changes nothing that matters to the library */
	CREDENTIALS_GROUPS, /* supplementary groups: they decide which files open, not who owns the memory */
	CREDENTIALS_CHANGE, /* user, group, capabilities */
};

/* -1: unchanged */
enum credentials_change credentials_of_users(uint32_t real, uint32_t effective, uint32_t saved);
enum credentials_change credentials_of_groups(uint32_t real, uint32_t effective, uint32_t saved);
/* Arguments of capset. */
enum credentials_change credentials_of_capabilities(const void *header, const void *data);

/* Pass the result of begin to end. */
bool credentials_begin(enum credentials_change change);
void credentials_end(bool begun);

/* The calling thread alone changes its rights: the process stages nothing from now on. */
void credentials_of_thread(void);

#endif
