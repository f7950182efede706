# SPDX-License-Identifier: Apache-2.0
"""The command itself, natively, at the size of a smoke test."""

import json
import os
import shutil
import signal
import subprocess
import sys

import lab_fakes as fakes
import pytest
from lib.support import wait_for

from harness import ROOT
from harness.core import shim
from harness.core.store import RunStore
from harness.core.workdir import MARKER

TINY = ["--scale", "tiny", "--no-shim", "--no-warm", "--pairs", "1", "--kills", "1"]


def run_harness(*args, **kwargs):
    argv = [sys.executable, "-m", "harness", *map(str, args)]
    return subprocess.run(argv, cwd=ROOT, capture_output=True, text=True, timeout=120, **kwargs)


def samples(out):
    return [json.loads(line) for line in (out / "samples.jsonl").read_text().splitlines()]


def needs_direct(tmp_path):
    try:
        os.close(os.open(tmp_path / "probe", os.O_CREAT | os.O_WRONLY | os.O_DIRECT))
    except OSError:
        pytest.skip("no O_DIRECT on this file system")
    (tmp_path / "probe").unlink()


def test_a_run_verifies_reports_and_leaves_nothing(tmp_path):
    needs_direct(tmp_path)
    work, out = tmp_path / "work", tmp_path / "out"
    ids = ["E1", "E3", "E4", "E4-fixed", *(["B2"] if shutil.which("fio") else [])]
    done = run_harness("run", *ids, *TINY, "--dir", work, "--out", out)
    assert done.returncode == 0, done.stdout + done.stderr
    assert not work.exists()
    found = samples(out)
    assert {s["status"] for s in found} <= {"ok", "skipped"}
    e4 = next(s for s in found if s["leg"] == "E4/measure/1/native")
    assert e4["verification"]["lost_bytes"] == 4 * 16384
    page = (out / "report.html").read_text()
    assert "E4-fixed" in page and "http" + "://" not in page
    assert "legs ok, 0 failed" in done.stdout

    (out / "samples.jsonl").write_text("".join(json.dumps(s) + "\n" for s in found[:-2]) + '{"leg": "to')
    again = run_harness("run", "--resume", out, "--dir", work)
    assert again.returncode == 0, again.stdout + again.stderr
    assert [s["leg"] for s in samples(out)] == [s["leg"] for s in found]
    assert run_harness("report", out).returncode == 0


def test_shim_legs_stage_in_a_directory_whose_name_has_the_signs_of_a_pattern(tmp_path):
    if isinstance(shim.find(), str):
        pytest.skip(shim.find())
    options = ["--scale", "tiny", "--no-warm", "--pairs", "1", "--kills", "1", "--kinds", "measure,kill"]
    out = tmp_path / "out"
    done = run_harness("run", "E1", *options, "--dir", tmp_path / "lab[1]x", "--out", out)
    assert done.returncode == 0, done.stdout + done.stderr
    found = {s["leg"]: s for s in samples(out)}
    assert found["E1/measure/1/shim"]["shim_counters"]["staged_writes"] > 0
    assert found["E1/kill/1/shim"]["status"] == "ok"


def test_dry_run_touches_nothing(tmp_path):
    done = run_harness("experiment", "--dry-run", "--dir", tmp_path / "w", "--out", tmp_path / "o")
    assert done.returncode == 0 and "to be written" in done.stdout and "E4-128k" in done.stdout
    assert not list(tmp_path.iterdir())
    assert "Nothing was written" in run_harness("bench", "--dry-run").stdout


