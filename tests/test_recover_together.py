# SPDX-License-Identifier: Apache-2.0
"""A program that starts while another one recovers waits, and finds the file complete."""

from __future__ import annotations

import contextlib
import fcntl
import os
import select
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

import pytest
from lib.recovery_lab import COUNT, LINE, Lab, actions, lines
from lib.support import disk_dir, preload_env, run_preloaded, too_slow, wait_for

LEAVE = Path(__file__).resolve().parent / "kill" / "leave.c"
LINES = 1000
BREAK = Path("/proc/sys/fs/lease-break-time")
READER = """
#include <fcntl.h>
#include <stdio.h>
#include <sys/stat.h>
#include <unistd.h>
int main(int argc, char **argv)
{
	struct stat st;
	int fd = open(argv[1], O_RDWR);
	if (fd < 0 || argc != 2 || write(1, "open\\n", 5) != 5 || fstat(fd, &st) != 0)
		return 9;
	printf("%lld\\n", (long long)st.st_size);
	return 0;
}
"""

# At 1 on standard input a thread opens the first file.  Then the main thread opens the other one: at 3 itself, at 4
# with O_TRUNC; or at 2 it forks, and at 3 the child does.
BESIDE = """
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>
static void *opens(void *path)
{
	close(open(path, O_RDWR));
	return NULL;
}
static int look(const char *path, int flags)
{
	struct stat st;
	if (fstat(open(path, O_RDWR | flags), &st) != 0)
		return 1;
	dprintf(1, "%lld\\n", (long long)st.st_size);
	return 0;
}
int main(int argc, char **argv)
{
	pthread_t thread;
	int status = 9;
	char byte;
	if (argc != 3 || write(1, "ready\\n", 6) != 6 || read(0, &byte, 1) != 1 || byte != '1')
		return 9;
	if (pthread_create(&thread, NULL, opens, argv[1]) != 0 || read(0, &byte, 1) != 1)
		return 9;
	if (byte == '2' && fork() == 0)
		_exit(write(1, "forked\\n", 7) == 7 && read(0, &byte, 1) == 1 ? look(argv[2], 0) : 1);
	if (byte == '3' || byte == '4')
		status = look(argv[2], byte == '4' ? O_TRUNC : 0);
	else
		wait(&status);
	pthread_join(thread, NULL);
	return status;
}
"""

# Stages for the first file.  At 1 on standard input it opens the other one, and its first use of that recovers what a
# dead process has left there.
OPENER = """
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
int main(int argc, char **argv)
{
	char line[100];
	struct stat st;
	int fd = argc == 3 ? open(argv[1], O_WRONLY | O_APPEND) : -1;
	memset(line, 'x', sizeof line);
	for (int i = 0; i < 20; i++)
		if (write(fd, line, sizeof line) != sizeof line)
			return 9;
	if (write(1, "staged\\n", 7) != 7 || getchar() != '1')
		return 9;
	return fstat(open(argv[2], O_RDWR), &st) != 0;
}
"""


def openers(path: Path) -> int:
    """How many other processes have it open."""
    count = 0
    for pid in os.listdir("/proc"):
        if not pid.isdigit() or int(pid) == os.getpid():
            continue
        try:
            count += any(
                os.readlink(f"/proc/{pid}/fd/{fd}") == str(path) for fd in os.listdir(f"/proc/{pid}/fd")
            )
        except OSError:
            continue  # it ended or closed one meanwhile, or is somebody else's
    return count


def is_open_elsewhere(path: Path) -> bool:
    return openers(path) > 0


def test_an_open_waits_for_a_recovery(library, compile_c):
    with disk_dir() as place:
        log = place / "log"
        run = run_preloaded(
            library, [compile_c(LEAVE.read_text()), "append", "kill", 0, LINES, log], place, lag_ms=60000
        )
        assert run.returncode == -9, run.stderr
        assert log.stat().st_size < LINES * 100, "nothing was staged"
        (arena,) = (place / ".fastwrite").glob("*.arena")
        with arena.open("rb") as recoverer:
            # as a process in the middle of recovering it
            fcntl.flock(recoverer, fcntl.LOCK_EX)
            reader = subprocess.Popen(
                [compile_c(READER), log],
                env=preload_env(library, f"{place}/**"),
                stdout=subprocess.PIPE,
                text=True,
            )
            wait_for(lambda: is_open_elsewhere(arena), "the start to meet the arena")
            time.sleep(0.3)  # (a program that does not wait has ended by then)
            assert reader.poll() is None
        out, _ = reader.communicate(timeout=60)
        assert (reader.returncode, out) == (0, f"open\n{LINES * 100}\n")
        assert log.stat().st_size == LINES * 100


