# SPDX-License-Identifier: Apache-2.0
"""What a watcher (inotify) sees of a program: the opens and closes that the program makes, and no others."""

from __future__ import annotations

import ctypes
import os
import struct
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from lib.support import assert_staged, disk_dir, run_native, run_preloaded

MODIFY, CLOSE_WRITE, CLOSE_NOWRITE, OPEN, CREATE, OVERFLOW = 0x2, 0x8, 0x10, 0x20, 0x100, 0x4000
NAMES = {MODIFY: "modify", CLOSE_WRITE: "close-write", CLOSE_NOWRITE: "close-nowrite", OPEN: "open"}
WRITES, RECORD = 20_000, 100

# events MODE PATH WRITES: each mode writes WRITES records.  Now and then F_SETFL makes the library give the file
# back; the next write attaches it again.  A mark is a directory: it shows in the watcher's queue where the program was.
PROGRAM = r"""
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>
enum { SIZE = 100, GIVES_BACK = 1000, OPENS = 8 };
static int records;
static char buffer[SIZE];
static void need(int good, const char *what)
{
	if (!good) {
		perror(what);
		_exit(2);
	}
}
static void mark(const char *name, int number)
{
	char text[64];
	snprintf(text, sizeof text, "mark-%s-%d", name, number);
	need(mkdir(text, 0755) == 0, text);
}
static const char *record(int number)
{
	memset(buffer, 'a' + number % 26, sizeof buffer);
	return buffer;
}
static void put_at(int fd, int number)
{
	need(pwrite(fd, record(number), SIZE, (off_t)number * SIZE) == SIZE, "pwrite");
}
static void put(int fd, int number) { need(write(fd, record(number), SIZE) == SIZE, "write"); }
static void give_back(int fd, int number)
{
	if (number % GIVES_BACK == GIVES_BACK - 1)
		need(fcntl(fd, F_SETFL, fcntl(fd, F_GETFL)) == 0, "F_SETFL");
}
static void finish(int fd)
{
	mark("last", 0);
	need(close(fd) == 0, "close");
	mark("closed", 0);
}
static void positions(const char *path, int posix_locks)
{
	struct flock lock = {.l_whence = SEEK_SET, .l_len = 1};
	int fd = open(path, O_RDWR | O_CREAT, 0644);
	char back[SIZE];

	need(fd >= 0, path);
	for (int i = 0; i < records; i++) {
		if (posix_locks && i % 100 == 50) {
			lock.l_type = F_WRLCK;
			need(fcntl(fd, F_SETLK, &lock) == 0, "lock");
		}
		put_at(fd, i);
		if (i % 7 == 0) {
			need(pread(fd, back, SIZE, (off_t)(i / 2) * SIZE) == SIZE, "pread");
			need(back[0] == 'a' + i / 2 % 26, "what was read");
		}
		if (posix_locks && i % 100 == 99) {
			lock.l_type = F_UNLCK;
			need(fcntl(fd, F_SETLK, &lock) == 0, "unlock");
		}
		give_back(fd, i);
	}
	finish(fd);
}
static void stream(const char *path, int flags, int syncs)
{
	int fd = open(path, O_WRONLY | O_CREAT | flags, 0644);

	need(fd >= 0, path);
	for (int i = 0; i < records; i++) {
		put(fd, i);
		if (syncs && i % 400 == 399)
			need(fdatasync(fd) == 0, "fdatasync");
		give_back(fd, i);
	}
	finish(fd);
}
static void opens(const char *path)
{
	int fds[OPENS];

	for (int i = 0; i < OPENS; i++) {
		fds[i] = open(path, (i % 2 ? O_WRONLY : O_RDWR) | O_CREAT, 0644);
		need(fds[i] >= 0, path);
		mark("opened", i);
	}
	for (int i = 0; i < records; i++) {
		put_at(fds[i % OPENS], i);
		give_back(fds[i % OPENS], i);
		if (i % 997 == 0) {
			int reader = open(path, O_RDONLY);
			need(reader >= 0 && pread(reader, buffer, SIZE, (off_t)i * SIZE) == SIZE, "reader");
			need(close(reader) == 0, "close of the reader");
			mark("read", i);
		}
	}
	for (int i = 0; i < OPENS - 1; i++) {
		need(close(fds[i]) == 0, "close");
		mark("closed", i + 1);
	}
	finish(fds[OPENS - 1]);
}
static void forks(const char *path)
{
	int fd = open(path, O_RDWR | O_CREAT, 0644), closed[2], finished[2], status;
	char back[SIZE];
	pid_t child;

	need(fd >= 0 && pipe(closed) == 0 && pipe(finished) == 0, path);
	for (int i = 0; i < records / 4; i++)
		put_at(fd, i);
	child = fork();
	need(child >= 0, "fork");
	for (int i = records / 4; i < records; i++) {
		if ((i % 2 == 0) != (child == 0))
			continue;
		put_at(fd, i);
		if (i % 50 == 0)
			need(pread(fd, back, SIZE, (off_t)(i / 8) * SIZE) == SIZE, "pread");
		give_back(fd, i);
	}
	/* the child ends last: a member that ends drains what only others have, by an open of its own */
	if (child == 0) {
		need(close(fd) == 0, "close");
		need(close(closed[0]) == 0 && close(closed[1]) == 0 && close(finished[1]) == 0, "close");
		exit(read(finished[0], back, 1) == 0 ? 0 : 4);
	}
	need(close(closed[1]) == 0 && read(closed[0], back, 1) == 0, "the end of the child's writes");
	finish(fd);
	need(close(finished[1]) == 0, "close");
	need(waitpid(child, &status, 0) == child && status == 0, "the child");
}
int main(int argc, char **argv)
{
	const char *how = argv[1];

	records = atoi(argv[3]);
	if (!strcmp(how, "positions"))
		positions(argv[2], 0);
	else if (!strcmp(how, "locks"))
		positions(argv[2], 1);
	else if (!strcmp(how, "syncs"))
		stream(argv[2], 0, 1);
	else if (!strcmp(how, "append"))
		stream(argv[2], O_APPEND, 0);
	else if (!strcmp(how, "promises"))
		stream(argv[2], O_DSYNC, 0);
	else if (!strcmp(how, "opens"))
		opens(argv[2]);
	else if (!strcmp(how, "fork"))
		forks(argv[2]);
	else
		return 3;
	return 0;
}
"""

