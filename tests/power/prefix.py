# SPDX-License-Identifier: Apache-2.0
"""python -m power.prefix (with tests/ on the path; make soak-power does it): does a power loss leave a prefix?

A program makes numbered steps over several files, transactions of SQLite, PostgreSQL or MariaDB, writes to a
LevelDB, a RocksDB or a Redis, or commits of Git.
Another program syncs the same files meanwhile.  The file system is shut down, or its disk is cut off; then it is
mounted and recovered; every other time it is shut down once more meanwhile.  Its files must be as they were
after some number of operations.  Natively, with a sync after each step, they must be, and nothing
acknowledged may be missing.  The controls do not sync: they must fail, or the test could not find anything.

Needs root, FUSE and loop devices.  Exit status 0: so it is; 1: not so; 77: this machine cannot run it."""

from __future__ import annotations

import argparse
import ctypes.util
import os
import signal
import struct
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from pathlib import Path
from random import Random

from lib.support import ROOT, preload_env

from power import commands, commits, cuts, records, repository, servers, steps, system
from power.disk import copy_image, make_image
from power.system import DISK, FUSE, PLACE, another_boot, end_group, loop, mounted, shut_down
from power.workload import DATA, PATIENCE_SECONDS, SKIPPED, FailedError, Tools, main_of

SQLITE = ("sqlite-delete", "sqlite-truncate", "sqlite-persist", "sqlite-wal")
ROLLED_BACK = ("sqlite-delete", "sqlite-truncate", "sqlite-persist", "sqlite-two-delete")
SHARED = ("sqlite-two-delete", "sqlite-two-wal")  # by two programs: not for rules with exclusive writers
LARGE, REDIS, GIT = "steps-large", "redis", "git"
FORKS = "steps-forks"
PROCESSES = "steps-processes"  # (while a forked process lives, a rule in order leaves all to the kernel)
# The numbered steps, by one process or by three that take turns: arguments of the program.
HOW = {
    "steps": (),
    PROCESSES: ("processes",),
    "steps-threads": ("threads",),
    "steps-files": ("files",),  # no names come and go
    LARGE: ("large",),  # appends that an epoch has by their size
    FORKS: ("forks",),  # a child that makes some steps
}
# An arena for each of several processes, or none.
NOT_MET = (GIT, "postgresql", "mariadb-uring", *SHARED)


@dataclass(frozen=True)
class Program:
    """Of other kinds than the numbered steps and SQLite."""

    words: tuple[str, ...]  # its file, and what goes before DIRECTORY ACKS SYNC
    prepare: Callable[[], None]
    look: Callable[[], tuple[int, str]]  # the last operation that is there, and what is wrong
    missing: Callable[[], str]  # why it cannot run; empty if it can


