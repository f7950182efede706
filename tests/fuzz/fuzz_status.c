// SPDX-License-Identifier: Apache-2.0
/* fuzz_status: whatever the arena of a process holds, status reads it, ends, and shows only text. */
#include "recipe.h"

#include "recovery/status.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

struct seen {
	uint32_t blocks, files;
	uint64_t total;
};

static void status_see_arena(void *ctx, const struct status_arena *a)
{
	struct seen *s = ctx;

	require(strlen(a->program) < 64 && strlen(a->rule) < CONFIG_NAME_MAX, "not text");
	require(a->blocks_used <= a->block_count, "%u of %u blocks", a->blocks_used, a->block_count);
	s->blocks = a->block_count;
	s->total = a->total_bytes;
}

static void status_see_file(void *ctx, const struct status_file *f)
{
	struct seen *s = ctx;

	require(strlen(f->path) < ARENA_PATH_MAX, "not text");
	require(f->staged_bytes <= s->total, "%llu bytes", (unsigned long long)f->staged_bytes);
	require(++s->files <= s->blocks, "more files than entries");
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	static const uint8_t *const content[WORLD_TARGETS] = {world_content[0], world_content[1],
	                                                      world_content[2]};
	static const uint32_t none[WORLD_TARGETS];
	static struct recipe r;
	struct seen seen = {0};
	const struct status_visitor v = {.arena = status_see_arena, .file = status_see_file, .ctx = &seen};
	int fd, before;

	world_begin();
	world_reset(content, none);
	fd = open(world_path("data/.fastwrite/" FUZZ_ARENA), O_RDWR | O_CREAT, 0600);
	require(fd >= 0, "arena");
	before = world_open_fds();
	if (recipe_build(&r, data, size, fd)) {
		status_visit_fd(fd, 0, 0, world_path("data/.fastwrite/" FUZZ_ARENA), &v);
		require(world_open_fds() == before, "descriptors");
		world_check_sentinels();
		world_check_names();
	}
	close(fd);
	return 0;
}
