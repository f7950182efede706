# SPDX-License-Identifier: Apache-2.0
"""Runs programs natively and preloaded, in a directory on a real file system, and reads the statistics."""

from __future__ import annotations

import ctypes
import fcntl
import os
import pickle
import re
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

ROOT = Path(__file__).resolve().parent.parent.parent
Made = TypeVar("Made")
OWN_DIR = "fastwrite-test-"
MEMORY_FILE_SYSTEMS = {"tmpfs", "ramfs", "devtmpfs"}
STATS_LINE = re.compile(
    r"^fastwrite: pid (?P<pid>\d+) \((?P<program>.*?)\), rule (?P<rule>[\w.-]+): "
    r"(?P<writes>\d+) writes staged, (?P<bytes>\d+) bytes; "
    r"(?P<flushes>\d+) flushes, (?P<flush_bytes>\d+) bytes, (?P<direct_bytes>\d+) by O_DIRECT; "
    r"(?P<syncs_asked>\d+) syncs asked, (?P<syncs_done>\d+) done, (?P<journaled>\d+) by the journal; "
    r"(?P<drains>\d+) drains(?P<through>.*)$"
)
THROUGH = re.compile(r"; (\d+) files bypassed: ([^;]+)")

# What the library may say in a hook program, which does there what calls for it.
SAYS = {  # they kill processes whose arena nobody else has
    # (and say more of it in a second than is let through)
    "test_family": r"of a process that died|^fastwrite: \d+ messages dropped$",
    # at most what was written; less when some was flushed by then
    "test_name": r"/e/b: recovered, (\d{1,3}|1\d{3}|2000) bytes of a process that died",
    "test_exec": r"/a: recovered, (\d{1,4}|1\d{4}) bytes of a process that died",
    # as much as was not flushed by then; the parent looks after each of its children's deaths, and says more of
    # them in a second than are let through
    "test_step": r"/a: recovered, |^fastwrite: \d+ messages dropped$",
    "test_pointer": r"/a: recovered, \d{1,4} bytes of a process that died",
}


@dataclass
class Stats:
    """Sums over the processes that reported."""

    processes: int = 0
    writes: int = 0
    bytes: int = 0
    flushes: int = 0
    direct_bytes: int = 0
    syncs_asked: int = 0
    syncs_done: int = 0
    journaled: int = 0
    through: dict[str, int] = field(default_factory=dict)


@dataclass
class Run:
    """How a program ended, and what the library said about it."""

    returncode: int
    stdout: str
    stderr: str
    stats: Stats


def parse_stats(text: str) -> Stats:
    """The FASTWRITE_STATS lines in `text`; a line that begins like one and is none is an error."""
    stats = Stats()
    for line in text.splitlines():
        if not line.startswith("fastwrite: pid "):
            continue
        match = STATS_LINE.match(line)
        assert match, f"not a line of statistics: {line}"
        stats.processes += 1
        for name in ("writes", "bytes", "flushes", "direct_bytes", "syncs_asked", "syncs_done", "journaled"):
            setattr(stats, name, getattr(stats, name) + int(match[name]))
        for count, why in THROUGH.findall(match["through"]):
            stats.through[why] = stats.through.get(why, 0) + int(count)
    return stats


def clean_environment(**extra: str) -> dict[str, str]:
    """The caller's environment without what would steer the library under test."""
    env = {
        name: value
        for name, value in os.environ.items()
        if name != "LD_PRELOAD" and (not name.startswith("FASTWRITE_") or name.startswith("FASTWRITE_TEST_"))
    }
    env.update(extra)
    return env


def on_this_machine(seconds: float) -> str:
    return (
        f"{round(seconds, 1):g} s on a machine with load {os.getloadavg()[0]:.1f} "
        f"on {len(os.sched_getaffinity(0))} processors"
    )


