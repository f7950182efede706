# SPDX-License-Identifier: Apache-2.0
"""What the files of tests/kill/workload.c must hold after a death and its recovery."""

from __future__ import annotations

import struct
from collections.abc import Container, Iterable
from dataclasses import dataclass
from functools import cache
from pathlib import Path

SEQUENTIAL, APPEND, POSITIONAL, RECORD, MADE, REMOVED = range(6)
RETURNED = 2
HEADER = struct.Struct("<8I")
OP = struct.Struct("<IIQIIII")
RECORD_BYTES = 64
ARENA_BLOCK = struct.Struct("<I12xQ40x")  # owner, commit
ARENA_SLOT = struct.Struct("<I12xQ1000x")  # used, inode
PAGE_FILE = struct.Struct("<QQ240x")  # published, done
PAGE_BYTES = 4096
LENGTH_MAX = 32768


@dataclass(frozen=True)
class Op:
    """One write call: to file `f<file>`, or the call that makes or removes it; `returned` says whether the program
    saw it succeed."""

    file: int
    kind: int
    offset: int
    length: int
    seed: int
    returned: bool
    thread: int

    def content(self) -> bytes:
        """The bytes that workload.c's fill makes."""
        if self.seed == 0:
            return b"a" * self.length
        return unshifted()[: self.length].translate(shift(self.seed % 251))


@cache
def unshifted() -> bytes:
    return bytes((i * 7 + (i >> 8) * 13) % 251 for i in range(LENGTH_MAX))


@cache
def shift(by: int) -> bytes:
    return bytes((i + by) % 251 for i in range(256))


def used(log: Path) -> int:
    """How many operations have begun."""
    with log.open("rb") as file:
        head = file.read(HEADER.size)
    return HEADER.unpack(head)[0] if len(head) == HEADER.size else 0


def engaged(arenas: Iterable[Path]) -> tuple[set[int], bool]:
    """Inodes of the files that the arenas have a slot for, and whether any block belongs to one of them.  Not
    of files that had an overlay of pages and have been written back: when it is full, a write to such a file
    goes to the kernel.  See struct arena_header, arena_block and arena_slot of arena_format.h, and struct
    page_file of pages_format.h."""
    inodes: set[int] = set()
    staged = False
    for path in arenas:
        try:
            with path.open("rb") as file:
                head = file.read(264)
                if len(head) < 264 or not any(head[:8]):
                    continue
                (total,) = struct.unpack_from("<Q", head, 16)
                blocks, slots = struct.unpack_from("<II", head, 28)
                blocks_at, slots_at = struct.unpack_from("<QQ", head, 40)
                file.seek(blocks_at)
                table = file.read(blocks * ARENA_BLOCK.size)
                file.seek(slots_at)
                names = file.read(slots * ARENA_SLOT.size)
                (pages,) = struct.unpack_from("<Q", head, 256)
                file.seek(total - pages)
                paged = file.read(slots * PAGE_FILE.size) if pages else bytes(slots * PAGE_FILE.size)
        except FileNotFoundError:
            continue
        staged |= any(owner and commit for owner, commit in ARENA_BLOCK.iter_unpack(table))
        for (in_use, inode), (published, done) in zip(
            ARENA_SLOT.iter_unpack(names), PAGE_FILE.iter_unpack(paged), strict=True
        ):
            written_back = published != 0 and published >> 2 <= done
            if in_use and not written_back:
                inodes.add(inode)
    return inodes, staged