PROGRAMS = {
    **{
        name: Program((m.__file__,), partial(m.prepare, DATA), partial(m.look, DATA), m.missing)
        for name, m in ((REDIS, commands), (GIT, repository))
    },
    **{
        name: Program(
            (records.__file__, name),
            partial(records.prepare, store, DATA),
            partial(records.look, store, DATA),
            store.missing,
        )
        for name, store in records.STORES.items()
    },
    **{
        name: Program(
            (servers.__file__, name),
            partial(servers.prepare, server, DATA, PLACE / name),
            partial(servers.look, server, DATA),
            server.missing,
        )
        for name, server in servers.SERVERS.items()
    },
}
KINDS = (*HOW, *SQLITE, *SHARED, *PROGRAMS)
NATIVE, NO_SYNC, EATMYDATA, OFF = "native", "no-sync", "eatmydata", "off"
ORDERED, LEASED, NO_REPLAY = "ordered", "ordered-leased", "ordered-no-replay"
CONTROLS = (NO_SYNC, EATMYDATA, OFF)
# Without its recovery `ordered` is a mixture only while an epoch goes to the files.  Of the numbered steps some 8 of 10
# losses at that moment leave no prefix, of a single database few: no control.
UNJUDGED = (NO_REPLAY,)
# The other program opens the files to sync them, which takes their leases.  Between two times they are staged.
PAUSE_US = {LEASED: 40_000}
IN_ORDER = (ORDERED, LEASED)
RECOVERED = (OFF, *IN_ORDER)
VARIANTS = (NATIVE, *IN_ORDER, *CONTROLS, *UNJUDGED)
CONTROLS_FAIL = 0.8  # of the losses
# The device is memory: a control needs some time until the kernel has written part of its work.
SECONDS = (0.15, 0.4)
# Operations before that, whatever the speed: a log that was checkpointed and begun anew, for example.
LEAST = {
    **dict.fromkeys(HOW, 500),
    "steps-forks": 20_000,
    "sqlite-wal": 200,
    "sqlite-two-delete": 12,
    "sqlite-two-wal": 120,
    **dict.fromkeys(records.STORES, 2000),
    REDIS: 6000,
    GIT: 8,
    **dict.fromkeys(servers.SERVERS, 200),
}
LEAST_COMMITS = 3
PROGRESS = 500  # operations just before a control is ended
# A fast program does not wait until its disk is full.
MANY = 250_000
MANY_LARGE = 15_000
SMALL_ARENA = {"mem": "1M", "block": "64K"}  # many epochs, of which each appends much
CUT_SECONDS = 0.7  # the disk is slower
# The first files of an epoch take less time: then the others still have the epoch before.
WRITE_BACK_SECONDS = 0.0005
RECOVERY_SECONDS = 0.06  # with its start
SHUTDOWN, CUT = "shutdown", "cut"


@dataclass(frozen=True)
class Run:
    kind: str
    fs: str
    variant: str
    seed: int

    def options(self) -> str:
        return f"--kinds {self.kind} --fs {self.fs} --variants {self.variant} --seed {self.seed}"


@dataclass
class Found:
    wrong: str = ""  # empty: a prefix
    kept: int = 0  # operations of the newest such state
    acked: int = 0  # operations whose step had returned before the loss
    age_ns: int = 0  # of the oldest of them that is missing


def is_control(run: Run) -> bool:
    """Without a sync of each write LevelDB syncs its tables all the same: it loses the last writes, and keeps order."""
    return run.variant in CONTROLS and not (run.kind in records.STORES and run.variant == NO_SYNC)


def is_judged(run: Run) -> bool:
    """Redis appends to one file: what keeps no order is a prefix of it most of the time.  `off` does nothing
    with what is not staged."""
    if run.kind == REDIS and run.variant in CONTROLS:
        return False
    return run.variant not in UNJUDGED and (run.kind, run.variant) != ("mariadb-uring", OFF)


def eatmydata() -> str:
    """The library that makes each sync do nothing; empty if it is not installed."""
    return ctypes.util.find_library("eatmydata") or ""


def environment(run: Run, build: Path) -> dict[str, str]:
    env = {**os.environ, "PYTHONPATH": str(ROOT / "tests")}
    if run.variant == EATMYDATA:
        env["LD_PRELOAD"] = eatmydata()
    elif run.variant == OFF:
        library = build / "libfastwrite.so"
        env.update(preload_env(library, f"{DATA}/**", sync="off", writers="exclusive"))
    elif run.variant in (*IN_ORDER, NO_REPLAY):
        library = build / "libfastwrite.so"
        size = SMALL_ARENA if run.kind == LARGE else {}
        writers = "auto" if run.variant == LEASED else "exclusive"
        env.update(preload_env(library, f"{DATA}/**", sync="ordered", writers=writers, **size))
    return env


def mode_of(run: Run) -> str:
    """SQLite's."""
    return run.kind.rpartition("-")[2]


def command(run: Run, build: Path, acks: Path) -> list[str]:
    syncs = run.variant != NO_SYNC
    if run.kind in HOW:
        return [
            str(build / "tests" / "power" / "steps"),
            "write",
            str(DATA),
            str(acks),
            str(int(syncs)),
            *HOW[run.kind],
        ]
    if run.kind in PROGRAMS:
        return [sys.executable, *PROGRAMS[run.kind].words, str(DATA), str(acks), str(int(syncs))]
    # DELETE: the commit is the removal of the journal, which only EXTRA makes durable
    safe = "FULL" if mode_of(run) == "wal" else "EXTRA"
    program = Path(__file__).with_name("commits.py")
    return [
        sys.executable,
        str(program),
        str(DATA / "data.db"),
        str(acks),
        mode_of(run),
        safe if syncs else "OFF",
        *(["two"] if run.kind in SHARED else []),
    ]


