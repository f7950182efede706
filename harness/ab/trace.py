# SPDX-License-Identifier: Apache-2.0
"""What strace writes, as calls. Parsing is pure.

strace is asked for one file per thread (-ff), so that a call is always one line, with begin and duration
(-ttt -T), the file behind each descriptor (-y), and no content (-s 0).
"""

from __future__ import annotations

import heapq
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from harness.core.model import LabError

CALLS = (
    "open", "openat", "openat2", "creat", "close", "close_range", "dup", "dup2", "dup3", "fcntl",
    "write", "pwrite64", "writev", "pwritev", "pwritev2", "read", "pread64", "readv", "preadv", "preadv2", "lseek",
    "fstat", "newfstatat", "statx", "stat", "lstat", "ftruncate", "truncate", "fallocate", "fsync", "fdatasync",
    "sync", "syncfs", "sync_file_range", "msync", "mmap", "rename", "renameat", "renameat2", "unlink", "unlinkat",
    "flock", "sendfile", "splice", "copy_file_range", "io_uring_setup", "io_setup", "io_submit", "chdir", "fchdir",
    "clone", "clone3", "fork", "vfork", "execve", "execveat", "exit", "exit_group", "wait4", "waitid",
    "nanosleep", "clock_nanosleep", "poll", "ppoll", "select", "pselect6", "epoll_wait", "epoll_pwait", "futex",
)  # fmt: skip
"""Everything that reaches a file, makes a process or waits. Names that this machine has not are left out (?)."""

CALLS_MAX = 3_000_000

_LINE = re.compile(
    r"^(\d+\.\d+) (\w+)\((.*)\)\s+= (\?|-?(?:0x[0-9a-f]+|\d+))(?:<(.*?)>)?(?: .*?)??(?: <(\d+\.\d+)>)?$"
)
_ESCAPE = re.compile(r"\\(x[0-9a-f]{2}|[0-7]{1,3}|.)")
_LETTERS = {"n": "\n", "t": "\t", "r": "\r", "v": "\v", "f": "\f"}


@dataclass(frozen=True, slots=True)
class Call:
    """One call of one thread. begin, seconds: when and how long; path: of the descriptor that it returned."""

    thread: int
    begin: float
    name: str
    arguments: str
    result: int | None
    path: str
    seconds: float

    @property
    def end(self) -> float:
        return self.begin + self.seconds


def options(prefix: Path) -> list[str]:
    """strace's command line up to the command."""
    chosen = ",".join(f"?{name}" for name in CALLS)
    return ["strace", "-ff", "-ttt", "-T", "-y", "-s", "0", "-qq", "--seccomp-bpf", "-e", f"trace={chosen}",
            "-e", "signal=none", "-o", str(prefix)]  # fmt: skip


def parse(thread: int, line: str) -> Call | None:
    """Parse one line; None without a finished call (a signal, an exit, a call that the thread did not survive)."""
    found = _LINE.match(line)
    if found is None:
        return None
    begin, name, arguments, result, path, seconds = found.groups()
    value = None if result == "?" else int(result, 0)
    return Call(thread, float(begin), name, arguments, value, unescape(path or ""), float(seconds or 0))


def unescape(text: str) -> str:
    """Names as strace shows them -> names."""
    if "\\" not in text:
        return text

    def plain(found: re.Match) -> str:
        word = found[1]
        if word[0] == "x" and len(word) == 3:
            return chr(int(word[1:], 16))
        return chr(int(word, 8)) if word[0] in "01234567" else _LETTERS.get(word, word)

    return _ESCAPE.sub(plain, text).encode("latin-1", "replace").decode("utf-8", "surrogateescape")


def read(prefix: Path) -> Iterator[Call]:
    """The calls of all threads in the order in which they began. LabError when there are none or too many."""
    files = sorted(prefix.parent.glob(prefix.name + ".*"))
    if not files:
        raise LabError("strace left no trace: may it trace here (ptrace, seccomp)?")
    return _limited(heapq.merge(*(_calls(path) for path in files), key=lambda call: call.begin))


def _calls(path: Path) -> Iterator[Call]:
    thread = int(path.suffix[1:])
    with path.open(encoding="utf-8", errors="surrogateescape") as lines:
        for line in lines:
            call = parse(thread, line)
            if call is not None:
                yield call


def _limited(calls: Iterable[Call]) -> Iterator[Call]:
    for number, call in enumerate(calls):
        if number >= CALLS_MAX:
            raise LabError(f"more than {CALLS_MAX:,} calls traced: let the command do less of its work")
        yield call


def split(arguments: str) -> list[str]:
    """Arguments at the commas of the outermost level; quotes and <paths> may hold any sign."""
    parts, depth, begin, quoted, named = [], 0, 0, False, False
    i, size = 0, len(arguments)
    while i < size:
        sign = arguments[i]
        if quoted:
            if sign == "\\":
                i += 1
            elif sign == '"':
                quoted = False
        elif named:
            named = sign != ">"
        elif sign == '"':
            quoted = True
        elif sign == "<" and i and (arguments[i - 1].isdigit() or arguments[i - 1].isupper()):
            named = True
        elif sign in "([{":
            depth += 1
        elif sign in ")]}":
            depth -= 1
        elif sign == "," and depth == 0:
            parts.append(arguments[begin:i].strip())
            begin = i + 1
        i += 1
    parts.append(arguments[begin:].strip())
    return parts


_DESCRIPTOR = re.compile(r"^(-?\d+)(?:<([^>]*)>)?")


def descriptor(argument: str) -> tuple[int, str]:
    """(number, path) of an argument like 3</tmp/log>; (-1, "") when it is none."""
    found = _DESCRIPTOR.match(argument)
    return (int(found[1]), unescape(found[2] or "")) if found else (-1, "")


def name(argument: str) -> str | None:
    """The path in a quoted argument; None for anything else."""
    if not argument.startswith('"') or not argument.endswith('"') or len(argument) < 2:
        return None
    return unescape(argument[1:-1])


_COUNT = re.compile(r"^\s*[\d.]+\s+[\d.]+\s+\d+\s+(\d+)\s+(?:(\d+)\s+)?(\w+)\s*$", re.MULTILINE)


def counts(table: str) -> dict[str, int]:
    """Calls by name, from the table of `strace -c`."""
    return {found[3]: int(found[1]) for found in _COUNT.finditer(table) if found[3] != "total"}
