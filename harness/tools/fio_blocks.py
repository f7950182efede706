# SPDX-License-Identifier: Apache-2.0
"""What fio writes into its files here, and the check of whole files against it.

Two contents. *Fixed*: 64 bytes, repeated; costs fio nothing while it writes (B1, B2). *Stamped*: units of 32 bytes,
24 that say which pass wrote them (NEW the timed one, OLD the one that laid the file out before) and 8 with the offset
of the block in its file, little-endian, so that a block in the wrong place is seen; fio copies them into the buffer
before every write (verify=pattern without a verification of its own).
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np

FIXED = bytes.fromhex(
    "8f3c1ad95e7724b0c1e84f1360d5aa92397be60d58c2f4811d97a3be4c066fd2"
    "e05b39f78a124dc6b3791e64ac0fd8527e91c45a38b6027fd10ce59bf7463a88"
)
NEW = bytes.fromhex("8f3c1ad95e7724b0c1e84f1360d5aa92397be60d58c2f481")
OLD = bytes.fromhex("1d97a3be4c066fd2e05b39f78a124dc6b3791e64ac0fd852")
UNIT_BYTES = 32
CHUNK_BYTES = 1 << 22
_SUFFIXES = {"k": 10, "m": 20, "g": 30}


@dataclass(frozen=True)
class Blocks:
    """Bytes of a file by content. wrong_at: offset of the first block with unexpected content, or None."""

    new: int = 0
    old: int = 0
    empty: int = 0
    wrong_at: int | None = None


def block_bytes(text: str) -> int:
    """fio's "4k", "1m" in bytes; ValueError for any other text."""
    shift = _SUFFIXES.get(text[-1:].lower(), 0)
    return int(text[:-1] if shift else text) << shift


def stamp_pattern(tag: bytes) -> str:
    """A stamped content as fio's verify_pattern takes it; %o is the offset."""
    return f"0x{tag.hex()}%o"


def count(path: Path, block: int, stamped: bool) -> Blocks:
    """Count a whole file, block by block; of a partial last block, the bytes that exist."""
    new = old = empty = offset = 0
    size = max(block, CHUNK_BYTES // block * block)
    with open(path, "rb", buffering=0) as file:
        while chunk := _read(file, size):
            held = np.zeros(-(-len(chunk) // block) * block, dtype=np.uint8)
            held[: len(chunk)] = np.frombuffer(chunk, dtype=np.uint8)
            rows = held.reshape(-1, block)
            lengths = np.full(len(rows), block)
            lengths[-1] = len(chunk) - (len(rows) - 1) * block
            is_new, is_old, is_empty = _classify(rows, lengths, offset, stamped)
            new += int(lengths[is_new].sum())
            old += int(lengths[is_old].sum())
            empty += int(lengths[is_empty].sum())
            wrong = np.flatnonzero(~(is_new | is_old | is_empty))
            if len(wrong):
                return Blocks(new, old, empty, offset + int(wrong[0]) * block)
            offset += len(chunk)
    return Blocks(new, old, empty)


def _read(file, size: int) -> bytes:
    """Up to size bytes; less only at the end of the file."""
    out = file.read(size)
    while out and len(out) < size and (more := file.read(size - len(out))):
        out += more
    return out


def _classify(rows: np.ndarray, lengths: np.ndarray, offset: int, stamped: bool):
    """Three masks over the blocks: new, old, empty."""
    empty = ~rows.any(axis=1)
    new = _same(rows, _expected(rows, offset, NEW if stamped else None), lengths)
    if not stamped or (new | empty).all():
        return new, np.zeros(len(rows), dtype=bool), empty
    return new, _same(rows, _expected(rows, offset, OLD), lengths), empty


def _expected(rows: np.ndarray, offset: int, tag: bytes | None) -> np.ndarray:
    count, block = rows.shape
    if tag is None:
        whole = np.frombuffer(FIXED * (block // len(FIXED) + 1), dtype=np.uint8)[:block]
        return np.broadcast_to(whole, rows.shape)
    units = np.empty((count, block // UNIT_BYTES, UNIT_BYTES), dtype=np.uint8)
    units[:, :, : len(tag)] = np.frombuffer(tag, dtype=np.uint8)
    offsets = (
        np.arange(offset, offset + count * block, block, dtype="<u8").view(np.uint8).reshape(count, 1, 8)
    )
    units[:, :, len(tag) :] = offsets
    return units.reshape(count, block)


def _same(rows: np.ndarray, expected: np.ndarray, lengths: np.ndarray) -> np.ndarray:
    same = (rows == expected).all(axis=1)
    if lengths[-1] != rows.shape[1]:
        same[-1] = bool((rows[-1, : lengths[-1]] == expected[-1, : lengths[-1]]).all())
    return same