def nudged(run: Run) -> list[str]:
    """The only file that the other program syncs; none: it syncs all.

    A database without its journal, the log without its database, or the list of tables without them, is what a control
    cannot survive."""
    if run.kind in (*HOW, REDIS, GIT, *servers.SERVERS) or (not is_control(run) and run.seed % 2):
        return []
    if run.kind in records.STORES:
        return [records.STORES[run.kind].manifest]
    return ["data.db-wal" if mode_of(run) == "wal" else "data.db"]


def synced_directory(run: Run) -> Path:
    """With the files that the other program syncs."""
    if run.kind in servers.SERVERS:
        return servers.SERVERS[run.kind].nudged(DATA)
    return {REDIS: DATA / "appendonlydir", GIT: DATA / ".git"}.get(run.kind, DATA)


def disk_of(run: Run) -> int:
    """Its size; 0: that of most."""
    return 320 << 20 if run.kind in servers.SERVERS else 0


def block_of(run: Run) -> int:
    """Of the file system.  With smaller blocks the kernel makes most writes to SQLite's rollback journals."""
    return 1024 if run.seed % 4 == 0 else 4096


def times_in(acks: Path) -> list[int]:
    """When the step of each operation had returned."""
    data = acks.read_bytes()
    return [ns for ns in struct.unpack(f"<{len(data) // 8}Q", data) if ns]


def is_acked(acks: Path, operation: int) -> bool:
    with acks.open("rb", buffering=0) as file:
        return os.pread(file.fileno(), 8, (operation - 1) * 8) != bytes(8)


@lru_cache(maxsize=1)  # all cuts of a run ask for the same
def history_of(operations: int, kind: str) -> steps.History:
    history = steps.History(kind not in ("steps-files", LARGE), kind == LARGE)
    history.advance(operations)
    return history


def leaves_some_to_the_kernel(run: Run) -> bool:
    """Natively; and while a forked process lives, or another program has the files open."""
    return run.variant in (NATIVE, LEASED) or (run.kind == FORKS and run.variant == ORDERED)


def judge(run: Run, times: list[int], loss_ns: int, last: int = 0) -> Found:
    """What was under way to the kernel may be there in part: some sectors of a page, or of a file that was
    being cut the zeros but not the size.  It is the operation behind the acknowledged ones, or one up to `last`."""
    acked = sum(ns < loss_ns for ns in times)
    found = Found(acked=acked)
    if run.kind in HOW:
        history = history_of(
            len(times) + 2, run.kind
        )  # what was under way is a step of two operations at most
        there = history.look(DATA)
        if leaves_some_to_the_kernel(run):
            history.forgive(there, range(acked + 1, max(acked + 1, last) + 1))
        states = history.states(there)
        found.kept = states[-1] if states else 0
        if not states:
            found.wrong = (
                f"no state of the program; after {acked} operations: {history.odd(there, acked)[:500]}"
            )
    elif run.kind in PROGRAMS:
        found.kept, found.wrong = PROGRAMS[run.kind].look()
    else:
        found.kept, found.wrong = commits.look(DATA / "data.db", mode_of(run))
    if not found.wrong and found.kept < acked:
        found.age_ns = loss_ns - times[found.kept]
        if run.variant == NATIVE:
            found.wrong = f"{acked - found.kept} operations lost"
    return found


def recovery(build: Path) -> list[str]:
    """Its command."""
    return [str(build / "fastwrite"), "recover", str(DATA)]


def recover(build: Path) -> None:
    done = subprocess.run(
        recovery(build),
        capture_output=True,
        text=True,
        timeout=PATIENCE_SECONDS,
        check=False,
    )
    if done.returncode not in (0, 1):  # 1: bytes were put aside
        raise FailedError(f"fastwrite recover: status {done.returncode}: {done.stdout}{done.stderr}")


