# SPDX-License-Identifier: Apache-2.0
"""The charts, as SVG text for inlining into the page.

matplotlib draws with marker colours that stand for roles; the finished SVG gets CSS variables in their
place, so one drawing serves the light and the dark theme. Ids are made unique per chart, and everything
that names an outside address (metadata, namespaces) is dropped: HTML does not need it.

A chart of a suite is a function (rows, samples) -> drawings in PER_SUITE; nothing to draw is no drawing.
"""

from __future__ import annotations

import io
import math
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
from matplotlib.ticker import FixedLocator, FuncFormatter, MaxNLocator, NullLocator

from harness.core import statistics
from harness.core.model import CONTROL, MEASURE, NATIVE, SHIM, VARIANTS, Experiment
from harness.core.samples import Samples, app_curve, bandwidth, device_series, figure_of, latencies
from harness.report.summary import Row

ROLES = {
    "ink": "#010101",
    "muted": "#020202",
    "grid": "#030303",
    NATIVE: "#040404",
    SHIM: "#050505",
    CONTROL: "#060606",
    "published": "#070707",
    "card": "#080808",
    "bad": "#090909",
    "other-1": "#0a0a0a",
    "other-2": "#0b0b0b",
    "other-3": "#0c0c0c",
    "other-4": "#0d0d0d",
}
"""Marker colour per role; the page's style sheet defines --ROLE."""

WIDTH, ROW_HEIGHT = 4.6, 0.34
"""Inches. Narrow, so that texts stay readable when a phone shrinks the drawing to its width."""
ROWS_PER_CHART_MAX = 30
SINGLE_CHARTS_MAX = 24
"""Charts of single rows per suite; rows beyond are in the tables and the data."""
SERIES_POINTS_MIN = 5
RATIO_DRAWN_MIN = 0.02
LOG_TICKS_MIN, LOG_TICKS_MAX = 3, 9

_STYLE = {
    "svg.fonttype": "none",
    "svg.hashsalt": "lab",
    "font.family": "sans-serif",
    "font.sans-serif": ["DejaVu Sans"],
    "font.size": 9,
    "text.color": ROLES["ink"],
    "axes.labelcolor": ROLES["muted"],
    "axes.edgecolor": ROLES["grid"],
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.prop_cycle": matplotlib.cycler(color=[ROLES["ink"]]),
    "axes.axisbelow": True,
    "grid.color": ROLES["grid"],
    "grid.linewidth": 0.6,
    "xtick.color": ROLES["muted"],
    "ytick.color": ROLES["muted"],
    "xtick.major.size": 2.5,
    "ytick.major.size": 2.5,
    "xtick.minor.size": 0,
    "ytick.minor.size": 0,
    "legend.frameon": False,
}


@dataclass(frozen=True)
class Drawing:
    """One chart: what it shows, the SVG text, what to know when reading it, the legs that were drawn."""

    title: str
    svg: str
    note: str = ""
    legs: tuple[str, ...] = ()


def colour(variant: str) -> str:
    """Every variant has its colour; those beyond the first three share four."""
    if variant in ROLES:
        return ROLES[variant]
    place = VARIANTS.index(variant) if variant in VARIANTS else len(variant)
    return ROLES[f"other-{place % 4 + 1}"]


def svg(figure, name: str, label: str) -> str:
    """Finished SVG: themed, ids prefixed with `name`, `label` for screen readers."""
    out = io.StringIO()
    nothing = dict.fromkeys(("Date", "Creator", "Format", "Type"))
    figure.savefig(out, format="svg", transparent=True, metadata=nothing)
    plt.close(figure)
    name = re.sub(r"[^A-Za-z0-9_-]", "-", name)
    text = out.getvalue()
    text = text[text.index("<svg") :]
    text = re.sub(r"<metadata>.*?</metadata>|<!--.*?-->", "", text, flags=re.DOTALL)
    text = re.sub(r'\s+xmlns(:\w+)?="[^"]*"', "", text)
    text = re.sub(r'\b(id)="', rf'\1="{name}-', text)
    text = re.sub(r"url\(#", f"url(#{name}-", text)
    text = re.sub(r'xlink:href="#', f'href="#{name}-', text)
    text = re.sub(r'(<svg[^>]*?) width="[^"]*"', r"\1", text, count=1)
    text = re.sub(r'(<svg[^>]*?) height="[^"]*"', r"\1", text, count=1)
    # a tenth of a point is finer than any screen; coordinates stand in attributes, labels do not
    text = re.sub(r'="[^"<>]*"', lambda m: re.sub(r"(\d\.\d\d)\d+", r"\1", m.group()), text)
    text = re.sub(r"\n\s*", "\n", text)
    for role, marker in ROLES.items():
        text = text.replace(marker, f"var(--{role})")
    text = re.sub(r"font: (\d[^;\"]*?)px [^;\"]*", r"font: \1px var(--sans)", text)
    return text.replace("<svg", f'<svg role="img" aria-label="{label}"', 1)


