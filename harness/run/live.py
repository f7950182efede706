# SPDX-License-Identifier: Apache-2.0
"""What is seen while a run goes on. On a terminal: a live table of the last legs with the course of their
bandwidth, the one that is running, and the time left; elsewhere one line per leg."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass

from rich.console import Console, Group
from rich.live import Live as Screen
from rich.markup import escape
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from harness.core.clock import Clock
from harness.core.model import FAILED, OK, SKIPPED, Experiment, Leg, Plan
from harness.core.samples import app_curve, bandwidth, figure_of
from harness.report import present
from harness.report.summary import Row
from harness.run.plan import leg_seconds

BARS = "▁▂▃▄▅▆▇█"
SPARK_POINTS = 16
LEGS_SHOWN = 8
REFRESH_SECONDS = 0.2
COLUMN_WIDTHS = (3, 30, 7, 14, SPARK_POINTS)
"""So that nothing jumps while figures grow."""
_STYLES = {OK: "green", FAILED: "bold red", SKIPPED: "yellow"}


def sparkline(values: list[float]) -> str:
    """Block characters, scaled to the largest value; empty for no values."""
    top = max(values, default=0)
    if top <= 0:
        return ""
    return "".join(BARS[min(len(BARS) - 1, int(v / top * (len(BARS) - 1) + 0.5))] for v in values)


def course(sample: dict) -> str:
    """The bandwidth of a finished leg as a sparkline, thinned by averages."""
    _, rates = bandwidth(app_curve(sample))
    step = -(-len(rates) // SPARK_POINTS) or 1
    parts = [rates[i : i + step] for i in range(0, len(rates), step)]
    return sparkline([sum(part) / len(part) for part in parts])


class TimeLeft:
    """Time left: estimates of the coming legs, scaled by the finished legs' actual over estimated time."""

    def __init__(self, expected: Mapping[str, float]) -> None:
        self._expected = dict(expected)
        self._estimated = 0.0
        self._taken = 0.0

    def ended(self, leg: str, seconds: float | None) -> None:
        """seconds: None for a leg that says nothing about speed (skipped, or done in an earlier session)."""
        estimate = self._expected.pop(leg, 0.0)
        if seconds is not None:
            self._estimated += estimate
            self._taken += seconds

    @property
    def seconds(self) -> float:
        # a first leg that stalls must not double the whole: the estimate counts as some legs of evidence
        prior = 10.0
        pace = (self._taken + prior) / (self._estimated + prior)
        return sum(self._expected.values()) * pace


@dataclass(frozen=True)
class _Ended:
    number: int
    leg: str
    status: str
    figure: str
    course: str


