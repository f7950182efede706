# SPDX-License-Identifier: Apache-2.0
"""What was done to each file, and how much of it the shim could take. Pure.

What the shim stages is told by its own rules (docs/guarantees.md): writes of up to `small` bytes by the program that
opened the file, at the earliest from the second small write of an open file on; none of a file that is mapped shared
and writable or used by splice, sendfile or asynchronous I/O; none in a process that makes an io_uring.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

from harness.ab import story as s
from harness.ab.story import Description, Operation, Story

SMALL_BYTES = 64 << 10
"""Default of the shim's key `small`: larger writes are passed to the kernel."""


@dataclass
class File:
    """One path. sizes: writes by power of two (the upper bound, bytes); stageable: what the shim can absorb.

    sequential, appended, positioned: writes at the end of the one before, by O_APPEND, elsewhere; writers, programs:
    processes that wrote, and what they ran; watched: another process had it open for reading meanwhile.
    """

    path: str
    opens: int = 0
    writes: int = 0
    bytes: int = 0
    small: int = 0
    sizes: dict[int, int] = field(default_factory=dict)
    appended: int = 0
    sequential: int = 0
    positioned: int = 0
    stageable: int = 0
    inherited: int = 0
    syncs: int = 0
    synchronous: bool = False
    reads: int = 0
    stats: int = 0
    truncates: int = 0
    locks: int = 0
    shared_maps: int = 0
    spliced: int = 0
    writers: set[int] = field(default_factory=set)
    programs: set[str] = field(default_factory=set)
    watched: bool = False

    @property
    def mean_bytes(self) -> float:
        return self.bytes / self.writes if self.writes else 0.0

    @property
    def typical_bytes(self) -> int:
        """The class of sizes with the most writes, by its upper bound."""
        return max(self.sizes, key=lambda size: (self.sizes[size], size)) if self.sizes else 0


@dataclass
class Profile:
    """All files written below the directory, those with the most writes first, and what else was seen."""

    files: list[File]
    special: s.Special
    programs: list[str]
    processes: int

    def total(self, name: str) -> int:
        return sum(getattr(file, name) for file in self.files)

    @property
    def writers(self) -> set[int]:
        return set().union(*(file.writers for file in self.files))


def make(story: Story) -> Profile:
    """The profile of a story."""
    files: dict[str, File] = {}
    small_of: Counter = Counter()
    last: dict[str, int] = {}
    written = written_paths(story)
    for node, operation in story.operations():
        if operation.description < 0:
            continue
        description = story.descriptions[operation.description]
        if description.path not in written:
            continue
        file = files.setdefault(description.path, File(description.path))
        if operation.kind in (s.WRITE, s.PWRITE):
            _write(file, story, node, operation, description, small_of, last)
        else:
            _other(file, operation, description)
    for file in files.values():
        file.shared_maps = story.special.shared_maps.get(file.path, 0)
        file.spliced = story.special.spliced.get(file.path, 0)
        file.watched = file.path in story.special.watched
        file.syncs += story.special.other_syncs.get(file.path, 0)
        if file.shared_maps or file.spliced:
            file.stageable = 0
    ordered = sorted(files.values(), key=lambda f: (-f.writes, f.path))
    processes = len({node.process for node in story.nodes})
    return Profile(ordered, story.special, sorted(set(filter(None, story.programs))), processes)


def written_paths(story: Story) -> set[str]:
    """Paths that were opened for writing."""
    return {d.path for d in story.descriptions if d.writable}


def _write(file: File, story: Story, node: s.Node, operation: Operation, description: Description,
           small_of: Counter, last: dict[str, int]) -> None:  # fmt: skip
    length = operation.a
    file.writes += 1
    file.bytes += length
    upper = 1 << max(0, length - 1).bit_length()
    file.sizes[upper] = file.sizes.get(upper, 0) + 1
    file.writers.add(node.process)
    file.programs.add(story.programs[node.image])
    if operation.append:
        file.appended += 1
    elif operation.b == last.get(file.path, 0):
        file.sequential += 1
    else:
        file.positioned += 1
    last[file.path] = operation.b + length
    if length > SMALL_BYTES:
        return
    file.small += 1
    if operation.inherited:
        file.inherited += 1
        return
    small_of[operation.description] += 1
    asynchronous = node.image in story.special.rings or node.image in story.special.aio
    if small_of[operation.description] > 1 and not asynchronous and not description.inherited:
        file.stageable += 1


def _other(file: File, operation: Operation, description: Description) -> None:
    kind = operation.kind
    if kind == s.OPEN:
        file.opens += 1
        file.synchronous |= bool(description.flags & s.SYNCHRONOUS)
    elif kind in (s.FSYNC, s.FDATASYNC):
        file.syncs += 1
    elif kind in (s.READ, s.PREAD):
        file.reads += 1
    elif kind == s.STAT:
        file.stats += 1
    elif kind == s.TRUNCATE:
        file.truncates += 1
    elif kind == s.LOCK:
        file.locks += 1
