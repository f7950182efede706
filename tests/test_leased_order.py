# SPDX-License-Identifier: Apache-2.0
"""sync = ordered without writers = exclusive: a lease on each file keeps other programs out.

An open by another program finds everything, and what it writes is never undone.  (What a power loss leaves:
tests/power, variant ordered-leased.)"""

from __future__ import annotations

import errno
import os
import shutil
import sqlite3
import struct
import subprocess
import sys
import time
from contextlib import closing
from pathlib import Path

import pytest
from lib.disks import disk, fill_up
from lib.processes import Program, compile_other
from lib.support import ROOT, disk_dir, file_system, leftovers, wait_for

LEASES = Path("/proc/sys/fs/leases-enable")
REBOOTED = ROOT / "tests" / "lib" / "rebooted.py"
PAGE = 4096
# No epoch comes by itself: whatever is written was written for an opener.
NEVER = {"sync": "ordered", "ordered_ms": 60000}


@pytest.fixture
def place():
    with disk_dir() as path:
        if file_system(path) in {"nfs", "cifs", "fuseblk"} or LEASES.read_text().strip() != "1":
            pytest.skip(f"no leases on {file_system(path)}")
        yield path


@pytest.fixture
def writer(library, compile_c, place):
    program = compile_other(compile_c, "leased")

    def start(*before: object, **settings: object) -> Program:
        return Program(library, [*before, program], place, **{"paths": f"{place}/data*", **NEVER, **settings})

    return start


def told(program: Program, *lines: str) -> None:
    for line in lines:
        assert program.ask(line) == "0", line


def is_staged(path: Path, size: int) -> bool:
    """Without an open: the kernel has less than the program has written."""
    return path.stat().st_size < size


def run(*command: object) -> subprocess.CompletedProcess:
    return subprocess.run(
        [str(part) for part in command], capture_output=True, text=True, timeout=60, check=False
    )


def test_an_open_finds_all_that_is_staged(writer, place):
    data = place / "data"
    with writer() as w:
        told(w, "open data", f"write 0 {3 * PAGE} a", "sync", f"write {PAGE} {PAGE} b", "sync")
        assert is_staged(data, 3 * PAGE)
        assert data.read_bytes() == b"a" * PAGE + b"b" * PAGE + b"a" * PAGE
        w.finish()
        assert w.stats.syncs_asked == 2
        assert w.stats.syncs_done == 0
    assert not leftovers(place)


def test_while_others_have_it_open_nothing_is_staged(writer, place):
    data = place / "data"
    with writer() as w:
        told(w, "open data", f"write 0 {PAGE} a")
        with data.open("rb", buffering=0) as other:
            told(w, f"write {PAGE} {PAGE} b")
            assert not is_staged(data, 2 * PAGE)
            assert os.pread(other.fileno(), 1, PAGE) == b"b"
            told(w, "sync")
        size = 2 * PAGE

        def stages_again() -> bool:
            nonlocal size
            told(w, f"write {size} {PAGE} c")
            size += PAGE
            return is_staged(data, size)

        wait_for(stages_again, "the file to be staged again")
        w.finish()
        assert w.stats.syncs_done == 1


def test_a_closed_file_stays_leased(writer, place):
    data = place / "data"
    with writer() as w:
        told(w, "open data", f"write 0 {PAGE} a", "close")
        assert is_staged(data, PAGE)
        assert data.read_bytes() == b"a" * PAGE
        w.finish()
    assert not leftovers(place)


def test_an_open_by_the_program_itself(writer, place):
    """No lease can be had on two descriptions, and between two leases nothing may be staged."""
    data = place / "data"
    with writer() as w:
        told(w, "open data", f"write 0 {PAGE} a", "close")
        assert is_staged(data, PAGE)
        told(w, "open data")
        assert not is_staged(data, PAGE)
        told(w, f"read 0 {PAGE} a", f"write {PAGE} {PAGE} b")
        assert data.read_bytes() == b"a" * PAGE + b"b" * PAGE
        w.finish()


def test_what_was_written_can_be_started_at_once(writer, place):
    """No copy of a descriptor that writes keeps another process from it."""
    script = place / "data"
    with writer() as w:
        told(w, "open data", f"write 0 {PAGE} #", "close")
        assert is_staged(script, PAGE)
        script.chmod(0o755)
        with pytest.raises(OSError) as failed:
            run(script)
        assert failed.value.errno == errno.ENOEXEC  # not ETXTBSY: the kernel has read it
        w.finish()


def test_touch_of_a_staged_file(writer, place):
    """Sets the times while its open, which does not wait, has only begun to break the lease."""
    data = place / "data"
    with writer() as w:
        for n in range(20):
            told(w, f"open data-{n}", f"write 0 {PAGE} a")
            path = place / f"data-{n}"
            assert run("touch", "-d", "2001-01-01", path).returncode == 0
            told(w, f"write {PAGE} {PAGE} b", "sync", "close")
            assert path.read_bytes() == b"a" * PAGE + b"b" * PAGE
        w.finish()
    assert not data.exists()


