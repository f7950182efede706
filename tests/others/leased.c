// SPDX-License-Identifier: Apache-2.0
/*
 * leased  works on one file as told, a line at a time, and answers each line with 0 or an errno:
 *   open NAME, close, sync, write OFFSET COUNT LETTER, read OFFSET COUNT LETTER (EBADMSG: other bytes),
 *   drop (gives the lease on the file back by a system call of its own, which no library sees)
 */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

static long raw_fcntl(long fd, long cmd, long arg)
{
	long r;
#if defined(__x86_64__)
	__asm__ volatile("syscall"
	                 : "=a"(r)
	                 : "0"(SYS_fcntl), "D"(fd), "S"(cmd), "d"(arg)
	                 : "rcx", "r11", "memory");
#else
	register long x8 __asm__("x8") = SYS_fcntl;
	register long x0 __asm__("x0") = fd;
	register long x1 __asm__("x1") = cmd;
	register long x2 __asm__("x2") = arg;

	__asm__ volatile("svc 0" : "+r"(x0) : "r"(x8), "r"(x1), "r"(x2) : "memory", "cc");
	r = x0;
#endif
	return r;
}

static char bytes[1 << 20];

static int act(int *fd, const char *word, const char *rest)
{
	long offset = 0;
	size_t count = 0;
	char letter = 0;

	if (strcmp(word, "open") == 0) {
		*fd = open(rest, O_RDWR | O_CREAT, 0644);
		return *fd < 0 ? errno : 0;
	}
	if (strcmp(word, "close") == 0)
		return close(*fd) < 0 ? errno : 0;
	if (strcmp(word, "sync") == 0)
		return fdatasync(*fd) < 0 ? errno : 0;
	if (strcmp(word, "drop") == 0)
		return (int)-raw_fcntl(*fd, F_SETLEASE, F_UNLCK);
	if (sscanf(rest, "%ld %zu %c", &offset, &count, &letter) != 3 || count > sizeof bytes)
		return EINVAL;
	if (strcmp(word, "write") == 0) {
		memset(bytes, letter, count);
		return pwrite(*fd, bytes, count, offset) == (ssize_t)count ? 0 : errno;
	}
	if (pread(*fd, bytes, count, offset) != (ssize_t)count)
		return EBADMSG;
	for (size_t i = 0; i < count; i++)
		if (bytes[i] != letter)
			return EBADMSG;
	return 0;
}

int main(void)
{
	char line[4096], word[16];
	int fd = -1, at;

	while (fgets(line, sizeof line, stdin)) {
		line[strcspn(line, "\n")] = '\0';
		if (sscanf(line, "%15s %n", word, &at) != 1)
			return 2;
		printf("%d\n", act(&fd, word, line + at));
		fflush(stdout);
	}
	return 0;
}
