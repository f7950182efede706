# SPDX-License-Identifier: Apache-2.0
"""What a program can count is as natively in each state that the default policy (adapt = on) has for a file."""

from __future__ import annotations

import os
import re
import resource
import select
import socket
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest
from lib.disks import disk, fill_up, shut_down
from lib.held import Held, start_held
from lib.processes import Program, compile_other
from lib.support import (
    assert_staged,
    disk_dir,
    leftovers,
    parse_stats,
    preload_env,
    run_native,
    run_preloaded,
)

STATES = ["fresh", "unresolved", "passive", "attached", "detached", "anew"]
HOWS = ["append", "stream", "pwrite"]


@pytest.fixture
def place():
    with disk_dir() as path:
        yield path


@pytest.fixture
def program(compile_c):
    return compile_other(compile_c, "phases")


@contextmanager
def pair(library: Path, program: Path, place: Path, how: str, **settings) -> Iterator[list[Program]]:
    """The program natively and under the library, each with a file of its own."""
    settings = {"adapt": "on", "lag_ms": 60000} | settings
    with ExitStack() as stack:
        both = []
        for kind in ("native", "staged"):
            directory = place / kind
            directory.mkdir()
            command = [program, directory / "file", kind, how]
            both.append(
                stack.enter_context(
                    Program(library if kind == "staged" else None, command, directory, **settings)
                )
            )
        yield both


def same(both: list[Program], line: str) -> str:
    """Asks both; the answer."""
    native, staged = (each.ask(line) for each in both)
    assert staged == native, f"{line}: natively {native}, with the library {staged}"
    return native


def end(both: list[Program]) -> None:
    for each in both:
        each.finish()
        assert "fastwrite:" not in each.stderr
    assert_staged(both[1].stats)


@pytest.mark.parametrize("how", HOWS)
@pytest.mark.parametrize("room", [0, 30, 350])
def test_limit_of_the_file_size(library, program, place, how, room):
    """Partial writes, EFBIG, SIGXFSZ and positions; what was staged below a limit that comes later stays."""
    with pair(library, program, place, how) as both:
        same(both, "open")
        for state in STATES:
            same(both, f"reach {state}")
            same(both, f"size {room}")
            assert same(both, "verify") == "size +0"
        same(both, "close")
        assert same(both, "verify") == "size +0"
        end(both)
    assert not leftovers(place)


@pytest.mark.parametrize("how", HOWS)
def test_limit_of_descriptors(library, program, place, how):
    """The numbers that calls give, and when none is left."""
    with pair(library, program, place, how) as both:
        same(both, "open")
        for state in STATES:
            same(both, f"reach {state}")
            same(both, "numbers")
            assert same(both, "verify") == "size +0"
        same(both, "close")
        end(both)
    assert not leftovers(place)


# ---- writers without the library ----

RECORD = 100


def pattern(at: int, count: int) -> bytes:
    """What phases.c writes at an offset."""
    return bytes((((at + i) * 2654435761) & 0xFFFFFFFF) >> 13 & 0xFF for i in range(count))


@pytest.mark.parametrize("writers", ["auto", "shared"])
@pytest.mark.parametrize("early", [True, False], ids=["opened-before", "opened-later"])
def test_another_program_writes_between(library, program, place, early, writers):
    """At other positions of the same pages, behind the writer and ahead of it."""
    stride, size = 156, 8 << 20
    path = place / "file"
    path.write_bytes(bytes(size))
    theirs = bytearray(size)
    other = os.open(path, os.O_RDWR) if early else -1
    command = [program, path, "staged", "pwrite", stride]
    gaps = 0

    with Program(library, command, place, adapt="on", lag_ms=60000, writers=writers) as ours:
        ours.ask("open")
        for state in STATES:
            ours.ask(f"reach {state}")
            written = int(ours.ask("where"))
            if other < 0:
                other = os.open(path, os.O_RDWR)
            # each second gap behind, all of them in the next 40,000 bytes, and a piece that ours overwrites later
            ahead = written + 40_000 - written % 256
            for at in [*range(gaps, written, 512), *range(written, ahead, 256)]:
                begin = at - at % 256 + RECORD + 3
                os.pwrite(other, b"n" * 120, begin)
                theirs[begin : begin + 120] = b"n" * 120
            os.pwrite(other, b"N" * 30_000, ahead)
            theirs[ahead : ahead + 30_000] = b"N" * 30_000
            gaps = ahead + 30_000
            gaps -= gaps % 256
            # (a record is at a multiple of 256)
            ours.ask(f"put {(gaps - written) // 256 + 40} 100")
        ours.ask("put 400 100")
        count = int(ours.ask("where")) // 256
        ours.ask("close")
        ours.finish()
        assert_staged(ours.stats, 500 * RECORD)
    os.close(other)
    for i in range(count):
        theirs[i * 256 : i * 256 + RECORD] = pattern(i * 256, RECORD)
    found = path.read_bytes()
    wrong = next((i for i in range(size) if found[i : i + 1] != theirs[i : i + 1]), None)
    assert (len(found), wrong) == (size, None)
    assert not leftovers(place)


