# SPDX-License-Identifier: Apache-2.0
"""Running one program: start, tick while it runs, end. The only module that creates processes.

The child is put into its own process group (Ctrl-C is the harness's to handle), into a control group
before it executes anything when one is given, and is killed by the kernel when the harness dies.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import pwd
import select
import signal
import subprocess
import tempfile
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from harness.core import interrupt
from harness.core.clock import Clock, RealClock
from harness.core.model import LabError

PR_SET_PDEATHSIG = 1
OUTPUT_BYTES_MAX = 1 << 24

OnTick = Callable[[int], bool]
"""Called with the process id about every tick; True kills the process with SIGKILL."""


@dataclass(frozen=True)
class Command:
    """argv, variables added to the environment, the cgroup.procs files to enter first, and the user."""

    argv: tuple[str, ...]
    env: Mapping[str, str] = field(default_factory=dict)
    cgroup_procs: tuple[str, ...] = ()
    cwd: str | None = None
    user: str | None = None


@dataclass(frozen=True)
class Completed:
    """returncode is negative for a signal, as in subprocess; seconds is start to end as seen from outside."""

    returncode: int
    stdout: str
    stderr: str
    seconds: float
    killed: bool = False


class Executor(Protocol):
    def run(
        self, command: Command, tick_seconds: float = 0.1, on_tick: OnTick | None = None
    ) -> Completed: ...


def within(seconds: float, clock: Clock) -> OnTick:
    """Kills what takes longer, so that a program that hangs is a failure and not the end of the run."""
    deadline = clock.monotonic() + seconds
    return lambda _: clock.monotonic() > deadline


class RealExecutor:
    """Executes commands. Single-threaded on purpose: ticks run between waits, so nothing races."""

    def __init__(self, clock: Clock | None = None) -> None:
        self._clock = clock or RealClock()
        self._prctl = ctypes.CDLL(None, use_errno=True).prctl

    def run(self, command: Command, tick_seconds: float = 0.1, on_tick: OnTick | None = None) -> Completed:
        with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
            start = self._clock.monotonic()
            process = self._start(command, out, err)
            killed = False
            try:
                interrupt.check()  # the start is a fork
                killed = self._watch(process, tick_seconds, on_tick)
            finally:
                _end(process)
            seconds = self._clock.monotonic() - start
            return Completed(process.returncode, _text(out), _text(err), seconds, killed)

    @contextlib.contextmanager
    def service(
        self, command: Command, log: Path, patience: float = 60.0, stop: int = signal.SIGINT
    ) -> Iterator[subprocess.Popen]:
        """Runs beside the body, which ends it by the signal `stop`. LabError when it does not end well then."""
        with open(log, "ab") as out:
            process = self._start(command, out, out)
        try:
            yield process
            process.send_signal(stop)
            try:
                process.wait(patience)
            except subprocess.TimeoutExpired as error:
                raise LabError(
                    f"{command.argv[0]}: did not end within {patience:.0f} s of {signal.Signals(stop).name}"
                ) from error
            if process.returncode != 0:
                raise LabError(f"{command.argv[0]}: ended with {process.returncode}")
        finally:
            _end(process)

    def _start(self, command: Command, out, err) -> subprocess.Popen:
        who = _identity(command.user)
        groups = [os.open(path, os.O_WRONLY | os.O_CLOEXEC) for path in command.cgroup_procs]
        parent = os.getpid()

        def enter() -> None:
            for group in groups:
                os.write(group, b"0")
            self._prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
            if os.getppid() != parent:
                os._exit(127)

        try:
            return subprocess.Popen(
                command.argv,
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=err,
                env={**os.environ, **command.env},
                cwd=command.cwd,
                start_new_session=True,
                preexec_fn=enter,
                **who,
            )
        except FileNotFoundError as error:
            raise LabError(f"{command.argv[0]}: not found; install it") from error
        finally:
            for group in groups:
                os.close(group)

    def _watch(self, process: subprocess.Popen, tick_seconds: float, on_tick: OnTick | None) -> bool:
        """Wait for the end, ticking on a fixed grid (a late tick does not shift the later ones)."""
        if on_tick is None:
            process.wait()
            return False
        pidfd = os.pidfd_open(process.pid)
        poll = select.poll()
        poll.register(pidfd, select.POLLIN)
        due = self._clock.monotonic()
        try:
            while process.poll() is None:
                interrupt.check()
                if on_tick(process.pid):
                    os.killpg(process.pid, signal.SIGKILL)
                    process.wait()
                    return True
                due = max(due + tick_seconds, self._clock.monotonic())
                poll.poll(max(0.0, due - self._clock.monotonic()) * 1000)
        finally:
            os.close(pidfd)
        return False


def _identity(user: str | None) -> dict:
    """What Popen is told to become that user."""
    if user is None:
        return {}
    found = pwd.getpwnam(user)
    return {"user": found.pw_uid, "group": found.pw_gid, "extra_groups": []}


def _end(process: subprocess.Popen) -> None:
    """Leave nothing running, whatever interrupted the wait."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def _text(file) -> str:
    file.seek(0)
    return file.read(OUTPUT_BYTES_MAX).decode(errors="replace")
