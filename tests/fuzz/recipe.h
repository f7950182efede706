// SPDX-License-Identifier: Apache-2.0
/*
 * recipe: turns the bytes of a fuzzer into an arena file and other events.
 *
 * The first byte is how: RECIPE_RAW = the rest is the arena file as it stands; else the rest is a list of
 * operations on an arena that is sound: sealed header, empty tables, no data.  Each operation is one byte and
 * its arguments, little-endian; what is missing at the end is zero.  At the end the checksums of header and
 * blocks are made right, so that changes of an input get past them; but not that of a block whose number of
 * extents has RECIPE_TORN.  The seeds of make_corpus.py are examples.
 */
#ifndef FASTWRITE_FUZZ_RECIPE_H
#define FASTWRITE_FUZZ_RECIPE_H

#include "world.h"

enum { RECIPE_TORN = 0x8000 };
enum { RECIPE_RAW = 0xff, RECIPE_OPS_MAX = 200, RECIPE_RAW_MAX = 1 << 20 };

enum recipe_op {
	OP_GEOMETRY,  /* u8 block size, u8 blocks beyond the least */
	OP_HEADER,    /* u8 field, u64 */
	OP_ENTRY,     /* u8 entry, u8 identity, u8 path, u8 flags */
	OP_PATH,      /* u8 entry, u8 length, bytes: the path's end */
	OP_DONE,      /* u8 entry, u32 seq, u32 skip */
	OP_APPENDING, /* u8 entry, u8 how, u32 base, u32 bytes, u32 from seq, u32 from skip */
	OP_BLOCK,     /* u8 block, u8 entry, u8 kind, u16 seq, u16 extents, u32 offset, u32 length */
	OP_FIRST,     /* u8 block, u64 offset, u32 position, u32 length */
	OP_CHAIN,     /* u8 block, u8 to, u16 seq, u16 extents, u32 length */
	OP_EXTENT,    /* u8 block, u16 number, u64 offset, u32 position, u32 length */
	OP_DATA,      /* u8 block, u32 position, u16 length, u8 start of the pattern */
	OP_PATCH,     /* u32 at, u8 length, bytes: anywhere, after everything else */
	OP_SIZE,      /* u8 bits, u32: the file's size is u32 << bits */
	OP_CONTENT, /* u8 target, u16 bytes of text, u16 bytes of what block 0 has, u8 start of the pattern */
	OP_WORLD,   /* u8: see world_change in fuzz_arena.c */
	OP_FAULT,   /* u8 call, u8 at, u8 error, u8 most bytes: see fuzz_arena.c */
	OP_NO_SEAL, /* the checksum of the header stays wrong */
	OP_COUNT
};

struct recipe {
	const uint8_t *at, *end;
	uint64_t total; /* size of the arena file */
	uint32_t head_bytes;
	struct arena_header geometry;
	bool seal, sized;
	uint64_t size;
	uint8_t worlds[8], faults[4];
	int world_count;
	bool fault;
	uint32_t content_bytes[WORLD_TARGETS];
	bool named[WORLD_TARGETS]; /* some file entry has this target's identity */
	bool unlike;               /* no process makes such an arena, see recipe_unlike */
	uint16_t entries[256];     /* highest entry of each block's table that was written */
	bool torn[256];            /* by block: its checksum is wrong */
	bool nothing_whole;        /* each file entry has a torn block: nothing may be written */
	bool mixed; /* an extent entry lies where data may be: staged bytes may have any value */
};

enum { RECIPE_HEAD_MAX = 512 << 10 };
static uint8_t recipe_head[RECIPE_HEAD_MAX]; /* header and tables */

static uint64_t recipe_take(struct recipe *r, int bytes)
{
	uint64_t value = 0;

	for (int i = 0; i < bytes && r->at < r->end; i++)
		value |= (uint64_t)*r->at++ << (8 * i);
	return value;
}

static uint8_t recipe_pattern(uint8_t start, uint32_t i)
{
	return 0x80 | (uint8_t)(start + i * 7 + (i >> 7));
}

static struct arena_header *recipe_header(void) { return (struct arena_header *)(void *)recipe_head; }

static struct arena_entry *recipe_entry(const struct recipe *r, uint64_t i)
{
	return (struct arena_entry *)(void *)(recipe_head + r->geometry.entries_at +
	                                      i % r->geometry.entry_count * ARENA_ENTRY_BYTES);
}

