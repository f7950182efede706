// SPDX-License-Identifier: Apache-2.0
/*
 * names: which files of a staging directory are arenas and journals, and in which order they were made.
 *
 * The library names them "<pid>-<rule>-<time>.arena" and ".journal"; the time is that of the wall clock, in
 * ns, in hex.
 */
#ifndef FASTWRITE_FOREIGN_NAMES_H
#define FASTWRITE_FOREIGN_NAMES_H

#include <stdbool.h>
#include <stdint.h>

/* By the suffix alone. */
bool names_is_arena(const char *name);
bool names_is_journal(const char *name);
/* The path ends in the usual name of a staging directory. */
bool names_is_staging_dir(const char *path);
/* The name has the form that this library gives to files with this suffix. */
bool names_is_ours(const char *name, const char *suffix);

/*
 * The oldest names, in the order of their time, names of other forms first.  Recovery keeps to this order. So
 * what one program wrote over another's bytes, or behind them, stays so when both are dead.
 */
enum { NAMES_MAX = 128 };
struct name_entry {
	uint64_t made; /* time in the name, 0: a name of another form */
	char name[256];
};
struct name_list {
	uint32_t count, room;   /* room: at most NAMES_MAX */
	bool over;              /* there were more names than room */
	struct name_entry last; /* only names behind this one are listed; "" = all */
	struct name_entry entries[NAMES_MAX];
};

/* Adds the name; drops the youngest one when there is no room. */
void names_put(struct name_list *l, const char *name);
/* When the file was made; 0: a name of another form. */
uint64_t names_time(const char *name);

#endif
