# SPDX-License-Identifier: Apache-2.0
"""What a run left, and whether another left the same.

Compared are the entries below the directory that the run made, changed or removed, against the copy it
began with. A rewritten file is known by its inode and time of status change: a program can set the other
time back. Of a file there is a digest over the bytes and, for text whose lines come in any order (several
processes append to one log), a sum over the lines. What native runs do not agree about cannot be asked of the
shim: it is named and left out.
"""

from __future__ import annotations

import fnmatch
import hashlib
import os
import stat
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from harness.core.shim import STAGING_NAME

BYTES, LINES, EXCLUDED = "byte for byte", "the same lines in any order", "excluded"
STANDARD_OUTPUT = "standard output"
STEP_BYTES = 1 << 20

REMOVED = "removed"
KINDS = {
    stat.S_IFDIR: "directory",
    stat.S_IFREG: "file",
    stat.S_IFIFO: "pipe",
    stat.S_IFSOCK: "socket",
    stat.S_IFCHR: "character device",
    stat.S_IFBLK: "block device",
}

State = Mapping[str, tuple]
"""By path relative to the directory: what changes when the entry there does."""


@dataclass(frozen=True)
class Digest:
    """An entry that a run changed. form: its kind and mode, or where a link leads; only files have bytes."""

    bytes: str = ""
    lines: str = ""
    size: int = 0
    form: str = ""


@dataclass(frozen=True)
class Left:
    """What a run left: files (and its standard output) by name, exit status (negative: signal), staging
    files. Directories, links and what was removed are among the files."""

    files: Mapping[str, Digest]
    status: int
    staging: tuple[str, ...] = ()


def state(root: Path) -> dict[str, tuple]:
    return {name: _mark(root / name, found) for name, found in _walk(root)}


def left(root: Path, before: State, status: int, output: Path, patterns: Sequence[str] = ()) -> Left:
    """What changed below root and is named by a pattern (all when there is none), and the output."""
    files = {STANDARD_OUTPUT: digest(output)}
    staging, seen = [], set()
    for name, found in _walk(root):
        seen.add(name)
        if STAGING_NAME in Path(name).parts:
            if not stat.S_ISDIR(found.st_mode):
                staging.append(name)
        elif _named(name, patterns) and before.get(name) != _mark(root / name, found):
            files[name] = _entry(root / name, found)
    for name in before.keys() - seen:
        if STAGING_NAME not in Path(name).parts and _named(name, patterns):
            files[name] = Digest(form=REMOVED)
    return Left(files, status, tuple(staging))


def _named(name: str, patterns: Sequence[str]) -> bool:
    return not patterns or any(fnmatch.fnmatch(name, p) for p in patterns)


def _walk(root: Path) -> Iterable[tuple[str, os.stat_result]]:
    """Everything below root, links not followed."""
    for directory, directories, names in os.walk(root):
        for name in directories + names:
            path = Path(directory) / name
            yield str(path.relative_to(root)), path.lstat()


def _mark(path: Path, found: os.stat_result) -> tuple:
    form = _form(path, found)
    if not stat.S_ISREG(found.st_mode):
        return (form,)
    return form, found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns


def _form(path: Path, found: os.stat_result) -> str:
    if stat.S_ISLNK(found.st_mode):
        return f"link to {os.readlink(path)}"
    return f"{KINDS[stat.S_IFMT(found.st_mode)]}, mode {stat.S_IMODE(found.st_mode):o}"


def _entry(path: Path, found: os.stat_result) -> Digest:
    form = _form(path, found)
    return replace(digest(path), form=form) if stat.S_ISREG(found.st_mode) else Digest(form=form)


def digest(path: Path) -> Digest:
    whole, total, size, rest = hashlib.sha256(), 0, 0, b""
    with path.open("rb") as file:
        while step := file.read(STEP_BYTES):
            size += len(step)
            whole.update(step)
            *lines, rest = (rest + step).split(b"\n")
            if len(rest) > 16 * STEP_BYTES:  # no text
                lines, rest = [*lines, rest], b""
            for line in lines:
                total += int.from_bytes(hashlib.blake2b(line, digest_size=16).digest(), "little")
    total += int.from_bytes(hashlib.blake2b(rest, digest_size=16).digest(), "little")
    return Digest(whole.hexdigest(), f"{total % (1 << 128):032x}", size)


def ways(native: Sequence[Left]) -> dict[str, str]:
    """How each file can be compared: as strictly as all native runs agree about it."""
    out = {}
    for name in sorted(set().union(*(run.files for run in native))):
        found = [run.files.get(name) for run in native]
        if _form_of(native, name) is None:
            out[name] = EXCLUDED
        elif len({one.bytes for one in found}) == 1:
            out[name] = BYTES
        elif len({(one.lines, one.size) for one in found}) == 1:
            out[name] = LINES
        else:
            out[name] = EXCLUDED
    return out


def _form_of(native: Sequence[Left], name: str) -> str | None:
    """The form of an entry; None unless every native run left it in the same one."""
    found = [run.files.get(name) for run in native]
    forms = {one and one.form for one in found}
    return forms.pop() if len(forms) == 1 else None


def _change(form: str) -> str:
    return REMOVED if form == REMOVED else "made or changed"


def differences(native: Sequence[Left], other: Left) -> list[str]:
    """What `other` left differently from all native runs; empty when nothing."""
    out = []
    asked = ways(native)
    reference = native[0]
    if other.status not in {run.status for run in native}:
        out.append(f"ended with {other.status}, natively with {reference.status}")
    for name, way in asked.items():
        form = _form_of(native, name)
        if form is None:
            continue
        expected, found = reference.files[name], other.files.get(name)
        if found is None:
            out.append(f"{name}: is not {_change(form)}, natively it is")
        elif found.form != form:
            out.append(f"{name}: {found.form}, natively {form}")
        elif (way == BYTES and found.bytes != expected.bytes) or (
            way == LINES and (found.lines, found.size) != (expected.lines, expected.size)
        ):
            out.append(f"{name}: differs ({found.size:,} bytes, natively {expected.size:,})")
    # Where native runs make up names of their own (of process numbers, say), so may this one.
    if all(set(run.files) == set(reference.files) for run in native):
        more = sorted(set(other.files) - set(asked))
        out += [f"{name}: is {_change(other.files[name].form)}, natively it is not" for name in more]
    out += [f"{name}: left in staging" for name in other.staging]
    return out