@pytest.mark.parametrize("writers", ["auto", "shared"])
@pytest.mark.parametrize("early", [True, False], ids=["opened-before", "opened-later"])
def test_another_program_appends_between(library, program, place, early, writers):
    """Also while space is reserved behind the end, and when it is given back."""
    path = place / "file"
    path.touch()
    flags = os.O_WRONLY | os.O_APPEND
    other = os.open(path, flags) if early else -1
    number = 0
    with Program(
        library, [program, path, "staged", "append"], place, adapt="on", lag_ms=60000, writers=writers
    ) as ours:
        ours.ask("open")
        for state in STATES:
            ours.ask(f"reach {state}")
            if other < 0:
                other = os.open(path, flags)
            for size in (40, 5000, 40):
                os.write(other, b"<<%06d%s>>" % (number, b"." * size))
                number += 1
                ours.ask("put 3 100")
            ours.ask("put 1 50000")  # is not staged, or drains the file
            os.write(other, b"<<%06d%s>>" % (number, b"." * 10))
            number += 1
            if not early:
                os.close(other)
                other = -1
        ours.ask("put 400 100")
        total = int(ours.ask("where"))
        ours.ask("close")
        ours.finish()
        assert_staged(ours.stats, 500 * RECORD)
    if other >= 0:
        os.close(other)
    data = path.read_bytes()
    found = re.findall(rb"<<(\d{6})\.+>>", data)
    assert [int(each) for each in found] == list(range(number))
    assert re.sub(rb"<<\d{6}\.+>>", b"", data) == pattern(0, total)
    assert not leftovers(place)


# ---- descriptors that another process gets ----


@pytest.mark.parametrize("under", [False, True], ids=["native", "both"])
@pytest.mark.parametrize("how", ["append", "stream"])
@pytest.mark.parametrize("state", STATES)
def test_descriptor_is_passed_on(library, program, place, state, how, under):
    """Both processes write by one description: the position is shared."""
    path = place / "file"
    settings = {"adapt": "on", "lag_ms": 60000}
    with (
        Program(library, [program, path, "staged", how], place, **settings) as giver,
        Program(library if under else None, [program, path, "native", how], place, **settings) as taker,
    ):
        giver.ask("open")
        for each in STATES[: STATES.index(state) + 1]:
            giver.ask(f"reach {each}")
        assert taker.ask("take socket") == "listens"
        assert giver.ask("pass socket") == "pass 1; "
        assert taker.hear() == "taken"
        expected = int(giver.ask("where"))
        for count in (1, 20, 400, 1, 3000, 7):
            for each in (giver, taker):
                # the position is the kernel's; only the pattern needs to know it
                each.ask(f"now {expected}")
                each.ask(f"put {count} 100")
                expected += count * RECORD
        for each in (taker, giver):
            each.ask(f"now {expected}")
            assert each.ask("verify") == "size +0"
            each.ask("close")
            each.finish()
        if STATES.index(state) >= STATES.index("attached"):
            assert_staged(giver.stats)
    assert not leftovers(place)


