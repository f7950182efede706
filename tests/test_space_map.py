# SPDX-License-Identifier: Apache-2.0
"""FIEMAP shows a program the extents that its file has natively: what the library reserved is not among them."""

from __future__ import annotations

import json
import sys

import pytest
from lib.disks import MIB, disk
from lib.support import Run, assert_staged, run_native, run_preloaded

# Small writes in three stretches with holes between, then the map of all, of parts, of what lies behind the end.
PROGRAM = r"""
import ctypes, fcntl, json, os, struct, sys
FIEMAP, SYNC = 0xC020660B, 1
kind, beside = sys.argv[1:3]
RANGES = [(0, 2**64 - 1), (0, 1), (0, 1 << 20), (5000, 2**64 - 1), (70000, 100), (70000, 1 << 19), (300000, 2**64 - 1),
          (400000, 2**64 - 1), (402000, 50), (402000, 4096), (409600, 2**64 - 1), (500000, 4096), (1 << 30, 1 << 20)]
def ask(fd, start, length, count, flags=SYNC):
    room = bytearray(struct.pack("=QQIIII", start, length, flags, 77, count, 99) + bytes(56 * min(count, 64)))
    try:
        fcntl.ioctl(fd, FIEMAP, room)
    except OSError as e:
        return e.errno
    head = struct.unpack_from("=QQIIII", room)
    assert head[4] == count and head[5] == 99, head
    if count == 0:
        return head
    extents = [struct.unpack_from("=QQQQQIIII", room, 32 + 56 * i) for i in range(head[3])]
    return head, [(e[0], e[2], e[5]) for e in extents]
def maps(fd):
    return [ask(fd, *r, count) for r in RANGES for count in (0, 1, 2, 64)] + [
        ask(fd, 0, 0, 4), ask(fd, 1 << 63, 10, 4), ask(fd, 0, 2**64 - 1, 4, 0x40000000), ask(fd, 0, 4096, 2**31)]
def fill(fd, first, bytes_):
    for at in range(first, first + bytes_, 100):
        if kind == "append":
            os.write(fd, b"x" * 100)
        else:
            os.pwrite(fd, b"x" * 100, at)
def stay():
    ends, up = os.pipe(), os.pipe()
    pid = os.fork()
    if pid == 0:
        os.close(ends[1])
        os.write(up[1], b".")
        os.read(ends[0], 1)
        os._exit(0)
    os.close(ends[0])
    os.read(up[0], 1)
    return pid, ends[1]
seen = []
fd = os.open("file", os.O_RDWR | os.O_CREAT | (os.O_APPEND if kind == "append" else 0), 0o644)
child = None
if beside == "before":
    child = stay()
fill(fd, 0, 10000)
other = os.open("file", os.O_RDONLY) if beside == "opened" else -1
if beside == "child":
    child = stay()
if kind == "holes":
    os.ftruncate(fd, 65536)
    fill(fd, 65536, 20000)
    os.ftruncate(fd, 300000)
    fill(fd, 300000, 102000)
else:
    fill(fd, 10000, 392000)
if beside == "after":
    child = stay()
seen.append(maps(fd))
seen.append(maps(fd))
fill(fd, 402000, 3000)
seen.append(maps(fd))
if other >= 0:
    seen.append(maps(other))
os.truncate("file", 350000)
seen.append(maps(fd))
fill(fd, 350000, 3000)
seen.append(maps(fd))
libc = ctypes.CDLL(None, use_errno=True)
assert libc.fallocate(fd, 1, ctypes.c_long(1 << 20), ctypes.c_long(1 << 16)) == 0
seen.append(maps(fd))
if child:
    os.close(child[1])
    assert os.waitpid(child[0], 0)[1] == 0
print(json.dumps(seen))
"""
RANGES = 13
# (what is reserved cannot be given back while the file is open twice; then a hole may lie in it)
CASES = [
    (kind, beside) for kind in ("append", "holes") for beside in ("alone", "child", "before", "after")
] + [("append", "opened")]


def merged(found: list) -> list[list[int]]:
    """Where an extent is cut in two depends on which blocks were free."""
    extents: list[list[int]] = []
    for start, size, flags in found:
        if extents and sum(extents[-1][:2]) == start and extents[-1][2] == flags & ~1:
            extents[-1][1:] = [extents[-1][1] + size, flags]
        else:
            extents.append([start, size, flags])
    return extents


def whole(answers: list) -> list:
    """The answers with all extents; those for fewer are the first of them, or count them."""
    kept = []
    for at in range(0, 4 * RANGES, 4):
        head, extents = answers[at + 3]
        assert answers[at][:3] == head[:3] and answers[at][3] == len(extents) == head[3]
        for room, (few_head, few) in zip((1, 2), answers[at + 1 : at + 3], strict=True):
            assert few == extents[:room] and few_head[3] == len(few)
        kept.append([head[:3], merged(extents)])
    return kept + answers[4 * RANGES :]


def maps_of(run: Run) -> list:
    assert run.returncode == 0, run.stderr
    return [whole(answers) for answers in json.loads(run.stdout)]


@pytest.mark.parametrize(("kind", "beside"), CASES)
@pytest.mark.parametrize("system", ["ext4", "ext4-1k", "xfs"])
def test_map_is_the_native_one(library, tmp_path, system, kind, beside):
    # (natively xfs reserves space behind the end by itself, unless told otherwise)
    kind, *small = system.split("-")
    make = ["-b", "1024"] if small else []
    with disk(kind, tmp_path, 400 * MIB, "allocsize=4k" if kind == "xfs" else "", *make) as point:
        command = [sys.executable, "-c", PROGRAM, kind, beside]
        places = [point / "native", point / "staged"]
        for place in places:
            place.mkdir()
        native = maps_of(run_native(command, places[0]))
        run = run_preloaded(library, command, places[1])
        assert_staged(run.stats, 100000)
        staged = maps_of(run)
        if beside == "opened":
            # with what the program has reserved itself all is shown that is there
            everything, own = staged.pop()[0][1], native.pop()[0][1][-1]
            assert own[0] == MIB and own in everything
        for moment in range(len(native)):
            assert staged[moment] == native[moment], moment
