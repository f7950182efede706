// SPDX-License-Identifier: Apache-2.0
/* hook_move: ways to move a file's bytes around write and read. */
#include "hook.h"

#include "engage.h"
#include "sys.h"

#include <aio.h>
#include <fcntl.h>
#include <stdarg.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/sendfile.h>
#include <unistd.h>

/*
 * Memory allocators call mmap while dlsym, which we need to find the real mmap, waits for their memory: the
 * anonymous case goes straight to the kernel.
 */
static void *map(void *addr, size_t length, int prot, int flags, int fd, off_t offset)
{
	long r;

	if (!(flags & MAP_ANONYMOUS))
		meta_map(fd);
	r = sys_raw(SYS_mmap, (long)addr, (long)length, prot, flags, fd, offset);
	return r < 0 && r > -4096 ? (void *)hook_result(r) : (void *)r;
}

EXPORT void *mmap(void *addr, size_t length, int prot, int flags, int fd, off_t offset)
{
	return map(addr, length, prot, flags, fd, offset);
}

EXPORT void *mmap64(void *addr, size_t length, int prot, int flags, int fd, off64_t offset)
{
	return map(addr, length, prot, flags, fd, offset);
}

static void both_unmodelled(int in, int out)
{
	if (fdtable_get(in))
		fd_use_unmodelled(in, THROUGH_SPLICE);
	if (fdtable_get(out))
		fd_use_unmodelled(out, THROUGH_SPLICE);
}

EXPORT ssize_t sendfile(int out, int in, off_t *offset, size_t count)
{
	both_unmodelled(in, out);
	return real.sendfile(out, in, offset, count);
}

EXPORT ssize_t sendfile64(int out, int in, off64_t *offset, size_t count)
{
	both_unmodelled(in, out);
	return real.sendfile64(out, in, offset, count);
}

EXPORT ssize_t splice(int in, off64_t *in_offset, int out, off64_t *out_offset, size_t size, unsigned flags)
{
	both_unmodelled(in, out);
	return real.splice(in, in_offset, out, out_offset, size, flags);
}

EXPORT ssize_t copy_file_range(int in, off64_t *in_offset, int out, off64_t *out_offset, size_t size,
                               unsigned flags)
{
	both_unmodelled(in, out);
	return real.copy_file_range(in, in_offset, out, out_offset, size, flags);
}

EXPORT int ioctl(int fd, unsigned long request, ...)
{
	va_list list;
	void *arg;

	va_start(list, request);
	arg = va_arg(list, void *);
	va_end(list);
	if (fdtable_get(fd)) {
		int r = meta_release_fd(fd);

		if (r < 0)
			return (int)hook_result(r);
	}
	return real.ioctl(fd, request, arg);
}

static void before_aio(int fd)
{
	lazy_clear(fd);
	if (fdtable_get(fd))
		fd_use_unmodelled(fd, THROUGH_AIO);
}

EXPORT int aio_read(struct aiocb *cb)
{
	before_aio(cb->aio_fildes);
	return real.aio_read(cb);
}

EXPORT int aio_read64(struct aiocb64 *cb)
{
	before_aio(cb->aio_fildes);
	return real.aio_read64((struct aiocb *)(void *)cb);
}

EXPORT int aio_write(struct aiocb *cb)
{
	before_aio(cb->aio_fildes);
	return real.aio_write(cb);
}

EXPORT int aio_write64(struct aiocb64 *cb)
{
	before_aio(cb->aio_fildes);
	return real.aio_write64((struct aiocb *)(void *)cb);
}

static void before_list(struct aiocb *const list[], int count)
{
	for (int i = 0; i < count; i++)
		if (list[i])
			before_aio(list[i]->aio_fildes);
}

EXPORT int lio_listio(int mode, struct aiocb *const list[], int count, struct sigevent *event)
{
	before_list(list, count);
	return real.lio_listio(mode, list, count, event);
}

EXPORT int lio_listio64(int mode, struct aiocb64 *const list[], int count, struct sigevent *event)
{
	struct aiocb *const *same = (struct aiocb *const *)(const void *)list;

	before_list(same, count);
	return real.lio_listio64(mode, same, count, event);
}
