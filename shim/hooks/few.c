// SPDX-License-Identifier: Apache-2.0
/*
 * hook_few: calls that make descriptors of no file.  Those that the library has for itself count against the same limit,
 * so it gives one up before such a call fails for want of a number.
 */
#include "hooks/hook.h"

#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#define MAKE(call) \
	int r, before = errno; \
	do \
		r = (call); \
	while (r < 0 && hook_again(before)); \
	return r

EXPORT int socket(int domain, int type, int protocol) { MAKE(real.socket(domain, type, protocol)); }

EXPORT int socketpair(int domain, int type, int protocol, int fds[2])
{
	MAKE(real.socketpair(domain, type, protocol, fds));
}

EXPORT int accept(int fd, __SOCKADDR_ARG address, socklen_t *length)
{
	MAKE(real.accept(fd, address.__sockaddr__, length));
}

EXPORT int accept4(int fd, __SOCKADDR_ARG address, socklen_t *length, int flags)
{
	MAKE(real.accept4(fd, address.__sockaddr__, length, flags));
}

EXPORT int pipe(int fds[2]) { MAKE(real.pipe(fds)); }
EXPORT int pipe2(int fds[2], int flags) { MAKE(real.pipe2(fds, flags)); }
EXPORT int epoll_create(int size) { MAKE(real.epoll_create(size)); }
EXPORT int epoll_create1(int flags) { MAKE(real.epoll_create1(flags)); }
EXPORT int eventfd(unsigned count, int flags) { MAKE(real.eventfd(count, flags)); }
