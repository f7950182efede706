// SPDX-License-Identifier: Apache-2.0
/*
 * fuzz_journal: whatever a journal file holds, recovery ends.  It writes only what entries say, and only to
 * the files that they name.  For a sound journal it writes what a plain reading of journal_format.h says.  A
 * second run adds nothing. When the first run fails in the middle, the second one writes the same as one run
 * without a failure.
 *
 * An input is a list of operations: one byte each and its arguments, little-endian; missing bytes are zero.
 * Checksums are made right, unless a batch says otherwise.  The seeds of make_corpus.py are examples.
 */
#include "outcome.h"

#include "format/journal_format.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

#define FUZZ_JOURNAL "8388608-fuzz-1.journal"

enum { LEDGER_HALF_UNITS = 32, LEDGER_MAX = JOURNAL_HEADER_BYTES + 2 * LEDGER_HALF_UNITS * JOURNAL_UNIT_MAX };

enum ledger_op {
	LEDGER_GEOMETRY, /* u8 unit, u8 units of a half */
	LEDGER_BATCH, /* u8 half, u16 seq, u8 flags: 1 wrong sum, 2 wrong id, 4 where the last one of the half
	                 is */
	LEDGER_NAME,  /* u8 file, u8 identity, u8 path */
	LEDGER_DATA,  /* u8 file, u32 offset, u16 length, u8 start of the pattern */
	LEDGER_VOID,  /* u8 file, u16 seq, u16 where */
	LEDGER_ENTRY, /* u32 type, u32 length, u64 file, u64 offset, u64 where: no content */
	LEDGER_HEADER,  /* u8 field, u64 */
	LEDGER_PATCH,   /* u32 at, u8 length, bytes: anywhere, after everything else */
	LEDGER_SIZE,    /* u32: the file's size */
	LEDGER_CONTENT, /* u8 target, u16 bytes of text */
	LEDGER_WORLD,   /* u8: see outcome.h */
	LEDGER_FAULT,   /* u8 call, u8 at, u8 error, u8 most bytes */
	LEDGER_BOOT,    /* of this boot: nothing is written */
	LEDGER_COUNT
};

struct ledger {
	const uint8_t *at, *end;
	uint32_t half_end[2], half_last[2];
	uint32_t used; /* bytes of the batch that is being made, 0 = none */
	uint32_t half, batch_flags;
	uint64_t seq;
	bool plain; /* only sound batches, from another boot, and the world has not changed */
	bool patched, sized, fault;
	const uint8_t *patches[16], *headers[8];
	int patch_count, header_count;
	uint32_t size;
	uint8_t worlds[8], faults[4];
	int world_count;
	struct expected expected;
};

static uint8_t ledger_image[LEDGER_MAX];
static uint8_t ledger_batch[JOURNAL_BATCH_MAX];

static struct journal_header *ledger_header(void) { return (struct journal_header *)(void *)ledger_image; }

static uint64_t ledger_take(struct ledger *l, int bytes)
{
	uint64_t value = 0;

	for (int i = 0; i < bytes && l->at < l->end; i++)
		value |= (uint64_t)*l->at++ << (8 * i);
	return value;
}

static uint8_t ledger_pattern(uint8_t start, uint32_t i)
{
	return 0x80 | (uint8_t)(start + i * 7 + (i >> 7));
}

static void ledger_geometry(struct ledger *l, unsigned shift, unsigned units)
{
	struct journal_header *h = ledger_header();

	memset(ledger_image, 0, sizeof ledger_image);
	h->magic = JOURNAL_MAGIC;
	h->version = JOURNAL_VERSION;
	h->unit = JOURNAL_UNIT_MIN << shift % 4;
	h->half_bytes = h->unit * (1 + units % LEDGER_HALF_UNITS);
	h->total_bytes = JOURNAL_HEADER_BYTES + 2 * h->half_bytes;
	h->pid = 1 << 23;
	h->pid_start = 1;
	memset(h->id, 0x42, sizeof h->id);
	memset(h->origin.boot_id, 0x11, sizeof h->origin.boot_id);
	strcpy(h->rule, "fuzz");
	strcpy(h->program, "fuzzed");
	*l = (struct ledger){.at = l->at, .end = l->end, .plain = true, .expected = {.mixed = false}};
}

