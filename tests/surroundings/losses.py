# SPDX-License-Identifier: Apache-2.0
"""The virtual machine loses power, or is shut down in order; the next boot recovers; what was promised is there."""

from __future__ import annotations

import shutil
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from random import Random

from lib import kill_model
from lib.support import preload_env
from power.acks import ACK, Acks
from power.check import Check, Verdict
from power.content import Content
from power.workload import CONTROL, NATIVE, RELAXED, RELAXED_MS, FailedError, Job, settings, syncs_of

from surroundings.life import Files, Shared
from surroundings.machine import Machine, make_initramfs, wait_until
from surroundings.nbd import STYLES, Disk
from surroundings.volume import make_image

KINDS = ("append", "position", "threads", "stdio", "dsync", "create", "replace", "rotate", "ways")
POLICIES = ("fdatasync", "fsync", "journal", "relaxed")
DATA = "/disk/data"
LONGEST_SECONDS = 8  # until the power goes
PACE_US = 500
# The guest's clock begins at a whole second.  Sooner, what it wrote last could look newer than its next boot, and would
# be put aside (docs/guarantees.md).
POWERLESS_SECONDS = 1.1
SPARE_NS = (RELAXED_MS + 1000) * 1_000_000  # `relaxed`, and a flush on a slow machine
# As the file system is made by power.disk: nothing is written behind our back.
MAKE_OPTIONS = ("-J", "size=4", "-E", "lazy_itable_init=0,lazy_journal_init=0")
UNIT_AT_STOP = "/fw/fastwrite recover " + DATA + " >/dev/ttyS0 2>&1"


@dataclass
class Totals:
    """Of one policy."""

    losses: int = 0
    synced: int = 0  # syncs that promised something, or acknowledged writes
    lost: int = 0
    wrong: int = 0
    with_staging: int = 0  # boots that found an arena or a journal
    kept: int = 0
    dropped: int = 0
    seconds: float = 0
    failed: list[str] = field(default_factory=list)

    def line(self, way: str, policy: str) -> str:
        return (
            f"| {way} | {policy} | {self.losses} | {self.synced} | {self.lost} | {self.wrong} | {self.with_staging} "
            f"| {self.kept}/{self.dropped} | {self.seconds:.0f} |"
        )


HEAD = (
    "| power | sync | times | promised | lost something | made up something | found staging | sectors in flight "
    "kept/dropped | s |\n|---|---|---|---|---|---|---|---|---|"
)


class Guest:
    """One disk, and the machine that is booted from it again and again."""

    def __init__(self, place: Path, kernel: Path, tools: dict[str, Path], seed: int) -> None:
        self.place = place
        self.kernel = kernel
        self.dice = Random(f"machine {seed}")
        self.initramfs = place / "initramfs"
        self.initramfs.write_bytes(make_initramfs(kernel, tools))
        self.disks = 0

    @contextmanager
    def disk(self) -> Iterator[Disk]:
        self.disks += 1
        image = self.place / f"disk-{self.disks}"
        make_image(image, "ext4", *MAKE_OPTIONS)
        with Disk(image, self.place / f"nbd-{self.disks}") as disk:
            yield disk
        image.unlink()

    @contextmanager
    def boot(self, disk: Disk) -> Iterator[Machine]:
        with Machine(self.place, self.kernel, self.initramfs, disk.address) as machine:
            machine.must("mount -t ext4 /dev/vda /disk || { dmesg | tail -20; false; }")
            machine.must(f"mkdir -p {DATA}")
            yield machine

    @contextmanager
    def files(self, machine: Machine) -> Iterator[Path]:
        """What the guest has in DATA."""
        with tempfile.TemporaryDirectory(dir=self.place) as kept:
            machine.fetch(DATA, Path(kept))
            yield Path(kept) / "data"

    def recover(self, machine: Machine, chosen: dict[str, object], worst: int = 0) -> tuple[int, str]:
        """As a program does that opens its files under the library, or by hand; then by hand what is left.  A status
        above `worst` is a failure."""
        said = machine.must(f"ls {DATA}/.fastwrite 2>/dev/null || true")
        found = sum(name.endswith((".arena", ".journal")) for name in said.split())
        if self.dice.random() < 0.5:
            env = words(preload_env(Path("/fw/libfastwrite.so"), f"{DATA}/**", **chosen))
            opening = f"for f in {DATA}/*; do [ -f $f ] && : >> $f; done; :"
            said += machine.must(f"{env} /fw/sh -c '{opening}'")
        status, by_hand = machine.run(f"/fw/fastwrite recover {DATA}")
        if status > worst:
            raise FailedError(f"fastwrite recover: status {status}: {said}{by_hand}")
        return found, said + by_hand


