# SPDX-License-Identifier: Apache-2.0
"""What runs the tests counts them rightly: nothing that went wrong is called a pass."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest
from lib import speed
from lib.jobs import Job, Outcome, Record, run_jobs
from lib.support import ROOT, TooSlowError, disk_dir, run_native, wait_for
from lib.tap import Totals, parse_tap


@pytest.mark.parametrize(
    ("output", "status", "line"),
    [
        ("1..2\nok 1 - a\nok 2 - b\n", 0, "2 passed, 0 failed, 0 skipped"),
        ("1..2\nok 1 - a\nnot ok 2 - b\n", 1, "1 passed, 1 failed, 0 skipped"),
        ("1..2\nok 1 - a\nno such thing\nnot ok 2 # SKIP b\n", 0, "1 passed, 0 failed, 1 skipped"),
        ("1..2\nok 1 - a_SKIP_b\nok 2 - b\n", 0, "2 passed, 0 failed, 0 skipped"),
        ("1..1\nok 1 - a\n1..1\nok 1 - b\n", 0, "2 passed, 0 failed, 0 skipped"),
        ("needs root\n", 77, "0 passed, 0 failed, 1 skipped"),
    ],
)
def test_reports_are_counted(output, status, line):
    assert parse_tap("program", output, status).line() == line


@pytest.mark.parametrize(
    ("output", "status", "failed", "why"),
    [
        ("", 0, 1, "reported nothing"),
        ("1..0\n", 0, 1, "reported nothing"),
        ("all is well\n", 0, 1, "reported nothing"),
        ("", 1, 1, "status 1"),
        ("", -11, 1, "signal 11"),
        ("1..3\nok 1 - a\n", 0, 2, "3 tests were planned, 1 reported"),
        ("1..1\nok 1 - a\n", 1, 1, "status 1"),
        ("1..1\nok 1 - a\n", -6, 1, "signal 6"),
        ("1..1\nok 1 - a\nok 1 - a\n", 0, 1, "1 tests were planned, 2 reported"),
        ("ok 1 - a\n", 0, 1, "0 tests were planned, 1 reported"),
        ("1..1\nok 1 - a\n", 77, 1, "status 77"),
    ],
)
def test_what_is_not_reported_has_failed(output, status, failed, why):
    totals = parse_tap("program", output, status)
    assert totals.failed == failed
    assert any(why in wrong for wrong in totals.wrong), totals.wrong


WORSE = "1..1\nhello\nnot ok 1 - first\n# 0x1 != 0x2\n# file.c:6: error: Failure!\nlater\n"


def test_jobs_are_counted_timed_and_shown(capsys, tmp_path, monkeypatch):
    monkeypatch.setenv("FASTWRITE_TEST_TIMES", str(tmp_path / "times"))
    monkeypatch.setenv("FASTWRITE_TEST_FAILURES", str(tmp_path / "failures"))
    record = Record()
    totals = run_jobs(
        [
            Job("good", lambda: Outcome(Totals(passed=2), "not shown")),
            Job("bad", lambda: Outcome(parse_tap("bad", "", 0), "shown")),
            Job("worse", lambda: Outcome(parse_tap("worse", WORSE, 1), WORSE)),
        ],
        record,
    )
    record.hand_on()
    said = capsys.readouterr().out
    assert totals.line() == "2 passed, 2 failed, 0 skipped"
    assert "bad: reported nothing\nshown\n" in said and "not shown" not in said
    assert "  good" in record.table() and "  bad" in record.table()
    assert sorted(line.split("\t")[1] for line in (tmp_path / "times").read_text().splitlines()) == [
        "bad",
        "good",
        "worse",
    ]
    assert sorted((tmp_path / "failures").read_text().splitlines()) == [
        "bad: bad: reported nothing",
        "worse: not ok 1 - first | # 0x1 != 0x2 | # file.c:6: error: Failure!",
    ]


def run_all(build: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(ROOT / "tests" / "run_all.py"), *arguments, str(build)]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def test_a_program_that_is_silent_or_not_built_has_failed(tmp_path, monkeypatch):
    monkeypatch.delenv("FASTWRITE_TEST_FAILURES", raising=False)  # its failures are wanted
    programs = tmp_path / "tests" / "unit"
    programs.mkdir(parents=True)
    names = sorted(path.stem for path in (ROOT / "tests" / "unit").glob("test_*.c"))
    for name in names[1:]:
        (programs / name).write_text("#!/bin/sh\nprintf '1..1\\nok 1 - a\\n'\n")
        (programs / name).chmod(0o755)
    (programs / names[1]).write_text("#!/bin/sh\n")
    done = run_all(tmp_path, "--units")
    assert done.returncode == 1
    assert f"{names[0]}: 0 passed, 1 failed" in done.stdout
    assert f"{names[1]}: reported nothing" in done.stdout
    machine, totals = done.stdout.splitlines()[-2:]
    assert machine.startswith("machine: append of 100 bytes ")
    assert totals == f"{len(names) - 2} passed, 2 failed, 0 skipped"


def test_the_machine_is_described(monkeypatch):
    pattern = (
        r"machine: append of 100 bytes (\d+\.\d\d) us, with fsync (\d+\.\d) us \(\w+ at /.*\); \d+ processors, "
        r"Linux \S+; load 1\.2 at the start, \d+\.\d at the end"
    )
    append, sync = map(float, re.fullmatch(pattern, speed.machine(1.25)).groups())
    assert append > 0 and sync > 0
    assert speed.kind(Path("/proc")) == "proc"
    monkeypatch.setenv("FASTWRITE_TEST_DIR", "/nowhere")
    assert speed.machine(0).startswith("machine: unknown (unknown file system at /nowhere); ")


def test_too_slow_says_so_and_how_busy_the_machine_was():
    with (
        disk_dir() as place,
        pytest.raises(TooSlowError, match=r"too slow: 0.1 s .* load .* processors: sleep"),
    ):
        run_native(["sleep", "60"], place, timeout=0.1)
    with pytest.raises(AssertionError, match=r"too slow: .* waited for a miracle"):
        wait_for(lambda: False, "a miracle", 0.05)


def test_a_test_that_runs_out_of_time_is_told_apart(tmp_path):
    (tmp_path / "test_late.py").write_text(
        "import subprocess\ndef test_late(): subprocess.run(['sleep', '60'], timeout=0.1)\n"
    )
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "conftest", "-p", "no:cacheprovider", str(tmp_path)],
        cwd=tmp_path,
        env={"PATH": "/usr/bin:/bin", "PYTHONPATH": str(ROOT / "tests")},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 1
    assert "test_late - too slow: 0.1 s on a machine with load" in done.stdout, done.stdout
