// SPDX-License-Identifier: Apache-2.0
/* config: sources and their order, every value's limits, every bad line. */
#include "base/sys.h"
#include "config/config.h"
#include "config/rule.h"

#include <fcntl.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

static struct config config;
static char dir[64];  /* fresh directory of each test, canonical */
static char file[96]; /* a configuration in it */

enum { ENV_MOST = 32 };
static char variables[ENV_MOST][5200];
static char *env[ENV_MOST + 1];
static size_t env_count;

static int set_up(void **state)
{
	(void)state;
	strcpy(dir, "/tmp/fastwrite-config-XXXXXX");
	assert_non_null(mkdtemp(dir));
	snprintf(file, sizeof(file), "%s/fw.ini", dir);
	env_count = 0;
	env[0] = NULL;
	return 0;
}

static int tear_down(void **state)
{
	char command[128];

	(void)state;
	sys = sys_kernel;
	snprintf(command, sizeof(command), "rm -rf %s", dir);
	return system(command);
}

/* One variable more, "NAME=value" by printf. */
static void __attribute__((format(printf, 1, 2))) with(const char *format, ...)
{
	va_list args;

	assert_true(env_count < ENV_MOST);
	va_start(args, format);
	vsnprintf(variables[env_count], sizeof(variables[0]), format, args);
	va_end(args);
	env[env_count] = variables[env_count];
	env[++env_count] = NULL;
}

static void write_bytes(const char *text, size_t size)
{
	FILE *f = fopen(file, "w");

	assert_non_null(f);
	assert_int_equal(fwrite(text, 1, size, f), size);
	assert_int_equal(fclose(f), 0);
}

static void write_file(const char *text)
{
	write_bytes(text, strlen(text));
	with("FASTWRITE_CONFIG=%s", file);
}

static void load_ok(void)
{
	int rc = config_load(&config, env);

	if (rc != 0)
		fail_msg("refused: %d %s", rc, config.error);
	assert_string_equal(config.error, "");
}

/* Fails with one line that holds all of the parts (NULL-terminated). */
static void load_fails(int code, const char *part, ...)
{
	va_list args;
	int rc = config_load(&config, env);

	assert_int_equal(config.rule_count, 0);
	if (rc != code)
		fail_msg("returned %d instead of %d: \"%s\"", rc, code, config.error);
	assert_null(strchr(config.error, '\n'));
	va_start(args, part);
	for (; part != NULL; part = va_arg(args, const char *)) {
		if (strstr(config.error, part) == NULL)
			fail_msg("\"%s\" does not say \"%s\"", config.error, part);
	}
	va_end(args);
	env_count = 0;
	env[0] = NULL;
}

static const char *value(uint32_t rule, enum config_key key)
{
	static char text[PATH_MAX];

	return config_value_text(&config.rules[rule].set, key, text, sizeof(text));
}

/* ---- sizes ---- */

static void test_parse_size(void **state)
{
	(void)state;
	static const struct {
		const char *text;
		uint64_t bytes;
	} good[] = {{"0", 0},
	            {"1", 1},
	            {"4096", 4096},
	            {"64K", 65536},
	            {"64k", 65536},
	            {"64KB", 65536},
	            {"64kb", 65536},
	            {"64KiB", 65536},
	            {"16MB", 16 << 20},
	            {"16MiB", 16 << 20},
	            {"1GiB", 1 << 30},
	            {"4096B", 4096},
	            {"16M", 16 << 20},
	            {"1G", 1 << 30},
	            {"007K", 7 << 10},
	            {"18446744073709551615", UINT64_MAX},
	            {"16777215G", UINT64_C(16777215) << 30}};
	static const char *const bad[] = {"",
	                                  "K",
	                                  "-1",
	                                  "+1",
	                                  " 1",
	                                  "1 ",
	                                  "1KBs",
	                                  "1Ki",
	                                  "1iB",
	                                  "1Bi",
	                                  "1 KB",
	                                  "KB",
	                                  "1.5M",
	                                  "0x10",
	                                  "1T",
	                                  "ten",
	                                  "1 K",
	                                  "18446744073709551616",
	                                  "18014398509481984K",
	                                  "17179869184G",
	                                  "99999999999999999999999"};

	for (size_t i = 0; i < sizeof(good) / sizeof(good[0]); i++) {
		uint64_t out = 42;
		assert_int_equal(config_parse_size(good[i].text, &out), 0);
		assert_true(out == good[i].bytes);
	}
	for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
		uint64_t out = 42;
		if (config_parse_size(bad[i], &out) != -EINVAL || out != 42)
			fail_msg("\"%s\" was taken as %lu", bad[i], (unsigned long)out);
	}
}

static void test_size_text(void **state)
{
	(void)state;
	static const uint64_t bytes[] = {0, 1, 1023, 1024, 1536, 65536, 33280 << 10, 1 << 20, UINT64_MAX};
	static const char *const text[] = {
		"0", "1", "1023", "1K", "1536", "64K", "33280K", "1M", "18446744073709551615"};
	char buf[24];

	for (size_t i = 0; i < sizeof(bytes) / sizeof(bytes[0]); i++) {
		uint64_t back;
		assert_string_equal(config_size_text(bytes[i], buf, sizeof(buf)), text[i]);
		assert_int_equal(config_parse_size(buf, &back), 0);
		assert_true(back == bytes[i]);
	}
}

/* ---- defaults, order of sources ---- */

static void test_nothing_configured(void **state)
{
	(void)state;
	with("PATH=/bin");
	with("FASTWRITE=1"); /* no underscore: not ours */
	load_ok();
	assert_int_equal(config.rule_count, 0);
	assert_int_equal(config.stats, STATS_NONE);
	assert_int_equal(config.log, LOG_WARN);
	assert_int_equal(config.on_error, ON_ERROR_WARN);
	assert_string_equal(config.file, "");
	assert_int_equal(config_load(&config, NULL), 0);
}

