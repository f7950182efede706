# SPDX-License-Identifier: Apache-2.0
"""A directory, programs that die in it with staged bytes, and the command that recovers them (fixture `lab`)."""

from __future__ import annotations

import json
import os
import shutil
import struct
import subprocess
import sys
from pathlib import Path

import pytest

from lib.support import ROOT, preload_env

KILL = ROOT / "tests" / "kill"
REBOOTED = ROOT / "tests" / "lib" / "rebooted.py"
NOBODY = 65534
LINE = 100
COUNT = 60

# struct arena_header up to `live`, of arena_format.h
MAGIC, CHECKSUM, BLOCK_BYTES, BLOCKS_AT, SLOTS_AT, DATA_AT = 0, 12, 24, 40, 48, 56
BOOT_ID, BOOT_NS, MOUNT_ID, SUPER_ID, MADE_ON_DEV = 64, 80, 88, 96, 104
CHECKED_BYTES = 64 + 48 + 8 + 8 + 8 + 64 + 64
SLOT_BYTES = 1024
SLOT_FLAGS, SLOT_DEV, SLOT_INO, SLOT_BTIME, SLOT_GENERATION, SLOT_HANDLE = 4, 8, 16, 24, 36, 40
SLOT_GUARD, SLOT_BELOW, SLOT_PATH = 48, 88, 232
SLOT_FLUSH_ACTIVE, SLOT_DONE, SLOT_FLUSH_BASE, SLOT_FLUSH_FROM = 92, 96, 104, 184
APPEND_SOMEWHERE = 2
ENTRY_BYTES, COMMIT, EXTENT_BYTES = 64, 16, 16


def lines(first: int, count: int) -> bytes:
    """What leave.c writes."""
    return b"".join(
        f"line {i:08d} ".encode().ljust(LINE - 1, b".") + b"\n" for i in range(first, first + count)
    )


def crc_of_byte(byte: int) -> int:
    for _ in range(8):
        byte = (byte >> 1) ^ (0x82F63B78 if byte & 1 else 0)
    return byte


CRC_TABLE = [crc_of_byte(byte) for byte in range(256)]


def crc32c(data: bytes, crc: int = 0) -> int:
    """Continues `crc`."""
    crc ^= 0xFFFFFFFF
    for byte in data:
        crc = CRC_TABLE[(crc ^ byte) & 0xFF] ^ (crc >> 8)
    return crc ^ 0xFFFFFFFF


def block_sum(arena: bytes, entry: int) -> int | None:
    """Checksum of the block whose entry stands there (arena_sum_block); None for one that is free or makes no sense."""
    (block_bytes,) = struct.unpack_from("<I", arena, BLOCK_BYTES)
    blocks_at, slots_at, data_at = struct.unpack_from("<3Q", arena, BLOCKS_AT)
    owner, kind, seq, commit, offset, pos, first_length = struct.unpack_from("<IIQQQII", arena, entry)
    count, last_length = (commit >> 54) & 0x1FF, (commit >> 32) & 0x3FFFFF
    slot = slots_at + (owner - 1) * SLOT_BYTES
    data = data_at + (entry - blocks_at) // ENTRY_BYTES * block_bytes
    if not 0 < owner <= (data_at - slots_at) // SLOT_BYTES or count == 0:
        return None
    identity = arena[slot + SLOT_INO : slot + SLOT_GENERATION + 4]
    crc = crc32c(struct.pack("<Q", seq) + identity + struct.pack("<Q", kind))
    before = 0
    for i in range(count):
        if i > 0:
            offset, pos, length = struct.unpack_from("<QII", arena, data + block_bytes - i * EXTENT_BYTES)
        else:
            length = first_length
        length = last_length if i == count - 1 else length
        if pos + length > block_bytes:
            return None
        crc = crc32c(struct.pack("<QII", offset, pos, before), crc)
        crc = crc32c(arena[data + pos : data + pos + length], crc)
        before = length
    return crc


def seal_blocks(arena: bytearray) -> None:
    """Makes the checksums of the blocks right again."""
    blocks_at, slots_at = struct.unpack_from("<2Q", arena, BLOCKS_AT)
    for entry in range(blocks_at, slots_at, ENTRY_BYTES):
        crc = block_sum(arena, entry)
        if crc is not None:
            struct.pack_into("<I", arena, entry + COMMIT, crc)


def seal_header(arena: bytearray) -> None:
    """Makes the header's checksum right again."""
    arena[CHECKSUM : CHECKSUM + 4] = bytes(4)
    arena[CHECKSUM : CHECKSUM + 4] = struct.pack("<I", crc32c(bytes(arena[:CHECKED_BYTES])))