static struct arena_block *recipe_block(const struct recipe *r, uint64_t i)
{
	return (struct arena_block *)(void *)(recipe_head + r->geometry.blocks_at +
	                                      i % r->geometry.block_count * ARENA_BLOCK_ENTRY_BYTES);
}

/* An empty, sound arena of another process of this boot. */
static void recipe_geometry(struct recipe *r, unsigned shift, unsigned more)
{
	uint32_t block = 65536u << shift % 7;
	struct arena_header *h = recipe_header();
	uint64_t mem = (uint64_t)block * (8 + more % 64) + (256 << 10);

	memset(recipe_head, 0, sizeof recipe_head);
	require(arena_geometry(mem, block, 0, &r->geometry), "geometry");
	*h = r->geometry;
	h->magic = ARENA_MAGIC;
	h->version = ARENA_VERSION;
	h->pid = 1 << 23;
	h->pid_start = 1;
	strcpy(h->rule, "fuzz");
	strcpy(h->program, "fuzzed");
	h->origin = world_origin();
	r->total = r->geometry.total_bytes;
	r->head_bytes = (uint32_t)r->geometry.data_at;
}

static void recipe_set_header(struct recipe *r)
{
	struct arena_header *h = recipe_header();
	unsigned field = (unsigned)recipe_take(r, 1);
	uint64_t v = recipe_take(r, 8);

	switch (field % 16) {
	case 0: h->magic = v; break;
	case 1: h->version = (uint32_t)v; break;
	case 2: h->total_bytes = v; break;
	case 3: h->block_bytes = (uint32_t)v; break;
	case 4: h->block_count = (uint32_t)v; break;
	case 5: h->entry_count = (uint32_t)v; break;
	case 6: h->blocks_at = v; break;
	case 7: h->entries_at = v; break;
	case 8: h->data_at = v; break;
	case 9: h->origin.boot_ns ^= (int64_t)v; break;
	case 10: h->uid = (uint32_t)v; break;
	case 11: h->gid = (uint32_t)v; break;
	case 12: h->pid = (int32_t)v; break;
	case 13: h->pid_start = v; break;
	case 14: memset(h->program, 'p', sizeof h->program); break;
	default: memset(h->rule, 'r', sizeof h->rule); break;
	}
}

static void recipe_set_path(struct arena_entry *s, unsigned choice)
{
	static const char *const inside[] = {
		"data/t0",
		"data/t1",
		"data/t2",
		"data/gone",
		"data/link",
		"data/../data/t0",
		"data/sub/../t0",
		"outside/victim",
		"data/",
		"data/.fastwrite/" FUZZ_ARENA,
		"data/dirlink/victim",
		"data/t0/",
		"data/t0/below",
		"data/..",
		"data/.",
		"gone/t0",
		"data/beside",
	};
	static const char *const others[] = {"",
	                                     "t0",
	                                     "data/t0",
	                                     "/",
	                                     "//",
	                                     "/dev/null",
	                                     "/dev/full",
	                                     "/dev/zero",
	                                     "/proc/self/mem",
	                                     "/proc/self/fd/1",
	                                     "/etc/passwd",
	                                     "/proc/self/cwd/t0"};
	const size_t n = sizeof inside / sizeof *inside, m = sizeof others / sizeof *others;

	memset(s->path, 0, sizeof s->path);
	if (choice < n)
		snprintf(s->path, sizeof s->path, "%s", world_path(inside[choice]));
	else if (choice < n + m)
		snprintf(s->path, sizeof s->path, "%s", others[choice - n]);
	else if (choice == 0xfe) /* no NUL */
		memset(s->path, '/', sizeof s->path);
	else if (choice == 0xfd) { /* a name as long as there are */
		snprintf(s->path, sizeof s->path, "%s", world_path("data/"));
		memset(s->path + strlen(s->path), 'n', 255);
	} else
		memset(memcpy(s->path, "/dev/shm/x", 10) == NULL ? s->path : s->path + 10, 'y',
		       sizeof s->path - 10);
}