static void test_defaults(void **state)
{
	(void)state;
	static const char *const texts[KEY_COUNT] = {
		[KEY_SYNC] = "fdatasync",     [KEY_RELAXED_MS] = "50", [KEY_MEM] = "16M",
		[KEY_BLOCK] = "128K",         [KEY_LAG_MS] = "100",    [KEY_VISIBILITY] = "lag",
		[KEY_WRITERS] = "auto",       [KEY_FLUSH] = "auto",    [KEY_PREALLOC] = "64M",
		[KEY_PREALLOC_MODE] = "keep", [KEY_STAGING] = "",      [KEY_SMALL] = "64K",
		[KEY_STDIO] = "on",           [KEY_JOURNAL] = "64M",   [KEY_ADAPT] = "on",
		[KEY_ORDERED_MS] = "50",
	};
	with("FASTWRITE_PATHS=%s/**", dir);
	load_ok();
	assert_int_equal(config.rule_count, 1);
	assert_string_equal(config.rules[0].name, "env");
	assert_string_equal(config.rules[0].prefix, dir);
	for (int key = 0; key < KEY_COUNT; key++) {
		assert_string_equal(value(0, (enum config_key)key), texts[key]);
		assert_int_equal(config.rules[0].origin[key].source, SOURCE_DEFAULT);
		assert_int_equal(config.rules[0].origin[key].line, 0);
	}
	assert_int_equal(config.rules[0].set.sync, SYNC_FDATASYNC);
	assert_int_equal(config.rules[0].set.block_bytes, 128 << 10);
	assert_int_equal(config.rules[0].set.small_bytes, 64 << 10);
	assert_int_equal(config.rules[0].set.mem_bytes, 16 << 20);
	assert_int_equal(config.rules[0].set.prealloc_bytes, 64 << 20);
}

static void test_every_key_from_environment(void **state)
{
	(void)state;
	static const char *const names[KEY_COUNT] = {"SYNC",    "RELAXED_MS", "ORDERED_MS", "JOURNAL",
	                                             "MEM",     "BLOCK",      "LAG_MS",     "VISIBILITY",
	                                             "WRITERS", "FLUSH",      "PREALLOC",   "PREALLOC_MODE",
	                                             "STAGING", "SMALL",      "ADAPT",      "STDIO"};
	static const char *const texts[KEY_COUNT] = {"relaxed",  "7",   "8",         "1G",     "64M", "1M",
	                                             "9",        "lag", "exclusive", "direct", "1G",  "off",
	                                             "/dev/shm", "4K",  "off",       "off"};

	with("FASTWRITE_PATHS=%s/**", dir);
	for (int key = 0; key < KEY_COUNT; key++)
		with("FASTWRITE_%s=%s", names[key], texts[key]);
	load_ok();
	for (int key = 0; key < KEY_COUNT; key++) {
		assert_string_equal(value(0, (enum config_key)key), texts[key]);
		assert_int_equal(config.rules[0].origin[key].source, SOURCE_ENV);
	}
	assert_int_equal(config.rules[0].set.sync, SYNC_RELAXED);
	assert_int_equal(config.rules[0].set.relaxed_ms, 7);
	assert_int_equal(config.rules[0].set.ordered_ms, 8);
	assert_int_equal(config.rules[0].set.lag_ms, 9);
	assert_int_equal(config.rules[0].set.writers, WRITERS_EXCLUSIVE);
	assert_int_equal(config.rules[0].set.flush, FLUSH_DIRECT);
	assert_int_equal(config.rules[0].set.prealloc_mode, PREALLOC_OFF);
	assert_string_equal(config.rules[0].set.staging, "/dev/shm");
	assert_int_equal(config.rules[0].set.small_bytes, 4096);
}

static void test_order_of_sources(void **state)
{
	(void)state;
	/* the rule stands before [defaults] on purpose */
	write_file("[rule wal]\n"
	           "paths = /data/wal/**\n"
	           "sync = fsync\n"
	           "\n"
	           "[defaults]\n"
	           "sync = off\n"
	           "mem = 32M\n"
	           "lag_ms = 5\n");
	with("FASTWRITE_PATHS=/data/env/**");
	with("FASTWRITE_MEM=64M");
	load_ok();
	assert_int_equal(config.rule_count, 2);
	assert_string_equal(config.rules[0].name, "env");
	assert_string_equal(config.rules[1].name, "wal");
	assert_int_equal(config.rules[1].paths_origin.line, 2);

	assert_string_equal(value(0, KEY_SYNC), "off");
	assert_int_equal(config.rules[0].origin[KEY_SYNC].source, SOURCE_FILE);
	assert_int_equal(config.rules[0].origin[KEY_SYNC].line, 6);
	assert_string_equal(value(1, KEY_SYNC), "fsync");
	assert_int_equal(config.rules[1].origin[KEY_SYNC].source, SOURCE_RULE);
	assert_int_equal(config.rules[1].origin[KEY_SYNC].line, 3);
	for (uint32_t r = 0; r < 2; r++) {
		assert_string_equal(value(r, KEY_MEM), "64M");
		assert_int_equal(config.rules[r].origin[KEY_MEM].source, SOURCE_ENV);
		assert_string_equal(value(r, KEY_LAG_MS), "5");
		assert_string_equal(value(r, KEY_BLOCK), "128K");
	}
	assert_ptr_equal(rule_match(&config, "/data/env/x"), &config.rules[0]);
	assert_ptr_equal(rule_match(&config, "/data/wal/x"), &config.rules[1]);
}

