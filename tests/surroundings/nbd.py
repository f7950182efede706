# SPDX-License-Identifier: Apache-2.0
"""A disk that loses what it was not told to flush: a server of the NBD protocol for one virtual machine at a time.

The guest sees a disk with a write cache.  Writes go to the image at once, and are kept in mind until the next flush.
When the power goes, of those that are kept in mind all, none, some, or some 512-byte sectors stay.  The sectors of
ext4's superblock stay or go together, and so do those of a block that describes or commits a transaction of its
journal: ext4 refuses to mount a file system with a torn one, whatever programs did.
"""

from __future__ import annotations

import contextlib
import mmap
import os
import socket
import struct
import threading
from pathlib import Path
from random import Random

GREETING = struct.Struct(">8sQH")
OPTION = struct.Struct(">8sII")
OPTION_REPLY = struct.Struct(">QIII")
REQUEST = struct.Struct(">IHHQQI")
REPLY = struct.Struct(">IIQ")
NBD_MAGIC, OPTION_MAGIC, REPLY_MAGIC = b"NBDMAGIC", 0x49484156454F5054, 0x3E889045565A9
REQUEST_MAGIC, SIMPLE_REPLY_MAGIC = 0x25609513, 0x67446698
FIXED_NEWSTYLE, NO_ZEROES = 1, 2
EXPORT_NAME, ABORT, INFO, GO = 1, 2, 6, 7
ACK, REPLY_INFO, UNSUPPORTED = 1, 3, (1 << 31) + 1
INFO_EXPORT = 0
HAS_FLAGS, SEND_FLUSH = 1, 4
READ, WRITE, DISCONNECT, FLUSH = range(4)
EINVAL = 22
SECTOR = 512
SUPERBLOCK_SECTORS = (2, 3)
JOURNAL_MAGIC = b"\xc0\x3b\x39\x98"  # of a block of ext4's journal that is not a copy of another block
LOG_BLOCK_SIZE_AT = 1024 + 24  # in the superblock: the size of a block is 1024 << this
STYLES = ("none", "all", "writes", "sectors")


class Disk:
    """The image, and what of it is not flushed.  At the end of a `with` nobody serves it any more."""

    def __init__(self, image: Path, address: Path) -> None:
        self.image = image
        self.address = address
        self.lock = threading.Lock()
        self.pending: list[tuple[int, bytes]] = []
        self.before: dict[int, bytes] = {}  # sectors as they were at the last flush
        self.flushes = 0
        self.fd = os.open(image, os.O_RDWR | os.O_CLOEXEC)
        self.map = mmap.mmap(self.fd, 0)
        self.listener = socket.socket(socket.AF_UNIX)
        self.listener.bind(str(address))
        self.listener.listen(1)
        self.gone = threading.Event()
        self.thread: threading.Thread | None = None

    def __enter__(self) -> Disk:
        self.thread = threading.Thread(target=self.serve, daemon=True)
        self.thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        with contextlib.suppress(OSError):
            self.listener.shutdown(socket.SHUT_RDWR)
        self.listener.close()
        self.thread.join(5)
        self.map.close()
        os.close(self.fd)
        self.address.unlink(missing_ok=True)

    # ---- what the machine does ----

    def serve(self) -> None:
        while True:
            try:
                client, _ = self.listener.accept()
            except OSError:
                return
            self.gone.clear()
            with client, contextlib.suppress(OSError, EOFError):
                if self.shake_hands(client):
                    self.answer(client)
            self.gone.set()

    def shake_hands(self, client: socket.socket) -> bool:
        """True when requests follow."""
        about = struct.pack(">QH", len(self.map), HAS_FLAGS | SEND_FLUSH)
        client.sendall(GREETING.pack(NBD_MAGIC, OPTION_MAGIC, FIXED_NEWSTYLE | NO_ZEROES))
        (flags,) = struct.unpack(">I", receive(client, 4))
        while True:
            _, option, length = OPTION.unpack(receive(client, OPTION.size))
            receive(client, length)
            if option == EXPORT_NAME:
                client.sendall(about + (b"" if flags & NO_ZEROES else bytes(124)))
                return True
            if option in (GO, INFO):
                data = struct.pack(">H", INFO_EXPORT) + about
                client.sendall(OPTION_REPLY.pack(REPLY_MAGIC, option, REPLY_INFO, len(data)) + data)
            answer = ACK if option in (GO, INFO, ABORT) else UNSUPPORTED
            client.sendall(OPTION_REPLY.pack(REPLY_MAGIC, option, answer, 0))
            if option in (GO, ABORT):
                return option == GO

    def answer(self, client: socket.socket) -> None:
        while True:
            _, _, kind, handle, at, length = REQUEST.unpack(receive(client, REQUEST.size))
            data, error = b"", 0
            with self.lock:
                if kind == READ:
                    data = self.map[at : at + length]
                elif kind == WRITE:
                    self.write(at, receive(client, length))
                elif kind == FLUSH:
                    self.flush()
                elif kind == DISCONNECT:
                    return
                else:
                    error = EINVAL
            client.sendall(REPLY.pack(SIMPLE_REPLY_MAGIC, error, handle) + data)

    def write(self, at: int, data: bytes) -> None:
        for place in range(at, at + len(data), SECTOR):
            if place not in self.before:
                self.before[place] = self.map[place : place + SECTOR]
        self.pending.append((at, data))
        self.map[at : at + len(data)] = data

    def flush(self) -> None:
        self.flushes += 1
        self.pending.clear()
        self.before.clear()

    # ---- what befalls it ----

    def lose_power(self, dice: Random, style: str) -> tuple[int, int]:
        """The machine is gone.  Sectors in flight that stayed, and that went."""
        if not self.gone.wait(10):
            raise TimeoutError("the machine is still connected to its disk")
        kept = dropped = 0
        with self.lock:
            for place, data in self.before.items():
                self.map[place : place + SECTOR] = data
            (log_block_size,) = struct.unpack_from("<I", self.map, LOG_BLOCK_SIZE_AT)
            for at, data in self.pending:
                whole = {"none": False, "all": True}.get(style, dice.random() < 0.5)
                journal_end = 0
                for place in range(at, at + len(data), SECTOR):
                    stays = whole
                    if place >= journal_end and data.startswith(JOURNAL_MAGIC, place - at):
                        journal_end = place + (1024 << log_block_size)
                    if (
                        style == "sectors"
                        and place // SECTOR not in SUPERBLOCK_SECTORS
                        and place >= journal_end
                    ):
                        stays = dice.random() < 0.5
                    if stays:
                        self.map[place : place + SECTOR] = data[place - at : place - at + SECTOR]
                    kept += stays
                    dropped += not stays
            self.flush()
        return kept, dropped


def receive(client: socket.socket, length: int) -> bytes:
    data = bytearray()
    while len(data) < length:
        part = client.recv(length - len(data))
        if not part:
            raise EOFError
        data += part
    return bytes(data)
