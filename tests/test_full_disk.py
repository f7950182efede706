# SPDX-License-Identifier: Apache-2.0
"""A full file system: what was accepted is in the file, nothing else is, and it goes on with new room."""

from __future__ import annotations

import os
import subprocess

import pytest
from support import assert_staged, leftovers, run_native, run_preloaded

PROGRAM = r"""
#include <errno.h>
#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/statvfs.h>
#include <unistd.h>
static void fill(unsigned char *p, size_t n, uint64_t at)
{
	for (size_t i = 0; i < n; i++)
		p[i] = (unsigned char)((at + i) * 2654435761u >> 13);
}
/* filler PATH append|positioned SIZE BALLAST: writes until ENOSPC, removes BALLAST, writes 1,000 more */
int main(int argc, char **argv)
{
	static unsigned char buffer[1 << 16];
	int append = strcmp(argv[2], "append") == 0;
	size_t size = (size_t)atol(argv[3]);
	uint64_t at = 0;
	struct statvfs room;
	int fd = open(argv[1], O_RDWR | O_CREAT | (append ? O_APPEND : 0), 0644), full = 0;
	(void)argc;
	for (;;) {
		fill(buffer, size, at);
		ssize_t n = append ? write(fd, buffer, size) : pwrite(fd, buffer, size, (off_t)at);
		if (n < 0 && errno != ENOSPC)
			return perror("write"), 2;
		if (n > 0)
			at += (uint64_t)n;
		if (n < 0 && ++full == 3)
			break;
	}
	if (fstatvfs(fd, &room) != 0)
		return perror("fstatvfs"), 8;
	printf("full %lu left %lu\n", (unsigned long)at, (unsigned long)(room.f_bavail * room.f_frsize));
	if (fsync(fd) != 0)
		return perror("fsync"), 3;
	if (lseek(fd, 0, SEEK_END) != (off_t)at)
		return fprintf(stderr, "size is not %lu\n", (unsigned long)at), 4;
	if (unlink(argv[4]) != 0)
		return perror("unlink"), 5;
	for (int i = 0; i < 1000; i++) {
		fill(buffer, size, at);
		ssize_t n = append ? write(fd, buffer, size) : pwrite(fd, buffer, size, (off_t)at);
		if (n != (ssize_t)size)
			return perror("write when there is room"), 6;
		at += size;
	}
	if (close(fd) != 0)
		return perror("close"), 7;
	printf("end %lu\n", (unsigned long)at);
	return 0;
}
"""
VERIFY = r"""
#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <unistd.h>
int main(int argc, char **argv)
{
	static unsigned char buffer[1 << 16];
	uint64_t at = 0;
	ssize_t n;
	int fd = open(argv[1], O_RDONLY);
	(void)argc;
	while ((n = read(fd, buffer, sizeof buffer)) > 0)
		for (ssize_t i = 0; i < n; i++, at++)
			if (buffer[i] != (unsigned char)(at * 2654435761u >> 13))
				return printf("wrong at %lu\n", (unsigned long)at), 1;
	printf("%lu\n", (unsigned long)at);
	return n < 0;
}
"""


@pytest.fixture
def small_disk(tmp_path):
    """64 MiB of ext4 on a loop device."""
    image, point = tmp_path / "image", tmp_path / "mounted"
    if os.geteuid() != 0:
        pytest.skip("needs root for mounting")
    with image.open("wb") as file:
        file.truncate(64 << 20)
    point.mkdir()
    for command in (["mkfs.ext4", "-q", str(image)], ["mount", "-o", "loop", str(image), str(point)]):
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode != 0:
            pytest.skip(f"{command[0]}: {done.stderr.strip()}")
    try:
        yield point
    finally:
        subprocess.run(["umount", str(point)], check=True)


@pytest.mark.parametrize("settings", [{}, {"mem": "1M", "block": "64K"}], ids=["default", "smallest"])
@pytest.mark.parametrize("size", [100, 4096, 10_000])
@pytest.mark.parametrize("how", ["append", "positioned"])
def test_until_it_is_full(library, compile_c, small_disk, tmp_path, how, size, settings):
    filler, verify = compile_c(PROGRAM), compile_c(VERIFY)
    data = small_disk / "data"
    data.mkdir()
    ballast = small_disk / "ballast"
    with ballast.open("wb") as file:
        file.write(b"b" * (24 << 20))
    subprocess.run(["sync", "-f", str(small_disk)], check=True)
    done = run_preloaded(
        library, [filler, data / "a", how, str(size), ballast], tmp_path, paths=f"{data}/**", **settings
    )
    assert done.returncode == 0, f"{done.returncode}: {done.stderr}"
    accepted = int(done.stdout.split()[-1])
    assert (data / "a").stat().st_size == accepted
    checked = run_native([verify, data / "a"], tmp_path)
    assert (checked.returncode, checked.stdout) == (0, f"{accepted}\n")
    # it was really full
    assert int(done.stdout.split()[3]) < 64 << 10
    assert_staged(done.stats, 8 << 20)
    assert "fastwrite:" not in done.stderr, done.stderr
    assert not leftovers(small_disk)


def test_full_before_it_begins(library, compile_c, small_disk, tmp_path):
    """No room for an arena: written through, and the same answers."""
    filler, verify = compile_c(PROGRAM), compile_c(VERIFY)
    data, ballast = small_disk / "data", small_disk / "ballast"
    data.mkdir()
    subprocess.run(["dd", "if=/dev/zero", f"of={ballast}", "bs=64k"], stderr=subprocess.DEVNULL, check=False)
    done = run_preloaded(
        library, [filler, data / "a", "append", "100", ballast], tmp_path, paths=f"{data}/**"
    )
    assert done.returncode == 0, f"{done.returncode}: {done.stderr}"
    accepted = int(done.stdout.split()[-1])
    checked = run_native([verify, data / "a"], tmp_path)
    assert (checked.returncode, checked.stdout) == (0, f"{accepted}\n")
    assert not leftovers(small_disk)
