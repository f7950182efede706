// SPDX-License-Identifier: Apache-2.0
/*
 * walk: walks through directory trees.  Inside these the C library makes its stat calls by internal calls.
 * So its answer about a staged file is corrected before the program sees it.
 */
#include "hooks/hook.h"

#include "attach/attach.h"

#include <fts.h>
#include <ftw.h>

/*
 * The C library passes no context to the callback.  A callback may start another walk in the same thread.  It
 * may also leave with longjmp or an exception.  Then the pointer is stale until the next walk sets it; it is
 * read only inside a walk.
 */
struct walk {
	__ftw_func_t each;
	__nftw_func_t each_at;
};
static __thread const struct walk *walk;

static int visit(const char *path, const struct stat *found, int type)
{
	struct stat now = *found;

	if (type == FTW_F)
		by_name_refresh_stat(&now);
	return walk->each(path, &now, type);
}

static int visit_at(const char *path, const struct stat *found, int type, struct FTW *where)
{
	struct stat now = *found;

	if (type == FTW_F)
		by_name_refresh_stat(&now);
	return walk->each_at(path, &now, type, where);
}

EXPORT int ftw(const char *path, __ftw_func_t each, int descriptors)
{
	const struct walk this = {.each = each}, *outer = walk;
	int r;

	if (!live_config || !each)
		return real.ftw(path, each, descriptors);
	walk = &this;
	r = real.ftw(path, visit, descriptors);
	walk = outer;
	return r;
}

EXPORT int nftw(const char *path, __nftw_func_t each, int descriptors, int flags)
{
	const struct walk this = {.each_at = each}, *outer = walk;
	int r;

	if (!live_config || !each)
		return real.nftw(path, each, descriptors, flags);
	walk = &this;
	r = real.nftw(path, visit_at, descriptors, flags);
	walk = outer;
	return r;
}

static FTSENT *refreshed(FTSENT *entry)
{
	if (entry && entry->fts_info == FTS_F && entry->fts_statp)
		by_name_refresh_stat(entry->fts_statp);
	return entry;
}

static FTSENT *all_refreshed(FTSENT *list)
{
	for (FTSENT *e = list; e; e = e->fts_link)
		refreshed(e);
	return list;
}

/* The program's compare function sees sizes inside the call. */
static void before_sort(const FTS *walk_state)
{
	if (walk_state && walk_state->fts_compar)
		by_name_drain_all();
}

EXPORT FTS *fts_open(char *const *paths, int options, int (*compare)(const FTSENT **, const FTSENT **))
{
	if (compare)
		by_name_drain_all();
	return real.fts_open(paths, options, compare);
}

EXPORT FTSENT *fts_read(FTS *state)
{
	before_sort(state);
	return refreshed(real.fts_read(state));
}

EXPORT FTSENT *fts_children(FTS *state, int options)
{
	before_sort(state);
	return all_refreshed(real.fts_children(state, options));
}

TWIN(ftw64, ftw);
TWIN(nftw64, nftw);
TWIN(fts64_open, fts_open);
TWIN(fts64_read, fts_read);
TWIN(fts64_children, fts_children);
