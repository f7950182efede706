# SPDX-License-Identifier: Apache-2.0
"""Several programs use one file at a time, some under the library: nothing lost, nothing out of order."""

from __future__ import annotations

import itertools
import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest
from lib.processes import Program, compile_other
from lib.support import assert_staged, clean_environment, disk_dir, preload_env

# The longer version: FASTWRITE_TEST_SCALE=20.
SCALE = int(os.environ.get("FASTWRITE_TEST_SCALE", "1"))


@pytest.fixture
def place():
    with disk_dir() as path:
        yield path


@contextmanager
def together(programs: list[Program]) -> Iterator[list[Program]]:
    """All of them ready, then all of them told to begin."""
    with ExitStack() as stack:
        running = [stack.enter_context(program) for program in programs]
        for program in running:
            assert program.hear() == "ready"
        for program in running:
            program.tell("go")
        yield running


# ---- appending ----

RECORD = re.compile(rb"(\d+) (\d+) (\d+) x+\n")


def check_appended(data: bytes, writers: dict[int, int]) -> None:
    """Every record whole and there once, those of one writer in its order."""
    following = dict.fromkeys(writers, 0)
    at = 0
    while at < len(data):
        match = RECORD.match(data, at)
        assert match, f"no record at {at}: {data[at : at + 80]!r}"
        who, number, size = (int(part) for part in match.groups())
        assert match.end() - at == size, f"record {number} of {who} is torn at {at}"
        assert number == following[who], f"{who}: {number} where {following[who]} belongs"
        following[who] += 1
        at = match.end()
    assert following == writers


@pytest.mark.parametrize(
    "settings", [{}, {"writers": "shared"}, {"mem": "1M", "block": "64K", "lag_ms": 5}], ids=str
)
@pytest.mark.parametrize("pause_us", [0, 30])
def test_eight_programs_append(library, compile_c, place, settings, pause_us):
    """One of them is not under the library."""
    program = compile_other(compile_c, "append")
    count = 3000 * SCALE
    path = place / "log"
    programs = [
        Program(library if who else None, [program, path, who, count, pause_us], place, **settings)
        for who in range(8)
    ]
    with together(programs) as running:
        for each in running:
            each.finish()
            assert "fastwrite" not in each.stderr
        check_appended(path.read_bytes(), dict.fromkeys(range(8), count))
        for each in running[1:]:
            assert_staged(each.stats, count * 50)
    assert sorted(p.name for p in place.iterdir()) == ["log"]


@pytest.mark.parametrize("visibility", ["lag", "strict"])
def test_appending_while_others_come_and_go(library, compile_c, place, visibility):
    """Alone, then not, then alone again: where an append lands is known, unknown, known."""
    program = compile_other(compile_c, "append")
    path = place / "log"
    rounds = 6 * SCALE
    with Program(library, [program, path, 0, 40000 * SCALE, 20], place, visibility=visibility) as long:
        assert long.hear() == "ready"
        long.tell("go")
        for who in range(1, rounds + 1):
            with Program(library if who % 2 else None, [program, path, who, 200, 10], place) as other:
                other.hear()
                other.tell("go")
                other.finish()
        long.finish()
        assert_staged(long.stats, 100_000)
        if visibility == "strict":
            assert long.stats.through == {"lease busy": 1}
    check_appended(path.read_bytes(), {0: 40000 * SCALE, **dict.fromkeys(range(1, rounds + 1), 200)})


# ---- writing at positions ----


@pytest.mark.parametrize("adapt", ["off", "on"])
@pytest.mark.parametrize("visibility", ["lag", "strict"])
@pytest.mark.parametrize("shimmed", [(True, True), (True, False)], ids=["both", "one"])
def test_two_programs_write_at_positions(library, compile_c, place, visibility, shimmed, adapt):
    program = compile_other(compile_c, "regions")
    count = 3000 * SCALE
    path = place / "data"
    writers = [
        Program(
            library if under else None,
            [program, "write", path, who, 2, count, 200],
            place,
            paths=path,
            visibility=visibility,
            lag_ms=20,
            adapt=adapt,
        )
        for who, under in enumerate(shimmed)
    ]
    with (
        together(writers) as running,
        Program(None, [program, "read", path, 2 * count, "mmap"], place) as mapper,
        Program(None, [program, "read", path, 2 * count, "read"], place) as reader,
    ):
        for each in running:
            each.finish()
        # what they saw while it was written
        assert int(mapper.finish()) > count // 4
        assert int(reader.finish()) > count // 4
        if visibility == "lag":
            for each, under in zip(running, shimmed, strict=True):
                if under:
                    assert_staged(each.stats, count * 50 if adapt == "off" else 1000)
    lines = [b"%08u " % n * 11 + b"\n" for n in range(2 * count)]
    assert path.read_bytes() == b"".join(lines)


