// SPDX-License-Identifier: Apache-2.0
/*
 * few: calls that make descriptors of no file.  The library's internal descriptors count against the same
 * limit.  So it closes one of them before such a call fails for lack of a descriptor.
 */
#include "hooks/hook.h"

#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

/* The result of the call, which is repeated as long as an internal descriptor can be closed. */
#define RETRY(call) \
	({ \
		int r_, before_ = errno; \
		do \
			r_ = (call); \
		while (r_ < 0 && hook_again(before_)); \
		r_; \
	})

EXPORT int socket(int domain, int type, int protocol) { return RETRY(real.socket(domain, type, protocol)); }

EXPORT int socketpair(int domain, int type, int protocol, int fds[2])
{
	return RETRY(real.socketpair(domain, type, protocol, fds));
}

EXPORT int accept(int fd, __SOCKADDR_ARG address, socklen_t *length)
{
	return RETRY(real.accept(fd, address.__sockaddr__, length));
}

EXPORT int accept4(int fd, __SOCKADDR_ARG address, socklen_t *length, int flags)
{
	return RETRY(real.accept4(fd, address.__sockaddr__, length, flags));
}

EXPORT int pipe(int fds[2]) { return RETRY(real.pipe(fds)); }
EXPORT int pipe2(int fds[2], int flags) { return RETRY(real.pipe2(fds, flags)); }
EXPORT int epoll_create(int size) { return RETRY(real.epoll_create(size)); }
EXPORT int epoll_create1(int flags) { return RETRY(real.epoll_create1(flags)); }
EXPORT int eventfd(unsigned count, int flags) { return RETRY(real.eventfd(count, flags)); }