def of_no_inode(content: bytes) -> bytes:
    """An arena or a journal that does not say which file it is: what is put into another file than it came from would
    be refused as a copy."""
    data = bytearray(content)
    # struct journal_header ends with the number, struct arena_header has it in two parts
    size, parts = (
        (256, (slice(248, 256),))
        if data[:8] == b"FSTWNJRN"
        else (CHECKED_BYTES, (slice(36, 40), slice(124, 128)))
    )
    for part in parts:
        data[part] = bytes(part.stop - part.start)
    data[CHECKSUM : CHECKSUM + 4] = bytes(4)
    data[CHECKSUM : CHECKSUM + 4] = struct.pack("<I", crc32c(bytes(data[:size])))
    return bytes(data)


def as_user(user: int | None) -> dict:
    """Arguments of subprocess.run; root comes with its own group among the further ones, as after a login."""
    if user is not None:
        return {"user": user, "group": user, "extra_groups": []}
    return {"extra_groups": [0]} if os.geteuid() == 0 else {}


class Lab:
    """A directory, programs that die in it, and the command."""

    def __init__(self, base: Path, library: Path, command: Path, leave: Path) -> None:
        self.base = base
        self.library = library
        self.command = command
        self.program = Path(shutil.copy(leave, base / "leave"))  # where every user reaches it
        self.data = base / "data"
        self.data.mkdir()
        self.target = self.data / "log"

    @property
    def staging(self) -> Path:
        return self.data / ".fastwrite"

    def env(self, **settings: object) -> dict[str, str]:
        settings = {"mem": "1M", "block": "64K", "lag_ms": 60000, **settings}
        return {**os.environ, **preload_env(self.library, f"{self.data}/**", **settings)}

    def leave(
        self,
        *,
        first: int = 0,
        mode: str = "write",
        end: str = "kill",
        user: int | None = None,
        **settings: object,
    ) -> None:
        """COUNT lines, all but the first of them only staged, and a dead program."""
        done = subprocess.run(
            [self.program, mode, end, str(first), str(COUNT), self.target],
            env=self.env(**settings),
            capture_output=True,
            **as_user(user),
            timeout=60,
            check=False,
        )
        assert done.returncode == (-9 if end == "kill" else 0), done.stderr
        if end == "kill":
            staged = first + COUNT - self.target.stat().st_size // LINE
            assert staged >= COUNT - 1, "nothing was staged: this tests nothing"
            assert "staging" in settings or len(self.arenas()) == 1

    def rewind(self, as_left: os.stat_result) -> None:
        """The target as the program left it, for another recovery: nobody has written it since."""
        os.truncate(self.target, as_left.st_size)
        os.utime(self.target, ns=(as_left.st_atime_ns, as_left.st_mtime_ns))

    def arenas(self) -> list[Path]:
        return sorted(self.staging.glob("*.arena")) if self.staging.exists() else []

    def arena(self) -> Path:
        (one,) = self.arenas()
        return one

    def recover(self, *arguments: object, status: int | None = 0, user: int | None = None) -> dict:
        """Report of `fastwrite recover --json`; the text on stderr as ["stderr"]."""
        done = subprocess.run(
            [self.command, "recover", "--json", *(str(a) for a in arguments or (self.data,))],
            capture_output=True,
            text=True,
            **as_user(user),
            timeout=60,
            check=False,
        )
        assert done.returncode >= 0, f"died of signal {-done.returncode}"
        if status is not None:
            assert done.returncode == status, done.stdout + done.stderr
        report = json.loads(done.stdout)
        report["stderr"] = done.stderr
        return report


def actions(report: dict) -> list[str]:
    return [event["action"] for event in report["events"]]


def root_only() -> None:
    if os.geteuid() != 0:
        pytest.skip("needs root, to act as another user")


def patch_slot(lab: Lab, field: int, data: bytes, arena: Path | None = None) -> None:
    """Writes into the entry of the arena's only file.  Its blocks are sealed again: they say which file it is."""
    path = arena or lab.arena()
    content = bytearray(path.read_bytes())
    at = struct.unpack_from("<Q", content, SLOTS_AT)[0] + field
    content[at : at + len(data)] = data
    seal_blocks(content)
    path.write_bytes(content)


def read_slot(lab: Lab, field: int, size: int) -> bytes:
    content = lab.arena().read_bytes()
    at = struct.unpack_from("<Q", content, SLOTS_AT)[0] + field
    return content[at : at + size]


def rebooted(
    lab: Lab, *arguments: object, same_id: bool = False, mounts: bool = False
) -> subprocess.CompletedProcess:
    """`fastwrite recover` with another boot id and boot time; `mounts`: in a mount namespace of its own."""
    argv = [
        *(["unshare", "--mount"] if mounts else []),
        sys.executable,
        REBOOTED,
        "-" if same_id else lab.base / "boot_id",
        lab.command,
        "recover",
        *(arguments or (lab.data,)),
    ]
    return subprocess.run([str(a) for a in argv], capture_output=True, text=True, timeout=60, check=False)
