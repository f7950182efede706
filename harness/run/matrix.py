# SPDX-License-Identifier: Apache-2.0
"""Many experiments from one [[matrix]]: one row for every combination of values on its axes.

[[matrix]]
name = "random reads, libaio"
id = "004-read-libaio-{jobs}x{iodepth}"       # id, title, note and published.text take the cell's values
axes = { jobs = [1, 8], iodepth = [1, 64] }   # parameters or sizes of the tool
...                                           # everything that an [[experiment]] may have

[[matrix.cell]]                               # more for some of the cells
at = { jobs = 8, iodepth = 64 }
published = { value = 1007.5, unit = "kIOPS", text = "1007.5 kIOPS" }
[[matrix.cell.claim]]
...
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping

from harness.core.model import LabError
from harness.tools import TOOLS

_TEXTS = ("id", "title", "note")


def merge(defaults: Mapping, table: Mapping) -> dict:
    """table above defaults; tables in both are merged key by key."""
    out = dict(defaults)
    for key, value in table.items():
        if isinstance(value, Mapping) and isinstance(out.get(key), Mapping):
            out[key] = merge(out[key], value)
        else:
            out[key] = value
    return out


def expand(where: str, table: Mapping) -> Iterator[tuple[dict, str, dict]]:
    """(experiment table, name of the matrix, its cell) for each combination. LabError for a mistake."""
    name = table.get("name")
    where = f"{where}: matrix '{name or '?'}'"
    axes = table.get("axes")
    if not isinstance(name, str):
        raise LabError(f"{where}: 'name' (str) is missing")
    if not isinstance(axes, Mapping) or not axes or not all(isinstance(v, list) and v for v in axes.values()):
        raise LabError(f"{where}: 'axes' must be a table of lists, none of them empty")
    special = table.get("cell", [])
    chosen = [dict(zip(axes, values, strict=True)) for values in itertools.product(*axes.values())]
    cells = [{axis: _label(where, value) for axis, value in values.items()} for values in chosen]
    for entry in special:
        if not any(_matches(entry, cell) for cell in cells):
            raise LabError(f"{where}: no cell at {entry.get('at')}")
    common = {k: v for k, v in table.items() if k not in ("name", "axes", "cell")}
    for values, cell in zip(chosen, cells, strict=True):
        row = _placed(where, common, _settings(values))
        for entry in special:
            if _matches(entry, cell):
                row = merge(row, {k: v for k, v in entry.items() if k != "at"})
        yield _worded(where, row, cell), name, cell


def _label(where: str, value: object) -> object:
    if isinstance(value, Mapping):
        if not isinstance(value.get("label"), str):
            raise LabError(f"{where}: a value that is a table needs a 'label' (str)")
        return value["label"]
    return value


def _settings(values: Mapping) -> dict:
    """Parameters and sizes of one combination."""
    out: dict = {}
    for axis, value in values.items():
        out |= (
            {k: v for k, v in value.items() if k != "label"} if isinstance(value, Mapping) else {axis: value}
        )
    return out


def _matches(entry: Mapping, cell: Mapping) -> bool:
    at = entry.get("at")
    return isinstance(at, Mapping) and bool(at) and all(k in cell and cell[k] == v for k, v in at.items())


def _placed(where: str, row: Mapping, settings: Mapping) -> dict:
    """The axes' values put where the tool looks for them."""
    tool = TOOLS.get(row.get("tool", ""))
    if tool is None:
        raise LabError(f"{where}: tool '{row.get('tool')}' is none of {', '.join(TOOLS)}")
    out = dict(row)
    for key, value in settings.items():
        if key in tool.PARAMS:
            out["params"] = {**out.get("params", {}), key: value}
        elif key in tool.SIZES:
            out["size"] = {scale: {**size, key: value} for scale, size in out.get("size", {}).items()}
        else:
            raise LabError(
                f"{where}: '{key}' of an axis is neither a parameter nor a size of tool '{row['tool']}'"
            )
    return out


def _worded(where: str, row: Mapping, cell: Mapping) -> dict:
    out = dict(row)
    try:
        for key in _TEXTS:
            if isinstance(out.get(key), str):
                out[key] = out[key].format(**cell)
        if isinstance(out.get("published"), Mapping) and "text" in out["published"]:
            out["published"] = {**out["published"], "text": out["published"]["text"].format(**cell)}
    except (KeyError, IndexError, ValueError) as error:
        raise LabError(f"{where}: a text names a value that no axis has ({error})") from error
    return out
