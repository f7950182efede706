# SPDX-License-Identifier: Apache-2.0
"""Counts what a test program reports (TAP), and sums it up."""

from __future__ import annotations

import re
from dataclasses import dataclass, field

SKIP_EXIT_CODE = 77
TAP_LINE = re.compile(r"^(?P<bad>not )?ok (?P<number>\d+)(?: - | # | )?(?P<rest>.*)$")
TAP_PLAN = re.compile(r"^1\.\.(?P<count>\d+)")
TAP_SKIP = re.compile(r"# SKIP\b")


@dataclass
class Totals:
    """Counts of single tests; `notes` are the skipped ones with their reasons, `wrong` what is no test's failure."""

    passed: int = 0
    failed: int = 0
    skipped: int = 0
    notes: list[str] = field(default_factory=list)
    wrong: list[str] = field(default_factory=list)

    def add(self, other: Totals) -> None:
        self.passed += other.passed
        self.failed += other.failed
        self.skipped += other.skipped
        self.notes += other.notes
        self.wrong += other.wrong

    def fail(self, why: str) -> None:
        """One more failure, of the program as a whole."""
        self.failed += 1
        self.wrong.append(why)

    def line(self) -> str:
        return f"{self.passed} passed, {self.failed} failed, {self.skipped} skipped"


def parse_tap(name: str, output: str, returncode: int) -> Totals:
    """Counts a TAP stream.  A program that does not report what it planned has failed, whatever its status."""
    totals = Totals()
    planned = 0
    reported = 0
    before: list[str] = []
    for line in output.splitlines():
        if plan := TAP_PLAN.match(line):
            planned += int(plan["count"])
        elif result := TAP_LINE.match(line):
            reported += 1
            rest = result["rest"]
            if TAP_SKIP.search(line):
                totals.skipped += 1
                reason = "; ".join(before) or "no reason given"
                totals.notes.append(f"{name} {rest.replace('SKIP', '').strip(' #-')}: {reason}")
            elif result["bad"]:
                totals.failed += 1
            else:
                totals.passed += 1
            before = []
        elif line.strip() and not line.startswith("#"):
            before.append(line.strip())
    if reported == 0 and planned == 0 and returncode == SKIP_EXIT_CODE:
        totals.skipped += 1
        totals.notes.append(f"{name}: {'; '.join(before) or 'no reason given'}")
        return totals
    if reported < planned:
        totals.failed += planned - reported
        totals.wrong.append(f"{name}: {planned} tests were planned, {reported} reported")
    if reported > planned:
        totals.fail(f"{name}: {planned} tests were planned, {reported} reported")
    if returncode < 0:
        totals.wrong.append(f"{name}: died of signal {-returncode}")
    if returncode != 0 and totals.failed == 0:
        totals.fail(f"{name}: status {returncode}, although no test failed")
    if reported == 0 and planned == 0 and totals.failed == 0:
        totals.fail(f"{name}: reported nothing")
    return totals
