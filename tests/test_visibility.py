# SPDX-License-Identifier: Apache-2.0
"""What other processes see, and when: visibility = strict, and the bound of visibility = lag."""

from __future__ import annotations

import json
import os
import resource
import signal
import subprocess
import threading
from pathlib import Path

import pytest
from lib.processes import Program, compile_other
from lib.support import assert_staged, disk_dir, file_system, preload_env, wait_for

# 1,000 views of a strict file take some five seconds; FASTWRITE_TEST_TRIES=100000 for a long look.
TRIES = int(os.environ.get("FASTWRITE_TEST_TRIES", "1000"))
# With FASTWRITE_TEST_TIMING=1 the promised bound is required, on a machine that has nothing else to do.
TIMING = os.environ.get("FASTWRITE_TEST_TIMING") == "1"
LEASES = Path("/proc/sys/fs/leases-enable")


@pytest.fixture
def place():
    with disk_dir() as path:
        if file_system(path) in {"nfs", "cifs", "fuseblk"} or LEASES.read_text().strip() != "1":
            pytest.skip(f"no leases on {file_system(path)}")
        yield path


def look(library, program, place: Path, how: str, pause_us: int, opener: str, tries: int, **settings):
    """One shimmed writer, one opener without the library; the opener's counts and the writer's statistics."""
    table = place / "table"
    paths = f"{place}/data"
    with (
        Program(
            library,
            [program, "write", table, place / "data", how, pause_us],
            place,
            paths=paths,
            adapt="off",
            **settings,
        ) as w,
        Program(None, [program, "open", table, place / "data", tries, opener], place) as o,
    ):
        counts = [int(number) for number in o.finish(timeout=120 + tries / 20).split()]
        written = int(w.finish())
        stats = w.stats
        assert "fastwrite:" not in w.stderr
    data = (place / "data").read_bytes()
    assert len(data) == written * 64
    assert data == b"".join(b"%012d " % n * 4 + (b"%012d " % n)[:11] + b"\n" for n in range(written))
    return counts, stats


@pytest.mark.parametrize(
    ("how", "pause_us", "opener"),
    [
        ("a", 20, "r"),
        ("", 20, "r"),
        ("a", 0, "r"),
        ("p", 0, "r"),
        ("d", 20, "w"),
        ("a", 20, "n"),
        ("", 20, "m"),
    ],
)
def test_strict_views_are_never_stale(library, compile_c, place, how, pause_us, opener):
    program = compile_other(compile_c, "openers")
    counts, stats = look(library, program, place, how, pause_us, opener + "s", TRIES, visibility="strict")
    tries, behind, stale, again, longest = counts
    print(f"{tries} tries, {behind} while bytes were staged, longest open {longest} us, {again} times EAGAIN")
    assert tries >= TRIES
    assert stale == 0
    # the library did stage, and who opened came in between
    assert behind >= TRIES // 2
    assert_staged(stats, TRIES * 64)
    assert stats.through == {"lease busy": 1}
    assert (again > 0) == (opener == "n")


def test_lag_views_are_stale(library, compile_c, place):
    """That the measure measures: without strict the same opener does miss bytes."""
    program = compile_other(compile_c, "openers")
    (tries, behind, stale, _, _), stats = look(library, program, place, "a", 20, "r", 100, lag_ms=1000)
    assert behind > tries // 2
    assert stale > 0
    assert_staged(stats)


def test_strict_after_fork(library, compile_c, place):
    """A child shares the description, which the kernel does not take for somebody else's."""
    program = compile_other(compile_c, "openers")
    counts, stats = look(library, program, place, "af", 20, "r", 50, visibility="strict")
    assert counts[2] == 0
    assert_staged(stats, 64)
    assert stats.through.get("fork", 0) >= 1


