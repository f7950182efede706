// SPDX-License-Identifier: Apache-2.0
/* fd_link: see base/fd_link.h. */
#include "base/fd_link.h"

#include "base/log.h"
#include "base/sys.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <string.h>

int fd_link_path(int fd, char *out)
{
	static const char gone[] = " (deleted)";
	char link[64];
	ssize_t n;

	log_format(link, sizeof link, "/proc/self/fd/%d", fd);
	n = sys.readlinkat(AT_FDCWD, link, out, PATH_MAX - 1);
	if (n < 0)
		return (int)n;
	out[n] = '\0';
	if (out[0] != '/')
		return -EINVAL;
	if ((size_t)n > sizeof gone && strcmp(out + n - (ssize_t)sizeof gone + 1, gone) == 0)
		return -ENOENT;
	return 0;
}

bool fd_link_is_io_uring(int fd)
{
	static const char wanted[] = "anon_inode:[io_uring]";
	char link[64], text[sizeof wanted];

	log_format(link, sizeof link, "/proc/self/fd/%d", fd);
	return sys.readlinkat(AT_FDCWD, link, text, sizeof text) == (ssize_t)sizeof wanted - 1 &&
	       memcmp(text, wanted, sizeof wanted - 1) == 0;
}

bool fd_link_has_locks(int fd)
{
	enum { MOST = 1023 }; /* without locks it has some 60 bytes */
	char text[MOST + 1];
	ssize_t n = -1;
	int info;

	log_format(text, sizeof text, "/proc/self/fdinfo/%d", fd);
	info = sys.openat(AT_FDCWD, text, O_RDONLY | O_CLOEXEC, 0);
	if (info >= 0) {
		n = sys.read(info, text, MOST);
		sys.close(info);
	}
	if (n <= 0 || n == MOST)
		return true;
	text[n] = '\0';
	return strstr(text, "lock:") != NULL;
}
