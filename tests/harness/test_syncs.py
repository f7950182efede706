# SPDX-License-Identifier: Apache-2.0
"""The benchmark of syncs: its plan, what it takes for wrong, its tables; and once for real, tiny."""

import json
import os
import struct
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from harness import ROOT, WORKLOADS
from harness.core import build, environment, mounts, rounds, shim
from harness.core.cell import LegError, Measured, Place, Programs, Timing
from harness.core.clock import RealClock
from harness.core.executor import Command, RealExecutor
from harness.core.model import FAILED, OK, SKIPPED, LabError
from harness.core.progress import HEADER_BYTES
from harness.core.workdir import WorkDir
from harness.report import targets as bench
from harness.sync import benchmark as syncs
from harness.sync import cells as sync_cells
from harness.sync import table as sync_table

SHORT = Timing(0.05, 0.1)
LINE = (
    "fastwrite: pid {} (a: b), rule env: {} writes staged, {} bytes; 3 flushes, 9 bytes, 0 by O_DIRECT; "
    "{} syncs asked, 1 done, {} by the journal; 4 drains; 1 files bypassed: mmap\n"
)


def sample(cell, variant, number, rate, p50=100.0, journal=None, **more):
    used = {"staged_writes": 1, "staged_bytes": 4096, "syncs": 10, "syncs_by_journal": journal}
    return {
        "cell": cell, "variant": variant, "round": number, "status": OK, "rate": rate, "p50_us": p50,
        "p90_us": 2 * p50, "mean_us": p50, "shim": used if journal is not None else None, **more,
    }  # fmt: skip


def record(*samples, cells=tuple(syncs.VARIANTS), **skipped):
    settings = {"cells": list(cells), "pairs": 3, "seconds": 3.0, "warmup": 1.0}
    return syncs.Record(settings, {"cpus": 2, "kernel": "6.1"}, skipped, list(samples))


# ---- plan ----


def test_every_round_runs_every_variant_once_and_groups_stay_together():
    legs = syncs.plan(syncs.Settings(pairs=2, seed=3))
    assert legs == syncs.plan(syncs.Settings(pairs=2, seed=3))
    assert legs != syncs.plan(syncs.Settings(pairs=2, seed=4))
    for number in (1, 2):
        found = [leg for leg in legs if leg.round == number]
        names = {(leg.cell, leg.variant.name) for leg in found}
        assert len(found) == len(names) == sum(len(v) for v in syncs.VARIANTS.values())
        order = list(dict.fromkeys(leg.cell for leg in found))
        assert set(order[:2]) == {"floor", "append-1"} and order[2:] == list(syncs.VARIANTS)[2:]


def test_cells_are_chosen_by_name_or_by_beginning():
    assert rounds.choose("", syncs.VARIANTS) == tuple(syncs.VARIANTS)
    assert rounds.choose("sqlite, floor", syncs.VARIANTS) == ("floor", "sqlite-delete", "sqlite-wal")
    with pytest.raises(LabError, match="'sql' is none of floor"):
        rounds.choose("sql", syncs.VARIANTS)


def test_every_variant_says_what_a_power_loss_may_lose():
    for variants in syncs.VARIANTS.values():
        for variant in variants:
            assert variant.loses
            assert not variant.by_journal or variant.loses == syncs.RECOVERED


# ---- legs ----


class FakeCell:
    """Writes the statistics that a program under the shim would have left."""

    unit, pattern = "writes/s", "data*"

    def __init__(self, statistics="", error=None, by_journal=True):
        self.statistics, self.error, self.by_journal, self.seen = statistics, error, by_journal, None

    def missing(self, work, shim):
        return None

    def run(self, place, timing):
        self.seen = place
        assert not any(place.stage.iterdir()) and not any(place.control.iterdir())
        (place.stage / "data0").write_text("left")
        if self.error:
            raise self.error
        if self.statistics:
            (place.control / "statistics").write_text(self.statistics)
        return Measured(30, 2.0, 1.0, 2.0, 1.5)


@pytest.fixture
def run_leg(tmp_path):
    def run(variant, cell, cell_name="append-1"):
        chosen = next(v for v in syncs.VARIANTS[cell_name] if v.name == variant)
        built = shim.Shim(tmp_path / "l.so", tmp_path / "c")
        with WorkDir(tmp_path / "work") as work:
            made = syncs.Bench(
                work, work.data, {cell_name: cell}, tmp_path, built, Path("/e.so"), sync=lambda: None
            )
            return rounds.run_leg(made, syncs.Leg(cell_name, chosen, 1), SHORT)

    return run


