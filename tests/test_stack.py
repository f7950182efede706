# SPDX-License-Identifier: Apache-2.0
"""How much stack the hooks need at most: a thread may have 16 KiB, a signal handler half of that.

The compiler writes down each function's frame and whom it calls (-fcallgraph-info); the deepest way down from
each hook is added up.  Calls through pointers are followed where the library uses them to visit files; behind
all others are single system calls.
"""

from __future__ import annotations

import fcntl
import re
import subprocess
from pathlib import Path

import pytest
from lib.support import ROOT

LIMIT_BYTES = 6 << 10
# what a thread does with files, or a handler may do
CALLS = (
    *("write", "pwrite", "writev", "pwritev2", "read", "pread", "lseek", "open", "openat", "close", "dup2"),
    *("fcntl", "fsync", "fdatasync", "fstat", "stat", "ftruncate", "rename", "unlink", "mmap", "_exit"),
)
# of functions of the C library that do more than a system call
OUTSIDE = {"pthread_create": 1500, "sysconf": 500}
OUTSIDE_OTHER = 200
VISITORS = {
    "file_for_each": "visit_",
    "file_for_each_shared": "visit_",
    "sys_apart": "recover_apart",
    "run_apart": "recover_apart",
    "with_file": "act_",
    "merge_extents": "source_extent",
    "tell": "note_event",
}
NODE = re.compile(r'node: \{ title: "([^"]+)" label: "([^"]+)"')
EDGE = re.compile(r'edge: \{ sourcename: "([^"]+)" targetname: "([^"]+)"')
FLAGS = [
    "-std=gnu17",
    "-O2",
    "-fvisibility=hidden",
    "-fPIC",
    "-ftls-model=initial-exec",
    "-fno-strict-aliasing",
    "-w",
]


def plain(title: str) -> str:
    """A static function is called "file.c:name"; what the optimizer split off is name.part.0."""
    return title.split(":")[-1].split(".")[0]


def compile_source(source: Path, out: Path) -> None:
    command = ["cc", "-D_GNU_SOURCE", '-DFASTWRITE_VERSION="0"', f"-I{ROOT / 'shim'}", *FLAGS]
    done = subprocess.run(
        [*command, "-fcallgraph-info=su", "-c", "-o", str(out), str(source)],
        capture_output=True,
        text=True,
        check=False,
    )
    if "callgraph-info" in done.stderr:
        pytest.skip("this compiler has no -fcallgraph-info")
    assert done.returncode == 0, done.stderr


class Frames:
    """Frames and calls of the whole library; what is compiled in `directory` is not compiled again."""

    def __init__(self, directory: Path) -> None:
        self.bytes: dict[str, int] = {}
        self.calls: dict[str, set[str]] = {}
        self.known: dict[tuple[str, frozenset[str]], tuple[int, tuple[str, ...]]] = {}
        self.reached: dict[str, frozenset[str]] = {}
        for source in sorted((ROOT / "shim").glob("*/*.c")):
            layer = source.parent.name
            if layer == "command":
                continue
            out = directory / f"{layer}-{source.stem}.o"
            if not out.exists():
                compile_source(source, out)
            self.read(out.with_suffix(".ci").read_text())

    def read(self, text: str) -> None:
        for title, label in NODE.findall(text):
            if frame := re.search(r"\\n(\d+) bytes", label):
                self.bytes[title] = int(frame[1])
        for caller, callee in EDGE.findall(text):
            self.calls.setdefault(caller, set()).add(callee)

    def called_by(self, title: str) -> set[str]:
        called = set(self.calls.get(title, ()))
        if (prefix := VISITORS.get(plain(title))) and "__indirect_call" in called:
            called |= {t for t in self.bytes if plain(t).startswith(prefix)}
        return called

    def below(self, title: str) -> frozenset[str]:
        """All that it may call, and what these call."""
        if title not in self.reached:
            seen: set[str] = set()
            todo = [title]
            while todo:
                new = self.called_by(todo.pop()) - seen
                seen |= new
                todo += new
            self.reached[title] = frozenset(seen)
        return self.reached[title]

    def deepest(self, title: str, above: frozenset[str] = frozenset()) -> tuple[int, tuple[str, ...]]:
        """Bytes, and the way down that needs them, below those `above` that may be called again."""
        if title in above:
            return 0, ()  # deeper rounds of the few recursions end at once
        if title not in self.bytes:
            return OUTSIDE.get(title, OUTSIDE_OTHER), (title,)
        above &= self.below(title)
        if (title, above) not in self.known:
            below = [self.deepest(called, above | {title}) for called in sorted(self.called_by(title))]
            size, way = max(below, default=(0, ()))
            own = self.bytes[title] + 8
            self.known[title, above] = own + size, (f"{plain(title)} {own}", *way)
        return self.known[title, above]


@pytest.fixture(scope="module")
def frames(shared_dir: Path):
    directory = shared_dir / "frames"
    directory.mkdir(exist_ok=True)
    with (directory / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        return Frames(directory)


@pytest.mark.parametrize("call", CALLS)
def test_fits_on_a_small_stack(frames, call):
    assert call in frames.bytes
    size, way = frames.deepest(call)
    print(f"{call}: {size} bytes: {' > '.join(way)}")
    assert size > frames.bytes[call]
    assert size <= LIMIT_BYTES, " > ".join(way)


def test_the_tool_sees_the_ways_down(frames):
    """It follows write into the attachment and a flush."""
    seen: set[str] = set()
    todo = ["write"]
    while todo:
        title = todo.pop()
        if title not in seen:
            seen.add(title)
            todo += frames.called_by(title)
    names = {plain(title) for title in seen}
    assert {
        "flush_run",
        "attach_file",
        "stage_put",
        "arena_create_at",
        "recover_arena",
        "visit_steal",
    } <= names
