// SPDX-License-Identifier: Apache-2.0
/* lease: see lease.h. */
#include "lease.h"

#include "engine.h"
#include "sys.h"
#include "thread.h"

#include <fcntl.h>

int lease_take_for(int fd, pid_t tid)
{
	struct f_owner_ex owner = {.type = F_OWNER_TID, .pid = tid};
	long r;

	/* F_UNLCK forgets the signal, and the default one, SIGIO, would end the program: name ours every time */
	r = sys.fcntl(fd, F_SETSIG, THREAD_SIGNAL);
	if (r == 0)
		r = sys.fcntl(fd, F_SETOWN_EX, (long)&owner);
	if (r == 0)
		r = sys.fcntl(fd, F_SETLEASE, F_WRLCK);
	if (r < 0) {
		/* as F_UNLCK does it: the program may ask */
		sys.fcntl(fd, F_SETSIG, 0);
		sys.fcntl(fd, F_SETOWN, 0);
	}
	return (int)r;
}

int lease_take(int fd)
{
	pid_t tid = engine_tid();

	return tid ? lease_take_for(fd, tid) : -EAGAIN;
}

void lease_drop(int fd) { sys.fcntl(fd, F_SETLEASE, F_UNLCK); }

int lease_take_own(int fd) { return lease_take_for(fd, sys_gettid()); }

void lease_drop_own(int fd)
{
	struct timespec none = {0};
	siginfo_t info;

	lease_drop(fd);
	while (thread_wait_signal(&info, &none) > 0) {
		if (info.si_code > 0)
			continue; /* the kernel's: somebody has been waiting for the lease */
		/* somebody cancels this thread: the C library must see that */
		sys_raw(SYS_tgkill, sys_getpid(), sys_gettid(), THREAD_SIGNAL, 0, 0, 0);
		break;
	}
}
