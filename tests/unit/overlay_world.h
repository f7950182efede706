// SPDX-License-Identifier: Apache-2.0
/*
 * overlay_world: a file, its overlay, and beside them the plain bytes that the program must see.  All of it
 * in shared memory, so that a process may be killed anywhere and another one looks.  Included once by each
 * test program that needs it.
 */
#ifndef FASTWRITE_TEST_OVERLAY_WORLD_H
#define FASTWRITE_TEST_OVERLAY_WORLD_H

#include "format/page_scan.h"
#include "pages/overlay.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include <cmocka.h>

enum { WORLD_BYTES = 20 * PAGES_BYTES, WORLD_FRAMES = 64, WORLD_FILES = 3, WORLD_FILE = 1 };

struct bytes {
	uint64_t size;
	uint8_t at[WORLD_BYTES]; /* zeros behind the end */
};

/* A change, or a look, that the program makes. */
enum op_kind { OP_WRITE, OP_TRUNCATE, OP_READ, OP_CUT, OP_DONE, OP_KINDS };

struct op {
	enum op_kind kind;
	uint64_t offset, n; /* OP_TRUNCATE: n is the size */
	uint32_t seed;      /* of the bytes */
};

struct world {
	struct pages pages;
	struct overlay overlay;
	struct bytes disk;  /* the file itself */
	struct bytes model; /* what the program sees */
	struct bytes cut;   /* what it saw at the last cut */
	uint64_t done_ops;  /* that have returned */
	bool cutting;
};

static struct world *world;
static struct pages_layout world_layout;
static uint8_t *world_region;
static uint64_t world_random_state;

static uint64_t world_random(uint64_t below)
{
	world_random_state ^= world_random_state << 13;
	world_random_state ^= world_random_state >> 7;
	world_random_state ^= world_random_state << 17;
	return world_random_state % below;
}

static void *world_map(size_t n)
{
	void *p = mmap(NULL, n, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);

	assert_ptr_not_equal(p, MAP_FAILED);
	return p;
}

static uint8_t byte_of(uint32_t seed, uint64_t i)
{
	return (uint8_t)(1 + (seed * 31 + i * 7 + (i >> 8)) % 255);
}

static void bytes_resize(struct bytes *b, uint64_t size)
{
	if (size < b->size)
		memset(b->at + size, 0, b->size - size);
	b->size = size;
}

static void bytes_put(struct bytes *b, uint64_t offset, const uint8_t *from, uint64_t n)
{
	memcpy(b->at + offset, from, n);
	if (offset + n > b->size)
		b->size = offset + n;
}

static void bytes_apply(struct bytes *b, const struct op *op)
{
	if (op->kind == OP_TRUNCATE)
		bytes_resize(b, op->n);
	if (op->kind != OP_WRITE)
		return;
	for (uint64_t i = 0; i < op->n; i++)
		b->at[op->offset + i] = byte_of(op->seed, i);
	if (op->offset + op->n > b->size)
		b->size = op->offset + op->n;
}

static bool bytes_equal(const struct bytes *a, const struct bytes *b)
{
	return a->size == b->size && memcmp(a->at, b->at, WORLD_BYTES) == 0;
}

/* Called by the source, in the middle of a write or a read. */
static void (*world_in_source)(void);

static int world_source(void *ctx, void *to, size_t n, uint64_t offset)
{
	(void)ctx;
	memcpy(to, world->disk.at + offset, n);
	if (world_in_source)
		world_in_source();
	return 0;
}

static const struct timespec world_time = {.tv_sec = 1234567890, .tv_nsec = 5};

static void world_attach(void)
{
	assert_int_equal(overlay_attach(&world->overlay, &world->pages, WORLD_FILE, world->disk.size,
	                                &world_time, world_source, NULL),
	                 0);
}

/* A new world, with a file of some bytes. */
static void world_begin(uint64_t seed)
{
	world_random_state = seed * 0x9e3779b97f4a7c15ull + 1;
	if (!world) {
		assert_true(pages_geometry(PAGES_BYTES * (WORLD_FRAMES + 3), WORLD_FILES, &world_layout));
		world = world_map(sizeof *world);
		world_region = world_map(world_layout.bytes + pages_memory(&world_layout));
	}
	memset(world, 0, sizeof *world);
	memset(world_region, 0, world_layout.bytes + pages_memory(&world_layout));
	pages_init(&world->pages, &world_layout, world_region, world_region + world_layout.bytes);
	bytes_apply(&world->disk,
	            &(struct op){.kind = OP_WRITE, .n = world_random(6 * PAGES_BYTES), .seed = 99});
	world->model = world->cut = world->disk;
	world_attach();
}

/* Makes the file what it was at the cut; `most`: only the first steps of it. */
static void world_write_back(struct bytes *disk, unsigned most)
{
	const struct overlay *o = &world->overlay;
	struct overlay_piece piece;
	uint32_t cursor = 0;

	if (most-- == 0)
		return;
	if (o->cut.lowest < disk->size)
		bytes_resize(disk, o->cut.lowest);
	while (overlay_cut_piece(o, &cursor, &piece)) {
		if (most-- == 0)
			return;
		bytes_put(disk, piece.offset, piece.data, piece.bytes);
	}
	if (most > 0)
		bytes_resize(disk, o->cut.size);
}

static uint8_t world_buffers[2][WORLD_BYTES];

/* Makes the bytes that the next write writes. */
static void world_fill(const struct op *op, bool nested)
{
	for (uint64_t i = 0; op->kind == OP_WRITE && i < op->n; i++)
		world_buffers[nested][i] = byte_of(op->seed, i);
}

