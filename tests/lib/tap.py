# SPDX-License-Identifier: Apache-2.0
"""Counts what a test program reports (TAP), and sums it up."""

from __future__ import annotations

import re
from dataclasses import dataclass, field

SKIP_EXIT_CODE = 77
TAP_LINE = re.compile(r"^(?P<bad>not )?ok (?P<number>\d+)(?: - | # | )?(?P<rest>.*)$")
TAP_PLAN = re.compile(r"^1\.\.(?P<count>\d+)")


@dataclass
class Totals:
    """Counts of single tests; `notes` are the skipped ones with their reasons."""

    passed: int = 0
    failed: int = 0
    skipped: int = 0
    notes: list[str] = field(default_factory=list)

    def add(self, other: Totals) -> None:
        self.passed += other.passed
        self.failed += other.failed
        self.skipped += other.skipped
        self.notes += other.notes

    def line(self) -> str:
        return f"{self.passed} passed, {self.failed} failed, {self.skipped} skipped"


def parse_tap(name: str, output: str, returncode: int) -> Totals:
    """Counts a TAP stream.  Tests that were planned and never reported count as failed."""
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
            if "SKIP" in line:
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
    totals.failed += max(0, planned - reported)
    if returncode != 0 and totals.failed == 0:
        totals.failed += 1
    if reported == 0 and planned == 0 and returncode == 0:
        totals.passed += 1
    return totals
