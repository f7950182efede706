# SPDX-License-Identifier: Apache-2.0
"""Holds a process before one of its system calls, for as long as a test needs: no window is left to chance."""

from __future__ import annotations

import contextlib
import ctypes
import os
import platform
import signal
import struct
import subprocess
from collections.abc import Callable

import pytest

SYSCALL, DETACH, SEIZE, INTERRUPT = 24, 17, 0x4206, 0x4207
GET_SYSCALL_INFO, ENTRY = 0x420E, 1
SYSGOOD, EXITKILL = 1, 1 << 20
WALL = 0x40000000
SYSCALL_STOP = signal.SIGTRAP | 0x80
INFO = struct.Struct("=BxxxIQQ7Q")

NUMBERS = {
    "x86_64": {
        "futex": 202,
        "prlimit64": 302,
        "pwrite64": 18,
        "pwritev": 296,
        "pwritev2": 328,
        "preadv2": 327,
        "statx": 332,
    },
    "aarch64": {
        "futex": 98,
        "prlimit64": 261,
        "pwrite64": 68,
        "pwritev": 70,
        "pwritev2": 287,
        "preadv2": 286,
        "statx": 291,
    },
}

libc = ctypes.CDLL(None, use_errno=True)
libc.ptrace.argtypes = [ctypes.c_long, ctypes.c_long, ctypes.c_void_p, ctypes.c_void_p]
libc.ptrace.restype = ctypes.c_long

Call = Callable[[str, tuple[int, ...]], bool]
"""Takes the name (one of NUMBERS) and the arguments of a system call: is it the one before which to hold?"""


def _ptrace(request: int, pid: int, address: object = None, data: object = None) -> int:
    result = libc.ptrace(request, pid, address, data)
    if result < 0:
        error = ctypes.get_errno()
        raise OSError(error, os.strerror(error))
    return result


class Held:
    """The first thread of a process that has begun: it stands still until `until` or `release`.

    The process dies with the test.  Skips where nothing may be traced.  All calls come from one thread."""

    def __init__(self, pid: int) -> None:
        self.pid = pid
        numbers = NUMBERS.get(platform.machine())
        if numbers is None:
            pytest.skip(f"the numbers of system calls are not known on {platform.machine()}")
        self._names = {number: name for name, number in numbers.items()}
        try:
            _ptrace(SEIZE, pid, None, SYSGOOD | EXITKILL)
        except PermissionError:
            pytest.skip("ptrace is not allowed here")
        _ptrace(INTERRUPT, pid)
        assert os.WIFSTOPPED(self._wait())

    def _wait(self) -> int:
        return os.waitpid(self.pid, WALL)[1]

    def _is_before(self, call: Call) -> bool:
        info = ctypes.create_string_buffer(INFO.size)
        _ptrace(GET_SYSCALL_INFO, self.pid, INFO.size, info)
        kind, _, _, _, number, *arguments = INFO.unpack(info.raw)
        return kind == ENTRY and number in self._names and call(self._names[number], tuple(arguments))

    def until(self, call: Call) -> None:
        """Goes on and stops before the next such call."""
        handed_on = 0
        while True:
            _ptrace(SYSCALL, self.pid, None, handed_on)
            status = self._wait()
            assert os.WIFSTOPPED(status), f"it ended with {status:#x} before the call"
            handed_on, event = os.WSTOPSIG(status), status >> 16
            if handed_on == SYSCALL_STOP and self._is_before(call):
                return
            if handed_on == SYSCALL_STOP or event:
                handed_on = 0

    def release(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            _ptrace(DETACH, self.pid)


def start_held(command: list[object], **options: object) -> tuple[subprocess.Popen, Held]:
    """Starts a program that is held before its first instruction; it has no standard input."""
    # the shell waits for a line, so that the program is traced when it begins
    process = subprocess.Popen(
        ["sh", "-c", 'read -r _ && exec "$@"', "sh", *map(str, command)], stdin=subprocess.PIPE, **options
    )
    with process.stdin as go:
        process.stdin = None  # so that `communicate` leaves it alone
        held = Held(process.pid)
        go.write("\n" if options.get("text") else b"\n")
    return process, held
