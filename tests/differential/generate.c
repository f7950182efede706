// SPDX-License-Identifier: Apache-2.0
/*
 * generate: lists of operations from a seed.  Sequence N of a seed is the same whatever the others are.
 *
 * A light model (which slots are open, who is alive) keeps most operations meaningful; every sequence has a
 * theme that makes some groups of operations likelier, so that they meet each other.
 */
#include "machine.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <unistd.h>

enum { PAGE = 4096, BLOCK = 64 << 10, USUAL_SLOTS = 8 };

static uint64_t state;

static uint64_t dice(void)
{
	uint64_t z = state += 0x9e3779b97f4a7c15ull;

	z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9ull;
	z = (z ^ z >> 27) * 0x94d049bb133111ebull;
	return z ^ z >> 31;
}

static long below(long n) { return (long)(dice() % (uint64_t)n); }
static long between(long low, long high) { return low + below(high - low + 1); }
static bool chance(int percent) { return below(100) < percent; }

#define ONE_OF(...) \
	((const long[]){__VA_ARGS__})[below((long)(sizeof((const long[]){__VA_ARGS__}) / sizeof(long)))]

/* ---- the model ---- */

enum group {
	G_WRITE,
	G_LOOK,
	G_FD,
	G_SIZE,
	G_SYNC,
	G_NAME,
	G_ATTR,
	G_LOCK,
	G_MAP,
	G_MOVE,
	G_STREAM,
	G_MANY,
	G_PROC,
	G_LIMIT,
	G_DIRECT,
	G_SLEEP,
	GROUPS
};

static struct {
	bool exclusive; /* nobody else appends, as the setting promises */
	bool alone;     /* no other processes */
	bool unlimited; /* no limits on the size of files */
	bool no_spawn;
	bool gentle; /* nobody is killed */
	bool alive[PROCESSES];
	bool open[PROCESSES][SLOTS];
	bool stream[PROCESSES][STREAMS];
	bool map[PROCESSES][MAPS];
	int actor;
	int weight[GROUPS];
	bool forked;
} model;

static long size(void)
{
	switch (below(12)) {
	case 0:
	case 1:
		return ONE_OF(1, 2, 100, 511, 512, PAGE - 1, PAGE, PAGE + 1, BLOCK / 2, BLOCK - 1, BLOCK,
		              BLOCK + 1, 100 << 10);
	case 2: return between(300, 20000);
	case 3: return chance(20) ? 0 : between(1, 3000);
	default: return between(1, 300);
	}
}

static long small_size(void)
{
	return chance(70) ? between(1, 400) : ONE_OF(PAGE, PAGE - 1, 512, 3000, 5000);
}

static long offset(void)
{
	switch (below(6)) {
	case 0:
		return ONE_OF(0, 1, 511, 512, PAGE - 1, PAGE, PAGE + 1, BLOCK - 1, BLOCK, 128 << 10,
		              (1 << 20) - 1, 1 << 20);
	case 1: return between(0, 300000);
	default: return between(0, 6000);
	}
}

static long seed(void) { return between(1, 1 << 20); }

static long slot(void)
{
	if (chance(92)) {
		long first = below(USUAL_SLOTS);

		for (long i = 0; i < USUAL_SLOTS; i++)
			if (model.open[model.actor][(first + i) % USUAL_SLOTS])
				return (first + i) % USUAL_SLOTS;
	}
	return chance(90) ? below(USUAL_SLOTS) : below(SLOTS);
}

static long stream(void)
{
	long first = below(STREAMS);

	for (long i = 0; i < STREAMS && chance(95); i++)
		if (model.stream[model.actor][(first + i) % STREAMS])
			return (first + i) % STREAMS;
	return first;
}

static long mapping(void)
{
	long first = below(MAPS);

	for (long i = 0; i < MAPS && chance(95); i++)
		if (model.map[model.actor][(first + i) % MAPS])
			return (first + i) % MAPS;
	return first;
}

static long file(void) { return chance(70) ? below(2) : below(FILES); }

