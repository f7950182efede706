# SPDX-License-Identifier: Apache-2.0
"""`rebooted.py FILE CMD…` runs CMD where the kernel has another boot id and was started at this moment.

FILE becomes the boot id's file; `-`: the id stays, and only the wall clock was set.  Needs root.  The exit
status is that of CMD, 128 + N after signal N."""

from __future__ import annotations

import ctypes
import subprocess
import sys
import time
import uuid
from pathlib import Path

BOOT_ID = "/proc/sys/kernel/random/boot_id"
CLONE_NEWNS, CLONE_NEWTIME = 0x20000, 0x80
MS_BIND, MS_REC, MS_PRIVATE = 0x1000, 0x4000, 0x40000

libc = ctypes.CDLL(None, use_errno=True)


def check(result: int, what: str) -> None:
    if result != 0:
        raise OSError(ctypes.get_errno(), what)


def started_now() -> None:
    """For children to come."""
    check(libc.unshare(CLONE_NEWTIME), "unshare(CLONE_NEWTIME)")
    running_ns = time.clock_gettime_ns(time.CLOCK_BOOTTIME)
    seconds, ns = divmod(-running_ns, 10**9)
    Path("/proc/self/timens_offsets").write_text(f"boottime {seconds} {ns}\n")


def started_as_before() -> None:
    check(libc.unshare(CLONE_NEWTIME), "unshare(CLONE_NEWTIME)")
    Path("/proc/self/timens_offsets").write_text("boottime 0 0\n")


def another_id(file: Path) -> None:
    """In this mount namespace."""
    file.write_text(f"{uuid.uuid4()}\n")
    check(libc.mount(str(file).encode(), BOOT_ID.encode(), None, MS_BIND, None), "mount of the boot id")


def main() -> int:
    if sys.argv[1] != "-":
        check(libc.unshare(CLONE_NEWNS), "unshare(CLONE_NEWNS)")
        check(libc.mount(None, b"/", None, MS_REC | MS_PRIVATE, None), "mount --make-rprivate")
        another_id(Path(sys.argv[1]))
    started_now()
    status = subprocess.run(sys.argv[2:], check=False).returncode
    return 128 - status if status < 0 else status


if __name__ == "__main__":
    sys.exit(main())
