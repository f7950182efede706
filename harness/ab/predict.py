# SPDX-License-Identifier: Apache-2.0
"""From a calibration to a predicted ratio with its interval. Pure.

A round is the command natively (W seconds), its calls replayed natively (N) and under the rule (S), one after the
other, so that a slow minute slows all three. The rule saves the share f = (N − S) / W of the command's time, and the
ratio of times is 1 / (1 − f). What is not known exactly:

- f, from few rounds: Student's t with their degrees of freedom;
- whether the replay stands for the program: a share of f, evenly distributed, of at least MODEL_SHARE, or what the
  replay's native time differs from the command's if that is more;
- what the median of the pairs that are predicted will scatter by: as N does beside W in the same round.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

MODEL_SHARE = 0.20
"""By how much the replay's saving was seen to be off (processor time, quiet rounds: 13 and 17 %), rounded up."""
DRAWS = 20_000
SAVED_MAX = 0.99
SCATTER_MIN = 0.01
"""Machines that seem to scatter less in a few runs have not been looked at for long enough."""
MEDIAN_FACTOR = math.sqrt(math.pi / 2)
"""Standard error of a median over that of a mean, of normal values."""


@dataclass(frozen=True)
class Prediction:
    """ratio: native time over time under the rule, with a 95 % interval for the median of `pairs` measured pairs.

    native_seconds: W; saved: the share f; residual: by which share N differs from W; scatter: of one pair.
    """

    ratio: float
    low: float
    high: float
    native_seconds: float
    saved: float
    residual: float
    scatter: float
    pairs: int

    def covers(self, ratio: float) -> bool:
        return self.low <= ratio <= self.high


def predict(rounds: Sequence[tuple[float, float, float]], pairs: int, seed: int = 1) -> Prediction:
    """rounds: seconds (W, N, S); pairs: how many will be measured. ValueError for fewer than three rounds."""
    if len(rounds) < 3:
        raise ValueError("a prediction needs three rounds")
    draw = np.random.default_rng(seed)
    whole, native, shimmed = np.asarray(rounds, dtype=float).T
    saved = (native - shimmed) / whole
    middle = float(np.median(saved))
    beside = np.log(native / whole)
    residual = abs(math.expm1(float(np.median(beside))))
    scatter = max(SCATTER_MIN, float(np.std(beside, ddof=1)))
    error = float(np.std(saved, ddof=1)) / math.sqrt(len(saved)) * draw.standard_t(len(saved) - 1, DRAWS)
    share = max(MODEL_SHARE, residual)
    drawn = (middle + error) * (1 + draw.uniform(-share, share, DRAWS))
    noise = scatter * MEDIAN_FACTOR / math.sqrt(pairs) * draw.standard_normal(DRAWS)
    low, high = np.percentile(np.exp(noise) / (1 - np.minimum(drawn, SAVED_MAX)), (2.5, 97.5))
    ratio = 1 / (1 - min(middle, SAVED_MAX))
    return Prediction(
        ratio, min(float(low), ratio), max(float(high), ratio), float(np.median(whole)), middle, residual,
        scatter, pairs,
    )  # fmt: skip
