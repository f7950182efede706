// SPDX-License-Identifier: Apache-2.0
/* parse: no content of an arena file makes it read beyond its memory; run it with SAN=asan. */
#include "rig.h"

#include "foreign/parse.h"

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
		rig_pwrite(file, "extent", 6, 40000 + 100 * i);
	image_bytes = rig_file(file)->arena->total_bytes;
	image = malloc(image_bytes);
	memcpy(image, rig_file(file)->arena->header, image_bytes);
	fd = open(rig_path("image"), O_RDWR | O_CREAT, 0600);
	rig_close(file);
	/* (no inode: the image is not a copy of an arena) */
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

/* Reads everything as a recovery does.  How many blocks make sense. */
static int look(void)
{
	struct foreign_arena a;
	int good = 0;

	if (foreign_load(&a, fd) < 0)
		return -1;
	for (uint32_t s = 0; s < a.header.entry_count; s++) {
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
	DAMAGE(version, ARENA_VERSION - 1);
	DAMAGE(version, ARENA_VERSION_PAGES); /* and has no pages */
	DAMAGE(total_bytes, h.total_bytes + 4096);
	DAMAGE(block_bytes, 0);
	DAMAGE(block_bytes, 3);
	DAMAGE(block_bytes, 1u << 31);
	DAMAGE(block_count, h.block_count + 1);
	DAMAGE(block_count, UINT32_MAX);
	DAMAGE(entry_count, UINT32_MAX);
	DAMAGE(blocks_at, UINT64_MAX - 8);
	DAMAGE(entries_at, 0);
	DAMAGE(data_at, UINT64_MAX);
	memcpy(&h, image, sizeof h);
	h.uid ^= 1; /* and no new checksum */
	assert_int_equal(pwrite(fd, &h, sizeof h, 0), sizeof h);
	assert_int_equal(foreign_load(&a, fd), -EBADMSG);
	assert_false(foreign_is_newer(fd));
	h.version = ARENA_VERSION_NEWEST + 1; /* whose checksum may stand anywhere */
	assert_int_equal(pwrite(fd, &h, sizeof h, 0), sizeof h);
	assert_int_equal(foreign_load(&a, fd), FORMAT_NEWER);
	assert_int_equal(a.header.version, ARENA_VERSION_NEWEST + 1);
	assert_true(foreign_is_newer(fd));
}

/* Changes a field of the first block, which must be refused then. */
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
DAMAGER(too_many, b->commit = COMMIT_MAKE(ARENA_EXTENTS_MAX, 10, 0))
DAMAGER(too_long, b->commit = COMMIT_MAKE(1, a->header.block_bytes, 0))
DAMAGER(huge, b->commit = COMMIT_MAKE(1, ARENA_EXTENT_MAX, 0))
DAMAGER(empty, b->commit = COMMIT_MAKE(1, 0, 0))
DAMAGER(outside, b->first.pos = a->header.block_bytes)
DAMAGER(far_outside, b->first.pos = UINT32_MAX)
DAMAGER(offset_overflows, b->first.offset = UINT64_MAX - 5)
DAMAGER(offset_too_large, b->first.offset = INT64_MAX)
DAMAGER(unknown_kind, b->kind = 77)
DAMAGER(of_no_file, b->owner = 0)
DAMAGER(of_an_entry_beyond_the_table, b->owner = a->header.entry_count + 1)

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
	refused(of_no_file);
	refused(of_an_entry_beyond_the_table);
}

/* ---- checksums ---- */

static struct foreign_arena whole; /* loaded, with its two blocks at order[0] and [1] */

static void load_whole(void)
{
	assert_int_equal(foreign_load(&whole, fd), 0);
	assert_int_equal(foreign_blocks(&whole, 0), 2);
}

static int read_again(uint32_t index)
{
	whole.in_data = 0;
	return foreign_read_block(&whole, index);
}