static void ledger_finish_batch(struct ledger *l)
{
	const struct journal_header *h = ledger_header();
	struct journal_batch *b = (struct journal_batch *)(void *)ledger_batch;
	uint32_t at = l->batch_flags & 4 ? l->half_last[l->half] : l->half_end[l->half];
	uint32_t bytes = (l->used + h->unit - 1) / h->unit * h->unit;

	if (l->used == 0)
		return;
	memset(ledger_batch + l->used, 0, bytes - l->used);
	b->magic = JOURNAL_BATCH_MAGIC;
	b->seq = l->seq;
	b->bytes = l->used;
	memcpy(b->id, h->id, sizeof b->id);
	b->id[0] ^= (l->batch_flags >> 1) & 1;
	b->checksum = journal_batch_checksum(b) ^ (l->batch_flags & 1);
	l->used = 0;
	if (bytes > h->half_bytes - at)
		return;
	memcpy(ledger_image + journal_half_at(h, l->half) + at, ledger_batch, bytes);
	l->half_last[l->half] = at;
	l->half_end[l->half] = at + bytes;
}

static uint8_t *ledger_entry(struct ledger *l, const struct journal_entry *e, uint32_t content)
{
	uint32_t bytes = journal_entry_bytes(content);
	uint8_t *at;

	if (l->used == 0) {
		l->used = sizeof(struct journal_batch);
		l->seq++;
	}
	at = ledger_batch + l->used;
	if (bytes > ledger_header()->half_bytes || l->used + bytes > sizeof ledger_batch - JOURNAL_UNIT_MAX)
		return NULL;
	memset(at, 0, bytes);
	memcpy(at, e, sizeof *e);
	l->used += bytes;
	return at + sizeof *e;
}

static void ledger_name(struct ledger *l)
{
	static const char *const paths[] = {"data/t0",
	                                    "data/t1",
	                                    "data/t2",
	                                    "data/gone",
	                                    "data/link",
	                                    "data/../data/t0",
	                                    "outside/victim",
	                                    "data/",
	                                    "data/dirlink/victim",
	                                    "data/t0/below",
	                                    "gone/t0",
	                                    "data/beside",
	                                    "data/.fastwrite/" FUZZ_JOURNAL};
	struct journal_entry e = {.type = JOURNAL_NAME, .file = ledger_take(l, 1)};
	unsigned who = (unsigned)ledger_take(l, 1), which = (unsigned)ledger_take(l, 1);
	struct world_id id = world_targets[who % 8 % WORLD_TARGETS];
	struct journal_name name;
	char path[1024];
	uint8_t *at;

	if (which < sizeof paths / sizeof *paths)
		snprintf(path, sizeof path, "%s", world_path(paths[which]));
	else
		snprintf(path, sizeof path, "%s", which % 3 == 0 ? "t0" : which % 3 == 1 ? "/dev/null" : "/");
	if (who % 8 == 6)
		id = (struct world_id){0};
	if (who & 8)
		id.btime_sec = id.btime_nsec = 0;
	if (who & 16)
		id.btime_sec--;
	l->expected.named[who % 8 % WORLD_TARGETS] = true;
	l->plain &= which < WORLD_TARGETS && who % 8 == which && !(who & 0xf0);
	name = (struct journal_name){.ino = id.ino,
	                             .btime_sec = id.btime_sec,
	                             .btime_nsec = id.btime_nsec,
	                             .path_bytes = (uint32_t)strlen(path) + 1};
	e.length = (uint32_t)sizeof name + name.path_bytes;
	at = ledger_entry(l, &e, e.length);
	if (!at)
		return;
	memcpy(at, &name, sizeof name);
	memcpy(at + sizeof name, path, name.path_bytes);
}

