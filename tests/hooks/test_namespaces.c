// SPDX-License-Identifier: Apache-2.0
/* Namespaces, rights, mounts: what the library has running and open must not show. */
#include "hook_test.h"

#include <dirent.h>
#include <grp.h>
#include <linux/capability.h>
#include <linux/loop.h>
#include <linux/mount.h>
#include <pthread.h>
#include <sched.h>
#include <sys/fsuid.h>
#include <sys/ioctl.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/swap.h>
#include <sys/vfs.h>

int capset(cap_user_header_t header, const cap_user_data_t data);

static void child_puts(int fd, unsigned from, unsigned count)
{
	char record[RECORD];

	for (unsigned i = 0; i < count; i++) {
		record_fill(record, from + i);
		CHILD(write(fd, record, RECORD) == RECORD);
	}
}

/* The lines of a thread's status that say what it may do. */
static void rights_of(const char *thread, char *out, size_t room)
{
	static const char *const lines[] = {"\nUid:", "\nGid:", "\nGroups:", "\nCapEff:"};
	char path[300], text[8192] = "";
	int fd;

	snprintf(path, sizeof path, "/proc/self/task/%s/status", thread);
	fd = open(path, O_RDONLY);
	out[0] = '\0';
	if (fd < 0)
		return;
	CHILD(read(fd, text, sizeof text - 1) > 0);
	close(fd);
	for (size_t i = 0; i < sizeof lines / sizeof *lines; i++) {
		const char *line = strstr(text, lines[i]);

		CHILD(line && strlen(out) + 200 < room);
		strncat(out, line, 1 + strcspn(line + 1, "\n"));
	}
}

/* No thread of this process may do what the calling one may not. */
static void check_rights(void)
{
	char own[1024], other[1024], number[32];
	DIR *threads = opendir("/proc/self/task");
	struct dirent *entry;

	snprintf(number, sizeof number, "%d", (int)gettid());
	rights_of(number, own, sizeof own);
	CHILD(threads);
	while ((entry = readdir(threads))) {
		if (entry->d_name[0] == '.')
			continue;
		rights_of(entry->d_name, other, sizeof other);
		CHILD(!other[0] || strcmp(own, other) == 0);
	}
	closedir(threads);
}

enum {
	UNSHARE_USER,
	UNSHARE_USER_BY_NUMBER,
	UNSHARE_FILES,
	CLOSE_UNSHARED,
	UNSHARE_MOUNTS,
	SETNS,
	SETNS_BY_NUMBER,
	CAPSET,
	CAPSET_BY_NUMBER,
	SETUID,
	SETGID,
	SETREUID,
	SETREGID,
	SETRESUID,
	SETRESGID,
	ALL_SETUID,
	ALL_SETEUID,
	ALL_SETREUID,
	ALL_SETRESUID,
	ALL_SETGID,
	ALL_SETEGID,
	ALL_SETREGID,
	ALL_SETRESGID,
	ALL_SETGROUPS,
	ALL_INITGROUPS,
	THREAD_SETGROUPS, /* from here on of the calling thread alone */
	THREAD_SETFSUID,
	THREAD_SETFSGID,
	THREAD_SETFSUID_BY_NUMBER,
	THREAD_SETFSGID_BY_NUMBER,
	APART_WAYS
};

static int namespace_of_own(const char *which)
{
	char path[64];

	snprintf(path, sizeof path, "/proc/self/ns/%s", which);
	return open(path, O_RDONLY | O_CLOEXEC);
}

