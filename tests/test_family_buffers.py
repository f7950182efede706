# SPDX-License-Identifier: Apache-2.0
"""A process forks while its threads flush, and goes on in the child: the child has their buffers."""

from __future__ import annotations

import fcntl
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest
from lib.disks import disk
from lib.support import clean_environment, disk_dir, kill_in, preload_env

FREEZE, THAW = 0xC0045877, 0xC0045878

# In each round a thread of the library stands still in a flush, since the file system is frozen.  (By another
# process: the library would drain the files before.)  The file was open at an earlier fork: the later ones wait for
# no flush of it.
PROGRAM = """
import os, signal, sys, time
from pathlib import Path

BUFFERS = 8

def scatter(value):
    for n in range(40):
        os.pwrite(fd, b"%08d" % (value + n), n * 5003)

def waiting():
    return any(path.read_text().rpartition(")")[2].split()[0] == "D" for path in Path("/proc/self/task").glob("*/stat"))

def tell(what):
    print(what, flush=True)
    sys.stdin.readline()

def go_on_in_a_child():
    if os.fork():
        os._exit(os.wait()[1] != 0)
    signal.alarm(60)  # ends only what hangs

signal.alarm(60)
fd = os.open(sys.argv[1], os.O_RDWR | os.O_CREAT, 0o644)
scatter(0)
go_on_in_a_child()
for round in range(BUFFERS + 1):
    tell("freeze")
    scatter(1000 * round)
    while not waiting():
        time.sleep(0.01)
    go_on_in_a_child()
    tell("thaw")
    os.fdatasync(fd)
scatter(10000)
os.fdatasync(fd)
os._exit(0)
"""


def freeze(point: Path, frozen: bool) -> None:
    top = os.open(point, os.O_RDONLY)
    try:
        fcntl.ioctl(top, FREEZE if frozen else THAW, 0)
    finally:
        os.close(top)


def test_a_child_can_flush(library):
    if not os.access("/dev/shm", os.W_OK):
        pytest.skip("/dev/shm is not writable: staging would lie on what is frozen")
    with (
        disk_dir() as place,
        disk("ext4", place) as point,
        tempfile.TemporaryDirectory(dir="/dev/shm") as staging,
        subprocess.Popen(
            [sys.executable, "-c", PROGRAM, point / "file"],
            cwd=place,
            env=clean_environment(
                **preload_env(library, f"{point}/**", staging=staging, lag_ms=10, prealloc_mode="off")
            ),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        ) as program,
    ):
        frozen = False
        try:
            for line in program.stdout:
                frozen = line == "freeze\n"
                freeze(point, frozen)
                program.stdin.write("\n")
                program.stdin.flush()
            assert program.wait(60) == 0
        finally:
            if frozen:
                freeze(point, False)
            kill_in(place)
        data = (point / "file").read_bytes()
        assert [data[n * 5003 : n * 5003 + 8] for n in range(40)] == [
            b"%08d" % (10000 + n) for n in range(40)
        ]