# ---- locks ----


@pytest.mark.parametrize("lock", ["fcntl", "ofd", "flock", "lockf"])
@pytest.mark.parametrize("shimmed", [(True, True), (True, False), (True, True, True, False)], ids=str)
@pytest.mark.parametrize("visibility", ["lag", "strict"])
def test_hand_over_at_lock_release(library, compile_c, place, lock, shimmed, visibility):
    program = compile_other(compile_c, "counter")
    turns = 300 * SCALE
    path = place / "counter"
    path.write_bytes(b"0" * 20)
    programs = [
        Program(
            library if under else None,
            [program, path, who, turns, lock],
            place,
            visibility=visibility,
            lag_ms=60000,
        )
        for who, under in enumerate(shimmed)
    ]
    with together(programs) as running:
        for each in running:
            each.finish()
        data = path.read_bytes()
        total = turns * len(shimmed)
        assert int(data[:20]) == total
        lines = data[20:].decode().splitlines()
        assert [int(line.split()[0]) for line in lines] == list(range(1, total + 1))
        for who in range(len(shimmed)):
            assert sum(line.endswith(f" {who}") for line in lines) == turns
        if visibility == "lag":
            for each, under in zip(running, shimmed, strict=True):
                if under:
                    # who locks a file works on it with others: it is strict, and they have it open
                    assert each.stats.through.get("lease busy") or each.stats.bytes > 0, each.stats


# ---- names ----


def numbers(data: bytes) -> list[int]:
    """Of whole lines of the logger, which is all that there may be."""
    found = []
    for line in data.splitlines(keepends=True):
        assert re.fullmatch(rb"\d{8} a line of a log, as others write them, too\n", line), line
        found.append(int(line[:8]))
    return found


def rotated(path: Path) -> list[Path]:
    """Oldest first, the file itself last."""
    olds = [p for p in path.parent.iterdir() if re.fullmatch(rf"{path.name}\.\d+", p.name)]
    return [*sorted(olds, key=lambda p: -int(p.suffix[1:])), path]


class Rotation:
    """logrotate, not under the library."""

    def __init__(self, place: Path, path: Path, *options: str) -> None:
        if not shutil.which("logrotate") and not Path("/usr/sbin/logrotate").exists():
            pytest.skip("logrotate is not installed")
        self._config = place / "conf"
        self._state = place / "state"
        body = "\n".join(["rotate 100", "missingok", *options])
        self._config.write_text(f"{path} {{\n{body}\n}}\n")
        self._config.chmod(0o644)

    def turn(self) -> None:
        env = {**os.environ, "PATH": f"{os.environ['PATH']}:/usr/sbin"}
        done = subprocess.run(
            ["logrotate", "-f", "-s", self._state, self._config],
            capture_output=True,
            text=True,
            env=env,
            check=False,
        )
        assert done.returncode == 0, done.stderr


@pytest.fixture
def logs(place):
    """A directory that logrotate finds safe."""
    path = place / "logs"
    path.mkdir(mode=0o755)
    return path


def hangup(pid: int) -> tuple[str, ...]:
    return ("postrotate", f"kill -HUP {pid}", "endscript")


@pytest.mark.parametrize("visibility", ["lag", "strict"])
@pytest.mark.parametrize("how", ["a", "p"])
@pytest.mark.parametrize("option", ["create", "nocreate"])
def test_logrotate_moves(library, compile_c, place, logs, visibility, how, option):
    """The logger goes on with the file that was moved away until it is told."""
    program = compile_other(compile_c, "logger")
    path = logs / "log"
    with Program(library, [program, path, how], place, paths=f"{logs}/**", visibility=visibility) as logger:
        rotation = Rotation(place, path, option, *hangup(logger.pid))
        logger.ask("w 1000")
        for _ in range(5 * SCALE):
            logger.tell("c")
            rotation.turn()
            logger.ask("stop")
            logger.hear()
            logger.ask("w 300")
        written = int(logger.ask("w 1"))
        logger.finish()
        assert_staged(logger.stats, 1000 * 40)
    files = rotated(path)
    assert len(files) == 5 * SCALE + 1
    assert [n for f in files for n in numbers(f.read_bytes())] == list(range(written))


