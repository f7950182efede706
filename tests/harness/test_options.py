# SPDX-License-Identifier: Apache-2.0
"""One way to say things: the verbs' options, what a resumed run remembers, what is said when something is missing."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from typer.main import get_command

from harness import ROOT
from harness.cli import app
from harness.run import plan, runner
from harness.tools import TOOLS

RUNS = ("run", "suite", "experiment", "bench", "aa")
TINY = ("--scale", "tiny", "--no-shim", "--no-warm", "--kinds", "measure", "--pairs", "2")


def verb(name):
    return {option.opts[0]: option for option in get_command(app).commands[name].params}


def harness(*args, **more):
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    argv = [sys.executable, "-m", "harness", *map(str, args)]
    more = {"stdout": subprocess.PIPE, **more}
    return subprocess.run(argv, stderr=subprocess.PIPE, text=True, timeout=300, check=False, env=env, **more)


@pytest.mark.parametrize("name", RUNS)
def test_all_runs_have_the_same_options(name):
    assert {"--pairs", "--out", "--resume", "--dir", "--scale", "--seed", "--no-warm", "--dry-run"} <= set(
        verb(name)
    )
    assert {option.help for option in verb(name).values()} >= {verb("run")["--resume"].help}


def test_every_verb_that_measures_can_be_told_where_how_often_and_whereto():
    for name in (*RUNS, "sync", "cost", "ab"):
        assert {"--pairs", "--out", "--dir"} <= set(verb(name))
    assert "--resume" in verb("sync") and "--resume" in verb("cost")
    assert verb("run")["--pairs"].default == verb("bench")["--pairs"].default == 5
    assert verb("aa")["--pairs"].default == 6 and verb("sync")["--pairs"].default == 7


def test_a_suite_is_listed_alone():
    done = harness("list", "004")
    assert done.returncode == 0 and "004-R-psync-1x1" in done.stdout and "E4-fixed" not in done.stdout
    assert harness("list", "nothing").returncode == 2


def test_a_resumed_run_works_where_it_worked_before(tmp_path):
    done = harness("run", "E1", *TINY, "--dir", tmp_path / "w", "--out", tmp_path / "out", cwd=tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    store = tmp_path / "out" / "samples.jsonl"
    lines = store.read_text().splitlines()
    store.write_text("\n".join(lines[:1]) + "\n")
    settings = json.loads((tmp_path / "out" / "run.json").read_text())
    assert settings["directory"] == str(tmp_path / "w")
    (tmp_path / "lab-work").write_text("in the way")
    done = harness("run", "--resume", tmp_path / "out", cwd=tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    assert len(store.read_text().splitlines()) == len(lines)


@pytest.mark.parametrize(
    ("words", "named"),
    [
        (("run", "--pairs", "9"), "--pairs"),
        (("run", "E2"), "E2"),
        (("run", "E1", "E2", "--scale", "full", "--no-shim"), "E1 E2, --scale, --no-shim"),
        (("run", "--all", "--dry-run", "--seed", "1"), "--all, --seed, --dry-run"),
        (("run", "--sysctl", "vm.dirty_bytes=9", "--out", "x"), "--sysctl, --out"),
        (("experiment", "--kills", "2"), "--kills"),
        (("bench", "--no-warm"), "--no-warm"),
        (("aa", "E1", "--runs", "3"), "E1, --runs"),
        (("sync", "--cells", "floor", "--from", "x"), "--cells, --from"),
        (("cost", "--pairs", "2"), "--pairs"),
    ],
)
def test_a_resumed_run_keeps_its_settings(tmp_path, words, named):
    """What would be ignored is refused, also where it says what is the default."""
    done = harness(*words, "--resume", tmp_path, "--dir", tmp_path / "w", cwd=tmp_path)
    assert done.returncode == 2, done.stdout + done.stderr
    said = "--resume goes on with the settings of that run; leave out: "
    assert sorted(done.stdout.strip().split(said)[1].split(", ")) == sorted(named.split(", "))


def test_a_resumed_suite_is_the_one_that_is_named(tmp_path):
    (tmp_path / "out").mkdir()
    done = harness("run", "E1", *TINY, "--dir", tmp_path / "w", "--out", tmp_path / "out", cwd=tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    done = harness("suite", "001", "--resume", tmp_path / "out", cwd=tmp_path)
    assert done.returncode == 2 and "a run of 000, not of 001" in done.stdout
    assert harness("suite", "000", "--resume", tmp_path / "out", cwd=tmp_path).returncode == 0


@pytest.mark.skipif(os.geteuid() != 0, reason="a small file system needs root")
def test_a_full_result_disk_is_one_line(tmp_path):
    small = tmp_path / "small"
    small.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=16k", "none", str(small)], check=True)
    try:
        done = harness("run", "E1", *TINY, "--pairs", "9", "--dir", tmp_path / "w", "--out", small / "out")
    finally:
        subprocess.run(["umount", str(small)], check=True)
    assert done.returncode == 2, done.stdout + done.stderr
    assert "No space left on device" in done.stdout and "Traceback" not in done.stdout + done.stderr
    assert not (tmp_path / "w").exists()


@pytest.mark.parametrize(
    "words", [["list"], ["--help"], ["doctor"], ["run", "E1", *TINY]], ids=lambda w: w[0]
)
def test_a_full_disk_for_the_output_is_one_line(tmp_path, words):
    more = ["--dir", tmp_path / "w", "--out", tmp_path / "out"] if words[0] == "run" else []
    if words[0] == "doctor":
        more = [tmp_path]
    with Path("/dev/full").open("w") as full:
        done = harness(*words, *more, stdout=full)
    assert (done.returncode, done.stderr) == (2, "harness: No space left on device\n")
    assert not (tmp_path / "w").exists()


def test_a_directory_whose_name_is_no_text(tmp_path):
    """The kernel shows it, as it is, in the maps of the library's program."""
    place = tmp_path / os.fsdecode(b"o\xffu t")
    done = harness("run", "E1", "--scale", "tiny", "--no-warm", "--kinds", "kill", "--pairs", "2",
                   "--dir", place, "--out", tmp_path / "out")  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    assert not place.exists()


