# SPDX-License-Identifier: Apache-2.0
"""Experiments from TOML. Everything that can be wrong in a file is said with file, experiment and key.

A file is one family: `suite`, `source`, optional [defaults] (any experiment key, merged below the
experiment's own, tables key by key), then [[experiment]] with [[experiment.claim]], [[matrix]] (many experiments
that differ in a few parameters, see matrix.py), and for bench [[target]].
"""

from __future__ import annotations

import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from harness import ROOT
from harness.core.model import (
    HIGHER,
    KINDS,
    LOWER,
    RATE,
    VARIANTS,
    Claim,
    Experiment,
    LabError,
    MountSpec,
    Published,
    Target,
)  # fmt: skip
from harness.core.mounts import MKFS, QUEUE_ORDER
from harness.report.judge import MEASURES, RATIOS
from harness.run import matrix
from harness.tools import TOOLS

DIRECTORY = ROOT / "configs" / "experiments"

_EXPERIMENT_KEYS = {
    "id", "title", "tool", "variants", "kinds", "params", "size", "published", "claim", "note", "shim_role",
    "shim_env", "may_lose", "estimate_mb_s", "estimate_seconds", "figure", "figure_unit", "figure_better",
    "throttle", "mount", "losses",
}  # fmt: skip
_CLAIM_KEYS = {
    "text", "measure", "variant", "of", "published", "low", "high", "unit", "needs_scale", "reason", "field",
    "of_field", "of_variant", "among", "neutral", "today", "place", "own",
}  # fmt: skip
_MOUNT_KEYS = {"filesystem", "mib", "mkfs", "options", "remount", "queue", "cold", "may_refuse"}
_TARGET_KEYS = {"id", "text", "numerator", "denominator", "at_least", "at_most", "unit"}
_FILE_KEYS = {"suite", "source", "defaults", "experiment", "matrix", "target"}
_THROTTLE_KEYS = {"write_mb_s", "write_iops", "read_mb_s", "read_iops"}
_LOSSES_KEYS = {"kill", "power"}
_ROLES = ("gain", "regression")


@dataclass(frozen=True)
class Catalog:
    """All experiments and targets, in file-name and file order."""

    experiments: tuple[Experiment, ...]
    targets: tuple[Target, ...]

    def suite(self, name: str) -> tuple[Experiment, ...]:
        found = tuple(e for e in self.experiments if e.suite == name)
        if not found:
            suites = sorted({e.suite for e in self.experiments})
            raise LabError(f"suite '{name}' is unknown; there are: {', '.join(suites)}")
        return found

    def select(self, ids: Iterable[str]) -> tuple[Experiment, ...]:
        """By id, or all of a suite by its name; each once."""
        known: dict[str, list[Experiment]] = {}
        for experiment in self.experiments:
            known.setdefault(experiment.suite.lower(), []).append(experiment)
            known[experiment.id.lower()] = [experiment]
        found: dict[str, Experiment] = {}
        for name in ids:
            if name.lower() not in known:
                raise LabError(f"no experiment '{name}'; `python -m harness list` shows all of them")
            found |= {e.id: e for e in known[name.lower()]}
        return tuple(found.values())


def load(directory: Path = DIRECTORY) -> Catalog:
    """Read every *.toml of a directory; LabError for the first mistake."""
    experiments: list[Experiment] = []
    targets: list[Target] = []
    files = sorted(directory.glob("*.toml"))
    if not files:
        raise LabError(f"{directory}: no experiments (*.toml) here")
    for path in files:
        data = _read(path)
        _check_keys(path.name, data, _FILE_KEYS)
        suite = _need(path.name, data, "suite", str)
        source = data.get("source", "")
        for table in data.get("experiment", []):
            experiments.append(
                _experiment(path.name, suite, source, matrix.merge(data.get("defaults", {}), table))
            )
        for table in data.get("matrix", []):
            for row, name, cell in matrix.expand(path.name, matrix.merge(data.get("defaults", {}), table)):
                experiments.append(
                    replace(_experiment(path.name, suite, source, row), matrix=name, cell=cell)
                )
        targets += [_target(path.name, table) for table in data.get("target", [])]
    _check_unique(experiments)
    return Catalog(tuple(experiments), tuple(targets))


def _read(path: Path) -> dict:
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except (tomllib.TOMLDecodeError, OSError, UnicodeDecodeError) as error:
        raise LabError(f"{path}: {error}") from error


