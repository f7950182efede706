// SPDX-License-Identifier: Apache-2.0
/*
 * replay BASE WORK LOG: makes of WORK what a disk may hold after power was lost.
 *
 * BASE is the image as it was before the first event of LOG; it is carried along, so cuts come in ascending
 * order. For each line "EVENTS SEED STYLE" on standard input: the first EVENTS events have happened.
 * Everything before the last flush among them is on the disk.  Of each later write, by STYLE: all, none kept,
 * dropped writes         kept or dropped as a whole, at random sectors        each sector of 512 bytes kept
 * or dropped, at random last           kept, but of the last one only its first sectors Answers "KEPT
 * DROPPED" (sectors) when WORK is complete.
 */
#include "writelog.h"

#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

/* ext4 takes for granted that its superblock, sectors 2 and 3, is written whole; no journal protects it. */
enum { PAGE = 4096, SECTOR = 512, SUPERBLOCK_SECOND = 3 };

struct image {
	int fd;
	uint8_t *map;
	uint8_t *has; /* one byte per page: something was stored there */
};

struct replay {
	size_t size;
	struct image base, work;
	const uint8_t *log;
	size_t log_bytes, log_at; /* of the next event */
	uint64_t event;           /* its number */
};

static _Noreturn void die(const char *what)
{
	perror(what);
	exit(1);
}

static void open_image(struct image *i, const char *path, size_t *size)
{
	struct stat st;

	i->fd = open(path, O_RDWR | O_CLOEXEC);
	if (i->fd < 0 || fstat(i->fd, &st) < 0)
		die(path);
	if (*size == 0)
		*size = (size_t)st.st_size;
	if ((size_t)st.st_size != *size || *size % PAGE) {
		fprintf(stderr, "replay: %s: size\n", path);
		exit(1);
	}
	i->map = mmap(NULL, *size, PROT_READ | PROT_WRITE, MAP_SHARED, i->fd, 0);
	i->has = calloc(*size / PAGE, 1);
	if (i->map == MAP_FAILED || !i->has)
		die(path);
}

/* Where the file has bytes and not holes. */
static void look(struct image *i, size_t size)
{
	off_t at = 0;

	memset(i->has, 0, size / PAGE);
	while ((at = lseek(i->fd, at, SEEK_DATA)) >= 0 && (size_t)at < size) {
		off_t end = lseek(i->fd, at, SEEK_HOLE);

		for (size_t page = (size_t)at / PAGE; page * PAGE < (size_t)end; page++)
			i->has[page] = 1;
		at = end;
	}
}

/* A mount of it may have written anywhere. */
static void restore(struct replay *r)
{
	static const uint8_t zeros[PAGE];

	look(&r->work, r->size);
	for (size_t page = 0; page < r->size / PAGE; page++) {
		const uint8_t *want = r->base.has[page] ? r->base.map + page * PAGE : zeros;

		if (!r->base.has[page] && !r->work.has[page])
			continue;
		if (memcmp(r->work.map + page * PAGE, want, PAGE) != 0)
			memcpy(r->work.map + page * PAGE, want, PAGE);
	}
}

static void put(struct replay *r, struct image *i, const struct log_event *e, const uint8_t *data,
                uint64_t from, uint64_t length)
{
	uint64_t at = e->offset + from;

	if (length == 0)
		return;
	if (at + length > r->size) {
		fprintf(stderr, "replay: a write behind the end\n");
		exit(1);
	}
	if (e->type == LOG_WRITE)
		memcpy(i->map + at, data + from, length);
	else
		memset(i->map + at, 0, length);
	for (uint64_t page = at / PAGE; page * PAGE < at + length; page++)
		i->has[page] = 1;
}

/* The event at `at`; its data and the place of the next one. */
static struct log_event event_at(const struct replay *r, size_t at, const uint8_t **data, size_t *next)
{
	struct log_event e;

	if (at + sizeof e > r->log_bytes) {
		fprintf(stderr, "replay: the log ends before the cut\n");
		exit(1);
	}
	memcpy(&e, r->log + at, sizeof e);
	*data = r->log + at + sizeof e;
	*next = at + sizeof e + (e.type == LOG_WRITE || e.type == LOG_MARK ? e.length : 0);
	return e;
}

static int is_change(const struct log_event *e) { return e->type == LOG_WRITE || e->type == LOG_ZERO; }

