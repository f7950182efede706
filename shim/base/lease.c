// SPDX-License-Identifier: Apache-2.0
/* lease: see base/lease.h. */
#include "base/lease.h"

#include "base/sys.h"
#include "base/thread.h"

#include <fcntl.h>
#include <sys/vfs.h>

int lease_take_for(int fd, pid_t tid)
{
	struct f_owner_ex owner = {.type = F_OWNER_TID, .pid = tid};
	long r;

	/* F_UNLCK resets the signal to SIGIO, which would end the program: set ours every time */
	r = sys.fcntl(fd, F_SETSIG, THREAD_SIGNAL);
	if (r == 0)
		r = sys.fcntl(fd, F_SETOWN_EX, (long)&owner);
	if (r == 0)
		r = sys.fcntl(fd, F_SETLEASE, F_WRLCK);
	if (r < 0) {
		/* reset them as F_UNLCK does: the program may ask for them */
		sys.fcntl(fd, F_SETSIG, 0);
		sys.fcntl(fd, F_SETOWN, 0);
	}
	return (int)r;
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
			continue; /* from the kernel: another process waited for the lease */
		/* pthread_cancel of this thread: the C library must get the signal */
		sys_raw(SYS_tgkill, sys_getpid(), sys_gettid(), THREAD_SIGNAL, 0, 0, 0);
		break;
	}
}

bool lease_holds(int fd) { return sys.fcntl(fd, F_GETLEASE, 0) == F_WRLCK; }

bool lease_proves_on(unsigned kind)
{
	static const unsigned kinds[] = {
		0xef53 /* ext2, 3, 4 */,   0x58465342 /* xfs */,       0x9123683e /* btrfs */,
		0x01021994 /* tmpfs */,    0x794c7630 /* overlayfs */, 0xf2f52010 /* f2fs */,
		0xca451a4e /* bcachefs */, 0x2fc12fc1 /* zfs */,       0x3434 /* nilfs2 */,
		0x3153464a /* jfs */,      0x52654973 /* reiserfs */,  0x858458f6 /* ramfs */,
		0x4d44 /* vfat */,         0x2011bab0 /* exfat */,     0x7366746e /* ntfs3 */,
		0x24051905 /* ubifs */,    0xf15f /* ecryptfs */,
	};

	for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++)
		if (kind == kinds[i])
			return true;
	return false;
}

bool lease_proves(int fd)
{
	struct statfs st;

	return sys_raw(SYS_fstatfs, fd, (long)&st, 0, 0, 0, 0) == 0 && lease_proves_on((unsigned)st.f_type);
}