static void test_second_load_forgets_the_first(void **state)
{
	(void)state;
	write_file("[rule a]\npaths=/a/**:!/x\nsync=off\n[rule b]\npaths=/b/**\n");
	load_ok();
	env_count = 0;
	with("FASTWRITE_PATHS=/c/**");
	load_ok();
	assert_int_equal(config.rule_count, 1);
	assert_int_equal(config.rules[0].pattern_count, 1);
	assert_string_equal(value(0, KEY_SYNC), "fdatasync");
	assert_string_equal(config.file, "");
}

static void test_empty_variables_count_as_unset(void **state)
{
	(void)state;
	with("FASTWRITE_PATHS=");
	with("FASTWRITE_SYNC=");
	with("FASTWRITE_CONFIG=");
	with("FASTWRITE_STATS=");
	with("FASTWRITE_LOG=");
	with("FASTWRITE_STRICT=");
	with("FASTWRITE_ON_ERROR=");
	load_ok();
	assert_int_equal(config.rule_count, 0);
}

static void test_file_syntax(void **state)
{
	(void)state;
	write_file("\xef\xbb\xbf# comment\r\n"
	           "; comment\r\n"
	           "[defaults] ; behind a section\r\n"
	           "\tsync = fsync   ; behind a value\r\n"
	           "  mem: 32M\r\n"
	           "[rule a-1.b_c]\r\n"
	           "  paths = /a/*.log : x\r\n");
	load_fails(-EINVAL, file, ":7: ", "paths", "\" x\"", "absolute", NULL);

	write_file("\xef\xbb\xbf[defaults] # comment\n"
	           "\tsync = fsync   ; behind a value\r\n"
	           "  mem: 32M\r\n"
	           "[rule a-1.b_c]\n"
	           "  paths = /a/*.log:/a/x\\:y\n"
	           "  paths = !/b/c/**:/b/**\n"
	           "  small=1K"); /* no newline at the end */
	load_ok();
	assert_int_equal(config.rule_count, 1);
	assert_string_equal(config.rules[0].name, "a-1.b_c");
	assert_string_equal(value(0, KEY_SYNC), "fsync");
	assert_string_equal(value(0, KEY_MEM), "32M");
	assert_string_equal(value(0, KEY_SMALL), "1K");
	assert_int_equal(config.rules[0].origin[KEY_SMALL].line, 7);
	assert_int_equal(config.rules[0].pattern_count, 4);
	assert_true(config.rules[0].patterns[2].exclude);
	assert_ptr_equal(rule_match(&config, "/a/x:y"), &config.rules[0]);
	assert_null(rule_match(&config, "/b/c/d"));
}

static void test_long_lines_and_many_rules(void **state)
{
	(void)state;
	static char text[32 * 1024];
	size_t used = 0;

	for (int i = 0; i < CONFIG_RULES_MAX; i++)
		used += (size_t)snprintf(text + used, sizeof(text) - used,
		                         "[rule r%d]\npaths = /data/%d/**\n", i, i);
	write_file(text);
	load_ok();
	assert_int_equal(config.rule_count, CONFIG_RULES_MAX);
	with("FASTWRITE_PATHS=/x/**");
	load_fails(-E2BIG, "too many rules", "64", NULL);

	snprintf(text + used, sizeof(text) - used, "[rule more]\npaths = /x\n");
	write_file(text);
	load_fails(-E2BIG, "too many rules", ":129:", NULL);

	/* longer than inih takes by itself */
	used = (size_t)snprintf(text, sizeof(text), "[rule a]\npaths = ");
	for (int i = 0; i < 50; i++)
		used += (size_t)snprintf(text + used, sizeof(text) - used, "%s/some/long/directory/%d/**",
		                         i ? ":" : "", i);
	write_file(text);
	load_ok();
	assert_int_equal(config.rules[0].pattern_count, 50);
}

static void test_relative_config_is_kept_absolute(void **state)
{
	char before[PATH_MAX];

	(void)state;
	write_file("[rule a]\npaths = /a/**\n");
	env_count = 0;
	with("FASTWRITE_CONFIG=fw.ini");
	assert_non_null(getcwd(before, sizeof(before)));
	assert_int_equal(chdir(dir), 0);
	load_ok();
	assert_int_equal(chdir(before), 0);
	assert_string_equal(config.file, file);
	assert_int_equal(config.rule_count, 1);
}

/* ---- patterns ---- */

static void test_links_are_resolved(void **state)
{
	char path[PATH_MAX];
	char target[PATH_MAX];

	(void)state;
	snprintf(target, sizeof(target), "%s/re*al", dir);
	assert_int_equal(mkdir(target, 0700), 0);
	snprintf(path, sizeof(path), "%s/link", dir);
	assert_int_equal(symlink("re*al", path), 0);
	with("FASTWRITE_PATHS=!%s/link/not/there/**:%s/link/*.log", dir, dir);
	load_ok();
	assert_string_equal(config.rules[0].prefix, target);
	snprintf(path, sizeof(path), "%s/re*al/x.log", dir);
	assert_ptr_equal(rule_match(&config, path), &config.rules[0]);
	snprintf(path, sizeof(path), "%s/reXal/x.log", dir);
	assert_null(rule_match(&config, path));
	assert_true(config.rules[0].patterns[0].exclude);
	snprintf(path, sizeof(path), "%s/re\\*al/not/there/**", dir);
	assert_string_equal(config.rules[0].patterns[0].glob, path);

	/* a link that is named itself */
	snprintf(path, sizeof(path), "%s/current.log", dir);
	assert_int_equal(symlink("day1.log", path), 0);
	snprintf(path, sizeof(path), "%s/day1.log", dir);
	close(open(path, O_CREAT | O_WRONLY, 0600));
	env_count = 0;
	with("FASTWRITE_PATHS=%s/current.log", dir);
	load_ok();
	assert_string_equal(config.rules[0].patterns[0].glob, path);
}

