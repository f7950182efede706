# SPDX-License-Identifier: Apache-2.0
"""The only module that knows how a program is put under the shim and how recovery is called."""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from harness import ROOT
from harness.core.executor import Command, Executor
from harness.core.model import LabError

BUILD = ROOT / "build"
STAGING_NAME = ".fastwrite"
ABSENT = "the library was not there: it left no statistics, or is not mapped"


@dataclass(frozen=True)
class Shim:
    """A built shim: the library and its command."""

    library: Path
    command: Path

    @property
    def digest(self) -> str:
        """First 16 hex digits of SHA-256 over library and command: which build was measured."""
        whole = hashlib.sha256()
        for path in (self.library, self.command):
            whole.update(path.read_bytes())
        return whole.hexdigest()[:16]

    def env(self, data: Path, extra: Mapping[str, str], pattern: str = "data*") -> dict[str, str]:
        """Variables that put a program under the shim for files in `data`: dataN directly in it, or others."""
        return {
            **preload(self.library),
            "FASTWRITE_PATHS": f"{quote(str(data))}/{pattern}",
            "FASTWRITE_ON_ERROR": "stop",
            **extra,
        }

    def recover(self, executor: Executor, data: Path) -> dict:
        """Run recovery over a directory. LabError when the command fails; its JSON answer otherwise."""
        done = executor.run(Command((str(self.command), "recover", "--json", str(data))))
        if done.returncode != 0:
            raise LabError(f"recovery ended with {done.returncode}: {done.stderr.strip()[-300:]}")
        try:
            return json.loads(done.stdout or "{}")
        except ValueError:
            return {"text": done.stdout.strip()[-2000:]}


def preload(library: Path) -> dict[str, str]:
    """The variable that puts a program under a library. LabError for a path that the loader would split."""
    if re.search("[ :]", str(library)):
        raise LabError(
            f"{library}: the loader cannot preload from a path with a blank or ':'; move the directory"
        )
    return {"LD_PRELOAD": str(library)}


def quote(text: str) -> str:
    """Text in which a pattern's signs mean themselves."""
    return re.sub(r"([\\*?\[\]:!])", r"\\\1", text)


def is_mapped(library: Path, maps: str) -> bool:
    """Does /proc/PID/maps show the library? True also for the empty maps of a process that has just ended."""
    return not maps or f"/{library.name}" in maps


def find(build: Path = BUILD) -> Shim | str:
    """The shim of this build, or the reason why there is none."""
    shim = Shim(build / "libfastwrite.so", build / "fastwrite")
    for path in (shim.library, shim.command):
        if not path.exists():
            return f"{path} is not there; run `make` first"
    return shim


@dataclass(frozen=True)
class Counters:
    """What the processes of a leg said at their end (FASTWRITE_STATS), added up."""

    staged_writes: int = 0
    staged_bytes: int = 0
    syncs: int = 0
    syncs_by_journal: int = 0


_COUNTERS = re.compile(
    r"^fastwrite: pid \d+ .*: (\d+) writes staged, (\d+) bytes;.* (\d+) syncs asked, .* (\d+) by the journal;",
    re.MULTILINE,
)


def counters(statistics: str) -> Counters:
    """The lines of a FASTWRITE_STATS file, added up."""
    found = [[int(n) for n in line] for line in _COUNTERS.findall(statistics)]
    return Counters(*(sum(column) for column in zip(*found, strict=True)))


def arena_bytes(data: Path) -> int | None:
    """Size of the staging files below `data` (apparent size; None when there is no staging directory)."""
    staging = data / STAGING_NAME
    total = 0
    try:
        for path in staging.rglob("*"):
            try:
                found = path.lstat()
            except FileNotFoundError:
                continue
            if path.is_file():
                total += found.st_size
    except OSError:
        return None
    return total if total else None


def scrub(environ: dict[str, str] | os._Environ) -> list[str]:
    """Remove what would put native legs under a shim; returns the names removed."""
    names = [n for n in environ if n == "LD_PRELOAD" or n.startswith("FASTWRITE_")]
    for name in names:
        del environ[name]
    return names
