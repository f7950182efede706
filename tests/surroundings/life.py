# SPDX-License-Identifier: Apache-2.0
"""A day in a container's life: the program is killed, the container starts again elsewhere, nothing is missing.

A round starts a container, lets recovery run, compares the files with what was acknowledged before, lets the program
write on, and kills it.  The kernel lives and volumes are unmounted in order, so what a `write` returned for is promised
under every policy.
"""

from __future__ import annotations

import argparse
import itertools
import re
import shutil
import signal
import struct
import time
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from random import Random

from lib import kill_model
from lib.kill_model import Op
from lib.support import preload_env
from power.workload import FailedError

from surroundings import USERS
from surroundings.container import ENGINES, Container
from surroundings.volume import MIB, Volume

# Another boot id, by runc and nspawn in turn; another path in the container; another mount of another device.
CHANGES = ("boot", "path", "node")
MODES = ("plain", "users", "handover", "child", "systemd")
PLACES = ("/data", "/srv/app/files", "/var/lib/volume")
POLICIES = ("fdatasync", "fsync", "journal", "relaxed", "off")
GO, EMPTY_AND_GO = 1, 2
USED_AT, OPENED_AT, GO_AT, PID_AT, WORKER_AT = range(0, 20, 4)
ROLES = 4
LARGE_BYTES = 3 * MIB
WRITING_SECONDS = 10
SHARED_NAME = "shared"
LINE_FILE = 99  # the log that two users write to without O_APPEND
FAILURES_MAX = 5  # of a mode: then it is no use to go on
LIVES = itertools.count(1)
RECORD = re.compile(rb"record (\d\d) (\d{8}) \.+\n")
LEAST_WITH_WORKER = 150  # the worker is forked after some writes
WHEN_WITH_WORKER = ("after the restart", "beside the idle worker", "after the first worker's end")
RECOVER_FAILED = "fastwrite recover ended with status"


@dataclass
class Totals:
    """Of all rounds of a mode."""

    rounds: int = 0
    kills: int = 0
    moves: int = 0
    acknowledged: int = 0
    at_stake: int = 0  # kills after which the kernel did not have everything
    bytes_at_stake: int = 0
    seconds: float = 0
    failed: list[str] = field(default_factory=list)

    def line(self, mode: str) -> str:
        return (
            f"| {mode} | {self.rounds} | {self.kills} | {self.moves} | {self.acknowledged} | {self.at_stake} "
            f"| {self.bytes_at_stake} | {len(self.failed)} | {self.seconds:.0f} |"
        )


HEAD = (
    "| mode | rounds | kills | moves to another node | acknowledged writes | kills with bytes to bring back "
    "| these bytes | failed rounds | s |\n|---|---|---|---|---|---|---|---|---|"
)


def word(log: Path, at: int) -> int:
    try:
        with log.open("rb") as file:
            file.seek(at)
            data = file.read(4)
    except FileNotFoundError:
        return 0
    return struct.unpack("<I", data)[0] if len(data) == 4 else 0


def say(log: Path, at: int, value: int) -> None:
    with log.open("r+b") as file:
        file.seek(at)
        file.write(struct.pack("<I", value))


@dataclass
class Files:
    """What the files of one user must hold: what they held when last looked at, and what was written since."""

    first: int
    held: dict[int, bytes] = field(default_factory=dict)
    since: list[Op] = field(default_factory=list)

    def expected(self, number: int) -> tuple[bytes, list[bytes]]:
        """With every acknowledged write; and what else may be there, for the one that was interrupted."""
        mine = [op for op in self.since if op.file == number and op.kind != kill_model.RECORD]
        want = bytearray(self.held.get(number, b""))
        for op in mine:
            if op.returned:
                kill_model.apply(want, op)
        others = []
        for op in mine:
            if not op.returned:
                whole = bytearray(want)
                kill_model.apply(whole, op)
                others.append(bytes(whole))
        return bytes(want), others

    def read(self, directory: Path) -> dict[int, bytes]:
        found = {}
        for number in range(self.first, self.first + ROLES):
            with suppress(FileNotFoundError):
                found[number] = (directory / f"f{number}").read_bytes()
        return found

    def missing(self, directory: Path) -> int:
        """Acknowledged bytes that the kernel does not have."""
        have = self.read(directory)
        return sum(differing(have.get(number, b""), self.expected(number)[0]) for number in self.numbers())

    def numbers(self) -> range:
        return range(self.first, self.first + ROLES)

    def problems(self, directory: Path) -> list[str]:
        have = self.read(directory)
        found = []
        for number in self.numbers():
            want, others = self.expected(number)
            is_there = have.get(number, b"")
            if is_there == want or is_there in others:
                continue
            unfinished = [op for op in self.since if op.file == number and not op.returned]
            if any(kill_model.is_cut(is_there, want, op) for op in unfinished):
                continue
            found.append(
                f"f{number}: {differing(is_there, want)} acknowledged bytes are missing or overwritten "
                f"({kill_model.difference(is_there, want)})"
            )
        return found

    def accept(self, directory: Path) -> None:
        """They were compared and are right."""
        self.held = self.read(directory)
        self.since = []