def slowness() -> float:
    """By how much time limits are longer here, asked when one is over: some 12 for one of three workers that
    share a quarter of a processor.  A slow disk shows in no processor time: so at least 5."""
    wall, processor = time.monotonic(), time.process_time()
    while time.process_time() - processor < 0.2:
        pass
    return min(max(5.0, (time.monotonic() - wall) / 0.2), 16.0)


def be_patient() -> None:
    """From now on time limits of programs that tests start are as much longer as this machine is slower, except for
    short ones: a time limit only ends what hangs."""
    popen_communicate, popen_wait = subprocess.Popen.communicate, subprocess.Popen.wait

    def is_final(timeout: float) -> bool:
        return timeout < 10

    def communicate(self, *args, **named):
        timeout = named.get("timeout", args[1] if len(args) > 1 else None)
        try:
            return popen_communicate(self, *args, **named)
        except subprocess.TimeoutExpired:
            if is_final(timeout):
                raise
        # (what was read so far it still has, and its input is given once)
        return popen_communicate(self, timeout=timeout * (slowness() - 1))

    def wait(self, timeout: float | None = None) -> int:
        try:
            return popen_wait(self, timeout)
        except subprocess.TimeoutExpired:
            if is_final(timeout):
                raise
        return popen_wait(self, timeout * (slowness() - 1))

    subprocess.Popen.communicate, subprocess.Popen.wait = communicate, wait


def sync_file_system(path: Path) -> None:
    """Of this one alone: others are other tests' business, which lose their power."""
    fd = os.open(path, os.O_RDONLY)
    try:
        if ctypes.CDLL(None, use_errno=True).syncfs(fd) != 0:
            raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()), str(path))
    finally:
        os.close(fd)


# Hook programs that sync all file systems of the machine.
SYNC_ALL = {"test_sync", "test_syscall"}


@contextmanager
def all_synced(spoils: bool = False) -> Iterator[None]:
    """Around what syncs all file systems of the machine; with `spoils` around the test that such a sync would spoil.
    The one waits for the other, also in other parts of the same run."""
    with Path(tempfile.gettempdir(), f"fastwrite-tests-sync-{os.getuid()}").open("a") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX if spoils else fcntl.LOCK_SH)
        yield


def too_slow(seconds: float, what: str) -> str:
    """A time limit has passed: says what tells a loaded machine from a fault."""
    return f"too slow: {on_this_machine(seconds)}: {what}"


class TooSlowError(subprocess.TimeoutExpired):
    """A program that did not end in time."""

    def __str__(self) -> str:
        return too_slow(self.timeout, " ".join(str(part) for part in self.cmd))


def wait_for(condition: Callable[[], object], what: str, seconds: float = 60, pause: float = 0.01) -> None:
    """Returns as soon as `condition()` holds."""
    begin = time.monotonic()
    while not condition():
        if time.monotonic() - begin > seconds and time.monotonic() - begin > seconds * slowness():
            raise AssertionError(too_slow(time.monotonic() - begin, f"waited for {what}"))
        time.sleep(pause)


def default_signals() -> None:
    """Programs that are started get the signals' defaults, although a background job of a script, or one of nohup,
    is started with some of them ignored, which would be handed on.  Here they stay without effect."""
    for number in (signal.SIGINT, signal.SIGQUIT, signal.SIGHUP, signal.SIGTERM):
        if signal.getsignal(number) is signal.SIG_IGN:
            signal.signal(number, lambda *_: None)


def file_system(path: Path) -> str:
    """Type of the file system that holds `path`."""
    done = subprocess.run(["stat", "-f", "-c", "%T", str(path)], capture_output=True, text=True, check=True)
    return done.stdout.strip()


def disk_base() -> Path:
    """A directory on a disk file system: FASTWRITE_TEST_DIR, else the first of the usual places."""
    if chosen := os.environ.get("FASTWRITE_TEST_DIR"):
        return Path(chosen)
    places = [Path(tempfile.gettempdir()), Path("/var/tmp"), ROOT / "build"]
    for place in places:
        if place.is_dir() and os.access(place, os.W_OK) and file_system(place) not in MEMORY_FILE_SYSTEMS:
            return place
    return places[-1]