static void test_root_patterns(void **state)
{
	(void)state;
	with("FASTWRITE_PATHS=/nowhere-*/x:/**");
	load_ok();
	assert_string_equal(config.rules[0].prefix, "/");
	assert_string_equal(config.rules[0].patterns[0].glob, "/nowhere-*/x");
	assert_string_equal(config.rules[0].patterns[1].glob, "/**");
}

/* Saying the same twice is harmless, and so is an exception in front of what it is taken from. */
static void test_redundant_patterns(void **state)
{
	(void)state;
	with("FASTWRITE_PATHS=/a/b/keep:!/a/b/**:/a/**:/a/c/**:/a/**");
	load_ok();
	assert_int_equal(config.rules[0].pattern_count, 5);
	assert_non_null(rule_match(&config, "/a/b/keep"));
	assert_null(rule_match(&config, "/a/b/other"));
	assert_non_null(rule_match(&config, "/a/c/x"));
}

static ssize_t no_link(int dirfd, const char *path, char *buf, size_t size)
{
	(void)dirfd, (void)path, (void)buf, (void)size;
	return -ENOENT;
}

static void test_works_without_proc(void **state)
{
	char path[PATH_MAX];

	(void)state;
	/* no way to learn a canonical path: the pattern stays as written */
	snprintf(path, sizeof(path), "%s/link", dir);
	assert_int_equal(symlink("/usr", path), 0);
	sys.readlinkat = no_link;
	with("FASTWRITE_PATHS=%s/link/**", dir);
	load_ok();
	strcat(path, "/**");
	assert_string_equal(config.rules[0].patterns[0].glob, path);
}

static void test_bad_patterns(void **state)
{
	char path[PATH_MAX];

	(void)state;
	static const char *const cases[][2] = {
		{"data/*", "absolute"},
		{"~/log", "~"},
		{"/a:/b:", "empty"},
		{"/a::/b", "empty"},
		{":/a", "empty"},
		{"!", "empty"},
		{"/a/", "empty component"},
		{"/a//b", "empty component"},
		{"/a/../b", "'..'"},
		{"/a/[x", "not closed"},
		{"!/a/**", "without '!'"},
		{"/a/.fastwrite/*", ".fastwrite"},
		{"/a/**:!/a/b/**", "put this one first"},
		{"!/a/**:/a/b", "put this one first"},
		{"/etc/passwd/*", "/etc/passwd is not a directory"},
		{"/a\\", "backslash"},
	};
	for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
		with("FASTWRITE_PATHS=%s", cases[i][0]);
		load_fails(-EINVAL, "FASTWRITE_PATHS", "cannot match", cases[i][1], NULL);
	}
	with("FASTWRITE_PATHS=%s", dir);
	load_fails(-EINVAL, "FASTWRITE_PATHS", dir, "it is a directory; add /**", NULL);

	memset(path, 'a', sizeof(path));
	path[sizeof(path) - 1] = '\0';
	with("FASTWRITE_PATHS=/%s", path);
	load_fails(-EINVAL, "FASTWRITE_PATHS", "...", "longer", NULL);
	with("FASTWRITE_PATHS=/%s%s", path, "aaaaaaaaaaaaaaaaa");
	load_fails(-EINVAL, "FASTWRITE_PATHS", "4095", NULL);
}

static void test_number_sign_in_a_name(void **state)
{
	(void)state;
	with("FASTWRITE_PATHS=/a/b#c:/a/#d:/a/e \\#f:/a/g\\ #h:/a/i # ");
	load_fails(-EINVAL, "FASTWRITE_PATHS = \"/a/i # \"", "with ' ;'", NULL);
	with("FASTWRITE_PATHS=!/a/b/**\t#log:/a/**");
	load_fails(-EINVAL, "FASTWRITE_PATHS", "with ' ;'", NULL);
	with("FASTWRITE_PATHS=/a/b#c:/a/#d:/a/e \\#f:/a/g\\ #h");
	with("FASTWRITE_STAGING=/a/b#c/#d");
	load_ok();
	assert_int_equal(config.rules[0].pattern_count, 4);
}

static void test_too_many_patterns(void **state)
{
	char text[2048] = "";

	(void)state;
	for (int i = 0; i < CONFIG_PATTERNS_MAX; i++)
		snprintf(text + strlen(text), sizeof(text) - strlen(text), "%s/a/%d", i ? ":" : "", i);
	with("FASTWRITE_PATHS=%s", text);
	load_ok();
	assert_int_equal(config.rules[0].pattern_count, CONFIG_PATTERNS_MAX);
	env_count = 0;
	with("FASTWRITE_PATHS=%s:/more", text);
	load_fails(-EINVAL, "FASTWRITE_PATHS", "/more", "at most 64", NULL);
}

static void test_pattern_storage_is_bounded(void **state)
{
	static char text[256 * 1024];
	char name[251];
	size_t used = 0;

	(void)state;
	memset(name, 'n', sizeof(name));
	name[sizeof(name) - 1] = '\0';
	for (int i = 0; i < 30; i++) {
		used += (size_t)snprintf(text + used, sizeof(text) - used, "[rule r%d]\n", i);
		for (int k = 0; k < 12; k++)
			used += (size_t)snprintf(text + used, sizeof(text) - used, "paths = /a/%d/%s\n", k,
			                         name);
	}
	write_file(text);
	load_fails(-E2BIG, file, "65536 bytes", NULL);
}

