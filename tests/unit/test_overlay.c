// SPDX-License-Identifier: Apache-2.0
/*
 * overlay: what a program sees and what recovery finds, against plain bytes: random changes, with nested ones
 * at each marked step, and with a process that is killed at each.
 */
#include "overlay_world.h"

#include <errno.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

/* A sanitizer makes each of them some 50 times as slow. */
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
enum { SEEDS = 40, KILL_SEEDS = 2 };
#else
enum { SEEDS = 300, KILL_SEEDS = 12 };
#endif
enum { OPS = 60, KILL_OPS = 14 };

/* ---- marked steps (the test's own, instead of base/kill.c) ---- */

static unsigned long step, kill_at;
static void (*at_step)(void);

#ifdef FASTWRITE_DEBUG
void kill_step(void);
void kill_step(void)
{
	step++;
	if (step == kill_at)
		kill(getpid(), SIGKILL);
	if (at_step)
		at_step();
}
#endif

/* ---- one process ---- */

static struct op random_op(void)
{
	static const uint64_t lengths[] = {
		1, 10, 100, 1000, PAGES_BYTES, 2 * PAGES_BYTES, 3 * PAGES_BYTES + 7};
	struct op op = {.seed = (uint32_t)world_random(1 << 20)};
	uint64_t kind = world_random(20), size = world->model.size;

	op.kind = kind < 12   ? OP_WRITE
	          : kind < 15 ? OP_TRUNCATE
	          : kind < 17 ? OP_READ
	          : kind < 19 ? OP_CUT
	                      : OP_DONE;
	op.n = 1 + world_random(lengths[world_random(7)]);
	if (world_random(3) == 0)
		op.n = PAGES_BYTES;
	if (op.kind == OP_TRUNCATE) {
		op.n = world_random(2) ? world_random(WORLD_BYTES) : world_random(size + 1);
		if (world_random(2))
			op.n = op.n / PAGES_BYTES * PAGES_BYTES;
		return op;
	}
	op.offset = world_random(3) ? size : world_random(WORLD_BYTES);
	if (op.kind == OP_READ || world_random(3) == 0)
		op.offset = world_random(size + 1);
	if (op.n == PAGES_BYTES && world_random(2))
		op.offset = op.offset / PAGES_BYTES * PAGES_BYTES;
	if (op.offset + op.n > WORLD_BYTES)
		op.offset = WORLD_BYTES - op.n;
	return op;
}

/* Handlers that left a write for good: each may have taken one frame along. */
static unsigned jumps;

static void detach_and_attach(void)
{
	uint32_t frames = world_layout.frames;

	world_drain();
	assert_in_range(world_free_frames(), frames - jumps, frames);
	world_attach();
}

/* Makes the op in the overlay and in the model. */
static void make(const struct op *op)
{
	int r = world_do(op, false);

	if (r == -EAGAIN) {
		world_check();
		detach_and_attach();
		r = world_do(op, false);
	}
	assert_int_equal(r, 0);
	bytes_apply(&world->model, op);
}

static void test_random_changes(void **state)
{
	(void)state;
	for (unsigned seed = 1; seed <= SEEDS; seed++) {
		world_begin(seed);
		for (int i = 0; i < OPS; i++) {
			struct op op = random_op();

			make(&op);
			world_check();
			if (world_random(10) == 0) {
				assert_int_equal(overlay_rebuild(&world->overlay), 0);
				world_check();
			}
			if (world_random(20) == 0)
				detach_and_attach();
		}
		detach_and_attach();
	}
	assert_true(world_bare > SEEDS && world_covered > SEEDS);
}

static void put_bytes(uint64_t offset, uint64_t n, uint32_t seed)
{
	make(&(struct op){.kind = OP_WRITE, .offset = offset, .n = n, .seed = seed});
	world_check();
}

static void cut_to(uint64_t size)
{
	make(&(struct op){.kind = OP_TRUNCATE, .n = size});
	world_check();
}

