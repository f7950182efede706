// SPDX-License-Identifier: Apache-2.0
/* memory_limit: see staging/memory_limit.h. */
#include "staging/memory_limit.h"

#include "base/buffer.h"
#include "base/log.h"
#include "base/sys.h"

#include <stdatomic.h>
#include <stdbool.h>
#include <string.h>
#include <sys/vfs.h>

enum { TMPFS = 0x01021994, RAMFS = (int)0x858458f6, TIMES = 4 };

static bool in_memory(int fd)
{
	struct statfs st;

	return sys_raw(SYS_fstatfs, fd, (long)&st, 0, 0, 0, 0) == 0 &&
	       ((unsigned)st.f_type == TMPFS || (unsigned)st.f_type == (unsigned)RAMFS);
}

/* The number in a small file.  UINT64_MAX if there is none ("max") or the file cannot be read. */
static uint64_t number_in(const char *path)
{
	uint64_t n = 0;
	char text[32];

	if (sys_read_file(path, text, sizeof text) <= 0 || text[0] < '0' || text[0] > '9')
		return UINT64_MAX;
	for (const char *c = text; *c >= '0' && *c <= '9'; c++)
		n = n * 10 + (uint64_t)(*c - '0');
	return n;
}

/* The lowest limit of the group and its parents. */
static uint64_t least_of(const char *root, char *group, const char *file)
{
	uint64_t least = UINT64_MAX;
	BUFFER(char, path);

	for (;;) {
		char *slash;
		uint64_t n;

		log_format(path, BUFFER_BYTES, "%s%s/%s", root, group, file);
		n = number_in(path);
		if (n < least)
			least = n;
		slash = strrchr(group, '/');
		if (!slash)
			return least;
		*slash = '\0';
	}
}

static uint64_t limit(void)
{
	uint64_t least = UINT64_MAX;
	BUFFER(char, text);
	char *line, *end;

	if (sys_read_file("/proc/self/cgroup", text, BUFFER_BYTES) <= 0)
		return least;
	/* version 2: 0::/GROUP, version 1: NUMBER:memory:/GROUP */
	for (line = text; (end = strchr(line, '\n')) != NULL; line = end + 1) {
		char *group;
		uint64_t n = UINT64_MAX;

		*end = '\0';
		group = strchr(line, '/');
		if (!group)
			continue;
		if (strncmp(line, "0::", 3) == 0)
			n = least_of("/sys/fs/cgroup", group, "memory.max");
		else if (strstr(line, ":memory:"))
			n = least_of("/sys/fs/cgroup/memory", group, "memory.limit_in_bytes");
		if (n < least)
			least = n;
	}
	return least;
}

void memory_limit_check(int fd, uint64_t bytes, const char *dir)
{
	static _Atomic bool said;
	uint64_t most;

	if (!in_memory(fd))
		return;
	most = limit();
	if (most / TIMES >= bytes || atomic_exchange(&said, true))
		return;
	log_warn(
		"%s is in memory: the %llu bytes of `mem` count against the limit of this control group, %llu; "
		"set `mem` to less, or `staging` to a directory on a disk",
		dir, (unsigned long long)bytes, (unsigned long long)most);
}