/* -1 and errno as the call left it */
static long go_apart(int how)
{
	struct __user_cap_header_struct header = {.version = _LINUX_CAPABILITY_VERSION_3};
	struct __user_cap_data_struct none[2] = {{0}, {0}};
	gid_t groups[] = {12345, 23456};
	int ns = -1;
	long r = -1;

	switch (how) {
	case ALL_SETUID: return setuid(12345);
	case ALL_SETEUID: return seteuid(12345);
	case ALL_SETREUID: return setreuid(12345, 12345);
	case ALL_SETRESUID: return setresuid(12345, 12345, 0);
	case ALL_SETGID: return setgid(12345);
	case ALL_SETEGID: return setegid(12345);
	case ALL_SETREGID: return setregid(12345, 12345);
	case ALL_SETRESGID: return setresgid(12345, 12345, 0);
	case ALL_SETGROUPS: return setgroups(2, groups);
	case ALL_INITGROUPS:
		r = initgroups("root", 12345);
		errno = r < 0 ? errno : 4242; /* it reads files */
		return r;
	case THREAD_SETGROUPS: return syscall(SYS_setgroups, 2, groups);
	case THREAD_SETFSUID: return setfsuid(12345);
	case THREAD_SETFSGID: return setfsgid(12345);
	case THREAD_SETFSUID_BY_NUMBER: return syscall(SYS_setfsuid, 12345);
	case THREAD_SETFSGID_BY_NUMBER: return syscall(SYS_setfsgid, 12345);
	case UNSHARE_USER: return unshare(CLONE_NEWUSER);
	case UNSHARE_USER_BY_NUMBER: return syscall(SYS_unshare, CLONE_NEWUSER);
	case UNSHARE_FILES: return unshare(CLONE_FILES);
	case CLOSE_UNSHARED: return close_range(200, 300, CLOSE_RANGE_UNSHARE);
	case UNSHARE_MOUNTS: return unshare(CLONE_NEWNS);
	case SETNS:
	case SETNS_BY_NUMBER:
		/* refused to whoever shares its root and directory with another thread */
		ns = namespace_of_own("mnt");
		r = how == SETNS ? setns(ns, CLONE_NEWNS) : syscall(SYS_setns, ns, CLONE_NEWNS);
		close(ns);
		return r;
	case CAPSET: return capset(&header, none);
	case CAPSET_BY_NUMBER: return syscall(SYS_capset, &header, none);
	case SETUID: return syscall(SYS_setuid, 12345);
	case SETGID: return syscall(SYS_setgid, 12345);
	case SETREUID: return syscall(SYS_setreuid, 12345, 12345);
	case SETREGID: return syscall(SYS_setregid, 12345, 12345);
	case SETRESUID: return syscall(SYS_setresuid, 12345, 12345, 12345);
	case SETRESGID: return syscall(SYS_setresgid, 12345, 12345, 12345);
	}
	return r;
}

static bool possible(int how)
{
#ifdef __SANITIZE_THREAD__
	return how == UNSHARE_FILES || how == CLOSE_UNSHARED || how == UNSHARE_MOUNTS;
#else
	(void)how;
	return true;
#endif
}

