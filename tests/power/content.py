# SPDX-License-Identifier: Apache-2.0
"""What writer.c writes where, from the seed alone."""

from __future__ import annotations

import struct
from functools import cache

TABLE = 1 << 18
RECORD_MAX = 90000
HEADER = 24
REGION = 1 << 20
THREADS = 3
NAMES = 4
PARTS = 5
NEW_PARTS = 3
LATE = 8
LENGTH, BYTES, OFFSET, SYNC, SYNC_KIND, SINGLE, ROTATE = range(7)
MASK = (1 << 64) - 1


def mix(z: int) -> int:
    z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & MASK
    z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & MASK
    return z ^ (z >> 31)


class Content:
    """Records of one seed."""

    def __init__(self, seed: int) -> None:
        self.seed = seed
        start = (seed ^ 0x5BD1E995) & MASK
        words = [mix((start + (i + 1) * 0x9E3779B97F4A7C15) & MASK) for i in range(TABLE // 8)]
        self.table = struct.pack(f"<{len(words)}Q", *words)
        self.record = cache(self._record)

    def chance(self, file: int, seq: int, salt: int) -> int:
        z = self.seed * 0x9E3779B97F4A7C15 + file * 0xD1342543DE82EF95 + seq * 0x2545F4914F6CDD1D
        return mix((z + (salt + 1) * 0xDA942042E4DD58B5) & MASK)

    def _record(self, file: int, seq: int) -> bytes:
        h = self.chance(file, seq, LENGTH)
        most = 400 if (h & 0xFF) < 200 else 6000 if (h & 0xFF) < 252 else RECORD_MAX - HEADER
        length = HEADER + (h >> 8) % most
        at = self.chance(file, seq, BYTES) % (TABLE - RECORD_MAX)
        head = struct.pack("<6I", 0x52505746, file, seq & 0xFFFFFFFF, seq >> 32, length, ~length & 0xFFFFFFFF)
        return head + self.table[at : at + length - HEADER]

    def records(self, file: int, begin: int, end: int) -> bytes:
        return b"".join(self.record(file, seq) for seq in range(begin, end))

    def offset(self, file: int, seq: int) -> int:
        h = self.chance(file, seq, OFFSET)
        at = (h >> 1) % REGION
        return at // 512 * 512 if h & 1 else at

    def generations(self, until: int) -> list[int]:
        """First records of the logs of `rotate`, one more than there are."""
        starts = [0]
        late = 0
        for seq in range(until):
            if not late and self.chance(0, seq, ROTATE) % 32 == 0:
                late = seq + 1 + LATE
            if seq + 1 == late:
                starts.append(late)
                late = 0
        starts.append(until)
        return starts
