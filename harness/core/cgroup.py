# SPDX-License-Identifier: Apache-2.0
"""A control group per leg: peak memory, on request a memory limit, on request a slow disk. Version 1 or 2, whichever
the system has.

Not being allowed to create one is normal (containers, plain users): then `Cgroups.why_not` says why and
legs run without.

What a limit on a disk reaches. Version 1 counts a request for the group of the thread that submits it: direct and
synchronous writes of the leg are slowed down, what goes through the page cache is submitted by the kernel's own
threads and is not. Version 2 counts write-back for the group that dirtied the page (ext4, xfs, btrfs).
"""

from __future__ import annotations

import contextlib
import os
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from harness.core.model import LabError

PREFIX = "fastwrite-lab-"
REMOVE_TRIES = 1500
"""20 ms apart. A killed process may take seconds to end while it waits for a slow disk."""
MEMORY, IO = "memory", "io"
_NAMES = {(MEMORY, 1): "memory", (MEMORY, 2): "memory", (IO, 1): "blkio", (IO, 2): "io"}
_LIMIT_FILES = {
    (MEMORY, 1): "memory.limit_in_bytes",
    (MEMORY, 2): "memory.max",
    (IO, 1): "blkio.throttle.write_bps_device",
    (IO, 2): "io.max",
}
_THROTTLES = {
    "write_mb_s": ("write_bps", "wbps", 10**6),
    "write_iops": ("write_iops", "wiops", 1),
    "read_mb_s": ("read_bps", "rbps", 10**6),
    "read_iops": ("read_iops", "riops", 1),
}
"""Limit -> (part of version 1's file name, version 2's key, factor)."""


@dataclass(frozen=True)
class Cgroup:
    """One created group. Reading never raises; a missing file reads as None."""

    path: Path
    version: int

    @property
    def procs(self) -> str:
        return str(self.path / "cgroup.procs")

    def limit(self, limit_bytes: int) -> None:
        (self.path / _LIMIT_FILES[MEMORY, self.version]).write_text(str(limit_bytes), encoding="utf-8")
        if self.version == 2:
            _try_write(self.path / "memory.swap.max", "0")

    def throttle(self, disk: str, limits: Mapping[str, float]) -> None:
        """Slow a whole disk ("major:minor") down for this group. LabError when the kernel does not take it."""
        for name, value in limits.items():
            part, key, factor = _THROTTLES[name]
            amount = int(value * factor)
            if self.version == 1:
                file, text = self.path / f"blkio.throttle.{part}_device", f"{disk} {amount}"
            else:
                file, text = self.path / "io.max", f"{disk} {key}={amount}"
            try:
                file.write_text(text, encoding="utf-8")
            except OSError as error:
                raise LabError(f"{file}: '{text}' is not accepted: {error.strerror}") from error

    def usage_bytes(self) -> int | None:
        return _number(self.path / ("memory.usage_in_bytes" if self.version == 1 else "memory.current"))

    def peak_bytes(self) -> int | None:
        return _number(self.path / ("memory.max_usage_in_bytes" if self.version == 1 else "memory.peak"))

    def oom_kills(self) -> int:
        name = "memory.oom_control" if self.version == 1 else "memory.events"
        try:
            lines = (self.path / name).read_text(encoding="utf-8").splitlines()
        except OSError:
            return 0
        return sum(int(line.split()[1]) for line in lines if line.startswith("oom_kill "))

    def kill_all(self) -> None:
        try:
            pids = [int(p) for p in (self.path / "cgroup.procs").read_text(encoding="utf-8").split()]
        except OSError:
            return
        for pid in pids:
            if pid != os.getpid():
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, 9)

    def remove(self) -> bool:
        """Kill what is left inside and remove the group; a group that is gone already is fine. False, with a
        line on standard error, when its processes do not end."""
        for _ in range(REMOVE_TRIES):
            self.kill_all()
            try:
                self.path.rmdir()
                return True
            except FileNotFoundError:
                return True
            except OSError:
                time.sleep(0.02)
        print(f"{self.path}: the control group cannot be removed, its processes do not end", file=sys.stderr)
        return False


class Cgroups:
    """Finds a place where groups with a controller (MEMORY, IO) can be made. `parent` is None when there is none, and
    why_not says why."""

    def __init__(
        self,
        root: Path = Path("/sys/fs/cgroup"),
        proc_self: Path = Path("/proc/self/cgroup"),
        controller: str = MEMORY,
    ) -> None:
        self.controller = controller
        self.parent: Path | None = None
        self.version = 0
        self.why_not = f"no {controller} controller found"
        try:
            memberships = proc_self.read_text(encoding="utf-8").splitlines()
        except OSError as error:
            self.why_not = str(error)
            return
        for line in memberships:
            _, controllers, own = line.split(":", 2)
            if (name := _NAMES[controller, 1]) in controllers.split(","):
                self._consider(root / name, own, 1)
            elif controllers == "" and (root / "cgroup.controllers").exists():
                self._consider(root, own, 2)

    def _consider(self, base: Path, own: str, version: int) -> None:
        """Own group first, then its ancestors: version 2 wants no processes in a group with children."""
        if self.parent is not None:
            return
        at = base / own.lstrip("/")
        for candidate in [at, *at.parents]:
            if candidate != base and base not in candidate.parents:
                break
            reason = _usable(candidate, self.controller, version)
            if reason is None:
                self.parent, self.version, self.why_not = candidate, version, ""
                return
            self.why_not = reason

    def path_for(self, name: str) -> Path | None:
        return self.parent / f"{PREFIX}{name}" if self.parent else None

    def create(self, path: Path) -> Cgroup:
        path.mkdir(exist_ok=True)
        return Cgroup(path, self.version)


def leftover(path: str) -> Cgroup | None:
    """A group that an earlier run recorded; None for a path that is none of ours."""
    at = Path(path)
    if not at.name.startswith(PREFIX) or not (at / "cgroup.procs").exists():
        return None
    return Cgroup(at, 2 if (at / "cgroup.controllers").exists() else 1)


def _usable(candidate: Path, controller: str, version: int) -> str | None:
    """None when a group with a limit of the controller can be made below candidate; the reason otherwise."""
    probe = candidate / f"{PREFIX}probe-{os.getpid()}"
    control, name = candidate / "cgroup.subtree_control", _NAMES[controller, version]
    if version == 2 and name not in _text(control).split() and not _try_write(control, f"+{name}"):
        return f"{candidate}: the {name} controller cannot be enabled for children"
    try:
        probe.mkdir()
    except OSError as error:
        return f"{candidate}: {error.strerror}"
    limit = probe / _LIMIT_FILES[controller, version]
    works = limit.exists() and os.access(probe / "cgroup.procs", os.W_OK)
    probe.rmdir()
    return None if works else f"{candidate}: no {name} controller for children that can limit"


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except OSError:
        return ""


def _number(path: Path) -> int | None:
    try:
        return int(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None


def _try_write(path: Path, text: str) -> bool:
    try:
        path.write_text(text, encoding="utf-8")
        return True
    except OSError:
        return False