@pytest.mark.parametrize("under", [False, True], ids=["native", "both"])
@pytest.mark.parametrize("how", ["append", "stream"])
def test_descriptor_is_passed_on_by_another_thread(library, compile_c, place, how, under):
    program = compile_other(compile_c, "passing")
    count = 3000
    files = [place / f"f{i}" for i in range(20)]
    command = [place / "socket", how, count, *files]
    settings = {"adapt": "on"}
    with (
        Program(library if under else None, [program, "take", *command], place, **settings) as taker,
        Program(library, [program, "give", *command], place, **settings) as giver,
    ):
        assert (taker.hear(), giver.hear()) == ("ready", "ready")
        giver.tell("go")
        giver.finish()
        taker.finish()
    for file in files:
        found = [[], []]
        data = file.read_bytes()
        for at in range(0, len(data), RECORD):
            match = re.fullmatch(rb"([01]) (\d{8}) ([a-z])\3+\n", data[at : at + RECORD])
            assert match, f"{file.name}: no record at {at}: {data[at : at + RECORD]!r}"
            found[int(match[1])].append(int(match[2]))
        assert found == [list(range(count))] * 2, file.name
    assert not leftovers(place)


# resolved PATH SOCKET: appends records at the description's position; the other thread passes the descriptor at a
# byte from the socket.
RESOLVED = r"""
#include <fcntl.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>
static int fd, s;
static void *pass(void *arg)
{
	char control[CMSG_SPACE(sizeof fd)] = {0}, text[1];
	struct iovec iov = {text, 1};
	struct msghdr m = {
		.msg_iov = &iov, .msg_iovlen = 1, .msg_control = control, .msg_controllen = sizeof control};
	struct cmsghdr *c = CMSG_FIRSTHDR(&m);
	if (recv(s, text, 1, 0) != 1)
		exit(2);
	c->cmsg_level = SOL_SOCKET;
	c->cmsg_type = SCM_RIGHTS;
	c->cmsg_len = CMSG_LEN(sizeof fd);
	memcpy(CMSG_DATA(c), &fd, sizeof fd);
	if (sendmsg(s, &m, 0) != 1 || recv(s, text, 1, 0) != 1)
		exit(3);
	return arg;
}
int main(int argc, char **argv)
{
	char record[100];
	pthread_t thread;
	s = atoi(argv[2]);
	fd = open(argv[1], O_WRONLY | O_CREAT, 0644);
	if (argc != 3 || fd < 0 || pthread_create(&thread, NULL, pass, NULL))
		return 1;
	memset(record, 'x', sizeof record);
	for (int half = 0; half < 2; half++) {
		for (int i = 0; i < 1000; i++)
			if (write(fd, record, sizeof record) != sizeof record)
				return 4;
		if (half == 0)
			pthread_join(thread, NULL);
	}
	return close(fd);
}
"""


def test_descriptor_is_passed_on_while_it_is_resolved(library, compile_c, place):
    """The writer is held in the look for its rule; the other thread must wait for it before it passes."""
    program = compile_c(RESOLVED, "-pthread")
    path = place / "file"
    ours, theirs = socket.socketpair()
    with ours, theirs:
        process, held = start_held(
            [program, path, theirs.fileno()],
            cwd=place,
            env={**os.environ, **preload_env(library, str(path))},
            pass_fds=(theirs.fileno(),),
        )
        with process:
            resolves = 0x2000  # a bit of the mask in that look only
            held.until(lambda call, a: call == "statx" and a[3] & resolves)
            ours.send(b"p")
            came, _, _ = select.select([ours], [], [], 1)
            held.release()
            _, (fd,), _, _ = socket.recv_fds(ours, 1, 1)
            for _ in range(1000):
                os.write(fd, b"y" * RECORD)
            ours.send(b"e")
            assert process.wait(60) == 0
    os.close(fd)
    data = path.read_bytes()
    assert not came
    assert (data.count(b"x" * RECORD), data.count(b"y" * RECORD), len(data)) == (2000, 1000, 3000 * RECORD)


# ---- threads that are cancelled ----


@pytest.mark.parametrize("adapt", ["on", "off"])
@pytest.mark.parametrize("when", ["deferred", "anywhere"])
def test_threads_are_cancelled(library, compile_c, place, when, adapt):
    program = compile_other(compile_c, "cancelled")
    command = [program, place / "file", when, "4"]
    native = run_native(command, place)
    assert native.returncode == 0, native.stderr
    done = run_preloaded(library, command, place, adapt=adapt)
    assert (done.returncode, done.stderr) == (0, "")
    assert_staged(done.stats)
    assert not leftovers(place)


