# SPDX-License-Identifier: Apache-2.0
"""From system calls to operations: file, thread and program of each. Pure.

Only files below one directory, the one that the command works in, are followed. A *node* is what one thread did
between two `exec`: its operations on those files, in order, with the time that it spent elsewhere before each.
"""

from __future__ import annotations

import posixpath
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from harness.ab import trace
from harness.ab.trace import Call

(OPEN, CLOSE, WRITE, PWRITE, READ, PREAD, SEEK, STAT, FSYNC, FDATASYNC, TRUNCATE, LOCK, UNLOCK, RENAME, UNLINK,
 STAT_PATH, SPIN, SLEEP, FORK, THREAD, EXEC, WAIT) = range(22)  # fmt: skip
"""Kinds of operation, numbered as in harness/workloads/replay.c."""

WRITING = frozenset({"O_WRONLY", "O_RDWR"})
SYNCHRONOUS = frozenset({"O_SYNC", "O_DSYNC"})
BLOCKED_SECONDS = 500e-6
"""A longer call waited for another thread or process; a shorter one is the program's own work."""


@dataclass(slots=True)
class Description:
    """An open file description. inherited: some program had it that did not open it."""

    number: int
    path: str
    flags: frozenset[str]
    image: int
    inherited: bool = False
    position: int = 0

    @property
    def writable(self) -> bool:
        return bool(self.flags & WRITING)


@dataclass(slots=True)
class Operation:
    """kind and its figures; think: seconds spent elsewhere before it, in which `calls` other calls were traced.

    description: of the file (-1: none); a, b: length, offset, path numbers or node, as replay.c has it (SLEEP:
    nanoseconds, and 1 when it waited for others); seconds: what the call took under strace; inherited: by a program
    that did not open the file itself.
    """

    kind: int
    description: int
    a: int = 0
    b: int = 0
    think: float = 0.0
    calls: int = 0
    seconds: float = 0.0
    inherited: bool = False
    append: bool = False


@dataclass
class Node:
    index: int
    image: int
    process: int
    operations: list[Operation] = field(default_factory=list)


@dataclass
class Special:
    """What a file or a program does that is no plain write."""

    shared_maps: dict[str, int] = field(default_factory=dict)
    spliced: dict[str, int] = field(default_factory=dict)
    rings: set[int] = field(default_factory=set)
    aio: set[int] = field(default_factory=set)
    other_syncs: dict[str, int] = field(default_factory=dict)
    outside: dict[str, int] = field(default_factory=dict)
    watched: set[str] = field(default_factory=set)
    synced_all: int = 0


@dataclass
class Story:
    """root: the directory; programs: path of each image; nodes: index 0 is where everything begins."""

    root: str
    nodes: list[Node] = field(default_factory=list)
    descriptions: list[Description] = field(default_factory=list)
    paths: list[str] = field(default_factory=list)
    programs: list[str] = field(default_factory=list)
    special: Special = field(default_factory=Special)
    calls: int = 0
    begin: float = 0.0
    end: float = 0.0

    @property
    def seconds(self) -> float:
        """From the first call to the end of the last, under strace."""
        return self.end - self.begin

    def operations(self) -> Iterable[tuple[Node, Operation]]:
        for node in self.nodes:
            for operation in node.operations:
                yield node, operation


@dataclass
class _Process:
    """What the threads of a process share: descriptors (number -> description, close-on-exec) and directory."""

    image: int
    number: int
    directory: str
    files: dict[int, tuple[Description, bool]] = field(default_factory=dict)
    inherited: frozenset[int] = frozenset()


@dataclass
class _Thread:
    node: Node
    process: _Process
    last: float
    think: float = 0.0
    calls: int = 0


def tell(calls: Iterable[Call], root: str) -> Story:
    """The story of a command that works below `root` (a canonical path)."""
    return _Teller(root).tell(calls)


