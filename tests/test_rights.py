# SPDX-License-Identifier: Apache-2.0
"""Programs that change their ids: staged bytes and shared memory belong to the ids that wrote them."""

from __future__ import annotations

import fcntl
import os
import random
import re
import stat
import struct
import subprocess
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest
from lib.recovery_lab import CHECKED_BYTES, Lab, actions, as_user, lines, root_only
from lib.support import (
    assert_staged,
    disk_dir,
    leftovers,
    parse_stats,
    preload_env,
    run_native,
    run_preloaded,
    too_slow,
)

USER, OTHER = 1001, 1002
# Divides a page: where a kill cuts a write at a page, as the kernel does, the cut lies between two records.
RECORD = 32
ROUNDS = 100 if os.environ.get("FASTWRITE_TEST_LONG") == "1" else 6

COMMON = r"""
#define _GNU_SOURCE
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <grp.h>
#include <linux/capability.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/fsuid.h>
#include <sys/mman.h>
#include <sys/ptrace.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>
#define MUST(call) \
	do { \
		if (!(call)) { \
			dprintf(2, "line %d: %s: %s\n", __LINE__, #call, strerror(errno)); \
			_exit(9); \
		} \
	} while (0)
enum { RECORD = 32 };
int capset(cap_user_header_t, const cap_user_data_t);
static void put(int fd, char who, unsigned from, unsigned count)
{
	char text[RECORD + 1];
	for (unsigned i = from; i < from + count; i++) {
		snprintf(text, sizeof text, "%c%030u\n", who, i);
		MUST(write(fd, text, RECORD) == RECORD);
	}
}
/* A test that fails must not wait for ever. */
__attribute__((constructor)) static void limit_time(void) { alarm(20); }
/* Shared memory that this process can write to, and descriptors of arenas. */
static int maps = -1;
static int shared_memory(void)
{
	static char text[1 << 18];
	char link[64], *line, *next;
	ssize_t n, size = 0;
	int found = 0;
	if (maps < 0)
		maps = open("/proc/self/maps", O_RDONLY);
	MUST(maps >= 0);
	while ((n = read(maps, text + size, sizeof text - 1 - size)) > 0)
		size += n;
	MUST(size > 0);
	text[size] = 0;
	for (line = strtok_r(text, "\n", &next); line; line = strtok_r(NULL, "\n", &next))
		if (strstr(line, "rw-s")) {
			dprintf(2, "shared: %s\n", line);
			found++;
		}
	for (int fd = 0; fd < 1024; fd++) {
		snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
		n = readlink(link, text, 4096);
		text[n > 0 ? n : 0] = 0;
		if (strstr(text, ".fastwrite") || strstr(text, "memfd:")) {
			dprintf(2, "open: %s\n", text);
			found++;
		}
	}
	return found;
}
/* The kernel's own view, past the library. */
static long size_of(const char *path)
{
	struct stat st;
	long r;
#if defined(__x86_64__)
	__asm__ volatile("syscall" : "=a"(r) : "a"(SYS_stat), "D"(path), "S"(&st) : "rcx", "r11", "memory");
#else
	r = stat(path, &st);
#endif
	return r < 0 ? -1 : (long)st.st_size;
}
"""


@pytest.fixture(autouse=True)
def only_as_root() -> None:
    root_only()


@pytest.fixture
def place():
    with disk_dir() as path:
        path.chmod(0o777)
        yield path


def numbered(who: str, count: int, first: int = 0) -> bytes:
    return b"".join(f"{who}{i:030d}\n".encode() for i in range(first, first + count))


def wait_for_the_last(place: Path) -> None:
    """Until no process is in `place`."""
    for _ in range(2000):
        if not any(is_in(pid, place) for pid in Path("/proc").glob("[0-9]*")):
            return
        time.sleep(0.01)
    raise AssertionError("a process does not end")


def is_in(process: Path, place: Path) -> bool:
    try:
        return (process / "cwd").readlink() == place
    except OSError:
        return False


def program(compile_c, text: str) -> Path:
    binary = compile_c(COMMON + text, "-pthread")
    for path in (binary.parent, binary.parent.parent, binary.parent.parent.parent):
        path.chmod(0o755)  # where every user reaches it
    return binary


# Parent and child append to one log: 30 records of the parent, the child's, 30 of the parent.
CHILD_AND_LOG = r"""
BEFORE
int main(void)
{
	int fd, status;
	MUST((fd = open("log", O_RDWR | O_CREAT | O_APPEND | O_CLOEXEC, 0600)) >= 0);
	put(fd, 'P', 0, 30);
	PREPARE
	pid_t pid = FORK;
	if (pid == 0) {
		CHILD
	}
	MUST(waitpid(pid, &status, 0) == pid);
	put(fd, 'P', 30, 30);
	return WEXITSTATUS(status);
}
"""


