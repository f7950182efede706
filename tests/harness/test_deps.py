# SPDX-License-Identifier: Apache-2.0
"""scripts/deps with a made-up machine: what it does to .venv, and two at once. And the Makefile's calls."""

import os
import shutil
import subprocess

import pytest

from harness import ROOT

DPKG_QUERY = "#!/bin/sh\nprintf installed\n"
PYTHON = """#!/bin/bash
echo "begin $*" >> "$LOG"
case "$*" in
-c*) [ "$VERSION" -ge 11 ]; status=$? ;;
-V) echo "Python 3.$VERSION" ;;
"-m venv"*) mkdir -p .venv/bin; cp "$0" .venv/bin/python; touch .venv/pip ;;
"-m pip"*) [ -e .venv/pip ]; status=$?; sleep 0.2 ;;
esac
echo "end $*" >> "$LOG"
exit ${status:-0}
"""


@pytest.fixture
def clone(tmp_path):
    """A clone in a path with a blank, and a machine that has all packages; its Python notes each call."""
    root = tmp_path / "a clone"
    (root / "scripts").mkdir(parents=True)
    shutil.copy(ROOT / "scripts" / "deps", root / "scripts")
    shutil.copy(ROOT / "Makefile", root)
    (root / "requirements.txt").write_text("rich\n")
    programs = tmp_path / "bin"
    programs.mkdir()
    for name, text in (("dpkg-query", DPKG_QUERY), ("python3", PYTHON)):
        (programs / name).write_text(text)
        (programs / name).chmod(0o755)
    return root


def start(clone, version=11):
    env = {**os.environ, "PATH": f"{clone.parent / 'bin'}:{os.environ['PATH']}", "VERSION": str(version),
           "LOG": str(clone.parent / "log")}  # fmt: skip
    argv = [clone / "scripts" / "deps", "python"]
    return subprocess.Popen(argv, env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def ended(process):
    out, err = process.communicate(timeout=60)
    return process.returncode, out + err


def test_two_at_once_install_one_after_the_other(clone):
    started = [start(clone), start(clone)]
    assert [ended(process)[0] for process in started] == [0, 0]
    calls = (clone.parent / "log").read_text().splitlines()
    assert [line.split()[0] for line in calls] == ["begin", "end"] * (len(calls) // 2)
    assert sum("venv" in line for line in calls) == 2  # the second found everything there
    assert sorted(p.name for p in clone.iterdir()) == [".venv", "Makefile", "requirements.txt", "scripts"]
    assert [p.name for p in (clone / "scripts").iterdir()] == ["deps"]


def test_an_interrupted_venv_is_made_anew(clone):
    (clone / ".venv" / "bin").mkdir(parents=True)
    shutil.copy(clone.parent / "bin" / "python3", clone / ".venv" / "bin" / "python")
    status, said = ended(start(clone))
    assert status == 0, said
    assert "begin -m venv --clear .venv" in (clone.parent / "log").read_text()
    assert (clone / ".venv" / ".installed").read_text() == "rich\n"


def test_an_old_python_is_named_with_the_version_that_is_needed(clone):
    status, said = ended(start(clone, version=9))
    assert status == 1 and "need Python 3.11 or newer; python3 is Python 3.9" in said
    assert not (clone / ".venv").exists()


def test_the_interpreter_may_be_in_a_path_with_a_blank(clone):
    argv = ["make", "-n", "MAKE=true", "soak-power", "soak-surroundings"]
    told = subprocess.run(argv, cwd=clone, capture_output=True, text=True, check=True).stdout
    calls = [line for line in told.splitlines() if "cd tests" in line]
    assert len(calls) == 3 and all(f"cd tests && '{clone}/.venv/bin/python' -m" in line for line in calls)
