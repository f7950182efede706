// SPDX-License-Identifier: Apache-2.0
/* append: O_APPEND with and without the proof that nobody else has the file open. */
#include "attach/attach.h"
#include "files/fdtable.h"
#include "rig.h"

#include "base/lease.h"
#include "flush/append.h"
#include "flush/device_speed.h"

static int staged_file(int flags, uint64_t n)
{
	int fd = rig_open("out", O_WRONLY | O_APPEND | flags);

	rig_put(fd, 0, 100);
	rig_put(fd, 100, n - 100);
	assert_int_equal(rig_kernel_size("out"), 100);
	assert_int_equal(rig_file(fd)->kind, STAGE_APPEND);
	rig_faults_clear();
	return fd;
}

static void append_by_somebody_else(const char *text)
{
	int other = open(rig_path("out"), O_WRONLY | O_APPEND);

	assert_true(write(other, text, strlen(text)) == (ssize_t)strlen(text));
	close(other);
}

static void test_leased(void **state)
{
	int fd = staged_file(0, 20000);

	(void)state;
	assert_int_equal(rig_drain(fd), 0);
	if (faults.pwritev.calls == 0) {
		print_message("SKIP reason: no leases on this file system\n");
		skip();
	}
	assert_int_equal(faults.writev.calls, 0);
	assert_int_equal(fcntl(fd, F_GETLEASE), F_UNLCK);
	assert_true(fcntl(fd, F_GETFL) & O_APPEND);
	assert_int_equal(rig_entry(fd)->flush_active, APPEND_NONE);
	rig_expect("out", 20000);
}

static void test_lease_refused(void **state)
{
	int fd = staged_file(0, 20000);

	(void)state;
	faults.fcntl_lease = (struct fault){.at = 1, .count = 1, .error = EAGAIN};
	assert_int_equal(rig_drain(fd), 0);
	assert_int_equal(faults.pwritev.calls, 0);
	assert_int_equal(faults.writev.calls, 1);
	assert_int_equal(rig_entry(fd)->flush_active, APPEND_NONE);
	rig_expect("out", 20000);
}

static void test_shared_never_asks(void **state)
{
	int fd;

	(void)state;
	rig_config.rules[0].set.writers = WRITERS_SHARED;
	fd = staged_file(0, 20000);
	assert_int_equal(rig_drain(fd), 0);
	assert_int_equal(faults.fcntl_lease.calls, 0);
	rig_expect("out", 20000);
}

static void test_behind_what_others_appended(void **state)
{
	char have[300];
	int fd = staged_file(0, 150);

	(void)state;
	append_by_somebody_else("somebody else\n");
	assert_int_equal(rig_drain(fd), 0);
	assert_int_equal(rig_file(fd)->ksize, 164);
	rig_put(fd, 150, 20);
	assert_int_equal(rig_close(fd), 0);
	fd = open(rig_path("out"), O_RDONLY);
	assert_int_equal(read(fd, have, sizeof have), 184);
	close(fd);
	assert_memory_equal(have + 100, "somebody else\n", 14);
	for (int i = 0; i < 70; i++)
		assert_int_equal((uint8_t)have[114 + i], rig_byte(100 + (uint64_t)i));
}

static void test_short_appends_go_on(void **state)
{
	int fd;

	(void)state;
	rig_config.rules[0].set.writers = WRITERS_SHARED;
	fd = staged_file(0, 30000);
	faults.writev = (struct fault){.at = 1, .count = 12, .most = 1111};
	assert_int_equal(rig_drain(fd), 0);
	assert_int_equal(faults.writev.calls, 13);
	rig_expect("out", 30000);
	rig_put(fd, 30000, 3000);
	faults.writev = (struct fault){.at = 1, .count = 5, .error = EINTR};
	assert_int_equal(rig_drain(fd), 0);
	rig_expect("out", 33000);
}

