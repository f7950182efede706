# SPDX-License-Identifier: Apache-2.0
"""File systems of a leg's own: made, taken down, and found again when a run was killed."""

import json
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from lib.support import wait_for

from harness import ROOT
from harness.core import mounts, sampler
from harness.core.executor import RealExecutor
from harness.core.model import Claim, LabError, MountSpec, UnavailableError
from harness.core.samples import Samples
from harness.core.workdir import MARKER, WorkDir
from harness.report import judge
from harness.run import catalog

MIB = {"tiny": 16}


def spec(filesystem="ext4", **more):
    return MountSpec(filesystem, MIB, **more)


@pytest.fixture
def work(tmp_path):
    with WorkDir(tmp_path / "work") as made:
        yield made


@pytest.fixture
def make(work):
    """A function that makes a mount in a claimed work directory; skips where there can be none."""
    maker = mounts.Mounts(RealExecutor(), work.path, work.note_queues)

    def call(wanted, mib=16):
        reason = maker.why_not(wanted)
        if not reason:
            try:
                return maker, maker.make(wanted, mib)
            except UnavailableError as error:
                if not wanted.remount and not wanted.queue:
                    reason = str(error)
                else:
                    raise
        pytest.skip(reason)

    return call


def loops_below(path):
    return [
        p.name
        for p in Path("/sys/block").glob("loop*")
        if (mounts.backing_file(p.name) or "").startswith(str(path))
    ]


def test_a_mount_is_fresh_and_leaves_nothing(work, make):
    _, first = make(spec())
    (first.data / "data0").write_bytes(b"x" * 5000)
    assert first.told["options"].startswith("rw") and "has_journal" in first.told["features"]
    assert loops_below(work.path) == [first.loop] and first.refused == 0
    work.unmount()
    assert not loops_below(work.path) and not mounts.mounted_below(work.path)
    _, second = make(spec(mkfs=("-O", "^has_journal"), options="noatime"))
    assert not list(second.data.iterdir()) and "has_journal" not in second.told["features"]
    assert "noatime" in second.told["options"]
    assert sampler.journal_transactions(second.loop) is None
    work.release()
    assert not loops_below(work.path) and not work.path.exists()


def test_a_directory_behind_a_symbolic_link_has_mounts(tmp_path):
    (tmp_path / "disk").mkdir()
    (tmp_path / "link").symlink_to("disk")
    with WorkDir(tmp_path / "link" / "work") as work:
        assert work.path == tmp_path / "disk" / "work"
        maker = mounts.Mounts(RealExecutor(), work.path, work.note_queues)
        if reason := maker.why_not(spec()):
            pytest.skip(reason)
        made = maker.make(spec(), 16)
        assert loops_below(tmp_path) == [made.loop]
        work.unmount()
        assert not loops_below(tmp_path) and not mounts.mounted_below(tmp_path)


@pytest.mark.parametrize("wanted", [spec(options="frobnicate=1"), spec(remount="frobnicate=1")])
def test_a_mount_that_cannot_be_made_leaves_no_loop_device(work, make, wanted):
    make(spec())  # or skips
    work.unmount()
    maker = mounts.Mounts(RealExecutor(), work.path, work.note_queues)
    with pytest.raises(UnavailableError):
        maker.make(wanted, 16)
    assert not loops_below(work.path) and not mounts.mounted_below(work.path)


def test_somebody_looks_at_the_loop_device(work, make):
    """The kernel keeps it until then; another run must not meet its image."""
    _, first = make(spec())
    other = os.open(f"/dev/{first.loop}", os.O_RDONLY)
    closer = threading.Timer(0.3, os.close, [other])
    closer.start()
    work.unmount()
    assert not loops_below(work.path)
    closer.join()


def test_cooling_keeps_the_files_and_drops_them_from_memory(make):
    maker, mounted = make(spec())
    (mounted.data / "data0").write_bytes(b"kept" * 1000)
    maker.cool(mounted)
    assert (mounted.data / "data0").read_bytes() == b"kept" * 1000


def test_commits_of_the_journal_are_counted(make):
    _, mounted = make(spec())
    before = sampler.journal_transactions(mounted.loop)
    for number in range(5):
        with open(mounted.data / f"data{number}", "wb", buffering=0) as file:
            file.write(b"x")
            os.fsync(file.fileno())
    assert sampler.journal_transactions(mounted.loop) - before >= 5
    assert sampler.journal_averages(mounted.loop)["blocks"] >= 1


def test_queue_settings_are_set_back(work, make):
    _, mounted = make(spec(queue={"scheduler": "mq-deadline", "nr_requests": "256", "read_ahead_kb": "512"}))
    queue = Path("/sys/block") / mounted.loop / "queue"
    assert "[mq-deadline]" in (queue / "scheduler").read_text()
    assert (queue / "nr_requests").read_text().strip() == "256"
    assert mounted.told["queue"]["read_ahead_kb"]["is"] == "512"
    was = mounted.told["queue"]["scheduler"]["was"]
    assert json.loads((work.path / MARKER).read_text())["queues"][mounted.loop]["scheduler"] == was
    work.unmount()
    assert f"[{was}]" in (queue / "scheduler").read_text() or was == "none"
    assert json.loads((work.path / MARKER).read_text())["queues"] == {}


def test_a_refused_setting_skips_the_leg_or_is_the_result(work, make):
    wanted = {"scheduler": "none", "nr_requests": "1000000000"}
    with pytest.raises(UnavailableError, match="nr_requests=1000000000 on a loop device"):
        make(spec(queue=wanted))
    work.unmount()
    _, mounted = make(spec(queue=wanted, remount="data=writeback", may_refuse=True))
    assert mounted.refused == 2 and mounted.told["remount"]["refused"]
    assert mounted.told["queue"]["nr_requests"]["is"] == mounted.told["queue"]["nr_requests"]["was"]


