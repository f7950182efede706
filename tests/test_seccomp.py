# SPDX-License-Identifier: Apache-2.0
"""A program that lets the kernel refuse it all calls but those that it makes itself."""

from __future__ import annotations

import subprocess

import pytest
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
