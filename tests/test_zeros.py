# SPDX-License-Identifier: Apache-2.0
"""prealloc_mode = zero: syncs need no journal commit, and nobody finds zeros that the program did not write."""

from __future__ import annotations

import re
import signal
import subprocess
from pathlib import Path

import pytest
from lib.disks import MIB, disk
from lib.support import assert_staged, disk_dir, leftovers, run_native, run_preloaded

PROGRAM = r"""
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>
static int fd;
static long at;
static void die(const char *what)
{
	perror(what);
	exit(3);
}
static void put(size_t size)
{
	char record[8192];
	for (size_t i = 0; i < size; i++)
		record[i] = (char)((at + (long)i) * 2654435761u >> 13);
	if (write(fd, record, size) != (ssize_t)size)
		die("write");
	at += (long)size;
}
static void expect_size(const char *who, long size)
{
	if (size != at) {
		fprintf(stderr, "%s: size %ld, not %ld\n", who, size, at);
		exit(4);
	}
}
static long by_fstat(void)
{
	struct stat st;
	if (fstat(fd, &st) != 0)
		die("fstat");
	return (long)st.st_size;
}
/* zeros PATH FLAGS SIZE COUNT WHAT: COUNT records, each with fdatasync, then WHAT; letters of FLAGS: a(ppend) */
int main(int argc, char **argv)
{
	size_t size = (size_t)atol(argv[3]);
	int count = atoi(argv[4]);
	char what = argv[5][0], byte;
	struct stat st;
	(void)argc;
	fd = open(argv[1], O_RDWR | O_CREAT | (strchr(argv[2], 'a') ? O_APPEND : 0), 0644);
	if (fd < 0)
		die("open");
	at = lseek(fd, 0, SEEK_END);
	for (int i = 0; i < count; i++) {
		put(size);
		if (fdatasync(fd) != 0)
			die("fdatasync");
		if (what == 'S' && i % 100 == 99)
			expect_size("fstat", by_fstat());
	}
	printf("written %ld\n", at);
	fflush(stdout);
	usleep(50000); /* the engine may be at it */
	switch (what) {
	case 'k': raise(SIGKILL); break;
	case 'K': put(size); raise(SIGKILL); break; /* one more is staged */
	case 'x': _exit(0);
	case 's': expect_size("fstat", by_fstat()); break;
	case 'p':
		if (stat(argv[1], &st) != 0)
			die("stat");
		expect_size("stat", (long)st.st_size);
		break;
	case 'e': expect_size("seek", (long)lseek(fd, 0, SEEK_END)); break;
	case 'r':
		if (pread(fd, &byte, 1, at) != 0)
			die("not the end");
		break;
	case 'l': {
		char big[100000];
		memset(big, 0, sizeof big);
		if (write(fd, big, sizeof big) != sizeof big)
			die("write");
		at += (long)sizeof big;
		expect_size("fstat", by_fstat());
		if (ftruncate(fd, at -= (long)sizeof big) != 0)
			die("ftruncate");
		break;
	}
	case 'f': {
		int status;
		if (fork() == 0) {
			expect_size("child", by_fstat());
			put(size);
			if (fdatasync(fd) != 0)
				die("fdatasync");
			_exit(0);
		}
		if (wait(&status) < 0 || status != 0)
			die("child");
		at += (long)size;
		for (int i = 0; i < 100; i++) {
			put(size);
			if (fdatasync(fd) != 0)
				die("fdatasync");
		}
		expect_size("parent", by_fstat());
		break;
	}
	case 'c': { /* a shell sees what is there */
		char command[4096];
		snprintf(command, sizeof command, "test $(stat -c %%s %s) = %ld", argv[1], at);
		if (system(command) != 0)
			return fprintf(stderr, "the shell sees zeros\n"), 5;
		break;
	}
	case 'm': {
		char *map = mmap(NULL, 4096, PROT_READ, MAP_SHARED, fd, 0);
		if (map == MAP_FAILED)
			die("mmap");
		if (fstat(fd, &st) != 0)
			die("fstat");
		expect_size("mapped", (long)st.st_size);
		break;
	}
	case 't': {
		int other = open(argv[1], O_WRONLY | O_TRUNC);
		at = 0;
		lseek(fd, 0, SEEK_SET);
		expect_size("truncated", by_fstat());
		close(other);
		break;
	}
	}
	printf("end %ld\n", at);
	return close(fd) != 0;
}
"""
ZERO = {"prealloc_mode": "zero", "writers": "exclusive", "lag_ms": 60_000}


def pattern(size: int) -> bytes:
    return bytes(((at * 2654435761) & 0xFFFFFFFFFFFFFFFF) >> 13 & 0xFF for at in range(size))


@pytest.fixture
def program(compile_c):
    return compile_c(PROGRAM)


