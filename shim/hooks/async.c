// SPDX-License-Identifier: Apache-2.0
/*
 * async: the kernel's asynchronous I/O: libaio's io_submit, liburing's ways to make a ring.
 *
 * A ring reads and writes through shared memory, without a call that could be seen.  So a process that has a
 * ring stages nothing, and what liburing does with the ring afterwards does not matter.
 *
 *
 * These functions are not the C library's.  A program that has them in a library which it loaded for itself
 * finds ours first, and RTLD_NEXT then finds none: io_submit is one system call, made here; a ring is made by
 * whichever liburing is loaded.
 */
#include "hooks/hook.h"

#include "attach/attach.h"
#include "attach/stop.h"
#include "base/sys.h"
#include "base/user.h"

#include <dlfcn.h>
#include <linux/aio_abi.h>

long hook_before_submit(long count, struct iocb *const *list)
{
	struct user_pages pages = USER_PAGES_INIT;

	if (!live_config || !fd_any_known())
		return count;
	/* up to the first unreadable entry: the kernel stops there, too */
	for (long i = 0; i < count && user_reads(&pages, &list[i], sizeof list[i]) &&
	                 user_reads(&pages, list[i], sizeof *list[i]);
	     i++) {
		long r = hook_before_aio((int)list[i]->aio_fildes);

		if (r < 0)
			return i > 0 ? i : r;
	}
	return count;
}

EXPORT int io_submit(aio_context_t context, long count, struct iocb **list);
EXPORT int io_submit(aio_context_t context, long count, struct iocb **list)
{
	long n = hook_before_submit(count, list);

	if (n < 0 && n != count)
		return (int)n; /* (as libaio's, which leaves errno alone) */
	count = n;
	if (real.io_submit)
		return real.io_submit(context, count, list);
	return (int)sys_raw(SYS_io_submit, (long)context, count, (long)list, 0, 0, 0);
}

void hook_ring_made(void)
{
	int before = errno;

	attach_refuse(BYPASS_IO_URING);
	errno = before;
}

/* A liburing that was loaded with local scope. */
static void *find_liburing(const char *name)
{
	static const char *const files[] = {"liburing.so.2", "liburing.so.1"};
	int before = errno;
	void *found = NULL;

	for (size_t i = 0; i < sizeof files / sizeof *files && !found; i++) {
		void *library = dlopen(files[i], RTLD_LAZY | RTLD_NOLOAD);

		if (library) {
			found = dlsym(library, name);
			dlclose(library);
		}
	}
	dlerror();
	errno = before;
	return found;
}

/* The function of the loaded liburing, or NULL. */
#define FOUND(name) \
	(real.name ? real.name : (real.name = (__typeof__(real.name))(uintptr_t)find_liburing(#name)))
/* The result without a liburing, as if the kernel had no rings.  All of liburing returns -errno. */
enum { NO_RING = -ENOSYS };

static int ring(int r)
{
	if (r >= 0)
		hook_ring_made();
	return r;
}

EXPORT int io_uring_setup(unsigned entries, void *params);
EXPORT int io_uring_queue_init(unsigned entries, void *ring, unsigned flags);
EXPORT int io_uring_queue_init_params(unsigned entries, void *ring, void *params);
EXPORT int io_uring_queue_init_mem(unsigned entries, void *ring, void *params, void *memory, size_t size);
EXPORT int io_uring_queue_mmap(int fd, void *params, void *ring);

EXPORT int io_uring_setup(unsigned entries, void *params)
{
	return ring(FOUND(io_uring_setup) ? real.io_uring_setup(entries, params) : NO_RING);
}
EXPORT int io_uring_queue_init(unsigned entries, void *ring_of, unsigned flags)
{
	return ring(FOUND(io_uring_queue_init) ? real.io_uring_queue_init(entries, ring_of, flags) : NO_RING);
}
EXPORT int io_uring_queue_init_params(unsigned entries, void *ring_of, void *params)
{
	return ring(FOUND(io_uring_queue_init_params)
	                    ? real.io_uring_queue_init_params(entries, ring_of, params)
	                    : NO_RING);
}
EXPORT int io_uring_queue_init_mem(unsigned entries, void *ring_of, void *params, void *memory, size_t size)
{
	return ring(FOUND(io_uring_queue_init_mem)
	                    ? real.io_uring_queue_init_mem(entries, ring_of, params, memory, size)
	                    : NO_RING);
}
/* the ring of another process */
EXPORT int io_uring_queue_mmap(int fd, void *params, void *ring_of)
{
	return ring(FOUND(io_uring_queue_mmap) ? real.io_uring_queue_mmap(fd, params, ring_of) : NO_RING);
}
