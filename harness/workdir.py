# SPDX-License-Identifier: Apache-2.0
"""The directory that legs write into: claimed, kept clean, given back.

Only a directory that is new, empty, or marked as ours is used. The marker (a small JSON file) names the
process that holds it and the control groups in use, so that a run after a `kill -9` can remove what was
left. Inside: data/ (the files under test), control/ (progress files). Nothing else is ever removed.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import stat
from pathlib import Path

from harness import cgroup
from harness.model import LabError

MARKER = ".fastwrite-lab.json"
PARTS = ("data", "control")
SPARE_INODES = 200


class WorkDir:
    """A claimed work directory; use as a context manager."""

    def __init__(self, path: Path) -> None:
        self.path = path.absolute()
        self.data = self.path / "data"
        self.control = self.path / "control"
        self._created = False
        self._cgroups: list[str] = []

    def __enter__(self) -> WorkDir:
        self.claim()
        return self

    def __exit__(self, *_: object) -> None:
        self.release()

    def claim(self) -> list[str]:
        """Take the directory; returns what was cleaned from a dead run. LabError when it is not ours."""
        cleaned: list[str] = []
        _refuse_wrong_kind(self.path)
        if self.path.is_dir():
            marker = self.path / MARKER
            if marker.exists():
                cleaned = self._take_over(marker)
            elif any(self.path.iterdir()):
                raise LabError(
                    f"{self.path}: not empty, and not of this laboratory; give a new or empty --dir"
                )
        else:
            try:
                self.path.mkdir(parents=True)
            except OSError as error:
                raise LabError(f"{self.path}: cannot be created: {error.strerror}") from error
            self._created = True
        self._write_marker()
        self.fresh()
        return cleaned

    def _take_over(self, marker: Path) -> list[str]:
        try:
            left = json.loads(marker.read_text())
        except (OSError, ValueError):
            left = {}
        pid = left.get("pid", 0)
        if pid != os.getpid() and pid and process_start(pid) == left.get("start"):
            raise LabError(f"{self.path}: in use by process {pid}; wait for it or give another --dir")
        self._created = bool(left.get("created"))
        cleaned = [name for name in PARTS if (self.path / name).exists()]
        for path in left.get("cgroups", ()):
            if group := cgroup.leftover(path):
                group.remove()
                cleaned.append(f"control group {group.path}")
        self._remove_parts()
        strangers = [p.name for p in self.path.iterdir() if p.name != MARKER]
        if strangers:
            raise LabError(f"{self.path}: holds '{strangers[0]}', which is not ours; give another --dir")
        return cleaned

    def _write_marker(self) -> None:
        state = {
            "pid": os.getpid(),
            "start": process_start(os.getpid()),
            "created": self._created,
            "cgroups": self._cgroups,
        }
        temporary = self.path / (MARKER + ".new")
        try:
            temporary.write_text(json.dumps(state))
            temporary.rename(self.path / MARKER)
        except OSError as error:
            raise LabError(f"{self.path}: not writable: {error.strerror}") from error

    def note_cgroups(self, *paths: Path) -> None:
        """Record the control groups that a leg uses, before they are created; none when they are gone."""
        if (names := [str(path) for path in paths]) != self._cgroups:
            self._cgroups = names
            self._write_marker()

    def fresh(self) -> None:
        """Empty data/ and control/."""
        self._remove_parts()
        for name in PARTS:
            (self.path / name).mkdir()

    def _remove_parts(self) -> None:
        for name in PARTS:
            shutil.rmtree(self.path / name, ignore_errors=True)

    def release(self) -> None:
        self._remove_parts()
        for path in self._cgroups:
            if group := cgroup.leftover(path):
                group.remove()
        (self.path / MARKER).unlink(missing_ok=True)
        (self.path / (MARKER + ".new")).unlink(missing_ok=True)
        if self._created:
            with contextlib.suppress(OSError):
                self.path.rmdir()

    def check_space(self, need_bytes: int, need_files: int) -> None:
        """LabError when the file system cannot hold the largest leg (10 % and some inodes to spare)."""
        found = os.statvfs(self.path)
        free_bytes = found.f_bavail * found.f_frsize
        if free_bytes < need_bytes * 1.1:
            raise LabError(
                f"{self.path}: {free_bytes / 1e9:.1f} GB free, the largest leg needs "
                f"{need_bytes * 1.1 / 1e9:.1f} GB; free some, use another --dir or a smaller --scale"
            )
        if found.f_files and found.f_favail < need_files + SPARE_INODES:
            raise LabError(f"{self.path}: {found.f_favail} free inodes, {need_files + SPARE_INODES} needed")


def _refuse_wrong_kind(path: Path) -> None:
    try:
        mode = os.stat(path).st_mode
    except FileNotFoundError:
        return
    except OSError as error:
        raise LabError(f"{path}: {error.strerror}") from error
    if stat.S_ISBLK(mode) or stat.S_ISCHR(mode):
        raise LabError(f"{path}: a device; the laboratory writes into a directory and never onto a device")
    if not stat.S_ISDIR(mode):
        raise LabError(f"{path}: not a directory")


def process_start(pid: int) -> str | None:
    """Start time of a process in clock ticks since boot (field 22 of /proc/PID/stat); None if it is gone."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return None
    return text.rsplit(")", 1)[1].split()[19]
