# SPDX-License-Identifier: Apache-2.0
"""A directory gets another name, the power goes: what was synced is found, and no name stands without its content."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
from pathlib import Path

import pytest
from lib.disks import MIB, disk, remount, shut_down
from lib.support import sync_file_system, wait_for
from test_journal import STEPS, all_ended, recover, recover_raw

SIZE = {"ext4": 64 * MIB, "xfs": 320 * MIB}


@pytest.fixture
def steps(library, compile_c):
    with all_ended(library, compile_c(STEPS.read_text(), "-pthread")) as start:
        yield lambda place, **settings: start(
            place, **({"writers": "exclusive", "prealloc_mode": "off"} | settings)
        )


@pytest.mark.parametrize("kind", SIZE)
@pytest.mark.parametrize("policy", ["journal", "fdatasync", "fsync"])
def test_synced_after_the_directory_was_renamed(steps, fastwrite, tmp_path, kind, policy):
    with disk(kind, tmp_path / "disk", SIZE[kind]) as point:
        (point / "one").mkdir()
        (point / "one" / "file").write_bytes(b"-" * 8192)
        one = steps(point, sync=policy)
        one.open(9, "one/file", os.O_RDWR)
        one.open(8, "warm")
        for _ in range(4):
            one.pwrite(9, "M", 512, 0)
            one.sync(9)
        if policy == "journal":
            one.until_journal(8)
        for _ in range(2):
            one.pwrite(9, "M", 512, 0)
            one.sync(9)
        sync_file_system(point)
        assert one.do("rename", point / "one", point / "two") == 0
        one.pwrite(9, "N", 512, 0)
        one.sync(9)
        shut_down(point)
        one.kill()
        remount(point)
        recover(fastwrite, point, other_boot=True, tmp_path=tmp_path)
        (file,) = point.glob("*/file")
        assert file.read_bytes()[:512] == b"N" * 512


@pytest.mark.parametrize("what", ["file", "directory", "by another member"])
def test_relaxed_sync_before_a_rename(steps, fastwrite, tmp_path, what):
    """Written under another name, synced, put in place; something else makes the new name durable."""
    with disk("ext4", tmp_path / "disk") as point:
        (point / "new").mkdir()
        sync_file_system(point)
        one = steps(point, sync="relaxed", relaxed_ms=5000)
        one.open(7, "warm")
        one.write(7, "w")
        one.write(7, "w")
        writer = one.member(1) if what == "by another member" else one
        pids = {one.process.pid, writer.do("pid")}
        writer.open(9, "new/file")
        for _ in range(4):
            writer.write(9, "N")
        writer.sync(9)
        old, new = ("new", "place") if what == "directory" else ("new/file", "place")
        assert one.do("rename", point / old, point / new) == 0
        with (point / "other").open("wb") as other:
            other.write(b"x")
            other.flush()
            os.fsync(other.fileno())
        shut_down(point)
        for pid in pids:
            os.kill(pid, signal.SIGKILL)
        one.kill()
        remount(point)
        recover_raw(fastwrite, point, other_boot=True, tmp_path=tmp_path)
        assert (point / ("place/file" if what == "directory" else "place")).read_bytes() == b"N" * 2048


@pytest.mark.parametrize("killed", ["program", "member"])
def test_recovery_makes_the_sync_that_relaxed_has_promised(steps, fastwrite, tmp_path, killed):
    """Nothing is staged when the process is killed.  What a member leaves, the others look after."""
    with disk("ext4", tmp_path / "disk") as point:
        one = steps(point, sync="relaxed", relaxed_ms=60000, adapt="off")
        one.open(7, "warm")
        one.write(7, "w")
        one.write(7, "w")
        writer = one.member(1) if killed == "member" else one
        writer.open(9, "log")
        sync_file_system(point)
        for _ in range(4):
            writer.write(9, "N")
        writer.sync(9)
        assert (point / "log").stat().st_size == 2048
        if killed == "member":
            writer.slay()
        else:
            one.kill()
            recover(fastwrite, point, other_boot=False, tmp_path=tmp_path)
        shut_down(point)
        if killed == "member":
            one.kill()
        remount(point)
        assert (point / "log").read_bytes() == b"N" * 2048


@pytest.mark.skipif(shutil.which("strace") is None, reason="strace is not installed")
def test_written_while_the_file_is_renamed(steps, fastwrite, tmp_path):
    """By another thread, between the kernel's rename and its return; then it is killed."""
    with disk("ext4", tmp_path / "disk") as point:
        (point / "a").mkdir()
        (point / "b").mkdir()
        one = steps(point, sync="fdatasync")
        one.open(9, "a/file")
        for _ in range(4):
            one.write(9, "a")
        command = ["strace", "-f", "-q", "-o", tmp_path / "trace", "-p", str(one.process.pid)]
        inject = ["-e", "trace=rename", "-e", "inject=rename:delay_exit=60000000"]
        tracer = subprocess.Popen([*command, *inject])
        status = Path(f"/proc/{one.process.pid}/status")
        wait_for(
            lambda: f"TracerPid:\t{tracer.pid}\n" in status.read_text() or tracer.poll() is not None, "strace"
        )
        assert one.do("rename_beside", point / "a/file", point / "b/file") == 0
        wait_for(lambda: (point / "b/file").exists() or tracer.poll() is not None, "the new name")
        assert tracer.poll() is None, "strace may not trace here"
        for _ in range(4):
            one.write(9, "A")
        one.process.kill()  # (first, or the rename would return when the tracer has gone)
        tracer.kill()
        one.kill()
        tracer.wait()
        recover(fastwrite, point, other_boot=False, tmp_path=tmp_path)
        assert (point / "b/file").read_bytes() == b"a" * 2048 + b"A" * 2048