/* Some of it is in the file when the disk is full: the rest follows later, no byte twice. */
static void test_part_then_full(void **state)
{
	(void)state;
	for (int leased = 0; leased < 2; leased++) {
		struct fault *f = leased ? &faults.pwritev : &faults.writev;
		int fd;

		rig_config.rules[0].set.writers = leased ? WRITERS_AUTO : WRITERS_SHARED;
		fd = staged_file(O_TRUNC, 30000);
		*f = (struct fault){.at = 1, .most = 7000, .then = ENOSPC};
		assert_int_equal(rig_drain(fd), -ENOSPC);
		rig_expect("out", 7100);
		assert_int_equal(DONE_SKIP(rig_entry(fd)->done), 7000);
		assert_int_equal(rig_entry(fd)->flush_active, APPEND_NONE);
		f->at = 0;
		rig_put(fd, 30000, 9000);
		assert_int_equal(rig_close(fd), 0);
		rig_expect("out", 39000);
	}
}

/* Others left an end that is not aligned: an O_DIRECT append of accepted bytes must not fail for that. */
static void test_direct_behind_an_unaligned_end(void **state)
{
	static uint8_t page[8192] __attribute__((aligned(4096)));
	int fd;

	(void)state;
	if (rig_on_tmpfs()) {
		print_message("SKIP reason: tmpfs takes any O_DIRECT\n");
		skip();
	}
	rig_config.rules[0].set.writers = WRITERS_SHARED;
	fd = rig_open("out", O_WRONLY | O_APPEND | O_DIRECT);
	rig_fill(page, sizeof page, 0);
	assert_int_equal(rig_write(fd, page, 4096), 4096);
	assert_int_equal(rig_write(fd, page + 4096, 4096), 4096);
	assert_int_equal(rig_kernel_size("out"), 4096);
	append_by_somebody_else("odd");
	assert_int_equal(rig_drain(fd), 0);
	assert_int_equal(rig_kernel_size("out"), 8195);
	assert_true(fcntl(fd, F_GETFL) & O_DIRECT);
	assert_int_equal(rig_close(fd), 0);
}

/* A write that goes over a block's end is not torn where one kernel append ends. */
static void test_whole_writes_only(void **state)
{
	enum { RECORD = 1000 };
	int fd;

	(void)state;
	rig_config.rules[0].set.writers = WRITERS_SHARED;
	fd = rig_open("out", O_WRONLY | O_APPEND);
	for (uint64_t at = 0; at < 300 * RECORD; at += RECORD) {
		rig_put(fd, at, RECORD);
		if (at % (17 * RECORD) == 0) {
			assert_int_equal(rig_drain(fd), 0);
			assert_int_equal(rig_kernel_size("out") % RECORD, 0);
		}
	}
	assert_int_equal(rig_close(fd), 0);
	rig_expect("out", 300 * RECORD);
}

/* The one store to `done` ends an append, whatever flush_active says. */
static void test_done_ends_an_append(void **state)
{
	int fd = staged_file(0, 5000);
	struct arena_entry *entry = rig_entry(fd);
	struct file_guard g = file_lock(rig_file(fd));

	(void)state;
	append_begin(rig_file(fd), APPEND_SOMEWHERE, 100, 4900);
	assert_int_equal(entry->flush_active, APPEND_SOMEWHERE);
	assert_int_equal(entry->flush_base, 100);
	assert_int_equal(entry->flush_bytes, 4900);
	assert_int_equal(entry->flush_from, entry->done);
	file_unlock(rig_file(fd), g);
	assert_int_equal(rig_drain(fd), 0);
	assert_int_not_equal(entry->flush_from, entry->done);
	assert_int_equal(entry->flush_active, APPEND_NONE);
}

