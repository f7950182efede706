// SPDX-License-Identifier: Apache-2.0
/* move: calls that move a file's bytes without write and read. */
#include "hooks/hook.h"

#include "attach/attach.h"
#include "attach/stop.h"
#include "base/sys.h"
#include "base/user.h"
#include "files/fdtable.h"

#include <aio.h>
#include <fcntl.h>
#include <linux/fiemap.h>
#include <linux/fs.h>
#include <linux/loop.h>
#include <stdarg.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/sendfile.h>
#include <unistd.h>

/* A mapping with MAP_SYNC needs persistent memory.  MariaDB tries it with its log on any disk, and goes on
 * with writes: that must not end the staging of the log. */
static bool cannot_map(size_t length, int flags, int fd, off_t offset)
{
	long r;

	if ((flags & MAP_TYPE) != MAP_SHARED_VALIDATE || !(flags & MAP_SYNC))
		return false;
	r = sys_raw(SYS_mmap, 0, (long)length, PROT_NONE, MAP_SHARED_VALIDATE | MAP_SYNC, fd, offset);
	if (r == -EOPNOTSUPP || r == -EINVAL)
		return true;
	if (r < 0 && r > -4096)
		return false; /* the memory of the process is limited: not so perhaps the mapping itself */
	sys_raw(SYS_munmap, r, (long)length, 0, 0, 0, 0);
	return false;
}

/*
 * Memory allocators call mmap. dlsym, with which we would find the real mmap, may wait for such an allocator.
 * So the mapping is made by a system call.
 */
EXPORT void *mmap(void *addr, size_t length, int prot, int flags, int fd, off_t offset)
{
	bool shares = (flags & MAP_SHARED) && (prot & PROT_WRITE);
	bool file = !(flags & MAP_ANONYMOUS) && live_config, told = false;
	uintptr_t word = 0;
	long r;

	if (file) {
		word = fdtable_word(fd);
		told = !cannot_map(length, flags, fd, offset);
		r = told ? by_name_map(fd, shares) : 0;
		/* what stays staged would be written over stores to the mapping */
		if (r < 0)
			return (void *)hook_result(r);
	}
	if (flags & MAP_FIXED)
		user_memory_changed();
	r = sys_raw(SYS_mmap, (long)addr, (long)length, prot, flags, fd, offset);
	if (flags & MAP_FIXED)
		user_memory_changed();
	/* another file has got the number meanwhile, and perhaps that one is mapped */
	if (file && (fdtable_word(fd) != word || (!told && !(r < 0 && r > -4096))))
		by_name_map(fd, shares);
	return r < 0 && r > -4096 ? (void *)hook_result(r) : (void *)r;
}

long hook_protect(long number, void *addr, size_t length, long prot, int key)
{
	/* (a key may forbid what `prot` allows) */
	bool forbids = !(prot & PROT_WRITE) || number == SYS_pkey_mprotect;
	long r;

	if (forbids)
		user_memory_changed();
	r = sys_raw(number, (long)addr, (long)length, prot, key, 0, 0);
	/* (also if it failed: it may have changed a part) */
	if (forbids)
		user_memory_changed();
	return r;
}

/* (by system calls, as the mapping) */
EXPORT int mprotect(void *addr, size_t length, int prot)
{
	return (int)hook_result(hook_protect(SYS_mprotect, addr, length, prot, 0));
}

EXPORT int pkey_mprotect(void *addr, size_t length, int prot, int key)
{
	/* (without a key it is the older call, which every kernel knows) */
	return (int)hook_result(
		hook_protect(key == -1 ? SYS_mprotect : SYS_pkey_mprotect, addr, length, prot, key));
}

long hook_before_copy(int in, int out)
{
	long r = 0;

	/* otherwise another thread could attach it while the copy moves its position */
	unresolved_resolve(in);
	unresolved_resolve(out);
	if (fdtable_get(in))
		r = fd_use_unmodelled(in, BYPASS_SPLICE);
	if (r == 0 && fdtable_get(out))
		r = fd_use_unmodelled(out, BYPASS_SPLICE);
	return r;
}

EXPORT ssize_t sendfile(int out, int in, off_t *offset, size_t count)
{
	long r = hook_before_copy(in, out);

	return r < 0 ? hook_result(r) : real.sendfile(out, in, offset, count);
}

EXPORT ssize_t splice(int in, off64_t *in_offset, int out, off64_t *out_offset, size_t size, unsigned flags)
{
	long r = hook_before_copy(in, out);

	return r < 0 ? hook_result(r) : real.splice(in, in_offset, out, out_offset, size, flags);
}

EXPORT ssize_t copy_file_range(int in, off64_t *in_offset, int out, off64_t *out_offset, size_t size,
                               unsigned flags)
{
	long r = hook_before_copy(in, out);

	return r < 0 ? hook_result(r) : real.copy_file_range(in, in_offset, out, out_offset, size, flags);
}

/* A descriptor inside the argument of an ioctl, at `offset`. */
static int fd_inside(const void *arg, size_t offset)
{
	int fd = -1;

	if (user_readable((const char *)arg + offset, sizeof fd))
		memcpy(&fd, (const char *)arg + offset, sizeof fd);
	return fd;
}

