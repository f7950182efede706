# SPDX-License-Identifier: Apache-2.0
"""The library's file is replaced while programs run under it: they go on, and new ones begin with the new file."""

from __future__ import annotations

import ctypes
import os
import shutil
import signal
import struct
import subprocess
from pathlib import Path

import pytest
from lib.processes import Program, compile_other
from lib.support import ROOT, disk_dir

MANY = 300
FEW = 40


@pytest.fixture
def place():
    with disk_dir() as path:
        (path / "data").mkdir()
        yield path


def mapped(pid: int) -> int:
    """The inode of the library that the process runs with."""
    found = {
        int(line.split()[4])
        for line in Path(f"/proc/{pid}/maps").read_text().splitlines()
        if "libfastwrite.so" in line
    }
    (inode,) = found
    return inode


def family_files(pid: int) -> set[int]:
    """The memory files in which the process has the lock that says to its family that it lives."""
    return {
        os.stat(link).st_ino
        for link in Path(f"/proc/{pid}/fd").iterdir()
        if "memfd:fastwrite-family" in os.readlink(link)
    }


class Upgrade:
    """Programs under a library whose file is replaced, as package managers do it: by a rename."""

    def __init__(self, place: Path, program: Path, builds: list[Path], **settings: object) -> None:
        self.data, self.program, self.settings = place / "data", program, settings
        self.library = place / "libfastwrite.so"
        self.builds = builds
        self.inodes: list[int] = []
        self.wrote: dict[str, int] = {}
        self.install()

    def install(self) -> None:
        new = self.library.with_suffix(".new")
        shutil.copy(self.builds[len(self.inodes)], new)
        self.inodes.append(new.stat().st_ino)
        new.rename(self.library)

    def start(self, name: str) -> Program:
        started = Program(
            self.library,
            [self.program, name, self.data / "log"],
            self.data,
            **{"lag_ms": 60000, "mem": "1M", **self.settings},
        )
        self.check(started.hear(), "ready", len(self.inodes) - 1)
        return started

    def check(self, answer: str, what: str, which: int) -> int:
        said, pid = answer.split()
        assert said == what
        assert mapped(int(pid)) == self.inodes[which], f"{what}: not the library that was expected"
        return int(pid)

    def put(self, program: Program, name: str, which: int, count: int = FEW) -> int:
        pid = self.check(program.ask(f"put {count}"), "put", which)
        self.wrote[name] = self.wrote.get(name, 0) + count
        return pid

    def expect(self) -> None:
        """Each record is there, once, and those of one program in order."""
        found: dict[str, list[int]] = {}
        content = (self.data / "log").read_text()
        assert len(content) == 64 * sum(self.wrote.values())
        for line in content.splitlines():
            name, number, _ = line.split(" ")
            found.setdefault(name, []).append(int(number))
        assert found == {name: list(range(count)) for name, count in self.wrote.items()}
        assert not (self.data / ".fastwrite").exists()


@pytest.fixture(params=["old-new", "new-old"])
def builds(request: pytest.FixtureRequest, library: Path, build_debug: Path) -> list[Path]:
    """Two builds: their structures in shared memory need not be the same."""
    both = [library, build_debug / "libfastwrite.so"]
    return both if request.param == "old-new" else both[::-1]


@pytest.mark.parametrize("how", ["exec", "clean"])
def test_replaced_under_a_running_family(place: Path, compile_c, builds: list[Path], how: str) -> None:
    """A fork goes on with the library of its parent; a program that a member starts begins with the new one, in a
    family of its own.  All append to one file, from arenas in one directory."""
    upgrade = Upgrade(place, compile_other(compile_c, "upgrade"), builds)
    with upgrade.start("first") as first:
        upgrade.put(first, "first", 0, MANY)
        upgrade.install()
        upgrade.put(first, "first", 0)
        upgrade.check(first.ask("fork child"), "fork", 0)
        upgrade.put(first, "child", 0)
        upgrade.check(first.ask(f"{how} grandchild"), "ready", 1)
        grandchild = upgrade.put(first, "grandchild", 1, MANY)
        with upgrade.start("beside") as beside:
            upgrade.put(beside, "beside", 1, MANY)
            upgrade.put(first, "grandchild", 1)
            child = upgrade.check(first.ask("fork deeper"), "fork", 1)
            assert family_files(child) == family_files(grandchild) != family_files(first.pid) != set()
            upgrade.put(first, "deeper", 1)
            for _ in ("deeper", "grandchild", "child"):
                first.tell("end")
                assert first.hear().startswith("over")
            upgrade.put(first, "first", 0)
            beside.tell("end")
            beside.finish()
        first.tell("end")
        first.finish()
        assert first.stderr == ""
    upgrade.expect()