static uint64_t random_next(uint64_t *state)
{
	uint64_t z = (*state += 0x9e3779b97f4a7c15u);

	z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
	z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
	return z ^ (z >> 31);
}

/* Takes into the base what a flush before event number `events` has made durable. */
static void advance(struct replay *r, uint64_t events)
{
	size_t flush_at = r->log_at, at = r->log_at, next;
	uint64_t flush_event = r->event;
	const uint8_t *data;

	if (events < r->event) {
		fprintf(stderr, "replay: cuts must ascend\n");
		exit(1);
	}
	for (uint64_t n = r->event; n < events; n++, at = next) {
		if (event_at(r, at, &data, &next).type == LOG_FLUSH) {
			flush_at = next;
			flush_event = n + 1;
		}
	}
	for (; r->log_at < flush_at; r->log_at = next) {
		struct log_event e = event_at(r, r->log_at, &data, &next);

		if (is_change(&e))
			put(r, &r->base, &e, data, 0, e.length);
	}
	r->event = flush_event;
}

/* What of the writes behind the last flush was lucky. */
static void apply_rest(struct replay *r, uint64_t events, uint64_t seed, const char *style, uint64_t *kept,
                       uint64_t *dropped)
{
	uint64_t odds = 1 + random_next(&seed) % 15; /* of 16 */
	size_t at = r->log_at, next, last_at = 0;
	const uint8_t *data;

	for (uint64_t n = r->event; n < events; n++, at = next) {
		struct log_event e = event_at(r, at, &data, &next);

		if (is_change(&e))
			last_at = at;
	}
	at = r->log_at;
	for (uint64_t n = r->event; n < events; n++, at = next) {
		struct log_event e = event_at(r, at, &data, &next);
		uint64_t sectors = (e.length + SECTOR - 1) / SECTOR, keep = 0;

		if (!is_change(&e))
			continue;
		if (strcmp(style, "sectors") == 0) {
			int lucky = 0;

			for (uint64_t s = 0; s < sectors; s++) {
				uint64_t from = s * SECTOR;
				uint64_t length = e.length - from < SECTOR ? e.length - from : SECTOR;

				if (s == 0 || e.offset / SECTOR + s != SUPERBLOCK_SECOND)
					lucky = random_next(&seed) % 16 < odds;
				if (!lucky)
					continue;
				put(r, &r->work, &e, data, from, length);
				keep++;
			}
		} else {
			if (strcmp(style, "all") == 0 || (strcmp(style, "last") == 0 && at != last_at))
				keep = sectors;
			else if (strcmp(style, "last") == 0)
				keep = random_next(&seed) % (sectors + 1);
			else if (strcmp(style, "writes") == 0)
				keep = random_next(&seed) % 16 < odds ? sectors : 0;
			if (keep && keep < sectors && e.offset / SECTOR + keep == SUPERBLOCK_SECOND)
				keep++;
			put(r, &r->work, &e, data, 0, keep * SECTOR < e.length ? keep * SECTOR : e.length);
		}
		*kept += keep;
		*dropped += sectors - keep;
	}
}

int main(int argc, char **argv)
{
	struct replay r = {0};
	char line[128], style[16];
	struct stat st;
	int log_fd;

	if (argc != 4) {
		fprintf(stderr, "usage: replay BASE WORK LOG\n");
		return 2;
	}
	open_image(&r.base, argv[1], &r.size);
	open_image(&r.work, argv[2], &r.size);
	look(&r.base, r.size);
	log_fd = open(argv[3], O_RDONLY | O_CLOEXEC);
	if (log_fd < 0 || fstat(log_fd, &st) < 0)
		die(argv[3]);
	r.log_bytes = (size_t)st.st_size;
	r.log = mmap(NULL, r.log_bytes, PROT_READ, MAP_PRIVATE, log_fd, 0);
	if (r.log == MAP_FAILED)
		die(argv[3]);
	while (fgets(line, sizeof line, stdin)) {
		uint64_t events, seed, kept = 0, dropped = 0;

		if (sscanf(line, "%" SCNu64 " %" SCNu64 " %15s", &events, &seed, style) != 3) {
			fprintf(stderr, "replay: not a command: %s", line);
			return 2;
		}
		advance(&r, events);
		restore(&r);
		apply_rest(&r, events, seed, style, &kept, &dropped);
		printf("%" PRIu64 " %" PRIu64 "\n", kept, dropped);
		fflush(stdout);
	}
	return 0;
}
