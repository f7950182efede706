# SPDX-License-Identifier: Apache-2.0
"""Notices about rules that probably do not do what was meant, and how often they appear."""

from __future__ import annotations

import os
import re
import subprocess

import pytest
from lib.support import disk_dir, preload_env, run_preloaded

# argv: reason file...: makes each file one that is bypassed, and writes a line to it a thousand times.
PROGRAM = r"""
#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>
int main(int argc, char **argv)
{
	for (int a = 2; a < argc; a++) {
		int fd = open(argv[a], O_RDWR | O_CREAT | O_APPEND, 0644);

		/* needs persistent memory */
		if (strcmp(argv[1], "synchronous") == 0 &&
			(mmap(NULL, 1, PROT_READ, MAP_SHARED_VALIDATE | MAP_SYNC, fd, 0) != MAP_FAILED ||
			errno != EOPNOTSUPP))
			return 1;
		if (strcmp(argv[1], "mapped") == 0)
			mmap(NULL, 1, PROT_READ, MAP_SHARED, fd, 0);
		if (write(fd, "a\n", 2) + write(fd, "b\n", 2) != 4)
			return 1;
		if (strcmp(argv[1], "unlinked") == 0)
			unlink(argv[a]);
		if (strcmp(argv[1], "late") == 0)
			mmap(NULL, 1, PROT_READ, MAP_SHARED, fd, 0);
		if (strcmp(argv[1], "standard") == 0)
			dup2(fd, 2);
		for (int i = 0; i < 1000; i++)
			if (write(fd, "0123456789\n", 11) != 11)
				return 1;
	}
	return 0;
}
"""


@pytest.fixture
def place():
    with disk_dir() as path:
        yield path


@pytest.fixture
def run(fastwrite, place):
    """run(option..., "--", command...) under `fastwrite run`."""

    def start(*arguments: object, **env: str) -> subprocess.CompletedProcess:
        return subprocess.run(
            [fastwrite, "run", *map(str, arguments)],
            env={**os.environ, **env},
            cwd=place,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            check=False,
        )

    return start


@pytest.mark.parametrize(
    ("case", "reason"),
    [
        ("mapped", "the program has mapped it"),
        ("late", "the program has mapped it"),
        ("unlinked", "its name was removed"),
        ("synchronous", None),
        ("plain", None),
    ],
)
def test_not_staged_because(library, compile_c, place, case, reason):
    program = [compile_c(PROGRAM), case, "a", "b"]
    quiet = run_preloaded(library, program, place)
    assert (quiet.returncode, quiet.stderr) == (0, "")
    for name in "ab":
        (place / name).unlink(missing_ok=True)
    told = run_preloaded(library, program, place, log="info")
    lines = [line for line in told.stderr.splitlines() if " is bypassed: " in line]
    if reason is None:
        assert lines == []
        return
    assert len(lines) == 2, told.stderr
    for line, name in zip(lines, "ab", strict=True):
        assert line.startswith(f"fastwrite: {place}/{name}")
        assert f" is bypassed: {reason}" in line


def test_not_staged_since_it_is_standard_error(library, compile_c, place):
    """The line would go into the file itself, so it is not written at all."""
    told = run_preloaded(library, [compile_c(PROGRAM), "standard", "a"], place, log="info")
    assert told.returncode == 0
    assert " is bypassed" not in told.stderr + (place / "a").read_text()


def test_no_staging_is_said_once_for_a_job(run, compile_c, place):
    """With the kernel's error and with what to do."""
    program = compile_c(PROGRAM)
    each = " & ".join(f"'{program}' plain a{i} b{i}" for i in range(5))
    staging = place / "none" / "staging"
    done = run("-p", f"{place}/[ab]*", "-o", f"staging={staging}", "--", "sh", "-c", f"{each}; {each}; wait")
    assert done.returncode == 0
    assert done.stderr.count("\n") == 1, done.stderr
    assert f"rule env: no staging in {staging}: No such file or directory (ENOENT)" in done.stderr
    assert "make the directory that it is to be in" in done.stderr
    assert "`staging`" in done.stderr
    assert (place / "a1").stat().st_size == 2 * (4 + 11000)


def test_locked_registry_delays_no_program(run, compile_c, place):
    staging = place / "none" / "staging"
    script = f"exec 9<\"$FASTWRITE_REGISTRY\"; flock 9; timeout -s KILL 20 '{compile_c(PROGRAM)}' plain a b"
    done = run("-p", f"{place}/[ab]*", "-o", f"staging={staging}", "--", "sh", "-c", script)
    assert done.returncode == 0
    assert f"rule env: no staging in {staging}" in done.stderr


