// SPDX-License-Identifier: Apache-2.0
/*
 * inherit: programs that this one starts get the library, too, when it makes up their environment.
 *
 * What was in force at the start of this program is remembered.  It is put back into an environment
 *   - whose LD_PRELOAD does not name the library: our entry, behind all others;
 *   - that has no FASTWRITE_* at all: those of the start.  A program that passes some knows what it does.
 *
 * Nothing is put in
 *   - when the environment has FASTWRITE_INHERIT=0, or this program was started with inherit = 0;
 *   - when the new program would complain or fail: it is of another machine, or of musl, or it cannot read
 *     the library from where it runs;
 *   - when it is set-user-id: the loader ignores LD_PRELOAD there;
 *   - when a program that took away LD_PRELOAD alone starts itself again, or a script: it might find
 *     LD_PRELOAD there again, and go on for ever.
 *
 * The shell of system and popen gets the program's own environment as it is.  No malloc and no lock, since
 * exec is called after vfork and in signal handlers.  The program's own environment is not changed.
 */
#ifndef FASTWRITE_PROCESS_INHERIT_H
#define FASTWRITE_PROCESS_INHERIT_H

#include <stdbool.h>

/*
 * Remembers what is in force; nothing is put in before.  `library`: the path that the loader has for this
 * library.  0 or -errno.
 */
struct inherit_files {
	const char *config, *stats; /* FASTWRITE_CONFIG and FASTWRITE_STATS made absolute, or "" */
};
int inherit_start(const char *library, char *const *env, const struct inherit_files *files);

struct inherit_target {
	int dirfd;
	const char *path; /* "": dirfd itself */
	bool search;      /* along PATH, when it has no slash */
	int flags;        /* of execveat */
};

/* The environment for the new program: `env` itself (NULL: none), or one in memory that inherit_release gives
 * back.  Neither `env` nor the path need be readable: nothing is put in then. */
char *const *inherit_environment(char *const *env, const struct inherit_target *to);
/* After an exec that failed, a spawn, or in the parent of a vfork: this thread's memory. */
void inherit_release(void);

#endif
