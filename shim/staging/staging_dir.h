// SPDX-License-Identifier: Apache-2.0
/*
 * staging_dir: what the staging directory beside the data has of its own, and how it goes.
 *
 * In a work tree of git it has a .gitignore, so that nobody adds it by accident.  Outside of one that would be a file made
 * and removed for nothing by every short program.
 *
 * Used by: arena (live side), recover.
 */
#ifndef FASTWRITE_STAGING_DIR_H
#define FASTWRITE_STAGING_DIR_H

/* After the directory `dir`, open as dirfd, has been made. */
void staging_dir_made(int dirfd, const char *dir);

/* Removes the directory when nothing is in it but our .gitignore.  Others may use it, or remove it, at the same time. */
void staging_dir_remove(const char *dir);

#endif
