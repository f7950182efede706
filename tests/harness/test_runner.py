# SPDX-License-Identifier: Apache-2.0
"""Legs with a fake clock and a fake executor: what is recorded, what is refused a figure, what is skipped."""

from dataclasses import replace

import lab_fakes as fakes
import pytest

from harness.core.model import KILL, MEASURE, MEMORY
from harness.core.shim import Shim
from harness.core.store import RunStore
from harness.run import plan
from harness.run.execution import TICK_SECONDS, Execution
from harness.run.runner import Runner
from harness.tools import TOOLS


class Told:
    def __init__(self):
        self.started, self.ticks, self.ended = [], [], []

    def leg_started(self, leg, number, total_bytes):
        self.started.append((leg.id, number, total_bytes))

    def leg_ticked(self, done_bytes):
        self.ticks.append(done_bytes)

    def leg_ended(self, sample):
        self.ended.append(sample)


def run(
    tmp_path, experiments, ids=("E1",), kinds=(MEASURE,), variants=("native",), pairs=1, store=None, **bench
):
    rows = [experiments[i] for i in ids]
    made = plan.make(
        rows, suite="t", scale="tiny", seed=3, pairs=pairs, kills=1, memory_limit_bytes=64 << 20,
        variants=variants, kinds=kinds,
    )  # fmt: skip
    stood = fakes.fake_bench(tmp_path, **bench)
    store = store or RunStore.create(tmp_path / "out", fakes.settings())
    told = Told()
    Runner(stood, made, experiments, store, told).run()
    return store.samples, stood, told


def test_a_measured_leg_is_recorded_with_its_series(tmp_path, experiments):
    samples, stood, told = run(tmp_path, experiments)
    (sample,) = samples
    assert sample["leg"] == "E1/measure/1/native" and sample["status"] == "ok"
    total = 4 * 512 * 4096
    assert sample["bytes"] == total
    assert sample["rate_mb_s"] == pytest.approx(total / sample["seconds_with_sync"] / 1e6, rel=1e-3)
    assert sample["leg_seconds"] >= sample["seconds_with_sync"]
    assert sample["series"]["app_bytes"][-1] == total and sample["series"]["t"][0] == 0
    assert sample["memory"]["rss_anon_growth_kb"] == 100
    assert told.started == [("E1/measure/1/native", 1, total)] and max(told.ticks) == total
    assert stood.clock.time > 1000 + 5 * TICK_SECONDS["tiny"]


def test_the_directory_is_empty_after_every_leg(tmp_path, experiments):
    _, stood, _ = run(tmp_path, experiments, pairs=2)
    assert not any(stood.work.data.iterdir()) and not any(stood.work.control.iterdir())


def test_no_figure_for_files_that_do_not_verify(tmp_path, experiments):
    bad = {**fakes.GOOD, "ok": False, "corrupt_bytes": 4096, "first_problem": "data3, offset 5: differs"}
    (sample,) = run(tmp_path, experiments, verify=bad)[0]
    assert sample["status"] == "failed" and "data3, offset 5" in sample["reason"]
    assert "rate_mb_s" not in sample and "seconds" not in sample


def test_the_published_e4_is_allowed_its_own_defect_and_nothing_else(tmp_path, experiments):
    known = 4 * 16384
    defect = {
        **fakes.GOOD,
        "ok": False,
        "lost_bytes": known,
        "in_batch_bytes": known,
        "first_problem": "missing",
    }
    (sample,) = run(tmp_path / "a", experiments, ids=("E4",), verify=defect)[0]
    assert sample["status"] == "ok" and sample["verification"]["lost_bytes"] == known
    for change in ({"in_batch_bytes": 0}, {"lost_bytes": known + 1}, {"corrupt_bytes": 1}):
        (sample,) = run(tmp_path / str(change), experiments, ids=("E4",), verify={**defect, **change})[0]
        assert sample["status"] == "failed"


def test_a_program_that_fails_is_a_failed_leg_and_the_run_goes_on(tmp_path, experiments):
    samples, _, told = run(tmp_path, experiments, pairs=2, returncode=1, stderr="lab-writer: no space")
    assert [s["status"] for s in samples] == ["failed", "failed"] and len(told.ended) == 2
    assert samples[0]["reason"] == "exit 1: lab-writer: no space"


def test_legs_without_a_shim_or_a_group_are_skipped_with_the_reason(tmp_path, experiments):
    samples, _, _ = run(
        tmp_path, experiments, kinds=(MEASURE, MEMORY), variants=("native", "shim"), shim="run make"
    )
    by_leg = {s["leg"]: s for s in samples}
    assert by_leg["E1/measure/1/shim"]["status"] == "skipped"
    assert "run make" in by_leg["E1/measure/1/shim"]["reason"]
    assert "no memory limit possible here" in by_leg["E1/memory/1/native"]["reason"]
    assert by_leg["E1/measure/1/native"]["status"] == "ok"


