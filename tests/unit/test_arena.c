// SPDX-License-Identifier: Apache-2.0
/* arena: geometry, creation and what can go wrong with it, blocks and entries. */
#include "base/crc32c.h"
#include "base/internal_fd.h"
#include "base/pid.h"
#include "foreign/claim.h"
#include "rig.h"
#include "staging/arena.h"

#include <signal.h>
#include <sys/stat.h>
#include <sys/wait.h>

static struct rule rule;
static struct arena arena;
static char dir[300];

static int set_up(void **state)
{
	(void)state;
	snprintf(rig_dir, sizeof rig_dir, "/tmp/fastwrite-unit-XXXXXX");
	assert_non_null(mkdtemp(rig_dir));
	snprintf(dir, sizeof dir, "%s/.fastwrite", rig_dir);
	rule = (struct rule){.name = "unit", .set = {.mem_bytes = 1 << 20, .block_bytes = 1 << 16}};
	rig_faults_clear();
	rig_hook_system();
	return 0;
}

static int tear_down(void **state)
{
	(void)state;
	sys = sys_kernel;
	return rmdir(rig_dir);
}

static void test_crc(void **state)
{
	static const char middle[] = {'1', '2', '3', 1, 2, 3, 4, '8', '9'};
	static const char middle_zero[] = {'1', '2', '3', 0, 0, 0, 0, '8', '9'};
	static const char first[] = {1, 2, 3, 4, '5', '6', '7', '8', '9'};
	static const char first_zero[] = {0, 0, 0, 0, '5', '6', '7', '8', '9'};

	(void)state;
	assert_int_equal(crc32c(0, "123456789", 9), 0xe3069283u);
	assert_int_equal(crc32c(crc32c(0, "1234", 4), "56789", 5), 0xe3069283u);
	assert_int_equal(crc32c_around(middle, sizeof middle, 3), crc32c(0, middle_zero, sizeof middle_zero));
	assert_int_equal(crc32c_around(first, sizeof first, 0), crc32c(0, first_zero, sizeof first_zero));
}

/* Every way to sum gives the same, at every length, alignment and start; a copy is one of exactly those
 * bytes. */
static void test_crc_of_any_length(void **state)
{
	static uint8_t from[9000], to[9000];

	(void)state;
	srand(7);
	for (size_t i = 0; i < sizeof from; i++)
		from[i] = (uint8_t)rand();
	for (size_t n = 0; n < 8300; n += n < 300 ? 1 : 1 + (size_t)rand() % 60) {
		size_t at = (size_t)rand() % 17, out = 1 + (size_t)rand() % 17;
		uint32_t before = (uint32_t)rand() * 3u;
		uint32_t expected = crc32c_table(before, from + at, n);

		memset(to, 0x5a, sizeof to);
		assert_int_equal(crc32c(before, from + at, n), expected);
		assert_int_equal(crc32c_copy(before, to + out, from + at, n), expected);
		assert_memory_equal(to + out, from + at, n);
		assert_int_equal(to[out - 1], 0x5a);
		assert_int_equal(to[out + n], 0x5a);
	}
	assert_int_equal(crc32c_table(0, "123456789", 9), 0xe3069283u);
}

/* count and length fill their fields, and neither touches the other or the checksum */
static void test_commit_word(void **state)
{
	uint64_t c = COMMIT_MAKE(ARENA_EXTENTS_MAX, ARENA_EXTENT_MAX, UINT32_MAX);

	(void)state;
	assert_int_equal(COMMIT_COUNT(c), ARENA_EXTENTS_MAX);
	assert_int_equal(COMMIT_LENGTH(c), ARENA_EXTENT_MAX);
	assert_int_equal(COMMIT_SUM(c), UINT32_MAX);
	assert_int_equal(c & COMMIT_SEALED, 0);
	assert_int_equal(COMMIT_COUNT(c | COMMIT_SEALED), ARENA_EXTENTS_MAX);
	c = COMMIT_GROWN(COMMIT_MAKE(3, 100, 5) | COMMIT_SEALED, 11, 6);
	assert_true(c == (COMMIT_MAKE(3, 111, 6) | COMMIT_SEALED));
	assert_true(COMMIT_REACH(COMMIT_MAKE(3, 100, 7) | COMMIT_SEALED) ==
	            COMMIT_REACH(COMMIT_MAKE(3, 100, 9)));
	assert_true(COMMIT_REACH(COMMIT_MAKE(3, 100, 7)) < COMMIT_REACH(COMMIT_MAKE(3, 101, 0)));
	assert_true(COMMIT_REACH(COMMIT_MAKE(3, ARENA_EXTENT_MAX, 7)) < COMMIT_REACH(COMMIT_MAKE(4, 1, 0)));
}

