// SPDX-License-Identifier: Apache-2.0
/*
 * pass: descriptors that go to other processes or come from them.  A description that two processes hold has one
 * offset, in the kernel: its file is written through.
 */
#ifndef FASTWRITE_PASS_H
#define FASTWRITE_PASS_H

#include <stdbool.h>
#include <sys/socket.h>

/* Before sendmsg: what its SCM_RIGHTS name is passed on. */
void pass_sent(const struct msghdr *message);
/* After recvmsg: what came with it. */
void pass_received(const struct msghdr *message);

/* One descriptor of unknown origin: written through; when it is an io_uring, so is everything else. */
void pass_arrived(int fd);
/* True when fd is an io_uring. */
bool pass_is_io_uring(int fd);

#endif
