# SPDX-License-Identifier: Apache-2.0
"""What killed programs of earlier versions left behind: tests/data/left-NAME.tar.xz.

`PYTHONPATH=tests python -m tools.old_files NAME-VERSION…` runs programs under build/libfastwrite.so, or the library
that FASTWRITE_TEST_LIBRARY names, takes their files away when they are dead or stopped, and packs them as they are.
Do that before a format gets a new version: a set that is there is never made again.  `unpack` puts a set into a
directory of this machine.

Arenas and logs name the files that they belong to, and the machine.  `unpack` changes that, and nothing else: inode,
device, times of birth and change, the moment of the boot, the pid, and the checksums over these.  The offsets are those
of shim/format/arena_format.h and wal_format.h (tests/unit/test_formats.c lists them); the versions in `KNOWN` have
them.
"""

from __future__ import annotations

import argparse
import io
import json
import os
import shutil
import signal
import struct
import subprocess
import sys
import tarfile
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from lib.recovery_lab import (
    BLOCKS_AT,
    BOOT_NS,
    MADE_ON_DEV,
    MOUNT_ID,
    SLOT_BTIME,
    SLOT_BYTES,
    SLOT_DEV,
    SLOT_GENERATION,
    SLOT_GUARD,
    SLOT_HANDLE,
    SLOT_INO,
    SLOT_PATH,
    SUPER_ID,
    crc32c,
    lines,
    seal_blocks,
    seal_header,
)
from lib.support import ROOT, clean_environment, preload_env

DATA = ROOT / "tests" / "data"
DAY_NS = 86400 * 10**9
NO_PID = 1 << 22  # one more than any process has

ARENA, LOG = b"FSTWANRA", b"\nFSTWWAL"
VERSION = 8
KNOWN = {ARENA: (2, 3), LOG: (2, 3)}

# struct arena_header
INO_LOW, OWNER, PID, INO_HIGH = 36, 112, 120, 124
# struct wal_header
LOG_BYTES, LOG_ID, LOG_WRITTEN, LOG_INO, LOG_ORIGIN, LOG_HEADER_BYTES = 16, slice(24, 40), 56, 64, 72, 120
# struct wal_batch
BATCH = b"\nFWALBAT"
BATCHES_AT, PAGE = 36864, 4096
BATCH_ID, BATCH_EPOCH, BATCH_FLAGS, BATCH_BYTES, BATCH_IMAGES, BATCH_SUM = slice(8, 24), 24, 36, 40, 44, 48
BATCH_WRITTEN, BATCH_HEAD_BYTES, BATCH_END = 56, 72, 1
# struct wal_record, wal_name
RECORD_BYTES, RECORD_NAME = 8, 1
NAME_BTIME, NAME_HANDLE, NAME_BTIME_NSEC, NAME_PATH_BYTES, NAME_PATH = 16, 24, 32, 40, 48


# ---- identities ----


@dataclass
class Here:
    """The machine, as the files are to say that they come from it."""

    boot_ns: int
    dev: int
    older_ns: int  # by so much all times become earlier: nothing was changed since this machine's boot


@dataclass
class Target:
    """A file that arenas and logs name."""

    dev: int
    ino: int


def library() -> Path:
    """That makes a set."""
    return Path(os.environ.get("FASTWRITE_TEST_LIBRARY", ROOT / "build" / "libfastwrite.so")).resolve()


def device(path: Path) -> int:
    """As sys_dev_of."""
    dev = path.stat().st_dev
    return os.major(dev) << 32 | os.minor(dev)


