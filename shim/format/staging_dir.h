// SPDX-License-Identifier: Apache-2.0
/*
 * staging_dir: the .gitignore of the staging directory, and the removal of that directory.
 *
 * In a git work tree the directory gets a .gitignore, so that no user adds it by accident.  Elsewhere it gets
 * none: every short program would create and remove that file for nothing.
 *
 * Used by: arena (live side), recover.
 */
#ifndef FASTWRITE_FORMAT_STAGING_DIR_H
#define FASTWRITE_FORMAT_STAGING_DIR_H

/* Called after the directory `dir`, open as dirfd, was created. */
void staging_dir_made(int dirfd, const char *dir);

/* Removes the directory if it contains nothing but our .gitignore.  Other processes may use or remove it
 * meanwhile. */
void staging_dir_remove(const char *dir);

#endif
