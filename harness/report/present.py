# SPDX-License-Identifier: Apache-2.0
"""How figures are written, the same in the terminal, Markdown, CSV and the page. Pure."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence

from harness.core.model import FAILED, NATIVE, SKIPPED, Claim
from harness.core.statistics import Comparison, Interval
from harness.report.judge import ClaimResult
from harness.report.summary import Figures, Kills, Limited, Row

NONE = "–"
HEADERS = (
    "id",
    "what",
    "published",
    "whose figure",
    "unit",
    "native",
    "shim",
    "ratio",
    "could find",
    "kill -9: lost",
    "limited MB/s",
    "article",
)


def number(value: float) -> str:
    """Three significant digits; two below 1, however small; no decimals from 100 on."""
    if value >= 100:
        return f"{value:,.0f}"
    if value >= 10:
        return f"{value:.1f}"
    if value >= 0.1 or value <= 0:
        return f"{value:.2f}"
    return f"{value:.{1 - math.floor(math.log10(value))}f}"


def interval(found: Interval | None) -> str:
    if found is None:
        return NONE
    if found.n < 2:
        return number(found.median)
    return f"{number(found.median)} [{number(found.low)}, {number(found.high)}]"


def figure(figures: Figures | None) -> str:
    return interval(figures.figure) if figures else NONE


def ratio(found: Comparison | None) -> str:
    if found is None:
        return NONE
    if found.n < 2:
        return f"{found.ratio:.2f}× ({found.verdict})"
    return f"{found.ratio:.2f}× [{found.low:.2f}, {found.high:.2f}] {found.verdict}"


def detectable(found: Comparison | None) -> str:
    """The smallest ratio that such a run finds in four of five cases."""
    if found is None or found.detectable is None:
        return NONE
    return f"{found.detectable:.2f}×" if found.detectable < 10 else "> 10×"


def byte_count(value: float | None) -> str:
    """Bytes with a binary unit, exact below 1 KiB."""
    if value is None:
        return NONE
    for unit, step in (("GiB", 2**30), ("MiB", 2**20), ("KiB", 2**10)):
        if value >= step:
            return f"{number(value / step)} {unit}"
    return f"{value:.0f} B"


def kills(found: Kills | None) -> str:
    if found is None:
        return NONE
    text = byte_count(found.lost_bytes)
    return f"{text} ({found.failed} FAILED)" if found.failed else text


def limited(found: Limited | None) -> str:
    if found is None:
        return NONE
    if found.status == SKIPPED:
        return "skipped"
    if found.status == FAILED:
        return "FAILED"
    return number(found.rate or 0)


def both(row: Row, cells: dict, show) -> str:
    """native / shim (or native / control) of something that is kept per variant."""
    names = [v for v in row.experiment.variants if v in cells]
    return " / ".join(show(cells[v]) for v in names) if names else NONE


def published(row: Row) -> str:
    return row.experiment.published.text or NONE


def whose(row: Row) -> str:
    """Whose figure it is: the row's article, unless another source is named."""
    found = row.experiment.published
    if found.value is None:
        return NONE
    return found.source or row.experiment.source.partition(",")[0] or NONE


def cells(row: Row) -> tuple[str, ...]:
    """One row of HEADERS. A row that failed shows no ratio beside the word."""
    failed = row.status == FAILED
    comparison = None if failed else row.comparison
    return (
        row.experiment.id,
        row.experiment.title,
        published(row),
        whose(row),
        row.experiment.figure_unit,
        figure(row.figures.get(NATIVE)),
        figure(row.figures.get(row.compared)),
        ratio(comparison),
        detectable(comparison),
        both(row, row.kills, kills),
        both(row, row.limited, limited),
        "FAILED" if failed else row.verdict,
    )


def columns(rows: Sequence[Row]) -> list[int]:
    """Places of those HEADERS under which a row has anything; whose a figure is only where it is not the article's."""
    texts = [cells(row) for row in rows]
    others = any(row.experiment.published.source for row in rows)
    return [
        i
        for i, header in enumerate(HEADERS)
        if any(text[i] != NONE for text in texts) and (others or header != "whose figure")
    ]


def duration(seconds: float) -> str:
    """Rounded as far as an estimate is worth."""
    if seconds < 100:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min"


def plural(count: int, noun: str) -> str:
    return f"{count:,} {noun}" if count == 1 else f"{count:,} {noun}s"


def markdown_table(
    headers: Sequence[str], rows: Sequence[Sequence[str]], right: Collection[int] = ()
) -> list[str]:
    """Lines of a table; a cell may hold anything but a line break. right: columns of figures."""
    rule = "".join("---:|" if i in right else "---|" for i in range(len(headers)))

    def line(texts: Sequence[str]) -> str:
        return "| " + " | ".join(text.replace("|", "\\|") for text in texts) + " |"

    return [line(headers), "|" + rule, *(line(row) for row in rows)]


def machine(found: Mapping) -> str:
    """What figures were measured on, in one line; found: of environment.gather."""
    return (
        f"{found.get('cpus')} processors ({found.get('cpu')}), {_filesystem(found)} on {found.get('device')} "
        f"({found.get('write_cache')}, {found.get('scheduler')}), kernel {found.get('kernel')}"
    )


def _filesystem(found: Mapping) -> str:
    """The file system's name, with or without a journal: that decides the cost of a native sync."""
    features = found.get("filesystem_features")
    name = str(found.get("filesystem"))
    if name != "ext4" or not features:
        return name
    return name if "has_journal" in features.split() else f"{name} without a journal"


def claim_cells(result: ClaimResult) -> tuple[str, ...]:
    """What every table of claims says of one: claim, place, published, ours, direction, size, verdict, reason."""
    return (
        result.claim.text,
        claim_place(result.claim),
        claim_figure(result.claim.published, result.claim.unit),
        claim_interval(result),
        result.direction or NONE,
        result.size or NONE,
        result.verdict,
        result.reason,
    )


def claim_interval(result: ClaimResult) -> str:
    """Our figure for a claim, with its interval where it has one."""
    text = claim_figure(result.ours, result.claim.unit)
    if result.low is None or result.low == result.high:
        return text
    return f"{text} [{claim_figure(result.low, '')}, {claim_figure(result.high, '')}]"


def claim_figure(value: float | None, unit: str) -> str:
    if value is None:
        return NONE
    if unit == "bytes":
        return byte_count(value)
    return f"{number(value)} {unit}".strip()


def claim_place(claim: Claim) -> str:
    """Where the article says it; of a claim that is not the article's, whose it is."""
    return f"not of the article: {claim.own}" if claim.own else claim.place or NONE
