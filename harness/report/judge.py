# SPDX-License-Identifier: Apache-2.0
"""Does our sample reproduce what the source claims? Pure: samples in, verdicts out.

One rule for all claims. Only the 95 % interval of our figure decides, never the median. There are two answers:

direction  Where does the interval lie, seen from "no effect" (`neutral`, 1 for ratios)? The article's direction is
           the side of its band: same, opposite; "no effect" when the interval lies within 5 % of neutral; else open.
size       Where does it lie, seen from the band? same: inside; larger, smaller: outside, away from neutral or towards
           it; other: outside of a band that has no direction; else open.

  direction        size       verdict
  opposite, none   any        contradicts
  same             same       reproduces
  same             larger     stronger
  same or open     smaller    weaker
  –                same       reproduces
  –                other      contradicts
  all else                    not decided

Instead of "contradicts" and "weaker" it is "no longer so" where `today` names what has changed since.

A claim about a device's absolute speed is not comparable. A share below its band is not held against the article
when the program had used up the processors here: then the disk was not what was measured, and the reason says so.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from harness.core import statistics
from harness.core.model import KILL, MEASURE, MEMORY, RATE, Claim, Experiment
from harness.core.samples import Samples, app_series, cpu_share, device_series, figure_of, pair_of

REPRODUCES, WEAKER, STRONGER = "reproduces", "weaker", "stronger"
CONTRADICTS, NO_LONGER, UNDECIDED = "contradicts", "no longer so", "not decided"
NOT_COMPARABLE = "not comparable"
VERDICTS = (REPRODUCES, STRONGER, WEAKER, CONTRADICTS, NO_LONGER, UNDECIDED, NOT_COMPARABLE)

SAME, OPPOSITE, NO_EFFECT, OPEN = "same", "opposite", "no effect", "open"
LARGER, SMALLER, OTHER = "larger", "smaller", "other"
NOT_ASKED = ""
"""Of the direction of a claim that has none, and of both before anything is measured."""
NO_EFFECT_SHARE = 0.05

NO_CLAIM = "–"
CPU_BOUND_SHARE = 0.80
RATIOS = ("ratio", "cv_over", "limited")
"""Measures whose neutral figure is 1."""
WORST_CASES = ("lost_kill", "lost_exit", "hwm_kb")
"""One sample can decide these: they are about bytes lost or memory held, not about speed."""


@dataclass(frozen=True)
class ClaimResult:
    """ours, low, high: our figure and its interval in `unit` (None: there is none); legs: its source; direction,
    size: the two answers that the verdict is made of."""

    claim: Claim
    ours: float | None
    low: float | None
    high: float | None
    verdict: str
    reason: str
    legs: tuple[str, ...]
    direction: str = NOT_ASKED
    size: str = NOT_ASKED


@dataclass(frozen=True)
class _Context:
    experiment: Experiment
    claim: Claim
    samples: Samples


def judge(experiment: Experiment, claim: Claim, samples: Samples, scale: str, cpus: int) -> ClaimResult:
    """The verdict on one claim."""
    found = _judge(experiment, claim, samples, scale, cpus)
    return replace(found, reason="; ".join(filter(None, (found.reason, _own_data(claim)))))


def _judge(experiment: Experiment, claim: Claim, samples: Samples, scale: str, cpus: int) -> ClaimResult:
    values, legs = MEASURES[claim.measure](_Context(experiment, claim, samples))
    if not values:
        return ClaimResult(claim, None, None, None, NOT_COMPARABLE, claim.reason or "no samples", ())
    middle = statistics.interval(values)
    result = (claim, middle.median, middle.low, middle.high)
    if claim.needs_scale and scale != claim.needs_scale:
        return ClaimResult(
            *result, NOT_COMPARABLE, f"decided at --scale {claim.needs_scale} only: {claim.reason}", legs
        )
    if claim.low is None and claim.high is None:
        return ClaimResult(*result, NOT_COMPARABLE, claim.reason, legs)
    if claim.measure not in WORST_CASES and middle.n < statistics.PAIRS_MIN:
        few = f"{middle.n} of the {statistics.PAIRS_MIN} samples that a verdict needs"
        return ClaimResult(*result, UNDECIDED, few, legs)
    direction, size = direction_of(claim, middle), size_of(claim, middle)
    verdict, reason = _verdict(claim, direction, size)
    decided = ClaimResult(*result, verdict, reason, legs, direction, size)
    if (
        verdict == CONTRADICTS
        and claim.measure == "share"
        and claim.low is not None
        and middle.high < claim.low
    ):
        busy = _cpu_share(experiment, claim, samples, cpus)
        if busy is not None and busy > CPU_BOUND_SHARE:
            return replace(
                decided, verdict=NOT_COMPARABLE, direction=NOT_ASKED, size=NOT_ASKED,
                reason=f"the program kept {cpus} processors {busy:.0%} busy here (64 cores there): "
                "the disk is not what limits it",
            )  # fmt: skip
    return decided


def overall(results: list[ClaimResult]) -> tuple[str, str]:
    """One verdict for a row: that of its claim that most needs a look, with the claim that decided it. Claims that
    are not the article's have no say."""
    results = [r for r in results if not r.claim.own]
    for verdict in (CONTRADICTS, NO_LONGER, WEAKER, UNDECIDED, STRONGER, REPRODUCES):
        for result in results:
            if result.verdict == verdict:
                return verdict, result.claim.text
    if results:
        return NOT_COMPARABLE, results[0].reason
    return NO_CLAIM, "the article has no such row"


