# SPDX-License-Identifier: Apache-2.0
"""Every access of the doctor to the machine. It only reads, and records each failure with its reason.

Paths below /proc, /sys and the like are taken below `root`, so that tests can give it another machine. Used by
doctor_stack and doctor_probes.
"""

from __future__ import annotations

import os
import shutil
import stat
import subprocess
from dataclasses import dataclass, field
from pathlib import Path

ADMIN_PATH = ("/usr/sbin", "/sbin")
TOOL_SECONDS = 10


@dataclass
class System:
    """The machine under inspection. `unread` maps what could not be read to the reason."""

    root: Path = Path("/")
    unread: dict[str, str] = field(default_factory=dict)

    def at(self, path: str | Path) -> Path:
        return self.root / str(path).lstrip("/")

    def read(self, path: str | Path, needed: bool = True) -> str | None:
        """Content of a file without surrounding blanks; None when it is not there or not readable. That a file
        which is not `needed` does not exist is no news."""
        try:
            return self.at(path).read_text(encoding="utf-8", errors="surrogateescape").strip()
        except FileNotFoundError as error:
            if needed:
                self.unread[str(path)] = error.strerror
        except OSError as error:
            self.unread[str(path)] = error.strerror
        return None

    def number(self, path: str | Path, needed: bool = True) -> int | None:
        text = self.read(path, needed)
        try:
            return int(text) if text is not None else None
        except ValueError:
            self.unread[str(path)] = f"no number: '{text}'"
            return None

    def names(self, path: str | Path) -> list[str]:
        """Sorted entries of a directory; empty when there is none."""
        try:
            return sorted(entry.name for entry in self.at(path).iterdir())
        except (FileNotFoundError, NotADirectoryError):
            return []
        except OSError as error:
            self.unread[str(path)] = error.strerror
            return []

    def exists(self, path: str | Path) -> bool:
        return self.at(path).exists()

    def resolve(self, path: str | Path) -> Path:
        """Where links lead, as a path of the inspected machine."""
        found = self.at(path).resolve()
        return Path("/") / found.relative_to(self.root.resolve())

    def space(self, path: str | Path) -> os.statvfs_result | None:
        try:
            return os.statvfs(self.at(path))
        except OSError as error:
            self.unread[str(path)] = error.strerror
            return None

    def may_write(self, path: str | Path) -> bool:
        return os.access(self.at(path), os.W_OK | os.X_OK)

    def state(self, path: str | Path) -> os.stat_result | None:
        """lstat; None when there is no such thing."""
        try:
            return self.at(path).lstat()
        except OSError:
            return None

    def tool(self, *command: str) -> str | None:
        """What a program that only reads prints; None, with the reason noted, when it is missing or fails."""
        name = " ".join(command)
        search = os.pathsep.join([os.environ.get("PATH", ""), *ADMIN_PATH])
        program = shutil.which(command[0], path=search)
        if program is None:
            self.unread[name] = f"{command[0]} is not installed"
            return None
        try:
            done = subprocess.run(
                [program, *command[1:]],
                capture_output=True,
                encoding="utf-8",
                errors="replace",
                check=False,
                timeout=TOOL_SECONDS,
                stdin=subprocess.DEVNULL,
                env={**os.environ, "LC_ALL": "C"},
            )
        except subprocess.TimeoutExpired:
            self.unread[name] = f"no answer within {TOOL_SECONDS} s"
            return None
        if done.returncode != 0:
            self.unread[name] = _complaint(done.stderr) or f"ended with {done.returncode}"
            return None
        return done.stdout


def _complaint(stderr: str) -> str:
    """The line that says why: e2fsprogs print their version first."""
    lines = [line.strip() for line in stderr.splitlines() if line.strip()]
    for line in lines:
        if ": " in line:
            return line
    return lines[-1] if lines else ""


def trusted(found: os.stat_result) -> bool:
    """What the library asks of a staging directory: this user's own, and nobody else may write to it."""
    others = stat.S_IWGRP | stat.S_IWOTH
    return stat.S_ISDIR(found.st_mode) and found.st_uid == os.geteuid() and not found.st_mode & others
