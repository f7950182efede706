# SPDX-License-Identifier: Apache-2.0
"""Text is UTF-8 in every locale, and names of files need be no text."""

import ast
import json
import os
import shutil
import subprocess
import sys

import lab_fakes as fakes
import pytest

from harness import ROOT
from harness.core import shim
from harness.core.store import RunStore

LOCALE = {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
OTHER_OPEN = ("os", "tarfile", "RunStore", "cls")


def harness(*args, **env):
    argv = [sys.executable, "-m", "harness", *map(str, args)]
    return subprocess.run(argv, cwd=ROOT, capture_output=True, env={**os.environ, **env}, timeout=300)


def without_encoding(source):
    """Lines of calls that open a text file in the locale's encoding."""
    for call in (node for node in ast.walk(ast.parse(source)) if isinstance(node, ast.Call)):
        owner = getattr(getattr(call.func, "value", None), "id", "")
        name = getattr(call.func, "attr", getattr(call.func, "id", ""))
        given = [*call.args, *(k.value for k in call.keywords if k.arg == "mode")]
        modes = [str(a.value) for a in given if isinstance(a, ast.Constant)]
        opens = name == "open" and owner not in OTHER_OPEN and not any("b" in m[:3] for m in modes)
        method = isinstance(call.func, ast.Attribute) and name in ("read_text", "write_text")
        if (method or opens) and not any(k.arg == "encoding" for k in call.keywords):
            yield call.lineno


def test_calls_without_an_encoding_are_found():
    found = (
        'p.read_text()\nopen(p)\np.open("w")\nopen(p, "rb")\nos.open(p, 0)\np.read_text(encoding="utf-8")\n'
    )
    assert list(without_encoding(found)) == [1, 2, 3]


def test_every_text_file_has_an_encoding():
    found = [
        f"{path}:{line}"
        for path in sorted((ROOT / "harness").rglob("*.py"))
        for line in without_encoding(path.read_text(encoding="utf-8"))
    ]
    assert found == []


def test_the_catalog_is_read_in_any_locale():
    done = harness("list", "000", **LOCALE)
    assert done.returncode == 0 and b"E1" in done.stdout, done.stdout + done.stderr


def test_a_report_is_written_in_any_locale(tmp_path):
    store = RunStore.create(tmp_path, fakes.settings(rounds_per_run=0))
    for number in (1, 2, 3):
        store.append(fakes.measured("E1", "native", number, 500))
        store.append(fakes.measured("E1", "shim", number, 1500))
    done = harness("report", tmp_path, **LOCALE)
    assert done.returncode == 0, done.stdout + done.stderr
    for name in ("results.md", "report.html"):
        assert "×" in (tmp_path / name).read_text(encoding="utf-8")


def test_a_name_that_is_no_text_does_not_end_a_comparison(tmp_path):
    if isinstance(shim.find(), str):
        pytest.skip(shim.find())
    if shutil.which("strace") is None:
        pytest.skip("strace is not installed")
    where = ("--dir", tmp_path / "work", "--out", tmp_path / "out")
    done = harness("ab", *where, "--", "sh", "-c", "echo text > $(printf '\\377.log')")
    if b"strace may not trace here" in done.stdout:
        pytest.skip(done.stdout.decode())
    assert done.returncode == 0 and b"Traceback" not in done.stderr, done.stdout + done.stderr
    assert "\udcff.log" in json.loads((tmp_path / "out" / "ab.json").read_text())["compared"]
    assert "\\udcff.log" in (tmp_path / "out" / "ab.md").read_text(encoding="utf-8")
