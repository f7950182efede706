# SPDX-License-Identifier: Apache-2.0
"""The suite `cost`: its plan, what a leg must be, how calls are counted, its verdicts; and each row once for real."""

import json
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from harness import ROOT
from harness.core import rounds, shim
from harness.core.cell import LegError, Measured, Programs, Timing
from harness.core.clock import RealClock
from harness.core.executor import RealExecutor
from harness.core.model import FAILED, OK, LabError
from harness.core.workdir import WorkDir
from harness.cost import benchmark as costs
from harness.cost import table as cost_table
from harness.cost.rows import Calls, all_rows, lines, same
from harness.report import targets as bench

SHORT = Timing(0, 0.01)
SUMMARY = """\
% time     seconds  usecs/call     calls    errors syscall
------ ----------- ----------- --------- --------- ----------------
 62.07    0.000018           2         8           write
 37.93    0.000011           0        31         2 openat
------ ----------- ----------- --------- --------- ----------------
100.00    0.000029           0        39         2 total
"""


def sample(cell, variant, number, us, **more):
    return {
        "cell": cell,
        "variant": variant,
        "round": number,
        "status": OK,
        "us": us,
        "rate": 1e6 / us,
        **more,
    }


def counted(cell, variant, calls):
    return {"cell": cell, "variant": variant, "round": costs.COUNTED, "status": OK, "calls": calls}


def record(*samples, cells=costs.ROWS, **skipped):
    return costs.Record({"cells": list(cells), "pairs": 3}, {"cpus": 2}, skipped, list(samples))


# ---- plan ----


def test_calls_are_counted_once_and_every_round_runs_every_variant_of_every_row_once():
    legs = costs.plan(costs.Settings(pairs=2, seed=3))
    assert legs == costs.plan(costs.Settings(pairs=2, seed=3)) != costs.plan(costs.Settings(pairs=2, seed=4))
    whole = {(cell, variant.name) for cell in costs.ROWS for variant in costs.VARIANTS}
    for number in (costs.COUNTED, 1, 2):
        found = [(leg.cell, leg.variant.name) for leg in legs if leg.round == number]
        assert len(found) == len(whole) and set(found) == whole
        assert list(dict.fromkeys(cell for cell, _ in found)) == list(costs.ROWS)


def test_the_rows_are_those_that_were_asked_for():
    assert {leg.cell for leg in costs.plan(costs.Settings(cells=("fork", "sed")))} == {"fork", "sed"}
    assert len(costs.ROWS) == 26
    assert rounds.choose("append", costs.ROWS) == tuple(c for c in costs.ROWS if c.startswith("append-"))


def test_every_variant_does_equally_many_operations():
    rows = all_rows()
    assert rows["small-files"].count(costs.Settings().seconds) == 10_000
    assert rows["tar"].count(5.0) == 1 and rows["start"].count(0.0001) == 1
    assert all(row.title for row in rows.values())


# ---- legs ----


class FakeRow:
    pattern, stages = "**", True

    def __init__(self, arena):
        self.arena, self.seen = arena, None

    def run(self, place, timing):
        self.seen = place
        return Measured(4, 0.002, facts={"arena": self.arena})


@pytest.fixture
def run_leg(tmp_path):
    def run(row, name, number=1, count=None):
        variant = next(v for v in costs.VARIANTS if v.name == name)
        built = shim.Shim(tmp_path / "l.so", tmp_path / "c")
        with WorkDir(tmp_path / "work") as work:
            made = costs.Bench(work, work.data, {"row": row}, tmp_path, built, sync=lambda: None, count=count)
            return rounds.run_leg(made, rounds.Leg("row", variant, number), SHORT)

    return run


def test_each_variant_has_its_own_rule(run_leg):
    found = {}
    for variant in costs.VARIANTS:
        row = FakeRow(variant.name == costs.MATCHING)
        leg = run_leg(row, variant.name)
        assert (leg["status"], leg["us"], leg["rate"]) == (OK, 500, 2000)
        found[variant.name] = row.seen.env
        stage = row.seen.stage
    assert found[costs.NATIVE] == {}
    assert list(found[costs.NO_RULE]) == ["LD_PRELOAD"]
    assert found[costs.MATCHING]["FASTWRITE_PATHS"] == f"{stage}/**"
    assert found[costs.ELSEWHERE]["FASTWRITE_PATHS"] == f"{stage.parent}/elsewhere/**"
    assert len({env.get("LD_PRELOAD") for env in found.values()}) == 2


