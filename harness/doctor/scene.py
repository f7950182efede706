# SPDX-License-Identifier: Apache-2.0
"""Input and output of a probe: the directory with the layers below it, and a Reading.

A probe reads the value of one knob and chooses the case whose words and level configs/doctor.toml has. It answers
None when the machine did not let it read.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from harness.doctor.stack import Stack, Volume
from harness.doctor.system import System

ABSENT = "absent"  # common case: no such knob here
UNREAD = "unread"  # common case: data is the reason


@dataclass(frozen=True)
class Reading:
    """What was found. cases: several when devices differ; the worst decides. words: for the braces of the texts."""

    value: str
    cases: tuple[str, ...]
    data: object = None
    words: dict[str, str] = field(default_factory=dict)


@dataclass
class Scene:
    """The directory, the machine and what lies below it."""

    directory: Path
    system: System
    stack: Stack

    @property
    def volume(self) -> Volume:
        return self.stack.volume

    @property
    def options(self) -> dict[str, str]:
        return self.volume.options

    def caches(self) -> dict[str, str | None]:
        """What the kernel thinks of the write caches of the disks at the bottom."""
        return {d.name: self.system.read(f"{d.queue}/write_cache") for d in self.stack.leaves}

    def unflushed(self) -> bool:
        """Some file system on the way to the disk sends no flushes."""
        return any(v.flushes() is False for v in (self.volume, *self.stack.below))


def one(value: object, case: str, data: object = None, **words: str) -> Reading:
    return Reading(str(value), (case,), value if data is None else data, words)


def absent(scene: Scene) -> Reading:
    return Reading(f"not on {scene.volume.kind}", (ABSENT,))


def unread(why: str) -> Reading:
    return Reading("not readable", (UNREAD,), why)


Probe = Callable[[Scene], Reading | None]