def prepare(run: Run, acks: Path) -> None:
    """The files as the program finds them, on the disk."""
    with acks.open("wb") as file:
        file.truncate(steps.MOST * 8)
    DATA.mkdir()
    if run.kind in HOW:
        steps.prepare(DATA)
    elif run.kind in PROGRAMS:
        PROGRAMS[run.kind].prepare()
    else:
        commits.prepare(DATA / "data.db")
    subprocess.run(["sync", "-f", str(DISK)], check=True)


def has_a_journal(database: Path) -> bool:
    """SQLite's, of a transaction that is under way."""
    try:
        return any(Path(f"{database}-journal").read_bytes()[:8])
    except FileNotFoundError:
        return False


def group_of(writer: subprocess.Popen) -> list[int]:
    """The program, and the one that it has started."""
    return [writer.pid, *map(int, Path(f"/proc/{writer.pid}/task/{writer.pid}/children").read_text().split())]


def is_stopped(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] in "TZX"
    except (FileNotFoundError, ProcessLookupError):
        return True


def stop_in_a_transaction(writer: subprocess.Popen, acks: Path) -> None:
    """What the transaction has written so far is on the disk, and its rollback journal is not.  Between two
    transactions, while another program starts for example, a control would leave a prefix."""
    database = DATA / "data.db"
    limit = time.monotonic() + PATIENCE_SECONDS
    acked = len(times_in(acks))
    while writer.poll() is None:
        while is_acked(acks, acked + 1):
            acked += 1
        changed_ns = database.stat().st_mtime_ns
        while database.stat().st_mtime_ns == changed_ns and writer.poll() is None:
            if time.monotonic() > limit:
                raise FailedError(f"no transaction in {PATIENCE_SECONDS} s")
            time.sleep(0.001)
        if writer.poll() is not None:
            return
        os.killpg(writer.pid, signal.SIGSTOP)
        while not all(map(is_stopped, group_of(writer))):
            time.sleep(0.001)
        if not is_acked(acks, acked + 1) and has_a_journal(database):
            break
        os.killpg(writer.pid, signal.SIGCONT)
    with database.open("rb") as file:
        os.fdatasync(file.fileno())


@contextmanager
def running(run: Run, build: Path, acks: Path, seconds: float) -> Iterator[None]:
    """The program and the one that syncs its files, which have run for some time; both are killed at the end."""
    errors = PLACE / "errors"
    files = synced_directory(run)
    pause = str(PAUSE_US.get(run.variant, 1000))
    nudge = [str(build / "tests" / "power" / "steps"), "nudge", str(files), pause, *nudged(run)]
    with errors.open("wb") as said:
        options = {"cwd": PLACE, "stdin": subprocess.DEVNULL, "stderr": said}
        with (
            subprocess.Popen(
                command(run, build, acks), env=environment(run, build), start_new_session=True, **options
            ) as writer,
            subprocess.Popen(nudge, **options) as nudger,
        ):
            try:
                least = LEAST.get(run.kind, LEAST_COMMITS)

                def wait_for(operations: int, patience: float) -> bool:
                    limit = time.monotonic() + patience
                    while not is_acked(acks, operations):
                        if time.monotonic() > limit or writer.poll() is not None:
                            return False
                        time.sleep(0.001)
                    return True

                if not wait_for(least, PATIENCE_SECONDS) and writer.poll() is None:
                    raise FailedError(f"{run}: not {least} operations in {PATIENCE_SECONDS} s")
                wait_for(MANY_LARGE if run.kind == LARGE else MANY, seconds)
                # where processes wait for each other's processor, the other program may just have synced all
                if is_control(run):
                    wait_for(len(times_in(acks)) + (PROGRESS if run.kind in HOW else 1), PATIENCE_SECONDS)
                if run.variant in (NO_SYNC, EATMYDATA) and run.kind in ROLLED_BACK:
                    stop_in_a_transaction(writer, acks)
                if writer.poll() is not None:
                    raise FailedError(f"{run}: status {writer.returncode}: {errors.read_text()}")
                yield
            finally:
                end_group(writer.pid)
                nudger.kill()
                if run.kind in servers.SERVERS:
                    servers.end_all(servers.SERVERS[run.kind])


