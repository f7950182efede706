# SPDX-License-Identifier: Apache-2.0
"""What a program said of its syncs."""

from __future__ import annotations

import struct
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field

ACK = struct.Struct("<IIQQ")
BEGIN, TRY, SYNCED, SINGLE = (ord(letter) for letter in "BTSW")


@dataclass
class Acks:
    """Per file: how many records it may have written, how many are safe, and which ones else."""

    begun: dict[int, int] = field(default_factory=lambda: defaultdict(int))
    synced: dict[int, int] = field(default_factory=lambda: defaultdict(int))
    singles: dict[int, set[int]] = field(default_factory=lambda: defaultdict(set))
    count: int = 0  # acknowledgements that promise something

    @classmethod
    def of(cls, data: Iterable[bytes], until_ns: int | None = None, gone_ns: int | None = None) -> Acks:
        """Syncs that returned later than `until_ns` promise nothing, unless they were begun after `gone_ns`: then
        power was gone and they should not have succeeded."""
        acks = cls()
        begin: dict[int, int] = {}
        for part in data:
            for kind, file, seq, ns in ACK.iter_unpack(part):
                if kind in (BEGIN, TRY):
                    begin[file] = ns
                    if kind == BEGIN:
                        acks.begun[file] = max(acks.begun[file], seq)
                    continue
                late = until_ns is not None and ns > until_ns
                if late and (gone_ns is None or begin[file] < gone_ns):
                    continue
                acks.count += 1
                if kind == SYNCED:
                    acks.synced[file] = max(acks.synced[file], seq)
                else:
                    assert kind == SINGLE, kind
                    acks.singles[file].add(seq)
        return acks


def sync_times(data: Iterable[bytes]) -> list[int]:
    """When syncs returned."""
    return [ns for part in data for kind, _, _, ns in ACK.iter_unpack(part) if kind in (SYNCED, SINGLE)]
