// SPDX-License-Identifier: Apache-2.0
/* lazy: a descriptor is asked about by its second small write, or by who needs to know. */
#include "files/fdtable.h"
#include "rig.h"

#include "descriptors/unresolved.h"
#include "sync/sync.h"

static int tear_down(void **state)
{
	(void)state;
	unresolved_clear_all();
	rig_stop();
	return 0;
}

static int open_noted(const char *name, int flags)
{
	struct fd_open op;
	int fd;

	fd_open_prepare(&op, AT_FDCWD, rig_path(name), flags);
	fd = open(rig_path(name), flags, 0644);
	assert_true(fd >= 0);
	fd_opened(&op, fd);
	fd_open_end(&op);
	assert_true(unresolved_is(fd));
	assert_null(fdtable_get(fd));
	return fd;
}

static void test_second_small_write_resolves(void **state)
{
	int fd = open_noted("a", O_WRONLY | O_CREAT);
	uint32_t counted;
	struct ofd *o;

	(void)state;
	assert_null(unresolved_write(fd, 100, &counted));
	assert_true(counted);
	unresolved_written(fd, counted);
	o = unresolved_write(fd, 100, &counted);
	assert_non_null(o);
	assert_false(counted);
	assert_false(unresolved_is(fd));
	assert_ptr_equal(o, fdtable_get(fd));
	/* the first one is counted: this one attaches */
	assert_int_equal(rig_write(fd, "x", 1), 1);
	assert_int_equal(atomic_load(&o->file)->mode, FILE_ATTACHED);
	assert_int_equal(rig_close(fd), 0);
}

/* They are never staged; but what no rule matches must not cost more than a look at two tables for long. */
static void test_second_large_write_resolves(void **state)
{
	int fd = open_noted("a", O_WRONLY | O_CREAT);
	uint32_t counted;
	struct ofd *o;

	(void)state;
	assert_null(unresolved_write(fd, 1 << 20, &counted));
	assert_true(counted);
	unresolved_written(fd, counted);
	assert_null(unresolved_write(fd, 0, &counted)); /* nothing is written: does not count */
	assert_true(counted);
	unresolved_written(fd, counted);
	o = unresolved_write(fd, 1 << 20, &counted);
	assert_non_null(o);
	assert_false(counted);
	assert_false(unresolved_is(fd));
	assert_int_equal(atomic_load(&o->file)->mode, FILE_PASSIVE);
	assert_int_equal(rig_close(fd), 0);
}

static void test_not_while_another_write_is_under_way(void **state)
{
	int fd = open_noted("a", O_WRONLY | O_CREAT);
	uint32_t counted;

	(void)state;
	assert_null(unresolved_write(fd, 10, &counted)); /* another thread's, not over yet */
	assert_true(counted);
	assert_null(unresolved_write(fd, 10, &counted));
	assert_true(counted);
	unresolved_written(fd, counted);
	unresolved_written(fd, counted);
	assert_non_null(unresolved_write(fd, 10, &counted));
	assert_int_equal(rig_close(fd), 0);
}

/* A write that a signal handler interrupted, or that waits for a pipe's reader, is over when its number is
 * another descriptor's already. */
static void test_a_write_left_from_before(void **state)
{
	int fd = open_noted("a", O_WRONLY | O_CREAT);
	uint32_t before, counted;

	(void)state;
	assert_null(unresolved_write(fd, 10, &before));
	assert_int_not_equal(before, 0);
	assert_int_equal(rig_close(fd), 0);
	assert_int_equal(open_noted("b", O_WRONLY | O_CREAT), fd);
	assert_null(unresolved_write(fd, 10, &counted));
	unresolved_written(fd, before); /* counts for nothing */
	assert_int_equal(unresolved_inflight(fd), 1);
	unresolved_written(fd, counted);
	assert_int_equal(unresolved_inflight(fd), 0);
	unresolved_written(fd, counted);
	assert_int_equal(unresolved_inflight(fd), 0);
	unresolved_resolve(fd);
	assert_non_null(fdtable_get(fd));
	assert_int_equal(rig_close(fd), 0);
}

