// SPDX-License-Identifier: Apache-2.0
/* inherit: what is put into an environment, where, and when nothing is. */
#include "process/inherit.h"

#include <fcntl.h>
#include <limits.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

static char library[PATH_MAX]; /* this program: readable, and not the target */
static char entry[PATH_MAX + 16];

static const struct inherit_target target = {.dirfd = AT_FDCWD, .path = "/bin/sh"};

#define ENV(...) ((char *const[]){__VA_ARGS__ __VA_OPT__(, ) NULL})

static void start(const char *preload, const char *config)
{
	static char text[2 * PATH_MAX];
	char *env[] = {(char[]){"A=b"},
	               (char[]){"FASTWRITE_PATHS=/data/**"},
	               text,
	               (char[]){"FASTWRITE_CONFIG=x.ini"},
	               (char[]){"FASTWRITE_LOG=off"},
	               NULL};

	snprintf(text, sizeof text, "LD_PRELOAD=%s", preload);
	assert_int_equal(inherit_start(library, env, &(struct inherit_files){config, ""}), 0);
	/* the program may do with its environment what it likes */
	memset(text, 'x', sizeof text - 1);
	memset(env[1], 'x', strlen(env[1]));
}

/* What comes of `env`, joined by '|'; static. */
static const char *made_for(char *const *env, const struct inherit_target *to)
{
	static char all[8 * PATH_MAX];
	char *const *made = inherit_environment(env, to);
	size_t used = 0;

	all[0] = '\0';
	for (; made && *made; made++)
		used += (size_t)snprintf(all + used, sizeof all - used, "%s%s", used ? "|" : "", *made);
	inherit_release();
	return all;
}

#define VARIABLES "FASTWRITE_PATHS=/data/**|FASTWRITE_CONFIG=/etc/x.ini|FASTWRITE_LOG=off"
#define MADE(expected, ...) assert_string_equal(made_for(ENV(__VA_ARGS__), &target), expected)

static char *text(const char *format, ...) __attribute__((format(printf, 1, 2)));
static char *text(const char *format, ...)
{
	static char texts[8][4 * PATH_MAX];
	static int at;
	char *out = texts[at++ % 8];
	va_list args;

	va_start(args, format);
	vsnprintf(out, sizeof texts[0], format, args);
	va_end(args);
	return out;
}

/* Before anything is remembered. */
static void test_nothing_in_force(void **state)
{
	(void)state;
	MADE("", );
	MADE("A=b", "A=b");
}

static void test_empty_environment(void **state)
{
	(void)state;
	start(library, "/etc/x.ini");
	MADE(text("%s|" VARIABLES, entry), );
	assert_string_equal(made_for(NULL, &target), text("%s|" VARIABLES, entry));
	MADE(text("A=b|PATH=/bin|%s|" VARIABLES, entry), "A=b", "PATH=/bin");
}

static void test_nothing_is_missing(void **state)
{
	char *own = text("%s", entry);

	(void)state;
	start(library, "/etc/x.ini");
	MADE(text("FASTWRITE_PATHS=/y|%s", entry), "FASTWRITE_PATHS=/y", own);
	own = text("LD_PRELOAD=/a.so %s:/b.so", library);
	MADE(text("%s|FASTWRITE_SYNC=off", own), own, "FASTWRITE_SYNC=off");
}

static void test_only_one_part_is_missing(void **state)
{
	(void)state;
	start(library, "/etc/x.ini");
	MADE(text("FASTWRITE_PATHS=/y|%s", entry), "FASTWRITE_PATHS=/y");
	MADE(text("%s|" VARIABLES, entry), text("%s", entry));
}