/* An appended line takes no new frame, and a page that is written over and over takes one. */
static void test_frames_used(void **state)
{
	uint32_t before;

	(void)state;
	world_begin(1);
	cut_to(0);
	before = world_free_frames();
	for (unsigned i = 0; i < 40; i++)
		put_bytes((uint64_t)i * 100, 100, i);
	assert_int_equal(world_free_frames(), before - 1);
	for (unsigned i = 0; i < 40; i++)
		put_bytes(0, PAGES_BYTES, i);
	assert_int_equal(world_free_frames(), before - 1);
	cut_to(100);
	assert_int_equal(world_free_frames(), before - 1);
	cut_to(0);
	assert_int_equal(world_free_frames(), before);
}

/* What was cut off does not come back when the file grows again. */
static void test_cut_off_bytes_are_zeros(void **state)
{
	(void)state;
	world_begin(1);
	for (int round = 0; round < 3; round++) {
		put_bytes(0, 5 * PAGES_BYTES + 100, 3);
		if (round > 0)
			make(&(struct op){.kind = OP_CUT});
		cut_to(PAGES_BYTES + 10);
		cut_to(10 * PAGES_BYTES);
		put_bytes(7 * PAGES_BYTES + 9, 1, 4);
		cut_to(5 * PAGES_BYTES);
		if (round > 1)
			make(&(struct op){.kind = OP_DONE});
		cut_to(6 * PAGES_BYTES);
		put_bytes(6 * PAGES_BYTES + 6, 6, 6);
		detach_and_attach();
	}
}

/* A write that finds no frame changes nothing. */
static void test_no_frame_left(void **state)
{
	struct op op = {.kind = OP_WRITE, .n = PAGES_BYTES, .seed = 5};
	struct op more = {.kind = OP_WRITE, .n = 3 * PAGES_BYTES, .seed = 6};
	uint32_t taken[WORLD_FRAMES * 2], n = 0, left;

	(void)state;
	world_begin(1);
	make(&op);
	while ((taken[n] = pool_take(&world->pages.free_frames)) != 0)
		n++;
	pool_give(&world->pages.free_frames, taken[0]);
	pool_give(&world->pages.free_frames, taken[1]);
	left = world_free_frames();
	assert_int_equal(left, 2);
	assert_int_equal(world_do(&more, false), -EAGAIN);
	assert_int_equal(world_free_frames(), left);
	world_check();
	more.n = 2 * PAGES_BYTES;
	make(&more);
	world_check();
}

static int broken_source(void *ctx, void *to, size_t n, uint64_t offset)
{
	(void)ctx, (void)to, (void)n, (void)offset;
	return -EIO;
}

static void test_source_fails(void **state)
{
	uint32_t before;

	(void)state;
	world_begin(4);
	put_bytes(0, 3 * PAGES_BYTES, 1);
	detach_and_attach();
	before = world_free_frames();
	world->overlay.source = broken_source;
	assert_int_equal(world_do(&(struct op){.kind = OP_WRITE, .offset = 5, .n = 2 * PAGES_BYTES}, false),
	                 -EIO);
	assert_int_equal(world_do(&(struct op){.kind = OP_READ, .offset = 5, .n = 5}, false), -EIO);
	world->overlay.source = world_source;
	assert_int_equal(world_free_frames(), before);
	world_check();
	/* whole pages need nothing of the file */
	world->overlay.source = broken_source;
	make(&(struct op){.kind = OP_WRITE, .offset = PAGES_BYTES, .n = PAGES_BYTES, .seed = 8});
	world->overlay.source = world_source;
	world_check();
}

