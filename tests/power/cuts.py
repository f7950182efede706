# SPDX-License-Identifier: Apache-2.0
"""Power loss at any moment of a run: the disk's log of writes, flushes and acknowledged syncs is replayed up to a
cut; of the writes behind the last flush only some have made it."""

from __future__ import annotations

import json
import mmap
import os
import shutil
import struct
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from random import Random

from lib.support import Stats

from power.acks import Acks, sync_times
from power.check import Verdict
from power.content import Content
from power.disk import copy_image, make_image
from power.system import (
    DISK,
    FUSE,
    MNT_DETACH,
    PLACE,
    Loop,
    another_boot,
    die_with_parent,
    loop,
    mounted,
    umount,
)
from power.workload import (
    DATA,
    RELAXED,
    FailedError,
    Job,
    Look,
    Tools,
    Writer,
    check,
    pace_us,
    recover_and_check,
    syncs_of,
    until,
)

EVENT = struct.Struct("<IIQQ")
WRITE, FLUSH, MARK = (ord(letter) for letter in "WFM")
BEGUN, ENDED = b"begun", b"ended"  # marks of our own
STYLES = ("sectors", "sectors", "writes", "none", "all", "last")


@dataclass(frozen=True)
class Event:
    kind: int
    ns: int
    mark: bytes


@dataclass(frozen=True)
class Cut:
    events: int  # that happened before
    seed: int
    style: str

    def __str__(self) -> str:
        return f"{self.events}:{self.seed}:{self.style}"

    @classmethod
    def parse(cls, text: str) -> Cut:
        events, seed, style = text.split(":")
        return cls(int(events), int(seed), style)


def read_log(path: Path) -> list[Event]:
    events = []
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ) as log:
        at = 0
        while at < len(log):
            kind, length, _, ns = EVENT.unpack_from(log, at)
            at += EVENT.size
            events.append(Event(kind, ns, log[at : at + length] if kind == MARK else b""))
            at += length if kind in (WRITE, MARK) else 0
    return events


@contextmanager
def logged_disk(tools: Tools, image: Path, log: Path) -> Iterator[Path]:
    """The image as a file of a FUSE file system that logs what is written to it."""
    server = subprocess.Popen(
        [str(tools.helpers / "disk"), str(image), str(log), "-f", "-s", str(FUSE)],
        preexec_fn=die_with_parent,
    )
    try:

        def ready() -> bool:
            if server.poll() is not None:
                raise FailedError(f"the logging disk ended with status {server.returncode}")
            return (FUSE / "image").exists()

        until(ready, "the logging disk is there")
        yield FUSE
    finally:
        with suppress(OSError):  # if it has not come so far, or is still in use after an error
            umount(FUSE, MNT_DETACH)
        server.terminate()
        server.wait()


def mark(data: bytes) -> None:
    fd = os.open(FUSE / "marks", os.O_WRONLY)
    try:
        os.write(fd, data)
    finally:
        os.close(fd)


def record(job: Job, tools: Tools, base: Path, log: Path, spare_ns: int) -> Stats:
    """Runs the program on a logging disk; `base` is the image before the first event of `log`."""
    image = PLACE / "image"
    make_image(image, job.fs)
    copy_image(image, base)
    log.unlink(missing_ok=True)
    with logged_disk(tools, image, log):
        with loop(FUSE / "image") as device, mounted(device, job.fs):
            DATA.mkdir()
            subprocess.run(["sync", "-f", str(DISK)], check=True)
            mark(BEGUN)
            with Writer(job, tools, FUSE / "marks", syncs=syncs_of(job), pace_us=pace_us(job)) as writer:
                stats = writer.finish()
            if job.policy == RELAXED:
                time.sleep(spare_ns / 1e9 + 0.05)
            mark(ENDED)
    image.unlink()
    return stats


def choose_cuts(events: list[Event], count: int, seed: int) -> list[Cut]:
    """In ascending order, the last one at the end.  A third right behind an acknowledgement, where most is promised and
    least has happened since, a third behind a write, which is then under way; the others anywhere."""
    dice = Random(seed * 7 + 1)
    marks = [n for n, e in enumerate(events) if e.kind == MARK]
    begin = next(n for n in marks if events[n].mark == BEGUN) + 1
    end = next(n for n in marks if events[n].mark == ENDED)
    behind_marks = [n + 1 for n in marks if begin <= n < end]
    behind_writes = [n + 1 for n in range(begin, end) if events[n].kind == WRITE]
    if not behind_marks:
        raise FailedError("the program said nothing")
    ranges = [behind_marks, behind_writes or behind_marks, range(begin, end + 1)]
    places = [dice.choice(dice.choice(ranges)) for _ in range(count - 1)]
    return [Cut(place, dice.randrange(1 << 31), dice.choice(STYLES)) for place in [*sorted(places), end]]