def meet(run: Run, build: Path) -> int:
    """Shuts the file system down while an epoch goes to the files; the time before."""
    arenas = list((DATA / ".fastwrite").glob("*.arena"))
    if len(arenas) != 1:
        raise FailedError(f"{run}: {len(arenas)} arenas")
    delay = round(1e6 * Random(run.seed).uniform(0, WRITE_BACK_SECONDS))
    helper = build / "tests" / "power" / "meet"
    done = subprocess.run(
        [str(helper), str(arenas[0]), str(DISK), str(delay)], capture_output=True, text=True, check=False
    )
    if done.returncode != 0:
        raise FailedError(f"{run}: {done.stderr}")
    return int(done.stdout)


def lose_power(run: Run, build: Path) -> int:
    """At any time, or while an epoch goes to the files; the time before."""
    if run.variant == NO_REPLAY or (run.variant in IN_ORDER and run.seed % 2 and run.kind not in NOT_MET):
        return meet(run, build)
    loss_ns = time.monotonic_ns()
    shut_down(DISK)
    return loss_ns


def lose_power_again(run: Run, build: Path) -> None:
    """While recovery is at work, or just before or after that."""
    with subprocess.Popen(recovery(build), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
        time.sleep(Random(run.seed).uniform(0, RECOVERY_SECONDS))
        shut_down(DISK)
        process.kill()


def shut_down_once(run: Run, build: Path) -> Found:
    """One run, one loss: of the page cache and the file system's log.  Or two, the second during recovery."""
    image, acks = PLACE / "image", PLACE / "acks"
    make_image(image, run.fs, block_of(run), disk_of(run))
    with loop(image) as device:
        with mounted(device, run.fs):
            prepare(run, acks)
            with running(run, build, acks, Random(run.seed).uniform(*SECONDS)):
                loss_ns = lose_power(run, build)
                times = times_in(acks)
        device.forget()
        if run.variant in IN_ORDER and run.seed % 4 > 1:
            with another_boot(), mounted(device, run.fs):
                lose_power_again(run, build)
            device.forget()
        with another_boot(), mounted(device, run.fs):
            if run.variant in RECOVERED:
                recover(build)
            # (steps may have returned between the look at the clock and the loss, and none after it)
            found = judge(run, times, loss_ns, len(times) + 1)
    image.unlink()
    return found


def cut_off(run: Run, build: Path, count: int) -> Iterator[Found]:
    """One run on the disk that logs its writes, and the losses at some of its events."""
    tools = Tools(build / "libfastwrite.so", build / "fastwrite", build / "tests" / "power")
    image, base, log, acks = (PLACE / name for name in ("image", "base", "log", "acks"))
    dice = Random(run.seed)
    make_image(image, run.fs, block_of(run), disk_of(run))
    copy_image(image, base)
    log.unlink(missing_ok=True)
    with cuts.logged_disk(tools, image, log):
        with loop(FUSE / "image") as device, mounted(device, run.fs):
            prepare(run, acks)
            cuts.mark(cuts.BEGUN)
            with running(run, build, acks, CUT_SECONDS):
                cuts.mark(cuts.ENDED)
            times = times_in(acks)
    image.unlink()
    events = cuts.read_log(log)
    begun, ended = (next(n for n, e in enumerate(events) if e.mark == m) for m in (cuts.BEGUN, cuts.ENDED))
    # of a control the first writes are no prefix of much
    places = sorted(dice.randint(begun + (ended - begun) // 4, ended) for _ in range(count))
    with cuts.replayed_disk(tools, base, log) as (device, replayer):
        for place in places:
            replayer(cuts.Cut(place, dice.randrange(1 << 31), dice.choice(cuts.STYLES)))
            device.forget()
            with mounted(device, run.fs):
                if run.variant in RECOVERED:
                    recover(build)
                yield judge(run, times, events[place - 1].ns)


HEAD = (
    "| power lost by | kind | file system | variant | losses of power | operations | not a prefix | oldest lost "
    "| s |\n|---|---|---|---|---|---|---|---|---|"
)


class Session:
    def __init__(self, options: argparse.Namespace) -> None:
        self.options = options
        self.build = options.build.resolve()
        self.bad = False

    def losses(self, way: str, run: Run, count: int) -> Iterator[tuple[Run, Found]]:
        if way == CUT:
            for found in cut_off(run, self.build, count):
                yield run, found
            return
        for number in range(count):
            one = replace(run, seed=run.seed + number)
            yield one, shut_down_once(one, self.build)

    def row(self, way: str, run: Run, count: int) -> None:
        wrong = operations = age_ns = 0
        begin = time.monotonic()
        for one, found in self.losses(way, run, count):
            operations += found.acked
            age_ns = max(age_ns, found.age_ns)
            wrong += bool(found.wrong)
            if found.wrong and not is_control(run) and is_judged(run):
                self.bad = True
                again = f"{one.options()} --{way}s {1 if way == SHUTDOWN else count}"
                print(f"FAILED {found.wrong}\n    again: python -m power.prefix {again}", flush=True)
        age = f"{age_ns / 1e6:.0f} ms" if age_ns else "–"
        seconds = time.monotonic() - begin
        cells = (way, run.kind, run.fs, run.variant, count, operations, wrong, age, f"{seconds:.0f}")
        print(f"| {' | '.join(map(str, cells))} |", flush=True)
        # (of a few losses one that fails is enough)
        if is_control(run) and is_judged(run) and wrong < (CONTROLS_FAIL * count if count >= 10 else 1):
            self.bad = True
            print(f"FAILED the control {run.variant} left a prefix in {count - wrong} of {count}", flush=True)

    def run(self) -> int:
        for path in (self.build / "libfastwrite.so", self.build / "tests" / "power" / "steps"):
            if not path.exists():
                print(f"{path} is not there; run make tests-build", file=sys.stderr)
                return 2
        for kind, program in PROGRAMS.items():
            why = program.missing() if kind in self.options.kinds else ""
            if why:
                self.options.kinds.remove(kind)
                print(f"without {kind}: {why}", flush=True)
        if not self.options.kinds:
            return SKIPPED
        variants = [v for v in VARIANTS if v in self.options.variants]
        if EATMYDATA in variants and not eatmydata():
            variants.remove(EATMYDATA)
            print("without libeatmydata, which is not installed (package eatmydata)", flush=True)
        print(HEAD, flush=True)
        # the controls first: without them nothing is shown
        for variant in sorted(variants, key=lambda v: v not in CONTROLS):
            for kind in self.options.kinds:
                if kind in SHARED and variant not in (NATIVE, LEASED, NO_SYNC):
                    continue
                if kind == PROCESSES and variant in IN_ORDER:
                    continue
                for fs in self.options.fs:
                    run = Run(kind, fs, variant, self.options.seed)
                    for way, count in ((SHUTDOWN, self.options.shutdowns), (CUT, self.options.cuts)):
                        if count:
                            self.row(way, run, count)
        print("FAILED" if self.bad else "passed", flush=True)
        return 1 if self.bad else 0


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="power.prefix", description="Does a power loss leave a prefix?")
    parser.add_argument("--shutdowns", type=int, default=0, help="of the file system, for each row")
    parser.add_argument("--cuts", type=int, default=0, help="of the disk's log, for each row")
    parser.add_argument("--kinds", nargs="+", choices=KINDS, default=list(KINDS), help="of programs")
    parser.add_argument("--fs", nargs="+", choices=("ext4", "xfs"), default=["ext4", "xfs"])
    parser.add_argument("--variants", nargs="+", choices=VARIANTS, default=list(VARIANTS))
    parser.add_argument("--seed", type=int, default=1, help="of the first loss of each row")
    parser.add_argument("--build", type=Path, default=ROOT / "build", help="build directory to test")
    options = parser.parse_args()
    if not options.shutdowns and not options.cuts:
        parser.error("--shutdowns or --cuts: how many?")
    return options


def start() -> int:
    options = parse()
    return main_of([system.missing()], lambda: Session(options).run())


if __name__ == "__main__":
    sys.exit(start())
