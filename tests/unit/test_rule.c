// SPDX-License-Identifier: Apache-2.0
/* rule: the glob language, validity of patterns, order of rules. */
#include "config/rule.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include <cmocka.h>

static struct config config;

struct match_case {
	const char *glob;
	const char *path;
	bool match;
};

static void check_matches(const struct match_case *cases, size_t count)
{
	for (size_t i = 0; i < count; i++) {
		if (rule_glob(cases[i].glob, cases[i].path) != cases[i].match)
			fail_msg("\"%s\" against \"%s\": expected %s", cases[i].glob, cases[i].path,
			         cases[i].match ? "a match" : "no match");
	}
}

#define CHECK_MATCHES(cases) check_matches(cases, sizeof(cases) / sizeof((cases)[0]))

static void test_literal(void **state)
{
	(void)state;
	static const struct match_case cases[] = {
		{"/data/app.log", "/data/app.log", true},  {"/data/app.log", "/data/app.log1", false},
		{"/data/app.log", "/data/app.lo", false},  {"/data/app.log", "/data/appxlog", false},
		{"/data/app.log", "/Data/app.log", false}, {"/data/\\*", "/data/*", true},
		{"/data/\\*", "/data/x", false},           {"/data/a\\:b", "/data/a:b", true},
		{"/data/a\\\\b", "/data/a\\b", true},      {"/d\xc3\xa4ta/x", "/d\xc3\xa4ta/x", true},
	};
	CHECK_MATCHES(cases);
}

static void test_star(void **state)
{
	(void)state;
	static const struct match_case cases[] = {
		{"/data/*.log", "/data/app.log", true},
		{"/data/*.log", "/data/.log", true},
		{"/data/*.log", "/data/a/b.log", false},
		{"/data/*", "/data/x", true},
		{"/data/*", "/data/x/y", false},
		{"/data/*/x", "/data/a/x", true},
		{"/data/*/x", "/data/a/b/x", false},
		{"/data/*/x", "/data/x", false},
		{"/*/*/x", "/a/b/x", true},
		{"/data/a*b*c", "/data/aXbXbYc", true},
		{"/data/a*b*c", "/data/aXbXbY", false},
		{"/data/*a", "/data/ba/a", false},
		{"/data/.*", "/data/.hidden", true},
		{"/data/*", "/data/.hidden", true},
		{"/data/*log", "/data/loglog", true},
		{"/da*", "/data/x", false},
		{"/a*/b", "/aaa/b", true},
		{"/a*/b", "/aaa/c/b", false},
	};
	CHECK_MATCHES(cases);
}

static void test_question(void **state)
{
	(void)state;
	static const struct match_case cases[] = {
		{"/data/?", "/data/x", true},  {"/data/?", "/data/", false}, {"/data/?", "/data/xy", false},
		{"/data?x", "/data/x", false}, {"/d/a??d", "/d/abcd", true}, {"/d/\\?", "/d/?", true},
		{"/d/\\?", "/d/x", false},     {"/d/*?", "/d/x", true},      {"/d/?*?", "/d/x", false},
	};
	CHECK_MATCHES(cases);
}

static void test_set(void **state)
{
	(void)state;
	static const struct match_case cases[] = {
		{"/d/[abc]", "/d/b", true},
		{"/d/[abc]", "/d/d", false},
		{"/d/[a-c]x", "/d/cx", true},
		{"/d/[a-c]", "/d/d", false},
		{"/d/[!a-c]", "/d/d", true},
		{"/d/[!a-c]", "/d/a", false},
		{"/d/[^a-c]", "/d/d", true},
		{"/d/[]x]", "/d/]", true},
		{"/d/[!]x]", "/d/]", false},
		{"/d/[a-]", "/d/-", true},
		{"/d/[-a]", "/d/-", true},
		{"/d/[\\]]", "/d/]", true},
		{"/d/[a\\-c]", "/d/b", false},
		{"/d/[a\\-c]", "/d/-", true},
		{"/d[!a]x", "/d/x", false},
		{"/d[+-9]x", "/d/x", false},
		{"/d/*[0-9].log", "/d/ab7.log", true},
		{"/d/*[0-9].log", "/d/ab.log", false},
	};
	CHECK_MATCHES(cases);
}