/* What it takes beyond a detached file, and for files other than its own. */
static long ioctl_others(int fd, unsigned long request, const void *arg)
{
	enum { BTRFS = 0x94, EXT4_MOVE = 15, XFS_EXCHANGE = 129 };

	switch (request) {
	/* change the flags of the description, as fcntl does */
	case FIONBIO:
	case FIOASYNC: return fd_use_unmodelled(fd, BYPASS_IOCTL);
	case LOOP_SET_FD:
	case LOOP_CHANGE_FD: return fd_use_unmodelled((int)(intptr_t)arg, BYPASS_IOCTL);
	case LOOP_CONFIGURE: return fd_use_unmodelled(fd_inside(arg, 0), BYPASS_IOCTL);
	default: break;
	}
	/* clones, snapshots, exchanged extents, a frozen file system: they see only what is in the kernel */
	switch (_IOC_TYPE(request)) {
	case 'f':
		if (_IOC_NR(request) == EXT4_MOVE)
			by_name_detach_fd(fd_inside(arg, sizeof(uint32_t)));
		by_name_drain_all();
		return 0;
	case 'X':
		/* What the library does later by itself would wait for the thaw, with a lock that the
		 * program needs before it comes to that.  So nothing is left to be done, and nothing more
		 * staged. */
		if (request == FIFREEZE) {
			attach_refuse(BYPASS_IOCTL);
			attach_retire_dir(NULL);
			return 0;
		}
		if (_IOC_NR(request) == XFS_EXCHANGE)
			by_name_detach_fd(fd_inside(arg, 0));
		by_name_drain_all();
		return 0;
	case BTRFS:
		/* the source of the clone, for which another process of the family may stage */
		unresolved_use_all();
		by_name_drain_all();
		return 0;
	default: return 0;
	}
}

bool hook_ioctl_clones(unsigned long request) { return request == FICLONE || request == FICLONERANGE; }

void hook_after_ioctl(int fd, unsigned long request, void *arg)
{
	if (request == FS_IOC_SETFLAGS || request == FS_IOC_FSSETXATTR || request == FS_IOC_SETVERSION)
		file_attributes_changed();
	else if (request == FS_IOC_FIEMAP)
		by_name_extents_asked(fd, arg);
}

int hook_before_ioctl(int fd, unsigned long request, const void *arg)
{
	long r;

	/* whatever this needs may wait for the thaw */
	if (request == FITHAW)
		return 0;
	r = live_config ? ioctl_others(fd, request, arg) : 0;
	return r < 0 ? (int)r : by_name_detach_fd(fd);
}

EXPORT int ioctl(int fd, unsigned long request, ...)
{
	struct by_name_change change = {.begun = false};
	va_list list;
	void *arg;
	int r;

	va_start(list, request);
	arg = va_arg(list, void *);
	va_end(list);
	if (hook_ioctl_clones(request))
		by_name_change_fd(&change, fd); /* called again below, where its result is used */
	r = hook_before_ioctl(fd, request, arg);
	r = r < 0 ? (int)hook_result(r) : real.ioctl(fd, request, arg);
	if (r == 0)
		hook_after_ioctl(fd, request, arg);
	by_name_change_end(&change);
	return r;
}

long hook_before_aio(int fd) { return fd_use_unmodelled(fd, BYPASS_AIO); }

/* Before a call of the C library.  -1 and errno: it fails, and so says aio_error, for those who ask only
 * that. */
static int before_aio(struct aiocb *cb)
{
	long r = hook_before_aio(cb->aio_fildes);

	if (r < 0) {
		cb->__error_code = (int)-r;
		cb->__return_value = -1;
	}
	return (int)hook_result(r);
}

EXPORT int aio_read(struct aiocb *cb) { return before_aio(cb) < 0 ? -1 : real.aio_read(cb); }
EXPORT int aio_write(struct aiocb *cb) { return before_aio(cb) < 0 ? -1 : real.aio_write(cb); }

EXPORT int aio_fsync(int operation, struct aiocb *cb)
{
	/* with an invalid operation the C library does not read the rest */
	if ((operation == O_SYNC || operation == O_DSYNC) && before_aio(cb) < 0)
		return -1;
	return real.aio_fsync(operation, cb);
}

/* -1 and errno: none is submitted. */
static int before_list(int mode, struct aiocb *const list[], int count)
{
	long r = 0;

	if (mode != LIO_WAIT && mode != LIO_NOWAIT)
		return 0; /* with an invalid mode the C library does not read the list */
	for (int i = 0; i < count && r == 0; i++)
		if (list[i])
			r = hook_before_aio(list[i]->aio_fildes);
	for (int i = 0; i < count && r < 0; i++)
		if (list[i]) {
			list[i]->__error_code = (int)-r;
			list[i]->__return_value = -1;
		}
	return (int)hook_result(r);
}

EXPORT int lio_listio(int mode, struct aiocb *const list[], int count, struct sigevent *event)
{
	return before_list(mode, list, count) < 0 ? -1 : real.lio_listio(mode, list, count, event);
}

TWIN(mmap64, mmap);
TWIN(sendfile64, sendfile);
TWIN(aio_read64, aio_read);
TWIN(aio_write64, aio_write);
TWIN(aio_fsync64, aio_fsync);
TWIN(lio_listio64, lio_listio);
