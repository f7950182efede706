// SPDX-License-Identifier: Apache-2.0
/*
 * dead_arena: an arena as a death of its process leaves it, and its recovery.  Included once by each test
 * program that needs it.
 */
#ifndef FASTWRITE_TEST_DEAD_ARENA_H
#define FASTWRITE_TEST_DEAD_ARENA_H

#include "recovery/recover.h"
#include "rig.h"

static char arena_path[PATH_MAX + 64];

/* What a death at this moment leaves: a copy of the arena beside it, with another name and another process's
 * pid. */
static void die_now(int fd)
{
	struct arena *a = rig_file(fd)->arena;
	uint8_t *copy = malloc(a->total_bytes);
	int out;

	memcpy(copy, a->header, a->total_bytes);
	((struct arena_header *)(void *)copy)->pid = 1 << 23; /* beyond every pid */
	((struct arena_header *)(void *)copy)->ino_low = ((struct arena_header *)(void *)copy)->ino_high = 0;
	((struct arena_header *)(void *)copy)->checksum = arena_header_checksum((void *)copy);
	snprintf(arena_path, sizeof arena_path, "%s/8388608-unit-1.arena", a->dir);
	out = open(arena_path, O_WRONLY | O_CREAT, 0600);
	assert_int_equal(write(out, copy, a->total_bytes), (ssize_t)a->total_bytes);
	close(out);
	free(copy);
}

/* The header of the dead arena, which header_write changes. */
__attribute__((unused)) static struct arena_header header_read(void)
{
	struct arena_header h;
	int fd = open(arena_path, O_RDONLY);

	assert_int_equal(pread(fd, &h, sizeof h, 0), (ssize_t)sizeof h);
	close(fd);
	return h;
}

__attribute__((unused)) static void header_write(struct arena_header *h)
{
	int fd = open(arena_path, O_WRONLY);

	h->checksum = arena_header_checksum(h);
	assert_int_equal(pwrite(fd, h, sizeof *h, 0), (ssize_t)sizeof *h);
	close(fd);
}

/* The dead arena is `boot` ns of boot time and `mount` mounts older than this one. */
__attribute__((unused)) static void move_origin(int64_t boot, uint64_t mount)
{
	struct arena_header h = header_read();

	h.origin.boot_ns -= boot;
	if (boot)
		memset(h.origin.boot_id, 7, sizeof h.origin.boot_id);
	h.origin.super_id += h.origin.super_id < ORIGIN_KIND(0) ? mount : 0;
	h.origin.mount_id += mount;
	h.origin.dev += mount;
	header_write(&h);
}

static int last_error;

static void note_error(void *ctx, const struct recover_event *e)
{
	(void)ctx;
	if (e->error)
		last_error = e->error;
}

/* With `force` also what was put aside. */
static struct recover_report recover_by(bool force)
{
	const struct recover_options opt = {.event = note_error, .force = force};
	struct recover_report report = {0};

	last_error = 0;
	assert_int_equal(recover_path(arena_path, &opt, &report), 0);
	return report;
}

static struct recover_report recover_once(void) { return recover_by(false); }

__attribute__((unused)) static struct recover_report recover_now(void)
{
	struct recover_report report = recover_once();

	assert_int_equal(report.failed, 0);
	assert_int_equal(access(arena_path, F_OK), -1);
	return report;
}

#endif