static void ledger_data(struct ledger *l)
{
	struct journal_entry e = {.type = JOURNAL_DATA, .file = ledger_take(l, 1)};
	uint8_t start, *at;

	e.offset = ledger_take(l, 4) % (LOOK_MAX / 2);
	e.length = (uint32_t)ledger_take(l, 2);
	start = (uint8_t)ledger_take(l, 1);
	at = ledger_entry(l, &e, e.length);
	for (uint32_t i = 0; at && i < e.length; i++)
		at[i] = ledger_pattern(start, i);
}

static void ledger_set_header(struct ledger *l)
{
	struct journal_header *h = ledger_header();
	unsigned field = (unsigned)ledger_take(l, 1);
	uint64_t v = ledger_take(l, 8);

	switch (field % 9) {
	case 0: h->magic = v; break;
	case 1: h->version = (uint32_t)v; break;
	case 2: h->total_bytes = v; break;
	case 3: h->half_bytes = v; break;
	case 4: h->unit = (uint32_t)v; break;
	case 5: h->id[v % 16] ^= 1; break;
	case 6: h->pid = (int32_t)v; break;
	case 7: h->pid_start = v; break;
	default: memset(h->program, 'p', sizeof h->program); break;
	}
}

static void ledger_step(struct ledger *l)
{
	struct journal_entry e;
	unsigned t, n;

	switch (ledger_take(l, 1) % LEDGER_COUNT) {
	case LEDGER_BATCH:
		ledger_finish_batch(l);
		l->half = ledger_take(l, 1) & 1;
		l->seq = ledger_take(l, 2);
		l->batch_flags = (uint32_t)ledger_take(l, 1);
		l->used = sizeof(struct journal_batch);
		break;
	case LEDGER_NAME: ledger_name(l); break;
	case LEDGER_DATA: ledger_data(l); break;
	case LEDGER_VOID:
		e = (struct journal_entry){.type = JOURNAL_VOID, .file = ledger_take(l, 1)};
		e.offset = ledger_take(l, 2);
		e.where = ledger_take(l, 2);
		ledger_entry(l, &e, 0);
		break;
	case LEDGER_ENTRY:
		e.type = (uint32_t)ledger_take(l, 4);
		e.length = (uint32_t)ledger_take(l, 4);
		e.file = ledger_take(l, 8);
		e.offset = ledger_take(l, 8);
		e.where = ledger_take(l, 8);
		ledger_entry(l, &e, 0);
		l->plain = false;
		/* (its content may be another entry) */
		l->expected.mixed = true;
		break;
	case LEDGER_HEADER: /* (at the end: the batches are made by what it says now) */
		if (l->header_count < 8)
			l->headers[l->header_count++] = l->at;
		ledger_take(l, 1);
		ledger_take(l, 8);
		l->plain = false;
		break;
	case LEDGER_PATCH:
		if (l->patch_count < 16)
			l->patches[l->patch_count++] = l->at;
		ledger_take(l, 4);
		for (n = (unsigned)ledger_take(l, 1); n > 0; n--)
			ledger_take(l, 1);
		l->plain = false;
		l->expected.mixed = true;
		break;
	case LEDGER_SIZE:
		l->sized = true;
		l->size = (uint32_t)ledger_take(l, 4) % (2 * LEDGER_MAX);
		l->plain = false;
		break;
	case LEDGER_CONTENT:
		t = (unsigned)ledger_take(l, 1) % WORLD_TARGETS;
		for (n = (unsigned)ledger_take(l, 2);
		     n > 0 && l->expected.content_bytes[t] < WORLD_CONTENT_MAX; n--) {
			uint32_t *length = &l->expected.content_bytes[t];

			world_content[t][*length] = (uint8_t)('a' + *length % 23);
			(*length)++;
		}
		break;
	case LEDGER_WORLD:
		if (l->world_count < (int)sizeof l->worlds)
			l->worlds[l->world_count++] = (uint8_t)ledger_take(l, 1);
		l->plain = false;
		break;
	case LEDGER_FAULT:
		l->fault = true;
		for (int i = 0; i < 4; i++)
			l->faults[i] = (uint8_t)ledger_take(l, 1);
		break;
	case LEDGER_BOOT:
		ledger_header()->origin = world_origin();
		l->plain = false;
		break;
	default: break; /* LEDGER_GEOMETRY counts at the beginning only */
	}
}

