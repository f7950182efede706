// SPDX-License-Identifier: Apache-2.0
/* fdtable: see files/fdtable.h. */
#include "files/fdtable.h"

#include "base/sys.h"

#include <sys/mman.h>

struct ofd *_Atomic fdtable_first[FDTABLE_CHUNK];
struct ofd *_Atomic *_Atomic fdtable_chunks[FDTABLE_CHUNKS];
static _Atomic int highest = -1;
struct unresolved_fd unresolved_fds[UNRESOLVED_FDS];
bool fd_streams_seen;

/* Generations (seqlock): odd while the entry is being changed. */
struct turns {
	_Atomic uint32_t now[FDTABLE_CHUNK];
	uint32_t at_fork[FDTABLE_CHUNK];
};
static struct turns first_turns;

/* The generations lie behind the entries of their chunk. */
static struct turns *generations_of(int fd)
{
	if ((unsigned)fd < FDTABLE_CHUNK)
		return &first_turns;
	return (struct turns *)(void *)(atomic_load(&fdtable_chunks[(unsigned)fd / FDTABLE_CHUNK]) +
	                                FDTABLE_CHUNK);
}

static struct ofd *_Atomic *chunk_make(unsigned index)
{
	struct ofd *_Atomic *chunk = atomic_load(&fdtable_chunks[index]);
	struct ofd *_Atomic *expected = NULL;
	size_t size = sizeof(*chunk) * FDTABLE_CHUNK + sizeof(struct turns);

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

int fdtable_set(int fd, struct ofd *o)
{
	struct ofd *_Atomic *chunk = fdtable_first;
	_Atomic uint32_t *generation;
	int seen;

	if ((unsigned)fd >= FDTABLE_CHUNK * FDTABLE_CHUNKS)
		return -EMFILE;
	if ((unsigned)fd >= FDTABLE_CHUNK) {
		chunk = chunk_make((unsigned)fd / FDTABLE_CHUNK);
		if (!chunk)
			return -ENOMEM;
	}
	seen = atomic_load(&highest);
	while (seen < fd && !atomic_compare_exchange_weak(&highest, &seen, fd))
		;
	generation = &generations_of(fd)->now[fd % FDTABLE_CHUNK];
	atomic_fetch_add(generation, 1);
	atomic_store_explicit(&chunk[fd % FDTABLE_CHUNK], o, memory_order_release);
	atomic_fetch_add(generation, 1);
	return 0;
}

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
	if (fdtable_entry(fd))
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
		struct turns *t = generations_of(fd);
		uint32_t now = atomic_load(&t->now[fd % FDTABLE_CHUNK]);

		t->at_fork[fd % FDTABLE_CHUNK] = now % 2 ? now - 1 : now;
	}
}

void fdtable_fork_child(void)
{
	for (int fd = fdtable_next(0, ~0u); fd >= 0; fd = fdtable_next((unsigned)fd + 1, ~0u)) {
		const struct turns *t = generations_of(fd);

		if (t->at_fork[fd % FDTABLE_CHUNK] != t->now[fd % FDTABLE_CHUNK])
			fdtable_clear(fd);
	}
}

int fdtable_next(unsigned from, unsigned to)
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
		if (fdtable_entry((int)fd))
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
