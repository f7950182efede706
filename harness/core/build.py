# SPDX-License-Identifier: Apache-2.0
"""Builds the workload programs with cc into build/workloads, when a source is newer than its program."""

from __future__ import annotations

import hashlib
import os
import platform
import shutil
from pathlib import Path

from harness import ROOT, WORKLOADS
from harness.core.executor import Command, Executor
from harness.core.model import LabError

PROGRAMS_DIRECTORY = ROOT / "build" / "workloads"
PROGRAMS = {
    "lab-writer": ("writer.c", "method.c", "lab.c"),
    "lab-verify": ("verify.c", "lab.c"),
    "lab-files": ("files.c", "lab.c"),
    "lab-syncs": ("syncs.c", "lab.c"),
    "lab-passes": ("passes.c", "lab.c"),
    "lab-read": ("read.c", "lab.c"),
    "lab-build": ("build.c", "lab.c"),
    "lab-syslog": ("syslog.c", "lab.c"),
    "lab-costs": ("costs.c", "lab.c"),
    "lab-launch": ("launch.c",),
    "lab-replay": ("replay.c",),
}
LIBS = ("-ldl",)
FLAGS = ("-std=gnu11", "-D_GNU_SOURCE", "-O3", "-g", "-pthread", "-Wall", "-Wextra")


def programs(executor: Executor, directory: Path = PROGRAMS_DIRECTORY) -> Path:
    """Build programs that are out of date; returns their directory. LabError with the compiler's words."""
    compiler = os.environ.get("CC") or shutil.which("cc") or shutil.which("gcc")
    if compiler is None:
        raise LabError("no C compiler (cc): the workloads are C programs; install gcc or set CC")
    directory.mkdir(parents=True, exist_ok=True)
    newest = max(p.stat().st_mtime for p in _files())
    for name, sources in PROGRAMS.items():
        target = directory / name
        if target.exists() and target.stat().st_mtime > newest:
            continue
        scratch = directory / f"{name}.{os.getpid()}"
        argv = (*compiler.split(), *FLAGS, "-o", str(scratch), *(str(WORKLOADS / s) for s in sources), *LIBS)
        done = executor.run(Command(argv))
        if done.returncode != 0:
            raise LabError(f"{name} does not compile: {done.stderr.strip()[:2000]}")
        scratch.rename(target)
    return directory


def _files() -> list[Path]:
    """The workloads' sources, without what Python leaves beside them."""
    return sorted(p for p in WORKLOADS.iterdir() if p.is_file())


def digest() -> str:
    """First 16 hex digits of SHA-256 over the workload sources and the machine type."""
    whole = hashlib.sha256(platform.machine().encode())
    for path in _files():
        whole.update(path.read_bytes())
    return whole.hexdigest()[:16]
