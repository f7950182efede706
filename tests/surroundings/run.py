# SPDX-License-Identifier: Apache-2.0
"""Runs the driver for a test, in a process of its own: whatever ends it, its namespaces end with it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from lib.support import ROOT

SKIPPED = 77
CACHE = ROOT / "build" / "surroundings"  # what a soak has fetched
PATIENCE_SECONDS = 300


def command(build: Path, *options: str) -> list[str]:
    return [sys.executable, "-m", "surroundings", "--build", str(build), *options]


def start(build: Path, *options: str) -> subprocess.Popen:
    nowhere = subprocess.DEVNULL
    return subprocess.Popen(
        command(build, *options), cwd=ROOT / "tests", stdin=nowhere, stdout=nowhere, stderr=nowhere
    )


def run(build: Path, *options: str) -> str:
    done = subprocess.run(
        command(build, *options),
        cwd=ROOT / "tests",
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=PATIENCE_SECONDS,
        check=False,
    )
    if done.returncode == SKIPPED:
        pytest.skip(done.stdout.strip().removeprefix("skipped: "))
    assert done.returncode == 0, done.stdout
    return done.stdout
