// SPDX-License-Identifier: Apache-2.0
/*
 * left_bytes: the staged bytes that dead processes left for a file.  They lie in the staging directories of
 * the rules, and beside the file.  An open asks for them, and so does a call that names a file.
 */
#ifndef FASTWRITE_DESCRIPTORS_LEFT_BYTES_H
#define FASTWRITE_DESCRIPTORS_LEFT_BYTES_H

#include <stdbool.h>
#include <stdint.h>

struct rule;

/* At the start of a process, and of each child of a fork. */
void left_bytes_set_process(void);
/* True if dead processes may have left bytes in the staging directory of any rule.  (A rule whose files all
 * stage beside themselves has no such directory.) */
bool left_bytes_of_rules(void);
/* The same for the directory of the file `path`.  False if it is a rule's own directory, or if its files can
 * stage only there.  The path may be relative or lead through symlinks, and so into the directory of any
 * rule. */
bool left_bytes_beside(int dirfd, const char *path);
/* True if there may be bytes for the file in any of these places.  Also true if the path as written lies
 * below no rule's prefix: its place is not known. */
bool left_bytes_possible(int dirfd, const char *path);
/* If a rule matches `path` as written, recovers the bytes that a dead process staged for the file.  Called
 * after a call that only looks has succeeded, or before a call that changes the file.  True if a file got
 * bytes: the caller repeats its look. */
bool left_bytes_recover_named(int dirfd, const char *path);
/* The same for a file that is open as fd and matches `rule`.  Returns how many files got bytes. */
unsigned left_bytes_recover_opened(int fd, const struct rule *rule, const char *path, uint64_t dev);

#endif