def _axes(height: float):
    figure, axes = plt.subplots(figsize=(WIDTH, height), layout="constrained")
    return figure, axes


def _portions(rows: Sequence) -> Iterator[tuple[int, Sequence]]:
    """(number, rows) of charts that are not too long to be looked at."""
    for begin in range(0, len(rows), ROWS_PER_CHART_MAX):
        yield begin // ROWS_PER_CHART_MAX + 1, rows[begin : begin + ROWS_PER_CHART_MAX]


def _suite(rows: Sequence[Row]) -> str:
    return rows[0].experiment.suite if rows else ""


# gains


def gains(rows: Sequence[Row], samples: Samples) -> list[Drawing]:
    """Ratio to native with its interval, one line per comparison, on a logarithmic axis around 1."""
    found = [(row, variant, c) for row in rows for variant, c in row.comparisons.items()]
    drawings = []
    with plt.rc_context(_STYLE):
        for number, part in _portions(found):
            figure, axes = _axes(ROW_HEIGHT * 0.75 * len(part) + 0.7)
            axes.axvline(1, color=ROLES["muted"], linewidth=1)
            for place, (row, variant, c) in enumerate(part):
                tone = _verdict_colour(c)
                axes.plot([c.low, c.high], [place, place], color=tone, linewidth=2.2, solid_capstyle="butt")
                hollow = row.experiment.shim_role != "gain" or variant == CONTROL
                axes.plot(c.ratio, place, "o", color=tone, markersize=5,
                          markerfacecolor=ROLES["card"] if hollow else tone)  # fmt: skip
            names = [r.experiment.id if v == r.compared else f"{r.experiment.id} {v}" for r, v, _ in part]
            _list(axes, names, "times as good as native (95 % interval)")
            _logarithmic(axes, [v for _, _, c in part for v in (c.low, c.high)])
            drawn = svg(figure, f"gains-{_suite(rows)}-{number}", "Ratios to native with intervals")
            drawings.append(
                Drawing(
                    "What the shim changes", drawn, "Hollow: no gain expected. Right of the line is better."
                )
            )
    return drawings


def _verdict_colour(found: statistics.Comparison) -> str:
    return {statistics.FASTER: ROLES[SHIM], statistics.SLOWER: ROLES["bad"]}.get(found.verdict, ROLES[NATIVE])


def _logarithmic(axes, values: Sequence[float]) -> None:
    """Ratios around 1. Intervals of too few pairs run out of the drawing."""
    low, high = max(min(*values, 0.8), RATIO_DRAWN_MIN), min(max(*values, 1.25), 1 / RATIO_DRAWN_MIN)
    axes.set_xscale("log")
    axes.set_xlim(low / 1.08, high * 1.08)
    _log_ticks(axes.xaxis, low / 1.08, high * 1.08)
    axes.xaxis.set_major_formatter(FuncFormatter(lambda v, _: f"{v:g}×"))


