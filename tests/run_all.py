#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Runs the suites and ends with two lines: the machine, and `N passed, N failed, N skipped`.

Suites: cmocka programs (TAP on stdout), the export list, pytest.  Exit status 1 when anything failed.
Uses the standard library only, so that the unit tests can run without the Python parts.
"""

from __future__ import annotations

import argparse
import os
import re
import signal
import subprocess
import sys
import xml.etree.ElementTree as ElementTree
from functools import partial
from pathlib import Path

from lib import support
from lib.jobs import Job, Outcome, Record, run_jobs, workers
from lib.speed import machine
from lib.support import clean_environment, too_slow
from lib.tap import Totals, parse_tap

ROOT = Path(__file__).resolve().parent.parent
# Of one program: ends what hangs, also on a machine with much else to do.  (An emulated one takes longer.)
TIMEOUT_SECONDS = int(os.environ.get("FASTWRITE_TEST_TIMEOUT") or 600)
# Children forked while there are threads must go on; each would wait a second for late races when it ends.
TSAN_OPTIONS = f"die_after_fork=0:atexit_sleep_ms=0:suppressions={ROOT / 'tests' / 'tsan.supp'}"


# These take longest: begun first, so that none of them is left over for the end.
LONG = ("test_log", "test_workers", "test_stage", "test_fuzz_corpus")


def run_unit(program: Path) -> Outcome:
    if not program.exists():
        return Outcome(Totals(failed=1), "not built")
    # in a group of its own, so that what it started dies with it
    with subprocess.Popen(
        [str(program)],
        cwd=ROOT,
        env=clean_environment(CMOCKA_MESSAGE_OUTPUT="TAP"),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        start_new_session=True,
    ) as process:
        try:
            output, _ = process.communicate(timeout=TIMEOUT_SECONDS)
            slow = ""
        except subprocess.TimeoutExpired:
            slow = too_slow(TIMEOUT_SECONDS, program.name)
            os.killpg(process.pid, signal.SIGKILL)
            output, _ = process.communicate()
    totals = parse_tap(program.name, output, process.returncode)
    if slow:
        totals.fail(slow)
    return Outcome(totals, output)


def unit_jobs(build: Path) -> list[Job]:
    names = sorted(path.stem for path in (ROOT / "tests" / "unit").glob("test_*.c"))
    names.sort(key=lambda name: name not in LONG)
    return [Job(name, partial(run_unit, build / "tests" / "unit" / name)) for name in names]


NOT_UNDER_TSAN = {
    "test_thread": "signals by the thousand, handlers left by jumps, cancellation within the sanitizer's own locks: "
    "the thread sanitizer hangs in it",
    "test_step": "a signal between any two instructions: the thread sanitizer delivers them where it likes",
    "test_preempt": "two threads that race for files and descriptors, which is what it is about",
    "test_pointer": "wild pointers: the sanitizer itself reads what they point to",
}


def run_hook(build: Path, name: str) -> Outcome:
    """A hook program with the library, both under a sanitizer: its report is a failure."""
    if "tsan" in build.name and name in NOT_UNDER_TSAN:
        return Outcome(Totals(skipped=1, notes=[f"{name}: {NOT_UNDER_TSAN[name]}"]))
    with support.disk_dir() as place:
        try:
            run = support.run_preloaded(
                build / "libfastwrite.so",
                [build / "tests" / name],
                place,
                timeout=TIMEOUT_SECONDS,
                env=clean_environment(CMOCKA_MESSAGE_OUTPUT="TAP", TSAN_OPTIONS=TSAN_OPTIONS),
            )
        except subprocess.TimeoutExpired as stopped:
            return Outcome(Totals(failed=1, wrong=[str(stopped)]), f"{stopped.output}\n{stopped.stderr}")
    totals = parse_tap(name, run.stdout, run.returncode)
    if "Sanitizer" in run.stderr:
        summary = re.search(r"^SUMMARY: (.*)$", run.stderr, re.MULTILINE)
        totals.fail(
            f"{name}: the sanitizer complains: {summary[1] if summary else 'it does not say of what'}"
        )
    if run.stats.bytes < 1000:
        totals.fail(f"{name}: hardly anything was staged: {run.stats}")
    return Outcome(totals, f"{run.stdout}\n{run.stderr}")


def hook_jobs(build: Path, without: list[str]) -> list[Job]:
    names = sorted(
        path.stem for path in (ROOT / "tests" / "hooks").glob("test_*.c") if path.stem not in without
    )
    return [Job(f"{name}, preloaded", partial(run_hook, build, name)) for name in names]


def run_exports(build: Path) -> Totals:
    done = subprocess.run(
        [str(ROOT / "scripts" / "exports"), "--check", str(build / "libfastwrite.so")], check=False
    )
    return Totals(passed=int(done.returncode == 0), failed=int(done.returncode != 0))


def parse_junit(path: Path, record: Record) -> Totals:
    totals = Totals()
    root = ElementTree.parse(path).getroot()
    for suite in root.iter("testsuite"):
        tests = int(suite.get("tests", 0))
        failed = int(suite.get("failures", 0)) + int(suite.get("errors", 0))
        skipped = int(suite.get("skipped", 0))
        totals.add(Totals(tests - failed - skipped, failed, skipped))
    for case in root.iter("testcase"):
        name = f"{case.get('classname')}.{case.get('name')}"
        record.add(name, float(case.get("time", 0)))
        for bad in (*case.iter("failure"), *case.iter("error")):
            record.fail(name, bad.get("message", "").splitlines()[:12])
        totals.notes += [f"{name}: {skip.get('message')}" for skip in case.iter("skipped")]
    return totals


def run_pytest(build: Path, arguments: list[str], record: Record) -> Totals:
    report = build / "pytest.xml"
    report.unlink(missing_ok=True)
    environment = clean_environment(
        FASTWRITE_TEST_BUILD=str(build), FASTWRITE_TEST_BUILD_DEBUG=str(ROOT / "build-debug")
    )
    # compiling each module anew costs a worker ten seconds, and each start of the laboratory one
    environment.pop("PYTHONDONTWRITEBYTECODE", None)
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-n", str(workers()), f"--junitxml={report}", *arguments],
        cwd=ROOT,
        env=environment,
        stdin=subprocess.DEVNULL,
        check=False,
    )
    totals = parse_junit(report, record) if report.exists() else Totals()
    if done.returncode not in (0, 5) and totals.failed == 0:
        totals.fail(f"pytest ended with status {done.returncode}")
        print(*totals.wrong, sep="\n", flush=True)
    return totals


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--build", type=Path, default=ROOT / "build", help="release build directory")
    parser.add_argument("--units", type=Path, help="run the unit tests of this build directory")
    parser.add_argument(
        "--hooks", type=Path, help="run the hook programs preloaded, with the default settings"
    )
    parser.add_argument("--without", nargs="+", default=[], help="not these hook programs")
    parser.add_argument("--exports", action="store_true", help="compare the library's symbols with hooks.def")
    parser.add_argument("--python", action="store_true", help="run pytest")
    parser.add_argument("pytest_arguments", nargs="*", help="handed to pytest, behind --")
    options = parser.parse_args()

    support.default_signals()
    load, *_ = os.getloadavg()
    build = options.build.resolve()
    totals = Totals()
    record = Record()
    if options.units:
        totals.add(run_jobs(unit_jobs(options.units.resolve()), record))
    if options.hooks:
        totals.add(run_jobs(hook_jobs(options.hooks.resolve(), options.without), record))
    if options.exports:
        totals.add(run_exports(build))
    if options.python:
        totals.add(run_pytest(build, options.pytest_arguments, record))
    for note in totals.notes:
        print(f"skipped: {note}")
    print(record.table())
    record.hand_on()
    print(machine(load))
    print(totals.line(), flush=True)
    return 1 if totals.failed else 0


if __name__ == "__main__":
    sys.exit(main())
