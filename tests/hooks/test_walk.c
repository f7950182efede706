// SPDX-License-Identifier: Apache-2.0
/* Walks through a tree tell the size of a file with everything that was written before they looked. */
#include "hook_test.h"

#include <fts.h>
#include <ftw.h>

static int file;
static unsigned seen, written;

static void look(const char *path, const struct stat *st, int regular)
{
	if (!regular || strcmp(strrchr(path, '/'), "/a") != 0)
		return;
	seen++;
	assert_int_equal(st->st_size, written * RECORD);
}

static void more(unsigned count)
{
	write_records(file, written, count);
	written += count;
}

static int each(const char *path, const struct stat *st, int type)
{
	look(path, st, type == FTW_F);
	more(1); /* before the walk goes on to the next file */
	return 0;
}

static int each64(const char *path, const struct stat64 *st, int type)
{
	return each(path, (const struct stat *)(const void *)st, type);
}

static int each_at(const char *path, const struct stat *st, int type, struct FTW *where)
{
	assert_true(where->level <= 2);
	return each(path, st, type);
}

static int each_at64(const char *path, const struct stat64 *st, int type, struct FTW *where)
{
	return each_at(path, (const struct stat *)(const void *)st, type, where);
}

static unsigned inner_seen;

static int inner(const char *path, const struct stat *st, int type, struct FTW *where)
{
	(void)where;
	if (type == FTW_F && strcmp(strrchr(path, '/'), "/a") == 0) {
		inner_seen++;
		assert_int_equal(st->st_size, written * RECORD);
	}
	return 0;
}

/* A walk inside a walk, and then on with the outer one. */
static int outer(const char *path, const struct stat *st, int type, struct FTW *where)
{
	assert_int_equal(OK(nftw("tree", inner, 8, FTW_PHYS)), 0);
	return each_at(path, st, type, where);
}

static int stops(const char *path, const struct stat *st, int type, struct FTW *where)
{
	(void)path;
	(void)st;
	(void)type;
	(void)where;
	return 17;
}

static void begin(void)
{
	OK(mkdir("tree", 0755));
	OK(mkdir("tree/sub", 0755));
	OK(close(open_new("tree/0", 0)));
	OK(close(open_new("tree/sub/b", 0)));
	file = open_staged("tree/a", 0);
	written = RECORDS;
	seen = 0;
}

static void end(void)
{
	OK(close(file));
	check_file("tree/a", 0, written);
	OK(unlink("tree/a"));
	OK(unlink("tree/0"));
	OK(unlink("tree/sub/b"));
	OK(rmdir("tree/sub"));
	OK(rmdir("tree"));
}

static void by_callback(void **state)
{
	(void)state;
	begin();
	more(5);
	assert_int_equal(ftw("tree", each, 8), 0);
	more(5);
	assert_int_equal(ftw64("tree", each64, 8), 0);
	more(5);
	assert_int_equal(nftw("tree", each_at, 8, FTW_PHYS), 0);
	more(5);
	assert_int_equal(nftw64("tree", each_at64, 8, FTW_PHYS | FTW_DEPTH), 0);
	assert_int_equal(seen, 4);
	assert_int_equal(nftw("tree", outer, 8, 0), 0);
	assert_int_equal(seen, 5);
	assert_int_equal(inner_seen, 5);
	assert_int_equal(nftw("tree", stops, 8, 0), 17);
	assert_int_equal(nftw("none", each_at, 8, 0), -1);
	assert_int_equal(errno, ENOENT);
	end();
}

static off_t largest;

static int by_size(const FTSENT **left, const FTSENT **right)
{
	off_t l = (*left)->fts_info == FTS_F ? (*left)->fts_statp->st_size : -1;
	off_t r = (*right)->fts_info == FTS_F ? (*right)->fts_statp->st_size : -1;

	largest = l > largest ? l : r > largest ? r : largest;
	return (l > r) - (l < r);
}

static void by_entry(int (*compare)(const FTSENT **, const FTSENT **), bool children)
{
	char *roots[] = {(char *)"tree", NULL};
	FTS *walk;
	FTSENT *e;

	more(10);
	walk = fts_open(roots, FTS_PHYSICAL | FTS_NOCHDIR, compare);
	assert_non_null(walk);
	while ((e = fts_read(walk))) {
		look(e->fts_path, e->fts_statp, e->fts_info == FTS_F);
		if (e->fts_info != FTS_D || e->fts_level != 0)
			continue;
		more(10);
		for (FTSENT *child = children ? fts_children(walk, 0) : NULL; child; child = child->fts_link)
			if (child->fts_info == FTS_F && strcmp(child->fts_name, "a") == 0)
				assert_int_equal(child->fts_statp->st_size, written * RECORD);
	}
	assert_int_equal(errno, 0);
	OK(fts_close(walk));
}

/* The file itself as where the walk begins: it is looked at when that is opened. */
static void by_root(void)
{
	char *roots[] = {(char *)"tree/0", (char *)"tree/a", NULL};
	FTS *walk;

	more(10);
	largest = 0;
	walk = fts_open(roots, FTS_PHYSICAL, by_size);
	assert_non_null(walk);
	assert_int_equal(largest, written * RECORD);
	OK(fts_close(walk));
}

static void by_entry64(bool children)
{
	char *roots[] = {(char *)"tree", NULL};
	FTS64 *walk;
	FTSENT64 *e;

	more(10);
	walk = fts64_open(roots, FTS_PHYSICAL | FTS_NOCHDIR, NULL);
	assert_non_null(walk);
	while ((e = fts64_read(walk))) {
		look(e->fts_path, (const struct stat *)(const void *)e->fts_statp, e->fts_info == FTS_F);
		if (e->fts_info != FTS_D || e->fts_level != 0)
			continue;
		more(10);
		for (FTSENT64 *child = children ? fts64_children(walk, 0) : NULL; child;
		     child = child->fts_link)
			if (child->fts_info == FTS_F && strcmp(child->fts_name, "a") == 0)
				assert_int_equal(child->fts_statp->st_size, written * RECORD);
	}
	OK(fts64_close(walk));
}

static int by_size64(const FTSENT64 **left, const FTSENT64 **right)
{
	return by_size((const FTSENT **)(void *)left, (const FTSENT **)(void *)right);
}

static void by_root64(void)
{
	char *roots[] = {(char *)"tree/0", (char *)"tree/a", NULL};
	FTS64 *walk;

	more(10);
	largest = 0;
	walk = fts64_open(roots, FTS_PHYSICAL, by_size64);
	assert_non_null(walk);
	assert_int_equal(largest, written * RECORD);
	OK(fts64_close(walk));
}

static void entries(void **state)
{
	(void)state;
	for (int children = 0; children < 2; children++) {
		begin();
		by_entry(NULL, children);
		largest = 0;
		by_entry(by_size, children);
		assert_int_equal(largest, written * RECORD);
		by_root();
		by_entry64(children);
		by_root64();
		assert_int_equal(seen, 3);
		end();
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {cmocka_unit_test(by_callback), cmocka_unit_test(entries)};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