class Replayer:
    """Makes `work` what the disk held at a cut."""

    def __init__(self, tools: Tools, base: Path, work: Path, log: Path) -> None:
        self.popen = subprocess.Popen(
            [str(tools.helpers / "replay"), str(base), str(work), str(log)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            preexec_fn=die_with_parent,
        )

    def __enter__(self) -> Replayer:
        return self

    def __exit__(self, *_: object) -> None:
        self.popen.stdin.close()
        self.popen.stdout.close()
        self.popen.wait()

    def __call__(self, cut: Cut) -> tuple[int, int]:
        """Sectors behind the last flush that were kept, and dropped."""
        self.popen.stdin.write(f"{cut.events} {cut.seed} {cut.style}\n")
        self.popen.stdin.flush()
        answer = self.popen.stdout.readline().split()
        if len(answer) != 2:
            raise FailedError(f"replay ended with status {self.popen.wait()}")
        return int(answer[0]), int(answer[1])


def age_of_loss(job: Job, content: Content, events: list[Event], cut: Cut) -> int:
    """Under `relaxed`: how long before the loss had the newest sync returned without which nothing is missing; 0 when
    nothing is.  The disk is mounted and recovered."""
    marks = program_marks(events[: cut.events])
    loss = loss_time(events, cut)
    times = sorted(set(sync_times(marks)))
    low, high = 0, len(times)  # the check holds with the first `low` syncs
    while low < high:
        middle = (low + high + 1) // 2
        if check(job, content, Acks.of(marks, times[middle - 1])):
            low = middle
        else:
            high = middle - 1
    return loss - times[low] if low < len(times) else 0


def program_marks(events: list[Event]) -> list[bytes]:
    return [e.mark for e in events if e.kind == MARK and e.mark not in (BEGUN, ENDED)]


def loss_time(events: list[Event], cut: Cut) -> int:
    """As late as it can be: just before the next event."""
    return events[min(cut.events, len(events) - 1)].ns


@contextmanager
def replayed_disk(tools: Tools, base: Path, log: Path) -> Iterator[tuple[Loop, Replayer]]:
    """A disk, in another boot, and what makes of it what it was at one cut after the other."""
    work, carried = PLACE / "work", PLACE / "carried"
    work.unlink(missing_ok=True)
    copy_image(base, carried)
    with work.open("wb") as file:
        os.truncate(file.fileno(), base.stat().st_size)
    with loop(work) as device, Replayer(tools, carried, work, log) as replayer, another_boot():
        yield device, replayer
    work.unlink()
    carried.unlink()


def look_at(
    job: Job, tools: Tools, base: Path, log: Path, cuts: list[Cut], spare_ns: int
) -> Iterator[tuple[Cut, Look]]:
    """Every cut, in order."""
    content = Content(job.seed)
    events = read_log(log)
    with replayed_disk(tools, base, log) as (device, replayer):
        for cut in cuts:
            kept, dropped = replayer(cut)
            device.forget()
            until_ns = loss_time(events, cut) - spare_ns if job.policy == RELAXED else None
            acks = Acks.of(program_marks(events[: cut.events]), until_ns)
            try:
                with mounted(device, job.fs):
                    look = recover_and_check(job, tools, content, acks)
                    if job.policy == RELAXED and look.verdict:
                        look.age_ns = age_of_loss(job, content, events, cut)
            except OSError as error:
                look = Look(Verdict(wrong=[f"the file system: {error}"]))
            look.synced, look.kept, look.dropped = acks.count, kept, dropped
            yield cut, look


def keep(job: Job, base: Path, log: Path, place: Path) -> Path:
    """Puts a run aside, so that it can be looked at again."""
    target = place / f"{job.kind}-{job.fs}-{job.policy}-{job.seed}"
    shutil.rmtree(target, ignore_errors=True)
    target.mkdir(parents=True)
    copy_image(base, target / "base")
    shutil.copyfile(log, target / "log")
    (target / "job.json").write_text(json.dumps(vars(job)) + "\n")
    return target


def fetch(place: Path, base: Path, log: Path) -> Job:
    """A run that was put aside."""
    copy_image(place / "base", base)
    shutil.copyfile(place / "log", log)
    return Job(**json.loads((place / "job.json").read_text()))
