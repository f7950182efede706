# SPDX-License-Identifier: Apache-2.0
"""sync = journal: what it writes, and what comes back from it after a crash."""

from __future__ import annotations

import fcntl
import os
import re
import select
import shutil
import signal
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from random import Random

import pytest
from lib.disks import disk, remount, shut_down
from lib.recovery_lab import CHECKSUM, SUPER_ID, crc32c, of_no_inode
from lib.support import (
    ROOT,
    all_synced,
    disk_dir,
    file_system,
    preload_env,
    run_preloaded,
    sync_file_system,
    wait_for,
)

STEPS = ROOT / "tests" / "journal" / "steps.c"
REBOOTED = ROOT / "tests" / "lib" / "rebooted.py"
CREATE = os.O_RDWR | os.O_CREAT
READY = b"FSTWNJRN"
HEADER = 256  # bytes of struct journal_header
OVERLAY = 0x794C7630  # f_type of statfs
SMALL = 512

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="another boot is made by a mount: needs root")


@pytest.fixture
def place():
    with disk_dir() as path:
        if file_system(path) not in ("ext2/ext3", "xfs", "btrfs"):
            pytest.skip(f"no disk file system: {path} is on {file_system(path)}")
        yield path


class Steps:
    """tests/journal/steps.c under the library, one step after the other."""

    def __init__(self, program: Path, library: Path, place: Path, **settings: object) -> None:
        settings = {"sync": "journal", "lag_ms": 60000, "journal": "1M", "log": "warn"} | settings
        self.place = place
        self.process = subprocess.Popen(
            [program],
            env={**os.environ, **preload_env(library, f"{place}/**", **settings)},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def do(self, *words: object) -> int:
        self.process.stdin.write(" ".join(map(str, words)) + "\n")
        self.process.stdin.flush()
        if not select.select([self.process.stdout], [], [], 300)[0]:
            pytest.fail(f"hangs: {words}")
        return int(self.process.stdout.readline())

    def open(self, fd: int, name: str, flags: int = CREATE) -> None:
        assert self.do("open", fd, self.place / name, flags) == fd

    def write(self, fd: int, byte: str, n: int = SMALL) -> None:
        assert self.do("write", fd, byte, n) == n

    def pwrite(self, fd: int, byte: str, n: int, at: int) -> None:
        assert self.do("pwrite", fd, byte, n, at) == n

    def sync(self, fd: int) -> None:
        assert self.do("fsync", fd) == 0

    def member(self, i: int) -> Member:
        return Member(self, i)

    def journal(self) -> Path | None:
        for path in (self.place / ".fastwrite").glob("*.journal"):
            if path.read_bytes()[:8] == READY:
                return path
        return None

    def journal_has(self, content: bytes) -> bool:
        return content in self.journal().read_bytes()

    def until_journal(self, fd: int, byte: str = "-", more: int = 2) -> int:
        """Writes and syncs until there is a journal, and `more` times; how many bytes that were."""
        deadline = time.monotonic() + 300
        n = 0
        while more:
            self.write(fd, byte)
            self.sync(fd)
            n += SMALL
            if self.journal():
                more -= 1
            else:
                time.sleep(0.01)
            assert time.monotonic() < deadline, "no journal"
        return n

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()
        self.process.stdin.close()
        self.process.stdout.close()

    def end(self) -> None:
        self.process.stdin.close()
        assert self.process.wait(timeout=60) == 0
        self.process.stdout.close()


class Member(Steps):
    """A forked child of it, which does steps of its own."""

    def __init__(self, parent: Steps, i: int) -> None:
        self.parent, self.i, self.place = parent, i, parent.place
        assert parent.do("member", i) == 0

    def do(self, *words: object) -> int:
        return self.parent.do("in", self.i, *words)

    def slay(self) -> None:
        """And somebody looks after what it leaves: another member that ends."""
        other = self.parent.member(self.i + 1)
        assert self.parent.do("slay", self.i) == 0
        assert self.parent.do("dismiss", other.i) == 0


@contextmanager
def all_ended(library: Path, program: Path):
    """Starts Steps at a place; whatever still runs at the end is killed."""
    started = []

    def start(place: Path, **settings):
        started.append(Steps(program, library, place, **settings))
        return started[-1]

    yield start
    for each in started:
        if each.process.poll() is None:
            each.kill()


@pytest.fixture
def steps(library, compile_c, place):
    with all_ended(library, compile_c(STEPS.read_text(), "-pthread")) as start:
        yield lambda **settings: start(place, **settings)


@pytest.fixture
def steps_at(library, compile_c):
    """The same in a place that the test names."""
    with all_ended(library, compile_c(STEPS.read_text(), "-pthread")) as start:
        yield start


def kill_stranger(pid: int) -> None:
    """Somebody else's child, for whom perhaps nobody waits."""
    process = Path(f"/proc/{pid}")
    os.kill(pid, signal.SIGKILL)
    with suppress(FileNotFoundError, ProcessLookupError):
        # (the first thread may be gone while another one still has the descriptors)
        while "State:\tZ" not in (process / "status").read_text() or len(os.listdir(process / "task")) > 1:
            time.sleep(0.01)


def recover_raw(
    command: Path,
    place: Path,
    *,
    other_boot: bool,
    tmp_path: Path,
    before: Sequence[str | Path] = (),
    options: Sequence[str] = (),
) -> subprocess.CompletedProcess:
    """`fastwrite recover`, if asked for where the kernel says that it was started anew, and at another time; `before`
    it: what runs it."""
    argv = [*map(str, before), str(command), "recover", *options, str(place)]
    if other_boot:
        argv = [sys.executable, str(REBOOTED), str(tmp_path / "boot_id"), *argv]
    return subprocess.run(argv, capture_output=True, text=True, timeout=60, check=False)


def recover(command: Path, place: Path, *, other_boot: bool, tmp_path: Path) -> str:
    """The same, which must succeed and leave nothing to recover."""
    done = recover_raw(command, place, other_boot=other_boot, tmp_path=tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    assert not list((place / ".fastwrite").glob("*.*")), done.stdout
    return done.stdout + done.stderr


def lose(path: Path, content: bytes) -> None:
    """What the page cache held of the file is gone; it is the same file still."""
    with path.open("r+b") as f:
        f.truncate(0)
        f.write(content)


def leave_alone(path: Path, journal: bytes) -> None:
    """In the staging directory there is only this journal."""
    shutil.rmtree(path.parent, ignore_errors=True)
    path.parent.mkdir(mode=0o700)
    path.write_bytes(journal)
    path.chmod(0o600)


@pytest.mark.parametrize("flags", [CREATE, CREATE | os.O_APPEND], ids=["positioned", "append"])
@pytest.mark.parametrize("writers", ["auto", "exclusive"])
def test_synced_bytes_come_back_after_a_crash(steps, fastwrite, place, tmp_path, flags, writers):
    for attempt in range(5):
        log = place / f"log{attempt}"
        one = steps(writers=writers)
        one.open(9, log.name, flags)
        n = one.until_journal(9)
        before = b"-" * log.stat().st_size  # to open it would bring everything there
        for byte in "abc":
            one.write(9, byte, 4096)
            one.sync(9)
        one.write(9, "z", 100)  # and no sync
        one.kill()
        if log.stat().st_size == len(before):
            break  # no pause of a second on a busy machine, after which the file itself is synced
    else:
        pytest.fail("it was not the journal that took the bytes")
    lose(log, before)
    said = recover(fastwrite, place, other_boot=True, tmp_path=tmp_path)
    assert log.read_bytes() == b"-" * n + b"a" * 4096 + b"b" * 4096 + b"c" * 4096
    assert "recovered" in said


@pytest.mark.parametrize("flags", [CREATE, CREATE | os.O_APPEND], ids=["positioned", "append"])
def test_an_orderly_reboot_brings_back_what_followed_the_last_sync(steps, fastwrite, place, tmp_path, flags):
    """The file is as the library left it, and the arena is whole: the replay of the journal must not spoil that."""
    for attempt in range(5):
        log = place / f"log{attempt}"
        one = steps()
        one.open(9, log.name, flags)
        n = one.until_journal(9)
        before = log.stat().st_size
        for byte in "abc":
            one.write(9, byte, 4096)
            one.sync(9)
        one.write(9, "z", 100)  # and no sync
        one.kill()
        if log.stat().st_size == before:
            break  # no pause of a second on a busy machine, after which the file itself is synced
    else:
        pytest.fail("it was not the journal that took the bytes")
    said = recover(fastwrite, place, other_boot=True, tmp_path=tmp_path)
    assert log.read_bytes() == b"-" * n + b"a" * 4096 + b"b" * 4096 + b"c" * 4096 + b"z" * 100, said


def test_forced_bytes_wait_for_the_journal(steps, fastwrite, place, tmp_path):
    """What is forced for one file must not come before what was synced for it."""
    log = place / "log"
    for _ in range(20):
        log.unlink(missing_ok=True)
        one = steps(lag_ms=60000, adapt="off")
        one.open(9, log.name)
        n = one.until_journal(9)
        before = log.stat().st_size
        one.write(9, "b", 4096)
        one.sync(9)
        one.write(9, "z", 100)  # and no sync
        one.kill()
        if log.stat().st_size == before:
            break  # no pause of a second on a busy machine, after which the file itself is synced
    else:
        pytest.fail("it was not the journal that took the bytes")
    done = recover_raw(fastwrite, log, other_boot=True, tmp_path=tmp_path, options=["--force"])
    assert done.returncode == 1 and "without --force first" in done.stderr, done.stdout + done.stderr
    assert log.stat().st_size == before and list((place / ".fastwrite").glob("*.arena"))
    said = recover(fastwrite, place, other_boot=True, tmp_path=tmp_path)
    assert log.read_bytes() == b"-" * n + b"b" * 4096 + b"z" * 100, said


def test_a_copy_is_left_alone(steps, fastwrite, place, tmp_path):
    """A backup of the directory, made before the recovery, names the same file."""
    one = steps()
    one.open(9, "log")
    one.until_journal(9)
    one.kill()
    backup = place / "backup"
    shutil.copytree(place / ".fastwrite", backup / ".fastwrite")
    recover(fastwrite, place, other_boot=True, tmp_path=tmp_path)
    (place / "log").write_bytes(b"newer")
    done = recover_raw(fastwrite, backup, other_boot=True, tmp_path=tmp_path)
    assert done.returncode == 1
    assert re.search(r"^failed .*\.journal .*a copy", done.stderr, re.M), done.stderr
    assert (place / "log").read_bytes() == b"newer"


def test_made_on_another_kind_of_file_system(steps, fastwrite, place, tmp_path):
    """As on an overlay: here nobody sees whether its program lives."""
    one = steps()
    one.open(9, "log")
    one.until_journal(9)
    one.kill()
    journal = one.journal()
    for arena in journal.parent.glob("*.arena"):
        arena.unlink()
    content = bytearray(journal.read_bytes())
    struct.pack_into("<Q", content, SUPER_ID, 0xFFFFFFFF << 32 | OVERLAY)
    content[CHECKSUM : CHECKSUM + 4] = bytes(4)
    struct.pack_into("<I", content, CHECKSUM, crc32c(bytes(content[:HEADER])))
    with journal.open("r+b") as file:
        file.write(content)
    for way in (place, journal):
        done = recover_raw(fastwrite, way, other_boot=True, tmp_path=tmp_path)
        assert done.returncode == 1
        assert re.search(r"^failed .*\.journal .*another kind of file system", done.stderr, re.M), done.stderr
        assert journal.read_bytes() == content
    done = recover_raw(fastwrite, journal, other_boot=True, tmp_path=tmp_path, options=["--force"])
    assert done.returncode == 0, done.stderr
    assert "recovered" in done.stdout
    assert not journal.exists()


def test_in_the_same_boot_the_arena_has_it_all(steps, fastwrite, place, tmp_path):
    one = steps()
    one.open(9, "log")
    n = one.until_journal(9)
    one.write(9, "a", 4096)
    one.sync(9)
    one.write(9, "z", 100)
    one.kill()
    recover(fastwrite, place, other_boot=False, tmp_path=tmp_path)
    assert (place / "log").read_bytes() == b"-" * n + b"a" * 4096 + b"z" * 100


def test_old_entries_do_not_overwrite_what_was_synced_later(steps, fastwrite, place, tmp_path):
    one = steps()
    one.open(9, "data")
    one.until_journal(9)
    one.pwrite(9, "a", 4096, 0)
    one.sync(9)
    one.pwrite(9, "B", 1 << 20, 0)  # too large to be staged
    one.sync(9)
    one.kill()
    recover(fastwrite, place, other_boot=True, tmp_path=tmp_path)
    assert (place / "data").read_bytes()[: 1 << 20] == b"B" * (1 << 20)


def test_syncfs_is_not_undone(steps, fastwrite, place, tmp_path):
    one = steps()
    one.open(9, "data")
    one.until_journal(9)
    one.pwrite(9, "a", 4096, 0)
    one.sync(9)
    one.pwrite(9, "b", 4096, 0)
    assert one.do("syncfs", 9) == 0
    one.kill()
    recover(fastwrite, place, other_boot=True, tmp_path=tmp_path)
    assert (place / "data").read_bytes()[:4096] == b"b" * 4096


def test_a_truncation_is_not_undone(steps, fastwrite, place, tmp_path):
    one = steps()
    one.open(9, "data")
    one.until_journal(9)
    one.pwrite(9, "a", 4096, 40960)
    one.sync(9)
    assert one.do("ftruncate", 9, 10) == 0
    one.kill()
    recover(fastwrite, place, other_boot=True, tmp_path=tmp_path)
    assert (place / "data").stat().st_size == 10


def test_an_open_that_truncates_is_not_undone(steps, fastwrite, place, tmp_path):
    for writers in ("auto", "exclusive"):
        one = steps(writers=writers)
        one.open(9, "data")
        one.until_journal(9)
        one.pwrite(9, "a", 4096, 40960)
        one.sync(9)
        one.open(8, "data", os.O_WRONLY | os.O_TRUNC)
        one.kill()
        recover(fastwrite, place, other_boot=True, tmp_path=tmp_path)
        assert (place / "data").stat().st_size == 0, writers
        (place / "data").unlink()


@pytest.mark.parametrize(
    ("sync", "begin", "direct"), [("journal", 0, False), ("journal", 8 << 20, True), ("off", 0, True)]
)
def test_no_direct_write_makes_a_file_longer(library, place, sync, begin, direct):
    """ext4 would change the file's time at the mount after a power loss, and nobody could tell that from a write."""
    path = place / "file"
    path.write_bytes(bytes(begin))
    program = (
        "import os, sys\n"
        "fd = os.open(sys.argv[1], os.O_WRONLY)\n"
        "for _ in range(1000): os.write(fd, b'x' * 4096)\n"
    )
    command = [sys.executable, "-c", program, path]
    settings = {"sync": sync, "writers": "exclusive", "flush": "direct", "block": "64K"}
    done = run_preloaded(library, command, place, paths=str(path), **settings)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stats.bytes > 2 << 20
    if direct and done.stats.direct_bytes == 0 and file_system(place) != "ext4":
        pytest.skip(f"no direct writes on {file_system(place)}")
    assert (done.stats.direct_bytes > 0) == direct
    assert path.stat().st_size == max(begin, 1000 * 4096)


def test_another_program_waits_until_the_entries_are_void(steps, fastwrite, place, tmp_path):
    one = steps()
    one.open(9, "data")
    one.until_journal(9)
    one.pwrite(9, "a", 4096, 0)
    one.sync(9)
    # not under the library: it must find everything, and its own bytes must stay
    with (place / "data").open("r+b") as other:
        assert other.read(4096) == b"a" * 4096
        other.seek(0)
        other.write(b"other" * 100)
        other.flush()
        os.fsync(other.fileno())
    one.kill()
    recover(fastwrite, place, other_boot=True, tmp_path=tmp_path)
    assert (place / "data").read_bytes()[:500] == b"other" * 100


def test_a_renamed_file_is_found(steps, fastwrite, place, tmp_path):
    one = steps()
    one.open(9, "log")
    n = one.until_journal(9)
    before = b"-" * (place / "log").stat().st_size  # to open it would bring everything there
    one.write(9, "a", 4096)
    one.sync(9)
    os.rename(place / "log", place / "log.1")  # by another program: logrotate
    one.write(9, "b", 4096)
    one.sync(9)
    one.kill()
    lose(place / "log.1", before)
    recover(fastwrite, place, other_boot=True, tmp_path=tmp_path)
    assert (place / "log.1").read_bytes() == b"-" * n + b"a" * 4096 + b"b" * 4096


def test_a_file_that_is_gone_is_put_aside(steps, fastwrite, place, tmp_path):
    one = steps()
    one.open(9, "log")
    n = one.until_journal(9)
    one.write(9, "a", 4096)
    one.sync(9)
    os.unlink(place / "log")  # by somebody else
    one.kill()
    recover(fastwrite, place, other_boot=True, tmp_path=tmp_path)
    (orphan,) = (place / ".fastwrite" / "orphans").iterdir()
    assert orphan.read_bytes()[n:] == b"a" * 4096


def test_what_the_program_removed_stays_removed(steps, fastwrite, place, tmp_path):
    one = steps()
    one.open(9, "log")
    one.until_journal(9)
    one.write(9, "a", 4096)
    one.sync(9)
    assert one.do("unlink", place / "log") == 0
    one.kill()
    recover(fastwrite, place, other_boot=True, tmp_path=tmp_path)
    assert not (place / "log").exists() and not (place / ".fastwrite").exists()


def test_both_halves_many_times_over(steps, fastwrite, place, tmp_path):
    one = steps()
    one.open(9, "log")
    n = one.until_journal(9)
    text = b"-" * n
    for i in range(1500):  # 12 times half the journal
        byte = chr(ord("a") + i % 26)
        one.write(9, byte, 4096)
        one.sync(9)
        text += byte.encode() * 4096
    before = (place / "log").read_bytes()[: len(text) - 8 * 4096]
    one.kill()
    assert (place / "log").stat().st_size < len(text) + 1
    lose(place / "log", before)
    recover(fastwrite, place, other_boot=True, tmp_path=tmp_path)
    assert (place / "log").read_bytes()[: len(before)] == before
    # the last ones are in the journal, unless the half was freed just then: then the file was synced
    assert (place / "log").read_bytes() in (text, before)


def test_both_ways_are_timed_where_the_kernel_syncs_each_write(steps, place, tmp_path):
    """O_DSYNC: the kernel's own syncs count as those of the device, so the journal gets its next turn."""
    statistics = tmp_path / "statistics"
    one = steps(writers="exclusive", adapt="on", stats=statistics)
    one.open(9, "log", CREATE | os.O_DSYNC)
    deadline = time.monotonic() + 60
    while not one.journal():
        one.write(9, "x")
        assert time.monotonic() < deadline, "no journal"
    for _ in range(300):
        one.write(9, "x")
    one.end()
    assert int(re.search(r"(\d+) by the journal", statistics.read_text())[1]) > 40


def newest_batch(journal: bytes) -> int:
    starts = [at for at in range(4096, len(journal), 4096) if journal[at : at + 8] == journal[4096:4104]]
    return max(struct.unpack_from("<Q", journal, at + 8)[0] for at in starts)


def test_a_later_journal_has_nothing_of_the_first(steps, place):
    """A program goes on with other files.  Zeros behind the header say that no recovery has been there."""
    one = steps(writers="exclusive")
    for name in ("first", "second"):
        one.open(9, name)
        one.until_journal(9)
        assert one.journal().read_bytes()[2048:4096] == bytes(2048)
        # of the two buffers the one that the next header is made in must not be the last one used
        while not one.journal_has(b"x" * 8192) or newest_batch(one.journal().read_bytes()) % 2 == 0:
            one.pwrite(9, "x", 8192, 0)
            one.sync(9)
        assert one.do("close", 9) == 0
        deadline = time.monotonic() + 60
        while list((place / ".fastwrite").glob("*")):
            assert time.monotonic() < deadline
            time.sleep(0.02)
    one.end()


def test_threads_share_a_write(steps, fastwrite, place, tmp_path):
    one = steps(journal="8M")
    one.open(9, "log")
    one.until_journal(9)
    assert one.do("threads", 16, 100, place) == 1600
    one.kill()
    for i in range(16):
        lose(place / f"t{i}", b"")
    recover(fastwrite, place, other_boot=True, tmp_path=tmp_path)
    for i in range(16):
        got = (place / f"t{i}").read_bytes()
        want = b"".join(bytes([ord("a") + k % 26]) * 512 for k in range(100))
        assert len(got) == len(want), "the last syncs were the journal's"
        # the first ones went to the file itself, which has been lost here
        at = next((k for k in range(100) if got[k * 512 : k * 512 + 1] != b"\0"), 100)
        assert at < 100 and got[at * 512 :] == want[at * 512 :]


def test_a_forked_child_goes_on(steps, fastwrite, place, tmp_path):
    for attempt in range(10):
        log = place / f"log{attempt}"
        one = steps(writers="exclusive")
        one.open(9, log.name)
        whole = b"-" * one.until_journal(9) + b"a" * 4096 + b"b" * 4096 + b"c" * 4096 + b"d" * 4096
        one.write(9, "a", 4096)
        one.sync(9)
        assert one.do("fork") == 0  # from here on it is the child that answers
        for byte in "bcd":
            one.write(9, byte, 4096)
            one.sync(9)
            if byte != "d":  # what the fork brought to the file is no matter here
                before = whole[: log.stat().st_size]  # to open it would bring everything there
        child = one.do("pid")
        one.kill()  # first: it waits for the child, and would end in good order after it
        kill_stranger(child)
        if log.stat().st_size == len(before):
            break  # no sync went to the file itself, as one does beside a flush
    else:
        pytest.fail("the last sync was of the file itself each time")
    lose(log, before)
    recover(fastwrite, place, other_boot=True, tmp_path=tmp_path)
    assert log.read_bytes() == whole


def test_nothing_stays_behind(steps, place):
    one = steps()
    one.open(9, "log")
    n = one.until_journal(9)
    one.write(9, "a", 4096)
    one.sync(9)
    one.end()
    assert (place / "log").read_bytes() == b"-" * n + b"a" * 4096
    assert [p.name for p in place.iterdir()] == ["log"]


@pytest.mark.parametrize("writers", ["auto", "exclusive"])
def test_strict_files_sync_by_the_journal_after_they_were_flushed(steps, place, tmp_path, writers):
    """The lease stays between a flush and the next write: taken anew, it says nothing of the time between."""
    statistics = tmp_path / "statistics"
    one = steps(writers=writers, visibility="strict", lag_ms=1, stats=statistics)
    one.open(9, "log")
    n = one.until_journal(9)
    for _ in range(20):
        one.write(9, "a")
        one.sync(9)
        # (asking for the size breaks no lease)
        wait_for(lambda: (place / "log").stat().st_size >= n + SMALL, "a flush")  # noqa: B023
        n += SMALL
    one.end()
    by_journal = int(re.search(r"(\d+) by the journal", statistics.read_text())[1])
    assert by_journal >= 15


def test_a_torn_last_batch_counts_as_not_written(steps, fastwrite, place, tmp_path):
    one = steps()
    one.open(9, "log")
    n = one.until_journal(9)
    before = b"-" * (place / "log").stat().st_size  # to open it would bring everything there
    one.write(9, "a", 4096)
    one.sync(9)
    one.write(9, "b", 4096)
    one.sync(9)
    journal = one.journal()
    one.kill()
    data = bytearray(journal.read_bytes())
    at = data.rindex(b"b" * 4096)
    data[at + 4000] ^= 1
    journal.write_bytes(bytes(data))
    lose(place / "log", before)
    recover(fastwrite, place, other_boot=True, tmp_path=tmp_path)
    assert (place / "log").read_bytes() == b"-" * n + b"a" * 4096


def test_damage_never_writes_what_was_not_synced(steps, fastwrite, place, tmp_path):
    one = steps()
    one.open(9, "log")
    n = one.until_journal(9)
    before = b"-" * (place / "log").stat().st_size
    text = b"-" * n
    for byte in "abcdef":
        one.write(9, byte, 700)
        one.sync(9)
        text += byte.encode() * 700
    journal = one.journal()
    good = of_no_inode(journal.read_bytes())
    one.kill()
    killed = time.time()
    for arena in (place / ".fastwrite").glob("*.arena"):
        arena.unlink()
    used = good.rindex(b"f" * 700) + 4096
    random = Random(1)
    outcomes = set()
    for _ in range(60):
        data = bytearray(good)
        for _ in range(random.choice((1, 1, 3, 50))):
            data[random.randrange(used)] ^= 1 << random.randrange(8)
        (place / ".fastwrite").mkdir(mode=0o700, exist_ok=True)
        length = random.choice((len(data), len(data), random.randrange(len(data))))
        journal.write_bytes(bytes(data[:length]))
        journal.chmod(0o600)
        lose(place / "log", before)
        os.utime(place / "log", (killed,) * 2)
        done = recover_raw(fastwrite, place, other_boot=True, tmp_path=tmp_path)
        assert done.returncode in (0, 1), done.stderr
        got = (place / "log").read_bytes()
        assert got.startswith(before) and text.startswith(got), done.stdout
        outcomes.add(len(got))
        journal.unlink(missing_ok=True)
    assert len(outcomes) > 3, "all flips did the same"
    assert sorted(p.name for p in place.iterdir()) in ([".fastwrite", "log"], ["log"])


def test_space_reserved_before_a_crash_is_given_back(steps, fastwrite, place, tmp_path):
    one = steps(sync="fdatasync")
    one.open(9, "log")
    for _ in range(3):
        one.write(9, "a", 4096)
    one.sync(9)
    one.kill()
    assert (place / "log").stat().st_blocks > 1000, "nothing was reserved"
    recover(fastwrite, place, other_boot=True, tmp_path=tmp_path)
    assert (place / "log").read_bytes() == b"a" * 3 * 4096
    assert (place / "log").stat().st_blocks <= 3 * 8


def test_what_another_member_wrote_later_is_not_overwritten(steps, fastwrite, place, tmp_path):
    """The file of a killed member, then another's: what the dead one synced must not come back over it."""
    one = steps(writers="exclusive")
    one.open(7, "first")
    one.until_journal(7)
    child = one.member(0)
    child.open(9, "data")
    for _ in range(4):
        child.pwrite(9, "-", 512, 0)
        child.sync(9)
    child.pwrite(9, "a", 4096, 0)
    child.sync(9)
    assert b"a" * 4096 in one.journal().read_bytes()
    child.slay()
    one.open(9, "data")
    one.pwrite(9, "B", 1 << 20, 0)
    one.sync(9)
    one.kill()
    recover(fastwrite, place, other_boot=True, tmp_path=tmp_path)
    assert (place / "data").read_bytes()[: 1 << 20] == b"B" * (1 << 20)


def test_a_truncation_is_not_undone_while_another_member_has_the_position(steps, fastwrite, place, tmp_path):
    one = steps(writers="exclusive")
    one.open(9, "data")
    one.until_journal(9)
    child = one.member(0)
    child.open(8, "data", os.O_RDWR)
    for byte in "ab":
        child.write(8, byte, 4096)  # staged: nobody else knows its position
        child.sync(8)
    assert b"b" * 4096 in one.journal().read_bytes()
    assert one.do("ftruncate", 9, 10) == 0
    child.slay()
    one.kill()
    recover(fastwrite, place, other_boot=True, tmp_path=tmp_path)
    assert (place / "data").stat().st_size == 10


def test_every_sync_syncs_while_another_description_is_open(steps, place, tmp_path):
    """writers = exclusive, strict, and no lease to be had: writes pass to the kernel without the file's lock."""
    statistics = tmp_path / "statistics"
    one = steps(writers="exclusive", visibility="strict", stats=statistics)
    one.open(9, "log")
    one.until_journal(9)
    one.open(8, "log", os.O_RDONLY)
    letters = [chr(ord("A") + i) for i in range(26)] * 4
    for byte in letters:
        one.write(9, byte)
        one.sync(9)
    journal = of_no_inode(one.journal().read_bytes())
    one.end()
    done, journaled = map(
        int, re.search(r"(\d+) done, (\d+) by the journal", statistics.read_text()).groups()
    )
    there = sum(journal.count(byte.encode() * SMALL) for byte in set(letters))
    early = sum(journal.count(b"-" * k) > 0 for k in (SMALL,))
    assert journaled <= there + 10 * early, (done, journaled, there)


@pytest.mark.parametrize("kind", ["limit", "limit_hard"])
def test_a_limit_on_file_sizes_is_not_the_journals(steps, place, kind):
    """Only who may not raise it again goes on without a journal."""
    one = steps()
    one.open(9, "log")
    n = one.until_journal(9)
    assert one.do(kind, 300000) == 0
    for i in range(200):
        one.pwrite(9, chr(ord("a") + i % 26), 4096, n)
        one.sync(9)
    if kind == "limit":
        assert one.journal()
    one.end()
    assert (place / "log").read_bytes()[n:] == chr(ord("a") + 199 % 26).encode() * 4096


def test_a_full_journal_fails_no_sync(steps, place, tmp_path):
    """More files than there is room for void entries in what is kept for them; and no half is ever freed."""
    one = steps(writers="exclusive")
    one.open(7, "first")
    one.until_journal(7)
    child = one.member(0)
    child.open(9, "gone")
    for _ in range(4):
        child.write(9, "x")
        child.sync(9)
    os.unlink(place / "gone")  # by somebody else: what the child leaves can only be kept
    child.slay()
    files = range(20, 320)
    for fd in files:
        one.open(fd, f"f{fd}")
        for _ in range(3):
            one.write(fd, "-", 64)
            one.sync(fd)
    for _ in range(200):
        one.write(7, "y", 16384)
        one.sync(7)
    for fd in files:
        one.pwrite(fd, "z", 1 << 20, 0)
        assert one.do("fsync", fd) == 0, fd
        assert one.do("ftruncate", fd, 0) == 0
    one.end()


def test_many_threads_in_a_small_journal(steps, place):
    one = steps(writers="exclusive")
    one.open(9, "log")
    one.until_journal(9)
    assert one.do("threads", 300, 40, place) == 300 * 40
    one.end()


def test_the_name_that_is_removed_is_not_the_only_one(steps, fastwrite, place, tmp_path):
    (place / "sub").mkdir()
    one = steps(writers="exclusive")
    one.open(9, "log")
    n = one.until_journal(9)
    assert one.do("link", place / "log", place / "sub" / "other") == 0
    assert one.do("unlink", place / "log") == 0
    before = (place / "sub" / "other").read_bytes()
    for byte in "abc":
        one.write(9, byte, 4096)
        one.sync(9)
    journaled = b"c" * 4096 in one.journal().read_bytes()
    one.kill()
    if journaled:
        lose(place / "sub" / "other", before)
    recover(fastwrite, place, other_boot=True, tmp_path=tmp_path)
    assert (place / "sub" / "other").read_bytes() == b"-" * n + b"a" * 4096 + b"b" * 4096 + b"c" * 4096


def test_a_renamed_directory_is_followed(steps, fastwrite, place, tmp_path):
    (place / "one").mkdir()
    one = steps(writers="exclusive", staging=place / ".fastwrite")
    one.open(9, "one/log")
    n = one.until_journal(9)
    one.write(9, "a", 4096)
    one.sync(9)
    assert one.do("rename", place / "one", place / "two") == 0
    for byte in "bc":
        one.write(9, byte, 4096)
        one.sync(9)
    assert b"c" * 4096 in one.journal().read_bytes()
    one.kill()
    log = place / "two" / "log"
    before = b"-" * n + b"a" * 4096 + b"b" * 4096  # the first sync under the new name is the file's own
    lose(log, before)
    recover(fastwrite, place, other_boot=True, tmp_path=tmp_path)
    assert log.read_bytes() == before + b"c" * 4096


@pytest.mark.parametrize("other_boot", [False, True])
def test_a_journal_that_was_done_counts_no_more(steps, fastwrite, place, tmp_path, other_boot):
    """Its removal may be lost when the power goes soon after recovery: what it held must not come back."""
    one = steps()
    one.open(9, "log")
    one.until_journal(9)
    one.pwrite(9, "a", 4096, 0)
    one.sync(9)
    path = one.journal()
    with path.open("rb") as journal:
        one.kill()
        recover(fastwrite, place, other_boot=other_boot, tmp_path=tmp_path)
        again = journal.read()
    (place / "log").write_bytes(b"new" * 2000)
    path.parent.mkdir(mode=0o700, exist_ok=True)
    path.write_bytes(again)
    path.chmod(0o600)
    recover(fastwrite, place, other_boot=True, tmp_path=tmp_path)
    assert (place / "log").read_bytes() == b"new" * 2000


def aged(journal: bytes, seconds: int) -> bytes:
    """The same, written so much earlier."""
    data = bytearray(journal)
    magic = data[4096:4104]
    for at in range(4096, len(data), 4096):
        if data[at : at + 8] == magic:
            size, written_ns = struct.unpack_from("<Iq", data, at + 36)
            struct.pack_into("<IIq", data, at + 32, 0, size, written_ns - seconds * 10**9)
            struct.pack_into("<I", data, at + 32, crc32c(bytes(data[at : at + size])))
    return of_no_inode(bytes(data))


@pytest.fixture
def aged_journal(steps, place):
    """Of "log", 1,000 synced bytes in it; both so many seconds old."""
    one = steps(writers="exclusive")
    one.open(9, "log")
    n = one.until_journal(9)
    one.write(9, "a", 1000)
    one.sync(9)
    path = one.journal()
    one.kill()
    journal, killed = path.read_bytes(), time.time()

    def restore(seconds: int = 120) -> bytes:
        leave_alone(path, aged(journal, seconds))
        lose(place / "log", b"-" * n)
        os.utime(place / "log", (killed - seconds,) * 2)
        return b"-" * n + b"a" * 1000

    return restore


def test_what_others_did_in_a_boot_between_stays(aged_journal, fastwrite, place, tmp_path):
    """A program that did not wait for recovery.  By the next boot the file's time is an old one."""
    log = place / "log"
    aged_journal()
    lose(log, b"newer" * 1000)
    done = recover_raw(fastwrite, place, other_boot=True, tmp_path=tmp_path)
    assert log.read_bytes() == b"newer" * 1000
    assert (done.returncode, "put aside" in done.stdout) == (1, True), done.stdout + done.stderr
    (kept,) = (place / ".fastwrite" / "aside").glob("*.journal")
    # in a boot whose clock cannot be told from that of the program
    done = recover_raw(fastwrite, place, other_boot=False, tmp_path=tmp_path)
    assert kept.exists() and log.read_bytes() == b"newer" * 1000, done.stdout + done.stderr
    subprocess.run([fastwrite, "recover", "--force", kept], check=True, timeout=60)
    assert b"a" * 1000 in log.read_bytes()


def test_what_others_did_soon_after_the_last_sync_stays(aged_journal, fastwrite, place, tmp_path):
    """The program was killed, another one wrote the file 20 seconds after its last sync, and then power was lost."""
    log = place / "log"
    aged_journal(seconds=120)
    lose(log, b"newer" * 1000)
    os.utime(log, (time.time() - 100,) * 2)
    done = recover_raw(fastwrite, place, other_boot=True, tmp_path=tmp_path)
    assert log.read_bytes() == b"newer" * 1000
    assert (done.returncode, "put aside" in done.stdout) == (1, True), done.stdout + done.stderr


OLD = 86400  # seconds: a backup of yesterday


def journaled(steps, place: Path) -> tuple[Path, bytes, bytes]:
    """A file whose last sync only the journal has, of a killed program; what is synced, and what the file has."""
    for attempt in range(8):
        one = steps(writers="exclusive")
        one.open(9, f"log{attempt}")
        log = place / f"log{attempt}"
        n = one.until_journal(9)
        before = b"-" * log.stat().st_size
        one.write(9, "a", 4096)
        one.sync(9)
        one.kill()
        if log.stat().st_size == len(before):
            return log, b"-" * n + b"a" * 4096, before
        shutil.rmtree(place / ".fastwrite")
    pytest.fail("it was not the journal that took the bytes")


def in_next_boot(command: str, fastwrite: Path, place: Path, tmp_path: Path) -> subprocess.CompletedProcess:
    """Runs the command, then the recovery."""
    script = f'sleep 0.1; {command}; exec "$@"'  # (a tick of the clock after the boot)
    before = [sys.executable, REBOOTED, tmp_path / "boot_id", "sh", "-c", script, "sh"]
    return recover_raw(fastwrite, place, other_boot=False, tmp_path=tmp_path, before=before)


@pytest.mark.parametrize("loses", ["power", "mount"])
def test_a_backup_that_is_restored_with_its_times_stays(steps_at, fastwrite, place, tmp_path, loses):
    """`cp -p` writes the same inode, and gives it a time from before the program's."""
    backup = tmp_path / "backup"
    backup.write_bytes(b"restored" * 1000)
    os.utime(backup, (time.time() - OLD,) * 2)
    with disk("ext4", tmp_path / "disk") as point:
        log, _, before = journaled(lambda **settings: steps_at(point, **settings), point)
        if loses == "power":
            lose(log, before)
            done = in_next_boot(f"cp -p {backup} {log}", fastwrite, point, tmp_path)
        else:
            remount(point)
            subprocess.run(["cp", "-p", backup, log], check=True)
            done = recover_raw(fastwrite, point, other_boot=False, tmp_path=tmp_path)
        assert log.read_bytes() == backup.read_bytes(), done.stdout + done.stderr
        assert (done.returncode, "put aside" in done.stdout) == (1, True), done.stdout + done.stderr


@pytest.mark.parametrize("change", ["chmod 600", "chown 0:0", "mv"])
def test_a_file_that_is_only_given_other_attributes_gets_what_was_synced(
    steps, fastwrite, place, tmp_path, change
):
    """In the boot after the power loss, before recovery.  The device has a time from shortly before the loss."""
    log, wanted, before = journaled(steps, place)
    lose(log, before)
    os.utime(log, (time.time() - 20,) * 2)
    if change.startswith("mv"):
        change, log = f"mv {log}", log.with_suffix(".1")
    done = in_next_boot(f"{change} {log}", fastwrite, place, tmp_path)
    assert (done.returncode, log.read_bytes()) == (0, wanted), done.stdout + done.stderr


def test_what_others_did_after_a_recovery_of_other_files_stays(steps, fastwrite, place, tmp_path):
    """A recovery failed for one file.  Another program writes it, in the boot of that recovery."""
    one = two_files(steps)
    path = one.journal()
    one.kill()
    leave_alone(path, aged(path.read_bytes(), 120))
    for name in ("fails", "done"):
        lose(place / name, b"-" * 2048)
        os.utime(place / name, (time.time() - 120,) * 2)
    with immutable(place / "fails"):
        done = recover_raw(fastwrite, place, other_boot=True, tmp_path=tmp_path)
    assert "1 recovered, 1 failed" in done.stdout, done.stdout + done.stderr
    lose(place / "fails", b"newer" * 1000)
    os.utime(place / "fails", (time.time() - 30,) * 2)
    done = recover_raw(fastwrite, place, other_boot=True, tmp_path=tmp_path)
    assert (place / "fails").read_bytes() == b"newer" * 1000
    assert "1 put aside" in done.stdout, done.stdout + done.stderr


@pytest.mark.parametrize(("ahead", "status"), [(120, 0), (300, 1)])
def test_a_clock_that_is_behind_after_a_power_loss(aged_journal, fastwrite, place, tmp_path, ahead, status):
    """No battery.  What has a time to come was not written in this boot, but perhaps after the journal."""
    aged_journal(-120)
    os.utime(place / "log", (time.time() + ahead,) * 2)
    done = recover_raw(fastwrite, place, other_boot=True, tmp_path=tmp_path)
    assert done.returncode == status, done.stdout + done.stderr
    assert (b"a" * 1000 in (place / "log").read_bytes()) == (status == 0)


@pytest.mark.parametrize("later", [(), (1, 1)])
def test_what_a_recovery_did_in_a_boot_between_is_no_change_of_others(
    aged_journal, fastwrite, build_debug, place, tmp_path, monkeypatch, later
):
    """It is killed at each step, as by the next loss of power, and in later boots before it writes it."""
    for step in range(1, 100):
        wanted = aged_journal()
        for kill in (step, *later):
            monkeypatch.setenv("FASTWRITE_KILL_STEP", str(kill))
            done = recover_raw(build_debug / "fastwrite", place, other_boot=True, tmp_path=tmp_path)
            if done.returncode == 0:
                break
            assert done.returncode in (-9, 137), done.stdout + done.stderr
        monkeypatch.delenv("FASTWRITE_KILL_STEP")
        if done.returncode == 0:
            break
        recover(fastwrite, place, other_boot=True, tmp_path=tmp_path)
        assert (place / "log").read_bytes() == wanted, step
    assert step > 3, "no steps"


@pytest.mark.skipif(shutil.which("strace") is None, reason="strace is not installed")
def test_a_recovery_on_a_slow_device_is_no_change_of_others(
    aged_journal, fastwrite, build_debug, place, tmp_path, monkeypatch
):
    """Its first syncs take more than a second each, and it is killed when it has written the bytes."""
    delay = "inject=fdatasync:delay_exit=1300000:when=1..4"
    slow = ("strace", "-o", tmp_path / "calls", "-e", "trace=fdatasync", "-e", delay)
    written = 0
    for step in range(1, 100):
        wanted = aged_journal()
        monkeypatch.setenv("FASTWRITE_KILL_STEP", str(step))
        before = slow if written else ()
        done = recover_raw(
            build_debug / "fastwrite", place, other_boot=True, tmp_path=tmp_path, before=before
        )
        if "ptrace" in done.stderr.lower():
            pytest.skip(f"strace may not trace here: {done.stderr.strip()}")
        assert done.returncode in (-9, 137), done.stdout + done.stderr
        if (place / "log").read_bytes() != wanted:
            continue
        if written:
            break
        written = step
    monkeypatch.delenv("FASTWRITE_KILL_STEP")
    recover(fastwrite, place, other_boot=True, tmp_path=tmp_path)
    assert (place / "log").read_bytes() == wanted


def recovered_while_one_is_kept(steps, fastwrite, place, tmp_path, flag, kept, script):
    """Two files whose synced bytes only the journal has, in the next boot, while those with the numbers `kept` have the
    attribute `flag`.  The script gets the command, the place and the last of `kept`; the files, and what it said."""
    one = steps(writers="exclusive")
    files = [place / "b", place / "c"]
    for fd, path in enumerate(files, 20):
        one.open(fd, path.name)
    one.until_journal(20)
    for byte in "xyz":
        for fd, _ in enumerate(files, 20):
            one.write(fd, byte, 1000)
            one.sync(fd)
    path = one.journal()
    one.kill()
    leave_alone(path, of_no_inode(path.read_bytes()))
    for file in files:
        lose(file, b"?")
    held = [files[i] for i in kept]
    if subprocess.run(["chattr", f"+{flag}", *held], capture_output=True, check=False).returncode:
        pytest.skip(f"no chattr +{flag} here")
    argv = [
        sys.executable,
        REBOOTED,
        tmp_path / "boot_id",
        "sh",
        "-c",
        script,
        "sh",
        fastwrite,
        place,
        held[-1],
    ]
    try:
        done = subprocess.run(argv, capture_output=True, text=True, timeout=60, check=False)
    finally:
        subprocess.run(["chattr", f"-{flag}", *held], check=True)
    return files, done


FAILS_FOR_ONE = """
sleep 0.1
"$1" recover "$2" >&2
chattr -i "$3"
sleep 0.1
printf newer > "$3"
"$1" recover "$2" >&2
cat "$3"
"""


def test_what_others_did_right_after_a_recovery_that_failed_stays(steps, fastwrite, place, tmp_path):
    """It has changed one file, not the other, and is over."""
    files, done = recovered_while_one_is_kept(steps, fastwrite, place, tmp_path, "i", [1], FAILS_FOR_ONE)
    assert (done.returncode, done.stdout) == (0, "newer"), done.stderr
    assert files[0].read_bytes().endswith(b"z" * 1000), done.stderr


FAILS_AGAIN_AND_AGAIN = """
"$1" recover "$2" >&2
sleep 1.5
chattr -a "$3"
printf newer > "$3"
"$1" recover "$2" >&2
cat "$3"
"$1" recover "$2" >&2
cat "$3"
"""


def test_what_is_put_aside_stays_so_while_another_file_fails(steps, fastwrite, place, tmp_path):
    """The time of a file that others have written lies between those of two recoveries, which fail for another one."""
    _, done = recovered_while_one_is_kept(
        steps, fastwrite, place, tmp_path, "a", [1, 0], FAILS_AGAIN_AND_AGAIN
    )
    assert done.stdout == "newernewer", done.stderr
    assert done.stderr.count("1 put aside, 1 failed") == 2, done.stderr


@pytest.mark.parametrize("other_boot", [True, False])
def test_recovery_is_killed_and_run_again(steps, build_debug, place, tmp_path, monkeypatch, other_boot):
    """At each of its steps, for several files, one of which is gone."""
    one = steps(writers="exclusive")
    names = ["a", "b", "gone"]
    for fd, name in enumerate(names, 20):
        one.open(fd, name)
    one.until_journal(20)
    for byte in "xyz":
        for fd, _ in enumerate(names, 20):
            one.write(fd, byte, 1000)
            one.sync(fd)
    os.unlink(place / "gone")  # by somebody else
    path = one.journal()
    one.kill()
    journal = of_no_inode(path.read_bytes())
    for arena in path.parent.glob("*.arena"):
        arena.unlink()
    before = {name: (place / name).read_bytes()[:700] for name in ("a", "b")}
    killed = time.time()  # (a recovery gives the files a new time)
    command = build_debug / "fastwrite"

    def restore() -> None:
        for name, content in before.items():
            lose(place / name, content)
            os.utime(place / name, (killed,) * 2)
        leave_alone(path, journal)

    def there() -> dict[str, bytes]:
        orphans = path.parent / "orphans"
        found = [*(place / name for name in before), *(orphans.iterdir() if orphans.exists() else ())]
        return {p.name: p.read_bytes() for p in found}

    restore()
    recover(command, place, other_boot=other_boot, tmp_path=tmp_path)
    wanted = there()
    assert len(wanted) == (3 if other_boot else 2)
    assert (wanted["a"].endswith(b"z" * 1000)) == other_boot
    for step in range(1, 200):
        restore()
        monkeypatch.setenv("FASTWRITE_KILL_STEP", str(step))
        status = recover_raw(command, place, other_boot=other_boot, tmp_path=tmp_path).returncode
        monkeypatch.delenv("FASTWRITE_KILL_STEP")
        if status == 0:
            break
        assert status in (-9, 137), status
        recover(command, place, other_boot=other_boot, tmp_path=tmp_path)
        assert there() == wanted, step
    assert step > (15 if other_boot else 5), "no steps"


def test_members_are_killed_while_they_write_for_all(steps, fastwrite, place, tmp_path):
    """The one that writes the batch of all dies, and its number is given to another: nobody waits for it."""
    random = Random(3)
    one = steps(writers="exclusive")
    one.open(9, "log", CREATE | os.O_APPEND)
    one.until_journal(9)
    n = (place / "log").stat().st_size
    stays = one.member(5)
    assert stays.do("spin", 2, place) == 0
    for i in range(40):
        child = one.member(0)
        sweeper = one.member(1)
        assert child.do("spin", 3, place) == 0
        time.sleep(random.random() * 0.05)
        assert one.do("slay", 0) == 0
        if i % 2:
            assert one.do("dismiss", sweeper.i) == 0
        other = one.member(0)  # takes its number
        # (each step has its time limit: nobody waits for ever)
        one.write(9, "a")
        one.sync(9)
        assert stays.do("fsync", 9) == 0
        other.write(9, "b")
        other.sync(9)
        assert one.do("dismiss", 0) == 0
        if i % 2 == 0:
            assert one.do("dismiss", sweeper.i) == 0
        assert stays.do("fsync", 9) == 0, i
    stays.slay()
    one.kill()
    recover(fastwrite, place, other_boot=False, tmp_path=tmp_path)
    text = (place / "log").read_bytes()
    assert text.endswith((b"a" * SMALL + b"b" * SMALL) * 40) and len(text) >= n
    for path in place.glob("s*"):
        text = path.read_bytes()
        whole = b"".join(bytes([ord("a") + k % 26]) * 512 for k in range(len(text) // 512 + 1))
        assert whole.startswith(text), path


def test_a_half_is_freed_only_when_its_files_are_synced(steps, place):
    """A file that rests while another one fills the journal again and again."""
    one = steps(writers="exclusive", journal="1M")
    one.open(8, "rests")
    one.open(9, "log")
    for _ in range(4):
        one.write(8, "-", 512)
        one.sync(8)
    one.until_journal(9)
    one.write(8, "A", 4096)
    one.sync(8)
    path = one.journal()
    assert b"A" * 4096 in path.read_bytes()
    for i in range(2000):
        one.pwrite(9, chr(ord("a") + i % 26), 30000, 0)
        one.sync(9)
        if i % 20 == 19 and b"A" * 512 not in path.read_bytes():
            break
    else:
        pytest.fail("the journal was never full")
    assert (place / "rests").read_bytes().endswith(b"A" * 4096)


def test_a_file_that_can_only_be_appended_to(steps, fastwrite, place, tmp_path):
    """The kernel puts everything at its end: what is there already must not come twice."""
    one = steps()
    one.open(9, "log", CREATE | os.O_APPEND)
    n = one.until_journal(9)
    for byte in "abc":
        one.write(9, byte, 4096)
        one.sync(9)
    one.kill()
    whole = b"-" * n + b"a" * 4096 + b"b" * 4096 + b"c" * 4096
    lose(place / "log", whole[: n + 5000])
    if subprocess.run(["chattr", "+a", place / "log"], capture_output=True, check=False).returncode:
        pytest.skip("no chattr +a here")
    try:
        recover(fastwrite, place, other_boot=True, tmp_path=tmp_path)
    finally:
        subprocess.run(["chattr", "-a", place / "log"], check=True)
    assert (place / "log").read_bytes() == whole


@pytest.mark.parametrize("how", ["syncfs 9", "sync", "syncfs_call 9", "sync_call"])
def test_what_is_synced_with_everything_else_stays(steps, fastwrite, place, tmp_path, how):
    """The kernel has made the newer bytes durable, and the program knows it: older ones must not come back."""
    one = steps(writers="exclusive")
    one.open(9, "data")
    one.until_journal(9)
    one.pwrite(9, "a", 4096, 0)
    one.sync(9)
    one.pwrite(9, "B", 4096, 0)
    with all_synced():
        assert one.do(how) == 0
    one.kill()
    recover(fastwrite, place, other_boot=True, tmp_path=tmp_path)
    assert (place / "data").read_bytes()[:4096] == b"B" * 4096


def test_a_recovery_that_looks_at_the_journal_fails_no_sync(steps):
    """Its maker has ended, the entries count, and another member opens it while a recovery holds the lock."""
    one = steps(writers="exclusive")
    one.open(9, "data")
    one.write(9, "-")
    maker = one.member(1)
    maker.until_journal(9)
    path = one.journal()
    assert one.do("dismiss", 1) == 0
    with path.open("rb") as recovery:
        fcntl.flock(recovery, fcntl.LOCK_EX | fcntl.LOCK_NB)
        release = threading.Timer(0.5, fcntl.flock, (recovery, fcntl.LOCK_UN))
        release.start()
        one.write(9, "a")
        assert one.do("fsync", 9) == 0
        release.join()
    one.write(9, "b")
    assert one.do("fsync", 9) == 0


# ---- a device that fails, and forgets ----


@contextmanager
def each_sync_fails_once(pid: int, files: int):
    """So many fdatasyncs of each thread fail with EIO, as when writeback failed; those after them succeed."""
    inject = f"inject=fdatasync:error=EIO:when=1..{files}"
    argv = ["strace", "-f", "-q", "-e", "trace=fdatasync", "-e", inject, "-p", str(pid)]
    tracer = subprocess.Popen(argv, stderr=subprocess.PIPE, text=True)
    status = Path(f"/proc/{pid}/status")
    while tracer.poll() is None and f"TracerPid:\t{tracer.pid}\n" not in status.read_text():
        time.sleep(0.01)
    try:
        yield tracer
    finally:
        tracer.terminate()
    said = tracer.communicate()[1]
    if "INJECTED" not in said:
        pytest.skip(f"no fault can be injected here: {said.strip()[-200:]}")


@pytest.mark.parametrize("who", ["checkpoint", "program"])
def test_no_later_sync_makes_up_for_one_that_failed(steps, place, fastwrite, tmp_path, who):
    """What the journal made durable, and the device then refuses: a sync that succeeds afterwards, because the kernel
    has forgotten, does not take it from the journal."""
    one = steps(writers="exclusive", lag_ms=100, log="error")
    one.open(8, "rests")
    one.open(9, "log")
    for _ in range(2):  # the second one stages, and its sync is the real one that a new file needs
        one.write(8, "-", 2048)
        one.sync(8)
    one.until_journal(9)
    one.sync(8)
    one.write(8, "A", 32768)
    one.sync(8)
    assert b"A" * 4096 in one.journal().read_bytes()
    rests = place / "rests"
    wait_for(lambda: rests.read_bytes().count(b"A") == 32768, "the timer's flush")
    with each_sync_fails_once(one.process.pid, 2):
        if who == "checkpoint":
            for i in range(200):  # fills the journal, so that it wants room
                one.pwrite(9, chr(ord("a") + i % 26), 30000, 0)
                one.do("fsync", 9)
                time.sleep(0.004)
        else:
            one.pwrite(8, "B", 1 << 20, 1 << 20)  # there is no room for that in the journal
            assert [one.do("fsync", 8) < 0 for _ in range(4)] == [True] * 4
    one.kill()
    lose(place / "rests", b"-" * 4096)
    done = recover_raw(fastwrite, place, other_boot=True, tmp_path=tmp_path)
    assert (place / "rests").read_bytes().count(b"A") == 32768, done.stdout + done.stderr


# ---- recovery that succeeds for some files only ----


@contextmanager
def immutable(path: Path):
    if subprocess.run(["chattr", "+i", path], capture_output=True, check=False).returncode:
        pytest.skip("no chattr +i here")
    try:
        yield
    finally:
        subprocess.run(["chattr", "-i", path], check=True)


def two_files(steps) -> Steps:
    """Entries of the files "fails" and "done" in a journal, and bytes of the first in the arena."""
    one = steps(writers="exclusive")
    one.open(8, "fails")
    one.open(9, "done")
    one.until_journal(9)
    for _ in range(4):
        one.write(8, "x")
        one.sync(8)
    one.pwrite(9, "o", 512, 0)
    one.sync(9)
    assert b"o" * 512 in one.journal().read_bytes()
    return one


@pytest.mark.parametrize("who", ["preloaded", "native"])
def test_what_is_written_after_a_recovery_stays(steps, fastwrite, place, tmp_path, who):
    """The same boot: one file could not be recovered, the other was, and its entries must not come back later."""
    two_files(steps).kill()
    with immutable(place / "fails"):
        assert recover_raw(fastwrite, place, other_boot=False, tmp_path=tmp_path).returncode != 0
        if who == "preloaded":
            two = steps(writers="exclusive")
            two.open(9, "done")
            for _ in range(2):
                two.pwrite(9, "N", 512, 0)
                two.sync(9)
            two.end()
        else:
            with (place / "done").open("r+b") as file:
                file.write(b"N" * 512)
                file.flush()
                os.fsync(file.fileno())
    recover(fastwrite, place, other_boot=True, tmp_path=tmp_path)
    assert (place / "done").read_bytes()[:512] == b"N" * 512
    assert (place / "fails").read_bytes() == b"x" * 2048


def test_that_entries_cannot_be_made_void_is_told(steps, fastwrite, place, tmp_path):
    one = two_files(steps)
    journal = one.journal()
    one.kill()
    fails = ["strace", "-f", "-q", "-o", "/dev/null", "-P", journal, "-e", "inject=pwritev:error=EIO"]
    with immutable(place / "fails"):
        done = recover_raw(fastwrite, place, other_boot=True, tmp_path=tmp_path, before=fails)
    assert done.returncode == 1, done.stdout
    assert "cannot be marked so" in done.stderr, done.stderr


@pytest.mark.parametrize("call", ["sync", "syncfs 7", "sync_call", "syncfs_call 7"])
@pytest.mark.parametrize("policy", ["journal", "fdatasync"])
def test_a_member_syncs_everybodys_files(steps, fastwrite, place, tmp_path, call, policy):
    """Also those that it has not open itself; what is staged is newer than what the journal has."""
    one = steps(writers="exclusive", sync=policy)
    one.open(7, "warm")
    one.write(7, "w")
    one.write(7, "w")
    child = one.member(1)
    child.open(9, "a")
    if policy == "journal":
        child.until_journal(9)
    for byte in "abo":
        child.pwrite(9, byte, 512, 0)
    child.sync(9)
    child.pwrite(9, "N", 512, 0)
    with all_synced():
        assert one.do(*call.split()) == 0
    pid = child.do("pid")
    one.kill()
    kill_stranger(pid)
    recover(fastwrite, place, other_boot=True, tmp_path=tmp_path)
    assert (place / "a").read_bytes()[:512] == b"N" * 512


def flushed_and_on_disk(steps_at, point: Path) -> tuple[Steps, bytes]:
    """A program that synced by the journal, and flushed after the first entry that counts: then it goes on."""
    # (with a lease, a look at a file would have the journal forget it)
    one = steps_at(point, lag_ms=10, adapt="off", writers="exclusive")
    one.open(9, "log")
    one.open(8, "data")
    n = one.until_journal(9)
    one.pwrite(8, "-", 4096, 0)
    for _ in range(3):
        one.pwrite(8, "-", 512, 0)
        one.sync(8)
    one.write(9, "a", 4096)
    one.sync(9)
    one.pwrite(8, "a", 512, 0)
    one.sync(8)
    assert one.journal_has(b"a" * 512), "the journal did not answer the sync: this tests nothing"
    wait_for(lambda: (point / "data").read_bytes()[:512] == b"a" * 512, "the flush")
    wait_for(lambda: (point / "log").stat().st_size >= n + 4096, "the flush")
    return one, b"-" * n + b"a" * 4096


@pytest.mark.parametrize("kind", ["ext4", "xfs"])
def test_a_forced_shutdown_in_the_same_boot_is_a_power_loss(steps_at, fastwrite, tmp_path, kind):
    """The kernel lives, the file system's cache does not: what was synced comes back, by appends and at offsets."""
    with disk(kind, tmp_path / "disk", 320 << 20) as point, all_synced(spoils=True):
        one, log = flushed_and_on_disk(steps_at, point)
        sync_file_system(point)  # the files are newer on the disk than the first entries
        one.write(9, "b", 4096)
        one.sync(9)
        one.pwrite(8, "b", 512, 0)
        one.sync(8)
        assert one.journal_has(b"b" * 512), "the journal did not answer the sync: this tests nothing"
        shut_down(point)
        one.kill()
        remount(point)
        assert (point / "data").read_bytes()[:512] == b"a" * 512, "nothing was lost: this tests nothing"
        done = recover_raw(fastwrite, point, other_boot=False, tmp_path=tmp_path)
        assert (done.returncode, "aside" in done.stdout) == (0, False), done.stdout + done.stderr
        assert (point / "log").read_bytes()[: len(log) + 4096] == log + b"b" * 4096
        assert (point / "data").read_bytes() == b"b" * 512 + b"-" * 3584
        assert not (point / ".fastwrite").exists()


def test_after_a_forced_shutdown_unsynced_bytes_do_not_hinder(steps_at, fastwrite, tmp_path):
    """Neither an arena that the disk never had, nor bytes behind the last sync that reached the file."""
    with disk("ext4", tmp_path / "disk") as point:
        one = steps_at(point)
        one.open(9, "log")
        n = one.until_journal(9)
        sync_file_system(point)
        for byte in "abc":
            one.write(9, byte, 4096)
            one.sync(9)
        one.write(9, "z", 1 << 20)
        shut_down(point)
        one.kill()
        remount(point)
        done = recover_raw(fastwrite, point, other_boot=False, tmp_path=tmp_path)
        assert done.returncode == 0, done.stdout + done.stderr
        wanted = b"-" * n + b"a" * 4096 + b"b" * 4096 + b"c" * 4096
        assert (point / "log").read_bytes()[: len(wanted)] == wanted


@pytest.mark.parametrize("how", ["flush", "large write", "reservation"])
@pytest.mark.parametrize("boot", ["same", "other"])
def test_what_the_program_did_after_its_last_sync_is_no_change_of_others(
    steps_at, fastwrite, tmp_path, how, boot
):
    """The file's time is later than the last batch of the journal: the program has flushed the file since, written it
    past the library, or reserved space."""
    lag_ms = 10 if how == "flush" else 60000
    with disk("ext4", tmp_path / "disk", 320 << 20) as point:
        one = steps_at(point, lag_ms=lag_ms, adapt="off", writers="exclusive", journal="4M")
        one.open(9, "log")
        n = one.until_journal(9)
        one.write(9, "a")
        one.sync(9)
        assert one.journal_has(b"a" * SMALL), "the journal did not answer the sync: this tests nothing"
        before = (point / "log").stat().st_mtime_ns
        time.sleep(0.05)
        if how == "flush":
            one.write(9, "z")
        elif how == "large write":
            one.write(9, "z", 1 << 20)
        else:
            for _ in range(64):
                one.write(9, "z", 32 << 10)
        wait_for(lambda: (point / "log").stat().st_mtime_ns > before, "the change")
        with (point / "log").open("rb") as file:
            os.fsync(file.fileno())  # not the arena: what that says is older than the journal
        shut_down(point)
        one.kill()
        remount(point)
        done = recover_raw(fastwrite, point, other_boot=boot == "other", tmp_path=tmp_path)
        assert done.returncode == 0, done.stdout + done.stderr
        assert "synced before the power went" in done.stdout, done.stdout
        assert (point / "log").read_bytes()[: n + SMALL] == b"-" * n + b"a" * SMALL


@pytest.mark.parametrize("how", ["writes", "truncates"])
def test_what_others_did_after_a_forced_shutdown_stays(steps_at, fastwrite, tmp_path, how):
    with disk("ext4", tmp_path / "disk") as point, all_synced(spoils=True):
        one, _ = flushed_and_on_disk(steps_at, point)
        sync_file_system(point)
        one.pwrite(8, "b", 512, 0)
        one.sync(8)
        shut_down(point)
        one.kill()
        remount(point)
        if how == "writes":
            with (point / "data").open("r+b") as file:
                file.write(b"N" * 16)
        else:
            os.truncate(point / "data", 100)
        before = (point / "data").read_bytes()
        for status in (1, 0):  # (the second time it was told before)
            done = recover_raw(fastwrite, point, other_boot=False, tmp_path=tmp_path)
            assert (point / "data").read_bytes() == before
            assert done.returncode == status and "--force" in done.stderr, done.stdout + done.stderr
        (kept,) = (point / ".fastwrite" / "aside").glob("*.journal")
        subprocess.run([fastwrite, "recover", "--force", kept], check=True, timeout=60)
        assert (point / "data").read_bytes()[:512] == b"b" * 512


@pytest.mark.parametrize("by", ["itself", "another"])
def test_after_an_unmount_in_good_order_newer_bytes_stay(steps_at, fastwrite, tmp_path, by):
    """They were not synced.  The journal's last entry, of another file, is newer than they are."""
    # After a second without a sync the library syncs the file, and its entries count no more: on a machine that
    # stands still for so long, once more.
    for attempt in range(10):
        with disk("ext4", tmp_path / f"disk-{attempt}") as point:
            one, _ = flushed_and_on_disk(steps_at, point)
            if by == "itself":
                one.pwrite(8, "N", 256, 0)
                wait_for(lambda at=point: (at / "data").read_bytes()[:256] == b"N" * 256, "the flush")
            one.write(9, "b", 4096)
            one.sync(9)
            assert one.journal_has(b"b" * 4096), "the journal did not answer the sync: this tests nothing"
            one.kill()
            if by == "another":
                with (point / "data").open("r+b") as file:
                    file.write(b"N" * 256)
            remount(point)
            recover_raw(fastwrite, point, other_boot=False, tmp_path=tmp_path)
            assert (point / "data").read_bytes() == b"N" * 256 + b"a" * 256 + b"-" * 3584
            if list((point / ".fastwrite" / "aside").glob("*.journal")):
                return
    pytest.fail("the journal was never put aside")


def test_bytes_over_synced_ones_are_put_aside_after_another_boot(steps_at, fastwrite, place, tmp_path):
    """The file's own time says nothing about what fdatasync made durable: the slot does."""
    one = steps_at(place, sync="fdatasync", adapt="off")
    one.open(9, "data")
    one.pwrite(9, "-", 4096, 0)
    for turn in range(8):
        one.pwrite(9, "a", 512, 512 * turn)
    one.sync(9)
    one.pwrite(9, "b", 512, 0)
    one.sync(9)  # the first one after an overwrite
    one.pwrite(9, "c", 512, 0)  # staged
    one.kill()
    before = (place / "data").read_bytes()
    assert before[:512] == b"b" * 512, "it was not staged"
    done = recover_raw(fastwrite, place, other_boot=True, tmp_path=tmp_path)
    assert "older than what was synced" in done.stderr, done.stdout + done.stderr
    assert (place / "data").read_bytes() == before
    (kept,) = (place / ".fastwrite" / "aside").glob("*.arena")
    done = recover_raw(fastwrite, kept, other_boot=True, tmp_path=tmp_path, options=["--force"])
    assert done.returncode == 0, done.stderr
    assert (place / "data").read_bytes() == b"c" * 512 + before[512:]