def _band(claim: Claim) -> tuple[float, float]:
    return (
        claim.low if claim.low is not None else float("-inf"),
        claim.high if claim.high is not None else float("inf"),
    )


def _side(claim: Claim) -> int:
    """On which side of neutral the article's band lies; 0: on both, or the claim has no neutral."""
    low, high = _band(claim)
    if claim.neutral is None or low < claim.neutral < high:
        return 0
    return 1 if low >= claim.neutral else -1


def direction_of(claim: Claim, ours: statistics.Interval) -> str:
    """Is our effect in the article's direction?"""
    side = _side(claim)
    if not side:
        return NOT_ASKED
    none_low, none_high = claim.neutral / (1 + NO_EFFECT_SHARE), claim.neutral * (1 + NO_EFFECT_SHARE)
    if ours.low > claim.neutral or ours.high < claim.neutral:
        return SAME if (ours.low > claim.neutral) == (side > 0) else OPPOSITE
    return NO_EFFECT if none_low <= ours.low and ours.high <= none_high else OPEN


def size_of(claim: Claim, ours: statistics.Interval) -> str:
    """Is our effect as large as the article's?"""
    low, high = _band(claim)
    if low <= ours.low and ours.high <= high:
        return SAME
    if low <= ours.high and ours.low <= high:
        return OPEN
    above = ours.low > high
    side = _side(claim)
    if not side:
        return OTHER
    return LARGER if above == (side > 0) else SMALLER


def _verdict(claim: Claim, direction: str, size: str) -> tuple[str, str]:
    """The table at the head of this file; with a reason where the two answers need one."""
    denied = direction in (OPPOSITE, NO_EFFECT) or size == OTHER
    if (denied or size == SMALLER) and claim.today:
        return NO_LONGER, claim.today
    if denied:
        return CONTRADICTS, claim.reason
    if size == SMALLER and direction == OPEN:
        return WEAKER, "; ".join(filter(None, ("there may be no effect at all", claim.reason)))
    if size == SMALLER:
        return WEAKER, claim.reason
    if size == SAME and direction in (SAME, NOT_ASKED):
        return REPRODUCES, claim.reason
    if size == LARGER and direction == SAME:
        return STRONGER, claim.reason
    if direction == SAME:
        return UNDECIDED, "the direction is the article's, the interval reaches over the end of its band"
    return UNDECIDED, "the interval reaches over the end of the band"


def _own_data(claim: Claim) -> str:
    """A remark when the source's own figure lies outside the band that its claim asks for."""
    if claim.published is None:
        return ""
    low, high = _band(claim)
    if low <= claim.published <= high:
        return ""
    return f"the article's own figures do not carry the claim ({claim.published:.4g})"


def _cpu_share(experiment: Experiment, claim: Claim, samples: Samples, cpus: int) -> float | None:
    shares = [cpu_share(s, cpus) for s in samples.of(experiment.id, MEASURE, claim.variant)]
    known = [s for s in shares if s is not None]
    return statistics.interval(known).median if known else None


_Found = tuple[list[float], tuple[str, ...]]


def _legs(samples: list[dict]) -> tuple[str, ...]:
    return tuple(s["leg"] for s in samples)


def _rate(context: _Context) -> _Found:
    found = context.samples.of(context.experiment.id, MEASURE, context.claim.variant)
    return [s[RATE] for s in found], _legs(found)


def _figure(context: _Context) -> _Found:
    """The main figure, or the claim's own field."""
    claim, field = context.claim, context.claim.field or context.experiment.figure
    found = [
        (s, value)
        for s in context.samples.of(context.experiment.id, MEASURE, claim.variant)
        if (value := figure_of(s, field)) is not None
    ]
    return [value for _, value in found], _legs([s for s, _ in found])


def _share(context: _Context) -> _Found:
    """Rate over the rate of `of` in the same round."""
    return _paired(context, RATE, context.claim.of, RATE)