static void test_geometry(void **state)
{
	(void)state;
	for (uint64_t mem = 1 << 20; mem <= 1ull << 31; mem = mem * 3 / 2) {
		for (uint32_t block = 1 << 16; block <= 1 << 22; block *= 2) {
			struct arena_header h = {0};

			if (!arena_geometry(mem, block, 0, &h)) {
				assert_true(mem < 9ull * block + (1 << 20));
				continue;
			}
			assert_true(h.total_bytes <= mem);
			assert_true(h.block_count >= 8);
			assert_true(h.blocks_at % ARENA_PAGE == 0 && h.entries_at % ARENA_PAGE == 0);
			assert_true(h.data_at % ARENA_PAGE == 0);
			assert_true(h.blocks_at >= sizeof(struct arena_header));
			assert_true(h.entries_at >= h.blocks_at + h.block_count * ARENA_BLOCK_ENTRY_BYTES);
			assert_true(h.data_at >= h.entries_at + (uint64_t)h.entry_count * ARENA_ENTRY_BYTES);
			assert_int_equal(h.total_bytes, h.data_at + (uint64_t)h.block_count * block);
		}
	}
}

/* The overlay lies behind the blocks, and a file of that size can only have that layout. */
static void test_geometry_with_pages(void **state)
{
	(void)state;
	for (uint64_t mem = 4 << 20; mem <= 1ull << 31; mem = mem * 3 / 2) {
		for (uint64_t share = mem / 20; share < mem * 3 / 4; share = share * 5 / 3) {
			struct arena_header h = {0}, again = {0};
			struct pages_layout l;
			uint64_t at;

			assert_true(arena_geometry(mem, 1 << 16, share, &h));
			assert_true(h.total_bytes <= mem && h.pages_bytes <= share);
			assert_true(arena_pages(&h, &l, &at));
			assert_int_equal(at, h.data_at + (uint64_t)h.block_count * h.block_bytes);
			assert_int_equal(at + l.bytes, h.total_bytes);
			assert_int_equal(l.files, h.entry_count);
			assert_true(arena_geometry(h.total_bytes, 1 << 16, h.pages_bytes, &again));
			assert_memory_equal(&h, &again, sizeof h);
		}
	}
}

static void test_create(void **state)
{
	char path[600];
	struct stat st;
	int other;

	(void)state;
	assert_int_equal(arena_create(&arena, dir, &rule), 0);
	assert_int_equal(stat(dir, &st), 0);
	assert_int_equal(st.st_mode & 07777, 0700);
	snprintf(path, sizeof path, "%s/%s", dir, arena.name);
	assert_int_equal(stat(path, &st), 0);
	assert_int_equal(st.st_mode & 07777, 0600);
	assert_int_equal(st.st_size, arena.total_bytes);
	if (!rig_on_tmpfs())
		assert_true(st.st_blocks * 512ull >= arena.total_bytes); /* allocated: never SIGBUS */
	assert_int_equal(arena.header->magic, ARENA_MAGIC);
	assert_int_equal(arena.header->checksum, arena_header_checksum(arena.header));
	assert_int_equal(arena.header->pid, getpid());
	other = open(path, O_RDWR);
	assert_int_equal(flock(other, LOCK_EX | LOCK_NB), -1);
	close(other);
	assert_true(internal_fd_is(arena.fd));
	assert_true(claim_is_own(arena.name));
	arena_destroy(&arena);
	assert_false(claim_is_own(arena.name));
	assert_int_equal(access(dir, F_OK), -1);
}

static void test_full_disk_leaves_nothing(void **state)
{
	(void)state;
	faults.fallocate = (struct fault){.at = 1, .error = ENOSPC};
	assert_int_equal(arena_create(&arena, dir, &rule), -ENOSPC);
	assert_int_equal(access(dir, F_OK), -1);
}

static void test_directory_of_others(void **state)
{
	(void)state;
	assert_int_equal(mkdir(dir, 0700), 0);
	assert_int_equal(chmod(dir, 0770), 0);
	assert_int_equal(arena_create(&arena, dir, &rule), -EPERM);
	assert_int_equal(rmdir(dir), 0);
	assert_int_equal(symlink("/tmp", dir), 0);
	assert_true(arena_create(&arena, dir, &rule) < 0);
	assert_int_equal(unlink(dir), 0);
}

static int unlink_first(int fd, int operation)
{
	char command[400];

	/* what a recovery does that finds the file before it is locked */
	if (faults.flock.calls++ == 0) {
		snprintf(command, sizeof command, "rm -f %s/*.arena", dir);
		assert_int_equal(system(command), 0);
	}
	return sys_kernel.flock(fd, operation);
}

static int removals;

static int openat_after_a_removal(int dirfd, const char *path, int flags, mode_t mode)
{
	if (dirfd == AT_FDCWD && (flags & O_DIRECTORY) && removals > 0) {
		removals--;
		rmdir(path);
	}
	return sys_kernel.openat(dirfd, path, flags, mode);
}

