# SPDX-License-Identifier: Apache-2.0
"""The master of a prefork server is killed while a worker is idle.  Recovery writes what the master staged while the
worker lives, and whatever the worker does later is right (shim/format/takeover_format.h)."""

from __future__ import annotations

import fcntl
import json
import os
import random
import signal
import struct
import subprocess
import time
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest
from lib.held import Held, start_held
from lib.support import disk_dir, preload_env

LONG = os.environ.get("FASTWRITE_TEST_LONG") == "1"
ROUNDS = 200 if LONG else 40
STRIDE = 1 if LONG else 3
RECORD, STAGED, NEWER = 20, 40, 10
HANGS = 300  # seconds; ends only what hangs
GATES, KEEPERS = 1 << 40, 1 << 41
"""Bytes of an arena that processes of the family lock (takeover_format.h)."""

COMMON = r"""
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static int open_in(const char *dir, const char *name, int flags)
{
	char path[512];
	snprintf(path, sizeof path, "%s/%s", dir, name);
	int fd = open(path, flags, 0600);
	if (fd < 0) {
		perror(path);
		_exit(3);
	}
	return fd;
}

static void put(int fd, char who, unsigned n, long at)
{
	char record[21];
	snprintf(record, sizeof record, "%c%018u\n", who, n);
	if ((at < 0 ? write(fd, record, 20) : pwrite(fd, record, 20, at * 20)) != 20) {
		perror("write");
		_exit(4);
	}
}

static long size_of(int fd)
{
	struct stat st;
	return fstat(fd, &st) ? -1 : (long)st.st_size;
}
"""

SERVER = (
    COMMON
    + r"""
/* The master stages and waits; its worker does what it is told. */
int main(int argc, char **argv)
{
	setvbuf(stdout, NULL, _IOLBF, 0);
	int a = open_in(argv[1], "a", O_RDWR | O_CREAT | O_APPEND), b = open_in(argv[1], "b", O_RDWR | O_CREAT);
	int before = atoi(argv[2]), after = atoi(argv[3]);
	for (int i = 0; i < before; i++) {
		put(a, 'P', i, -1);
		put(b, 'P', i, -1);
	}
	int ready[2];
	char c = 0;
	pid_t pid = pipe(ready) ? -1 : fork();
	if (pid == 0) {
		char line[64], text[21] = "";
		long n, got;
		/* its next write to what the master stages need not take the slow path */
		if (argc > 4) {
			put(a, 'F', 0, -1);
			put(b, 'F', 0, -1);
		}
		if (write(ready[1], &c, 1) != 1)
			return 2;
		while (fgets(line, sizeof line, stdin)) {
			n = atol(line + 1);
			switch (line[0]) {
			case 'a': put(a, 'W', n, -1); break;
			case 'b': put(b, 'W', n, -1); break;
			case 'o': put(b, 'W', n, n); break;
			case 'A': for (long i = 0; i < n; i++) put(a, 'W', i, -1); break;
			case 'B': for (long i = 0; i < n; i++) put(b, 'W', i, -1); break;
			case 'r':
				got = pread(b, text, 20, n * 20);
				printf("%ld %.19s\n", got, text);
				break;
			case 's': printf("%ld %ld\n", size_of(a), size_of(b)); break;
			case 'p': printf("%ld %ld\n", (long)lseek(a, 0, SEEK_CUR), (long)lseek(b, 0, SEEK_CUR)); break;
			case 'c': close(a), close(b); break;
			case 'q': return 0;
			}
			printf(".\n");
		}
		return 0;
	}
	if (read(ready[0], &c, 1) != 1)
		return 2;
	if (argc > 4)
		size_of(a), size_of(b);
	for (int i = before; i < before + after; i++) {
		put(a, 'P', i, -1);
		put(b, 'P', i, -1);
	}
	printf("staged %d %d\n", (int)getpid(), (int)pid);
	pause();
	return 0;
}
"""
)

