# SPDX-License-Identifier: Apache-2.0
"""What the kernel says while a leg runs, as columns. Parsing is pure; reading is one small class.

Columns (one value per tick, None where a source is not there):
  t                 CLOCK_MONOTONIC seconds
  app_bytes         bytes whose write has returned (progress file)
  read_sectors, written_sectors   512-byte sectors of the backing device (/proc/diskstats)
  dirty_kb, writeback_kb          /proc/meminfo
  rss_anon_kb, rss_file_kb, rss_shmem_kb   /proc/PID/status
  arena_bytes       staging files of the shim
  cgroup_bytes      usage of the leg's control group
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

SECTOR_BYTES = 512
COLUMNS = (
    "t", "app_bytes", "read_sectors", "written_sectors", "dirty_kb", "writeback_kb", "rss_anon_kb",
    "rss_file_kb", "rss_shmem_kb", "arena_bytes", "cgroup_bytes",
)  # fmt: skip


def parse_diskstats(text: str, device: str) -> tuple[int, int] | None:
    """(sectors read, sectors written) of device "major:minor"; None when it is not listed."""
    major, minor = device.split(":")
    for line in text.splitlines():
        fields = line.split()
        if len(fields) >= 10 and fields[0] == major and fields[1] == minor:
            return int(fields[5]), int(fields[9])
    return None


def parse_meminfo(text: str, *names: str) -> tuple[int | None, ...]:
    """kB of the named lines of /proc/meminfo."""
    return tuple(_kb(text, name) for name in names)


def parse_status(text: str) -> tuple[int | None, int | None, int | None]:
    """kB of RssAnon, RssFile, RssShmem in /proc/PID/status (None for a zombie, which has no memory)."""
    return _kb(text, "RssAnon"), _kb(text, "RssFile"), _kb(text, "RssShmem")


def _kb(text: str, name: str) -> int | None:
    found = re.search(rf"^{name}:\s+(\d+) kB", text, re.MULTILINE)
    return int(found.group(1)) if found else None


def parse_jbd2_info(text: str) -> int | None:
    """Transactions since mount, from the first line of /proc/fs/jbd2/*/info ("123 transactions (...")."""
    found = re.match(r"(\d+) transactions?\b", text)
    return int(found.group(1)) if found else None


@dataclass(frozen=True)
class Sources:
    """Where a leg's figures come from. Callables return None when they have nothing."""

    device: str | None
    app_bytes: Callable[[], int | None]
    arena_bytes: Callable[[], int | None]
    cgroup_bytes: Callable[[], int | None]


def _nothing() -> None:
    return None


class Sampler:
    """Collects one row of COLUMNS per tick. `read` is injected: path -> text, OSError when unreadable."""

    def __init__(self, sources: Sources, monotonic: Callable[[], float], read: Callable[[str], str]) -> None:
        self._sources = sources
        self._monotonic = monotonic
        self._read = read
        self.series: dict[str, list] = {name: [] for name in COLUMNS}

    def tick(self, pid: int | None) -> None:
        read, written = self._sectors()
        dirty, writeback = parse_meminfo(self._text("/proc/meminfo"), "Dirty", "Writeback")
        anon, file, shmem = parse_status(self._text(f"/proc/{pid}/status")) if pid else (None, None, None)
        row = (
            self._monotonic(), self._sources.app_bytes(), read, written, dirty, writeback, anon, file, shmem,
            self._sources.arena_bytes(), self._sources.cgroup_bytes(),
        )  # fmt: skip
        for name, value in zip(COLUMNS, row, strict=True):
            self.series[name].append(value)

    def peak(self, column: str) -> int | None:
        values = [v for v in self.series[column] if v is not None]
        return max(values) if values else None

    def _sectors(self) -> tuple[int | None, int | None]:
        if self._sources.device is None:
            return None, None
        return parse_diskstats(self._text("/proc/diskstats"), self._sources.device) or (None, None)

    def _text(self, path: str) -> str:
        try:
            return self._read(path)
        except OSError:
            return ""


def read_text(path: str) -> str:
    return Path(path).read_text(encoding="utf-8", errors="surrogateescape")


def journal_transactions(device_name: str, root: Path = Path("/proc/fs/jbd2")) -> int | None:
    """Transactions of the device's ext4 journal so far; None without one (or without the right to see it)."""
    for info in sorted(root.glob(f"{device_name}-*/info")):
        try:
            return parse_jbd2_info(info.read_text(encoding="utf-8"))
        except OSError:
            continue
    return None


_JBD2_LINE = re.compile(r"^\s+(\d+)(?:ms|us)? (.+)$", re.MULTILINE)
_JBD2_NAMES = {
    "average transaction commit time": "commit_us",
    "handles per transaction": "handles",
    "blocks per transaction": "blocks",
    "logged blocks per transaction": "logged_blocks",
}


def parse_jbd2_averages(text: str) -> dict[str, int]:
    """Averages since mount: microseconds of a commit, and handles, blocks and logged blocks of a transaction."""
    found = {name: int(value) for value, name in _JBD2_LINE.findall(text)}
    return {short: found[name] for name, short in _JBD2_NAMES.items() if name in found}


def journal_averages(device_name: str, root: Path = Path("/proc/fs/jbd2")) -> dict[str, int] | None:
    """parse_jbd2_averages of a device's journal; None without one."""
    for info in sorted(root.glob(f"{device_name}-*/info")):
        with contextlib.suppress(OSError):
            return parse_jbd2_averages(info.read_text(encoding="utf-8"))
    return None


def fast_commits(device_name: str, root: Path = Path("/proc/fs/ext4")) -> int | None:
    """Fast commits of an ext4 since mount, which its journal does not count; None where there are none."""
    try:
        text = (root / device_name / "fc_info").read_text(encoding="utf-8")
    except OSError:
        return None
    found = re.search(r"^(\d+) commits$", text, re.MULTILINE)
    return int(found.group(1)) if found else None


def xfs_log(device_name: str, root: Path = Path("/sys/fs/xfs")) -> dict[str, int] | None:
    """What an XFS has done to its log since mount: writes, blocks, forces; None where there is none."""
    try:
        text = (root / device_name / "stats" / "stats").read_text(encoding="utf-8")
    except OSError:
        return None
    found = re.search(r"^log (\d+) (\d+) \d+ (\d+)", text, re.MULTILINE)
    return (
        dict(zip(("log_writes", "log_blocks", "log_forces"), map(int, found.groups()), strict=True))
        if found
        else None
    )


def window(series: dict[str, list], column: str, start: float, end: float) -> tuple[list[float], list[float]]:
    """(times, values) of a column inside [start, end]; rows without a value are left out."""
    pairs = [
        (t, v)
        for t, v in zip(series["t"], series[column], strict=True)
        if v is not None and start <= t <= end
    ]
    return [t for t, _ in pairs], [v for _, v in pairs]
