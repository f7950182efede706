# SPDX-License-Identifier: Apache-2.0
"""Drives the machine of tests/differential/: random sequences of file operations, natively and under the library.

    PYTHONPATH=tests python -m tools.machine run --fs ext4 xfs --sequences 10000 [--seed N] [--family] [--keep-going]
    PYTHONPATH=tests python -m tools.machine replay build/differential/LIST.ops

A batch is one start of the machine: many sequences under one setting, both drawn from the seed.  What the two runs
note (results, errno, sizes, offsets, content) and what they leave in the file system must be the same.  A batch that
differs is reduced to a short list that still does; it is kept under build/differential/ with its setting and file
system, and printed.
"""

from __future__ import annotations

import argparse
import itertools
import os
import random
import re
import shutil
import signal
import struct
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

from lib.support import ROOT, clean_environment, disk_base, leftovers, parse_stats, preload_env

SOURCES = ROOT / "tests" / "differential"
KEPT = ROOT / "build" / "differential"
KINDS = ("ext4", "xfs", "btrfs", "tmpfs", "overlayfs")
PREFIX = "fastwrite-machine-"
ARENA_DIR = ".fastwrite"
BATCH = 50
BATCH_SECONDS = 240
PROBE_SECONDS = 20
SHRINK_SECONDS = 120
IMAGE_MEBIBYTES = 1024
SOAK_TURN_SECONDS = 120
LONG_LIST = 60  # lines that are not printed
STEADY_RUNS = 12  # natively, of a list that differs

SIZES = [("1M", "64K"), ("1M", "64K"), ("2M", "128K"), ("16M", "128K"), ("10M", "1M")]
CHOICES = {
    "adapt": ["off", "off", "on"],
    "writers": ["auto", "auto", "exclusive", "shared"],
    "flush": ["auto", "direct", "buffered"],
    "lag_ms": [1, 1, 5, 100],
    "prealloc": ["64M", "64M", "1M", "0"],
    "prealloc_mode": ["keep", "keep", "keep", "off"],
    "small": ["64K", "64K", "4K", "512"],
    "sync": ["fdatasync", "fsync", "relaxed", "off"],
    "visibility": ["lag", "lag", "lag", "strict"],
}

Setting = dict[str, object]


def random_setting(dice: random.Random) -> Setting:
    mem, block = dice.choice(SIZES)
    setting: Setting = {"mem": mem, "block": block}
    return setting | {key: dice.choice(values) for key, values in CHOICES.items()}


# ---- file systems ----


class UnavailableError(Exception):
    """This file system cannot be had here, and why."""


