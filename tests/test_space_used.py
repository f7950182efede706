# SPDX-License-Identifier: Apache-2.0
"""After the close a file takes the space that it takes natively, and has its holes where it has them natively."""

from __future__ import annotations

import errno
import fcntl
import os
import re
import signal
import struct
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest
from lib.disks import MIB, disk
from lib.support import assert_staged, leftovers, run_native, run_preloaded, sync_file_system

PROGRAM = r"""
import os, signal, sys, time
how, end = sys.argv[1:3]
MIB, SIZE = 1 << 20, 4000000
fd = os.open("file", os.O_RDWR | os.O_CREAT | (os.O_APPEND if how == "append" else 0), 0o644)
def run(at, size, record):
    "Writes in sequence."
    for offset in range(at, at + size, record):
        part = min(record, at + size - offset)
        os.write(fd, b"x" * part) if how == "append" else os.pwrite(fd, b"x" * part, offset)
def stream(size, record):
    for _ in range(size // record):
        os.write(fd, b"x" * record)
if how == "append":
    run(0, SIZE + 100, 1000)
elif how == "sparse":
    for i in range(3000):
        os.pwrite(fd, b"x" * 1024, i * 8192)
elif how == "narrow":  # holes of one block of 1 KiB, and of none
    for i in range(3000):
        os.pwrite(fd, b"x" * 700, i * 2400)
elif how == "gap":
    run(0, SIZE, 1000)
    os.pwrite(fd, b"far", 200 * MIB)
elif how == "near":  # within what is reserved
    run(0, SIZE, 1000)
    os.pwrite(fd, b"near", SIZE + 150000)
elif how == "large":  # too large to be staged
    run(0, SIZE, 1000)
    os.pwrite(fd, b"x" * 500000, 200 * MIB)
elif how.startswith("pause"):
    run(0, SIZE, 1000)
    time.sleep(float(how[5:]))
    os.pwrite(fd, b"x" * 500000, 200 * MIB)
elif how == "seek":
    stream(SIZE, 1024)
    os.lseek(fd, 200 * MIB, os.SEEK_SET)
    stream(2000, 100)
elif how == "seeklarge":
    stream(SIZE, 1024)
    os.lseek(fd, 100 * MIB, os.SEEK_CUR)
    os.write(fd, b"x" * 500000)
elif how == "runs":  # each long enough for a reservation
    for i in range(5):
        run(i * 8 * MIB, 2 * MIB, 4000)
elif how == "short":
    for i in range(100):
        run(i * MIB, 20000, 500)
elif how == "fill":
    run(0, SIZE, 1000)
    os.pwrite(fd, b"far", 200 * MIB)
    run(SIZE, MIB, 900)
    run(150 * MIB, 100000, 900)
elif how == "backwards":
    for i in reversed(range(1000)):
        os.pwrite(fd, b"x" * 600, i * 5000)
elif how == "overwrite":
    run(0, SIZE, 1000)
    for i in range(3000):
        os.pwrite(fd, b"y" * 300, i * 7919 % SIZE)
elif how == "truncate":
    run(0, SIZE, 1000)
    os.ftruncate(fd, MIB + 50)
    os.ftruncate(fd, 5 * MIB)
    run(6 * MIB, SIZE, 1000)
    os.ftruncate(fd, 7 * MIB + 100000)
if end == "kill":
    os.kill(os.getpid(), signal.SIGKILL)
"""
HOWS = re.findall(r'if how == "(\w+)":', PROGRAM)
# (natively xfs reserves space behind the end by itself, unless told otherwise)
SYSTEMS = {
    "ext4-1k": ("ext4", "", "-b", "1024"),
    "ext4-2k": ("ext4", "", "-b", "2048"),
    "ext4-4k": ("ext4", "", "-b", "4096"),
    "xfs": ("xfs", "allocsize=4k"),
    "tmpfs": ("tmpfs", ""),
}


FIEMAP = 0xC020660B
EXTENTS = 10_000
LISTED = 60  # bytes of the file system's list for each extent, at most: it is not filled