/* With any bit of the word in memory flipped the block must be refused. */
static void flip_each(uint32_t index, void *word, size_t size)
{
	uint8_t *bytes = word;

	for (size_t i = 0; i < 8 * size; i++) {
		int r;

		bytes[i / 8] ^= (uint8_t)(1 << i % 8);
		r = read_again(index);
		if (r != -EILSEQ && r != -EBADMSG)
			fail_msg("bit %zu of a word of %zu bytes at %zu: %d", i, size,
			         (size_t)((uint8_t *)word - (uint8_t *)&whole.blocks[index]), r);
		bytes[i / 8] ^= (uint8_t)(1 << i % 8);
	}
	assert_int_equal(read_again(index), 0);
}

static void test_flipped_entry(void **state)
{
	(void)state;
	load_whole();
	for (int i = 0; i < 2; i++) {
		uint32_t index = whole.order[i];
		struct arena_block *b = &whole.blocks[index];
		struct arena_entry *entry = foreign_entry(&whole, b->owner - 1);
		uint64_t commit = b->commit;

		flip_each(index, &b->seq, sizeof b->seq);
		flip_each(index, &b->kind, sizeof b->kind);
		flip_each(index, &b->first.offset, sizeof b->first.offset);
		flip_each(index, &b->first.pos, sizeof b->first.pos);
		flip_each(index, &entry->ino, sizeof entry->ino);
		flip_each(index, &entry->btime_sec, sizeof entry->btime_sec);
		flip_each(index, &entry->btime_nsec, sizeof entry->btime_nsec);
		flip_each(index, &entry->generation, sizeof entry->generation);
		if (COMMIT_COUNT(commit) > 1)
			flip_each(index, &b->first.length, sizeof b->first.length);
		for (int bit = 0; bit < 63; bit++) {
			b->commit = commit ^ 1ull << bit;
			assert_true(read_again(index) < 0);
		}
		b->commit = commit ^ COMMIT_SEALED; /* (not part of the checksum) */
		assert_int_equal(read_again(index), 0);
	}
	foreign_unload(&whole);
}

/* Flips a bit of the block in the file, reads, and flips it back. */
static int read_flipped(uint32_t index, uint32_t at, unsigned bit)
{
	const struct arena_header *h = (const void *)image;
	uint64_t place = h->data_at + (uint64_t)index * h->block_bytes + at;
	uint8_t byte = image[place] ^ (uint8_t)(1 << bit % 8);
	int r;

	assert_int_equal(pwrite(fd, &byte, 1, (off_t)place), 1);
	r = read_again(index);
	assert_int_equal(pwrite(fd, &image[place], 1, (off_t)place), 1);
	return r;
}

/* Does the commit word publish the byte at `at` of the block? */
static bool is_published(uint32_t index, uint32_t at)
{
	uint32_t count = COMMIT_COUNT(whole.blocks[index].commit);
	uint32_t block_bytes = whole.header.block_bytes;
	uint32_t entry = (block_bytes - at - 1) / ARENA_EXTENT_BYTES + 1;

	for (uint32_t i = 0; i < count; i++) {
		struct arena_extent e = foreign_extent(&whole, index, i);

		if (at >= e.pos && at < e.pos + e.length)
			return true;
	}
	/* (the length of the last extent is in the commit word) */
	return entry < count &&
	       !(entry == count - 1 && (at % ARENA_EXTENT_BYTES) >= offsetof(struct arena_extent, length));
}

static void test_flipped_data(void **state)
{
	(void)state;
	load_whole();
	for (int i = 0; i < 2; i++) {
		uint32_t index = whole.order[i], published = 0;
		const uint32_t few = whole.header.block_bytes / 3000;

		for (uint32_t at = 0; at < whole.header.block_bytes; at++) {
			bool counts;
			int r;

			/* all of the extent entries; of the rest one byte in `few` */
			if (at % few && at < whole.header.block_bytes - 40 * ARENA_EXTENT_BYTES)
				continue;
			assert_int_equal(read_again(index), 0);
			counts = is_published(index, at);
			r = read_flipped(index, at, at / few);
			published += counts;
			if (counts ? r != -EILSEQ && r != -EBADMSG : r != 0)
				fail_msg("byte %u, %s: %d", at, counts ? "published" : "not published", r);
		}
		assert_true(published > 500);
	}
	foreign_unload(&whole);
}

