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

/* `run` may have removed it, and anyone may have put something else there.  Descriptor or -errno. */
static int open_registry(int mode)
{
	int fd =
		sys.openat(AT_FDCWD, registry_path, mode | O_APPEND | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK, 0);
	struct statx st;

	if (fd < 0)
		return fd;
	if (sys.statx(fd, "", AT_EMPTY_PATH, STATX_TYPE | STATX_UID | STATX_NLINK, &st) == 0 &&
	    S_ISREG(st.stx_mode) && st.stx_uid == sys_geteuid() && st.stx_nlink == 1)
		return fd;
	sys.close(fd);
	return -EPERM;
}

/* One line: two slashes stand for a line feed, which a path may have.  Its length. */
static size_t put_line(char *line, size_t size, const struct arena *a)
{
	BUFFER(char, path);
	size_t n = 0;

	log_format(path, BUFFER_BYTES, "%s/%s", a->dir, a->name);
	for (const char *p = path; *p; p++)
		n += *p == '\n' ? log_format(line + n, size - n, "//")
		                : log_format(line + n, size - n, "%c", *p);
	return n + log_format(line + n, size - n, "\n");
}

void registry_note(const struct arena *a)
{
	BUFFER(char, line);
	struct sys_quiet quiet;
	size_t n;
	int fd;

	if (!registry_path[0])
		return;
	fd = open_registry(O_WRONLY);
	if (fd < 0) {
		log_warn("cannot add to the registry %s (error %d); recover %s by hand after a crash",
		         registry_path, -fd, a->dir);
		return;
	}
	n = put_line(line, BUFFER_BYTES, a);
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

/* Others keep the lock for as long as they look into the file. */
static bool lock(int fd)
{
	for (int tries = 0; tries < 100; tries++) {
		if (sys.flock(fd, LOCK_EX | LOCK_NB) == 0)
			return true;
		sys_nap(1000000);
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
	fd = open_registry(O_RDWR);
	if (fd < 0)
		return true;
	n = log_format(line, sizeof line, "\n#no staging, rule %s, error %d\n", rule, error);
	/* without the lock the message may appear twice */
	said = lock(fd) && has_line(fd, line);
	sys_quiet_begin(&quiet);
	if (!said && sys.write(fd, line, n) != (ssize_t)n)
		log_warn("cannot add to the registry %s", registry_path);
	sys_quiet_end(&quiet);
	sys.close(fd);
	return !said;
}