/* ---- values ---- */

static void test_bad_values(void **state)
{
	(void)state;
	static const char *const cases[][3] = {
		/* variable, value, what is allowed */
		{"SYNC", "sometimes", "fdatasync, fsync, journal, relaxed, off, ordered"},
		{"SYNC", "Fsync", "fdatasync, fsync, journal, relaxed, off, ordered"},
		{"JOURNAL", "512K", "1M..4G"},
		{"VISIBILITY", "never", "allowed: lag, strict"},
		{"PREALLOC_MODE", "on", "keep, off"},
		{"RELAXED_MS", "0", "1..60000"},
		{"RELAXED_MS", "60001", "1..60000"},
		{"RELAXED_MS", "1K", "1..60000"},
		{"RELAXED_MS", "5ms", "1..60000"},
		{"RELAXED_MS", "-5", "1..60000"},
		{"LAG_MS", "0", "1..60000"},
		{"LAG_MS", "4294967297", "1..60000"},
		{"MEM", "16MX", "1M..64G"},
		{"MEM", "1023K", "1M..64G"},
		{"MEM", "65G", "1M..64G"},
		{"MEM", "99999999999999999999G", "1M..64G"},
		{"MEM", "lots", "1M..64G"},
		{"BLOCK", "96K", "power of two"},
		{"BLOCK", "32K", "64K..4M"},
		{"BLOCK", "8M", "64K..4M"},
		{"WRITERS", "one", "auto, exclusive, shared"},
		{"FLUSH", "sync", "auto, direct, buffered"},
		{"PREALLOC", "17G", "0..16G"},
		{"PREALLOC", "-1", "0..16G"},
		{"STAGING", "shm", "an absolute directory"},
		{"STAGING", "~/x", "an absolute directory"},
		{"STAGING", "/dev/shm/x # ram", "with ' ;'"},
		{"SMALL", "511", "512..64K"},
		{"SMALL", "65537", "512..64K"},
		{"STDIO", "0", "on, off"},
		{"LOG", "loud", "off, error, warn, info, debug"},
		{"STATS", "stdout", "stderr or the path of a file"},
		{"STRICT", "yes", "0, 1"},
		{"ON_ERROR", "1", "warn, stop"},
	};
	for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
		char name[64], shown[64];
		with("FASTWRITE_PATHS=/a/**");
		with("FASTWRITE_%s=%s", cases[i][0], cases[i][1]);
		snprintf(name, sizeof(name), "FASTWRITE_%s = ", cases[i][0]);
		snprintf(shown, sizeof(shown), "\"%s\": ", cases[i][1]);
		load_fails(-EINVAL, name, shown, cases[i][2], NULL);
	}
}

static void test_limits_themselves_are_good(void **state)
{
	(void)state;
	static const char *const cases[][2] = {
		{"RELAXED_MS", "1"}, {"RELAXED_MS", "60000"}, {"LAG_MS", "60000"}, {"MEM", "64G"},
		{"BLOCK", "64K"},    {"PREALLOC", "0"},       {"PREALLOC", "16G"}, {"SMALL", "512"},
		{"SMALL", "64K"},    {"STAGING", "/"},
	};
	for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
		env_count = 0;
		with("FASTWRITE_PATHS=/a/**");
		with("FASTWRITE_%s=%s", cases[i][0], cases[i][1]);
		load_ok();
	}
	env_count = 0;
	with("FASTWRITE_PATHS=/a/**");
	with("FASTWRITE_MEM=1M");
	with("FASTWRITE_BLOCK=64K");
	load_ok();
	assert_true(config.rules[0].set.mem_bytes == 8 * UINT64_C(65536) + CONFIG_TABLES_BYTES);
}

static void test_mem_must_hold_blocks(void **state)
{
	(void)state;
	with("FASTWRITE_PATHS=/a/**");
	with("FASTWRITE_MEM=1M");
	with("FASTWRITE_BLOCK=128K");
	load_fails(-EINVAL, "FASTWRITE_MEM = \"1M\"", "8 x block", "1536K", "128K", NULL);

	with("FASTWRITE_PATHS=/a/**");
	with("FASTWRITE_BLOCK=4M"); /* the default of mem is what is too small: the key given is named */
	load_fails(-EINVAL, "FASTWRITE_BLOCK = \"4M\"", "8 x block", "33280K", NULL);

	write_file("[defaults]\nmem = 2M\n[rule a]\npaths = /a/**\n[rule b]\npaths = /b/**\nblock = 1M\n");
	load_fails(-EINVAL, file, ":2: mem = \"2M\"", "8704K", "1M", NULL);
	/* no rule uses it, nothing is wrong */
	with("FASTWRITE_BLOCK=4M");
	load_ok();
}

/* A block that nobody asked for is as small as `mem` needs. */
static void test_block_follows_mem(void **state)
{
	static const struct {
		const char *mem;
		uint32_t block;
	} cases[] = {{"1M", 65536}, {"1535K", 65536}, {"1536K", 131072}, {"64G", 131072}};

	(void)state;
	for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
		env_count = 0;
		with("FASTWRITE_PATHS=/a/**");
		with("FASTWRITE_MEM=%s", cases[i].mem);
		load_ok();
		assert_int_equal(config.rules[0].set.block_bytes, cases[i].block);
		assert_int_equal(config.rules[0].origin[KEY_BLOCK].source, SOURCE_DEFAULT);
	}
	env_count = 0;
	write_file("[rule a]\npaths = /a/**\nmem = 1M\n[rule b]\npaths = /b/**\n");
	load_ok();
	assert_int_equal(config.rules[0].set.block_bytes, 65536);
	assert_int_equal(config.rules[1].set.block_bytes, 131072);
}

