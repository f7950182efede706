# SPDX-License-Identifier: Apache-2.0
"""The page cache's limits (vm.dirty_*), which are the whole machine's.

Read for every run; changed only when the user names them, and set back at the end, or from the work directory's
marker at the next start when the run was killed. A value that somebody else has changed meanwhile stays.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from harness.core.model import LabError

DIRECTORY = Path("/proc/sys/vm")
NAMES = (
    "dirty_ratio", "dirty_background_ratio", "dirty_bytes", "dirty_background_bytes",
    "dirty_writeback_centisecs", "dirty_expire_centisecs",
)  # fmt: skip
_OTHER = {
    "dirty_ratio": "dirty_bytes",
    "dirty_bytes": "dirty_ratio",
    "dirty_background_ratio": "dirty_background_bytes",
    "dirty_background_bytes": "dirty_background_ratio",
}
"""Two forms of one limit: setting one makes the other 0."""


def parse(texts: Sequence[str]) -> dict[str, str]:
    """NAME=VALUE, with or without the leading "vm.". LabError for anything that is not to be changed here."""
    found = {}
    for text in texts:
        name, _, value = text.removeprefix("vm.").partition("=")
        if name not in NAMES:
            raise LabError(f"--sysctl: '{name}' is none of {', '.join(NAMES)}")
        if not value.isdecimal():
            raise LabError(f"--sysctl: {name} needs a number, not '{value}'")
        found[name] = value
    return found


def read(directory: Path = DIRECTORY) -> dict[str, str | None]:
    """All of them; None for one that cannot be read."""
    return {name: _read(directory / name) for name in NAMES}


def changes(wanted: Mapping[str, str], directory: Path = DIRECTORY) -> list[dict[str, str]]:
    """What apply will do, to be noted first: name, value to set, and name and value that set it back."""
    now, found = read(directory), []
    for name, value in wanted.items():
        back = _OTHER[name] if now[name] == "0" and now.get(_OTHER.get(name, ""), "0") != "0" else name
        found.append({"name": name, "set": value, "back": back, "was": now[back] or "0"})
    return found


def apply(noted: Sequence[Mapping[str, str]], directory: Path = DIRECTORY) -> None:
    """LabError when the kernel or the lack of root forbids it."""
    for change in noted:
        try:
            (directory / change["name"]).write_text(change["set"], encoding="utf-8")
        except OSError as error:
            raise LabError(f"--sysctl: vm.{change['name']}={change['set']}: {error.strerror}") from error


def restore(noted: Sequence[Mapping[str, str]], directory: Path = DIRECTORY) -> list[str]:
    """Set back what still is as apply has left it; the names."""
    done = []
    for change in reversed(noted):
        if _read(directory / change["name"]) == change["set"]:
            (directory / change["back"]).write_text(change["was"], encoding="utf-8")
            done.append(f"vm.{change['back']}")
    return done


def _read(path: Path) -> str | None:
    try:
        return path.read_text(encoding="utf-8").strip()
    except OSError:
        return None
