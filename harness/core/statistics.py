# SPDX-License-Identifier: Apache-2.0
"""Pure functions from samples to statements. No input, no output, no clock.

Ratios are paired: pair i is (baseline_i, candidate_i) from one round, run next to each other, so that a
slow hour slows both. The median ratio carries a BCa bootstrap interval; Wilcoxon's signed-rank test on
the log ratios says whether the sign could be chance. Below six pairs that test cannot reach 5 %
whatever the data, and a paired t test on the log ratios decides instead (and is named).
"""

from __future__ import annotations

import itertools
import math
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from scipy import stats

from harness.core.model import HIGHER, LOWER

CONFIDENCE = 0.95
SIGNIFICANCE = 0.05
PAIRS_MIN = 3
"""Two ratios that happen to be alike would look certain."""
WILCOXON_PAIRS_MIN = 6
MANN_WHITNEY_MIN = 4
"""Values per side from which that test can reach 5 %."""
RESAMPLES = 4999
NOISE_CV = 0.10
STALL_SHARE = 0.10

FASTER, SLOWER, INCONCLUSIVE = "faster", "slower", "inconclusive"


@dataclass(frozen=True)
class Interval:
    """Median of a sample with its interval; low = high = median for a single value."""

    n: int
    median: float
    low: float
    high: float


@dataclass(frozen=True)
class Comparison:
    """Candidate against baseline. ratio > 1 means that the candidate is the better one: its figure over the
    baseline's, or the baseline's over its where a lower figure is better (latencies, times)."""

    n: int
    ratio: float
    low: float
    high: float
    p_wilcoxon: float
    p_decision: float
    test: str
    verdict: str
    ratios: tuple[float, ...]


@dataclass(frozen=True)
class Independent:
    """Two unpaired samples: ratio of their medians, above 1 when the second is the better one."""

    ratio: float
    low: float
    high: float
    p: float
    test: str
    verdict: str


@dataclass(frozen=True)
class Jitter:
    """How even a bandwidth series is. Rates are per sampling interval.

    cv -- standard deviation over mean;  p1_p50 -- first percentile over median (1 = even)
    stall_seconds -- time below a tenth of the median;  longest_gap_seconds -- longest run of no progress
    """

    n: int
    cv: float
    p1_p50: float
    stall_seconds: float
    longest_gap_seconds: float


def median(values: Sequence[float]) -> float:
    return float(np.median(values))


def interval(values: Sequence[float], seed: int = 0) -> Interval:
    """Median with a 95 % BCa bootstrap interval; ValueError for an empty sample."""
    if not values:
        raise ValueError("no samples")
    array = np.asarray(values, dtype=float)
    middle = float(np.median(array))
    if len(array) < 2 or np.ptp(array) == 0:
        return Interval(len(array), middle, middle, middle)
    low, high = _bootstrap((array,), np.median, seed)
    # In samples of a few values the correction can push an end past the median itself.
    low, high = max(min(low, middle), array.min()), min(max(high, middle), array.max())
    return Interval(len(array), middle, float(low), float(high))


def _bootstrap(data: tuple[np.ndarray, ...], statistic: Callable, seed: int) -> tuple[float, float]:
    """BCa where it is defined; percentile where the jackknife of a tiny sample degenerates. A sample of one
    value has nothing to draw from: then all values are what the interval reaches over."""
    if any(len(array) < 2 for array in data):
        return _extremes(data, statistic)
    for method in ("BCa", "percentile"):
        with warnings.catch_warnings(), np.errstate(all="ignore"):
            warnings.simplefilter("ignore")
            found = stats.bootstrap(
                data,
                statistic,
                confidence_level=CONFIDENCE,
                n_resamples=RESAMPLES,
                method=method,
                rng=np.random.default_rng(seed),
            ).confidence_interval
        if math.isfinite(found.low) and math.isfinite(found.high):
            return float(found.low), float(found.high)
    return _extremes(data, statistic)


def _extremes(data: tuple[np.ndarray, ...], statistic: Callable) -> tuple[float, float]:
    """Smallest and largest value of the statistic over the ends of the samples."""
    ends = itertools.product(*(([array.min()], [array.max()]) for array in data))
    found = [float(statistic(*one_of_each)) for one_of_each in ends]
    return min(found), max(found)


def compare(
    baseline: Sequence[float], candidate: Sequence[float], seed: int = 0, better: str = HIGHER
) -> Comparison:
    """Paired comparison of positive figures. ValueError unless there are equally many of each."""
    if len(baseline) != len(candidate) or not baseline:
        raise ValueError(f"{len(baseline)} and {len(candidate)} values do not make pairs")
    if min(*baseline, *candidate) <= 0:
        raise ValueError("ratios need positive figures")
    if better == LOWER:
        baseline, candidate = candidate, baseline
    ratios = [c / b for b, c in zip(baseline, candidate, strict=True)]
    middle = interval(ratios, seed)
    logs = np.log(ratios)
    p_wilcoxon = _wilcoxon(logs)
    test, p_decision = "wilcoxon", p_wilcoxon
    if len(ratios) < WILCOXON_PAIRS_MIN:
        test, p_decision = "paired t on log ratios", _paired_t(logs)
    verdict = INCONCLUSIVE
    certain = len(ratios) >= PAIRS_MIN and p_decision < SIGNIFICANCE
    if certain and middle.low > 1:
        verdict = FASTER
    elif certain and middle.high < 1:
        verdict = SLOWER
    return Comparison(
        len(ratios),
        middle.median,
        middle.low,
        middle.high,
        p_wilcoxon,
        p_decision,
        test,
        verdict,
        tuple(ratios),
    )