static void ledger_patch(const struct ledger *l)
{
	for (int i = 0; i < l->patch_count; i++) {
		struct ledger p = {.at = l->patches[i], .end = l->end};
		uint64_t at = ledger_take(&p, 4) % LEDGER_MAX;

		for (uint64_t n = ledger_take(&p, 1); n > 0 && at < LEDGER_MAX; n--)
			ledger_image[at++] = (uint8_t)ledger_take(&p, 1);
	}
}

/* Fills the journal file in fd, which is empty. */
static void ledger_build(struct ledger *l, const uint8_t *data, size_t size, int fd)
{
	enum { OPS_MAX = 200 };

	l->at = data;
	l->end = data + size;
	if (size > 2 && data[0] == LEDGER_GEOMETRY) {
		l->at += 3;
		ledger_geometry(l, data[1], data[2]);
	} else {
		ledger_geometry(l, 0, LEDGER_HALF_UNITS - 1);
	}
	for (int i = 0; i < OPS_MAX && l->at < l->end; i++)
		ledger_step(l);
	ledger_finish_batch(l);
	size = (size_t)ledger_header()->total_bytes;
	for (int i = 0; i < l->header_count; i++) {
		struct ledger p = {.at = l->headers[i], .end = l->end};

		ledger_set_header(&p);
	}
	ledger_header()->checksum = journal_header_checksum(ledger_header());
	ledger_patch(l);
	require(pwrite(fd, ledger_image, size, 0) == (ssize_t)size, "journal");
	if (l->sized)
		require(ftruncate(fd, l->size) == 0, "size");
}

static bool ledger_prepare(struct ledger *l, const uint8_t *data, size_t size)
{
	static const uint8_t *const content[WORLD_TARGETS] = {world_content[0], world_content[1],
	                                                      world_content[2]};
	static const uint32_t none[WORLD_TARGETS];
	int fd;

	snprintf(world_staged, sizeof world_staged, "data/.fastwrite/" FUZZ_JOURNAL);
	world_reset(content, none);
	fd = open(world_path(world_staged), O_RDWR | O_CREAT, 0600);
	require(fd >= 0, "journal");
	ledger_build(l, data, size, fd);
	close(fd);
	for (int t = 0; t < WORLD_TARGETS; t++) {
		world_fill(t, content[t], l->expected.content_bytes[t]);
	}
	for (int i = 0; i < l->world_count; i++)
		fuzz_world_change(l->worlds[i]);
	return true;
}

/* ---- a plain reading of the format ---- */

struct reading {
	struct {
		struct journal_entry e;
		const uint8_t *content;
		uint64_t seq, at;
	} entries[1024];
	int count;
	uint64_t first[2];
};

static bool read_half(struct reading *g, unsigned half)
{
	const struct journal_header *h = ledger_header();
	const uint8_t *base = ledger_image + journal_half_at(h, half);
	uint64_t at = 0, next = 0;

	g->first[half] = 0;
	while (h->half_bytes - at >= h->unit) {
		struct journal_batch b;

		memcpy(&b, base + at, sizeof b);
		if (b.magic != JOURNAL_BATCH_MAGIC || b.seq == 0 || (next && b.seq != next) ||
		    b.bytes < sizeof b || b.bytes > h->half_bytes - at || memcmp(b.id, h->id, 16) != 0)
			break;
		memcpy(ledger_batch, base + at, b.bytes);
		if (b.checksum != journal_batch_checksum((const struct journal_batch *)(void *)ledger_batch))
			break;
		if (!next)
			g->first[half] = b.seq;
		next = b.seq + 1;
		for (uint32_t p = sizeof b; p < b.bytes; g->count++) {
			if (g->count == 1024)
				return false;
			memcpy(&g->entries[g->count].e, base + at + p, sizeof g->entries[0].e);
			g->entries[g->count].content = base + at + p + sizeof(struct journal_entry);
			g->entries[g->count].seq = b.seq;
			g->entries[g->count].at = p;
			if (g->entries[g->count].e.file == 0)
				return false;
			p += journal_entry_bytes(g->entries[g->count].e.length);
		}
		at += (b.bytes + h->unit - 1) / h->unit * h->unit;
	}
	return true;
}

