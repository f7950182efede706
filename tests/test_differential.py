# SPDX-License-Identifier: Apache-2.0
"""Random operation sequences: the program must see the same with the library as without it.

Hypothesis makes the lists; one that fails is made short, kept with its setting under build/differential/
and printed.  FASTWRITE_TEST_SEED=N repeats a run, FASTWRITE_TEST_LONG=1 makes it long.
A kept list runs again with

    .venv/bin/python tests/test_differential.py build/differential/LIST

and those in tests/differential/*.ops, once found this way, run under every setting.
"""

from __future__ import annotations

import itertools
import os
import random
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import hypothesis
import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from support import ROOT, disk_dir, leftovers, run_native, run_preloaded

LONG = os.environ.get("FASTWRITE_TEST_LONG") == "1"
SEED = int(os.environ.get("FASTWRITE_TEST_SEED", "0")) or random.SystemRandom().randrange(1, 1 << 32)
SECONDS = float(os.environ.get("FASTWRITE_TEST_SECONDS", "900" if LONG else "60"))
LOOP_SECONDS = SECONDS / 5
SOURCE = ROOT / "tests" / "differential" / "interpreter.c"
KEPT = ROOT / "build" / "differential"

PAGE = 4096
BLOCK = 64 << 10
SMALLEST = {"mem": "1M", "block": "64K"}
SETTINGS = [
    {**memory, "writers": writers, "flush": flush, "lag_ms": lag}
    for memory, writers, flush, lag in itertools.product(
        [SMALLEST, {}], ["auto", "exclusive", "shared"], ["auto", "direct", "buffered"], [1, 100]
    )
]

# ---- what can happen ----

