# SPDX-License-Identifier: Apache-2.0
"""Death at every marked step of staging, sealing, flushing, appending, closing and recovering.

The debug build kills itself at the N-th kill_step().  For each workload and each N: run, die, recover, and
compare with the log of what had been acknowledged.  The engine's threads make the numbers of the steps vary a
little between runs; a workload is through when several runs in a row ended unharmed.
"""

from __future__ import annotations

import json
import os
import random
import shutil
import subprocess
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from lib import kill_model
from lib.recovery_lab import of_no_inode
from lib.support import disk_dir, preload_env

LONG = os.environ.get("FASTWRITE_TEST_LONG") == "1"
SOURCE = Path(__file__).resolve().parent / "kill" / "workload.c"
UNHARMED_ENOUGH = 3
STEPS_MAX = 5000
TIMEOUT_SECONDS = 60
SMALL = {"mem": "1M", "block": "64K", "lag_ms": 60000}
"""The least that is allowed, so that blocks run out; and no timer, whose steps come when they like."""


@dataclass(frozen=True)
class Case:
    """A workload under settings; `foreign`: somebody appends between the death and the recovery, and what he
    appends begins as what we would have written next; `stride`: so many steps lie between two deaths, others in each
    run (FASTWRITE_TEST_LONG=1: each step is one)."""

    name: str
    workload: str
    settings: dict = field(default_factory=dict)
    foreign: bool = False
    stride: int = 1


NAMES = {"writers": "exclusive", "sync": "ordered", "ordered_ms": 2, "lag_ms": 2}
CASES = [
    Case("sequential", "sequential"),
    Case("sequential-buffered", "sequential", {"flush": "buffered", "lag_ms": 1}),
    Case("positional", "positional"),
    Case("append-auto", "append"),
    Case("append-shared", "append", {"writers": "shared"}),
    Case("append-exclusive", "append", {"writers": "exclusive"}),
    Case("append-lag", "append", {"lag_ms": 1}),
    Case("append-auto-foreign", "append", foreign=True),
    Case("append-shared-foreign", "append", {"writers": "shared"}, foreign=True),
    Case("same-bytes-auto", "same"),
    Case("same-bytes-shared", "same", {"writers": "shared"}),
    Case("same-bytes-auto-foreign", "same", foreign=True),
    Case("same-bytes-shared-foreign", "same", {"writers": "shared"}, foreign=True),
    Case("direct", "direct"),
    Case("synced", "synced"),
    Case("synced-no-prealloc", "synced", {"prealloc_mode": "off"}),
    Case("journaled", "journaled", {"sync": "journal", "journal": "1M"}),
    Case("stealing", "stealing", stride=2),
    Case("ordered", "positional", {"writers": "exclusive", "sync": "ordered"}, stride=2),
    Case("ordered-large", "large", {"writers": "exclusive", "sync": "ordered"}, stride=3),
    Case("ordered-forks", "forks", {"writers": "exclusive", "sync": "ordered"}),
    Case("ordered-names", "transactions", NAMES, stride=2),
    Case("leased-names", "transactions", {**NAMES, "writers": "auto"}, stride=2),
    Case("threads", "mixed:3"),
    Case("records", "records:2", {"lag_ms": 1}),
]
if LONG:
    CASES += [
        Case(
            "journaled-threads", "journaled:3", {"sync": "journal", "journal": "1M", "writers": "exclusive"}
        ),
        Case("ordered-names-threads", "transactions:3", NAMES),
    ]


class Place:
    """A fresh directory with the workload's files and its log beside them."""

    def __init__(self, base: Path, name: str) -> None:
        self.base = base / name
        self.data = self.base / "data"
        self.log = self.base / "log"
        self.data.mkdir(parents=True)

    def ops(self) -> list[kill_model.Op]:
        return kill_model.read_log(self.log)

    def staging(self) -> Path:
        return self.data / ".fastwrite"

    def arenas(self) -> list[Path]:
        return sorted(self.staging().glob("*.arena")) if self.staging().exists() else []

    def remove(self) -> None:
        shutil.rmtree(self.base)