static void recipe_set_entry(struct recipe *r)
{
	struct arena_entry *s = recipe_entry(r, recipe_take(r, 1));
	unsigned who = (unsigned)recipe_take(r, 1);
	struct world_id id = world_targets[who % 8 % WORLD_TARGETS];

	if (who % 8 == 6)
		id = (struct world_id){0};
	if (who & 8)
		id.btime_sec = id.btime_nsec = 0;
	if (who & 16)
		id.btime_sec--;
	if (who & 32)
		id.dev ^= 1;
	s->used = 1;
	s->dev = id.dev;
	s->ino = id.ino;
	s->btime_sec = id.btime_sec;
	s->btime_nsec = id.btime_nsec;
	/* as the file will be, see recipe_guards */
	s->guard.known = 1;
	s->guard.mtime_sec = WORLD_MTIME + (who >> 6 & 1);
	recipe_set_path(s, (unsigned)recipe_take(r, 1));
	s->up = 1;
	s->below = who & 128 ? (uint16_t)(strrchr(world_path(""), '/') - world_path("")) + 6 : 0;
	s->flags = (uint32_t)recipe_take(r, 1);
}

static void recipe_add_to_path(struct recipe *r)
{
	struct arena_entry *s = recipe_entry(r, recipe_take(r, 1));
	uint32_t n = (uint32_t)recipe_take(r, 1);
	size_t at = strnlen(s->path, sizeof s->path);

	for (; n > 0 && at < sizeof s->path; n--)
		s->path[at++] = (char)recipe_take(r, 1);
}

static void recipe_set_done(struct recipe *r)
{
	struct arena_entry *s = recipe_entry(r, recipe_take(r, 1));
	uint64_t seq = recipe_take(r, 4);

	s->done = DONE_MAKE(seq, recipe_take(r, 4) & 0xffffff);
}

static void recipe_set_appending(struct recipe *r)
{
	struct arena_entry *s = recipe_entry(r, recipe_take(r, 1));
	uint64_t seq;

	s->flush_active = (uint32_t)recipe_take(r, 1);
	s->flush_base = recipe_take(r, 4);
	s->flush_bytes = recipe_take(r, 4);
	seq = recipe_take(r, 4);
	s->flush_from = DONE_MAKE(seq, recipe_take(r, 4) & 0xffffff);
}

static uint64_t recipe_commit(uint32_t count, uint64_t length)
{
	if (count > ARENA_EXTENTS_MAX)
		count = ARENA_EXTENTS_MAX;
	return COMMIT_MAKE(count, length < 1 << 22 ? length : (1 << 22) - 1, 0);
}

static void recipe_set_block(struct recipe *r)
{
	uint64_t index = recipe_take(r, 1) % r->geometry.block_count;
	struct arena_block *b = recipe_block(r, index);
	uint32_t count;

	b->owner = (uint32_t)recipe_take(r, 1) % 16 + 1;
	b->kind = (uint32_t)recipe_take(r, 1);
	b->seq = recipe_take(r, 2);
	count = (uint32_t)recipe_take(r, 2);
	b->first.offset = recipe_take(r, 4);
	b->first.length = (uint32_t)recipe_take(r, 4);
	r->torn[index % 256] = count & RECIPE_TORN;
	b->commit = recipe_commit(count % RECIPE_TORN, b->first.length);
}

static void recipe_set_first(struct recipe *r)
{
	struct arena_block *b = recipe_block(r, recipe_take(r, 1));

	b->first.offset = recipe_take(r, 8);
	b->first.pos = (uint32_t)recipe_take(r, 4);
	b->first.length = (uint32_t)recipe_take(r, 4);
}

static void recipe_set_chain(struct recipe *r)
{
	struct arena_block *b = recipe_block(r, recipe_take(r, 1));
	uint32_t count;

	b->chain_block = (uint32_t)recipe_take(r, 1);
	b->chain_seq = recipe_take(r, 2);
	count = (uint32_t)recipe_take(r, 2);
	b->chain_commit = recipe_commit(count, recipe_take(r, 4));
}

/* Block data goes to the file at once. */
static void recipe_set_extent(struct recipe *r, int fd)
{
	uint64_t block = recipe_take(r, 1) % r->geometry.block_count;
	uint64_t number = recipe_take(r, 2) % ARENA_EXTENTS_MAX;
	struct arena_extent e;

	e.offset = recipe_take(r, 8);
	e.pos = (uint32_t)recipe_take(r, 4);
	e.length = (uint32_t)recipe_take(r, 4);
	if (number > 0) {
		if (number > r->entries[block % 256])
			r->entries[block % 256] = (uint16_t)number;
		pwrite(fd, &e, sizeof e,
		       (off_t)(r->geometry.data_at + (block + 1) * r->geometry.block_bytes -
		               number * sizeof e));
	}
}