def line_problems(path: Path, ops: list[Op]) -> str:
    """Acknowledged writes that are not where they were made."""
    have = path.read_bytes()
    bad = [op for op in ops if op.returned and have[op.offset : op.offset + op.length] != op.content()]
    return f"{path.name}: {len(bad)} of {len(ops)} acknowledged writes are not there" if bad else ""


def differing(have: bytes, want: bytes) -> int:
    missing = max(0, len(want) - len(have))
    if have[: len(want)] == want[: len(have)]:
        return missing
    return missing + sum(a != b for a, b in zip(have, want, strict=False))


@dataclass
class Shared:
    """Numbered records of several writers in one file."""

    acknowledged: dict[int, set[int]] = field(default_factory=dict)
    begun: dict[int, int] = field(default_factory=dict)  # one more than the last number

    def note(self, ops: list[Op]) -> None:
        for op in ops:
            if op.kind == kill_model.RECORD:
                self.begun[op.thread] = max(self.begun.get(op.thread, 0), op.offset + 1)
                if op.returned:
                    self.acknowledged.setdefault(op.thread, set()).add(op.offset)

    def problems(self, path: Path, writers: list[int]) -> list[str]:
        """Each acknowledged record of `writers` once, in the writer's order; others at most once."""
        have = path.read_bytes()
        found = []
        if RECORD.sub(b"", have):
            found.append(f"{SHARED_NAME}: what is no record stands there: {RECORD.sub(b'', have)[:100]!r}")
        seen: dict[int, list[int]] = {}
        for who, number in RECORD.findall(have):
            seen.setdefault(int(who), []).append(int(number))
        for who, numbers in seen.items():
            if len(set(numbers)) != len(numbers):
                found.append(f"{SHARED_NAME}: {len(numbers) - len(set(numbers))} records of {who} twice")
            elif numbers != sorted(numbers):
                found.append(f"{SHARED_NAME}: the records of {who} are not in order")
        for who in writers:
            lost = self.acknowledged.get(who, set()) - set(seen.get(who, []))
            if lost:
                found.append(f"{SHARED_NAME}: {len(lost)} acknowledged records of {who} are missing")
        return found


@dataclass
class Player:
    """One user's program through its lives."""

    uid: int
    files: Files
    log: Path = Path()

    def next_log(self, shared: Path) -> Path:
        self.log = shared / f"log-{self.uid}-{next(LIVES)}"
        return self.log

    def note(self, everybody: Shared) -> int:
        """Its life is over; the number of its acknowledged writes."""
        ops = kill_model.read_log(self.log)
        self.files.since += ops
        everybody.note(ops)
        self.log.unlink(missing_ok=True)
        return sum(op.returned for op in ops)