@pytest.mark.parametrize(
    ("variant", "arena", "reason"),
    [
        (costs.MATCHING, False, "staged nothing"),
        (costs.NATIVE, True, "nothing may be staged"),
        (costs.ELSEWHERE, True, "nothing may be staged"),
    ],
)
def test_a_leg_that_was_not_what_it_is_called_fails(run_leg, variant, arena, reason):
    found = run_leg(FakeRow(arena), variant)
    assert found["status"] == FAILED and reason in found["reason"] and "us" not in found


def test_what_is_missing_is_skipped_with_its_reason(tmp_path, monkeypatch):
    monkeypatch.setattr("harness.cost.rows.shutil.which", lambda name: None)
    rows = all_rows()
    assert rows["cmake-ninja"].missing(tmp_path, None) == "cmake, ninja, gcc: not installed"
    assert rows["fork"].missing(tmp_path, None) is None
    made = costs.Bench(None, tmp_path, rows, tmp_path, "not built")
    one, counting = (rounds.Leg("fork", costs.VARIANTS[i], i) for i in (1, costs.COUNTED))
    assert made.lacks(one) == (costs.NO_RULE, "not built")
    assert made.lacks(counting) == ("system calls", costs.STRACE_MISSING)


def test_without_strace_no_calls_are_counted(tmp_path, monkeypatch):
    monkeypatch.setattr("harness.cost.benchmark.shutil.which", lambda name: None)
    assert costs.counter(Programs(RealExecutor(), RealClock()), tmp_path) is None


# ---- system calls ----


def test_the_summary_of_strace_is_understood():
    assert costs.calls(SUMMARY) == {"write": 8, "openat": 31}
    with pytest.raises(LegError, match="not permitted"):
        costs.calls("ptrace: not permitted")


class Counting(Calls):
    """Makes 30 calls to start and 2 for each operation."""

    def __init__(self):
        super().__init__(None, "fork", "", 1000)
        self.verified = []

    def verify(self, place, measured):
        self.verified.append(measured.count)
        return {}


def test_calls_of_a_loop_are_a_long_run_less_a_short_one(tmp_path, run_leg):
    row = Counting()

    def count(argv, place):
        assert not any(place.stage.iterdir())
        (place.stage / "left").write_text("")
        return {"clone": int(argv[3]), "wait4": int(argv[3]), "execve": 30}

    found = run_leg(row, costs.NATIVE, costs.COUNTED, count)
    assert found["calls_by_name"] == {"clone": 1, "wait4": 1, "execve": 0} and found["calls"] == 2
    assert row.verified == [1, 2] and "us" not in found


@pytest.mark.skipif(shutil.which("strace") is None, reason="strace is not installed")
def test_calls_are_counted_with_those_of_children(place, rows):
    count = costs.counter(rows["fork"].programs, place.control)
    if count is None:
        pytest.skip(costs.STRACE_MISSING)
    found = count(("sh", "-c", "true; /bin/true; /bin/true"), place)
    assert found["execve"] == 3
    assert count(("sh", "-c", 'test "$LAB" = here'), replace(place, env={"LAB": "here"}))


# ---- table and targets ----


def test_the_table_says_how_often_the_native_time_and_how_many_calls():
    found = record(
        *(sample("start", costs.NATIVE, n, 1000 * n) for n in (1, 2, 3)),
        *(sample("start", costs.NO_RULE, n, 1100 * n) for n in (1, 2, 3)),
        *(sample("start", costs.MATCHING, n, 900 * n) for n in (1, 2, 3)),
        *(counted("start", v.name, 30 + i) for i, v in enumerate(costs.VARIANTS)),
        sample("fork", costs.NATIVE, 1, 100),
        sample("fork", costs.MATCHING, 1, 100) | {"status": FAILED, "reason": "x"},
        counted("fork", costs.NATIVE, 3.02),
        counted("fork", costs.MATCHING, 22.5),
    )
    start, fork = cost_table.rows(found)
    assert start[0] == "start" and start[2].startswith("2,000 [")
    assert start[3] == "1.10 × [1.10, 1.10], +200" and start[4] == "–"
    assert start[5] == "0.90 × [0.90, 0.90], −200"
    assert start[6] == "30 / 31 / 32 / 33"
    assert fork[5] == "FAILED" and fork[6] == "3 / – / – / 22.5"
    assert rounds.Samples(found).failed
    (shown,) = cost_table.terminal(found)
    assert shown.row_count == 2 and cost_table.terminal(record()) == []
    text = cost_table.markdown(found)
    assert "| 1.10 × [1.10, 1.10], +200 |" in text and "| FAILED |" in text