def test_mount_options_that_the_kernel_does_not_know_are_no_failure_of_the_leg(work, make):
    make(spec())
    work.unmount()
    maker = mounts.Mounts(RealExecutor(), work.path, work.note_queues)
    with pytest.raises(UnavailableError, match="mount:"):
        maker.make(spec(options="frobnicate=1"), 16)


def test_what_does_not_fit_is_said_before_anything_is_written(work):
    with pytest.raises(LabError, match="GB free"):
        mounts.check_free(work.path, 1 << 62)


def test_only_mounts_below_the_directory_are_ours():
    text = (
        "36 35 98:0 / /disk rw - ext4 /dev/a rw\n37 35 7:0 / /disk/lab/mount rw - ext4 /dev/loop0 rw\n"
        "38 35 7:1 / /disk/lab2/mount rw - ext4 /dev/loop1 rw\n39 35 7:2 / /disk/lab/a\\040b rw - xfs /dev/loop2 rw\n"
    )
    assert mounts.mounted_below(Path("/disk/lab"), text) == [Path("/disk/lab/a b"), Path("/disk/lab/mount")]
    assert mounts.mounted_below(Path("/disk/lab2/mount"), text) == []


def test_without_root_there_is_a_reason(monkeypatch, tmp_path):
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    assert "root" in mounts.Mounts(RealExecutor(), tmp_path, print).why_not(spec())


MOUNT_TOML = """
suite = "x"
[[experiment]]
id = "A"
title = "a"
tool = "passes"
published = { text = "none" }
size.tiny = { records = 8 }
"""


@pytest.mark.parametrize(
    ("mount", "said"),
    [
        ('{ filesystem = "vfat", mib = { tiny = 16 } }', "filesystem 'vfat' is none of"),
        ('{ filesystem = "ext4", mib = { small = 16 } }', "'tiny' (int) is missing"),
        ('{ filesystem = "ext4", mib = { tiny = 16 }, queue = { depth = 1 } }', "unknown key 'depth'"),
        ('{ filesystem = "ext4", mib = { tiny = 16 }, device = "/dev/sda" }', "unknown key 'device'"),
    ],
)
def test_a_wrong_mount_is_named(tmp_path, mount, said):
    (tmp_path / "x.toml").write_text(MOUNT_TOML + f"mount = {mount}\n")
    with pytest.raises(LabError, match="mount") as error:
        catalog.load(tmp_path)
    assert said in str(error.value)


def test_a_claim_says_when_the_source_does_not_carry_it(experiments):
    claim = Claim("slower", "figure", field="f", published=1.004, low=1.05)
    sample = {
        "experiment": "E1",
        "kind": "measure",
        "variant": "native",
        "status": "ok",
        "leg": "l",
        "f": 1.5,
    }
    found = judge.judge(experiments["E1"], claim, Samples([sample] * 3), "tiny", 2)
    assert found.verdict == judge.REPRODUCES and "own figures do not carry" in found.reason
    claim = Claim("slower", "figure", field="f", published=1.4, low=1.05)
    assert "own" not in judge.judge(experiments["E1"], claim, Samples([sample] * 3), "tiny", 2).reason


def harness(*args):
    argv = [sys.executable, "-m", "harness", "run", *map(str, args), "--no-warm", "--kinds", "measure"]
    return subprocess.Popen(argv, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)


def test_a_killed_run_is_cleaned_up_at_the_next_start(tmp_path, make):
    make(spec())  # or skips
    work = tmp_path / "other"
    long = ["001-range-fsync-j", "--no-shim", "--scale", "tiny", "--pairs", "500", "--dir", work]
    process = harness(*long, "--out", tmp_path / "one")
    wait_for(lambda: mounts.mounted_below(work) or process.poll() is not None, "a mount")
    assert process.poll() is None, process.communicate()
    process.kill()
    process.communicate()
    # what the kill has met may be between a mount and the next one
    assert (work / MARKER).exists() and (work / "images").is_dir()
    ids = ["001-range-fsync-j", "001-range-fsync-nj"]
    again = harness(
        *ids, "--no-shim", "--scale", "tiny", "--pairs", "1", "--dir", work, "--out", tmp_path / "two"
    )
    text, _ = again.communicate(timeout=60)
    assert again.returncode == 0, text
    assert not work.exists() and not loops_below(work) and not mounts.mounted_below(work)
    found = {s["experiment"]: s for s in map(json.loads, (tmp_path / "two" / "samples.jsonl").open())}
    with_journal, without = found["001-range-fsync-j"], found["001-range-fsync-nj"]
    assert with_journal["outcome"]["syncs"] == 2 * (256 + 1)
    assert with_journal["journal_transactions"] >= 256 and without["journal_transactions"] is None
    assert with_journal["journal"]["blocks"] >= 1 and not without["journal"]
    assert with_journal["outcome"]["seconds_first"] > 0 and with_journal["outcome"]["seconds_second"] > 0


def test_an_interrupt_leaves_no_mount(tmp_path, make):
    make(spec())  # or skips
    work = tmp_path / "other"
    process = harness("001-range-fsync-j", "--no-shim", "--scale", "tiny", "--pairs", "500", "--dir", work,
                      "--out", tmp_path / "one")  # fmt: skip
    wait_for(lambda: mounts.mounted_below(work) or process.poll() is not None, "a mount")
    assert process.poll() is None, process.communicate()
    process.send_signal(signal.SIGINT)
    text, _ = process.communicate(timeout=60)
    assert process.returncode == 130, text
    assert not work.exists() and not loops_below(work) and not mounts.mounted_below(work)