def started(words):
    argv = [
        sys.executable,
        "-c",
        f"import runpy, sys; {words}; runpy.run_module('harness', run_name='__main__')",
    ]
    return subprocess.run(argv, capture_output=True, text=True, cwd=ROOT, check=False)


def test_an_old_python_is_one_line():
    done = started("sys.version_info = (3, 9, 2)")
    assert done.returncode == 1 and done.stderr == "harness: needs Python 3.11 or newer; this is 3.9\n"


def test_a_missing_package_is_one_line():
    done = started("sys.modules['rich'] = None")
    assert done.returncode == 1 and done.stderr.startswith("harness: the Python package 'rich")
    assert done.stderr.count("\n") == 1 and "make deps-lab" in done.stderr


def test_a_missing_fio_is_known_before_the_start_and_skips_its_rows(monkeypatch, experiments):
    monkeypatch.setattr("harness.tools.fio.shutil.which", lambda name: None)
    assert "apt-get install fio" in TOOLS["fio"].missing({}) and not TOOLS["writer"].missing({})

    class Bench:
        hosts, shim = None, "no library"

    chosen = [experiments["B2"], experiments["AA"]]
    made = plan.make(chosen, suite="000", scale="tiny", seed=1, pairs=2, kills=1, memory_limit_bytes=1,
                     variants=("native", "control"), kinds=("measure",))  # fmt: skip
    found = runner.Runner(Bench(), made, {e.id: e for e in chosen}, None, None).skipped()
    assert list(found.values()) == [["B2"]] and "fio" in next(iter(found))


def test_a_benchmark_of_syncs_is_resumed_where_it_was(tmp_path):
    out = tmp_path / "sync.json"
    done = harness("sync", "--cells", "floor", "--pairs", "2", "--seconds", "0.05", "--warmup", "0", "--no-warm",
                   "--dir", tmp_path / "w", "--out", out, cwd=tmp_path)  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    record = json.loads(out.read_text())
    whole = len(record["samples"])
    kept = record["samples"][:1]
    out.write_text(json.dumps({**record, "samples": kept}))
    done = harness("sync", "--resume", out, cwd=tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    again = json.loads(out.read_text())
    assert len(again["samples"]) == whole == 2 and again["samples"][0] == kept[0]
    assert again["settings"] == record["settings"] and not (tmp_path / "lab-work").exists()
