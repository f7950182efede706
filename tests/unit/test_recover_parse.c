// SPDX-License-Identifier: Apache-2.0
/* recover_parse: nothing that stands in an arena file makes it read beyond its memory; run it with SAN=asan. */
#include "rig.h"

#include "recover_parse.h"

enum { FUZZ_TURNS = 3000 };

static uint8_t *image; /* an arena of one file with three blocks */
static uint64_t image_bytes;
static int fd;

static int group_set_up(void **state)
{
	int file;

	(void)state;
	rig_start(NULL);
	file = rig_open("out", O_RDWR);
	rig_put(file, 0, 100);
	for (uint64_t at = 100; at < 70000; at += 10000)
		rig_put(file, at, 10000);
	for (int i = 0; i < 30; i++)
		rig_pwrite(file, "extent", 6, 100000 + 100 * i);
	image_bytes = rig_file(file)->arena->total_bytes;
	image = malloc(image_bytes);
	memcpy(image, rig_file(file)->arena->header, image_bytes);
	fd = open(rig_path("image"), O_RDWR | O_CREAT, 0600);
	rig_close(file);
	/* it is none that was copied */
	struct arena_header *h = (struct arena_header *)(void *)image;
	h->ino_low = h->ino_high = 0;
	h->checksum = arena_header_checksum(h);
	return fd < 0;
}

static int group_tear_down(void **state)
{
	(void)state;
	close(fd);
	free(image);
	rig_stop();
	return 0;
}

static int set_up(void **state)
{
	(void)state;
	return pwrite(fd, image, image_bytes, 0) != (ssize_t)image_bytes ||
	       ftruncate(fd, (off_t)image_bytes) != 0;
}

/* Looks at everything as a recovery does; how many blocks made sense. */
static int look(void)
{
	struct foreign_arena a;
	int good = 0;

	if (foreign_load(&a, fd) < 0)
		return -1;
	for (uint32_t s = 0; s < a.header.slot_count; s++) {
		int n = foreign_blocks(&a, s);

		for (int i = 0; i < n; i++) {
			uint32_t index = a.order[i];
			uint64_t sum = 0;

			assert_true(index < a.header.block_count);
			assert_true(i == 0 || a.blocks[a.order[i - 1]].seq <= a.blocks[index].seq);
			if (foreign_read_block(&a, index) < 0)
				continue;
			for (uint32_t e = 0; e < COMMIT_COUNT(a.blocks[index].commit); e++) {
				struct arena_extent x = foreign_extent(&a, index, e);

				for (uint32_t b = 0; b < x.length; b += 97)
					sum += a.data[x.pos + b];
				sum += a.data[x.pos + x.length - 1];
			}
			good += sum != 0;
		}
	}
	foreign_unload(&a);
	return good;
}

static void test_sane(void **state)
{
	(void)state;
	assert_int_equal(look(), 2);
}

/* Extents that bring the same bytes again and again would make recovery write more than the arena holds. */
static void test_extents_that_overlap(void **state)
{
	const struct arena_header *h = (const struct arena_header *)(void *)image;
	bool found = false;

	(void)state;
	for (uint32_t i = 0; i < h->block_count && !found; i++) {
		const struct arena_block *b = (const struct arena_block *)(void *)(image + h->blocks_at) + i;
		uint8_t *data = image + h->data_at + (size_t)i * h->block_bytes;
		struct arena_extent *e, saved;

		found = b->owner && COMMIT_COUNT(b->commit) > 10;
		if (!found)
			continue;
		e = arena_extent_entry(data, h->block_bytes, 5);
		saved = *e;
		e->pos = arena_extent_entry(data, h->block_bytes, 4)->pos;
		assert_int_equal(set_up(NULL), 0);
		*e = saved;
		assert_int_equal(look(), 1);
	}
	assert_true(found);
}

