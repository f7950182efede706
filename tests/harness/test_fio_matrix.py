# SPDX-License-Identifier: Apache-2.0
"""fio as a tool, matrices of experiments, and the slow disk."""

import json
import os
import shutil
import signal
import subprocess
import sys
from dataclasses import replace

import lab_fakes as fakes
import pytest
from lib.support import wait_for
from rich.console import Console

import harness
from harness.core import environment
from harness.core.cgroup import IO, PREFIX, Cgroup, Cgroups
from harness.core.executor import Command, RealExecutor
from harness.core.model import Claim, LabError
from harness.core.samples import Samples
from harness.core.store import RunStore
from harness.report import charts, judge, summary
from harness.report import page as report
from harness.run import catalog, live, plan
from harness.run.runner import Runner
from harness.tools import TOOLS, Place, fio, fio_blocks

FIO = TOOLS["fio"]
BLOCK = 4096
PARAMS = {
    "rw": "randwrite", "bs": "4k", "ioengine": "psync", "direct": False, "iodepth": 1, "fallocate": "none",
    "stamped": True,
}  # fmt: skip
SIZE = {"jobs": 2, "total_mib": 2, "runtime_ms": 5000}
needs_fio = pytest.mark.skipif(shutil.which("fio") is None, reason="no fio here")


# blocks


