# SPDX-License-Identifier: Apache-2.0
"""Programs of the prefix test that make numbered steps, and are killed."""

from __future__ import annotations

import ctypes
import mmap
import signal
import struct
import sys
import time
from collections.abc import Callable
from contextlib import AbstractContextManager


def make_steps(
    acks: str, steps: AbstractContextManager[Callable[[int], None]], error: type[Exception] = OSError
) -> int:
    """Makes step 1, 2, ... as far as ACKS has room, and notes there when each has returned, as steps.c does.
    Waits to be killed, also after an error."""
    ctypes.CDLL(None).prctl(1, signal.SIGKILL)
    try:
        with open(acks, "r+b") as file, mmap.mmap(file.fileno(), 0) as table, steps as step:
            for number in range(1, len(table) // 8 + 1):
                step(number)
                struct.pack_into("<Q", table, (number - 1) * 8, time.monotonic_ns())
            signal.pause()
    except error as what:
        print(what, file=sys.stderr, flush=True)
        signal.pause()
    return 0