# Settings with adapt = off stage from the second write on; adapt = on stages and gives back by itself.
SETTINGS = {
    "on": {"adapt": "on"},
    "off": {"adapt": "off"},
    "strict": {"adapt": "off", "visibility": "strict"},
    "direct": {"adapt": "off", "flush": "direct"},
    "exclusive": {"adapt": "off", "writers": "exclusive"},
    "journal": {"adapt": "off", "sync": "journal"},
}
PROGRAMS = ["positions", "syncs", "append", "opens", "fork", "locks"]


class Watcher:
    """The events of one directory, in the order in which they happened."""

    def __init__(self, place: Path) -> None:
        libc = ctypes.CDLL(None, use_errno=True)
        self.fd = libc.inotify_init1(os.O_NONBLOCK | os.O_CLOEXEC)
        mask = MODIFY | CLOSE_WRITE | CLOSE_NOWRITE | OPEN | CREATE
        if self.fd < 0 or libc.inotify_add_watch(self.fd, os.fsencode(place), mask) < 0:
            raise OSError(ctypes.get_errno(), f"inotify on {place}")

    def events(self, file: str) -> Iterator[str]:
        """Marks, and what happened to `file`.  Equal events in a row may be one."""
        while True:
            try:
                data = os.read(self.fd, 1 << 20)
            except BlockingIOError:
                return
            while data:
                _, mask, _, size = struct.unpack_from("iIII", data)
                name = data[16 : 16 + size].rstrip(b"\0").decode()
                data = data[16 + size :]
                assert not mask & OVERFLOW, "events were lost"
                if name.startswith("mark-") and mask & CREATE:
                    yield name
                if name == file:
                    yield from (text for bit, text in NAMES.items() if mask & bit)


@contextmanager
def watched() -> Iterator[tuple[Path, Watcher]]:
    with disk_dir() as place:
        watcher = Watcher(place)
        try:
            yield place, watcher
        finally:
            os.close(watcher.fd)


def content(writes: int) -> bytes:
    return b"".join(b"%c" % (97 + i % 26) * RECORD for i in range(writes))


def opens_and_closes(events: list[str]) -> list[str]:
    return [event for event in events if event != "modify"]


def native(program: Path, how: str, writes: int) -> list[str]:
    with watched() as (place, watcher):
        done = run_native([program, how, place / "file", str(writes)], place)
        events = list(watcher.events("file"))
        assert done.returncode == 0, done.stderr
        assert (place / "file").read_bytes() == content(writes)
        return opens_and_closes(events)


def preloaded(
    library: Path, program: Path, how: str, writes: int, stages: bool = True, **settings: object
) -> list[str]:
    with watched() as (place, watcher):
        path = place / "file"
        done = run_preloaded(library, [program, how, path, str(writes)], place, paths=f"{path}", **settings)
        events = list(watcher.events("file"))
        assert done.returncode == 0, done.stderr
        assert path.read_bytes() == content(writes)
        if stages:
            assert_staged(done.stats, RECORD)
        last = len(events) - events[::-1].index("close-write")
        assert "modify" not in events[last:], "the file changed after its last close"
        return opens_and_closes(events)


@pytest.mark.parametrize("how", PROGRAMS)
@pytest.mark.parametrize("settings", SETTINGS)
def test_a_watcher_sees_the_programs_opens_only(library, compile_c, how, settings):
    program = compile_c(PROGRAM)
    expected = native(program, how, WRITES)
    assert expected.count("close-write") >= 1
    # a file that is open more than once has no lease
    stages = (settings, how) != ("strict", "opens")
    assert preloaded(library, program, how, WRITES, stages, **SETTINGS[settings]) == expected


def test_flushed_through_a_description_that_syncs(library, compile_c):
    """Nor is the file opened without O_DSYNC."""
    program = compile_c(PROGRAM)
    expected = native(program, "promises", 20)
    assert preloaded(library, program, "promises", WRITES, sync="off", adapt="off") == expected
