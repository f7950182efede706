# SPDX-License-Identifier: Apache-2.0
"""From the samples of a run to its rows: figures per variant, comparison, kill, memory, claims. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from harness.core import noise, statistics
from harness.core.model import (
    CONTROL,
    FAILED,
    KILL,
    MEASURE,
    MEMORY,
    NATIVE,
    OK,
    RATE,
    SHIM,
    SKIPPED,
    Experiment,
)
from harness.core.samples import Samples, app_series, device_series
from harness.report import judge

SHORT_SECONDS = 0.05
NAMED_MAX = 3


@dataclass(frozen=True)
class Figures:
    """Measured legs of one variant. figure: the experiment's main one, in its unit. rate: MB/s with the final
    sync, write_rate without it (None for a leg that does not write). Memory: worst leg. hosts: IOPS of each
    host of a leg that ran on several."""

    n: int
    figure: statistics.Interval
    rate: statistics.Interval | None
    write_rate: statistics.Interval | None
    jitter: statistics.Jitter | None
    device_jitter: statistics.Jitter | None
    hwm_kb: int | None
    rss_anon_growth_kb: int | None
    arena_bytes: int | None
    footprint_mb: float | None
    cgroup_peak_bytes: int | None
    drain_seconds: float | None
    journal_transactions: int | None
    legs: tuple[str, ...]
    hosts: Mapping[str, statistics.Interval] = field(default_factory=dict)


@dataclass(frozen=True)
class Kills:
    """Bytes over all kills of one variant."""

    kills: int
    failed: int
    acked_bytes: int
    lost_bytes: int
    worst_lost_bytes: int
    allowed_bytes: int
    in_batch_bytes: int
    legs: tuple[str, ...]


@dataclass(frozen=True)
class Limited:
    """The memory-limited legs of one variant."""

    status: str
    reason: str
    rate: float | None
    peak_bytes: int | None
    limit_bytes: int | None
    legs: tuple[str, ...]


@dataclass(frozen=True)
class Row:
    """One experiment as it is reported. comparisons: every other variant against native; `compared` names the
    one that the row is about."""

    experiment: Experiment
    status: str
    reasons: tuple[str, ...]
    figures: dict[str, Figures]
    comparisons: dict[str, statistics.Comparison]
    compared: str
    kills: dict[str, Kills]
    limited: dict[str, Limited]
    claims: tuple[judge.ClaimResult, ...]
    verdict: str
    verdict_reason: str
    legs: tuple[str, ...]

    @property
    def comparison(self) -> statistics.Comparison | None:
        return self.comparisons.get(self.compared)


@dataclass(frozen=True)
class Summary:
    """A run: rows in catalog order, warnings, and counts of legs by status."""

    rows: tuple[Row, ...]
    warnings: tuple[str, ...]
    counts: dict[str, int]
    bytes_verified: int

    @property
    def failed(self) -> bool:
        return self.counts[FAILED] > 0


def summarize(experiments: Sequence[Experiment], recorded: Sequence[dict], scale: str, cpus: int) -> Summary:
    samples = Samples(recorded)
    rows = tuple(_row(e, samples, scale, cpus) for e in experiments if samples.of(e.id, status=""))
    counts = {status: sum(s["status"] == status for s in recorded) for status in (OK, FAILED, SKIPPED)}
    verified = sum((s.get("verification") or {}).get("verified_bytes", 0) for s in recorded)
    warnings = (*noise.warnings(recorded, cpus), *_warnings(rows, samples))
    return Summary(rows, warnings, counts, verified)


def _row(experiment: Experiment, samples: Samples, scale: str, cpus: int) -> Row:
    mine = samples.of(experiment.id, status="")
    bad = [s for s in mine if s["status"] == FAILED]
    skipped = [s for s in mine if s["status"] == SKIPPED]
    status = FAILED if bad else OK if len(skipped) < len(mine) else SKIPPED
    reasons = [f"{s['leg']}: {s['reason']}" for s in bad]
    reasons += sorted({f"{s['variant']} {s['kind']} skipped: {s['reason']}" for s in skipped})
    compared = CONTROL if CONTROL in experiment.variants else SHIM
    results = [judge.judge(experiment, c, samples, scale, cpus) for c in experiment.claims]
    verdict, reason = judge.overall(results)
    return Row(
        experiment=experiment,
        status=status,
        reasons=tuple(reasons),
        figures={v: f for v in experiment.variants if (f := _figures(experiment, samples, v))},
        comparisons={
            v: c for v in experiment.variants if v != NATIVE and (c := _comparison(experiment, v, samples))
        },
        compared=compared,
        kills={v: k for v in experiment.variants if (k := _kills(samples.of(experiment.id, KILL, v, "")))},
        limited={
            v: m for v in experiment.variants if (m := _limited(samples.of(experiment.id, MEMORY, v, "")))
        },
        claims=tuple(results),
        verdict=verdict,
        verdict_reason=reason,
        legs=tuple(s["leg"] for s in mine),
    )


def _figures(experiment: Experiment, samples: Samples, variant: str) -> Figures | None:
    found = samples.of(experiment.id, MEASURE, variant)
    values = samples.figures(experiment.id, variant, experiment.figure)
    if not values:
        return None
    rates, write_rates = (samples.figures(experiment.id, variant, f) for f in (RATE, "write_rate_mb_s"))
    return Figures(
        n=len(found),
        figure=statistics.interval(values),
        rate=statistics.interval(rates) if rates else None,
        write_rate=statistics.interval(write_rates) if write_rates else None,
        jitter=_typical([statistics.jitter(*app_series(s)) for s in found]),
        device_jitter=_typical([statistics.jitter(*device_series(s)) for s in found]),
        hwm_kb=_worst(found, "vm_hwm_kb"),
        rss_anon_growth_kb=_worst(found, "rss_anon_growth_kb"),
        arena_bytes=_worst(found, "arena_bytes"),
        footprint_mb=_worst(found, "footprint_mb"),
        cgroup_peak_bytes=_worst(found, "cgroup_peak_bytes"),
        drain_seconds=_largest(found, "drain_seconds"),
        journal_transactions=_largest(found, "journal_transactions"),
        legs=tuple(s["leg"] for s in found),
        hosts=_hosts(found),
    )


def _hosts(found: list[dict]) -> dict[str, statistics.Interval]:
    """IOPS by host over the legs that name it."""
    told = [(s.get("outcome") or {}).get("hosts") or {} for s in found]
    names = dict.fromkeys(name for hosts in told for name in hosts)
    return {n: statistics.interval([hosts[n]["iops"] for hosts in told if n in hosts]) for n in names}


def _typical(jitters: list[statistics.Jitter | None]) -> statistics.Jitter | None:
    """Medians over the legs, except the longest gap, which is the worst."""
    known = [j for j in jitters if j]
    if not known:
        return None
    return statistics.Jitter(
        n=sum(j.n for j in known),
        cv=statistics.interval([j.cv for j in known]).median,
        p1_p50=statistics.interval([j.p1_p50 for j in known]).median,
        stall_seconds=statistics.interval([j.stall_seconds for j in known]).median,
        longest_gap_seconds=max(j.longest_gap_seconds for j in known),
    )


def _worst(found: list[dict], key: str):
    return _largest([s.get("memory") or {} for s in found], key)


def _largest(found: list[dict], key: str):
    return max((s[key] for s in found if s.get(key) is not None), default=None)


def _comparison(experiment: Experiment, variant: str, samples: Samples) -> statistics.Comparison | None:
    name = experiment.id
    native, other = samples.paired((name, NATIVE), (name, variant), experiment.figure)
    return statistics.compare(native, other, better=experiment.figure_better) if native else None


def _kills(found: list[dict]) -> Kills | None:
    found = [s for s in found if s["status"] != SKIPPED]
    if not found:
        return None
    told = [s["kill"] for s in found if "kill" in s]
    return Kills(
        kills=len(found),
        failed=sum(s["status"] == FAILED for s in found),
        acked_bytes=sum(k["acked_bytes"] for k in told),
        lost_bytes=sum(k["lost_bytes"] for k in told),
        worst_lost_bytes=max((k["lost_bytes"] for k in told), default=0),
        allowed_bytes=sum(k["allowed_bytes"] for k in told),
        in_batch_bytes=sum(k["in_batch_bytes"] for k in told),
        legs=tuple(s["leg"] for s in found),
    )


def _limited(found: list[dict]) -> Limited | None:
    """All of the memory-limited legs: the median rate, the highest peak; failed when one is."""
    if not found:
        return None
    worst = next((s for s in found if s["status"] == FAILED), found[-1])
    memories = [s.get("memory") or {} for s in found]
    rates = [s["rate_mb_s"] for s in found if "rate_mb_s" in s]
    return Limited(
        worst["status"],
        worst.get("reason", ""),
        statistics.median(rates) if rates else None,
        _largest(memories, "cgroup_peak_bytes"),
        memories[-1].get("limit_bytes"),
        tuple(s["leg"] for s in found),
    )


def _warnings(rows: Sequence[Row], samples: Samples) -> list[str]:
    found: list[str] = []
    single: list[str] = []
    short: list[str] = []
    for row in rows:
        for variant in row.figures:
            values = samples.figures(row.experiment.id, variant, row.experiment.figure)
            name = f"{row.experiment.id} {variant}"
            seconds = samples.figures(row.experiment.id, variant, "seconds_with_sync")
            if seconds and statistics.median(seconds) < SHORT_SECONDS:
                short.append(name)
            if len(values) == 1:
                single.append(name)
            else:
                found += statistics.noise_warnings(name, values) + statistics.drift_warning(name, values)
        comparison = row.comparison
        if comparison and row.compared == CONTROL and comparison.verdict != statistics.INCONCLUSIVE:
            found.append(
                f"{row.experiment.id}: the A/A control says '{comparison.verdict}' ({comparison.ratio:.3f}) "
                "for two identical legs; read differences of that size as noise"
            )
    if single:
        found.append(f"single samples have no spread: {_named(single)}")
    if short:
        found.append(
            f"legs of less than {SHORT_SECONDS * 1000:.0f} ms mostly measure their own start; use a larger "
            f"--scale: {_named(short)}"
        )
    return found


def _named(names: Sequence[str]) -> str:
    more = f" and {len(names) - NAMED_MAX} more" if len(names) > NAMED_MAX else ""
    return ", ".join(names[:NAMED_MAX]) + more
