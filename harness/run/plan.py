# SPDX-License-Identifier: Apache-2.0
"""Which legs a run has, in which order, how much they write and how long that may take.

Order: in every round the experiments come in a seeded random order; the legs of one experiment stand
next to each other and swap sides from round to round (A B, B A, A B, ...; the seed picks the first side),
so that neither a drift of the machine nor "always second" favours one. Memory-limited and kill legs
follow, interleaved in the same way.
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from harness.core.model import KILL, MEASURE, MEMORY, Experiment, LabError, Leg, Plan
from harness.core.variants import shimmed
from harness.tools import TOOLS

VERIFY_MB_S = 850.0
"""Speed of verification and removal."""
OVERHEAD_SECONDS = 0.15
DEFAULT_MB_S = 600.0
MEMORY_LEGS_MAX = 3
"""As many as a verdict needs."""
KILL_SHARE = 0.5
"""A kill comes at a uniformly random point of the run: on average half of the bytes are written."""


@dataclass(frozen=True)
class Estimate:
    """Totals of a plan. footprint_bytes is the most that stands on the disk at one time."""

    legs: int
    bytes: int
    seconds: float
    footprint_bytes: int
    files: int


def make(
    experiments: Sequence[Experiment],
    *,
    suite: str,
    scale: str,
    seed: int,
    pairs: int,
    kills: int,
    memory_limit_bytes: int,
    variants: Sequence[str],
    kinds: Sequence[str],
) -> Plan:
    """The plan of a run; LabError when an experiment has no such scale or nothing is left to do."""
    for experiment in experiments:
        if scale not in experiment.sizes:
            raise LabError(
                f"{experiment.id}: no size for scale '{scale}'; it has: {', '.join(experiment.sizes)}"
            )
    repeats = {MEASURE: pairs, MEMORY: min(pairs, MEMORY_LEGS_MAX), KILL: kills}
    legs: list[Leg] = []
    for kind in (MEASURE, MEMORY, KILL):
        if kind in kinds:
            legs += _rounds(experiments, kind, repeats[kind], seed, variants)
    if not legs:
        raise LabError("nothing to do: no experiment has the chosen variants and kinds of leg")
    return Plan(suite, scale, seed, pairs, kills, memory_limit_bytes, tuple(legs))


def _rounds(
    experiments: Sequence[Experiment], kind: str, repeats: int, seed: int, variants: Sequence[str]
) -> list[Leg]:
    rng = random.Random(f"{seed}/{kind}")
    begins = {e.id: rng.randrange(2) for e in experiments}
    legs: list[Leg] = []
    for number in range(1, repeats + 1):
        order = [e for e in experiments if kind in e.kinds]
        rng.shuffle(order)
        for experiment in order:
            sides = [v for v in experiment.variants if v in variants]
            if (number + begins[experiment.id]) % 2:
                sides.reverse()
            legs += [Leg(experiment.id, kind, number, side) for side in sides]
    return legs


def size_of(experiment: Experiment, leg: Leg, scale: str) -> Mapping[str, int]:
    """The tool's size for a leg: memory and kill legs use their own keys where the scale gives them."""
    return TOOLS[experiment.tool].leg_size(experiment.sizes[scale], leg)


def leg_seconds(experiment: Experiment, leg: Leg, scale: str) -> float:
    """About how long one leg takes from its preparation to the empty directory after it."""
    if scale in experiment.estimate_seconds:
        return experiment.estimate_seconds[scale]
    written = TOOLS[experiment.tool].total_bytes(experiment.params, size_of(experiment, leg, scale))
    share = KILL_SHARE if leg.kind == KILL else 1.0
    rate = experiment.estimate_mb_s.get(leg.variant, DEFAULT_MB_S) * 1e6
    return share * written / rate + share * written / (VERIFY_MB_S * 1e6) + OVERHEAD_SECONDS


def estimate(plan: Plan, experiments: Sequence[Experiment]) -> Estimate:
    """Cost of a plan, from the experiments' own estimates."""
    by_id = {e.id: e for e in experiments}
    total = footprint = files = 0
    seconds = 0.0
    images: set[int] = set()
    for leg in plan.legs:
        experiment = by_id[leg.experiment]
        tool = TOOLS[experiment.tool]
        size = size_of(experiment, leg, plan.scale)
        written = tool.total_bytes(experiment.params, size)
        total += int(written * (KILL_SHARE if leg.kind == KILL else 1.0))
        seconds += leg_seconds(experiment, leg, plan.scale)
        if experiment.mount:  # an image is kept for the legs that follow, and holds what a leg writes
            images.add(experiment.mount.mib[plan.scale])
            continue
        # Preallocation ahead of use (at most doubling) and the arena come on top under the shim.
        standing = tool.disk_bytes(experiment.params, size)
        footprint = max(footprint, standing * 2 if shimmed(leg.variant) else standing)
        files = max(files, tool.file_count(experiment.params, size))
    return Estimate(len(plan.legs), total, seconds, footprint + (sum(images) << 20), files + len(images))