def read_log(path: Path) -> list[Op]:
    """The operations in the order in which they began."""
    ops: list[Op] = []
    if not path.exists():
        return ops
    with path.open("rb") as file:
        head = file.read(HEADER.size)
        if len(head) < HEADER.size:
            return ops
        data = file.read(HEADER.unpack(head)[0] * OP.size)
    data = data[: len(data) // OP.size * OP.size]
    for number, kind, offset, length, seed, state, thread in OP.iter_unpack(data):
        if state:
            ops.append(Op(number, kind, offset, length, seed, state == RETURNED, thread))
    return ops


def apply(data: bytearray, op: Op) -> None:
    """Does to `data` what the write, or the removal, does to the file."""
    if op.kind == REMOVED:
        data.clear()
        return
    at = len(data) if op.kind == APPEND else op.offset
    if len(data) < at:
        data.extend(bytes(at - len(data)))
    data[at : at + op.length] = op.content()


def is_cut(have: bytes, without: bytes, op: Op) -> bool:
    """True for `without` and the beginning of the write, up to a page boundary of the file."""
    at = len(without) if op.kind == APPEND else op.offset
    content = op.content()
    for end in range((at // PAGE_BYTES + 1) * PAGE_BYTES, at + op.length, PAGE_BYTES):
        part = bytearray(without)
        part.extend(bytes(max(0, at - len(part))))
        part[at:end] = content[: end - at]
        if have == part:
            return True
    return False


def difference(have: bytes, want: bytes) -> str:
    """Sizes and the first byte that differs, for a message."""
    short = min(len(have), len(want))
    at = next((i for i in range(short) if have[i] != want[i]), short)
    return f"{len(have)} bytes for {len(want)}, first difference at {at}"


def check_records(have: bytes, ops: list[Op]) -> list[str]:
    """Records of several threads in one file: each whole, each thread's in order, each once."""
    problems: list[str] = []
    seen: dict[int, int] = {}
    if len(have) % RECORD_BYTES:
        problems.append(f"torn: {len(have)} bytes are no whole number of records")
    for at in range(0, len(have) - RECORD_BYTES + 1, RECORD_BYTES):
        record = have[at : at + RECORD_BYTES]
        words = record.split()
        if len(words) != 4 or words[0] != b"record" or not record.endswith(b".\n"):
            problems.append(f"torn record at {at}: {record!r}")
            break
        thread, number = int(words[1]), int(words[2])
        if number != seen.get(thread, 0):
            problems.append(f"thread {thread}: record {number} where {seen.get(thread, 0)} belongs")
            break
        seen[thread] = number + 1
    for thread in {op.thread for op in ops}:
        acknowledged = sum(op.returned for op in ops if op.thread == thread)
        begun = sum(1 for op in ops if op.thread == thread)
        if not acknowledged <= seen.get(thread, 0) <= begun:
            problems.append(f"thread {thread}: {seen.get(thread, 0)} records, {acknowledged} acknowledged")
    return problems


def check(
    directory: Path, ops: list[Op], foreign: bytes = b"", in_arena: Container[int] | None = None
) -> list[str]:
    """What is wrong with the files: every returned write must be there, of one that had begun all or nothing.
    `foreign` is what somebody else appended once to each file after the death; it may stand anywhere between
    two pieces of ours, and must be there whole.  `in_arena`: inodes of the files that were engaged;
    writes to others went to the kernel, which may cut one at a page boundary when it kills the writer."""
    problems: list[str] = []
    for number in sorted({op.file for op in ops}):
        mine = [op for op in ops if op.file == number]
        path = directory / f"f{number}"
        have = path.read_bytes() if path.exists() else b""
        if mine[-1].kind == REMOVED and mine[-1].returned and path.exists():
            problems.append(f"f{number}: it was removed, and is back with {len(have)} bytes")
            continue
        if foreign:
            if have.count(foreign) != 1:
                problems.append(f"f{number}: {have.count(foreign)} times what others appended")
                continue
            have = have.replace(foreign, b"")
        if mine[0].kind == RECORD:
            problems += [f"f{number}: {problem}" for problem in check_records(have, mine)]
            continue
        unfinished = [op for op in mine if not op.returned]
        assert len(unfinished) <= 1, "one thread writes one call at a time"
        without = bytearray()
        for op in mine:
            if op.returned:
                apply(without, op)
        if have == without:
            continue
        whole = bytearray(without)
        for op in unfinished:
            apply(whole, op)
        through = in_arena is not None and path.exists() and path.stat().st_ino not in in_arena
        if through and any(is_cut(have, without, op) for op in unfinished):
            continue
        if have != whole:
            problems.append(f"f{number}: {difference(have, bytes(whole))}; {len(without)} acknowledged")
    return problems