/* Tickets are used up: nothing changes, and the file goes on in another entry. */
static void test_tickets_end(void **state)
{
	struct page_file *entry;

	(void)state;
	world_begin(2);
	entry = pages_file(&world->pages, WORLD_FILE);
	put_bytes(0, 10, 1);
	entry->published = PUBLISHED_MAKE(PAGES_TICKET_MOST, PUBLISHED_SLOT(entry->published));
	assert_int_equal(world_do(&(struct op){.kind = OP_WRITE, .n = 1}, false), -EOVERFLOW);
	assert_int_equal(world_do(&(struct op){.kind = OP_TRUNCATE, .n = 1}, false), -EOVERFLOW);
	assert_int_equal(world_do(&(struct op){.kind = OP_TRUNCATE, .n = 1 << 16}, false), -EOVERFLOW);
	assert_int_equal(overlay_cut(&world->overlay, false), -EOVERFLOW);
	assert_true(world_shows(&world->model));
	assert_int_equal(overlay_attach(&world->overlay, &world->pages, WORLD_FILE, 0, &world_time,
	                                world_source, NULL),
	                 -EOVERFLOW);
}

/* After a nested change came STEP - 1 times in one write, one more is refused. */
static void test_nested_tickets_end(void **state)
{
	struct page_file *entry;

	(void)state;
	world_begin(2);
	entry = pages_file(&world->pages, WORLD_FILE);
	put_bytes(0, 10, 1);
	entry->published = PUBLISHED_MAKE(PUBLISHED_TICKET(entry->published) + PAGES_STEP - 2,
	                                  PUBLISHED_SLOT(entry->published));
	assert_int_equal(world_do(&(struct op){.kind = OP_WRITE, .n = 1, .seed = 7}, true), 0);
	bytes_apply(&world->model, &(struct op){.kind = OP_WRITE, .n = 1, .seed = 7});
	assert_int_equal(world_do(&(struct op){.kind = OP_WRITE, .n = 1}, true), -EBUSY);
	assert_int_equal(world_do(&(struct op){.kind = OP_TRUNCATE, .n = 1}, true), -EBUSY);
	world_check();
	put_bytes(0, 10, 2);
}

/* ---- nested changes ---- */

static struct {
	struct op outer;
	bool outer_applied, running;
	unsigned long countdown; /* steps until the next nested change */
	uint64_t word;           /* published, as far as the model knows it */
	unsigned made;
	bool jump;
	sigjmp_buf env;
} nest;

static void outer_is_published(void)
{
	if (nest.outer_applied || nest.word == pages_file(&world->pages, WORLD_FILE)->published)
		return;
	nest.outer_applied = true;
	bytes_apply(&world->model, &nest.outer);
}

static void nested_change(void)
{
	if (nest.running || nest.outer.kind != OP_WRITE || nest.countdown-- != 0)
		return;
	nest.running = true;
	outer_is_published();
	for (uint64_t n = 1 + world_random(3); n > 0; n--) {
		struct op op = random_op();
		int r = world_do(&op, true);

		assert_true(r == 0 || r == -EAGAIN);
		if (r == 0)
			bytes_apply(&world->model, &op);
		nest.word = pages_file(&world->pages, WORLD_FILE)->published;
		assert_true(world_recovers(&world->disk, &world->model));
		assert_true(world_shows(&world->model));
	}
	nest.made++;
	nest.countdown = world_random(30);
	nest.running = false;
	if (nest.jump) {
		jumps++;
		siglongjmp(nest.env, 1);
	}
}

/* A write, nested ones at some of its steps.  False: it was left by a jump. */
static bool make_with_nested(const struct op *op)
{
	int r = 0;

	nest.outer = *op;
	nest.outer_applied = false;
	nest.word = pages_file(&world->pages, WORLD_FILE)->published;
	if (sigsetjmp(nest.env, 0) != 0) {
		nest.outer.kind = OP_KINDS;
		return false;
	}
	r = world_do(op, false);
	nest.outer.kind = OP_KINDS;
	if (r == -EAGAIN) {
		assert_false(nest.outer_applied);
		return true;
	}
	assert_int_equal(r, 0);
	if (!nest.outer_applied)
		bytes_apply(&world->model, op);
	return true;
}

