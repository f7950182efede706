# SPDX-License-Identifier: Apache-2.0
"""Compares what is left after a power loss with what the program did and was promised."""

from __future__ import annotations

import sqlite3
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path

from power.acks import Acks
from power.content import NAMES, NEW_PARTS, PARTS, THREADS, Content
from power.transactions import DATABASE, rows_of

STEP = 512
REGION_BYTES = 2 << 20  # of a thread in the shared file


@dataclass
class Verdict:
    """`lost`: not there although a sync had returned.  `wrong`: there although nobody wrote it."""

    lost: list[str] = field(default_factory=list)
    wrong: list[str] = field(default_factory=list)

    def __bool__(self) -> bool:
        return not self.lost and not self.wrong

    def text(self) -> str:
        return "; ".join([f"lost: {t}" for t in self.lost[:3]] + [f"wrong: {t}" for t in self.wrong[:3]])


def read(path: Path) -> bytes | None:
    try:
        return path.read_bytes()
    except FileNotFoundError:
        return None


def first_difference(have: bytes, want: bytes) -> int:
    """Position; the shorter one's length when one begins with the other."""
    low, high = 0, min(len(have), len(want))
    while low < high:
        middle = (low + high + 1) // 2
        if have[:middle] == want[:middle]:
            low = middle
        else:
            high = middle - 1
    return low


def or_zero(have: bytes, want: bytes) -> bool:
    """Bytes that no sync covered: those that were written, or the zeros of a block that did not make it."""
    if len(have) > len(want):
        return False
    if want.startswith(have):
        return True
    zeros = bytes(STEP)
    for at in range(0, len(have), STEP):
        mine, theirs = have[at : at + STEP], want[at : at + STEP]
        if (
            mine == theirs[: len(mine)]
            or zeros.startswith(mine)
            or all(h in (0, w) for h, w in zip(mine, theirs, strict=False))
        ):
            continue
        return False
    return True


