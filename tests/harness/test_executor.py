# SPDX-License-Identifier: Apache-2.0
import io
import os
import signal
import time
from types import SimpleNamespace

import pytest
from lib.support import too_slow
from rich.console import Console

from harness.core import interrupt, rounds
from harness.core.executor import Command, RealExecutor
from harness.core.model import LabError


@pytest.fixture
def executor():
    return RealExecutor()


def sh(script, **env):
    return Command(("/bin/sh", "-c", script), env)


def test_output_status_and_environment(executor):
    done = executor.run(sh("echo out $X; echo err >&2; exit 3", X="y"))
    assert (done.returncode, done.stdout, done.stderr, done.killed) == (3, "out y\n", "err\n", False)


def test_ticks_come_while_it_runs(executor, tmp_path):
    pids = []
    ended = tmp_path / "ended"

    def tick(pid: int) -> bool:
        pids.append(pid)
        if len(pids) == 4:
            ended.touch()
        return False

    done = executor.run(sh(f"while [ ! -e {ended} ]; do sleep 0.01; done"), 0.05, tick)
    assert 4 <= len(pids) <= done.seconds / 0.05 + 2 and len(set(pids)) == 1


def test_the_end_is_seen_at_once_not_at_the_next_tick(executor):
    done = executor.run(sh("sleep 0.3"), 20, lambda _: False)
    assert 0.3 <= done.seconds < 10, too_slow(done.seconds, "sleep 0.3")


def test_a_tick_can_kill_the_whole_group(executor):
    start = time.monotonic()
    done = executor.run(sh("sleep 30 & sleep 30"), 0.02, lambda _: time.monotonic() - start > 0.1)
    assert done.killed and done.returncode == -9 and done.seconds < 5, too_slow(
        done.seconds, "it was to be killed"
    )


def test_what_interrupts_the_wait_leaves_no_process(executor):
    seen = []

    def interrupt(pid):
        seen.append(pid)
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        executor.run(sh("sleep 30"), 0.02, interrupt)
    with pytest.raises(ProcessLookupError):
        os.kill(seen[0], 0)


at_fork = []
os.register_at_fork(after_in_parent=lambda: [call() for call in at_fork])


@pytest.fixture
def interrupts(monkeypatch):
    """As a run of the laboratory takes them, also where the tests' own start ignores them."""
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    monkeypatch.setattr(interrupt, "_seen", False)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    interrupt.watch()
    yield
    at_fork.clear()
    for number, handler in before.items():
        signal.signal(number, handler)


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupt_during_the_fork_is_not_lost(executor, interrupts, number):
    """Python throws away what is raised in what modules have registered to run after a fork."""
    at_fork.append(lambda: signal.raise_signal(number))
    start = time.monotonic()
    with pytest.raises(KeyboardInterrupt):
        executor.run(sh("sleep 30"), 0.02, lambda _: False)
    took = time.monotonic() - start
    assert took < 10, too_slow(took, "it was interrupted")


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_benchmark_in_rounds_loses_no_interrupt(tmp_path, monkeypatch, interrupts, number):
    class Benchmark(rounds.Benchmark):
        space = (0, 0)

        def bench(self, work, disk, programs, run):
            at_fork.append(lambda: signal.raise_signal(number))
            RealExecutor().run(sh("true"))
            raise AssertionError("the interrupt was lost")

    for default in (signal.SIGINT, signal.SIGTERM):
        signal.signal(default, signal.default_int_handler)
    monkeypatch.setattr(rounds.build, "programs", lambda executor: tmp_path)
    settings = SimpleNamespace(fresh="")
    with pytest.raises(KeyboardInterrupt):
        rounds.run(Console(), Benchmark(), settings, tmp_path / "work", tmp_path / "out.json")


def test_what_an_interrupt_says_is_seen_after_half_a_print():
    shown = io.StringIO()
    console = Console(file=shown, width=20)
    console.__enter__()  # as the interrupt within a print leaves it
    console.print("lost")
    interrupt.say(console, "go on with a line that is longer than the screen")
    assert shown.getvalue() == "go on with a line that is longer than the screen\n"


def test_a_missing_program_is_one_clear_line(executor):
    with pytest.raises(LabError, match="no-such-program: not found"):
        executor.run(Command(("no-such-program",)))
