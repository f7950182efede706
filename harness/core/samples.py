# SPDX-License-Identifier: Apache-2.0
"""Questions to a list of samples (the dicts of samples.jsonl). Pure."""

from __future__ import annotations

import itertools
import re
from collections.abc import Sequence

from harness.core import sampler, statistics
from harness.core.model import FAILED, MEASURE, OK, RATE, SKIPPED


class Samples:
    """A read-only view. `of` selects by experiment, kind and variant, in the order of recording."""

    def __init__(self, samples: Sequence[dict]) -> None:
        self.all = list(samples)

    def of(self, experiment: str, kind: str = "", variant: str = "", status: str = OK) -> list[dict]:
        return [
            s
            for s in self.all
            if s["experiment"] == experiment
            and (not kind or s["kind"] == kind)
            and (not variant or s["variant"] == variant)
            and (not status or s["status"] == status)
        ]

    def measured_cells(self, matrix: str, variant: str) -> list[dict]:
        """Measured legs of all rows of a matrix."""
        return [
            s
            for s in self.all
            if s.get("matrix") == matrix and (s["kind"], s["variant"], s["status"]) == (MEASURE, variant, OK)
        ]

    def failed(self) -> list[dict]:
        return [s for s in self.all if s["status"] == FAILED]

    def skipped(self) -> list[dict]:
        return [s for s in self.all if s["status"] == SKIPPED]

    def figures(self, experiment: str, variant: str, field: str = RATE) -> list[float]:
        """A field of measured legs (default: MB/s, final sync included); legs without it are left out."""
        return [v for s in self.of(experiment, MEASURE, variant) if (v := figure_of(s, field)) is not None]

    def paired(
        self, one: tuple[str, str], other: tuple[str, str], field: str = RATE, other_field: str = ""
    ) -> tuple[list[float], list[float]]:
        """Figures of two (experiment, variant) from the rounds in which both are positive."""
        ones = self._by_pair(*one, field)
        others = self._by_pair(*other, other_field or field)
        both = [p for p in ones if p in others]
        return [ones[p] for p in both], [others[p] for p in both]

    def pair_counts(self) -> str:
        """How many rounds the rows were measured in: "5", or "3 to 5" when they differ."""
        found: dict[str, dict[str, set[str]]] = {}
        for s in self.all:
            if (s["kind"], s["status"]) == (MEASURE, OK):
                found.setdefault(s["experiment"], {}).setdefault(s["variant"], set()).add(pair_of(s))
        counts = [len(set.intersection(*variants.values())) for variants in found.values()] or [0]
        least, most = min(counts), max(counts)
        return str(most) if least == most else f"{least} to {most}"

    def _by_pair(self, experiment: str, variant: str, field: str) -> dict[str, float]:
        found = {pair_of(s): figure_of(s, field) for s in self.of(experiment, MEASURE, variant)}
        return {pair: value for pair, value in found.items() if value is not None and value > 0}


def figure_of(sample: dict, field: str) -> float | None:
    """A field of a sample, from its top level or its outcome; None when it has no such field."""
    value = sample.get(field, (sample.get("outcome") or {}).get(field))
    return None if value is None else float(value)


_PERCENTILE = re.compile(r"(?:lat_)?p(\d\d)(\d*)_us")


def latencies(sample: dict) -> dict[float, float]:
    """Percentile -> microseconds, of what a tool reports as p50_us, lat_p99_us, lat_p999_us (99.9 %) ...; {} when
    it does not."""
    found = {}
    for name, value in (sample.get("outcome") or {}).items():
        if value is not None and (match := _PERCENTILE.fullmatch(name)):
            found[float(f"{match[1]}.{match[2] or 0}")] = float(value)
    return found


def pair_of(sample: dict) -> str:
    """Samples of one round of one run belong together."""
    return str(sample.get("pair", sample["round"]))


def device_column(sample: dict) -> str:
    """The disk counter that a leg moves."""
    reads = (sample.get("outcome") or {}).get("direction") == "read"
    return "read_sectors" if reads else "written_sectors"


def app_series(sample: dict) -> tuple[list[float], list[float]]:
    """(seconds, bytes whose write had returned) while the program wrote; empty when it does not tell."""
    return _inside(sample, "app_bytes", 1, _write_end(sample))


def device_series(sample: dict) -> tuple[list[float], list[float]]:
    """(seconds, bytes moved by the device) while the program was writing or syncing."""
    return _inside(sample, device_column(sample), sampler.SECTOR_BYTES, _end(sample))


def app_curve(sample: dict) -> tuple[list[float], list[float]]:
    """app_series from its true beginning to its true end, for drawing. Ticks that stand too close to an end
    give way to it: an interval of some milliseconds has no meaningful rate."""
    times, values = app_series(sample)
    end, total = _write_end(sample), sample.get("bytes")
    if len(times) < 2 or total is None or total < values[-1]:
        return times, values
    least = (times[-1] - times[0]) / (len(times) - 1) / 2
    inner = [(t, v) for t, v in zip(times, values, strict=True) if least <= t <= end - least]
    return [0.0, *(t for t, _ in inner), end], [0, *(v for _, v in inner), total]


def _end(sample: dict) -> float:
    return (sample.get("series") or {}).get("end", 0.0)


def _write_end(sample: dict) -> float:
    """The last write's end; behind it there is only the final sync."""
    return min(_end(sample), sample.get("seconds", _end(sample)))


def _inside(sample: dict, column: str, factor: int, end: float) -> tuple[list[float], list[float]]:
    series = sample.get("series") or {}
    if column not in series:
        return [], []
    times, values = sampler.window(series, column, 0.0, end)
    return times, [v * factor for v in values]


def bandwidth(series: tuple[list[float], list[float]]) -> tuple[list[float], list[float]]:
    """Counter -> (middle of each interval, MB/s)."""
    times, counts = series
    middles = [(a + b) / 2 for a, b in itertools.pairwise(times) if b > a]
    return middles, [r / 1e6 for r in statistics.rates(times, counts)]


def cpu_share(sample: dict, cpus: int) -> float | None:
    """Processor time of the program over what the machine had (the kernel's own write-back not counted)."""
    raw = sample.get("outcome") or {}
    if "user_seconds" not in raw or not sample.get("seconds_with_sync"):
        return None
    return (raw["user_seconds"] + raw["system_seconds"]) / (sample["seconds_with_sync"] * cpus)
