// SPDX-License-Identifier: Apache-2.0
/* registry: see registry.h. */
#include "registry.h"

#include "buffer.h"
#include "log.h"
#include "sys.h"

#include <fcntl.h>

static char registry_path[PATH_MAX];

void registry_set(const char *path)
{
	if (path && log_format(registry_path, sizeof registry_path, "%s", path) + 1 >= sizeof registry_path)
		registry_path[0] = '\0'; /* no path that `run` made */
}

void registry_note(const struct arena *a)
{
	BUFFER(char, line);
	struct sys_quiet quiet;
	size_t n;
	int fd;

	if (!registry_path[0])
		return;
	fd = sys.openat(AT_FDCWD, registry_path, O_WRONLY | O_APPEND | O_CLOEXEC | O_NOFOLLOW, 0);
	if (fd < 0) {
		log_warn("cannot add to the registry %s (error %d); recover %s by hand after a crash",
		         registry_path, -fd, a->dir);
		return;
	}
	n = log_format(line, BUFFER_BYTES, "%s/%s\n", a->dir, a->name);
	sys_quiet_begin(&quiet);
	if (sys.write(fd, line, n) != (ssize_t)n)
		log_warn("cannot add to the registry %s", registry_path);
	sys_quiet_end(&quiet);
	sys.close(fd);
}
