# SPDX-License-Identifier: Apache-2.0
"""The one self-contained page: summary, tables, charts, samples, all inside; nothing is loaded from anywhere."""

from __future__ import annotations

import base64
import gzip
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from jinja2 import Environment, FileSystemLoader, StrictUndefined

from harness.core.model import MEASURE, NATIVE, RATE, Experiment
from harness.core.samples import Samples, figure_of
from harness.report import charts, outputs, overview, present, variant_table
from harness.report.summary import Row, Summary

TEMPLATES = Path(__file__).resolve().parent / "templates"
RATIOS_SHOWN_MAX = 40
OPEN_ROWS_MAX = 40
"""Suites are unfolded from the start while there are not more rows than this in the whole page, or one suite only.
Of an unfolded suite the table and the charts of all rows are seen; the rest of it is folded."""


@dataclass(frozen=True)
class Cell:
    """What a cell shows, in large letters, its unit, in small letters (the interval), and the number that it
    is sorted by (None: its text)."""

    header: str
    text: str
    unit: str = ""
    small: str = ""
    sort: float | None = None


@dataclass(frozen=True)
class Line:
    row: Row
    cells: tuple[Cell, ...]


@dataclass(frozen=True)
class Suite:
    """One folded part of the page."""

    name: str
    line: overview.SuiteLine
    sources: tuple[str, ...]
    headers: tuple[str, ...]
    rows: tuple[Line, ...]
    drawings: tuple[charts.Drawing, ...]
    single: tuple[charts.Drawing, ...]
    claims: list[tuple[str, ...]]
    by_variant: list[tuple[Experiment, list[tuple[str, ...]]]]


