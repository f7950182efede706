# SPDX-License-Identifier: Apache-2.0
"""The charts, as SVG text for inlining into the page.

matplotlib draws with marker colours that stand for roles; the finished SVG gets CSS variables in their
place, so one drawing serves the light and the dark theme. Ids are made unique per chart, and everything
that names an outside address (metadata, namespaces) is dropped: HTML does not need it.
"""

from __future__ import annotations

import io
import re
from collections.abc import Sequence

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
from matplotlib.ticker import FuncFormatter, MaxNLocator

from harness.model import CONTROL, MEASURE, NATIVE, SHIM, Experiment
from harness.samples import Samples, app_curve, bandwidth, device_series, figure_of
from harness.summary import Row

ROLES = {
    "ink": "#010101",
    "muted": "#020202",
    "grid": "#030303",
    NATIVE: "#040404",
    SHIM: "#050505",
    CONTROL: "#060606",
    "published": "#070707",
    "card": "#080808",
}
"""Marker colour per role; the page's style sheet defines --ROLE."""

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
    "xtick.major.size": 0,
    "ytick.major.size": 0,
    "legend.frameon": False,
}


def svg(figure, name: str, label: str) -> str:
    """Finished SVG: themed, ids prefixed with `name`, `label` for those who cannot see it."""
    out = io.StringIO()
    nothing = dict.fromkeys(("Date", "Creator", "Format", "Type"))
    figure.savefig(out, format="svg", transparent=True, metadata=nothing)
    plt.close(figure)
    text = out.getvalue()
    text = text[text.index("<svg") :]
    text = re.sub(r"<metadata>.*?</metadata>", "", text, flags=re.DOTALL)
    text = re.sub(r'\s+xmlns(:\w+)?="[^"]*"', "", text)
    text = re.sub(r'\b(id)="', rf'\1="{name}-', text)
    text = re.sub(r"url\(#", f"url(#{name}-", text)
    text = re.sub(r'xlink:href="#', f'href="#{name}-', text)
    text = re.sub(r'(<svg[^>]*?) width="[^"]*"', r"\1", text, count=1)
    text = re.sub(r'(<svg[^>]*?) height="[^"]*"', r"\1", text, count=1)
    for role, colour in ROLES.items():
        text = text.replace(colour, f"var(--{role})")
    text = re.sub(r"font: (\d[^;\"]*?)px [^;\"]*", r"font: \1px var(--sans)", text)
    return text.replace("<svg", f'<svg role="img" aria-label="{label}"', 1)


def _axes(width: float, height: float):
    figure, axes = plt.subplots(figsize=(width, height), layout="constrained")
    return figure, axes


def over_time(experiment: Experiment, samples: Samples) -> str | None:
    """Bandwidth over time: solid what the program had written, dotted what the device moved.

    One thick line per variant (the leg with the median rate), thin ones for the others.
    """
    with plt.rc_context(_STYLE):
        figure, axes = _axes(5.0, 2.5)
        drawn = False
        for variant in experiment.variants:
            legs = sorted(
                samples.of(experiment.id, MEASURE, variant),
                key=lambda s: figure_of(s, experiment.figure) or 0,
            )
            for position, sample in enumerate(legs):
                typical = position == (len(legs) - 1) // 2
                drawn |= _draw_leg(axes, sample, variant, typical)
        if not drawn:
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
        figure.legend(loc="outside upper center", ncols=4, fontsize=8, handlelength=1.6)
        return svg(figure, f"time-{experiment.id}", f"Bandwidth over time, {experiment.id}")


def _draw_leg(axes, sample: dict, variant: str, typical: bool) -> bool:
    colour = ROLES[variant]
    times, rates = bandwidth(app_curve(sample))
    if rates:
        axes.plot(times, rates, color=colour, linewidth=1.8 if typical else 0.7, alpha=1 if typical else 0.45,
                  label=f"{variant}, written" if typical else None)  # fmt: skip
    times, device = bandwidth(device_series(sample))
    if device and typical:
        # fio tells nothing while it runs: then the device is all there is to draw.
        dashes = (0, (1, 1.4)) if rates else "solid"
        axes.plot(times, device, color=colour, linewidth=1.1 if rates else 1.8, linestyle=dashes,
                  label=f"{variant}, device")  # fmt: skip
    return bool(rates or device)