CLOSED = r"""
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>
static int fd, before;
static char record[100];
static void clean(void *arg)
{
	(void)arg;
	for (int i = 0; i < 3; i++)
		printf("write %zd\n", write(fd, record, sizeof record));
	if (before == 1000) {
		printf("close %d\n", close(fd));
		fd = -1;
	}
}
static void *cancelled(void *arg)
{
	pthread_cleanup_push(clean, NULL);
	pthread_cancel(pthread_self());
	close(fd);
	pthread_cleanup_pop(0);
	return arg;
}
int main(int argc, char **argv)
{
	static const int counts[] = {0, 1, 5, 20, 1000};
	memset(record, 'x', sizeof record);
	record[99] = '\n';
	for (int i = 0; i < 5; i++) {
		char name[16];
		pthread_t thread;
		void *result;
		int other;
		before = counts[i];
		snprintf(name, sizeof name, "f%d", i);
		fd = open(name, O_WRONLY | O_CREAT | O_APPEND, 0644);
		for (int n = 0; n < before; n++)
			if (write(fd, record, sizeof record) != sizeof record)
				return 2;
		if (pthread_create(&thread, NULL, cancelled, NULL) || pthread_join(thread, &result))
			return 3;
		printf("cancelled %d\n", result == PTHREAD_CANCELED);
		other = open(name, O_WRONLY | O_APPEND);
		for (int n = 0; n < 2000; n++)
			if (write(n % 100 || fd < 0 ? other : fd, record, sizeof record) != sizeof record)
				return 4;
		printf("%d %d %d\n", close(other), close(fd), errno);
	}
	return argc == 1 && argv ? 0 : 1;
}
"""


def test_close_is_cancelled(library, compile_c, place):
    """The descriptor is still open then: its file goes on being staged."""
    program = compile_c(CLOSED, "-pthread")
    texts, files = [], []
    for under in (False, True):
        directory = place / str(under)
        directory.mkdir()
        done = run_preloaded(library, [program], directory) if under else run_native([program], directory)
        assert (done.returncode, done.stderr) == (0, "")
        texts.append(done.stdout)
        files.append({path.name: path.read_bytes() for path in directory.iterdir()})
    assert texts[0] == texts[1]
    assert files[0] == files[1]
    assert done.stats.through == {}
    assert done.stats.writes > 10_000


# limited PATH HARD PIPE: a thread appends 50 records; the main thread sets a limit at 350 and 30 bytes.  At a byte
# from the pipe the thread appends 300, at the next one as many as it can, and says what the last calls gave.
LIMITED = r"""
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>
enum { RECORD = 100 };
static int fd, pipe_fd;
static pthread_barrier_t begun, set;
static ssize_t put(int count)
{
	char record[RECORD];
	ssize_t r = RECORD;
	memset(record, 'x', RECORD);
	while (count-- > 0 && r == RECORD)
		r = write(fd, record, RECORD);
	return r;
}
static void say(const char *text)
{
	printf("%s\n", text);
	fflush(stdout);
}
static void *append(void *arg)
{
	char byte;
	ssize_t r;
	struct stat st;
	if (put(50) != RECORD)
		exit(2);
	pthread_barrier_wait(&begun);
	if (read(pipe_fd, &byte, 1) != 1 || put(300) != RECORD)
		exit(3);
	say("more");
	pthread_barrier_wait(&set);
	if (read(pipe_fd, &byte, 1) != 1)
		exit(4);
	r = put(2000);
	printf("%zd ", r);
	r = put(1);
	printf("%zd %s ", r, strerrorname_np(errno));
	fstat(fd, &st);
	printf("%ld\n", (long)st.st_size);
	fflush(stdout);
	return arg;
}
int main(int argc, char **argv)
{
	struct rlimit limit = {350 * RECORD + 30, RLIM_INFINITY};
	pthread_t thread;
	signal(SIGXFSZ, SIG_IGN);
	pipe_fd = atoi(argv[3]);
	fd = open(argv[1], O_WRONLY | O_CREAT | O_APPEND, 0644);
	pthread_barrier_init(&begun, NULL, 2);
	pthread_barrier_init(&set, NULL, 2);
	if (atoi(argv[2]))
		limit.rlim_max = limit.rlim_cur;
	if (argc != 4 || fd < 0 || pthread_create(&thread, NULL, append, NULL))
		return 5;
	pthread_barrier_wait(&begun);
	if (setrlimit(RLIMIT_FSIZE, &limit))
		return 6;
	pthread_barrier_wait(&set);
	pthread_join(thread, NULL);
	return close(fd);
}
"""