def _wilcoxon(logs: np.ndarray) -> float:
    if not np.any(logs):
        return 1.0
    return float(stats.wilcoxon(logs).pvalue)


def _paired_t(logs: np.ndarray) -> float:
    if len(logs) < 2:
        return 1.0
    if np.ptp(logs) == 0:
        return 1.0 if logs[0] == 0 else 0.0
    return float(stats.ttest_1samp(logs, 0.0).pvalue)


def compare_independent(
    baseline: Sequence[float], candidate: Sequence[float], seed: int = 0, better: str = HIGHER
) -> Independent:
    """Positive figures of two sessions, which make no pairs. ValueError when a side is empty or not positive."""
    if not baseline or not candidate or min(*baseline, *candidate) <= 0:
        raise ValueError("ratios need positive figures on both sides")
    one, other = np.asarray(baseline, dtype=float), np.asarray(candidate, dtype=float)
    if better == LOWER:
        one, other = other, one
    ratio = float(np.median(other) / np.median(one))
    low, high = _bootstrap((one, other), _ratio_of_medians, seed)
    low, high = min(low, ratio), max(high, ratio)
    test, p = "Mann-Whitney", float(stats.mannwhitneyu(one, other).pvalue)
    if min(len(one), len(other)) < MANN_WHITNEY_MIN:
        test, p = "Welch's t on logarithms", _welch(np.log(one), np.log(other))
    verdict = INCONCLUSIVE
    certain = min(len(one), len(other)) >= PAIRS_MIN and p < SIGNIFICANCE
    if certain and low > 1:
        verdict = FASTER
    elif certain and high < 1:
        verdict = SLOWER
    return Independent(ratio, low, high, p, test, verdict)


def _ratio_of_medians(one, other, axis=-1):
    return np.median(other, axis=axis) / np.median(one, axis=axis)


def _welch(one: np.ndarray, other: np.ndarray) -> float:
    if len(one) < 2 or len(other) < 2:
        return 1.0
    if np.ptp(one) == 0 and np.ptp(other) == 0:
        return 1.0 if one[0] == other[0] else 0.0
    return float(stats.ttest_ind(one, other, equal_var=False).pvalue)


def rates(times: Sequence[float], counts: Sequence[float]) -> list[float]:
    """Counter samples -> rates per second between neighbours; steps of no time are left out."""
    out = []
    for i in range(1, len(times)):
        step = times[i] - times[i - 1]
        if step > 0:
            out.append((counts[i] - counts[i - 1]) / step)
    return out


def jitter(times: Sequence[float], counts: Sequence[float]) -> Jitter | None:
    """Evenness of a counter's growth; None for fewer than three intervals."""
    found = rates(times, counts)
    if len(found) < 3 or np.mean(found) <= 0:
        return None
    array = np.asarray(found)
    steps = np.diff(times)
    steps = steps[steps > 0]
    middle = float(np.median(array))
    cv = float(np.std(array, ddof=1) / np.mean(array))
    p1_p50 = float(np.percentile(array, 1)) / middle if middle > 0 else 0.0
    stalled = float(steps[array < STALL_SHARE * middle].sum()) if middle > 0 else 0.0
    return Jitter(len(found), cv, p1_p50, stalled, _longest_gap(array, steps))


def _longest_gap(array: np.ndarray, steps: np.ndarray) -> float:
    longest = current = 0.0
    for rate, step in zip(array, steps, strict=True):
        current = current + step if rate <= 0 else 0.0
        longest = max(longest, current)
    return float(longest)


def noise_warnings(name: str, values: Sequence[float]) -> list[str]:
    """What a careful reader should know about a sample before trusting its median."""
    found = []
    if len(values) < 2:
        return []
    array = np.asarray(values, dtype=float)
    cv = float(np.std(array, ddof=1) / np.mean(array)) if np.mean(array) > 0 else 0.0
    if cv > NOISE_CV:
        found.append(
            f"{name}: samples spread by {cv:.0%} (standard deviation over mean, limit {NOISE_CV:.0%})"
        )
    if array.min() > 0 and array.max() / array.min() > 1.5:
        found.append(
            f"{name}: slowest and fastest sample differ by a factor of {array.max() / array.min():.2f}"
        )
    return found


def drift_warning(name: str, values: Sequence[float]) -> list[str]:
    """A trend over the session (Spearman), which pairing removes from ratios but not from plain figures."""
    if len(values) < 5:
        return []
    rho, p = stats.spearmanr(range(len(values)), values)
    if p < 0.05 and abs(rho) > 0.8:
        return [f"{name}: figures {'rose' if rho > 0 else 'fell'} during the session (rho {rho:.2f})"]
    return []