@pytest.mark.parametrize("visibility", ["lag", "strict"])
@pytest.mark.parametrize("how", ["a", "p"])
def test_logrotate_copies_and_truncates(library, compile_c, place, logs, visibility, how):
    """Nothing is written while it does, so nothing may be lost: staged bytes come before or after."""
    program = compile_other(compile_c, "logger")
    path = logs / "log"
    settings = {"paths": f"{logs}/**", "visibility": visibility, "lag_ms": 60000}
    with Program(library, [program, path, how], place, **settings) as logger:
        rotation = Rotation(place, path, "copytruncate")
        for _ in range(5 * SCALE):
            written = int(logger.ask("w 500"))
            rotation.turn()
            if visibility == "strict":
                assert path.stat().st_size == 0
        logger.finish()
        assert_staged(logger.stats, 2000 * 40)
    files = rotated(path)
    data = [f.read_bytes() for f in files]
    # without O_APPEND the logger goes on at its old position, behind a hole
    if how == "p":
        data = [part.replace(b"\0", b"") for part in data]
    assert [n for part in data for n in numbers(part)] == list(range(written))
    if visibility == "strict":
        assert len(numbers(data[0])) == 500


@pytest.mark.parametrize("visibility", ["lag", "strict"])
def test_logrotate_copies_and_truncates_while_writing(library, compile_c, place, logs, visibility):
    """What comes between the copy and the truncation is lost natively, too: one stretch at each rotation, and
    the copy may end in the middle of a line.  Nothing else is missing, nothing comes twice."""
    program = compile_other(compile_c, "logger")
    path = logs / "log"
    rotations = 5 * SCALE
    with Program(
        library, [program, path, "a"], place, paths=f"{logs}/**", visibility=visibility, lag_ms=20
    ) as logger:
        rotation = Rotation(place, path, "copytruncate")
        for _ in range(rotations):
            logger.ask("w 500")
            logger.tell("c")
            rotation.turn()
            logger.ask("stop")
            logger.hear()
        written = int(logger.ask("w 500"))
        logger.finish()
        assert_staged(logger.stats, 500 * 40)
    found: list[int] = []
    for f in rotated(path):
        data = f.read_bytes()
        whole = data[: data.rfind(b"\n") + 1]
        if f == path:
            assert whole == data
        found += numbers(whole)
    assert found == sorted(set(found))
    gaps = sum(b != a + 1 for a, b in itertools.pairwise(found))
    assert found[0] == 0
    assert found[-1] == written - 1
    assert gaps <= rotations


@pytest.mark.parametrize("visibility", ["lag", "strict"])
@pytest.mark.parametrize("how", ["a", "p"])
def test_unlinked_by_somebody_else(library, compile_c, place, visibility, how):
    program = compile_other(compile_c, "logger")
    path, other = place / "log", place / "other"
    settings = {"paths": f"{place}/*", "visibility": visibility, "lag_ms": 60000}
    with Program(library, [program, path, how], place, **settings) as logger:
        logger.ask("w 100")
        os.link(path, other)
        logger.ask("w 100")
        path.unlink()
        logger.ask("w 100")
        with other.open("rb") as reader:
            other.unlink()
            logger.ask("w 100")
            logger.finish()
            assert numbers(reader.read()) == list(range(400))
        assert_staged(logger.stats, 200 * 40)
    assert not [p for p in place.iterdir() if p.name != "conf"]