/* Streams are seen in the whole process or not at all. */
static void test_stdio_is_not_for_a_rule(void **state)
{
	(void)state;
	write_file("[defaults]\nstdio = off\n[rule a]\npaths = /a/**\n");
	load_ok();
	assert_string_equal(value(0, KEY_STDIO), "off");
	assert_int_equal(config.rules[0].set.stdio, STDIO_OFF);
	assert_int_equal(config.rules[0].origin[KEY_STDIO].source, SOURCE_FILE);
	with("FASTWRITE_STDIO=on");
	load_ok();
	assert_int_equal(config.rules[0].set.stdio, STDIO_ON);
	env_count = 0;
	write_file("[rule a]\npaths = /a/**\nstdio = off\n");
	load_fails(-EINVAL, file, ":3: stdio = \"off\"", "[defaults]", NULL);
}

static void test_unknown_variable(void **state)
{
	(void)state;
	with("FASTWRITE_SYNK=off");
	load_fails(-EINVAL, "FASTWRITE_SYNK", "unknown key", "SYNC", "PREALLOC_MODE", "ON_ERROR", "SMALL",
	           NULL);
	with("FASTWRITE_sync=off");
	load_fails(-EINVAL, "FASTWRITE_sync", "unknown key", NULL);
	with("FASTWRITE_=off");
	load_fails(-EINVAL, "unknown key", NULL);
	with("FASTWRITE_REGISTRY=/x");
	with("FASTWRITE_LIB=/x");
	with("FASTWRITE_INHERIT=0");
	with("FASTWRITE_KILL_STEP=4");
	with("FASTWRITE_TEST_ANYTHING=1");
	load_ok();
}

static void test_on_error_survives_failure(void **state)
{
	static const struct {
		const char *variable;
		enum on_error expected;
	} cases[] = {
		{"FASTWRITE_ON_ERROR=stop", ON_ERROR_STOP},
		{"FASTWRITE_ON_ERROR=warn", ON_ERROR_WARN},
		{"FASTWRITE_STRICT=1", ON_ERROR_STOP}, /* the old name */
		{"FASTWRITE_STRICT=0", ON_ERROR_WARN},
	};

	(void)state;
	for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
		with("%s", cases[i].variable);
		with("FASTWRITE_SYNC=bad");
		load_fails(-EINVAL, "FASTWRITE_SYNC", NULL);
		assert_int_equal(config.on_error, cases[i].expected);
	}
	with("FASTWRITE_STRICT=1");
	with("FASTWRITE_ON_ERROR=warn");
	load_ok();
	assert_int_equal(config.on_error, ON_ERROR_WARN);
}

static char noticed[4096];

static void note(void *ctx, enum log_level level, const char *text)
{
	(void)ctx;
	snprintf(noticed + strlen(noticed), sizeof(noticed) - strlen(noticed), "%d %s\n", level, text);
}

static void test_old_name_is_told(void **state)
{
	(void)state;
	with("FASTWRITE_ON_ERROR=stop");
	load_ok();
	noticed[0] = '\0';
	config_notices(&config, false, note, NULL);
	assert_string_equal(noticed, "");
	env_count = 0;
	with("FASTWRITE_STRICT=1");
	load_ok();
	config_notices(&config, false, note, NULL);
	assert_string_equal(noticed, "2 FASTWRITE_STRICT is the old name of FASTWRITE_ON_ERROR = stop; "
	                             "it still works\n");
}

static void test_rule_without_effect_is_told(void **state)
{
	(void)state;
	write_file("[rule all]\npaths=!/a/no/**:/a/**\n[rule db]\npaths=/a/db/**:/a/no/x\n"
	           "[rule some]\npaths=/a/x/**:/b/*\n");
	load_ok();
	noticed[0] = '\0';
	config_notices(&config, false, note, NULL);
	assert_non_null(strstr(noticed, "2 rule db never applies: earlier rules cover all of its patterns"));
	assert_null(strstr(noticed, "rule all never"));
	assert_null(strstr(noticed, "rule some never"));
}

static void test_stats_and_log(void **state)
{
	(void)state;
	with("FASTWRITE_STATS=stderr");
	with("FASTWRITE_LOG=debug");
	load_ok();
	assert_int_equal(config.stats, STATS_STDERR);
	assert_int_equal(config.log, LOG_DEBUG);
	env_count = 0;
	with("FASTWRITE_STATS=/tmp/stats");
	with("FASTWRITE_LOG=off");
	load_ok();
	assert_int_equal(config.stats, STATS_FILE);
	assert_string_equal(config.stats_file, "/tmp/stats");
	assert_int_equal(config.log, LOG_OFF);
}

/* Relative to where the program starts; a stream that it cannot be is no file. */
static void test_relative_stats(void **state)
{
	char before[PATH_MAX], real[PATH_MAX], expected[PATH_MAX + 32];

	(void)state;
	assert_non_null(getcwd(before, sizeof(before)));
	assert_int_equal(chdir(dir), 0);
	assert_non_null(getcwd(real, sizeof(real)));
	with("FASTWRITE_STATS=some/stats.json");
	load_ok();
	snprintf(expected, sizeof(expected), "%s/some/stats.json", real);
	assert_int_equal(config.stats, STATS_FILE);
	assert_string_equal(config.stats_file, expected);
	assert_int_equal(chdir(before), 0);
	env_count = 0;
	with("FASTWRITE_STATS=stdout");
	load_fails(-EINVAL, "FASTWRITE_STATS", "stderr", NULL);
}

