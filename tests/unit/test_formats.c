// SPDX-License-Identifier: Apache-2.0
/*
 * formats: the layout of arenas and logs as these versions have it.
 *
 * A failure here means that the layout has changed.  Another library would then read nonsense from the arena
 * of this one, running or dead.  So give the format a new version number (arena_format.h, wal_format.h), keep
 * reading the old one or say in docs/operations.md that it is not read any more, keep files of the old
 * version (tests/tools/old_files.py), and only then change this table.
 */
#include "format/arena_format.h"
#include "format/wal_format.h"

#include <setjmp.h>
#include <stdarg.h>

#include <cmocka.h>

struct place {
	const char *name;
	size_t at, size; /* now */
	size_t at_then, size_then;
};
#define SIZE(type, bytes) {#type, 0, sizeof(struct type), 0, bytes}
#define FIELD(type, field, at, bytes) \
	{#type "." #field, offsetof(struct type, field), sizeof(((struct type *)0)->field), at, bytes}
#define NUMBER(name, value) {#name, 0, (size_t)(name), 0, (size_t)(value)}

static void expect(const struct place *p, size_t count)
{
	for (size_t i = 0; i < count; i++)
		if (p[i].at != p[i].at_then || p[i].size != p[i].size_then)
			fail_msg("%s: now %zu at %zu, in this version %zu at %zu", p[i].name, p[i].size,
			         p[i].at, p[i].size_then, p[i].at_then);
}
#define EXPECT(places) expect(places, sizeof(places) / sizeof((places)[0]))

/* clang-format off */
static const struct place arena[] = {
	NUMBER(ARENA_VERSION, 2),
	NUMBER(ARENA_VERSION_PAGES, 3),
	NUMBER(ARENA_VERSION_NEWEST, 3),
	NUMBER(ARENA_MAGIC, 0x41524e4157545346),
	NUMBER(ARENA_PAGE, 4096),
	NUMBER(ARENA_ENTRY_BYTES, 1024),
	NUMBER(ARENA_BLOCK_ENTRY_BYTES, 64),
	NUMBER(ARENA_EXTENT_BYTES, 16),
	NUMBER(ARENA_KEEPERS_MAX, 256),
	NUMBER(COMMIT_MAKE(5, 7, 9), 0x0140000700000009),
	NUMBER(COMMIT_SEALED, 0x8000000000000000),
	NUMBER(DONE_MAKE(5, 7), 0x5000007),
	NUMBER(STAGE_POSITIONAL, 1),
	NUMBER(STAGE_APPEND, 2),
	NUMBER(APPEND_AT_BASE, 1),
	NUMBER(APPEND_SOMEWHERE, 2),
	NUMBER(ENTRY_EXCLUSIVE, 1),
	NUMBER(ENTRY_PREALLOCATED, 2),
	NUMBER(ENTRY_STRICT, 4),
	NUMBER(ENTRY_LEASED, 8),
	NUMBER(ENTRY_LEASE_BUSY, 16),
	NUMBER(ENTRY_BUSY_SEEN, 32),
	NUMBER(ENTRY_PADDED, 64),
	NUMBER(ENTRY_OVERWROTE, 128),
	NUMBER(ENTRY_SYNCED, 256),
	NUMBER(ENTRY_ORDERED, 512),
	NUMBER(ENTRY_REMOVED, 1024),
	NUMBER(COUNT_WRITES, 0),
	NUMBER(COUNT_BYTES, 1),
	NUMBER(COUNT_FLUSHES, 2),
	NUMBER(COUNT_FLUSH_BYTES, 3),
	NUMBER(COUNT_DIRECT_BYTES, 4),
	NUMBER(COUNT_SYNCS_ASKED, 5),
	NUMBER(COUNT_SYNCS_DONE, 6),
	NUMBER(COUNT_DRAINS, 7),
	NUMBER(COUNT_MAX, 8),
	NUMBER(BYPASS_FORK, 1),
	NUMBER(BYPASS_REPLACED, 26),
	SIZE(arena_header, 896),
	FIELD(arena_header, magic, 0, 8),
	FIELD(arena_header, version, 8, 4),
	FIELD(arena_header, checksum, 12, 4),
	FIELD(arena_header, total_bytes, 16, 8),
	FIELD(arena_header, block_bytes, 24, 4),
	FIELD(arena_header, block_count, 28, 4),
	FIELD(arena_header, entry_count, 32, 4),
	FIELD(arena_header, ino_low, 36, 4),
	FIELD(arena_header, blocks_at, 40, 8),
	FIELD(arena_header, entries_at, 48, 8),
	FIELD(arena_header, data_at, 56, 8),
	FIELD(arena_header, origin, 64, 48),
	FIELD(arena_header, uid, 112, 4),
	FIELD(arena_header, gid, 116, 4),
	FIELD(arena_header, pid, 120, 4),
	FIELD(arena_header, ino_high, 124, 4),
	FIELD(arena_header, pid_start, 128, 8),
	FIELD(arena_header, rule, 136, 64),
	FIELD(arena_header, program, 200, 56),
	FIELD(arena_header, pages_bytes, 256, 8),
	FIELD(arena_header, live, 264, 632),
	FIELD(arena_header, live.next_seq, 264, 8),
	FIELD(arena_header, live.counters, 272, 64),
	FIELD(arena_header, live.through, 336, 256),
	FIELD(arena_header, live.journaled, 592, 8),
	FIELD(arena_header, live.keepers, 600, 256),
	FIELD(arena_header, live.journal_next, 856, 8),
	FIELD(arena_header, live.order, 864, 32),
	FIELD(arena_header, live.order.log_bytes, 864, 8),
	FIELD(arena_header, live.order.epochs, 872, 8),
	FIELD(arena_header, live.order.oldest_ns, 880, 8),
	FIELD(arena_header, live.order.largest, 888, 8),
	SIZE(arena_block, 64),
	FIELD(arena_block, owner, 0, 4),
	FIELD(arena_block, kind, 4, 4),
	FIELD(arena_block, seq, 8, 8),
	FIELD(arena_block, commit, 16, 8),
	FIELD(arena_block, first, 24, 16),
	FIELD(arena_block, chain_block, 40, 4),
	FIELD(arena_block, chain_seq, 48, 8),
	FIELD(arena_block, chain_commit, 56, 8),
	SIZE(arena_extent, 16),
	FIELD(arena_extent, offset, 0, 8),
	FIELD(arena_extent, pos, 8, 4),
	FIELD(arena_extent, length, 12, 4),
	SIZE(arena_guard, 40),
	FIELD(arena_guard, size, 0, 8),
	FIELD(arena_guard, mtime_sec, 8, 8),
	FIELD(arena_guard, mtime_nsec, 16, 4),
	FIELD(arena_guard, known, 20, 4),
	FIELD(arena_guard, begun_ns, 24, 8),
	FIELD(arena_guard, again_ns, 32, 8),
	SIZE(arena_entry, 1008),
	FIELD(arena_entry, used, 0, 4),
	FIELD(arena_entry, flags, 4, 4),
	FIELD(arena_entry, dev, 8, 8),
	FIELD(arena_entry, ino, 16, 8),
	FIELD(arena_entry, btime_sec, 24, 8),
	FIELD(arena_entry, btime_nsec, 32, 4),
	FIELD(arena_entry, generation, 36, 4),
	FIELD(arena_entry, handle_hash, 40, 8),
	FIELD(arena_entry, guard, 48, 40),
	FIELD(arena_entry, below, 88, 2),
	FIELD(arena_entry, up, 90, 2),
	FIELD(arena_entry, flush_active, 92, 4),
	FIELD(arena_entry, done, 96, 8),
	FIELD(arena_entry, flush_base, 104, 8),
	FIELD(arena_entry, prealloc_end, 112, 8),
	FIELD(arena_entry, counters, 120, 64),
	FIELD(arena_entry, flush_from, 184, 8),
	FIELD(arena_entry, flush_bytes, 192, 8),
	FIELD(arena_entry, taken, 200, 8),
	FIELD(arena_entry, journaled, 208, 8),
	FIELD(arena_entry, unused, 216, 16),
	FIELD(arena_entry, path, 232, 768),
	FIELD(arena_entry, keeper, 1000, 4),
	FIELD(arena_entry, takeovers, 1004, 4),
	SIZE(origin, 48),
	FIELD(origin, boot_id, 0, 16),
	FIELD(origin, boot_ns, 16, 8),
	FIELD(origin, mount_id, 24, 8),
	FIELD(origin, super_id, 32, 8),
	FIELD(origin, dev, 40, 8),
};

static const struct place overlay[] = {
	NUMBER(PAGES_BYTES, 4096),
	NUMBER(PAGES_META_SLOTS, 4),
	NUMBER(PAGES_FILE_BYTES, 256),
	NUMBER(PAGES_STEP, 65536),
	NUMBER(PUBLISHED_MAKE(5, 3), 23),
	SIZE(page_frame, 24),
	FIELD(page_frame, owner, 0, 4),
	FIELD(page_frame, page, 8, 8),
	FIELD(page_frame, ticket, 16, 8),
	SIZE(page_meta, 48),
	FIELD(page_meta, size, 0, 8),
	FIELD(page_meta, lowest, 8, 8),
	FIELD(page_meta, cut, 16, 8),
	FIELD(page_meta, cut_lowest, 24, 8),
	FIELD(page_meta, mtime_sec, 32, 8),
	FIELD(page_meta, mtime_nsec, 40, 4),
	FIELD(page_meta, changed, 44, 4),
	SIZE(page_file, 208),
	FIELD(page_file, published, 0, 8),
	FIELD(page_file, done, 8, 8),
	FIELD(page_file, meta, 16, 192),
};

static const struct place wal[] = {
	NUMBER(WAL_VERSION, 3),
	NUMBER(WAL_MAGIC, 0x4c4157575453460a),
	NUMBER(WAL_NAMES_MAGIC, 0x4d414e4157460a0a),
	NUMBER(WAL_BATCH_MAGIC, 0x5441424c4157460a),
	NUMBER(WAL_PAGE_BYTES, 4096),
	NUMBER(WAL_HEAD_MAX, 16384),
	NUMBER(WAL_IMAGES_MAX, 256),
	NUMBER(WAL_NAMES_MAX, 16),
	NUMBER(WAL_NAMES_AT, 4096),
	NUMBER(WAL_NAMES_BYTES, 16384),
	NUMBER(WAL_BATCHES_AT, 36864),
	NUMBER(WAL_END, 1),
	NUMBER(WAL_RECOVERY, 2),
	NUMBER(WAL_NAME, 1),
	NUMBER(WAL_SIZE, 2),
	NUMBER(WAL_PAGE, 3),
	NUMBER(WAL_GOES, 1),
	NUMBER(WAL_IN_FILE, 1),
	NUMBER(WAL_CUTS, 2),
	NUMBER(WAL_REPLAY_AT, 2048),
	SIZE(wal_absent, 8),
	FIELD(wal_absent, list, 0, 4),
	FIELD(wal_absent, names, 4, 4),
	SIZE(wal_header, 120),
	FIELD(wal_header, magic, 0, 8),
	FIELD(wal_header, version, 8, 4),
	FIELD(wal_header, checksum, 12, 4),
	FIELD(wal_header, bytes, 16, 8),
	FIELD(wal_header, id, 24, 16),
	FIELD(wal_header, first, 40, 8),
	FIELD(wal_header, absent, 48, 8),
	FIELD(wal_header, written_ns, 56, 8),
	FIELD(wal_header, ino, 64, 8),
	FIELD(wal_header, origin, 72, 48),
	SIZE(wal_batch, 72),
	FIELD(wal_batch, magic, 0, 8),
	FIELD(wal_batch, id, 8, 16),
	FIELD(wal_batch, epoch, 24, 8),
	FIELD(wal_batch, part, 32, 4),
	FIELD(wal_batch, flags, 36, 4),
	FIELD(wal_batch, bytes, 40, 4),
	FIELD(wal_batch, images, 44, 4),
	FIELD(wal_batch, checksum, 48, 4),
	FIELD(wal_batch, written_ns, 56, 8),
	FIELD(wal_batch, absent, 64, 8),
	SIZE(wal_record, 8),
	FIELD(wal_record, type, 0, 2),
	FIELD(wal_record, bytes, 2, 2),
	FIELD(wal_record, file, 4, 4),
	SIZE(wal_name, 48),
	FIELD(wal_name, dev, 0, 8),
	FIELD(wal_name, ino, 8, 8),
	FIELD(wal_name, btime_sec, 16, 8),
	FIELD(wal_name, handle_hash, 24, 8),
	FIELD(wal_name, btime_nsec, 32, 4),
	FIELD(wal_name, generation, 36, 4),
	FIELD(wal_name, path_bytes, 40, 2),
	FIELD(wal_name, flags, 42, 2),
	FIELD(wal_name, below, 44, 2),
	FIELD(wal_name, up, 46, 2),
	SIZE(wal_size, 32),
	FIELD(wal_size, size, 0, 8),
	FIELD(wal_size, lowest, 8, 8),
	FIELD(wal_size, mtime_sec, 16, 8),
	FIELD(wal_size, mtime_nsec, 24, 4),
	FIELD(wal_size, flags, 28, 4),
	SIZE(wal_replay, 24),
	FIELD(wal_replay, boot_ns, 0, 8),
	FIELD(wal_replay, begun_ns, 8, 8),
	FIELD(wal_replay, until_ns, 16, 8),
	SIZE(wal_page, 8),
	FIELD(wal_page, page, 0, 8),
	SIZE(wal_names, 40),
	FIELD(wal_names, magic, 0, 8),
	FIELD(wal_names, id, 8, 16),
	FIELD(wal_names, number, 24, 4),
	FIELD(wal_names, count, 28, 4),
	FIELD(wal_names, bytes, 32, 4),
	FIELD(wal_names, checksum, 36, 4),
	SIZE(wal_listed, 8),
	FIELD(wal_listed, below, 0, 2),
	FIELD(wal_listed, up, 2, 2),
	FIELD(wal_listed, path_bytes, 4, 4),
};

/* clang-format on */

static void test_arena(void **state)
{
	(void)state;
	EXPECT(arena);
}

static void test_overlay(void **state)
{
	(void)state;
	EXPECT(overlay);
}

static void test_log(void **state)
{
	(void)state;
	EXPECT(wal);
}

/* Where the parts of an arena begin follows from its size. */
static void test_geometry(void **state)
{
	struct arena_header h = {0};
	struct pages_layout l;
	uint64_t at;

	(void)state;
	assert_true(arena_geometry(1 << 20, 64 << 10, 0, &h));
	const struct place blocks[] = {NUMBER(h.blocks_at, 4096), NUMBER(h.entries_at, 8192),
	                               NUMBER(h.data_at, 24576),  NUMBER(h.block_count, 15),
	                               NUMBER(h.entry_count, 15), NUMBER(h.total_bytes, 1007616)};
	EXPECT(blocks);
	assert_true(arena_geometry(2 << 20, 64 << 10, 1 << 20, &h) && arena_pages(&h, &l, &at));
	const struct place pages[] = {NUMBER(at, 1007616),        NUMBER(l.files, 15),
	                              NUMBER(l.frames, 253),      NUMBER(l.table_at, 4096),
	                              NUMBER(l.frames_at, 12288), NUMBER(h.total_bytes, 2056192)};
	EXPECT(pages);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_arena),
		cmocka_unit_test(test_overlay),
		cmocka_unit_test(test_log),
		cmocka_unit_test(test_geometry),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
