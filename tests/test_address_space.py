# SPDX-License-Identifier: Apache-2.0
"""A program with a limit of its address space (RLIMIT_AS) has as much of it left after a fork as without the
library."""

from __future__ import annotations

from lib.support import assert_staged, disk_dir, run_preloaded

PROGRAM = r"""
#include <fcntl.h>
#include <stdlib.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

int main(int argc, char **argv)
{
	struct rlimit limit = {1u << 30, 1u << 30};
	int fd = open(argv[1], O_WRONLY | O_CREAT | O_APPEND, 0644), status;

	if (argc != 2 || setrlimit(RLIMIT_AS, &limit))
		return 2;
	for (int i = 0; i < 100; i++)
		if (write(fd, "0123456789", 10) != 10)
			return 3;
	pid_t pid = fork();
	if (pid == 0) {
		for (int i = 0; i < 100; i++)
			if (write(fd, "0123456789", 10) != 10)
				_exit(4);
		_exit(0);
	}
	if (waitpid(pid, &status, 0) != pid || status)
		return 5;
	return malloc(850u << 20) == NULL;
}
"""


# A worker that limits itself after the fork.
WORKER = r"""
#include <fcntl.h>
#include <stdlib.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

int main(int argc, char **argv)
{
	struct rlimit limit = {256u << 20, 256u << 20};
	int fd = open(argv[1], O_WRONLY | O_CREAT | O_APPEND, 0644), status;

	for (int i = 0; i < 100; i++)
		if (argc != 2 || write(fd, "0123456789", 10) != 10)
			return 3;
	pid_t pid = fork();
	if (pid == 0)
		_exit(setrlimit(RLIMIT_AS, &limit) || malloc(64u << 20) == NULL);
	return waitpid(pid, &status, 0) != pid || status;
}
"""


def test_a_worker_limits_its_address_space(library, compile_c):
    program = compile_c(WORKER)
    with disk_dir() as place:
        run = run_preloaded(library, [program, place / "log"], place, mem="16M")
        assert run.returncode == 0, run.stderr
        assert (place / "log").read_bytes() == b"0123456789" * 100
        assert_staged(run.stats, 900)


def test_a_fork_takes_no_address_space_from_a_limited_program(library, compile_c):
    program = compile_c(PROGRAM)
    with disk_dir() as place:
        run = run_preloaded(library, [program, place / "log"], place, mem="16M")
        assert run.returncode == 0, run.stderr
        assert (place / "log").read_bytes() == b"0123456789" * 200