def test_killed_members_are_recovered_by_the_other_library(
    place: Path, compile_c, builds: list[Path], fastwrite: Path
) -> None:
    """A dead child of a family that lives under the old library, and then that family itself."""
    upgrade = Upgrade(place, compile_other(compile_c, "upgrade"), builds)
    with upgrade.start("first") as first:
        upgrade.put(first, "first", 0, MANY)
        upgrade.install()
        upgrade.check(first.ask("fork child"), "fork", 0)
        child = upgrade.put(first, "child", 0, MANY)
        os.kill(child, signal.SIGKILL)
        assert first.hear().startswith("over")
        assert (upgrade.data / "log").stat().st_size < 64 * sum(upgrade.wrote.values()), "nothing was staged"
        with upgrade.start("second") as second:
            upgrade.put(second, "second", 1, MANY)
            upgrade.put(first, "first", 0)
            first.process.kill()
            first.process.wait()
            with upgrade.start("third") as third:
                upgrade.put(third, "third", 1)
                second.process.kill()
                second.process.wait()
                third.tell("end")
                third.finish()
    done = subprocess.run([fastwrite, "recover", upgrade.data], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    upgrade.expect()


def test_in_order(place: Path, compile_c, builds: list[Path]) -> None:
    """`ordered` is for one program at a time: one that is killed, and the next one under the other library."""
    upgrade = Upgrade(
        place,
        compile_other(compile_c, "upgrade"),
        builds,
        sync="ordered",
        writers="exclusive",
        ordered_ms=60000,
        mem="2M",
    )
    with upgrade.start("first") as first:
        upgrade.put(first, "first", 0, MANY)
        first.ask("sync")
        upgrade.install()
        upgrade.put(first, "first", 0)
        first.process.kill()
        first.process.wait()
        assert (upgrade.data / "log").stat().st_size < 64 * (MANY + FEW), "nothing was staged"
        with upgrade.start("second") as second:
            upgrade.put(second, "second", 1, MANY)
            second.tell("end")
            second.finish()
    upgrade.expect()


# ---- make install ----

IN_MODIFY, IN_MOVED_TO, IN_CREATE, IN_DELETE, IN_NONBLOCK = 0x2, 0x80, 0x100, 0x200, 0x800


class Watch:
    """What happens to names in a directory, as inotify tells."""

    def __init__(self, directory: Path) -> None:
        libc = ctypes.CDLL(None, use_errno=True)
        self.fd = libc.inotify_init1(IN_NONBLOCK)
        mask = IN_MODIFY | IN_MOVED_TO | IN_CREATE | IN_DELETE
        assert libc.inotify_add_watch(self.fd, str(directory).encode(), mask) >= 0

    def events(self, name: str) -> list[int]:
        data, at, found = os.read(self.fd, 1 << 16), 0, []
        while at < len(data):
            _, mask, _, length = struct.unpack_from("iIII", data, at)
            if data[at + 16 : at + 16 + length].rstrip(b"\0") == name.encode():
                found.append(mask)
            at += 16 + length
        os.close(self.fd)
        return found


@pytest.mark.parametrize(
    ("settings", "asked"),
    [((), True), (("PREFIX=/usr",), True), (("DESTDIR=/x",), False), (("PREFIX=/opt/x",), False)],
)
def test_make_install_renews_the_cache_of_the_loader(settings: tuple[str, ...], asked: bool) -> None:
    """Without that, LD_PRELOAD=libfastwrite.so is not found."""
    argv = ["make", "-n", "-C", str(ROOT), "install", *settings]
    done = subprocess.run(argv, capture_output=True, text=True, check=True)
    assert ("then ldconfig" in done.stdout) == asked


def test_make_install_replaces_by_rename(tmp_path: Path, build: Path) -> None:
    """The names are there all the time: a program that starts meanwhile finds the old file or the new one."""
    if build != ROOT / "build":
        pytest.skip("installs from build/")
    command = ["make", "-s", "-C", ROOT, "-o", "all", "install", "PREFIX=/usr", f"DESTDIR={tmp_path}"]
    subprocess.run(command, check=True, timeout=120)
    for path in (tmp_path / "usr/lib/libfastwrite.so", tmp_path / "usr/bin/fastwrite"):
        before, content = path.stat(), path.read_bytes()
        watch = Watch(path.parent)
        with path.open("rb") as old:
            subprocess.run(command, check=True, timeout=120)
            assert path.stat().st_ino != before.st_ino
            assert path.stat().st_mode == before.st_mode
            assert old.read() == content
        assert watch.events(path.name) == [IN_MOVED_TO]
        assert sorted(p.name for p in path.parent.glob("*fastwrite*")) == [path.name]