BOUNDS = {
    "start": {("no rule", 50), ("matching rule", 120)},
    "ten-appends": {("matching rule", 400)},
    "fork": {("matching rule", 1.05)},
    "fork-staged": {("matching rule", 1.25)},
    "append-1": {("matching rule", 1.2)},
    "append-3": {("matching rule", 1.4)},
    "append-1-beside": {("matching rule", 1.2)},
    "append-3-beside": {("matching rule", 1.4)},
    "small-files": {("matching rule", 1.05)},
    "sed": {("matching rule", 1.2)},
    "cmake-ninja": {("matching rule", 1.06)},
    "select": {("matching rule", 1.1)},
    "lock": {("rule elsewhere", 1.15)},
    "mmap-window": {("matching rule", 0.98)},
    **{cell: {("matching rule", 1)} for cell in ("gcc", "git", "tar", "pip", "python-logging")},
}


def test_the_targets_are_the_promised_ones():
    found = {}
    for goal in cost_table.GOALS:
        assert goal.below == (goal.above[0], costs.NATIVE) and goal.below[0] in costs.ROWS
        bound = goal.target.at_least if goal.target.at_most is None else goal.target.at_most
        found.setdefault(goal.above[0], set()).add((goal.above[1], bound))
    assert found == BOUNDS
    assert len({goal.target.id for goal in cost_table.GOALS}) == len(cost_table.GOALS)


def verdicts(*samples, cells=costs.ROWS, **skipped):
    return {r.target.id: r for r in cost_table.targets(record(*samples, cells=cells, **skipped))}


def rounds_of(cell, variant, native, with_library):
    noise = (1.0, 1.01, 0.99)
    for n, factor in enumerate(noise, 1):
        yield sample(cell, costs.NATIVE, n, native)
        yield sample(cell, variant, n, with_library * factor)


@pytest.mark.parametrize(
    ("cell", "variant", "target", "good", "bad"),
    [
        ("start", costs.NO_RULE, "c1", 1049, 1060),  # microseconds more than 1000
        ("ten-appends", costs.MATCHING, "c3", 1390, 1420),
        ("fork", costs.MATCHING, "c4", 1040, 1060),
        ("lock", costs.ELSEWHERE, "c14", 1100, 1200),
        ("mmap-window", costs.MATCHING, "c15", 1010, 1030),  # as a rate: 0.99 and 0.97
        ("tar", costs.MATCHING, "c18", 1005, 1100),  # the interval reaches 1, or does not
    ],
)
def test_a_target_is_met_or_missed(cell, variant, target, good, bad):
    assert verdicts(*rounds_of(cell, variant, 1000, good))[target].verdict == bench.PASS
    assert verdicts(*rounds_of(cell, variant, 1000, bad))[target].verdict == bench.MISS


def test_a_target_says_microseconds_where_it_is_about_them():
    found = verdicts(*rounds_of("start", costs.NO_RULE, 1000, 1040))["c1"]
    assert found.measured.median == pytest.approx(40) and bench.bound(found.target) == "≤ 50 µs"


def test_a_row_that_is_not_there_has_no_target():
    assert set(verdicts(cells=("lock", "gcc"))) == {"c14", "c16"}
    assert verdicts(cells=("lock",))["c14"].verdict == bench.NO_DATA
    assert set(verdicts(cells=("lock", "gcc"), gcc="gcc: not installed")) == {"c14"}


def test_a_record_of_another_kind_is_refused(tmp_path):
    found = record(sample("fork", costs.NATIVE, 1, 9.0))
    found.save(tmp_path / "r.json")
    assert costs.Record.load(tmp_path / "r.json") == found
    text = (tmp_path / "r.json").read_text().replace('"cost"', '"sync"')
    (tmp_path / "r.json").write_text(text)
    with pytest.raises(LabError, match="is not a record of `cost`"):
        costs.Record.load(tmp_path / "r.json")


# ---- for real ----


@pytest.fixture
def rows():
    return all_rows(Programs(RealExecutor(), RealClock()))


def spoil(path: Path, whole_page: bool) -> None:
    """Change one byte in the middle of the file, which in a database may be free space: there a page."""
    content = bytearray(path.read_bytes())
    at = 4096 if whole_page else len(content) // 2
    size = 4096 if whole_page else 1
    content[at : at + size] = bytes(byte ^ 2 for byte in content[at : at + size])
    path.write_bytes(content)


WRITTEN = {
    "ten-appends": "log",
    "fork-staged": "log",
    "shell-append": "log",
    "mmap-window": "windows",
    "append-1": "log",
    "append-1-beside": "beside",
    "append-3": "log",
    "append-3-beside": "log",
    "append-17": "log",
    "append-17-beside": "beside",
    "commit": "lab.db",
    "select": "lab.db",
    "sed": "text",
    "gcc": "program",
    "cmake-ninja": "program",
    "git": "repository/.git/index",
    "tar": "tree/d3/f170.txt",
    "pip": "site/lab/m7.py",
    "xargs": "out",
    "small-files": "f33",
    "prefork": "log",
    "python-logging": "log",
}
NOTHING = {"start", "python-start", "fork", "lock"}
"""Rows that write nothing."""