class Live:
    """An Observer for people. Use as a context manager."""

    def __init__(
        self, console: Console, clock: Clock, plan: Plan, experiments: Mapping[str, Experiment]
    ) -> None:
        self._console = console
        self._clock = clock
        self._plan = plan
        self._experiments = experiments
        self._numbers = {leg.id: number for number, leg in enumerate(plan.legs, 1)}
        self._left = TimeLeft(
            {leg.id: leg_seconds(experiments[leg.experiment], leg, plan.scale) for leg in plan.legs}
        )
        self._recent: deque[_Ended] = deque(maxlen=LEGS_SHOWN)
        self._rates: deque[float] = deque(maxlen=SPARK_POINTS)
        self._last: tuple[float, int] | None = None
        self._leg: Leg | None = None
        self._begun = self._shown = 0.0
        self._done = 0
        self._screen = (
            Screen(console=console, transient=True, auto_refresh=False) if console.is_terminal else None
        )

    def __enter__(self) -> Live:
        if self._screen:
            self._screen.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._screen:
            self._screen.stop()

    def leg_started(self, leg: Leg, number: int, total_bytes: int) -> None:
        for before in self._plan.legs[self._done : number - 1]:
            self._left.ended(before.id, None)
        self._rates.clear()
        self._last = None
        self._leg, self._done, self._begun = leg, number - 1, self._clock.monotonic()
        self._show()

    def leg_ticked(self, done_bytes: int | None) -> None:
        now = self._clock.monotonic()
        if self._screen is None or now - self._shown < REFRESH_SECONDS:
            return
        if done_bytes is not None:
            if self._last and now > self._last[0]:
                self._rates.append((done_bytes - self._last[1]) / (now - self._last[0]) / 1e6)
            self._last = (now, done_bytes)
        self._show()

    def leg_ended(self, sample: dict) -> None:
        status = sample["status"]
        number = self._numbers[sample["leg"]]
        self._left.ended(sample["leg"], None if status == SKIPPED else sample.get("leg_seconds"))
        self._leg, self._done = None, number
        figure = self._figure(sample)
        if self._screen:
            self._recent.append(_Ended(number, sample["leg"], status, figure, course(sample)))
            self._show()
            if status != FAILED:
                return
        count = f"{number:>4}/{len(self._plan.legs)}"
        self._console.print(
            f"[dim]{count}[/] {sample['leg']:<34} [{_STYLES[status]}]{status}[/] {escape(figure)}",
            highlight=False,
            soft_wrap=True,
        )

    def _figure(self, sample: dict) -> str:
        if sample["status"] != OK:
            return sample.get("reason", "")
        if "kill" in sample:
            kill = sample["kill"]
            lost = present.byte_count(kill["lost_bytes"])
            return f"killed after {present.byte_count(kill['acked_bytes'])}, lost {lost}"
        experiment = self._experiments[sample["experiment"]]
        value = figure_of(sample, experiment.figure)
        return f"{present.number(value)} {experiment.figure_unit}" if value is not None else ""

    def _show(self) -> None:
        if self._screen:
            self._shown = self._clock.monotonic()
            self._screen.update(self.view(), refresh=True)

    def view(self) -> Group:
        """The table as it stands now: legs that have ended, the one under way, and how far all is."""
        out = Table(box=None, padding=(0, 2, 0, 0), title_justify="left")
        for header, width in zip(("", "leg", "", "figure", "bandwidth"), COLUMN_WIDTHS, strict=True):
            out.add_column(header, no_wrap=True, overflow="ellipsis", header_style="dim", min_width=width)
        for ended in self._recent:
            out.add_row(
                f"[dim]{ended.number}[/]", escape(ended.leg), f"[{_STYLES[ended.status]}]{ended.status}[/]",
                escape(ended.figure), f"[cyan]{ended.course}[/]",
            )  # fmt: skip
        if self._leg:
            rate = f"{self._rates[-1]:,.0f} MB/s" if self._rates else ""
            out.add_row(
                f"[bold]{self._done + 1}[/]", f"[bold]{escape(self._leg.id)}[/]",
                f"{self._clock.monotonic() - self._begun:.0f} s", rate,
                f"[cyan]{sparkline(list(self._rates))}[/]",
            )  # fmt: skip
        total = len(self._plan.legs)
        foot = Table.grid(padding=(0, 2, 0, 0))
        foot.add_row(
            ProgressBar(total=total, completed=self._done, width=30), Text(f"{self._done} of {total} legs"),
            Text(f"about {present.duration(self._left.seconds)} left", style="bold"),
        )  # fmt: skip
        return Group(out, foot)


def table(rows: tuple[Row, ...], title: str) -> Table:
    """The closing table."""
    out = Table(title=title, title_justify="left", caption_justify="left", show_lines=False)
    used = present.columns(rows)
    for header in (present.HEADERS[i] for i in used):
        right = header in ("native", "shim", "limited MB/s")
        out.add_column(header, justify="right" if right else "left", overflow="fold")
    for row in rows:
        style = "red" if row.status == FAILED else None
        cells = present.cells(row)
        out.add_row(*(escape(cells[i]) for i in used), style=style)
    return out
