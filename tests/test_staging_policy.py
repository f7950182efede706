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


@pytest.mark.parametrize("sync", ["fdatasync", "fsync"])
def test_a_write_for_each_sync_is_the_kernels(habit, sync):
    assert habit(1, 200, 1, sync=sync).writes == 0


@pytest.mark.parametrize("sync", ["relaxed", "off", "journal"])
def test_unless_a_sync_does_not_ask_the_device(habit, sync):
    assert habit(1, 200, 1, sync=sync).writes >= 190


def test_nor_where_zeros_stand_ready(habit):
    assert habit(1, 200, 1, prealloc_mode="zero", writers="exclusive").writes >= 190


def test_few_writes_for_each_sync_are_staged_three_times(habit):
    assert 0 < habit(1, 200, 10).writes <= 3 * 10


def test_a_user_may_have_it_staged_all_the_same(habit):
    # eight times, and then it is the kernel's, too
    assert 7 <= habit(1, 200, 1, adapt="off").writes <= 8
    assert habit(100, 2, 6, adapt="off").writes >= 100 * 11
    # but what it looks at after every write or two is the kernel's in any case
    assert habit(1, 500, 2, 0, "looks", adapt="off").writes <= 20


def test_many_writes_for_each_sync_are_staged(habit):
    assert habit(1, 20, 50).writes >= 20 * 50 - 20


def test_it_is_found_out_when_the_habit_ends(habit):
    stats = habit(1, 100, 1, 1000)
    assert 980 <= stats.writes < 1000


def test_a_file_that_is_made_anew_is_known_by_its_name(habit):
    """SQLite's rollback journal."""
    assert 0 < habit(100, 2, 6).writes <= 12
    # of the second and the third file all but those before the syncs, and sixteen
    assert 850 <= habit(3, 2, 6, 300).writes <= 312 + 2 * 284


def test_looking_after_every_write_or_two(habit):
    assert 0 < habit(1, 500, 2, 0, "looks").writes <= 20
    stats = habit(1, 500, 2, 2000, "looks")
    assert 1900 <= stats.writes < 2000


@pytest.mark.parametrize("sync", ["relaxed", "off", "journal"])
def test_nor_is_one_made_anew_staged_where_syncs_are_cheap(habit, sync):
    """To engage a file and to give it back costs more than a few writes."""
    assert 0 < habit(100, 2, 6, sync=sync).writes <= 11
    # but one that lives longer: the first seventeen writes of the second and the third are the kernel's
    assert habit(3, 2, 6, 300, sync=sync).writes >= 3 * 312 - 3 - 2 * 17


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
    program = compile_c(HOLES)
    with disk_dir() as place:
        path = place / "file"
        done = run_preloaded(
            library, [program, path, "3000", str(stride)], place, paths=f"{path}", adapt="on"
        )
        assert done.returncode == 0, done.stderr
        assert 1 <= done.stats.writes <= 100
        expected = bytearray(3000 * stride + 100)
        for i in range(3000):
            expected[i * stride : i * stride + 100] = b"%c" % (97 + i % 26) * 100
        assert path.read_bytes() == expected