def test_a_native_leg_has_a_rate_and_a_bare_environment(run_leg):
    cell = FakeCell()
    found = run_leg("native", cell)
    assert (found["status"], found["rate"], found["shim"]) == (OK, 15.0, None)
    assert cell.seen.env == {}


def test_a_leg_under_the_shim_is_told_its_policy_and_its_files(run_leg):
    cell = FakeCell(LINE.format(1, 0, 0, 0, 0) + LINE.format(2, 7, 700, 9, 0))
    found = run_leg("fdatasync", cell)
    assert found["status"] == OK
    assert found["shim"] == {
        "staged_writes": 7, "staged_bytes": 700, "syncs": 9, "syncs_by_journal": 0,
    }  # fmt: skip
    env = cell.seen.env
    assert env["FASTWRITE_SYNC"] == "fdatasync" and env["FASTWRITE_PATHS"] == f"{cell.seen.stage}/data*"
    assert run_leg("libeatmydata", cell)["status"] == OK and cell.seen.env == {"LD_PRELOAD": "/e.so"}


def test_a_database_alone_promises_that_it_is(run_leg):
    cell = FakeCell(LINE.format(1, 7, 700, 9, 5))
    assert run_leg("journal, exclusive", cell, "sqlite-wal")["status"] == OK
    assert cell.seen.env["FASTWRITE_WRITERS"] == "exclusive"


@pytest.mark.parametrize(
    ("variant", "statistics", "reason"),
    [
        ("fdatasync", "", "the library was not there"),
        ("off", LINE.format(1, 0, 0, 9, 0), "staged nothing"),
        ("journal", LINE.format(1, 7, 700, 9, 0), "not one of 9 syncs was answered by the journal"),
    ],
)
def test_a_leg_that_was_not_what_it_is_called_fails(run_leg, variant, statistics, reason):
    found = run_leg(variant, FakeCell(statistics))
    assert found["status"] == FAILED and reason in found["reason"] and "rate" not in found


def test_where_the_journal_cannot_answer_it_need_not(run_leg):
    found = run_leg("journal", FakeCell(LINE.format(1, 7, 700, 9, 0), by_journal=False))
    assert found["status"] == OK and found["shim"]["syncs_by_journal"] == 0
    programs = Programs(RealExecutor(), RealClock())
    assert [sync_cells.Sqlite(programs, mode).by_journal for mode in ("delete", "wal")] == [False, True]


def test_what_does_not_verify_fails_and_what_cannot_be_run_is_skipped(run_leg):
    assert run_leg("native", FakeCell(error=LegError("9 rows")))["status"] == FAILED
    assert run_leg("native", FakeCell(error=LabError("no O_DIRECT")))["status"] == SKIPPED


# ---- tables ----


def test_the_table_pairs_rounds_and_names_what_is_lost():
    found = record(
        *(sample("floor", "device floor", n, 4000 * n) for n in (1, 2, 3)),
        *(sample("append-1", "native", n, 1000 * n) for n in (1, 2, 3)),
        *(sample("append-1", "journal", n, 3000 * n, 110.0, journal=9) for n in (1, 2, 3)),
        sample("append-1", "off", 1, 9000, journal=0) | {"status": FAILED, "reason": "x"},
    )
    table = {row.cells[0]: row.cells for row in sync_table.rows(found)}
    assert list(table) == ["device floor", "native", "journal", "off"]
    assert table["device floor"][2] == "4.00 [4.00, 4.00]"
    assert table["native"][1].startswith("2,000 [") and table["native"][2] == "–"
    assert table["journal"][2:] == (
        "3.00 [3.00, 3.00]", "110", "220", "110", "90%", "nothing synced, once recovery has run",
    )  # fmt: skip
    assert table["off"][1] == "FAILED" and table["off"][3] == "–"
    assert sync_table.Samples(found).failed
    (shown,) = sync_table.terminal(found)
    assert shown.row_count == 4


def test_targets_are_judged_of_the_cells_that_were_asked_for():
    samples = [sample("floor", "device floor", n, 5000, 100.0) for n in (1, 2, 3)]
    for n, noise in ((1, 1.0), (2, 1.01), (3, 0.99)):
        samples += [
            sample("append-1", "native", n, 1000),
            sample("append-1", "fdatasync", n, 500 * noise, journal=0),
            sample("append-1", "journal", n, 1900 * noise, 120.0, journal=9),
        ]
    found = {r.target.id: r for r in sync_table.targets(record(*samples, cells=("floor", "append-1")))}
    assert {k: r.verdict for k, r in found.items()} == {"s1": bench.PASS, "s2": bench.MISS, "s3": bench.MISS}
    assert found["s1"].measured.median == pytest.approx(1.9) and found["s1"].sure
    everything = {r.target.id: r for r in sync_table.targets(record(*samples))}
    assert everything["s5"].verdict == everything["s4"].verdict == bench.NO_DATA


