// SPDX-License-Identifier: Apache-2.0
/*
 * rig: the core without the hooks, on files in a fresh directory, with faults injected through the table of
 * system calls.  Included once by each test program that needs it.
 */
#ifndef FASTWRITE_TEST_RIG_H
#define FASTWRITE_TEST_RIG_H

#include "attach/attach.h"
#include "attach/stop.h"
#include "base/fork_guard.h"
#include "base/sys.h"
#include "config/config.h"
#include "descriptors/fd.h"
#include "descriptors/io.h"
#include "files/fdtable.h"
#include "files/file.h"
#include "files/workers.h"
#include "flush/flush.h"
#include "staging/stage.h"

#include <fcntl.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/vfs.h>
#include <unistd.h>

#include <cmocka.h>

enum { RIG_ENV_MAX = 16, RIG_MAGIC_TMPFS = 0x01021994 };

/* One for each test: the library never loads a second one, and its threads may look at the files of the last
 * test still. */
enum { RIG_CONFIGS = 64 };
static struct config rig_configs[RIG_CONFIGS];
static unsigned rig_turn;
#define rig_config (rig_configs[rig_turn])
static char rig_dir[256];

/* ---- faults ---- */

/* Each entry: at the `at`-th call from now (1 = the next) and the `count - 1` behind it the call fails with
 * `error`, or with error 0 writes at most `most` bytes.  at = 0: never.  `then`: every call after these fails
 * with it. */
struct fault {
	int at, count, error, then;
	size_t most;
	int calls; /* seen since rig_faults_clear */
};
static struct {
	struct fault writev, pwritev, fallocate, ftruncate, fcntl_lease, set_direct, open_own, fsync,
		fdatasync, flock, pwritev2;
} faults;

__attribute__((unused)) static void rig_faults_clear(void) { memset(&faults, 0, sizeof faults); }

/* A test changes the faults while threads of the engine run into them: no race that the thread sanitizer
 * shall report. */
#define RIG_RACES __attribute__((no_sanitize("thread")))

RIG_RACES static bool fault_due(struct fault *f)
{
	int call = __atomic_add_fetch(&f->calls, 1, __ATOMIC_RELAXED); /* also by threads of the engine */

	if (f->at && f->then && call >= f->at + (f->count ? f->count : 1)) {
		f->error = f->then;
		return true;
	}
	return f->at && call >= f->at && call < f->at + (f->count ? f->count : 1);
}

/* iov cut to at most `most` bytes. */
static int rig_cut(const struct iovec *iov, int count, size_t most, struct iovec *out)
{
	int n = 0;

	for (; n < count && most > 0; n++) {
		out[n] = iov[n];
		if (out[n].iov_len > most)
			out[n].iov_len = most;
		most -= out[n].iov_len;
	}
	return n;
}

RIG_RACES static ssize_t rig_writev(int fd, const struct iovec *iov, int count)
{
	struct iovec cut[1024];

	if (!fault_due(&faults.writev))
		return sys_kernel.writev(fd, iov, count);
	if (faults.writev.error)
		return -faults.writev.error;
	return sys_kernel.writev(fd, cut, rig_cut(iov, count, faults.writev.most, cut));
}

RIG_RACES static ssize_t rig_pwritev(int fd, const struct iovec *iov, int count, off_t offset)
{
	struct iovec cut[1024];

	if (!fault_due(&faults.pwritev))
		return sys_kernel.pwritev(fd, iov, count, offset);
	if (faults.pwritev.error)
		return -faults.pwritev.error;
	return sys_kernel.pwritev(fd, cut, rig_cut(iov, count, faults.pwritev.most, cut), offset);
}

RIG_RACES static int rig_fallocate(int fd, int mode, off_t offset, off_t length)
{
	return fault_due(&faults.fallocate) ? -faults.fallocate.error
	                                    : sys_kernel.fallocate(fd, mode, offset, length);
}

RIG_RACES static int rig_ftruncate(int fd, off_t length)
{
	return fault_due(&faults.ftruncate) ? -faults.ftruncate.error : sys_kernel.ftruncate(fd, length);
}

RIG_RACES static long rig_fcntl(int fd, int cmd, long arg)
{
	if (cmd == F_SETLEASE && arg == F_WRLCK && fault_due(&faults.fcntl_lease))
		return -faults.fcntl_lease.error;
	if (cmd == F_SETFL && (arg & O_DIRECT) && fault_due(&faults.set_direct))
		return -faults.set_direct.error;
	return sys_kernel.fcntl(fd, cmd, arg);
}

