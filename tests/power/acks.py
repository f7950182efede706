# SPDX-License-Identifier: Apache-2.0
"""What a program said of its syncs."""

from __future__ import annotations

import struct
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field

ACK = struct.Struct("<IIQQ")
BEGIN, SYNCED, SINGLE = (ord(letter) for letter in "BSW")


@dataclass
class Acks:
    """Per file: how many records it may have written, how many are safe, and which ones else."""

    begun: dict[int, int] = field(default_factory=lambda: defaultdict(int))
    synced: dict[int, int] = field(default_factory=lambda: defaultdict(int))
    singles: dict[int, set[int]] = field(default_factory=lambda: defaultdict(set))
    count: int = 0  # acknowledgements that count

    def add(self, data: bytes, until_ns: int | None = None) -> None:
        """Syncs that returned later than `until_ns` promise nothing yet."""
        for kind, file, seq, ns in ACK.iter_unpack(data):
            if kind == BEGIN:
                self.begun[file] = max(self.begun[file], seq)
            elif until_ns is not None and ns > until_ns:
                continue
            elif kind == SYNCED:
                self.synced[file] = max(self.synced[file], seq)
                self.count += 1
            else:
                assert kind == SINGLE, kind
                self.singles[file].add(seq)
                self.count += 1

    @classmethod
    def of(cls, data: Iterable[bytes], until_ns: int | None = None) -> Acks:
        acks = cls()
        for part in data:
            acks.add(part, until_ns)
        return acks


def sync_times(data: Iterable[bytes]) -> list[tuple[int, int, int]]:
    """(ns, file, seq) of every sync that returned."""
    return [
        (ns, file, seq)
        for part in data
        for kind, file, seq, ns in ACK.iter_unpack(part)
        if kind in (SYNCED, SINGLE)
    ]
