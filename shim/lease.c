// SPDX-License-Identifier: Apache-2.0
/* lease: see lease.h. */
#include "lease.h"

#include "engine.h"
#include "sys.h"

#include <fcntl.h>

static int take_for(int fd, pid_t tid)
{
	struct f_owner_ex owner = {.type = F_OWNER_TID, .pid = tid};
	long r;

	/* F_UNLCK forgets the signal, and the default one, SIGIO, would end the program: name ours every time */
	r = sys.fcntl(fd, F_SETSIG, ENGINE_LEASE_SIGNAL);
	if (r == 0)
		r = sys.fcntl(fd, F_SETOWN_EX, (long)&owner);
	if (r == 0)
		r = sys.fcntl(fd, F_SETLEASE, F_WRLCK);
	return (int)r;
}

int lease_take(int fd)
{
	pid_t tid = engine_tid();

	return tid ? take_for(fd, tid) : -EAGAIN;
}

void lease_drop(int fd) { sys.fcntl(fd, F_SETLEASE, F_UNLCK); }

int lease_take_own(int fd) { return take_for(fd, sys_gettid()); }

void lease_drop_own(int fd)
{
	sys_sigset ours = 1ull << (ENGINE_LEASE_SIGNAL - 1);
	struct timespec none = {0};

	lease_drop(fd);
	while (sys_raw(SYS_rt_sigtimedwait, (long)&ours, 0, (long)&none, sizeof ours, 0, 0) > 0)
		;
}