def stamped(tag, offset):
    return (tag + offset.to_bytes(8, "little")) * (BLOCK // fio_blocks.UNIT_BYTES)


def test_blocks_are_told_apart(tmp_path):
    path = tmp_path / "f"
    last = stamped(fio_blocks.NEW, 3 * BLOCK)[:512]
    path.write_bytes(stamped(fio_blocks.NEW, 0) + stamped(fio_blocks.OLD, BLOCK) + bytes(BLOCK) + last)
    assert fio_blocks.count(path, BLOCK, True) == fio_blocks.Blocks(BLOCK + 512, BLOCK, BLOCK)


@pytest.mark.parametrize(
    ("block", "change"),
    [
        (1, lambda b: stamped(fio_blocks.NEW, 0)),  # of another place
        (1, lambda b: b[:-1] + b"x"),
        (1, lambda b: b[:2048] + bytes(2048)),
        (2500, lambda b: stamped(fio_blocks.OLD, 0)),  # in the third chunk that is read
    ],
)
def test_a_wrong_block_is_found_where_it_is(tmp_path, block, change):
    path = tmp_path / "f"
    blocks = [stamped(fio_blocks.NEW, i * BLOCK) for i in range(block + 2)]
    blocks[block] = change(blocks[block])
    path.write_bytes(b"".join(blocks))
    assert fio_blocks.count(path, BLOCK, True).wrong_at == block * BLOCK


def test_fixed_content_and_sizes(tmp_path):
    path = tmp_path / "f"
    path.write_bytes(fio_blocks.FIXED * 64 + bytes(BLOCK))
    assert fio_blocks.count(path, BLOCK, False) == fio_blocks.Blocks(BLOCK, 0, BLOCK)
    assert [fio_blocks.block_bytes(t) for t in ("4k", "1m", "512")] == [4096, 1 << 20, 512]


# the tool


def ran(tmp_path, params, size=SIZE):
    place = Place(tmp_path, tmp_path, tmp_path)
    executor = RealExecutor()
    FIO.prepare(executor, place, params, size)
    done = executor.run(Command(FIO.argv(place, params, size)))
    assert done.returncode == 0, done.stderr
    outcome = FIO.parse(done.stdout, params, place)
    return outcome, FIO.verify(executor, place, params, size, outcome)


@needs_fio
def test_the_final_sync_is_inside_the_time(tmp_path):
    size = {"jobs": 2, "total_mib": 64, "runtime_ms": 20000}
    outcome, found = ran(tmp_path, PARAMS, size)
    assert found.ok and 0 < outcome.seconds < outcome.seconds_with_sync
    raw = outcome.raw
    assert raw["iops_without_sync"] * outcome.seconds == pytest.approx(
        raw["iops"] * outcome.seconds_with_sync
    )
    place = Place(tmp_path, tmp_path, tmp_path)
    published = {**PARAMS, "end_sync": False}
    assert "--end_fsync=1" in FIO.argv(place, PARAMS, size)
    assert "--end_fsync=1" not in FIO.argv(place, published, size)
    reads = {**PARAMS, "rw": "randread"}
    assert not any("log" in option or "fsync" in option for option in FIO.argv(place, reads, size))


def test_the_last_write_of_all_jobs_ends_the_writing(tmp_path):
    (tmp_path / "fio-log_iops.1.log").write_text("0, 1, 1, 4096, 0\n967, 1, 1, 4096, 0\n")
    (tmp_path / "fio-log_iops.2.log").write_text("0, 1, 1, 4096, 0\n" * 100 + "1024, 1, 1, 4096, 0\n")
    (tmp_path / "fio-log_iops.3.log").write_text("")
    assert fio.written_ms(sorted(tmp_path.glob("*.log"))) == 1024 and fio.written_ms([]) is None
    place = Place(tmp_path, tmp_path, tmp_path)
    assert any("--write_iops_log" in option for option in FIO.argv(place, PARAMS, SIZE))
    assert not list(tmp_path.glob("*.log"))  # the logs of the leg before
    direct = FIO.argv(place, {**PARAMS, "direct": True}, SIZE)
    assert "--end_fsync=1" in direct and not any("log" in option for option in direct)
    kept = {"runtime_ms": 2048, "io_bytes": 4096, "iops": 100.0}
    found = fio.outcome(kept, 1024)
    assert (found.seconds, found.seconds_with_sync) == (1.024, 2.048) and found.raw[
        "iops_without_sync"
    ] == 200


@needs_fio
@pytest.mark.parametrize("overwrite", [False, True])
def test_what_fio_wrote_is_verified_to_the_block(tmp_path, overwrite):
    params = {**PARAMS, "overwrite": overwrite}
    outcome, found = ran(tmp_path, params)
    assert found.ok and found.verified_bytes == outcome.bytes == 2 << 20, found.problem
    assert FIO.total_bytes(params, SIZE) == (4 << 20 if overwrite else 2 << 20)
    assert outcome.raw["outstanding"] == 2 and outcome.raw["direction"] == "write"
    assert 0 < outcome.raw["lat_p50_us"] <= outcome.raw["lat_p99_us"] <= outcome.raw["lat_p9999_us"]

    victim = sorted(tmp_path.glob("data-fio.*"))[1]
    with open(victim, "r+b") as file:
        file.seek(5 * BLOCK)
        file.write(stamped(fio_blocks.OLD, 5 * BLOCK))
    found = FIO.verify(RealExecutor(), Place(tmp_path, tmp_path, tmp_path), params, SIZE, outcome)
    assert not found.ok and found.lost_bytes == BLOCK
    with open(victim, "r+b") as file:
        file.seek(5 * BLOCK)
        file.write(stamped(fio_blocks.NEW, 6 * BLOCK))
    found = FIO.verify(RealExecutor(), Place(tmp_path, tmp_path, tmp_path), params, SIZE, outcome)
    assert not found.ok and f"{victim.name}, offset {5 * BLOCK}" in found.problem


@needs_fio
def test_a_read_leg_stops_at_a_block_that_is_not_as_it_was_laid_out(tmp_path):
    params = {**PARAMS, "rw": "randread"}
    size = {**SIZE, "runtime_ms": 200}
    outcome, found = ran(tmp_path, params, size)
    assert found.ok and outcome.raw["direction"] == "read" and outcome.raw["iops"] > 0
    place = Place(tmp_path, tmp_path, tmp_path)
    with open(tmp_path / "data-fio.0.0", "r+b") as file:
        file.write(b"x")
    done = RealExecutor().run(Command(FIO.argv(place, params, size)))
    with pytest.raises(LabError, match="fio reports error"):
        FIO.parse(done.stdout, params)
    assert not FIO.verify(RealExecutor(), place, params, size, outcome).ok


# matrices

MATRIX = """
suite = "x"
[[matrix]]
name = "m"
id = "m-{jobs}-{cache}"
title = "{jobs} jobs, {cache}"
tool = "fio"
axes.jobs = [1, 4]
axes.cache = [{ label = "direct", direct = true }, { label = "buffered", direct = false }]
params = { rw = "write", bs = "4k" }
published = { text = "{jobs}" }
size.tiny = { mib_per_job = 1 }
[[matrix.cell]]
at = { jobs = 4, cache = "direct" }
published = { value = 7, unit = "MB/s" }
[[matrix.cell.claim]]
text = "t"
measure = "rate"
"""


def load(tmp_path, text):
    (tmp_path / "x.toml").write_text(text)
    return catalog.load(tmp_path)


def test_a_matrix_becomes_one_row_per_cell(tmp_path):
    rows = {e.id: e for e in load(tmp_path, MATRIX).experiments}
    assert list(rows) == ["m-1-direct", "m-1-buffered", "m-4-direct", "m-4-buffered"]
    special = rows["m-4-direct"]
    assert (
        special.params == {"rw": "write", "bs": "4k", "direct": True} and special.sizes["tiny"]["jobs"] == 4
    )
    assert special.published.value == 7 and special.published.text == "4" and len(special.claims) == 1
    assert special.matrix == "m" and special.cell == {"jobs": 4, "cache": "direct"}
    assert rows["m-4-buffered"].params["direct"] is False and not rows["m-4-buffered"].claims


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ('name = "m"', "", "'name' (str) is missing"),
        ("axes.jobs = [1, 4]", "axes.jobs = []", "'axes' must be"),
        ("direct = false", "sheep = false", "'sheep' of an axis"),
        ('label = "direct", ', "", "needs a 'label'"),
        ("at = { jobs = 4,", "at = { jobs = 5,", "no cell at"),
        ('title = "{jobs} jobs', 'title = "{goats} jobs', "'goats'"),
        ('"m-{jobs}-{cache}"', '"m-{jobs}"', "used twice"),
    ],
)  # fmt: skip
def test_a_mistake_in_a_matrix_is_named(tmp_path, old, new, said):
    assert old in MATRIX
    with pytest.raises(LabError) as error:
        load(tmp_path, MATRIX.replace(old, new))
    assert said in str(error.value)


