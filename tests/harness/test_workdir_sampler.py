# SPDX-License-Identifier: Apache-2.0
import json
import os
import shutil
import subprocess
from pathlib import Path

import lab_fakes as fakes
import pytest

from harness.core import cgroup, environment, mounts, sampler
from harness.core.cgroup import Cgroups, leftover
from harness.core.model import LabError
from harness.core.progress import ProgressReader
from harness.core.workdir import MARKER, MARKER_NEW, WorkDir, process_start
from harness.doctor.system import System


def test_what_the_kernel_says_may_be_no_text(tmp_path):
    """Names of directories, in the maps of a process and in the mounts, and of programs."""
    (tmp_path / "maps").write_bytes(b"/o\xffu/lib.so\n")
    told = os.fsdecode(b"/o\xffu/lib.so")
    assert sampler.read_text(str(tmp_path / "maps")) == f"{told}\n"
    assert System(tmp_path).read("/maps") == told
    (tmp_path / "loop0" / "loop").mkdir(parents=True)
    (tmp_path / "maps").rename(tmp_path / "loop0" / "loop" / "backing_file")
    assert mounts.backing_file("loop0", tmp_path) == told
    program = tmp_path / os.fsdecode(b"o\xffu")
    program.symlink_to(shutil.which("sleep"))
    with subprocess.Popen([program, "600"]) as process:
        assert process_start(process.pid).isdigit()
        process.kill()


def test_a_new_directory_is_made_and_removed(tmp_path):
    with WorkDir(tmp_path / "a" / "w") as work:
        assert work.data.is_dir() and work.control.is_dir() and (work.path / MARKER).exists()
        (work.data / "data0").write_text("x")
    assert not (tmp_path / "a" / "w").exists()


def test_an_empty_directory_is_used_and_kept(tmp_path):
    with WorkDir(tmp_path):
        pass
    assert tmp_path.is_dir() and not any(tmp_path.iterdir())


def test_a_directory_with_anything_in_it_is_refused(tmp_path):
    (tmp_path / "letter").write_text("dear")
    with pytest.raises(LabError, match="not empty"):
        WorkDir(tmp_path).claim()
    assert (tmp_path / "letter").read_text() == "dear"


def test_devices_and_files_are_refused(tmp_path):
    with pytest.raises(LabError, match="a device"):
        WorkDir(Path(os.devnull)).claim()
    (tmp_path / "f").write_text("")
    with pytest.raises(LabError, match="not a directory"):
        WorkDir(tmp_path / "f").claim()


def test_what_a_dead_run_left_is_cleaned(tmp_path):
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "data0").write_text("left")
    (tmp_path / MARKER).write_text(json.dumps({"pid": 2**22 + 1, "start": "1", "created": True}))
    work = WorkDir(tmp_path)
    assert work.claim() == ["data"]
    assert not any(work.data.iterdir())
    work.release()
    assert not tmp_path.exists()


def test_a_marker_does_not_make_strangers_ours(tmp_path):
    (tmp_path / MARKER).write_text("{}")
    (tmp_path / "letter").write_text("dear")
    with pytest.raises(LabError, match="'letter', which is not ours"):
        WorkDir(tmp_path).claim()
    assert (tmp_path / "letter").exists()


def test_a_directory_in_use_is_refused(tmp_path):
    with subprocess.Popen(["sleep", "30"]) as other:
        state = {"pid": other.pid, "start": process_start(other.pid)}
        (tmp_path / MARKER).write_text(json.dumps(state))
        with pytest.raises(LabError, match=f"in use by process {other.pid}"):
            WorkDir(tmp_path).claim()
        other.kill()


def test_a_full_disk_is_seen_before(tmp_path):
    with WorkDir(tmp_path / "w") as work:
        work.check_space(1 << 20, 10)
        with pytest.raises(LabError, match="GB free"):
            work.check_space(1 << 60, 10)
        if os.statvfs(tmp_path).f_files:
            with pytest.raises(LabError, match="free inodes"):
                work.check_space(1, 1 << 60)


def test_proc_files_are_parsed():
    stats = " 254       0 vda 1 2 3 4 5 6 7 8 9 10 11\n 254 1 vda1 1 0 30 4 5 6 70 8 9 10 11\n"
    assert sampler.parse_diskstats(stats, "254:1") == (30, 70)
    assert sampler.parse_diskstats(stats, "8:0") is None
    meminfo = fakes.PROC["/proc/meminfo"]
    assert sampler.parse_meminfo(meminfo, "Dirty", "Writeback", "Nonsense") == (40, 0, None)
    assert sampler.parse_status(fakes.PROC["/proc/1/status"]) == (5, 3, 1)
    assert sampler.parse_jbd2_info("1234 transactions (1200 requested), each up to 8192 blocks\n") == 1234
    assert sampler.parse_jbd2_info("garbage") is None


def test_sampler_collects_columns_and_survives_unreadable_files():
    def read(path):
        if path == "/proc/diskstats":
            raise PermissionError
        return fakes.PROC[path]

    clock = fakes.FakeClock()
    sources = sampler.Sources("254:0", lambda: 7, lambda: None, lambda: 9)
    collect = sampler.Sampler(sources, clock.monotonic, read)
    collect.tick(1)
    collect.tick(None)
    assert collect.series["app_bytes"] == [7, 7] and collect.series["written_sectors"] == [None, None]
    assert collect.series["rss_anon_kb"] == [5, None]
    assert collect.peak("cgroup_bytes") == 9 and collect.peak("arena_bytes") is None