@pytest.mark.parametrize(("rounds", "verdict"), [(1, bench.NO_DATA), (2, bench.NO_DATA), (3, bench.MISS)])
def test_few_rounds_do_not_say_that_nothing_is_slower(rounds, verdict):
    samples = []
    for n in range(1, rounds + 1):
        samples += [sample("append-1", "native", n, 1000), sample("append-1", "fdatasync", n, 10, journal=0)]
    found = {r.target.id: r for r in sync_table.targets(record(*samples))}
    assert found["s3"].verdict == verdict and found["s3"].measured.n == rounds


def test_one_round_is_never_sure():
    samples = [sample("append-1", "native", 1, 1000), sample("append-1", "journal", 1, 2000, journal=9)]
    found = {r.target.id: r for r in sync_table.targets(record(*samples))}
    assert found["s1"].verdict == bench.PASS and not found["s1"].sure


def test_a_record_comes_back_from_its_file_and_makes_the_same_text(tmp_path):
    found = record(sample("append-16", "native", 1, 123.0), **{"postgres-1": "not installed"})
    found.save(tmp_path / "r.json")
    again = syncs.Record.load(tmp_path / "r.json")
    assert again == found
    text = sync_table.markdown(again)
    assert "| native | 123 | – |" in text and "- skipped: postgres-1: not installed" in text
    assert "a power loss may lose" in text and "| nothing synced |" in text
    (tmp_path / "r.json").write_text("{}")
    with pytest.raises(LabError, match="is not a record"):
        syncs.Record.load(tmp_path / "r.json")


# ---- for real ----


@pytest.fixture
def cells():
    return sync_cells.all_cells(Programs(RealExecutor(), RealClock()))


def test_a_long_file_is_written_and_verified(place, cells):
    found = cells["bulk-64k"].run(place, SHORT)
    assert found.count == 256 and found.verified["verified_bytes"] == 16 << 20


@pytest.mark.parametrize("name", ["append-16", "floor", "sqlite-delete", "sqlite-wal"])
def test_a_cell_measures_and_verifies(place, cells, name):
    try:
        found = cells[name].run(place, SHORT)
    except LabError as error:
        pytest.skip(str(error))
    assert found.count > 0 and found.rate > 0
    assert 0 < found.p50_us <= found.p90_us and found.mean_us > 0


def test_a_server_is_started_measured_and_verified(programs, cells):
    with tempfile.TemporaryDirectory() as name:
        at = Path(name)
        at.chmod(0o755)  # the server has a user of its own
        reason = cells["postgres-1"].missing(at, None)
        if reason:
            pytest.skip(reason)
        for part in ("stage", "control", "keep"):
            (at / part).mkdir()
        server = Place(at / "stage", at / "control", programs, at / "keep", {})
        found = cells["postgres-1"].run(server, Timing(0, 1))
        assert found.count == found.verified["rows"] > 0 and found.mean_us > 0


def test_a_lost_record_a_lost_size_and_a_lost_row_are_noticed(place, cells, programs, monkeypatch):
    """What a leg would have to notice, done to its files between the writing and the verification."""
    append = cells["append-1"]
    real = Programs.run

    def spoil(how):
        def run(self, argv, *args, **kwargs):
            if "verify" in " ".join(map(str, argv[:3])):
                how()
            return real(self, argv, *args, **kwargs)

        monkeypatch.setattr(Programs, "run", run)

    def shorter():
        os.truncate(place.stage / "data0", 4096)

    def other_byte():
        with open(place.stage / "data0", "r+b") as file:
            file.seek(4096)
            file.write(b"x")

    def one_more():
        acked = struct.unpack_from("<Q", (place.control / "progress").read_bytes(), HEADER_BYTES)[0]
        source = (place.stage / "data0").read_bytes()
        with open(place.stage / "data0", "ab") as file:
            file.write(source[:4096])
        assert acked * 4096 == len(source)

    for how in (shorter, other_byte, one_more):
        spoil(how)
        with pytest.raises(LegError):
            append.run(place, SHORT)
        (place.stage / "data0").unlink()

    def delete_row():
        import sqlite3

        with sqlite3.connect(place.stage / "lab.db") as database:
            database.execute("DELETE FROM lab WHERE number = 0")

    spoil(delete_row)
    with pytest.raises(LegError, match="were committed"):
        cells["sqlite-delete"].run(place, SHORT)


