# SPDX-License-Identifier: Apache-2.0
"""The A/A control: does the method find a difference where there is none?

Both sides of every pair are the same program, run natively, so each verdict other than inconclusive is a
false one. A run is what any other comparison is: some interleaved pairs, their median ratio, its interval
and test. Many runs give the rate of false verdicts, which the method promises to keep at 5 %.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from rich.table import Table

from harness.core import statistics
from harness.core.model import CONTROL, MEASURE, NATIVE, Experiment, LabError
from harness.core.samples import Samples
from harness.report import present

FALSE_SHARE_MAX = 0.10


@dataclass(frozen=True)
class Run:
    """One comparison of a thing with itself; rounds: first and last of the session."""

    number: int
    rounds: tuple[int, int]
    comparison: statistics.Comparison

    @property
    def wrong(self) -> bool:
        return self.comparison.verdict != statistics.INCONCLUSIVE


def control_of(experiment: Experiment) -> Experiment:
    """The experiment natively against itself. LabError when it has no native legs that are measured."""
    if NATIVE not in experiment.variants or MEASURE not in experiment.kinds:
        raise LabError(f"{experiment.id}: has no measured native legs, so it cannot be its own control")
    return replace(
        experiment, variants=(NATIVE, CONTROL), kinds=(MEASURE,), shim_role="regression", claims=()
    )


def runs(experiment: Experiment, recorded: Sequence[dict], pairs: int) -> list[Run]:
    """Rounds 1..pairs are the first run, and so on; a run that lost a leg compares the pairs that are left."""
    samples = Samples(recorded)
    rounds = sorted({s["round"] for s in samples.of(experiment.id, MEASURE)})
    out = []
    for first in range(1, max(rounds, default=0) + 1, pairs):
        last = first + pairs - 1
        part = Samples([s for s in recorded if first <= s["round"] <= last])
        one, other = part.paired((experiment.id, NATIVE), (experiment.id, CONTROL), experiment.figure)
        if one:
            compared = statistics.compare(one, other, better=experiment.figure_better)
            out.append(Run(len(out) + 1, (first, last), compared))
    return out


def allowed(count: int) -> int:
    """False verdicts that so many runs may have: 2 of 20."""
    return int(count * FALSE_SHARE_MAX)


def table(experiment: Experiment, found: Sequence[Run]) -> Table:
    out = Table(title=f"A/A control: {experiment.id}, {experiment.title}", title_justify="left")
    for name in ("run", "rounds", "pairs", "ratio", "p", "test", "verdict"):
        out.add_column(name, justify="right" if name in ("run", "pairs", "p") else "left")
    for run in found:
        c = run.comparison
        out.add_row(
            str(run.number), f"{run.rounds[0]}–{run.rounds[1]}", str(c.n),
            f"{c.ratio:.3f} [{c.low:.3f}, {c.high:.3f}]", f"{c.p:.3f}", c.test,
            f"{c.verdict} (false)" if run.wrong else c.verdict, style="red" if run.wrong else None,
        )  # fmt: skip
    return out


def sentence(found: Sequence[Run]) -> str:
    """The figure to quote."""
    wrong = sum(run.wrong for run in found)
    ratios = statistics.interval([run.comparison.ratio for run in found])
    return (
        f"{wrong} false verdicts in {len(found)} runs of {present.plural(found[0].comparison.n, 'pair')} "
        f"(at most {allowed(len(found))} allowed); median of the runs' ratios {ratios.median:.3f} "
        f"[{ratios.low:.3f}, {ratios.high:.3f}]"
    )
