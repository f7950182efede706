# SPDX-License-Identifier: Apache-2.0
"""The doctor: every knob of part 003 for a directory, what it is set to, what that means, and how to change it.

Reads only. The words and levels are data (configs/doctor.toml), the probes code (probes*.py).
"""

from __future__ import annotations

import platform
import tomllib
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path

from harness import ROOT
from harness.core.model import LabError
from harness.doctor.probes import PROBES
from harness.doctor.scene import UNREAD, Probe, Reading, Scene, unread
from harness.doctor.stack import follow
from harness.doctor.system import System

TEXTS = ROOT / "configs" / "doctor.toml"
NONE = "-"  # of a text: there is nothing to say
LEVELS = ("ok", "hint", "warning", "danger")

_WORDS = ("title", "article", "today", "effect", "risk", "command", "permanent")
_KEYS = {"id", "group", "measure", "on", "case", *_WORDS}


@dataclass(frozen=True)
class Case:
    level: str
    text: str


@dataclass(frozen=True)
class Knob:
    """What is said of one knob. measure: arguments of `run`, or empty. on: replacements by type of file system."""

    id: str
    group: str
    words: Mapping[str, str]
    measure: str
    on: Mapping[str, Mapping[str, str]]
    cases: Mapping[str, Case]


@dataclass(frozen=True)
class Finding:
    """One knob of one directory. case is the worst of those found; data is what JSON readers compute with."""

    id: str
    group: str
    title: str
    level: str
    case: str
    value: str
    data: object
    text: str
    article: str
    today: str
    effect: str
    risk: str
    command: str
    permanent: str
    measure: str


@dataclass(frozen=True)
class Examination:
    """All findings of a directory, in the order of the file of texts."""

    directory: Path
    kernel: str
    findings: tuple[Finding, ...]
    layers: tuple[tuple[int, str, str], ...]
    unread: Mapping[str, str] = field(default_factory=dict)

    @property
    def level(self) -> str:
        return max((f.level for f in self.findings), key=LEVELS.index)

    def count(self, level: str) -> int:
        return sum(f.level == level for f in self.findings)

    def as_dict(self) -> dict:
        return {
            "directory": str(self.directory),
            "kernel": self.kernel,
            "level": self.level,
            "counts": {level: self.count(level) for level in LEVELS},
            "layers": [{"depth": d, "what": w, "detail": t} for d, w, t in self.layers],
            "findings": [asdict(f) for f in self.findings],
            "unread": dict(self.unread),
        }


def load(path: Path = TEXTS) -> tuple[Knob, ...]:
    """The knobs of a file of texts; LabError for the first mistake in it."""
    try:
        data = tomllib.loads(path.read_text())
    except (tomllib.TOMLDecodeError, OSError, UnicodeDecodeError) as error:
        raise LabError(f"{path}: {error}") from error
    common = _cases(path.name, data.get("common", {}))
    knobs = tuple(_knob(path.name, table, data.get("groups", []), common) for table in data.get("knob", []))
    if [knob.id for knob in knobs] != list(dict.fromkeys(knob.id for knob in knobs)):
        raise LabError(f"{path}: a knob is there twice")
    missing = set(PROBES) ^ {knob.id for knob in knobs}
    if missing:
        raise LabError(f"{path}: probes and texts differ in: {', '.join(sorted(missing))}")
    return knobs


def _knob(where: str, table: Mapping, groups: list[str], common: Mapping[str, Case]) -> Knob:
    where = f"{where}: knob '{table.get('id', '?')}'"
    for key in ("id", "group", *_WORDS, "case"):
        if key not in table:
            raise LabError(f"{where}: '{key}' is missing")
    unknown = set(table) - _KEYS | {k for on in table.get("on", {}).values() for k in on} - set(_WORDS)
    if unknown:
        raise LabError(f"{where}: unknown key '{min(unknown)}'")
    if table["group"] not in groups:
        raise LabError(f"{where}: group '{table['group']}' is none of {', '.join(groups)}")
    words = {key: table[key] for key in _WORDS}
    return Knob(
        table["id"],
        table["group"],
        words,
        table.get("measure", ""),
        table.get("on", {}),
        {**common, **_cases(where, table["case"])},
    )


def _cases(where: str, tables: Mapping) -> dict[str, Case]:
    out = {}
    for name, table in tables.items():
        if set(table) != {"level", "text"} or table["level"] not in LEVELS:
            raise LabError(f"{where}: case '{name}' needs text and a level of {', '.join(LEVELS)}")
        out[name] = Case(table["level"], table["text"])
    return out


def examine(directory: Path, system: System | None = None, knobs: tuple[Knob, ...] = ()) -> Examination:
    """Every knob of a directory. LabError when it is none."""
    system = system or System()
    directory = directory.absolute()
    if not system.at(directory).is_dir():
        raise LabError(f"{directory}: no such directory")
    directory = system.resolve(directory)
    scene = Scene(directory, system, follow(system, directory))
    words = _words(scene)
    findings = tuple(_finding(knob, scene, words) for knob in knobs or load())
    kernel = system.read("/proc/sys/kernel/osrelease") or platform.release()
    return Examination(directory, kernel, findings, tuple(scene.stack.layers), dict(system.unread))


def _words(scene: Scene) -> dict[str, str]:
    """What the braces in the texts stand for."""
    device = scene.volume.device
    disks = scene.stack.leaves or scene.stack.devices
    return {
        "directory": str(scene.directory),
        "point": scene.volume.mount.point,
        "device": f"/dev/{device}" if device else scene.volume.mount.source,
        "disk": disks[0].name if disks else "DISK",
    }


def _finding(knob: Knob, scene: Scene, words: Mapping[str, str]) -> Finding:
    found = _probe(PROBES[knob.id], scene)
    worst = sorted(found.cases, key=lambda name: -LEVELS.index(knob.cases[name].level))
    case = worst[0]
    said = [knob.cases[name].text for name in worst if name == case or knob.cases[name].level != "ok"]
    if case == UNREAD:
        said.append(str(found.data))
    texts = {**knob.words, **knob.on.get(scene.volume.kind, {})}
    filled = {key: text.format_map({**words, **found.words}) for key, text in texts.items()}
    return Finding(
        id=knob.id,
        group=knob.group,
        level=knob.cases[case].level,
        case=case,
        value=found.value,
        data=found.data,
        text=" ".join(said).rstrip(),
        measure=f"python -m harness run {knob.measure}" if knob.measure else NONE,
        **filled,
    )


def _probe(probe: Probe, scene: Scene) -> Reading:
    """Its reading, or the reasons why there is none."""
    system, before = scene.system, dict(scene.system.unread)
    system.unread.clear()
    found = probe(scene)
    why = [f"{what}: {reason}" for what, reason in system.unread.items()]
    system.unread.update({**before, **system.unread})
    return unread("; ".join(why)) if found is None else found