static void test_deep(void **state)
{
	(void)state;
	static const struct match_case cases[] = {
		{"/data/**", "/data/x", true},
		{"/data/**", "/data/a/b/c", true},
		{"/data/**", "/database/x", false},
		{"/data/**", "/data", false},
		{"/**", "/x", true},
		{"/**", "/a/b", true},
		{"/data/**/x", "/data/x", true},
		{"/data/**/x", "/data/a/x", true},
		{"/data/**/x", "/data/a/b/x", true},
		{"/data/**/x", "/data/ax", false},
		{"/data/**/x", "/data/a/bx", false},
		{"/data/**.log", "/data/a/b.log", true},
		{"/data/**.log", "/data/b.log", true},
		{"/data/**.log", "/data/b.txt", false},
		{"/data**", "/database/x", true},
		{"/data**", "/data", true},
		{"/a/**/b/**/c", "/a/b/c", true},
		{"/a/**/b/**/c", "/a/x/b/y/z/c", true},
		{"/a/**/b/**/c", "/a/x/y/c", false},
		{"/a/**/*.log", "/a/b/c.log", true},
		{"/a/**/*.log", "/a/c.log", true},
		{"/a/**/*.log", "/a/b.log/c", false},
		{"/a/***", "/a/b/c", true},
		{"/a/x**y", "/a/xb/cy", true},
		{"/**/tmp/*", "/tmp/x", true},
		{"/**/tmp/*", "/var/tmp/x", true},
		{"/**/tmp/*", "/var/tmp/x/y", false},
		{"/a/**/b*c/d", "/a/b/bXc/d", true},
	};
	CHECK_MATCHES(cases);
}

/* ---- against a matcher that is slow and plainly right ---- */

static bool reference(const char *g, const char *p, bool after_slash)
{
	if (*g == '\0')
		return *p == '\0';
	if (g[0] == '*' && g[1] == '*') {
		const char *rest = g + 2;
		while (*rest == '*')
			rest++;
		bool dirs = after_slash && *rest == '/';
		if (dirs) {
			rest++;
			for (const char *q = p;;) {
				if (reference(rest, q, true))
					return true;
				q = strchr(q, '/');
				if (q == NULL)
					return false;
				q++;
			}
		}
		for (const char *q = p;; q++) {
			if (reference(rest, q, false))
				return true;
			if (*q == '\0')
				return false;
		}
	}
	if (*g == '*') {
		for (const char *q = p;; q++) {
			if (reference(g + 1, q, false))
				return true;
			if (*q == '\0' || *q == '/')
				return false;
		}
	}
	if (*p == '\0')
		return false;
	if (*g == '?')
		return *p != '/' && reference(g + 1, p + 1, false);
	return *g == *p && reference(g + 1, p + 1, *g == '/');
}

/* A run of stars directly behind an element that took bytes is where the two could differ, so the alphabet
 * is small and full of stars and slashes. */
static void test_random_against_reference(void **state)
{
	(void)state;
	unsigned seed = 12345;
	unsigned matched = 0;

	for (int round = 0; round < 300000; round++) {
		char glob[16] = "/";
		char path[16] = "/";
		size_t n = 1;
		for (size_t want = 1 + (size_t)rand_r(&seed) % 8; n < want + 1; n++)
			glob[n] = "ab/**?*/"[rand_r(&seed) % 8];
		glob[n] = '\0';
		n = 1;
		for (size_t want = 1 + (size_t)rand_r(&seed) % 8; n < want + 1; n++)
			path[n] = "aab/"[rand_r(&seed) % 4];
		path[n] = '\0';
		bool expected = reference(glob, path, false);
		matched += expected;
		if (rule_glob(glob, path) != expected)
			fail_msg("\"%s\" against \"%s\": expected %d", glob, path, expected);
	}
	assert_true(matched > 5000); /* else the comparison says nothing */
}

static double seconds_of(const char *glob, const char *path, bool expected)
{
	struct timespec a, b;

	clock_gettime(CLOCK_THREAD_CPUTIME_ID, &a);
	assert_int_equal(rule_glob(glob, path), expected);
	clock_gettime(CLOCK_THREAD_CPUTIME_ID, &b);
	return (double)(b.tv_sec - a.tv_sec) + (double)(b.tv_nsec - a.tv_nsec) / 1e9;
}