class Day:
    """Rounds of one mode; after one that failed with a new volume.  `changes`: what does between two lives."""

    def __init__(
        self, mode: str, place: Path, root: Path, tools: dict[str, Path], options: argparse.Namespace
    ) -> None:
        self.mode, self.place, self.root = mode, place, root
        self.fs, self.changes, self.native = options.fs, options.change, options.native
        self.dice = Random(f"{mode} {options.seed}")
        self.totals = Totals()
        self.shared = place / "fw"
        self.shared.mkdir(exist_ok=True)
        self.shared.chmod(0o777)
        for name, path in tools.items():
            shutil.copy(path, self.shared / name)
        self.uids = USERS if mode in ("users", "handover") else (0,)
        self.volumes = 0
        self.fresh()

    def fresh(self) -> None:
        """A new, empty volume."""
        self.players = [Player(uid, Files(10 * n)) for n, uid in enumerate(self.uids)]
        self.everybody = Shared()
        self.inside = ""

    def run(self, rounds: int, verbose: bool = False) -> Totals:
        begun = time.monotonic()
        while self.totals.rounds < rounds and len(self.totals.failed) < FAILURES_MAX:
            self.fresh()
            self.volumes += 1
            with Volume(self.place / f"image-{self.volumes}", self.fs) as volume:
                try:
                    self.rounds(volume, rounds, verbose)
                except FailedError as error:
                    self.totals.failed.append(f"{self.mode}, round {self.totals.rounds}: {error}")
                    print(f"FAILED {self.totals.failed[-1]}", flush=True)
        self.totals.seconds = time.monotonic() - begun
        return self.totals

    def rounds(self, volume: Volume, rounds: int, verbose: bool) -> None:
        while self.totals.rounds < rounds:
            self.totals.rounds += 1
            self.settle_place(volume)
            self.engine = (
                list(ENGINES)[self.totals.rounds % len(ENGINES)] if "boot" in self.changes else "runc"
            )
            self.way = self.dice.choice(("open", "hand"))
            if self.mode == "systemd":
                self.engine, self.way = "nspawn", "the boot unit"
            self.set = self.settings()
            self.what = f"{self.engine}, {self.inside}, recovery by {self.way}, {self.set}"
            if verbose:
                print(f"{self.mode}, round {self.totals.rounds}: {self.what}", flush=True)
            getattr(self, self.mode)()
        self.settle_place(volume)  # what the last kill left
        self.way = "hand"
        self.engine = "runc"
        self.set = self.settings()
        self.what = "after the last round"
        self.only_recovery()

    def settle_place(self, volume: Volume) -> None:
        """Where the container finds its volume this time; every other time it comes to another node."""
        if volume.point is None or ("node" in self.changes and self.dice.random() < 0.5):
            self.totals.moves += volume.point is not None
            volume.move(
                self.place / f"node-{self.volumes}-{self.totals.rounds}-{self.dice.randrange(1 << 20)}"
            )
        self.volume = volume.point
        self.data = volume.point / "data"
        if "path" in self.changes or not self.inside:
            self.inside = self.dice.choice([where for where in PLACES if where != self.inside])
        if self.data.exists():
            return
        self.data.mkdir()
        self.data.chmod(0o777)
        for uid in filter(None, self.uids):
            # the library removes an empty staging directory: the user must be able to make it again
            (self.volume / f"home-{uid}").mkdir()
            shutil.chown(self.volume / f"home-{uid}", uid, uid)
        (self.data / SHARED_NAME).touch()
        (self.data / SHARED_NAME).chmod(0o666)

    def settings(self) -> dict[str, object]:
        chosen: dict[str, object] = {
            "sync": self.dice.choice(POLICIES),
            "lag_ms": self.dice.choice((20, 60000, 60000)),
        }
        chosen.update(self.dice.choice(({"mem": "1M", "block": "64K"}, {"mem": "4M"}, {})))
        if self.dice.random() < 0.5:
            chosen.update(adapt="off")
        if chosen["sync"] == "journal":
            chosen.update(journal="1M")
        if self.dice.random() < 0.2:
            chosen.update(flush="buffered")
        return chosen

    # ---- what runs in the container ----

    def environment(self, player: Player, preload: bool = True) -> str:
        env = preload_env(Path("/fw/libfastwrite.so"), f"{self.inside}/data/**", **self.set)
        if player.uid:
            env["FASTWRITE_STAGING"] = f"{self.inside}/home-{player.uid}/staging"
        if not preload or self.native:
            del env["LD_PRELOAD"]
        return "env " + " ".join(f"'{name}={value}'" for name, value in env.items())

    def program(self, player: Player, *options: str) -> str:
        """A command that lives once."""
        log = player.next_log(self.shared)
        words = [
            f"/fw/life {self.inside}/data /fw/{log.name} {self.dice.randrange(1 << 30)}",
            str(player.files.first),
        ]
        words += ["wait", f"id={player.uid % 100}", f"shared={self.inside}/data/{SHARED_NAME}", *options]
        who = f"setpriv --reuid {player.uid} --regid {player.uid} --clear-groups " if player.uid else ""
        return f"{who}{self.environment(player)} {' '.join(words)}"

    def numbered_from(self, player: Player) -> str:
        return f"next={self.everybody.begun.get(player.uid % 100, 0)}"

    def recovery(self) -> str:
        """By hand, as root, before anything starts; a failure is said in /fw/recover.status."""
        if self.way != "hand":
            return ""
        text = ": > /fw/recover.status; : > /fw/recover.out\n"
        for player in self.players:
            where = "--all" if player.uid else f"{self.inside}/data"
            text += (
                f"{self.environment(player, preload=False)} /fw/fastwrite recover {where} >> /fw/recover.out 2>&1 "
                "|| echo $? >> /fw/recover.status\n"
            )
        return text

    def check_recovery(self) -> None:
        status, out = self.shared / "recover.status", self.shared / "recover.out"
        if self.way == "hand" and status.exists() and status.read_text():
            raise FailedError(
                f"{RECOVER_FAILED} {status.read_text().split()}: {out.read_text()} ({self.what})"
            )

    # ---- what is looked at ----

    def check(self, players: list[Player], when: str) -> None:
        self.check_recovery()
        found = [problem for player in players for problem in player.files.problems(self.data)]
        found += self.everybody.problems(self.data / SHARED_NAME, [player.uid % 100 for player in players])
        aside = sorted(self.volume.rglob(".fastwrite/orphans/*")) + sorted(
            self.volume.glob("home-*/staging/orphans/*")
        )
        if aside:
            found.append(f"put aside: {[path.name for path in aside]}")
        if found:
            left = [f"{path.name} ({path.stat().st_size})" for path in sorted(self.volume.rglob("*.arena"))]
            raise FailedError(
                f"{when}: {'; '.join(found)}; arenas that are there: {left or 'none'}; {self.what}; "
                f"said: {self.said()}"
            )
        for player in players:
            player.files.accept(self.data)

    def said(self) -> str:
        texts = [path.read_text(errors="replace") for path in sorted(self.shared.glob("*.out"))]
        return " / ".join(text.strip() for text in texts if text.strip())[-1500:] or "nothing"

    def begin(self, box: Container, players: list[Player], when: str) -> None:
        """The programs have opened their files: what was to be recovered has been.  Then they write on."""
        for player in players:
            box.until(lambda log=player.log: word(log, OPENED_AT), "the files were open")
        self.check(players, when)
        for player in players:
            self.go(player)

    @staticmethod
    def go(player: Player) -> None:
        """Large files are emptied first, so that the volume never fills."""
        large = any(len(data) > LARGE_BYTES for data in player.files.held.values())
        if large:
            player.files.held = dict.fromkeys(player.files.held, b"")
        say(player.log, GO_AT, EMPTY_AND_GO if large else GO)

    def let_write(self, box: Container, player: Player, least: int = 40) -> None:
        wanted = self.dice.randrange(least, 900)
        limit = time.monotonic() + WRITING_SECONDS
        box.until(lambda: word(player.log, USED_AT) >= wanted or time.monotonic() > limit, f"{wanted} writes")
        if word(player.log, USED_AT) < least:
            raise FailedError(f"{word(player.log, USED_AT)} writes in {WRITING_SECONDS} s ({self.what})")
        time.sleep(self.dice.random() * 0.02)

    def over(self, players: list[Player]) -> None:
        """They were killed."""
        for player in players:
            self.totals.kills += 1
            self.totals.acknowledged += player.note(self.everybody)
            missing = player.files.missing(self.data)
            self.totals.at_stake += missing > 0
            self.totals.bytes_at_stake += missing

    def box(self, script: str) -> Container:
        for name in ("recover.status", "recover.out"):
            (self.shared / name).unlink(missing_ok=True)
        same_boot = "boot" not in self.changes
        return Container(
            self.engine, self.root, self.shared, {self.volume: self.inside}, script, same_boot=same_boot
        )

    # ---- the modes ----

    def plain(self) -> None:
        (player,) = self.players
        # sometimes the program is the container's first process itself
        first = self.dice.choice(("exec ", ""))
        script = f"{self.recovery()}{first}{self.program(player, self.numbered_from(player))}\n"
        with self.box(script) as box:
            self.begin(box, [player], "after the restart")
            self.let_write(box, player)
            box.kill(self.dice.choice((1, word(player.log, PID_AT))))
            box.wait()
        self.over([player])

    def users(self) -> None:
        """Two users' programs at a time, or one of them while bytes of the other one wait."""
        players = self.dice.choice((self.players, self.players, self.players[:1], self.players[1:]))
        programs = [f"{self.program(player, self.numbered_from(player))} &\n" for player in players]
        with self.box(f"{self.recovery()}{''.join(programs)}wait\n") as box:
            self.begin(box, players, "after the restart")
            for player in players:
                self.let_write(box, player)
            for player in self.dice.sample(players, self.dice.randrange(len(players))):
                box.kill(word(player.log, PID_AT))
                time.sleep(self.dice.random() * 0.05)
            box.kill_all()
        self.over(players)

    def child(self) -> None:
        """A master with an idle worker is killed; a new one starts beside the worker, which ends later."""
        (player,) = self.players
        gates = [self.shared / f"go-{turn}" for turn in range(len(WHEN_WITH_WORKER))]
        logs, script = [], ""
        for gate in gates:
            gate.unlink(missing_ok=True)
            script += f"until [ -s /fw/{gate.name} ]; do sleep 0.01; done\n{self.recovery()}"
            script += f"{self.program(player, 'child', f'$(cat /fw/{gate.name})')}\n"
            logs.append(player.log)
        worker = 0
        with self.box(script) as box:
            for gate, log, when in zip(gates, logs, WHEN_WITH_WORKER, strict=True):
                player.log = log
                self.open_gate(gate, player)
                self.begin(box, [player], when)
                box.until(lambda log=log: word(log, WORKER_AT), "a worker")
                self.let_write(box, player, least=LEAST_WITH_WORKER)
                if log is logs[1]:
                    box.kill(worker, self.dice.choice((signal.SIGKILL, signal.SIGTERM)))
                    time.sleep(0.05)
                worker = word(log, WORKER_AT)
                if log is logs[-1]:
                    box.kill_all()
                else:
                    master = word(log, PID_AT)
                    box.kill(master)
                    box.until(lambda pid=master: not box.has(pid), "the master was gone")
                self.over([player])

    def open_gate(self, gate: Path, player: Player) -> None:
        """The next master may start; it learns the number of its first record."""
        fresh = gate.with_suffix(".new")
        fresh.write_text(self.numbered_from(player))
        fresh.rename(gate)

    def handover(self) -> None:
        """One user's program is killed; another user's goes on at the end of the same log, and ends in order.  What the
        first one had staged is older: it must not come over it."""
        first, second = self.dice.sample(self.players, 2)
        line = self.data / f"line-{self.totals.rounds}"
        line.touch()
        line.chmod(0o666)
        gates = [self.shared / f"go-{turn}" for turn in range(2)]
        script = ""
        for gate, player, way in zip(gates, (first, second), ("", "orderly"), strict=True):
            gate.unlink(missing_ok=True)
            script += f"until [ -s /fw/{gate.name} ]; do sleep 0.01; done\n"
            options = (f"line={self.inside}/data/{line.name}", way, f"$(cat /fw/{gate.name})")
            script += f"{self.program(player, *options)}\n"
        ops = []
        # what is to be recovered waits until the second user is done
        way, self.way = self.way, ""
        with self.box(script) as box:
            for gate, player in zip(gates, (first, second), strict=True):
                self.open_gate(gate, player)
                box.until(lambda log=player.log: word(log, OPENED_AT), "the files were open")
                self.go(player)
                self.let_write(box, player, least=100)
                pid = word(player.log, PID_AT)
                box.kill(pid, signal.SIGKILL if player is first else signal.SIGTERM)
                if player is first:
                    box.until(lambda pid=pid: not box.has(pid), "the first one was gone")
                else:
                    box.wait()
                ops.append([op for op in kill_model.read_log(player.log) if op.file == LINE_FILE])
                self.over([player])
        newer = line_problems(line, ops[1])
        if newer:
            raise FailedError(f"after an orderly end: {newer} ({self.what})")
        self.bring_back(first, way)
        newer = line_problems(line, ops[1])
        # put aside, or waiting for somebody to decide
        kept = [path.name for path in self.volume.glob("home-*/staging/**/*") if path.is_file()]
        older = line_problems(line, ops[0])
        if newer:
            raise FailedError(f"older bytes over newer ones: {newer}; {self.what}; said: {self.said()}")
        if older and not any(line.name in name or name.endswith(".arena") for name in kept):
            raise FailedError(f"neither there nor put aside: {older}; {self.what}; said: {self.said()}")
        for path in self.volume.glob("home-*/staging"):
            shutil.rmtree(path)
        self.check(self.players, "after the recovery")
        line.unlink()

    def bring_back(self, player: Player, way: str) -> None:
        """By hand, or by the same user's next program."""
        self.way = way
        log = player.log
        script = self.recovery() or f"{self.program(player)} &\nwait\n"
        with self.box(script) as box:
            if way == "open":
                box.until(lambda: word(player.log, OPENED_AT), "the files were open")
                box.kill_all()
                player.log.unlink()
            box.wait()
        player.log = log
        # older bytes that were put aside are a failure to `recover`, and no loss
        (self.shared / "recover.status").unlink(missing_ok=True)

    def only_recovery(self) -> None:
        with self.box(self.recovery()) as box:
            box.wait()
        self.check(self.players, "after the last round")
