// SPDX-License-Identifier: Apache-2.0
/* parse: see foreign/parse.h. */
#include "foreign/parse.h"

#include "base/buffer.h"
#include "base/kill.h"
#include "base/sort.h"
#include "base/sys.h"

#include <fcntl.h>
#include <string.h>
#include <sys/mman.h>

static bool all_zero(const void *p, size_t n)
{
	const uint8_t *b = p;

	while (n > 0 && *b == 0) {
		b++;
		n--;
	}
	return n == 0;
}

static bool header_sane(const struct arena_header *h, uint64_t file_size)
{
	struct arena_header expected = {0};

	if (h->magic != ARENA_MAGIC || h->checksum != arena_header_checksum(h))
		return false;
	if (h->version != (h->pages_bytes ? ARENA_VERSION_PAGES : ARENA_VERSION))
		return false;
	if (h->block_bytes < 64 * 1024 || h->block_bytes > 4 * 1024 * 1024 ||
	    (h->block_bytes & (h->block_bytes - 1)) != 0)
		return false;
	/* (the size determines the layout: arena_create makes no other) */
	if (h->total_bytes != file_size ||
	    !arena_geometry(file_size, h->block_bytes, h->pages_bytes, &expected))
		return false;
	return h->block_count == expected.block_count && h->entry_count == expected.entry_count &&
	       h->blocks_at == expected.blocks_at && h->entries_at == expected.entries_at &&
	       h->data_at == expected.data_at && h->pages_bytes == expected.pages_bytes &&
	       h->total_bytes == expected.total_bytes;
}

static bool is_newer(const struct arena_header *h)
{
	return h->magic == ARENA_MAGIC && h->version > ARENA_VERSION_NEWEST;
}

bool foreign_is_newer(int fd)
{
	struct arena_header h = {0};

	return sys_read_all(fd, &h, offsetof(struct arena_header, checksum), 0) == 0 && is_newer(&h);
}

bool foreign_is_arena(int fd)
{
	BUFFER(struct arena_header, h);
	struct statx st;

	return sys.statx(fd, "", AT_EMPTY_PATH, STATX_SIZE, &st) == 0 &&
	       sys_read_all(fd, h, sizeof *h, 0) == 0 && header_sane(h, st.stx_size);
}

