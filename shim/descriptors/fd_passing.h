// SPDX-License-Identifier: Apache-2.0
/*
 * fd_passing: descriptors that go to other processes or come from them.  A description that two processes hold has one
 * offset, in the kernel: its file is written through.
 */
#ifndef FASTWRITE_PASS_H
#define FASTWRITE_PASS_H

#include <sys/socket.h>

/* Before sendmsg, sendmmsg: what their SCM_RIGHTS name is passed on.  The messages may lie anywhere. */
void fd_passing_sent(const struct msghdr *message);
void fd_passing_all_sent(const struct mmsghdr *messages, unsigned count);
/* After recvmsg, recvmmsg: what came with so many. */
void fd_passing_received(const struct msghdr *message);
void fd_passing_all_received(const struct mmsghdr *messages, unsigned count);

/* One descriptor of unknown origin: written through; when it is an io_uring, so is everything else. */
void fd_passing_arrived(int fd);

#endif