static long open_flags(void)
{
	long flags = ONE_OF(O_RDWR, O_RDWR, O_RDWR, O_WRONLY, O_RDONLY);

	flags |= ONE_OF(O_CREAT, O_CREAT, O_CREAT, 0);
	flags |= ONE_OF(0, 0, O_APPEND);
	flags |= chance(15) ? O_TRUNC : 0;
	flags |= chance(4) ? O_EXCL : 0;
	flags |= chance(5) ? ONE_OF(O_SYNC, O_DSYNC) : 0;
	flags |= chance(5) ? O_NOFOLLOW : 0;
	flags |= chance(3) ? O_NONBLOCK : 0;
	flags |= chance(3) ? O_NOATIME : 0;
	flags |= chance(model.weight[G_DIRECT] > 1 ? 40 : 3) ? O_DIRECT : 0;
	flags |= chance(60) ? O_CLOEXEC : 0;
	return flags;
}

/* ---- operations ---- */

static void emit(const char *name, int count, const long *a)
{
	if (model.actor != 0 || chance(8)) {
		printf("@%d", model.actor);
		if (chance(10))
			printf(".%ld", between(1, THREADS - 1));
		putchar(' ');
	}
	fputs(name, stdout);
	for (int i = 0; i < count; i++)
		printf(" %ld", a[i]);
	putchar('\n');
}

#define EMIT(name, ...) \
	emit(name, (int)(sizeof((const long[]){__VA_ARGS__}) / sizeof(long)), (const long[]){__VA_ARGS__})

static void make_open(void)
{
	long s = below(USUAL_SLOTS);

	EMIT("open", s, file(), open_flags());
	model.open[model.actor][s] = true;
}

static void make_fd(void)
{
	bool *open = model.open[model.actor];
	long s = slot(), t = below(USUAL_SLOTS);

	switch (below(20)) {
	case 0:
	case 1: EMIT("dup", s, t); break;
	case 2: EMIT("dup2", s, slot()); return;
	case 3: EMIT("dup3", s, slot(), ONE_OF(0, O_CLOEXEC)); return;
	case 4: EMIT("dupfd", s, t); break;
	case 5:
		if (chance(30))
			EMIT("dupto", s, chance(50));
		return;
	case 6:
		if (chance(40)) {
			EMIT("closerange", ONE_OF(0, CLOSE_RANGE_CLOEXEC));
			memset(open, 0, USUAL_SLOTS);
		}
		return;
	case 7: EMIT("reopen", s, t, open_flags()); break;
	case 8: EMIT("tmpfile", t, ONE_OF(O_RDWR, O_WRONLY, O_RDWR | O_APPEND, O_RDWR | O_EXCL)); break;
	case 9: EMIT("linktmp", s, file()); return;
	case 10: EMIT("creat", t, file()); break;
	case 11: EMIT("getfl", s); return;
	case 12:
		EMIT("setfl", s, ONE_OF(0, O_APPEND, O_APPEND, O_NONBLOCK, O_APPEND | O_NONBLOCK, O_DIRECT));
		return;
	case 13: EMIT("setfd", s, chance(70) ? 0 : FD_CLOEXEC); return;
	case 14:
	case 15:
	case 16:
		EMIT("close", s);
		open[s] = false;
		return;
	default: make_open(); return;
	}
	open[t] = true;
}