static void test_first_of_two_equal_variables(void **state)
{
	(void)state;
	with("FASTWRITE_PATHS=/a/**");
	with("FASTWRITE_PATHS=/b/**"); /* as getenv */
	load_ok();
	assert_string_equal(config.rules[0].prefix, "/a");
}

/* ---- bad files ---- */

static void test_inherit(void **state)
{
	(void)state;
	with("FASTWRITE_PATHS=/x/**");
	load_ok();
	assert_true(config.inherit);
	assert_int_equal(config.origin[KEY_INHERIT].source, SOURCE_DEFAULT);
	write_file("[defaults]\n\ninherit = 0\n");
	load_ok();
	assert_false(config.inherit);
	assert_int_equal(config.origin[KEY_INHERIT].source, SOURCE_FILE);
	assert_int_equal(config.origin[KEY_INHERIT].line, 3);
	with("FASTWRITE_INHERIT=1");
	load_ok();
	assert_true(config.inherit);
	assert_int_equal(config.origin[KEY_INHERIT].source, SOURCE_ENV);
	assert_int_equal(config.origin[KEY_INHERIT].line, 0);
	env_count = 0;
	env[0] = NULL;
	with("FASTWRITE_INHERIT=off");
	load_fails(-EINVAL, "FASTWRITE_INHERIT = \"off\": ", "allowed: 0, 1", NULL);
}

static void test_bad_files(void **state)
{
	(void)state;
	static const char *const cases[][3] = {
		/* text, place, message */
		{"sync = off\n", ":1: ", "before any section"},
		{"[defaults]\nsynk = off\n",
	         ":2: ", "unknown key \"synk\"; allowed: sync, relaxed_ms, ordered_ms, journal"},
		{"[rule a]\npaths=/a\nsynk = off\n", ":3: ", "unknown key \"synk\"; allowed: paths, sync"},
		{"[defaults]\nsync = maybe\n", ":2: sync = \"maybe\"",
	         "fdatasync, fsync, journal, relaxed, off, ordered"},
		{"[defaults]\nsync =\n", ":2: sync = \"\"", "fdatasync"},
		{"[defaults]\nmem = 16MX\n", ":2: mem = \"16MX\"", "1M..64G"},
		{"[defaults]\nblock = 100K\n", ":2: block", "power of two"},
		{"[defaults]\n\njust words\n", ":3: ", "not a [section], a comment or key = value"},
		{"[defaults\nsync = off\n", ":1: ", "not a [section]"},
		{"[defaults] x\n", ":1: ", "after the ']'"},
		{"[default]\n", ":1: ", "unknown section [default]; allowed: [defaults], [rule NAME]"},
		{"[rule]\n", ":1: ", "unknown section"},
		{"[rule ]\n", ":1: ", "rule name"},
		{"[rule a b]\n", ":1: ", "rule name \"a b\""},
		{"[rule env]\n", ":1: ", "FASTWRITE_PATHS"},
		{"[rule abcdefghijklmnopqrstuvwxyzabcdefghijklmno]\n", ":1: ", "1..40"},
		{"[rule a]\npaths=/a\n[rule b]\npaths=/b\n[rule a]\npaths=/c\n",
	         ":5: ", "rule \"a\" is there twice"},
		{"[rule a]\n[rule a]\n", ":1: ", "rule \"a\" has no paths"},
		{"[rule a]\npaths=/a\n[rule b]\nsync=off\n", ":3: ", "rule \"b\" has no paths"},
		{"[rule a]\nsync=off\n[defaults]\n", ":1: ", "rule \"a\" has no paths"},
		{"[rule a]\npaths =\n", ":2: paths = \"\"", "cannot match: it is empty"},
		{"[rule a]\npaths = !/a/**\n", ":2: ", "without '!'"},
		{"[rule a]\npaths = ~/x\n", ":2: paths = \"~/x\"", "absolute"},
		{"[defaults]\npaths = /a\n", ":2: ", "[rule NAME] only"},
		{"[defaults]\nsync=off\nmem=16M\nsync=fsync\n",
	         ":4: ", "\"sync\" is there twice (first in line 2)"},
		{"[rule a]\npaths=/a\nsync=off\nsync=off\n", ":4: ", "twice (first in line 3)"},
		{"[defaults]\nlog = debug\n", ":2: ", "FASTWRITE_LOG"},
		{"[defaults]\nstats = stderr\n", ":2: ", "FASTWRITE_STATS"},
		{"[defaults]\nstrict = 1\n", ":2: ", "FASTWRITE_ON_ERROR"},
		{"[defaults]\non_error = stop\n", ":2: ", "FASTWRITE_ON_ERROR"},
		{"[defaults]\ninherit = yes\n", ":2: inherit = \"yes\"", "allowed: 0, 1"},
		{"[defaults]\ninherit = 0\ninherit = 1\n", ":3: ", "twice (first in line 2)"},
		{"[rule a]\npaths=/a\ninherit = 0\n", ":3: ", "[defaults] only"},
		{"[defaults]\nnonsense\nsync = maybe\n", ":2: ", "not a [section]"},
		{"[defaults]\nsync = maybe\nnonsense\n", ":2: ", "fdatasync"},
		{"[defaults]\nsync = a\tb\n", ":2: ", "a?b"},
	};
	for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
		write_file(cases[i][0]);
		load_fails(-EINVAL, file, cases[i][1], cases[i][2], NULL);
	}
}

