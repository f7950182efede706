// SPDX-License-Identifier: Apache-2.0
/*
 * inherit: gives the library also to programs for which this one makes up the environment.
 *
 * The settings at the start of this program are remembered.  They are put back into an environment
 *   - whose LD_PRELOAD does not name the library: our entry, behind all others;
 *   - that has no FASTWRITE_* at all: those of the start.  A program that passes some has chosen them.
 *
 * Nothing is put in
 *   - if the environment has FASTWRITE_INHERIT=0, or this program was started with inherit = 0;
 *   - if the new program would complain or fail: it is of another machine or of musl, or it cannot read the
 *     library from where it runs;
 *   - if it is set-user-id: the loader ignores LD_PRELOAD there;
 *   - if a program that removed only LD_PRELOAD starts itself again, or a script: it might find LD_PRELOAD
 *     there again, and go on for ever.
 *
 * The shell of system and popen gets the program's own environment as it is.  No malloc and no lock, because
 * exec is called after vfork and in signal handlers.  The program's own environment is not changed.
 */
#ifndef FASTWRITE_PROCESS_INHERIT_H
#define FASTWRITE_PROCESS_INHERIT_H

#include <stdbool.h>

/*
 * Remembers the settings in force; before this call nothing is put in.  `library`: the path by which the
 * loader knows this library.  0 or -errno.
 */
struct inherit_files {
	const char *config, *stats; /* FASTWRITE_CONFIG and FASTWRITE_STATS made absolute, or "" */
};
int inherit_start(const char *library, char *const *env, const struct inherit_files *files);

/* From now on nothing is put in, and no system call is made. */
void inherit_end(void);

struct inherit_target {
	int dirfd;
	const char *path; /* "": dirfd itself */
	bool search;      /* along PATH, if it has no slash */
	int flags;        /* of execveat */
};

/* The environment for the new program: `env` itself (NULL: none), or a copy that inherit_release frees.  If
 * `env` or the path cannot be read, nothing is put in. */
char *const *inherit_environment(char *const *env, const struct inherit_target *to);
/* Frees this thread's copy: after a failed exec, after a spawn, or in the parent of a vfork. */
void inherit_release(void);

#endif
