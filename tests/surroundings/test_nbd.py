# SPDX-License-Identifier: Apache-2.0
"""What of the virtual machine's disk stays when its power goes."""

from __future__ import annotations

from random import Random

import pytest

from surroundings.nbd import JOURNAL_MAGIC, SECTOR, Disk

BLOCK = 2 * SECTOR  # of a file system whose superblock says nothing else


def halves_after(tmp_path, seed: int, begin: bytes) -> set[bytes]:
    """The first bytes of the sectors of a block that was in flight; it was zeros before."""
    image = tmp_path / "image"
    image.write_bytes(bytes(64 * SECTOR))
    with Disk(image, tmp_path / "socket") as disk:
        disk.gone.set()
        disk.write(8 * BLOCK, (begin + b"new").ljust(SECTOR, b"n") + b"new".ljust(SECTOR, b"n"))
        disk.lose_power(Random(seed), "sectors")
        after = disk.map[8 * BLOCK : 9 * BLOCK]
    return {after[SECTOR - 1 : SECTOR], after[BLOCK - 1 : BLOCK]}


@pytest.mark.parametrize(("begin", "torn"), [(JOURNAL_MAGIC, False), (b"data", True)])
def test_a_block_of_the_journal_is_not_torn(tmp_path, begin, torn):
    seen = [halves_after(tmp_path, seed, begin) for seed in range(40)]
    assert {b"n"} in seen
    assert {b"\0"} in seen
    assert ({b"n", b"\0"} in seen) == torn