@contextmanager
def disk_dir() -> Iterator[Path]:
    """A fresh directory on a disk file system, removed at the end."""
    path = Path(tempfile.mkdtemp(prefix=OWN_DIR, dir=disk_base())).resolve()
    try:
        yield path
    finally:
        shutil.rmtree(path, ignore_errors=True)


def kill_in(place: Path) -> None:
    """Kills what runs in this directory."""
    for process in Path("/proc").glob("[0-9]*"):
        try:
            if Path(os.readlink(process / "cwd")) == place:
                os.kill(int(process.name), signal.SIGKILL)
        except OSError:
            continue  # gone, or somebody else's


def run_native(command: list[str | Path], cwd: Path, timeout: float = 120, **env: str) -> Run:
    """The program as it is.  When it hangs, it and its children in a directory of its own are killed; TooSlowError
    has what it said."""
    arguments = [str(part) for part in command]
    syncs = all_synced() if Path(arguments[0]).name in SYNC_ALL else nullcontext()
    with (
        syncs,
        subprocess.Popen(
            arguments,
            cwd=cwd,
            env={**os.environ, **env},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            errors="replace",
        ) as process,
    ):
        try:
            out, err = process.communicate(timeout=timeout)
        except BaseException as stopped:
            process.kill()
            if cwd.name.startswith(OWN_DIR):
                kill_in(cwd)  # who else has the pipes
            if isinstance(stopped, subprocess.TimeoutExpired):
                out, err = process.communicate(timeout=10)
                raise TooSlowError(arguments, timeout, out, err) from None
            raise
    return Run(process.returncode, out, err, Stats())


def preload_env(library: Path, paths: str, **settings: object) -> dict[str, str]:
    """Variables that preload the library for files that match `paths`; settings by key: mem="1M".

    The second small write of a file is staged, unless `adapt` is set: tests write little."""
    settings = {"adapt": "off"} | settings
    return {
        "LD_PRELOAD": str(library),
        "FASTWRITE_PATHS": paths,
        **{f"FASTWRITE_{key.upper()}": str(value) for key, value in settings.items()},
    }


def run_preloaded(
    library: Path,
    command: list[str | Path],
    cwd: Path,
    *,
    paths: str | None = None,
    timeout: float = 120,
    env: dict[str, str] | None = None,
    **settings: object,
) -> Run:
    """The program under the library; by default everything below `cwd` is managed."""
    with tempfile.NamedTemporaryFile(prefix="fastwrite-stats-") as stats:
        settings.setdefault("stats", stats.name)
        variables = preload_env(library, paths if paths is not None else f"{cwd}/**", **settings)
        done = run_native(command, cwd, timeout, **{**variables, **(env or {})})
        done.stats = parse_stats(Path(stats.name).read_text())
    return done


def assert_staged(stats: Stats, at_least: int = 1) -> None:
    """The run was no test of the library unless bytes went through its arena."""
    assert stats.bytes >= at_least, f"only {stats.bytes} bytes were staged: {stats}"


def leftovers(directory: Path) -> list[Path]:
    """Staging directories that a program left behind."""
    return sorted(directory.rglob(".fastwrite"))


def complaints(program: str, text: str) -> list[str]:
    """What the library said in a hook program, besides statistics, that nothing called for."""
    said = [line for line in text.splitlines() if line.startswith("fastwrite: ")]
    known = SAYS.get(program)
    return [
        line
        for line in said
        if not line.startswith("fastwrite: pid ") and not (known and re.search(known, line))
    ]


def made_once(directory: Path, name: str, make: Callable[[], Made]) -> Made:
    """What `make` gives.  Processes of one run of the tests, which have `directory` in common, make it once."""
    made, new = directory / name, directory / f"{name}.new"
    with (directory / f"{name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not made.exists():
            new.write_bytes(pickle.dumps(make()))
            new.rename(made)
    return pickle.loads(made.read_bytes())
