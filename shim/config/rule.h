// SPDX-License-Identifier: Apache-2.0
/*
 * rule: does a canonical path belong to a rule?
 *
 * '*', '?' and [set] match bytes within one path component.  '**' crosses directories: as the last component
 * it matches everything below, as another one any number of directories, also none.  A backslash takes the
 * next byte literally.  '!' before a pattern excludes.  A leading dot is not special.
 *
 * Rules are tried in order, and the patterns of each rule in order.  The first pattern that matches decides:
 * the path belongs to its rule or, if it excludes, to none.
 *
 * Pure functions, async-signal-safe, no allocation.
 */
#ifndef FASTWRITE_CONFIG_RULE_H
#define FASTWRITE_CONFIG_RULE_H

#include "config/config.h"

/*
 * Does one valid pattern (without its '!') match an absolute canonical path?  Polynomial time: at most one
 * '*' and one '**' are ever open.
 */
bool rule_glob(const char *glob, const char *path);

/* The rule that `path` belongs to, or NULL.  Files in a ".fastwrite" directory belong to none. */
const struct rule *rule_match(const struct config *c, const char *path);

/* The pattern that decides about `path`, and *rule that it stands in; NULL when none matches. */
const struct pattern *rule_decide(const struct config *c, const char *path, const struct rule **rule);

/*
 * Can the pattern match any path (absolute, no empty, "." or ".." component, valid sets)?  When not, *why is
 * a static text that follows "cannot match: ".
 */
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