static void make_write(void)
{
	long s = slot();

	switch (below(20)) {
	case 0:
	case 1:
	case 2:
	case 3: EMIT("write", s, size(), seed()); break;
	case 4:
	case 5:
	case 6: EMIT("burst", s, small_size(), between(2, 60), seed()); break;
	case 7: EMIT("burst", s, between(1, 5000), between(2, 40), seed()); break;
	case 8:
	case 9:
		EMIT("scatter", s, small_size(), between(2, 30), ONE_OF(50, 100, PAGE, 5000, BLOCK), seed());
		break;
	case 10:
	case 11:
	case 12: EMIT("pwrite", s, size(), offset(), seed()); break;
	case 13: EMIT("writev", s, size(), between(1, 9), seed()); break;
	case 14: EMIT("pwritev", s, size(), between(1, 9), chance(70) ? offset() : -1, seed()); break;
	case 15:
		EMIT("pwritev2", s, small_size(), between(1, 5), chance(60) ? offset() : -1,
		     ONE_OF(RWF_DSYNC, RWF_SYNC, RWF_APPEND, RWF_APPEND, RWF_HIPRI, RWF_APPEND | RWF_DSYNC),
		     seed());
		break;
	case 16: EMIT("badwrite", s, between(1, 5000), below(3)); break;
	case 17:
		EMIT("dwrite", s, chance(80) ? PAGE * between(1, 20) : size(),
		     chance(60) ? PAGE * below(30) : -1, chance(85) ? 0 : ONE_OF(1, 512), seed());
		break;
	case 18:
		if (chance(20))
			EMIT("aio", s, size(), offset(), seed(), chance(60));
		break;
	default: EMIT("write", s, between(1, 300), seed());
	}
}

static void make_look(void)
{
	long s = slot();

	switch (below(18)) {
	case 0:
	case 1: EMIT("read", s, size()); break;
	case 2:
	case 3: EMIT("pread", s, size(), offset()); break;
	case 4: EMIT("readv", s, size(), between(1, 9)); break;
	case 5: EMIT("preadv", s, size(), between(1, 9), chance(70) ? offset() : -1); break;
	case 6:
		EMIT("dread", s, PAGE * between(1, 10), chance(60) ? PAGE * below(30) : -1,
		     chance(85) ? 0 : 512);
		break;
	case 7:
	case 8: EMIT("lseek", s, between(-300, 6000), below(3)); break;
	case 9: EMIT("lseek", s, 0, between(1, 2)); break;
	case 10:
		if (chance(60))
			EMIT("lseek", s, offset(), 0);
		else
			EMIT("holes", s);
		break;
	case 11: EMIT("fstat", s); break;
	case 12: EMIT("stat", file()); break;
	case 13: EMIT("lstat", file()); break;
	case 14:
		if (chance(50))
			EMIT("statx", file(),
			     ONE_OF(0, 0x100 /* NOFOLLOW */, 0x4000 /* DONT_SYNC */, 0x2000));
		else
			EMIT("fstatx", s);
		break;
	case 15: EMIT("pending", s); break;
	case 16: EMIT("list"); break;
	default: EMIT("whole", s);
	}
}

static void make_size(void)
{
	long s = slot();

	switch (below(8)) {
	case 0:
	case 1:
	case 2: EMIT("ftruncate", s, offset()); break;
	case 3:
	case 4: EMIT("truncate", file(), offset()); break;
	case 5:
	case 6: EMIT("fallocate", s, ONE_OF(0, 1, 1, 3, 0x10, 0x11), offset(), between(1, 200000)); break;
	default:
		if (chance(50))
			EMIT("reserve", s, offset(), between(1, 200000));
		else
			EMIT("fallocate", s, ONE_OF(0x08, 0x20), PAGE * below(20), PAGE * between(1, 10));
	}
}

static void make_sync(void)
{
	long s = slot();

	switch (below(8)) {
	case 0:
	case 1:
	case 2: EMIT("fsync", s); break;
	case 3:
	case 4:
	case 5: EMIT("fdatasync", s); break;
	case 6: EMIT("syncrange", s, offset(), size(), below(8)); break;
	default: EMIT("advise", s, offset(), size(), below(6));
	}
}

static void make_name(void)
{
	switch (below(10)) {
	case 0:
	case 1:
	case 2: EMIT("rename", file(), file()); break;
	case 3: EMIT("renameat2", file(), file(), ONE_OF(1, 2)); break;
	case 4:
	case 5: EMIT("link", file(), file()); break;
	case 6:
	case 7: EMIT("unlink", file()); break;
	case 8: EMIT("remove", file()); break;
	default: EMIT("symlink", file(), file());
	}
}

