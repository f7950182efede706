// SPDX-License-Identifier: Apache-2.0
/* log_file: see staging/log_file.h. */
#include "staging/log_file.h"

#include "base/buffer.h"
#include "base/internal_fd.h"
#include "base/log.h"
#include "base/sys.h"
#include "format/journal_format.h"

#include <fcntl.h>
#include <string.h>
#include <sys/vfs.h>

bool log_file_has_disk(int fd)
{
	struct statfs st;

	return sys_raw(SYS_fstatfs, fd, (long)&st, 0, 0, 0, 0) == 0 && sys_has_disk((unsigned)st.f_type);
}

/* path[BUFFER_BYTES] */
static void path_of(const struct arena *a, char *path)
{
	char name[ARENA_FILE_NAME_MAX + sizeof JOURNAL_SUFFIX];

	journal_name_of(a->name, name);
	log_format(path, BUFFER_BYTES, "%s/%s", a->dir, name);
}

int log_file_open(const struct arena *a, int flags)
{
	BUFFER(char, path);
	int fd;

	path_of(a, path);
	fd = sys.openat(AT_FDCWD, path, O_RDWR | O_DIRECT | O_NOFOLLOW | O_CLOEXEC | flags, 0600);
	return fd < 0 ? fd : internal_fd_raise(fd);
}

void log_file_remove(const struct arena *a)
{
	BUFFER(char, path);

	path_of(a, path);
	sys.unlinkat(AT_FDCWD, path, 0);
}

int log_file_sync_names(const struct arena *a)
{
	BUFFER(char, path);
	char *slash;
	int r = 0;

	log_format(path, BUFFER_BYTES, "%s", a->dir);
	slash = strrchr(path, '/');
	/* the journal's directory entry, and that of its directory, which may be new, too */
	for (int i = 0; i < 2 && r == 0; i++) {
		int fd = sys.openat(AT_FDCWD, path[0] ? path : "/", O_RDONLY | O_DIRECTORY | O_CLOEXEC, 0);

		r = fd < 0 ? fd : sys.fsync(fd);
		if (fd >= 0)
			sys.close(fd);
		if (slash)
			*slash = '\0';
	}
	return r;
}