@pytest.mark.parametrize(
    ("args", "said"),
    [
        (["run"], "which experiments"),
        (["run", "E99"], "no experiment 'E99'"),
        (["run", "E1", "--scale", "huge"], "no size for scale 'huge'"),
        (["run", "E1", "--kinds", "dance"], "'dance' is none of"),
        (["run", "E1", "--dir", "/dev/null", "--scale", "tiny"], "a device"),
        (["report", "/nowhere"], "not a run of this laboratory"),
        (["run", "--resume", "/nowhere"], "not a run of this laboratory"),
    ],
)
def test_refusals_are_one_line(tmp_path, args, said):
    done = (
        run_harness(*args, "--dir", tmp_path / "w")
        if "--dir" not in args and args[0] == "run"
        else run_harness(*args)
    )
    assert done.returncode == 2 and said in done.stdout and "Traceback" not in done.stdout + done.stderr
    assert not (tmp_path / "w").exists()


@pytest.mark.parametrize(
    ("args", "said"),
    [
        (["run", "E1", *TINY, "--dir", "{}/w", "--out", "{}/file"], "File exists: {}/file"),
        (["report", "{}/run", "--out", "/dev/null/x"], "Not a directory: /dev/null/x"),
        (["report", "{}/run", "--out", "{}/file"], "File exists: {}/file"),
        (["claims", "{}/run", "--markdown", "{}/no/x.md"], "No such file or directory: {}/no/x.md"),
        (["sync", "--dir", "{}/w", "--out", "{}/run"], "{}/run: exists already"),
        (["cost", "--dir", "{}/w", "--out", "{}/file"], "{}/file: exists already; use --resume {}/file"),
    ],
)
def test_a_path_that_cannot_be_written_is_one_line(tmp_path, args, said):
    store = RunStore.create(tmp_path / "run", fakes.settings(rounds_per_run=0))
    store.append(fakes.measured("E1", "native", 1, 500))
    (tmp_path / "file").write_text("kept")
    done = run_harness(*(str(word).replace("{}", str(tmp_path)) for word in args))
    assert done.returncode == 2 and "Traceback" not in done.stdout + done.stderr, done.stderr
    assert "harness: " + said.replace("{}", str(tmp_path)) in done.stdout
    assert (tmp_path / "file").read_text() == "kept" and not (tmp_path / "w").exists()


def test_a_directory_with_files_is_refused_and_untouched(tmp_path):
    (tmp_path / "letter").write_text("dear")
    done = run_harness("run", "E1", *TINY, "--dir", tmp_path)
    assert done.returncode == 2 and "not empty" in done.stdout
    assert [p.name for p in tmp_path.iterdir()] == ["letter"]


def start_long(tmp_path):
    """A run that would take minutes, after its first sample."""
    work, out = tmp_path / "work", tmp_path / "out"
    argv = [sys.executable, "-m", "harness", "run", "E1", "--scale", "tiny", "--no-shim", "--no-warm",
            "--pairs", "1000", "--kinds", "measure", "--dir", str(work), "--out", str(out)]  # fmt: skip
    process = subprocess.Popen(argv, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    wait_for(lambda: (out / "samples.jsonl").exists() or process.poll() is not None, "the first sample")
    assert process.poll() is None
    return process, work, out


def groups_left():
    return [d for d, _, _ in os.walk("/sys/fs/cgroup") if "fastwrite-lab-" in d and "test" not in d]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupt_cleans_up_and_says_how_to_go_on(tmp_path, number):
    process, work, out = start_long(tmp_path)
    process.send_signal(number)
    text, _ = process.communicate(timeout=60)
    assert process.returncode == 130 and f"--resume {out}\n" in text, text
    assert not work.exists() and samples(out)
    assert not any(str(process.pid) in d for d in groups_left())


def test_what_a_killed_run_left_goes_at_the_next_start(tmp_path):
    process, work, _ = start_long(tmp_path)
    process.kill()
    process.communicate(timeout=60)
    assert (work / MARKER).exists()
    done = run_harness("run", "E1", *TINY, "--kinds", "measure", "--dir", work, "--out", tmp_path / "second")
    assert done.returncode == 0, done.stdout + done.stderr
    assert not work.exists()
    assert not any(str(process.pid) in d for d in groups_left())
