# SPDX-License-Identifier: Apache-2.0
"""A program that lets the kernel refuse it all calls but those that it makes itself."""

from __future__ import annotations

import re
import shutil
import subprocess

import pytest
from lib.straced import straced
from lib.support import disk_dir, run_preloaded

SETTINGS = {"adapt": "off", "lag_ms": 60000}

PROGRAM = r"""
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <unistd.h>
#define OK(name) \
	BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_##name, 0, 1), BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW)
static struct sock_filter steps[] = {
	BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
	OK(write), OK(close), OK(fsync), OK(lseek), OK(exit_group),
	BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | EPERM),
};
static struct sock_fprog filter = {sizeof steps / sizeof *steps, steps};
static int many(int fd, int n)
{
	for (int i = 0; i < n; i++)
		if (write(fd, "0123456789\n", 11) != 11)
			return errno;
	return 0;
}
static int confine(const char *how)
{
	prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0);
	if (strcmp(how, "strict") == 0)
		return prctl(PR_SET_SECCOMP, SECCOMP_MODE_STRICT);
	if (strcmp(how, "prctl") == 0)
		return prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &filter);
	if (strcmp(how, "prctl by number") == 0)
		return syscall(SYS_prctl, PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &filter, 0, 0);
	if (strcmp(how, "seccomp by number") == 0)
		return syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, 0, &filter);
	prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, NULL); /* EFAULT, if the kernel has filters */
	return 0;
}
int main(int argc, char **argv)
{
	int fd = open(argv[1], O_RDWR | O_CREAT | O_TRUNC, 0644), before = many(fd, 5000), after;
	if (confine(argv[2]) < 0)
		return 77;
	after = many(fd, 3000);
	if (strcmp(argv[2], "strict") != 0) {
		int synced = fsync(fd) ? errno : 0, later = many(fd, 3000), closed = close(fd) ? errno : 0;
		char text[80];
		int n = snprintf(text, sizeof text, "%d %d %d %d %d", before, after, synced, later, closed);
		if (write(1, text, n) != n)
			return 1;
		_exit(0);
	}
	write(1, before || after ? "failed" : "good", 6);
	syscall(SYS_exit, 0);
}
"""


@pytest.fixture
def place():
    with disk_dir() as path:
        yield path


@pytest.mark.parametrize("sync", ["fdatasync", "off", "relaxed", "journal", "ordered"])
@pytest.mark.parametrize("how", ["prctl", "prctl by number", "seccomp by number", "strict", "probe"])
def test_a_filter_ends_the_staging(library, compile_c, place, how, sync):
    program = compile_c(PROGRAM)
    native = subprocess.run(
        [program, place / "native", how], capture_output=True, text=True, timeout=60, check=False
    )
    if native.returncode == 77:
        pytest.skip("this kernel has no seccomp")
    mine = run_preloaded(
        library, [program, place / "mine", how], place, paths=f"{place}/mine", sync=sync, **SETTINGS
    )
    assert (mine.returncode, mine.stdout) == (0, native.stdout), mine.stderr
    assert (place / "mine").read_bytes() == (place / "native").read_bytes()
    if how == "probe":
        assert mine.stats.writes > 10900, "a probe of the kernel ends no staging"