/* By an instruction of the program's own, or while another thread was just putting a managed file there. */
static void test_a_number_closed_behind_our_back(void **state)
{
	for (int copies = 0; copies < 2; copies++) {
		int fd = open_noted("a", O_RDWR | O_CREAT), copy = -1;
		struct fd_copy c;
		struct stat st;

		(void)state;
		unresolved_resolve(fd);
		assert_int_equal(rig_write(fd, "one", 3), 3);
		assert_int_equal(rig_write(fd, "two", 3), 3);
		if (copies) {
			fd_dup_begin(&c, fd);
			copy = dup(fd);
			fd_dup_done(&c, copy);
		}
		assert_int_equal(close(fd), 0);
		assert_int_equal(open_noted("b", O_RDWR | O_CREAT), fd);
		assert_int_equal(lseek(fd, 0, SEEK_CUR), 0);
		unresolved_resolve(fd);
		assert_int_equal(rig_write(fd, "b", 1), 1);
		assert_int_equal(rig_write(fd, "b", 1), 1);
		assert_int_equal(rig_close(fd), 0);
		if (copies) {
			assert_int_equal(lseek(copy, 0, SEEK_CUR), 6);
			assert_int_equal(rig_close(copy), 0);
		}
		assert_int_equal(stat(rig_path("a"), &st), 0);
		assert_int_equal(st.st_size, 6);
		assert_int_equal(stat(rig_path("b"), &st), 0);
		assert_int_equal(st.st_size, 2);
		unlink(rig_path("a"));
		unlink(rig_path("b"));
	}
}

static int replaced_fd;

/* Another thread closes the descriptor and opens another file in the moment after it was looked at. */
static long replace_fcntl(int fd, int cmd, long arg)
{
	if (cmd == F_GETFL && fd == replaced_fd && unresolved_is(fd)) {
		sys.fcntl = sys_kernel.fcntl;
		assert_int_equal(rig_close(fd), 0);
		assert_int_equal(open_noted("b", O_WRONLY | O_CREAT), fd);
	}
	return sys_kernel.fcntl(fd, cmd, arg);
}

static void test_a_number_replaced_while_it_is_adopted(void **state)
{
	int first = open_noted("a", O_WRONLY | O_CREAT);

	(void)state;
	replaced_fd = open_noted("a", O_WRONLY);
	unresolved_resolve(first);
	assert_int_equal(rig_write(first, "one", 3), 3);
	sys.fcntl = replace_fcntl;
	assert_int_equal(rig_write(first, "two", 3), 3);
	assert_ptr_equal(sys.fcntl, sys_kernel.fcntl);
	unresolved_resolve(replaced_fd);
	assert_non_null(fdtable_get(replaced_fd));
	assert_ptr_not_equal(atomic_load(&fdtable_get(replaced_fd)->file),
	                     atomic_load(&fdtable_get(first)->file));
	assert_int_equal(rig_close(replaced_fd), 0);
	assert_int_equal(rig_close(first), 0);
}

static bool noted_meanwhile;
static int watched_fd;

static ssize_t watch_readlinkat(int dirfd, const char *path, char *buf, size_t size)
{
	noted_meanwhile = noted_meanwhile && (unresolved_is(watched_fd) || fdtable_get(watched_fd));
	return sys_kernel.readlinkat(dirfd, path, buf, size);
}

static int watch_statx(int dirfd, const char *path, int flags, unsigned mask, struct statx *out)
{
	noted_meanwhile = noted_meanwhile && (unresolved_is(watched_fd) || fdtable_get(watched_fd));
	return sys_kernel.statx(dirfd, path, flags, mask, out);
}

/* A write of another thread must find the note, and wait, until it finds the description: one that finds
 * neither goes to the kernel uncounted, and what is staged next is written over it. */
static void test_noted_until_the_table_shows_it(void **state)
{
	uint32_t counted;

	(void)state;
	watched_fd = open_noted("a", O_WRONLY | O_CREAT);
	assert_null(unresolved_write(watched_fd, 100, &counted));
	unresolved_written(watched_fd, counted);
	noted_meanwhile = true;
	sys.readlinkat = watch_readlinkat;
	sys.statx = watch_statx;
	assert_non_null(unresolved_write(watched_fd, 100, &counted));
	sys.readlinkat = sys_kernel.readlinkat;
	sys.statx = sys_kernel.statx;
	assert_true(noted_meanwhile);
	assert_int_equal(rig_close(watched_fd), 0);
}

