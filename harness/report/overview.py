# SPDX-License-Identifier: Apache-2.0
"""What somebody reads who has twenty seconds: what helps, what does not, what is lost, how sure that is. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from harness.core import statistics
from harness.core.model import CONTROL, FAILED, NATIVE, SHIM, SKIPPED
from harness.report import judge, present
from harness.report.summary import Row, Summary

NAMED_MAX = 4

GOOD, BAD, PLAIN = "good", "bad", ""


@dataclass(frozen=True)
class Card:
    """One answer: question, a figure to remember, one sentence; rows: ids behind it; tone: good, bad or ""."""

    question: str
    figure: str
    sentence: str
    rows: tuple[str, ...] = ()
    tone: str = PLAIN


@dataclass(frozen=True)
class SuiteLine:
    """Counts of a suite's rows; gain: median of the ratios of rows in which a gain is expected."""

    suite: str
    rows: int
    faster: int
    slower: int
    same: int
    gain: float | None
    best: Row | None
    failed: int
    skipped: int
    reproduced: int
    contradicted: int


def compared(rows: Sequence[Row]) -> list[Row]:
    """Rows that set the shim against native execution and have not failed."""
    return [r for r in rows if r.comparison and r.compared == SHIM and r.status != FAILED]


def suites(rows: Sequence[Row]) -> list[SuiteLine]:
    return [
        _line(suite, [r for r in rows if r.experiment.suite == suite])
        for suite in dict.fromkeys(r.experiment.suite for r in rows)
    ]


def _line(suite: str, rows: Sequence[Row]) -> SuiteLine:
    found = compared(rows)
    verdicts = [r.comparison.verdict for r in found]
    gains = [r for r in found if r.experiment.shim_role == "gain"]
    claims = [c.verdict for r in rows for c in r.claims]
    return SuiteLine(
        suite=suite,
        rows=len(rows),
        faster=verdicts.count(statistics.FASTER),
        slower=verdicts.count(statistics.SLOWER),
        same=verdicts.count(statistics.INCONCLUSIVE),
        gain=statistics.median([r.comparison.ratio for r in gains]) if gains else None,
        best=_best(gains),
        failed=sum(r.status == FAILED for r in rows),
        skipped=sum(r.status == SKIPPED for r in rows),
        reproduced=claims.count(judge.REPRODUCES),
        contradicted=claims.count(judge.CONTRADICTS),
    )


def _best(rows: Sequence[Row]) -> Row | None:
    """The largest gain of those that are no chance."""
    sure = [r for r in rows if r.comparison.verdict == statistics.FASTER]
    return max(sure, key=lambda r: r.comparison.ratio, default=None)


def cards(summary: Summary) -> list[Card]:
    return [_helps(summary.rows), _does_not(summary.rows), _lost(summary.rows), _sure(summary)]


def _helps(rows: Sequence[Row]) -> Card:
    gains = [r for r in compared(rows) if r.experiment.shim_role == "gain"]
    if not gains:
        return Card(
            "What helps?", present.NONE, "No row of this run compares the shim with native execution."
        )
    faster = [r for r in gains if r.comparison.verdict == statistics.FASTER]
    best = _best(gains)
    if best is None:
        words = f"In none of {present.plural(len(gains), 'row')} is a gain certain."
        if max(r.comparison.n for r in gains) < statistics.PAIRS_MIN:
            words += f" Fewer than {statistics.PAIRS_MIN} pairs decide nothing."
        return Card("What helps?", "0 faster", words, tuple(r.experiment.id for r in gains))
    middle = statistics.median([r.comparison.ratio for r in faster])
    c = best.comparison
    return Card(
        "What helps?",
        f"{middle:.1f}×",
        f"is the median gain of the {len(faster)} of {present.plural(len(gains), 'row')} that are certainly "
        f"faster under the shim; most: {best.experiment.id}, {c.ratio:.1f}× [{c.low:.1f}, {c.high:.1f}].",
        tuple(r.experiment.id for r in sorted(faster, key=lambda r: -r.comparison.ratio)),
        GOOD,
    )


def _does_not(rows: Sequence[Row]) -> Card:
    found = compared(rows)
    slower = sorted(
        (r for r in found if r.comparison.verdict == statistics.SLOWER), key=lambda r: r.comparison.ratio
    )
    same = [r for r in found if r.comparison.verdict == statistics.INCONCLUSIVE]
    if not found:
        return Card("What does not?", present.NONE, "Nothing was compared.")
    words = f"In {present.plural(len(same), 'row')} no difference is certain."
    if not slower:
        return Card("What does not?", "0 slower", words, tuple(r.experiment.id for r in same))
    c = slower[0].comparison
    words = (
        f"Certainly slower under the shim; worst: {slower[0].experiment.id}, {c.ratio:.2f}× "
        f"[{c.low:.2f}, {c.high:.2f}]. {words}"
    )
    return Card("What does not?", f"{len(slower)} slower", words, tuple(r.experiment.id for r in slower), BAD)


def _lost(rows: Sequence[Row]) -> Card:
    """Acknowledged bytes after kill -9, apart from what a program keeps in a batch of its own."""
    count, lost, ids = _kills(rows, SHIM)
    native_count, native_lost, _ = _kills(rows, NATIVE)
    if not count and not native_count:
        return Card("What is lost?", present.NONE, "This run has no kill -9 legs.")
    natively = f"natively {present.byte_count(native_lost)} in {present.plural(native_count, 'kill')}"
    if not count:
        return Card("What is lost?", present.byte_count(native_lost), f"of acknowledged data: {natively}.")
    words = f"of acknowledged data after {present.plural(count, 'kill')} -9 under the shim; {natively}."
    return Card("What is lost?", present.byte_count(lost), words, ids, BAD if lost else GOOD)


def _kills(rows: Sequence[Row], variant: str) -> tuple[int, int, tuple[str, ...]]:
    found = [r for r in rows if variant in r.kills and not r.experiment.may_lose.get(variant)]
    return (
        sum(r.kills[variant].kills for r in found),
        sum(r.kills[variant].lost_bytes for r in found),
        tuple(r.experiment.id for r in found),
    )


def _sure(summary: Summary) -> Card:
    counts = summary.counts
    words = f"{present.byte_count(summary.bytes_verified)} compared byte for byte"
    words += f" in {present.plural(counts['ok'], 'leg')}"
    words += f"; {present.plural(counts[FAILED], 'leg')} failed" if counts[FAILED] else "; no leg failed"
    if counts[SKIPPED]:
        words += f", {counts[SKIPPED]} skipped"
    controls = [
        r
        for r in summary.rows
        if r.comparison and r.compared == CONTROL and r.comparison.n >= statistics.PAIRS_MIN
    ]
    wrong = [r for r in controls if r.comparison.verdict != statistics.INCONCLUSIVE]
    if controls:
        words += ". A/A control: " + ("a FALSE difference" if wrong else "no false difference")
    if summary.warnings:
        words += f". {present.plural(len(summary.warnings), 'warning')} below"
    tone = BAD if counts[FAILED] or wrong else GOOD
    figure = f"{counts[FAILED]:,} failed" if counts[FAILED] else f"{counts['ok']:,} legs"
    return Card("How sure?", figure, f"{words}.", tuple(r.experiment.id for r in controls), tone)