class Check:
    """One look at one directory."""

    def __init__(self, directory: Path, content: Content, acks: Acks) -> None:
        self.directory = directory
        self.content = content
        self.acks = acks
        self.verdict = Verdict()

    def lost(self, text: str) -> None:
        self.verdict.lost.append(text)

    def wrong(self, text: str) -> None:
        self.verdict.wrong.append(text)

    # ---- records one behind the other ----

    def log(self, name: str, file: int) -> None:
        synced, begun = self.acks.synced[file], self.acks.begun[file]
        have = read(self.directory / name)
        if have is None:
            if synced:
                self.lost(f"{name}: not there, {synced} records were synced")
            return
        want = self.content.records(file, 0, synced)
        if not have.startswith(want):
            self.lost(self.where(name, file, have, want, synced))
        elif not or_zero(have[len(want) :], self.content.records(file, synced, begun)):
            self.wrong(f"{name}: {len(have)} bytes, behind {len(want)} synced ones stands what nobody wrote")

    def where(self, name: str, file: int, have: bytes, want: bytes, synced: int) -> str:
        at = first_difference(have, want)
        end = 0
        for seq in range(synced):
            end += len(self.content.record(file, seq))
            if end > at:
                sizes = f"{at} of {len(want)} synced bytes ({len(have)} there)"
                return f"{name}: differs at {sizes}, record {seq} of {synced}"
        return f"{name}: differs at {at}"

    def append(self) -> None:
        self.log("file-0", 0)
        self.log("file-1", 1)

    leave = append
    ways = append
    stdio = append
    dsync = append

    # ---- records at random places ----

    def region(self, name: str, file: int, have: bytes | None, base: int) -> None:
        content, synced, begun = self.content, self.acks.synced[file], self.acks.begun[file]
        singles = self.acks.singles[file]
        if have is None:
            if synced or singles:
                self.lost(f"{name}: not there, {synced} records were synced")
            return
        have = have[base : base + REGION_BYTES]
        want = bytearray()
        required = bytearray()  # 1: a synced write was here

        def put(seq: int) -> None:
            at, record = content.offset(file, seq), content.record(file, seq)
            for area, data in ((want, record), (required, b"\1" * len(record))):
                if len(area) < at + len(record):
                    area.extend(bytes(at + len(record) - len(area)))
                area[at : at + len(record)] = data

        for seq in range(synced):
            put(seq)
        for seq in sorted(s for s in singles if s >= synced):
            put(seq)
        if have == want:
            return
        later = [(n, content.offset(file, n), content.record(file, n)) for n in range(synced, begun)]
        if len(have) < len(want):
            self.lost(f"{name}: {base + len(have)} bytes, {base + len(want)} were synced")
            return
        want.extend(bytes(len(have) - len(want)))
        required.extend(bytes(len(have) - len(required)))
        open_steps = {at for at in range(0, len(have), STEP) if have[at : at + STEP] != want[at : at + STEP]}
        # most are as they were between two writes
        now = bytearray(want)
        for _, place, data in later:
            now.extend(bytes(max(0, place + len(data) - len(now))))
            now[place : place + len(data)] = data
            for at in range(place // STEP * STEP, min(place + len(data), len(have)), STEP):
                if at in open_steps and have[at : at + STEP] == now[at : min(at + STEP, len(have))]:
                    open_steps.discard(at)
        for begin in sorted(open_steps):
            end = min(begin + STEP, len(have))
            near = [(n, at, data) for n, at, data in later if at < end and begin < at + len(data)]
            for at in range(begin, end):
                if have[at] == want[at]:
                    continue
                here = [(n, data[at - place]) for n, place, data in near if place <= at < place + len(data)]
                newest = max((n for n, _ in here if n in singles), default=-1)
                if any(n > newest and byte == have[at] for n, byte in here):
                    continue
                if required[at]:
                    self.lost(f"{name}: at {base + at} not what was synced ({synced} records)")
                else:
                    self.wrong(f"{name}: at {base + at} what nobody wrote ({begun} records)")
                return

    def position(self) -> None:
        for file in (0, 1):
            name = f"file-{file}"
            self.region(name, file, read(self.directory / name), 0)

    def threads(self) -> None:
        for file in range(THREADS):
            self.log(f"file-{file}", file)
        name = f"file-{THREADS}"
        shared = read(self.directory / name)
        for file in range(THREADS, 2 * THREADS):
            self.region(name, file, shared, (file - THREADS) * REGION_BYTES)

    # ---- files as a whole ----

    def create(self) -> None:
        synced = self.acks.synced[0]
        for number in range(self.acks.begun[0]):
            name = f"new-{number}"
            have = read(self.directory / name)
            want = self.content.records(0, number * NEW_PARTS, (number + 1) * NEW_PARTS)
            if number < synced:
                if have != want:
                    self.lost(f"{name}: {'not there' if have is None else 'not what was synced'}")
            elif have is not None and not or_zero(have, want):
                self.wrong(f"{name}: what nobody wrote")

    def replace(self) -> None:
        synced, begun = self.acks.synced[0], self.acks.begun[0]

        def version(number: int) -> bytes:
            return self.content.records(0, number * PARTS, (number + 1) * PARTS)

        for which in range(NAMES):
            name = f"name-{which}"
            have = read(self.directory / name)
            numbers = range(which, begun, NAMES)
            last = max((n for n in numbers if n < synced), default=None)
            if have is None:
                if last is not None:
                    self.lost(f"{name}: not there")
            elif not any(have == version(n) for n in numbers if last is None or n >= last):
                text = f"{name}: {len(have)} bytes, not version {last} nor a later one of {begun}"
                # it was synced before it got the name
                (self.lost if any(or_zero(have, version(n)) for n in numbers) else self.wrong)(text)
            fresh = read(self.directory / f"{name}.new")
            held = [n for n in numbers if fresh is not None and or_zero(fresh, version(n))]
            if held and held[-1] < synced:
                self.lost(f"{name}.new: version {held[-1]} has not got its name")
            elif fresh is not None and not held:
                self.wrong(f"{name}.new: what nobody wrote")

    def rotate(self) -> None:
        synced, begun = self.acks.synced[0], self.acks.begun[0]
        starts = self.content.generations(max(begun, 1))
        files = {path.name: path.read_bytes() for path in self.directory.glob("log*")}
        for number, (start, end) in enumerate(pairwise(starts)):
            want = self.content.records(0, start, min(end, synced))
            if synced > start and not any(
                files.get(name, b"").startswith(want) for name in (f"log.{number}", "log")
            ):
                self.lost(f"log.{number}: records {start} to {min(end, synced)} are nowhere")
        for name, have in files.items():
            if not any(or_zero(have, self.content.records(0, start, end)) for start, end in pairwise(starts)):
                self.wrong(f"{name}: what nobody wrote")

    # ---- a database ----

    def sqlite(self) -> None:
        synced, begun = self.acks.synced[0], self.acks.begun[0]
        path = self.directory / DATABASE
        if not path.exists():
            if synced:
                self.lost(f"{DATABASE}: not there")
            return
        base = sqlite3.connect(path)
        try:
            found = base.execute("PRAGMA integrity_check").fetchall()
            if found != [("ok",)]:
                self.lost(f"{DATABASE}: {found[:3]}")
                return
            tables = {name for (name,) in base.execute("SELECT name FROM sqlite_master")}
            if not {"item", "last"} <= tables:
                if synced:
                    self.lost(f"{DATABASE}: its tables are missing")
                return
            have: dict[int, list[bytes]] = {}
            for number, row, body in base.execute("SELECT number, row, body FROM item ORDER BY number, row"):
                assert row == len(have.setdefault(number, [])), (number, row)
                have[number].append(body)
            last = base.execute("SELECT number FROM last").fetchall()
        except (sqlite3.Error, AssertionError) as error:
            self.lost(f"{DATABASE}: {error}")
            return
        finally:
            base.close()
        if len(have) < synced:
            self.lost(f"{DATABASE}: {len(have)} transactions, {synced} were acknowledged")
        if sorted(have) != list(range(len(have))) or len(have) > begun:
            self.wrong(f"{DATABASE}: {len(have)} transactions, {begun} were made")
        elif any(rows_of(self.content.seed, number) != rows for number, rows in have.items()):
            self.wrong(f"{DATABASE}: rows that nobody inserted")
        elif last != ([(len(have) - 1,)] if have else []):
            self.wrong(f"{DATABASE}: half a transaction: {last}, {len(have)}")

    def __call__(self, kind: str) -> Verdict:
        getattr(self, "sqlite" if kind.startswith("sqlite") else kind)()
        return self.verdict
