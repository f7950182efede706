# SPDX-License-Identifier: Apache-2.0
"""The promises in figures: targets of the catalog, evaluated on one interleaved session. Pure.

A figure is written EXPERIMENT/VARIANT (its rate) or EXPERIMENT/VARIANT.FIELD (FIELD of a sample's
"memory"). A target with a denominator is a ratio of rates paired by round; it passes when its median
does, and the interval shows how safely.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from rich.table import Table

from harness.core import statistics
from harness.core.model import MEASURE, Target
from harness.core.samples import Samples
from harness.report import present

PASS, MISS, NO_DATA = "pass", "MISS", "no data"


@dataclass(frozen=True)
class Result:
    """measured: median with interval; values: per round; sure: the whole interval is on the median's side."""

    target: Target
    measured: statistics.Interval | None
    values: tuple[float, ...]
    verdict: str
    sure: bool = True


def split(figure: str) -> tuple[str, str, str]:
    """EXPERIMENT, VARIANT, FIELD ("" for the rate)."""
    path, _, field = figure.partition(".")
    experiment, _, variant = path.partition("/")
    return experiment, variant, field


def evaluate(targets: Sequence[Target], recorded: Sequence[dict]) -> list[Result]:
    samples = Samples(recorded)
    return [_evaluate(target, samples) for target in targets]


def _evaluate(target: Target, samples: Samples) -> Result:
    values = _values(target, samples)
    if not values:
        return Result(target, None, (), NO_DATA)
    measured = statistics.interval(values)
    good = holds(target, measured.median)
    sure = holds(target, measured.low) == good == holds(target, measured.high)
    return Result(target, measured, tuple(values), PASS if good else MISS, sure)


def holds(target: Target, value: float) -> bool:
    if target.at_least is not None:
        return value >= target.at_least
    return value <= target.at_most


def _values(target: Target, samples: Samples) -> list[float]:
    experiment, variant, field = split(target.numerator)
    if field:
        found = [s["memory"].get(field) for s in samples.of(experiment, MEASURE, variant)]
        return [float(v) for v in found if v is not None]
    if not target.denominator:
        return samples.figures(experiment, variant)
    below_experiment, below_variant, _ = split(target.denominator)
    above, below = samples.paired((experiment, variant), (below_experiment, below_variant))
    return [a / b for a, b in zip(above, below, strict=True)]


def bound(target: Target) -> str:
    unit = f" {target.unit}" if target.unit else ""
    if target.at_least is not None:
        return f"≥ {target.at_least:g}{unit}"
    return f"≤ {target.at_most:g}{unit}"


def table(results: Sequence[Result]) -> Table:
    """target / measured / interval / pass; "unsure" when the interval reaches over the bound."""
    out = Table(title="Targets (medians over interleaved rounds)", title_justify="left")
    out.add_column("")
    out.add_column("what", overflow="fold")
    out.add_column("target", justify="right")
    out.add_column("measured", justify="right")
    out.add_column("95 % interval")
    out.add_column("")
    styles = {PASS: "green", MISS: "bold red", NO_DATA: "yellow"}
    for result in results:
        measured = result.measured
        out.add_row(
            result.target.id,
            result.target.text,
            bound(result.target),
            f"{measured.median:.2f}" if measured else present.NONE,
            f"{measured.low:.2f} – {measured.high:.2f} (n={measured.n})" if measured else present.NONE,
            f"[{styles[result.verdict]}]{result.verdict}[/]" + ("" if result.sure else " [dim](unsure)[/]"),
        )
    return out
