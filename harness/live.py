# SPDX-License-Identifier: Apache-2.0
"""What is seen while a run goes on: a progress bar with the current leg, its bandwidth and time left on a
terminal; one line per leg elsewhere."""

from __future__ import annotations

from collections import deque

from rich.console import Console
from rich.progress import (
    BarColumn,
    Progress,
    TaskProgressColumn,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)
from rich.table import Table

from harness import present
from harness.clock import Clock
from harness.model import FAILED, SKIPPED, Leg, Plan
from harness.summary import Row

BARS = "▁▂▃▄▅▆▇█"
SPARK_POINTS = 16
_STYLES = {"ok": "green", FAILED: "bold red", SKIPPED: "yellow"}


def sparkline(values: list[float]) -> str:
    """Block characters, scaled to the largest value; empty for no values."""
    top = max(values, default=0)
    if top <= 0:
        return ""
    return "".join(BARS[min(len(BARS) - 1, int(v / top * (len(BARS) - 1) + 0.5))] for v in values)


class Live:
    """An Observer for people. Use as a context manager."""

    def __init__(self, console: Console, clock: Clock, plan: Plan) -> None:
        self._console = console
        self._clock = clock
        self._plan = plan
        self._rates: deque[float] = deque(maxlen=SPARK_POINTS)
        self._last: tuple[float, int] | None = None
        self._shown = 0.0
        self._progress: Progress | None = None
        if console.is_terminal:
            self._progress = Progress(
                TextColumn("{task.description}"),
                BarColumn(bar_width=24),
                TaskProgressColumn(),
                TimeElapsedColumn(),
                TextColumn("left"),
                TimeRemainingColumn(),
                TextColumn("[cyan]{task.fields[spark]}"),
                console=console,
                transient=True,
                refresh_per_second=5,
            )
            self._task = self._progress.add_task("", total=len(plan.legs), spark="")

    def __enter__(self) -> Live:
        if self._progress:
            self._progress.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._progress:
            self._progress.stop()

    def leg_started(self, leg: Leg, number: int, total_bytes: int) -> None:
        self._rates.clear()
        self._last = None
        if self._progress:
            self._progress.update(self._task, completed=number - 1, description=f"{leg.id}", spark="")

    def leg_ticked(self, done_bytes: int | None) -> None:
        now = self._clock.monotonic()
        if done_bytes is None or self._progress is None or now - self._shown < 0.1:
            return
        self._shown = now
        if self._last and now > self._last[0]:
            rate = (done_bytes - self._last[1]) / (now - self._last[0]) / 1e6
            self._rates.append(rate)
            spark = f"{sparkline(list(self._rates))} {rate:,.0f} MB/s"
            self._progress.update(self._task, spark=spark)
        self._last = (now, done_bytes)

    def leg_ended(self, sample: dict) -> None:
        status = sample["status"]
        number = next(i for i, leg in enumerate(self._plan.legs, 1) if leg.id == sample["leg"])
        if self._progress:
            self._progress.update(self._task, completed=number)
            if status == "ok":
                return
        if status == SKIPPED and self._progress:
            return
        count = f"{number:>4}/{len(self._plan.legs)}"
        self._console.print(
            f"[dim]{count}[/] {sample['leg']:<34} [{_STYLES[status]}]{status}[/] {_figure(sample)}",
            highlight=False,
            soft_wrap=True,
        )


def _figure(sample: dict) -> str:
    if sample["status"] != "ok":
        return sample.get("reason", "")
    if "kill" in sample:
        kill = sample["kill"]
        lost = present.byte_count(kill["lost_bytes"])
        return f"killed after {present.byte_count(kill['acked_bytes'])}, lost {lost}"
    return f"{sample['rate_mb_s']:,.0f} MB/s" if "rate_mb_s" in sample else ""


def table(rows: tuple[Row, ...], title: str) -> Table:
    """The closing table."""
    out = Table(title=title, title_justify="left", caption_justify="left", show_lines=False)
    for header in present.HEADERS:
        right = header in ("native", "shim", "limited MB/s")
        out.add_column(header, justify="right" if right else "left", overflow="fold")
    for row in rows:
        style = "red" if row.status == FAILED else None
        out.add_row(*present.cells(row), style=style)
    return out
