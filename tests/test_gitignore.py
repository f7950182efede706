# SPDX-License-Identifier: Apache-2.0
"""In a work tree of git the staging directory is ignored, and goes as it goes elsewhere."""

from __future__ import annotations

import os
import shutil
import subprocess

import pytest
from lib.support import disk_dir, leftovers, preload_env

# Writes so many lines to argv[1], then waits for the end of its input, closes and ends; argv[3]: so many times.
PROGRAM = r"""
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>
int main(int argc, char **argv)
{
	for (int t = argc > 3 ? atoi(argv[3]) : 1; t > 0; t--) {
		int fd = open(argv[1], O_WRONLY | O_CREAT | O_APPEND, 0644);
		for (int i = atoi(argv[2]); i > 0; i--)
			if (write(fd, "0123456789\n", 11) != 11)
				return 1;
		puts("ready");
		fflush(stdout);
		getchar();
		close(fd);
	}
	return 0;
}
"""


@pytest.fixture
def tree():
    """A directory for data, two levels below the top of a work tree."""
    with disk_dir() as path:
        (path / "src" / "data").mkdir(parents=True)
        if shutil.which("git"):
            subprocess.run(["git", "init", "-q", path], check=True)
        else:
            (path / ".git").mkdir()
        yield path


def start(library, compile_c, tree, *arguments, **settings) -> subprocess.Popen:
    """The program, once it has written."""
    process = subprocess.Popen(
        [compile_c(PROGRAM), *map(str, arguments)],
        cwd=tree / "src" / "data",
        env={**os.environ, **preload_env(library, f"{tree}/src/data/**", **settings)},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stdout.readline() == "ready\n"
    return process


def end(process: subprocess.Popen) -> None:
    _, err = process.communicate()
    assert (process.returncode, err) == (0, "")


def test_ignored_while_it_is_there(library, compile_c, tree):
    process = start(library, compile_c, tree, "a", 10)
    staging = tree / "src" / "data" / ".fastwrite"
    assert (staging / ".gitignore").read_text() == "*\n"
    if shutil.which("git"):
        found = subprocess.run(
            ["git", "status", "--porcelain", "-uall"], cwd=tree, capture_output=True, text=True, check=True
        )
        assert found.stdout == "?? src/data/a\n"
    end(process)
    assert not staging.exists()


def test_nowhere_else(library, compile_c, tree):
    """Neither outside of a work tree nor in a staging directory that the user has named."""
    (tree / "s").mkdir(mode=0o700)
    process = start(library, compile_c, tree, "a", 10, staging=tree / "s")
    assert [p.suffix for p in (tree / "s").iterdir()] == [".arena"]
    end(process)
    shutil.rmtree(tree / ".git")
    process = start(library, compile_c, tree, "a", 10)
    assert [p.suffix for p in (tree / "src/data/.fastwrite").iterdir()] == [".arena"]
    end(process)
    assert not leftovers(tree)


@pytest.mark.parametrize("name", ["notes", ".gitignore"])
def test_files_of_others_stay(library, compile_c, tree, name):
    staging = tree / "src" / "data" / ".fastwrite"
    process = start(library, compile_c, tree, "a", 10)
    (staging / name).write_text("*\n!keep\n")
    end(process)
    assert (staging / name).read_text() == "*\n!keep\n"
    assert (staging / ".gitignore").exists()


@pytest.mark.parametrize("how", ["command", "library"])
def test_gone_after_recovery(library, fastwrite, compile_c, tree, how):
    process = start(library, compile_c, tree, "a", 10, lag_ms=60000)
    process.kill()
    process.communicate()
    staging = tree / "src" / "data" / ".fastwrite"
    assert (staging / ".gitignore").exists()
    if how == "command":
        done = subprocess.run([fastwrite, "recover", staging], capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
    else:
        _, err = start(library, compile_c, tree, "a", 0).communicate()
        assert err.count("\n") <= 1, err
    assert (tree / "src" / "data" / "a").read_bytes() == b"0123456789\n" * 10
    assert not leftovers(tree)


def test_rmdir_of_the_program(library, compile_c, tree):
    """The directory that the program made and emptied can be removed while the arena lives."""
    made = tree / "src" / "data" / "made"
    code = f"""
import os
os.mkdir('{made}')
f = os.open('{made}/f', os.O_WRONLY | os.O_CREAT)
for i in range(5):
    os.write(f, b'x' * 100)
assert os.path.exists('{made}/.fastwrite/.gitignore')
os.unlink('{made}/f')
os.rmdir('{made}')
"""
    env = {**os.environ, **preload_env(library, f"{made}/*")}
    done = subprocess.run(["python3", "-c", code], env=env, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize(
    "rename", ["libc.rename(a, b)", "libc.renameat(-100, a, -100, b)", "libc.renameat2(-100, a, -100, b, 0)",
               "libc.syscall(by_number, -100, a, -100, b, 0)"],
)  # fmt: skip
def test_rename_onto_the_directory(library, compile_c, tree, rename):
    """A directory takes the place of one that the program emptied, while the arena lives there."""
    made = tree / "src" / "data" / "made"
    code = f"""
import ctypes, os, platform
libc = ctypes.CDLL(None, use_errno=True)
by_number = 316 if platform.machine() == 'x86_64' else 276
a, b = b'{made}-other', b'{made}'
os.mkdir(a)
os.mkdir(b)
f = os.open('{made}/f', os.O_WRONLY | os.O_CREAT)
for i in range(5):
    os.write(f, b'x' * 100)
assert os.path.exists('{made}/.fastwrite/.gitignore')
assert {rename} == -1 and os.strerror(ctypes.get_errno()) in ('Directory not empty', 'File exists')
os.unlink('{made}/f')
assert {rename} == 0, os.strerror(ctypes.get_errno())
os.rmdir(b)
"""
    env = {**os.environ, **preload_env(library, f"{made}/*")}
    done = subprocess.run(["python3", "-c", code], env=env, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")


def test_many_at_once(library, compile_c, tree):
    """Each of them makes and removes the directory again and again, under the others."""
    processes = [
        subprocess.Popen(
            [compile_c(PROGRAM), f"a{i}", "5", "1"],
            cwd=tree / "src" / "data",
            env={**os.environ, **preload_env(library, f"{tree}/src/data/**")},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
        )
        for i in range(60)
    ]
    for process in processes:
        end(process)
    assert not leftovers(tree)
    assert all((tree / f"src/data/a{i}").read_bytes() == b"0123456789\n" * 5 for i in range(60))


def test_killed_at_every_step(build_debug, compile_c, tree):
    """Whatever a killed process leaves of the directory, recovery removes it, and brings what was written."""
    library, fastwrite = build_debug / "libfastwrite.so", build_debug / "fastwrite"
    data = tree / "src" / "data"
    killed = 0
    for step in range(1, 500):
        env = preload_env(library, f"{data}/**", kill_step=step)
        done = subprocess.run(
            [compile_c(PROGRAM), data / "a", "3"], env={**os.environ, **env}, stdin=subprocess.DEVNULL,
            capture_output=True, text=True, check=False,
        )  # fmt: skip
        killed += done.returncode != 0
        found = subprocess.run([fastwrite, "recover", data], capture_output=True, text=True, check=False)
        assert found.returncode == 0 or not (data / ".fastwrite").exists(), found.stderr
        size = (data / "a").stat().st_size
        assert size % 11 == 0 and (size == 33 or done.returncode != 0)
        assert not leftovers(tree), step
        (data / "a").unlink()
        if done.returncode == 0:
            break
    assert killed > 10