def test_a_resumed_run_does_only_what_is_missing(tmp_path, experiments):
    samples, _, _ = run(tmp_path / "a", experiments, pairs=3)
    store = RunStore.create(tmp_path / "b", fakes.settings())
    for sample in samples[:2]:
        store.append(sample)
    samples, stood, told = run(tmp_path / "c", experiments, pairs=3, store=store)
    assert [leg for leg, _, _ in told.started] == ["E1/measure/3/native"] and len(samples) == 3
    assert sum("lab-writer" in c.argv[0] for c in stood.executor.commands) == 1


def test_a_kill_leg_counts_what_was_acknowledged(tmp_path, experiments):
    (sample,) = run(tmp_path, experiments, kinds=(KILL,), ticks=50)[0]
    assert sample["status"] == "ok" and "rate_mb_s" not in sample
    total = 4 * 4096 * 4096
    share = sample["kill"]["at_share"]
    assert 0.05 <= share <= 0.95
    assert share * total <= sample["kill"]["acked_bytes"] <= (share + 0.03) * total


def test_lost_acknowledged_bytes_fail_the_leg_beyond_what_the_method_may_lose(tmp_path, experiments):
    lost = {**fakes.GOOD, "ok": False, "lost_bytes": 4 * 16384, "first_problem": "record 9 is missing"}
    (sample,) = run(tmp_path / "a", experiments, kinds=(KILL,), verify=lost)[0]
    assert sample["status"] == "failed" and "65536 acknowledged bytes lost, 0 allowed" in sample["reason"]
    (sample,) = run(tmp_path / "b", experiments, ids=("D16",), kinds=(KILL,), verify=lost)[0]
    assert sample["status"] == "ok" and sample["kill"]["lost_bytes"] == 4 * 16384


def test_under_the_shim_the_environment_is_set_and_recovery_runs_before_the_check(tmp_path, experiments):
    shim = Shim(tmp_path / "lib.so", tmp_path / "fastwrite")
    samples, stood, _ = run(tmp_path, experiments, kinds=(KILL,), variants=("shim",), shim=shim)
    assert samples[0]["status"] == "ok", samples
    writer, recover, verify = stood.executor.commands
    assert writer.env["LD_PRELOAD"].endswith("lib.so") and writer.env["FASTWRITE_MEM"] == "16M"
    assert writer.env["FASTWRITE_PATHS"] == f"{stood.place.data}/data*"
    assert recover.argv[1] == "recover" and "--acked" in verify.argv
    assert not recover.env and not verify.env


def test_a_shim_leg_without_statistics_is_failed(tmp_path, experiments):
    shim = Shim(tmp_path / "lib.so", tmp_path / "fastwrite")
    samples, _, _ = run(tmp_path / "a", experiments, variants=("native", "shim"), shim=shim, statistics="")
    found = {s["variant"]: s for s in samples}
    assert found["native"]["status"] == "ok" and found["shim"]["status"] == "failed"
    assert "left no statistics" in found["shim"]["reason"] and "rate_mb_s" not in found["shim"]
    (sample,) = run(tmp_path / "b", experiments, variants=("shim",), shim=shim)[0]
    assert sample["status"] == "ok" and sample["shim_counters"]["staged_writes"] == 0


def test_a_kill_leg_whose_program_had_not_loaded_the_library_is_failed(tmp_path, experiments):
    shim = Shim(tmp_path / "other.so", tmp_path / "fastwrite")
    (sample,) = run(tmp_path, experiments, kinds=(KILL,), variants=("shim",), shim=shim)[0]
    assert sample["status"] == "failed" and "had not loaded it" in sample["reason"]
    assert "kill" not in sample


def test_legs_that_the_library_does_not_count_need_no_statistics():
    assert not TOOLS["read"].counted({}) and not TOOLS["files"].counted({}) and TOOLS["writer"].counted({})
    assert not TOOLS["fio"].counted({"ioengine": "io_uring"}) and TOOLS["fio"].counted({"ioengine": "libaio"})


def test_staging_that_was_never_seen_is_not_counted_as_nothing(tmp_path, experiments):
    shim = Shim(tmp_path / "lib.so", tmp_path / "fastwrite")
    samples, _, _ = run(tmp_path, experiments, variants=("native", "shim"), shim=shim)
    memory = {s["variant"]: s["memory"] for s in samples}
    assert memory["native"]["footprint_mb"] == pytest.approx(0.1024)
    assert "footprint_mb" not in memory["shim"]


def test_native_legs_have_no_trace_of_the_shim(tmp_path, experiments):
    shim = Shim(tmp_path / "lib.so", tmp_path / "fastwrite")
    _, stood, _ = run(tmp_path, experiments, shim=shim)
    assert all(not c.env for c in stood.executor.commands)


def test_drain_waits_for_write_back(tmp_path):
    readings = iter([90_000, 60_000, 200])

    def read(_):
        return f"Dirty: {next(readings)} kB\nWriteback: 0 kB\n"

    execution = Execution.__new__(Execution)
    execution._bench = replace(fakes.fake_bench(tmp_path), read=read)
    assert execution._drain(100) == pytest.approx(0.04)
