# SPDX-License-Identifier: Apache-2.0
"""A comparison as tables for the terminal and as Markdown. Pure."""

from __future__ import annotations

import os
import posixpath
import shlex
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from rich.table import Table

from harness.ab import equality
from harness.ab.predict import Prediction
from harness.ab.profile import File
from harness.ab.runs import Run
from harness.ab.session import Record, portable
from harness.core import statistics
from harness.report import present

FILES_MAX = 12
CALLS_MAX = 14
WRITES = ("write", "writev", "pwrite64", "pwritev", "pwritev2")
SYNCS = ("fsync", "fdatasync", "sync_file_range", "msync", "sync", "syncfs")


@dataclass(frozen=True)
class Block:
    """One table: the first `texts` columns are text, the others figures."""

    title: str
    headers: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    texts: int = 1


def blocks(record: Record) -> list[Block]:
    """All tables that there is something in."""
    found = [_times(record), _calls(record), _files(record), _calibration(record)]
    return [block for block in found if block is not None]


def sentences(record: Record) -> list[str]:
    """The result in sentences: verdict, rule, measurement, integrity, notes."""
    out = [record.sentence]
    comparison, processor = record.comparison, record.processor_comparison
    if comparison and processor:
        out.append(f"Measured: {_measured(comparison, record.prediction, 'as fast')}")
        expected = record.processor_prediction
        told = (
            f" predicted {expected.ratio:.2f} [{expected.low:.2f}, {expected.high:.2f}]," if expected else ""
        )
        out.append(f"Processor time:{told} measured {_measured(processor, expected, 'less')}")
        out.append(_integrity(record))
    if record.settings.own_rule and record.advice:
        found = record.advice.rule
        out.append(f"By itself it would try {' '.join(found.env().values())}." if found else
                   "By itself it would try no rule: " + "; ".join(record.advice.obstacles) + ".")  # fmt: skip
    if record.rule and (record.recommended or record.comparison):
        out += [f"Note: {note}." for note in record.rule.notes]
    return out + [f"Note: {note}." for note in record.notes]


def _measured(found: statistics.Comparison, expected: Prediction | None, word: str) -> str:
    text = f"{found.ratio:.2f} times {word} [{found.low:.2f}, {found.high:.2f}], {present.plural(found.n, 'pair')}, "
    text += found.verdict
    if expected is None:
        return f"{text}."
    return f"{text}; {'within' if expected.covers(found.ratio) else 'NOT within'} the predicted interval."


def command(record: Record) -> str:
    """How to run the command under its rule; empty when there is none to use."""
    if not record.recommended or record.rule is None:
        return ""
    source = record.settings.job.source
    variables = [
        f'{name}="{portable(value, record.root, source, "$PWD")}"'
        for name, value in record.rule.env().items()
    ]
    return " ".join([*variables, "fastwrite run --", shlex.join(record.settings.job.argv)])


def ini(record: Record) -> str:
    """The rule as a section of a configuration file; empty when there is none to use."""
    if not record.recommended or record.rule is None:
        return ""
    return portable(record.rule.ini(), record.root, record.settings.job.source, "/WHERE/IT/WORKS")


def _integrity(record: Record) -> str:
    if record.differences:
        return "INTEGRITY: the runs under the rule left something else: " + "; ".join(record.differences[:6])
    ways = equality.ways([run.left for run in record.natives])
    same = [name for name, way in ways.items() if way == equality.BYTES]
    lines = [name for name, way in ways.items() if way == equality.LINES]
    size = sum(record.plain[0].left.files[name].size for name in same + lines)
    outputs = present.plural(len(same) + len(lines), "output")
    text = f"Integrity: {outputs} ({present.byte_count(size)}) equal in every run"
    if lines:
        text += f", {present.plural(len(lines), 'file')} of these in {equality.LINES}, as natively"
    return text + "; exit status equal."