def test_strict_while_forking(library, compile_c, place):
    """Another thread forks all the time; the file is opened anew, so that it is staged between two forks."""
    program = compile_other(compile_c, "openers")
    counts, stats = look(library, program, place, "ak", 50, "r", TRIES // 2, visibility="strict")
    assert counts[2] == 0
    assert counts[1] > 0
    assert_staged(stats, TRIES)


WRITER = r"""
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>
/* commands by lines: "w N" writes N records, "o" opens the file by a raw system call, "s" by stdio */
int main(int argc, char **argv)
{
	int fd = open(argv[1], O_WRONLY | O_CREAT | O_APPEND, 0644);
	char line[100], record[101];

	(void)argc;
	if (fd < 0)
		return 1;
	while (fgets(line, sizeof line, stdin)) {
		long size = 0;

		if (line[0] == 'w') {
			for (int i = 0, n = atoi(line + 2); i < n; i++, size += 100) {
				memset(record, 'a' + i % 26, 99);
				record[99] = '\n';
				if (write(fd, record, 100) != 100)
					return 2;
			}
		} else if (line[0] == 'o') {
			int again = (int)syscall(SYS_openat, AT_FDCWD, argv[1], O_RDONLY, 0);

			size = syscall(SYS_lseek, again, 0, SEEK_END);
			syscall(SYS_close, again);
		} else {
			FILE *again = fopen(argv[1], "r");

			while (again && fgetc(again) != EOF)
				size++;
			fclose(again);
		}
		printf("%ld\n", size);
		fflush(stdout);
	}
	return close(fd) != 0;
}
"""


def start_writer(library, compile_c, place: Path, **settings) -> Program:
    return Program(library, [compile_c(WRITER), place / "data"], place, paths=f"{place}/data", **settings)


def arena_of(fastwrite, pid: int) -> dict:
    told = json.loads(subprocess.run([fastwrite, "status", "--json"], capture_output=True, check=True).stdout)
    (arena,) = [a for a in told["arenas"] if a["pid"] == pid]
    return arena


def test_status_names_the_lease(library, fastwrite, compile_c, place):
    with start_writer(library, compile_c, place, visibility="strict", lag_ms=60000) as w:
        assert w.ask("w 50") == "5000"
        arena = arena_of(fastwrite, w.pid)
        assert arena["files"][0]["lease"] == "held"
        assert arena["files"][0]["staged_bytes"] == 4900
        assert arena["through"] == {}
        with (place / "data").open("rb") as reader:
            assert len(reader.read()) == 5000
            assert w.ask("w 10") == "1000"
            arena = arena_of(fastwrite, w.pid)
            assert arena["files"][0]["lease"] == "busy"
            assert arena["files"][0]["staged_bytes"] == 0
            assert arena["through"] == {"lease busy": 1}
            assert len(reader.read()) == 1000
            text = subprocess.run([fastwrite, "status"], capture_output=True, text=True, check=True).stdout
            assert "lease busy, " in text
            assert "bypassed lease busy: 1" in text

        def leased() -> bool:
            w.ask("w 1")
            return arena_of(fastwrite, w.pid)["files"][0]["lease"] == "held"

        wait_for(leased, "a lease")
        w.finish()


@pytest.mark.parametrize("command", ["o", "s"])
def test_strict_opened_by_itself_where_it_is_not_seen(library, compile_c, place, command):
    with start_writer(library, compile_c, place, visibility="strict", lag_ms=60000) as w:
        assert w.ask("w 50") == "5000"
        assert (place / "data").stat().st_size < 5000
        assert w.ask(command) == "5000"
        w.finish()
        assert_staged(w.stats, 4000)


def test_strict_truncate_by_somebody_else(library, compile_c, place):
    """truncate(2) breaks a lease as an open does: what was staged goes with the rest."""
    with start_writer(library, compile_c, place, visibility="strict", lag_ms=60000) as w:
        w.ask("w 50")
        os.truncate(place / "data", 0)
        assert (place / "data").stat().st_size == 0
        w.ask("w 3")
        w.finish()
    assert (place / "data").stat().st_size == 300


def test_strict_stopped_holder_keeps_openers_waiting(library, compile_c, place):
    seen: list[int] = []
    with start_writer(library, compile_c, place, visibility="strict", lag_ms=60000) as w:
        w.ask("w 50")
        w.process.send_signal(signal.SIGSTOP)
        with pytest.raises(BlockingIOError):
            os.close(os.open(place / "data", os.O_RDONLY | os.O_NONBLOCK))
        opener = threading.Thread(target=lambda: seen.append(len((place / "data").read_bytes())))
        opener.start()
        opener.join(0.3)
        assert opener.is_alive()
        w.process.send_signal(signal.SIGCONT)
        opener.join(60)
        assert seen == [5000]
        w.finish()


def test_strict_holder_killed_under_run(library, fastwrite, compile_c, place):
    """The kernel drops the lease with the process; recovery follows at once."""
    settings = [word for one in ("visibility=strict", "lag_ms=60000", "adapt=off") for word in ("-o", one)]
    command = [fastwrite, "run", "-p", f"{place}/data", *settings, "--"]
    with Program(None, [*command, compile_c(WRITER), place / "data"], place) as w:
        assert w.ask("w 50") == "5000"
        assert (place / "data").stat().st_size < 5000
        children = Path(f"/proc/{w.pid}/task/{w.pid}/children").read_text().split()
        os.kill(int(children[0]), signal.SIGKILL)
        w.process.communicate(timeout=60)
    assert (place / "data").stat().st_size == 5000
    assert not (place / ".fastwrite").exists()


def test_recovery_into_a_leased_file(library, fastwrite, compile_c, place):
    """What a dead process left goes into a file for which a living one has bytes staged under a lease."""
    lag = {"visibility": "lag", "lag_ms": 60000}
    with start_writer(library, compile_c, place, visibility="strict", lag_ms=60000) as living:
        assert living.ask("w 3") == "300"
        with start_writer(library, compile_c, place, **lag) as dead:
            assert dead.ask("w 50") == "5000"
            dead.process.kill()
            dead.process.communicate()
        assert (place / "data").stat().st_size < 5000
        while arena_of(fastwrite, living.pid)["files"][0]["lease"] != "held":
            living.ask("w 1")
        done = subprocess.run([fastwrite, "recover", place], capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout + done.stderr
        assert "recovered" in done.stdout
        living.finish()
        assert_staged(living.stats, 100)
    data = (place / "data").read_bytes()
    # those of the dead one first, one after the other; "a" begins each of the living one's
    runs = b"".join(bytes([97 + i % 26]) * 99 + b"\n" for i in range(50))
    assert runs in data


def test_no_lease_is_said_once(library, place):
    """Leases are for a file's owner: others' files are written through."""
    if os.geteuid() != 0:
        pytest.skip("needs root, to be somebody else")
    place.chmod(0o777)
    text = "import os; fd = os.open('{}', os.O_WRONLY); [os.write(fd, b'x' * 100) for _ in range(50)]"
    for name in ("one", "two"):
        (place / name).touch()
        (place / name).chmod(0o666)
    script = "; ".join(text.format(place / name) for name in ("one", "two"))
    env = preload_env(library, f"{place}/*", visibility="strict")
    somebody = ["setpriv", "--reuid", "65534", "--clear-groups", "env", *[f"{k}={v}" for k, v in env.items()]]
    done = subprocess.run(
        [*somebody, "/usr/bin/python3", "-c", script], capture_output=True, text=True, cwd="/", check=False
    )
    if "cannot be preloaded" in done.stderr:
        pytest.skip("the library is not readable for others here")
    assert done.returncode == 0, done.stderr
    assert done.stderr.count("no lease can be had on") == 1, done.stderr
    assert f"{place}/one: it belongs to another user" in done.stderr
    assert (place / "one").read_bytes() == (place / "two").read_bytes() == b"x" * 5000


# ---- lag ----

LAG_RUNS = {
    # files, pause in us, busy threads, settings
    "one": (1, 1000, 0, {}),
    "short": (5, 1000, 0, {"lag_ms": 10}),
    "twenty": (20, 2000, 0, {}),
    "hundred": (100, 5000, 0, {}),
    "load": (20, 2000, 2, {}),
    "load-small": (20, 2000, 2, {"mem": "2M"}),
    "thousand": (1000, 20000, 0, {"mem": "512M"}),
    "strict": (20, 2000, 1, {"visibility": "strict"}),
}


@pytest.mark.parametrize("name", LAG_RUNS)
def test_lag(library, compile_c, place, name):
    """Bytes become visible without the writer doing anything more, and in time."""
    files, pause_us, busy, settings = LAG_RUNS[name]
    program = compile_other(compile_c, "lag")
    table = place / "table"
    data = place / "data"
    data.mkdir()
    descriptors = max(1024, 4 * files)
    if resource.getrlimit(resource.RLIMIT_NOFILE)[1] < descriptors:
        pytest.skip(f"{descriptors} descriptors are not allowed")
    prefix = ["prlimit", f"--nofile={descriptors}", program]
    write = [*prefix, "write", table, data, files, pause_us, 30000 if TIMING else 1500, busy]
    with (
        Program(library, write, place, paths=f"{data}/*", **settings) as w,
        Program(None, [*prefix, "watch", table, data, files], place) as o,
    ):
        worst_us, looks, behind = (int(number) for number in o.finish().split())
        w.finish()
        stats = w.stats
    lag_ms = int(settings.get("lag_ms", 100))
    print(f"worst {worst_us / 1000} ms; {looks} looks, {behind} of them behind; {stats}")
    assert looks > 100
    if name != "strict":  # the watcher has all of them open
        assert behind > 10
        assert_staged(stats, 1000)
    # how late a loaded machine may be is no question of this test, that bytes come by themselves is
    assert worst_us <= (lag_ms + (50 if TIMING else 30000)) * 1000
