// SPDX-License-Identifier: Apache-2.0
/* registry: see registry.h. */
#include "registry.h"

#include "log.h"
#include "sys.h"

#include <fcntl.h>

static const char *registry_path;

void registry_set(const char *path) { registry_path = path; }

void registry_note(const struct arena *a)
{
	char line[PATH_MAX + ARENA_FILE_NAME_MAX + 2];
	size_t n;
	int fd;

	if (!registry_path || !registry_path[0])
		return;
	fd = sys.openat(AT_FDCWD, registry_path, O_WRONLY | O_APPEND | O_CLOEXEC | O_NOFOLLOW, 0);
	if (fd < 0) {
		log_warn("cannot add to the registry %s (error %d); recover %s by hand after a crash",
		         registry_path, -fd, a->dir);
		return;
	}
	n = log_format(line, sizeof line, "%s/%s\n", a->dir, a->name);
	if (sys.write(fd, line, n) != (ssize_t)n)
		log_warn("cannot add to the registry %s", registry_path);
	sys.close(fd);
}