static int take_memory(struct foreign_arena *a)
{
	uint64_t blocks = (uint64_t)a->header.block_count * ARENA_BLOCK_ENTRY_BYTES;
	uint64_t entries = (uint64_t)a->header.entry_count * ARENA_ENTRY_BYTES;
	uint64_t indexes = (uint64_t)a->header.block_count * sizeof *a->order;
	const struct pages_layout *l = &a->pages.layout;
	uint64_t files = (uint64_t)l->files * PAGES_FILE_BYTES;
	uint64_t frames = (uint64_t)l->frames * sizeof *a->pages.table;
	uint8_t *p;

	/* (there are as many file entries as blocks) */
	a->memory_bytes = a->header.block_bytes + entries + blocks + 3 * indexes + sizeof(uint64_t) + files +
	                  frames + (2ull * l->frames + l->files) * sizeof *a->pages.order;
	p = sys.mmap(NULL, a->memory_bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	if (sys_is_error(p))
		return (int)(intptr_t)p;
	a->memory = p;
	a->data = p;
	a->entries = a->data + a->header.block_bytes;
	a->blocks = (struct arena_block *)(void *)(a->entries + entries);
	a->order = (uint32_t *)(void *)((uint8_t *)a->blocks + blocks);
	a->first = a->order + a->header.block_count;
	a->next = a->first + a->header.block_count;
	p = (uint8_t *)(a->next + a->header.block_count);
	/* (the numbers of blocks may end in the middle of 8 bytes) */
	p += (uintptr_t)p % sizeof(uint64_t);
	a->pages.files = p;
	a->pages.table = (const struct page_frame *)(const void *)(p + files);
	a->pages.order = (uint32_t *)(void *)(p + files + frames);
	a->pages.next = a->pages.order + l->frames;
	a->pages.first = a->pages.next + l->frames;
	return 0;
}

/* Lists the blocks of each entry, so that no entry costs a look at all blocks: an arena may have very many of
 * both. */
static void list_blocks(struct foreign_arena *a)
{
	for (uint32_t i = a->header.block_count; i-- > 0;) {
		uint32_t owner = a->blocks[i].owner;

		if (owner == 0 || owner > a->header.entry_count)
			continue;
		a->next[i] = a->first[owner - 1];
		a->first[owner - 1] = i + 1;
	}
}

/* Reads the tables of the overlay. */
static int load_pages(struct foreign_arena *a)
{
	struct page_scan *s = &a->pages;
	uint64_t files = (uint64_t)s->layout.files * PAGES_FILE_BYTES;
	uint64_t frames = (uint64_t)s->layout.frames * sizeof *s->table;
	int r;

	if (s->layout.frames == 0)
		return 0;
	r = sys_read_all(a->fd, (void *)(uintptr_t)s->files, files, a->pages_at);
	if (r == 0)
		r = sys_read_all(a->fd, (void *)(uintptr_t)s->table, frames,
		                 a->pages_at + s->layout.table_at);
	if (r == 0)
		page_scan_begin(s);
	return r;
}

int foreign_load(struct foreign_arena *a, int fd)
{
	struct statx st;
	uint64_t ino;
	int r;

	memset(a, 0, sizeof *a);
	a->fd = fd;
	r = sys.statx(fd, "", AT_EMPTY_PATH, STATX_SIZE | STATX_INO, &st);
	if (r < 0)
		return r;
	a->size = st.stx_size;
	if (a->size == 0)
		return -ENODATA;
	if (a->size < ARENA_PAGE)
		return -EBADMSG;
	r = sys_read_all(fd, &a->header, sizeof a->header, 0);
	if (r < 0)
		return r;
	if (all_zero(&a->header.magic, sizeof a->header.magic))
		return -ENODATA; /* (the magic number is stored before any entry can be taken) */
	if (is_newer(&a->header))
		return FORMAT_NEWER;
	if (!header_sane(&a->header, a->size))
		return a->header.checksum == 0 && a->header.magic == ARENA_MAGIC ? -ENODATA : -EBADMSG;
	ino = (uint64_t)a->header.ino_high << 32 | a->header.ino_low;
	if (ino != 0 && ino != st.stx_ino)
		return -ESTALE;
	arena_pages(&a->header, &a->pages.layout, &a->pages_at);
	r = take_memory(a);
	if (r == 0)
		r = sys_read_all(fd, a->blocks, (uint64_t)a->header.block_count * ARENA_BLOCK_ENTRY_BYTES,
		                 a->header.blocks_at);
	if (r == 0)
		r = sys_read_all(fd, a->entries, (uint64_t)a->header.entry_count * ARENA_ENTRY_BYTES,
		                 a->header.entries_at);
	if (r == 0)
		r = load_pages(a);
	if (r < 0)
		foreign_unload(a);
	else
		list_blocks(a);
	return r;
}

void foreign_unload(struct foreign_arena *a)
{
	if (a->memory)
		sys.munmap(a->memory, a->memory_bytes);
	a->memory = NULL;
}

/* The second block of a split write counts only when the first one has published it. */
static bool chain_holds(const struct foreign_arena *a, const struct arena_block *b)
{
	uint32_t which = b->chain_block;
	const struct arena_block *first;

	if (which == 0)
		return true;
	if (which > a->header.block_count)
		return false;
	first = &a->blocks[which - 1];
	/* the first block was freed: then it had published this one, and the chain was about to be undone */
	if (first->owner != b->owner || first->seq != b->chain_seq)
		return true;
	return COMMIT_REACH(first->commit) >= b->chain_commit;
}

static bool has_earlier_seq(const void *ctx, uint32_t a, uint32_t b)
{
	const struct foreign_arena *arena = ctx;

	return arena->blocks[a].seq < arena->blocks[b].seq;
}

int foreign_blocks(struct foreign_arena *a, uint32_t entry)
{
	uint64_t done = DONE_SEQ(foreign_entry(a, entry)->done);
	int n = 0;

	for (uint32_t at = a->first[entry]; at != 0; at = a->next[at - 1]) {
		const uint32_t i = at - 1;
		const struct arena_block *b = &a->blocks[i];

		if (COMMIT_COUNT(b->commit) == 0 || b->seq <= done || !chain_holds(a, b))
			continue;
		if (b->kind != STAGE_POSITIONAL && b->kind != STAGE_APPEND)
			return -EBADMSG;
		a->order[n++] = i;
	}
	sort_numbers(a->order, (uint32_t)n, has_earlier_seq, a);
	/* each seq is given once: with two alike `done` would be ambiguous */
	for (int i = 1; i < n; i++)
		if (a->blocks[a->order[i]].seq == a->blocks[a->order[i - 1]].seq)
			return -EBADMSG;
	return n;
}

/* The extents lie within the block, one behind the other, as stage places them: no byte of the block is in
 * two of them. */
static bool extents_sane(const struct foreign_arena *a, uint32_t index)
{
	uint32_t count = COMMIT_COUNT(a->blocks[index].commit);
	uint32_t table = (count - 1) * ARENA_EXTENT_BYTES;
	uint64_t end = 0;

	for (uint32_t i = 0; i < count; i++) {
		struct arena_extent e = foreign_extent(a, index, i);

		if (e.pos < end || e.length == 0 || e.offset > (uint64_t)INT64_MAX - e.length)
			return false;
		end = (uint64_t)e.pos + e.length;
		if (end > a->header.block_bytes - table)
			return false;
	}
	return count > 0;
}

static bool sum_fits(const struct foreign_arena *a, uint32_t index)
{
	const struct arena_block *b = &a->blocks[index];

	return arena_sum_block(foreign_entry(a, b->owner - 1), b, a->data, a->header.block_bytes,
	                       b->commit) == COMMIT_SUM(b->commit);
}

int foreign_read_block(struct foreign_arena *a, uint32_t index)
{
	uint32_t owner = a->blocks[index].owner;

	if (owner == 0 || owner > a->header.entry_count || COMMIT_COUNT(a->blocks[index].commit) == 0)
		return -EBADMSG;
	if (a->in_data != index + 1) {
		int r = sys_read_all(a->fd, a->data, a->header.block_bytes,
		                     a->header.data_at + (uint64_t)index * a->header.block_bytes);

		if (r < 0) {
			a->in_data = 0;
			return r;
		}
		a->in_data = index + 1;
		a->sum_fits = extents_sane(a, index) && sum_fits(a, index);
	}
	if (!extents_sane(a, index))
		return -EBADMSG;
	return a->sum_fits || a->unchecked ? 0 : -EILSEQ;
}

int foreign_count_bytes(struct foreign_arena *a, int n, uint64_t *bytes)
{
	*bytes = 0;
	for (int i = 0; i < n; i++) {
		uint32_t index = a->order[i];
		int r = foreign_read_block(a, index);

		if (r < 0)
			return r;
		for (uint32_t k = 0; k < COMMIT_COUNT(a->blocks[index].commit); k++)
			*bytes += foreign_extent(a, index, k).length;
	}
	return 0;
}

bool foreign_is_positional(const struct foreign_arena *a, uint32_t entry)
{
	return a->blocks[a->order[0]].kind == STAGE_POSITIONAL ||
	       (foreign_entry(a, entry)->flags & ENTRY_EXCLUSIVE);
}

int foreign_pages(struct foreign_arena *a, uint32_t entry, struct page_scan_file *out)
{
	return a->pages.layout.frames ? page_scan_file(&a->pages, entry, out) : 0;
}

int foreign_read_frame(const struct foreign_arena *a, uint32_t frame, void *to, uint32_t n)
{
	return sys_read_all(a->fd, to, n,
	                    a->pages_at + a->pages.layout.frames_at + (uint64_t)frame * PAGES_BYTES);
}

int foreign_store(struct foreign_arena *a, const void *word, size_t size)
{
	struct iovec iov = {.iov_base = (void *)(uintptr_t)word, .iov_len = size};
	uint64_t at = a->header.entries_at + (uint64_t)((const uint8_t *)word - a->entries);
	ssize_t n;

	kill_step();
	n = sys_pwritev_accepted(a->fd, &iov, 1, (off_t)at);
	kill_step();
	return n < 0 ? (int)n : n == (ssize_t)size ? 0 : -EIO;
}
