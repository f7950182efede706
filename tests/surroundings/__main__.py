# SPDX-License-Identifier: Apache-2.0
"""python -m surroundings: containers and virtual machines in which the library must keep its promises."""

from __future__ import annotations

import argparse
import shutil
import sys
import time
from pathlib import Path

from lib.support import ROOT
from power import system
from power.workload import CONTROL, NATIVE, FailedError, main_of

from surroundings import booted, container, life, losses, machine, rootfs


def tools_of(build: Path, *programs: str) -> dict[str, Path]:
    """The library, its command, and programs of the tests, by their names."""
    paths = [build / "libfastwrite.so", build / "fastwrite", *(build / "tests" / name for name in programs)]
    for path in paths:
        if not path.exists():
            raise FailedError(f"{path} is not there; run make tests-build")
    return {path.name: path for path in paths}


def containers(options: argparse.Namespace) -> bool:
    """True when every round of every mode was good."""
    good = True
    roots: dict[str, Path] = {}
    print(life.HEAD, flush=True)
    for mode in options.modes:
        place = system.PLACE / mode
        place.mkdir()
        kind = "debian" if mode == "systemd" else options.root
        if kind not in roots:
            make = rootfs.of_host if kind == "host" else rootfs.of_debian
            roots[kind] = make(system.PLACE, options.cache)
        tools = tools_of(options.build, "surroundings/life")
        make_day = booted.BootedDay if mode == "systemd" else life.Day
        day = make_day(mode, place, roots[kind], tools, options)
        totals = day.run(options.rounds, options.verbose)
        print(totals.line(mode), flush=True)
        good &= not totals.failed
        if options.rounds >= len(life.MODES) and not (totals.at_stake or totals.failed or options.native):
            print(f"FAILED {mode}: after no kill was there anything to bring back", flush=True)
            good = False
        shutil.rmtree(place)
    return good


def machines(options: argparse.Namespace) -> bool:
    """True when nothing that was promised is missing, and the control, if there was one, has lost something."""
    good = True
    kernel = machine.fetch_kernel(options.cache)
    place = system.PLACE / "machine"
    place.mkdir()
    tools = tools_of(options.build, "surroundings/life", "power/writer")
    guest = losses.Guest(place, kernel, tools, options.seed)
    print(losses.HEAD, flush=True)
    for policy in options.sync:
        for way, count in (("cuts", options.cuts), ("shutdowns", options.shutdowns)):
            if not count or (way == "shutdowns" and policy == NATIVE):
                continue
            if way == "cuts":
                total = losses.cuts(guest, policy, count, options.seed, options.kinds, options.verbose)
            else:
                total = losses.shutdowns(guest, policy, count, options.seed, options.verbose)
            print(total.line(way, policy), flush=True)
            good &= not total.failed
            if way == "cuts" and policy in CONTROL and not total.lost:
                print(f"FAILED {policy}: the control has lost nothing", flush=True)
                good = False
    return good


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="surroundings", description=__doc__.split(": ", 1)[1])
    parser.add_argument("--rounds", type=int, default=0, help="of a container's life, for each mode")
    parser.add_argument("--modes", nargs="+", choices=life.MODES, default=list(life.MODES))
    parser.add_argument("--fs", choices=("ext4", "xfs"), default="ext4", help="of the volume")
    parser.add_argument("--root", choices=("host", "debian"), default="host", help="of the containers")
    parser.add_argument(
        "--change",
        nargs="*",
        choices=life.CHANGES,
        default=list(life.CHANGES),
        help="between two lives of a container; nothing for a control in which only processes come and go",
    )
    parser.add_argument("--native", action="store_true", help="a control of the rounds: without the library")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--build", type=Path, default=ROOT / "build", help="build directory to test")
    parser.add_argument(
        "--cache",
        type=Path,
        default=ROOT / "build" / "surroundings",
        help="for a root and a kernel that are downloaded",
    )
    parser.add_argument("--cuts", type=int, default=0, help="of the virtual machine's power, for each policy")
    parser.add_argument("--shutdowns", type=int, default=0, help="of it in order, for each policy")
    parser.add_argument(
        "--sync", nargs="+", choices=(*losses.POLICIES, *CONTROL, NATIVE), default=list(losses.POLICIES)
    )
    parser.add_argument(
        "--kinds", nargs="+", choices=losses.KINDS, default=list(losses.KINDS), help="of cut programs"
    )
    parser.add_argument("--verbose", action="store_true", help="a line per round")
    options = parser.parse_args()
    options.build, options.cache = options.build.resolve(), options.cache.resolve()
    if not (options.rounds or options.cuts or options.shutdowns):
        parser.error("--rounds, --cuts or --shutdowns: how many?")
    return options


def start() -> int:
    options = parse()
    reasons = [system.missing()]
    reasons += [container.missing()] if options.rounds else []
    reasons += [machine.missing()] if options.cuts or options.shutdowns else []

    def main() -> int:
        begun = time.monotonic()
        try:
            good = containers(options) if options.rounds else True
            good &= machines(options) if options.cuts or options.shutdowns else True
        except FailedError as error:
            print(f"FAILED {error}", flush=True)
            good = False
        finally:
            container.sweep()
        print(f"{'passed' if good else 'FAILED'} in {time.monotonic() - begun:.0f} s", flush=True)
        return 0 if good else 1

    return main_of(reasons, main)


if __name__ == "__main__":
    sys.exit(start())
