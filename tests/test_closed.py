# SPDX-License-Identifier: Apache-2.0
"""Files in order that the program has closed: what stays staged, for how long, and after a kill."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest
from lib.support import leftovers, preload_env, run_preloaded, wait_for

ORDERED = {"writers": "exclusive", "sync": "ordered", "ordered_ms": 60000}
LIVES = 300
# As a database treats its rollback journal.  The last line of a life says that it is over.
JOURNAL = """
import os, signal, sys, threading
if "thread" in sys.argv:
    threading.Thread(target=threading.Event().wait, daemon=True).start()
for life in range(int(sys.argv[2])):
    fd = os.open(sys.argv[1], os.O_RDWR | os.O_CREAT, 0o644)
    os.fchown(fd, os.geteuid(), os.getegid())
    for at in (0, 512, 4608, 8704):
        os.pwrite(fd, bytes([65 + life % 26]) * 4096, at)
    os.fdatasync(fd)
    if sys.argv[3] == "cut":
        os.ftruncate(fd, 0)
    os.close(fd)
if sys.argv[3] == "kill":
    os.kill(os.getpid(), signal.SIGKILL)
if sys.argv[3] == "wait":
    print("closed", flush=True)
    sys.stdin.read()
"""
WHOLE = 8704 + 4096
# A file that is open for writing cannot be started.
STARTS_WHAT_IT_WROTE = """
import os, sys
fd = os.open(sys.argv[1], os.O_RDWR | os.O_CREAT, 0o755)
os.write(fd, b"#!/bin/sh\\n")
for line in range(50):
    os.write(fd, b"# a line\\n")
os.write(fd, b"exit 7\\n")
os.close(fd)
os.execv(sys.argv[1], sys.argv[1:])
"""


def journal(place: Path, lives: int, end: str, *beside: str) -> list[str | Path]:
    return [sys.executable, "-c", JOURNAL, place / "journal", str(lives), end, *beside]


@pytest.fixture
def place(tmp_path: Path) -> Path:
    (tmp_path / "data").mkdir()
    return tmp_path / "data"


@pytest.mark.skipif(shutil.which("strace") is None, reason="strace is not installed")
@pytest.mark.parametrize("beside", [[], ["thread"]], ids=["alone", "beside-a-thread"])
@pytest.mark.parametrize("end", ["cut", "stay"])
def test_a_life_writes_nothing_to_the_kernel(library: Path, place: Path, end: str, beside: list[str]) -> None:
    out = place.parent / "calls"
    run = run_preloaded(
        library,
        [
            "strace",
            "-f",
            "-c",
            "-o",
            out,
            "-E",
            f"LD_PRELOAD={library}",
            *journal(place, LIVES, end, *beside),
        ],
        place,
        env={"LD_PRELOAD": ""},
        **ORDERED,
    )
    assert run.returncode == 0, run.stderr
    calls = Counter()
    for line in out.read_text().splitlines()[2:-2]:
        fields = line.split()
        calls[fields[-1]] = int(fields[3])
    # the first life may pass; the end writes everything back
    assert calls["pwrite64"] + calls["pwritev"] + calls["ftruncate"] + calls["fdatasync"] < 20, calls
    assert calls["fallocate"] + calls["readlinkat"] + calls["name_to_handle_at"] < 30, calls
    assert (place / "journal").stat().st_size == (0 if end == "cut" else WHOLE)
    assert not leftovers(place)


def test_killed_after_the_close(library: Path, fastwrite: Path, place: Path) -> None:
    run = run_preloaded(library, journal(place, 3, "kill"), place, **ORDERED)
    assert run.returncode == -signal.SIGKILL
    path = place / "journal"
    assert path.read_bytes() != b"C" * WHOLE, "nothing was staged: this tested nothing"
    done = subprocess.run(
        [fastwrite, "recover", place], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert path.read_bytes() == b"C" * WHOLE
    assert not leftovers(place)


def test_an_exec_of_what_was_closed(library: Path, place: Path) -> None:
    run = run_preloaded(
        library, [sys.executable, "-c", STARTS_WHAT_IT_WROTE, place / "program"], place, **ORDERED
    )
    assert run.returncode == 7, run.stderr
    assert not leftovers(place)


def test_the_descriptor_goes_after_the_epoch(library: Path, place: Path) -> None:
    """The file system can be unmounted, and the file be started, while the program lives on."""
    env = {**os.environ, **preload_env(library, f"{place}/**", **{**ORDERED, "ordered_ms": 200})}
    command = [str(part) for part in journal(place, 3, "wait")]
    with subprocess.Popen(
        command, env=env, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as program:
        assert program.stdout and program.stdin
        assert program.stdout.readline() == "closed\n"

        def is_open() -> bool:
            links = Path(f"/proc/{program.pid}/fd").iterdir()
            return any(os.path.realpath(link) == str(place / "journal") for link in links)

        wait_for(lambda: not is_open(), "the descriptor was closed")
        assert (place / "journal").read_bytes() == b"C" * WHOLE
        program.stdin.close()
        assert program.wait(60) == 0
    assert not leftovers(place)
