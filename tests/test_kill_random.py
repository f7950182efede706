# SPDX-License-Identifier: Apache-2.0
"""kill -9 at any moment: what had been acknowledged is there, and at most one unfinished write per thread.

The release build, a clock instead of marked steps, and each way in which recovery comes: at once under
`fastwrite run`, in the next program at its start or open, and by hand.
"""

from __future__ import annotations

import os
import random
import re
import shutil
import signal
import subprocess
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import pytest
from lib import kill_model
from lib.support import disk_dir, preload_env, wait_for

KILLS = int(os.environ.get("FASTWRITE_TEST_KILLS", "120"))
SOURCE = Path(__file__).resolve().parent / "kill" / "workload.c"
LONGEST_SECONDS = 30
TIMEOUT_SECONDS = 60
KILLED = (-signal.SIGKILL, 128 + signal.SIGKILL)

WORKLOADS = [
    ("append", {}),
    ("append", {"writers": "shared"}),
    ("append:4", {"writers": "exclusive"}),
    ("positional", {}),
    ("positional:4", {"flush": "buffered"}),
    ("direct", {}),
    ("direct:4", {}),
    ("sequential:4", {"flush": "direct"}),
    ("mixed:4", {}),
    ("mixed:8", {}),
    ("records:4", {}),
    ("records:3", {"writers": "shared"}),
    ("same", {}),
    ("synced:3", {"sync": "relaxed"}),
    ("stealing:2", {}),
    ("positional:4", {"writers": "exclusive", "sync": "ordered", "ordered_ms": 5}),
    ("positional:4", {"sync": "ordered", "ordered_ms": 5}),
]
MEMORY = [{"mem": "1M", "block": "64K"}, {"mem": "4M", "block": "128K"}, {"mem": "16M"}]
WAYS = ["run", "next", "hand"]
TRIES = 40  # until bytes are staged; fewer than fill the program's log


