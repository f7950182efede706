# SPDX-License-Identifier: Apache-2.0
"""The result: program x {native, shim, shim + kill -9}."""

from __future__ import annotations

import platform

from lib.support import disk_base, file_system

from programs.case import Row
from programs.place import KILL, NATIVE, SHIM


def size(count: int) -> str:
    for unit in ("", "K", "M"):
        if count < 10_000:
            return f"{count} {unit}B".replace(" B", " bytes") if not unit else f"{count} {unit}B"
        count //= 1000
    return f"{count} GB"


def cell(row: Row, name: str) -> str:
    leg = row.legs.get(name)
    if row.skipped or not leg:
        return "not run"
    if not leg.ok:
        return "**FAILED**"
    return f"ok, {leg.runs} kills" if name == KILL else "ok" if name == NATIVE else f"ok, {leg.runs} ×"


def gap(row: Row) -> str:
    failed = "; ".join(leg.text for leg in row.legs.values() if not leg.ok)
    if row.skipped or failed:
        return (row.skipped or failed).replace("\n", " ").replace("|", "\\|")[:300]
    return "; ".join(part for part in (row.case.unstaged, row.case.gap) if part) or "none"


def markdown(rows: list[Row], quick: bool) -> str:
    lines = [
        "| program | native | shim | shim + kill -9 | staged: shim, kills | gap |",
        "|---|---|---|---|---|---|",
    ]
    for row in rows:
        staged = ", ".join(size(row.legs[name].staged) for name in (SHIM, KILL) if name in row.legs) or "-"
        cells = [row.case.name, *(cell(row, name) for name in (NATIVE, SHIM, KILL)), staged, gap(row)]
        lines.append(f"| {' | '.join(cells)} |")
    lines.append("")
    lines.append(
        f"{totals(rows)}; {'bounded' if quick else 'long'} variants, Linux {platform.release()}, "
        f"{file_system(disk_base())}."
    )
    return "\n".join(lines) + "\n"


def totals(rows: list[Row]) -> str:
    green = sum(row.ok for row in rows)
    skipped = sum(bool(row.skipped) for row in rows)
    return f"{len(rows)} programs: {green} green, {len(rows) - green - skipped} failed, {skipped} not run"
