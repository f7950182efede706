# SPDX-License-Identifier: Apache-2.0
"""Pure functions from samples to statements. No input, no output, no clock.

Ratios are paired: pair i is (baseline_i, candidate_i) from one round, run next to each other, so that a
slow hour slows both. An interval holds the true value in 95 % of all runs. It is the inverse of a test: below six
values of Student's t test, from six on of Wilcoxon's signed-rank test, which outliers do not disturb but which cannot
reach 95 % with fewer. Positive values are judged by their logarithms. A verdict asks the interval and nothing
else, so that no table shows an interval that its verdict denies.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import scipy  # (its parts are loaded when they are first used, which most commands never do)

from harness.core.model import HIGHER, LOWER

CONFIDENCE = 0.95
SIGNIFICANCE = 0.05
PAIRS_MIN = 3
"""Two ratios that happen to be alike would look certain."""
RANKS_MIN = 6
"""Values from which Wilcoxon's signed-rank test can reach 5 %."""
MANN_WHITNEY_MIN = 4
"""Values per side from which that test can reach 5 %."""
POWER = 0.80
LOG_MAX = 700.0
"""Keeps the exponential of a hopeless interval finite."""
NOISE_CV = 0.10
STALL_SHARE = 0.10

FASTER, SLOWER, INCONCLUSIVE = "faster", "slower", "inconclusive"


@dataclass(frozen=True)
class Interval:
    """Median of a sample with its 95 % interval; low = high = median for a single value."""

    n: int
    median: float
    low: float
    high: float

    @property
    def known(self) -> bool:
        """Is there an interval at all?"""
        return self.n > 1


@dataclass(frozen=True)
class Comparison:
    """Candidate against baseline. ratio > 1 means that the candidate is the better one: its figure over the
    baseline's, or the baseline's over its where a lower figure is better (latencies, times).

    p -- of the test that the interval is the inverse of; detectable -- the smallest true ratio above 1 that would
    have been found with a probability of POWER (None: too few pairs for any)
    """

    n: int
    ratio: float
    low: float
    high: float
    p: float
    test: str
    verdict: str
    ratios: tuple[float, ...]
    detectable: float | None = None


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


def interval(values: Sequence[float]) -> Interval:
    """Median with its 95 % interval; ValueError for an empty sample."""
    if not values:
        raise ValueError("no samples")
    array = np.asarray(values, dtype=float)
    middle = float(np.median(array))
    if len(array) < 2 or np.ptp(array) == 0:
        return Interval(len(array), middle, middle, middle)
    positive = bool(array.min() > 0)
    low, high = _bounds(np.log(array) if positive else array)
    if positive:
        low, high = math.exp(low), math.exp(min(high, LOG_MAX))
    elif array.min() >= 0:
        low = max(low, 0.0)  # of counts and seconds, none of which is negative
    return Interval(len(array), middle, min(low, middle), max(high, middle))


def _bounds(array: np.ndarray) -> tuple[float, float]:
    """Ends of the interval for the middle of a symmetric distribution."""
    n = len(array)
    if n < RANKS_MIN:
        half = _quantile(n, (1 + CONFIDENCE) / 2) * float(np.std(array, ddof=1)) / math.sqrt(n)
        return float(np.mean(array)) - half, float(np.mean(array)) + half
    averages = np.sort((array[:, None] + array[None, :])[np.triu_indices(n)] / 2)
    cut = _signed_ranks_cut(n)
    return float(averages[cut]), float(averages[-1 - cut])


@functools.cache
def _quantile(n: int, level: float) -> float:
    """Student's t for n values."""
    return float(scipy.stats.t.ppf(level, n - 1))


@functools.cache
def _signed_ranks_cut(n: int) -> int:
    """How many of the sorted pairwise averages lie outside of the interval, at each end."""
    counts = np.ones(1)
    for rank in range(1, n + 1):  # in how many ways do the ranks of some of the values sum up to each number?
        longer = np.zeros(len(counts) + rank)
        longer[: len(counts)] += counts
        longer[rank:] += counts
        counts = longer / 2
    below = np.cumsum(counts)
    return int(np.searchsorted(below, (1 - CONFIDENCE) / 2, side="right")) - 1


@functools.cache
def _mann_whitney_cut(one: int, other: int) -> int:
    """The same for the sorted differences of two samples."""
    # ways[i] -- distribution of the statistic for i values of the first sample, as the second one grows
    ways = [np.ones(1) for _ in range(one + 1)]
    for _ in range(other):
        for i in range(1, one + 1):
            longer = np.zeros(max(len(ways[i]) + i, len(ways[i - 1])))
            longer[i : i + len(ways[i])] += ways[i]
            longer[: len(ways[i - 1])] += ways[i - 1]
            ways[i] = longer
    below = np.cumsum(ways[one]) / ways[one].sum()
    return int(np.searchsorted(below, (1 - CONFIDENCE) / 2, side="right")) - 1