def test_a_program_that_hangs_is_a_failure():
    class Late(RealClock):
        def monotonic(self):
            return super().monotonic() * 1000

    with pytest.raises(LegError, match="did not end within"):
        Programs(RealExecutor(), Late()).run(("sleep", "100"))


def test_a_service_ends_with_its_body(tmp_path):
    executor = RealExecutor()
    log = tmp_path / "log"
    patient = "import signal, time; signal.signal(signal.SIGINT, lambda *_: exit(0)); print(1, flush=True)"
    command = Command((sys.executable, "-c", patient + "; time.sleep(100)"))
    with executor.service(command, log) as process:
        while not log.read_text():
            pass
    assert process.returncode == 0
    with pytest.raises(LabError, match="ended with"), executor.service(Command(("sleep", "100")), log):
        pass
    with pytest.raises(KeyError), executor.service(Command(("sleep", "100")), log) as process:
        raise KeyError
    assert process.returncode is not None


def test_pgbench_is_understood():
    out = (
        "latency average = 1.437 ms\nnumber of transactions actually processed: 700\n"
        "number of failed transactions: 0 (0.000%)\ntps = 350.0 (without initial connection time)\n"
    )
    assert sync_cells.pgbench_result(out) == (700, 2.0)
    with pytest.raises(LegError):
        sync_cells.pgbench_result(out.replace("transactions: 0", "transactions: 3"))
    with pytest.raises(LegError):
        sync_cells.pgbench_result("FATAL")


def test_the_verb_runs_and_shows_a_record_again(tmp_path):
    if isinstance(shim.find(), str):
        pytest.skip(shim.find())
    out, page = tmp_path / "o.json", tmp_path / "o.md"
    argv = [sys.executable, "-m", "harness", "sync"]
    for warmup in (1.5, 6, 20):  # on a slow disk the journal is not ready before
        run = [
            "--cells", "append-1", "--pairs", "1", "--seconds", "0.1", "--warmup", warmup, "--no-warm",
            "--dir", tmp_path / "w",
            "--out", out, "--markdown", page,
        ]  # fmt: skip
        done = subprocess.run([*argv, *map(str, run)], cwd=ROOT, capture_output=True, text=True, timeout=300)
        found = json.loads(out.read_text())
        assert {s["status"] for s in found["samples"]} == {OK}, done.stdout + done.stderr
        assert len(found["samples"]) == 6 - ("libeatmydata" in found["skipped"])
        by_name = {s["variant"]: s for s in found["samples"]}
        if by_name["journal"]["shim"]["syncs_by_journal"] > 0:
            break
        out.unlink()
    assert by_name["journal"]["shim"]["syncs_by_journal"] > 0 and by_name["native"]["shim"] is None
    assert "journal" in page.read_text() and not (tmp_path / "w").exists()
    again = [*argv, "--from", str(out)]
    shown = subprocess.run(again, cwd=ROOT, capture_output=True, text=True, timeout=60)
    assert "append-1: journal / native" in shown.stdout and shown.returncode == done.returncode


def test_the_workload_sources_are_part_of_a_run():
    assert (WORKLOADS / "commits.py").exists() and "lab-syncs" in build.PROGRAMS


def test_an_ext4_without_a_journal_is_called_that():
    def named(features):
        return syncs.Record(
            {"pairs": 1, "seconds": 1, "warmup": 0, "cells": []},
            {"filesystem": "ext4", "filesystem_features": features},
        )

    assert "ext4 without a journal on" in sync_table.markdown(named("extent 64bit"))
    assert "ext4 on" in sync_table.markdown(named("has_journal extent"))
    assert "ext4 on" in sync_table.markdown(named(None))


@pytest.mark.skipif(os.geteuid() != 0, reason="a fresh mount needs root")
@pytest.mark.parametrize("filesystem", rounds.FRESH)
def test_a_fresh_disk_is_its_own_and_goes_away(tmp_path, filesystem, monkeypatch):
    monkeypatch.setattr(rounds, "FRESH_MIB", 320)
    with WorkDir(tmp_path / "work") as work:
        data = rounds.fresh_disk(RealExecutor(), work, filesystem)
        found = environment.gather(data)
        assert found["filesystem"] == filesystem
        assert filesystem != "ext4" or "has_journal" in found["filesystem_features"].split()
        loop = Path("/sys/block") / found["device"] / "loop"
        assert (loop / "dio").read_text().strip() == "1"
    # (another test may have the number by now)
    assert not (mounts.backing_file(found["device"]) or "").startswith(str(tmp_path))
    assert not (tmp_path / "work").exists()
