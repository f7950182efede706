// SPDX-License-Identifier: Apache-2.0
/* stage: what is published, where it lies, and signal handlers that interrupt it. */
#include "files/fdtable.h"
#include "rig.h"

#include <pthread.h>
#include <signal.h>
#include <sys/time.h>

static int fd;

static int set_up(void **state)
{
	(void)state;
	rig_start(NULL);
	fd = rig_open("out", O_RDWR);
	rig_put(fd, 0, 100); /* passes through */
	return 0;
}

/* Every block of the file carries the checksum of what it publishes at this moment. */
static void expect_sums(int of)
{
	struct file *f = rig_file(of);
	const struct arena *a = f->arena;
	struct file_guard g = file_lock(f); /* the engine frees what it has flushed */

	for (struct block_run *run = f->head; run; run = run->next) {
		uint64_t commit = arena_run_commit(run);

		assert_true(COMMIT_COUNT(commit) > 0);
		assert_int_equal(COMMIT_SUM(commit),
		                 arena_sum_block(rig_entry(of), run->meta, arena_block_data(a, run->index),
		                                 a->block_bytes, commit));
	}
	file_unlock(f, g);
}

static uint64_t commit_now(void) { return arena_run_commit(rig_file(fd)->current); }

static void seek(off_t to) { assert_true(io_lseek(fd, fdtable_get(fd), to, SEEK_SET) == to); }

static void put_vector(uint64_t from, size_t n)
{
	uint8_t bytes[600];
	struct iovec parts[] = {{bytes, n / 3}, {bytes + n / 3, 0}, {bytes + n / 3, n - n / 3}};

	assert_true(n <= sizeof bytes);
	rig_fill(bytes, n, from);
	assert_int_equal(io_writev(fd, fdtable_get(fd), parts, 3, IO_NO_OFFSET), n);
}

/* Growth by the fast path (which leaves the number of extents as it is) after each way to begin or to go on.
 */
static void test_sums_after_each_put(void **state)
{
	uint64_t at = 100, before;

	(void)state;
	rig_put(fd, at, 50); /* a fresh block */
	expect_sums(fd);
	for (size_t n = 1; n < 300; at += n, n++) {
		rig_put(fd, at + 50, n); /* fast */
		expect_sums(fd);
	}
	at += 50;
	before = commit_now();
	put_vector(at, 600); /* the slow path, in parts */
	assert_int_equal(COMMIT_LENGTH(commit_now()), COMMIT_LENGTH(before) + 600);
	expect_sums(fd);
	assert_int_equal(rig_drain(fd), 0);
	at += 600;
	for (int turn = 0; turn < 5; turn++) { /* further extents, that grow, too */
		seek((off_t)(at - 5000 + (uint64_t)turn * 900));
		for (int i = 0; i < 3; i++) {
			rig_put(fd, at - 5000 + (uint64_t)(turn * 900 + i * 200), 200);
			expect_sums(fd);
		}
		assert_int_equal(COMMIT_COUNT(commit_now()), turn + 1);
		assert_int_equal(COMMIT_LENGTH(commit_now()), 600);
	}
	seek((off_t)at);
	for (int i = 0; i < 40; i++, at += 7001) { /* writes over two blocks, and what follows them */
		rig_put(fd, at, 7001);
		expect_sums(fd);
		rig_put(fd, at + 7001, 1);
		at++;
		expect_sums(fd);
	}
	assert_int_equal(rig_close(fd), 0);
	rig_expect("out", at);
}

/* An extent that would fill the largest block from its first byte on is longer than the commit word can say.
 */