@pytest.mark.parametrize("name", costs.ROWS)
def test_a_row_measures_and_notices_a_wrong_byte(place, rows, name):
    row = rows[name]
    if reason := row.missing(place.stage, None):
        pytest.skip(reason)
    found = row.run(place, SHORT)
    assert found.count == row.count(SHORT.seconds) and 0 < found.seconds < 60
    assert not found.facts.get("arena")
    if name in NOTHING:
        return
    path = place.stage / WRITTEN[name]
    spoil(path, name in ("commit", "select"))
    with pytest.raises(LegError):
        row.verify(place, found)


def test_a_compiled_module_with_other_code_is_noticed(place, rows):
    row = rows["pip"]
    if reason := row.missing(place.stage, None):
        pytest.skip(reason)
    found = row.run(place, SHORT)
    one, other = (next(place.stage.rglob(f"m{n}.*.pyc")) for n in (3, 4))
    one.write_bytes(other.read_bytes())
    with pytest.raises(LegError, match=r"m3\.py is not compiled"):
        row.verify(place, found)


def test_a_file_that_is_too_short_or_too_long_is_told_apart(tmp_path):
    path = tmp_path / "log"
    path.write_bytes(lines(3, 50))
    same(path, lines(3, 50))
    with pytest.raises(LegError, match="150 bytes, 200 were written; its beginning is right"):
        same(path, lines(4, 50))
    with pytest.raises(LegError, match="byte 48 differs"):
        same(path, lines(3, 50, first=1))
    with pytest.raises(LegError, match="No such file"):
        same(tmp_path / "none", b"")


def test_a_command_that_fails_is_no_figure(place, rows, monkeypatch):
    row = rows["sed"]
    monkeypatch.setattr(row, "argv", lambda place, count: ("sh", "-c", "echo no room >&2; exit 3"))
    with pytest.raises(LegError, match=r"(?s)ended with 3.*no room"):
        row.run(place, SHORT)


def test_the_launcher_runs_a_command_as_often_as_it_is_told(place):
    run, log = Programs(RealExecutor(), RealClock()).run, place.stage / "log"
    launch = (str(place.programs / "lab-launch"), "--result", str(place.control / "r"))

    def launched(times, script):
        log.unlink(missing_ok=True)
        run((*launch, "--times", str(times), "--env", f"LOG={log}", "--", "sh", "-c", script))
        return json.loads((place.control / "r").read_text()), log.read_text()

    found, text = launched(5, 'sleep 0.02; echo line >> "$LOG"')
    assert text == "line\n" * 5 and found["status"] == 0 and found["seconds"] >= 0.1
    found, text = launched(5, 'echo line >> "$LOG"; test $(wc -l < "$LOG") -lt 3')
    assert text == "line\n" * 3 and found["status"] == 1


def test_the_verb_runs_goes_on_and_shows_a_record_again(tmp_path):
    if isinstance(shim.find(), str):
        pytest.skip(shim.find())
    out, page = tmp_path / "o.json", tmp_path / "o.md"

    def verb(*words):
        argv = [sys.executable, "-m", "harness", "cost", *map(str, words)]
        return subprocess.run(argv, cwd=ROOT, capture_output=True, text=True, timeout=300, check=False)

    done = verb("--cells", "start,fork-staged,append-1-beside,ten-appends", "--pairs", 1, "--seconds", 0.02,
                "--no-warm", "--dir", tmp_path / "w", "--out", out, "--markdown", page)  # fmt: skip
    found = json.loads(out.read_text())
    assert {s["status"] for s in found["samples"]} == {OK}, done.stdout + done.stderr
    calls = {(s["cell"], s["variant"]): s["calls"] for s in found["samples"] if "calls" in s}
    assert len(found["samples"]) == (32 if calls else 16) and not (tmp_path / "w").exists()
    if calls:
        assert calls["start", costs.NATIVE] < calls["start", costs.NO_RULE] < calls["start", costs.ELSEWHERE]
    arenas = {(s["cell"], s["variant"]) for s in found["samples"] if s.get("facts", {}).get("arena")}
    assert arenas == {("fork-staged", costs.MATCHING), ("append-1-beside", costs.MATCHING)}
    assert "| start |" in page.read_text() and "fork-staged: matching rule / native, time" in page.read_text()
    found["samples"] = [s for s in found["samples"] if s["cell"] != "start"]
    out.write_text(json.dumps(found))
    again = verb("--resume", out)
    assert len(json.loads(out.read_text())["samples"]) == (32 if calls else 16), again.stdout
    shown = verb("--from", out)
    assert "start: no rule, more than native" in shown.stdout and shown.returncode == again.returncode
