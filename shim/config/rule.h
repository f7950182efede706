// SPDX-License-Identifier: Apache-2.0
/*
 * rule: does a canonical path belong to a rule?
 *
 * Globs: '*', '?' and [set] match bytes within one path component; '**' crosses directories: as the last
 * component it is everything below, as one in the middle any number of directories, none included; a
 * backslash takes the next byte literally; '!' before a pattern excludes.  A leading dot is nothing special.
 *
 * Rules are tried in order and patterns of a rule in order; the first pattern that matches decides:
 * an including one selects its rule, an excluding one says "not managed" for good.
 * Pure functions, async-signal-safe, no allocation.
 *
 * Called by: fdtable and file at open, config when it checks patterns, `fastwrite check`.
 */
#ifndef FASTWRITE_RULE_H
#define FASTWRITE_RULE_H

#include "config/config.h"

/* Glob match of one valid pattern (without its '!') against an absolute canonical path.  Bounded
 * backtracking: at most one '*' and one '**' are ever open, so polynomial, never exponential. */
bool rule_glob(const char *glob, const char *path);

/* First rule that includes `path`, or NULL.  Files inside a ".fastwrite" directory never match. */
const struct rule *rule_match(const struct config *c, const char *path);

/* True when the pattern can match some path (absolute, no empty or "." / ".." component, sane sets).
 * When false, *why is a static text that follows "cannot match: ". */
bool rule_pattern_valid(const char *glob, const char **why);

/* Deepest directory that every match of `glob` lies in, no wildcard in it; out[PATH_MAX]. */
void rule_literal_prefix(const char *glob, char *out);

/* The same; returns how many bytes of the valid `glob` it took: glob + result begins with '/'. */
size_t rule_literal_split(const char *glob, char *out);

/* True when `glob` has no wildcard: it names one file. */
bool rule_is_literal(const char *glob);

/* True when every path that `later` matches is certainly matched by `earlier` too.  Decided for
 * earlier = a literal directory with '**' as its last component and for equal texts; false when not sure. */
bool rule_covers(const char *earlier, const char *later);

#endif
