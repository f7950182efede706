# SPDX-License-Identifier: Apache-2.0
"""Images with file systems on them."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

from power.workload import FailedError

MIB = 1 << 20
SIZES = {"ext4": 96 * MIB, "xfs": 320 * MIB}  # xfs has a least size
MAKE = {
    "ext4": ["mkfs.ext4", "-q", "-F", "-J", "size=4", "-E", "lazy_itable_init=0,lazy_journal_init=0"],
    "xfs": ["mkfs.xfs", "-q", "-f"],
}


def make_image(path: Path, fs: str, block: int = 0, size: int = 0) -> None:
    """block: bytes, of ext4; 0: what it takes for so small a disk, 1024.  size: bytes; 0: the least."""
    options = ("-b", str(block)) if block and fs == "ext4" else ()
    path.unlink(missing_ok=True)
    with path.open("wb") as image:
        os.truncate(image.fileno(), size or SIZES[fs])
    done = subprocess.run([*MAKE[fs], *options, str(path)], capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise FailedError(f"{MAKE[fs][0]}: {done.stdout}{done.stderr}")


def copy_image(source: Path, target: Path) -> None:
    subprocess.run(["cp", "--sparse=always", str(source), str(target)], check=True)