static void test_copy(void **state)
{
	struct arena_header *h = (struct arena_header *)(void *)image;
	struct foreign_arena a;
	struct stat st;

	(void)state;
	assert_int_equal(fstat(fd, &st), 0);
	h->ino_low = (uint32_t)st.st_ino;
	h->ino_high = (uint32_t)((uint64_t)st.st_ino >> 32);
	h->checksum = arena_header_checksum(h);
	assert_int_equal(set_up(NULL), 0);
	assert_int_equal(foreign_load(&a, fd), 0);
	foreign_unload(&a);
	h->ino_low++;
	h->checksum = arena_header_checksum(h);
	assert_int_equal(set_up(NULL), 0);
	assert_int_equal(foreign_load(&a, fd), -ESTALE);
	h->ino_low = h->ino_high = 0;
	h->checksum = arena_header_checksum(h);
}

static void test_sizes(void **state)
{
	struct foreign_arena a;
	const uint64_t sizes[] = {1, 4095, 4096, 5000, 100000};

	(void)state;
	for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
		assert_int_equal(ftruncate(fd, (off_t)sizes[i]), 0);
		assert_int_equal(foreign_load(&a, fd), -EBADMSG);
	}
	assert_int_equal(ftruncate(fd, 0), 0);
	assert_int_equal(foreign_load(&a, fd), -ENODATA);
	assert_int_equal(ftruncate(fd, (off_t)image_bytes), 0); /* all zero */
	assert_int_equal(foreign_load(&a, fd), -ENODATA);
}

static void test_header_fields(void **state)
{
	struct arena_header h;
	struct foreign_arena a;

	(void)state;
#define DAMAGE(field, value) \
	memcpy(&h, image, sizeof h); \
	h.field = value; \
	h.checksum = arena_header_checksum(&h); \
	assert_int_equal(pwrite(fd, &h, sizeof h, 0), sizeof h); \
	assert_int_equal(foreign_load(&a, fd), -EBADMSG)
	DAMAGE(magic, 1);
	DAMAGE(version, ARENA_VERSION + 1);
	DAMAGE(total_bytes, h.total_bytes + 4096);
	DAMAGE(block_bytes, 0);
	DAMAGE(block_bytes, 3);
	DAMAGE(block_bytes, 1u << 31);
	DAMAGE(block_count, h.block_count + 1);
	DAMAGE(block_count, UINT32_MAX);
	DAMAGE(slot_count, UINT32_MAX);
	DAMAGE(blocks_at, UINT64_MAX - 8);
	DAMAGE(slots_at, 0);
	DAMAGE(data_at, UINT64_MAX);
	memcpy(&h, image, sizeof h);
	h.uid ^= 1; /* and no new checksum */
	assert_int_equal(pwrite(fd, &h, sizeof h, 0), sizeof h);
	assert_int_equal(foreign_load(&a, fd), -EBADMSG);
}

/* Sets a field of the head block and expects that it is refused. */
static void refused(void (*damage)(struct arena_block *b, struct foreign_arena *a, uint32_t index))
{
	struct foreign_arena a;
	uint32_t index;
	int n, r;

	assert_int_equal(foreign_load(&a, fd), 0);
	n = foreign_blocks(&a, 0);
	assert_true(n > 0);
	index = a.order[0];
	damage(&a.blocks[index], &a, index);
	r = foreign_blocks(&a, 0);
	if (r >= 0)
		r = foreign_read_block(&a, index);
	assert_int_equal(r, -EBADMSG);
	foreign_unload(&a);
}

#define DAMAGER(name, statement) \
	static void name(struct arena_block *b, struct foreign_arena *a, uint32_t index) \
	{ \
		(void)a; \
		(void)index; \
		statement; \
	}
DAMAGER(too_many, b->commit = COMMIT_MAKE(ARENA_EXTENTS_MAX + 1, 10))
DAMAGER(too_long, b->commit = COMMIT_MAKE(1, a->header.block_bytes))
DAMAGER(huge, b->commit = COMMIT_MAKE(1, UINT32_MAX))
DAMAGER(empty, b->commit = COMMIT_MAKE(1, 0))
DAMAGER(outside, b->first.pos = a->header.block_bytes)
DAMAGER(far_outside, b->first.pos = UINT32_MAX)
DAMAGER(offset_overflows, b->first.offset = UINT64_MAX - 5)
DAMAGER(offset_too_large, b->first.offset = INT64_MAX)
DAMAGER(unknown_kind, b->kind = 77)