# What a program may do behind its filter, which allows everything here, so that all calls are seen.
MANY_CALLS = r"""
#define _GNU_SOURCE
#include <dirent.h>
#include <fcntl.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <pthread.h>
#include <signal.h>
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/sendfile.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <unistd.h>
#define KEEP(call) \
	do { \
		if ((call) < 0) \
			perror(#call); \
	} while (0)
static struct sock_filter all[] = {BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW)};
static struct sock_fprog filter = {1, all};
static volatile int noted;
static void note(int number) { noted = number; }
static void *in_thread(void *fd)
{
	KEEP(write(*(int *)fd, "thread", 6));
	return NULL;
}
static void write_all_ways(int fd)
{
	struct iovec iov = {"vector", 6};
	char buffer[64];
	for (int i = 0; i < 20; i++)
		KEEP(write(fd, "0123456789", 10));
	KEEP(pwrite(fd, "at", 2, 5));
	KEEP(writev(fd, &iov, 1));
	KEEP(pwritev(fd, &iov, 1, 40));
	KEEP(lseek(fd, 0, SEEK_SET));
	KEEP(read(fd, buffer, sizeof buffer));
	KEEP(pread(fd, buffer, sizeof buffer, 3));
	KEEP(fsync(fd));
	KEEP(fdatasync(fd));
	KEEP(ftruncate(fd, 30));
	KEEP(fallocate(fd, 0, 0, 100));
	KEEP(fchmod(fd, 0600));
	KEEP(flock(fd, LOCK_EX));
	KEEP(flock(fd, LOCK_UN));
	KEEP(lockf(fd, F_LOCK, 0));
	KEEP(lockf(fd, F_ULOCK, 0));
	KEEP(futimes(fd, NULL));
	KEEP(syncfs(fd));
}
static void name_all_ways(const char *path)
{
	char other[200];
	struct stat st;
	snprintf(other, sizeof other, "%s.other", path);
	KEEP(stat(path, &st));
	KEEP(lstat(path, &st));
	KEEP(access(path, R_OK));
	KEEP(truncate(path, 20));
	KEEP(link(path, other));
	KEEP(unlink(other));
	KEEP(rename(path, other));
	KEEP(rename(other, path));
	KEEP(symlink(path, other));
	KEEP(unlink(other));
	KEEP(mkdir(other, 0700));
	KEEP(rmdir(other));
	KEEP(chmod(path, 0644));
}
int main(int argc, char **argv)
{
	struct sigaction action;
	char fresh[200], *const words[] = {"true", NULL};
	int fd = open(argv[1], O_RDWR | O_CREAT | O_TRUNC, 0644), second, ends[2], status;
	FILE *stream = fopen(argv[2], "w");
	pthread_t thread;
	pid_t child;
	(void)argc;
	for (int i = 0; i < 5000; i++)
		if (write(fd, "0123456789", 10) != 10 || fprintf(stream, "line %d\n", i) < 0)
			return 2;
	signal(SIGUSR2, note);
	/* (what the C library does once) */
	KEEP(pthread_create(&thread, NULL, in_thread, &fd));
	KEEP(pthread_join(thread, NULL));
	prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0);
	if (prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &filter))
		return 77;
	write_all_ways(fd);
	name_all_ways(argv[1]);
	fprintf(stream, "a last line\n");
	fclose(stream);
	snprintf(fresh, sizeof fresh, "%s.fresh", argv[1]);
	second = open(fresh, O_RDWR | O_CREAT | O_EXCL, 0644);
	write_all_ways(second);
	KEEP(sendfile(second, fd, NULL, 10));
	KEEP(copy_file_range(fd, NULL, second, NULL, 10, 0));
	KEEP(dup2(second, fd));
	KEEP(fcntl(fd, F_DUPFD, 50));
	KEEP(fcntl(fd, F_GETFL));
	KEEP(close(fd));
	KEEP(pipe(ends));
	signal(SIGUSR1, note);
	raise(SIGUSR1);
	raise(SIGUSR2);
	if (noted != SIGUSR2 || sigaction(SIGUSR2, NULL, &action) < 0 || action.sa_handler != note ||
		(action.sa_flags & SA_SIGINFO))
		return 3;
	if ((child = fork()) == 0) {
		write_all_ways(second);
		_exit(0);
	}
	KEEP(waitpid(child, &status, 0));
	if ((child = vfork()) == 0)
		_exit(0);
	KEEP(waitpid(child, &status, 0));
	KEEP(system("exit 0"));
	KEEP(posix_spawn(&child, "/bin/true", NULL, NULL, words, NULL));
	KEEP(waitpid(child, &status, 0));
	mmap(NULL, 4096, PROT_READ, MAP_SHARED, second, 0);
	stream = fopen(argv[2], "a");
	fprintf(stream, "one more\n");
	sync();
	return 0;
}
"""


