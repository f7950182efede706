# SPDX-License-Identifier: Apache-2.0
"""A little of what `make soak-surroundings` does with the virtual machine; and tests of its disk."""

from __future__ import annotations

import socket
from pathlib import Path
from random import Random

import pytest

from surroundings import machine, nbd
from surroundings.run import CACHE, run

NO_KERNEL = f"no kernel below {CACHE}: make soak-surroundings fetches one"
WHY_NOT = machine.missing() or ("" if machine.kernel_of(CACHE) else NO_KERNEL)
bootable = pytest.mark.skipif(bool(WHY_NOT), reason=f"no virtual machine: {WHY_NOT}")


@bootable
@pytest.mark.parametrize("policy", ["fdatasync", "journal"])
def test_power_is_cut(build: Path, library: Path, policy: str) -> None:
    run(build, "--cuts", "1", "--sync", policy)


@bootable
def test_shut_down_in_order(build: Path, library: Path) -> None:
    """Once without, and once with recovery at stop."""
    run(build, "--shutdowns", "2", "--sync", "fdatasync")


# ---- the disk ----


class Client:
    """What the emulator is to the disk."""

    def __init__(self, address: Path) -> None:
        self.socket = socket.socket(socket.AF_UNIX)
        self.socket.connect(str(address))
        nbd.receive(self.socket, nbd.GREETING.size)
        self.socket.sendall(nbd.FIXED_NEWSTYLE.to_bytes(4, "big"))
        name = nbd.OPTION.pack(nbd.OPTION_MAGIC.to_bytes(8, "big"), nbd.EXPORT_NAME, 0)
        self.socket.sendall(name)
        self.size = int.from_bytes(nbd.receive(self.socket, 10 + 124)[:8], "big")

    def ask(self, kind: int, at: int = 0, length: int = 0, data: bytes = b"") -> bytes:
        request = nbd.REQUEST.pack(nbd.REQUEST_MAGIC, 0, kind, 7, at, length or len(data))
        self.socket.sendall(request + data)
        if kind == nbd.DISCONNECT:
            self.socket.close()
            return b""
        _, error, handle = nbd.REPLY.unpack(nbd.receive(self.socket, nbd.REPLY.size))
        assert (error, handle) == (0, 7)
        return nbd.receive(self.socket, length) if kind == nbd.READ else b""


@pytest.mark.parametrize("style", nbd.STYLES)
def test_the_disk_keeps_what_was_flushed(tmp_path: Path, style: str) -> None:
    size = 64 * nbd.SECTOR
    image = tmp_path / "image"
    image.write_bytes(bytes(size))
    with nbd.Disk(image, tmp_path / "socket") as disk:
        client = Client(disk.address)
        assert client.size == size
        flushed, late = b"1" * (8 * nbd.SECTOR), b"2" * (8 * nbd.SECTOR)
        client.ask(nbd.WRITE, 0, data=flushed)
        client.ask(nbd.FLUSH)
        client.ask(nbd.WRITE, 4 * nbd.SECTOR, data=late)
        assert client.ask(nbd.READ, 4 * nbd.SECTOR, len(late)) == late
        client.ask(nbd.DISCONNECT)
        kept, dropped = disk.lose_power(Random(3), style)
        assert kept + dropped == 8
        assert {"none": kept == 0, "all": dropped == 0}.get(style, True)
        have = image.read_bytes()
        assert have[: 4 * nbd.SECTOR] == flushed[: 4 * nbd.SECTOR]
        sectors = [have[at : at + nbd.SECTOR] for at in range(4 * nbd.SECTOR, 12 * nbd.SECTOR, nbd.SECTOR)]
        assert sum(sector == b"2" * nbd.SECTOR for sector in sectors) == kept
        assert all(
            sector in (b"2" * nbd.SECTOR, (flushed[:1] if n < 4 else b"\0") * nbd.SECTOR)
            for n, sector in enumerate(sectors)
        )
        # the next machine gets what is left
        again = Client(disk.address)
        assert again.ask(nbd.READ, 0, 12 * nbd.SECTOR) == have[: 12 * nbd.SECTOR]
        again.ask(nbd.DISCONNECT)