static void nested_rounds(bool jump)
{
	unsigned made = 0;

#ifndef FASTWRITE_DEBUG
	print_message("a build without marked steps\n");
	skip();
#endif
	at_step = nested_change;
	world_in_source = nested_change;
	nest.jump = jump;
	nest.outer.kind = OP_KINDS;
	for (unsigned seed = 1; seed <= SEEDS; seed++) {
		world_begin(seed);
		nest.made = 0;
		jumps = 0;
		for (int i = 0; i < OPS; i++) {
			struct op op = random_op();

			nest.countdown = world_random(30);
			make_with_nested(&op);
			nest.outer.kind = OP_KINDS;
			world_check();
		}
		made += nest.made;
		detach_and_attach();
	}
	at_step = world_in_source = NULL;
	jumps = 0;
	assert_true(made > SEEDS);
}

static void test_nested_changes(void **state)
{
	(void)state;
	nested_rounds(false);
}

static void test_handler_leaves_a_write(void **state)
{
	(void)state;
	nested_rounds(true);
}

/* ---- kills ---- */

/* The ops of a seed.  The child makes them; the parent knows how far it came. */
static void kill_ops(struct op *ops)
{
	for (int i = 0; i < KILL_OPS; i++)
		ops[i] = random_op();
}

static void child_makes(const struct op *ops, unsigned long at)
{
	kill_at = at;
	step = 0;
	for (int i = 0; i < KILL_OPS; i++) {
		if (world_do(&ops[i], false) != 0)
			_exit(2);
		bytes_apply(&world->model, &ops[i]);
		world->done_ops = (uint64_t)i + 1;
	}
	_exit(0);
}

/* A child is killed at its step `at`.  False: it came to its end before. */
static bool killed_at(unsigned seed, unsigned long at)
{
	static struct bytes before, after;
	struct op ops[KILL_OPS];
	int status;
	pid_t pid;

	world_begin(seed);
	kill_ops(ops);
	before = world->model;
	pid = fork();
	if (pid == 0)
		child_makes(ops, at);
	assert_int_equal(waitpid(pid, &status, 0), pid);
	for (uint64_t i = 0; i < world->done_ops; i++)
		bytes_apply(&before, &ops[i]);
	after = before;
	if (world->done_ops < KILL_OPS)
		bytes_apply(&after, &ops[world->done_ops]);
	/* (the child may have been killed while it wrote back) */
	if (!world_recovers(&world->disk, &before))
		assert_true(world_recovers(&world->disk, &after));
	else
		after = before;
	/* another process of the family goes on */
	assert_int_equal(overlay_rebuild(&world->overlay), 0);
	assert_true(world_shows(&after));
	world->model = after;
	world->cutting = overlay_is_cut(&world->overlay);
	for (int i = 0; i < 10; i++) {
		struct op op = random_op();

		assert_true(world_recovers(&world->disk, &world->model));
		assert_true(world_shows(&world->model));
		assert_int_equal(world_do(&op, false), 0);
		bytes_apply(&world->model, &op);
	}
	world_drain();
	/* (one may have been between the pool and the table) */
	assert_in_range(world_free_frames(), world_layout.frames - 1, world_layout.frames);
	if (WIFSIGNALED(status)) {
		assert_int_equal(WTERMSIG(status), SIGKILL);
		return true;
	}
	assert_int_equal(WEXITSTATUS(status), 0);
	return false;
}

static void test_killed_at_each_step(void **state)
{
	unsigned long kills = 0;

	(void)state;
#ifndef FASTWRITE_DEBUG
	print_message("a build without marked steps\n");
	skip();
#endif
	for (unsigned seed = 1; seed <= KILL_SEEDS; seed++)
		for (unsigned long at = 1; killed_at(seed, at); at++)
			kills++;
	assert_true(kills > 20ul * KILL_SEEDS);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_random_changes),
		cmocka_unit_test(test_frames_used),
		cmocka_unit_test(test_cut_off_bytes_are_zeros),
		cmocka_unit_test(test_no_frame_left),
		cmocka_unit_test(test_source_fails),
		cmocka_unit_test(test_tickets_end),
		cmocka_unit_test(test_nested_tickets_end),
		cmocka_unit_test(test_nested_changes),
		cmocka_unit_test(test_handler_leaves_a_write),
		cmocka_unit_test(test_killed_at_each_step),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
