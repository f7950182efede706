// SPDX-License-Identifier: Apache-2.0
/* fdtable: see files/fdtable.h. */
#include "files/fdtable.h"

#include "base/process_pages.h"
#include "base/sys.h"

#include <sys/mman.h>

_Static_assert(_Alignof(struct ofd) > FDTABLE_STATE, "a word holds a description and a state");

_Atomic uintptr_t fdtable_first[FDTABLE_CHUNK] __attribute__((aligned(PROCESS_PAGE)));
_Atomic uintptr_t *_Atomic fdtable_chunks[FDTABLE_CHUNKS];
_Atomic uint32_t fdtable_changing, fdtable_changes;
static _Atomic int highest = -1;
struct unresolved_fd unresolved_fds[UNRESOLVED_FDS] __attribute__((aligned(PROCESS_PAGE)));
bool fd_streams_seen;

/* Generations (seqlock) of the descriptions.  Not in the word: writes compare the whole word with a
 * description. */
struct generations {
	_Atomic uint32_t now[FDTABLE_CHUNK];
	uint32_t at_fork[FDTABLE_CHUNK];
};
static struct generations first_generations;

/* The generations lie behind the words of their chunk. */
static struct generations *generations_of(int fd)
{
	if ((unsigned)fd < FDTABLE_CHUNK)
		return &first_generations;
	return (struct generations *)(void *)(atomic_load(&fdtable_chunks[(unsigned)fd / FDTABLE_CHUNK]) +
	                                      FDTABLE_CHUNK);
}

static _Atomic uintptr_t *chunk_make(unsigned index)
{
	_Atomic uintptr_t *chunk = atomic_load(&fdtable_chunks[index]);
	_Atomic uintptr_t *expected = NULL;
	size_t size = sizeof(*chunk) * FDTABLE_CHUNK + sizeof(struct generations);

	if (chunk)
		return chunk;
	chunk = sys.mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	if (sys_is_error((void *)chunk))
		return NULL;
	if (!atomic_compare_exchange_strong(&fdtable_chunks[index], &expected, chunk)) {
		sys.munmap((void *)chunk, size);
		return expected;
	}
	return chunk;
}

PROCESS_CODE int fdtable_highest(void) { return atomic_load(&highest); }

void fdtable_reach(int fd)
{
	int seen = atomic_load(&highest);

	while (seen < fd && !atomic_compare_exchange_weak(&highest, &seen, fd))
		;
}

int fdtable_set(int fd, struct ofd *o)
{
	_Atomic uintptr_t *chunk = fdtable_first;
	_Atomic uint32_t *generation;
	uintptr_t word;

	if ((unsigned)fd >= FDTABLE_CHUNK * FDTABLE_CHUNKS)
		return -EMFILE;
	if ((unsigned)fd >= FDTABLE_CHUNK) {
		chunk = chunk_make((unsigned)fd / FDTABLE_CHUNK);
		if (!chunk)
			return -ENOMEM;
	}
	fdtable_reach(fd);
	generation = &generations_of(fd)->now[fd % FDTABLE_CHUNK];
	atomic_fetch_add(generation, 1);
	word = atomic_load(&chunk[fd % FDTABLE_CHUNK]);
	while (!atomic_compare_exchange_weak(&chunk[fd % FDTABLE_CHUNK], &word,
	                                     (uintptr_t)o | (word & FDTABLE_STATE)))
		;
	atomic_fetch_add(generation, 1);
	return 0;
}

enum unresolved_state fdtable_begin_resolve(int fd)
{
	enum unresolved_state before = fdtable_state(fd);

	if ((before == UNRESOLVED_NOTED || before == UNRESOLVED_UNSURE) &&
	    fdtable_change_state(fd, before, UNRESOLVED_RESOLVING))
		return before;
	return UNRESOLVED_NONE;
}

/* The description in the table, in whichever process. */
static bool is_set(int fd) { return fdtable_word(fd) & ~FDTABLE_STATE; }

uint32_t fdtable_generation(int fd)
{
	unsigned at = (unsigned)fd;

	if (at >= FDTABLE_CHUNK * FDTABLE_CHUNKS ||
	    (at >= FDTABLE_CHUNK && !atomic_load(&fdtable_chunks[at / FDTABLE_CHUNK])))
		return 0;
	return atomic_load(&generations_of(fd)->now[at % FDTABLE_CHUNK]);
}

void fdtable_clear(int fd)
{
	if (is_set(fd))
		fdtable_set(fd, NULL);
}

void fdtable_reset(void)
{
	for (int fd = fdtable_next(0, ~0u); fd >= 0; fd = fdtable_next((unsigned)fd + 1, ~0u))
		fdtable_clear(fd);
}

void fdtable_fork_prepare(void)
{
	for (int fd = fdtable_next(0, ~0u); fd >= 0; fd = fdtable_next((unsigned)fd + 1, ~0u)) {
		struct generations *g = generations_of(fd);
		uint32_t now = atomic_load(&g->now[fd % FDTABLE_CHUNK]);

		now -= now % 2;
		if (g->at_fork[fd % FDTABLE_CHUNK] != now)
			g->at_fork[fd % FDTABLE_CHUNK] = now;
	}
}

PROCESS_CODE void fdtable_zero_above(int top)
{
	size_t from = (size_t)(top + 1);

	if (from >= FDTABLE_CHUNK)
		return;
	process_pages_zero((uint64_t *)&fdtable_first[from], (uint64_t *)&fdtable_first[FDTABLE_CHUNK]);
	process_pages_zero((uint64_t *)&unresolved_fds[from], (uint64_t *)&unresolved_fds[UNRESOLVED_FDS]);
}

PROCESS_CODE void fdtable_fork_child(void)
{
	for (int fd = fdtable_next(0, ~0u); fd >= 0; fd = fdtable_next((unsigned)fd + 1, ~0u)) {
		const struct generations *g = generations_of(fd);

		if (g->at_fork[fd % FDTABLE_CHUNK] != g->now[fd % FDTABLE_CHUNK])
			fdtable_clear(fd);
	}
}

PROCESS_CODE int fdtable_next(unsigned from, unsigned to)
{
	int top = atomic_load(&highest);

	if (top < 0)
		return -1;
	if (to > (unsigned)top)
		to = (unsigned)top;
	for (unsigned fd = from; fd <= to; fd++) {
		if (fd >= FDTABLE_CHUNK && !atomic_load(&fdtable_chunks[fd / FDTABLE_CHUNK])) {
			fd = (fd / FDTABLE_CHUNK + 1) * FDTABLE_CHUNK - 1; /* empty chunk */
			continue;
		}
		if (is_set((int)fd))
			return (int)fd;
	}
	return -1;
}

int fdtable_find(const struct ofd *o, int except)
{
	for (int fd = fdtable_next(0, ~0u); fd >= 0; fd = fdtable_next((unsigned)fd + 1, ~0u))
		if (fd != except && fdtable_get(fd) == o)
			return fd;
	return -1;
}