@pytest.mark.parametrize("hard", [0, 1], ids=["soft", "hard"])
def test_limit_comes_while_another_thread_writes(library, compile_c, place, hard):
    """Held just before the kernel sets the limit: what is accepted meanwhile counts, nothing beyond it later."""
    program = compile_c(LIMITED, "-pthread")
    answers = []
    for under in (False, True):
        path = place / str(under)
        stats = place / "stats"
        extra = preload_env(library, str(path), lag_ms=60000, stats=stats) if under else {}
        their_end, our_end = os.pipe()
        process, held = start_held(
            [program, path, hard, their_end],
            cwd=place,
            env={**os.environ, **extra},
            stdout=subprocess.PIPE,
            pass_fds=(their_end,),
            text=True,
        )
        os.close(their_end)
        with process:
            held.until(lambda call, a: call == "prlimit64" and a[1] == resource.RLIMIT_FSIZE and a[2] != 0)
            os.write(our_end, b"m")
            assert process.stdout.readline() == "more\n"
            held.release()
            os.write(our_end, b"b")
            answers.append(process.stdout.readline())
            assert process.wait(60) == 0
        os.close(our_end)
    assert answers == [f"30 -1 EFBIG {350 * RECORD + 30}\n"] * 2
    assert_staged(parse_stats(stats.read_text()), 40 * RECORD)


# ---- reads with flags ----

READS = r"""
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>
enum { SIZE = 1024, FIRST = 4, COUNT = 64 };
static int fd, go;
static char record[SIZE];
static void *writes(void *arg)
{
	char byte;
	printf("%ld %d\n", (long)syscall(SYS_gettid), fd);
	fflush(stdout);
	if (read(go, &byte, 1) != 1)
		exit(3);
	for (int i = 0; i < COUNT; i++)
		if (pwrite(fd, record, SIZE, (FIRST + i) * SIZE) != SIZE)
			exit(4);
	if (fdatasync(fd) != 0)
		exit(5);
	return arg;
}
/* reads PATH GO: what preadv2 with a flag returns, of memory and an offset that O_DIRECT refuses.  Another thread
 * writes and syncs when GO has a byte. */
int main(int argc, char **argv)
{
	static char buffer[2 * SIZE];
	struct iovec iov = {buffer + 1, SIZE};
	pthread_t thread;
	ssize_t n;
	(void)argc;
	fd = open(argv[1], O_RDWR | O_CREAT, 0644);
	go = atoi(argv[2]);
	memset(record, 'x', sizeof record);
	for (int i = 0; i < FIRST; i++)
		if (write(fd, record, SIZE) != SIZE)
			return 1;
	if (fdatasync(fd) != 0 || pthread_create(&thread, NULL, writes, NULL) != 0)
		return 2;
	n = preadv2(fd, &iov, 1, 7, RWF_HIPRI);
	printf("%zd %s\n", n, n < 0 ? strerrorname_np(errno) : "ok");
	fflush(stdout);
	pthread_join(thread, NULL);
	return 0;
}
"""


def test_flush_comes_during_a_read_with_flags(library, compile_c, place):
    """Held just before the kernel reads: a flush of another thread that starts then leaves the description's flags
    alone.  With O_DIRECT the kernel would refuse the read."""
    environment = preload_env(
        library, str(place / "file"), lag_ms=60000, flush="direct", stats=place / "stats"
    )
    their_end, our_end = os.pipe()
    process, reader = start_held(
        [compile_c(READS, "-pthread"), place / "file", their_end],
        cwd=place,
        env={**os.environ, **environment},
        stdout=subprocess.PIPE,
        pass_fds=(their_end,),
        text=True,
    )
    os.close(their_end)
    with process:
        reader.until(lambda call, a: call == "preadv2" and a[5] == os.RWF_HIPRI)
        thread, fd = map(int, process.stdout.readline().split())
        writer = Held(thread)
        os.write(our_end, b"g")
        writer.until(lambda call, a: call.startswith("pwrite") and a[0] == fd)
        described = Path(f"/proc/{process.pid}/fdinfo/{fd}").read_text()
        reader.release()
        answer = process.stdout.readline()
        writer.release()
        assert process.wait(60) == 0
    os.close(our_end)
    flags = int(described.split("flags:")[1].split()[0], 8)
    assert (answer, flags & os.O_DIRECT) == ("1024 ok\n", 0)
    assert_staged(parse_stats((place / "stats").read_text()), 32 << 10)