def _log_ticks(axis, low: float, high: float) -> None:
    """Ticks that people read: 0.5, 1, 2, 5, 10 ...; at least two of them."""
    for steps in ((1,), (1, 2, 5), range(1, 10), [n / 5 for n in range(5, 50)]):
        powers = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
        ticks = [m * 10.0**e for e in powers for m in steps]
        ticks = [t for t in ticks if low <= t <= high]
        if len(ticks) >= LOG_TICKS_MIN:
            break
    axis.set_major_locator(FixedLocator(ticks if len(ticks) < LOG_TICKS_MAX else ticks[:: len(ticks) // 4]))
    axis.set_minor_locator(NullLocator())


# figures


def singles(rows: Sequence[Row]) -> list[Row]:
    """Rows that stand for themselves; those of a matrix are too many and have their own picture."""
    return [row for row in rows if not row.experiment.matrix]


def bars(rows: Sequence[Row], samples: Samples) -> list[Drawing]:
    """Main figures with intervals, one chart per unit, one group of bars per row."""
    rows, drawings = singles(rows), []
    for unit in dict.fromkeys(r.experiment.figure_unit for r in rows if r.figures):
        mine = [r for r in rows if r.figures and r.experiment.figure_unit == unit]
        for number, part in _portions(mine):
            drawn = _bars(part, unit, f"bars-{_suite(rows)}-{unit}-{number}")
            better = {r.experiment.figure_better for r in part}
            note = "Shorter is better." if better == {"lower"} else ""
            drawings.append(Drawing(f"Figures in {unit}", drawn, note))
    return drawings


def _bars(rows: Sequence[Row], unit: str, name: str) -> str:
    with plt.rc_context(_STYLE):
        count = sum(len(r.figures) for r in rows)
        figure, axes = _axes(0.19 * count + 0.06 * len(rows) + 0.9)
        at, places, labelled = 0.0, [], set()
        for row in rows:
            begin = at
            for variant, found in row.figures.items():
                middle = found.figure
                axes.barh(at, middle.median, 0.9, color=colour(variant),
                          label=variant if variant not in labelled else None)  # fmt: skip
                labelled.add(variant)
                error = [[middle.median - middle.low], [middle.high - middle.median]]
                axes.errorbar(middle.median, at, xerr=error, fmt="none", ecolor=ROLES["ink"], elinewidth=0.9,
                              capsize=2)  # fmt: skip
                at += 1
            places.append((begin + at - 1) / 2)
            at += 0.5
        sync = ", final sync included" if unit == "MB/s" else ""
        _list(axes, [r.experiment.id for r in rows], f"{unit}{sync} (median, 95 % interval)", places)
        axes.set_xlim(left=0)
        _scaled(axes.xaxis)
        axes.figure.legend(loc="outside upper center", ncols=3, fontsize=8)
        return svg(figure, name, f"Figures in {unit} natively and under the shim")


def shares(rows: Sequence[Row], samples: Samples) -> list[Drawing]:
    """Share of the device's own rate, the article's and ours: what two machines can have in common."""
    found = [
        (row.experiment.id, result)
        for row in rows
        for result in row.claims
        if result.claim.measure == "share" and result.ours is not None
    ]
    if not found:
        return []
    with plt.rc_context(_STYLE):
        figure, axes = _axes(ROW_HEIGHT * len(found) + 0.9)
        places = range(len(found))
        axes.barh([i - 0.19 for i in places], [r.claim.published or 0 for _, r in found], 0.34,
                  color=ROLES["published"], label="article")  # fmt: skip
        ours = [r.ours for _, r in found]
        errors = [[r.ours - r.low for _, r in found], [r.high - r.ours for _, r in found]]
        axes.barh([i + 0.19 for i in places], ours, 0.34, color=ROLES[NATIVE], label="here, native")
        axes.errorbar(ours, [i + 0.19 for i in places], xerr=errors, fmt="none", ecolor=ROLES["ink"],
                      elinewidth=0.9, capsize=2)  # fmt: skip
        of = sorted({r.claim.of for _, r in found})
        _list(axes, [name for name, _ in found], f"share of the rate of {', '.join(of)} in the same round")
        axes.set_xlim(left=0)
        axes.figure.legend(loc="outside upper center", ncols=3, fontsize=8)
        drawn = svg(figure, f"shares-{_suite(rows)}", "Share of the device's rate, article and here")
    return [Drawing("Share of the device: the article and here", drawn)]


def memory(rows: Sequence[Row], samples: Samples) -> list[Drawing]:
    """Peak resident memory (VmHWM, shared mappings included) of the measured legs."""
    rows = [r for r in singles(rows) if any(f.hwm_kb is not None for f in r.figures.values())]
    drawings = []
    with plt.rc_context(_STYLE):
        for number, part in _portions(rows):
            figure, axes = _axes(ROW_HEIGHT * len(part) + 0.9)
            labelled: set[str] = set()
            for place, row in enumerate(part):
                step = 0.76 / len(row.figures)
                for i, (variant, found) in enumerate(row.figures.items()):
                    axes.barh(place - 0.38 + step * (i + 0.5), (found.hwm_kb or 0) * 1024 / 1e6, step * 0.9,
                              color=colour(variant), label=None if variant in labelled else variant)  # fmt: skip
                    labelled.add(variant)
            _list(axes, [r.experiment.id for r in part], "peak resident memory, MB (mappings included)")
            axes.set_xlim(left=0)
            axes.figure.legend(loc="outside upper center", ncols=3, fontsize=8)
            drawn = svg(figure, f"memory-{_suite(rows)}-{number}", "Peak resident memory")
            drawings.append(Drawing("Memory", drawn, "The worst leg of each variant."))
    return drawings


def _list(axes, names: Sequence[str], label: str, places: Sequence[float] | None = None) -> None:
    """Rows from the top down, named at the left."""
    axes.set_yticks(range(len(names)) if places is None else places, names)
    axes.tick_params(axis="y", labelcolor=ROLES["ink"])
    ends = (-0.6, len(names) - 0.4) if places is None else (places[0] - 1.1, places[-1] + 1.1)
    axes.set_ylim(ends[1], ends[0])
    axes.yaxis.grid(False)
    axes.set_xlabel(label)
    axes.xaxis.set_major_locator(MaxNLocator(5))


def _scaled(axis) -> None:
    axis.set_major_formatter(FuncFormatter(lambda v, _: f"{v:,.0f}" if abs(v) >= 10 or v == 0 else f"{v:g}"))


# latency


def latency(rows: Sequence[Row], samples: Samples) -> list[Drawing]:
    """Latency by percentile, one line per variant: median over the legs, whiskers from best to worst leg."""
    drawings: list[Drawing] = []
    for row in singles(rows):
        curves = {v: c for v in row.figures if (c := _curve(samples.of(row.experiment.id, MEASURE, v)))}
        if curves and len(drawings) < SINGLE_CHARTS_MAX:
            legs = tuple(leg for v in curves for leg in row.figures[v].legs)
            drawings.append(
                Drawing(f"Latency: {row.experiment.id}", _latency(row.experiment, curves), legs=legs)
            )
    return drawings


_Curve = list[tuple[float, statistics.Interval]]


def _curve(legs: Sequence[dict]) -> _Curve:
    told = [found for leg in legs if (found := latencies(leg))]
    shared = sorted(set.intersection(*(set(t) for t in told))) if told else []
    return [
        (p, statistics.Interval(len(told), statistics.median(values), min(values), max(values)))
        for p in shared
        if (values := [t[p] for t in told]) and min(values) > 0
    ]


def _latency(experiment: Experiment, curves: dict[str, _Curve]) -> str:
    with plt.rc_context(_STYLE):
        figure, axes = _axes(2.4)
        percentiles = sorted({p for curve in curves.values() for p, _ in curve})
        place = {p: i for i, p in enumerate(percentiles)}
        for variant, curve in curves.items():
            x = [place[p] for p, _ in curve]
            y = [found.median for _, found in curve]
            error = [[f.median - f.low for _, f in curve], [f.high - f.median for _, f in curve]]
            axes.errorbar(x, y, yerr=error, color=colour(variant), linewidth=1.6, marker="o", markersize=3.5,
                          elinewidth=0.9, capsize=2, label=variant)  # fmt: skip
        axes.set_yscale("log")
        _log_ticks(axes.yaxis, *axes.get_ylim())
        axes.set_xticks(range(len(percentiles)), [f"p{p:g}" for p in percentiles])
        axes.set_ylabel("µs")
        axes.yaxis.set_major_formatter(FuncFormatter(lambda v, _: f"{v:,.0f}" if v >= 1 else f"{v:g}"))
        figure.legend(loc="outside upper center", ncols=3, fontsize=8)
        return svg(figure, f"latency-{experiment.id}", f"Latency by percentile, {experiment.id}")


# matrices


def heat_maps(rows: Sequence[Row], samples: Samples) -> list[Drawing]:
    """One drawing per matrix, its last axis upwards: the figure of every variant, what the shim changes, and the
    native p99 where latencies are known. Darker is more; a ratio is darker the further it is from 1."""
    names = dict.fromkeys(r.experiment.matrix for r in rows if r.experiment.matrix and r.figures)
    drawings = []
    for number, name in enumerate(names):
        mine = [r for r in rows if r.experiment.matrix == name and len(r.experiment.cell) == 2]
        panels = _panels(mine, samples)
        if panels:
            drawn = _heat_map(mine, panels, f"matrix-{_suite(rows)}-{number}", f"Matrix: {name}")
            legs = tuple(leg for r in mine for f in r.figures.values() for leg in f.legs)
            note = " ".join(dict.fromkeys(r.experiment.note for r in mine if r.experiment.note))
            drawings.append(Drawing(name[:1].upper() + name[1:], drawn, note, legs))
    return drawings


@dataclass(frozen=True)
class _Panel:
    """One value per row (None: not measured); shades: how dark each is, 0 to 1."""

    title: str
    values: list[float | None]
    shades: list[float]
    tones: list[str]


def _panels(rows: Sequence[Row], samples: Samples) -> list[_Panel]:
    if not rows:
        return []
    unit, found = rows[0].experiment.figure_unit, []
    for variant in dict.fromkeys(v for r in rows for v in r.figures):
        values = [r.figures[variant].figure.median if variant in r.figures else None for r in rows]
        found.append(_shaded(f"{variant}, {unit}", values, colour(variant)))
    ratios = [r.comparison.ratio if r.comparison else None for r in rows]
    if any(r is not None for r in ratios):
        shades = [min(1.0, abs(math.log2(r)) / 2) if r else 0.0 for r in ratios]
        tones = [ROLES[SHIM] if r is None or r >= 1 else ROLES["bad"] for r in ratios]
        found.append(_Panel(f"{rows[0].compared} / {NATIVE}", ratios, shades, tones))
    tails = [_median_of(samples.of(r.experiment.id, MEASURE, NATIVE), "lat_p99_us") for r in rows]
    if any(t is not None for t in tails):
        found.append(_shaded(f"p99 {NATIVE}, µs", tails, ROLES["other-3"]))
    return found


def _shaded(title: str, values: list[float | None], tone: str) -> _Panel:
    top = max((v for v in values if v is not None), default=0) or 1
    return _Panel(title, values, [(v or 0) / top for v in values], [tone] * len(values))


def _median_of(legs: Sequence[dict], field: str) -> float | None:
    values = [v for leg in legs if (v := figure_of(leg, field)) is not None]
    return statistics.median(values) if values else None


def _heat_map(rows: Sequence[Row], panels: Sequence[_Panel], name: str, label: str) -> str:
    across, upwards = rows[0].experiment.cell
    columns = list(dict.fromkeys(r.experiment.cell[across] for r in rows))
    lines = list(dict.fromkeys(r.experiment.cell[upwards] for r in rows))
    high = -(-len(panels) // 2)
    with plt.rc_context(_STYLE):
        figure, grid = plt.subplots(
            high, 2, figsize=(WIDTH, high * (0.3 * len(lines) + 0.75)), layout="constrained", squeeze=False
        )
        for axes, panel in zip(grid.flat, panels, strict=False):
            for row, value, shade, tone in zip(rows, panel.values, panel.shades, panel.tones, strict=True):
                x, y = columns.index(row.experiment.cell[across]), lines.index(row.experiment.cell[upwards])
                if value is not None:
                    axes.add_patch(plt.Rectangle((x - 0.48, y - 0.46), 0.96, 0.92, color=tone, linewidth=0,
                                                 alpha=0.06 + 0.54 * shade))  # fmt: skip
                    axes.text(x, y, _short(value), ha="center", va="center", fontsize=8)
            axes.set_title(panel.title, fontsize=9)
            axes.set_xticks(range(len(columns)), columns)
            axes.set_yticks(range(len(lines)), lines)
            axes.set_xlim(-0.5, len(columns) - 0.5)
            axes.set_ylim(-0.5, len(lines) - 0.5)
            axes.grid(False)
            axes.spines[:].set_visible(False)
        for axes in grid.flat[len(panels) :]:
            axes.axis("off")
        figure.supxlabel(across, fontsize=9, color=ROLES["muted"])
        figure.supylabel(upwards, fontsize=9, color=ROLES["muted"])
        return svg(figure, name, label)


def _short(value: float) -> str:
    """Three digits at most before a k or M."""
    for step, letter in ((1e6, "M"), (1e3, "k")):
        if value >= step * 0.9995:
            return f"{value / step:.3g}{letter}"
    return f"{value:.3g}"


# over time


def over_time(rows: Sequence[Row], samples: Samples) -> list[Drawing]:
    """Bandwidth over time: solid what the program had written, dotted what the device moved.

    One thick line per variant (the leg with the median figure), thin ones for the others.
    """
    drawings: list[Drawing] = []
    for row in singles(rows):
        if len(drawings) < SINGLE_CHARTS_MAX and (found := _over_time(row.experiment, samples)):
            drawings.append(found)
    return drawings


def _over_time(experiment: Experiment, samples: Samples) -> Drawing | None:
    with plt.rc_context(_STYLE):
        figure, axes = _axes(2.4)
        typical_legs = []
        for variant in experiment.variants:
            legs = samples.of(experiment.id, MEASURE, variant)
            legs.sort(key=lambda s: figure_of(s, experiment.figure) or 0)
            for position, sample in enumerate(legs):
                typical = position == (len(legs) - 1) // 2
                if _draw_leg(axes, sample, variant, typical) and typical:
                    typical_legs.append(sample["leg"])
        if not typical_legs:
            plt.close(figure)
            return None
        axes.set_xlabel(
            "seconds since the first write" if experiment.tool == "writer" else "seconds since the start"
        )
        axes.set_ylabel("MB/s")
        axes.set_ylim(bottom=0)
        axes.set_xlim(left=0)
        axes.xaxis.grid(False)
        axes.yaxis.set_major_locator(MaxNLocator(5))
        axes.yaxis.set_major_formatter(FuncFormatter(lambda v, _: f"{v:,.0f}"))
        figure.legend(loc="outside upper center", ncols=2, fontsize=8, handlelength=1.6)
        drawn = svg(figure, f"time-{experiment.id}", f"Bandwidth over time, {experiment.id}")
    return Drawing(f"Over time: {experiment.id}", drawn, experiment.title, tuple(typical_legs))


def _draw_leg(axes, sample: dict, variant: str, typical: bool) -> bool:
    """Whether there was something to draw: a leg of a few ticks has no course worth looking at."""
    times, rates = bandwidth(app_curve(sample))
    device_times, device = bandwidth(device_series(sample))
    if max(len(rates), len(device)) < SERIES_POINTS_MIN or not (any(rates) or any(device)):
        return False
    if rates:
        axes.plot(times, rates, color=colour(variant), linewidth=1.8 if typical else 0.7,
                  alpha=1 if typical else 0.45, label=f"{variant}, written" if typical else None)  # fmt: skip
    if device and typical:
        # fio tells nothing while it runs: then the device is all there is to draw.
        dashes = (0, (1, 1.4)) if rates else "solid"
        axes.plot(device_times, device, color=colour(variant), linewidth=1.1 if rates else 1.8,
                  linestyle=dashes, label=f"{variant}, device")  # fmt: skip
    return True


Draw = Callable[[Sequence[Row], Samples], list[Drawing]]

PER_SUITE: tuple[Draw, ...] = (gains, bars, heat_maps, shares, memory)
"""What a suite's rows are drawn as together, in the order of the page."""
PER_ROW: tuple[Draw, ...] = (latency, over_time)
"""What single rows are drawn as."""