def bars(rows: Sequence[Row]) -> str | None:
    """Rates with intervals, native and shim, one group per row."""
    rows = [r for r in rows if any(f.rate for f in r.figures.values())]
    if not rows:
        return None
    with plt.rc_context(_STYLE):
        figure, axes = _axes(5.6, 0.36 * len(rows) + 0.9)
        for variant in (NATIVE, SHIM, CONTROL):
            group = [(_place(i, r, variant), r.figures[variant].rate)
                     for i, r in enumerate(rows) if variant in r.figures and r.figures[variant].rate]  # fmt: skip
            if not group:
                continue
            places = [place for place, _ in group]
            medians = [rate.median for _, rate in group]
            errors = [
                [rate.median - rate.low for _, rate in group],
                [rate.high - rate.median for _, rate in group],
            ]
            axes.barh(places, medians, 0.34, color=ROLES[variant], label=variant)
            axes.errorbar(
                medians, places, xerr=errors, fmt="none", ecolor=ROLES["ink"], elinewidth=0.9, capsize=2
            )
        _horizontal(
            axes, [r.experiment.id for r in rows], "MB/s, final sync included (median, 95 % interval)"
        )
        axes.xaxis.set_major_formatter(FuncFormatter(lambda v, _: f"{v:,.0f}"))
        return svg(figure, "bars", "Rates natively and under the shim")


def shares(rows: Sequence[Row]) -> str | None:
    """Share of the device's own rate, the article's and ours: what two machines can have in common."""
    found = []
    for row in rows:
        for result in row.claims:
            if result.claim.measure == "share" and result.ours is not None:
                found.append((row.experiment.id, result))
    if not found:
        return None
    with plt.rc_context(_STYLE):
        figure, axes = _axes(5.6, 0.36 * len(found) + 0.9)
        places = range(len(found))
        axes.barh([i - 0.19 for i in places], [r.claim.published or 0 for _, r in found], 0.34,
                  color=ROLES["published"], label="article")  # fmt: skip
        ours = [r.ours for _, r in found]
        errors = [[r.ours - r.low for _, r in found], [r.high - r.ours for _, r in found]]
        axes.barh([i + 0.19 for i in places], ours, 0.34, color=ROLES[NATIVE], label="here, native")
        axes.errorbar(ours, [i + 0.19 for i in places], xerr=errors, fmt="none", ecolor=ROLES["ink"],
                      elinewidth=0.9, capsize=2)  # fmt: skip
        _horizontal(axes, [name for name, _ in found], "share of fio's write rate (B2) of the same round")
        return svg(figure, "shares", "Share of the device's rate, article and here")


def memory(rows: Sequence[Row]) -> str | None:
    """Peak resident memory (VmHWM, shared mappings included) of the measured legs."""
    rows = [r for r in rows if any(f.footprint_mb is not None for f in r.figures.values())]
    if not rows:
        return None
    with plt.rc_context(_STYLE):
        figure, axes = _axes(5.6, 0.36 * len(rows) + 0.9)
        for variant in (NATIVE, SHIM, CONTROL):
            group = [(i, r) for i, r in enumerate(rows) if variant in r.figures]
            if group:
                places = [_place(i, r, variant) for i, r in group]
                values = [(r.figures[variant].hwm_kb or 0) * 1024 / 1e6 for _, r in group]
                axes.barh(places, values, 0.34, color=ROLES[variant], label=variant)
        _horizontal(
            axes,
            [r.experiment.id for r in rows],
            "peak resident memory of the program, MB (mappings included)",
        )
        return svg(figure, "memory", "Peak resident memory")


def _place(index: int, row: Row, variant: str) -> float:
    """Where a bar stands: native above its counterpart, in the middle when it is alone."""
    if len(row.figures) < 2:
        return float(index)
    return index + (-0.19 if variant == NATIVE else 0.19)


def _horizontal(axes, names: Sequence[str], label: str) -> None:
    axes.set_yticks(range(len(names)), names)
    axes.tick_params(axis="y", labelcolor=ROLES["ink"])
    axes.invert_yaxis()
    axes.yaxis.grid(False)
    axes.set_xlabel(label)
    axes.set_xlim(left=0)
    axes.xaxis.set_major_locator(MaxNLocator(5))
    axes.figure.legend(loc="outside upper center", ncols=3, fontsize=8)