# Mostly the descriptors that every sequence begins with; the others are often closed, which must show too.
slots = st.one_of(st.integers(0, 3), st.integers(0, 3), st.integers(0, 3), st.integers(0, 7))
files = st.one_of(st.integers(0, 1), st.integers(0, 3))
seeds = st.integers(1, 1 << 20)
edges = [1, 2, 100, 511, 512, PAGE - 1, PAGE, PAGE + 1, BLOCK // 2, BLOCK - 1, BLOCK, BLOCK + 1, 200 << 10]
sizes = st.one_of(
    st.integers(1, 300), st.integers(1, 300), st.sampled_from(edges), st.integers(300, 20_000), st.just(0)
)
small_sizes = st.one_of(st.integers(1, 400), st.sampled_from([PAGE, PAGE - 1, 512, 3000]))
offsets = st.one_of(
    st.integers(0, 5000),
    st.sampled_from([*edges, 0, 128 << 10, 1 << 20, (1 << 20) - 1]),
    st.integers(0, 300_000),
)
ACCESS = [os.O_RDWR, os.O_RDWR, os.O_RDWR, os.O_WRONLY, os.O_RDONLY]
flags = st.builds(
    lambda access, create, append, cut: access | create | append | cut,
    st.sampled_from(ACCESS),
    st.sampled_from([os.O_CREAT, os.O_CREAT, 0]),
    st.sampled_from([os.O_APPEND, 0, 0]),
    st.sampled_from([os.O_TRUNC, 0, 0, 0, 0]),
)
modes = st.sampled_from([0, 1, 1, 3, 0x10, 0x11])  # plain, KEEP_SIZE, PUNCH_HOLE, ZERO_RANGE


def op(name: str, *arguments: st.SearchStrategy) -> st.SearchStrategy[tuple]:
    return st.tuples(st.just(name), *arguments)


opening = op("open", slots, files, flags)
writing = st.one_of(
    op("write", slots, sizes, seeds),
    op("write", slots, sizes, seeds),
    op("burst", slots, small_sizes, st.integers(2, 60), seeds),
    op("burst", slots, st.integers(1, 5000), st.integers(2, 40), seeds),
    op(
        "scatter",
        slots,
        small_sizes,
        st.integers(2, 30),
        st.sampled_from([50, 100, PAGE, 5000, BLOCK]),
        seeds,
    ),
    op("pwrite", slots, sizes, offsets, seeds),
    op("writev", slots, sizes, st.integers(1, 9), seeds),
    op("pwritev", slots, sizes, st.integers(1, 9), st.one_of(offsets, st.just(-1)), seeds),
)
looking = st.one_of(
    op("read", slots, sizes),
    op("pread", slots, sizes, offsets),
    op("readv", slots, sizes, st.integers(1, 9)),
    op("lseek", slots, st.integers(-300, 5000), st.sampled_from([0, 1, 2])),
    op("lseek", slots, st.just(0), st.sampled_from([1, 2])),
    op("fstat", slots),
    op("stat", files),
    op("whole", slots),
    op("getfl", slots),
)
changing = st.one_of(
    op("dup", slots, slots),
    op("dup2", slots, slots),
    op("dupfd", slots, slots),
    op("close", slots),
    op("ftruncate", slots, offsets),
    op("truncate", files, offsets),
    op("fsync", slots),
    op("fdatasync", slots),
    op("rename", files, files),
    op("link", files, files),
    op("unlink", files),
    op("setfl", slots, st.sampled_from([os.O_APPEND, 0, os.O_NONBLOCK])),
    op("fallocate", slots, modes, offsets, st.integers(1, 200_000)),
    op("lock", slots),
)
handing_over = st.one_of(
    op("map", slots, st.integers(1, 20_000)),
    op("child", slots, small_sizes, seeds, st.integers(1, 4)),
    op("copy", slots, slots, st.integers(1, 20_000)),
    op("sendfile", slots, slots, st.integers(1, 20_000)),
    op("stream", files, small_sizes, seeds, st.integers(0, 1)),
    op("program", files),
    op("sleep", st.sampled_from([2, 5, 5, 130])),
)
# One weight per place in the list.
operation = st.one_of(
    opening, writing, writing, writing, writing, writing, looking, looking, changing, changing, handing_over
)
CREATE = os.O_RDWR | os.O_CREAT
START = [
    ("begin",),
    ("open", 0, 0, CREATE),
    ("open", 1, 1, CREATE | os.O_APPEND),
    ("open", 2, 0, CREATE),
    ("open", 3, 1, CREATE | os.O_APPEND),
]
batches = st.lists(st.lists(operation, min_size=8, max_size=40), min_size=3, max_size=8)


def text_of(batch: list[list[tuple]]) -> str:
    return "".join(
        " ".join(str(part) for part in one) + "\n" for sequence in batch for one in [*START, *sequence]
    )


# ---- running one list both ways ----


def tree(directory: Path) -> dict[str, bytes]:
    return {
        str(path.relative_to(directory)): path.read_bytes()
        for path in sorted(directory.rglob("*"))
        if path.is_file()
    }


def difference(native: str, preloaded: str) -> str | None:
    for number, (one, two) in enumerate(itertools.zip_longest(native.splitlines(), preloaded.splitlines())):
        if one != two:
            return f"output line {number + 1}: natively `{one}`, with the library `{two}`"
    return None


def compare(library: Path, interpreter: Path, text: str, setting: dict, base: Path) -> tuple[str | None, int]:
    """What differs, or None; and how many bytes were staged."""
    with tempfile.TemporaryDirectory(prefix="run-", dir=base) as name:
        place = Path(name)
        operations = place / "list.ops"
        operations.write_text(text)
        trees = {}
        for which in ("native", "preloaded"):
            (place / which).mkdir()
        # one name for both, so that the program cannot tell by its arguments
        command = [interpreter, operations]
        native = run_native([*command, place / "native"], place)
        preloaded = run_preloaded(
            library, [*command, place / "preloaded"], place, paths=f"{place}/preloaded/**", **setting
        )
        staged = preloaded.stats.bytes
        if native.returncode != 0:
            return f"the interpreter failed natively: {native.returncode} {native.stderr}", staged
        if preloaded.returncode != native.returncode:
            return f"status {preloaded.returncode} with the library; {preloaded.stderr}", staged
        if different := difference(native.stdout, preloaded.stdout):
            return different, staged
        if native.stderr != preloaded.stderr:
            return f"stderr: {preloaded.stderr}", staged
        if left := leftovers(place):
            return f"left behind: {left}", staged
        trees = {which: tree(place / which) for which in ("native", "preloaded")}
        if trees["native"].keys() != trees["preloaded"].keys():
            return (
                f"files: natively {list(trees['native'])}, with the library {list(trees['preloaded'])}",
                staged,
            )
        for path, content in trees["native"].items():
            other = trees["preloaded"][path]
            if other != content:
                at = next((i for i, (a, b) in enumerate(zip(content, other, strict=False)) if a != b), -1)
                return f"{path}: {len(content)} and {len(other)} bytes, first difference at {at}", staged
    return None, staged


def minimized(text: str, fails: Callable[[str], bool]) -> str:
    """A shorter list that still fails: lines are left out, many at a time first."""
    lines = text.splitlines(keepends=True)
    size = len(lines) // 2
    while size:
        at = 0
        while at < len(lines):
            fewer = lines[:at] + lines[at + size :]
            if fails("".join(fewer)):
                lines = fewer
            else:
                at += size
        size //= 2
    return "".join(lines)


def keep(text: str, setting: dict, name: str = "last-failure.ops") -> Path:
    KEPT.mkdir(parents=True, exist_ok=True)
    path = KEPT / name
    path.write_text("".join(f"# {key}={value}\n" for key, value in setting.items()) + text)
    return path


def explain(text: str, setting: dict, what: str) -> str:
    path = keep(text, setting)
    return f"{what}\nsetting: {setting}\nseed: FASTWRITE_TEST_SEED={SEED}\nkept in {path}:\n{text}"


@pytest.fixture(scope="module")
def interpreter(compile_c) -> Path:
    return compile_c(SOURCE.read_text(), "-D_GNU_SOURCE", "-O1")


def explore(library: Path, interpreter: Path, base: Path, seconds: float, seed: int) -> tuple[int, int]:
    """Hypothesis for so many seconds; the number of lists that ran, and of bytes that were staged."""
    end = time.monotonic() + seconds
    lists = staged = 0

    def one(batch: list[list[tuple]], setting: dict) -> None:
        nonlocal lists, staged
        text = text_of(batch)
        different, bytes_staged = compare(library, interpreter, text, setting, base)
        lists += 1
        staged += bytes_staged
        if different:
            path = keep(text, setting, "last-failure-whole.ops")

            def fails(text: str) -> bool:
                return (
                    text.startswith("begin")
                    and compare(library, interpreter, text, setting, base)[0] is not None
                )

            text = minimized(text, fails)
            again = compare(library, interpreter, text, setting, base)[0] or f"not every time; {path}"
            raise AssertionError(explain(text, setting, f"{different}\nmade short: {again}"))

    # it cannot be told to stop at a time: many short runs instead of a long one
    while time.monotonic() < end:
        run = settings(
            max_examples=25,
            deadline=None,
            database=None,
            phases=[Phase.generate],
            suppress_health_check=list(HealthCheck),
            report_multiple_bugs=False,
        )(given(batch=batches, setting=st.sampled_from(SETTINGS))(one))
        hypothesis.seed(seed)(run)()
        seed += 1
    return lists, staged


# ---- tests ----


def test_random_sequences(library, interpreter):
    print(f"FASTWRITE_TEST_SEED={SEED}")
    with disk_dir() as base:
        lists, staged = explore(library, interpreter, base, SECONDS, SEED)
    print(f"{lists} lists, {staged} bytes staged")
    assert lists >= 50
    assert staged > lists * 1000, "hardly anything was staged: this tested nothing"


@pytest.mark.parametrize(
    "path", sorted((ROOT / "tests" / "differential").glob("*.ops")), ids=lambda path: path.stem
)
def test_found_before(library, interpreter, path):
    text = path.read_text()
    with disk_dir() as base:
        for setting in SETTINGS:
            different, _ = compare(library, interpreter, text, setting, base)
            assert different is None, explain(text, setting, different)


@pytest.mark.parametrize("kind", ["xfs", "btrfs", "tmpfs"])
def test_other_file_systems(library, interpreter, kind, tmp_path):
    if not LONG:
        pytest.skip("FASTWRITE_TEST_LONG=1 runs it")
    with mounted(kind, tmp_path) as base:
        lists, staged = explore(library, interpreter, base, LOOP_SECONDS, SEED)
    assert lists >= 20
    assert staged > 0


class mounted:  # noqa: N801 - used as a function
    """A file system of its own on a loop device; skips where that is not possible."""

    def __init__(self, kind: str, directory: Path, mebibytes: int = 512) -> None:
        self.kind = kind
        self.image = directory / f"{kind}.image"
        self.point = directory / f"{kind}.mounted"
        self.mebibytes = mebibytes

    def __enter__(self) -> Path:
        if os.geteuid() != 0:
            pytest.skip("needs root for mounting")
        maker = {"xfs": ["mkfs.xfs", "-q"], "btrfs": ["mkfs.btrfs", "-q"], "ext4": ["mkfs.ext4", "-q"]}
        self.point.mkdir()
        command = ["mount", "-t", "tmpfs", "none", str(self.point)]
        if self.kind != "tmpfs":
            tool = maker[self.kind]
            if not shutil.which(tool[0]):
                pytest.skip(f"{tool[0]} is not installed")
            with self.image.open("wb") as image:
                image.truncate(self.mebibytes << 20)
            done = subprocess.run([*tool, str(self.image)], capture_output=True, text=True, check=False)
            if done.returncode != 0:
                pytest.skip(f"{tool[0]}: {done.stderr.strip()}")
            command = ["mount", "-o", "loop", str(self.image), str(self.point)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode != 0:
            pytest.skip(f"mount: {done.stderr.strip()}")
        return self.point

    def __exit__(self, *_: object) -> None:
        subprocess.run(["umount", str(self.point)], check=False)


# ---- by hand ----


def replay(path: Path) -> int:
    """Runs a kept list under its own setting (or all, if it names none) and says what differs."""
    text = path.read_text()
    own = dict(line[2:].split("=", 1) for line in text.splitlines() if line.startswith("# ") and "=" in line)
    library = Path(os.environ.get("FASTWRITE_TEST_BUILD", ROOT / "build")) / "libfastwrite.so"
    with disk_dir() as base:
        program = base / "interpreter"
        subprocess.run(["cc", "-D_GNU_SOURCE", "-O1", "-o", str(program), str(SOURCE)], check=True)
        for setting in [own] if own else SETTINGS:
            different, staged = compare(library, program, text, setting, base)
            print(f"{setting}: {staged} bytes staged: {different or 'the same'}")
            if different:
                return 1
    return 0


if __name__ == "__main__":
    sys.exit(replay(Path(sys.argv[1])))