BACKUP = (
    COMMON
    + r"""
#include <glob.h>
/* Stages and reads its own arena, as a backup of the directory does; that drops its POSIX locks on the arena.
 * Stages more when it is told to. */
int main(int argc, char **argv)
{
	int a = open_in(argv[1], "a", O_RDWR | O_CREAT | O_APPEND), count = atoi(argv[3]);
	char line[512];
	glob_t found;

	(void)argc;
	if (strcmp(argv[2], "family") == 0 && fork() == 0) /* a child that stays */
		pause();
	for (int i = 0; i < count; i++)
		put(a, 'P', i, -1);
	snprintf(line, sizeof line, "%s/.fastwrite/*.arena", argv[1]);
	if (glob(line, 0, NULL, &found))
		return 2;
	close(open(found.gl_pathv[0], O_RDONLY));
	printf("staged\n");
	fflush(stdout);
	if (!fgets(line, sizeof line, stdin))
		return 2;
	for (int i = count; i < 2 * count; i++)
		put(a, 'P', i, -1);
	printf("staged\n");
	fflush(stdout);
	pause();
	return 0;
}
"""
)

NEWER_MASTER = (
    COMMON
    + r"""
int main(int argc, char **argv)
{
	int a = open_in(argv[1], "a", O_RDWR | O_APPEND), b = open_in(argv[1], "b", O_RDWR), count = atoi(argv[2]);
	(void)argc;
	printf("%ld %ld\n", size_of(a), size_of(b));
	for (int i = 0; i < count; i++) {
		put(a, 'N', i, -1);
		put(b, 'N', i, i);
	}
	if (fdatasync(a) || fdatasync(b))
		return 5;
	return 0;
}
"""
)

CASES = {
    "default": {},
    "buffered": {"flush": "buffered"},
    "shared": {"writers": "shared"},
    "exclusive": {"writers": "exclusive"},
    "relaxed": {"sync": "relaxed", "prealloc_mode": "off"},
}


def records(who: str, count: int, first: int = 0) -> list[bytes]:
    return [f"{who}{n:018}\n".encode() for n in range(first, first + count)]


def content(path: Path) -> list[bytes]:
    data = path.read_bytes()
    return [data[at : at + RECORD] for at in range(0, len(data), RECORD)]


