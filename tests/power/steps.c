// SPDX-License-Identifier: Apache-2.0
/*
 * steps write DIRECTORY ACKS SYNC [HOW]  makes numbered steps, each a function of its number alone (steps.py)
 * steps nudge DIRECTORY US [NAME]  syncs all files of a directory, or one, again and again, with random
 * pauses of US microseconds on average: another program
 *
 * ACKS is an array of MOST 64-bit numbers: when the step of each operation had returned (CLOCK_MONOTONIC,
 * ns), 0 before.  SYNC = 1: each step syncs what it has changed.  HOW = processes, threads: WRITERS of them,
 * which share the open files, make the steps in turn; files: no names come and go; large: nor do they, and
 * the first log gets GROUP records at once; forks: now and then a child makes some steps, and ends.  A writer
 * that meets an error waits to be killed.
 */
#include <dirent.h>
#include <fcntl.h>
#include <linux/futex.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum {
	MOST = 1 << 21,
	RECORD = 128,
	LOGS = 3,
	PAGE = 4096,
	PAGES = 64,
	SLOTS = 256,
	SLOT = 256,
	NAMES = 5,
	DEPTH = 64,
	WRITERS = 3,
	GROUP = 128,
	FORK_EVERY = 8000, /* steps */
	FORK_STEPS = 4
};

/* What the writers share. */
static struct {
	_Atomic uint32_t step; /* that is to be made next */
	uint64_t operations;
	unsigned depth;
	bool there[NAMES];
} *shared;

static int directory, logs[LOGS], pages, slots, stack;
static _Atomic uint64_t *acks;
static bool syncs, names = true, large, forks;

/* The end: of the file system, or of the numbers. */
_Noreturn static void linger(void)
{
	for (;;)
		pause();
}

static void must(bool good)
{
	if (!good)
		linger();
}

/* (splitmix64) */
static uint64_t mix(uint64_t n)
{
	n += 0x9e3779b97f4a7c15u;
	n = (n ^ n >> 30) * 0xbf58476d1ce4e5b9u;
	n = (n ^ n >> 27) * 0x94d049bb133111ebu;
	return n ^ n >> 31;
}

static const void *bytes_of(uint64_t step, size_t size)
{
	static _Thread_local uint64_t words[PAGE / sizeof(uint64_t)];

	for (size_t i = 0; i < size / sizeof *words; i++)
		words[i] = i ? step * 0x9e3779b97f4a7c15u + i : step;
	return words;
}

static void put(int fd, uint64_t step, size_t size)
{
	must(write(fd, bytes_of(step, size), size) == (ssize_t)size);
}

static void put_group(int fd, uint64_t step)
{
	static uint8_t group[GROUP * RECORD];

	for (int i = 0; i < GROUP; i++)
		memcpy(group + (size_t)i * RECORD, bytes_of(step, RECORD), RECORD);
	must(write(fd, group, sizeof group) == (ssize_t)sizeof group);
}

static void put_at(int fd, uint64_t step, size_t size, uint64_t slot)
{
	must(pwrite(fd, bytes_of(step, size), size, (off_t)(slot * size)) == (ssize_t)size);
}

static void sync_data(int fd) { must(!syncs || fdatasync(fd) == 0); }
static void sync_all(int fd) { must(!syncs || fsync(fd) == 0); }