static void make_attr(void)
{
	long s = slot();

	switch (below(6)) {
	case 0: EMIT("chmod", file(), ONE_OF(0600, 0644, 0400, 0666)); break;
	case 1: EMIT("fchmod", s, ONE_OF(0600, 0644, 0640)); break;
	case 2: EMIT("utimens", file(), between(1, 1000000000)); break;
	case 3: EMIT("futimens", s, between(1, 1000000000)); break;
	case 4: EMIT("fstat", s); break;
	default: EMIT("stat", file());
	}
}

static void make_lock(void)
{
	long s = slot();

	switch (below(6)) {
	case 0: EMIT("lock", s); break;
	case 1: EMIT("setlk", s, 0, below(3), offset(), chance(40) ? 0 : size()); break;
	case 2: EMIT("setlk", s, 1, below(3), offset(), chance(40) ? 0 : size()); break;
	case 3: EMIT("getlk", s, below(2), below(2)); break;
	case 4: EMIT("flock", s, ONE_OF(LOCK_SH, LOCK_EX, LOCK_UN, LOCK_UN)); break;
	default: EMIT("lockf", s, ONE_OF(F_TLOCK, F_TEST, F_ULOCK, F_ULOCK), chance(50) ? 0 : size());
	}
}

static void make_map(void)
{
	long m = mapping();

	switch (below(8)) {
	case 0: EMIT("map", slot(), between(1, 20000)); break;
	case 1:
	case 2:
		EMIT("mmap", m, slot(), between(1, 100000), ONE_OF(1, 3, 3, 5));
		model.map[model.actor][m] = true;
		break;
	case 3:
	case 4: EMIT("mread", m, offset(), size()); break;
	case 5:
	case 6: EMIT("mwrite", m, offset(), between(1, 9000), seed()); break;
	default:
		if (chance(60))
			EMIT("msync", m, ONE_OF(MS_SYNC, MS_ASYNC));
		else
			EMIT("munmap", m);
	}
}

static void make_move(void)
{
	switch (below(3)) {
	case 0: EMIT("copy", slot(), slot(), between(1, 20000)); break;
	case 1: EMIT("sendfile", slot(), slot(), between(1, 20000)); break;
	default: EMIT("splice", slot(), slot(), between(1, 20000));
	}
}

static void make_stream(void)
{
	long k = stream();
	bool *there = model.stream[model.actor];

	if (!there[k] || chance(8)) {
		switch (below(5)) {
		case 0: EMIT("stream", file(), small_size(), seed(), chance(50)); return;
		case 1:
		case 2: EMIT("fopen", k, file(), below(9)); break;
		default: EMIT("fdopen", k, slot(), below(6));
		}
		there[k] = true;
		return;
	}
	switch (below(22)) {
	case 0:
	case 1:
	case 2: EMIT("fwrite", k, size(), seed()); break;
	case 3:
	case 4:
	case 5: EMIT("fprintf", k, between(0, 390), seed()); break;
	case 6:
	case 7: EMIT("lines", k, between(2, 60), seed()); break;
	case 8:
		if (chance(50))
			EMIT("fwprintf", k, between(0, 390), seed());
		break;
	case 9: EMIT("fputc", k, between(1, 100), seed()); break;
	case 10:
	case 11: EMIT("fread", k, size()); break;
	case 12: EMIT("fgets", k); break;
	case 13:
	case 14: EMIT("fseek", k, between(-300, 6000), below(3)); break;
	case 15: EMIT("ftell", k); break;
	case 16:
	case 17: EMIT("fflush", k); break;
	case 18:
		if (chance(40))
			EMIT("flushall");
		else
			EMIT("setvbuf", k, below(3), ONE_OF(0, 100, 1024, PAGE, 65536));
		break;
	case 19: EMIT("dprintf", slot(), between(0, 390), seed()); break;
	case 20: EMIT("freopen", k, file(), below(9)); break;
	default: EMIT("fclose", k); there[k] = false;
	}
}

