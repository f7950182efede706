# SPDX-License-Identifier: Apache-2.0
"""What the files hold after each operation of steps.c, and which of these states are on the disk."""

from __future__ import annotations

import struct
from collections.abc import Hashable
from pathlib import Path

MOST = 1 << 21
RECORD, LOGS, PAGE, PAGES, SLOTS, SLOT, NAMES, DEPTH = 128, 3, 4096, 64, 256, 256, 5, 64
GROUP = 128  # records that a large step appends to the first log
WORD = (1 << 64) - 1
GOLDEN = 0x9E3779B97F4A7C15
ABSENT, SPOILED = -1, -2
"""Values of a unit beside 0 (empty, or zeros) and the number of the step that wrote it."""


def mix(n: int) -> int:
    n = (n + GOLDEN) & WORD
    n = ((n ^ n >> 30) * 0xBF58476D1CE4E5B9) & WORD
    n = ((n ^ n >> 27) * 0x94D049BB133111EB) & WORD
    return n ^ n >> 31


def bytes_of(step: int, size: int) -> bytes:
    words = [step, *((step * GOLDEN + i) & WORD for i in range(1, size // 8))]
    return struct.pack(f"<{len(words)}Q", *words)


def step_in(data: bytes, size: int) -> int:
    """The step that wrote these bytes."""
    if len(data) != size:
        return SPOILED
    (step,) = struct.unpack_from("<Q", data)
    expected = bytes_of(step, size) if step else bytes(size)
    return step if data == expected else SPOILED


class History:
    """Units (a page, a slot, a name, a log, the stack), and from which operation on each had which value."""

    def __init__(self, with_names: bool = True, large: bool = False) -> None:
        self.with_names = with_names
        self.large = large
        self.operations = 0
        self.step = 0
        self.logs: list[list[int]] = [[] for _ in range(LOGS)]
        self.names = [False] * NAMES
        self.stack: list[int] = []
        self.below: dict[int, int] = {}  # of each entry of the stack
        self.last: Hashable = None  # unit that was changed
        self.values: dict[Hashable, list[tuple[int, int]]] = {}
        units = [("pages", i) for i in range(PAGES)] + [("slots", i) for i in range(SLOTS)]
        units += [("log", i) for i in range(LOGS)] + ["stack"]
        for unit in units:
            self.values[unit] = [(0, 0)]
        for i in range(NAMES):
            self.values["name", i] = [(0, ABSENT)]

    def change(self, unit: Hashable, value: int) -> None:
        self.operations += 1
        self.values[unit].append((self.operations, value))
        self.last = unit

    def advance(self, operations: int) -> None:
        """At least so many operations."""
        while self.operations < operations:
            self.step += 1
            self._make(self.step)

    def _make(self, step: int) -> None:
        dice = mix(step)
        kind, which = dice % 8, dice >> 16
        if kind == 5 and not self.with_names:
            kind = 4
        if kind < LOGS:
            self.logs[kind].append(step)
            self.change(("log", kind), step)
        elif kind == 3:
            self.change(("pages", which % PAGES), step)
        elif kind == 4:
            self.change(("slots", which % SLOTS), step)
        elif kind == 5:
            name = (which & 0xFFFFFFFF) % NAMES
            self.names[name] = not self.names[name] or not dice >> 50 & 1
            if self.names[name]:  # made, or cut, and written
                self.change(("name", name), 0)
                self.change(("name", name), step)
            else:
                self.change(("name", name), ABSENT)
        elif kind == 7 and len(self.stack) > DEPTH:
            del self.stack[(which & 0xFFFFFFFF) % DEPTH :]
            self.change("stack", self.stack[-1] if self.stack else 0)
        else:
            self.below[step] = self.stack[-1] if self.stack else 0
            self.stack.append(step)
            self.change("stack", step)

    def forgive(self, found: dict[Hashable, int], under_way: range) -> None:
        """One of these operations was under way: what it was changing may be torn: unchanged."""
        for unit, values in self.values.items():
            changes = [i for i, (begin, _) in enumerate(values) if begin in under_way]
            if found[unit] == SPOILED and changes:
                found[unit] = values[changes[-1] - 1][1]

    def states(self, found: dict[Hashable, int]) -> list[int]:
        """After which numbers of operations the files were as found."""
        changes = [0] * (self.operations + 2)
        for unit, values in self.values.items():
            ends = [begin for begin, _ in values[1:]] + [self.operations + 1]
            for (begin, value), end in zip(values, ends, strict=True):
                if value == found[unit]:
                    changes[begin] += 1
                    changes[end] -= 1
        states, held = [], 0
        for operation in range(self.operations + 1):
            held += changes[operation]
            if held == len(self.values):
                states.append(operation)
        return states

    def odd(self, found: dict[Hashable, int], operation: int) -> str:
        """What is not as after `operation`."""
        units = []
        for unit, values in self.values.items():
            expected = [value for begin, value in values if begin <= operation][-1]
            if found[unit] != expected:
                units.append(f"{unit}: {found[unit]} for {expected}")
        return ", ".join(units)

    def look(self, directory: Path) -> dict[Hashable, int]:
        """The units as they are on the disk."""
        found: dict[Hashable, int] = {}
        for name, size, count in (("pages", PAGE, PAGES), ("slots", SLOT, SLOTS)):
            data = (directory / name).read_bytes()
            for i in range(count):
                found[name, i] = step_in(data[i * size : (i + 1) * size], size)
            if len(data) != size * count:
                found[name, 0] = SPOILED
        for i in range(LOGS):
            group = GROUP if self.large and i == 0 else 1
            steps = steps_in((directory / f"log{i}").read_bytes(), group)
            good = steps == self.logs[i][: len(steps)]
            found["log", i] = (steps[-1] if steps else 0) if good else SPOILED
        steps = steps_in((directory / "stack").read_bytes())
        good = all(self.below.get(step) == below for below, step in zip([0, *steps], steps, strict=False))
        found["stack"] = (steps[-1] if steps else 0) if good else SPOILED
        for i in range(NAMES):
            path = directory / f"name{i}"
            data = path.read_bytes() if path.exists() else None
            found["name", i] = ABSENT if data is None else step_in(data, RECORD) if data else 0
        return found


def steps_in(data: bytes, group: int = 1) -> list[int]:
    """Of records without gap, of which each step has written so many."""
    found = []
    for at in range(0, len(data), RECORD * group):
        step = step_in(data[at : at + RECORD], RECORD)
        whole = data[at : at + RECORD * group] == data[at : at + RECORD] * group
        found.append(step if step and whole else SPOILED)
    return found


def prepare(directory: Path) -> None:
    """The files as the first step finds them."""
    for i in range(LOGS):
        (directory / f"log{i}").touch()
    (directory / "pages").write_bytes(bytes(PAGES * PAGE))
    (directory / "slots").write_bytes(bytes(SLOTS * SLOT))
    (directory / "stack").touch()