/* What the targets should hold now.  False: the journal holds too much to be read plainly. */
static bool ledger_wanted(const struct ledger *l, uint8_t out[WORLD_TARGETS][LOOK_MAX],
                          long length[WORLD_TARGETS])
{
	static struct reading g;
	unsigned older;

	g.count = 0;
	if (!read_half(&g, 0) || !read_half(&g, 1))
		return false;
	older = g.first[0] <= g.first[1] ? 0 : 1;
	if (older == 1) {
		g.count = 0;
		read_half(&g, 1);
		read_half(&g, 0);
	}
	for (int t = 0; t < WORLD_TARGETS; t++) {
		length[t] = l->expected.content_bytes[t];
		memset(out[t], 0, LOOK_MAX);
		memcpy(out[t], world_content[t], (size_t)length[t]);
	}
	for (int i = 0; i < g.count; i++) {
		const struct journal_entry *e = &g.entries[i].e;
		uint64_t ino = 0;
		bool named = false, gone = false;

		if (e->type != JOURNAL_DATA)
			continue;
		for (int k = 0; k < g.count; k++) {
			const struct journal_entry *o = &g.entries[k].e;

			if (o->file != e->file)
				continue;
			if (o->type == JOURNAL_NAME) {
				memcpy(&ino, g.entries[k].content, sizeof ino);
				named = true;
			}
			if (o->type == JOURNAL_VOID && named)
				gone |= g.entries[i].seq < o->offset ||
				        (g.entries[i].seq == o->offset && g.entries[i].at < o->where);
		}
		for (int t = 0; t < WORLD_TARGETS && named && !gone; t++) {
			if (world_targets[t].ino != ino || e->length == 0)
				continue;
			memcpy(out[t] + e->offset, g.entries[i].content, e->length);
			if ((long)(e->offset + e->length) > length[t])
				length[t] = (long)(e->offset + e->length);
		}
	}
	return true;
}

static void ledger_check(const struct ledger *l, const struct outcome *o)
{
	static uint8_t wanted[WORLD_TARGETS][LOOK_MAX];
	long length[WORLD_TARGETS];

	if (!ledger_wanted(l, wanted, length))
		return;
	for (int t = 0; t < WORLD_TARGETS; t++) {
		require(o->length[t] == length[t], "t%d has %ld bytes instead of %ld", t, o->length[t],
		        length[t]);
		for (long i = 0; i < length[t]; i++)
			require(o->bytes[t][i] == wanted[t][i], "byte %ld of t%d is %02x instead of %02x", i,
			        t, o->bytes[t][i], wanted[t][i]);
	}
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	static struct ledger l;
	struct outcome dry, first, second;
	struct recover_report report;
	bool other;

	world_begin();
	if (!ledger_prepare(&l, data, size))
		return -1;
	other = fuzz_other_owner();
	fuzz_look(&dry, &l.expected);
	fuzz_run(true);
	fuzz_look(&first, &l.expected);
	fuzz_same(&dry, &first, "dry run");
	report = fuzz_run(false);
	fuzz_look(&first, &l.expected);
	if (other)
		fuzz_same(&dry, &first, "with the rights of another user");
	if (l.plain && !report.failed)
		ledger_check(&l, &first);
	fuzz_run(false);
	fuzz_look(&second, &l.expected);
	fuzz_same(&first, &second, "again");
	if (!l.fault || report.failed)
		return 0;
	/* the same with a fault in the middle, and then without */
	if (!ledger_prepare(&l, data, size))
		return -1;
	fuzz_fault_set(l.faults);
	fuzz_run(false);
	fuzz_fault_set(NULL);
	fuzz_run(false);
	fuzz_look(&second, &l.expected);
	fuzz_same(&first, &second, "after a fault");
	return 0;
}
