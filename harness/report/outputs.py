# SPDX-License-Identifier: Apache-2.0
"""The result files beside the page: results.json, results.csv (one line per leg), results.md (the tables)."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

from harness.core.samples import Samples
from harness.report import present, variant_table
from harness.report.summary import Row, Summary

CSV_FIELDS = (
    "leg", "experiment", "kind", "variant", "round", "status", "reason", "started", "bytes", "seconds",
    "seconds_with_sync", "rate_mb_s", "write_rate_mb_s", "drain_seconds", "journal_transactions", "vm_hwm_kb",
    "rss_anon_growth_kb", "arena_bytes", "cgroup_peak_bytes", "acked_bytes", "lost_bytes", "verified_bytes",
    "iops", "lat_mean_us", "lat_p50_us", "lat_p95_us", "lat_p99_us", "lat_p999_us", "lat_p9999_us",
    "dirty_after_exit_bytes",
)  # fmt: skip
CLAIM_HEADERS = (
    "row", "claim", "in the article", "its figure", "ours", "direction", "size", "verdict", "reason",
)  # fmt: skip


def samples_csv(samples: Sequence[dict]) -> str:
    """One line per leg, CSV_FIELDS; empty where a leg has no such figure."""
    out = io.StringIO()
    writer = csv.DictWriter(out, CSV_FIELDS, extrasaction="ignore", lineterminator="\n")
    writer.writeheader()
    for sample in samples:
        flat = {
            **(sample.get("outcome") or {}),
            **(sample.get("verification") or {}),
            **(sample.get("memory") or {}),
            **(sample.get("kill") or {}),
        }
        writer.writerow({**flat, **{k: v for k, v in sample.items() if k in CSV_FIELDS}})
    return out.getvalue()


def summary_json(settings: dict, summary: Summary) -> dict:
    """Everything that the tables show, by name; every figure with the ids of its legs."""
    return {
        "settings": settings,
        "counts": summary.counts,
        "bytes_verified": summary.bytes_verified,
        "warnings": list(summary.warnings),
        "rows": [_row(row) for row in summary.rows],
    }


def _row(row: Row) -> dict:
    out = asdict(row)
    out["experiment"] = {
        "id": row.experiment.id,
        "title": row.experiment.title,
        "published": asdict(row.experiment.published),
        "shim_role": row.experiment.shim_role,
    }
    return out


def markdown(settings: dict, summary: Summary, samples: Sequence[dict]) -> str:
    """The tables for a README or an issue."""
    environment = settings["environment"]
    pairs = Samples(samples).pair_counts()
    lines = [
        f"# Suite {settings['suite']}, scale {settings['scale']}",
        "",
        f"{environment['kernel']}, {environment['cpus']} processors, {environment['filesystem']} on "
        f"{environment['device']}, {settings['started']}. Rates in MB/s, final sync included; median "
        f"[95 % interval] over {pairs} interleaved pairs. {summary.counts['ok']} legs verified "
        f"byte for byte ({present.byte_count(summary.bytes_verified)}), {summary.counts['failed']} failed, "
        f"{summary.counts['skipped']} skipped.",
        "",
        *present.markdown_table(present.HEADERS, [present.cells(row) for row in summary.rows]),
        "",
        *variant_table.markdown(summary.rows, Samples(samples)),
        "## Claims",
        "",
        *present.markdown_table(CLAIM_HEADERS, claim_cells(summary.rows)),
    ]
    for title, found in (("Failures and skips", _reasons(summary)), ("Warnings", list(summary.warnings))):
        if found:
            lines += ["", f"## {title}", "", *(f"- {line}" for line in found)]
    return "\n".join(lines) + "\n"


def claim_cells(rows: Sequence[Row]) -> list[tuple[str, ...]]:
    """A line of CLAIM_HEADERS for every claim."""
    return [(row.experiment.id, *present.claim_cells(result)) for row in rows for result in row.claims]


def _reasons(summary: Summary) -> list[str]:
    return list(dict.fromkeys(reason for row in summary.rows for reason in row.reasons))


def write_all(
    directory: Path, settings: dict, summary: Summary, samples: Sequence[dict], page: str
) -> list[Path]:
    """Write every result file; returns their paths."""
    texts = {
        "results.json": json.dumps(summary_json(settings, summary), indent=1) + "\n",
        "results.csv": samples_csv(samples),
        "results.md": markdown(settings, summary, samples),
        "report.html": page,
    }
    for name, text in texts.items():
        (directory / name).write_text(text, encoding="utf-8", errors="backslashreplace")
    return [directory / name for name in texts]