@dataclass(frozen=True)
class Kill:
    """One experiment, all that is random in it drawn from `number`."""

    number: int

    def dice(self) -> random.Random:
        return random.Random(self.number * 7919 + 5)

    @property
    def workload(self) -> tuple[str, dict]:
        return WORKLOADS[self.number % len(WORKLOADS)]

    @property
    def way(self) -> str:
        return WAYS[self.number // len(WORKLOADS) % len(WAYS)]


@dataclass(frozen=True)
class Result:
    way: str
    waited: bool  # it was killed when something was staged, unless that took too long
    staged: bool  # bytes were in the arena at the kill


class Rig:
    def __init__(self, library: Path, command: Path, program: Path) -> None:
        self.library = library
        self.command = command
        self.program = program

    def env(self, data: Path, settings: dict) -> dict[str, str]:
        env = preload_env(self.library, f"{data}/**", **settings)
        return {**os.environ, **env}

    def start(self, kill: Kill, data: Path, log: Path, settings: dict) -> subprocess.Popen:
        name, _ = kill.workload
        command = [str(self.program), str(data), str(log), name, str(kill.number), str(LONGEST_SECONDS)]
        env = self.env(data, settings)
        if kill.way == "run":
            del env["LD_PRELOAD"]
            env["FASTWRITE_LIB"] = str(self.library)
            command = [str(self.command), "run", "--", *command]
        return subprocess.Popen(
            command, env=env, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE
        )


@pytest.fixture(scope="module")
def rig(library: Path, fastwrite: Path, compile_c: Callable[..., Path]) -> Rig:
    return Rig(library, fastwrite, compile_c(SOURCE.read_text(), "-pthread"))


def child_of(parent: int) -> int:
    """The program under `fastwrite run`; 0 when it is not there yet."""
    text = Path(f"/proc/{parent}/task/{parent}/children").read_text().split()
    return int(text[0]) if text else 0


def victim(rig: Rig, program: subprocess.Popen, kill: Kill) -> int:
    """Process to kill: the one that holds the log, not `fastwrite run` before its exec."""
    if kill.way != "run":
        return program.pid
    while program.poll() is None:
        child = child_of(program.pid)
        if child and os.path.samefile(f"/proc/{child}/exe", rig.program):
            return child
        time.sleep(0.001)
    raise AssertionError(f"ended by itself: {program.stderr.read().decode()}")


def begun(log: Path, count: int) -> bool:
    return log.exists() and kill_model.used(log) >= count


def arenas(data: Path) -> list[Path]:
    return sorted(data.glob(".fastwrite/*.arena"))


def freeze(pid: int) -> None:
    """Stops all threads, so that what is looked at is what the kill will leave."""
    os.kill(pid, signal.SIGSTOP)
    tasks = Path(f"/proc/{pid}/task")
    wait_for(
        lambda: all(state_of(task) in "TtZX" for task in tasks.iterdir()), f"{pid} to stop", pause=0.0005
    )


def state_of(task: Path) -> str:
    try:
        return (task / "stat").read_text().rsplit(")", 1)[1].split()[0]
    except FileNotFoundError:
        return "X"


def bring_back(rig: Rig, kill: Kill, data: Path, settings: dict) -> str:
    """Recovery by the way of this kill (under `run` it has happened); what was said."""
    if kill.way == "next":
        # a program that opens one of the files, as any would: `sh` appends nothing to it
        done = subprocess.run(
            ["sh", "-c", 'for f in "$0"/f*; do exec 3>>"$f"; exec 3>&-; done', str(data)],
            env=rig.env(data, settings),
            capture_output=True,
            text=True,
            timeout=TIMEOUT_SECONDS,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        return done.stderr
    if kill.way == "hand":
        done = subprocess.run(
            [rig.command, "recover", data],
            capture_output=True,
            text=True,
            timeout=TIMEOUT_SECONDS,
            check=False,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout
    return ""


def one_kill(rig: Rig, base: Path, number: int) -> Result:
    """AssertionError for anything lost."""
    kill = Kill(number)
    dice = kill.dice()
    name, settings = kill.workload
    settings = {**dice.choice(MEMORY), "lag_ms": dice.choice([1, 5, 100, 60000]), **settings}
    data = base / str(number) / "data"
    data.mkdir(parents=True)
    log = data.parent / "log"
    context = f"kill {number}: {name} {settings} {kill.way}"

    # every other one: how many of the rest hit staged bytes depends on the machine
    # (none is seen of what is in order)
    waits = kill.way == "run" and kill.number % 2 == 0 and settings.get("writers") != "exclusive"

    program = rig.start(kill, data, log, settings)
    try:
        pid = victim(rig, program, kill)
        threads = int(name.split(":")[1]) if ":" in name else 1
        while program.poll() is None and not begun(log, 20 * threads):
            time.sleep(0.001)
        time.sleep(dice.random() * 0.06)
        # under `run` nobody can look between the death and the recovery; others die at full speed
        if kill.way == "run":
            freeze(pid)
            in_arena, staged = kill_model.engaged(arenas(data))
            tries = TRIES if waits else 0
            while tries > 0 and not staged:
                tries -= 1
                os.kill(pid, signal.SIGCONT)
                time.sleep(dice.random() * 0.001)
                freeze(pid)
                in_arena, staged = kill_model.engaged(arenas(data))
        os.kill(pid, signal.SIGKILL)
        _, text = program.communicate(timeout=TIMEOUT_SECONDS)
    finally:
        program.kill()
        program.wait()
    assert program.returncode in KILLED, f"{context}: {program.returncode}: {text.decode()}"

    if kill.way != "run":
        in_arena, staged = kill_model.engaged(arenas(data))
    ops = kill_model.read_log(log)
    assert ops, context
    said = bring_back(rig, kill, data, settings)
    problems = kill_model.check(data, ops, in_arena=in_arena)
    assert not problems, f"{context}: {problems}\n{text.decode()}{said}"
    # a program that dies between making the directory and the arena leaves the directory to the next one
    staging = data / ".fastwrite"
    left = list(staging.iterdir()) if staging.exists() else []
    assert not left, f"{context}: {left}\n{text.decode()}{said}"
    assert kill.way == "run" or not staging.exists(), context
    assert not re.search("failed|orphan", re.sub(r"0 (failed|orphaned)", "", said)), f"{context}: {said}"
    shutil.rmtree(data.parent)
    return Result(kill.way, waits, staged)


def test_random_kills(rig: Rig) -> None:
    with disk_dir() as base, ThreadPoolExecutor(max_workers=2) as pool:
        results = list(pool.map(lambda n: one_kill(rig, base, n), range(KILLS)))
    for way in WAYS:
        these = [result for result in results if result.way == way]
        hit = sum(result.staged for result in these)
        print(f"{way}: {len(these)} kills, {hit} with bytes in the arena")
        if 3 * len(WORKLOADS) <= KILLS:
            assert len(these) >= KILLS // 5
            assert hit >= len(these) / 4
            waited = [result.staged for result in these if result.waited]
            assert way != "run" or sum(waited) > len(waited) * 3 / 4 > KILLS / 20
