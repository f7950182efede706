// SPDX-License-Identifier: Apache-2.0
/*
 * fds: the descriptor through which a flush writes.  It is one of the program's, whose flags and lease the
 * flush borrows.  An internal description is opened only if this process has none that can write.  A watcher
 * (inotify) would see its open, and its close while the program still writes.
 *
 * All functions: file lock held, signals blocked.
 */
#ifndef FASTWRITE_FLUSH_FDS_H
#define FASTWRITE_FLUSH_FDS_H

#include "files/file.h"

/* True if fd refers to f: 1, 0, or -errno if the file system fails. */
int flush_is_the_file(const struct file *f, int fd);

/* A descriptor of the program on f that can be written to, or -1.  Prefers the one whose flags suit. */
int flush_program_fd(const struct file *f);

/* The library's copy of a descriptor that the program has closed while bytes were staged (file.left), or -1.
 */
int flush_kept_fd(const struct file *f);
/* The program has closed every description that could write, and the file stays attached. */
bool flush_is_kept(const struct file *f);
/* A descriptor of the file, the program's or the library's; or -1. */
int flush_any_fd(const struct file *f);
/* The file has no name any more, and will not get one. */
bool flush_is_nameless(const struct file *f);
/* The program's, or that copy; or -1. */
int flush_writable_fd(const struct file *f);

/* True if this process has a descriptor through which it can write the staged bytes, or can open one. */
bool flush_possible(struct file *f);

/* Makes sure of a descriptor for reads (file_readable_fd).  The one that is opened stays, so that a watcher
 * sees one open and one close.  0 or -errno: the file cannot be read, or may not be opened now. */
int flush_make_readable(struct file *f);

/* As flush_program_fd, and checked: a program may have closed the descriptor unseen.  -EBADF: no descriptor;
 * other -errno: the file system fails. */
int flush_trusted_fd(struct file *f);

/* Closes our own description on the file. */
void flush_close_internal(struct file *f);

/* Gives the internal description the O_APPEND flag that the staged bytes need.  No other process has it, so
 * its flags may change.  False: there is none. */
bool flush_internal_fits(struct file *f);
/* Makes sure of a fitting internal description.  Opens it through program_fd, or by the path in the file
 * entry if program_fd is -1. */
void flush_reopen_internal(struct file *f, int program_fd);

/* File lock or flush token held.  A flush borrows the description's flags, or the lease on it.  If this
 * process dies, the mark shows others what it borrowed. */
void flush_borrow(struct ofd *o);
/* The same for the description of the program's descriptor `fd`; returns it. */
struct ofd *flush_borrow_fd(const struct file *f, int fd);
/* File lock held.  Takes a lease for a moment: true proves that no other description of the file exists. */
bool flush_take_lease(const struct file *f, int fd);
void flush_drop_lease(const struct file *f, int fd);
/* Ends flush_borrow.  `flags` are the kernel's flags now; the program's own if they could be restored. */
void flush_return(struct ofd *o, int flags);

#endif