static void going(int how)
{
	pid_t pid;

	fflush(stdout);
	pid = fork();
	if (pid == 0) {
		int fd = open("a", O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
		long r;

		child_puts(fd, 0, RECORDS);
		errno = 4242;
		r = go_apart(how);
		if (r < 0) {
			if (errno != EPERM && errno != ENOSYS && errno != ENOSPC) {
				dprintf(2, "way %d: %s\n", how, strerror(errno));
				_exit(99);
			}
			printf("# way %d: %s\n", how, strerror(errno));
			fflush(stdout);
		} else {
			CHILD(errno == 4242);
			if (how < THREAD_SETGROUPS)
				check_rights();
		}
		child_puts(fd, RECORDS, 3 * RECORDS);
		CHILD(close(fd) == 0);
		/* (without the right to write the statistics) */
		if (how >= CAPSET)
			leave();
		_exit(0);
	}
	check_exit(pid, 0);
	check_file("a", 0, 4 * RECORDS);
	OK(unlink("a"));
}

static void parting(void **state)
{
	(void)state;
#ifdef __SANITIZE_THREAD__
	print_message(
		"# the thread sanitizer has a thread of its own, with rights of its own: three ways only\n");
#endif
	for (int how = 0; how < APART_WAYS; how++)
		if ((geteuid() == 0 || how < CAPSET) && possible(how))
			going(how);
	FAILS(unshare(-1), EINVAL);
	FAILS(setns(-1, 0), EBADF);
	clean_up();
}

/* ---- a thread with descriptors of its own ---- */

static int shared_fd;
static pthread_barrier_t barrier;

static void *with_own_table(void *unused)
{
	(void)unused;
	CHILD(unshare(CLONE_FILES) == 0);
	/* the same number means another file here */
	CHILD(dup2(open("b", O_RDWR | O_CREAT | O_TRUNC, 0644), shared_fd) == shared_fd);
	pthread_barrier_wait(&barrier);
	child_puts(shared_fd, 0, RECORDS);
	pthread_barrier_wait(&barrier);
	return NULL;
}

static void two_tables(void **state)
{
	pid_t pid;

	(void)state;
	fflush(stdout);
	pid = fork();
	if (pid == 0) {
		pthread_t thread;

		shared_fd = open("a", O_RDWR | O_CREAT | O_TRUNC, 0644);
		child_puts(shared_fd, 0, RECORDS);
		pthread_barrier_init(&barrier, NULL, 2);
		CHILD(pthread_create(&thread, NULL, with_own_table, NULL) == 0);
		pthread_barrier_wait(&barrier);
		child_puts(shared_fd, RECORDS, RECORDS);
		pthread_barrier_wait(&barrier);
		pthread_join(thread, NULL);
		_exit(0);
	}
	check_exit(pid, 0);
	check_file("a", 0, 2 * RECORDS);
	check_file("b", 0, RECORDS);
	OK(unlink("a"));
	OK(unlink("b"));
}

/* ---- mounts ---- */

static bool mount_here(void)
{
	bool mounted;

	OK(mkdir("m", 0755));
	mounted = mount("none", "m", "tmpfs", 0, NULL) == 0;
	if (!mounted) {
		print_message("no mount: %s\n", strerror(errno));
		OK(rmdir("m"));
	}
	return mounted;
}

/* Staged and closed: nothing of the program's is in the way, so nothing of the library's may be. */
static void put_there(void)
{
	int fd = open_staged("m/a", 0);

	OK(close(fd));
	check_file("m/a", 0, RECORDS);
}

/* past everything, also after a failure */
static int unmount(void **state)
{
	(void)state;
	while (raw_call(SYS_umount2, (long)"m", MNT_DETACH, 0, 0) == 0)
		;
	return 0;
}

static void mounts(void **state)
{
	struct mount_attr attributes = {.attr_set = MOUNT_ATTR_RDONLY};
	int fd;

	(void)state;
	for (int how = 0; how < 8; how++) {
		if (!mount_here())
			skip();
		put_there();
		switch (how) {
		case 0: OK(umount("m")); break;
		case 1: OK(umount2("m", 0)); break;
		case 2: OK(syscall(SYS_umount2, "m", 0)); break;
		case 3:
			OK(mount(NULL, "m", NULL, MS_REMOUNT | MS_RDONLY, NULL));
			OK(umount("m"));
			break;
		case 4:
			OK(syscall(SYS_mount, NULL, "m", NULL, MS_REMOUNT | MS_RDONLY, NULL));
			OK(umount("m"));
			break;
		case 5:
		case 6:
			if ((how == 5 ? mount_setattr(AT_FDCWD, "m", 0, &attributes, sizeof attributes)
			              : syscall(SYS_mount_setattr, AT_FDCWD, "m", 0, &attributes,
			                        sizeof attributes)) < 0)
				assert_int_equal(errno, ENOSYS);
			OK(umount("m"));
			break;
		case 7:
			/* in use by the program, detached all the same */
			fd = open_new("m/b", 0);
			write_records(fd, 0, RECORDS);
			FAILS(umount("m"), EBUSY);
			write_records(fd, RECORDS, RECORDS);
			OK(umount2("m", MNT_DETACH));
			write_records(fd, 2 * RECORDS, RECORDS);
			{
				char back[RECORD];

				assert_int_equal(OK(pread(fd, back, RECORD, 3 * STAGED - RECORD)), RECORD);
				check_records(back, 3 * RECORDS - 1, 1);
			}
			OK(close(fd));
			break;
		}
		OK(rmdir("m"));
	}
	assert_int_equal(umount("none"), -1);
	assert_int_equal(syscall(SYS_umount2, "none", MNT_DETACH), -1);
}

static void swapping(void **state)
{
	int fd = open_staged("a", 0);

	(void)state;
	/* refused, since it is no swap space; but it might have been */
	assert_int_equal(swapon("a", 0), -1);
	assert_int_equal(kernel_size("a"), STAGED);
	write_records(fd, RECORDS, RECORDS);
	OK(close(fd));
	check_file("a", 0, 2 * RECORDS);
	OK(unlink("a"));
}

/* ---- a file under a device ---- */

static int loop_device = -1;

static int detach(void **state)
{
	(void)state;
	if (loop_device >= 0)
		raw_call(SYS_ioctl, loop_device, LOOP_CLR_FD, 0, 0);
	return 0;
}

static int open_free_loop(int control)
{
	char path[64];
	int number = control >= 0 ? ioctl(control, LOOP_CTL_GET_FREE) : -1;

	snprintf(path, sizeof path, "/dev/loop%d", number);
	return number >= 0 ? open(path, O_RDWR | O_CLOEXEC) : -1;
}

static void loop(void **state)
{
	int control = open("/dev/loop-control", O_RDWR | O_CLOEXEC), fd, device = open_free_loop(control);
	char back[RECORD];

	(void)state;
	if (device < 0) {
		print_message("no loop device: %s\n", strerror(errno));
		skip();
	}
	fd = open_new("a", 0);
	write_records(fd, 0, RECORDS);
	OK(ftruncate(fd, 1 << 20));
	write_records(fd, RECORDS, RECORDS);
	/* another program may have taken it meanwhile */
	while (ioctl(device, LOOP_SET_FD, fd) < 0) {
		assert_int_equal(errno, EBUSY);
		close(device);
		device = OK(open_free_loop(control));
	}
	loop_device = device;
	assert_int_equal(OK(pread(device, back, RECORD, 2 * STAGED - RECORD)), RECORD);
	check_records(back, 2 * RECORDS - 1, 1);
	write_records(fd, 2 * RECORDS, 2 * RECORDS);
	assert_int_equal(OK(pread(fd, back, RECORD, 4 * STAGED - RECORD)), RECORD);
	assert_true(kernel_size("a") == 1 << 20);
	OK(ioctl(device, LOOP_CLR_FD, 0));
	loop_device = -1;
	OK(close(device));
	OK(close(control));
	OK(close(fd));
	OK(truncate("a", 4 * STAGED));
	check_file("a", 0, 4 * RECORDS);
	OK(unlink("a"));
}

/* ---- children ---- */

enum { APART_RECORDS = 3000 };

static int writes_apart(void *fd)
{
	child_puts(*(int *)fd, 0, APART_RECORDS);
	return 0;
}

/* The child is process 1 of its namespace: no number of a thread means the same on both sides. */
static void parting_by_clone(void **state)
{
	enum { STACK_BYTES = 256 << 10 };
	static const int kinds[] = {CLONE_NEWPID, CLONE_NEWUSER, CLONE_NEWPID | CLONE_NEWUSER};
	char *stack = malloc(STACK_BYTES);

	(void)state;
	assert_non_null(stack);
	fflush(stdout);
	for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++) {
		int fd = open_staged("a", O_APPEND);
		pid_t pid = clone(writes_apart, stack + STACK_BYTES, kinds[i] | SIGCHLD, &fd);
		struct stat st;

		if (pid < 0) {
			print_message("no such namespaces here: %s\n", strerror(errno));
		} else {
			write_records(fd, RECORDS, APART_RECORDS);
			check_exit(pid, 0);
			OK(fstat(fd, &st));
			assert_int_equal(st.st_size, (RECORDS + 2 * APART_RECORDS) * RECORD);
		}
		OK(close(fd));
		OK(unlink("a"));
	}
	free(stack);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(parting_by_clone), /* before the library knows of other namespaces */
		cmocka_unit_test(parting),
		cmocka_unit_test(two_tables),
		cmocka_unit_test_teardown(mounts, unmount),
		cmocka_unit_test(swapping),
		cmocka_unit_test_teardown(loop, detach),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
