# SPDX-License-Identifier: Apache-2.0
"""Two runs against each other: the same rows measured at two times, or with two builds of the shim. Pure.

Legs of two sessions make no pairs, so medians are compared: their ratio with the interval of the Mann-Whitney test.
What drifts between sessions stands in every plain figure, so these get no verdict; the row "shim / native" compares
the ratios that were paired inside each session, from which the drift has gone, and is judged.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from rich.table import Table

from harness.core import statistics
from harness.core.environment import differences
from harness.core.model import HIGHER, MEASURE, NATIVE, Experiment, LabError
from harness.core.samples import Samples
from harness.core.store import UNIFORM, RunStore
from harness.report import present

SUBJECTS = ("shim",)
"""Environment keys that may differ between two runs, because `compare` asks for their effect."""
HEADERS = ("row", "variant", "unit", "A", "B", "B against A", "p", "verdict", "why not")


@dataclass(frozen=True)
class Line:
    """One row and variant in both runs; found is None when it cannot be compared, and `reason` says why. judged:
    the figures are ratios that were paired inside each session."""

    experiment: Experiment
    variant: str
    unit: str
    one: statistics.Interval | None
    other: statistics.Interval | None
    found: statistics.Independent | None
    reason: str = ""
    judged: bool = False


def check(one: RunStore, other: RunStore, anyway: bool) -> list[str]:
    """How the runs differ beside the samples. LabError unless only a SUBJECT does, or `anyway`."""
    apart = differences(one.settings["environment"], other.settings["environment"])
    for key in UNIFORM:
        if one.settings.get(key) != other.settings.get(key):
            apart.append(f"{key}: {one.settings.get(key)!r} and {other.settings.get(key)!r}")
    strange = [line for line in apart if line.split(":", 1)[0] not in SUBJECTS]
    if strange and not anyway:
        raise LabError(
            f"{one.directory} and {other.directory} are not comparable, they differ in:\n  "
            + "\n  ".join(strange)
            + "\n(--anyway compares them all the same, and says so)"
        )
    return apart


def lines(experiments: Sequence[Experiment], one: RunStore, other: RunStore) -> list[Line]:
    """Every row and variant that either run has measured, in the order of the catalog."""
    sides = (Samples(one.samples), Samples(other.samples))
    out: list[Line] = []
    for experiment in experiments:
        apart = _definition(experiment.id, one.settings) != _definition(experiment.id, other.settings)
        for variant in experiment.variants:
            values = [s.figures(experiment.id, variant, experiment.figure) for s in sides]
            if any(s.of(experiment.id, MEASURE, variant, "") for s in sides):
                unit, better = experiment.figure_unit, experiment.figure_better
                out.append(_line(experiment, variant, unit, better, values, apart))
            if variant != NATIVE and (line := _gain(experiment, variant, sides, apart)):
                out.append(line)
    return out


def _gain(experiment: Experiment, variant: str, sides: Sequence[Samples], apart: bool) -> Line | None:
    """The paired ratios of each session, where both have some."""
    ratios = []
    for samples in sides:
        native, ours = samples.paired((experiment.id, NATIVE), (experiment.id, variant), experiment.figure)
        if not native:
            return None
        found = statistics.compare(native, ours, better=experiment.figure_better)
        ratios.append(list(found.ratios))
    return replace(_line(experiment, f"{variant} / native", "×", HIGHER, ratios, apart), judged=True)


def _line(experiment, variant, unit, better, values, apart: bool) -> Line:
    one, other = (statistics.interval(v) if v else None for v in values)
    reason = ""
    if one is None or other is None:
        reason = f"not measured in {'A' if one is None else 'B'}"
    elif apart:
        reason = "the row's size or parameters differ"
    elif min(*values[0], *values[1]) <= 0:
        reason = "a ratio needs positive figures"
    found = None if reason else statistics.compare_independent(*values, better=better)
    return Line(experiment, variant, unit, one, other, found, reason)


def _definition(name: str, settings: Mapping) -> tuple:
    return tuple(settings.get(key, {}).get(name) for key in ("sizes", "params"))


def verdict(line: Line) -> str:
    if line.found is None:
        return "not compared"
    return line.found.verdict if line.judged else present.NONE


def cells(line: Line) -> tuple[str, ...]:
    found = line.found
    return (
        line.experiment.id,
        line.variant,
        line.unit,
        present.interval(line.one),
        present.interval(line.other),
        f"{found.ratio:.2f}× [{found.low:.2f}, {found.high:.2f}]" if found else present.NONE,
        f"{found.p:.3f}" if found else present.NONE,
        verdict(line),
        line.reason,
    )


def table(found: Sequence[Line]) -> Table:
    out = Table(title="B against A (a ratio above 1: B is better)", title_justify="left")
    for name in HEADERS:
        out.add_column(name, overflow="fold", justify="right" if name in ("A", "B", "p") else "left")
    styles = {statistics.FASTER: "green", statistics.SLOWER: "red"}
    for line in found:
        out.add_row(*cells(line), style=styles.get(verdict(line)) if line.found else "dim")
    return out


def markdown(one: RunStore, other: RunStore, apart: Sequence[str], found: Sequence[Line]) -> str:
    text = [
        "# B against A", "",
        f"A: {one.directory.name}, {one.settings['started']}. B: {other.directory.name}, "
        f"{other.settings['started']}. A ratio above 1 means that B is better; medians with 95 % intervals.", "",
    ]  # fmt: skip
    if apart:
        text += ["The runs differ in:", "", *(f"- {line}" for line in apart), ""]
    return "\n".join([*text, *present.markdown_table(HEADERS, [cells(line) for line in found])]) + "\n"
