# SPDX-License-Identifier: Apache-2.0
"""How often are the verdicts wrong, and how often do they miss what is there?  Legs with a known effect, judged by
the code that judges a run.  `python tests/harness/simulation.py` prints the tables of docs/laboratory.md.

Noise: each leg's figure spreads by 10 % (log-normal).  Heavy tails: besides, one leg in ten runs at half its speed.
"""

from __future__ import annotations

import functools
import math
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from unittest.mock import patch

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parent.parent.parent))

from harness.core import statistics
from harness.core.model import Claim
from harness.report import judge

RUNS = 2000
EFFECTS = (1.0, 1.1, 1.3, 2.0)
PAIRS = (3, 5, 7)
NOISE = ("even", "heavy tails")
SPREAD, SLOW_SHARE, SLOW_FACTOR = 0.10, 0.10, 0.5
CLAIMS = {
    "faster": Claim("faster", "ratio", low=1.0, neutral=1.0),
    "1.3 times": Claim("1.3 times", "ratio", low=1.15, high=1.5, neutral=1.0),
    "2 times": Claim("2 times", "ratio", low=1.5, high=2.67, neutral=1.0),
    "about the same": Claim("about the same", "ratio", low=0.75, high=1.33, neutral=1.0),
}
"""Article's words -> claim."""


def _figures(rng: np.random.Generator, shape: tuple[int, int], noise: str) -> np.ndarray:
    figures = rng.lognormal(0.0, SPREAD, shape)
    if noise == "heavy tails":
        figures *= np.where(rng.random(shape) < SLOW_SHARE, SLOW_FACTOR, 1.0)
    return figures


@functools.cache
def comparisons(effect: float, pairs: int, noise: str, runs: int = RUNS) -> Sequence[statistics.Comparison]:
    """So many comparisons of programs of which the second is `effect` times as fast."""
    rng = np.random.default_rng([int(effect * 100), pairs, NOISE.index(noise)])
    baseline = _figures(rng, (runs, pairs), noise)
    candidate = effect * _figures(rng, (runs, pairs), noise)
    # (the interval decides, and says all that p does; p takes five times as long)
    with patch.object(statistics, "_paired_t", _unknown), patch.object(statistics, "_wilcoxon", _unknown):
        return [statistics.compare(list(b), list(c)) for b, c in zip(baseline, candidate, strict=True)]


def _unknown(_: np.ndarray) -> float:
    return math.nan


def rates(effect: float, pairs: int, noise: str, runs: int = RUNS) -> dict[str, float]:
    """Of comparisons: share of verdicts that are false, of those that miss the effect, of intervals that miss it."""
    found = comparisons(effect, pairs, noise, runs)
    right = statistics.FASTER if effect > 1 else statistics.INCONCLUSIVE
    verdicts = Counter(c.verdict for c in found)
    missed = verdicts[statistics.INCONCLUSIVE] if effect > 1 else 0
    outside = sum(not c.low <= effect <= c.high for c in found)
    return {
        "false": (len(found) - verdicts[right] - missed) / len(found),
        "missed": missed / len(found),
        "outside": outside / len(found),
    }


def _wrong(claim: Claim, effect: float, direction: str, size: str) -> bool:
    """Does either answer say something that the true effect denies?"""
    exact = statistics.Interval(2, effect, effect, effect)
    true_size = judge.size_of(claim, exact)
    no_effect = 1 / (1 + judge.NO_EFFECT_SHARE) <= effect <= 1 + judge.NO_EFFECT_SHARE
    says = {judge.SAME: effect > 1, judge.OPPOSITE: effect < 1, judge.NO_EFFECT: no_effect}
    return not says.get(direction, True) or size not in (judge.OPEN, true_size)


def claim_rates(claim: Claim, effect: float, pairs: int, noise: str, runs: int = RUNS) -> dict[str, float]:
    """Of claims: share of each verdict, of those with a false answer ("false"), and of medians inside the band,
    which is what the laboratory once called "reproduces" ("median")."""
    low, high = judge._band(claim)
    found: Counter[str] = Counter()
    for c in comparisons(effect, pairs, noise, runs):
        ours = statistics.Interval(c.n, c.ratio, c.low, c.high)
        direction, size = judge.direction_of(claim, ours), judge.size_of(claim, ours)
        found[judge._verdict(claim, direction, size)[0]] += 1
        found["false"] += _wrong(claim, effect, direction, size)
        found["median"] += low <= c.ratio <= high
    return {name: found[name] / runs for name in (*judge.VERDICTS, "false", "median")}


def tables(runs: int = RUNS) -> Iterator[str]:
    """Lines of Markdown."""

    def percent(value: float) -> str:
        return f"{100 * value:.1f}"

    columns = [(noise, pairs) for noise in NOISE for pairs in PAIRS]
    heads = [f"{noise}, {pairs} pairs" for noise, pairs in columns]
    yield f"| comparison, % of {runs:,} | " + " | ".join(heads) + " |"
    yield "|---|" + "---|" * len(columns)
    lines = [("no effect: *faster* or *slower*", 1.0, "false")]
    lines += [(f"{effect:g} ×: missed", effect, "missed") for effect in EFFECTS[1:]]
    lines += [(f"{effect:g} ×: the interval does not hold it", effect, "outside") for effect in EFFECTS]
    for text, effect, key in lines:
        cells = (percent(rates(effect, pairs, noise, runs)[key]) for noise, pairs in columns)
        yield f"| {text} | " + " | ".join(cells) + " |"
    yield ""
    yield "| claim | true effect | pairs | false answer | reproduces | stronger | weaker | contradicts | not decided | *median in the band* |"  # noqa: E501
    yield "|---|---|---|---|---|---|---|---|---|---|"
    shown = (
        "false",
        judge.REPRODUCES,
        judge.STRONGER,
        judge.WEAKER,
        judge.CONTRADICTS,
        judge.UNDECIDED,
        "median",
    )
    for name, claim in CLAIMS.items():
        for effect in EFFECTS:
            for pairs in PAIRS:
                found = claim_rates(claim, effect, pairs, "even", runs)
                cells = " | ".join(percent(found[key]) for key in shown)
                yield f"| {name} | {effect:g} × | {pairs} | {cells} |"


if __name__ == "__main__":
    print("\n".join(tables()))
