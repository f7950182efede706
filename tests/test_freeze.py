# SPDX-License-Identifier: Apache-2.0
"""A frozen file system (fsfreeze, a snapshot of a volume): who natively goes on does so, and no byte is lost."""

from __future__ import annotations

import os
import subprocess
import time

import pytest
from lib.disks import disk
from lib.support import preload_env, run_preloaded, wait_for

LINE = b"a line of the log\n"
PROGRAM = r"""
#include <errno.h>
#include <fcntl.h>
#include <linux/fs.h>
#include <stdio.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/stat.h>
#include <unistd.h>
static int lines(int fd)
{
	for (int i = 0; i < 1000; i++)
		if (write(fd, "a line of the log\n", 18) != 18)
			return -1;
	return 0;
}
/* self LOG DIRECTORY: freezes and thaws; other LOG: tells when the test may freeze, and looks at its log */
int main(int argc, char **argv)
{
	int log = open(argv[2], O_WRONLY | O_CREAT | O_APPEND, 0644);
	int directory = argc > 3 ? open(argv[3], O_RDONLY | O_DIRECTORY) : -1;
	struct stat now, root;
	if (lines(log) < 0)
		return 1;
	if (directory >= 0) {
		/* never the file system of the machine */
		if (fstat(directory, &now) < 0 || stat("/", &root) < 0 || now.st_dev == root.st_dev)
			return 2;
		if (ioctl(directory, FIFREEZE, 0) < 0)
			return errno == EOPNOTSUPP ? 3 : 4;
		sleep(3);
		if (ioctl(directory, FITHAW, 0) < 0)
			return 5;
	} else {
		char go[4];
		usleep(300000); /* (everything is flushed by then) */
		puts("ready");
		fflush(stdout);
		if (!fgets(go, sizeof go, stdin) || fstat(log, &now) < 0)
			return 6;
		printf("size %ld\n", (long)now.st_size);
		fflush(stdout);
	}
	return lines(log) < 0 || close(log) < 0;
}
"""
POLICIES = ["fdatasync", "relaxed", "off", "journal", "ordered"]


@pytest.fixture
def point(tmp_path):
    with disk("ext4", tmp_path / "disk") as path:
        assert os.path.ismount(path) and path.stat().st_dev != os.stat("/").st_dev
        try:
            yield path
        finally:
            # (also when a test has failed: what is frozen cannot be unmounted)
            subprocess.run(["fsfreeze", "-u", path], capture_output=True, check=False)


@pytest.mark.parametrize("writers", ["auto", "exclusive"])
@pytest.mark.parametrize("sync", POLICIES)
def test_the_program_freezes_and_thaws(library, compile_c, point, sync, writers):
    """A second after the last write the library gives reserved space back: it has done so before the freeze."""
    done = subprocess.Popen(
        [compile_c(PROGRAM), "self", point / "log", point],
        env={**os.environ, **preload_env(library, f"{point}/**", sync=sync, writers=writers)},
    )
    try:
        wait_for(lambda: done.poll() is not None, "the thaw", 20)
    finally:
        # (a program that hangs in the kernel ends only then)
        subprocess.run(["fsfreeze", "-u", point], capture_output=True, check=False)
        done.kill()
        done.wait()
    if done.returncode == 3:
        pytest.skip("nothing can be frozen here")
    assert done.returncode == 0
    assert (point / "log").read_bytes() == LINE * 2000


@pytest.mark.parametrize("sync", POLICIES)
def test_somebody_else_freezes(library, compile_c, point, sync):
    """The program looks at its log meanwhile, as it does natively, and writes after the thaw."""
    with subprocess.Popen(
        [compile_c(PROGRAM), "other", point / "log"],
        env={**os.environ, **preload_env(library, f"{point}/**", sync=sync)},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    ) as program:
        frozen = False
        try:
            assert program.stdout.readline() == b"ready\n"
            frozen = subprocess.run(["fsfreeze", "-f", point], check=False).returncode == 0
            time.sleep(3)
            program.stdin.write(b"go\n")
            program.stdin.flush()
            os.set_blocking(program.stdout.fileno(), False)
            wait_for(lambda: program.stdout.peek(1), "the look at the log", 10)
            assert program.stdout.readline() == b"size 18000\n"
            subprocess.run(["fsfreeze", "-u", point], check=True)
            wait_for(lambda: program.poll() is not None, "the end", 20)
        finally:
            subprocess.run(["fsfreeze", "-u", point], capture_output=True, check=False)
            program.kill()
    assert frozen
    assert program.returncode == 0
    assert (point / "log").read_bytes() == LINE * 2000


def test_the_program_stages_again_when_it_starts_anew(library, compile_c, point):
    for more in (2000, 4000):
        run = run_preloaded(library, [compile_c(PROGRAM), "self", point / "log", point], point)
        if run.returncode == 3:
            pytest.skip("nothing can be frozen here")
        assert run.returncode == 0, run.stderr
        assert run.stats.writes > 0
        assert (point / "log").stat().st_size == more * len(LINE)
