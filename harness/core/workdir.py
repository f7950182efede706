# SPDX-License-Identifier: Apache-2.0
"""The directory that legs write into: claimed, kept clean, given back.

Only a directory that is new, empty, or marked as ours is used. The marker (a small JSON file) names the
process that holds it, the control groups in use and settings that are to be set back, so that a run after a
`kill -9` can remove what was left. Inside: data/ (the files under test), control/ (progress files), and for
legs with a file system of their own images/ and mount/ (mounts.py). Nothing else is ever removed.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import stat
from pathlib import Path

from harness.core import cgroup, mounts, sysctls
from harness.core.model import LabError

WORK = Path("lab-work")
"""The default of --dir."""
MARKER = ".fastwrite-lab.json"
MARKER_NEW = MARKER + ".new"
PARTS = ("data", "control")
MOUNT_PARTS = ("images", "mount")
SPARE_INODES = 200


class WorkDir:
    """A claimed work directory; use as a context manager."""

    def __init__(self, path: Path) -> None:
        self.path = Path(os.path.realpath(path))  # as the kernel names mounts and loop devices below it
        self.data = self.path / "data"
        self.control = self.path / "control"
        self._created = False
        self._ours = False
        self._cgroups: list[str] = []
        self._queues: dict[str, dict] = {}
        self._sysctls: list[dict[str, str]] = []

    def __enter__(self) -> WorkDir:
        try:
            self.claim()
        except KeyboardInterrupt:
            if self._ours:
                self.release()
            raise
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
            elif any(p.name != MARKER_NEW for p in self.path.iterdir()):
                raise LabError(
                    f"{self.path}: not empty, and not of this laboratory; give a new or empty --dir"
                )
        else:
            try:
                self.path.mkdir(parents=True)
            except OSError as error:
                raise LabError(f"{self.path}: cannot be created: {error.strerror}") from error
            self._created = True
        self._ours = True
        self._write_marker()
        self.fresh()
        return cleaned

    def _take_over(self, marker: Path) -> list[str]:
        try:
            left = json.loads(marker.read_text(encoding="utf-8"))
        except (OSError, ValueError):
            left = {}
        pid = left.get("pid", 0)
        if pid != os.getpid() and pid and process_start(pid) == left.get("start"):
            raise LabError(f"{self.path}: in use by process {pid}; wait for it or give another --dir")
        self._ours = True
        self._created = bool(left.get("created"))
        self._cgroups = list(left.get("cgroups", ()))
        self._queues = left.get("queues") or {}
        self._sysctls = list(left.get("sysctls", ()))
        cleaned = self._clean()
        strangers = [p.name for p in self.path.iterdir() if p.name not in (MARKER, MARKER_NEW)]
        if strangers:
            raise LabError(f"{self.path}: holds '{strangers[0]}', which is not ours; give another --dir")
        return cleaned

    def _clean(self) -> list[str]:
        """Remove and set back everything that a run has made, except the marker; what there was of it."""
        cleaned, left = [], []
        for path in self._cgroups:
            if group := cgroup.leftover(path):
                if group.remove():
                    cleaned.append(f"control group {group.path}")
                else:
                    left.append(path)
        cleaned += sysctls.restore(self._sysctls)
        cleaned += mounts.clean(self.path, self._queues)
        cleaned += [name for name in (*PARTS, *MOUNT_PARTS) if (self.path / name).exists()]
        self._remove_parts(*PARTS, *MOUNT_PARTS)
        self._cgroups, self._queues, self._sysctls = left, {}, []
        return cleaned

    def _write_marker(self) -> None:
        state = {
            "pid": os.getpid(),
            "start": process_start(os.getpid()),
            "created": self._created,
            "cgroups": self._cgroups,
            "queues": self._queues,
            "sysctls": self._sysctls,
        }
        temporary = self.path / MARKER_NEW
        try:
            temporary.write_text(json.dumps(state), encoding="utf-8")
            temporary.rename(self.path / MARKER)
        except OSError as error:
            raise LabError(f"{self.path}: not writable: {error.strerror}") from error

    def note_cgroups(self, *paths: Path) -> None:
        """Record the control groups that a leg uses, before they are created. A recorded group that exists
        stays recorded."""
        left = [name for name in self._cgroups if Path(name).exists()]
        if (names := list(dict.fromkeys([*left, *map(str, paths)]))) != self._cgroups:
            self._cgroups = names
            self._write_marker()

    def set_sysctls(self, wanted: dict[str, str]) -> None:
        """Change settings of the whole machine until the directory is given back. LabError."""
        if wanted:
            self._sysctls = sysctls.changes(wanted)
            self._write_marker()
            sysctls.apply(self._sysctls)

    def note_queues(self, before: dict[str, dict]) -> None:
        """Record loop device -> settings of its queue before they are changed."""
        self._queues |= before
        self._write_marker()

    def unmount(self) -> None:
        """Remove the leg's mount and loop device; the images stay."""
        mounts.clean(self.path, self._queues)
        if self._queues:
            self._queues = {}
            self._write_marker()

    def fresh(self) -> None:
        """Empty data/ and control/."""
        self._remove_parts(*PARTS)
        for name in PARTS:
            (self.path / name).mkdir()

    def _remove_parts(self, *names: str) -> None:
        for name in names:
            shutil.rmtree(self.path / name, ignore_errors=True)

    def release(self) -> None:
        """Give the directory back. What could not be removed keeps the marker, for the next start."""
        self._clean()
        if self._cgroups:
            self._write_marker()
            return
        (self.path / MARKER).unlink(missing_ok=True)
        (self.path / MARKER_NEW).unlink(missing_ok=True)
        if self._created:
            with contextlib.suppress(OSError):
                self.path.rmdir()

    def check_space(self, need_bytes: int, need_files: int) -> None:
        """LabError when the file system cannot hold the largest leg (10 % and some inodes to spare)."""
        advice = " by the largest leg; free some, use another --dir or a smaller --scale"
        mounts.check_free(self.path, need_bytes * 1.1, need_files + SPARE_INODES, advice)


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
        text = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="surrogateescape")
    except OSError:
        return None
    return text.rsplit(")", 1)[1].split()[19]
