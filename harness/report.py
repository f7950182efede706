# SPDX-License-Identifier: Apache-2.0
"""The one self-contained page: tables, charts, samples, all inside; nothing is loaded from anywhere."""

from __future__ import annotations

import base64
import json
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

from jinja2 import Environment, FileSystemLoader, StrictUndefined

from harness import charts, outputs, present
from harness.model import Experiment
from harness.samples import Samples
from harness.summary import Summary

TEMPLATES = Path(__file__).resolve().parent / "templates"


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
    experiments = [row.experiment for row in summary.rows]
    return environment.get_template("report.html.j2").render(
        settings=settings,
        summary=summary,
        present=present,
        headers=present.HEADERS,
        headline=present.headline(summary.rows),
        claim_counts=_claim_counts(summary),
        claims=outputs.claim_cells(summary),
        charts=_charts(summary, samples, experiments),
        legs=[_leg(s) for s in recorded],
        downloads=_downloads(settings, summary, recorded),
        asdict=asdict,
    )


def _charts(summary: Summary, samples: Samples, experiments: Sequence[Experiment]) -> dict:
    over_time = [(e, charts.over_time(e, samples)) for e in experiments]
    return {
        "bars": charts.bars(summary.rows),
        "shares": charts.shares(summary.rows),
        "memory": charts.memory(summary.rows),
        "over_time": [(e, drawn) for e, drawn in over_time if drawn],
    }


def _claim_counts(summary: Summary) -> dict[str, int]:
    counts: dict[str, int] = {}
    for row in summary.rows:
        for result in row.claims:
            counts[result.verdict] = counts.get(result.verdict, 0) + 1
    return counts


def _leg(sample: dict) -> dict:
    """What the table of legs shows."""
    figure = present.NONE
    if "rate_mb_s" in sample:
        figure = f"{present.number(sample['rate_mb_s'])} MB/s"
    elif "kill" in sample:
        figure = f"lost {present.byte_count(sample['kill']['lost_bytes'])}"
    return {
        "id": sample["leg"],
        "status": sample["status"],
        "figure": figure,
        "bytes": present.byte_count(sample.get("bytes") or (sample.get("kill") or {}).get("acked_bytes")),
        "seconds": f"{sample['seconds_with_sync']:.3f}" if "seconds_with_sync" in sample else present.NONE,
        "reason": sample.get("reason", ""),
        "started": sample["started"],
    }


def _downloads(settings: dict, summary: Summary, recorded: Sequence[dict]) -> list[tuple[str, str, str]]:
    """(file name, data address, size) of the data that the page carries."""
    texts = {
        "samples.jsonl": (
            "application/x-ndjson",
            "\n".join(json.dumps(s, separators=(",", ":")) for s in recorded),
        ),
        "results.csv": ("text/csv", outputs.samples_csv(recorded)),
        "results.json": ("application/json", json.dumps(outputs.summary_json(settings, summary))),
    }
    out = []
    for name, (kind, text) in texts.items():
        data = text.encode()
        out.append(
            (name, f"data:{kind};base64,{base64.b64encode(data).decode()}", present.byte_count(len(data)))
        )
    return out