static void test_largest_block(void **state)
{
	const uint64_t most = (5 << 20) + 4096;
	uint64_t longest = 0;

	(void)state;
	rig_config.rules[0].set.block_bytes = 4 << 20;
	rig_config.rules[0].set.mem_bytes = 64 << 20;
	rig_close(fd);
	fd = rig_open("large", O_RDWR);
	rig_put(fd, 0, 4096);
	for (uint64_t at = 4096; at < most; at += 4096) {
		rig_put(fd, at, 4096);
		if (at % (1 << 16) == 0 || COMMIT_LENGTH(commit_now()) > (4 << 20) - 3 * 4096)
			expect_sums(fd);
		if (COMMIT_LENGTH(commit_now()) > longest)
			longest = COMMIT_LENGTH(commit_now());
	}
	assert_int_equal(longest, ARENA_EXTENT_MAX);
	assert_int_equal(rig_close(fd), 0);
	rig_expect("large", most);
}

/* What the program does to its buffer while it is copied makes no difference: the sum is of what was stored.
 */
RIG_RACES static void *change_buffer(void *buffer)
{
	_Atomic bool *stop = buffer;
	volatile uint64_t *words = (void *)((uint8_t *)buffer + 64);

	for (uint64_t i = 0; !atomic_load(stop); i++)
		words[i % 500] = i * 0x9e3779b97f4a7c15ull;
	return NULL;
}

static void test_sums_of_a_buffer_that_changes(void **state)
{
	static _Alignas(64) uint8_t buffer[64 + 4096];
	pthread_t thread;

	(void)state;
	atomic_store((_Atomic bool *)buffer, false);
	assert_int_equal(pthread_create(&thread, NULL, change_buffer, buffer), 0);
	for (int i = 0; i < 3000; i++) {
		assert_int_equal(rig_write(fd, buffer + 64, 1 + (size_t)i * 37 % 4000), 1 + i * 37 % 4000);
		if (i % 10 == 0)
			expect_sums(fd);
	}
	atomic_store((_Atomic bool *)buffer, true);
	pthread_join(thread, NULL);
}

static void test_small_writes_are_staged(void **state)
{
	(void)state;
	rig_put(fd, 100, 50);
	assert_int_equal(rig_file(fd)->mode, FILE_ATTACHED);
	for (uint64_t at = 150; at < 5000; at += 50)
		rig_put(fd, at, 50);
	assert_int_equal(rig_kernel_size("out"), 100);
	assert_int_equal(stage_logical_size(rig_file(fd)), 5000);
	assert_int_equal(rig_file(fd)->blocks, 1);
	assert_int_equal(rig_close(fd), 0);
	rig_expect("out", 5000);
}

/* Every byte of the head block's only extent lies at its offset modulo a page. */
static void test_congruent_with_the_file(void **state)
{
	struct block_run *run;

	(void)state;
	rig_put(fd, 100, 3000);
	run = rig_file(fd)->head;
	assert_int_equal(run->meta->first.offset, 100);
	assert_int_equal(run->meta->first.pos, 100);
	assert_int_equal((uintptr_t)run->base % ARENA_PAGE, 100);
}

static void test_a_write_is_split_over_blocks(void **state)
{
	struct block_run *first, *second;
	uint64_t at = 100;

	(void)state;
	for (; at + 30000 <= 65536 + 100; at += 30000)
		rig_put(fd, at, 30000);
	assert_int_equal(rig_file(fd)->blocks, 1);
	rig_put(fd, at, 30000);
	assert_int_equal(rig_file(fd)->blocks, 2);
	first = rig_file(fd)->head;
	second = first->next;
	assert_ptr_equal(second, rig_file(fd)->current);
	assert_true(first->meta->commit & COMMIT_SEALED);
	assert_int_equal(COMMIT_LENGTH(first->meta->commit), 65536 - 100); /* no byte of it wasted */
	assert_int_equal(second->meta->first.offset, 65536);
	assert_int_equal(second->meta->chain_block, 0);
	assert_int_equal(second->split_bytes, 65536 - at);
	assert_true(second->meta->seq > first->meta->seq);
	assert_int_equal(rig_close(fd), 0);
	rig_expect("out", at + 30000);
}