class Rig:
    """The debug build and the compiled workload."""

    def __init__(self, build_debug: Path, program: Path) -> None:
        self.library = build_debug / "libfastwrite.so"
        self.command = build_debug / "fastwrite"
        self.program = program

    def run(self, place: Place, case: Case, step: int, **settings: object) -> int:
        """Exit status of the workload that dies at `step`; 0: it does not."""
        env = preload_env(self.library, f"{place.data}/**", **{**SMALL, **case.settings, **settings})
        if step:
            env["FASTWRITE_KILL_STEP"] = str(step)
        done = subprocess.run(
            [str(self.program), str(place.data), str(place.log), case.workload, "1"],
            env={**os.environ, **env},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=TIMEOUT_SECONDS,
            check=False,
        )
        assert done.returncode in (0, -9), f"step {step}: {done.returncode}: {done.stderr.decode()}"
        return done.returncode

    def recover(self, place: Place, step: int = 0) -> tuple[int, dict]:
        """Exit status and report of `fastwrite recover`, which dies at `step`."""
        env = {"FASTWRITE_KILL_STEP": str(step)} if step else {}
        done = subprocess.run(
            [str(self.command), "recover", "--json", str(place.data)],
            env={**os.environ, **env},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=TIMEOUT_SECONDS,
            check=False,
        )
        assert done.returncode in ((0, -9) if step else (0,)), (
            f"{done.returncode}: {done.stderr}{done.stdout}"
        )
        return done.returncode, json.loads(done.stdout) if done.returncode == 0 else {}


@pytest.fixture(scope="module")
def rig(build_debug: Path, compile_c) -> Rig:
    made = Rig(build_debug, compile_c(SOURCE.read_text(), "-pthread"))
    if not made.library.exists() or not made.command.exists():
        pytest.fail(f"{build_debug} is not built; run make DEBUG=1")
    return made


@pytest.fixture(scope="module")
def disk():
    with disk_dir() as path:
        yield path


def append_foreign(place: Place, ops: list[kill_model.Op]) -> bytes:
    """Appends to the file of the workload bytes that begin like those that may still be staged."""
    path = place.data / "f0"
    have = path.read_bytes() if path.exists() else b""
    want = bytearray()
    for op in ops:
        kill_model.apply(want, op)
    foreign = bytes(want[len(have) : len(have) + 20]) + b"|somebody else|"
    with path.open("ab") as file:
        file.write(foreign)
    return foreign


def assert_clean(place: Place, context: str) -> None:
    assert not place.staging().exists(), f"{context}: left {list(place.staging().iterdir())}"


def die_and_recover(rig: Rig, base: Path, case: Case, step: int) -> tuple[bool, int]:
    """Whether it died, and how many bytes recovery wrote.  AssertionError for anything lost."""
    place = Place(base, f"{case.name}-{step}")
    killed = rig.run(place, case, step) != 0
    ops = place.ops()
    foreign = append_foreign(place, ops) if case.foreign and killed and ops else b""
    in_arena, _ = kill_model.engaged(place.arenas())
    _, report = rig.recover(place)
    context = f"{case.name} step {step}"
    problems = kill_model.check(place.data, ops, foreign, in_arena)
    assert not problems, f"{context}: {problems}"
    assert report["failed"] == 0 and report["live"] == 0, f"{context}: {report}"
    assert_clean(place, context)
    if step % 8 == 0:
        before = {p.name: p.read_bytes() for p in place.data.iterdir()}
        _, report = rig.recover(place)
        assert report["arenas"] == 0, f"{context}: {report}"
        assert before == {p.name: p.read_bytes() for p in place.data.iterdir()}, context
    place.remove()
    return killed, report["bytes"]


def unharmed(rig: Rig, base: Path, case: Case) -> None:
    """Nobody dies: all is there, nothing is left, and the library was at work."""
    place = Place(base, f"{case.name}-unharmed")
    stats = place.base / "stats"
    assert rig.run(place, case, 0, stats=stats) == 0
    assert all(op.returned for op in place.ops())
    assert not kill_model.check(place.data, place.ops())
    assert_clean(place, case.name)
    text = stats.read_text()
    assert " 0 writes staged" not in text and "writes staged" in text, text
    place.remove()


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_every_step(rig: Rig, disk: Path, case: Case) -> None:
    unharmed(rig, disk, case)
    alive = 0
    recovered = []
    stride = 1 if LONG else case.stride
    step = random.randint(1, stride)
    with ThreadPoolExecutor(max_workers=2) as pool:
        while alive < UNHARMED_ENOUGH and step < STEPS_MAX:
            batch = range(step, step + 8 * stride, stride)
            for killed, size in pool.map(lambda n: die_and_recover(rig, disk, case, n), batch):
                alive = 0 if killed else alive + 1
                recovered.append(size)
            step += 8 * stride
    assert alive >= UNHARMED_ENOUGH, f"still dying at step {step}"
    with_bytes = sum(size > 0 for size in recovered)
    assert with_bytes >= 5, f"only {with_bytes} of {len(recovered)} deaths left bytes to recover"
    print(f"{case.name}: {len(recovered)} deaths, {with_bytes} of them with bytes to recover")