static void test_place_in_a_list(void **state)
{
	(void)state;
	start(library, "/etc/x.ini");
	MADE(text("LD_PRELOAD=/a.so:/b.so:%s|" VARIABLES, library), "LD_PRELOAD=/a.so:/b.so");
	MADE(text("LD_PRELOAD=/a.so /b.so:%s|" VARIABLES, library), "LD_PRELOAD=/a.so /b.so");
	MADE(text("LD_PRELOAD=%s|" VARIABLES, library), "LD_PRELOAD=");
	start(text("/m1.so /m2.so:%s:/m3.so", library), "/etc/x.ini");
	MADE(text("LD_PRELOAD=/m1.so:/m3.so:%s|" VARIABLES, library), "LD_PRELOAD=/m1.so:/m3.so");
	/* the loader takes the last one */
	MADE(text("LD_PRELOAD=/a.so|LD_PRELOAD=/b.so:%s|" VARIABLES, library), "LD_PRELOAD=/a.so",
	     "LD_PRELOAD=/b.so");
	MADE(text("LD_PRELOAD=%s|LD_PRELOAD=/b.so:%s|" VARIABLES, library, library),
	     text("LD_PRELOAD=%s", library), "LD_PRELOAD=/b.so");
}

static void test_names_of_the_library(void **state)
{
	const char *base = strrchr(library, '/') + 1;
	char cwd[PATH_MAX];

	(void)state;
	assert_non_null(getcwd(cwd, sizeof cwd));
	/* found by the loader in its own directories: put in as what it found */
	start(base, "/etc/x.ini");
	MADE(text("%s|" VARIABLES, entry), );
	MADE(text("LD_PRELOAD=%s|FASTWRITE_LOG=off", base), text("LD_PRELOAD=%s", base), "FASTWRITE_LOG=off");
	/* to be filled in by the loader */
	start(text("/opt/$LIB/%s", base), "/etc/x.ini");
	MADE(text("LD_PRELOAD=/opt/$LIB/%s|" VARIABLES, base), );
	/* relative: the new program may start elsewhere */
	assert_int_equal(chdir("/"), 0);
	start(library + 1, "/etc/x.ini");
	MADE(text("%s|" VARIABLES, entry), );
	MADE(text("LD_PRELOAD=%s|FASTWRITE_LOG=off", library + 1), text("LD_PRELOAD=%s", library + 1),
	     "FASTWRITE_LOG=off");
	assert_int_equal(chdir(cwd), 0);
	/* not by LD_PRELOAD */
	start("/elsewhere.so", "/etc/x.ini");
	MADE(VARIABLES, );
	MADE("FASTWRITE_LOG=off", "FASTWRITE_LOG=off");
}

static void test_switched_off(void **state)
{
	(void)state;
	start(library, "/etc/x.ini");
	MADE("A=b|FASTWRITE_INHERIT=0", "A=b", "FASTWRITE_INHERIT=0");
	MADE(text("FASTWRITE_INHERIT=1|%s", entry), "FASTWRITE_INHERIT=1");
}

static void write_file(const char *path, const void *bytes, size_t n, mode_t mode)
{
	int fd = open(path, O_WRONLY | O_CREAT | O_TRUNC, 0700);

	assert_true(fd >= 0);
	assert_int_equal(write(fd, bytes, n), (ssize_t)n);
	assert_int_equal(fchmod(fd, mode), 0);
	close(fd);
}