def _ratio(context: _Context) -> _Found:
    """Figure over the figure of the same round of `of` (or of the experiment's own legs of `of_variant`)."""
    claim = context.claim
    field = claim.field or context.experiment.figure
    return _paired(context, field, claim.of or context.experiment.id, claim.of_field or field)


def _paired(context: _Context, field: str, of: str, of_field: str) -> _Found:
    samples, claim, own = context.samples, context.claim, context.experiment.id
    ours, theirs = samples.paired((own, claim.variant), (of, claim.of_variant), field, of_field)
    found = samples.of(own, MEASURE, claim.variant) + samples.of(of, MEASURE, claim.of_variant)
    return [a / b for a, b in zip(ours, theirs, strict=True)], tuple(dict.fromkeys(_legs(found)))


def _at_best(context: _Context) -> _Found:
    """The claim's field of the leg with the highest main figure of a matrix, in every round."""
    claim, figure = context.claim, context.experiment.figure
    found = [
        s
        for s in context.samples.measured_cells(claim.among, claim.variant)
        if figure_of(s, figure) is not None and figure_of(s, claim.field) is not None
    ]
    rounds = dict.fromkeys(pair_of(s) for s in found)
    best = [max((s for s in found if pair_of(s) == r), key=lambda s: figure_of(s, figure)) for r in rounds]
    return [figure_of(s, claim.field) for s in best], _legs(best)


def _jitters(context: _Context, experiment: str) -> list[tuple[dict, statistics.Jitter]]:
    """Of the device's bandwidth, as in the article's vmstat charts."""
    out = []
    for sample in context.samples.of(experiment, MEASURE, context.claim.variant):
        found = statistics.jitter(*device_series(sample))
        if found:
            out.append((sample, found))
    return out


def _cv(context: _Context) -> _Found:
    found = _jitters(context, context.experiment.id)
    return [j.cv for _, j in found], _legs([s for s, _ in found])


def _cv_over(context: _Context) -> _Found:
    ours = _jitters(context, context.experiment.id)
    theirs = _jitters(context, context.claim.of)
    of_round = {pair_of(s): j.cv for s, j in theirs}
    pairs = [j.cv / of_round[pair_of(s)] for s, j in ours if of_round.get(pair_of(s), 0) > 0]
    return pairs, _legs([s for s, _ in ours + theirs])


def _stall(context: _Context) -> _Found:
    """Seconds below a tenth of the median of the program's bandwidth."""
    found = [
        (s, j)
        for s in context.samples.of(context.experiment.id, MEASURE, context.claim.variant)
        if (j := statistics.jitter(*app_series(s)))
    ]
    return [j.stall_seconds for _, j in found], _legs([s for s, _ in found])


def _limited(context: _Context) -> _Found:
    """Rate inside the memory limit over the rate without it in the same round."""
    samples, claim, own = context.samples, context.claim, context.experiment.id
    inside, outside = (samples.of(own, kind, claim.variant) for kind in (MEMORY, MEASURE))
    rates = {pair_of(s): s[RATE] for s in outside}
    found = [(s, rates[pair_of(s)]) for s in inside if rates.get(pair_of(s))]
    return [s[RATE] / rate for s, rate in found], _legs([s for s, _ in found] + outside)


def _hwm_kb(context: _Context) -> _Found:
    """The worst of all legs."""
    found = [
        s
        for s in context.samples.of(context.experiment.id, MEASURE, context.claim.variant)
        if s["memory"].get("vm_hwm_kb") is not None
    ]
    return [float(max(s["memory"]["vm_hwm_kb"] for s in found))] if found else [], _legs(found)


def _lost_kill(context: _Context) -> _Found:
    """The worst of all kills: a loss is judged by its maximum."""
    found = context.samples.of(context.experiment.id, KILL, context.claim.variant)
    return [float(max(s["kill"]["lost_bytes"] for s in found))] if found else [], _legs(found)


def _lost_exit(context: _Context) -> _Found:
    found = context.samples.of(context.experiment.id, MEASURE, context.claim.variant)
    return [float(s["verification"]["lost_bytes"]) for s in found], _legs(found)


def _none(context: _Context) -> _Found:
    return [], ()


MEASURES: dict[str, Callable[[_Context], _Found]] = {
    "rate": _rate,
    "figure": _figure,
    "share": _share,
    "ratio": _ratio,
    "at_best": _at_best,
    "cv": _cv,
    "cv_over": _cv_over,
    "stall": _stall,
    "limited": _limited,
    "hwm_kb": _hwm_kb,
    "lost_kill": _lost_kill,
    "lost_exit": _lost_exit,
    "none": _none,
}