/* A read that is under way would fail if a flush set O_DIRECT in its description. */
static void test_reads_keep_direct_flushes_out(void **state)
{
	uint8_t got[7];
	struct iovec iov = {.iov_base = got, .iov_len = sizeof got};
	int fd = rig_open("out", O_RDWR | O_APPEND);

	(void)state;
	rig_put(fd, 0, 100);
	rig_put(fd, 100, 20000);
	assert_int_equal(rig_file(fd)->mode, FILE_ATTACHED);
	assert_int_equal(io_readv(fd, fdtable_get(fd), &iov, 1, 3), sizeof got);
	for (size_t i = 0; i < sizeof got; i++)
		assert_int_equal(got[i], rig_byte(3 + i));
	assert_int_equal(rig_kernel_size("out"), 100);
	assert_int_equal(rig_file(fd)->flush.reads, 0);
	rig_config.rules[0].set.flush = FLUSH_DIRECT;
	for (uint64_t reads = 2; reads-- > 0;) {
		atomic_store(&rig_file(fd)->flush.reads, (uint32_t)reads);
		rig_faults_clear();
		assert_int_equal(rig_drain(fd), 0);
		assert_int_equal(faults.set_direct.calls > 0, reads == 0);
		rig_put(fd, rig_kernel_size("out"), 20000);
	}
	assert_int_equal(rig_drain(fd), 0);
	/* a read would have to wait for a direct flush: a file that is read gets none, unless asked for */
	rig_config.rules[0].set.flush = FLUSH_AUTO;
	for (int i = 0; i < 40; i++) /* a fast device */
		device_speed_note(rig_file(fd)->dev, DEVICE_SPEED_DIRECT, 1 << 20, 1);
	for (uint64_t i = 0; i < 8; i++)
		rig_put(fd, 60100 + i * 20000, 20000);
	assert_int_equal(io_readv(fd, fdtable_get(fd), &iov, 1, 3), sizeof got);
	rig_faults_clear();
	assert_int_equal(rig_drain(fd), 0);
	assert_int_equal(faults.set_direct.calls, 0);
	rig_expect("out", 60100 + 8 * 20000);
}

/* A member of the family is killed in a flush, and put right by one who has not got the description that it
 * used. */
static void test_flags_that_a_dead_flusher_left(void **state)
{
	int fd = staged_file(0, 5000);
	struct file *f = rig_file(fd);
	struct ofd *o = fdtable_get(fd);
	struct file_guard g;
	bool damaged;
	int r, flags;

	(void)state;
	g = file_lock(f);
	f->shared = true;
	o->borrowed = OFD_BORROWED;
	assert_int_equal(fcntl(fd, F_SETFL, 0), 0);
	f->needs_repair = true;
	ofd_local(o)->refs = 0;
	file_unlock(f, g);
	g = file_lock(f);
	damaged = f->needs_repair;
	o->pos_mode = POS_KERNEL; /* it is an append's, and goes with the next one */
	r = attach_bypass(f, BYPASS_FORK);
	flags = fcntl(fd, F_GETFL);
	/* who has it writes */
	ofd_local(o)->refs = 1;
	file_unlock(f, g);
	assert_false(damaged);
	assert_int_equal(rig_kernel_size("out"), 5000);
	assert_int_equal(r, 0);
	assert_int_equal(f->mode, FILE_BYPASSED);
	assert_false(flags & O_APPEND);
	assert_int_equal(lseek(fd, 0, SEEK_SET), 0);
	rig_put(fd, 5000, 100);
	assert_true(fcntl(fd, F_GETFL) & O_APPEND);
	rig_expect("out", 5100);
}

static int no_size(int dirfd, const char *path, int flags, unsigned mask, struct statx *st)
{
	return mask == STATX_SIZE ? -EIO : sys_kernel.statx(dirfd, path, flags, mask, st);
}

/* Without the size before it recovery could not tell how much of an append is there. */
static void test_no_append_without_a_size(void **state)
{
	int fd;

	(void)state;
	rig_config.rules[0].set.writers = WRITERS_SHARED;
	fd = staged_file(0, 5000);
	sys.statx = no_size;
	assert_int_equal(rig_drain(fd), -EIO);
	sys.statx = sys_kernel.statx;
	assert_int_equal(rig_kernel_size("out"), 100);
	assert_int_equal(rig_entry(fd)->flush_active, APPEND_NONE);
	assert_int_equal(rig_drain(fd), 0);
	rig_expect("out", 5000);
}

static int buffered_once;

static long keeps_buffered(int fd, int cmd, long arg)
{
	return cmd == F_SETFL && (arg & O_DIRECT) && buffered_once-- > 0 ? -EPERM
	                                                                 : sys_kernel.fcntl(fd, cmd, arg);
}

