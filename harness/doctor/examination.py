# SPDX-License-Identifier: Apache-2.0
"""The doctor: every knob of part 003 for a directory, what it is set to, what that means, and how to change it.

Reads only. The words and levels are data (configs/doctor.toml), the probes code (probes*.py).
"""

from __future__ import annotations

import platform
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
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
_ADVICE = ("command", "permanent")
_CASE_KEYS = {"level", "text", "follows", *_ADVICE}
_KEYS = {"id", "group", "measure", "on", "case", *_WORDS}


@dataclass(frozen=True)
class Case:
    """words: command and permanent where the case has its own. follows: knobs that it only repeats the danger of."""

    level: str
    text: str
    words: Mapping[str, str] = field(default_factory=dict)
    follows: tuple[str, ...] = ()


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
        data = tomllib.loads(path.read_text(encoding="utf-8"))
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
        if not {"level", "text"} <= set(table) <= _CASE_KEYS or table["level"] not in LEVELS:
            raise LabError(f"{where}: case '{name}' needs text and a level of {', '.join(LEVELS)}")
        words = {key: table[key] for key in _ADVICE if key in table}
        out[name] = Case(table["level"], table["text"], words, tuple(table.get("follows", ())))
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
    knobs = knobs or load()
    findings = _one_danger_for_one_cause(knobs, [_finding(knob, scene, words) for knob in knobs])
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
        "ask_cache": _ask_cache(disks[0].name) if disks else NONE,
    }


def _ask_cache(disk: str) -> str:
    """How a disk itself is asked for its write cache. A virtual one cannot be: the host's setting decides."""
    if disk.startswith("nvme"):
        return f"nvme get-feature -f 6 /dev/{disk}"
    if disk.startswith("sd"):
        return f"hdparm -W /dev/{disk}"
    return NONE


def _one_danger_for_one_cause(knobs: Sequence[Knob], findings: Sequence[Finding]) -> tuple[Finding, ...]:
    """A danger that only repeats that of another knob becomes a hint that names it."""
    dangers = {f.id: f.title for f in findings if f.level == "danger"}
    out = []
    for knob, found in zip(knobs, findings, strict=True):
        cause = next((name for name in knob.cases[found.case].follows if name in dangers), None)
        if cause and found.level == "danger":
            text = f"Follows from: {dangers[cause]}. {found.text}"
            found = replace(found, level="hint", text=text, command=NONE, permanent=NONE)
        out.append(found)
    return tuple(out)


def _advice(words: Mapping[str, str], level: str, case: str, point: str) -> dict[str, str]:
    """Command and permanent change, only where something is to be changed, and none that cannot work: the root
    cannot be unmounted from within."""
    if level == "ok" or case == UNREAD:
        return dict.fromkeys(_ADVICE, NONE)
    out = {key: words[key] for key in _ADVICE}
    steps = out["command"].split(" && ")
    if point == "/" and steps[0] == "umount /":
        steps = [step for step in steps[1:] if not step.startswith("mount ")]
        out["command"] = f"{' && '.join(steps)}   # from a rescue system" if steps else NONE
    return out


def _finding(knob: Knob, scene: Scene, words: Mapping[str, str]) -> Finding:
    found = _probe(PROBES[knob.id], scene)
    worst = sorted(found.cases, key=lambda name: -LEVELS.index(knob.cases[name].level))
    case = worst[0]
    said = [knob.cases[name].text for name in worst if name == case or knob.cases[name].level != "ok"]
    if case == UNREAD:
        said.append(str(found.data))
    level = knob.cases[case].level
    texts = {**knob.words, **knob.on.get(scene.volume.kind, {}), **knob.cases[case].words}
    filled = {key: text.format_map({**words, **found.words}) for key, text in texts.items()}
    filled |= _advice(filled, level, case, words["point"])
    return Finding(
        id=knob.id,
        group=knob.group,
        level=level,
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
