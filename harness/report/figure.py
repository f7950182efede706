# SPDX-License-Identifier: Apache-2.0
"""The figure on top of the README: how many times as fast, from recorded samples.

    python -m harness.report.figure BENCH_DIRECTORY SYNC_JSON [OUT]

BENCH_DIRECTORY is the result of `make bench`, SYNC_JSON that of `make bench-sync`. OUT (docs/results) gets the samples
that count, speed.csv, and two drawings that depend on nothing else, speed-light.svg and speed-dark.svg.
"""

from __future__ import annotations

import csv
import json
import statistics
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path

SAMPLES, DRAWINGS = "speed.csv", {"light": "speed-light.svg", "dark": "speed-dark.svg"}
COLUMNS = ("row", "unit", "round", "native", "library")


@dataclass(frozen=True)
class Source:
    """A row of the figure: where its samples are, under which names."""

    title: str
    cell: str
    library: str
    synced: str = ""
    """What a second counts, if the samples are those of `make bench-sync`."""


ROWS = (
    Source("SQLite DELETE, sync = ordered", "sqlite-delete", "ordered, exclusive", synced="commits"),
    Source("SQLite WAL, sync = ordered", "sqlite-wal", "ordered, exclusive", synced="commits"),
    Source("64 threads append 4 KiB", "append-64", "shim"),
    Source("1 thread appends 100 bytes", "append-100", "shim"),
    Source("1 thread appends 4 KiB, O_DIRECT", "direct-4k", "shim"),
    Source("4 KiB + fsync, sync = journal", "append-1", "journal", synced="syncs"),
    Source("the same, 16 threads", "append-16", "journal", synced="syncs"),
)

PALETTES: Mapping[str, Mapping[str, str]] = {
    "light": {"ink": "#17202b", "muted": "#5a6675", "grid": "#dfe4ea", "bar": "#0f7b6c", "one": "#7a8797"},
    "dark": {"ink": "#e6ebf1", "muted": "#9aa7b5", "grid": "#323c47", "bar": "#35b8a3", "one": "#8e9bab"},
}
FONT = "system-ui, -apple-system, 'Segoe UI', Roboto, 'Helvetica Neue', sans-serif"
WIDTH, LEFT, RIGHT, TOP, STEP, BAR = 770, 240, 220, 34, 34, 16


# samples


def _figures(samples: Iterable[dict], cell: str, variant: str, synced: bool) -> dict[str, float]:
    """Round -> MB/s, or synced writes per second."""
    name, field = ("cell", "rate") if synced else ("experiment", "rate_mb_s")
    return {
        str(s["round"]): float(s[field])
        for s in samples
        if s[name] == cell and s["variant"] == variant and s["status"] == "ok" and s.get(field)
    }


def collect(bench: Sequence[dict], sync: Sequence[dict]) -> list[dict[str, str]]:
    """The lines of speed.csv: the rounds of each row in which both were measured."""
    lines = []
    for source in ROWS:
        samples = sync if source.synced else [s for s in bench if s["kind"] == "measure"]
        native = _figures(samples, source.cell, "native", bool(source.synced))
        library = _figures(samples, source.cell, source.library, bool(source.synced))
        unit = f"{source.synced}/s" if source.synced else "MB/s"
        for number in (n for n in native if n in library):
            figures = (f"{native[number]:.4g}", f"{library[number]:.4g}")
            lines.append(dict(zip(COLUMNS, (source.title, unit, number, *figures), strict=True)))
    return lines


# drawing


@dataclass(frozen=True)
class Bar:
    """Ratios of the rounds, and what the figures themselves were."""

    title: str
    ratio: float
    low: float
    high: float
    absolute: str


def bars(lines: Sequence[Mapping[str, str]]) -> list[Bar]:
    found = []
    for title in dict.fromkeys(line["row"] for line in lines):
        mine = [line for line in lines if line["row"] == title]
        native = [float(line["native"]) for line in mine]
        library = [float(line["library"]) for line in mine]
        ratios = [b / a for a, b in zip(native, library, strict=True)]
        absolute = f"{_round(native)} → {_round(library)} {mine[0]['unit']}"
        found.append(Bar(title, statistics.median(ratios), min(ratios), max(ratios), absolute))
    return found