class Saved:
    """Files and arenas after a death, to be put back with the same inodes for the files."""

    def __init__(self, place: Place) -> None:
        self.place = place
        self.files = {p: (p.read_bytes(), p.stat()) for p in place.data.iterdir() if p.is_file()}
        self.arenas = {p: of_no_inode(p.read_bytes()) for p in place.arenas()}

    def restore(self) -> None:
        for path, (content, stat) in self.files.items():
            with path.open("r+b") as file:
                file.truncate(0)
                file.write(content)
            os.utime(path, ns=(stat.st_atime_ns, stat.st_mtime_ns))
        if self.arenas:
            self.place.staging().mkdir(mode=0o700, exist_ok=True)
        for path, content in self.arenas.items():
            path.write_bytes(content)
            path.chmod(0o600)


def recovery_dies_everywhere(rig: Rig, base: Path, case: Case, step: int) -> int:
    """Recovery of one death, killed at each of its own steps and run again; how many deaths."""
    place = Place(base, f"{case.name}-again-{step}")
    rig.run(place, case, step)
    ops = place.ops()
    foreign = append_foreign(place, ops) if case.foreign and ops else b""
    saved = Saved(place)
    again = 0
    for again in range(1, STEPS_MAX):
        status, _ = rig.recover(place, again)
        if status == 0:
            break
        rig.recover(place)
        context = f"{case.name} step {step}, recovery's step {again}"
        problems = kill_model.check(place.data, ops, foreign)
        assert not problems, f"{context}: {problems}"
        assert_clean(place, context)
        saved.restore()
    assert not kill_model.check(place.data, ops, foreign)
    place.remove()
    return again - 1


def orphan_bytes(place: Place) -> dict[str, bytes]:
    """What was put aside, by the number of the file that it was for."""
    orphans = place.staging() / "orphans"
    return {p.name: p.read_bytes() for p in sorted(orphans.iterdir())} if orphans.exists() else {}


def orphaning_dies_everywhere(rig: Rig, base: Path, case: Case, step: int) -> int:
    """The files are gone; putting their bytes aside is killed at each step and run again; how many deaths."""
    place = Place(base, f"{case.name}-orphan-{step}")
    rig.run(place, case, step)
    arenas = {p: of_no_inode(p.read_bytes()) for p in place.arenas()}
    for path in place.data.iterdir():
        if path.is_file():
            path.unlink()

    def restore() -> None:
        shutil.rmtree(place.staging(), ignore_errors=True)
        if arenas:
            place.staging().mkdir(mode=0o700)
        for path, content in arenas.items():
            path.write_bytes(content)
            path.chmod(0o600)

    _, report = rig.recover(place)
    wanted = orphan_bytes(place)
    assert report["orphans"] == len(wanted) and not place.arenas()
    again = 0
    for again in range(1, STEPS_MAX):
        restore()
        status, _ = rig.recover(place, again)
        if status == 0:
            break
        rig.recover(place)
        context = f"{case.name} step {step}, recovery's step {again}"
        assert orphan_bytes(place) == wanted, context
        assert not place.arenas(), context
    place.remove()
    return again - 1 if wanted else 0


@pytest.mark.parametrize(
    "case",
    [c for c in CASES if c.name in ("positional", "append-auto", "append-shared")],
    ids=lambda case: case.name,
)
def test_putting_aside_again(rig: Rig, disk: Path, case: Case) -> None:
    steps = range(12, 400, 9) if LONG else range(14, 62, 12)
    with ThreadPoolExecutor(max_workers=2) as pool:
        deaths = sum(pool.map(lambda n: orphaning_dies_everywhere(rig, disk, case, n), steps))
    assert deaths >= 8, f"putting aside had only {deaths} steps"


AGAIN = [
    "positional",
    "append-auto",
    "append-shared-foreign",
    "same-bytes-shared",
    "synced",
    "stealing",
]


@pytest.mark.parametrize("case", [c for c in CASES if LONG or c.name in AGAIN], ids=lambda case: case.name)
def test_recovery_of_the_recovery(rig: Rig, disk: Path, case: Case) -> None:
    steps = range(12, 400, 9) if LONG else range(14, 62, 12)
    with ThreadPoolExecutor(max_workers=2) as pool:
        deaths = sum(pool.map(lambda n: recovery_dies_everywhere(rig, disk, case, n), steps))
    assert deaths >= 8, f"recovery had only {deaths} steps"
