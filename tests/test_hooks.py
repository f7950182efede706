# SPDX-License-Identifier: Apache-2.0
"""The hook programs (tests/hooks/*.c) pass natively, and with the library under several settings."""

from __future__ import annotations

import os
import re
import subprocess
import tempfile
from pathlib import Path

import pytest
from lib.support import ROOT, Run, assert_staged, complaints, disk_dir, leftovers, run_native, run_preloaded
from lib.tap import parse_tap

PROGRAMS = sorted(path.stem for path in (ROOT / "tests" / "hooks").glob("*.c"))
MODES = {
    "default": {},
    "smallest": {"mem": "1M", "block": "64K", "lag_ms": 1, "sync": "journal", "journal": "1M"},
    "exclusive": {"writers": "exclusive", "flush": "direct"},
    "shared": {"writers": "shared", "flush": "buffered"},
    "no-prealloc": {"prealloc_mode": "off", "sync": "off"},
    "strict": {"visibility": "strict"},
    "ordered": {"writers": "exclusive", "sync": "ordered"},
    "ordered-leased": {"sync": "ordered"},
    "strict-exclusive": {
        "visibility": "strict",
        "writers": "exclusive",
        "flush": "direct",
        "lag_ms": 5,
        "sync": "journal",
        "journal": "1M",
    },
}
ORDERED = ("ordered", "ordered-leased")
# Other descriptions of the same file append too in these programs, which `exclusive` promises away.
NOT_EXCLUSIVE = {"test_exec", "test_family", "test_fork", "test_lock"}
# Programs that fork first, which ends the order: nothing of them is staged.
FORKS = {
    "test_close",
    "test_family",
    "test_name",
    "test_namespaces",
    "test_system",
    "test_thread",
    "test_unhooked",
}
# Programs that have their files open several times: no lease can be had then.
OPEN_TWICE = {"test_stdio"}


def check(program: str, run: Run) -> None:
    totals = parse_tap(program, run.stdout, run.returncode)
    if totals.failed or totals.passed == 0 or run.returncode != 0:
        pytest.fail(f"{totals.line()}, status {run.returncode}\n{run.stdout}\n{run.stderr}", pytrace=False)
    for note in totals.notes:
        print(f"skipped: {note}")


def path_of(build: Path, program: str) -> Path:
    path = build / "tests" / program
    if not path.exists():
        done = subprocess.run(["make", "-s", "hooks"], cwd=ROOT, capture_output=True, text=True, check=False)
        assert path.exists(), f"{path} is not there: {done.stderr}"
    return path


@pytest.mark.parametrize("program", PROGRAMS)
def test_native(build, program):
    with disk_dir() as place:
        check(program, run_native([path_of(build, program)], place, CMOCKA_MESSAGE_OUTPUT="TAP"))


# What goes through writes one instruction, or one system call, at a time is long, as is what goes through all calls,
# and the others differ in what they do elsewhere.
STEPPED = {
    "test_preempt": {"default", "ordered", "strict-exclusive"},
    "test_step": {"default", "ordered", "strict-exclusive"},
    "test_pointer": {"default", "smallest", "ordered", "strict-exclusive"},
}


@pytest.mark.parametrize(
    ("program", "mode"),
    [(program, mode) for program in PROGRAMS for mode in MODES if mode in STEPPED.get(program, MODES)],
)
def test_preloaded(build, library, program, mode):
    if MODES[mode].get("writers") == "exclusive" and program in NOT_EXCLUSIVE:
        pytest.skip("several processes append: not what writers = exclusive is for")
    if mode in ORDERED and program == "test_syscall":
        pytest.skip("asks the kernel itself for the size after a sync, which drains nothing in this mode")
    with disk_dir() as place:
        run = run_preloaded(
            library,
            [path_of(build, program)],
            place,
            paths=f"!{place}/outside/**:{place}/**",
            timeout=900,
            env={"CMOCKA_MESSAGE_OUTPUT": "TAP"},
            **MODES[mode],
        )
        check(program, run)
        unleased = mode == "ordered-leased" and program in OPEN_TWICE
        if not unleased and (mode not in ORDERED or program not in FORKS):
            assert_staged(run.stats, 1000)
        said = complaints(program, run.stderr)
        if (
            "strict" in mode or mode == "ordered-leased"
        ):  # a program that changes its user cannot lease files of the old one: said once
            said = [line for line in said if "no lease can be had" not in line or "another user" not in line]
        assert not said, run.stderr
        assert not leftovers(place)
        assert os.listdir(place) == []


# Those that remove directories, or write outside their own: here the staging lies beside the first file.
@pytest.mark.parametrize(
    "program", ["test_attributes", "test_handle", "test_lock", "test_name", "test_sync", "test_syscall"]
)
def test_staging_beside_each_file(build, library, program):
    with disk_dir() as place:
        run = run_preloaded(
            library,
            [path_of(build, program)],
            place,
            paths=f"!{tempfile.gettempdir()}/fastwrite-stats-*:/**",
            timeout=900,
            env={"CMOCKA_MESSAGE_OUTPUT": "TAP"},
        )
        check(program, run)
        assert_staged(run.stats, 1000)
        assert os.listdir(place) == []


def test_every_hook_is_called(build):
    """Each symbol of hooks.def is imported by at least one of the programs."""
    names = re.findall(
        r"^(?:HOOK|OPTIONAL|VARIADIC|ALIAS)\([^,]*, *(\w+)",
        (ROOT / "shim" / "hooks" / "hooks.def").read_text(),
        re.MULTILINE,
    )
    assert len(names) > 100
    imported: set[str] = set()
    for program in PROGRAMS:
        listing = subprocess.run(
            ["nm", "-D", "-u", path_of(build, program)], capture_output=True, text=True, check=True
        )
        imported |= {line.split()[-1].split("@")[0] for line in listing.stdout.splitlines()}
    assert [name for name in names if name not in imported] == []