def _detectable(n: int, low: float, high: float) -> float | None:
    """The ratio that the test would have found with a probability of POWER, given the interval's width."""
    if n < PAIRS_MIN:
        return None
    half = (math.log(high) - math.log(low)) / 2
    return math.exp(min(half * _widths_for_power(n), LOG_MAX))


@functools.cache
def _widths_for_power(n: int) -> float:
    """Half widths of an interval between 1 and a ratio that is found with a probability of POWER. The spread of a
    few values is more often below the true one than above; the median of that error is taken out."""
    limit = _quantile(n, (1 + CONFIDENCE) / 2)
    shift = scipy.optimize.brentq(lambda x: scipy.stats.nct.sf(limit, n - 1, x) - POWER, 0.1, 20)
    return float(shift) / limit / math.sqrt(scipy.stats.chi2.median(n - 1) / (n - 1))


def _verdict(pairs: int, low: float, high: float) -> str:
    if pairs < PAIRS_MIN or low <= 1 <= high:
        return INCONCLUSIVE
    return FASTER if low > 1 else SLOWER


def compare(baseline: Sequence[float], candidate: Sequence[float], better: str = HIGHER) -> Comparison:
    """Paired comparison of positive figures. ValueError unless there are equally many of each."""
    if len(baseline) != len(candidate) or not baseline:
        raise ValueError(f"{len(baseline)} and {len(candidate)} values do not make pairs")
    if min(*baseline, *candidate) <= 0:
        raise ValueError("ratios need positive figures")
    if better == LOWER:
        baseline, candidate = candidate, baseline
    ratios = [c / b for b, c in zip(baseline, candidate, strict=True)]
    found, logs = interval(ratios), np.log(ratios)
    ranks = len(ratios) >= RANKS_MIN
    test, p = ("wilcoxon", _wilcoxon(logs)) if ranks else ("paired t on log ratios", _paired_t(logs))
    return Comparison(
        len(ratios),
        found.median,
        found.low,
        found.high,
        p,
        test,
        _verdict(len(ratios), found.low, found.high),
        tuple(ratios),
        _detectable(len(ratios), found.low, found.high),
    )


def _wilcoxon(logs: np.ndarray) -> float:
    if not np.any(logs):
        return 1.0
    return float(scipy.stats.wilcoxon(logs).pvalue)


def _paired_t(logs: np.ndarray) -> float:
    if len(logs) < 2:
        return 1.0
    if np.ptp(logs) == 0:
        return 1.0 if logs[0] == 0 else 0.0
    return float(scipy.stats.ttest_1samp(logs, 0.0).pvalue)


def compare_independent(
    baseline: Sequence[float], candidate: Sequence[float], better: str = HIGHER
) -> Independent:
    """Positive figures of two sessions, which make no pairs. ValueError when a side is empty or not positive."""
    if not baseline or not candidate or min(*baseline, *candidate) <= 0:
        raise ValueError("ratios need positive figures on both sides")
    if better == LOWER:
        baseline, candidate = candidate, baseline
    ratio = float(np.median(candidate) / np.median(baseline))
    one, other = np.log(baseline), np.log(candidate)
    if min(len(one), len(other)) < MANN_WHITNEY_MIN:
        test, (p, low, high) = "Welch's t on logarithms", _welch(one, other)
    else:
        test, (p, low, high) = "Mann-Whitney", _mann_whitney(one, other)
    few = min(len(one), len(other))
    if few > 1:
        low, high = min(math.exp(low), ratio), max(math.exp(min(high, LOG_MAX)), ratio)
    else:
        low = high = ratio
    return Independent(ratio, low, high, p, test, _verdict(few, low, high))


def _mann_whitney(one: np.ndarray, other: np.ndarray) -> tuple[float, float, float]:
    """p, and the ends of the interval of the shift."""
    differences = np.sort((other[:, None] - one[None, :]).ravel())
    cut = _mann_whitney_cut(len(one), len(other))
    return float(scipy.stats.mannwhitneyu(one, other).pvalue), differences[cut], differences[-1 - cut]


def _welch(one: np.ndarray, other: np.ndarray) -> tuple[float, float, float]:
    """p, and the ends of the interval of the shift; of single values neither."""
    shift = float(np.mean(other) - np.mean(one))
    if len(one) < 2 or len(other) < 2:
        return 1.0, shift, shift
    if np.ptp(one) == 0 and np.ptp(other) == 0:
        return (1.0 if shift == 0 else 0.0), shift, shift
    found = scipy.stats.ttest_ind(other, one, equal_var=False)
    ends = found.confidence_interval(CONFIDENCE)
    return float(found.pvalue), float(ends.low), float(ends.high)


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
    rho, p = scipy.stats.spearmanr(range(len(values)), values)
    if p < 0.05 and abs(rho) > 0.8:
        return [f"{name}: figures {'rose' if rho > 0 else 'fell'} during the session (rho {rho:.2f})"]
    return []