def data(path: Path) -> list[tuple[int, int]]:
    """Where the file has data."""
    found, at = [], 0
    fd = os.open(path, os.O_RDONLY)
    try:
        while True:
            begin = os.lseek(fd, at, os.SEEK_DATA)
            at = os.lseek(fd, begin, os.SEEK_HOLE)
            found.append((begin, at))
    except OSError as e:
        assert e.errno == errno.ENXIO
        return found
    finally:
        os.close(fd)


def extents(path: Path) -> list[tuple[int, int]]:
    """Where it has space, with bytes in it or not: begin and size."""
    room = bytearray(struct.pack("=QQIIII", 0, 2**64 - 1, 1, 0, EXTENTS, 0) + bytes(56 * EXTENTS))
    with path.open("rb") as file:
        fcntl.ioctl(file, FIEMAP, room)
    count = struct.unpack_from("=I", room, 20)[0]
    assert count < EXTENTS
    found = [struct.unpack_from("=QQQ", room, 32 + 56 * i) for i in range(count)]
    return [(begin, size) for begin, _, size in found]


@dataclass
class Used:
    size: int
    bytes: int  # of its own; not those in which the file system notes where they are
    data: list[tuple[int, int]]


def used(path: Path, kind: str) -> Used:
    sync_file_system(path.parent)  # some file systems find the places then
    st = path.stat()
    taken = st.st_blocks * 512
    if kind == "tmpfs":
        return Used(st.st_size, taken, data(path))
    found = extents(path)
    own = sum(size for _, size in found)
    # How many extents there are, and were meanwhile, depends on which blocks were free.  Their list is all that is
    # there besides: a few blocks of a tree that does not shrink.
    assert 0 <= taken - own <= 4 * st.st_blksize + LISTED * len(found), (path, taken, own, len(found))
    return Used(st.st_size, own, data(path))


def check(
    library: Path,
    fastwrite: Path,
    tmp_path: Path,
    system: str,
    end: str,
    hows: list[str] = HOWS,
    **settings: str,
) -> None:
    kind, options, *make = SYSTEMS[system]
    differ = {}
    with disk(kind, tmp_path, 320 * MIB, options, *make) as point:
        for how in hows:
            program = [sys.executable, "-c", PROGRAM, how, end]
            places = [point / f"{how}-native", point / f"{how}-staged"]
            for place in places:
                place.mkdir()
            native = run_native(program, places[0])
            staged = run_preloaded(library, program, places[1], **settings)
            for run in (native, staged):
                assert run.returncode == (0 if end == "close" else -signal.SIGKILL), run.stderr
            if end == "close":
                assert_staged(staged.stats, 100000)
            else:
                assert leftovers(places[1]), how
                recovered = run_native([fastwrite, "recover", places[1]], places[1])
                assert recovered.returncode == 0, recovered.stderr
            assert not leftovers(places[1]), how
            expect, got = used(places[0] / "file", kind), used(places[1] / "file", kind)
            if got != expect:
                differ[how] = (expect.bytes, got.bytes, expect.size == got.size, expect.data == got.data)
            assert (places[0] / "file").read_bytes() == (places[1] / "file").read_bytes(), how
    assert not differ, "\n".join(f"{how}: {found}" for how, found in differ.items())


@pytest.mark.parametrize("end", ["close", "kill"])
@pytest.mark.parametrize("system", SYSTEMS)
def test_space_is_the_native_one(library, fastwrite, tmp_path, system, end):
    check(library, fastwrite, tmp_path, system, end)


@pytest.mark.parametrize("end", ["close", "kill"])
@pytest.mark.parametrize(
    "settings",
    [{"visibility": "strict"}, {"sync": "journal"}, {"writers": "exclusive"}, {"prealloc": "0"}],
    ids=lambda settings: "-".join(next(iter(settings.items()))),
)
def test_space_with_other_settings(library, fastwrite, tmp_path, settings, end):
    check(library, fastwrite, tmp_path, "ext4-1k", end, **settings)


@pytest.mark.parametrize("settings", [{"visibility": "strict"}, {"sync": "journal"}, {}], ids=str)
def test_a_large_write_after_a_pause(library, fastwrite, tmp_path, settings):
    """The lease is given back meanwhile."""
    check(library, fastwrite, tmp_path, "ext4-1k", "close", ["pause0.3", "pause1.2"], **settings)
