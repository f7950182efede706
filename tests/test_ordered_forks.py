# SPDX-License-Identifier: Apache-2.0
"""sync = ordered in a program that forks.

The kernel has every write while the child lives.  When only one process is left, files are staged again."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from lib.processes import Program, compile_other
from lib.support import disk_dir, leftovers, run_native, wait_for

RECORD = 100


class Forks:
    """The program on its file; what it was told to append."""

    def __init__(
        self, library: Path, program: Path, place: Path, fds: str = "cloexec", sync: str = "ordered"
    ):
        self.path = place / "file"
        self.program = Program(
            library,
            [program, self.path, fds],
            place,
            sync=sync,
            writers="exclusive",
            ordered_ms=60000,
            lag_ms=60000,
        )
        self.size = 0

    def ask(self, line: str) -> int:
        self.size = int(self.program.ask(line))
        return self.size

    def put(self) -> bool:
        """One record; true if the kernel does not have it."""
        self.ask("put")
        return self.path.stat().st_size < self.size

    def put_until_staged(self) -> int:
        """Number of records."""
        begin = time.monotonic()
        for count in range(1, 1_000_000):
            if self.put():
                return count
            assert time.monotonic() < begin + 60, "not staged again"
            time.sleep(0.001)
        raise AssertionError("not staged again")

    def put_in_the_kernel(self) -> None:
        """Longer than it takes to look at the family again."""
        for _ in range(30):
            assert not self.put(), "staged while another process lives"
            time.sleep(0.002)

    def outlive_a_child(self) -> None:
        self.ask("fork stay")
        self.put_in_the_kernel()
        self.ask("kill")
        self.put_until_staged()

    def recover(self, command: Path) -> None:
        assert self.path.stat().st_size < self.size
        run_native([command, "recover", self.path.parent], self.path.parent)
        self.check()

    def end(self) -> None:
        self.program.finish()
        self.check()

    def check(self) -> None:
        """Every record, once, in order."""
        found = self.path.read_bytes()
        count, rest = divmod(len(found), RECORD)
        assert rest == 0 and len(found) == self.size
        assert found == b"".join(b"%0*d\n" % (RECORD - 1, i) for i in range(count))


@pytest.fixture
def forks(library, compile_c) -> Callable[..., Forks]:
    """Makes them; at the end nothing is left of them."""
    made = []
    with disk_dir() as place:

        def make(fds: str = "cloexec", sync: str = "ordered") -> Forks:
            made.append(Forks(library, compile_other(compile_c, "order_forks"), place, fds, sync))
            return made[-1]

        yield make
        for each in made:
            with each.program:
                pass
        assert not leftovers(place)


@pytest.mark.parametrize("how", ["stay", "put", "again", "threads"])
def test_staged_again_when_the_child_has_ended(forks, how):
    one = forks()
    one.put_until_staged()
    for _ in range(3):
        one.ask("sync")
        one.ask(f"fork {how}")
        one.put_in_the_kernel()
        one.ask("sync")
        one.ask("open")
        one.put_in_the_kernel()
        one.ask("kill")
        one.put_until_staged()
    one.end()


@pytest.mark.parametrize("sync", ["ordered", "relaxed"])
def test_the_child_goes_on_alone(forks, sync):
    """As a daemon does: twice.  When descriptors are short, the library closes that of the family."""
    one = forks(sync=sync)
    one.put_until_staged()
    for _ in range(2):
        one.ask("fork go")
        one.put_until_staged()
        if sync == "ordered":
            one.ask("sync")
        one.ask("numbers")
        one.put_until_staged()
    one.ask("fork stay")
    if sync == "ordered":
        one.put_in_the_kernel()
    one.ask("kill")
    one.put_until_staged()
    one.end()


@pytest.mark.parametrize("fds", ["cloexec", "inherit"])
def test_a_new_program(forks, fds):
    """It is none of ours, unless it has the file."""
    one = forks(fds)
    one.put_until_staged()
    one.ask("fork exec")
    if fds == "cloexec":
        one.put_until_staged()
    else:
        one.put_in_the_kernel()
        # (an exec of our own that fails gives our files back, but not this one)
        one.ask("exec")
        one.put_in_the_kernel()
    one.ask("kill")
    one.end()


def test_killed_while_its_parent_runs_another_program(fastwrite, forks):
    """The arena is not that of the parent, which lives: recovery does not wait for it."""
    one = forks()
    one.put_until_staged()
    one.ask("fork leave")
    one.put_until_staged()
    for _ in range(10):
        one.put()
    parent = one.program.pid
    child = int(Path(f"/proc/{parent}/task/{parent}/children").read_text())
    os.kill(child, signal.SIGKILL)
    state = Path(f"/proc/{child}/stat")
    wait_for(lambda: state.read_text().rpartition(") ")[2][0] == "Z", "the child's end")
    one.recover(fastwrite)


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root to change its group")
def test_a_daemon_changes_its_rights(forks):
    one = forks()
    one.put_until_staged()
    one.ask("fork go")
    one.program.process.wait(timeout=60)
    one.ask("rights")
    one.put_until_staged()
    one.outlive_a_child()
    one.end()


def test_nothing_grows(forks):
    """Memory mappings and descriptors of a process that forks often."""

    def held() -> tuple[int, int]:
        process = Path(f"/proc/{one.program.pid}")
        return len((process / "maps").read_text().splitlines()), len(list((process / "fd").iterdir()))

    one = forks()
    counts = []
    for _ in range(6):
        one.put_until_staged()
        one.ask("sync")
        counts.append(held())
        one.ask("fork stay")
        one.ask("put")
        one.ask("kill")
    one.put_until_staged()
    assert counts[2] == counts[-1], counts
    one.end()


def test_killed_while_staged(fastwrite, forks):
    """What was staged after a child's end is recovered."""
    one = forks()
    one.put_until_staged()
    one.outlive_a_child()
    for _ in range(10):
        one.put()
    one.program.process.kill()
    one.program.process.wait()
    one.recover(fastwrite)