static void recipe_set_data(struct recipe *r, int fd)
{
	static uint8_t buf[65536];
	uint64_t block = recipe_take(r, 1) % r->geometry.block_count;
	uint64_t pos = recipe_take(r, 4) % r->geometry.block_bytes;
	uint32_t n = (uint32_t)recipe_take(r, 2);
	uint8_t start = (uint8_t)recipe_take(r, 1);

	if (n > r->geometry.block_bytes - pos)
		n = (uint32_t)(r->geometry.block_bytes - pos);
	for (uint32_t i = 0; i < n; i++)
		buf[i] = recipe_pattern(start, i);
	pwrite(fd, buf, n, (off_t)(r->geometry.data_at + block * r->geometry.block_bytes + pos));
}

static void recipe_set_content(struct recipe *r)
{
	unsigned t = (unsigned)recipe_take(r, 1) % WORLD_TARGETS;
	uint32_t text = (uint32_t)recipe_take(r, 2);
	uint32_t staged = (uint32_t)recipe_take(r, 2);
	uint8_t start = (uint8_t)recipe_take(r, 1);
	uint32_t *n = &r->content_bytes[t];

	for (; text > 0 && *n < WORLD_CONTENT_MAX; text--, (*n)++)
		world_content[t][*n] = (uint8_t)('a' + *n % 23);
	for (uint32_t i = 0; i < staged && *n < WORLD_CONTENT_MAX; i++, (*n)++)
		world_content[t][*n] = recipe_pattern(start, i);
}

static void recipe_step(struct recipe *r, int fd)
{
	switch (recipe_take(r, 1) % OP_COUNT) {
	case OP_HEADER: recipe_set_header(r); break;
	case OP_ENTRY: recipe_set_entry(r); break;
	case OP_PATH: recipe_add_to_path(r); break;
	case OP_DONE: recipe_set_done(r); break;
	case OP_APPENDING: recipe_set_appending(r); break;
	case OP_BLOCK: recipe_set_block(r); break;
	case OP_FIRST: recipe_set_first(r); break;
	case OP_CHAIN: recipe_set_chain(r); break;
	case OP_EXTENT: recipe_set_extent(r, fd); break;
	case OP_DATA: recipe_set_data(r, fd); break;
	case OP_CONTENT: recipe_set_content(r); break;
	case OP_NO_SEAL: r->seal = false; break;
	case OP_WORLD:
		r->worlds[r->world_count++ % (int)sizeof r->worlds] = (uint8_t)recipe_take(r, 1);
		break;
	case OP_FAULT:
		r->fault = true;
		for (size_t i = 0; i < sizeof r->faults; i++)
			r->faults[i] = (uint8_t)recipe_take(r, 1);
		break;
	case OP_SIZE: {
		unsigned bits = (unsigned)recipe_take(r, 1) % 32;

		r->sized = true;
		r->size = recipe_take(r, 4) << bits;
		break;
	}
	case OP_PATCH: {
		uint64_t at = recipe_take(r, 4) % r->total;

		for (uint32_t n = (uint32_t)recipe_take(r, 1); n > 0; n--, at++) {
			uint8_t byte = (uint8_t)recipe_take(r, 1);

			if (at < r->head_bytes) {
				recipe_head[at] = byte;
			} else {
				byte |= 0x80; /* as all data */
				pwrite(fd, &byte, 1, (off_t)at);
			}
		}
		break;
	}
	default: break; /* OP_GEOMETRY counts at the beginning only */
	}
}

/* Two entries for one file; or blocks of both kinds in one entry, although a process drains a file before its
 * kind changes. Then a fault decides which bytes are written first. */
static bool recipe_unlike(const struct recipe *r)
{
	for (uint32_t i = 0; i < r->geometry.entry_count; i++) {
		const struct arena_entry *s = recipe_entry(r, i);
		uint32_t kind = 0;

		for (uint32_t k = 0; k < i && s->used; k++)
			if (recipe_entry(r, k)->used && recipe_entry(r, k)->ino == s->ino)
				return true;
		for (uint32_t k = 0; k < r->geometry.block_count && s->used; k++) {
			const struct arena_block *b = recipe_block(r, k);

			if (b->owner != i + 1)
				continue;
			if (kind && b->kind != kind)
				return true;
			kind = b->kind;
		}
	}
	return false;
}

/* Which targets do the entries name?  False: one names a file that must not be touched, so the input is of no
 * use. */
static bool recipe_names(struct recipe *r)
{
	for (uint32_t i = 0; i < r->geometry.entry_count; i++) {
		const struct arena_entry *s = recipe_entry(r, i);

		if (world_is_sentinel(s->ino))
			return false;
		for (int t = 0; t < WORLD_TARGETS; t++)
			r->named[t] |= s->ino == world_targets[t].ino;
	}
	r->unlike = recipe_unlike(r);
	return true;
}