static void test_unreadable_files(void **state)
{
	char path[PATH_MAX];
	static char text[(1 << 20) + 100];

	(void)state;
	with("FASTWRITE_CONFIG=%s/none", dir);
	load_fails(-ENOENT, "FASTWRITE_CONFIG", dir, "no such file", NULL);
	with("FASTWRITE_CONFIG=%s", dir);
	load_fails(-EINVAL, "FASTWRITE_CONFIG", dir, "not a regular file", NULL);
	with("FASTWRITE_CONFIG=/etc/passwd/x");
	load_fails(-EINVAL, "FASTWRITE_CONFIG", "no such file", NULL);
	snprintf(path, sizeof(path), "%s/fifo", dir);
	assert_int_equal(mkfifo(path, 0600), 0);
	with("FASTWRITE_CONFIG=%s", path); /* must not hang */
	load_fails(-EINVAL, "FASTWRITE_CONFIG", "not a regular file", NULL);
	with("FASTWRITE_CONFIG=/dev/zero");
	load_fails(-EINVAL, "FASTWRITE_CONFIG", "not a regular file", NULL);

	write_bytes("[defaults]\nsync\0=off\n", 22);
	with("FASTWRITE_CONFIG=%s", file);
	load_fails(-EINVAL, file, ":2: ", "NUL", NULL);
	memset(text, '\n', sizeof(text));
	write_bytes(text, sizeof(text));
	with("FASTWRITE_CONFIG=%s", file);
	load_fails(-E2BIG, file, "1M", NULL);
	memset(text, 'a', 20000);
	write_bytes(text, 20000);
	with("FASTWRITE_CONFIG=%s", file);
	load_fails(-EINVAL, file, ":1: ", "line too long", NULL);
}

static int open_refused(int dirfd, const char *path, int flags, mode_t mode)
{
	if (strcmp(path, file) == 0)
		return -EACCES;
	return sys_kernel.openat(dirfd, path, flags, mode);
}

static ssize_t read_broken(int fd, void *buf, size_t size)
{
	(void)fd, (void)buf, (void)size;
	return -EIO;
}

static int read_calls;

static ssize_t read_in_pieces(int fd, void *buf, size_t size)
{
	(void)size;
	return ++read_calls % 3 == 0 ? -EINTR : sys_kernel.read(fd, buf, 1);
}

static void test_faults_while_reading(void **state)
{
	(void)state;
	write_file("[rule a]\npaths = /a/**\nsync = off\n");
	sys.openat = open_refused;
	load_fails(-EACCES, "FASTWRITE_CONFIG", file, "permission", NULL);

	sys = sys_kernel;
	sys.read = read_broken;
	with("FASTWRITE_CONFIG=%s", file);
	load_fails(-EIO, file, "cannot be read", NULL);

	sys.read = read_in_pieces;
	with("FASTWRITE_CONFIG=%s", file);
	load_ok();
	assert_string_equal(value(0, KEY_SYNC), "off");
	assert_true(read_calls > 30);
}

static int open_descriptors(void)
{
	int count = 0;

	for (int fd = 0; fd < 1024; fd++)
		count += fcntl(fd, F_GETFD) >= 0;
	return count;
}

static void test_leaves_no_descriptor_open(void **state)
{
	(void)state;
	int before = open_descriptors();
	write_file("[rule a]\npaths = /a/**:/tmp/**:/etc/passwd\n");
	load_ok();
	assert_int_equal(open_descriptors(), before);
	write_file("[rule a]\npaths = bad\n");
	assert_int_equal(config_load(&config, env), -EINVAL);
	assert_int_equal(open_descriptors(), before);
}

static void test_long_texts_stay_one_line(void **state)
{
	char text[3000];

	(void)state;
	memset(text, 'x', sizeof(text));
	text[sizeof(text) - 1] = '\0';
	text[10] = '\n';
	with("FASTWRITE_SYNC=%s", text);
	load_fails(-EINVAL, "FASTWRITE_SYNC", "...",
	           "allowed: fdatasync, fsync, journal, relaxed, off, ordered", NULL);
	with("FASTWRITE_%s=1", text);
	load_fails(-EINVAL, "unknown key", NULL);
	with("FASTWRITE_CONFIG=/%s%s", text, text);
	load_fails(-EINVAL, "FASTWRITE_CONFIG", "4095", NULL);
}

int main(void)
{
#define TEST(name) cmocka_unit_test_setup_teardown(name, set_up, tear_down)
	const struct CMUnitTest tests[] = {
		TEST(test_parse_size),
		TEST(test_size_text),
		TEST(test_nothing_configured),
		TEST(test_defaults),
		TEST(test_every_key_from_environment),
		TEST(test_order_of_sources),
		TEST(test_second_load_forgets_the_first),
		TEST(test_empty_variables_count_as_unset),
		TEST(test_file_syntax),
		TEST(test_long_lines_and_many_rules),
		TEST(test_relative_config_is_kept_absolute),
		TEST(test_links_are_resolved),
		TEST(test_root_patterns),
		TEST(test_redundant_patterns),
		TEST(test_works_without_proc),
		TEST(test_bad_patterns),
		TEST(test_number_sign_in_a_name),
		TEST(test_too_many_patterns),
		TEST(test_pattern_storage_is_bounded),
		TEST(test_bad_values),
		TEST(test_limits_themselves_are_good),
		TEST(test_mem_must_hold_blocks),
		TEST(test_block_follows_mem),
		TEST(test_stdio_is_not_for_a_rule),
		TEST(test_stdio_is_not_for_a_rule),
		TEST(test_unknown_variable),
		TEST(test_on_error_survives_failure),
		TEST(test_old_name_is_told),
		TEST(test_rule_without_effect_is_told),
		TEST(test_stats_and_log),
		TEST(test_relative_stats),
		TEST(test_first_of_two_equal_variables),
		TEST(test_inherit),
		TEST(test_bad_files),
		TEST(test_unreadable_files),
		TEST(test_faults_while_reading),
		TEST(test_leaves_no_descriptor_open),
		TEST(test_long_texts_stay_one_line),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