static void test_unmatched_file_is_forgotten(void **state)
{
	char path[600];
	struct fd_open op;
	uint32_t counted;
	int fd;

	(void)state;
	snprintf(path, sizeof path, "%s-elsewhere", rig_dir);
	fd_open_prepare(&op, AT_FDCWD, path, O_WRONLY | O_CREAT);
	fd = open(path, O_WRONLY | O_CREAT, 0644);
	unlink(path);
	fd_opened(&op, fd);
	fd_open_end(&op);
	assert_true(unresolved_is(fd));
	assert_null(unresolved_write(fd, 10, &counted));
	unresolved_written(fd, counted);
	assert_null(unresolved_write(fd, 10, &counted));
	assert_false(counted);
	assert_false(unresolved_is(fd));
	close(fd);
}

static void test_duplicates_share_one_description(void **state)
{
	int fd = open_noted("a", O_WRONLY | O_CREAT);
	struct fd_copy c;
	int copy;

	(void)state;
	fd_dup_begin(&c, fd);
	copy = dup(fd);
	fd_dup_done(&c, copy);
	assert_false(unresolved_is(fd));
	assert_non_null(fdtable_get(fd));
	assert_ptr_equal(fdtable_get(fd), fdtable_get(copy));
	assert_int_equal(rig_close(copy), 0);
	assert_int_equal(rig_close(fd), 0);
}

static void test_second_description_is_adopted(void **state)
{
	int first = open_noted("a", O_WRONLY | O_CREAT);
	int second = open_noted("a", O_WRONLY);
	struct ofd *o;

	(void)state;
	unresolved_resolve(first);
	o = fdtable_get(first);
	assert_non_null(o);
	assert_int_equal(rig_write(first, "one", 3), 3);
	assert_int_equal(rig_write(first, "two", 3), 3);
	/* attached: the other description had to be found and registered */
	assert_int_equal(atomic_load(&o->file)->mode, FILE_ATTACHED);
	assert_false(unresolved_is(second));
	assert_non_null(fdtable_get(second));
	assert_ptr_equal(atomic_load(&fdtable_get(second)->file), atomic_load(&o->file));
	assert_int_equal(rig_close(second), 0);
	assert_int_equal(rig_close(first), 0);
}

static void test_created_file_is_remembered(void **state)
{
	int fd = open_noted("new", O_WRONLY | O_CREAT);

	(void)state;
	/* not empty any more when it is asked about */
	assert_int_equal(write(fd, "bytes", 5), 5);
	unresolved_resolve(fd);
	assert_true(atomic_load(&fdtable_get(fd)->file)->sync.full);
	assert_int_equal(rig_close(fd), 0);
	/* also when it was closed meanwhile, until it has been synced */
	fd = open_noted("new", O_WRONLY);
	unresolved_resolve(fd);
	assert_true(atomic_load(&fdtable_get(fd)->file)->sync.full);
	assert_int_equal(sync_file(fd, fdtable_get(fd), true), 0);
	assert_int_equal(rig_close(fd), 0);

	usleep(50000); /* the coarse clock ticks */
	fd = open_noted("new", O_WRONLY | O_CREAT);
	unresolved_resolve(fd);
	assert_false(atomic_load(&fdtable_get(fd)->file)->sync.full);
	assert_int_equal(rig_close(fd), 0);
}

static void test_clear_all(void **state)
{
	int fd = open_noted("a", O_WRONLY | O_CREAT);
	uint32_t counted;

	(void)state;
	unresolved_clear_all();
	assert_false(unresolved_is(fd));
	assert_null(unresolved_write(fd, 10, &counted));
	assert_false(counted);
	close(fd);
}

int main(void)
{
#define TEST(name) cmocka_unit_test_setup_teardown(name, rig_set_up, tear_down)
	const struct CMUnitTest tests[] = {
		TEST(test_second_small_write_resolves),
		TEST(test_second_large_write_resolves),
		TEST(test_not_while_another_write_is_under_way),
		TEST(test_a_write_left_from_before),
		TEST(test_a_number_closed_behind_our_back),
		TEST(test_a_number_replaced_while_it_is_adopted),
		TEST(test_unmatched_file_is_forgotten),
		TEST(test_duplicates_share_one_description),
		TEST(test_second_description_is_adopted),
		TEST(test_noted_until_the_table_shows_it),
		TEST(test_created_file_is_remembered),
		TEST(test_clear_all),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
