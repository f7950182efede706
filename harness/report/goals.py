# SPDX-License-Identifier: Apache-2.0
"""Targets of a benchmark in rounds (`sync`, `cost`): two figures, paired by round, against a bound. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from harness.core import statistics
from harness.core.model import Target
from harness.core.rounds import Record, Samples
from harness.report import present
from harness.report import targets as bench


@dataclass(frozen=True)
class Goal:
    """What is asked of two figures, each of a (cell, variant): the second over the first.

    more -- the second less the first instead; within -- missed only when the whole interval misses the bound
    """

    target: Target
    below: tuple[str, str]
    above: tuple[str, str]
    key: str
    more: bool = False
    within: bool = False


def judge(goals: Sequence[Goal], record: Record) -> list[bench.Result]:
    """The goals of the cells that were asked for and can be had."""
    cells = set(record.settings["cells"]) - set(record.skipped)
    samples = Samples(record)
    return [_judge(goal, samples) for goal in goals if {goal.below[0], goal.above[0]} <= cells]


def _judge(goal: Goal, samples: Samples) -> bench.Result:
    below, above = samples.paired(goal.below, goal.above, goal.key)
    if not below:
        return bench.Result(goal.target, None, (), bench.NO_DATA)
    pairs = zip(below, above, strict=True)
    values = tuple(b - a if goal.more else b / a for a, b in pairs)
    found = statistics.interval(values)
    ends = [bench.holds(goal.target, value) for value in (found.low, found.high)]
    good = bench.holds(goal.target, found.median)
    if goal.within:
        good = any(ends)
    verdict = bench.PASS if good else bench.MISS
    if goal.within and found.n < statistics.PAIRS_MIN:
        verdict = bench.NO_DATA
    return bench.Result(goal.target, found, values, verdict, found.n > 1 and len(set(ends)) == 1)


def markdown(results: Sequence[bench.Result]) -> list[str]:
    """Lines of a table of targets."""
    rows = [(r.target.text, bench.bound(r.target), present.interval(r.measured), r.verdict) for r in results]
    return ["", *present.markdown_table(("target", "bound", "measured", ""), rows, (1, 2))] if rows else []
