# SPDX-License-Identifier: Apache-2.0
"""Where the library's messages go, and where they must not."""

from __future__ import annotations

import os
import subprocess

import pytest
from lib.support import disk_dir, preload_env

PROGRAM = r"""
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>
/* descriptor HOW DATA MANAGED: puts DATA on descriptor 2, or not; its writes to MANAGED make the library speak */
static int put(const char *how, const char *data)
{
	int fd;
	if (strcmp(how, "keep") == 0)
		return 0;
	if (strcmp(how, "reopen") == 0)
		return freopen(data, "w", stderr) == NULL;
	if (strcmp(how, "dup2") == 0) {
		fd = open(data, O_WRONLY | O_CREAT | O_TRUNC, 0600);
		return dup2(fd, 2) != 2 || close(fd);
	}
	close(2);
	if (strcmp(how, "close") == 0)
		return 0;
	fd = open(data, O_RDWR | O_CREAT | O_TRUNC, 0600);
	return fd != 2;
}
int main(int argc, char **argv)
{
	int fd, writes;
	if (argc != 4 || put(argv[1], argv[2]))
		return 1;
	writes = strcmp(argv[1], "keep") && strcmp(argv[1], "close");
	if (strcmp(argv[1], "child") == 0) {
		pid_t child = fork();
		int status = 0;
		if (child > 0)
			return waitpid(child, &status, 0) < 0 || status;
	}
	fd = open(argv[3], O_WRONLY | O_CREAT, 0600);
	for (int i = 0; i < 20; i++)
		if (write(fd, "x", 1) != 1 || (writes && write(2, "data\n", 5) != 5))
			return 2;
	return 0;
}
"""
SAID = "no staging in"


@pytest.fixture(scope="module")
def program(compile_c):
    return compile_c(PROGRAM)


@pytest.fixture
def place():
    with disk_dir() as path:
        (path / "managed").mkdir()
        yield path


def run(library, program, place, how: str, data: str, **stderr):
    """Runs the program with a staging directory that cannot exist, which the library reports."""
    (place / "file").write_text("")
    env = preload_env(
        library, f"{place}/managed/**", staging=f"{place}/file/none", stats="stderr", log="debug"
    )
    return subprocess.run(
        [program, how, place / data, place / "managed/a"],
        env={**os.environ, **env},
        cwd=place,
        timeout=60,
        check=True,
        **stderr,
    )


def test_messages_go_to_standard_error(library, program, place):
    done = run(library, program, place, "keep", "none", stderr=subprocess.PIPE, text=True)
    assert SAID in done.stderr
    assert "fastwrite: pid " in done.stderr


@pytest.mark.parametrize("how", ["w", "a", "r+"])
def test_messages_go_to_the_file_that_standard_error_is(library, program, place, how):
    said = place / "said"
    said.touch()
    with said.open(how) as stderr:
        run(library, program, place, "keep", "none", stderr=stderr)
    assert SAID in said.read_text()
    assert "fastwrite: pid " in said.read_text()


@pytest.mark.parametrize("data", ["data", "managed/data"])
@pytest.mark.parametrize("how", ["replace", "child", "reopen", "dup2"])
def test_no_message_gets_into_a_file_that_got_descriptor_2(library, program, place, how, data):
    """Even if it is meant as the new standard error: it looks like any data file."""
    with (place / "said").open("w") as stderr:
        run(library, program, place, how, data, stderr=stderr)
    assert (place / data).read_text() == "data\n" * 20


def test_no_message_gets_into_a_new_file_with_the_old_one_s_number(library, program, place):
    """The file is unlinked, so that its inode is free once the program closes it."""
    said = place / "said"
    with said.open("w") as stderr:
        said.unlink()
        run(library, program, place, "replace", "data", stderr=stderr)
    assert (place / "data").read_text() == "data\n" * 20


def test_no_standard_error_at_the_start(library, program, place):
    """Then the next file with descriptor 2 belongs to the program."""
    run(library, program, place, "replace", "data", preexec_fn=lambda: os.close(2))
    assert (place / "data").read_text() == "data\n" * 20


def test_a_closed_standard_error_does_not_matter(library, program, place):
    run(library, program, place, "close", "none")
