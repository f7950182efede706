# SPDX-License-Identifier: Apache-2.0
"""CPython's own tests: each single test ends natively and under the library in the same way."""

from __future__ import annotations

import os
import shutil
import subprocess
import xml.etree.ElementTree as ElementTree
from functools import cache
from pathlib import Path

from programs.case import Case
from programs.place import Place

# the first that brings the tests is taken; Debian's libpython3.11-testsuite has not all of them
PYTHONS = ("/usr/bin/python3", "python3", "python3.11", "python3.12", "python3.13")


@cache
def python_with(module: str) -> str:
    """An interpreter whose library has this test; "" when there is none."""
    for name in (os.environ.get("FASTWRITE_TEST_PYTHON", ""), *PYTHONS):
        path = shutil.which(name) if name else None
        if not path:
            continue
        look = f"import importlib.util, sys; sys.exit(not importlib.util.find_spec('test.{module}'))"
        if subprocess.run([path, "-c", look], capture_output=True, check=False).returncode == 0:
            # the program itself, not a script that looks for it
            show = [path, "-c", "import sys; print(sys.executable)"]
            return subprocess.run(show, capture_output=True, text=True, check=True).stdout.strip()
    return ""


def outcomes(path: Path) -> dict[str, str]:
    """Name of a test -> how it ended."""
    found: dict[str, str] = {}
    for case in ElementTree.parse(path).getroot().iter("testcase"):
        how = [child.tag for child in case if child.tag in ("failure", "error", "skipped")]
        found[case.get("name", "")] = how[0] if how else "passed"
    return found


class CPython(Case):
    survives = "nothing is said about the content; recovery ends without a failure and leaves nothing"
    settings = ({"sync": "fdatasync"}, {"sync": "fsync", "lag_ms": 1})
    kills = 3

    def __init__(self, module: str, quick: bool, unstaged: str = "") -> None:
        self.unstaged = unstaged
        self.name = f"CPython's {module}"
        self.module = module
        self.in_quick = quick

    def missing(self) -> str:
        if python_with(self.module):
            return ""
        return (
            f"no Python with test.{self.module}: install libpython3.11-testsuite, "
            "or name one in FASTWRITE_TEST_PYTHON"
        )

    def command(self, place: Place, report: Path) -> list[str | Path]:
        return [
            *(python_with(self.module), "-m", "test", "--tempdir", place.data, "--junit-xml", report),
            *("--timeout", "600", self.module),
        ]

    def run(self, place: Place) -> object:
        report = place.aside / "report.xml"
        # 2: some failed, which they may do natively, too
        place.run(
            *self.command(place, report), cwd=place.aside, expect=(0, 2), env={"TMPDIR": str(place.data)}
        )
        found = outcomes(report)
        assert len(found) > 10, found
        return found

    def kill(self, place: Place) -> None:
        process = place.start(
            *self.command(place, place.aside / "report.xml"), cwd=place.aside, env={"TMPDIR": str(place.data)}
        )

        def staged() -> bool:
            place.look()
            return process.popen.poll() is not None or place.staged() > 0

        place.until(staged, "something is staged", every=0.1)
        place.pause(1.0)
        if process.popen.poll() is None and process.program():
            process.kill()
        else:
            process.wait()  # it was over before
        place.bring_back()
        if place.way == "next":
            place.run("true")


CASES = [
    CPython("test_fileio", True),
    CPython("test_io", False),
    CPython("test_os", False),
    CPython("test_mmap", False, "its files are mapped after one write"),
    CPython("test_subprocess", False, "its files have no name, or get one write each"),
    CPython("test_sqlite3", False),
    CPython("test_shutil", True),
    CPython("test_fcntl", True, "it locks and writes no file twice"),
]
