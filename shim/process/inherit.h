// SPDX-License-Identifier: Apache-2.0
/*
 * inherit: programs that this one starts get the library, too, when it makes up their environment.
 *
 * What was in force at the start of this program is remembered.  When it passes on an environment
 *   - whose LD_PRELOAD does not name the library, the entry is put in, behind those that were in front of it;
 *   - that has no FASTWRITE_* at all, those of the start are added.  A program that passes some knows what it does.
 * Nothing is put in when the environment has FASTWRITE_INHERIT=0, or this program was started with inherit = 0; when
 * the new program would only complain (it is for another machine, or for musl, or the library cannot be read from where
 * it runs);
 * when it is set-user-id (the loader ignores LD_PRELOAD there); and when a program that took away LD_PRELOAD alone
 * starts itself again, or a script: it might find LD_PRELOAD there again, and go on for ever.
 *
 * No malloc and no lock, since exec is called after vfork and in signal handlers; the program's own environment is not
 * changed.
 */
#ifndef FASTWRITE_INHERIT_H
#define FASTWRITE_INHERIT_H

#include <stdbool.h>
#include <stddef.h>

/*
 * Remembers what is in force; nothing is put in before.  `library`: the path that the loader has for this library.
 * 0 or -errno.
 */
struct inherit_files {
	const char *config, *stats; /* FASTWRITE_CONFIG and FASTWRITE_STATS made absolute, or "" */
};
int inherit_start(const char *library, char *const *env, const struct inherit_files *files);

struct inherit_target {
	int dirfd;
	const char *path; /* "": dirfd itself; NULL: not known */
	bool search;      /* along PATH, when it has no slash */
};

/* A decision, and what carrying it out takes. */
struct inherit {
	char *const *env;      /* the program's */
	size_t count;          /* of its entries */
	size_t preload;        /* its LD_PRELOAD, `count` when there is none */
	bool entry, variables; /* to be put in */
	size_t bytes;          /* of room for the new environment, 0 = nothing is to be put in */
};

/* Decides about `env` (NULL: empty).  Neither it nor what is started need be readable: nothing is put in then. */
void inherit_look(struct inherit *in, char *const *env, const struct inherit_target *to);

/* The new environment, in `room` of in->bytes, or, when that is NULL, in memory that inherit_release gives back; the
 * program's own when nothing is put in, or there is no memory. */
char *const *inherit_fill(const struct inherit *in, void *room);
/* Up to so many bytes are taken from the stack. */
enum { INHERIT_STACK_MAX = 8192 };
/* After an exec that failed, a spawn, or in the parent of a vfork: this thread's memory from inherit_fill. */
void inherit_release(void);

/* False when the kernel might refuse arguments together with the new environment, where it takes the program's own. */
bool inherit_fits(const struct inherit *in, char *const *argv);

/* For a command that the C library starts by a shell, in the program's own environment: the same command behind the
 * assignments that the environment lacks, in memory that inherit_release gives back; or `command` itself. */
const char *inherit_command(const struct inherit *in, const char *command);

#endif