def test_no_staging_is_said_for_each_rule(run, compile_c, place):
    config = place / "fw.ini"
    config.write_text(
        f"[defaults]\nstaging = {place}/none/s\n[rule x]\npaths = {place}/a\n[rule y]\npaths = {place}/b\n"
    )
    done = run("-c", config, "--", compile_c(PROGRAM), "plain", "a", "b")
    assert re.findall(r"rule (\w): no staging", done.stderr) == ["x", "y"]


@pytest.mark.parametrize("separator", [" ", ",", ", ", " :"])
def test_separators(library, run, place, separator):
    """Blanks and commas do not separate patterns."""
    paths = f"{place}/a*{separator}{place}/b*" if separator != " :" else f"{place}/a* :{place}/b*"
    wrong = paths.split(":")[0] if separator == " :" else paths
    done = run_preloaded(library, ["true"], place, paths=paths)
    assert done.stderr.count("\n") == 1, done.stderr
    assert f'FASTWRITE_PATHS = "{wrong}"' in done.stderr
    assert "separated by ':'" in done.stderr
    done = run("-p", paths, "--", "sh", "-c", "true; /bin/true")
    assert done.stderr.count("separated by ':'") == 1
    assert done.stderr.count("\n") == 1, done.stderr


def test_blanks_and_commas_that_are_meant(library, run, place):
    (place / "My, Files").mkdir()
    for paths in (f"{place}/My, Files/**", f"{place}/a b,c/*", f"{place}/x\\ /**"):
        assert run_preloaded(library, ["true"], place, paths=paths).stderr == ""
    assert run("-p", f"{place}/My, Files/**", "--", "true").stderr == ""


def test_directory_that_does_not_exist(library, run, fastwrite, place):
    """It may be made later: the library says so at level info only."""
    paths = f"!{place}/gone/**:{place}/not/there/**:{place}/a*:{place}/nor/here/*"
    assert run_preloaded(library, ["true"], place, paths=paths).stderr == ""
    for text in (
        run("-p", paths, "--", "sh", "-c", "true; /bin/true").stderr,
        run_preloaded(library, ["true"], place, paths=paths, log="info").stderr,
    ):
        assert text.count("\n") == 1, text
        assert f"rule env: the directory {place}/not/there does not exist" in text
    (place / "not/there").mkdir(parents=True)
    (place / "nor/here").mkdir(parents=True)
    assert run("-p", paths, "--", "true").stderr == ""
    done = subprocess.run(
        [fastwrite, "config", "-p", f"{place}/gone/**"], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0
    assert f"rule env: the directory {place}/gone does not exist" in done.stderr


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root to unmount")
def test_proc_that_is_not_mounted(library, fastwrite, place):
    """As in a bare chroot: no descriptor leads to a path, and a directory that exists seems to be missing."""
    bare = ["unshare", "--mount", "sh", "-c", 'umount -l /proc && exec "$@"', "sh"]
    said = "/proc is not mounted: nothing is staged"
    for paths in (f"{place}/**", f"{place}/file"):
        library_set = ["env", *(f"{k}={v}" for k, v in preload_env(library, paths).items()), "/bin/true"]
        by_run = ["env", f"FASTWRITE_LIB={library}", fastwrite, "run", "-p", paths, "--", "/bin/true"]
        for argv in (library_set, by_run):
            done = subprocess.run(
                [*bare, *map(str, argv)], capture_output=True, text=True, timeout=60, check=False
            )
            if "umount" in done.stderr:
                pytest.skip(done.stderr)
            assert done.returncode == 0, done.stderr
            assert done.stderr.count("\n") == 1 and said in done.stderr, done.stderr


def test_output_redirected_into_a_rule(library, fastwrite, place):
    """The program gets a descriptor that was opened before its start: the file is bypassed."""
    for target, said in (("log", 1), ("other", 0)):
        for command, env in (
            ([fastwrite, "run", "-p", f"{place}/log", "--", "sh", "-c", "echo text; /bin/echo more"], {}),
            (["echo", "text"], preload_env(library, f"{place}/log", log="info")),
        ):
            with (place / target).open("a") as out:
                done = subprocess.run(
                    command,
                    env={**os.environ, **env},
                    stdout=out,
                    stderr=subprocess.PIPE,
                    text=True,
                    check=False,
                )
            assert done.returncode == 0
            assert done.stderr.count("\n") == said, done.stderr
            assert (f"standard output is {place}/log" in done.stderr) == (said == 1)
    # read only: nothing to stage
    with (place / "log").open() as source:
        done = subprocess.run(
            [fastwrite, "run", "-p", f"{place}/log", "--", "cat"],
            stdin=source,
            capture_output=True,
            text=True,
            check=False,
        )
    assert done.stderr == ""
