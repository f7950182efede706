# SPDX-License-Identifier: Apache-2.0
"""python -m power (with tests/ on the path; make soak-power does it): takes power away, prints what was lost.

Needs root, FUSE and loop devices.  Exit status 0: nothing synced was lost where nothing may be, and the controls,
which do not sync, lost something; 1: not so; 77: this machine cannot run it."""

from __future__ import annotations

import argparse
import os
import sys
import time
from dataclasses import dataclass
from pathlib import Path

from lib.support import ROOT

from power import cuts, shutdown, system
from power.system import PLACE
from power.workload import (
    CONTROL,
    JOURNAL,
    KINDS,
    NATIVE,
    NOT_RELAXED,
    POLICIES,
    RELAXED,
    RELAXED_MS,
    FailedError,
    Job,
    Look,
    Tools,
    main_of,
    settings,
)

# The engine's thread and the disk need a processor, too.  On a machine with nothing else to do 100 suffices.
FLUSH_MS = 400
CUTS_OF_A_RUN = 60
SEEDS_OF_A_ROUND = 1000
STAGES = (
    "append",
    "position",
    "threads",
    "stdio",
    "rotate",
)  # kinds that are no test unless something was staged


@dataclass
class Total:
    """Of one way to lose power, file system and policy."""

    losses_of_power: int = 0
    synced: int = 0
    lost: int = 0
    wrong: int = 0
    arenas: int = 0
    kept: int = 0
    dropped: int = 0
    age_ns: int = 0
    seconds: float = 0
    journaled: int = 0  # syncs that the journal answered, in runs that came to their end

    def add(self, look: Look) -> None:
        self.losses_of_power += 1
        self.synced += look.synced
        self.lost += bool(look.verdict.lost)
        self.wrong += bool(look.verdict.wrong)
        self.arenas += look.arenas
        self.kept += look.kept
        self.dropped += look.dropped
        self.age_ns = max(self.age_ns, look.age_ns)