/* All extents lie in the block. */
static bool recipe_can_sum(const struct arena_block *b, uint8_t *data, uint32_t block_bytes)
{
	uint32_t count = COMMIT_COUNT(b->commit);

	for (uint32_t i = 0; i < count; i++) {
		struct arena_extent e = arena_extent_get(b, data, block_bytes, b->commit, i);

		if ((uint64_t)e.pos + e.length > block_bytes)
			return false;
	}
	return count > 0;
}

/* The checksums of the blocks, after everything else. */
static void recipe_seal_blocks(const struct recipe *r, int fd)
{
	static uint8_t data[4 << 20];
	const uint32_t bytes = r->geometry.block_bytes;

	for (uint32_t i = 0; i < r->geometry.block_count; i++) {
		struct arena_block *b = recipe_block(r, i);

		if (b->owner == 0 || b->owner > r->geometry.entry_count ||
		    pread(fd, data, bytes, (off_t)(r->geometry.data_at + (uint64_t)i * bytes)) != bytes ||
		    !recipe_can_sum(b, data, bytes))
			continue;
		b->commit = (b->commit & ~0xffffffffull) |
		            arena_sum_block(recipe_entry(r, b->owner - 1), b, data, bytes, b->commit);
		b->commit ^= r->torn[i % 256];
	}
}

/* Does the file entry have a torn block that counts? */
static bool recipe_entry_torn(const struct recipe *r, uint32_t entry)
{
	for (uint32_t i = 0; i < r->geometry.block_count; i++) {
		const struct arena_block *b = recipe_block(r, i);

		if (r->torn[i % 256] && b->owner == entry + 1 && COMMIT_COUNT(b->commit) > 0 &&
		    !b->chain_block && b->seq > DONE_SEQ(recipe_entry(r, entry)->done))
			return true;
	}
	return false;
}

static bool recipe_nothing_whole(const struct recipe *r)
{
	bool any = false;

	for (uint32_t i = 0; i < r->geometry.entry_count; i++) {
		if (!recipe_entry(r, i)->used)
			continue;
		any = true;
		if (!recipe_entry_torn(r, i))
			return false;
	}
	return any;
}

/* The files are as left, by the guards in the entries. */
static void recipe_guards(const struct recipe *r)
{
	for (uint32_t i = 0; i < r->geometry.entry_count; i++)
		for (int t = 0; t < WORLD_TARGETS; t++)
			if (recipe_entry(r, i)->ino == world_targets[t].ino)
				recipe_entry(r, i)->guard.size = r->content_bytes[t];
}

/* Fills the arena file in fd, which is empty.  False: the input is of no use.  The world was reset before,
 * because the identities of the targets go into the entries. */
static bool recipe_build(struct recipe *r, const uint8_t *data, size_t size, int fd)
{
	*r = (struct recipe){.at = data, .end = data + size, .seal = true};
	if (size > 0 && data[0] == RECIPE_RAW) {
		for (int t = 0; t < WORLD_TARGETS; t++)
			r->named[t] = true;
		r->mixed = true;
		return size <= RECIPE_RAW_MAX && write(fd, data + 1, size - 1) == (ssize_t)(size - 1);
	}
	if (size > 2 && data[0] == OP_GEOMETRY) {
		recipe_geometry(r, data[1], data[2]);
		r->at += 3;
	} else {
		recipe_geometry(r, 0, 0);
	}
	if (ftruncate(fd, (off_t)r->total) != 0)
		return false;
	for (int i = 0; i < RECIPE_OPS_MAX && r->at < r->end; i++)
		recipe_step(r, fd);
	for (uint32_t i = 0; i < r->geometry.block_count && i < 256; i++)
		r->mixed |= r->entries[i] >= COMMIT_COUNT(recipe_block(r, i)->commit) && r->entries[i] > 0;
	recipe_guards(r);
	recipe_seal_blocks(r, fd);
	r->nothing_whole = recipe_nothing_whole(r);
	if (r->seal)
		recipe_header()->checksum = arena_header_checksum(recipe_header());
	if (!recipe_names(r) || pwrite(fd, recipe_head, r->head_bytes, 0) != (ssize_t)r->head_bytes)
		return false;
	return !r->sized || ftruncate(fd, (off_t)(r->size & INT64_MAX)) == 0;
}

#endif
