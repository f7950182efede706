# SPDX-License-Identifier: Apache-2.0
"""What the figures depend on: recorded with every run, compared before runs are merged or resumed."""

from __future__ import annotations

import os
import platform
import re
import shutil
import subprocess
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from harness.core import build, shim, sysctls

IDENTITY = (
    "kernel", "machine", "cpu", "cpus", "memory_gib", "virtualisation", "device", "filesystem",
    "mount_options", "filesystem_features", "scheduler", "nr_requests", "write_cache", "dirty", "governor",
    "huge_pages", "libc", "fio", "applications", "workloads", "shim",
)  # fmt: skip
"""Keys that must be equal for samples of two runs to stand in one table."""


@dataclass(frozen=True)
class Mount:
    """The mount that holds a path. device is "major:minor"."""

    device: str
    point: str
    filesystem: str
    options: str
    source: str


def mounts(mountinfo: str | None = None) -> Iterator[Mount]:
    """Every mount of this process, in the order of /proc/self/mountinfo."""
    if mountinfo is None:
        mountinfo = Path("/proc/self/mountinfo").read_text(encoding="utf-8", errors="surrogateescape")
    for line in mountinfo.splitlines():
        left, _, right = line.partition(" - ")
        fields, tail = left.split(), right.split(" ")
        options = ",".join(dict.fromkeys([*fields[5].split(","), *tail[2].split(",")]))
        yield Mount(fields[2], unescape(fields[4]), tail[0], unescape(options), unescape(tail[1]))


def mount_of(path: Path, mountinfo: str | None = None) -> Mount | None:
    """Longest mount point above the path, the last one where several are stacked."""
    at = str(path.resolve())
    best: Mount | None = None
    for mount in mounts(mountinfo):
        inside = at == mount.point or at.startswith(mount.point.rstrip("/") + "/")
        if inside and (best is None or len(mount.point) >= len(best.point)):
            best = mount
    return best


def unescape(text: str) -> str:
    """A field of mountinfo as it was before the kernel wrote \\040 for a space."""
    return re.sub(r"\\([0-7]{3})", lambda m: chr(int(m.group(1), 8)), text)


def block_device(path: Path) -> tuple[str, str] | None:
    """("major:minor", name) of the block device behind a path; None for file systems without one."""
    number = os.stat(path).st_dev
    device = f"{os.major(number)}:{os.minor(number)}"
    link = Path("/sys/dev/block") / device
    return (device, link.resolve().name) if link.exists() else None


def whole_disk(path: Path, sys: Path = Path("/sys")) -> str | None:
    """ "major:minor" of the disk behind a path (not of a partition of it), which is what limits are set on."""
    device = block_device(path)
    if device is None:
        return None
    at = (sys / "dev/block" / device[0]).resolve()
    number = _read((at.parent if (at / "partition").exists() else at) / "dev")
    return number or None


def gather(path: Path, applications: Mapping[str, str | None] | None = None) -> dict[str, object]:
    """Everything below IDENTITY plus what is good to know (hostname excluded). Unreadable values are None.
    applications: the versions of those that the run may use."""
    device = block_device(path)
    queue = _queue(device[1]) if device else None
    mount = mount_of(path)
    built = shim.find()
    return {
        "kernel": platform.release(),
        "machine": platform.machine(),
        "cpu": _cpu_model(),
        "cpus": len(os.sched_getaffinity(0)),
        "memory_gib": round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30),
        "virtualisation": _virtualisation(),
        "device": device[1] if device else None,
        "filesystem": mount.filesystem if mount else None,
        "mount_options": mount.options if mount else None,
        "scheduler": chosen(queue / "scheduler") if queue else None,
        "write_cache": _read(queue / "write_cache") if queue else None,
        "rotational": _read(queue / "rotational") if queue else None,
        "nr_requests": _read(queue / "nr_requests") if queue else None,
        "dirty": sysctls.read(),
        "governor": _read(Path("/sys/devices/system/cpu/cpu0/cpufreq/scaling_governor")),
        "huge_pages": chosen(Path("/sys/kernel/mm/transparent_hugepage/enabled")),
        "filesystem_features": features(device[1]) if device and mount else None,
        "libc": " ".join(platform.libc_ver()),
        "python": platform.python_version(),
        "fio": _first_line("fio", "--version"),
        "applications": applications,
        "compiler": _first_line(os.environ.get("CC", "cc").split()[0], "--version"),
        "workloads": build.digest(),
        "shim": built.digest if isinstance(built, shim.Shim) else None,
    }


def differences(one: dict, other: dict) -> list[str]:
    """What keeps two runs apart, one line per differing key."""
    return [
        f"{key}: {one.get(key)!r} and {other.get(key)!r}"
        for key in IDENTITY
        if one.get(key) != other.get(key)
    ]


def _queue(name: str) -> Path | None:
    """The request queue of a disk, or of the disk that a partition belongs to."""
    at = (Path("/sys/class/block") / name).resolve()
    for candidate in (at, at.parent):
        if (candidate / "queue").is_dir():
            return candidate / "queue"
    return None


def features(name: str) -> str | None:
    """ext4 features by tune2fs, when it is installed and the device may be read."""
    if shutil.which("tune2fs") is None or not os.access(f"/dev/{name}", os.R_OK):
        return None
    done = subprocess.run(
        ["tune2fs", "-l", f"/dev/{name}"],
        capture_output=True,
        encoding="utf-8",
        errors="replace",
        check=False,
    )
    found = re.search(r"^Filesystem features:\s+(.*)$", done.stdout, re.MULTILINE)
    return found.group(1) if found else None


def _virtualisation() -> str | None:
    if shutil.which("systemd-detect-virt"):
        done = subprocess.run(
            ["systemd-detect-virt"], capture_output=True, encoding="utf-8", errors="replace", check=False
        )
        return done.stdout.strip() or None
    flags = _read(Path("/proc/cpuinfo")) or ""
    return "hypervisor" if " hypervisor" in flags else "none seen"


def _cpu_model() -> str | None:
    found = re.search(r"^model name\s*:\s*(.*)$", _read(Path("/proc/cpuinfo")) or "", re.MULTILINE)
    return found.group(1) if found else None


def chosen(path: Path) -> str | None:
    """Value of a setting; of a list of choices the bracketed one; None when it cannot be read."""
    return bracketed(_read(path))


def bracketed(text: str | None) -> str | None:
    """The word in brackets of a list of choices, as sysfs has them; the text itself when there is none."""
    found = re.search(r"\[(\S+)\]", text or "")
    return found.group(1) if found else text


def _first_line(program: str, flag: str) -> str | None:
    if shutil.which(program) is None:
        return None
    done = subprocess.run(
        [program, flag], capture_output=True, encoding="utf-8", errors="replace", check=False
    )
    return done.stdout.splitlines()[0] if done.stdout else None


def _read(path: Path) -> str | None:
    try:
        return path.read_text(encoding="utf-8").strip()
    except OSError:
        return None
