# SPDX-License-Identifier: Apache-2.0
"""The command's twin: its calls on files, for lab-replay to make again.

The replay makes each call that the command made on files of its directory that it writes, in as many processes and
threads, by as many started programs. Its work between them is an empty loop. How much of that there is without strace
is found in two steps: what strace costs per call is measured by tracing the replay itself and taken off, and the rest
is scaled until the replay uses as much processor time natively as the command does. Where the command waited for
others (a pipe, a lock) the replay sleeps, by as much less as the command is faster without strace.
"""

from __future__ import annotations

import os
import statistics
import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from harness.ab import profile
from harness.ab import story as s
from harness.ab.story import Operation, Story

MAGIC = 0x315941504C455246
HEAD, NODE, OPERATION = struct.Struct("<6Q"), struct.Struct("<2Q"), struct.Struct("<IIqq")
TALLY = struct.Struct(f"<{2 + 2 * 22}Q")
BUFFER_BYTES_MIN = 1 << 16
FLAGS = {name: getattr(os, name) for name in (
    "O_WRONLY", "O_RDWR", "O_CREAT", "O_EXCL", "O_TRUNC", "O_APPEND", "O_DIRECT", "O_NOFOLLOW", "O_NOATIME",
    "O_SYNC", "O_DSYNC",
)}  # fmt: skip
"""Flags that change the cost or effect of a call."""
FIT_RUNS = 4
FIT_SHARE = 0.02
FIRST_GUESS = 2.0
"""Turns of the loop per nanosecond, about what processors do."""


@dataclass(frozen=True)
class Script:
    """Bytes for lab-replay, and what there is in it: operations by kind, directories that must be there."""

    data: bytes
    operations: int
    directories: tuple[str, ...]


@dataclass(frozen=True)
class Tally:
    """What a replay did. counts, seconds: by kind, when it was timed."""

    done: int
    failed: int
    counts: tuple[int, ...]
    seconds: tuple[float, ...]

    def mean(self, kinds: Sequence[int]) -> float | None:
        """Seconds per call of these kinds; None when there was none."""
        count = sum(self.counts[k] for k in kinds)
        return sum(self.seconds[k] for k in kinds) / count if count else None


def empty_tally() -> bytes:
    return bytes(TALLY.size)


def read_tally(data: bytes) -> Tally:
    values = TALLY.unpack(data)
    return Tally(values[0], values[1], values[2:24], tuple(ns / 1e9 for ns in values[24:46]))


def script(story: Story, overhead: float = 0.0, idle: bool = True, waits: float = 1.0) -> Script:
    """The script of a story.

    overhead: seconds that strace took per call; idle: with the program's own work and waiting; waits: by what to
    multiply the time that it waited for others.
    """
    return _Writer(story, overhead, idle, waits).script()


class _Writer:
    def __init__(self, story: Story, overhead: float, idle: bool, waits: float) -> None:
        self._story = story
        self._overhead = overhead
        self._idle = idle
        self._waits = waits
        self._written = profile.written_paths(story)
        self._offsets: list[int] = []
        self._count = 0
        self._longest = BUFFER_BYTES_MIN

    def script(self) -> Script:
        names = b""
        for path in self._story.paths:
            self._offsets.append(len(names))
            names += os.fsencode(path) + b"\0"
        nodes, packed = b"", []
        first = 0
        for node in self._story.nodes:
            operations = [o for found in node.operations for o in self._pack(found)]
            nodes += NODE.pack(first, len(operations))
            first += len(operations)
            packed += operations
        at = HEAD.size + len(nodes) + OPERATION.size * len(packed)
        head = HEAD.pack(
            MAGIC, len(self._story.nodes), len(self._story.descriptions), first, self._longest, at
        )
        directories = sorted({os.path.dirname(p) for p in self._story.paths if p in self._written})
        return Script(head + nodes + b"".join(packed) + names, self._count, tuple(directories))

    def _pack(self, operation: Operation) -> list[bytes]:
        """The operation behind the time before it; only that time when it is not replayed."""
        think = operation.think - operation.calls * self._overhead
        followed = self._followed(operation)
        if not followed:
            think += operation.seconds
        out = []
        if self._idle and think > 0:
            out.append(OPERATION.pack(s.SPIN, 0, int(think * 1e9), 0))
        if followed and (self._idle or operation.kind != s.SLEEP):
            self._count += operation.kind != s.SLEEP
            out.append(
                OPERATION.pack(operation.kind, max(0, operation.description), *self._figures(operation))
            )
        return out

    def _followed(self, operation: Operation) -> bool:
        if operation.kind in (s.SLEEP, s.FORK, s.THREAD, s.EXEC, s.WAIT):
            return True
        if operation.kind in (s.RENAME, s.UNLINK, s.STAT_PATH):
            return self._story.paths[operation.a] in self._written
        return (
            self._story.descriptions[operation.description].path in self._written and not operation.inherited
        )

    def _figures(self, operation: Operation) -> tuple[int, int]:
        kind = operation.kind
        if kind == s.OPEN:
            description = self._story.descriptions[operation.description]
            flags = 0
            for name in description.flags:
                flags |= FLAGS.get(name, 0)
            return self._offsets[operation.a], flags | (0 if description.inherited else os.O_CLOEXEC)
        if kind in (s.WRITE, s.PWRITE, s.READ, s.PREAD):
            self._longest = max(self._longest, operation.a)
        if kind == s.SLEEP:
            return int(operation.a * (self._waits if operation.b else 1.0)), 0
        if kind == s.RENAME:
            return self._offsets[operation.a], self._offsets[operation.b]
        if kind in (s.UNLINK, s.STAT_PATH):
            return self._offsets[operation.a], 0
        return operation.a, operation.b


def overhead(story: Story) -> float:
    """Seconds that strace took per call: the median time between calls of a traced replay that did nothing else."""
    found = [
        operation.think / operation.calls
        for _, operation in story.operations()
        if operation.calls and operation.kind in (s.WRITE, s.PWRITE)
    ]
    return statistics.median(found) if found else 0.0


def fit(measure: Callable[[float], float]) -> float:
    """The scale with which the replay uses as much processor time as the command; 0 when it does so anyway.

    measure: scale -> processor time of the replay over that of the command.
    """
    low, below = 0.0, measure(0.0)
    if below >= 1:
        return 0.0
    scale = high = FIRST_GUESS
    above = measure(high)
    for _ in range(FIT_RUNS):
        if abs(above - 1) <= FIT_SHARE or abs(above - below) < FIT_SHARE / 10:
            break
        scale = max(0.0, low + (high - low) * (1 - below) / (above - below))
        # Of the two old points the nearer stays, so that the line is short.
        if abs(above - 1) < abs(below - 1):
            low, below = high, above
        high, above = scale, measure(scale)
    return scale


def write(path: Path, made: Script) -> None:
    path.write_bytes(made.data)
