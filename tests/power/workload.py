# SPDX-License-Identifier: Apache-2.0
"""What programs run, with which settings, and how it is looked at what is left of their work."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from random import Random

from lib.support import Stats, parse_stats, preload_env

from power.acks import Acks
from power.check import Check, Verdict
from power.content import Content
from power.system import DISK, PLACE, contained

NATIVE, RELAXED = "native", "relaxed"
RELAXED_MS = 50
# What the library is to keep.  A policy of which the same is promised need only be added to LOSE_NOTHING.
JOURNAL = "journal"
LOSE_NOTHING = (NATIVE, "fdatasync", "fsync", JOURNAL)
CONTROL = ("off",)
POLICIES = (*LOSE_NOTHING, RELAXED, *CONTROL)
# Syncs of a run, of each thread if there are several.
KINDS = {
    "append": 120,
    "leave": 30,
    "ways": 60,
    "position": 120,
    "threads": 30,
    "stdio": 120,
    "dsync": 40,
    "create": 80,
    "replace": 80,
    "rotate": 120,
    "sqlite-delete": 40,
    "sqlite-wal": 80,
}
# `relaxed` makes no promise about the order of two files, on which a database stands.
NOT_RELAXED = ("sqlite-delete", "sqlite-wal")
PATIENCE_SECONDS = 120
SKIPPED = 77  # exit status of a driver on a machine that cannot run it
DATA = DISK / "data"


class FailedError(Exception):
    """The test itself, or a program in it, did not do what it should have."""


@dataclass(frozen=True)
class Tools:
    """The build under test, and the programs of tests/power."""

    library: Path
    command: Path
    helpers: Path


@dataclass(frozen=True)
class Job:
    """One run of one program."""

    kind: str
    fs: str
    policy: str
    seed: int

    def __str__(self) -> str:
        return f"{self.kind} on {self.fs}, {self.policy}, seed {self.seed}"

    def options(self) -> str:
        return f"--fs {self.fs} --sync {self.policy} --kinds {self.kind} --seed {self.seed}"


def settings(job: Job) -> dict[str, object]:
    """Of the library: small arenas as well as large ones, since the first flush of a file comes at other times."""
    dice = Random(job.seed * 31 + 7)
    chosen: dict[str, object] = {"sync": job.policy, "relaxed_ms": RELAXED_MS}
    if dice.random() < 0.5:
        chosen.update(mem="1M", block="64K")
    if dice.random() < 0.3:
        chosen.update(lag_ms=dice.choice((2, 10, 500)))
    if dice.random() < 0.2:
        chosen.update(visibility="strict")
    if dice.random() < 0.2:
        chosen.update(flush="buffered")
    if dice.random() < 0.2:
        chosen.update(prealloc=0)
    if job.policy == JOURNAL:
        chosen.update(journal="1M")
        if dice.random() < 0.5 or "sqlite" in job.kind:
            chosen.update(writers="exclusive")
    if dice.random() < 0.7:
        chosen.update(adapt="off")
    if job.policy == JOURNAL and dice.random() < 0.5:
        chosen.update(flush="direct")
    return chosen


def syncs_of(job: Job) -> int:
    """More with a journal, which the first ones do not have."""
    return KINDS[job.kind] * (4 if job.policy == JOURNAL else 1)


def command(job: Job, tools: Tools, acks: Path, syncs: int, pace_us: int, linger: bool) -> list[str]:
    if job.kind.startswith("sqlite-"):
        program = [sys.executable, str(Path(__file__).with_name("transactions.py")), job.kind[7:]]
    else:
        program = [str(tools.helpers / "writer"), job.kind]
    return [*program, str(DATA), str(acks), str(job.seed), str(syncs), str(pace_us), str(int(linger))]


class Writer:
    """The program, running.  At the end of a `with` it is gone."""

    def __init__(
        self, job: Job, tools: Tools, acks: Path, *, syncs: int, pace_us: int = 0, linger: bool = False
    ) -> None:
        self.job = job
        self.stats_file = PLACE / "stats"
        self.stats_file.write_text("")
        env = dict(os.environ)
        if job.policy != NATIVE:
            chosen = settings(job)
            env.update(preload_env(tools.library, f"{DATA}/**", stats=self.stats_file, **chosen))
        self.errors = PLACE / "errors"
        with self.errors.open("wb") as errors:
            self.popen = subprocess.Popen(
                command(job, tools, acks, syncs, pace_us, linger),
                env=env,
                cwd=PLACE,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=errors,
            )

    def __enter__(self) -> Writer:
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()

    def kill(self) -> None:
        if self.popen.poll() is None:
            self.popen.kill()
        self.popen.wait()

    def said(self) -> str:
        return self.errors.read_text(errors="replace")[-2000:]

    def finish(self) -> Stats:
        try:
            code = self.popen.wait(PATIENCE_SECONDS)
        except subprocess.TimeoutExpired:
            raise FailedError(f"{self.job}: not done after {PATIENCE_SECONDS} s: {self.said()}") from None
        if code != 0:
            raise FailedError(f"{self.job}: status {code}: {self.said()}")
        return parse_stats(self.stats_file.read_text())


@dataclass
class Look:
    """What recovery and the check found."""

    verdict: Verdict
    arenas: int = 0
    aside: int = 0
    synced: int = 0  # syncs that promised something
    kept: int = 0  # sectors behind the last flush
    dropped: int = 0
    age_ns: int = 0  # of the newest sync that was lost under `relaxed`


def check(job: Job, content: Content, acks: Acks) -> Verdict:
    return Check(DATA, content, acks)(job.kind)


def open_next(job: Job, tools: Tools) -> None:
    """A program under the library that opens a file there for writing: that recovers, too."""
    done = subprocess.run(
        ["sh", "-c", f": >> {DATA}/next"],
        env={**os.environ, **preload_env(tools.library, f"{DATA}/**", sync=job.policy)},
        capture_output=True,
        text=True,
        timeout=PATIENCE_SECONDS,
        check=False,
    )
    if done.returncode != 0:
        raise FailedError(f"{job}: the next program: status {done.returncode}: {done.stderr}")


def put_aside() -> list[Path]:
    return [p for d in DATA.rglob(".fastwrite/aside") for p in d.iterdir()]


def only_unsynced(done: subprocess.CompletedProcess[str]) -> bool:
    """Nothing but bytes of arenas was put aside, which were not synced.  (The check finds what is missing.)"""
    if done.returncode != 1:
        return False
    report = json.loads(done.stdout)
    aside = [event["arena"] for event in report["events"] if event["action"] == "aside"]
    return report["failed"] == 0 and all(path.endswith(".arena") for path in aside)


def recover_and_check(job: Job, tools: Tools, content: Content, acks: Acks) -> Look:
    """On the disk as it is mounted after the loss, in another boot."""
    report = {"arenas": 0, "aside": 0}
    by_library = job.policy != NATIVE and Random(job.seed * 13 + 5).random() < 0.25
    if by_library:
        open_next(job, tools)
    if job.policy != NATIVE:
        done = subprocess.run(
            [str(tools.command), "recover", "--json", str(DATA)],
            capture_output=True,
            text=True,
            timeout=PATIENCE_SECONDS,
            check=False,
        )
        verdict = Verdict()
        if done.returncode != 0 and not only_unsynced(done):
            verdict.wrong.append(f"fastwrite recover: status {done.returncode}: {done.stdout}{done.stderr}")
            return Look(verdict)
        report = json.loads(done.stdout)
        # what nobody was promised is put aside, and looked at again by the command
        if by_library and report["arenas"] > len(put_aside()):
            verdict.wrong.append(f"the next open left arenas behind: {done.stdout}")
            return Look(verdict)
    look = Look(check(job, content, acks), report["arenas"], report["aside"])
    left = [p for d in DATA.rglob(".fastwrite") for p in d.iterdir() if p.name != "aside"]
    if job.policy != NATIVE and left:
        look.verdict.wrong.append(f"left behind: {[str(p) for p in left]}")
    return look


def pace_us(job: Job) -> int:
    """Pause between syncs.  A run under `relaxed` must take longer than what may be lost."""
    if job.policy == RELAXED:
        return 2_500_000 // KINDS[job.kind]
    return Random(job.seed * 5 + 3).choice((0, 0, 400))


def main_of(reasons: list[str], main: Callable[[], int]) -> int:
    """Runs a driver's `main` in namespaces of its own, without the user's settings of the library.  The exit status:
    SKIPPED for the first reason that is not empty, 1 if the test could not be made."""
    if why := next(filter(None, reasons), ""):
        print(f"skipped: {why}")
        return SKIPPED
    for name in [n for n in os.environ if n.startswith("FASTWRITE_") and not n.startswith("FASTWRITE_TEST_")]:
        del os.environ[name]
    os.environ.pop("LD_PRELOAD", None)

    def guarded() -> int:
        try:
            return main()
        except FailedError as error:
            print(f"FAILED {error}", flush=True)
            return 1

    return contained(guarded)


def until(true, what: str, seconds: float = PATIENCE_SECONDS) -> None:
    limit = time.monotonic() + seconds
    while not true():
        if time.monotonic() > limit:
            raise FailedError(f"waited {seconds:.0f} s in vain until {what}")
        time.sleep(0.0005)