/* Many short programs in one directory: the last of them that ends removes what the next has just made. */
static void test_directory_removed_by_others(void **state)
{
	(void)state;
	sys.openat = openat_after_a_removal;
	removals = 20;
	assert_int_equal(arena_create(&arena, dir, &rule), 0);
	assert_int_equal(removals, 0);
	arena_destroy(&arena);
	assert_int_equal(access(dir, F_OK), -1);
}

static void test_removed_before_it_was_locked(void **state)
{
	struct stat st;

	(void)state;
	sys.flock = unlink_first;
	assert_int_equal(arena_create(&arena, dir, &rule), 0);
	assert_int_equal(faults.flock.calls, 2);
	assert_int_equal(fstat(arena.fd, &st), 0);
	assert_int_equal(st.st_nlink, 1);
	arena_destroy(&arena);
}

static void test_blocks(void **state)
{
	struct block_run *taken[64];
	uint32_t n = 0;

	(void)state;
	assert_int_equal(arena_create(&arena, dir, &rule), 0);
	while ((taken[n] = arena_block_take(&arena)))
		n++;
	assert_int_equal(n, arena.block_count);
	assert_int_equal(arena.free_count, 0);
	for (uint32_t i = 0; i < n; i++) {
		taken[i]->meta->owner = 7;
		taken[i]->meta->commit = 9;
		arena_block_free(&arena, taken[i]);
		assert_int_equal(taken[i]->meta->owner, 0);
		assert_int_equal(taken[i]->meta->commit, 0);
	}
	assert_int_equal(arena.free_count, n);
	assert_true(arena_next_seq(&arena) < arena_next_seq(&arena));
	arena_destroy(&arena);
}

static void test_slots(void **state)
{
	(void)state;
	assert_int_equal(arena_create(&arena, dir, &rule), 0);
	for (uint32_t i = 0; i < arena.entry_count; i++)
		assert_int_equal(arena_entry_take(&arena), i);
	assert_int_equal(arena_entry_take(&arena), -ENOSPC);
	arena_entry_at(&arena, 3)->counters[COUNT_BYTES] = 40;
	arena_entry_free(&arena, 3);
	assert_int_equal(arena.header->live.counters[COUNT_BYTES], 40);
	assert_int_equal(arena_entry_at(&arena, 3)->counters[COUNT_BYTES], 0);
	assert_int_equal(arena_entry_take(&arena), 3);
	arena_destroy(&arena);
}

static void test_extents(void **state)
{
	uint8_t data[1 << 16];
	struct arena_block b = {.first = {.offset = 100, .pos = 100, .length = 5}};

	(void)state;
	*arena_extent_entry(data, sizeof data, 1) =
		(struct arena_extent){.offset = 7, .pos = 200, .length = 0};
	assert_int_equal(arena_extent_get(&b, data, sizeof data, COMMIT_MAKE(1, 9, 77), 0).length, 9);
	assert_int_equal(arena_extent_get(&b, data, sizeof data, COMMIT_MAKE(2, 9, 77), 0).length, 5);
	assert_int_equal(arena_extent_get(&b, data, sizeof data, COMMIT_MAKE(2, 9, 77), 1).length, 9);
	assert_int_equal(
		arena_extent_get(&b, data, sizeof data, COMMIT_MAKE(2, 9, 77) | COMMIT_SEALED, 1).offset, 7);
}

static void test_thread_is_stopped(void **state)
{
	int status;
	pid_t child;

	(void)state;
	assert_false(pid_is_stopped(getpid()));
	child = fork();
	if (child == 0) {
		raise(SIGSTOP);
		pause();
	}
	assert_int_equal(waitpid(child, &status, WUNTRACED), child);
	assert_true(pid_is_stopped(child));
	kill(child, SIGKILL);
	waitpid(child, NULL, 0);
	assert_false(pid_is_stopped(child));
}

static void test_process_start(void **state)
{
	siginfo_t info;
	pid_t child;

	(void)state;
	assert_true(pid_start_time(getpid()) > 0);
	child = fork();
	if (child == 0)
		_exit(0);
	assert_int_equal(waitid(P_PID, (id_t)child, &info, WEXITED | WNOWAIT), 0);
	assert_int_equal(pid_start_time(child), 0); /* a zombie is dead */
	waitpid(child, NULL, 0);
	assert_int_equal(pid_start_time(child), 0);
}

int main(void)
{
#define TEST(name) cmocka_unit_test_setup_teardown(name, set_up, tear_down)
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_crc),
		cmocka_unit_test(test_crc_of_any_length),
		cmocka_unit_test(test_commit_word),
		cmocka_unit_test(test_geometry),
		cmocka_unit_test(test_geometry_with_pages),
		TEST(test_create),
		TEST(test_full_disk_leaves_nothing),
		TEST(test_directory_of_others),
		TEST(test_directory_removed_by_others),
		TEST(test_removed_before_it_was_locked),
		TEST(test_blocks),
		TEST(test_slots),
		cmocka_unit_test(test_extents),
		cmocka_unit_test(test_process_start),
		cmocka_unit_test(test_thread_is_stopped),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