class Session:
    def __init__(self, options: argparse.Namespace) -> None:
        self.options = options
        build = options.build.resolve()
        self.tools = Tools(build / "libfastwrite.so", build / "fastwrite", build / "tests" / "power")
        self.spare_ns = (RELAXED_MS + options.flush_ms) * 1_000_000
        self.totals: dict[tuple[str, str, str], Total] = {}
        self.bad = False
        self.deadline = time.monotonic() + options.seconds if options.seconds else None
        self.seed = options.seed

    def late(self) -> bool:
        return self.deadline is not None and time.monotonic() > self.deadline

    def jobs(self, fs: str, policy: str):
        """Every kind in turn, each time with another seed."""
        kinds = [k for k in self.options.kinds if policy != RELAXED or k not in NOT_RELAXED]
        seed = self.seed
        while kinds:
            for kind in kinds:
                yield Job(kind, fs, policy, seed)
                seed += 1

    def judge(self, total: Total, job: Job, look: Look, again: str) -> bool:
        """Counts it; true when it is a failure: a control is expected to lose, but not to make things up."""
        total.add(look)
        if not (look.verdict.wrong or (look.verdict.lost and job.policy not in CONTROL)):
            return False
        self.bad = True
        problem = f"{job}: {look.verdict.text()}\n    again: {again}"
        print(f"FAILED {problem}", flush=True)
        return True

    def shutdowns(self, total: Total, fs: str, policy: str, count: int) -> None:
        for job in self.jobs(fs, policy):
            if count <= 0 or self.late():
                return
            count -= 1
            look = shutdown.lose_power(job, self.tools, self.spare_ns, self.options.same_boot)
            again = " --same-boot" if self.options.same_boot else ""
            self.judge(total, job, look, f"python -m power {job.options()} --shutdowns 1{again}")

    def cut_run(self, total: Total, job: Job, count: int) -> None:
        base, log = PLACE / "base", PLACE / "log"
        stats = cuts.record(job, self.tools, base, log, self.spare_ns)
        total.journaled += stats.journaled
        # (where each sync asks the device, what is synced after every few writes is left to the kernel)
        may_rest = job.policy in ("fdatasync", "fsync") and settings(job).get("adapt") != "off"
        if job.policy != NATIVE and job.kind in STAGES and not may_rest and stats.bytes == 0:
            raise FailedError(f"{job}: nothing was staged")
        chosen = cuts.choose_cuts(cuts.read_log(log), count, job.seed)
        kept = None
        for cut, look in cuts.look_at(job, self.tools, base, log, chosen, self.spare_ns):
            kept = kept or self.options.keep / f"{job.kind}-{job.fs}-{job.policy}-{job.seed}"
            again = f"python -m power --again {kept} --at {cut}  (new run: {job.options()} --cuts {count})"
            if self.judge(total, job, look, again) and not kept.exists():
                cuts.keep(job, base, log, self.options.keep)

    def cut_runs(self, total: Total, fs: str, policy: str, count: int) -> None:
        kinds = len(self.options.kinds)
        each = max(1, min(CUTS_OF_A_RUN, -(-count // kinds)))
        for job in self.jobs(fs, policy):
            if count <= 0 or self.late():
                return
            before = (time.monotonic(), total.lost, total.losses_of_power)
            self.cut_run(total, job, min(each, count))
            count -= each
            if self.options.verbose:
                print(
                    f"  {job}: {total.losses_of_power - before[2]} cuts, {total.lost - before[1]} with losses, "
                    f"{time.monotonic() - before[0]:.1f} s",
                    flush=True,
                )

    def part(self, way: str, fs: str, policy: str, count: int) -> None:
        total = self.totals.setdefault((way, fs, policy), Total())
        begin = time.monotonic()
        (self.shutdowns if way == "shutdown" else self.cut_runs)(total, fs, policy, count)
        total.seconds += time.monotonic() - begin

    def controls(self) -> None:
        """A test that finds nothing when nothing is synced is none, nor is one of a journal that is not used."""
        for (way, fs, policy), total in self.totals.items():
            if policy == JOURNAL and way == "cut" and total.losses_of_power:
                print(f"{fs}: the journal answered {total.journaled} syncs")
                if total.journaled == 0:
                    self.bad = True
                    print(f"FAILED {way}, {fs}, {policy}: no sync was answered by the journal", flush=True)
            if policy in CONTROL and total.losses_of_power and not total.lost:
                self.bad = True
                print(f"FAILED {way}, {fs}, {policy}: the control has lost nothing", flush=True)

    def round(self, silent: bool = False) -> None:
        for way, count in (("shutdown", self.options.shutdowns), ("cut", self.options.cuts)):
            for fs in self.options.fs if count else []:
                for policy in self.options.sync:
                    self.part(way, fs, policy, count)
                    if not silent:
                        print(row(way, fs, policy, self.totals[way, fs, policy]), flush=True)

    def run(self) -> int:
        for path in (self.tools.library, self.tools.command, self.tools.helpers / "disk"):
            if not path.exists():
                print(f"{path} is not there; run make tests-build", file=sys.stderr)
                return 2
        if not self.options.soak:
            print(HEAD, flush=True)
            self.round()
        while self.options.soak and not self.late():
            self.round(silent=True)
            self.seed += SEEDS_OF_A_ROUND
            print(f"\nnext seed: {self.seed}\n{HEAD}", flush=True)
            for key, total in self.totals.items():
                print(row(*key, total), flush=True)
        self.controls()
        print("FAILED" if self.bad else "passed", flush=True)
        return 1 if self.bad else 0

    def again(self) -> int:
        """One cut of a run that was put aside."""
        base, log = PLACE / "base", PLACE / "log"
        job = cuts.fetch(self.options.again, base, log)
        total = Total()
        chosen = [cuts.Cut.parse(text) for text in self.options.at]
        if not chosen:
            chosen = cuts.choose_cuts(cuts.read_log(log), self.options.cuts or CUTS_OF_A_RUN, job.seed)
        for cut, look in cuts.look_at(job, self.tools, base, log, chosen, self.spare_ns):
            print(f"{job}, cut {cut}: {look.verdict.text() or 'good'}", flush=True)
            total.add(look)
        return 1 if total.wrong or (total.lost and job.policy not in CONTROL) else 0


HEAD = (
    "| power lost by | file system | sync | losses of power | syncs promised | lost something | made up something "
    "| arenas found | sectors in flight kept/dropped | oldest loss | s |\n|---|---|---|---|---|---|---|---|---|---|---|"
)


def row(way: str, fs: str, policy: str, t: Total) -> str:
    flight = f"{t.kept}/{t.dropped}" if way == "cut" else "–"
    age = f"{t.age_ns / 1e6:.0f} ms" if policy == RELAXED and way == "cut" else "–"
    return (
        f"| {way} | {fs} | {policy} | {t.losses_of_power} | {t.synced} | {t.lost} | {t.wrong} | {t.arenas} "
        f"| {flight} | {age} | {t.seconds:.0f} |"
    )


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="power", description="Power-loss tests.")
    parser.add_argument("--shutdowns", type=int, default=0, help="per file system and policy")
    parser.add_argument("--same-boot", action="store_true", help="the kernel goes on after a shutdown")
    parser.add_argument("--cuts", type=int, default=0, help="of the disk's log, per file system and policy")
    parser.add_argument("--fs", nargs="+", choices=("ext4", "xfs"), default=["ext4", "xfs"])
    parser.add_argument("--sync", nargs="+", choices=POLICIES, default=list(POLICIES))
    parser.add_argument("--kinds", nargs="+", choices=list(KINDS), default=list(KINDS), help="of programs")
    parser.add_argument("--seed", type=int, default=1, help="of the first run")
    parser.add_argument("--seconds", type=float, help="begin no run after this time")
    parser.add_argument(
        "--flush-ms", type=int, default=FLUSH_MS, help="what a flush may take under `relaxed`"
    )
    parser.add_argument(
        "--soak", action="store_true", help="rounds with other seeds, for FASTWRITE_SOAK_SECONDS (an hour)"
    )
    parser.add_argument("--build", type=Path, default=ROOT / "build", help="build directory to test")
    parser.add_argument("--keep", type=Path, default=ROOT / "build" / "power", help="where failed runs go")
    parser.add_argument("--again", type=Path, help="a failed run that was kept")
    parser.add_argument("--at", nargs="+", default=[], help="its cuts, as printed")
    parser.add_argument("--verbose", action="store_true", help="a line per run")
    options = parser.parse_args()
    options.keep = options.keep.resolve()
    if options.soak:
        options.seconds = options.seconds or float(os.environ.get("FASTWRITE_SOAK_SECONDS", "3600"))
        options.shutdowns, options.cuts = options.shutdowns or 24, options.cuts or 240
    if options.again:
        options.again = options.again.resolve()
    elif not options.shutdowns and not options.cuts:
        parser.error("--shutdowns or --cuts: how many?")
    return options


def start() -> int:
    options = parse()

    def main() -> int:
        session = Session(options)
        return session.again() if options.again else session.run()

    return main_of([system.missing()], main)


if __name__ == "__main__":
    sys.exit(start())
