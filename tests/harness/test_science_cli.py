# SPDX-License-Identifier: Apache-2.0
"""The verbs aa, compare and claims as a user calls them, natively and at the size of a smoke test."""

import json

import pytest
from test_end_to_end import TINY, run_harness, samples


@pytest.fixture(scope="module")
def control(tmp_path_factory):
    """An A/A session of two runs of three pairs."""
    place = tmp_path_factory.mktemp("aa")
    done = run_harness("aa", "--runs", 2, "--pairs", 3, "--scale", "tiny", "--no-warm", "--dir", place / "work",
                       "--out", place / "out")  # fmt: skip
    return place, done


def test_a_control_session_counts_its_false_verdicts(control):
    place, done = control
    false = int(done.stdout.split(" false verdicts in 2 runs of 3 pairs (at most 0 allowed)")[0].split()[-1])
    assert done.returncode == (1 if false else 0), done.stdout + done.stderr
    assert {s["variant"] for s in samples(place / "out")} == {"native", "control"}
    assert len(samples(place / "out")) == 12 and not (place / "work").exists()
    assert json.loads((place / "out" / "run.json").read_text())["rounds_per_run"] == 3


def test_an_interrupted_control_session_goes_on_as_one(control, tmp_path):
    place, _ = control
    (tmp_path / "run.json").write_text((place / "out" / "run.json").read_text())
    lines = (place / "out" / "samples.jsonl").read_text().splitlines(keepends=True)
    (tmp_path / "samples.jsonl").write_text("".join(lines[:-1]))
    done = run_harness("run", "--resume", tmp_path, "--dir", tmp_path / "work")
    assert "in 2 runs of 3 pairs" in done.stdout, done.stdout + done.stderr
    assert [s["leg"] for s in samples(tmp_path)] == [json.loads(line)["leg"] for line in lines]


def test_any_row_can_be_its_own_control(tmp_path):
    done = run_harness("aa", "E2-prealloc", "--runs", 1, "--pairs", 3, "--scale", "tiny", "--dry-run")
    assert done.returncode == 0 and "6 legs" in done.stdout, done.stdout + done.stderr


def test_a_control_of_too_few_pairs_for_a_verdict_is_refused():
    done = run_harness("aa", "--runs", 1, "--pairs", 2, "--scale", "tiny", "--dry-run")
    assert done.returncode == 2 and "--pairs: a verdict needs at least 3" in done.stdout


def test_two_runs_are_compared_and_unlike_ones_refused(tmp_path):
    for name in ("a", "b"):
        done = run_harness("run", "E1", *TINY, "--kinds", "measure", "--pairs", 3, "--dir", tmp_path / "w",
                           "--out", tmp_path / name)  # fmt: skip
        assert done.returncode == 0, done.stdout + done.stderr
    done = run_harness("compare", tmp_path / "a", tmp_path / "b", "--markdown", tmp_path / "c.md")
    assert done.returncode == 0 and "E1" in done.stdout, done.stdout + done.stderr
    assert "| E1 | native | MB/s |" in (tmp_path / "c.md").read_text()

    settings = json.loads((tmp_path / "b" / "run.json").read_text())
    settings["environment"]["cpu"] = "another"
    (tmp_path / "b" / "run.json").write_text(json.dumps(settings))
    done = run_harness("compare", tmp_path / "a", tmp_path / "b")
    assert done.returncode == 2 and "not comparable" in done.stdout and "cpu:" in done.stdout
    done = run_harness("compare", tmp_path / "a", tmp_path / "b", "--anyway")
    assert done.returncode == 0 and "the runs differ: cpu:" in done.stdout


def test_claims_of_a_run_as_a_page_of_documentation(control, tmp_path):
    place, _ = control
    done = run_harness("claims", place / "out", "--markdown", tmp_path / "claims.md")
    assert done.returncode == 0 and "not decided" in done.stdout, done.stdout + done.stderr
    text = (tmp_path / "claims.md").read_text()
    assert "## 000" in text and "| buffered 4 KiB appends about fill the device |" in text


@pytest.mark.parametrize("args", [["compare", "/nowhere", "/nowhere"], ["claims", "/nowhere"]])
def test_what_is_no_run_is_refused_in_one_line(args):
    done = run_harness(*args)
    assert done.returncode == 2 and "not a run of this laboratory" in done.stdout
    assert "Traceback" not in done.stdout + done.stderr


def test_a_dry_run_of_everything_has_a_line_per_suite():
    done = run_harness("run", "--all", "--dry-run")
    assert done.returncode == 0 and "By suite" in done.stdout and "│ 000" in done.stdout
    assert "bench" not in done.stdout.split("By suite")[1]