static void test_blocks(void **state)
{
	(void)state;
	refused(too_many);
	refused(too_long);
	refused(huge);
	refused(empty);
	refused(outside);
	refused(far_outside);
	refused(offset_overflows);
	refused(offset_too_large);
	refused(unknown_kind);
}

static void test_one_number_twice(void **state)
{
	struct foreign_arena a;

	(void)state;
	assert_int_equal(foreign_load(&a, fd), 0);
	assert_int_equal(foreign_blocks(&a, 0), 2);
	a.blocks[a.order[1]].seq = a.blocks[a.order[0]].seq;
	assert_int_equal(foreign_blocks(&a, 0), -EBADMSG);
	foreign_unload(&a);
}

/* Files of any size may claim to be arenas: no more work for a large one than for the largest arena. */
static void test_enormous(void **state)
{
	struct arena_header h = {0};
	struct foreign_arena a;
	uint64_t begin = sys_now_ns();

	(void)state;
	assert_true(arena_geometry(INT64_MAX, 65536, &h));
	memcpy(&h, image, sizeof h);
	h.total_bytes = 1ull << 50;
	h.checksum = arena_header_checksum(&h);
	assert_int_equal(pwrite(fd, &h, sizeof h, 0), sizeof h);
	if (ftruncate(fd, (off_t)h.total_bytes) == 0)
		assert_int_equal(foreign_load(&a, fd), -EBADMSG);
	assert_true(sys_now_ns() - begin < 5000000000u);
}

static void test_unfinished_chain(void **state)
{
	struct foreign_arena a;
	uint32_t first, second;
	int n;

	(void)state;
	assert_int_equal(foreign_load(&a, fd), 0);
	n = foreign_blocks(&a, 0);
	assert_int_equal(n, 2);
	first = a.order[0];
	second = a.order[1];
	a.blocks[second].chain_block = first + 1;
	a.blocks[second].chain_seq = a.blocks[first].seq;
	a.blocks[second].chain_commit = (a.blocks[first].commit & ~COMMIT_SEALED) + 1;
	assert_int_equal(foreign_blocks(&a, 0), 1); /* the first one was never published that far */
	a.blocks[second].chain_commit--;
	assert_int_equal(foreign_blocks(&a, 0), 2);
	a.blocks[second].chain_block = UINT32_MAX;
	assert_true(foreign_blocks(&a, 0) <= 2);
	foreign_unload(&a);
}

static void test_fuzz(void **state)
{
	struct arena_header *h = (void *)image;
	int refused_turns = 0;

	(void)state;
	srand(23);
	for (int turn = 0; turn < FUZZ_TURNS; turn++) {
		uint64_t at = h->blocks_at + (uint64_t)rand() % (h->slots_at + 2048 - h->blocks_at);
		uint8_t junk[8];
		ssize_t size = 1 + rand() % (ssize_t)sizeof junk;

		for (size_t i = 0; i < sizeof junk; i++)
			junk[i] = (uint8_t)(rand() % 3 ? rand() : 255);
		assert_int_equal(pwrite(fd, junk, (size_t)size, (off_t)at), size);
		refused_turns += look() < 2;
		if (turn % 5 == 4)
			assert_int_equal(pwrite(fd, image, image_bytes, 0), (ssize_t)image_bytes);
	}
	assert_true(refused_turns > 0);
}

int main(void)
{
#define TEST(name) cmocka_unit_test_setup(name, set_up)
	const struct CMUnitTest tests[] = {
		TEST(test_sane),
		TEST(test_extents_that_overlap),
		TEST(test_copy),
		TEST(test_sizes),
		TEST(test_header_fields),
		TEST(test_blocks),
		TEST(test_one_number_twice),
		TEST(test_enormous),
		TEST(test_unfinished_chain),
		TEST(test_fuzz),
	};
	return cmocka_run_group_tests(tests, group_set_up, group_tear_down);
}