class Server:
    """A master, its worker, and the directory that they write to."""

    def __init__(self, server, newer, library, command, place, settings, parts) -> None:
        self.newer_program, self.command, self.place = newer, command, place
        settings = {"mem": "1M", "block": "64K", "lag_ms": 60000, **settings}
        self.env = dict(os.environ)
        if library:
            self.env.update(preload_env(library, f"{place}/**", **settings))
        self.said: list[str] = []
        with open(place / "stderr", "wb") as err:
            self.process = subprocess.Popen(
                [server, place, *map(str, parts)],
                env=self.env,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=err,
                text=True,
                bufsize=1,
            )
        word, *pids = self.process.stdout.readline().split()
        assert word == "staged", (place / "stderr").read_text()
        self.master, self.worker = map(int, pids)

    def kill_master(self) -> None:
        os.kill(self.master, signal.SIGKILL)
        self.process.wait()

    def send(self, line: str) -> None:
        self.process.stdin.write(line + "\n")
        self.process.stdin.flush()

    def answer(self) -> list[str]:
        lines = []
        while (line := self.process.stdout.readline().strip()) != ".":
            assert line, f"the worker ended: {(self.place / 'stderr').read_text()}"
            lines.append(line)
        self.said += lines
        return lines

    def ask(self, line: str) -> list[str]:
        self.send(line)
        return self.answer()

    def newer(self, count: int = NEWER) -> subprocess.CompletedProcess:
        done = subprocess.run(
            [self.newer_program, self.place, str(count)],
            env=self.env,
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        return done

    def recover(self, command: Path | None = None, **env: str) -> tuple[int, dict]:
        done = subprocess.run(
            [command or self.command, "recover", "--json", self.place],
            env={**os.environ, **env},
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        return done.returncode, json.loads(done.stdout) if done.returncode in (0, 1) else {"err": done.stderr}

    def arena(self) -> Path:
        (arena,) = (self.place / ".fastwrite").glob("*.arena")
        return arena

    def end(self, line: str = "q") -> None:
        """The worker ends."""
        if line == "kill":
            os.kill(self.worker, signal.SIGKILL)
        else:
            self.send(line)
        assert self.process.stdout.read() == ""
        self.process.stdin.close()
        self.process.stdout.close()


@contextmanager
def serve(rig, settings=None, parts=(2, STAGED - 2), *, native=False, place=None):
    server, newer, library, command = rig
    with disk_dir() as place:
        s = Server(server, newer, None if native else library, command, place, settings or {}, parts)
        try:
            yield s
        finally:
            for pid in (s.master, s.worker):
                try:
                    os.kill(pid, signal.SIGKILL)
                except ProcessLookupError:
                    continue
            s.process.wait()


@pytest.fixture
def rig(library, fastwrite, compile_c):
    return compile_c(SERVER), compile_c(NEWER_MASTER), library, fastwrite


def assert_staged(s: Server) -> None:
    assert (s.place / "a").stat().st_size < STAGED * RECORD, "nothing was staged: this tests nothing"


def assert_final(s: Server, newer: int = NEWER) -> None:
    where = (s.place / "stderr").read_text()
    assert content(s.place / "a") == records("P", STAGED) + records("N", newer), where
    assert content(s.place / "b") == records("N", newer) + records("P", STAGED - newer, newer), where


@pytest.mark.parametrize("end", ["q", "kill"])
@pytest.mark.parametrize("case", CASES)
def test_new_master_beside_an_idle_worker(rig, case, end):
    """A new master finds everything, and when the worker ends no old bytes overwrite its new ones."""
    with serve(rig, CASES[case]) as s:
        assert_staged(s)
        s.kill_master()
        done = s.newer()
        assert done.stdout.split() == [str(STAGED * RECORD)] * 2, done.stderr
        assert "of a process that died" in done.stderr
        assert_final(s)
        s.end(end)
        assert_final(s)
        code, report = s.recover()
        assert code == 0 and report["bytes"] == 0, report
        assert_final(s)
        assert not (s.place / ".fastwrite").exists()


@pytest.mark.parametrize("parts", [(STAGED, 0), (2, STAGED - 2), (0, STAGED)])
def test_command_recovers_beside_an_idle_worker(rig, parts):
    """Bytes staged before the fork or after it, or in files attached after it."""
    with serve(rig, {}, parts) as s:
        assert_staged(s)
        s.kill_master()
        code, report = s.recover()
        assert code == 0, report
        assert report["recovered"] == 2 and report["live"] == 1, report
        assert content(s.place / "a") == content(s.place / "b") == records("P", STAGED)
        code, report = s.recover()
        assert code == 0 and report["recovered"] == 0, report
        s.newer()
        s.end()
        assert_final(s)


def test_dry_run_changes_nothing(rig):
    with serve(rig) as s:
        s.kill_master()
        before = (s.place / "a").read_bytes()
        done = subprocess.run(
            [s.command, "recover", "--json", "--dry-run", s.place], capture_output=True, text=True, check=True
        )
        report = json.loads(done.stdout)
        assert report["recovered"] == 2 and report["bytes"] > 0, report
        assert (s.place / "a").read_bytes() == before
        assert s.recover()[1]["bytes"] == report["bytes"]


def test_living_master_is_left_alone(rig):
    with serve(rig) as s:
        before = (s.place / "a").stat().st_size
        code, report = s.recover()
        assert code == 0 and report["live"] == 1 and report["recovered"] == 0, report
        assert (s.place / "a").stat().st_size == before


@pytest.mark.parametrize("family", ["alone", "family"])
def test_a_program_that_reads_its_arena_is_not_taken_for_dead(library, fastwrite, compile_c, family):
    """The close of any descriptor of a file drops the process's POSIX locks on it: the keeper's lock, too.
    When the program does die, what it staged is recovered all the same."""
    settings = {"mem": "1M", "block": "64K", "lag_ms": 60000}

    def recover() -> None:
        done = subprocess.run(
            [fastwrite, "recover", place], capture_output=True, text=True, timeout=HANGS, check=False
        )
        assert done.returncode == 0, done

    with (
        disk_dir() as place,
        subprocess.Popen(
            [compile_c(BACKUP), place, family, str(STAGED)],
            env={**os.environ, **preload_env(library, f"{place}/**", **settings)},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            start_new_session=True,
        ) as process,
    ):
        try:
            assert process.stdout.readline() == "staged\n"
            before = (place / "a").stat().st_size
            assert before < STAGED * RECORD, "nothing was staged: this tests nothing"
            recover()
            if family == "alone":
                assert (place / "a").stat().st_size == before
            process.stdin.write("go on\n")
            process.stdin.flush()
            assert process.stdout.readline() == "staged\n"
            assert (place / "a").stat().st_size < 2 * STAGED * RECORD, "nothing was staged the second time"
            process.kill()
            process.wait()
            recover()
            assert content(place / "a") == records("P", 2 * STAGED)
        finally:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)


WAKES = {
    "appends": ["p", "s", "a0", "a1", "p", "s", "r3"],
    "at-its-position": ["b0", "p", "b1", "s", "r40", "r41"],
    "at-offsets": ["o2", "o3", "o50", "s", "r2", "r45", "r50"],
    "reads": ["r0", "r9", "r10", "r39", "r40", "p"],
    "all": ["a0", "b0", "o1", "r1", "a1", "s", "p", "b1", "o30", "r30", "s", "c"],
}


@pytest.mark.parametrize("wake", WAKES)
@pytest.mark.parametrize("case", ["default", "shared", "buffered"])
def test_worker_goes_on(rig, case, wake):
    """The same as natively, to the byte."""
    ran = []
    for native in (True, False):
        with serve(rig, CASES[case], native=native) as s:
            s.kill_master()
            s.newer()
            for line in WAKES[wake]:
                s.ask(line)
            s.newer(3)
            s.ask("s")
            s.end()
            ran.append((s.said, content(s.place / "a"), content(s.place / "b")))
            if not native:
                assert s.recover()[1]["bytes"] == 0
    assert ran[0] == ran[1]


def test_any_interleaving(rig):
    """The worker wakes at any moment around the take-over, and once more beside the new master."""
    recovered = 0
    for n in range(ROUNDS):
        chance = random.Random(n)
        case = chance.choice(list(CASES))
        parts = (chance.choice([0, 2, 20]), chance.randrange(0, 3000))
        count = sum(parts)
        if count < 20:
            parts, count = (20, 20), 40
        with serve(rig, {**CASES[case], "lag_ms": chance.choice([2, 60000])}, parts) as s:
            s.kill_master()
            other = subprocess.Popen(
                [s.command, "recover", s.place] if chance.random() < 0.5 else [s.newer_program, s.place, "0"],
                env=s.env if chance.random() < 0.5 else os.environ,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
            )
            appended = at_end = 0
            time.sleep(chance.random() * 0.04)
            for _ in range(chance.randrange(1, 30)):
                if chance.random() < 0.5:
                    s.send(f"a{appended}")
                    appended += 1
                else:
                    s.send(f"b{at_end}")
                    at_end += 1
                s.answer()
                if chance.random() < 0.2:
                    time.sleep(chance.random() * 0.01)
            assert other.wait(60) == 0
            s.end(chance.choice(["q", "kill"]))
            recovered += s.recover()[1]["bytes"] == 0
            where = f"round {n}: {case} {parts}: {(s.place / 'stderr').read_text()}"
            assert content(s.place / "a") == records("P", count) + records("W", appended), where
            assert content(s.place / "b") == records("P", count) + records("W", at_end), where
    assert recovered > 0


def is_seal(name: str, arguments: tuple[int, ...]) -> bool:
    futex_wake_op = 5  # living.c sets the seal by it
    return name == "futex" and arguments[1] == futex_wake_op


@pytest.mark.parametrize("case", ["default", "exclusive"])
def test_worker_writes_while_it_is_sealed(rig, case):
    """The worker writes as fast as it can into the dead master's open block: after the seal nothing is published.

    The recoverer is held before the seal until the worker writes.  Rounds in which the worker has ended all the
    same do not count."""
    begun, count, wanted, beside = 500, 150_000, ROUNDS // 4, 0
    for n in range(30 * wanted):
        which = random.Random(n).choice("ab")
        with serve(rig, {**CASES[case], "mem": "64M", "block": "4M"}, (2, STAGED - 2, "beside")) as s:
            assert_staged(s)
            s.kill_master()
            other, held = start_held(
                [s.command, "recover", "--json", s.place], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
            )
            held.until(is_seal)
            s.send(f"{which.upper()}{begun}\n{which.upper()}{count}")
            s.answer()
            held.release()
            report = json.loads(other.communicate(timeout=HANGS)[0])
            s.answer()
            s.end()
            before = STAGED + 1 + begun
            beside += any(before * RECORD < e["bytes"] < (before + count) * RECORD for e in report["events"])
            for name in "ab":
                expected = records("P", 2) + records("F", 1) + records("P", STAGED - 2, 2)
                if name == which:
                    expected += records("W", begun) + records("W", count)
                assert content(s.place / name) == expected, f"round {n}: {name} {report}"
        if beside == wanted:
            break
    print(f"{beside} of {n + 1} times the worker was sealed in the middle")
    assert beside == wanted, "the worker was not sealed in the middle"


@pytest.mark.parametrize("wakes", [False, True])
@pytest.mark.parametrize("case", ["default", "exclusive"])
def test_recoverer_is_killed(rig, build_debug, case, wakes):
    """The recoverer is killed at each marked step.  Then the worker goes on, or the next process recovers."""
    step, deaths = 1, 0
    while True:
        with serve(rig, CASES[case]) as s:
            s.kill_master()
            code, said = s.recover(build_debug / "fastwrite", FASTWRITE_KILL_STEP=str(step))
            where = f"step {step}: {said}"
            extra = 0
            if wakes:
                s.ask("a0")
                s.ask("s")  # or a living process keeps it staged for `lag_ms`
                extra = 1
            again, report = s.recover()
            assert again == 0, f"{where}: {report}"
            s.newer()
            s.end()
            s.recover()
            expected = records("P", STAGED) + records("W", extra) + records("N", NEWER)
            assert content(s.place / "a") == expected, where
            expected = records("N", NEWER) + records("P", STAGED - NEWER, NEWER)
            assert content(s.place / "b") == expected, where
            if code != -signal.SIGKILL:
                assert code == 0, where
                break
        deaths += 1
        step += STRIDE
    assert deaths > 5, "the recovery passes too few steps"


MANY_STEPS = (
    COMMON
    + r"""
#include <signal.h>
#include <sys/wait.h>

/* The first child is killed at a marked step, then its master; the second child knows nothing, until it is to end. */
int main(int argc, char **argv)
{
	(void)argc;
	char c = 0;
	int a = open_in(argv[1], "a", O_RDWR | O_CREAT | O_APPEND), b = open_in(argv[1], "b", O_RDWR | O_CREAT);
	int go[2], status;
	for (int i = 0; i < 10; i++) {
		put(a, 'P', i, -1);
		put(b, 'P', i, -1);
	}
	if (pipe(go))
		return 2;
	pid_t first = fork();
	if (first == 0) {
		if (read(go[0], &c, 1) != 1)
			return 2;
		for (unsigned i = 10; i < 60; i++) {
			put(a, 'P', i, -1);
			if (write(1, "a", 1) != 1)
				return 2;
			put(b, 'P', i, -1);
			if (write(1, "b", 1) != 1)
				return 2;
			if (i % 20 == 15)
				fdatasync(a), fdatasync(b);
			if (i % 20 == 18)
				pwrite(b, "P00", 3, 0);
		}
		kill(getpid(), SIGKILL);
	}
	if (fork() == 0) {
		close(go[1]);
		if (read(0, &c, 1) < 0)
			return 2;
		_exit(0);
	}
	if (write(go[1], &c, 1) != 1 || waitpid(first, &status, 0) < 0)
		return 2;
	kill(getpid(), SIGKILL);
}
"""
)


# (with writers = auto the dead may leave a lease to the idle worker, which the kernel takes back after 45 s)
@pytest.mark.parametrize("case", ["shared", "exclusive", *(["default"] if LONG else [])])
def test_killed_in_the_middle_of_its_work(build_debug, fastwrite, compile_c, case):
    """A process of the family dies at a marked step: with the file lock, the flush token, half of an append."""
    program = compile_c(MANY_STEPS)
    step, deaths, brought = 1, 0, 0
    while True:
        settings = {"mem": "1M", "block": "64K", "lag_ms": 60000, "adapt": "off", **CASES[case]}
        with disk_dir() as place:
            env = {**os.environ, **preload_env(build_debug / "libfastwrite.so", f"{place}/**", **settings)}
            with subprocess.Popen(
                [program, place],
                env={**env, "FASTWRITE_KILL_CHILD_STEP": str(step)},
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
            ) as process:
                assert process.wait(60) == -signal.SIGKILL
                os.set_blocking(process.stdout.fileno(), False)
                said = process.stdout.read() or b""
                done = subprocess.run(
                    [fastwrite, "recover", "--json", place], capture_output=True, text=True, check=False
                )
                where = f"step {step}: {done.stdout}{done.stderr}"
                assert done.returncode == 0, where
                brought += json.loads(done.stdout)["bytes"] > 0
                before = [content(place / name) for name in "ab"]
                for name, found in zip("ab", before, strict=True):
                    told = 10 + said.count(name.encode())
                    assert told <= len(found) <= told + 1, f"{name}: {told} told, {where}"
                    assert found == records("P", len(found)), f"{name}: {where}"
                process.stdin.close()
                process.stdout.read()
            time.sleep(0.01)
            subprocess.run([fastwrite, "recover", place], capture_output=True, check=True)
            assert before == [content(place / name) for name in "ab"], where
            if said.count(b"a") == 50 and said.count(b"b") == 50:
                break
        deaths += 1
        step += STRIDE * 2
    assert deaths > 10 and brought > 5, f"{deaths} deaths, {brought} recoveries"


def test_flusher_that_is_stopped_is_not_overtaken(rig):
    """A process that holds a file's gate keeps it, and recovery names it."""
    with serve(rig) as s:
        s.kill_master()
        with s.arena().open("r+b") as arena:
            for slot in range(2):
                fcntl.lockf(arena, fcntl.LOCK_EX, 1, GATES + slot)
            before = [(s.place / name).read_bytes() for name in "ab"]
            code, report = s.recover()
            assert code == 1 and report["failed"] == 2, report
            failed = [event for event in report["events"] if event["action"] == "failed"]
            assert len(failed) == 2 and all(event["bytes"] > 0 for event in failed), report
            assert all(f"(pid {os.getpid()})" in event["detail"] for event in failed), report
            done = s.newer(0)
            assert f"(pid {os.getpid()})" in done.stderr
            assert before == [(s.place / name).read_bytes() for name in "ab"]
        code, report = s.recover()
        assert code == 0 and report["recovered"] == 2, report
        assert content(s.place / "a") == content(s.place / "b") == records("P", STAGED)


def has_gate(pid: int) -> bool:
    locks = [line.split() for line in Path("/proc/locks").read_text().splitlines()]
    return any(
        lock[1] == "POSIX" and int(lock[4]) == pid and GATES <= int(lock[6]) < KEEPERS for lock in locks
    )


def test_worker_that_is_stopped_in_a_flush_is_not_overtaken(rig):
    """A stopped process is left alone and named, and goes on where it was."""
    count = 90_000
    with serve(rig, {"mem": "64M", "block": "4M", "flush": "buffered"}, (2, count)) as s:
        s.kill_master()
        held = Held(s.worker)
        s.send("s")
        held.until(lambda name, _: name.startswith("pwrite") and has_gate(s.worker))
        size = {name: (s.place / name).stat().st_size for name in "ab"}
        assert min(size.values()) < count * RECORD
        code, report = s.recover()
        failed = [event for event in report["events"] if event["action"] == "failed"]
        assert code == 1 and len(failed) == 1, report
        assert f"(pid {s.worker}) holds " in failed[0]["detail"], report
        target = Path(failed[0]["target"]).name
        assert (s.place / target).stat().st_size == size[target]
        held.release()
        s.answer()
        assert s.recover()[0] == 0
        for name in "ab":
            assert content(s.place / name) == records("P", count + 2)


def test_members_lock_what_they_keep(rig):
    """A forged keeper in the arena does not count: the kernel says which process lives."""

    def kept(s: Server, member: int) -> bool:
        with s.arena().open("rb") as arena:
            query = struct.pack("hhqqi4x", fcntl.F_WRLCK, os.SEEK_SET, KEEPERS + member, 1, 0)
            f_ofd_getlk = 36
            return struct.unpack("hhqqi4x", fcntl.fcntl(arena, f_ofd_getlk, query))[0] != fcntl.F_UNLCK

    with serve(rig) as s:
        assert kept(s, 0) and not kept(s, 1)
        s.ask("a0")
        assert kept(s, 0) and kept(s, 1)
        s.kill_master()
        assert not kept(s, 0) and kept(s, 1)