def _experiment(where: str, suite: str, source: str, table: Mapping) -> Experiment:
    where = f"{where}: experiment '{table.get('id', '?')}'"
    _check_keys(where, table, _EXPERIMENT_KEYS)
    tool_name = _need(where, table, "tool", str)
    if tool_name not in TOOLS:
        raise LabError(f"{where}: tool '{tool_name}' is none of {', '.join(TOOLS)}")
    tool = TOOLS[tool_name]
    _check_keys(f"{where}: params", table.get("params", {}), tool.PARAMS)
    sizes = _need(where, table, "size", dict)
    for scale, size in sizes.items():
        _check_keys(f"{where}: size.{scale}", size, tool.SIZES)
    published = _need(where, table, "published", dict)
    _check_keys(f"{where}: published", published, {"value", "unit", "text", "source"})
    role = table.get("shim_role", "gain")
    if role not in _ROLES:
        raise LabError(f"{where}: shim_role '{role}' is none of {', '.join(_ROLES)}")
    better = table.get("figure_better", HIGHER)
    if better not in (HIGHER, LOWER):
        raise LabError(f"{where}: figure_better '{better}' is none of {HIGHER}, {LOWER}")
    if "figure" in table and "figure_unit" not in table:
        raise LabError(f"{where}: 'figure' needs 'figure_unit'")
    _check_keys(f"{where}: throttle", table.get("throttle", {}), _THROTTLE_KEYS)
    _check_keys(f"{where}: losses", table.get("losses", {}), VARIANTS)
    for variant, words in table.get("losses", {}).items():
        _check_keys(f"{where}: losses.{variant}", words, _LOSSES_KEYS)
    return Experiment(
        id=_need(where, table, "id", str),
        suite=suite,
        title=_need(where, table, "title", str),
        tool=tool_name,
        variants=_subset(where, "variants", table.get("variants", ["native"]), VARIANTS),
        kinds=_subset(where, "kinds", table.get("kinds", ["measure"]), KINDS),
        params=dict(table.get("params", {})),
        sizes={scale: dict(size) for scale, size in sizes.items()},
        published=Published(**{"value": None, "unit": "", "text": "", **published}),
        claims=tuple(_claim(where, c) for c in table.get("claim", [])),
        note=table.get("note", ""),
        shim_role=role,
        shim_env={k: str(v) for k, v in table.get("shim_env", {}).items()},
        may_lose=dict(table.get("may_lose", {})),
        estimate_mb_s=dict(table.get("estimate_mb_s", {})),
        estimate_seconds=dict(table.get("estimate_seconds", {})),
        source=source,
        figure=table.get("figure", RATE),
        figure_unit=table.get("figure_unit", "MB/s"),
        figure_better=better,
        throttle=dict(table.get("throttle", {})),
        mount=_mount(where, table["mount"], sizes) if "mount" in table else None,
        losses=dict(table.get("losses", {})),
    )


def _mount(where: str, table: Mapping, sizes: Iterable[str]) -> MountSpec:
    where = f"{where}: mount"
    _check_keys(where, table, _MOUNT_KEYS)
    filesystem = _need(where, table, "filesystem", str)
    if filesystem not in MKFS:
        raise LabError(f"{where}: filesystem '{filesystem}' is none of {', '.join(MKFS)}")
    mib = _need(where, table, "mib", dict)
    for scale in sizes:
        _need(f"{where}: mib", mib, scale, int)
    queue = {name: str(value) for name, value in table.get("queue", {}).items()}
    _check_keys(f"{where}: queue", queue, QUEUE_ORDER)
    return MountSpec(**{**table, "mkfs": tuple(table.get("mkfs", ())), "queue": queue})


def _claim(where: str, table: Mapping) -> Claim:
    _check_keys(f"{where}: claim", table, _CLAIM_KEYS)
    measure = _need(f"{where}: claim", table, "measure", str)
    if measure not in MEASURES:
        raise LabError(f"{where}: claim measure '{measure}' is none of {', '.join(MEASURES)}")
    return Claim(**{"neutral": 1.0 if measure in RATIOS else None, **table})


def _target(where: str, table: Mapping) -> Target:
    where = f"{where}: target '{table.get('id', '?')}'"
    _check_keys(where, table, _TARGET_KEYS)
    for key in ("id", "text", "numerator"):
        _need(where, table, key, str)
    if ("at_least" in table) == ("at_most" in table):
        raise LabError(f"{where}: needs exactly one of at_least and at_most")
    return Target(**table)


def _need(where: str, table: Mapping, key: str, kind: type):
    if not isinstance(table.get(key), kind):
        raise LabError(f"{where}: '{key}' ({kind.__name__}) is missing")
    return table[key]


def _check_keys(where: str, table: Mapping, allowed: Iterable[str]) -> None:
    for key in table:
        if key not in allowed:
            raise LabError(f"{where}: unknown key '{key}'; allowed: {', '.join(sorted(allowed))}")


def _subset(where: str, key: str, values: list, allowed: tuple[str, ...]) -> tuple[str, ...]:
    for value in values:
        if value not in allowed:
            raise LabError(f"{where}: {key} '{value}' is none of {', '.join(allowed)}")
    return tuple(values)


def _check_unique(experiments: list[Experiment]) -> None:
    seen: set[str] = set()
    for experiment in experiments:
        if experiment.id.lower() in seen:
            raise LabError(f"experiment id '{experiment.id}' is used twice")
        seen.add(experiment.id.lower())