def _round(values: Sequence[float]) -> str:
    return f"{float(f'{statistics.median(values):.3g}'):,.0f}"


def draw(lines: Sequence[Mapping[str, str]], palette: Mapping[str, str]) -> str:
    """A file of its own: a picture in a README can use no style sheet of the page."""
    rows = bars(lines)
    most = max(1.0, *(bar.high for bar in rows))
    scale = (WIDTH - LEFT - RIGHT) / most
    height = TOP + STEP * len(rows) + 26
    label = "; ".join(f"{bar.title}: {bar.ratio:.1f} times" for bar in rows)
    out = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" width="{WIDTH}" role="img"',
        f' aria-label="{escape(label)}" font-family="{FONT}" font-size="13">',
        _text(0, 16, "Times as fast as without the library", palette["ink"], ' font-weight="600"'),
    ]
    for tick in _ticks(most):
        x, tone = LEFT + tick * scale, "one" if tick == 1 else "grid"
        bottom = TOP + STEP * len(rows)
        out.append(f'<path d="M{x:.1f} {TOP - 6}V{bottom}" stroke="{palette[tone]}" stroke-width="1"/>')
        out.append(_text(x, bottom + 16, f"{tick:g}×", palette["muted"], ' text-anchor="middle"'))
    for number, bar in enumerate(rows):
        y = TOP + STEP * number
        middle = y + BAR / 2
        width, low, high = (v * scale for v in (bar.ratio, bar.low, bar.high))
        out.append(_text(LEFT - 10, middle + 4, bar.title, palette["ink"], ' text-anchor="end"'))
        out.append(f'<rect x="{LEFT}" y="{y}" width="{width:.1f}" height="{BAR}" fill="{palette["bar"]}"/>')
        out.append(
            f'<path d="M{LEFT + low:.1f} {middle}H{LEFT + high:.1f}" stroke="{palette["ink"]}" stroke-width="1.5"/>'
        )
        x = LEFT + max(width, high) + 8
        out.append(_text(x, middle + 4, f"{bar.ratio:.1f}×", palette["ink"], ' font-weight="600"'))
        out.append(_text(x + 52, middle + 4, bar.absolute, palette["muted"], ' font-size="12"'))
    return "\n".join([*out, "</svg>"]) + "\n"


def _text(x: float, y: float, text: str, fill: str, more: str = "") -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" fill="{fill}"{more}>{escape(text)}</text>'


def _ticks(most: float) -> list[float]:
    step = next(s for s in (1, 2, 5, 10, 20, 50, 100, 1000) if most / s <= 6)
    return [1.0, *(float(t) for t in range(0, int(most) + 1, step) if t > 1)]


# files


def read(path: Path) -> list[dict[str, str]]:
    with path.open(newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


def write(lines: Sequence[Mapping[str, str]], out: Path) -> None:
    with (out / SAMPLES).open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, COLUMNS, lineterminator="\n")
        writer.writeheader()
        writer.writerows(lines)
    for theme, name in DRAWINGS.items():
        (out / name).write_text(draw(lines, PALETTES[theme]), encoding="utf-8")


def main(arguments: Sequence[str]) -> int:
    if len(arguments) not in (2, 3):
        print(__doc__, file=sys.stderr)
        return 2
    bench = [
        json.loads(line)
        for line in (Path(arguments[0]) / "samples.jsonl").read_text(encoding="utf-8").splitlines()
    ]
    sync = json.loads(Path(arguments[1]).read_text(encoding="utf-8"))["samples"]
    lines = collect(bench, sync)
    missing = {s.title for s in ROWS} - {line["row"] for line in lines}
    if missing:
        print(f"no samples for: {', '.join(sorted(missing))}", file=sys.stderr)
        return 1
    write(lines, Path(arguments[2] if len(arguments) == 3 else "docs/results"))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
