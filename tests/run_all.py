#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Runs the suites and ends with one line: `N passed, N failed, N skipped`.

Suites: cmocka programs (TAP on stdout), the export list, pytest.  Exit status 1 when anything failed.
Uses the standard library only, so that the unit tests can run without the Python parts.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import xml.etree.ElementTree as ElementTree
from pathlib import Path

from lib import support
from lib.support import clean_environment
from lib.tap import Totals, parse_tap

ROOT = Path(__file__).resolve().parent.parent
TIMEOUT_SECONDS = 180  # of one program
# Children forked while there are threads must go on; each would wait a second for late races when it ends.
TSAN_OPTIONS = f"die_after_fork=0:atexit_sleep_ms=0:suppressions={ROOT / 'tests' / 'tsan.supp'}"


def run_units(build: Path) -> Totals:
    totals = Totals()
    programs = sorted(
        p for p in (build / "tests" / "unit").glob("test_*") if p.suffix == "" and os.access(p, os.X_OK)
    )
    sources = {p.stem for p in (ROOT / "tests" / "unit").glob("test_*.c")}
    for program in programs:
        if program.name not in sources:
            continue  # left over from a source that is gone
        try:
            done = subprocess.run(
                [str(program)],
                cwd=ROOT,
                env=clean_environment(CMOCKA_MESSAGE_OUTPUT="TAP"),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                timeout=TIMEOUT_SECONDS,
                check=False,
            )
            output, returncode = done.stdout.decode(errors="replace"), done.returncode
        except subprocess.TimeoutExpired as stopped:
            output = (stopped.stdout or b"").decode(errors="replace")
            output += f"\nstopped after {TIMEOUT_SECONDS} s\n"
            returncode = -9
        one = parse_tap(program.name, output, returncode)
        print(f"{program.name}: {one.line()}", flush=True)
        if one.failed:
            print(output, flush=True)
            if returncode < 0:
                print(f"{program.name}: died of signal {-returncode}", flush=True)
        totals.add(one)
    missing = sources - {p.name for p in programs}
    for name in sorted(missing):
        print(f"{name}: not built", flush=True)
        totals.failed += 1
    return totals


NOT_UNDER_TSAN = {
    "test_thread": "signals by the thousand, handlers left by jumps, cancellation within the sanitizer's own locks: "
    "the thread sanitizer hangs in it",
    "test_step": "a signal between any two instructions: the thread sanitizer delivers them where it likes",
    "test_preempt": "two threads that race for files and descriptors, which is what it is about",
    "test_pointer": "wild pointers: the sanitizer itself reads what they point to",
}


def run_hooks(build: Path) -> Totals:
    """The hook programs with the library, both under a sanitizer: its report is a failure."""
    totals = Totals()
    for source in sorted((ROOT / "tests" / "hooks").glob("test_*.c")):
        program = build / "tests" / source.stem
        if "tsan" in build.name and source.stem in NOT_UNDER_TSAN:
            totals.skipped += 1
            totals.notes.append(f"{source.stem}: {NOT_UNDER_TSAN[source.stem]}")
            continue
        with support.disk_dir() as place:
            try:
                run = support.run_preloaded(
                    build / "libfastwrite.so",
                    [program],
                    place,
                    timeout=TIMEOUT_SECONDS,
                    env=clean_environment(CMOCKA_MESSAGE_OUTPUT="TAP", TSAN_OPTIONS=TSAN_OPTIONS),
                )
            except subprocess.TimeoutExpired as stopped:
                print(f"{program.name}, preloaded: stopped after {TIMEOUT_SECONDS} s", flush=True)
                print(stopped.output, stopped.stderr, sep="\n", flush=True)
                totals.failed += 1
                continue
        one = parse_tap(program.name, run.stdout, run.returncode)
        if "Sanitizer" in run.stderr and one.failed == 0:
            one.failed += 1
        if run.stats.bytes < 1000:
            print(f"{program.name}: hardly anything was staged: {run.stats}", flush=True)
            one.failed += 1
        print(f"{program.name}, preloaded: {one.line()}", flush=True)
        if one.failed:
            print(run.stdout, run.stderr, sep="\n", flush=True)
        totals.add(one)
    return totals


def run_exports(build: Path) -> Totals:
    done = subprocess.run(
        [str(ROOT / "scripts" / "exports"), "--check", str(build / "libfastwrite.so")], check=False
    )
    return Totals(passed=int(done.returncode == 0), failed=int(done.returncode != 0))


def parse_junit(path: Path) -> Totals:
    totals = Totals()
    for suite in ElementTree.parse(path).getroot().iter("testsuite"):
        tests = int(suite.get("tests", 0))
        bad = int(suite.get("failures", 0)) + int(suite.get("errors", 0))
        skipped = int(suite.get("skipped", 0))
        totals.add(Totals(tests - bad - skipped, bad, skipped))
    for case in ElementTree.parse(path).getroot().iter("testcase"):
        for skip in case.iter("skipped"):
            totals.notes.append(f"{case.get('classname')}.{case.get('name')}: {skip.get('message')}")
    return totals


def run_pytest(build: Path, arguments: list[str]) -> Totals:
    report = build / "pytest.xml"
    report.unlink(missing_ok=True)
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", f"--junitxml={report}", *arguments],
        cwd=ROOT,
        env=clean_environment(
            FASTWRITE_TEST_BUILD=str(build), FASTWRITE_TEST_BUILD_DEBUG=str(ROOT / "build-debug")
        ),
        stdin=subprocess.DEVNULL,
        check=False,
    )
    totals = parse_junit(report) if report.exists() else Totals()
    if done.returncode not in (0, 5) and totals.failed == 0:
        print(f"pytest ended with status {done.returncode}", flush=True)
        totals.failed += 1
    return totals


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--build", type=Path, default=ROOT / "build", help="release build directory")
    parser.add_argument("--units", type=Path, help="run the unit tests of this build directory")
    parser.add_argument("--hooks", type=Path, help="run the hook programs preloaded, from a sanitized build")
    parser.add_argument("--exports", action="store_true", help="compare the library's symbols with hooks.def")
    parser.add_argument("--python", action="store_true", help="run pytest")
    parser.add_argument("pytest_arguments", nargs="*", help="handed to pytest, behind --")
    options = parser.parse_args()

    support.default_signals()
    build = options.build.resolve()
    totals = Totals()
    if options.units:
        totals.add(run_units(options.units.resolve()))
    if options.hooks:
        totals.add(run_hooks(options.hooks.resolve()))
    if options.exports:
        totals.add(run_exports(build))
    if options.python:
        totals.add(run_pytest(build, options.pytest_arguments))
    for note in totals.notes:
        print(f"skipped: {note}")
    print(totals.line(), flush=True)
    return 1 if totals.failed else 0


if __name__ == "__main__":
    sys.exit(main())