# ---- write errors ----


def alike_on_disk(library, program, tmp_path, how, kind, steps, **settings) -> list[list[str]]:
    """The answers natively and under the library, on a fresh file system each."""
    answers = []
    for under in (False, True):
        with disk(kind, tmp_path / f"{kind}-{under}") as point:
            data = point / "data"
            data.mkdir()
            command = [program, data / "file", "staged" if under else "native", how]
            settings = {"adapt": "on", "lag_ms": 60000} | settings
            with Program(
                library if under else None, command, tmp_path, paths=f"{data}/**", **settings
            ) as one:
                answers.append(steps(one, point))
                one.finish()
                assert "fastwrite:" not in one.stderr
            assert not leftovers(point)
    return answers


@pytest.mark.parametrize("how", HOWS)
@pytest.mark.parametrize("kind", ["tmpfs", "ext4"])
@pytest.mark.parametrize("state", STATES[:3])
def test_full_disk_before_it_is_staged(library, program, tmp_path, how, kind, state):
    """Errors as natively for as long as it is full; then it is staged as usual."""

    def steps(one, point):
        said = [one.ask("open")]
        for each in STATES[: STATES.index(state) + 1]:
            said.append(one.ask(f"reach {each}"))
        fill_up(point)
        # the page that is begun takes some; then errors, more than it takes to attach a file
        said.append(one.ask("errors 100 200 3000"))
        said.append(one.ask("errors 5000 200 30"))
        said.append(one.ask("verify"))
        (point / "ballast").unlink()
        said.append(one.ask("put 5 100"))
        said.append(one.ask("verify"))
        one.ask("reach attached")
        said.append(one.ask("put 300 100"))
        said.append(one.ask("sync"))
        said.append(one.ask("verify"))
        said.append(one.ask("close"))
        return said

    native, staged = alike_on_disk(library, program, tmp_path, how, kind, steps)
    assert any("first ENOSPC; others 0; " in each for each in native)
    assert staged == native


@pytest.mark.parametrize("how", HOWS)
@pytest.mark.parametrize("state", ["attached", "detached", "anew"])
def test_full_disk_when_it_was_staged(library, program, tmp_path, how, state):
    """Where the first error comes may differ: the arena takes space, too."""

    def steps(one, point):
        said = [one.ask("open")]
        for each in STATES[: STATES.index(state) + 1]:
            said.append(one.ask(f"reach {each}"))
        fill_up(point)
        said.append(one.ask("errors 100 2000000 3000"))
        said.append(one.ask("sync"))
        said.append(one.ask("verify"))
        (point / "ballast").unlink()
        said.append(one.ask("put 300 100"))
        one.ask("reach detached")
        one.ask("reach anew")
        said.append(one.ask("verify"))
        said.append(one.ask("close"))
        return said

    native, staged = alike_on_disk(library, program, tmp_path, how, "ext4", steps)
    assert any("first ENOSPC; others 0; " in each for each in native)
    assert staged == native


@pytest.mark.parametrize("how", HOWS)
@pytest.mark.parametrize("state", STATES[:3])
def test_device_fails_before_it_is_staged(library, program, tmp_path, how, state):
    def steps(one, point):
        said = [one.ask("open")]
        for each in STATES[: STATES.index(state) + 1]:
            said.append(one.ask(f"reach {each}"))
        shut_down(point)
        said.append(one.ask("failing 100 3000"))
        said.append(one.ask("failing 5000 20"))
        said.append(one.ask("sync"))
        said.append(one.ask("close"))
        return said

    native, staged = alike_on_disk(library, program, tmp_path, how, "ext4", steps)
    assert any("EIO 3000" in each for each in native)
    assert staged == native
