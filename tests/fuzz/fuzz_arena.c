// SPDX-License-Identifier: Apache-2.0
/*
 * fuzz_arena: whatever an arena file holds, recovery ends.  It writes staged bytes only, and only to the
 * files that the entries name.  It writes nothing for a file with a torn block.  When it fails in the middle,
 * a second run writes what the first would have written.
 */
#include "outcome.h"
#include "recipe.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void arena_look(struct outcome *o, const struct recipe *r)
{
	struct expected e = {.mixed = r->mixed};

	memcpy(e.content_bytes, r->content_bytes, sizeof e.content_bytes);
	memcpy(e.named, r->named, sizeof e.named);
	fuzz_look(o, &e);
}

/* Makes targets, arena and surroundings as the input says. */
static bool arena_prepare(struct recipe *r, const uint8_t *data, size_t size)
{
	static const uint8_t *const content[WORLD_TARGETS] = {world_content[0], world_content[1],
	                                                      world_content[2]};
	static const uint32_t none[WORLD_TARGETS];
	bool good;
	int fd;

	snprintf(world_staged, sizeof world_staged, "data/.fastwrite/" FUZZ_ARENA);
	world_reset(content, none);
	fd = open(world_path("data/.fastwrite/" FUZZ_ARENA), O_RDWR | O_CREAT, 0600);
	require(fd >= 0, "arena");
	good = recipe_build(r, data, size, fd);
	close(fd);
	if (!good)
		return false;
	for (int t = 0; t < WORLD_TARGETS; t++) {
		world_fill(t, content[t], r->content_bytes[t]);
	}
	for (int i = 0; i < r->world_count && i < (int)sizeof r->worlds; i++)
		fuzz_world_change(r->worlds[i]);
	return true;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	static struct recipe r;
	struct outcome dry, first, second;
	struct recover_report report;
	bool other;

	world_begin();
	if (!arena_prepare(&r, data, size))
		return -1;
	other = fuzz_other_owner();
	arena_look(&dry, &r);
	fuzz_run(true);
	arena_look(&first, &r);
	fuzz_same(&dry, &first, "dry run");
	report = fuzz_run(false);
	arena_look(&first, &r);
	if (r.nothing_whole)
		fuzz_same(&dry, &first, "torn");
	if (other)
		fuzz_same(&dry, &first, "with the rights of another user");
	fuzz_run(false);
	arena_look(&second, &r);
	fuzz_same(&first, &second, "again");
	if (!r.fault || r.mixed || r.unlike || report.failed)
		return 0;
	/* the same with a fault in the middle, and then without */
	if (!arena_prepare(&r, data, size))
		return -1;
	fuzz_fault_set(r.faults);
	fuzz_run(false);
	fuzz_fault_set(NULL);
	fuzz_run(false);
	arena_look(&second, &r);
	fuzz_same(&first, &second, "after a fault");
	return 0;
}
