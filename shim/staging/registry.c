// SPDX-License-Identifier: Apache-2.0
/* registry: see staging/registry.h. */
#include "staging/registry.h"

#include "base/buffer.h"
#include "base/log.h"
#include "base/sys.h"

#include <fcntl.h>
#include <string.h>
#include <sys/file.h>

static char registry_path[PATH_MAX];

void registry_set(const char *path)
{
	if (path && log_format(registry_path, sizeof registry_path, "%s", path) + 1 >= sizeof registry_path)
		registry_path[0] = '\0'; /* too long: not a path of `run` */
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

/* Does the file contain `line`, which begins and ends with a line feed? */
static bool has_line(int fd, const char *line)
{
	BUFFER(char, text);
	size_t length = strlen(line), kept = 0;
	off_t at = 0;
	ssize_t n;

	while ((n = sys.pread(fd, text + kept, BUFFER_BYTES - kept, at)) > 0) {
		size_t filled = kept + (size_t)n;

		if (memmem(text, filled, line, length))
			return true;
		/* the line may continue in the next piece */
		kept = filled < length ? filled : length;
		memmove(text, text + filled - kept, kept);
		at += n;
	}
	return false;
}

bool registry_say_once(const char *rule, int error)
{
	char line[CONFIG_NAME_MAX + 64];
	struct sys_quiet quiet;
	size_t n;
	bool said;
	int fd;

	if (!registry_path[0])
		return true;
	fd = sys.openat(AT_FDCWD, registry_path, O_RDWR | O_APPEND | O_CLOEXEC | O_NOFOLLOW, 0);
	if (fd < 0)
		return true;
	n = log_format(line, sizeof line, "\n#no staging, rule %s, error %d\n", rule, error);
	/* without the lock the message may appear twice */
	said = sys.flock(fd, LOCK_EX) == 0 && has_line(fd, line);
	sys_quiet_begin(&quiet);
	if (!said && sys.write(fd, line, n) != (ssize_t)n)
		log_warn("cannot add to the registry %s", registry_path);
	sys_quiet_end(&quiet);
	sys.close(fd);
	return !said;
}
