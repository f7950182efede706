# SPDX-License-Identifier: Apache-2.0
"""The progress file that the workloads map and store into (workloads/lab.h): read side."""

from __future__ import annotations

import mmap
import os
import struct
from dataclasses import dataclass
from pathlib import Path

MAGIC = 0x3142414C57465F5F
HEADER_BYTES = 4096
SLOT_BYTES = 64
PREPARE, WRITING, SYNCED, DONE = range(4)


@dataclass(frozen=True)
class Progress:
    """A reading. start_seconds, end_seconds: CLOCK_MONOTONIC, 0 while not yet known."""

    phase: int
    threads: int
    records: int
    record_bytes: int
    acked_records: int
    start_seconds: float
    end_seconds: float

    @property
    def acked_bytes(self) -> int:
        return self.acked_records * self.record_bytes

    @property
    def total_bytes(self) -> int:
        return self.threads * self.records * self.record_bytes


class ProgressReader:
    """Opens the file when it appears; read() is None until it holds a complete header."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._map: mmap.mmap | None = None

    def read(self) -> Progress | None:
        view = self._map or self._open()
        if view is None:
            return None
        magic, threads, records, record_bytes, phase, start_ns, end_ns = struct.unpack_from("<7Q", view)
        if magic != MAGIC or HEADER_BYTES + threads * SLOT_BYTES > len(view):
            return None
        acked = sum(struct.unpack_from("<Q", view, HEADER_BYTES + i * SLOT_BYTES)[0] for i in range(threads))
        return Progress(phase, threads, records, record_bytes, acked, start_ns / 1e9, end_ns / 1e9)

    def _open(self) -> mmap.mmap | None:
        try:
            with open(self._path, "rb") as file:
                if os.fstat(file.fileno()).st_size < HEADER_BYTES + SLOT_BYTES:
                    return None
                self._map = mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ)
        except FileNotFoundError:
            return None
        return self._map

    def close(self) -> None:
        if self._map is not None:
            self._map.close()
            self._map = None