def test_the_command_does_not_wait_for_ever_and_says_so(library, fastwrite, compile_c):
    """A recovery that is stopped: what is staged is not recovered, and status 0 would say that it is."""
    with disk_dir() as place:
        log = place / "log"
        run = run_preloaded(
            library, [compile_c(LEAVE.read_text()), "append", "kill", 0, LINES, log], place, lag_ms=60000
        )
        assert run.returncode == -9, run.stderr
        (arena,) = (place / ".fastwrite").glob("*.arena")
        with arena.open("rb") as recoverer:
            fcntl.flock(recoverer, fcntl.LOCK_EX)
            done = subprocess.run(
                [fastwrite, "recover", place], capture_output=True, text=True, timeout=300, check=False
            )
        assert done.returncode == 1, done
        assert "another recovery is at work on it, or stopped" in done.stderr, done
        assert log.stat().st_size < LINES * 100, "nothing was left to recover"


def test_a_living_arena_is_not_waited_for(library, compile_c):
    with disk_dir() as place:
        log = place / "log"
        owner = subprocess.Popen(
            [compile_c(LEAVE.read_text()), "append", "pause", "0", str(LINES), log],
            env=preload_env(library, f"{place}/**", lag_ms=60000),
            stdout=subprocess.PIPE,
            text=True,
        )
        try:
            assert owner.stdout.readline() == "ready\n"
            begin = time.monotonic()
            run = run_preloaded(library, [compile_c(READER), log], place)
            assert run.returncode == 0
            took = time.monotonic() - begin
            assert took < 8, too_slow(took, "it waited as if for a recovery")
        finally:
            owner.terminate()
            owner.wait()


@pytest.fixture
def short_break():
    """Unanswered leases end sooner than after 45 s, but later than most waiting does."""
    if not os.access(BREAK, os.W_OK):
        pytest.skip("the time for leases cannot be set")
    old = BREAK.read_text()
    try:
        BREAK.write_text("8")
        yield
    finally:
        BREAK.write_text(old)


def test_a_lease_that_nobody_answers_for(lab, short_break):
    """A killed flush leaves its lease on a description that an idle worker keeps open."""
    lab.leave()
    with lab.target.open("r+b") as held:
        # (told by no signal)
        fcntl.fcntl(held, fcntl.F_SETSIG, signal.SIGURG)
        fcntl.fcntl(held, fcntl.F_SETLEASE, fcntl.F_WRLCK)
        assert actions(lab.recover()) == ["recovered"]
    assert lab.target.read_bytes() == lines(0, COUNT)


def leave_staged(library, compile_c, log: Path) -> Path:
    """A dead program's arena with lines for this file."""
    leave = [compile_c(LEAVE.read_text()), "append", "kill", 0, LINES, log]
    run = run_preloaded(library, leave, log.parent, lag_ms=60000)
    assert run.returncode == -9, run.stderr
    assert log.stat().st_size < LINES * 100, "nothing was staged"
    (arena,) = (log.parent / ".fastwrite").glob("*.arena")
    return arena


@contextlib.contextmanager
def beside_a_recovery(
    library, compile_c, *names: str
) -> Iterator[tuple[subprocess.Popen, list[Path], Path, BinaryIO]]:
    """BESIDE, in which a thread waits for the recovery of the first arena; the files, that arena, what holds it up."""
    with disk_dir() as place:
        logs = [place / name for name in names]
        for log in logs:
            log.parent.mkdir(exist_ok=True)
        with subprocess.Popen(
            [compile_c(BESIDE, "-pthread"), *logs],
            env=preload_env(library, ":".join(f"{log.parent}/**" for log in logs)),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            bufsize=0,
        ) as process:
            # (its start, too, would recover what it finds)
            assert process.stdout.readline() == b"ready\n"
            arenas = [leave_staged(library, compile_c, log) for log in dict.fromkeys(logs)]
            with arenas[0].open("rb") as recoverer:
                fcntl.flock(recoverer, fcntl.LOCK_EX)
                process.stdin.write(b"1")
                wait_for(lambda: is_open_elsewhere(arenas[0]), "the thread to meet the arena")
                yield process, logs, arenas[0], recoverer


def test_a_child_forked_during_a_recovery_recovers(library, compile_c):
    with beside_a_recovery(library, compile_c, "one/log", "two/log") as (process, logs, _, recoverer):
        process.stdin.write(b"2")
        assert process.stdout.readline() == b"forked\n"
        recoverer.close()
        process.stdin.write(b"3")
        assert process.stdout.readline() == b"%d\n" % (LINES * 100)
        assert process.wait(60) == 0, process.stderr.read()
        assert [log.stat().st_size for log in logs] == [LINES * 100] * 2