def test_window_leaves_out_what_is_outside_or_missing():
    series = {"t": [0, 1, 2, 3], "x": [5, None, 7, 8]}
    assert sampler.window(series, "x", 0, 2) == ([0, 2], [5, 7])


def test_journal_is_found_by_device(tmp_path):
    (tmp_path / "vda-8").mkdir()
    (tmp_path / "vda-8" / "info").write_text("17 transactions (1 requested)\n")
    assert sampler.journal_transactions("vda", tmp_path) == 17
    assert sampler.journal_transactions("sda", tmp_path) is None


def test_progress_is_read_while_it_grows(tmp_path):
    reader = ProgressReader(tmp_path / "p")
    assert reader.read() is None
    (tmp_path / "p").write_bytes(bytes(100))
    assert reader.read() is None
    (tmp_path / "p").unlink()
    fakes.write_progress(tmp_path / "p", 3, 10, 100, 7)
    assert reader.read().acked_bytes == 700 and reader.read().total_bytes == 3000
    fakes.write_progress(tmp_path / "p", 3, 10, 100, 30)
    assert reader.read().acked_records == 30
    reader.close()


def test_no_cgroup_is_a_reason_not_an_error(tmp_path):
    (tmp_path / "self").write_text("5:cpu:/x\n")
    found = Cgroups(tmp_path, tmp_path / "self")
    assert found.parent is None and "no memory controller" in found.why_not and found.path_for("x") is None


def test_only_our_groups_are_ever_removed(tmp_path):
    (tmp_path / "system.slice").mkdir()
    (tmp_path / "system.slice" / "cgroup.procs").write_text("1\n")
    assert leftover(str(tmp_path / "system.slice")) is None and leftover("") is None


def test_a_group_that_cannot_be_removed_stays_in_the_marker(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(cgroup, "REMOVE_TRIES", 2)
    group, other = tmp_path / "fastwrite-lab-1", tmp_path / "fastwrite-lab-2"
    marker = tmp_path / "w" / MARKER

    def noted():
        return json.loads(marker.read_text())["cgroups"]

    with WorkDir(tmp_path / "w") as work:
        work.note_cgroups(group)
        group.mkdir()
        (group / "cgroup.procs").write_text("")  # so that it is no empty directory
        assert not cgroup.Cgroup(group, 2).remove()
        work.note_cgroups()
        assert noted() == [str(group)]
        work.note_cgroups(other)
        assert noted() == [str(group), str(other)]
    assert noted() == [str(group)]
    assert f"{group}: the control group cannot be removed" in capsys.readouterr().err
    with WorkDir(tmp_path / "w"):
        assert noted() == [str(group)]
        (group / "cgroup.procs").unlink()
        group.rmdir()
    assert not (tmp_path / "w").exists()


def test_a_real_group_limits_and_goes_away():
    groups = Cgroups()
    if groups.parent is None:
        pytest.skip(f"no control groups here: {groups.why_not}")
    group = groups.create(groups.path_for(f"test-{os.getpid()}"))
    try:
        group.limit(64 << 20)
        assert group.oom_kills() == 0 and group.usage_bytes() is not None
    finally:
        group.remove()
    assert not group.path.exists()


def test_the_mount_is_the_longest_and_last(tmp_path):
    text = (
        "1 0 254:0 / / rw,relatime - ext4 /dev/root rw\n"
        f"2 1 0:30 / {tmp_path.parent} rw,nosuid - tmpfs none rw,size=1k\n"
        f"3 1 0:31 / {tmp_path.parent} rw - xfs /dev/x rw,noquota\n"
    )
    found = environment.mount_of(tmp_path, text)
    assert found.filesystem == "xfs" and found.options == "rw,noquota"


def test_environment_has_all_that_must_agree(tmp_path):
    found = environment.gather(tmp_path)
    assert set(environment.IDENTITY) <= set(found)
    assert environment.differences(found, found) == []
    json.dumps(found)


def test_a_marker_that_was_being_written_is_no_stranger(tmp_path):
    (tmp_path / "w").mkdir()
    (tmp_path / "w" / MARKER_NEW).write_text('{"pid": ')
    with WorkDir(tmp_path / "w") as work:
        (work.path / MARKER_NEW).write_text("{")
        with WorkDir(tmp_path / "w"):  # the same process: as a start after a kill
            assert work.data.is_dir()
    assert not list((tmp_path / "w").iterdir())


def test_an_interrupt_while_the_directory_is_taken_gives_it_back(tmp_path, monkeypatch):
    def interrupted(self):
        raise KeyboardInterrupt

    monkeypatch.setattr(WorkDir, "fresh", interrupted)
    with pytest.raises(KeyboardInterrupt), WorkDir(tmp_path / "w"):
        pass
    assert not (tmp_path / "w").exists()
    (tmp_path / "theirs").mkdir()
    (tmp_path / "theirs" / "letter").write_text("dear")
    monkeypatch.setattr("harness.core.workdir._refuse_wrong_kind", interrupted)
    with pytest.raises(KeyboardInterrupt), WorkDir(tmp_path / "theirs"):
        pass
    assert (tmp_path / "theirs" / "letter").exists()