/* Whole data from another moment: the block was freed and taken again before its pages reached the disk. */
static void test_block_of_another_time(void **state)
{
	const struct arena_header *h = (const void *)image;
	uint32_t a, b;

	(void)state;
	load_whole();
	a = whole.order[0];
	b = whole.order[1];
	assert_int_equal(pwrite(fd, image + h->data_at + (uint64_t)b * h->block_bytes, h->block_bytes,
	                        (off_t)(h->data_at + (uint64_t)a * h->block_bytes)),
	                 h->block_bytes);
	assert_int_equal(read_again(a), -EILSEQ);
	assert_int_equal(read_again(b), 0);
	assert_int_equal(pwrite(fd, &(uint8_t[65536]){0}, h->block_bytes,
	                        (off_t)(h->data_at + (uint64_t)b * h->block_bytes)),
	                 h->block_bytes);
	assert_true(read_again(b) < 0);
	whole.blocks[a].owner = 2; /* the entry of another file */
	assert_int_equal(read_again(a), -EILSEQ);
	foreign_unload(&whole);
}

/* Overlapping extents would write the same bytes many times. */
static void test_overlapping_extents(void **state)
{
	struct arena_extent *first, *second;
	struct foreign_arena a;
	uint32_t index;

	(void)state;
	assert_int_equal(foreign_load(&a, fd), 0);
	assert_int_equal(foreign_blocks(&a, 0), 2);
	index = a.order[1];
	assert_int_equal(foreign_read_block(&a, index), 0);
	assert_true(COMMIT_COUNT(a.blocks[index].commit) > 3);
	first = arena_extent_entry(a.data, a.header.block_bytes, 1);
	second = arena_extent_entry(a.data, a.header.block_bytes, 2);
	second->pos = first->pos + first->length - 1;
	assert_int_equal(foreign_read_block(&a, index), -EBADMSG);
	second->pos = first->pos + first->length;
	assert_int_equal(foreign_read_block(&a, index), 0);
	foreign_unload(&a);
}

static void test_one_seq_twice(void **state)
{
	struct foreign_arena a;

	(void)state;
	assert_int_equal(foreign_load(&a, fd), 0);
	assert_int_equal(foreign_blocks(&a, 0), 2);
	a.blocks[a.order[1]].seq = a.blocks[a.order[0]].seq;
	assert_int_equal(foreign_blocks(&a, 0), -EBADMSG);
	foreign_unload(&a);
}

/* A file of any size may claim to be an arena: it costs no more work than the largest arena. */
static void test_enormous(void **state)
{
	struct arena_header h = {0};
	struct foreign_arena a;
	uint64_t begin = sys_now_ns();

	(void)state;
	assert_true(arena_geometry(INT64_MAX, 65536, 0, &h));
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
	a.blocks[second].chain_commit = COMMIT_REACH(a.blocks[first].commit) + (1ull << 32);
	assert_int_equal(foreign_blocks(&a, 0), 1); /* (the first block was never published that far) */
	a.blocks[second].chain_commit = COMMIT_REACH(a.blocks[first].commit);
	assert_int_equal(foreign_blocks(&a, 0), 2);
	a.blocks[first].commit ^= 0xffffffff; /* (the checksum does not count as reach) */
	assert_int_equal(foreign_blocks(&a, 0), 2);
	a.blocks[first].commit &= ~0xffffffffull;
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
		uint64_t at = h->blocks_at + (uint64_t)rand() % (h->entries_at + 2048 - h->blocks_at);
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
		TEST(test_copy),
		TEST(test_sizes),
		TEST(test_header_fields),
		TEST(test_blocks),
		TEST(test_one_seq_twice),
		TEST(test_enormous),
		TEST(test_unfinished_chain),
		TEST(test_fuzz),
		TEST(test_flipped_entry),
		TEST(test_flipped_data),
		TEST(test_block_of_another_time),
		TEST(test_overlapping_extents),
	};
	return cmocka_run_group_tests(tests, group_set_up, group_tear_down);
}
