// SPDX-License-Identifier: Apache-2.0
/*
 * fd_passing: descriptors that are sent to other processes or received from them.  The kernel keeps one
 * offset for a description that two processes hold.  So its file is bypassed.
 */
#ifndef FASTWRITE_DESCRIPTORS_FD_PASSING_H
#define FASTWRITE_DESCRIPTORS_FD_PASSING_H

#include <sys/socket.h>

/* Before sendmsg, sendmmsg: bypasses the files of the SCM_RIGHTS descriptors.  The messages may lie at
 * invalid addresses. */
void fd_passing_sent(const struct msghdr *message);
void fd_passing_all_sent(const struct mmsghdr *messages, unsigned count);
/* After recvmsg, recvmmsg: handles the descriptors that have arrived. */
void fd_passing_received(const struct msghdr *message);
void fd_passing_all_received(const struct mmsghdr *messages, unsigned count);

/* A descriptor of unknown origin: bypasses its file.  If it is an io_uring, nothing is staged any more. */
void fd_passing_arrived(int fd);

#endif
