// SPDX-License-Identifier: Apache-2.0
/* tail: see staging/tail.h. */
#include "staging/tail.h"

#include "base/sys.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>

enum { TAILS = 16 };

/* Whose tails[i] is, NULL: free; its lock protects it.  (Apart from them: a look for a file that has none
 * touches none of their pages.) */
static _Atomic(const struct file *) owners[TAILS];
static struct tail {
	uint64_t end;
	struct statx_timestamp mtime, ctime;
	uint8_t bytes[PAGES_BYTES]; /* of the page with the end, up to there */
} tails[TAILS];

/* -1: none. */
static int index_of(const struct file *f)
{
	for (int i = 0; i < TAILS; i++)
		if (atomic_load_explicit(&owners[i], memory_order_relaxed) == f)
			return i;
	return -1;
}

static struct tail *find(const struct file *f)
{
	int i = index_of(f);

	return i >= 0 ? &tails[i] : NULL;
}

static struct tail *make(const struct file *f)
{
	for (int i = 0; i < TAILS; i++) {
		const struct file *none = NULL;

		if (atomic_compare_exchange_strong(&owners[i], &none, f))
			return &tails[i];
	}
	return NULL;
}

bool tail_reaches(const struct file *f, uint64_t end)
{
	const struct tail *t;

	if (end % PAGES_BYTES == 0)
		return true;
	t = find(f);
	return t && t->end == end;
}

int tail_read(const struct file *f, void *to, size_t n, uint64_t offset)
{
	const struct tail *t = find(f);
	uint64_t begin = t ? t->end - t->end % PAGES_BYTES : 0;

	if (!t || offset < begin || offset + n > t->end)
		return -EBADF;
	memcpy(to, t->bytes + (offset - begin), n);
	return 0;
}

void tail_keep(struct file *f)
{
	uint64_t end = overlay_size(&f->overlay);
	size_t n = end % PAGES_BYTES;
	struct tail *t;

	tail_forget(f);
	t = n > 0 && file_is_ordered(f) ? make(f) : NULL;
	if (!t)
		return;
	t->end = 0; /* (nothing can be read from here meanwhile) */
	if (overlay_read(&f->overlay, t->bytes, n, end - n) == (ssize_t)n)
		t->end = end;
	else
		tail_forget(f);
}

void tail_stamp(const struct file *f)
{
	struct tail *t = find(f);
	struct statx st;

	if (!t)
		return;
	if (sys.statx(file_fd(f), "", AT_EMPTY_PATH, STATX_SIZE | STATX_MTIME | STATX_CTIME, &st) < 0 ||
	    st.stx_size != t->end) {
		tail_forget(f);
		return;
	}
	t->mtime = st.stx_mtime;
	t->ctime = st.stx_ctime;
}

static bool is_same_time(const struct statx_timestamp *a, const struct statx_timestamp *b)
{
	return a->tv_sec == b->tv_sec && a->tv_nsec == b->tv_nsec;
}

void tail_check(const struct file *f, const struct statx *st)
{
	const struct tail *t = find(f);

	if (t && (st->stx_size != t->end || !is_same_time(&st->stx_mtime, &t->mtime) ||
	          !is_same_time(&st->stx_ctime, &t->ctime)))
		tail_forget(f);
}

void tail_forget(const struct file *f)
{
	int i = index_of(f);

	if (i >= 0)
		atomic_store(&owners[i], NULL);
}