static void make_many(void)
{
	long s = slot();

	switch (below(5)) {
	case 0:
	case 1: EMIT("sigwrite", s, between(1, 1000), seed()); break;
	case 2: EMIT("storm", s, small_size(), between(10, 200), between(1, 20), seed()); break;
	case 3:
		EMIT("race", s, small_size(), between(4, 100),
		     model.alone || chance(60) ? between(2, 4) : -between(2, 4), seed());
		break;
	default:
		EMIT("writers", model.alone ? ONE_OF(0, 4) : ONE_OF(0, 4, 1, 5, model.exclusive ? 1 : 2),
		     between(16, 600), between(5, 100), between(2, 4));
	}
}

static void make_proc(void)
{
	bool *alive = model.alive;
	long child = between(1, PROCESSES - 1);

	if (model.alone)
		return;
	if (!alive[child] && chance(75)) {
		EMIT("fork", child);
		memcpy(model.open[child], model.open[model.actor], sizeof model.open[child]);
		memcpy(model.stream[child], model.stream[model.actor], sizeof model.stream[child]);
		memcpy(model.map[child], model.map[model.actor], sizeof model.map[child]);
		alive[child] = model.forked = true;
		if (chance(60) && !model.exclusive) { /* files of its own, too */
			model.actor = (int)child;
			for (long i = between(1, 3); i > 0; i--) {
				long s = below(USUAL_SLOTS);

				EMIT("open", s, between(1, FILES - 1), open_flags() | O_CREAT);
				model.open[child][s] = true;
			}
		}
		return;
	}
	if (model.actor != 0 && chance(40)) {
		if (chance(70)) {
			EMIT("exit", model.gentle ? below(3) : ONE_OF(0, 0, 1, 1, 2, 3, 3, 3, 4, 5, 6),
			     below(100));
			alive[model.actor] = false;
			model.actor = 0;
		} else {
			EMIT("exec");
			memset(model.map[model.actor], 0, sizeof model.map[0]);
			memset(model.stream[model.actor], 0, sizeof model.stream[0]);
		}
		return;
	}
	switch (below(3)) {
	case 0: EMIT("spawn", slot(), small_size(), seed(), model.no_spawn ? between(2, 4) : below(5)); break;
	case 1: EMIT("program", file()); break;
	default: EMIT("child", slot(), small_size(), seed(), between(1, 4));
	}
}

static void make_limit(void)
{
	if (model.unlimited)
		return;
	if (chance(50))
		EMIT("rlimit", -1);
	else
		EMIT("rlimit", offset());
}

static void make_direct(void)
{
	long s = slot();

	switch (below(4)) {
	case 0:
		s = below(USUAL_SLOTS);
		EMIT("open", s, file(), O_RDWR | O_CREAT | O_DIRECT | ONE_OF(0, 0, O_APPEND));
		model.open[model.actor][s] = true;
		break;
	case 1:
	case 2:
		EMIT("dwrite", s, chance(90) ? PAGE * between(1, 20) : size(),
		     chance(60) ? PAGE * below(30) : -1, 0, seed());
		break;
	default: EMIT("dread", s, PAGE * between(1, 10), chance(60) ? PAGE * below(30) : -1, 0);
	}
}

static void make_sleep(void) { EMIT("sleep", ONE_OF(1, 2, 2, 5)); }

static void (*const makers[GROUPS])(void) = {
	[G_WRITE] = make_write, [G_LOOK] = make_look,   [G_FD] = make_fd,         [G_SIZE] = make_size,
	[G_SYNC] = make_sync,   [G_NAME] = make_name,   [G_ATTR] = make_attr,     [G_LOCK] = make_lock,
	[G_MAP] = make_map,     [G_MOVE] = make_move,   [G_STREAM] = make_stream, [G_MANY] = make_many,
	[G_PROC] = make_proc,   [G_LIMIT] = make_limit, [G_DIRECT] = make_direct, [G_SLEEP] = make_sleep,
};