static void done(int count)
{
	struct timespec now;

	clock_gettime(CLOCK_MONOTONIC, &now);
	while (count--)
		atomic_store(&acks[shared->operations++],
		             (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec);
}

/* Makes a file, replaces what it holds, or removes it. */
static void make_or_remove(uint64_t step, unsigned which, bool removes)
{
	bool *there = shared->there;
	char name[8];
	int fd;

	snprintf(name, sizeof name, "name%u", which);
	removes = removes && there[which];
	if (removes) {
		must(unlinkat(directory, name, 0) == 0);
	} else {
		fd = openat(directory, name,
		            (which % 2 ? O_WRONLY : O_RDWR) | O_CREAT | (there[which] ? O_TRUNC : O_EXCL) |
		                    O_CLOEXEC,
		            0644);
		must(fd >= 0);
		put(fd, step, RECORD);
		sync_all(fd);
		must(close(fd) == 0);
	}
	there[which] = !removes;
	sync_all(directory);
	done(there[which] ? 2 : 1);
}

static void push_or_cut(uint64_t step, uint64_t dice, bool cuts)
{
	unsigned *depth = &shared->depth;

	if (cuts && *depth > DEPTH) {
		*depth = (unsigned)(dice >> 16) % DEPTH;
		must(ftruncate(stack, *depth * RECORD) == 0);
	} else {
		put_at(stack, step, RECORD, (*depth)++);
	}
	sync_all(stack);
	done(1);
}

static void make_step(uint64_t step)
{
	uint64_t dice = mix(step);
	unsigned kind = dice % 8;

	if (kind == 5 && !names)
		kind = 4;

	switch (kind) {
	case 0:
	case 1:
	case 2:
		if (large && kind == 0)
			put_group(logs[kind], step);
		else
			put(logs[kind], step, RECORD);
		sync_data(logs[kind]);
		done(1);
		break;
	case 3:
		put_at(pages, step, PAGE, (dice >> 16) % PAGES);
		sync_data(pages);
		done(1);
		break;
	case 4:
		put_at(slots, step, SLOT, (dice >> 16) % SLOTS);
		sync_data(slots);
		done(1);
		break;
	case 5: make_or_remove(step, (unsigned)(dice >> 16) % NAMES, dice >> 50 & 1); break;
	default: push_or_cut(step, dice, kind == 7);
	}
}

/* The parent does not write meanwhile. */
static void let_a_child_go_on(uint32_t step)
{
	pid_t child = fork();
	int status;

	must(child >= 0);
	if (child == 0) {
		prctl(PR_SET_PDEATHSIG, SIGKILL);
		for (int i = 0; i < FORK_STEPS; i++)
			make_step(step++);
		atomic_store(&shared->step, step);
		_exit(0);
	}
	must(waitpid(child, &status, 0) == child && status == 0);
}

/* Makes each step that is this writer's, of so many. */
_Noreturn static void take_turns(uint32_t me, uint32_t writers)
{
	for (;;) {
		uint32_t step = atomic_load(&shared->step);

		if (step % writers != me) {
			syscall(SYS_futex, &shared->step, FUTEX_WAIT, step, NULL, NULL, 0);
			continue;
		}
		if (shared->operations >= MOST - 2)
			linger();
		if (forks && step % FORK_EVERY == 0) {
			let_a_child_go_on(step);
			continue;
		}
		make_step(step);
		atomic_store(&shared->step, step + 1);
		if (writers > 1)
			syscall(SYS_futex, &shared->step, FUTEX_WAKE, WRITERS, NULL, NULL, 0);
	}
}

static void *write_in_a_thread(void *me) { take_turns((uint32_t)(uintptr_t)me, WRITERS); }

static void open_files(const char *path)
{
	int fd = open(path, O_RDWR | O_CLOEXEC);

	acks = mmap(NULL, MOST * sizeof *acks, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	shared = mmap(NULL, sizeof *shared, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	if (fd < 0 || acks == MAP_FAILED || shared == MAP_FAILED)
		exit(2);
	shared->step = 1;
	for (int i = 0; i < LOGS; i++) {
		char name[8];

		snprintf(name, sizeof name, "log%d", i);
		logs[i] = openat(directory, name, (i ? O_WRONLY : O_RDWR) | O_APPEND | O_CLOEXEC);
	}
	pages = openat(directory, "pages", O_RDWR | O_CLOEXEC);
	slots = openat(directory, "slots", O_RDWR | O_CLOEXEC);
	stack = openat(directory, "stack", O_RDWR | O_CLOEXEC);
}

static void write_steps(const char *how)
{
	pthread_t thread;

	large = how && strcmp(how, "large") == 0;
	forks = how && strcmp(how, "forks") == 0;
	names = !how || forks || (strcmp(how, "files") != 0 && !large);
	if (!how || !names || forks)
		take_turns(0, 1);
	for (uintptr_t me = 1; me < WRITERS; me++) {
		if (strcmp(how, "threads") == 0) {
			must(pthread_create(&thread, NULL, write_in_a_thread, (void *)me) == 0);
		} else if (fork() == 0) {
			prctl(PR_SET_PDEATHSIG, SIGKILL);
			take_turns((uint32_t)me, WRITERS);
		}
	}
	take_turns(0, WRITERS);
}

/* The kernel writes early what the other program has not synced. */
static void nudge(const char *path, useconds_t pause, const char *only)
{
	for (uint64_t n = 0;; n++) {
		DIR *entries = opendir(path);
		const struct dirent *d;

		while (entries && (d = readdir(entries)) != NULL) {
			bool wanted = only ? strcmp(d->d_name, only) == 0 : d->d_name[0] != '.';
			int fd = wanted ? openat(directory, d->d_name, O_RDONLY | O_CLOEXEC) : -1;

			if (fd >= 0) {
				fdatasync(fd);
				close(fd);
				usleep(mix(n++) % (2 * pause));
			}
		}
		if (entries)
			closedir(entries);
		usleep(pause);
	}
}

int main(int argc, char **argv)
{
	prctl(PR_SET_PDEATHSIG, SIGKILL);
	if (argc < 3 || (directory = open(argv[2], O_RDONLY | O_DIRECTORY | O_CLOEXEC)) < 0)
		return 2;
	if (strcmp(argv[1], "nudge") == 0 && argc > 3)
		nudge(argv[2], (useconds_t)strtoul(argv[3], NULL, 10), argv[4]);
	if (argc < 5)
		return 2;
	syncs = argv[4][0] == '1';
	open_files(argv[3]);
	write_steps(argv[5]);
}