RIG_RACES static int rig_openat(int dirfd, const char *path, int flags, mode_t mode)
{
	if (strncmp(path, "/proc/self/fd/", 14) == 0 && fault_due(&faults.open_own))
		return -faults.open_own.error;
	return sys_kernel.openat(dirfd, path, flags, mode);
}

/* Writes of the journal. */
RIG_RACES static ssize_t rig_pwritev2(int fd, const struct iovec *iov, int count, off_t offset, int flags)
{
	struct iovec cut[1024];

	if (!fault_due(&faults.pwritev2))
		return sys_kernel.pwritev2(fd, iov, count, offset, flags);
	if (faults.pwritev2.error)
		return -faults.pwritev2.error;
	return sys_kernel.pwritev2(fd, cut, rig_cut(iov, count, faults.pwritev2.most, cut), offset, flags);
}

RIG_RACES static int rig_fsync(int fd)
{
	return fault_due(&faults.fsync) ? -faults.fsync.error : sys_kernel.fsync(fd);
}
RIG_RACES static int rig_fdatasync(int fd)
{
	return fault_due(&faults.fdatasync) ? -faults.fdatasync.error : sys_kernel.fdatasync(fd);
}

static void rig_hook_system(void)
{
	sys.writev = rig_writev;
	sys.pwritev = rig_pwritev;
	sys.pwritev2 = rig_pwritev2;
	sys.fallocate = rig_fallocate;
	sys.ftruncate = rig_ftruncate;
	sys.fcntl = rig_fcntl;
	sys.openat = rig_openat;
	sys.fsync = rig_fsync;
	sys.fdatasync = rig_fdatasync;
}

/* ---- files ---- */

__attribute__((unused)) static bool rig_on_tmpfs(void)
{
	struct statfs st;

	return statfs(rig_dir, &st) == 0 && st.f_type == RIG_MAGIC_TMPFS;
}

/* Settings as "FASTWRITE_KEY=value", NULL at the end; everything in the fresh directory is managed. */
__attribute__((unused)) static void rig_start(const char *setting, ...)
{
	char paths[300];
	char *env[RIG_ENV_MAX] = {paths, (char[]){"FASTWRITE_MEM=1M"}, (char[]){"FASTWRITE_BLOCK=64K"},
	                          (char[]){"FASTWRITE_LAG_MS=60000"}, (char[]){"FASTWRITE_LOG=off"}};
	int n = 5;
	va_list more;

	va_start(more, setting);
	for (; setting; setting = va_arg(more, const char *)) {
		assert_true(n < RIG_ENV_MAX - 1);
		env[n++] = (char *)(uintptr_t)setting;
	}
	va_end(more);
	env[n] = (char[]){"FASTWRITE_ADAPT=off"}; /* the first of a name counts */
	snprintf(rig_dir, sizeof rig_dir, "%s/fastwrite-unit-XXXXXX",
	         getenv("TMPDIR") ? getenv("TMPDIR") : "/tmp");
	assert_non_null(mkdtemp(rig_dir));
	snprintf(paths, sizeof paths, "FASTWRITE_PATHS=%s/**", rig_dir);
	rig_turn = (rig_turn + 1) % RIG_CONFIGS;
	if (config_load(&rig_config, env) < 0)
		fail_msg("%s", rig_config.error);
	rig_faults_clear();
	rig_hook_system();
	fd_set_process();
	live_config = &rig_config;
}

__attribute__((unused)) static const char *rig_path(const char *name)
{
	static char path[512];

	snprintf(path, sizeof path, "%s/%s", rig_dir, name);
	return path;
}

/* Opens as the hook does, and asks about the file at once (lazy.h is tested in test_lazy.c). */
__attribute__((unused)) static int rig_open(const char *name, int flags)
{
	struct fd_open op;
	int fd;

	fd_open_prepare(&op, AT_FDCWD, rig_path(name), flags | O_CREAT);
	op.exclusive = op.name;
	fd = open(rig_path(name), flags | O_CREAT | fd_open_exclusive(&op), 0644);
	assert_true(fd >= 0);
	(void)fd_open_concerns(&op);
	op.looks = op.unresolved = false;
	fd_opened(&op, fd);
	fd_open_end(&op);
	assert_non_null(fdtable_get(fd));
	return fd;
}

