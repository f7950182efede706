# SPDX-License-Identifier: Apache-2.0
"""Where one run of a program happens: its directories, its environment, its processes and their end."""

from __future__ import annotations

import contextlib
import json
import os
import pwd
import re
import shutil
import signal
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from random import Random

from lib.support import Stats, disk_base, leftovers, parse_stats, preload_env

NATIVE, SHIM, KILL = "native", "shim", "kill"
# How bytes come back after a death: `fastwrite run` does it, `fastwrite recover` by hand, or the library in the
# program that is started next.
RUN, HAND, NEXT = "run", "hand", "next"
WAYS = (HAND, NEXT, RUN)
PATIENCE_SECONDS = 300  # for what is slow on a busy machine, and only ends what will never come
LIBRARY_MESSAGE = re.compile(r"^fastwrite[ :].*$", re.MULTILINE)
# What the library and its command say when they do after a death what they are there for.
EXPECTED_MESSAGE = re.compile(
    r"^fastwrite( run)?: (recovered \d+ bytes|recovery: .*: recovered, \d+ bytes of a process that died.*|pid .*)$"
)


class UnavailableError(Exception):
    """The program cannot run on this machine; the text says why."""


@dataclass(frozen=True)
class Tools:
    """The build under test."""

    library: Path
    command: Path


class Process:
    """A program that was started and will be looked at, asked to end, or killed."""

    def __init__(
        self, place: Place, popen: subprocess.Popen, number: int, out: Path, under_run: bool
    ) -> None:
        self.place = place
        self.popen = popen
        self.number = number  # of its standard output and error, aside/out.N and aside/err.N
        self.out = out
        self.under_run = under_run
        self.lines: list[str] = []  # of a terminal
        self.reader: threading.Thread | None = None

    def read_terminal(self, fd: int) -> None:
        def read() -> None:
            rest = b""
            while True:
                try:
                    data = os.read(fd, 65536)
                except OSError:
                    data = b""
                if not data:
                    break
                *whole, rest = (rest + data).split(b"\n")
                self.lines += [line.decode(errors="replace").rstrip("\r") for line in whole]
            os.close(fd)

        self.reader = threading.Thread(target=read, daemon=True)
        self.reader.start()

    def output(self) -> list[str]:
        """Whole lines written so far to standard output."""
        if self.reader:
            return list(self.lines)
        return self.out.read_text(errors="replace").split("\n")[:-1]

    def program(self) -> int:
        """Process id of the program itself, also under `fastwrite run`; 0 when it is not there (any more)."""
        if not self.under_run:
            return self.popen.pid
        own = os.path.realpath(self.place.tools.command)
        for pid in children(self.popen.pid):
            with contextlib.suppress(OSError):
                if os.readlink(f"/proc/{pid}/exe") != own:
                    return pid
        return 0

    def wait_program(self) -> int:
        self.place.until(lambda: self.popen.poll() is not None or self.program(), "the program starts")
        pid = self.program()
        assert pid, f"ended by itself: {self.place.errors()}"
        return pid

    def send(self, number: int) -> None:
        os.kill(self.wait_program(), number)

    def wait(self, timeout: float = PATIENCE_SECONDS) -> int:
        """Exit status; the reader of a terminal has all lines then."""
        code = self.popen.wait(timeout)
        if self.reader:
            self.reader.join(timeout)
        return code

    def end(self, number: int = signal.SIGTERM, expect: tuple[int, ...] = (0,)) -> None:
        """Asks it to end, and requires that it does, with this status."""
        self.send(number)
        code = self.wait()
        assert code in expect, f"{self.popen.args}: status {code}: {self.place.errors()}"

    def kill(self) -> None:
        """kill -9 of the program and all its descendants."""
        kill_all([self])


def kill_all(processes: list[Process]) -> None:
    """kill -9 of the programs and all their descendants, who all stand still before: nobody reacts to the death
    of another."""
    roots = [process.wait_program() for process in processes]
    trees = [freeze_tree(root) for root in roots]
    below = [pid for tree in trees for pid in tree[1:]]
    place = processes[0].place
    place.look()
    for pid in below:
        hit(pid, signal.SIGKILL)
    place.until(lambda: not any(alive(pid) for pid in below), "descendants die")
    for root in roots:
        hit(root, signal.SIGKILL)
    for process in processes:
        code = process.wait()
        assert code in (-signal.SIGKILL, 128 + signal.SIGKILL), f"{process.popen.args}: status {code}"


def children(pid: int) -> list[int]:
    """Of all threads of the process."""
    found: list[int] = []
    with contextlib.suppress(OSError):
        for task in Path(f"/proc/{pid}/task").iterdir():
            found += [int(word) for word in (task / "children").read_text().split()]
    return found


def state(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0]
    except OSError:
        return "X"


def alive(pid: int) -> bool:
    """Any thread of it: the first one is a zombie as soon as it is over itself."""
    try:
        threads = [int(task.name) for task in Path(f"/proc/{pid}/task").iterdir()]
    except OSError:
        return False
    return any(state(thread) not in "ZX" for thread in threads)


