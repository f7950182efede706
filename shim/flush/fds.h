// SPDX-License-Identifier: Apache-2.0
/*
 * fds: the descriptors that a flush writes by: one of the program's, whose flags and lease it borrows, or one of our own.
 *
 * All functions: file lock held, signals blocked.
 */
#ifndef FASTWRITE_FDS_H
#define FASTWRITE_FDS_H

#include "files/file.h"

/* fd is open on f: 1, 0, or -errno when the file system does not say. */
int flush_is_the_file(const struct file *f, int fd);

/* A descriptor of the program on f that can be written to, or -1. */
int flush_program_fd(const struct file *f);

/* This process can write what is staged: it has a descriptor, or could open one. */
bool flush_possible(struct file *f);

/* The same, and the number still means this file: a program may close descriptors where nobody sees it.
 * -EBADF: there is none; another -errno: the file system fails. */
int flush_trusted_fd(struct file *f);

/* Opens it, through a descriptor of the program.  For a thread of the program: descriptors that come and go in others
 * would change the numbers that the program gets. */
void flush_open_own(struct file *f, int fd);
/* Closes our own description on the file. */
void flush_close_own(struct file *f);

/* Our own description, if there is one, appends or not, as what is staged needs it; nobody else has it, so that it can be
 * told to. */
bool flush_own_fits(struct file *f);
/* Opens one that does: by program_fd, or, when this process has none, where the slot says that the file is. */
void flush_reopen_own(struct file *f, int program_fd);

/* File lock or token held: the description's flags, or the lease on it, are a flush's from now on, and whoever finds us
 * dead knows it. */
void flush_lend(struct ofd *o);
/* The description that this descriptor of the program refers to. */
struct ofd *flush_lend_fd(const struct file *f, int fd);
/* For a moment, by the holder of the file lock: proof that nobody else has the file open; false: there is none. */
bool flush_take_lease(const struct file *f, int fd);
void flush_give_lease(const struct file *f, int fd);
/* That is over; `flags` are those that the kernel has now, the program's if all went well. */
void flush_give_back(struct ofd *o, int flags);

#endif
