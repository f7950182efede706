# SPDX-License-Identifier: Apache-2.0
"""The summary for a reader with twenty seconds: what helps, what does not, what is lost, how sure. Pure."""

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
    """Counts of a suite's rows; gain: median of the ratios of rows in which a gain is expected; reproduced,
    contradicted: claims that came out as the article says (or stronger), and otherwise (weaker, no longer so)."""

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
    claims = [c.verdict for r in rows for c in r.claims if not c.claim.own]
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
        reproduced=sum(c in (judge.REPRODUCES, judge.STRONGER) for c in claims),
        contradicted=sum(c in (judge.CONTRADICTS, judge.NO_LONGER, judge.WEAKER) for c in claims),
    )


def _best(rows: Sequence[Row]) -> Row | None:
    """The row with the largest certain gain."""
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
    others = _faster_by_surprise(rows)
    if best is None:
        words = f"In none of {present.plural(len(gains), 'row')} is a gain certain{others}."
        if max(r.comparison.n for r in gains) < statistics.PAIRS_MIN:
            words += f" Fewer than {statistics.PAIRS_MIN} pairs decide nothing."
        figure = f"0 of {len(gains)}" if others else "0 faster"
        return Card("What helps?", figure, words, tuple(r.experiment.id for r in gains))
    verdicts = [r.comparison.verdict for r in gains]
    least = min(gains, key=lambda r: r.comparison.ratio)
    words = (
        f"is what the median of the {present.plural(len(gains), 'row')} gains in which a gain is expected: "
        f"{len(faster)} certainly faster, {verdicts.count(statistics.SLOWER)} slower, "
        f"{verdicts.count(statistics.INCONCLUSIVE)} open; most: {_named(best)}; least: {_named(least)}{others}."
    )
    middle = statistics.median([r.comparison.ratio for r in gains])
    ids = tuple(r.experiment.id for r in sorted(faster, key=lambda r: -r.comparison.ratio))
    return Card("What helps?", _times(middle), words, ids, GOOD if middle > 1 else PLAIN)


def _faster_by_surprise(rows: Sequence[Row]) -> str:
    """Rows that are faster although no gain is expected there; the table shows them, so the card names them."""
    found = [
        r
        for r in compared(rows)
        if r.experiment.shim_role != "gain" and r.comparison.verdict == statistics.FASTER
    ]
    if not found:
        return ""
    names = ", ".join(_named(r) for r in found[:NAMED_MAX])
    more = f" and {len(found) - NAMED_MAX} more" if len(found) > NAMED_MAX else ""
    return f"; faster where no gain is expected: {names}{more}"


def _times(ratio: float) -> str:
    return f"{ratio:.1f}×" if ratio >= 2 else f"{ratio:.2f}×"


def _named(row: Row) -> str:
    c = row.comparison
    return f"{row.experiment.id}, {_times(c.ratio)} [{c.low:.2f}, {c.high:.2f}]"


def _does_not(rows: Sequence[Row]) -> Card:
    found = compared(rows)
    slower = sorted(
        (r for r in found if r.comparison.verdict == statistics.SLOWER), key=lambda r: r.comparison.ratio
    )
    same = [r for r in found if r.comparison.verdict == statistics.INCONCLUSIVE]
    if not found:
        return Card("What does not?", present.NONE, "Nothing was compared.")
    words = f"In {present.plural(len(same), 'row')} no difference is certain"
    known = [r.comparison.detectable for r in same if r.comparison.detectable]
    words += f"; the median of them could have found {statistics.median(known):.2f}×." if known else "."
    if not slower:
        return Card("What does not?", "0 slower", words, tuple(r.experiment.id for r in same))
    words = f"Certainly slower under the shim; worst: {_named(slower[0])}. {words}"
    return Card("What does not?", f"{len(slower)} slower", words, tuple(r.experiment.id for r in slower), BAD)


def _lost(rows: Sequence[Row]) -> Card:
    """Acknowledged bytes after kill -9. What a program keeps in a buffer of its own is named apart: it is lost with
    the program, natively as well."""
    count, lost, ids = _kills(rows, SHIM)
    native_count, native_lost, native_ids = _kills(rows, NATIVE)
    own = _lost_by_the_method(rows)
    failed = sum(k.failed for r in rows for k in r.kills.values())
    if not count and not native_count and not failed:
        return Card("What is lost?", present.NONE, own or "This run has no kill -9 legs.")
    natively = f"natively {present.byte_count(native_lost)} in {present.plural(native_count, 'kill')}"
    if failed:
        own = f"{present.plural(failed, 'kill')} failed, and may have lost more. {own}"
    words = f"of acknowledged data after {present.plural(count, 'kill')} -9 under the shim; {natively}. {own}"
    if not count:
        words, lost, ids = f"of acknowledged data: {natively}. {own}", native_lost, native_ids
    figure = present.byte_count(lost)
    if failed and not lost:
        figure, words = f"{failed:,} failed", f"{figure} {words}"
    return Card("What is lost?", figure, words.strip(), ids, BAD if lost or failed else GOOD)


def _lost_by_the_method(rows: Sequence[Row]) -> str:
    """A sentence on the rows whose method may lose something."""
    found = [r for r in rows if r.kills and any(r.experiment.may_lose.get(v) for v in r.kills)]
    if not found:
        return ""
    lost = {v: sum(r.kills[v].lost_bytes for r in found if v in r.kills) for v in (NATIVE, SHIM)}
    names = ", ".join(r.experiment.id for r in found)
    return (
        f"Not counted: {names}, whose own buffers die with the program; they lost "
        f"{present.byte_count(lost[NATIVE])} natively, {present.byte_count(lost[SHIM])} under the shim."
    )


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