static void test_positional_extents(void **state)
{
	uint8_t buf[200], back[200];
	uint8_t *model = calloc(1, 70000);

	(void)state;
	rig_fill(model, 100, 0);
	srand(11);
	for (int i = 0; i < 1500; i++) {
		uint64_t at = (uint64_t)(rand() % 60000);
		size_t n = 1 + (size_t)rand() % sizeof buf;

		memset(buf, rand() % 256, n);
		memcpy(model + at, buf, n);
		assert_int_equal(rig_pwrite(fd, buf, n, (off_t)at), (long)n);
		if (i % 100 == 99) {
			struct iovec iov = {back, sizeof back};

			/* a read that overlaps sees what was staged */
			if (io_readv(fd, fdtable_get(fd), &iov, 1, (off_t)at) == IO_PASS)
				assert_true(pread(fd, back, n, (off_t)at) == (ssize_t)n);
			assert_memory_equal(back, model + at, n);
		}
	}
	assert_int_equal(rig_close(fd), 0);
	fd = open(rig_path("out"), O_RDONLY);
	uint8_t *file = malloc(70000);
	ssize_t size = read(fd, file, 70000);
	close(fd);
	assert_true(size > 50000);
	assert_memory_equal(file, model, (size_t)size);
	free(file);
	free(model);
}

static void test_extents_of_a_block_are_bounded(void **state)
{
	(void)state;
	/* holes that are filled by so few writes would not be staged */
	rig_put(fd, 100, 1000 + 2 * ARENA_EXTENTS_MAX);
	assert_int_equal(rig_drain(fd), 0);
	for (int i = 0; i < ARENA_EXTENTS_MAX; i++)
		assert_int_equal(rig_pwrite(fd, "x", 1, 1000 + 2 * i), 1);
	assert_int_equal(COMMIT_COUNT(rig_file(fd)->head->meta->commit), ARENA_EXTENTS_MAX);
	assert_int_equal(rig_file(fd)->blocks, 1);
	assert_int_equal(rig_pwrite(fd, "x", 1, 5), 1);
	assert_int_equal(rig_file(fd)->blocks, 2);
}

/* As a process outside of the family does it (takeover.h), at a moment of its own choice. */
static void seal_from_outside(struct arena_block *b) { atomic_fetch_or(&b->commit, COMMIT_SEALED); }

static void test_sealed_from_outside(void **state)
{
	enum { EACH = 300, TURNS = 60 };
	uint8_t again[EACH];
	uint64_t at = 100;

	(void)state;
	rig_fill(again, EACH, at);
	rig_put(fd, at, EACH);
	at += EACH;
	for (int i = 0; i < TURNS; i++) {
		struct arena_block *b = rig_file(fd)->current->meta;
		uint64_t seq = b->seq, sealed;

		seal_from_outside(b);
		sealed = b->commit;
		if (i % 3 == 0) {
			assert_int_equal(rig_pwrite(fd, again, EACH, 100), EACH);
		} else {
			rig_put(fd, at, EACH);
			at += EACH;
		}
		/* (when no block was free, b was flushed, and may be the next one) */
		assert_int_not_equal(rig_file(fd)->current->meta->seq, seq);
		assert_true(b->owner == 0 || b->seq != seq || b->commit == sealed);
	}
	assert_int_equal(rig_close(fd), 0);
	rig_expect("out", at);
}

static void test_overlaps(void **state)
{
	struct file *f = rig_file(fd);

	(void)state;
	rig_pwrite(fd, "0123456789", 10, 50);
	rig_pwrite(fd, "0123456789", 10, 80);
	assert_true(stage_overlaps(f, 59, 1));
	assert_true(stage_overlaps(f, 0, 51));
	assert_false(stage_overlaps(f, 60, 20));
	assert_false(stage_overlaps(f, 0, 50));
	assert_false(stage_overlaps(f, 90, 10));
	rig_pwrite(fd, "0123456789", 10, 300);
	assert_true(stage_overlaps(f, 95, 10)); /* the kernel would see the end of the file there */
}