def test_every_row_of_parts_002_and_004_is_there(experiments):
    for number, (engine, direct, rw, value) in enumerate(
        [
            ("sync", True, "write", 53), ("sync", True, "randwrite", 0.938), ("sync", False, "write", 210),
            ("sync", False, "randwrite", 115), ("libaio", True, "write", 91.2), ("libaio", True, "randwrite", 1),
            ("libaio", False, "write", 110), ("libaio", False, "randwrite", 82),
        ], 1,
    ):  # fmt: skip
        row = experiments[f"002-{number}"]
        assert (row.params["ioengine"], row.params["direct"], row.params["rw"]) == (engine, direct, rw)
        assert row.published.value == value and row.params["fallocate"] == "posix"
        assert row.shim_role == ("regression" if engine == "libaio" else "gain")
    assert sum(bool(e.throttle) for e in experiments.values() if e.suite == "002") == 8
    rows = [e for e in experiments.values() if e.suite == "004"]
    assert {e.params["ioengine"] for e in rows} == {"psync", "libaio", "io_uring"}
    assert all(
        e.shim_role == "regression" for e in rows if "psync" not in e.id or e.params["rw"] == "randread"
    )
    assert experiments["004-R-libaio-8x64"].sizes["small"]["jobs"] * 64 == 512


def test_the_best_cell_of_each_round_is_found(experiments):
    def cell(number, product, rate):
        return {
            **fakes.measured(f"m-{product}", "native", number, rate), "matrix": "m",
            "outcome": {"outstanding": product, "iops": rate},
        }  # fmt: skip

    recorded = [cell(1, 32, 100), cell(1, 512, 120), cell(2, 32, 130), cell(2, 512, 90), cell(3, 512, 1)]
    claim = Claim("peak", "at_best", among="m", field="outstanding", published=512)
    row = experiments["004-R-libaio-8x64"]
    found = judge.judge(row, claim, Samples(recorded), "small", 2)
    assert found.ours == 512 and found.legs == (
        "m-512/measure/1/native",
        "m-32/measure/2/native",
        "m-512/measure/3/native",
    )
    assert found.verdict == judge.NOT_COMPARABLE