def _times(record: Record) -> Block | None:
    if not record.shimmed:
        runs = record.plain[1:] or record.plain
        rows = [
            (name, _middle(runs, get, show), "", "") for name, get, show in _FIGURES if _values(runs, get)
        ]
        return Block("Natively", ("", "native", "", ""), tuple(rows))
    rows = []
    for name, get, show in _FIGURES:
        native, shimmed = _values(record.native, get), _values(record.shimmed, get)
        if native and shimmed:
            rows.append((name, _middle(record.native, get, show), _middle(record.shimmed, get, show),
                         _ratio(native, shimmed)))  # fmt: skip
    if record.comparison and record.processor_comparison:
        rows[0] = (*rows[0][:3], present.ratio(record.comparison))
        rows[1] = (*rows[1][:3], present.ratio(record.processor_comparison))
    for name, names in (("write calls", WRITES), ("syncs", SYNCS), ("all system calls", None)):
        counted = [_count(record, variant, names) for variant in ("native", "shim")]
        rows.append((name, *(f"{c:,}" for c in counted), _ratio([counted[0]], [counted[1]])))
    staged = [run.shim for run in record.shimmed if run.shim]
    if staged:
        middle = staged[len(staged) // 2]
        rows.append(("staged by the shim", "",
                     f"{middle.staged_writes:,} writes, {present.byte_count(middle.staged_bytes)}", ""))  # fmt: skip
    return Block(
        f"With and without the shim, median [95 % interval] of {len(record.native)} pairs",
        ("", "native", "shim", "native / shim"),
        tuple(rows),
    )


def _seconds(value: float) -> str:
    return f"{value:.3f} s" if value >= 1 else f"{value * 1000:.1f} ms"


_FIGURES: tuple[tuple[str, Callable[[Run], float | None], Callable[[float], str]], ...] = (
    ("wall time", lambda r: r.seconds, _seconds),
    ("processor time", lambda r: r.processor_seconds, _seconds),
    ("until it is on the disk", lambda r: r.seconds + r.drain_seconds, _seconds),
    ("written to the device", lambda r: r.device_bytes, present.byte_count),
    ("largest process", lambda r: r.max_rss_kb * 1024, present.byte_count),
)


def _values(runs: Sequence[Run], get: Callable[[Run], float | None]) -> list[float]:
    return [v for v in map(get, runs) if v is not None]


def _middle(runs: Sequence[Run], get: Callable, show: Callable[[float], str]) -> str:
    found = statistics.interval(_values(runs, get))
    if found.n < 2 or found.low == found.high:
        return show(found.median)
    return f"{show(found.median)} [{show(found.low)}, {show(found.high)}]"


def _ratio(native: Sequence[float], shimmed: Sequence[float]) -> str:
    below = statistics.interval(shimmed).median
    return f"{statistics.interval(native).median / below:.2f}×" if below > 0 else present.NONE


def _count(record: Record, variant: str, names: Sequence[str] | None) -> int:
    counted = record.counts.get(variant, {})
    return sum(counted.values()) if names is None else sum(counted.get(name, 0) for name in names)


def _calls(record: Record) -> Block | None:
    native, shimmed = record.counts.get("native", {}), record.counts.get("shim")
    names = sorted(
        set(native) | set(shimmed or {}), key=lambda n: -max(native.get(n, 0), (shimmed or {}).get(n, 0))
    )
    rows = [
        (name, f"{native.get(name, 0):,}", *([f"{shimmed.get(name, 0):,}"] if shimmed is not None else []))
        for name in names[:CALLS_MAX]
    ]
    headers = ("system call", "native", *(["shim"] if shimmed is not None else []))
    return Block("System calls by kind (one traced run each)", headers, tuple(rows)) if rows else None


def _files(record: Record) -> Block | None:
    if not record.profile or not record.profile.files:
        return None
    headers = ("file", "how", "writes", "typical", "bytes", "stageable", "syncs", "writers")
    files = record.profile.files
    rows = [(os.path.relpath(f.path, record.root), _how(f), *_figures(f)) for f in files[:FILES_MAX]]
    if len(files) > FILES_MAX:
        rest = files[FILES_MAX:]
        rows.append((f"{len(rest):,} more", "", f"{sum(f.writes for f in rest):,}", "",
                     present.byte_count(sum(f.bytes for f in rest)), f"{sum(f.stageable for f in rest):,}",
                     f"{sum(f.syncs for f in rest):,}", ""))  # fmt: skip
    return Block("What it writes (from strace)", headers, tuple(rows), 2)


def _figures(file: File) -> tuple[str, ...]:
    writers = f"{len(file.writers)}"
    if file.programs:
        writers += f" {posixpath.basename(sorted(file.programs)[0])}"
    typical = f"≤ {present.byte_count(file.typical_bytes)}" if file.writes else present.NONE
    return (
        f"{file.writes:,}",
        typical,
        present.byte_count(file.bytes),
        f"{file.stageable:,}",
        f"{file.syncs:,}",
        writers,
    )


def _how(file: File) -> str:
    words = [word for word, count in (("appended", file.appended), ("sequential", file.sequential),
                                      ("positioned", file.positioned)) if count]  # fmt: skip
    words += [word for word, count in (("mapped", file.shared_maps), ("spliced", file.spliced), ("locked", file.locks),
                                       ("given open", file.inherited), ("O_SYNC", file.synchronous),
                                       ("read meanwhile", file.watched)) if count]  # fmt: skip
    return ", ".join(words)


def _calibration(record: Record) -> Block | None:
    if record.calibration is None:
        return None
    rows = [
        (f"per {name}", _micro(native), _micro(shimmed))
        for name, (native, shimmed) in record.calibration.costs.items()
    ]
    whole, native, shimmed = (
        _seconds(statistics.interval(column).median)
        for column in zip(*record.calibration.rounds, strict=True)
    )
    rows += [("replayed in whole", native, shimmed), ("the command in the same rounds", whole, "")]
    title = f"Calibration: its {record.calibration.operations:,} calls on these files, replayed on this disk"
    return Block(title, ("", "native", "shim"), tuple(rows))


def _micro(value: float | None) -> str:
    return present.NONE if value is None else f"{value * 1e6:.2f} µs"


def table(block: Block) -> Table:
    """For the terminal."""
    out = Table(title=block.title, title_justify="left")
    for number, header in enumerate(block.headers):
        out.add_column(header, overflow="fold", justify="left" if number < block.texts else "right")
    for row in block.rows:
        out.add_row(*row)
    return out


def markdown(record: Record) -> str:
    """The same for a document."""
    job, environment = record.settings.job, record.environment
    lines = [f"# `{shlex.join(job.argv)}`", "",
             f"{environment['kernel']}, {environment['cpus']} processors, {environment['filesystem']} on "
             f"{environment['device']}.", "", *(f"- {s}" for s in sentences(record))]  # fmt: skip
    if ini(record):
        lines += ["", "```ini", ini(record).rstrip(), "```", "", "```sh", command(record), "```"]
    for block in blocks(record):
        lines += ["", f"## {block.title}", "", *present.markdown_table(block.headers, block.rows)]
    return "\n".join(lines) + "\n"