/* O_DIRECT that could not be set again is, as soon as it can. */
static void test_direct_again_later(void **state)
{
	static uint8_t page[8192] __attribute__((aligned(4096)));
	int fd;

	(void)state;
	if (rig_on_tmpfs()) {
		print_message("SKIP reason: tmpfs takes any O_DIRECT\n");
		skip();
	}
	rig_config.rules[0].set.writers = WRITERS_SHARED;
	fd = rig_open("out", O_WRONLY | O_APPEND | O_DIRECT);
	rig_fill(page, sizeof page, 0);
	assert_int_equal(rig_write(fd, page, 4096), 4096);
	assert_int_equal(rig_write(fd, page + 4096, 4096), 4096);
	append_by_somebody_else("odd");
	buffered_once = 1;
	sys.fcntl = keeps_buffered;
	assert_int_equal(rig_drain(fd), 0);
	assert_false(fcntl(fd, F_GETFL) & O_DIRECT);
	assert_int_equal(rig_drain(fd), 0);
	assert_true(fcntl(fd, F_GETFL) & O_DIRECT);
	sys.fcntl = sys_kernel.fcntl;
	assert_int_equal(rig_close(fd), 0);
}

/* The flusher is stopped for longer than the kernel lets others wait for its lease, and one of them appends.
 */
static ssize_t overtaken(int fd, const struct iovec *iov, int count, off_t offset)
{
	sys.pwritev = sys_kernel.pwritev;
	assert_int_equal(sys_kernel.fcntl(fd, F_SETLEASE, F_UNLCK), 0);
	append_by_somebody_else("of somebody else");
	return sys_kernel.pwritev(fd, iov, count, offset);
}

static void test_lease_lost_before_the_write(void **state)
{
	uint8_t bytes[20116], want[20000];
	int fd = staged_file(0, 20000);
	int in;

	(void)state;
	sys.pwritev = overtaken;
	assert_int_equal(rig_drain(fd), 0);
	if (sys.pwritev == overtaken) {
		print_message("SKIP reason: no leases on this file system\n");
		skip();
	}
	rig_put(fd, 20000, 100);
	assert_int_equal(rig_close(fd), 0);
	in = open(rig_path("out"), O_RDONLY);
	assert_int_equal(read(in, bytes, sizeof bytes), 20116);
	close(in);
	rig_fill(want, sizeof want, 0);
	assert_memory_equal(bytes, want, 100);
	assert_memory_equal(bytes + 100, "of somebody else", 16);
	assert_memory_equal(bytes + 116, want + 100, 19900);
}

/* A lease of a network's file system says nothing about other machines. */
static void test_leases_that_prove_nothing(void **state)
{
	int fd = staged_file(0, 20000);

	(void)state;
	assert_true(rig_file(fd)->lease.proves);
	assert_false(lease_proves_on(0x6969));     /* NFS */
	assert_false(lease_proves_on(0x65735546)); /* FUSE */
	assert_false(lease_proves_on(0x01161970)); /* GFS2 */
	assert_true(lease_proves_on(0xef53));      /* ext4 */
	rig_file(fd)->lease.proves = false;
	assert_int_equal(rig_drain(fd), 0);
	assert_int_equal(faults.fcntl_lease.calls, 0);
	assert_int_equal(faults.writev.calls, 1);
	rig_expect("out", 20000);
	assert_int_equal(rig_close(fd), 0);
	assert_int_equal(faults.ftruncate.calls, 0);
}

int main(void)
{
#define TEST(name) cmocka_unit_test_setup_teardown(name, rig_set_up, rig_tear_down)
	const struct CMUnitTest tests[] = {
		TEST(test_leased),
		TEST(test_lease_refused),
		TEST(test_lease_lost_before_the_write),
		TEST(test_leases_that_prove_nothing),
		TEST(test_shared_never_asks),
		TEST(test_behind_what_others_appended),
		TEST(test_short_appends_go_on),
		TEST(test_part_then_full),
		TEST(test_direct_behind_an_unaligned_end),
		TEST(test_whole_writes_only),
		TEST(test_done_ends_an_append),
		TEST(test_reads_keep_direct_flushes_out),
		TEST(test_flags_that_a_dead_flusher_left),
		TEST(test_no_append_without_a_size),
		TEST(test_direct_again_later),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
