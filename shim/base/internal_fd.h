// SPDX-License-Identifier: Apache-2.0
/*
 * internal_fd: the library's own descriptors.  They have high numbers and are close-on-exec.  The program's
 * close, dup2, close_range and closefrom leave them open.
 */
#ifndef FASTWRITE_BASE_INTERNAL_FD_H
#define FASTWRITE_BASE_INTERNAL_FD_H

#include <stdbool.h>

/* Moves an own descriptor to the high end of the descriptor range, close-on-exec; the new number or -errno
 * (the old one is closed in both cases). */
int internal_fd_raise(int fd);
/* An own descriptor for the description of fd; its number or -errno.  -EMFILE also when about `most` own ones
 * are in use. */
int internal_fd_copy(int fd, int most);
/* Gives another number to an own descriptor; the new one, or -errno and nothing changed. */
int internal_fd_move(int fd);
/* Own descriptors are shielded from the program.  Lock-free. */
bool internal_fd_is(int fd);
void internal_fd_close(int fd);
/* In a child with its own descriptor table and our memory: closes its copies of them. */
void internal_fd_close_copies(void);
/* In the child of a fork: closes all of them. */
void internal_fd_close_all(void);

#endif