def hit(pid: int, number: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, number)


def freeze_tree(root: int) -> list[int]:
    """Stops the process and all its descendants; the root comes first."""
    tree: list[int] = []
    fresh = [root]
    while fresh:
        for pid in fresh:
            hit(pid, signal.SIGSTOP)
        tree += fresh
        fresh = [child for pid in tree for child in children(pid) if child not in tree]
    return tree


class Place:
    """Directories, environment and processes of one run.  `data` is what the library manages."""

    def __init__(
        self,
        tools: Tools,
        leg: str,
        *,
        way: str = HAND,
        settings: dict[str, object] | None = None,
        user: str | None = None,
        quick: bool = True,
        seed: int = 0,
    ) -> None:
        self.tools = tools
        self.leg = leg
        self.way = way
        self.settings = settings or {}
        self.quick = quick
        self.dice = Random(seed)
        self.died = False  # and was recovered
        self.user = user if user and os.geteuid() == 0 else None
        self.base = Path(tempfile.mkdtemp(prefix="fastwrite-program-", dir=disk_base())).resolve()
        self.data = self.base / "data"
        self.aside = self.base / "aside"
        self.stats_file = self.base / "stats"
        self.recovered = 0
        self._seen: dict[str, int] = {}
        self._processes: list[Process] = []
        self._count = 0
        self.data.mkdir()
        self.aside.mkdir()
        self.stats_file.touch()
        # programs may give up rights; what they say at their end must get here all the same
        self.base.chmod(0o755)
        self.stats_file.chmod(0o666)
        if self.user:
            entry = pwd.getpwnam(self.user)
            for path in (self.base, self.data, self.aside, self.stats_file):
                os.chown(path, entry.pw_uid, entry.pw_gid)

    # ---- environment ----

    def env(self, shim: bool | None = None) -> dict[str, str]:
        """Variables for a program: preloaded in the legs that are about the library, unless `shim` says
        otherwise."""
        env = {k: v for k, v in os.environ.items() if not k.startswith("FASTWRITE_") and k != "LD_PRELOAD"}
        env.update(LC_ALL="C.UTF-8", TZ="UTC", HOME=str(self.aside), TMPDIR=str(self.aside))
        if self.shimmed(shim):
            paths = f"{self.data}/**"
            env.update(preload_env(self.tools.library, paths, stats=self.stats_file, **self.settings))
        return env

    def shimmed(self, shim: bool | None = None) -> bool:
        if self.leg == NATIVE:
            return False
        if shim is not None:
            return shim
        return not self.died or self.way == NEXT

    # ---- processes ----

    def run(
        self,
        *command: str | Path,
        shim: bool | None = None,
        cwd: Path | None = None,
        env: dict[str, str] | None = None,
        stdin: str | None = None,
        expect: tuple[int, ...] = (0,),
        timeout: float = 900,
    ) -> subprocess.CompletedProcess[str]:
        """A program from start to end; another exit status than expected is an error, and so is a word of the
        library that was not called for."""
        done = subprocess.run(
            [str(part) for part in command],
            cwd=cwd or self.data,
            env={**self.env(shim), **(env or {})},
            input=stdin if stdin is not None else "",
            capture_output=True,
            text=True,
            errors="replace",
            timeout=timeout,
            check=False,
            **self.identity(),
        )
        said = "\n".join((done.stdout[-1500:], done.stderr[-1500:]))
        if done.returncode not in expect:
            raise AssertionError(f"{' '.join(map(str, command))}: status {done.returncode}\n{said}")
        self.no_complaint(done.stderr)
        return done

    def start(
        self,
        *command: str | Path,
        shim: bool | None = None,
        cwd: Path | None = None,
        env: dict[str, str] | None = None,
        stdin: Path | None = None,
        pipe: bool = False,
        terminal: bool = False,
    ) -> Process:
        """A program that goes on.  In a leg with a kill whose way is `run`, it is started by `fastwrite run`."""
        self._count += 1
        variables = {**self.env(shim), **(env or {})}
        words = [str(part) for part in command]
        under_run = self.leg == KILL and self.way == RUN and self.shimmed(shim)
        if under_run:
            del variables["LD_PRELOAD"]
            variables["FASTWRITE_LIB"] = str(self.tools.library)
            words = [str(self.tools.command), "run", "--", *words]
        out = self.aside / f"out.{self._count}"
        terminal_fds = os.openpty() if terminal else None
        with (
            out.open("w") as stdout,
            (self.aside / f"err.{self._count}").open("w") as stderr,
            (stdin or Path("/dev/null")).open() as source,
        ):
            popen = subprocess.Popen(
                words,
                cwd=cwd or self.data,
                env=variables,
                stdin=subprocess.PIPE if pipe else source,
                stdout=terminal_fds[1] if terminal_fds else stdout,
                stderr=stderr,
                start_new_session=True,
                text=True,
                **self.identity(),
            )
        process = Process(self, popen, self._count, out, under_run)
        if terminal_fds:
            os.close(terminal_fds[1])
            process.read_terminal(terminal_fds[0])
        self._processes.append(process)
        return process

    def identity(self) -> dict[str, object]:
        """As which user programs run: a database refuses to be root."""
        if not self.user:
            return {}
        entry = pwd.getpwnam(self.user)
        return {"user": entry.pw_uid, "group": entry.pw_gid, "extra_groups": []}

    def until(
        self, true: Callable[[], object], what: str, timeout: float = PATIENCE_SECONDS, every: float = 0.002
    ) -> None:
        """Waits; not a measurement: the limit only ends what will never come."""
        limit = time.monotonic() + timeout
        while not true():
            if time.monotonic() > limit:
                raise AssertionError(f"waited {timeout:.0f} s in vain until {what}; {self.errors()}")
            time.sleep(every)

    def pause(self, longest: float) -> None:
        """A random time, so that a kill comes at a moment that nobody chose."""
        time.sleep(self.dice.random() * longest)

    def give(self, path: Path) -> Path:
        """To the user as whom programs run."""
        if self.user:
            entry = pwd.getpwnam(self.user)
            os.chown(path, entry.pw_uid, entry.pw_gid)
        return path

    # ---- death and recovery ----

    def bring_back(self) -> None:
        """Recovery by the way of this leg; what is started from now on is a restart."""
        self.died = True
        if self.leg != KILL:
            return
        if self.way == HAND:
            self.recover()
        elif self.way == RUN:
            # `fastwrite run` has done it already: there must be nothing left to do
            assert self.recover() == 0, "fastwrite run left bytes behind"

    def recover(self) -> int:
        """`fastwrite recover`; bytes that it brought back."""
        done = subprocess.run(
            [self.tools.command, "recover", "--json", self.data],
            env=self.env(shim=False),
            capture_output=True,
            text=True,
            timeout=PATIENCE_SECONDS,
            check=False,
            **self.identity(),
        )
        assert done.returncode == 0, f"recover: {done.stdout}{done.stderr}"
        report = json.loads(done.stdout)
        assert report["failed"] == 0, f"recover: {done.stdout}"
        assert report["orphans"] == 0, f"recover: {done.stdout}"
        self.recovered += report["bytes"]
        return report["bytes"]

    # ---- what the library says ----

    def look(self) -> None:
        """Notes what living processes have staged up to now: nobody reports after a kill."""
        if self.leg == NATIVE:
            return
        done = subprocess.run(
            [self.tools.command, "status", "--json"],
            env=self.env(shim=False),
            capture_output=True,
            text=True,
            timeout=PATIENCE_SECONDS,
            check=False,
        )
        if done.returncode != 0:
            raise AssertionError(f"status: {done.stderr}")
        for arena in json.loads(done.stdout)["arenas"]:
            if not arena["arena"].startswith(f"{self.base}/"):
                continue
            now = max(arena["counters"]["bytes"], sum(f["staged_bytes"] for f in arena["files"]))
            key = f"{arena['pid']} {arena['arena']}"
            self._seen[key] = max(self._seen.get(key, 0), now)

    def stats(self) -> Stats:
        """Sums over the processes that ended by themselves."""
        return parse_stats(self.stats_file.read_text())

    def staged(self) -> int:
        """Bytes that went through the arenas, as far as is known: all of them, when nobody was killed."""
        return max(self.stats().bytes, sum(self._seen.values()), self.recovered)

    def accepted(self) -> int:
        """Bytes that the library had accepted at the last look, at least: they must be there after a kill."""
        return sum(self._seen.values())

    def errors(self) -> str:
        """The last lines that the programs wrote to standard error."""
        texts = [path.read_text(errors="replace")[-1500:] for path in sorted(self.aside.glob("err.*"))]
        return "\n".join(text for text in texts if text)

    def no_complaint(self, text: str) -> None:
        for match in LIBRARY_MESSAGE.finditer(text):
            if not EXPECTED_MESSAGE.match(match[0]):
                raise AssertionError(f"the library said: {match[0]}")

    def clean(self) -> None:
        """Nothing of the library's is left, nothing was complained about."""
        for path in self.aside.glob("err.*"):
            self.no_complaint(path.read_text(errors="replace"))
        left = leftovers(self.base)
        assert not left, f"left behind: {[str(p) for d in left for p in (d, *d.iterdir())]}"

    # ---- the end ----

    def close(self) -> None:
        for process in self._processes:
            if process.popen.poll() is None:
                for pid in reversed(freeze_tree(process.popen.pid)):
                    hit(pid, signal.SIGKILL)
                process.popen.wait()
            if process.popen.stdin:
                with contextlib.suppress(OSError):
                    process.popen.stdin.close()


@contextlib.contextmanager
def placed(tools: Tools, leg: str, keep: bool = False, **options: object) -> Iterator[Place]:
    """A place that is gone afterwards, unless the run failed and `keep` asks for what is left of it."""
    place = Place(tools, leg, **options)
    try:
        yield place
    except BaseException:
        place.close()
        if keep:
            print(f"kept: {place.base}")
        else:
            shutil.rmtree(place.base, ignore_errors=True)
        raise
    place.close()
    shutil.rmtree(place.base, ignore_errors=True)