def words(env: dict[str, str]) -> str:
    return "env " + " ".join(f'"{name}={value}"' for name, value in env.items())


# ---- loss of power ----


def cut(guest: Guest, disk: Disk, machine: Machine, job: Job) -> tuple[Acks, tuple[int, int]]:
    """The program writes and syncs; the power goes.  What it had been promised."""
    machine.must(f"rm -rf {DATA}; mkdir {DATA}; sync")
    env = {}
    if job.policy != NATIVE:
        env = preload_env(Path("/fw/libfastwrite.so"), f"{DATA}/**", **settings(job))
    syncs = (20 if job.policy == RELAXED else 2) * syncs_of(job)  # it is to be busy still when the power goes
    machine.must(
        f"{words(env)} /fw/writer {job.kind} {DATA} /dev/acks {job.seed} {syncs} {PACE_US} 1 >/run/writer 2>&1 &"
    )
    wanted = guest.dice.randrange(20, 2 * syncs_of(job)) * ACK.size
    begun = time.monotonic()
    # the background syncs of `relaxed` are to come as well
    least = begun + guest.dice.uniform(1.5, 3.5) if job.policy == RELAXED else begun
    wait_until(lambda: len(machine.hear()) >= wanted and time.monotonic() > least, LONGEST_SECONDS)
    if not machine.hear():
        raise FailedError(f"{job}: nothing was said: {machine.run('cat /run/writer')[1]}")
    time.sleep(guest.dice.random() * 0.05)
    until_ns = None
    if job.policy == RELAXED:
        until_ns = int(float(machine.must("cat /proc/uptime").split()[0]) * 1e9) - SPARE_NS
        time.sleep(guest.dice.random() * 2 * RELAXED_MS / 1000)
    machine.power_off()
    time.sleep(POWERLESS_SECONDS)
    flight = disk.lose_power(guest.dice, guest.dice.choice(STYLES))
    data = machine.hear()
    data = data[: len(data) // ACK.size * ACK.size]
    return Acks.of([data], until_ns), flight


def cuts(guest: Guest, policy: str, count: int, seed: int, kinds: list[str], verbose: bool) -> Totals:
    """A boot recovers and checks what the loss before it left, and goes on to the next loss."""
    total = Totals()
    begun = time.monotonic()
    last: tuple[Job, Acks] | None = None
    with guest.disk() as disk:
        for number in range(count + 1):
            with guest.boot(disk) as machine:
                if last:
                    look_after_cut(guest, machine, *last, total)
                if number == count:
                    break
                job = Job(kinds[(seed + number) % len(kinds)], "ext4", policy, seed * 100_000 + number)
                acks, (kept, dropped) = cut(guest, disk, machine, job)
            last = (job, acks)
            total.losses += 1
            total.synced += acks.count
            total.kept += kept
            total.dropped += dropped
            if verbose:
                print(f"{job}: {acks.count} promises, in flight {kept} kept, {dropped} dropped", flush=True)
    total.seconds = time.monotonic() - begun
    return total


def look_after_cut(guest: Guest, machine: Machine, job: Job, acks: Acks, total: Totals) -> None:
    said = ""
    verdict = Verdict()
    if job.policy != NATIVE:
        try:
            # what was not synced may be damaged: put aside, which is a status of 1
            found, said = guest.recover(machine, settings(job), worst=1)
            total.with_staging += found > 0
        except FailedError as error:
            verdict.wrong.append(str(error))
    with guest.files(machine) as data:
        seen = Check(data, Content(job.seed), acks)(job.kind)
    verdict.lost += seen.lost
    verdict.wrong += seen.wrong
    total.lost += bool(verdict.lost)
    total.wrong += bool(verdict.wrong)
    if verdict.wrong or (verdict.lost and job.policy not in CONTROL):
        total.failed.append(f"{job}: {verdict.text()}; said: {said.strip()[-500:]}")
        print(f"FAILED {total.failed[-1]}", flush=True)


# ---- shut down in order ----

# The program has its log.  A slow machine takes long to start it.
BEGUN = "n=0; until [ -e /run/log ] || [ $n -ge 900 ]; do sleep 0.1; n=$((n + 1)); done; [ -e /run/log ]"


def shutdowns(guest: Guest, policy: str, count: int, seed: int, verbose: bool) -> Totals:
    """Everything that a `write` returned for is promised, under each policy.  Every other time the boot unit recovers
    at stop, before the disk is unmounted."""
    total = Totals()
    begun = time.monotonic()
    for number in range(count):
        dice = Random(f"{policy} {seed} {number}")
        at_stop = number % 2 == 1
        chosen: dict[str, object] = {"sync": policy, "lag_ms": dice.choice((100, 60000, 60000)), "mem": "4M"}
        if policy == "journal":
            chosen["journal"] = "1M"
        if dice.random() < 0.5:
            chosen["adapt"] = "off"
        what = f"shut down {'with' if at_stop else 'without'} recovery at stop, {chosen}"
        with guest.disk() as disk:
            with guest.boot(disk) as machine:
                machine.must(f": > {DATA}/shared")
                env = words(preload_env(Path("/fw/libfastwrite.so"), f"{DATA}/**", **chosen))
                options = f"id=7 shared={DATA}/shared"
                machine.must(
                    f"{env} /fw/life {DATA} /run/log {dice.randrange(1 << 30)} 0 {options} 2>/run/life &"
                )
                machine.must(BEGUN)
                time.sleep(dice.uniform(0.3, 1.5))
                machine.must("! [ -s /run/life ] || { cat /run/life; false; }")
                save = "cd /run && tar cf - log | dd of=/dev/vdb bs=64k conv=fsync 2>/dev/null"
                machine.shut_down(recover=UNIT_AT_STOP if at_stop else "", save=save)
                machine.power_off()
            ops = take_log(guest.place)
            _, dropped = disk.lose_power(dice, "none")
            with guest.boot(disk) as machine:
                files = Files(0, since=ops)
                shared = Shared()
                shared.note(ops)
                said, problems = "", []
                try:
                    found, said = guest.recover(machine, chosen)
                    total.with_staging += found > 0
                except FailedError as error:
                    problems.append(str(error))
                with guest.files(machine) as data:
                    problems += files.problems(data) + shared.problems(data / "shared", [7])
                    aside = [path.name for path in data.glob(".fastwrite/orphans/*")]
                    problems += [f"put aside: {aside}"] if aside else []
        total.losses += 1
        total.synced += sum(op.returned for op in ops)
        total.dropped += dropped
        if verbose:
            print(f"{what}: {sum(op.returned for op in ops)} acknowledged writes", flush=True)
        if problems:
            total.lost += 1
            total.failed.append(f"{what}: {'; '.join(problems)}; said: {said.strip()[-700:]}")
            print(f"FAILED {total.failed[-1]}", flush=True)
    total.seconds = time.monotonic() - begun
    return total


def take_log(place: Path) -> list[kill_model.Op]:
    with tempfile.TemporaryDirectory(dir=place) as kept:
        shutil.unpack_archive(place / "outbox", kept, "tar")
        ops = kill_model.read_log(Path(kept) / "log")
    if not ops:
        raise FailedError("the program had written nothing when the machine was shut down")
    return ops