class _Teller:
    def __init__(self, root: str) -> None:
        self._story = Story(root)
        self._below = root.rstrip("/") + "/"
        self._threads: dict[int, _Thread] = {}
        self._children: dict[int, int] = {}
        self._numbers: dict[str, int] = {}
        self._live: dict[str, dict[int, tuple[int, bool]]] = {}
        self._act: dict[str, Callable[[_Thread, Call], bool]] = {
            **dict.fromkeys(("open", "openat", "openat2", "creat"), self._open),
            **dict.fromkeys(("write", "writev"), self._write),
            **dict.fromkeys(("pwrite64", "pwritev", "pwritev2"), self._pwrite),
            **dict.fromkeys(("read", "readv"), self._read),
            **dict.fromkeys(("pread64", "preadv", "preadv2"), self._pread),
            **dict.fromkeys(("dup", "dup2", "dup3"), self._dup),
            **dict.fromkeys(("fstat", "newfstatat", "statx", "stat", "lstat"), self._stat),
            **dict.fromkeys(("rename", "renameat", "renameat2"), self._rename),
            **dict.fromkeys(("unlink", "unlinkat"), self._unlink),
            **dict.fromkeys(("clone", "clone3", "fork", "vfork"), self._clone),
            **dict.fromkeys(("execve", "execveat"), self._exec),
            **dict.fromkeys(("wait4", "waitid"), self._wait),
            **dict.fromkeys(("nanosleep", "clock_nanosleep"), self._sleep),
            **dict.fromkeys(("sendfile", "splice", "copy_file_range"), self._splice),
            "close": self._close,
            "close_range": self._close_range,
            "fcntl": self._fcntl,
            "lseek": self._seek,
            "fsync": self._sync,
            "fdatasync": self._sync,
            "sync_file_range": self._other_sync,
            "sync": self._sync_all,
            "syncfs": self._sync_all,
            "ftruncate": self._truncate,
            "mmap": self._mmap,
            "flock": self._flock,
            "io_uring_setup": self._ring,
            "io_setup": self._aio,
            "chdir": self._chdir,
        }

    def tell(self, calls: Iterable[Call]) -> Story:
        for call in calls:
            self._story.calls += 1
            self._story.begin = self._story.begin or call.begin
            self._story.end = max(self._story.end, call.end)
            thread = self._threads.get(call.thread) or self._begin(call)
            thread.think += max(0.0, call.begin - thread.last)
            thread.calls += 1
            act = self._act.get(call.name)
            if call.name == "exit_group":
                self._exit(thread)
            told = act is not None and call.result is not None and act(thread, call)
            if not told:
                self._elsewhere(thread, call)
            thread.last = call.end
        return self._story

    def _begin(self, call: Call) -> _Thread:
        """The first call of a thread without a recorded creation: the command itself."""
        node = self._new_node(self._image("", call.thread), call.thread)
        self._threads[call.thread] = _Thread(
            node, _Process(node.image, call.thread, self._story.root), call.begin
        )
        return self._threads[call.thread]

    def _image(self, program: str, process: int) -> int:
        self._story.programs.append(program)
        return len(self._story.programs) - 1

    def _new_node(self, image: int, process: int) -> Node:
        node = Node(len(self._story.nodes), image, process)
        self._story.nodes.append(node)
        return node

    def _path(self, path: str) -> int:
        if path not in self._numbers:
            self._numbers[path] = len(self._story.paths)
            self._story.paths.append(path)
        return self._numbers[path]

    def _add(self, thread: _Thread, kind: int, description: int = -1, a: int = 0, b: int = 0, seconds: float = 0.0,
             **more: bool) -> bool:  # fmt: skip
        thread.node.operations.append(
            Operation(kind, description, a, b, thread.think, thread.calls, seconds, **more)
        )
        thread.think, thread.calls = 0.0, 0
        return True

    def _elsewhere(self, thread: _Thread, call: Call) -> None:
        """A call that is not followed: its time belongs to the program, or it waited for another."""
        if call.seconds >= BLOCKED_SECONDS and call.name not in ("execve", "exit_group", "mmap"):
            self._add(thread, SLEEP, a=int(call.seconds * 1e9), b=1)
        else:
            thread.think += call.seconds

    def _file(self, thread: _Thread, argument: str) -> tuple[Description | None, int]:
        number, _ = trace.descriptor(argument)
        entry = thread.process.files.get(number)
        return (entry[0] if entry else None), number

    def _open(self, thread: _Thread, call: Call) -> bool:
        if call.result is None or call.result < 0:
            return False
        flags = next((a for a in trace.split(call.arguments) if a.startswith(("O_", "{flags=O_"))), "")
        found = frozenset(flags.removeprefix("{flags=").split(",")[0].split("|"))
        if call.name == "creat":
            found = frozenset({"O_WRONLY", "O_CREAT", "O_TRUNC"})
        if not call.path.startswith(self._below) or "O_DIRECTORY" in found or "O_PATH" in found:
            if found & WRITING and not call.path.startswith(("/dev/", "/proc/", "/sys/")):
                outside = self._story.special.outside
                outside[call.path] = outside.get(call.path, 0) + 1
            thread.process.files.pop(call.result, None)
            return False
        made = Description(len(self._story.descriptions), call.path, found, thread.process.image)
        self._story.descriptions.append(made)
        thread.process.files[call.result] = (made, "O_CLOEXEC" in found)
        self._opened(made, thread.process.number)
        return self._add(thread, OPEN, made.number, self._path(call.path), seconds=call.seconds)

    def _opened(self, made: Description, process: int) -> None:
        """Has one process the file open for reading while another has it for writing?"""
        live = self._live.setdefault(made.path, {})
        if any(process != other and made.writable != writable for other, writable in live.values()):
            self._story.special.watched.add(made.path)
        live[made.number] = (process, made.writable)

    def _exit(self, thread: _Thread) -> None:
        for description, _ in thread.process.files.values():
            self._live[description.path].pop(description.number, None)

    def _close(self, thread: _Thread, call: Call) -> bool:
        number, _ = trace.descriptor(call.arguments)
        return self._drop(thread, number, call.seconds)

    def _close_range(self, thread: _Thread, call: Call) -> bool:
        first, last, *more = trace.split(call.arguments)
        top = (1 << 31) if last.startswith("0x") or not last.isdigit() else int(last)
        numbers = [n for n in list(thread.process.files) if int(first) <= n <= top]
        for number in numbers:
            if more and "CLOEXEC" in more[0]:
                thread.process.files[number] = (thread.process.files[number][0], True)
            else:
                self._drop(thread, number, 0.0)
        return False

    def _drop(self, thread: _Thread, number: int, seconds: float) -> bool:
        entry = thread.process.files.pop(number, None)
        if entry is None:
            return False
        if any(other is entry[0] for other, _ in thread.process.files.values()):
            return False
        if entry[0].number in thread.process.inherited:
            return False
        self._live[entry[0].path].pop(entry[0].number, None)
        return self._add(thread, CLOSE, entry[0].number, seconds=seconds)

    def _dup(self, thread: _Thread, call: Call) -> bool:
        if call.result is None or call.result < 0:
            return False
        old, *rest = trace.split(call.arguments)
        entry = thread.process.files.get(trace.descriptor(old)[0])
        if call.name != "dup" and trace.descriptor(old)[0] != call.result:
            self._drop(thread, call.result, 0.0)
        if entry:
            thread.process.files[call.result] = (entry[0], len(rest) > 1 and "O_CLOEXEC" in rest[1])
        return False

    def _fcntl(self, thread: _Thread, call: Call) -> bool:
        file, what, *rest = trace.split(call.arguments)
        description, number = self._file(thread, file)
        if description is None or call.result is None or call.result < 0:
            return False
        if what.startswith("F_DUPFD"):
            thread.process.files[call.result] = (description, what == "F_DUPFD_CLOEXEC")
        elif what == "F_SETFD":
            thread.process.files[number] = (description, "FD_CLOEXEC" in rest[0])
        elif what in ("F_SETLK", "F_SETLKW", "F_OFD_SETLK", "F_OFD_SETLKW"):
            kind = UNLOCK if "F_UNLCK" in rest[0] else LOCK
            return self._add(thread, kind, description.number, 0, seconds=call.seconds)
        return False

    def _data(self, thread: _Thread, call: Call, kind: int, positioned: bool) -> bool:
        description, _ = self._file(thread, call.arguments)
        if description is None or call.result is None or call.result < 0:
            return False
        inherited = description.number in thread.process.inherited
        append = "O_APPEND" in description.flags
        offset = 0
        if positioned:
            parts = trace.split(call.arguments)
            last = parts[-2] if call.name in ("pwritev2", "preadv2") else parts[-1]
            offset = int(last, 0) if last.lstrip("-").isdigit() or last.startswith("0x") else 0
        elif not append:
            offset = description.position
            description.position += call.result
        self._add(thread, kind, description.number, call.result, offset, call.seconds, inherited=inherited,
                  append=append)  # fmt: skip
        return True

    def _write(self, thread: _Thread, call: Call) -> bool:
        return self._data(thread, call, WRITE, False)

    def _pwrite(self, thread: _Thread, call: Call) -> bool:
        return self._data(thread, call, PWRITE, True)

    def _read(self, thread: _Thread, call: Call) -> bool:
        return self._data(thread, call, READ, False)

    def _pread(self, thread: _Thread, call: Call) -> bool:
        return self._data(thread, call, PREAD, True)

    def _seek(self, thread: _Thread, call: Call) -> bool:
        description, _ = self._file(thread, call.arguments)
        if description is None or call.result is None or call.result < 0:
            return False
        description.position = call.result
        return self._add(thread, SEEK, description.number, call.result, seconds=call.seconds)

    def _stat(self, thread: _Thread, call: Call) -> bool:
        if call.result != 0:
            return False
        parts = trace.split(call.arguments)
        description, _ = self._file(thread, parts[0])
        if description is not None and (call.name == "fstat" or trace.name(parts[1]) == ""):
            return self._add(thread, STAT, description.number, seconds=call.seconds)
        path = self._named(thread, parts, 0)
        if path is None or not path.startswith(self._below):
            return False
        return self._add(thread, STAT_PATH, a=self._path(path), seconds=call.seconds)

    def _named(self, thread: _Thread, parts: list[str], first: int) -> str | None:
        """The path in parts[first], or behind the directory in parts[first]."""
        found = trace.name(parts[first])
        directory = thread.process.directory
        if found is None and len(parts) > first + 1:
            found = trace.name(parts[first + 1])
            opened = parts[first].partition("<")[2].rstrip(">")
            directory = trace.unescape(opened) or directory
        return posixpath.normpath(posixpath.join(directory, found)) if found else None

    def _sync(self, thread: _Thread, call: Call) -> bool:
        description, _ = self._file(thread, call.arguments)
        if description is None or call.result != 0:
            return False
        kind = FSYNC if call.name == "fsync" else FDATASYNC
        return self._add(thread, kind, description.number, seconds=call.seconds)

    def _other_sync(self, thread: _Thread, call: Call) -> bool:
        description, _ = self._file(thread, call.arguments)
        if description is not None:
            counted = self._story.special.other_syncs
            counted[description.path] = counted.get(description.path, 0) + 1
        return False

    def _sync_all(self, thread: _Thread, call: Call) -> bool:
        self._story.special.synced_all += 1
        return False

    def _truncate(self, thread: _Thread, call: Call) -> bool:
        file, length = trace.split(call.arguments)
        description, _ = self._file(thread, file)
        if description is None or call.result != 0:
            return False
        return self._add(thread, TRUNCATE, description.number, int(length, 0), seconds=call.seconds)

    def _mmap(self, thread: _Thread, call: Call) -> bool:
        if "MAP_SHARED" in call.arguments and "PROT_WRITE" in call.arguments:
            description, _ = self._file(thread, trace.split(call.arguments)[4])
            if description is not None:
                counted = self._story.special.shared_maps
                counted[description.path] = counted.get(description.path, 0) + 1
        return False

    def _splice(self, thread: _Thread, call: Call) -> bool:
        for part in trace.split(call.arguments):
            description, _ = self._file(thread, part) if "<" in part else (None, -1)
            if description is not None and description.writable:
                counted = self._story.special.spliced
                counted[description.path] = counted.get(description.path, 0) + 1
        return False

    def _flock(self, thread: _Thread, call: Call) -> bool:
        description, _ = self._file(thread, call.arguments)
        if description is None or call.result != 0:
            return False
        kind = UNLOCK if "LOCK_UN" in call.arguments else LOCK
        return self._add(thread, kind, description.number, 1, seconds=call.seconds)

    def _rename(self, thread: _Thread, call: Call) -> bool:
        parts = trace.split(call.arguments)
        second = 1 if call.name == "rename" else 2
        old, new = self._named(thread, parts, 0), self._named(thread, parts, second)
        if (
            call.result != 0
            or not old
            or not new
            or not old.startswith(self._below)
            or not new.startswith(self._below)
        ):
            return False
        return self._add(thread, RENAME, a=self._path(old), b=self._path(new), seconds=call.seconds)

    def _unlink(self, thread: _Thread, call: Call) -> bool:
        path = self._named(thread, trace.split(call.arguments), 0)
        if (
            call.result != 0
            or "AT_REMOVEDIR" in call.arguments
            or not path
            or not path.startswith(self._below)
        ):
            return False
        return self._add(thread, UNLINK, a=self._path(path), seconds=call.seconds)

    def _chdir(self, thread: _Thread, call: Call) -> bool:
        path = self._named(thread, [call.arguments], 0)
        if call.result == 0 and path:
            thread.process.directory = path
        return False

    def _clone(self, thread: _Thread, call: Call) -> bool:
        if call.result is None or call.result <= 0:
            return False
        process = thread.process
        shares = "CLONE_THREAD" in call.arguments
        node = self._new_node(process.image, process.number if shares else call.result)
        if not shares:
            process = _Process(
                process.image, call.result, process.directory, dict(process.files), process.inherited
            )
        self._threads[call.result] = _Thread(node, process, call.begin)
        self._children[call.result] = node.index
        # What vfork took is the time until the child's exec, which the child's own node has.
        return self._add(thread, THREAD if shares else FORK, a=node.index)

    def _exec(self, thread: _Thread, call: Call) -> bool:
        if call.result != 0:
            return False
        old = thread.process
        parts = trace.split(call.arguments)
        program = self._named(thread, parts, 0) or parts[0]
        kept = {n: entry for n, entry in old.files.items() if not entry[1]}
        for description, _ in kept.values():
            description.inherited = True
        node = self._new_node(self._image(program, old.number), old.number)
        inherited = frozenset(d.number for d, _ in kept.values())
        self._add(thread, EXEC, a=node.index)
        thread.process = _Process(node.image, old.number, old.directory, kept, inherited)
        thread.node = node
        thread.think = call.seconds
        return True

    def _wait(self, thread: _Thread, call: Call) -> bool:
        if call.result is None or call.result <= 0 or call.result not in self._children:
            return call.result is not None and call.result <= 0 and call.seconds < BLOCKED_SECONDS
        return self._add(thread, WAIT, a=self._children[call.result])

    def _sleep(self, thread: _Thread, call: Call) -> bool:
        return self._add(thread, SLEEP, a=int(call.seconds * 1e9))

    def _ring(self, thread: _Thread, call: Call) -> bool:
        if call.result is not None and call.result >= 0:
            self._story.special.rings.add(thread.process.image)
        return False

    def _aio(self, thread: _Thread, call: Call) -> bool:
        if call.result == 0:
            self._story.special.aio.add(thread.process.image)
        return False
