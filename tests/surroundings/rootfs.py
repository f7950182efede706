# SPDX-License-Identifier: Apache-2.0
"""What containers have as their root directory."""

from __future__ import annotations

import fcntl
import os
import shutil
import subprocess
from pathlib import Path

from power import system
from power.workload import FailedError

from surroundings import USERS

EMPTY = ("dev", "etc", "fw", "proc", "root", "run", "sys", "tmp", "usr", "var")
MERGED = ("bin", "sbin", "lib", "lib64")
PACKAGES = "systemd,systemd-sysv"
MS_RDONLY, MS_REMOUNT = 1, 32


def of_host(place: Path, _cache: Path) -> Path:
    """This system's /usr, read-only, and otherwise next to nothing.  Takes no time and no network."""
    root = place / "root"
    for name in EMPTY:
        (root / name).mkdir(parents=True)
    for name in MERGED:
        if Path("/", name).is_symlink():
            (root / name).symlink_to(f"usr/{name}")
        elif Path("/", name).is_dir():
            (root / name).mkdir()
            system.mount(f"/{name}", root / name, None, system.MS_BIND)
    system.mount("/usr", root / "usr", None, system.MS_BIND)
    system.mount("none", root / "usr", None, system.MS_BIND | MS_REMOUNT | MS_RDONLY)
    name_users(root)
    return root


def release() -> str:
    """Codename of this system's release: a library that was built here needs no newer C library there."""
    for line in Path("/etc/os-release").read_text().splitlines():
        if line.startswith("VERSION_CODENAME="):
            return line.split("=", 1)[1].strip('"')
    return "stable"


def kept_debian(cache: Path) -> Path:
    """Where it is, once it is made."""
    return cache / f"root-{release()}"


def make_debian(kept: Path) -> None:
    if not shutil.which("mmdebstrap"):
        raise FailedError("mmdebstrap is missing (scripts/deps surroundings); --root host does without")
    fresh = kept.with_suffix(f".{os.getpid()}")
    done = subprocess.run(
        ["mmdebstrap", "--quiet", "--variant=minbase", f"--include={PACKAGES}", release(), str(fresh)],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode != 0:
        shutil.rmtree(fresh, ignore_errors=True)
        raise FailedError(f"mmdebstrap: {done.stderr[-2000:]}")
    fresh.rename(kept)


def keep_debian(cache: Path) -> Path:
    """A Debian of its own with systemd, made once by mmdebstrap (30 seconds).  Others who want it wait."""
    kept = kept_debian(cache)
    cache.mkdir(parents=True, exist_ok=True)
    with kept.with_suffix(".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not kept.exists():
            make_debian(kept)
    return kept


def of_debian(place: Path, cache: Path) -> Path:
    """The same; what containers write to it is forgotten."""
    kept = keep_debian(cache)
    root, upper, work = place / "debian", place / "debian-upper", place / "debian-work"
    for path in (root, upper, work):
        path.mkdir()
    system.mount("overlay", root, "overlay", 0, f"lowerdir={kept},upperdir={upper},workdir={work}")
    (root / "fw").mkdir(exist_ok=True)
    name_users(root)
    return root


def name_users(root: Path) -> None:
    lines = ["root:x:0:0:root:/root:/bin/sh", *(f"user{uid}:x:{uid}:{uid}::/:/bin/sh" for uid in USERS)]
    (root / "etc/passwd").write_text("\n".join(lines) + "\n")
    groups = ["root:x:0:", *(f"user{uid}:x:{uid}:" for uid in USERS)]
    (root / "etc/group").write_text("\n".join(groups) + "\n")