def test_a_matrix_is_drawn_with_every_cell(experiments):
    rows = [e for e in experiments.values() if e.matrix == "random reads, libaio"]
    recorded = [
        {
            **fakes.measured(e.id, variant, number, 400), "matrix": e.matrix,
            "outcome": {"iops": 1234.0 * e.cell["iodepth"], "lat_p99_us": 77.0, "direction": "read"},
        }
        for e in rows for variant in ("native", "shim") for number in (1, 2)
    ]  # fmt: skip
    found = summary.summarize(rows, recorded, "small", 2)
    (drawing,) = charts.heat_maps(found.rows, Samples(recorded))
    assert experiments["004-R-libaio-8x64"].note in drawing.note
    assert drawing.title == "Random reads, libaio" and len(drawing.legs) == len(recorded)
    for text in ("native, IOPS", "shim, IOPS", "shim / native", "p99 native, µs", "1.23k", "158k", "iodepth"):
        assert f">{text}<" in drawing.svg
    assert drawing.svg.count(">1.23k<") == 4 and drawing.svg.count(">77<") == len(rows)
    assert "random reads, libaio".capitalize() in report.render(fakes.settings(), found, recorded)


# the slow disk


def test_limits_are_written_as_each_version_wants_them(tmp_path):
    limits = {"write_mb_s": 50, "write_iops": 1000}
    Cgroup(tmp_path, 1).throttle("8:0", limits)
    assert (tmp_path / "blkio.throttle.write_bps_device").read_text() == "8:0 50000000"
    assert (tmp_path / "blkio.throttle.write_iops_device").read_text() == "8:0 1000"
    Cgroup(tmp_path, 2).throttle("8:0", {"read_iops": 7})
    assert (tmp_path / "io.max").read_text() == "8:0 riops=7"
    with pytest.raises(LabError, match="is not accepted"):
        Cgroup(tmp_path / "nowhere", 2).throttle("8:0", {"read_iops": 7})


def test_the_whole_disk_of_a_partition_is_limited(tmp_path, monkeypatch):
    disk = tmp_path / "devices" / "sda"
    (disk / "sda1").mkdir(parents=True)
    (disk / "dev").write_text("8:0\n")
    (disk / "sda1" / "dev").write_text("8:1\n")
    (disk / "sda1" / "partition").write_text("1\n")
    (tmp_path / "dev/block").mkdir(parents=True)
    (tmp_path / "dev/block/8:1").symlink_to(disk / "sda1")
    (tmp_path / "dev/block/8:0").symlink_to(disk)
    for device in ("8:0", "8:1"):
        monkeypatch.setattr(environment, "block_device", lambda _, d=device: (d, "x"))
        assert environment.whole_disk(tmp_path, tmp_path) == "8:0"


class Groups(Cgroups):
    """A place for groups of a version, in a scratch directory."""

    def __init__(self, parent, version):
        parent.mkdir()
        self.parent, self.version, self.why_not = parent, version, ""


def slow_leg(tmp_path, experiments, **bench):
    row = replace(experiments["E1"], throttle={"write_iops": 5})
    made = plan.make([row], suite="t", scale="tiny", seed=1, pairs=1, kills=1, memory_limit_bytes=1 << 26,
                     variants=("native",), kinds=("measure",))  # fmt: skip
    stood = replace(fakes.fake_bench(tmp_path), **bench)
    store = RunStore.create(tmp_path / "out", fakes.settings())
    Runner(
        stood, made, {"E1": row}, store, live.Live(Console(quiet=True), stood.clock, made, {"E1": row})
    ).run()
    return store.samples[0], stood


