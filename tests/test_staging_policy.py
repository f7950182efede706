# SPDX-License-Identifier: Apache-2.0
"""What is synced, or looked at, after every few writes is not staged: that would be work for nothing."""

from __future__ import annotations

import pytest
from lib.support import disk_dir, leftovers, run_preloaded

# habit PATH FILES SYNCS WRITES TAIL: FILES times, makes PATH anew, SYNCS times writes WRITES records and syncs, then
# writes TAIL more of them; all but the last one is removed.
PROGRAM = r"""
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
static int record(int fd)
{
	static unsigned number;
	char text[100];
	memset(text, 'a' + number++ % 26, sizeof text);
	return write(fd, text, sizeof text) == sizeof text;
}
int main(int argc, char **argv)
{
	int files = atoi(argv[2]), syncs = atoi(argv[3]), writes = atoi(argv[4]), tail = atoi(argv[5]);
	int looks = argc > 6;
	struct stat st;
	for (int i = 0; i < files; i++) {
		int fd;
		unlink(argv[1]);
		fd = open(argv[1], O_WRONLY | O_CREAT | O_EXCL, 0644);
		if (fd < 0)
			return 2;
		for (int j = 0; j < syncs; j++) {
			for (int k = 0; k < writes; k++)
				if (!record(fd))
					return 3;
			if (looks ? fstat(fd, &st) : fdatasync(fd))
				return 4;
		}
		for (int k = 0; k < tail; k++)
			if (!record(fd))
				return 5;
		if (close(fd))
			return 6;
	}
	return 0;
}
"""


@pytest.fixture
def habit(library, compile_c):
    program = compile_c(PROGRAM)
    with disk_dir() as place:

        def run(files: int, syncs: int, writes: int, tail: int = 0, *looks: str, **settings):
            path = place / "file"
            settings = {"adapt": "on"} | settings
            done = run_preloaded(
                library,
                [program, path, *map(str, (files, syncs, writes, tail)), *looks],
                place,
                paths=f"{path}",
                **settings,
            )
            assert done.returncode == 0, done.stderr
            each = syncs * writes + tail
            numbers = range((files - 1) * each, files * each)
            assert path.read_bytes() == b"".join(b"%c" % (97 + n % 26) * 100 for n in numbers)
            assert not leftovers(place)
            return done.stats

        yield run


# What staging costs and saves is measured, so the limits below leave room for a loaded machine.


@pytest.mark.parametrize("sync", ["fdatasync", "fsync"])
def test_a_write_for_each_sync_is_the_kernels(habit, sync):
    """Each try costs as much as the last one and comes after twice as many rounds.  The faster the disk, the more
    rounds it takes until the tries are the smaller part."""
    rounds = 400
    while (staged := habit(1, rounds, 1, sync=sync).writes) > rounds / 2 and rounds < 25_600:
        rounds *= 4
    assert staged <= rounds / 2


def test_unless_the_journal_answers_the_syncs(habit):
    assert habit(1, 200, 1, sync="journal").writes >= 150


def test_many_writes_for_each_sync_are_staged(habit):
    assert habit(1, 40, 500).writes >= 10_000


def test_it_is_found_out_when_the_habit_ends(habit):
    assert habit(1, 400, 1, 20_000).writes >= 15_000


def test_few_writes_are_the_kernels(habit):
    """To attach a file and to detach it costs more than they do."""
    assert habit(100, 0, 0, 20).writes <= 40


@pytest.mark.parametrize("sync", ["fdatasync", "relaxed", "off"])
def test_a_file_that_is_made_anew_is_the_kernels(habit, sync):
    """SQLite's rollback journal."""
    assert habit(100, 2, 6, sync=sync).writes <= 24


def test_looking_after_every_write_or_two(habit):
    assert habit(1, 20_000, 2, 0, "looks").writes <= 20_000
    assert habit(1, 500, 2, 20_000, "looks").writes >= 15_000


def test_a_user_may_have_it_staged_all_the_same(habit):
    assert habit(1, 200, 1, adapt="off").writes == 199
    assert habit(100, 2, 6, adapt="off").writes == 100 * 11
    assert habit(1, 500, 2, 0, "looks", adapt="off").writes == 999


# holes PATH COUNT STRIDE: a file that is one hole gets COUNT writes of 100 bytes, each STRIDE bytes behind the last.
HOLES = r"""
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
int main(int argc, char **argv)
{
	long count = atol(argv[2]), stride = atol(argv[3]);
	int fd = open(argv[1], O_WRONLY | O_CREAT | O_TRUNC, 0644);
	if (fd < 0 || ftruncate(fd, count * stride + 100))
		return 2;
	for (long i = 0; i < count; i++) {
		char text[100];
		memset(text, 'a' + (int)(i % 26), sizeof text);
		if (pwrite(fd, text, sizeof text, i * stride) != sizeof text)
			return 3;
	}
	return close(fd);
}
"""


@pytest.mark.parametrize("stride", [100, 20_000])
def test_writes_that_are_strewn_over_holes(library, compile_c, stride):
    """Staging begins, and ends when it does not pay.  The moment depends on what a write into a hole costs on this
    machine (tests/unit/test_staging_policy.c gives the times).  The bytes are the same, and each write counts."""
    program = compile_c(HOLES)
    with disk_dir() as place:
        path = place / "file"
        done = run_preloaded(
            library, [program, path, "3000", str(stride)], place, paths=f"{path}", adapt="on"
        )
        assert done.returncode == 0, done.stderr
        assert 0 < done.stats.writes < 3000
        assert done.stats.bytes == done.stats.writes * 100
        expected = bytearray(3000 * stride + 100)
        for i in range(3000):
            expected[i * stride : i * stride + 100] = b"%c" % (97 + i % 26) * 100
        assert path.read_bytes() == expected