@pytest.mark.parametrize("how", [b"3", b"4"], ids=["plain", "truncating"])
@pytest.mark.parametrize("other", ["one/log", "two/log"])
def test_an_open_waits_for_the_recovery_of_another_thread(library, compile_c, how, other):
    """(an open looks at all rules' directories, the first one's first)"""
    size = LINES * 100 if how == b"3" else 0
    with beside_a_recovery(library, compile_c, "one/log", other) as (process, logs, arena, recoverer):
        process.stdin.write(how)
        ended = select.poll()
        ended.register(process.stdout, select.POLLIN)
        wait_for(lambda: openers(arena) == 2 or ended.poll(0), "the other thread to meet the arena")
        recoverer.close()
        assert process.stdout.readline() == b"%d\n" % size
        assert process.wait(60) == 0, process.stderr.read()
        assert [log.stat().st_size for log in logs] == [
            size if log == logs[1] else LINES * 100 for log in logs
        ]
        assert not [arena for log in logs for arena in (log.parent / ".fastwrite").glob("*.arena")]


def has_lease(path: Path) -> bool:
    inode = path.stat().st_ino
    return any(
        "LEASE" in line and line.split()[5].endswith(f":{inode}")
        for line in Path("/proc/locks").read_text().splitlines()
    )


def test_a_program_killed_during_a_recovery_leaves_no_lease(library, compile_c):
    """The process that recovers goes on; it keeps nothing open that the program had open."""
    with disk_dir() as place:
        mine, other = (place / name / "log" for name in ("one", "two"))
        for log in (mine, other):
            log.parent.mkdir()
        mine.touch()
        with subprocess.Popen(
            [compile_c(OPENER), mine, other],
            env=preload_env(library, f"{mine.parent}/**:{other.parent}/**", lag_ms=60000, sync="journal"),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        ) as program:
            try:
                assert program.stdout.readline() == "staged\n"
                assert has_lease(mine)
                leave = [compile_c(LEAVE.read_text()), "append", "kill", 0, LINES, other]
                run = run_preloaded(library, leave, place, paths=f"{other.parent}/**", lag_ms=60000)
                assert run.returncode == -9, run.stderr
                (arena,) = (place / "two" / ".fastwrite").glob("*.arena")
                with arena.open("rb") as recoverer:
                    # as a process in the middle of recovering it
                    fcntl.flock(recoverer, fcntl.LOCK_EX)
                    program.stdin.write("1")
                    program.stdin.flush()
                    wait_for(lambda: is_open_elsewhere(arena), "the open to meet the arena")
                    program.kill()
                    program.wait(60)
                    # (with a lease on it, this would be refused for 45 s)
                    os.close(os.open(mine, os.O_RDONLY | os.O_NONBLOCK))
            finally:
                program.kill()
        wait_for(lambda: not arena.exists(), "the recovery to end")
        assert other.stat().st_size == LINES * 100


LOOKS = r"""
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>
int main(int argc, char **argv)
{
	int fd = open(argv[1], O_RDWR), how = atoi(argv[2]);
	struct statx stx = {0};
	struct stat st = {0};
	char *map, *end;
	(void)argc;
	if (fd < 0)
		return 1;
	switch (how) {
	case 0: fstat(fd, &st); break;
	case 1: fstatat(fd, "", &st, AT_EMPTY_PATH); break;
	case 2: statx(fd, "", AT_EMPTY_PATH, STATX_SIZE, &stx); break;
	case 3: syscall(SYS_fstat, fd, &st); break;
	case 4: syscall(SYS_newfstatat, fd, "", &st, AT_EMPTY_PATH); break;
	case 5: syscall(SYS_statx, fd, "", AT_EMPTY_PATH, STATX_SIZE, &stx); break;
	case 6:
		map = mmap(NULL, 1 << 16, PROT_READ, MAP_SHARED, fd, 0);
		end = map == MAP_FAILED ? map : memchr(map, 0, 1 << 16);
		st.st_size = end ? end - map : -1;
	}
	printf("%lld\n", (long long)st.st_size + (long long)stx.stx_size);
	return 0;
}
"""


@pytest.mark.parametrize(
    "how", ["fstat", "fstatat", "statx", "number-fstat", "number-fstatat", "number-statx", "mmap"]
)
@pytest.mark.parametrize("pattern", ["/**/log", "{}/**"])
def test_what_a_dead_process_left_is_seen_through_a_descriptor(lab: Lab, compile_c, how, pattern):
    """Staging lies beside the file, and no rule says where: the first call looks there, the open does not."""
    environment = {**lab.env(), "FASTWRITE_PATHS": pattern.format(lab.data)}
    command = [lab.program, "append", "kill", "0", str(COUNT), lab.target]
    subprocess.run(command, env=environment, capture_output=True, timeout=60, check=False)
    assert lab.arenas() and lab.target.stat().st_size < COUNT * LINE
    number = ["fstat", "fstatat", "statx", "number-fstat", "number-fstatat", "number-statx", "mmap"].index(
        how
    )
    done = subprocess.run(
        [compile_c(LOOKS), lab.target, str(number)],
        env=environment,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (done.returncode, done.stdout) == (0, f"{COUNT * LINE}\n"), done.stderr