@pytest.mark.parametrize(("version", "count"), [(1, 2), (2, 1)])
def test_a_slow_leg_is_in_one_group_or_in_two(tmp_path, experiments, monkeypatch, version, count):
    monkeypatch.setattr(Cgroup, "remove", lambda self: None)
    places = {"cgroups": Groups(tmp_path / "m", version), "throttles": Groups(tmp_path / "s", version)}
    sample, stood = slow_leg(tmp_path, experiments, **places)
    assert sample["status"] == "ok"
    assert sample["throttle"] == {"write_iops": 5, "disk": "254:0", "cgroup_version": version}
    writer = next(c for c in stood.executor.commands if "lab-writer" in c.argv[0])
    assert len(writer.cgroup_procs) == count and any(f"{tmp_path}/s/" in path for path in writer.cgroup_procs)
    (limit,) = [p for p in tmp_path.glob("s/*/*") if p.name in ("io.max", "blkio.throttle.write_iops_device")]
    assert limit.read_text() == ("254:0 5" if version == 1 else "254:0 wiops=5")


def test_without_groups_or_a_disk_a_slow_leg_is_skipped_with_the_reason(tmp_path, experiments):
    sample, _ = slow_leg(tmp_path, experiments)
    assert sample["status"] == "skipped" and "no slow disk possible here" in sample["reason"]
    (tmp_path / "b").mkdir()
    sample, _ = slow_leg(tmp_path / "b", experiments, throttles=Groups(tmp_path / "s", 1), disk=None)
    assert sample["status"] == "skipped" and "not on a disk" in sample["reason"]


def slow_groups():
    return [d for d, _, _ in os.walk("/sys/fs/cgroup") if PREFIX in d and d.endswith("-slow")]


def needs_slow_disk(tmp_path):
    found = Cgroups(controller=IO)
    if found.parent is None:
        pytest.skip(f"no slow disk possible here: {found.why_not}")
    if environment.whole_disk(tmp_path) is None:
        pytest.skip("no slow disk possible here: not on a disk")
    return found


@needs_fio
def test_direct_writes_in_a_throttled_group_are_slow(tmp_path):
    groups = needs_slow_disk(tmp_path)
    group = groups.create(groups.path_for(f"test-{os.getpid()}-slow"))
    try:
        group.throttle(environment.whole_disk(tmp_path), {"write_iops": 100})
        place = Place(tmp_path, tmp_path, tmp_path)
        params = {**PARAMS, "direct": True}
        size = {"jobs": 1, "total_mib": 8, "runtime_ms": 700}
        done = RealExecutor().run(Command(FIO.argv(place, params, size), {}, (group.procs,)))
        outcome = FIO.parse(done.stdout, params)
        assert outcome.raw["iops"] < 300
        assert FIO.verify(RealExecutor(), place, params, size, outcome).ok
    finally:
        group.remove()
    assert not group.path.exists()


@needs_fio
def test_a_slow_disk_goes_with_its_run_also_after_kill_9(tmp_path):
    needs_slow_disk(tmp_path)
    root = harness.ROOT
    work = tmp_path / "work"
    argv = [sys.executable, "-m", "harness", "run", "002-slow-sync-seq-direct", "--scale", "tiny", "--no-shim",
            "--no-warm", "--dir", str(work)]  # fmt: skip
    with subprocess.Popen(
        [*argv, "--pairs", "500", "--out", str(tmp_path / "a")], cwd=root, stdout=subprocess.DEVNULL
    ) as process:
        mine = f"{PREFIX}{process.pid}-slow"
        wait_for(
            lambda: any(mine in g for g in slow_groups()) or process.poll() is not None, "the slow group"
        )
        assert process.poll() is None
        process.send_signal(signal.SIGKILL)
    assert any(mine in g for g in slow_groups())
    done = subprocess.run([*argv, "--pairs", "1", "--out", str(tmp_path / "b")], cwd=root, capture_output=True,
                          text=True, timeout=300)  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    assert not any(mine in g for g in slow_groups()) and not work.exists()
    (sample,) = [json.loads(line) for line in (tmp_path / "b" / "samples.jsonl").read_text().splitlines()]
    assert sample["status"] == "ok" and 0 < sample["outcome"]["iops"] < 1300