@pytest.mark.parametrize("ends", ["killed", "power"])
def test_what_others_write_is_not_undone(writer, fastwrite, place, ends):
    """Neither from the arena nor from the log, although both have had the page."""
    if ends == "power" and os.geteuid() != 0:
        pytest.skip("not root: no boot id of its own")
    data = place / "data"
    with writer() as w:
        told(w, "open data", f"write 0 {2 * PAGE} a", "sync")
        with data.open("r+b", buffering=0) as other:
            os.pwrite(other.fileno(), b"B" * PAGE, 0)
            os.fsync(other.fileno())
        w.process.kill()
        w.process.wait()
        recover = [fastwrite, "recover", place]
        done = run(sys.executable, REBOOTED, place / "id", *recover) if ends == "power" else run(*recover)
    assert done.returncode == 0, done.stdout + done.stderr
    assert data.read_bytes() == b"B" * PAGE + b"a" * PAGE


def has_epochs(log: Path) -> bool:
    content = log.read_bytes()
    (first,) = struct.unpack_from("<Q", content, 40)  # earlier ones do not count
    starts = [at for at in range(PAGE, len(content), PAGE) if content[at : at + 8] == b"\nFWALBAT"]
    return any(struct.unpack_from("<Q", content, at + 24)[0] >= first for at in starts)


@pytest.mark.parametrize("command", ["cp -p {backup} {data}", "chmod 600 {data}"], ids=["restored", "chmod"])
@pytest.mark.skipif(os.geteuid() != 0, reason="not root: no boot id of its own")
def test_a_backup_that_is_restored_after_a_power_loss(writer, fastwrite, place, tmp_path, command):
    """With its times, which are older than those of the log.  Other attributes alone say nothing."""
    data, backup = place / "data", tmp_path / "backup"
    backup.write_bytes(b"restored" * PAGE)
    os.utime(backup, (time.time() - 86400,) * 2)
    for _ in range(8):
        with writer(ordered_ms=1000) as w:
            told(w, "open data", f"write 0 {2 * PAGE} a")
            wait_for(lambda: list((place / ".fastwrite").glob("*.journal")), "a log")
            (log,) = (place / ".fastwrite").glob("*.journal")
            wait_for(lambda: has_epochs(log), "an epoch")  # noqa: B023
            w.process.kill()
            w.process.wait()
        if has_epochs(log):
            break  # (after a second without a change the log is emptied)
        shutil.rmtree(place / ".fastwrite")
    else:
        pytest.fail("the log is always empty")
    script = f'sleep 0.1; {command.format(backup=backup, data=data)}; exec "$@"'  # (a tick of the clock)
    done = run(
        sys.executable, REBOOTED, tmp_path / "id", "sh", "-c", script, "sh", fastwrite, "recover", place
    )
    restored = command.startswith("cp")
    assert (data.read_bytes() == backup.read_bytes()) == restored, done.stdout + done.stderr
    assert (done.returncode, "a file of the log of" in done.stderr) == (int(restored), restored), done.stderr


def test_a_lost_lease_and_only_a_look(writer, place):
    """The kernel takes the lease from a process that is stopped for long: here it goes unseen."""
    data = place / "data"
    with writer() as w:
        told(w, "open data", f"write 0 {PAGE} a", "drop")
        assert data.read_bytes() == b""  # the reason why a lease is needed
        told(w, f"write 0 {PAGE} b", "close")
        w.finish()
    assert data.read_bytes() == b"b" * PAGE
    assert not leftovers(place)


def test_a_lost_lease_and_a_change(writer, fastwrite, place):
    """What the other program has written stays; what was staged is kept, and the program is told."""
    data, zero = place / "data", place / "zero"
    if os.geteuid() != 0:
        pytest.skip("not root: no lease-break-time of its own")
    zero.write_text("0\n")  # the lease may go at any time
    mount = f'mount --bind {zero} /proc/sys/fs/lease-break-time && exec "$0"'
    with writer("unshare", "--mount", "sh", "-c", mount, ordered_ms=200) as w:
        told(w, "open data", f"write 0 {2 * PAGE} a", "sync", "drop")
        data.write_bytes(b"B" * PAGE)
        wait_for(lambda: w.ask("sync") == str(errno.EIO), "a sync to fail")
        assert w.ask(f"write 0 {PAGE} c") == str(errno.EIO)
        w.finish()
    assert "was opened elsewhere while this process did not run" in w.stderr
    assert data.read_bytes() == b"B" * PAGE
    done = run(fastwrite, "recover", place)
    assert done.returncode == 1, done.stdout + done.stderr
    assert data.read_bytes() == b"B" * PAGE


