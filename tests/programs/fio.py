# SPDX-License-Identifier: Apache-2.0
"""fio: what one engine wrote, verified by itself and by each of the others."""

from __future__ import annotations

import contextlib
import json

from programs.case import Case
from programs.place import NEXT, Place

BLOCK = 4096
MAGIC = 0xACCA.to_bytes(2, "little")
OPTIONS = {
    "sync": (),
    "psync": (),
    "vsync": (),
    "pvsync2": (),
    "mmap": (),
    "posixaio": ("--iodepth=4",),
    "libaio": ("--iodepth=4", "--direct=1"),
    "io_uring": ("--iodepth=4", "--direct=1"),
}
UNSTAGED = {
    "mmap": "the file is mapped: its writes are no calls",
    "posixaio": "asynchronous I/O passes to the kernel",
    "libaio": "asynchronous I/O by raw system calls passes to the kernel",
    "io_uring": "submitted in memory shared with the kernel, which no call shows",
}


class Fio(Case):
    needs = {"fio": "fio"}  # noqa: RUF012
    kills = 3
    unordered = "its jobs are forked processes, whose files pass to the kernel"

    def __init__(self, engine: str) -> None:
        self.engine = engine
        self.name = f"fio --verify, {engine}"
        self.unstaged = UNSTAGED.get(engine, "")
        self.survives = (
            "every block whose write had returned, and of those under way none without those before it; fio "
            "verifies them"
        )
        self.in_quick = engine in ("psync", "vsync", "libaio")

    def missing(self) -> str:
        return super().missing() or self.refused()

    def refused(self) -> str:
        if self.engine == "io_uring":
            try:
                with open("/proc/sys/kernel/io_uring_disabled") as file:
                    if file.read().strip() != "0":
                        return "io_uring is switched off on this machine"
            except OSError:
                pass
        return ""

    def job(self, engine: str, place: Place, *options: str) -> list[str]:
        return [
            *("fio", "--name=job", f"--filename={place.data}/file", f"--ioengine={engine}"),
            *("--verify=crc32c", "--verify_fatal=1", "--output-format=json", "--randrepeat=1"),
            *("--fallocate=none", "--thread" if engine in ("posixaio", "pvsync2") else "--group_reporting"),
            *OPTIONS[engine],
            *options,
        ]

    def fio(self, engine: str, place: Place, *options: str) -> dict[str, int]:
        text = place.run(*self.job(engine, place, *options), cwd=place.aside).stdout
        job = json.loads(text[text.index("{") :])["jobs"][0]
        assert job["error"] == 0, text[-1000:]
        return {"read": job["read"]["io_bytes"], "written": job["write"]["io_bytes"]}

    def run(self, place: Place) -> object:
        size = "4m" if place.quick else "12m"
        found = {}
        for pattern in (
            ("--rw=randwrite", f"--bs={BLOCK}", "--fsync=64"),
            ("--rw=write", "--bsrange=4k-12k", "--blockalign=4k", "--fdatasync=200"),
            ("--rw=randwrite", f"--bs={BLOCK}", "--overwrite=1"),
        ):
            what = (f"--size={size}", *pattern)
            # written and verified in one run, then verified by the others
            found[f"{self.engine} {pattern}"] = self.fio(self.engine, place, *what, "--do_verify=1")
            others = [e for e in OPTIONS if e != self.engine and not Fio(e).refused()]
            for other in others[:2] if place.quick else others:
                found[f"{other} {pattern}"] = self.fio(other, place, *what, "--verify_only")
        return found

    def kill(self, place: Place) -> None:
        size = (64 << 20) if self.unstaged else (1 << 30)
        what = ("--rw=write", f"--bs={BLOCK}", f"--size={size}")
        path = place.data / "file"
        # (a file that was laid out before is soon written)
        pace = ("--rate=40m",) if self.unstaged else ()
        writer = place.start(*self.job(self.engine, place, *what, *pace, "--do_verify=0"), cwd=place.aside)

        def begun() -> bool:
            # (with some engines it lays the file out first)
            with contextlib.suppress(FileNotFoundError), path.open("rb") as file:
                return file.read(2) == MAGIC
            return False

        place.until(lambda: writer.popen.poll() is not None or begun(), "blocks are written")
        place.pause(0.2)
        writer.kill()
        accepted = place.accepted()
        place.bring_back()
        if place.way == NEXT:
            place.run("true")
        count = 0
        with path.open("rb") as file:
            while (block := file.read(BLOCK)) and block[:2] == MAGIC:
                count += 1
            if not self.unstaged:  # these write in any order, or into a file that is laid out
                while block := file.read(1 << 20):
                    assert not any(block), f"bytes behind the gap at block {count}"
        # (what it laid out counts as accepted, too)
        assert self.unstaged or accepted <= count * BLOCK, (
            f"{accepted} bytes were accepted, {count} blocks are there"
        )
        verify = (*what[:2], f"--size={count * BLOCK}", "--verify_only")
        done = self.fio(self.engine, place, *verify)
        assert done["read"] == count * BLOCK
        path.unlink()


CASES = [Fio(engine) for engine in OPTIONS]
