// SPDX-License-Identifier: Apache-2.0
/* preload: where libfastwrite.so is, and how LD_PRELOAD names it. */
#include "command/command.h"

#include <dlfcn.h>
#include <link.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* Debian's packages have their libraries in a directory for each architecture, those of Fedora in lib64. */
#if defined(__x86_64__)
#define MULTIARCH "x86_64-linux-gnu"
#else
#define MULTIARCH "aarch64-linux-gnu"
#endif

static bool is_library(const char *path, char *out)
{
	return realpath(path, out) != NULL && access(out, R_OK) == 0;
}

static bool find_beside(char *out)
{
	static const char *const beside[] = {"libfastwrite.so", "../lib/libfastwrite.so",
	                                     "../lib64/libfastwrite.so",
	                                     "../lib/" MULTIARCH "/libfastwrite.so"};
	char own[PATH_MAX];
	char candidate[PATH_MAX + 64];
	ssize_t n = readlink("/proc/self/exe", own, sizeof(own) - 1);

	if (n <= 0)
		return false;
	own[n] = '\0';
	*strrchr(own, '/') = '\0';
	for (size_t i = 0; i < sizeof(beside) / sizeof(beside[0]); i++) {
		snprintf(candidate, sizeof(candidate), "%s/%s", own, beside[i]);
		if (is_library(candidate, out))
			return true;
	}
	return false;
}

/* Below another root, links lead elsewhere: the path stays as it is written. */
static bool is_library_below(const char *root, const char *path, char *out)
{
	char whole[2 * PATH_MAX];

	if (*root == '\0')
		return is_library(path, out);
	snprintf(whole, sizeof(whole), "%s%s", root, path);
	return snprintf(out, PATH_MAX, "%s", path) < PATH_MAX && access(whole, R_OK) == 0;
}

/* glibc's loader of this command, if it is loaded.  `real`: the path of its C library. */
static bool find_libc(char *real)
{
	void *libc = dlopen("libc.so.6", RTLD_LAZY | RTLD_NOLOAD);
	struct link_map *map;

	return libc != NULL && dlinfo(libc, RTLD_DI_LINKMAP, &map) == 0 &&
	       realpath(map->l_name, real) != NULL;
}

/* The loader finds the C library, which it has loaded, by this path, in which it may fill in something. */
static bool is_found(const char *path)
{
	void *found = dlopen(path, RTLD_LAZY | RTLD_NOLOAD);

	if (found != NULL)
		dlclose(found);
	return found != NULL;
}

/* What our loader fills in for $LIB; NULL: not known. */
static const char *value_of_lib(void)
{
	static const char *const values[] = {"lib/" MULTIARCH, "lib64", "lib"};
	char real[PATH_MAX], path[PATH_MAX], other[PATH_MAX];

	if (!find_libc(real) || !is_found("/$LIB/libc.so.6"))
		return NULL;
	for (size_t i = 0; i < sizeof(values) / sizeof(values[0]); i++) {
		snprintf(path, sizeof(path), "/%s/libc.so.6", values[i]);
		if (realpath(path, other) != NULL && strcmp(other, real) == 0)
			return values[i];
	}
	return NULL;
}

/*
 * FASTWRITE_LIB may have $LIB in it.  Then each loader looks in the directory of its own architecture, and
 * one of 32 bits may find a library without content (docs/operations.md).  False: it has not.
 */
static bool fill_in_lib(const char *given, char *out)
{
	const char *at = strstr(given, "$LIB"), *value = at != NULL ? value_of_lib() : NULL;

	return value != NULL &&
	       snprintf(out, PATH_MAX, "%.*s%s%s", (int)(at - given), given, value, at + 4) < PATH_MAX;
}

bool cli_find_library(const char *root, char *out)
{
	static const char *const places[] = {"/usr/local/lib/libfastwrite.so",
	                                     "/usr/local/lib64/libfastwrite.so", "/usr/lib/libfastwrite.so",
	                                     "/usr/lib64/libfastwrite.so",
	                                     "/usr/lib/" MULTIARCH "/libfastwrite.so"};
	const char *given = getenv("FASTWRITE_LIB");
	char filled[PATH_MAX];

	if (given != NULL && *given != '\0') {
		if (fill_in_lib(given, filled))
			given = filled;
		if ((*root == '\0' || *given == '/') && is_library_below(root, given, out))
			return true;
		cli_error("FASTWRITE_LIB = \"%s\": cannot be read: %m; give the path of libfastwrite.so",
		          given);
		return false;
	}
	if (*root == '\0' && find_beside(out))
		return true;
	for (size_t i = 0; i < sizeof(places) / sizeof(places[0]); i++) {
		if (is_library_below(root, places[i], out))
			return true;
	}
	cli_error("libfastwrite.so is neither beside the command nor in lib or lib64 of /usr/local "
	          "and /usr, or in /usr/lib/" MULTIARCH "; name it with FASTWRITE_LIB=/path/libfastwrite.so");
	return false;
}

/*
 * Both C libraries' loaders read LD_PRELOAD.  musl's ends a program when it can open a library that was built
 * for glibc, but it passes over a path that does not exist, and does not fill in $LIB.  So an entry with $LIB
 * in it lets programs of musl start, and they pass it on to programs of glibc.
 */
#define GLIBC_ONLY "/$LIB/../../../../../.."
_Static_assert(CLI_PRELOAD_MAX >= PATH_MAX + sizeof(GLIBC_ONLY), "an entry fits");

/* Does that lead to the root directory?  Only if our own C library is found that way. */
static bool can_hide_from_musl(void)
{
	char real[PATH_MAX], path[PATH_MAX + sizeof(GLIBC_ONLY)];

	if (!find_libc(real))
		return false;
	snprintf(path, sizeof(path), GLIBC_ONLY "%s", real);
	return is_found(path);
}

/* `library` is what FASTWRITE_LIB names, with $LIB in it: the entry is as it was given. */
static bool is_given_with_lib(const char *library)
{
	const char *given = getenv("FASTWRITE_LIB");
	char filled[PATH_MAX], real[PATH_MAX];

	return given != NULL && fill_in_lib(given, filled) &&
	       (strcmp(filled, library) == 0 ||
	        (realpath(filled, real) != NULL && strcmp(real, library) == 0));
}

bool cli_preload_entry(const char *library, char *out)
{
	if (strpbrk(library, ": ") != NULL) {
		cli_error(
			"%s: the loader cannot preload from a path with a blank or ':'; move the library or "
			"link to it",
			library);
		return false;
	}
	if (is_given_with_lib(library) && strpbrk(getenv("FASTWRITE_LIB"), ": ") == NULL) {
		snprintf(out, CLI_PRELOAD_MAX, "%s", getenv("FASTWRITE_LIB"));
		return true;
	}
	snprintf(out, CLI_PRELOAD_MAX, "%s%s", can_hide_from_musl() ? GLIBC_ONLY : "", library);
	return true;
}