def run_tool(*command: str | Path) -> None:
    done = subprocess.run([str(part) for part in command], capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise UnavailableError(f"{command[0]}: {(done.stderr or done.stdout).strip()}")


def unmount(point: Path) -> None:
    for command in (["umount", str(point)], ["umount", "-l", str(point)]):
        if subprocess.run(command, capture_output=True, check=False).returncode == 0:
            return


def alive(pid: int) -> bool:
    return Path(f"/proc/{pid}").exists()


def clean_up_after_the_dead() -> None:
    """Mounts and directories of runs that were killed."""
    pattern = re.compile(rf"/{PREFIX}(\d+)-")
    if os.geteuid() == 0:
        points = [line.split()[1] for line in Path("/proc/self/mounts").read_text().splitlines()]
        for point in reversed(points):
            found = pattern.search(point)
            if found and not alive(int(found[1])):
                unmount(Path(point))
    for place in (disk_base(), shared_memory()):
        for directory in place.glob(f"{PREFIX}*"):
            found = pattern.search(str(directory))
            if found and not alive(int(found[1])):
                shutil.rmtree(directory, ignore_errors=True)


def shared_memory() -> Path:
    """Where the control files lie: their pages are written to all the time."""
    memory = Path("/dev/shm")
    return memory if os.access(memory, os.W_OK) else disk_base()


@contextmanager
def own_directory(base: Path) -> Iterator[Path]:
    path = Path(tempfile.mkdtemp(prefix=f"{PREFIX}{os.getpid()}-", dir=base)).resolve()
    try:
        yield path
    finally:
        shutil.rmtree(path, ignore_errors=True)


class Place:
    """A directory on some file system, in which batches run."""

    def __init__(self, kind: str, base: Path) -> None:
        self.kind = kind
        self.base = base
        # the kernel's copy-up loops for ever when a limit on the size of files stops it
        self.flags = ["unlimited"] if kind == "overlayfs" else []

    @contextmanager
    def batch(self, prepare: Callable[[Path], None]) -> Iterator[Path]:
        """A fresh directory that holds `native` and `preloaded`; `prepare` fills what must be there before."""
        path = Path(tempfile.mkdtemp(prefix="b", dir=self.base))
        try:
            if self.kind == "overlayfs":
                with self.layers(path, prepare) as merged:
                    yield merged
            else:
                make_both(path)
                yield path
        finally:
            shutil.rmtree(path, ignore_errors=True)

    @contextmanager
    def layers(self, path: Path, prepare: Callable[[Path], None]) -> Iterator[Path]:
        lower, upper, work, merged = (path / name for name in ("lower", "upper", "work", "merged"))
        for directory in (lower, upper, work, merged):
            directory.mkdir()
        make_both(lower)
        prepare(lower)
        options = f"lowerdir={lower},upperdir={upper},workdir={work}"
        run_tool("mount", "-t", "overlay", "overlay", "-o", options, merged)
        try:
            yield merged
        finally:
            unmount(merged)


def make_both(path: Path) -> None:
    for name in ("native", "preloaded"):
        (path / name).mkdir()


@contextmanager
def place_on(kind: str) -> Iterator[Place]:
    """The file system for the time of the context; raises UnavailableError."""
    with ExitStack() as stack:
        base = stack.enter_context(own_directory(disk_base()))
        if kind == "ext4" and file_system_of(base) in ("ext2/ext3", "ext4"):
            yield Place(kind, base)
            return
        if os.geteuid() != 0:
            raise UnavailableError(f"{kind} needs root for mounting")
        if kind == "overlayfs":
            yield Place(kind, base)
            return
        point = base / "mounted"
        point.mkdir()
        if kind == "tmpfs":
            run_tool("mount", "-t", "tmpfs", "-o", f"size={IMAGE_MEBIBYTES}m", "none", point)
        else:
            make_image(kind, base / "image")
            run_tool("mount", "-o", "loop", base / "image", point)
        stack.callback(unmount, point)
        yield Place(kind, point)


def file_system_of(path: Path) -> str:
    done = subprocess.run(["stat", "-f", "-c", "%T", str(path)], capture_output=True, text=True, check=True)
    return done.stdout.strip()


def make_image(kind: str, image: Path) -> None:
    tool = {"ext4": ["mkfs.ext4", "-q", "-F"], "xfs": ["mkfs.xfs", "-q"], "btrfs": ["mkfs.btrfs", "-q"]}[kind]
    if not shutil.which(tool[0]):
        raise UnavailableError(f"{tool[0]} is not installed")
    with image.open("wb") as file:
        file.truncate(IMAGE_MEBIBYTES << 20)
    run_tool(*tool, image)


# ---- one batch ----


@dataclass
class Rig:
    """The machine, and the library that it is run under (None: natively both times)."""

    machine: Path
    libraries: list[Path | None]
    family: bool = False
    command: Path | None = None

    def generate(self, seed: int, first: int, count: int, *flags: str) -> str:
        command = [str(self.machine), "generate", str(seed), str(first), str(count), *flags]
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout


@dataclass
class Outcome:
    difference: str | None = None
    operation: int | None = None  # index in the list at which it showed
    staged: int = 0
    staged_elsewhere: int = 0  # by other processes than the first one
    notes: list[str] = field(default_factory=list)


def build_machine(directory: Path) -> Path:
    path = directory / "machine"
    command = ["cc", "-D_GNU_SOURCE", "-std=gnu17", "-O1", "-g", "-Wall", "-Wextra", "-Werror", "-pthread"]
    subprocess.run([*command, "-o", str(path), *map(str, sorted(SOURCES.glob("*.c")))], check=True)
    return path


def trace_of(control: Path) -> list[str]:
    """What the machine noted; its control file begins with the place and the size of it."""
    with control.open("rb") as file:
        at, used = struct.unpack("=QQ", file.read(16))
        file.seek(at)
        return file.read(used).decode(errors="replace").splitlines()


def index_of(line: str) -> int | None:
    found = re.match(r"(\d+) @", line)
    return int(found[1]) if found else None


def difference_of(native: list[str], preloaded: list[str]) -> tuple[str, int | None] | None:
    last = None
    for one, other in itertools.zip_longest(native, preloaded, fillvalue="nothing"):
        last = index_of(one) if index_of(one) is not None else last
        if one != other:
            return f"natively `{one}`, with the library `{other}`", last
    return None


def start(command: list[str], env: dict[str, str]) -> subprocess.Popen:
    # stderr is a pipe: a limit on the size of files must not cut off what is said there
    return subprocess.Popen(
        command,
        env={**clean_environment(), **env},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        errors="replace",
        start_new_session=True,
    )


def finish(process: subprocess.Popen, seconds: float) -> tuple[int | None, str]:
    """Exit status, None when it did not end in time; and what it said.  Nothing of it is left."""
    ended = False
    try:
        with suppress(subprocess.TimeoutExpired):
            process.communicate(timeout=seconds)
            ended = True
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        _, errors = process.communicate()
    return process.returncode if ended else None, errors


def run_batch(
    rig: Rig, place: Place, text: str, setting: Setting, library: Path | None, seconds: float
) -> Outcome:
    with own_directory(shared_memory()) as memory:
        operations = memory / "list.ops"
        operations.write_text(text)
        if place.kind == "btrfs":  # where no arena is made
            setting = {**setting, "staging": memory / ARENA_DIR}

        def prepare(lower: Path) -> None:
            for name in ("native", "preloaded"):
                subprocess.run([str(rig.machine), "prepare", str(operations), str(lower / name)], check=True)

        with place.batch(prepare) as path:
            return run_both(rig, path, memory, operations, setting, library, seconds)


def run_both(
    rig: Rig,
    path: Path,
    memory: Path,
    operations: Path,
    setting: Setting,
    library: Path | None,
    seconds: float,
) -> Outcome:
    flags = ["family"] if rig.family else []
    processes = {}
    for name in ("native", "preloaded"):
        command = [str(rig.machine), "run", str(memory / name), str(operations), str(path / name), *flags]
        env: dict[str, str] = {}
        if name == "native" or not library:
            command.append("quick")
        else:
            env = preload_env(library, f"{path / name}/**", stats="stderr", **setting)
        processes[name] = start(command, env)
    ends = {name: finish(processes[name], seconds) for name in ("preloaded", "native")}
    status = {name: end[0] for name, end in ends.items()}
    errors = {name: end[1] for name, end in ends.items()}
    killed = re.search(r"^(@\S+ )?exit [3-9]", operations.read_text(), re.MULTILINE) is not None
    return judge(rig, path, memory, status, errors, killed)


def judge(rig: Rig, path: Path, memory: Path, status: dict, errors: dict, killed: bool) -> Outcome:
    said = errors["preloaded"].splitlines()
    stats = [parse_stats(line) for line in said if line.startswith("fastwrite: pid ")]
    staged = sum(one.bytes for one in stats)
    # the first process ends last, and is the last to say so if it has staged anything
    elsewhere = staged - stats[-1].bytes if stats else 0
    lines = [line for line in said if not line.startswith("fastwrite: pid ")]
    outcome = Outcome(staged=staged, staged_elsewhere=elsewhere, notes=lines)
    native, preloaded = trace_of(memory / "native"), trace_of(memory / "preloaded")
    if status["native"] != 0 or not native or not native[0].startswith("0 @0 begin"):
        end = native[-1] if native else "nothing"
        raise AssertionError(f"the machine failed natively: {status['native']} {errors['native']} {end}")
    found = difference_of(native, preloaded)
    if found:
        outcome.difference, outcome.operation = found
    if status["preloaded"] is None:
        outcome.difference = f"does not end; {outcome.difference}"
    elif status["preloaded"] != 0:
        outcome.difference = f"status {status['preloaded']} with the library; {outcome.difference}"
    if not outcome.difference:
        recover(rig, path / "preloaded", killed, outcome)
        recover(rig, memory, killed, outcome)
    if not outcome.difference:
        done = subprocess.run(
            [str(rig.machine), "compare", str(path / "native"), str(path / "preloaded")],
            capture_output=True,
            text=True,
            check=False,
        )
        if done.returncode != 0:
            outcome.difference = (
                done.stdout.strip().replace(f"{path}/native/", "") or f"compare: {done.returncode}"
            )
    return outcome


def recover(rig: Rig, path: Path, killed: bool, outcome: Outcome) -> None:
    """What processes that were killed left behind is brought back; nothing else may be left."""
    if killed and leftovers(path) and rig.command:
        subprocess.run([str(rig.command), "recover", str(path)], capture_output=True, check=False)
    for left in leftovers(path):
        names = sorted(p.name for p in left.iterdir())
        # bytes for a file that others had removed; whether it was one is what the comparison of the trees shows
        if killed and names == ["orphans"]:
            shutil.rmtree(left)
        else:
            outcome.difference = f"left behind: {left} {names}"


# ---- making it short ----


def sequences_of(text: str) -> list[list[str]]:
    sequences: list[list[str]] = []
    for line in text.splitlines(keepends=True):
        if line.startswith("#"):
            continue
        if line.split()[0] == "begin":
            sequences.append([])
        sequences[-1].append(line)
    return sequences


def join(sequences: list[list[str]]) -> str:
    return "".join(line for sequence in sequences for line in sequence)


def fewer(parts: list, fails: Callable[[list], bool]) -> list:
    """A subset that still fails: parts are left out, many at a time first, until no single one can be."""
    size = max(1, len(parts) // 2)
    while True:
        at, before = 0, len(parts)
        while at < len(parts):
            rest = parts[:at] + parts[at + size :]
            if rest and fails(rest):
                parts = rest
            else:
                at += size
        if size > 1:
            size //= 2
        elif len(parts) == before:
            return parts


def smaller_numbers(lines: list[str], fails: Callable[[list[str]], bool]) -> list[str]:
    """Arguments become 0, 1 or smaller where it still fails."""
    for at in range(len(lines)):
        words = lines[at].split()
        first = 2 if words[0].startswith("@") else 1
        for place in range(first, len(words)):

            def with_number(
                value: int,
                lines: list[str] = lines,
                at: int = at,
                words: list[str] = words,
                place: int = place,
            ) -> list[str]:
                changed = " ".join([*words[:place], str(value), *words[place + 1 :]]) + "\n"
                return [*lines[:at], changed, *lines[at + 1 :]]

            words[place] = str(smallest(int(words[place]), lambda value, to=with_number: fails(to(value))))
            lines = with_number(int(words[place]))
    return lines


def smallest(value: int, fails: Callable[[int], bool]) -> int:
    """A number with which it fails, down from one with which it does."""
    while True:
        tries = dict.fromkeys([0, 1, value // 16, value // 2, value * 3 // 4, value - 1])
        smaller = next((one for one in tries if 0 <= one < value and fails(one)), None)
        if smaller is None:
            return value
        value = smaller


def shrink(text: str, operation: int | None, fails: Callable[[str], bool], seconds: float) -> str:
    """A short list that fails; `operation` is where the difference showed."""
    end = time.monotonic() + seconds

    def still(text: str) -> bool:
        return time.monotonic() < end and fails(text)

    sequences = sequences_of(text)
    if operation is not None:
        ends = list(itertools.accumulate(len(sequence) for sequence in sequences))
        guilty = next((i for i, stop in enumerate(ends) if operation < stop), len(sequences) - 1)
        if still(join([sequences[guilty]])):
            sequences = [sequences[guilty]]
        elif still(join(sequences[: guilty + 1])):
            sequences = sequences[: guilty + 1]
    sequences = fewer(sequences, lambda rest: still(join(rest)))
    lines = [line for sequence in sequences for line in sequence]
    lines = fewer(lines, lambda rest: rest[0].startswith("begin") and still("".join(rest)))
    lines = smaller_numbers(lines, lambda changed: still("".join(changed)))
    return "".join(fewer(lines, lambda rest: rest[0].startswith("begin") and still("".join(rest))))


# ---- many batches ----


@dataclass
class Difference:
    kind: str
    text: str
    setting: Setting
    debug: bool
    what: str
    seed: int
    path: Path

    def __str__(self) -> str:
        text = self.path.read_text()
        if text.count("\n") > LONG_LIST:
            text = f"({text.count(chr(10))} lines)\n"
        return (
            f"{self.kind}, seed {self.seed}: {self.what}\n"
            f"again: PYTHONPATH=tests .venv/bin/python -m tools.machine replay {self.path.relative_to(ROOT)}\n{text}"
        )


@dataclass
class Totals:
    sequences: int = 0
    operations: int = 0
    batches: int = 0
    staged: int = 0
    staged_elsewhere: int = 0
    differences: list[Difference] = field(default_factory=list)
    unsteady: list[Difference] = field(default_factory=list)  # differ without the library, too
    notes: dict[str, int] = field(default_factory=dict)

    def line(self) -> str:
        return (
            f"{self.sequences} sequences, {self.operations} operations, {self.batches} batches, "
            f"{self.staged} bytes staged ({self.staged_elsewhere} by children), "
            f"{len(self.differences)} differences, {len(self.unsteady)} that two native runs have, too"
        )


def keep(name: str, text: str, header: dict[str, object]) -> Path:
    KEPT.mkdir(parents=True, exist_ok=True)
    path = KEPT / name
    path.write_text("".join(f"# {key}={value}\n" for key, value in header.items()) + text)
    return path


def reduce(
    rig: Rig, place: Place, text: str, setting: Setting, library: Path | None, found: Outcome
) -> tuple[str, str]:
    """The short list, and what differs in it."""
    what = found.difference or ""
    chance = sum(
        run_batch(rig, place, text, setting, library, BATCH_SECONDS).difference is not None for _ in range(3)
    )
    tries = 1 if chance == 3 else 4

    def fails(shorter: str) -> bool:
        nonlocal what
        for _ in range(tries):
            outcome = run_batch(rig, place, shorter, setting, library, PROBE_SECONDS)
            if outcome.difference:
                what = outcome.difference
                return True
        return False

    if chance == 0:
        return text, f"{what} (once in four runs)"
    return shrink(text, found.operation, fails, SHRINK_SECONDS), what


def unsteady(rig: Rig, place: Place, text: str) -> bool:
    """True when two runs without the library differ as well: what the kernel does is not always the same."""
    native = Rig(rig.machine, [None])
    return any(
        run_batch(native, place, text, {}, None, PROBE_SECONDS).difference is not None
        for _ in range(STEADY_RUNS)
    )


def explore(
    rig: Rig,
    place: Place,
    seed: int,
    *,
    sequences: int | None = None,
    seconds: float | None = None,
    batches: int = 1,
    keep_going: bool = False,
    flags: tuple[str, ...] = (),
    fixed: Setting | None = None,
) -> Totals:
    """Batches until so many sequences, or so many seconds but at least `batches`, or (without `keep_going`) a
    difference."""
    end = time.monotonic() + seconds if seconds else None
    totals = Totals()
    while (sequences is None or totals.sequences < sequences) and (
        end is None or totals.batches < batches or time.monotonic() < end
    ):
        number = totals.batches
        dice = random.Random(f"{seed} {place.kind} {number}")
        setting = random_setting(dice) | (fixed or {})
        own = [*flags, *place.flags, *(["exclusive"] if setting["writers"] == "exclusive" else [])]
        library = rig.libraries[number % len(rig.libraries)]
        text = rig.generate(seed, number * BATCH, BATCH, *own)
        outcome = run_batch(rig, place, text, setting, library, BATCH_SECONDS)
        totals.batches += 1
        totals.sequences += BATCH
        totals.operations += text.count("\n")
        totals.staged += outcome.staged
        totals.staged_elsewhere += outcome.staged_elsewhere
        for note in outcome.notes:
            short = re.sub(r"\d+|/\S*", "#", note)
            totals.notes[short] = totals.notes.get(short, 0) + 1
        if not outcome.difference:
            slept = f"nothing was staged: seed {seed}, batch {number}, {setting} {outcome.notes}"
            # shared memory in a file of the rule makes the rule's files strict for the rest of the batch, and a fork
            # then writes them through
            shares = re.search(r"(^|\s)map ", text) is not None
            # the kernel has the first small writes of each file, or those through descriptors that cannot read
            few = setting["adapt"] == "on" or setting["sync"] == "ordered"
            assert outcome.staged > 0 or library is None or shares or few, slept
            continue
        short, what = reduce(rig, place, text, setting, library, outcome)
        debug = library is not None and "debug" in library.parent.name
        header = {"fs": place.kind, "debug": int(debug), "family": int(rig.family), **setting}
        path = keep(f"{place.kind}-{seed}-{number}.ops", short, header)
        difference = Difference(place.kind, short, setting, debug, what, seed, path)
        if library is not None and unsteady(rig, place, short):
            totals.unsteady.append(difference)
            print(f"without the library, too: {difference}", flush=True)
            continue
        totals.differences.append(difference)
        if not keep_going:
            break
        print(totals.differences[-1], flush=True)
    return totals


# ---- by hand ----


def header_of(text: str) -> dict[str, str]:
    return dict(line[2:].split("=", 1) for line in text.splitlines() if re.match(r"# \w+=", line))


def replay(path: Path, rig: Rig, times: int) -> int:
    """Runs a kept list under its own setting, on its file system, and says what differs."""
    text = path.read_text()
    header = header_of(text)
    kind = header.pop("fs", "ext4")
    library = rig.libraries[-1 if header.pop("debug", "0") == "1" else 0]
    rig.family = header.pop("family", "0") == "1" or rig.family
    bad = 0
    with place_on(kind) as place:
        for _ in range(times):
            outcome = run_batch(rig, place, text, dict(header), library, BATCH_SECONDS)
            bad += outcome.difference is not None
            print(f"{kind}: {outcome.staged} bytes staged: {outcome.difference or 'the same'}")
            for note in outcome.notes:
                print(f"  {note}")
    return 1 if bad else 0


def make_rig(directory: Path, build: Path | None, build_debug: Path | None, family: bool) -> Rig:
    machine = build_machine(directory)
    if build is None:
        return Rig(machine, [None], family)
    libraries = [path / "libfastwrite.so" for path in (build, build_debug) if path]
    for library in libraries:
        assert library.exists(), f"{library} is not there; run make, and make DEBUG=1 build-all"
    return Rig(machine, list(libraries), family, build / "fastwrite")


def run_one(rig: Rig, kind: str, seed: int, options: argparse.Namespace, seconds: float | None = None) -> int:
    """One file system; the number of differences."""
    begun = time.monotonic()
    try:
        with place_on(kind) as place:
            totals = explore(
                rig,
                place,
                seed,
                sequences=getattr(options, "sequences", None),
                seconds=seconds or getattr(options, "seconds", None),
                keep_going=getattr(options, "keep_going", True),
                flags=tuple(options.flags),
                fixed=dict(one.split("=", 1) for one in options.set),
            )
    except UnavailableError as why:
        print(f"{kind}: skipped: {why}", flush=True)
        return 0
    print(f"{kind}: {totals.line()}, {time.monotonic() - begun:.0f} s", flush=True)
    for note, count in sorted(totals.notes.items()):
        print(f"  {count} × {note}")
    if totals.differences and not getattr(options, "keep_going", True):
        print(totals.differences[-1])
    return len(totals.differences)


def soak_all(rig: Rig, options: argparse.Namespace) -> int:
    """One file system after the other, again and again with new seeds, until the time is up."""
    end = time.monotonic() + float(os.environ.get("FASTWRITE_SOAK_SECONDS", "3600"))
    seed, bad = options.seed, 0
    while (left := end - time.monotonic()) > 0:
        for kind in options.fs:
            if end > time.monotonic():
                bad += run_one(
                    rig, kind, seed, options, min(SOAK_TURN_SECONDS, max(1, left / len(options.fs)))
                )
        seed += 1
    return bad


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--build", type=Path, default=ROOT / "build")
    parser.add_argument("--build-debug", type=Path, default=ROOT / "build-debug")
    parser.add_argument(
        "--family", action="store_true", help="processes of a family see each other's bytes at once"
    )
    parser.add_argument(
        "--native", action="store_true", help="without the library both times: is the machine sound?"
    )
    commands = parser.add_subparsers(dest="command", required=True)
    run = commands.add_parser("run")
    run.add_argument("--fs", nargs="*", choices=KINDS, default=list(KINDS))
    run.add_argument("--sequences", type=int)
    run.add_argument("--seconds", type=float, help="for each file system")
    run.add_argument("--seed", type=int, default=random.SystemRandom().randrange(1, 1 << 32))
    run.add_argument("--keep-going", action="store_true")
    run.add_argument("--flags", nargs="*", default=[], help="of the generator: alone, no-spawn, ...")
    run.add_argument("--set", nargs="*", default=[], metavar="KEY=VALUE", help="instead of what is drawn")
    soak = commands.add_parser("soak", help="all file systems in turn for FASTWRITE_SOAK_SECONDS (an hour)")
    soak.add_argument("--fs", nargs="*", choices=KINDS, default=list(KINDS))
    soak.add_argument("--seed", type=int, default=random.SystemRandom().randrange(1, 1 << 32))
    soak.add_argument("--flags", nargs="*", default=[])
    soak.add_argument("--set", nargs="*", default=[], metavar="KEY=VALUE")
    again = commands.add_parser("replay")
    again.add_argument("list", type=Path)
    again.add_argument("--times", type=int, default=1)
    options = parser.parse_args()

    clean_up_after_the_dead()
    with own_directory(shared_memory()) as directory:
        build = None if options.native else options.build.resolve()
        rig = make_rig(directory, build, options.build_debug.resolve(), options.family)
        if options.command == "replay":
            return replay(options.list, rig, options.times)
        print(f"seed {options.seed}", flush=True)
        if options.command == "soak":
            bad = soak_all(rig, options)
        else:
            bad = sum(run_one(rig, kind, options.seed, options) for kind in options.fs)
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