static void test_never_exponential(void **state)
{
	(void)state;
	static char glob[PATH_MAX];
	static char path[PATH_MAX];

	/* *a*a*a...*b against aaa...: exponential for a matcher that tries every star again */
	size_t n = 0;
	glob[n++] = '/';
	while (n < 240) {
		glob[n++] = '*';
		glob[n++] = 'a';
	}
	memcpy(glob + n, "*b", 3);
	memset(path, 'a', 255);
	path[0] = '/';
	path[255] = '\0';
	assert_true(seconds_of(glob, path, false) < 0.5);

	/* the same over directories: **a**a...b against a/a/a/... */
	n = 0;
	while (n < 2000) {
		memcpy(glob + n, "/**/a*", 6);
		n += 6;
	}
	memcpy(glob + n, "/b", 3);
	n = 0;
	while (n < PATH_MAX - 3) {
		path[n++] = '/';
		path[n++] = 'a';
	}
	path[n] = '\0';
	assert_true(seconds_of(glob, path, false) < 0.5);

	n = 0;
	glob[n++] = '/';
	while (n < 3000) {
		memcpy(glob + n, "**a*", 4);
		n += 4;
	}
	memcpy(glob + n, "?b", 3);
	assert_true(seconds_of(glob, path, false) < 0.5);
}

/* ---- validity ---- */

static void assert_invalid(const char *glob, const char *part)
{
	const char *why = NULL;

	if (rule_pattern_valid(glob, &why))
		fail_msg("\"%s\" was taken as valid", glob);
	if (strstr(why, part) == NULL)
		fail_msg("\"%s\": \"%s\" does not say \"%s\"", glob, why, part);
}

static void test_invalid_patterns(void **state)
{
	(void)state;
	static char text[2 * PATH_MAX];

	assert_invalid("", "empty");
	assert_invalid("data/*", "absolute");
	assert_invalid("*", "absolute");
	assert_invalid("~/x", "~");
	assert_invalid("$HOME/x", "variables");
	assert_invalid("/", "empty component");
	assert_invalid("/data/", "empty component");
	assert_invalid("/data//x", "empty component");
	assert_invalid("/data/./x", "'.'");
	assert_invalid("/data/../x", "'..'");
	assert_invalid("/data/..", "'..'");
	assert_invalid("/data/.fastwrite/x", ".fastwrite");
	assert_invalid("/data/[abc", "not closed");
	assert_invalid("/data/[", "not closed");
	assert_invalid("/data/[]", "not closed");
	assert_invalid("/data/[!]", "not closed");
	assert_invalid("/data/[a/b]", "'/'");
	assert_invalid("/data/[z-a]", "backwards");
	assert_invalid("/data/[a-\\", "not closed");
	assert_invalid("/data/x\\", "backslash");
	assert_invalid("/data\\/x", "backslash");

	memset(text, 'a', 257);
	text[0] = '/';
	text[257] = '\0';
	assert_invalid(text, "255");
	for (size_t i = 0; i < PATH_MAX; i++)
		text[i] = i % 2 == 0 ? '/' : 'a';
	text[PATH_MAX] = '\0';
	assert_invalid(text, "4095");
}

static void test_valid_patterns(void **state)
{
	(void)state;
	static const char *const globs[] = {
		"/x",           "/**",         "/data/**",  "/data/*.log",   "/data/[]a]",
		"/data/[!a-z]", "/data/[a-]",  "/data/...", "/data/.hidden", "/data/.fastwrites",
		"/data/\\[x",   "/data/a\\:b", "/a/[\\]]"};
	static char text[300];
	const char *why = "untouched";

	for (size_t i = 0; i < sizeof(globs) / sizeof(globs[0]); i++) {
		if (!rule_pattern_valid(globs[i], &why))
			fail_msg("\"%s\" refused: %s", globs[i], why);
	}
	memset(text, 'a', 256); /* 255 bytes of name, and stars that add nothing */
	text[0] = '/';
	strcpy(text + 256, "*");
	assert_true(rule_pattern_valid(text, &why));
	assert_string_equal(why, "untouched");
}

/* ---- literal directory ---- */

