# SPDX-License-Identifier: Apache-2.0
"""What a run left, and whether another left the same.

Files are those below the directory that the run changed, found by size and time against the copy it began with;
a digest over the bytes and, for text whose lines come in any order (several processes append to one log), a sum
over the lines. What native runs do not agree about cannot be asked of the shim: it is named and left out.
"""

from __future__ import annotations

import fnmatch
import hashlib
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from harness.core.shim import STAGING_NAME

BYTES, LINES, EXCLUDED = "byte for byte", "the same lines in any order", "excluded"
STANDARD_OUTPUT = "standard output"
STEP_BYTES = 1 << 20

State = Mapping[str, tuple[int, int]]
"""Size and time of change of each file of a directory that a run begins with, by path relative to it."""


@dataclass(frozen=True)
class Digest:
    bytes: str
    lines: str
    size: int


@dataclass(frozen=True)
class Left:
    """What a run left: files (and its standard output) by name, exit status (negative: signal), staging files."""

    files: Mapping[str, Digest]
    status: int
    staging: tuple[str, ...] = ()


def state(root: Path) -> dict[str, tuple[int, int]]:
    return {name: (found.st_size, found.st_mtime_ns) for name, found in _walk(root)}


def left(root: Path, before: State, status: int, output: Path, patterns: Sequence[str] = ()) -> Left:
    """The changed files below root that a pattern names (all when there is none), and the output."""
    files = {STANDARD_OUTPUT: digest(output)}
    staging = []
    for name, found in _walk(root):
        if STAGING_NAME in Path(name).parts:
            staging.append(name)
        elif patterns and not any(fnmatch.fnmatch(name, p) for p in patterns):
            continue
        elif before.get(name) != (found.st_size, found.st_mtime_ns):
            files[name] = digest(root / name)
    return Left(files, status, tuple(staging))


def _walk(root: Path) -> Iterable[tuple[str, os.stat_result]]:
    """Regular files below root, links not followed."""
    for directory, _, names in os.walk(root):
        for name in names:
            path = Path(directory) / name
            if path.is_file() and not path.is_symlink():
                yield str(path.relative_to(root)), path.stat()


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
        if any(one is None for one in found):
            out[name] = EXCLUDED
        elif len({one.bytes for one in found}) == 1:
            out[name] = BYTES
        elif len({(one.lines, one.size) for one in found}) == 1:
            out[name] = LINES
        else:
            out[name] = EXCLUDED
    return out


def differences(native: Sequence[Left], other: Left) -> list[str]:
    """What `other` left differently from all native runs; empty when nothing."""
    out = []
    asked = ways(native)
    reference = native[0]
    if other.status not in {run.status for run in native}:
        out.append(f"ended with {other.status}, natively with {reference.status}")
    for name, way in asked.items():
        if way == EXCLUDED:
            continue
        expected, found = reference.files[name], other.files.get(name)
        if found is None:
            out.append(f"{name}: is missing")
        elif (
            (found.bytes != expected.bytes)
            if way == BYTES
            else ((found.lines, found.size) != (expected.lines, expected.size))
        ):
            out.append(f"{name}: differs ({found.size:,} bytes, natively {expected.size:,})")
    # Where native runs make up names of their own (of process numbers, say), so may this one.
    if all(set(run.files) == set(reference.files) for run in native):
        out += [f"{name}: is there, natively it is not" for name in sorted(set(other.files) - set(asked))]
    out += [f"{name}: left in staging" for name in other.staging]
    return out