static int world_write(const struct op *op, bool nested)
{
	uint8_t *buffer = world_buffers[nested];
	size_t half = op->n / 3;
	struct iovec iov[3] = {{.iov_base = buffer, .iov_len = half},
	                       {.iov_base = buffer, .iov_len = 0},
	                       {.iov_base = buffer + half, .iov_len = op->n - half}};

	return overlay_write(&world->overlay, iov, 3, op->n, op->offset, &world_time, nested);
}

/* Makes the op in the overlay, not in the model. */
static int world_do(const struct op *op, bool nested)
{
	struct overlay *o = &world->overlay;
	static uint8_t buffer[WORLD_BYTES];
	ssize_t n;
	int r;

	switch (op->kind) {
	case OP_WRITE: world_fill(op, nested); return world_write(op, nested);
	case OP_TRUNCATE: return overlay_truncate(o, op->n, &world_time, nested);
	case OP_READ: n = overlay_read(o, buffer, op->n, op->offset); return n < 0 ? (int)n : 0;
	case OP_CUT:
		if (world->cutting)
			return 0;
		world->cut = world->model;
		r = overlay_cut(o, nested);
		world->cutting = r > 0;
		return r < 0 ? r : 0;
	case OP_DONE:
		if (!world->cutting)
			return 0;
		world_write_back(&world->disk, UINT32_MAX);
		r = overlay_done(o, nested);
		world->cutting = r < 0;
		return r;
	case OP_KINDS: break;
	}
	return 0;
}

/* What recovery makes of a file that is now `disk`. */
static void world_recover(const struct bytes *disk, struct bytes *out)
{
	static uint32_t order[WORLD_FRAMES * 2], first[WORLD_FILES], next[WORLD_FRAMES * 2];
	struct page_scan s = {.files = world_region,
	                      .table = (struct page_frame *)(void *)(world_region + world_layout.table_at),
	                      .layout = world_layout,
	                      .order = order,
	                      .first = first,
	                      .next = next};
	struct page_scan_file f;
	int r;

	assert_true(world_layout.frames <= WORLD_FRAMES * 2);
	page_scan_begin(&s);
	r = page_scan_file(&s, WORLD_FILE, &f);
	assert_in_range(r, 0, 1);
	*out = *disk;
	if (r == 0)
		return;
	if (f.lowest < out->size)
		bytes_resize(out, f.lowest);
	for (uint32_t i = 0; i < f.frames; i++) {
		uint64_t page = s.table[order[i]].page;

		bytes_put(out, page * PAGES_BYTES, pages_data(&world->pages, order[i] + 1),
		          page_scan_bytes(&s, &f, order[i]));
	}
	bytes_resize(out, f.size);
}

static bool world_recovers(const struct bytes *disk, const struct bytes *expected)
{
	static struct bytes recovered;

	world_recover(disk, &recovered);
	return bytes_equal(&recovered, expected);
}

/* The program sees the model. */
static bool world_shows(const struct bytes *expected)
{
	static uint8_t buffer[WORLD_BYTES];

	memset(buffer, 0, sizeof buffer);
	return overlay_size(&world->overlay) == expected->size &&
	       overlay_read(&world->overlay, buffer, WORLD_BYTES, 0) == (ssize_t)expected->size &&
	       memcmp(buffer, expected->at, WORLD_BYTES) == 0;
}

static unsigned world_bare; /* pieces that were, and were not */
static unsigned world_covered;

/* A piece that is bare is in the file itself. */
static void world_check_bare(void)
{
	uint64_t offset = world_random(world->model.size + 1);
	uint64_t n = world_random(3 * PAGES_BYTES);

	if (!overlay_is_bare(&world->overlay, offset, n)) {
		world_covered++;
		return;
	}
	world_bare++;
	assert_in_range(offset + n, 0, world->disk.size);
	assert_in_range(offset + n, 0, world->model.size);
	assert_memory_equal(world->disk.at + offset, world->model.at + offset, n);
}

/* Program and recovery see the model; so does recovery when a part of the last cut has been written back. */
static void world_check(void)
{
	static struct bytes disk;

	assert_true(world_shows(&world->model));
	assert_true(world_recovers(&world->disk, &world->model));
	world_check_bare();
	if (!world->cutting)
		return;
	disk = world->disk;
	world_write_back(&disk, (unsigned)world_random(8));
	assert_true(world_recovers(&disk, &world->model));
	disk = world->disk;
	world_write_back(&disk, UINT32_MAX);
	assert_true(bytes_equal(&disk, &world->cut));
}

/* Everything is written back, and all frames are free again. */
static void world_drain(void)
{
	assert_int_equal(world_do(&(struct op){.kind = OP_DONE}, false), 0);
	assert_int_equal(world_do(&(struct op){.kind = OP_CUT}, false), 0);
	assert_int_equal(world_do(&(struct op){.kind = OP_DONE}, false), 0);
	overlay_detach(&world->overlay);
	assert_true(bytes_equal(&world->disk, &world->model));
	assert_true(world_recovers(&world->disk, &world->model));
}

/* Free frames, found by taking them all. */
static uint32_t world_free_frames(void)
{
	static uint32_t taken[WORLD_FRAMES * 2];
	uint32_t n = 0;

	while ((taken[n] = pool_take(&world->pages.free_frames)) != 0)
		n++;
	for (uint32_t i = 0; i < n; i++)
		pool_give(&world->pages.free_frames, taken[i]);
	return n;
}

#endif