@pytest.fixture
def run_text(library, compile_c, place):
    """Compiles a program, runs it in `place` so that the timer flushes nothing, and checks its status."""

    def run(text: str, status: int = 0, **settings: object):
        done = run_preloaded(library, [program(compile_c, text)], place, **{"lag_ms": 60000, **settings})
        assert done.returncode == status, done.stderr
        return done

    return run


@pytest.fixture
def run_child(run_text, place):
    """The same with CHILD_AND_LOG; the child writes `count` records."""

    def run(child: str, count: int, before: str = "", prepare: str = "", fork: str = "fork()"):
        parts = {"BEFORE": before, "PREPARE": prepare, "FORK": fork, "CHILD": child}
        done = run_text(re.sub(r"\b(BEFORE|PREPARE|FORK|CHILD)\b", lambda m: parts[m[0]], CHILD_AND_LOG))
        written = numbered("P", 30) + numbered("C", count) + numbered("P", 30, 30)
        assert (place / "log").read_bytes() == written
        return done

    return run


def run_as(user: int, argv: list, env: dict[str, str], status: int = 0) -> str:
    """Runs a program as this user with one group.  What it writes to standard error."""
    done = subprocess.run(
        argv,
        env=env,
        **as_user(user),
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == status, done.stderr
    return done.stderr


# ---- what the kernel's ways to change ids are ----

FULL = {
    "setuid": "setuid(1001)",
    "seteuid": "seteuid(1001)",
    "setreuid": "setreuid(1001, 1001)",
    "setresuid": "setresuid(-1, 1001, 0)",
    "setgid": "setgid(1001)",
    "setegid": "setegid(1001)",
    "setregid": "setregid(1001, 1001)",
    "setresgid": "setresgid(1001, 1001, 1001)",
    "capset": "capset(&header, none)",
    "unshare": "unshare(CLONE_NEWUSER)",
    "setuid by number": "syscall(SYS_setuid, 1001)",
    "setresuid by number": "syscall(SYS_setresuid, 1001, 1001, 1001)",
    "setresgid by number": "syscall(SYS_setresgid, 1001, 1001, 1001)",
    "capset by number": "syscall(SYS_capset, &header, none)",
}

CHILD = r"""
int main(void)
{
	struct __user_cap_header_struct header = {.version = _LINUX_CAPABILITY_VERSION_3};
	struct __user_cap_data_struct none[2] = {{0}, {0}};
	int go[2], ready[2], status, fd;
	char byte;
	(void)header, (void)none;
	MUST(pipe(go) == 0 && pipe(ready) == 0);
	MUST((fd = open("log", O_RDWR | O_CREAT | O_APPEND | O_CLOEXEC, 0600)) >= 0);
	put(fd, 'P', 0, 30);
	pid_t pid = fork();
	MUST(pid >= 0);
	if (pid == 0) {
		put(fd, 'C', 0, 30);
		MUST((CHANGE) == 0);
		if (shared_memory())
			_exit(7);
		/* everything from before is the kernel's */
		if (size_of("log") >= 0 && size_of("log") != 60 * RECORD)
			_exit(8);
		put(fd, 'C', 30, 30);
		alarm(20);
		MUST(write(ready[1], "x", 1) == 1 && read(go[0], &byte, 1) == 1);
		put(fd, 'C', 60, 10);
		_exit(0);
	}
	close(ready[1]);
	if (read(ready[0], &byte, 1) != 1) { /* it failed */
		MUST(waitpid(pid, &status, 0) == pid);
		return WEXITSTATUS(status);
	}
	put(fd, 'P', 30, 30);
	if (size_of("log") != 120 * RECORD)
		return 6;
	MUST(write(go[1], "x", 1) == 1 && waitpid(pid, &status, 0) == pid);
	put(fd, 'P', 60, 10);
	/* and others are staged as before */
	int other = open("other", O_WRONLY | O_CREAT | O_TRUNC, 0600);
	put(other, 'P', 0, 100);
	MUST(close(fd) == 0 && close(other) == 0);
	return WIFEXITED(status) ? WEXITSTATUS(status) : 5;
}
"""


SETTINGS = {
    "": {},
    "journal": {"sync": "journal", "journal": "1M", "visibility": "strict"},
}


@pytest.mark.parametrize(("way", "mode"), [*((way, "") for way in FULL), ("setuid", "journal")])
def test_child_shares_nothing(library, compile_c, place, way, mode) -> None:
    """After a child changes its ids it shares no memory with its parent, and the log of both is bypassed."""
    binary = program(compile_c, CHILD.replace("CHANGE", FULL[way]))
    assert run_native([binary], place).returncode == 0
    (place / "log").unlink()
    run = run_preloaded(library, [binary], place, lag_ms=60000, mem="1M", block="64K", **SETTINGS[mode])
    assert run.returncode == 0, run.stderr
    expected = (
        numbered("P", 30)
        + numbered("C", 60)
        + numbered("P", 30, 30)
        + numbered("C", 10, 60)
        + numbered("P", 10, 60)
    )
    assert (place / "log").read_bytes() == expected
    assert (place / "other").read_bytes() == numbered("P", 100)
    assert_staged(run.stats, 1500)
    assert not leftovers(place)


def test_child_in_an_empty_root(run_child) -> None:
    """After chroot, as servers do it, there is no /proc."""
    run_child(
        r"""
		MUST((maps = open("/proc/self/maps", O_RDONLY)) >= 0);
		MUST(chroot("empty") == 0 && chdir("/") == 0 && setgid(1001) == 0 && setuid(1001) == 0);
		put(fd, 'C', 0, 30);
		_exit(shared_memory() ? 7 : 0);
""",
        30,
        prepare='MUST(mkdir("empty", 0755) == 0);',
    )


def test_child_of_a_raw_fork(run_child) -> None:
    run_child(
        r"""
		MUST(setgid(1001) == 0 && setuid(1001) == 0);
		put(fd, 'C', 0, 30);
		_exit(shared_memory() ? 7 : 0);
""",
        30,
        prepare=r"""
	pid_t first = fork(); /* makes a family */
	if (first == 0)
		_exit(0);
	MUST(waitpid(first, &status, 0) == first);
""",
        fork="(pid_t)syscall(SYS_clone, SIGCHLD, 0, 0, 0, 0)",
    )


def test_child_with_threads(run_child) -> None:
    """Threads may hold locks in the shared memory, so it stays mapped.  That is logged, and nothing more is staged."""
    run = run_child(
        r"""
		pthread_t thread;
		MUST(pthread_create(&thread, NULL, wait_there, NULL) == 0);
		put(fd, 'C', 0, 30);
		MUST(setgid(1001) == 0 && setuid(1001) == 0);
		put(fd, 'C', 30, 30);
		MUST(write(go[1], "x", 1) == 1 && pthread_join(thread, NULL) == 0);
		if (size_of("log") != 90 * RECORD)
			_exit(8);
		_exit(0);
""",
        60,
        before=r"""
static int go[2];
static void *wait_there(void *arg)
{
	char byte;
	MUST(read(go[0], &byte, 1) == 1);
	return arg;
}
""",
        prepare="MUST(pipe(go) == 0);",
    )
    assert "ids change while other threads run" in run.stderr
    assert run.stats.through.get("rights")


WRITING_THREADS = r"""
enum { THREADS = 4, RECORDS = 1500 };
/* How many records were accepted: in the log, in each thread's own file, in the one that it opens afterwards. */
struct accepted {
	_Atomic unsigned log, own, later;
};
static struct accepted *accepted; /* of each thread, and last of the other process */
static int log_fd;
static _Atomic int changed;
static int for_ever, alone;
static void put_next(int fd, char who, _Atomic unsigned *n)
{
	put(fd, who, *n, 1);
	*n += 1;
}
static int open_own(const char *kind, int number)
{
	char name[16];
	int fd;
	snprintf(name, sizeof name, "%s%d", kind, number);
	MUST((fd = open(name, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0644)) >= 0);
	return fd;
}
static void *write_records(void *arg)
{
	int number = (int)(long)arg, own = open_own("own", number), later = -1;
	struct accepted *mine = accepted + number;
	char name[16];
	snprintf(name, sizeof name, "own%d", number);
	for (int i = 0; i < RECORDS || !changed || for_ever; i++) {
		put_next(log_fd, 'A' + (char)number, &mine->log);
		put_next(own, 'A' + (char)number, &mine->own);
		/* written through, or staged by the new ids */
		if (later >= 0 && !alone)
			MUST(size_of(name) == RECORD * (long)mine->own);
		if (later < 0 && changed)
			later = open_own("later", number);
		if (later >= 0)
			put_next(later, 'A' + (char)number, &mine->later);
		if (i % 64 == 63)
			usleep(100);
	}
	if (later >= 0)
		close(later);
	close(own);
	return NULL;
}
static void change_among_threads(unsigned wait_us)
{
	pthread_t threads[THREADS];
	for (long i = 0; i < THREADS; i++)
		MUST(pthread_create(&threads[i], NULL, write_records, (void *)i) == 0);
	usleep(wait_us);
	MUST(setgid(1001) == 0 && setuid(1001) == 0);
	changed = 1;
	for (int i = 0; i < THREADS; i++)
		MUST(pthread_join(threads[i], NULL) == 0);
}
/* threads COUNTERS child|parent|alone WAIT_US KILL_US: who changes ids, when, and when it is killed (0: never) */
int main(int argc, char **argv)
{
	int status = 0, file = open(argv[1], O_RDWR), is_child = argv[2][0] == 'c';
	unsigned wait_us = (unsigned)atoi(argv[3]), kill_us = (unsigned)atoi(argv[4]);
	pid_t pid = 0, changing;
	(void)argc;
	for_ever = kill_us > 0;
	alone = argv[2][0] == 'a';
	accepted = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
	MUST(accepted != MAP_FAILED && close(file) == 0);
	MUST((log_fd = open("log", O_RDWR | O_CREAT | O_APPEND | O_CLOEXEC, 0644)) >= 0);
	for (int i = 0; i < 30; i++)
		put_next(log_fd, 'P', &accepted[THREADS].log);
	if (!alone)
		MUST((pid = fork()) >= 0);
	if (alone || (pid == 0) == is_child) {
		change_among_threads(wait_us);
		if (pid > 0)
			MUST(waitpid(pid, &status, 0) == pid && WIFEXITED(status));
		return WEXITSTATUS(status);
	}
	changing = is_child ? pid : getppid();
	for (unsigned i = 0, us = 0; i < RECORDS || kill_us; i++) {
		put_next(log_fd, 'P', &accepted[THREADS].log);
		usleep(50);
		us += 50;
		if (kill_us && us >= kill_us) {
			MUST(kill(changing, SIGKILL) == 0);
			break;
		}
	}
	for (int i = 0; i < 100; i++)
		put_next(log_fd, 'P', &accepted[THREADS].log);
	if (is_child)
		MUST(waitpid(pid, &status, 0) == pid);
	if (kill_us)
		return is_child && !(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL) ? 5 : 0;
	return WIFEXITED(status) ? WEXITSTATUS(status) : 6;
}
"""
THREADS = "ABCD"


def consecutive(data: bytes, who: str, accepted: int, killed: bool) -> bool:
    """All accepted records in order; and when its process was killed perhaps one that it was not told of."""
    mine = b"".join(record for record in data.splitlines(keepends=True) if record[:1] == who.encode())
    return mine == numbered(who, accepted) or (killed and mine == numbered(who, accepted + 1))


@pytest.mark.parametrize("killed", [False, True], ids=["exits", "killed"])
@pytest.mark.parametrize("who", ["child", "parent", "alone"])
def test_ids_change_while_threads_write(library, fastwrite, compile_c, tmp_path, who, killed) -> None:
    """Through the C library, which has all threads follow: nothing is lost, nobody crashes."""
    if who == "alone" and killed:
        pytest.skip("nobody is there to kill it")
    binary = program(compile_c, WRITING_THREADS)
    counters = tmp_path / "counters"
    dice = random.Random(f"{who} {killed}")
    for _ in range(ROUNDS):
        counters.write_bytes(bytes(4096))
        wait = dice.choice((0, 300, 3000, 20000))
        end = wait + dice.randrange(1, 30000) if killed else 0
        with disk_dir() as place:
            place.chmod(0o777)
            what = f"{who}, change after {wait} us, killed after {end} us"
            command = [binary, counters, who, wait, end]
            settings = {"mem": "1M", "block": "64K", "lag_ms": dice.choice((1, 60000))}
            run = run_preloaded(library, command, place, **settings)
            gone = killed and who == "parent"
            assert run.returncode == (-9 if gone else 0), f"{what}: {run.stderr}"
            if killed:
                wait_for_the_last(place)
                done = subprocess.run(
                    [fastwrite, "recover", place], capture_output=True, text=True, check=False
                )
                assert done.returncode in (0, 1), f"{what}: {done.stdout}{done.stderr}"
                assert "failed" not in done.stdout, f"{what}: {done.stdout}{done.stderr}"
            else:
                if who == "child":  # who has changed its ids may not write to the file of the statistics
                    assert_staged(run.stats, 100)
                # (the parent may not remove what it made as root, and its child is gone)
                assert who == "parent" or not leftovers(place), what
            accepted = list(struct.iter_unpack("<3I", counters.read_bytes()[: 12 * (len(THREADS) + 1)]))
            log = (place / "log").read_bytes()
            assert len(log) % RECORD == 0
            assert consecutive(log, "P", accepted[len(THREADS)][0], killed), what
            for number, name in enumerate(THREADS):
                assert consecutive(log, name, accepted[number][0], killed), f"{what}: log of {name}"
                for kind, count in zip(("own", "later"), accepted[number][1:], strict=True):
                    path = place / f"{kind}{number}"
                    data = path.read_bytes() if path.exists() else b""
                    assert consecutive(data, name, count, killed), f"{what}: {path.name}"


LATE_THREAD = r"""
/* The thread of `pid` that is not its first; stopped. */
static int stop_thread(pid_t pid)
{
	char name[64];
	struct dirent *d;
	int status, tid = 0;
	snprintf(name, sizeof name, "/proc/%d/task", pid);
	DIR *tasks = opendir(name);
	MUST(tasks);
	while ((d = readdir(tasks)))
		if (atoi(d->d_name) > 0 && atoi(d->d_name) != pid)
			tid = atoi(d->d_name);
	closedir(tasks);
	MUST(tid && ptrace(PTRACE_SEIZE, tid, NULL, NULL) == 0 && ptrace(PTRACE_INTERRUPT, tid, NULL, NULL) == 0);
	MUST(waitpid(tid, &status, __WALL) == tid && WIFSTOPPED(status));
	return tid;
}
int main(void)
{
	int fd, go[2], ready[2], status, tid;
	char byte;
	MUST(pipe(go) == 0 && pipe(ready) == 0);
	MUST((fd = open("log", O_RDWR | O_CREAT | O_APPEND | O_CLOEXEC, 0600)) >= 0);
	put(fd, 'P', 0, 30);
	pid_t pid = fork();
	if (pid == 0) {
		put(fd, 'C', 0, 30);
		int own = open("own", O_RDWR | O_CREAT | O_CLOEXEC, 0600);
		put(own, 'C', 0, 30);
		MUST(write(ready[1], "x", 1) == 1 && read(go[0], &byte, 1) == 1);
		MUST(setgid(1001) == 0 && setuid(1001) == 0);
		put(fd, 'C', 30, 30);
		usleep(200000);
		_exit(0);
	}
	MUST(read(ready[0], &byte, 1) == 1);
	tid = stop_thread(pid);
	MUST(write(go[1], "x", 1) == 1);
	sleep(3);
	MUST(ptrace(PTRACE_DETACH, tid, NULL, NULL) == 0);
	MUST(waitpid(pid, &status, 0) == pid);
	put(fd, 'P', 30, 30);
	return WIFEXITED(status) ? WEXITSTATUS(status) : 8;
}
"""


def test_a_thread_of_the_library_is_late(library, compile_c, place) -> None:
    """It is not scheduled for longer than the change of ids waits, and must find its memory afterwards."""
    run = run_preloaded(library, [program(compile_c, LATE_THREAD)], place, lag_ms=60000, log="info")
    assert run.returncode == 0, run.stderr
    assert "ids change while other threads run" in run.stderr
    assert "the process changes its user or group" in run.stderr
    assert "(null)" not in run.stderr
    assert (place / "log").read_bytes() == numbered("P", 30) + numbered("C", 60) + numbered("P", 30, 30)


OTHER_ORDER = r"""
int main(void)
{
	int go[2], fd, status;
	char byte;
	MUST(pipe(go) == 0);
	MUST((fd = open("log", O_RDWR | O_CREAT | O_APPEND | O_CLOEXEC, 0600)) >= 0);
	put(fd, 'P', 0, 30);
	pid_t pid = fork();
	MUST(pid >= 0);
	if (pid == 0) { /* the helper that keeps its rights */
		MUST(read(go[0], &byte, 1) == 1);
		put(fd, 'C', 0, 30);
		if (size_of("log") != 90 * RECORD)
			_exit(6);
		int other = open("other", O_WRONLY | O_CREAT | O_TRUNC, 0600);
		put(other, 'C', 0, 100);
		exit(0);
	}
	MUST(setgroups(0, NULL) == 0 && setgid(1001) == 0 && setuid(1001) == 0);
	if (shared_memory())
		return 7;
	put(fd, 'P', 30, 30);
	MUST(write(go[1], "x", 1) == 1 && waitpid(pid, &status, 0) == pid);
	int own = open("own", O_WRONLY | O_CREAT | O_TRUNC, 0600);
	put(own, 'P', 0, 100);
	close(own);
	return WIFEXITED(status) ? WEXITSTATUS(status) : 5;
}
"""


def test_parent_gives_up_its_rights(library, compile_c, place) -> None:
    binary = program(compile_c, OTHER_ORDER)
    assert run_native([binary], place).returncode == 0
    for path in place.iterdir():
        path.unlink()
    run = run_preloaded(library, [binary], place, lag_ms=60000)
    assert run.returncode == 0, run.stderr
    assert (place / "log").read_bytes() == numbered("P", 60) + numbered("C", 30)
    assert (place / "other").read_bytes() == numbered("C", 100)
    assert (place / "own").read_bytes() == numbered("P", 100)
    assert not leftovers(place)


@pytest.mark.parametrize(
    "way", ["setgroups(1, groups)", 'initgroups("root", 0)', "syscall(SYS_setgroups, 1, groups)"]
)
def test_groups_alone(run_text, place, way) -> None:
    """Supplementary groups do not count: prefork servers that stay root go on as one family."""
    text = CHILD.replace("(CHANGE) == 0", f"({way}) == 0").replace("if (shared_memory())", "if (0)")
    text = text.replace("int main(void)\n{", "int main(void)\n{\n\tgid_t groups[] = {1001};\n\t(void)groups;")
    text = text.replace('if (size_of("log") != 120 * RECORD)', "if (0)")
    run = run_text(text)
    assert len((place / "log").read_bytes()) == 140 * RECORD
    assert "rights" not in run.stats.through
    assert_staged(run.stats, 4000)


SETEUID = r"""
int main(int argc, char **argv)
{
	int root = open("secret", O_RDWR | O_CREAT, 0600);
	MUST(root >= 0 && mkdir("home", 0755) == 0 && chown("home", 1001, 1001) == 0);
	(void)argc;
	MUST(seteuid(1001) == 0);
	int user = open("home/file", O_RDWR | O_CREAT, 0644);
	MUST(user >= 0);
	put(user, 'U', 0, 30);
	if (argv[1][0] == 'u')
		put(root, 'R', 0, 30);
	MUST(seteuid(0) == 0);
	put(root, 'R', argv[1][0] == 'u' ? 30 : 0, 30);
	put(user, 'U', 30, 30);
	kill(getpid(), SIGKILL);
}
"""


@pytest.mark.parametrize("as_whom", ["user", "root"])
@pytest.mark.parametrize("staging", ["beside", "one"])
def test_seteuid_server(library, fastwrite, compile_c, place, as_whom, staging) -> None:
    """Bytes for root's file are in no file that the user may read, whatever ids the server had when it wrote them."""
    binary = program(compile_c, SETEUID)
    paths = f"{place}/**" if staging == "one" else "/**"
    run = run_preloaded(library, [binary, as_whom], place, paths=paths, lag_ms=60000)
    assert run.returncode == -9
    arenas = [path for directory in leftovers(place) for path in directory.rglob("*.arena")]
    of_user = [path for path in arenas if path.stat().st_uid == USER]
    assert not [path for path in of_user if b"R00000000" in path.read_bytes()]
    for path in arenas:
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
    for directory in leftovers(place):
        subprocess.run([fastwrite, "recover", directory], check=True, capture_output=True)
    count = 60 if as_whom == "user" else 30
    assert (place / "secret").read_bytes() == numbered("R", count)
    assert (place / "home" / "file").read_bytes() == numbered("U", 60)


def test_ids_that_change_all_the_time(library, compile_c, place) -> None:
    """A server that takes its client's ids for each request stages nothing after a while, and loses nothing."""
    binary = program(
        compile_c,
        r"""
int main(void)
{
	int fd = open("log", O_RDWR | O_CREAT | O_APPEND, 0666);
	for (unsigned i = 0; i < 200; i++) {
		MUST(seteuid(i % 2 ? 1001 : 0) == 0);
		put(fd, 'P', i * 10, 10);
	}
	MUST(seteuid(0) == 0);
	return 0;
}
""",
    )
    run = run_preloaded(library, [binary], place)
    assert run.returncode == 0
    assert (place / "log").read_bytes() == numbered("P", 2000)
    assert 0 < run.stats.bytes < 20000
    assert run.stats.through.get("rights")
    assert not leftovers(place)


@pytest.mark.parametrize(
    "call",
    [
        "setfsuid(1001)",
        "setfsgid(1001)",
        "syscall(SYS_setfsuid, 1001)",
        "syscall(SYS_setresuid, -1, 1001, -1)",
        "syscall(SYS_setreuid, -1, 1001)",
    ],
)
def test_one_thread_alone(run_text, place, call) -> None:
    """Threads have ids of their own: an arena could belong to any of them, so nothing is staged."""
    run = run_text(
        r"""
static int fd;
static void *other(void *arg)
{
	CALL;
	put(fd, 'P', 30, 30);
	return arg;
}
int main(void)
{
	pthread_t thread;
	fd = open("log", O_RDWR | O_CREAT, 0600);
	put(fd, 'P', 0, 30);
	MUST(pthread_create(&thread, NULL, other, NULL) == 0 && pthread_join(thread, NULL) == 0);
	if (size_of("log") != 60 * RECORD)
		return 6;
	put(fd, 'P', 60, 30);
	return size_of("log") == 90 * RECORD ? 0 : 5;
}
""".replace("CALL", call),
    )
    assert (place / "log").read_bytes() == numbered("P", 90)
    assert run.stats.through.get("rights")


def test_ids_that_stay(run_text, place) -> None:
    """A call that changes nothing costs nothing: staged bytes stay staged."""
    run_text(
        r"""
int main(void)
{
	int fd = open("log", O_RDWR | O_CREAT, 0600);
	put(fd, 'P', 0, 30);
	MUST(setuid(0) == 0 && seteuid(0) == 0 && setgid(getgid()) == 0 && setresuid(-1, 0, -1) == 0);
	MUST(setfsuid(-1) == 0);
	put(fd, 'P', 30, 30);
	return size_of("log") < 30 * RECORD ? 0 : 6;
}
""",
    )
    assert (place / "log").read_bytes() == numbered("P", 60)


def test_nothing_managed_costs_nothing(library, compile_c, place) -> None:
    """A program without managed files changes its ids: it makes no other system calls than natively."""
    binary = program(
        compile_c,
        r"""
int main(void)
{
	write(1, "begin", 5);
	MUST(setgroups(0, NULL) == 0 && setgid(1001) == 0 && setegid(1001) == 0 && seteuid(1001) == 0 && seteuid(0) == 0);
	MUST(setresuid(1001, 1001, 0) == 0 && setuid(0) == 0);
	write(1, "end", 3);
	return 0;
}
""",
    )

    def between(env: dict) -> list[str]:
        trace = place / "trace"
        subprocess.run(
            ["strace", "-f", "-o", trace, *[f"-E{k}={v}" for k, v in env.items()], binary],
            check=True,
            cwd=place,
            capture_output=True,
        )
        text = trace.read_text()
        return re.findall(r"\d+ +(\w+)\(", text[text.index("begin") : text.index('"end"')])

    natively = between({})
    assert len(natively) >= 7
    assert between(preload_env(library, f"{place}/**")) == natively


# ---- files that recovery could not write to ----


@pytest.mark.parametrize("mode", [0o400, 0o444])
@pytest.mark.parametrize("sync", ["fdatasync", "journal"])
def test_read_only_file_of_a_user(lab: Lab, mode: int, sync: str) -> None:
    """The user may write by the descriptor that created the file, but a recovery could not open it."""
    lab.data.chmod(0o777)
    text = f"""
import os, signal
fd = os.open("{lab.target}", os.O_CREAT | os.O_WRONLY, {mode})
for i in range(60):
    os.write(fd, b"line %08d " % i + b"." * 85 + b"\\n")
os.fsync(fd)
os.kill(os.getpid(), signal.SIGKILL)
"""
    env = {**lab.env(sync=sync, journal="1M"), "FASTWRITE_LOG": "info"}
    said = run_as(USER, ["/usr/bin/python3", "-c", text], env, status=-9)
    lab.recover(lab.staging, user=USER, status=None)
    assert lab.target.read_bytes() == lines(0, 60)
    assert f"{lab.target} is bypassed: recovery could not write to it by its path as user {USER}" in said


def test_mode_that_changes_later(run_text, place) -> None:
    """A file that becomes read only while bytes are staged is bypassed from then on."""
    run = run_text(
        r"""
int main(void)
{
	MUST(setgroups(0, NULL) == 0 && setgid(1001) == 0 && setuid(1001) == 0);
	int fd = open("log", O_RDWR | O_CREAT, 0600);
	put(fd, 'P', 0, 30);
	MUST(fchmod(fd, 0400) == 0);
	put(fd, 'P', 30, 30);
	return size_of("log") == 60 * RECORD ? 0 : 6;
}
""",
        stats="stderr",
    )
    stats = parse_stats(run.stderr)
    assert_staged(stats, 500)
    assert stats.through.get("rights")


def test_log_that_was_opened_before_setuid(library, fastwrite, compile_c, place) -> None:
    binary = program(
        compile_c,
        r"""
int main(void)
{
	int fd = open("log", O_WRONLY | O_CREAT | O_APPEND, 0640);
	put(fd, 'P', 0, 10);
	MUST(setgroups(0, NULL) == 0 && setgid(1001) == 0 && setuid(1001) == 0);
	put(fd, 'P', 10, 50);
	fdatasync(fd);
	kill(getpid(), SIGKILL);
}
""",
    )
    run = run_preloaded(library, [binary], place, lag_ms=60000, sync="off")
    assert run.returncode == -9
    assert (place / "log").read_bytes() == numbered("P", 60)
    assert not leftovers(place)


def test_file_of_its_own_is_staged(run_text, place) -> None:
    """After setuid a server's own files are staged, in an arena of its own ids."""
    run_text(
        r"""
int main(void)
{
	int log = open("log", O_WRONLY | O_CREAT | O_APPEND, 0600);
	put(log, 'P', 0, 30);
	MUST(setgroups(0, NULL) == 0 && setgid(1001) == 0 && setuid(1001) == 0);
	int fd = open("own", O_WRONLY | O_CREAT, 0600);
	put(fd, 'P', 0, 200);
	put(log, 'P', 30, 30);
	kill(getpid(), SIGKILL);
}
""",
        -9,
    )
    assert (place / "log").read_bytes() == numbered("P", 60)
    (arena,) = (place / ".fastwrite").iterdir()
    assert (arena.stat().st_uid, arena.stat().st_gid) == (USER, USER)
    assert numbered("P", 1, 199) in arena.read_bytes()


# ---- recovery at open ----


def planted(lab: Lab, owner: int, count: int) -> None:
    """Arenas of `count` dead programs of this user."""
    aside = lab.base / "aside"
    aside.mkdir()
    for i in range(count):
        lab.leave(user=owner, first=i)
        lab.arena().rename(aside / lab.arena().name)  # the next one would recover it
    for path in aside.iterdir():
        path.rename(lab.staging / path.name)


def root_opens(lab: Lab, path: Path, **settings: object) -> tuple[str, float]:
    """What the library logs when a program of root's opens `path`, and how long that takes."""
    began = time.monotonic()
    done = subprocess.run(
        [lab.program, "write", "exit", "0", "1", path],
        env=lab.env(**settings),
        capture_output=True,
        text=True,
        check=True,
    )
    return done.stderr, time.monotonic() - began


def test_root_leaves_planted_staging_alone(lab: Lab) -> None:
    """In a directory of root's that anybody may write to, the owner of an arena proves nothing about the file."""
    lab.data.chmod(0o1777)
    planted(lab, USER, 3)
    os.chown(lab.target, 0, 0)
    before = lab.target.read_bytes()
    said, _ = root_opens(lab, lab.target)
    assert len(lab.arenas()) == 3
    assert lab.target.read_bytes() == before + lines(0, 1)
    assert f"user {USER}" in said and f"fastwrite recover {lab.staging}" in said
    assert said.count("fastwrite recover") == 1


def test_root_recovers_what_the_owner_staged(lab: Lab) -> None:
    lab.data.chmod(0o1777)
    lab.leave(user=USER)
    said, _ = root_opens(lab, lab.target)
    assert "recovered" in said
    assert lab.target.read_bytes() == lines(0, 60) + lines(0, 1)


def test_root_recovers_within_a_budget(lab: Lab) -> None:
    """Many arenas of a user in the user's own directory."""
    os.chown(lab.data, USER, USER)
    planted(lab, USER, 70)
    said, took = root_opens(lab, lab.data / "roots")
    left = len(lab.arenas())
    # (64 arenas, or as many as two seconds allow)
    assert left == 6 or (left > 6 and took >= 2), too_slow(took, f"{left} arenas are left")
    assert f"fastwrite recover {lab.staging}" in said, said[-300:]
    assert took < 10, too_slow(took, "root recovers for two seconds at most, and tells what is left")
    # (the user recovers all of them)
    run_as(USER, [lab.program, "write", "exit", "0", "1", lab.data / "his"], lab.env())
    assert lab.arenas() == []


@contextmanager
def kept_from_recoverers(path: Path, how: int) -> Iterator[None]:
    """This process locks the arena as another recoverer does; each of its 256 keepers seems to have died."""
    with path.open("r+b") as f:
        f.seek(CHECKED_BYTES)
        f.write(b"\1" * (4096 - CHECKED_BYTES))
        f.flush()
        fcntl.flock(f, how)
        f_ofd_setlk, keepers = 37, 1 << 41
        lock = struct.pack("hhqqi4x", fcntl.F_WRLCK, os.SEEK_SET, keepers, 256, 0)
        fcntl.fcntl(f, f_ofd_setlk, lock)
        yield


@pytest.mark.parametrize("how", [fcntl.LOCK_SH, fcntl.LOCK_EX])
def test_locks_of_a_user_hold_up_no_start(lab: Lab, how: int) -> None:
    """Arenas that the user keeps from recoverers, by locks that only recoverers take."""
    os.chown(lab.data, USER, USER)
    planted(lab, USER, 3)
    with ExitStack() as kept:
        for arena in lab.arenas():
            kept.enter_context(kept_from_recoverers(arena, how))
        said, took = root_opens(lab, lab.data / "roots")
    assert took < 8, too_slow(took, "root waits for two seconds at most")
    assert f"fastwrite recover {lab.staging}" in said, said[-300:]


@pytest.mark.parametrize("bare", [False, True])
def test_locks_of_a_user_hold_up_the_command(lab: Lab, bare: bool) -> None:
    """The keepers of an arena together have ten seconds, those of a file that is no arena have none."""
    os.chown(lab.data, USER, USER)
    planted(lab, USER, 1)
    if bare:
        lab.arena().write_bytes(bytes(4096))
    began = time.monotonic()
    with kept_from_recoverers(lab.arena(), fcntl.LOCK_SH):
        done = subprocess.run(
            [lab.command, "recover", lab.data], capture_output=True, timeout=40, check=False
        )
    took = time.monotonic() - began
    assert done.returncode in (0, 1)
    assert took < (5 if bare else 20), too_slow(took, "the command waits for ten seconds at most")


def test_large_arena_of_a_user(lab: Lab) -> None:
    """An arena larger than the rule allows is left to the command."""
    os.chown(lab.data, USER, USER)
    lab.leave(user=USER, mem="128M")
    said, _ = root_opens(lab, lab.data / "roots", mem="1M")
    assert len(lab.arenas()) == 1
    assert f"fastwrite recover {lab.staging}" in said
    assert actions(lab.recover()) == ["recovered"]


def test_second_user_is_told(lab: Lab) -> None:
    """Bytes of another user wait, and the program may not even list them."""
    lab.data.chmod(0o777)
    lab.leave(user=USER)
    lab.target.chmod(0o666)
    argv = [lab.program, "append", "exit", "0", "20", lab.target, lab.data / "second"]
    said = run_as(OTHER, argv, lab.env())
    told = [line for line in said.splitlines() if f"user {USER}" in line]
    assert len(told) == 1, said
    assert f"fastwrite recover {lab.staging}" in told[0]
    assert "no staging in" in said
    assert lab.target.read_bytes() == lines(0, 1) + lines(0, 20)
