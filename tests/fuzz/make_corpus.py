#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Writes the seeds of the fuzzer into tests/fuzz/corpus: one small input for each thing that an arena can say.

The operations are those of recipe.h.  Beside the seeds stand `grown-...`, which the fuzzer made and which reach further
than they do, and `found-...`, which broke something once.
"""

from __future__ import annotations

import struct
from pathlib import Path

CORPUS = Path(__file__).resolve().parent / "corpus"
RAW = b"\xff"
(GEOMETRY, HEADER, SLOT, PATH, DONE, APPENDING, BLOCK, FIRST, CHAIN, EXTENT, DATA, PATCH, SIZE, CONTENT) = (
    range(14)
)
(WORLD, FAULT, NO_SEAL) = range(14, 17)
POSITIONAL, APPEND = 1, 2
EXCLUSIVE, PREALLOCATED = 1, 2
AT_BASE, SOMEWHERE = 1, 2
T0, T1, T2, GONE, LINK, UP, SUB, VICTIM, SLASH, ARENA, THROUGH_LINK = range(11)
NO_NUL, LONG_NAME = 0xFE, 0xFD
WORLD_CHANGES = 16
PWRITE, WRITE, FDATASYNC, OPENAT, MKDIRAT, STATX, PREAD = range(7)


def op(code: int, layout: str, *values: int) -> bytes:
    return bytes([code]) + struct.pack("<" + layout, *values)


def slot(i: int, who: int = 0, path: int = T0, flags: int = 0) -> bytes:
    return op(SLOT, "BBBB", i, who, path, flags)


def block(
    i: int, owner: int, kind: int, seq: int, offset: int, length: int, *, count: int = 1, start: int = 3
) -> bytes:
    """One extent and its data."""
    return op(BLOCK, "BBBHHII", i, owner, kind, seq, count, offset, length) + op(
        DATA, "BIHB", i, 0, min(length, 65535), start
    )


def content(target: int, text: int, staged: int = 0, start: int = 3) -> bytes:
    return op(CONTENT, "BHHB", target, text, staged, start)


def world(what: int, target: int = 0) -> bytes:
    return op(WORLD, "B", what + 16 * target)


POSITIONED = (
    slot(0) + content(0, 100) + block(0, 0, POSITIONAL, 1, 50, 200) + block(2, 0, POSITIONAL, 2, 9000, 70)
)
APPENDED = slot(0) + content(0, 100) + block(0, 0, APPEND, 1, 100, 5000) + block(1, 0, APPEND, 2, 5100, 3000)


def arena_seeds() -> dict[str, bytes]:
    seeds = {
        "empty": b"",
        "raw-text": RAW + b"some text that somebody keeps here",
        "raw-page": RAW + bytes(4096),
        "positional": POSITIONED,
        "append": APPENDED,
        "append-exclusive": slot(0, flags=EXCLUSIVE | PREALLOCATED) + APPENDED[5:],
        "preallocated": slot(0, flags=PREALLOCATED) + POSITIONED[5:],
        "three-files": b"".join(
            slot(i, i, i) + content(i, 10) + block(i, i, 1 + i % 2, i + 1, 10, 100) for i in range(3)
        ),
        "two-slots-one-file": slot(0)
        + slot(1)
        + block(0, 0, APPEND, 1, 0, 10)
        + block(1, 1, APPEND, 2, 10, 10),
        "appended-whole": slot(0)
        + content(0, 100, 5000)
        + block(0, 0, APPEND, 1, 100, 5000)
        + op(APPENDING, "BBIIII", 0, SOMEWHERE, 100, 5000, 0, 0),
        "appended-part": slot(0)
        + content(0, 100, 3996)
        + block(0, 0, APPEND, 1, 100, 5000)
        + op(APPENDING, "BBIIII", 0, AT_BASE, 100, 5000, 0, 0),
        "done-skip": APPENDED + op(DONE, "BII", 0, 0, 1000),
        "done-skip-too-far": APPENDED + op(DONE, "BII", 0, 0, 0xFFFFFF),
        "done-one": APPENDED + op(DONE, "BII", 0, 1, 0),
        "chain": POSITIONED + op(CHAIN, "BBHHI", 2, 1, 1, 1, 200),
        "chain-open": POSITIONED + op(CHAIN, "BBHHI", 2, 1, 1, 1, 201),
        "chain-far": POSITIONED + op(CHAIN, "BBHHI", 2, 200, 1, 1, 1),
        "chain-self": POSITIONED + op(CHAIN, "BBHHI", 2, 3, 2, 1, 70),
        "extents": slot(0)
        + block(0, 0, POSITIONAL, 1, 0, 30, count=3)
        + op(EXTENT, "BHQII", 0, 1, 1000, 30, 20)
        + op(EXTENT, "BHQII", 0, 2, 500, 50, 10),
        "extents-many": slot(0) + block(0, 0, POSITIONAL, 1, 0, 30, count=513),
        "extent-in-table": slot(0)
        + block(0, 0, POSITIONAL, 1, 0, 30, count=2)
        + op(EXTENT, "BHQII", 0, 1, 0, 65510, 20),
        "extent-wraps": slot(0) + block(0, 0, POSITIONAL, 1, 0, 30) + op(FIRST, "BQII", 0, 0, 0xFFFFFFF0, 32),
        "offset-end": slot(0)
        + block(0, 0, POSITIONAL, 1, 0, 30)
        + op(FIRST, "BQII", 0, (1 << 63) - 31, 0, 30),
        "offset-far": slot(0) + block(0, 0, POSITIONAL, 1, 0, 30) + op(FIRST, "BQII", 0, 1 << 42, 0, 30),
        "mixed-kinds": slot(0) + block(0, 0, APPEND, 1, 0, 30) + block(1, 0, POSITIONAL, 2, 5, 30),
        "other-boot": op(HEADER, "BQ", 9, 3) + POSITIONED,
        "live": op(HEADER, "BQ", 12, 1) + POSITIONED,
        "no-seal": POSITIONED + bytes([NO_SEAL]),
        "patch": POSITIONED + op(PATCH, "IB", 4096 + 16, 2) + b"\xff\xff",
        "large-blocks": op(GEOMETRY, "BB", 6, 2) + POSITIONED,
        "size-huge": POSITIONED + op(SIZE, "BI", 30, 0x1FFFFFFF),
        "size-short": POSITIONED + op(SIZE, "BI", 0, 5000),
        "path-bytes": slot(0, 0, 0xFC) + op(PATH, "BB", 0, 3) + b"abc" + block(0, 0, POSITIONAL, 1, 0, 30),
    }
    for field in range(9):
        seeds[f"header-{field}"] = op(HEADER, "BQ", field, 0xFFFFFFF0) + POSITIONED
    for path in [*range(1, 17), *range(17, 30), NO_NUL, LONG_NAME]:
        seeds[f"path-{path}"] = slot(0, 0, path) + block(0, 0, POSITIONAL, 1, 0, 30)
    for who in (6, 8, 16, 32):
        seeds[f"identity-{who}"] = slot(0, who) + block(0, 0, APPEND, 1, 0, 30)
    for what in range(WORLD_CHANGES):
        seeds[f"world-{what}"] = POSITIONED + world(what)
        seeds[f"world-append-{what}"] = APPENDED + world(what) + world(0 if what > 5 else 13)
    for call, name in enumerate(["pwrite", "write", "fdatasync", "openat", "mkdirat", "statx", "pread"]):
        for at in (1, 2, 4):
            seeds[f"fault-{name}-{at}"] = APPENDED + op(FAULT, "BBBB", call, at, at % 8, 0)
            seeds[f"fault-orphan-{name}-{at}"] = POSITIONED + world(0) + op(FAULT, "BBBB", call, at, 1, 0)
    for call in (PWRITE, WRITE):
        seeds[f"short-{call}"] = (APPENDED if call == WRITE else POSITIONED) + op(
            FAULT, "BBBB", call, 1, 0, 99
        )
    return seeds


STATUS = [
    "empty",
    "positional",
    "append",
    "three-files",
    "chain",
    "chain-far",
    "extents",
    "extents-many",
    "extent-in-table",
    "no-seal",
    "patch",
    "large-blocks",
    "size-huge",
    "size-short",
    "path-254",
]


def main() -> None:
    seeds = arena_seeds()
    for name, chosen in (("arena", seeds), ("status", {one: seeds[one] for one in STATUS})):
        directory = CORPUS / name
        directory.mkdir(parents=True, exist_ok=True)
        for old in directory.glob("seed-*"):
            old.unlink()
        for seed, data in chosen.items():
            (directory / f"seed-{seed}").write_bytes(data)


if __name__ == "__main__":
    main()
