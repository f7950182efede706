# SPDX-License-Identifier: Apache-2.0
"""An examination as text: a table of all knobs, then the dangers in full and what else is worth a look in short.
Fits 80 columns."""

from __future__ import annotations

from collections.abc import Iterator

from rich.console import Group, RenderableType
from rich.markup import escape
from rich.table import Table
from rich.text import Text

from harness.doctor.examination import LEVELS, NONE, Examination, Finding
from harness.doctor.scene import ABSENT

STYLES = {"ok": "green", "hint": "cyan", "warning": "yellow", "danger": "bold red"}


def render(found: Examination, brief: bool = False, full: bool = False) -> RenderableType:
    """brief: the table only; full: every knob with all that is known of it."""
    parts: list[RenderableType] = [*_head(found), "", overview(found)]
    worst_first = sorted(found.findings, key=lambda f: -LEVELS.index(f.level))
    for finding in worst_first if not brief else ():
        if finding.level == "danger" or (full and finding.case != ABSENT):
            parts += ["", *_details(finding)]
    rest = [f for f in worst_first if f.level in ("warning", "hint")]
    if rest and not brief and not full:
        parts += ["", short(rest)]
    if found.unread:
        parts += ["", "Not read:"]
        parts += [Text(f"  {what}: {why}", style="dim") for what, why in found.unread.items()]
    parts += ["", verdict(found)]
    return Group(*parts)


def short(findings: list[Finding]) -> Table:
    """Warnings and hints: the finding, and the command that changes it."""
    table = Table(box=None, padding=(0, 1, 0, 0), pad_edge=False, show_header=False)
    table.add_column(no_wrap=True)
    table.add_column(overflow="fold", max_width=22)
    table.add_column(overflow="fold", ratio=1)
    for finding in findings:
        said = Text(finding.text)
        if finding.command != NONE:
            said.append(f"\n{finding.command}", style="bold")
        table.add_row(_level(finding.level), Text(f"{finding.title}: {finding.value}"), said)
    return table


def _head(found: Examination) -> Iterator[RenderableType]:
    yield Text(f"{found.directory}, kernel {found.kernel}", style="bold")
    for depth, what, detail in found.layers:
        yield Text(f"{'  ' * (depth + 1)}{what}: {detail}" if detail else f"{'  ' * (depth + 1)}{what}")


def overview(found: Examination) -> Table:
    table = Table(box=None, padding=(0, 1, 0, 0), pad_edge=False)
    table.add_column("level", no_wrap=True)
    table.add_column("knob", overflow="fold", max_width=26)
    table.add_column("here", overflow="fold", ratio=1)
    table.add_column("the article", overflow="fold", max_width=20)
    group = ""
    for finding in found.findings:
        if finding.group != group:
            group = finding.group
            table.add_row("", f"[bold]{group}[/]", "", "")
        table.add_row(
            _level(finding.level), escape(finding.title), escape(finding.value), escape(finding.article)
        )
    return table


def _level(level: str) -> str:
    return f"[{STYLES[level]}]{level}[/]"


def _details(finding: Finding) -> Iterator[RenderableType]:
    yield Text.assemble(
        (finding.level.upper(), STYLES[finding.level]), " ", (finding.title, "bold"), f": {finding.value}"
    )
    grid = Table.grid(padding=(0, 1))
    grid.add_column(width=9, justify="right", style="dim")
    grid.add_column(overflow="fold", ratio=1)
    rows = {
        "": finding.text,
        "article": finding.article,
        "today": finding.today,
        "effect": finding.effect,
        "risk": finding.risk,
        "change": finding.command,
        "for good": finding.permanent,
        "measure": finding.measure,
    }
    for name, text in rows.items():
        if text != NONE:
            grid.add_row(name, Text(text))
    yield grid


def verdict(found: Examination) -> Text:
    """The last line: how many of each level, and which are the dangers."""
    counts = [f"{found.count(level)} {level}" for level in reversed(LEVELS)]
    out = Text.assemble((", ".join(counts), STYLES[found.level]))
    worst = [f.title for f in found.findings if f.level == "danger"]
    return out.append(f". Dangers: {'; '.join(worst)}." if worst else ".")
