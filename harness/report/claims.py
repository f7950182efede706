# SPDX-License-Identifier: Apache-2.0
"""What the articles claim, and what our samples say to it: one table for all of them. Pure.

A claim that no sample of the given runs is about is "not decided", because it was not measured.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from harness.core.environment import differences
from harness.core.model import Claim, Experiment, LabError
from harness.core.store import RunStore, merge
from harness.report import judge, present, summary

HEADERS = (
    "claim",
    "in the article",
    "its figure",
    "ours",
    "direction",
    "size",
    "verdict",
    "reason",
    "from",
)
NOT_MEASURED = "not measured in these runs"
LEGS_NAMED_MAX = 2


@dataclass(frozen=True)
class Entry:
    experiment: Experiment
    result: judge.ClaimResult


def together(stores: Sequence[RunStore]) -> list[RunStore]:
    """Runs of one suite merged, others side by side. LabError when they are not of one machine."""
    by_suite: dict[str, list[RunStore]] = {}
    for store in stores:
        apart = differences(stores[0].settings["environment"], store.settings["environment"])
        if apart:
            raise LabError(
                f"{stores[0].directory} and {store.directory} make no common table, they differ in:\n  "
                + "\n  ".join(apart)
            )
        by_suite.setdefault(store.settings["suite"], []).append(store)
    return [merge(same) for same in by_suite.values()]


def entries(experiments: Sequence[Experiment], stores: Sequence[RunStore]) -> list[Entry]:
    """Every claim of the catalog, in its order. LabError when two suites have measured one row."""
    found: dict[str, summary.Row] = {}
    for store in stores:
        settings = store.settings
        cpus = settings["environment"].get("cpus") or 1
        for row in summary.summarize(experiments, store.samples, settings["scale"], cpus).rows:
            if row.experiment.id in found:
                raise LabError(
                    f"row {row.experiment.id} is in {store.directory} and in a run of another suite; give one"
                )
            found[row.experiment.id] = row
    out = []
    for experiment in experiments:
        if experiment.id in found:
            out += [Entry(experiment, result) for result in found[experiment.id].claims]
        else:
            out += [Entry(experiment, _unmeasured(claim)) for claim in experiment.claims]
    return out


def _unmeasured(claim: Claim) -> judge.ClaimResult:
    verdict = judge.NOT_COMPARABLE if claim.measure == "none" else judge.UNDECIDED
    reason = claim.reason if claim.measure == "none" else NOT_MEASURED
    return judge.ClaimResult(claim, None, None, None, verdict, reason, ())


def counts(found: Sequence[Entry]) -> Mapping[str, int]:
    return {verdict: sum(e.result.verdict == verdict for e in found) for verdict in judge.VERDICTS}


def cells(entry: Entry) -> tuple[str, ...]:
    return (*present.claim_cells(entry.result), source(entry))


def source(entry: Entry) -> str:
    """The row, and the legs behind the figure: named when they are few, counted otherwise."""
    legs = entry.result.legs
    if not legs:
        return entry.experiment.id
    if len(legs) <= LEGS_NAMED_MAX:
        return f"{entry.experiment.id}: {', '.join(legs)}"
    return f"{entry.experiment.id}: {legs[0]} … {legs[-1]} ({len(legs)} legs)"


def _count_lines(by_suite: Mapping[str, Sequence[Entry]]) -> list[tuple[str, ...]]:
    """A line of counts for each article; claims that are not an article's stand in a line of their own."""
    lines = {suite: [e for e in part if not e.result.claim.own] for suite, part in by_suite.items()}
    lines["beside the articles"] = [e for part in by_suite.values() for e in part if e.result.claim.own]
    return [(name, *(str(n) for n in counts(part).values())) for name, part in lines.items() if part]


def markdown(found: Sequence[Entry], stores: Sequence[RunStore]) -> str:
    """A page of documentation: counts per article, then one table per article."""
    by_suite: dict[str, list[Entry]] = {}
    for entry in found:
        by_suite.setdefault(entry.experiment.suite, []).append(entry)
    machine = stores[0].settings["environment"]
    lines = [
        "# What the articles claim, and what was measured here",
        "",
        f"Written by `python -m harness claims RUN… --markdown` from "
        f"{present.plural(sum(len(s.samples) for s in stores), 'leg')} of scale "
        f"{', '.join(dict.fromkeys(s.settings['scale'] for s in stores))}: Linux {machine['kernel']}, "
        f"{machine['cpus']} processors, {machine['filesystem']} on {machine['device']}, "
        f"{stores[0].settings['started'][:10]}. Ours: median [95 % interval]; a figure is compared only "
        "where another machine can decide it, and the reason says why where it cannot.",
        "",
        *present.markdown_table(("article", *judge.VERDICTS), _count_lines(by_suite)),
    ]
    for suite, part in by_suite.items():
        sources = "; ".join(dict.fromkeys(e.experiment.source for e in part))
        own = [e for e in part if e.result.claim.own]
        lines += ["", f"## {suite}", "", f"{sources}.", ""]
        lines += present.markdown_table(HEADERS, [cells(e) for e in part if e not in own])
        if own:
            lines += ["", "Beside the article:", ""]
            lines += present.markdown_table(HEADERS, [cells(e) for e in own])
    return "\n".join(lines) + "\n"