/* Writes as the hook does: n or -errno. */
__attribute__((unused)) static long rig_write(int fd, const void *buf, size_t n)
{
	long r = io_write(fd, fdtable_get(fd), buf, n);

	return r == IO_PASS ? sys_kernel.write(fd, buf, n) : r;
}

__attribute__((unused)) static long rig_pwrite(int fd, const void *buf, size_t n, off_t offset)
{
	struct iovec iov = {.iov_base = (void *)(uintptr_t)buf, .iov_len = n};
	long r = io_writev(fd, fdtable_get(fd), &iov, 1, offset);

	return r == IO_PASS ? sys_kernel.pwritev(fd, &iov, 1, offset) : r;
}

__attribute__((unused)) static long rig_close(int fd)
{
	long r = fd_close_prepare(fd);

	assert_int_equal(close(fd), 0);
	return r == FD_PASS ? 0 : r;
}

__attribute__((unused)) static struct file *rig_file(int fd) { return atomic_load(&fdtable_get(fd)->file); }

__attribute__((unused)) static struct arena_entry *rig_entry(int fd)
{
	struct file *f = rig_file(fd);

	return arena_entry_at(f->arena, (uint32_t)f->entry);
}

/* flush_drain as the hooks do it. */
__attribute__((unused)) static int rig_drain(int fd)
{
	struct file *f = rig_file(fd);
	struct file_guard g = file_lock(f);
	int r;

	r = flush_drain(f);
	file_unlock(f, g);
	return r;
}

/* Byte `at` of the pattern that tests write. */
__attribute__((unused)) static uint8_t rig_byte(uint64_t at)
{
	return (uint8_t)(at * 31 + (at >> 8) * 7 + 1);
}

__attribute__((unused)) static void rig_fill(uint8_t *to, size_t n, uint64_t from)
{
	for (size_t i = 0; i < n; i++)
		to[i] = rig_byte(from + i);
}

/* Writes pattern bytes [from, from + n). */
__attribute__((unused)) static void rig_put(int fd, uint64_t from, size_t n)
{
	static uint8_t buf[65536];

	assert_true(n <= sizeof buf);
	rig_fill(buf, n, from);
	assert_int_equal(rig_write(fd, buf, n), (long)n);
}

/* Size that the kernel sees; with staged bytes it is less than the program's. */
__attribute__((unused)) static uint64_t rig_kernel_size(const char *name)
{
	struct statx st;

	assert_int_equal(sys_kernel.statx(AT_FDCWD, rig_path(name), 0, STATX_SIZE, &st), 0);
	return st.stx_size;
}

/* The file holds exactly pattern bytes [0, n). */
__attribute__((unused)) static void rig_expect(const char *name, uint64_t n)
{
	uint8_t buf[4096], want[4096];
	int fd = open(rig_path(name), O_RDONLY);
	uint64_t at = 0;
	ssize_t got;

	assert_true(fd >= 0);
	while ((got = read(fd, buf, sizeof buf)) > 0) {
		rig_fill(want, (size_t)got, at);
		assert_memory_equal(buf, want, (size_t)got);
		at += (uint64_t)got;
	}
	close(fd);
	assert_int_equal(at, n);
}

/* Everything settled, every arena gone; the directory is removed and must hold nothing but files. */
__attribute__((unused)) static void rig_stop(void)
{
	char command[400];

	rig_faults_clear();
	for (int fd = fdtable_next(3, ~0u); fd >= 0; fd = fdtable_next((unsigned)fd + 1, ~0u))
		rig_close(fd);
	attach_stop_all(BYPASS_EXEC);
	attach_resume_all(BYPASS_EXEC);
	sys = sys_kernel;
	assert_int_not_equal(access(rig_path(".fastwrite"), F_OK), 0);
	snprintf(command, sizeof command, "rm -rf '%s'", rig_dir);
	assert_int_equal(system(command), 0);
}

/* The set-up of a test that needs no settings, and the tear-down of any test. */
__attribute__((unused)) static int rig_set_up(void **state)
{
	(void)state;
	rig_start(NULL);
	return 0;
}

__attribute__((unused)) static int rig_tear_down(void **state)
{
	(void)state;
	rig_stop();
	return 0;
}

#endif
