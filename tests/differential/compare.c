// SPDX-License-Identifier: Apache-2.0
/* compare: two trees must hold the same names, kinds, sizes, links, modes, times that were set, and bytes. */
#include "machine.h"

#include <dirent.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { RECENT = 1600000000 };

static int by_name(const struct dirent **one, const struct dirent **other)
{
	return strcmp((*one)->d_name, (*other)->d_name);
}

static int visible(const struct dirent *entry) { return entry->d_name[0] != '.'; }

static int differ(const char *path, const char *what, long one, long other)
{
	printf("%s: %s: natively %ld, with the library %ld\n", path, what, one, other);
	return 1;
}

static int same_link(const char *one, const char *other)
{
	char targets[2][PATH_MAX] = {{0}};

	if (readlink(one, targets[0], PATH_MAX - 1) < 0 || readlink(other, targets[1], PATH_MAX - 1) < 0 ||
	    strcmp(targets[0], targets[1]) != 0)
		return differ(one, "target of a symbolic link", 0, 0);
	return 0;
}

static int same_bytes(const char *one, const char *other)
{
	static unsigned char parts[2][65536];
	int fd1 = open(one, O_RDONLY), fd2 = open(other, O_RDONLY);
	long at = 0;
	int r = 0;

	if (fd1 < 0 || fd2 < 0)
		r = differ(one, "cannot be opened", fd1, fd2);
	while (r == 0) {
		ssize_t n = read(fd1, parts[0], sizeof parts[0]), m = read(fd2, parts[1], sizeof parts[1]);

		if (n != m) {
			r = differ(one, "cannot be read", n, m);
			break;
		}
		if (n <= 0)
			break;
		if (memcmp(parts[0], parts[1], (size_t)n) != 0) {
			long i = 0;

			while (parts[0][i] == parts[1][i])
				i++;
			printf("%s: first difference at %ld\n", one, at + i);
			r = 1;
		}
		at += n;
	}
	close(fd1);
	close(fd2);
	return r;
}

static int same_file(const char *one, const char *other)
{
	struct stat a, b;

	if (lstat(one, &a) < 0 || lstat(other, &b) < 0)
		return differ(one, "cannot be looked at", errno, errno);
	if (a.st_mode != b.st_mode)
		return differ(one, "mode", a.st_mode, b.st_mode);
	if (S_ISDIR(a.st_mode))
		return compare(one, other);
	if (a.st_nlink != b.st_nlink)
		return differ(one, "links", (long)a.st_nlink, (long)b.st_nlink);
	if (S_ISLNK(a.st_mode))
		return same_link(one, other);
	if (a.st_size != b.st_size)
		return differ(one, "size", (long)a.st_size, (long)b.st_size);
	if (a.st_mtim.tv_sec != b.st_mtim.tv_sec && (a.st_mtim.tv_sec < RECENT || b.st_mtim.tv_sec < RECENT))
		return differ(one, "time", a.st_mtim.tv_sec, b.st_mtim.tv_sec);
	return same_bytes(one, other);
}

int compare(const char *one, const char *other)
{
	struct dirent **ones, **others;
	int n = scandir(one, &ones, visible, by_name), m = scandir(other, &others, visible, by_name);
	int r = 0;

	if (n < 0 || m < 0)
		return differ(one, "no directory", n, m);
	for (int i = 0; r == 0 && (i < n || i < m); i++) {
		char paths[2][PATH_MAX];

		if (i >= n || i >= m || strcmp(ones[i]->d_name, others[i]->d_name) != 0) {
			printf("%s: natively there is %s, with the library %s\n", one,
			       i < n ? ones[i]->d_name : "nothing", i < m ? others[i]->d_name : "nothing");
			r = 1;
			break;
		}
		snprintf(paths[0], PATH_MAX, "%s/%s", one, ones[i]->d_name);
		snprintf(paths[1], PATH_MAX, "%s/%s", other, others[i]->d_name);
		r = same_file(paths[0], paths[1]);
	}
	for (int i = 0; i < n; i++)
		free(ones[i]);
	for (int i = 0; i < m; i++)
		free(others[i]);
	free(ones);
	free(others);
	return r;
}
