# SPDX-License-Identifier: Apache-2.0
import os
import time

import pytest

from harness.executor import Command, RealExecutor
from harness.model import LabError


@pytest.fixture
def executor():
    return RealExecutor()


def sh(script, **env):
    return Command(("/bin/sh", "-c", script), env)


def test_output_status_and_environment(executor):
    done = executor.run(sh("echo out $X; echo err >&2; exit 3", X="y"))
    assert (done.returncode, done.stdout, done.stderr, done.killed) == (3, "out y\n", "err\n", False)


def test_ticks_come_while_it_runs_and_the_end_is_seen_at_once(executor):
    pids = []
    done = executor.run(sh("sleep 0.3"), 0.05, lambda pid: pids.append(pid) or False)
    assert 4 <= len(pids) <= 8 and len(set(pids)) == 1
    assert 0.3 <= done.seconds < 0.6


def test_a_tick_can_kill_the_whole_group(executor):
    start = time.monotonic()
    done = executor.run(sh("sleep 30 & sleep 30"), 0.02, lambda _: time.monotonic() - start > 0.1)
    assert done.killed and done.returncode == -9 and done.seconds < 5


def test_what_interrupts_the_wait_leaves_no_process(executor):
    seen = []

    def interrupt(pid):
        seen.append(pid)
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        executor.run(sh("sleep 30"), 0.02, interrupt)
    with pytest.raises(ProcessLookupError):
        os.kill(seen[0], 0)


def test_a_missing_program_is_one_clear_line(executor):
    with pytest.raises(LabError, match="no-such-program: not found"):
        executor.run(Command(("no-such-program",)))