def calls_behind_the_filter(lines: list[str]) -> list[list[str]]:
    """Of the program, and of each process that it forks until that starts another program: name by name."""
    began = next(i for i, line in enumerate(lines) if "PR_SET_SECCOMP" in line)
    calls: dict[str, list[str]] = {}
    for line in lines[began + 1 :]:
        process, call = line.split(maxsplit=1)
        names = calls.setdefault(process, [])
        if "execve" not in names and (name := re.match(r"(\w+)\(", call)):
            names.append(name[1])
    return list(calls.values())


@pytest.mark.skipif(shutil.which("strace") is None, reason="strace is not installed")
@pytest.mark.parametrize("sync", ["fdatasync", "journal", "ordered"])
def test_no_call_of_its_own_behind_a_filter(library, compile_c, place, sync):
    """A filter may kill for each: a native run shows which calls the program makes."""
    program = compile_c(MANY_CALLS, "-pthread")
    out = place / "native.txt"
    native = subprocess.run(
        ["strace", "-f", "-qq", "-o", out, program, place / "native", place / "native.lines"],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    if native.returncode == 77:
        pytest.skip("this kernel has no seccomp")
    assert native.returncode == 0, native.stderr
    (place / "data").mkdir()
    mine, lines = straced(
        library,
        [program, place / "data" / "mine", place / "data" / "mine.lines"],
        place,
        sync=sync,
        writers="exclusive",
        **SETTINGS,
    )
    assert calls_behind_the_filter(lines) == calls_behind_the_filter(out.read_text().splitlines())
    assert mine.stderr == native.stderr
    assert mine.stats.writes > 4000
    for name in ("", ".lines", ".fresh"):
        assert (place / "data" / f"mine{name}").read_bytes() == (place / f"native{name}").read_bytes(), name


# Threads that write while another one makes a filter for all of them.
THREADS = r"""
#define _GNU_SOURCE
#include <fcntl.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <unistd.h>
#define OK(name) \
	BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_##name, 0, 1), BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW)
enum { THREADS = 3 };
static struct sock_filter steps[] = {
	BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
	OK(write), OK(exit_group), OK(nanosleep), OK(clock_nanosleep),
	BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_KILL_PROCESS),
};
static struct sock_fprog filter = {sizeof steps / sizeof *steps, steps};
static const char *prefix;
static _Atomic long written[THREADS], failed;
static void *in_thread(void *number)
{
	long at = (long)number;
	char path[300];
	int fd;
	snprintf(path, sizeof path, "%s%ld", prefix, at);
	fd = open(path, O_WRONLY | O_CREAT | O_TRUNC, 0644);
	for (;; written[at]++)
		if (write(fd, "0123456789\n", 11) != 11)
			failed++;
	return NULL;
}
static void wait_for_writes(void)
{
	for (int i = 0; i < THREADS; i++)
		for (long begin = written[i]; written[i] < begin + 1000 && !failed;)
			usleep(1000);
}
int main(int argc, char **argv)
{
	pthread_t thread;
	(void)argc;
	prefix = argv[1];
	for (long i = 0; i < THREADS; i++)
		pthread_create(&thread, NULL, in_thread, (void *)i);
	usleep(atoi(argv[2]) * 1000);
	wait_for_writes();
	prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0);
	if (syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, SECCOMP_FILTER_FLAG_TSYNC, &filter))
		return 77;
	wait_for_writes();
	_exit(failed ? 1 : 0);
}
"""


@pytest.mark.parametrize("sync", ["fdatasync", "ordered"])
def test_threads_that_write_are_in_no_call_of_the_library_any_more(library, compile_c, place, sync):
    program = compile_c(THREADS, "-pthread")
    native = subprocess.run([program, place / "native", "1"], timeout=60, check=False)
    if native.returncode == 77:
        pytest.skip("this kernel has no seccomp")
    assert native.returncode == 0
    staged, pause_ms = 0, 20
    for _ in range(12):
        mine = run_preloaded(
            library,
            [program, place / "mine", str(pause_ms)],
            place,
            paths=f"{place}/mine*",
            sync=sync,
            **SETTINGS,
        )
        assert mine.returncode == 0, mine.stderr
        if mine.stats.writes > 1000:
            staged += 1
        else:
            pause_ms *= 2  # (on a slow disk staging begins late)
        if staged == 3:
            return
    pytest.fail("hardly anything was staged: this tests nothing")