@pytest.fixture
def place():
    with disk_dir() as path:
        (path / "data").mkdir()
        yield path


def run(library, program, place: Path, flags: str, size: int, count: int, what: str, **settings):
    return run_preloaded(
        library,
        [program, place / "data" / "a", flags, str(size), str(count), what],
        place,
        paths=f"{place}/data/**",
        **{**ZERO, **settings},
    )


@pytest.mark.parametrize("flags", ["-", "a"])
@pytest.mark.parametrize("size", [100, 4096])
@pytest.mark.parametrize("what", ["-", "s", "p", "e", "r", "l", "f", "c", "m", "t", "S", "x"])
def test_nobody_here_sees_them(library, program, place, what, size, flags):
    done = run(library, program, place, flags, size, 600, what)
    assert done.returncode == 0, f"{done.returncode}: {done.stderr}"
    end = int(done.stdout.split()[-1])
    assert (place / "data" / "a").read_bytes() == pattern(end)
    assert "fastwrite:" not in done.stderr, done.stderr
    assert_staged(done.stats, 500 * size)
    assert not leftovers(place)


@pytest.mark.parametrize("what", ["k", "K"])
@pytest.mark.parametrize("size", [100, 4096])
def test_recovery_cuts_them_off(library, fastwrite, program, place, what, size):
    done = run(library, program, place, "a", size, 1000, what, stats="")
    assert done.returncode == -signal.SIGKILL, done.stderr
    end = int(done.stdout.split()[-1])
    file = place / "data" / "a"
    assert file.stat().st_size > end, "no zeros stood ahead: this tests nothing"
    recovered = subprocess.run(
        [fastwrite, "recover", place / "data"], capture_output=True, text=True, check=False
    )
    assert recovered.returncode == 0, recovered.stdout + recovered.stderr
    assert file.read_bytes() == pattern(end + (size if what == "K" else 0))
    assert file.stat().st_blocks * 512 < end + 64 * 1024
    assert not leftovers(place)


def test_what_others_wrote_behind_them_stays(library, fastwrite, program, place):
    done = run(library, program, place, "a", 100, 1000, "k", stats="")
    assert done.returncode == -signal.SIGKILL, done.stderr
    file = place / "data" / "a"
    with file.open("ab") as other:
        other.write(b"other")
    padded = file.read_bytes()
    recovered = subprocess.run(
        [fastwrite, "recover", place / "data"], capture_output=True, text=True, check=False
    )
    assert recovered.returncode == 0, recovered.stdout + recovered.stderr
    assert "they stay" in recovered.stderr
    assert file.read_bytes() == padded


@pytest.mark.parametrize("settings", [{"writers": "auto"}, {"sync": "off"}, {"visibility": "strict"}])
def test_not_where_it_would_be_wrong_or_useless(library, program, place, settings):
    done = run(library, program, place, "a", 100, 1000, "k", **settings, stats="")
    assert done.returncode == -signal.SIGKILL, done.stderr
    assert (place / "data" / "a").stat().st_size <= int(done.stdout.split()[-1])


def test_a_full_disk_is_none_the_fuller(library, program, tmp_path):
    """The zeros stop when little is free, and every record that a native program could write is taken."""
    with disk("ext4", tmp_path / "disk", 24 * MIB) as point:
        (point / "data").mkdir()
        done = run(library, program, point, "a", 4096, 3000, "s", mem="1M", block="64K")
        assert done.returncode == 0, done.stderr
        assert (point / "data" / "a").read_bytes() == pattern(3000 * 4096)


def transactions(point: Path) -> int:
    """Journal commits of the ext4 that is mounted at `point`."""
    device = subprocess.run(
        ["findmnt", "-no", "SOURCE", point], capture_output=True, text=True, check=True
    ).stdout.strip()
    (info,) = Path("/proc/fs/jbd2").glob(f"{Path(device).name}-*/info")
    return int(re.match(r"(\d+) transactions", info.read_text())[1])


def test_syncs_commit_no_journal(library, program, tmp_path):
    made = {}
    with disk("ext4", tmp_path / "disk", 256 * MIB) as point:
        (point / "data").mkdir()
        for mode in ("native", "keep", "zero"):
            before = transactions(point)
            if mode == "native":
                done = run_native([program, point / "data" / mode, "a", "4096", "2000", "x"], point)
            else:
                done = run_preloaded(
                    library,
                    [program, point / "data" / mode, "a", "4096", "2000", "x"],
                    point,
                    paths=f"{point}/data/**",
                    **{**ZERO, "prealloc_mode": mode},
                )
            assert done.returncode == 0, done.stderr
            made[mode] = transactions(point) - before
    print(made)
    assert made["native"] > 1500
    assert made["zero"] < 200, made