@pytest.mark.parametrize("visibility", ["lag", "strict"])
def test_other_names(library, compile_c, place, visibility):
    """A hard and a symbolic link, made by somebody else while bytes are staged; a move out of the rule."""
    program = compile_other(compile_c, "logger")
    inside, outside = place / "in", place / "out"
    inside.mkdir()
    outside.mkdir()
    path = inside / "log"
    settings = {"paths": f"{inside}/*", "visibility": visibility, "lag_ms": 60000}
    with Program(library, [program, path, "a"], place, **settings) as logger:
        logger.ask("w 100")
        os.link(path, outside / "hard")
        (outside / "soft").symlink_to(path)
        logger.ask("w 100")
        if visibility == "strict":
            for name in ("hard", "soft"):
                assert numbers((outside / name).read_bytes()) == list(range(200))
        path.rename(outside / "moved")
        logger.ask("w 100")
        logger.finish()
        assert_staged(logger.stats, 200 * 40)
    for name in ("hard", "moved"):
        assert numbers((outside / name).read_bytes()) == list(range(300))


def test_moved_by_somebody_else_and_killed(library, fastwrite, compile_c, place):
    """Recovery finds the file under its new name."""
    program = compile_other(compile_c, "logger")
    path = place / "log"
    with Program(library, [program, path, "a"], place, lag_ms=60000) as logger:
        logger.ask("w 200")
        path.rename(place / "log.1")
        logger.ask("w 100")
        assert (place / "log.1").stat().st_size < 100 * 40
        os.kill(logger.pid, signal.SIGKILL)
        logger.process.communicate(timeout=60)
    subprocess.run([fastwrite, "recover", place], check=True, capture_output=True)
    assert numbers((place / "log.1").read_bytes()) == list(range(300))
    assert sorted(p.name for p in place.iterdir()) == ["log.1"]


READ_BEHIND_AN_APPEND = r"""
#include <fcntl.h>
#include <stdio.h>
#include <unistd.h>
/* PATH: stages appends; after a line of standard input one more, and reads on from there */
int main(int argc, char **argv)
{
	static char buf[4096];
	int fd = open(argv[1], O_RDWR | O_APPEND | O_CREAT, 0644);
	ssize_t n;
	(void)argc;
	for (int i = 0; i < 100; i++)
		if (write(fd, "y", 1) != 1)
			return 2;
	if (write(1, "ready\n", 6) != 6 || read(0, buf, 1) != 1 || write(fd, "x", 1) != 1)
		return 3;
	n = read(fd, buf, sizeof buf);
	printf("%zd %ld\n", n, (long)lseek(fd, 0, SEEK_CUR));
	return 0;
}
"""


def test_read_behind_an_append(library, compile_c, place):
    """What others append meanwhile lies before the program's own append, and is not read behind it."""
    path = place / "q"
    env = {**os.environ, **preload_env(library, f"{place}/**", lag_ms=60000)}
    with subprocess.Popen(
        [compile_c(READ_BEHIND_AN_APPEND), path], env=env,
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
    ) as process:  # fmt: skip
        assert process.stdout.readline() == "ready\n"
        with path.open("ab") as other:
            other.write(b"o" * 1000)
        answer, _ = process.communicate("\n", timeout=30)
    assert path.stat().st_size == 1101
    assert answer == "0 1101\n"


READ_AFTER_A_CUT = """
import os, sys

fd = os.open(sys.argv[1], os.O_RDWR | os.O_CREAT | (os.O_APPEND if sys.argv[2] == "append" else 0), 0o644)
os.write(fd, b"k" * 200_000)
for value in (b"1", b"2", b"3"):
    os.write(fd, value) if sys.argv[2] == "append" else os.pwrite(fd, value, 700)
print("ready", flush=True)
sys.stdin.readline()
if sys.argv[2] == "append":
    os.write(fd, b"abc")
    print(os.pread(fd, 10, 0)[-3:])
else:
    os.pwrite(fd, b"abc", 500)
    print(os.pread(fd, 10, 100))
"""


@pytest.mark.parametrize("how", ["append", "position"])
def test_own_writes_are_read_after_a_cut(library, place, how):
    """Another program cuts the file.  What this one has staged then lies where the kernel finds no file."""
    path = place / "log"
    answers = []
    for env in ({}, preload_env(library, f"{place}/**", lag_ms=60000)):
        with subprocess.Popen(
            [sys.executable, "-c", READ_AFTER_A_CUT, path, how], env=clean_environment(**env),
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        ) as process:  # fmt: skip
            assert process.stdout.readline() == "ready\n"
            os.truncate(path, 0)
            answers.append(process.communicate("\n", timeout=30)[0])
        path.unlink()
    assert answers[0] == answers[1]
