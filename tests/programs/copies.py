# SPDX-License-Identifier: Apache-2.0
"""tar, cp, dd and rsync of a small tree; the copies are compared byte by byte, with modes and times."""

from __future__ import annotations

import hashlib
import os
import random
import signal
from pathlib import Path

from programs.case import Case
from programs.place import NEXT, Place

DD_BLOCK = 700


def content(path: Path, size: int, seed: int) -> None:
    path.write_bytes(random.Random(seed).randbytes(size))


def make_tree(root: Path, files: int) -> None:
    """Files of all sizes, links, empty directories, odd names, holes."""
    root.mkdir()
    for i in range(files):
        directory = root / f"dir {i % 7}" / f"sub{i % 3}"
        directory.mkdir(parents=True, exist_ok=True)
        path = directory / f"file{i}"
        content(path, (i * 7919) % 40000 if i % 11 else i * 9973 % 300000, i)
        path.chmod(0o644 if i % 2 else 0o755)
        os.utime(path, (1_600_000_000 + i, 1_600_000_000 + i * 60))
    (root / "empty directory").mkdir()
    (root / "empty").touch()
    (root / "link").symlink_to("dir 0/sub0/file0")
    os.link(root / "dir 0" / "sub0" / "file0", root / "second name")
    with (root / "holes").open("wb") as file:
        file.seek(1 << 20)
        file.write(b"end")
    for path in (root / "empty", root / "holes"):
        os.utime(path, (1_600_000_000, 1_600_000_000))
    # last: what is made in a directory changes its time
    for path in sorted(root.rglob("*"), reverse=True):
        if path.is_dir():
            os.utime(path, (1_600_000_000, 1_600_000_000))


def look(root: Path, times: bool = True) -> dict[str, str]:
    found = {}
    for path in sorted(root.rglob("*")):
        stat = path.lstat()
        what = f"{stat.st_mode:o} {stat.st_mtime_ns if times and not path.is_symlink() else ''}"
        if path.is_symlink():
            what += str(path.readlink())
        elif path.is_file():
            what += f" {stat.st_size} {hashlib.sha256(path.read_bytes()).hexdigest()}"
        found[str(path.relative_to(root))] = what
    return found


class Copies(Case):
    """A tool that makes a copy of a tree; killed, it is started again and completes it."""

    kills = 4

    def __init__(self, name: str, package: dict[str, str], unstaged: str, gap: str = "") -> None:
        self.name = name
        self.needs = package
        self.unstaged = unstaged
        self.gap = gap
        self.survives = "it is started again and completes the copy"

    def copy(self, place: Place, target: Path) -> list[list[str]]:
        """Commands that make `target` a copy of aside/tree."""
        tree = place.aside / "tree"
        if self.name.startswith("tar"):
            archive = str(place.data / "tree.tar")
            return [
                ["tar", "-cf", archive, "-C", str(tree), "."],
                ["tar", "-xpf", archive, "-C", str(target)],
            ]
        if self.name.startswith("cp"):
            return [["cp", "-a", "--reflink=never", f"{tree}/.", str(target)]]
        return [
            ["rsync", "-aH", "--inplace", f"{tree}/", f"{target}/"],
            ["rsync", "-aHc", f"{tree}/", f"{target}/"],
        ]

    def run(self, place: Place) -> object:
        tree, target = place.aside / "tree", place.data / "copy"
        make_tree(tree, 60 if place.quick else 400)
        target.mkdir()
        for command in self.copy(place, target):
            place.run(*command)
        want, have = look(tree), look(target)
        wrong = [name for name in {**want, **have} if want.get(name) != have.get(name)]
        assert not wrong, f"not as the original: {wrong[:5]}"
        return have

    def kill(self, place: Place) -> None:
        tree, target = place.aside / "tree", place.data / "copy"
        make_tree(tree, 600)
        target.mkdir()
        *before, last = self.copy(place, target)[:2]
        for command in before:
            place.run(*command)
        process = place.start(*last)
        wanted = place.dice.randrange(5, 400)
        place.until(
            lambda: process.popen.poll() is not None or len(list(target.rglob("*"))) >= wanted,
            "files are there",
        )
        if process.popen.poll() is None and process.program():
            process.kill()
        else:
            process.wait()
        place.bring_back()
        if place.way == NEXT:
            place.run("true")
        for command in [*before, last]:
            place.run(*command)
        assert look(target) == look(tree)


class Dd(Case):
    name = "dd, small blocks"
    needs = {"dd": "coreutils"}  # noqa: RUF012
    kills = 9
    survives = (
        "every block that dd had reported as written (SIGUSR1), and nothing behind them but what follows"
    )

    def run(self, place: Place) -> object:
        source = place.aside / "source"
        content(source, 3_000_001 if place.quick else 30_000_001, 1)
        found = {}
        for name, options in {
            "plain": ("bs=512",),
            "append": ("obs=1000", "ibs=4096", "oflag=append", "conv=notrunc"),
            "sync": ("bs=4096", "conv=fsync"),
            "dsync": ("bs=64k", "oflag=dsync"),
            "seek": ("bs=512", "seek=7", "conv=notrunc"),
            "sparse": ("bs=4096", "conv=sparse,fdatasync"),
        }.items():
            target = place.data / name
            for _ in range(2):
                place.run("dd", f"if={source}", f"of={target}", "status=none", *options)
            found[name] = hashlib.sha256(target.read_bytes()).hexdigest()
        place.run("cmp", source, place.data / "plain")
        place.run("cmp", source, place.data / "sync")
        return found

    def kill(self, place: Place) -> None:
        source, target = place.aside / "source", place.data / "copy"
        content(source, 50_000_000, 2)
        flags = place.dice.choice([(), ("oflag=append", "conv=notrunc"), ("conv=notrunc",)])
        writer = place.start("dd", f"if={source}", f"of={target}", f"bs={DD_BLOCK}", *flags)
        err = place.aside / f"err.{writer.number}"
        place.until(lambda: target.exists() and target.stat().st_size > 100_000, "blocks are written")
        place.pause(0.02)
        if writer.popen.poll() is None and writer.program():
            writer.send(signal.SIGUSR1)
            place.until(
                lambda: writer.popen.poll() is not None or "records out" in err.read_text(), "dd reports"
            )
        reported = [line for line in err.read_text().splitlines() if "records out" in line]
        if writer.popen.poll() is None and writer.program():
            writer.kill()
        else:
            writer.wait()
        place.bring_back()
        if place.way == NEXT:
            place.run("true")
        blocks = int(reported[-1].split("+")[0]) if reported else 0
        size = target.stat().st_size
        assert size >= blocks * DD_BLOCK, f"{blocks} blocks were reported, {size} bytes are there"
        assert target.read_bytes() == source.read_bytes()[:size], "other bytes than those that were copied"


CASES = [
    Copies(
        "tar",
        {"tar": "tar"},
        "",
        "of what it unpacks, files of up to 10 KB get one write, which is not staged",
    ),
    Copies(
        "cp -a",
        {"cp": "coreutils"},
        "",
        "few bytes: it writes in pieces of 128 KB, and a smaller file in one write",
    ),
    Copies("rsync", {"rsync": "rsync"}, "it writes in pieces of 256 KB, and a smaller file in one write"),
    Dd(),
]