def test_a_file_of_another_user(writer, place):
    """Only its owner, or a process with CAP_LEASE, gets a lease: without one nothing is staged."""
    if os.geteuid() != 0 or not shutil.which("setpriv"):
        pytest.skip("needs root and setpriv for running as somebody else")
    data, own = place / "data", place / "data-own"
    data.touch()
    data.chmod(0o666)
    place.chmod(0o777)
    nobody = ["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups", "--bounding-set=-all"]
    with writer(*nobody) as w:
        told(w, "open data", f"write 0 {PAGE} a")
        assert not is_staged(data, PAGE)
        told(w, "sync", f"write {PAGE} {PAGE} b", "close")
        assert data.read_bytes() == b"a" * PAGE + b"b" * PAGE
        told(w, "open data-own", f"write 0 {PAGE} c")
        assert is_staged(own, PAGE)
        w.finish()
    assert own.read_bytes() == b"c" * PAGE


@pytest.mark.parametrize("changed", [False, True], ids=["looked", "changed"])
def test_a_full_disk_when_another_opens(writer, fastwrite, tmp_path, changed):
    """What cannot be written then is written later, but never over what the other program has changed."""
    with disk("ext4", tmp_path / "ext4") as point:
        data = point / "data"
        with writer(paths=f"{point}/data*", prealloc_mode="off", ordered_ms=3000) as w:
            told(w, f"open {data}", f"write 0 {PAGE} a", "sync")
            assert data.read_bytes() == b"a" * PAGE

            size = PAGE

            def stages_again() -> bool:
                nonlocal size
                told(w, f"write {size} {16 * PAGE} b")
                size += 16 * PAGE
                return is_staged(data, size)

            ballast = None

            def stays_staged() -> bool:
                """Before the disk is full an epoch may come."""
                nonlocal ballast
                wait_for(stages_again, "the file to be staged again")
                ballast = fill_up(point)
                if not is_staged(data, size):
                    ballast.unlink()
                return ballast.exists()

            wait_for(stays_staged, "the disk to be full before the epoch")
            with data.open("r+b", buffering=0) as other:
                if changed:
                    os.pwrite(other.fileno(), b"C" * 10, 0)
            ballast.unlink()
            if changed:
                wait_for(lambda: w.ask("sync") == str(errno.EIO), "a sync to fail")
            else:
                wait_for(lambda: w.ask("sync") == "0", "a sync to succeed")
            w.finish()
        found = data.read_bytes()
        all_of_it = b"a" * PAGE + b"b" * (size - PAGE)
        if not changed:
            assert found == all_of_it
            assert not leftovers(point)
        else:
            assert found == b"C" * 10 + all_of_it[10 : len(found)]
            assert len(found) < size
        run(fastwrite, "recover", point)
        assert data.read_bytes() == found


TRANSACTIONS = """
import sqlite3, sys
c = sqlite3.connect(sys.argv[1], isolation_level=None, timeout=60)
c.execute("pragma synchronous = full")
for line in sys.stdin:
    for _ in range(int(line)):
        c.execute("begin immediate")
        c.execute("insert into a select coalesce(max(n), 0) + 1 from a")
        c.execute("insert into b select coalesce(max(n), 0) + 1 from b")
        c.execute("commit")
    print(*c.execute("select (select max(n) from a), (select max(n) from b)").fetchone(), flush=True)
"""


@pytest.mark.parametrize("mode", ["delete", "truncate", "persist", "wal"])
@pytest.mark.parametrize("second", ["native", "library"])
def test_two_programs_share_a_database(library, place, mode, second):
    """Each sees at once what the other has committed.  In between one of them is alone, and stages."""
    database = place / "data.db"
    with closing(sqlite3.connect(database)) as c:
        c.execute(f"pragma journal_mode = {mode}")
        c.execute("create table a(n)")
        c.execute("create table b(n)")
    command = [sys.executable, "-c", TRANSACTIONS, database]
    settings = {"paths": f"{place}/data*", "sync": "ordered"}
    rows = 0
    with Program(library, command, place, **settings) as one:
        for _ in range(4):
            rows += 30
            assert one.ask("30") == f"{rows} {rows}"
            with Program(library if second == "library" else None, command, place, **settings) as two:
                for program in (two, one, two, one):
                    rows += 5
                    assert program.ask("5") == f"{rows} {rows}"
                two.finish()
        rows += 30
        assert one.ask("30") == f"{rows} {rows}"
        one.finish()
        assert one.stats.bytes > 0
        assert one.stats.syncs_done < one.stats.syncs_asked
    with closing(sqlite3.connect(database)) as c:
        assert c.execute("pragma integrity_check").fetchone() == ("ok",)
        assert c.execute("select count(*), max(n) from a").fetchone() == (rows, rows)
    assert not leftovers(place)