/* In hundredths of an operation, when nothing is a theme. */
static const int usual[GROUPS] = {
	[G_WRITE] = 420, [G_LOOK] = 180, [G_FD] = 130,   [G_SIZE] = 50,  [G_SYNC] = 20,   [G_NAME] = 40,
	[G_ATTR] = 20,   [G_LOCK] = 15,  [G_MAP] = 6,    [G_MOVE] = 6,   [G_STREAM] = 12, [G_MANY] = 6,
	[G_PROC] = 5,    [G_LIMIT] = 2,  [G_DIRECT] = 0, [G_SLEEP] = 10,
};

static const struct {
	int group, weight;
} themes[] = {
	{G_WRITE, 420}, {G_WRITE, 420}, {G_PROC, 200},   {G_PROC, 200},   {G_PROC, 200}, {G_NAME, 200},
	{G_SIZE, 200},  {G_LOCK, 200},  {G_STREAM, 400}, {G_STREAM, 400}, {G_MAP, 200},  {G_MOVE, 100},
	{G_FD, 300},    {G_MANY, 80},   {G_LIMIT, 60},   {G_DIRECT, 250}, {G_SYNC, 100}, {G_ATTR, 150},
};

static int pick_group(void)
{
	long sum = 0, at;

	for (int i = 0; i < GROUPS; i++)
		sum += model.weight[i];
	at = below(sum);
	for (int i = 0;; i++) {
		at -= model.weight[i];
		if (at < 0)
			return i;
	}
}

static void pick_actor(void)
{
	if (!model.alive[model.actor] || chance(35))
		model.actor = (int)below(PROCESSES);
	while (!model.alive[model.actor])
		model.actor = (model.actor + 1) % PROCESSES;
}

/* With `exclusive`, whoever forks has no way to the file but what it inherits. */
static bool allowed(int group)
{
	if (!model.exclusive || !model.forked)
		return true;
	return group == G_WRITE || group == G_PROC || group == G_SLEEP || group == G_SYNC;
}

static void begin(void)
{
	memset(model.alive, 0, sizeof model.alive);
	memset(model.open, 0, sizeof model.open);
	memset(model.stream, 0, sizeof model.stream);
	memset(model.map, 0, sizeof model.map);
	memcpy(model.weight, usual, sizeof usual);
	for (long n = between(1, 2); n > 0; n--) {
		long theme = below((long)(sizeof themes / sizeof *themes));

		model.weight[themes[theme].group] = themes[theme].weight;
	}
	model.alive[0] = true;
	model.actor = 0;
	model.forked = false;
	puts("begin");
	for (long i = 0; i < 4; i++)
		if (chance(25))
			printf("make %ld %ld %ld\n", i, chance(50) ? small_size() : between(0, 70000),
			       seed());
	for (long i = 0, n = between(1, 4); i < n; i++) {
		printf("open %ld %ld %ld\n", i, i % 2,
		       O_RDWR | O_CREAT | ONE_OF(0, 0, O_APPEND) | ONE_OF(O_CLOEXEC, 0));
		model.open[0][i] = true;
	}
}

static void sequence(void)
{
	begin();
	for (long i = 0, n = between(8, 60); i < n; i++) {
		int group = pick_group();

		pick_actor();
		if (allowed(group))
			makers[group]();
	}
}

/* generate SEED FIRST COUNT [exclusive] [alone] [unlimited] [no-spawn] [gentle] */
int generate(int argc, char **argv)
{
	uint64_t base = strtoull(argv[2], NULL, 10);
	long first = atol(argv[3]), count = atol(argv[4]);

	for (int i = 5; i < argc; i++) {
		model.exclusive |= strcmp(argv[i], "exclusive") == 0;
		model.alone |= strcmp(argv[i], "alone") == 0;
		model.unlimited |= strcmp(argv[i], "unlimited") == 0;
		model.no_spawn |= strcmp(argv[i], "no-spawn") == 0;
		model.gentle |= strcmp(argv[i], "gentle") == 0;
	}
	for (long i = first; i < first + count; i++) {
		state = base * 0x9e3779b97f4a7c15ull ^ ((uint64_t)i * 0xd1342543de82ef95ull);
		dice();
		sequence();
	}
	return 0;
}
