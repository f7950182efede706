// SPDX-License-Identifier: Apache-2.0
/* Times, modes, owners and rights: a late flush must not spoil them. */
#include "hook_test.h"

#include <linux/capability.h>
#include <sys/time.h>
#include <sys/xattr.h>
#include <utime.h>

static time_t changed_at(const char *path)
{
	struct stat st;

	OK(stat(path, &st));
	return st.st_mtim.tv_sec;
}

static void times(void **state)
{
	const struct timespec then[2] = {{.tv_sec = 1000000}, {.tv_sec = 2000000}};
	const struct timeval then_us[2] = {{.tv_sec = 1000000}, {.tv_sec = 3000000}};
	const struct utimbuf then_s = {.actime = 1, .modtime = 4000000};
	int fd = open_staged("a", 0);
	int path = OK(open("a", O_PATH | O_CLOEXEC));
	unsigned n = RECORDS;

	(void)state;
#define SET(call, seconds) \
	do { \
		fd = OK(open("a", O_WRONLY | O_APPEND)); \
		write_records(fd, n, RECORDS); \
		n += RECORDS; \
		OK(call); \
		OK(close(fd)); \
		assert_int_equal(changed_at("a"), seconds); \
	} while (0)
	OK(close(fd));
	SET(futimens(fd, then), 2000000);
	SET(utimensat(AT_FDCWD, "a", then, 0), 2000000);
	/* a descriptor that is good for nothing else */
	SET(utimensat(path, "", then, AT_EMPTY_PATH), 2000000);
	SET((int)syscall(SYS_utimensat, path, "", then, AT_EMPTY_PATH), 2000000);
	SET(futimes(fd, then_us), 3000000);
	SET(utimes("a", then_us), 3000000);
	SET(lutimes("a", then_us), 3000000);
	SET(futimesat(AT_FDCWD, "a", then_us), 3000000);
	SET(utime("a", &then_s), 4000000);
#undef SET
	OK(close(path));
	check_file("a", 0, n);
	OK(unlink("a"));
}

static void modes(void **state)
{
	struct stat st;
	int fd = open_staged("a", 0);

	(void)state;
	OK(fchmod(fd, 04755));
	OK(close(fd));
	OK(stat("a", &st));
	assert_int_equal(st.st_mode & 07777, 04755);
	/* a write drops the bits for everybody but root, as ever */
	fd = OK(open("a", O_WRONLY | O_APPEND));
	write_records(fd, RECORDS, RECORDS);
	OK(chmod("a", 06711));
	OK(close(fd));
	OK(stat("a", &st));
	assert_int_equal(st.st_mode & 07777, 06711);
	fd = OK(open("a", O_WRONLY | O_APPEND));
	write_records(fd, 2 * RECORDS, RECORDS);
	OK(fchmodat(AT_FDCWD, "a", 02755, 0));
	OK(fchown(fd, geteuid(), getegid()));
	OK(chown("a", geteuid(), getegid()));
	OK(fchownat(fd, "", geteuid(), getegid(), AT_EMPTY_PATH));
	OK(fchmod(fd, 0400));
	write_records(fd, 3 * RECORDS, RECORDS);
	OK(close(fd));
	check_file("a", 0, 4 * RECORDS);
	OK(unlink("a"));
}

/* Root's writes leave the bits without this capability, too. */
static void drop_fsetid(bool dropped)
{
	struct __user_cap_header_struct header = {.version = _LINUX_CAPABILITY_VERSION_3};
	struct __user_cap_data_struct data[2];

	assert_int_equal(raw_call(SYS_capget, (long)&header, (long)data, 0, 0), 0);
	if (dropped)
		data[0].effective &= ~(1u << CAP_FSETID);
	else
		data[0].effective |= data[0].permitted & (1u << CAP_FSETID);
	assert_int_equal(raw_call(SYS_capset, (long)&header, (long)data, 0, 0), 0);
}

/* A write takes the set-user-ID bit and the capabilities of the file. */
static void rights_go_with_a_write(void **state)
{
	const uint32_t capabilities[] = {0x02000000, 1, 0, 0, 0}; /* version 2, CAP_CHOWN */
	struct stat st;
	int fd;

	(void)state;
	drop_fsetid(true);
	for (int unseen = 0; unseen < 2; unseen++) {
		fd = open_staged("a", 0);
		/* (unseen: as by another process) */
		if (unseen)
			assert_int_equal(raw_call(SYS_fchmod, fd, 04755, 0, 0), 0);
		else
			OK(fchmod(fd, 04755));
		write_records(fd, RECORDS, 2);
		OK(fstat(fd, &st));
		assert_int_equal(st.st_mode & 07777, 0755);
		OK(close(fd));
		check_file("a", 0, RECORDS + 2);
		OK(unlink("a"));
	}
	drop_fsetid(false);
	fd = open_staged("a", 0);
	if (fsetxattr(fd, "security.capability", capabilities, sizeof capabilities, 0) == 0) {
		write_records(fd, RECORDS, 1);
		FAILS(fgetxattr(fd, "security.capability", NULL, 0), ENODATA);
	} else {
		print_message("no capabilities of a file here\n");
	}
	OK(close(fd));
	OK(unlink("a"));
}

/* A close changes nothing, although the space behind the end goes back.  Unseen: as by another process, while
 * nothing is staged. */
static void rights_stay_at_a_close(void **state)
{
	const uint32_t capabilities[] = {0x02000000, 1, 0, 0, 0}; /* version 2, CAP_CHOWN */
	struct stat st;
	int fd = open_staged("a", 0);

	(void)state;
	OK(fdatasync(fd));
	drop_fsetid(true);
	assert_int_equal(raw_call(SYS_fchmod, fd, 04755, 0, 0), 0);
	OK(close(fd));
	drop_fsetid(false);
	OK(stat("a", &st));
	assert_int_equal(st.st_mode & 07777, 04755);
	OK(unlink("a"));
	fd = open_staged("a", 0);
	OK(fdatasync(fd));
	assert_int_equal(raw_call(SYS_fchmod, fd, 0755, 0, 0), 0);
	if (syscall(SYS_fsetxattr, fd, "security.capability", capabilities, sizeof capabilities, 0) == 0) {
		OK(close(fd));
		assert_int_equal(getxattr("a", "security.capability", NULL, 0), sizeof capabilities);
	} else {
		print_message("no capabilities of a file here\n");
		OK(close(fd));
	}
	check_file("a", 0, RECORDS);
	OK(unlink("a"));
}

/* Whatever becomes of the call (not every system knows this form): what was written is in the file by then.
 */
static void by_descriptor(void **state)
{
	int fd = open_new("a", 0);
	int path = OK(open("a", O_PATH | O_CLOEXEC));

	(void)state;
	for (unsigned i = 0; i < 6; i++) {
		int which = i % 2 ? path : fd;

		write_records(fd, i * RECORDS, RECORDS);
		if (i < 2)
			(void)!fchmodat(which, "", 04755, AT_EMPTY_PATH);
		else if (i < 4)
			OK(fchownat(which, "", geteuid(), getegid(), AT_EMPTY_PATH));
		else
			(void)!syscall(452 /* fchmodat2 */, which, "", 04755, AT_EMPTY_PATH);
		assert_int_equal(kernel_size("a"), (i + 1) * STAGED);
	}
	OK(close(path));
	OK(close(fd));
	OK(unlink("a"));
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(rights_go_with_a_write), /* before there are threads with the capability */
		cmocka_unit_test(rights_stay_at_a_close),
		cmocka_unit_test(by_descriptor),
		cmocka_unit_test(times),
		cmocka_unit_test(modes),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