static void test_target(void **state)
{
	static const unsigned char elf32[20] = {0x7f, 'E', 'L', 'F', 1, 1, 1, [18] = 3};
	static const unsigned char elf64[20] = {0x7f, 'E', 'L', 'F', 2, 1, 1, [18] = 243};
	struct inherit_target to = {.dirfd = AT_FDCWD, .path = "./inherit-target"};
	char *kept[] = {(char[]){"A=b"}, NULL};
	char *cut[] = {(char[]){"FASTWRITE_LOG=off"}, NULL};

	(void)state;
	start(library, "/etc/x.ini");
	write_file(to.path, elf32, sizeof elf32, 0755);
	assert_string_equal(made_for(kept, &to), "A=b");
	write_file(to.path, elf64, sizeof elf64, 0755);
	assert_string_equal(made_for(kept, &to), "A=b");
	to.dirfd = open(to.path, O_RDONLY);
	to.path = "";
	assert_string_equal(made_for(kept, &to), "A=b");
	close(to.dirfd);
	to = (struct inherit_target){.dirfd = AT_FDCWD, .path = "./inherit-target"};
	write_file(to.path, "whatever", 8, 04755);
	assert_string_equal(made_for(kept, &to), "A=b");
	write_file(to.path, "whatever", 8, 02755);
	assert_string_equal(made_for(kept, &to), "A=b");
	write_file(to.path, "whatever", 8, 0755);
	assert_string_equal(made_for(kept, &to), text("A=b|%s|" VARIABLES, entry));
	/* found along PATH of the program, here */
	{
		char *path[] = {(char[]){"PATH=/nonexistent:sub:/bin"}, NULL};
		const char *made = text("PATH=/nonexistent:sub:/bin|%s|" VARIABLES, entry);

		assert_int_equal(mkdir("sub", 0700), 0);
		write_file("sub/inherit-target", elf32, sizeof elf32, 0755);
		unlink("inherit-target");
		to.path = "inherit-target";
		assert_string_equal(made_for(path, &to), made);
		to.search = true;
		assert_string_equal(made_for(path, &to), "PATH=/nonexistent:sub:/bin");
		to.path = "no-such-program";
		assert_string_equal(made_for(path, &to), made);
		unlink("sub/inherit-target");
		rmdir("sub");
	}
	/* LD_PRELOAD alone was taken away, and it might see that it is there again */
	to = (struct inherit_target){.dirfd = AT_FDCWD, .path = "./inherit-target"};
	write_file(to.path, "#!/bin/sh\n", 10, 0755);
	assert_string_equal(made_for(cut, &to), "FASTWRITE_LOG=off");
	assert_string_equal(made_for(kept, &to), text("A=b|%s|" VARIABLES, entry));
	to.path = "/proc/self/exe";
	assert_string_equal(made_for(cut, &to), "FASTWRITE_LOG=off");
	to.path = "/bin/sh";
	assert_string_equal(made_for(cut, &to), text("FASTWRITE_LOG=off|%s", entry));
	unlink("inherit-target");
}

static void test_library_out_of_reach(void **state)
{
	char saved[PATH_MAX];

	(void)state;
	strcpy(saved, library);
	strcpy(library, "/nonexistent/libfastwrite.so");
	start(library, "/etc/x.ini");
	MADE("A=b", "A=b");
	strcpy(library, saved);
}

static void test_large_environments(void **state)
{
	enum { MANY = 5000 };
	static char *env[MANY + 1];
	char *const *made;

	(void)state;
	start(library, "/etc/x.ini");
	for (int i = 0; i < MANY; i++)
		env[i] = text("A%d=b", i % 8);
	made = inherit_environment(env, &target);
	assert_ptr_not_equal(made, env);
	assert_ptr_equal(made[MANY - 1], env[MANY - 1]);
	assert_string_equal(made[MANY], entry);
	assert_string_equal(made[MANY + 3], "FASTWRITE_LOG=off");
	assert_null(made[MANY + 4]);
	inherit_release();
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_nothing_in_force),     cmocka_unit_test(test_empty_environment),
		cmocka_unit_test(test_nothing_is_missing),   cmocka_unit_test(test_only_one_part_is_missing),
		cmocka_unit_test(test_place_in_a_list),      cmocka_unit_test(test_names_of_the_library),
		cmocka_unit_test(test_switched_off),         cmocka_unit_test(test_target),
		cmocka_unit_test(test_library_out_of_reach), cmocka_unit_test(test_large_environments),
	};
	char dir[] = "/tmp/fastwrite-unit-XXXXXX";
	int r;

	if (readlink("/proc/self/exe", library, sizeof library - 1) < 0 || !mkdtemp(dir) || chdir(dir) < 0)
		return 1;
	snprintf(entry, sizeof entry, "LD_PRELOAD=%s", library);
	r = cmocka_run_group_tests(tests, NULL, NULL);
	rmdir(dir);
	return r;
}