def boot_ns() -> int:
    """The quickest of several looks, as boot_ns of origin.c."""
    looks = []
    for _ in range(20):
        before = time.clock_gettime_ns(time.CLOCK_BOOTTIME)
        wall = time.time_ns()
        took = time.clock_gettime_ns(time.CLOCK_BOOTTIME) - before
        looks.append((took, wall - before - took // 2))
    return min(looks)[1]


def fit_origin(data: bytearray, at: int, here: Here) -> None:
    """struct origin; without ids of boot, mount and file system, the boot's time and the device count."""
    data[at : at + 16] = bytes(16)
    struct.pack_into("<q", data, at + BOOT_NS - 64, here.boot_ns)
    struct.pack_into("<QQQ", data, at + MOUNT_ID - 64, 0, 0, here.dev)
    assert (SUPER_ID - MOUNT_ID, MADE_ON_DEV - MOUNT_ID) == (8, 16)


def fit_arena(data: bytearray, path: Path, targets: dict[str, Target], here: Here) -> None:
    ino = path.stat().st_ino
    struct.pack_into("<I", data, INO_LOW, ino & 0xFFFFFFFF)
    struct.pack_into("<IIiI", data, OWNER, os.geteuid(), os.getegid(), NO_PID, ino >> 32)
    fit_origin(data, 64, here)
    slots_at, data_at = struct.unpack_from("<2Q", data, BLOCKS_AT + 8)
    for slot in range(slots_at, data_at - SLOT_BYTES + 1, SLOT_BYTES):
        name = bytes(data[slot + SLOT_PATH :]).split(b"\0", 1)[0].decode()
        if not struct.unpack_from("<I", data, slot)[0] or not name:
            continue
        target = targets[Path(name).name]
        struct.pack_into("<QQ", data, slot + SLOT_DEV, target.dev, target.ino)
        struct.pack_into("<qIIQ", data, slot + SLOT_BTIME, 0, 0, 0, 0)  # not known
        assert (SLOT_INO - SLOT_DEV, SLOT_GENERATION - SLOT_BTIME, SLOT_HANDLE - SLOT_BTIME) == (8, 12, 16)
        changed = slot + SLOT_GUARD + 8
        (seconds,) = struct.unpack_from("<q", data, changed)
        struct.pack_into("<q", data, changed, seconds - here.older_ns // 10**9)
    seal_blocks(data)
    seal_header(data)


def log_batches(data: bytes) -> Iterator[tuple[int, int, int]]:
    """(place, bytes of header and records, bytes in all) of each batch of the log."""
    at = BATCHES_AT
    while at + PAGE <= len(data) and data[at : at + 8] == BATCH and data[at:][BATCH_ID] == data[LOG_ID]:
        head, images = struct.unpack_from("<II", data, at + BATCH_BYTES)
        whole = (head + PAGE - 1) // PAGE * PAGE + images * PAGE
        if batch_sum(data[at : at + whole]) != struct.unpack_from("<I", data, at + BATCH_SUM)[0]:
            return
        yield at, head, whole
        at += whole


def batch_sum(batch: bytes) -> int:
    return crc32c(batch[:BATCH_SUM] + bytes(4) + batch[BATCH_SUM + 4 :])


def log_names(data: bytes, at: int, head: int) -> Iterator[tuple[int, str]]:
    """(place of struct wal_name, path) of each file that the batch names."""
    record = at + BATCH_HEAD_BYTES
    while record < at + head:
        kind, size = struct.unpack_from("<HH", data, record)
        name = record + RECORD_BYTES
        if kind == RECORD_NAME:
            (path_bytes,) = struct.unpack_from("<H", data, name + NAME_PATH_BYTES)
            yield name, bytes(data[name + NAME_PATH : name + NAME_PATH + path_bytes - 1]).decode()
        record += size


def fit_log(data: bytearray, path: Path, targets: dict[str, Target], here: Here) -> None:
    def make_older(at: int) -> None:
        struct.pack_into("<q", data, at, struct.unpack_from("<q", data, at)[0] - here.older_ns)

    for at, head, whole in list(log_batches(bytes(data))):
        for name, target_path in log_names(data, at, head):
            target = targets[Path(target_path).name]
            struct.pack_into("<QQqQII", data, name, target.dev, target.ino, 0, 0, 0, 0)
        make_older(at + BATCH_WRITTEN)
        struct.pack_into("<I", data, at + BATCH_SUM, batch_sum(bytes(data[at : at + whole])))
    make_older(LOG_WRITTEN)
    struct.pack_into("<Q", data, LOG_INO, path.stat().st_ino)
    fit_origin(data, LOG_ORIGIN, here)
    data[12:16] = bytes(4)
    struct.pack_into("<I", data, 12, crc32c(bytes(data[:LOG_HEADER_BYTES])))


# ---- sets ----


def write_sparse(path: Path, content: bytes) -> None:
    with path.open("wb") as file:
        for at in range(0, len(content), PAGE):
            if any(content[at : at + PAGE]):
                file.seek(at)
                file.write(content[at : at + PAGE])
        file.truncate(len(content))


def unpack(name: str, directory: Path, *, same_boot: bool) -> dict:
    """Puts the files of a set into `directory`, which has nothing, as if a program had been killed there: in this boot,
    or in one before.  What was noted with them: "expected", the sizes of the files after a recovery."""
    with tarfile.open(DATA / f"left-{name}.tar.xz") as tar:
        contents = {member.name: tar.extractfile(member).read() for member in tar if member.isfile()}
    noted = json.loads(contents.pop("noted.json"))
    boot = boot_ns()
    here = Here(
        boot if same_boot else boot - 10 * DAY_NS,
        device(directory),
        (noted["made_ns"] - (boot - DAY_NS)) // 10**9 * 10**9,
    )
    (directory / ".fastwrite").mkdir(mode=0o700)
    for path, content in contents.items():
        write_sparse(directory / path, content)
        (directory / path).chmod(0o600)
    targets = {}
    for path, changed_ns in noted["changed_ns"].items():
        os.utime(directory / path, ns=(changed_ns - here.older_ns,) * 2)
        targets[path] = Target(device(directory / path), (directory / path).stat().st_ino)
    for path in (directory / ".fastwrite").iterdir():
        data = bytearray(path.read_bytes())
        magic = bytes(data[:8])
        assert struct.unpack_from("<I", data, VERSION)[0] in KNOWN[magic], f"{path}: offsets are not known"
        (fit_arena if magic == ARENA else fit_log)(data, path, targets, here)
        write_sparse(path, data)
    return noted


def commit_of(path: Path) -> str:
    command = ["git", "-C", path.parent, "rev-parse", "--short=12", "HEAD"]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()


def pack(
    name: str, directory: Path, files: dict[str, bytes], changed_ns: dict[str, int], expected: dict
) -> None:
    """files: by path below `directory`."""
    target = DATA / f"left-{name}.tar.xz"
    assert not target.exists(), f"{target} is there: a set is what one version left, and stays so"
    noted = {
        "made_ns": time.time_ns(),
        "commit": commit_of(library()),
        "changed_ns": changed_ns,
        "expected": expected,
    }
    DATA.mkdir(exist_ok=True)
    with tarfile.open(target, "w:xz", preset=9, format=tarfile.USTAR_FORMAT) as tar:
        for path, content in [("noted.json", json.dumps(noted, indent=1).encode()), *sorted(files.items())]:
            member = tarfile.TarInfo(path)
            member.size, member.mode = len(content), 0o600
            tar.addfile(member, io.BytesIO(content))
    print(f"{target}: {target.stat().st_size} bytes")


# ---- making them ----

LINES = 60
ORDERED = {"sync": "ordered", "writers": "exclusive", "mem": "2M"}


def environment(directory: Path, **settings: object) -> dict[str, str]:
    settings = {"mem": "1M", "block": "64K", "lag_ms": 60000, **settings}
    return clean_environment(**preload_env(library(), f"{directory}/**", **settings))


def take(directory: Path) -> tuple[dict[str, bytes], dict[str, int]]:
    files = {str(p.relative_to(directory)): p.read_bytes() for p in directory.rglob("*") if p.is_file()}
    return files, {name: (directory / name).stat().st_mtime_ns for name in files if "/" not in name}


def make_killed(name: str, directory: Path, mode: str, **settings: object) -> None:
    """leave.c: two files with LINES lines, all but the first staged."""
    program = directory.parent / "leave"
    subprocess.run(["cc", "-O1", "-o", program, ROOT / "tests/kill/leave.c"], check=True)
    paths = [directory / "first", directory / "second"]
    done = subprocess.run(
        [program, mode, "kill", "0", str(LINES), *paths], env=environment(directory, **settings), check=False
    )
    assert done.returncode == -signal.SIGKILL
    files, changed_ns = take(directory)
    whole = len(lines(0, LINES))
    assert all(len(files[path.name]) < whole for path in paths), "nothing was staged"
    pack(name, directory, files, changed_ns, {path.name: whole for path in paths})


WRITER = """
import os, sys, time
files = [os.open(path, os.O_RDWR | os.O_CREAT, 0o600) for path in sys.argv[1:3]]
i = 0
while True:
    for file in files:
        os.write(file, (b"line %08d " % i).ljust(99, b".") + b"\\n")
    name = os.open(sys.argv[3], os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600)
    os.write(name, b"x"); os.write(name, b"y"); os.close(name); os.unlink(sys.argv[3])
    i += 1
    time.sleep(0.001)
"""


def make_log(name: str, directory: Path) -> None:
    """A power loss: the log has some epochs, of the files only the first line reached the disk.  A name comes and goes
    meanwhile."""
    paths = [directory / "first", directory / "second"]
    program = subprocess.Popen(
        [sys.executable, "-c", WRITER, *paths, directory / "passing"],
        env=environment(directory, **ORDERED, ordered_ms=20),
    )
    try:
        for _ in range(1000):
            time.sleep(0.05)
            program.send_signal(signal.SIGSTOP)
            os.waitid(os.P_PID, program.pid, os.WSTOPPED)
            files, changed_ns = take(directory)
            logs = [path for path in files if files[path][:8] == LOG]
            if logs and (sizes := sizes_in_log(files[logs[0]])):
                break
            program.send_signal(signal.SIGCONT)
        else:
            raise AssertionError("no epoch in the log")
    finally:
        program.kill()
        program.wait()
    left = {logs[0]: files[logs[0]]} | {path.name: lines(0, 1) for path in paths}
    pack(name, directory, left, {path.name: changed_ns[path.name] for path in paths}, sizes)


def sizes_in_log(data: bytes) -> dict[str, int]:
    """By name, of the last whole epoch, if there are three that count."""
    (first,) = struct.unpack_from("<Q", data, 40)
    names, now, sizes, epochs = {}, {}, {}, 0
    for at, head, _ in log_batches(data):
        epoch, _, flags = struct.unpack_from("<QII", data, at + BATCH_EPOCH)
        if epoch < first:
            break
        for place, path in log_names(data, at, head):
            names[struct.unpack_from("<I", data, place - 4)[0]] = Path(path).name
        record = at + BATCH_HEAD_BYTES
        while record < at + head:
            kind, size, file = struct.unpack_from("<HHI", data, record)
            if kind == 2:
                (now[names[file]],) = struct.unpack_from("<Q", data, record + RECORD_BYTES)
            record += size
        if flags & BATCH_END:
            sizes, epochs = dict(now), epochs + 1
    return sizes if epochs >= 3 and set(sizes) == {"first", "second"} else {}


SETS: dict[str, Callable[[str, Path], None]] = {
    "blocks": lambda name, directory: make_killed(name, directory, "write"),
    "appends": lambda name, directory: make_killed(name, directory, "append"),
    "pages": lambda name, directory: make_killed(name, directory, "write", **ORDERED, ordered_ms=60000),
    "log": make_log,
}


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "names", nargs="+", metavar="NAME", help=f"{', '.join(SETS)} and a version, as in blocks-2"
    )
    arguments = parser.parse_args()
    for name in arguments.names:
        base = Path(tempfile.mkdtemp(prefix="fastwrite-left-", dir="/var/tmp"))
        (base / "data").mkdir()
        try:
            SETS[name.rsplit("-", 1)[0]](name, base / "data")
        finally:
            shutil.rmtree(base)
    return 0


if __name__ == "__main__":
    sys.exit(main())
