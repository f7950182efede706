#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Makes the first inputs of the fuzzers: make_corpus.py DIR writes DIR/TARGET/... for each target.

`seed-...`: one small input for each thing that an arena can say, from here; the operations are those of recipe.h.
`grown-...`: what the fuzzer made and which reaches further than they do, from grown.tar.xz; make_corpus.py --pack DIR
puts those of DIR/TARGET there.  `found-...`: what broke something once, from found/TARGET.
"""

from __future__ import annotations

import fcntl
import io
import shutil
import struct
import sys
import tarfile
from pathlib import Path

HERE = Path(__file__).resolve().parent
GROWN = HERE / "grown.tar.xz"
TARGETS = ("arena", "journal", "pages", "status")
RAW = b"\xff"
(GEOMETRY, HEADER, ENTRY, PATH, DONE, APPENDING, BLOCK, FIRST, CHAIN, EXTENT, DATA, PATCH, SIZE, CONTENT) = (
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
TORN = 0x8000


def op(code: int, layout: str, *values: int) -> bytes:
    return bytes([code]) + struct.pack("<" + layout, *values)


def entry(i: int, who: int = 0, path: int = T0, flags: int = 0) -> bytes:
    return op(ENTRY, "BBBB", i, who, path, flags)


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
    entry(0) + content(0, 100) + block(0, 0, POSITIONAL, 1, 50, 200) + block(2, 0, POSITIONAL, 2, 9000, 70)
)
APPENDED = entry(0) + content(0, 100) + block(0, 0, APPEND, 1, 100, 5000) + block(1, 0, APPEND, 2, 5100, 3000)


def arena_seeds() -> dict[str, bytes]:
    seeds = {
        "empty": b"",
        "raw-text": RAW + b"some text that somebody keeps here",
        "raw-page": RAW + bytes(4096),
        "positional": POSITIONED,
        "append": APPENDED,
        "append-exclusive": entry(0, flags=EXCLUSIVE | PREALLOCATED) + APPENDED[5:],
        "preallocated": entry(0, flags=PREALLOCATED) + POSITIONED[5:],
        "three-files": b"".join(
            entry(i, i, i) + content(i, 10) + block(i, i, 1 + i % 2, i + 1, 10, 100) for i in range(3)
        ),
        "two-entries-one-file": entry(0)
        + entry(1)
        + block(0, 0, APPEND, 1, 0, 10)
        + block(1, 1, APPEND, 2, 10, 10),
        "appended-whole": entry(0)
        + content(0, 100, 5000)
        + block(0, 0, APPEND, 1, 100, 5000)
        + op(APPENDING, "BBIIII", 0, SOMEWHERE, 100, 5000, 0, 0),
        "appended-part": entry(0)
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
        "extents": entry(0)
        + block(0, 0, POSITIONAL, 1, 0, 30, count=3)
        + op(EXTENT, "BHQII", 0, 1, 1000, 30, 20)
        + op(EXTENT, "BHQII", 0, 2, 500, 50, 10),
        "extents-many": entry(0) + block(0, 0, POSITIONAL, 1, 0, 30, count=513),
        "extents-overlap": entry(0)
        + block(0, 0, POSITIONAL, 1, 0, 30, count=2)
        + op(EXTENT, "BHQII", 0, 1, 1000, 29, 20),
        "torn": entry(0) + content(0, 100) + block(0, 0, POSITIONAL, 1, 50, 200, count=1 | TORN),
        "torn-second": POSITIONED + block(1, 0, POSITIONAL, 3, 0, 30, count=1 | TORN),
        "torn-append": APPENDED + block(2, 0, APPEND, 3, 8100, 30, count=1 | TORN),
        "torn-one-of-two-files": APPENDED
        + entry(1, 1, T1)
        + content(1, 10)
        + block(2, 1, POSITIONAL, 3, 5, 30, count=1 | TORN),
        "extent-in-table": entry(0)
        + block(0, 0, POSITIONAL, 1, 0, 30, count=2)
        + op(EXTENT, "BHQII", 0, 1, 0, 65510, 20),
        "extent-wraps": entry(0)
        + block(0, 0, POSITIONAL, 1, 0, 30)
        + op(FIRST, "BQII", 0, 0, 0xFFFFFFF0, 32),
        "offset-end": entry(0)
        + block(0, 0, POSITIONAL, 1, 0, 30)
        + op(FIRST, "BQII", 0, (1 << 63) - 31, 0, 30),
        "offset-far": entry(0) + block(0, 0, POSITIONAL, 1, 0, 30) + op(FIRST, "BQII", 0, 1 << 42, 0, 30),
        "mixed-kinds": entry(0) + block(0, 0, APPEND, 1, 0, 30) + block(1, 0, POSITIONAL, 2, 5, 30),
        "other-boot": op(HEADER, "BQ", 9, 3) + POSITIONED,
        "live": op(HEADER, "BQ", 12, 1) + POSITIONED,
        "no-seal": POSITIONED + bytes([NO_SEAL]),
        "patch": POSITIONED + op(PATCH, "IB", 4096 + 16, 2) + b"\xff\xff",
        "large-blocks": op(GEOMETRY, "BB", 6, 2) + POSITIONED,
        "size-huge": POSITIONED + op(SIZE, "BI", 30, 0x1FFFFFFF),
        "size-short": POSITIONED + op(SIZE, "BI", 0, 5000),
        "path-bytes": entry(0, 0, 0xFC) + op(PATH, "BB", 0, 3) + b"abc" + block(0, 0, POSITIONAL, 1, 0, 30),
    }
    for field in range(9):
        seeds[f"header-{field}"] = op(HEADER, "BQ", field, 0xFFFFFFF0) + POSITIONED
    for path in [*range(1, 17), *range(17, 30), NO_NUL, LONG_NAME]:
        seeds[f"path-{path}"] = entry(0, 0, path) + block(0, 0, POSITIONAL, 1, 0, 30)
    for who in (6, 8, 16, 32):
        seeds[f"identity-{who}"] = entry(0, who) + block(0, 0, APPEND, 1, 0, 30)
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
    "extents-overlap",
    "torn",
    "extent-in-table",
    "no-seal",
    "patch",
    "large-blocks",
    "size-huge",
    "size-short",
    "path-254",
]


(L_GEOMETRY, L_BATCH, L_NAME, L_DATA, L_VOID, L_ENTRY, L_HEADER, L_PATCH, L_SIZE) = range(9)
(L_CONTENT, L_WORLD, L_FAULT, L_BOOT) = range(9, 13)
WRONG_SUM, WRONG_ID, OVER_THE_LAST = 1, 2, 4


def batch(half: int, seq: int, flags: int = 0) -> bytes:
    return op(L_BATCH, "BHB", half, seq, flags)


def name(file: int, target: int = 0, path: int | None = None) -> bytes:
    return op(L_NAME, "BBB", file, target, target if path is None else path)


def data(file: int, offset: int, length: int, start: int = 3) -> bytes:
    return op(L_DATA, "BIHB", file, offset, length, start)


def void(file: int, seq: int, where: int = 0) -> bytes:
    return op(L_VOID, "BHH", file, seq, where)


def text(target: int, length: int) -> bytes:
    return op(L_CONTENT, "BH", target, length)


def journal_seeds() -> dict[str, bytes]:
    """What the operations of fuzz_journal.c can say."""
    one = text(0, 100) + batch(0, 1) + name(1) + data(1, 50, 300)
    two = one + batch(0, 2) + data(1, 200, 500, 9) + batch(0, 3) + data(1, 10, 20, 11)
    halves = two + batch(1, 4) + name(1) + data(1, 0, 64, 20) + name(2, 1) + data(2, 7, 70)
    seeds = {
        "empty": b"",
        "one": one,
        "two": two,
        "halves": halves,
        "newer-half-first": batch(0, 9)
        + name(1)
        + data(1, 0, 9, 1)
        + batch(1, 7)
        + name(1)
        + data(1, 5, 9, 5),
        "gap-between-halves": two + batch(1, 9) + name(1) + data(1, 0, 64, 20),
        "gap": one + batch(0, 5) + data(1, 0, 10),
        "void-all": two + batch(0, 4) + void(1, 4),
        "void-some": two + batch(0, 4) + void(1, 3),
        "void-within-a-batch": one + data(1, 400, 50, 7) + void(1, 1, 200),
        "void-from-the-other-half": two + batch(1, 4) + void(1, 3) + name(1) + data(1, 0, 5),
        "void-nobody": one + void(7, 99),
        "void-the-future": one + void(1, 999) + batch(0, 2) + data(1, 0, 30),
        "not-named": batch(0, 1) + data(1, 0, 30) + name(2, 1) + data(2, 0, 30),
        "named-late": batch(0, 1) + data(1, 0, 30) + name(1),
        "named-twice": one + batch(0, 2) + name(1, 1) + data(1, 0, 30),
        "three-files": batch(0, 1) + b"".join(name(i + 1, i) + data(i + 1, i, 90, i) for i in range(3)),
        "two-numbers-one-file": one + name(2, 0) + data(2, 60, 30, 77) + data(1, 70, 5, 1),
        "wrong-sum": one + batch(0, 2, WRONG_SUM) + data(1, 0, 30) + batch(0, 3) + data(1, 0, 30, 5),
        "wrong-id": one + batch(0, 2, WRONG_ID) + data(1, 0, 30),
        "older-behind": two + batch(0, 9, OVER_THE_LAST) + name(1) + data(1, 0, 3),
        "units-of-4096": op(L_GEOMETRY, "BB", 3, 5) + halves,
        "one-unit": op(L_GEOMETRY, "BB", 0, 0) + one,
        "long": batch(0, 1) + name(1) + data(1, 100, 15000) + batch(0, 2) + data(1, 0, 600),
        "far": batch(0, 1) + name(1) + data(1, 100000, 100),
        "nothing-to-write": batch(0, 1) + name(1) + data(1, 100, 0),
        "entry-of-another-kind": batch(0, 1) + name(1) + op(L_ENTRY, "IIQQQ", 9, 0, 1, 0, 0) + data(1, 0, 5),
        "entry-too-long": batch(0, 1) + name(1) + data(1, 0, 5) + op(L_ENTRY, "IIQQQ", 2, 1 << 31, 1, 0, 0),
        "entry-at-the-end-of-offsets": batch(0, 1)
        + name(1)
        + op(L_ENTRY, "IIQQQ", 2, 0, 1, (1 << 63) - 1, 0),
        "entry-of-nobody": batch(0, 1) + op(L_ENTRY, "IIQQQ", 2, 0, 0, 0, 0),
        "name-without-end": batch(0, 1) + op(L_ENTRY, "IIQQQ", 1, 25, 1, 0, 0) + data(1, 0, 40),
        "this-boot": two + op(L_BOOT, ""),
        "cut": two + op(L_SIZE, "I", 5000),
        "patched-sum": two + op(L_PATCH, "IBBB", 4096 + 30, 2, 1, 2),
        "patched-byte": two + op(L_PATCH, "IBB", 4096 + 300, 1, 1),
        "no-sentinel": one + name(3, 0, 6) + data(3, 0, 10) + name(4, 0, 4) + data(4, 0, 10),
        "itself": one + name(3, 0, 12) + data(3, 0, 10),
        "not-absolute": one + name(3, 0, 39) + data(3, 0, 10),
        "by-inode": one + name(1, 0, 3) + batch(0, 2) + data(1, 0, 5),
        "older-birth": batch(0, 1) + name(1, 16, 0) + data(1, 0, 50),
    }
    for field in range(9):
        seeds[f"header-{field}"] = two + op(L_HEADER, "BQ", field, 512 if field == 4 else 77)
    for change in range(WORLD_CHANGES):
        seeds[f"world-{change}"] = halves + op(L_WORLD, "B", change)
    for call in (PWRITE, FDATASYNC, OPENAT, MKDIRAT, STATX, PREAD):
        for at in (1, 2, 4, 9):
            seeds[f"fault-{call}-{at}"] = halves + op(L_FAULT, "BBBB", call, at, at, 5 * (at % 2))
    seeds["fault-orphan"] = halves + op(L_WORLD, "B", 0) + op(L_FAULT, "BBBB", MKDIRAT, 1, 1, 0)
    return seeds


def pages(files: list[tuple[int, ...]], frames: list[tuple[int, ...]], *, wide: bool = False) -> bytes:
    """Files: ticket, slot, done, size, lowest, cut, lowest since the cut, changed; frames: owner, page, ticket.
    Sizes are in KiB, if not `wide`."""
    words: list[int] = []
    for ticket, slot, done, size, lowest, cut, cut_lowest, changed in files:
        words += [ticket << 2 | slot, done, size, lowest, cut, cut_lowest, 0, changed]
    words += [0] * (8 * (3 - len(files)))
    for frame in frames:
        words += frame
    return bytes([3 if wide else 0]) + struct.pack(f"<{len(words)}{'Q' if wide else 'B'}", *words)


def pages_seeds() -> dict[str, bytes]:
    one = [(40, 1, 10, 17, 9, 20, 9, 1)]
    many = [(1, page, ticket) for page in (0, 1, 2, 3, 4, 5) for ticket in (9, 15, 30, 50)]
    return {
        "none": pages([], []),
        "one": pages(one, [(1, 0, 30)]),
        "newest": pages(one, [(1, 0, 30), (1, 0, 40), (1, 0, 41)]),
        "twice": pages(one, [(1, 0, 30), (1, 0, 30)]),
        "many": pages(one, many),
        "other-slots": pages(
            [(40, slot, 10, 17, 9, 20, 9, 1) for slot in (0, 2, 3)], [(2, 1, 20), (3, 2, 21)]
        ),
        "nothing-changed": pages([(40, 0, 30, 17, 9, 20, 9, 0)], many),
        "cut-not-written": pages([(40, 0, 10, 17, 9, 20, 9, 0)], many),
        "done-first": pages([(40, 0, 50, 17, 9, 20, 9, 1)], many),
        "larger-than-size": pages([(40, 0, 10, 17, 18, 20, 9, 1)], many),
        "wide": pages(
            [(1 << 40, 3, 1 << 16, 1 << 40, 0, 1 << 20, 4096, 1)], [(1, 1 << 27, 1 << 30)], wide=True
        ),
        "never": pages(
            [(1 << 61, 3, 1, (1 << 63) - 1, 0, 0, 0, 1)], [(1, 1 << 60, 9), (1, 2, (1 << 64) - 1)], wide=True
        ),
    }


def make_once(corpus: Path) -> None:
    """Two builds may want it at the same time: the second one finds what the first one made."""
    corpus.parent.mkdir(exist_ok=True)
    with corpus.with_suffix(".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        made = corpus / ".made"
        inputs = (Path(__file__), GROWN, *(HERE / "found").glob("*/*"))
        if not made.exists() or made.stat().st_mtime <= max(path.stat().st_mtime for path in inputs):
            make(corpus)


def make(corpus: Path) -> None:
    shutil.rmtree(corpus, ignore_errors=True)
    seeds = arena_seeds()
    for target, chosen in (
        ("arena", seeds),
        ("status", {one: seeds[one] for one in STATUS}),
        ("journal", journal_seeds()),
        ("pages", pages_seeds()),
    ):
        directory = corpus / target
        directory.mkdir(parents=True)
        for seed, content_of in chosen.items():
            (directory / f"seed-{seed}").write_bytes(content_of)
        for found in (HERE / "found" / target).glob("found-*"):
            shutil.copy(found, directory)
    with tarfile.open(GROWN) as archive:
        for member in archive:
            (corpus / member.name).write_bytes(archive.extractfile(member).read())
    (corpus / ".made").touch()


def pack(corpus: Path) -> None:
    """The same inputs make the same archive."""
    with tarfile.open(GROWN, "w:xz", preset=9) as archive:
        for path in sorted(path for target in TARGETS for path in (corpus / target).glob("grown-*")):
            member = tarfile.TarInfo(f"{path.parent.name}/{path.name}")
            member.size = path.stat().st_size
            archive.addfile(member, io.BytesIO(path.read_bytes()))


def main() -> None:
    if len(sys.argv) == 3 and sys.argv[1] == "--pack":
        pack(Path(sys.argv[2]))
    elif len(sys.argv) == 2:
        make_once(Path(sys.argv[1]))
    else:
        sys.exit("usage: make_corpus.py DIR | --pack DIR")


if __name__ == "__main__":
    main()