static void test_literal_prefix(void **state)
{
	(void)state;
	static const char *const cases[][3] = {
		/* glob, directory, rest */
		{"/data/**", "/data", "/**"},       {"/data/app.log", "/data", "/app.log"},
		{"/app.log", "/", "/app.log"},      {"/*", "/", "/*"},
		{"/a/b*/c", "/a", "/b*/c"},         {"/a/b/c?", "/a/b", "/c?"},
		{"/a/b/[xy]/d", "/a/b", "/[xy]/d"}, {"/a\\*/b/*", "/a*/b", "/*"},
		{"/data**", "/", "/data**"},
	};
	for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
		char out[PATH_MAX];
		rule_literal_prefix(cases[i][0], out);
		assert_string_equal(out, cases[i][1]);
		assert_string_equal(cases[i][0] + rule_literal_split(cases[i][0], out), cases[i][2]);
	}
	assert_true(rule_is_literal("/a/b"));
	assert_true(rule_is_literal("/a/\\*b"));
	assert_false(rule_is_literal("/a/*b"));
	assert_false(rule_is_literal("/a/b?"));
	assert_false(rule_is_literal("/a/[b]"));
}

static void test_covers(void **state)
{
	(void)state;
	assert_true(rule_covers("/a/**", "/a/b"));
	assert_true(rule_covers("/a/**", "/a/b/*.log"));
	assert_true(rule_covers("/a/**", "/a/*"));
	assert_true(rule_covers("/**", "/a/b"));
	assert_true(rule_covers("/a/*.log", "/a/*.log"));
	assert_false(rule_covers("/a/**", "/ab/c"));
	assert_false(rule_covers("/a/**", "/*/c"));
	assert_false(rule_covers("/a/b/**", "/a/**"));
	assert_false(rule_covers("/a/*", "/a/b")); /* true in fact, but not certain to this test */
	assert_false(rule_covers("/a/**/b", "/a/x/b"));
}

/* ---- rules ---- */

static void add(uint32_t r, const char *glob, bool exclude)
{
	struct rule *rule = &config.rules[r];

	if (config.rule_count <= r) {
		config.rule_count = r + 1;
		rule->pattern_count = 0;
	}
	rule->patterns[rule->pattern_count++] = (struct pattern){.glob = glob, .exclude = exclude};
}

static void test_order(void **state)
{
	(void)state;
	config.rule_count = 0;
	assert_null(rule_match(&config, "/data/x"));
	add(0, "/data/tmp/keep", false);
	add(0, "/data/tmp/**", true);
	add(0, "/data/**", false);
	add(1, "/data/tmp/**", false);
	add(1, "/logs/*", false);

	assert_ptr_equal(rule_match(&config, "/data/x"), &config.rules[0]);
	assert_ptr_equal(rule_match(&config, "/data/tmp/keep"), &config.rules[0]);
	assert_null(rule_match(&config, "/data/tmp/other")); /* excluded for good, rule 1 is not asked */
	assert_ptr_equal(rule_match(&config, "/logs/x"), &config.rules[1]);
	assert_null(rule_match(&config, "/logs/a/x"));
	assert_null(rule_match(&config, "/elsewhere"));
}

static void test_own_directory_is_never_managed(void **state)
{
	(void)state;
	config.rule_count = 0;
	add(0, "/**", false);
	assert_non_null(rule_match(&config, "/data/x"));
	assert_null(rule_match(&config, "/data/.fastwrite/arena"));
	assert_null(rule_match(&config, "/data/.fastwrite/orphans/x"));
	assert_non_null(rule_match(&config, "/data/.fastwrite2/x"));
	assert_non_null(rule_match(&config, "/data/x.fastwrite"));
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_literal),
		cmocka_unit_test(test_star),
		cmocka_unit_test(test_question),
		cmocka_unit_test(test_set),
		cmocka_unit_test(test_deep),
		cmocka_unit_test(test_random_against_reference),
		cmocka_unit_test(test_never_exponential),
		cmocka_unit_test(test_invalid_patterns),
		cmocka_unit_test(test_valid_patterns),
		cmocka_unit_test(test_literal_prefix),
		cmocka_unit_test(test_covers),
		cmocka_unit_test(test_order),
		cmocka_unit_test(test_own_directory_is_never_managed),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