static void test_no_block_left_waits_for_nothing(void **state)
{
	/* one thread, many files: each takes a block from another when there is none */
	int many[40];

	(void)state;
	for (int i = 0; i < 40; i++) {
		char name[16];

		snprintf(name, sizeof name, "m%d", i);
		many[i] = rig_open(name, O_WRONLY);
	}
	for (uint64_t at = 0; at < 1000; at += 100)
		for (int i = 0; i < 40; i++)
			rig_put(many[i], at, 100);
	for (int i = 0; i < 40; i++) {
		char name[16];

		snprintf(name, sizeof name, "m%d", i);
		assert_int_equal(rig_close(many[i]), 0);
		rig_expect(name, 1000);
	}
}

/* ---- signal handlers ---- */

static volatile int handler_fd;
static volatile uint32_t handled;
static bool handler_syncs;

struct note {
	uint32_t who, number;
};

static void on_alarm(int number)
{
	struct note note = {2, handled};

	(void)number;
	if (rig_write(handler_fd, &note, sizeof note) == sizeof note)
		handled++;
	if (handler_syncs && handled % 7 == 0)
		rig_drain(handler_fd);
}

static void expect_sums_undisturbed(void)
{
	sigset_t alarm, before;

	sigemptyset(&alarm);
	sigaddset(&alarm, SIGALRM);
	pthread_sigmask(SIG_BLOCK, &alarm, &before);
	expect_sums(fd);
	pthread_sigmask(SIG_SETMASK, &before, NULL);
}

/* Main and handler write notes to one description; every note must be there once, each one's in order. */
static void interrupted(int flags)
{
	struct itimerval fast = {{0, 60}, {0, 60}}, off = {0};
	struct sigaction action = {.sa_handler = on_alarm, .sa_flags = SA_RESTART};
	uint32_t written = 0, seen[3] = {0};
	struct note note = {1, 0};

	rig_close(fd);
	fd = rig_open("notes", O_RDWR | flags);
	handler_fd = fd;
	handled = 0;
	assert_int_equal(rig_write(fd, &note, sizeof note), sizeof note);
	for (written = 1; written < 10; written++) {
		note.number = written;
		assert_int_equal(rig_write(fd, &note, sizeof note), sizeof note);
	}
	sigaction(SIGALRM, &action, NULL);
	setitimer(ITIMER_REAL, &fast, NULL);
	for (; handled < 1500; written++) {
		note.number = written;
		assert_int_equal(rig_write(fd, &note, sizeof note), sizeof note);
		if (written % 64 == 0)
			expect_sums_undisturbed();
	}
	setitimer(ITIMER_REAL, &off, NULL);
	assert_int_equal(rig_close(fd), 0);
	fd = open(rig_path("notes"), O_RDONLY);
	while (read(fd, &note, sizeof note) == sizeof note) {
		assert_in_range(note.who, 1, 2);
		assert_int_equal(note.number, seen[note.who]);
		seen[note.who]++;
	}
	close(fd);
	assert_int_equal(seen[1], written);
	assert_int_equal(seen[2], handled);
}

static void test_handler_writes_too(void **state)
{
	(void)state;
	handler_syncs = false;
	interrupted(0);
}

static void test_handler_appends_too(void **state)
{
	(void)state;
	handler_syncs = false;
	interrupted(O_APPEND);
}

static void test_handler_drains(void **state)
{
	(void)state;
	handler_syncs = true;
	interrupted(0);
}

int main(void)
{
#define TEST(name) cmocka_unit_test_setup_teardown(name, set_up, rig_tear_down)
	const struct CMUnitTest tests[] = {
		TEST(test_sums_after_each_put),
		TEST(test_sums_of_a_buffer_that_changes),
		TEST(test_largest_block),
		TEST(test_small_writes_are_staged),
		TEST(test_congruent_with_the_file),
		TEST(test_a_write_is_split_over_blocks),
		TEST(test_positional_extents),
		TEST(test_extents_of_a_block_are_bounded),
		TEST(test_overlaps),
		TEST(test_sealed_from_outside),
		TEST(test_no_block_left_waits_for_nothing),
		TEST(test_handler_writes_too),
		TEST(test_handler_appends_too),
		TEST(test_handler_drains),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
