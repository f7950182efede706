// SPDX-License-Identifier: Apache-2.0
/* internal_fd: see base/internal_fd.h. */
#include "base/internal_fd.h"

#include "base/fork_guard.h"
#include "base/process_pages.h"
#include "base/sys.h"

#include <fcntl.h>
#include <stdatomic.h>
#include <sys/resource.h>

enum { OWN_FD_MAX = 1 << 16, FEW_FDS = 4096 };

/* One bit per descriptor, for descriptors below OWN_FD_MAX.  Each fork changes some of those below FEW_FDS.
 */
static PROCESS_DATA _Atomic uint64_t few_bits[FEW_FDS / 64];
static _Atomic uint64_t many_bits[(OWN_FD_MAX - FEW_FDS) / 64];
enum { WORDS = OWN_FD_MAX / 64 };

static _Atomic uint64_t *word_at(int word)
{
	return word < FEW_FDS / 64 ? &few_bits[word] : &many_bits[word - FEW_FDS / 64];
}

static _Atomic uint64_t *word_of(int fd) { return word_at(fd / 64); }

static int ask_lowest_number(void)
{
	struct {
		uint64_t soft, hard;
	} limit = {1024, 1024};
	uint64_t top;

	sys_raw(SYS_prlimit64, 0, RLIMIT_NOFILE, 0, (long)&limit, 0, 0);
	/* not the top of a huge limit: the kernel's table grows with the highest descriptor in use */
	top = limit.soft < 4096 ? limit.soft : 4096;
	return (int)(top / 2);
}

/* (A limit that has changed since only moves the numbers.) */
static int lowest_number(void)
{
	enum { KNOWN_NS = 100000000 };
	static PROCESS_DATA _Atomic uint64_t asked_ns;
	static PROCESS_DATA _Atomic int number;
	uint64_t now = sys_now_coarse_ns();

	if (now - atomic_load(&asked_ns) >= KNOWN_NS) {
		atomic_store(&number, ask_lowest_number());
		atomic_store(&asked_ns, now);
	}
	return atomic_load(&number);
}

/* Notes fd as internal.  fd, or -EMFILE: it is too high, and closed. */
static int note(long fd)
{
	if (fd >= OWN_FD_MAX) {
		sys.close((int)fd);
		return -EMFILE;
	}
	atomic_fetch_or(word_of((int)fd), 1ull << (fd % 64));
	return (int)fd;
}

static int duplicate(int fd, int min)
{
	long high = -EMFILE;

	while (min > 2 && (high = sys.fcntl(fd, F_DUPFD_CLOEXEC, min)) < 0)
		min /= 2;
	return high < 0 ? (int)high : note(high);
}

int internal_fd_raise(int fd)
{
	int high = duplicate(fd, lowest_number());

	sys.close(fd);
	return high;
}

int internal_fd_copy(int fd, int most)
{
	int min = lowest_number();
	int high = duplicate(fd, min);

	if (high < min + most)
		return high;
	internal_fd_close(high);
	return -EMFILE;
}

int internal_fd_move(int fd)
{
	long other = sys.fcntl(fd, F_DUPFD_CLOEXEC, fd + 1);

	if (other < 0)
		other = sys.fcntl(fd, F_DUPFD_CLOEXEC, 3);
	if (other < 0)
		other = sys_dup_beyond(fd);
	if (other >= 0)
		other = note(other);
	if (other >= 0)
		internal_fd_close(fd);
	return (int)other;
}

bool internal_fd_is(int fd)
{
	return fd >= 0 && fd < OWN_FD_MAX && !fork_guard_vforked &&
	       (atomic_load_explicit(word_of(fd), memory_order_relaxed) >> (fd % 64) & 1);
}

PROCESS_CODE void internal_fd_close(int fd)
{
	if (fd < 0)
		return;
	atomic_fetch_and(word_of(fd), ~(1ull << (fd % 64)));
	sys.close(fd);
}

void internal_fd_close_copies(void)
{
	for (int word = 0; word < WORDS; word++)
		for (uint64_t bits = atomic_load(word_at(word)); bits; bits &= bits - 1)
			sys.close(word * 64 + __builtin_ctzll(bits));
}

void internal_fd_close_all(void)
{
	for (int word = 0; word < WORDS; word++)
		while (*word_at(word))
			internal_fd_close(word * 64 + __builtin_ctzll(*word_at(word)));
}