def render(settings: dict, summary: Summary, recorded: Sequence[dict]) -> str:
    """HTML text. settings: run.json; recorded: the lines of samples.jsonl."""
    environment = Environment(
        loader=FileSystemLoader(TEMPLATES),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    samples = Samples(recorded)
    lines = overview.suites(summary.rows)
    experiments = {row.experiment.id: row.experiment for row in summary.rows}
    return environment.get_template("report.html.j2").render(
        settings=settings,
        pairs=Samples(recorded).pair_counts(),
        summary=summary,
        present=present,
        variant_headers=variant_table.HEADERS,
        claim_headers=outputs.CLAIM_HEADERS,
        cards=overview.cards(summary),
        named_max=overview.NAMED_MAX,
        ratios_max=RATIOS_SHOWN_MAX,
        facts=facts,
        compared=len(overview.compared(summary.rows)),
        suites=[_suite(line, summary, samples) for line in lines],
        unfolded=len(summary.rows) <= OPEN_ROWS_MAX or len(lines) == 1,
        claim_counts=_claim_counts(summary),
        legs=[_leg(s, experiments.get(s["experiment"])) for s in recorded],
        downloads=_downloads(settings, summary, recorded),
    )


def _suite(line: overview.SuiteLine, summary: Summary, samples: Samples) -> Suite:
    rows = [row for row in summary.rows if row.experiment.suite == line.suite]
    texts = [present.cells(row) for row in rows]
    used = [i for i in present.columns(rows) if present.HEADERS[i] != "unit"]
    return Suite(
        name=line.suite,
        line=line,
        sources=tuple(dict.fromkeys(row.experiment.source for row in rows if row.experiment.source)),
        headers=tuple(present.HEADERS[i] for i in used),
        rows=tuple(
            Line(row, tuple(_cell(row, present.HEADERS[i], cells[i]) for i in used))
            for row, cells in zip(rows, texts, strict=True)
        ),
        drawings=tuple(drawing for draw in charts.PER_SUITE for drawing in draw(rows, samples)),
        single=tuple(drawing for draw in charts.PER_ROW for drawing in draw(rows, samples)),
        claims=outputs.claim_cells(rows),
        by_variant=[
            (row.experiment, variant_table.lines(row, samples)) for row in variant_table.wanted(rows)
        ],
    )


def _cell(row: Row, header: str, text: str) -> Cell:
    head, bracket, rest = text.partition(" [")
    sort = None
    if header in ("native", "shim"):
        found = row.figures.get(NATIVE if header == "native" else row.compared)
        sort = found.figure.median if found else None
    elif header == "ratio" and head != present.NONE:
        sort = row.comparison.ratio
    elif header == "published":
        sort = row.experiment.published.value
    if header == "article" and text not in (present.NONE, "FAILED"):
        return Cell(header, text, small=row.verdict_reason)
    unit = row.experiment.figure_unit if header in ("native", "shim") and head != present.NONE else ""
    return Cell(header, head, unit, f"[{rest}" if bracket else "", sort)


def facts(row: Row) -> list[tuple[str, list[str]]]:
    """What else is known of a row: name and a value per variant; without what no variant has."""
    e, found = row.experiment, list(row.figures.values())

    def known(value, show) -> str:
        return present.NONE if value is None else show(value)

    main = f"{e.figure}, {e.figure_unit} ({e.figure_better} is better)"
    lines: list[tuple[str, list[str]]] = [
        (main, [present.interval(f.figure) for f in found] if e.figure != RATE else []),
        ("MB/s, with final sync", [present.interval(f.rate) for f in found]),
        ("MB/s, writes only", [present.interval(f.write_rate) for f in found]),
        ("jitter of the program (CV)", [known(f.jitter, lambda j: f"{j.cv:.2f}") for f in found]),
        ("jitter of the device (CV)", [known(f.device_jitter, lambda j: f"{j.cv:.2f}") for f in found]),
        ("p1 / p50 of the program", [known(f.jitter, lambda j: f"{j.p1_p50:.2f}") for f in found]),
        (
            "stalled, longest gap (s)",
            [known(f.jitter, lambda j: f"{j.stall_seconds:.1f}, {j.longest_gap_seconds:.1f}") for f in found],
        ),
        ("peak resident memory (kB)", [known(f.hwm_kb, "{:,}".format) for f in found]),
        ("private growth (kB)", [known(f.rss_anon_growth_kb, "{:,}".format) for f in found]),
        ("staging", [present.byte_count(f.arena_bytes) for f in found]),
        ("peak of the control group", [present.byte_count(f.cgroup_peak_bytes) for f in found]),
        ("drain after exit (s)", [known(f.drain_seconds, "{:.2f}".format) for f in found]),
        ("journal transactions", [known(f.journal_transactions, "{:,}".format) for f in found]),
    ]
    hosts = dict.fromkeys(host for f in found for host in f.hosts)
    lines += [(f"IOPS of {host}", [present.interval(f.hosts.get(host)) for f in found]) for host in hosts]
    return [(name, values) for name, values in lines if any(v != present.NONE for v in values)]


def _claim_counts(summary: Summary) -> dict[str, int]:
    counts: dict[str, int] = {}
    for row in summary.rows:
        for result in row.claims:
            if result.claim.own:
                continue
            counts[result.verdict] = counts.get(result.verdict, 0) + 1
    return counts


def _leg(sample: dict, experiment: Experiment | None) -> dict:
    """What the table of legs shows; experiment: None when the catalog no longer has it."""
    value = figure_of(sample, experiment.figure) if experiment and sample["kind"] == MEASURE else None
    figure = present.NONE
    if value is not None:
        figure = f"{present.number(value)} {experiment.figure_unit}"
    elif "kill" in sample:
        figure = f"lost {present.byte_count(sample['kill']['lost_bytes'])}"
    elif "rate_mb_s" in sample:
        figure = f"{present.number(sample['rate_mb_s'])} MB/s"
    done = sample.get("bytes") or (sample.get("kill") or {}).get("acked_bytes")
    return {
        "id": sample["leg"],
        "row": sample["experiment"] if experiment else "",
        "status": sample["status"],
        "figure": figure,
        "bytes": present.byte_count(done),
        "byte_count": done or 0,
        "seconds": f"{sample['seconds_with_sync']:.3f}" if "seconds_with_sync" in sample else present.NONE,
        "reason": sample.get("reason", ""),
        "started": sample["started"],
    }


def _downloads(settings: dict, summary: Summary, recorded: Sequence[dict]) -> list[tuple[str, str, str]]:
    """(file name, data address, size) of the data that the page carries; the series make samples large."""
    lines = "".join(json.dumps(s, separators=(",", ":")) + "\n" for s in recorded)
    results = json.dumps(outputs.summary_json(settings, summary), separators=(",", ":"))
    contents = {
        "samples.jsonl.gz": ("application/gzip", gzip.compress(lines.encode(), mtime=0)),
        "results.csv": ("text/csv", outputs.samples_csv(recorded).encode()),
        "results.json.gz": ("application/gzip", gzip.compress(results.encode(), mtime=0)),
    }
    return [
        (name, f"data:{kind};base64,{base64.b64encode(data).decode()}", present.byte_count(len(data)))
        for name, (kind, data) in contents.items()
    ]
