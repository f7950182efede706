# SPDX-License-Identifier: Apache-2.0
"""A run on disk: run.json (settings, environment) and samples.jsonl (one line per finished leg).

A line is written and synced when its leg ends, so a run that is interrupted anywhere can go on: the
plan is made again from run.json and legs that have a line are left out. A torn last line (the harness
was killed while writing it) is cut off.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Sequence
from pathlib import Path

from harness.core.environment import differences
from harness.core.model import LabError

FORMAT = 1
RUN, SAMPLES = "run.json", "samples.jsonl"
UNIFORM = ("suite", "scale", "memory_limit_bytes", "warm", "rounds_per_run", "hosts")
"""Settings that runs must share to be merged."""
PER_EXPERIMENT = ("sizes", "params")
"""Settings, by experiment, that merged runs share where both have the experiment."""


class RunStore:
    """One result directory, open for appending."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.settings: dict = {}
        self.samples: list[dict] = []

    @classmethod
    def create(cls, directory: Path, settings: dict) -> RunStore:
        """A new directory; LabError when it holds a run already."""
        store = cls(directory)
        if (directory / RUN).exists():
            raise LabError(f"{directory}: holds a run already; use --resume {directory} or another --out")
        directory.mkdir(parents=True, exist_ok=True)
        store._write({"format": FORMAT, **settings})
        return store

    def note(self, text: str) -> None:
        """A remark that belongs to every figure of the run (shown among the warnings)."""
        if text not in self.settings.get("notes", []):
            self._write({**self.settings, "notes": [*self.settings.get("notes", []), text]})

    def _write(self, settings: dict) -> None:
        temporary = self.directory / (RUN + ".new")
        temporary.write_text(json.dumps(settings, indent=1) + "\n", encoding="utf-8")
        temporary.rename(self.directory / RUN)
        self.settings = settings

    @classmethod
    def resume(cls, directory: Path, environment: dict) -> RunStore:
        """An existing run; LabError when this machine is no longer the one that it was begun on."""
        store = cls.open(directory)
        apart = differences(store.settings["environment"], environment)
        if apart:
            raise LabError(
                f"{directory}: cannot be resumed here, the environment differs:\n  " + "\n  ".join(apart)
            )
        store._cut_torn_line()
        return store

    @classmethod
    def open(cls, directory: Path) -> RunStore:
        """Read a run; LabError when there is none or it is of another format."""
        store = cls(directory)
        try:
            store.settings = json.loads((directory / RUN).read_text(encoding="utf-8"))
        except (OSError, ValueError) as error:
            raise LabError(f"{directory}: not a run of this laboratory ({RUN}: {error})") from error
        if store.settings.get("format") != FORMAT:
            raise LabError(
                f"{directory}: format {store.settings.get('format')}, this laboratory reads {FORMAT}"
            )
        store.samples = read_samples(directory / SAMPLES)
        return store

    @property
    def done(self) -> set[str]:
        return {sample["leg"] for sample in self.samples}

    def append(self, sample: dict) -> None:
        """Add a finished leg; on return it is on the disk."""
        line = json.dumps(sample, separators=(",", ":")) + "\n"
        with open(self.directory / SAMPLES, "a", encoding="utf-8") as file:
            file.write(line)
            file.flush()
            os.fsync(file.fileno())
        self.samples.append(sample)

    def _cut_torn_line(self) -> None:
        path = self.directory / SAMPLES
        if not path.exists():
            return
        data = path.read_bytes()
        whole = data.rfind(b"\n") + 1
        if whole != len(data):
            os.truncate(path, whole)


def read_samples(path: Path) -> list[dict]:
    """All complete lines. LabError for a damaged line that is not the last."""
    if not path.exists():
        return []
    lines = path.read_text(encoding="utf-8").split("\n")
    samples = []
    for number, line in enumerate(lines, 1):
        if not line:
            continue
        try:
            samples.append(json.loads(line))
        except ValueError as error:
            if number == len(lines):
                break  # no newline yet: the harness died while writing it
            raise LabError(f"{path}: line {number} is damaged ({error})") from error
    return samples


def _apart(one: dict, other: dict) -> list[str]:
    """Why the runs of these settings cannot be merged, a line each."""
    apart = differences(one["environment"], other["environment"])
    for key in UNIFORM:
        if one.get(key) != other.get(key):
            apart.append(f"{key}: {one.get(key)!r} and {other.get(key)!r}")
    for key in PER_EXPERIMENT:
        mine, theirs = one.get(key, {}), other.get(key, {})
        for name in sorted(mine.keys() & theirs.keys()):
            if mine[name] != theirs[name]:
                apart.append(f"{key} of {name}: {mine[name]!r} and {theirs[name]!r}")
    return apart


def _refuse_twice(stores: Sequence[RunStore]) -> None:
    """Samples counted twice would make an interval narrower. A copy of a run began when the run did."""
    for number, store in enumerate(stores):
        for other in stores[:number]:
            if store.directory.resolve() == other.directory.resolve():
                raise LabError(f"{store.directory}: is given twice")
            one, two = store.settings, other.settings
            if one["started"] == two["started"] and not differences(one["environment"], two["environment"]):
                raise LabError(
                    f"{other.directory} and {store.directory} are copies of one run: they began together"
                )


def merge(stores: Iterable[RunStore]) -> RunStore:
    """Several runs as one, for the report; they may have different experiments. LabError when their environments
    differ, or the sizes of an experiment, or when a run is there twice."""
    stores = list(stores)
    _refuse_twice(stores)
    first = stores[0]
    merged = RunStore(first.directory)
    merged.settings = dict(first.settings)
    notes = dict.fromkeys(note for store in stores for note in store.settings.get("notes", []))
    merged.settings["notes"] = list(notes)
    for number, store in enumerate(stores):
        apart = _apart(merged.settings, store.settings)
        if apart:
            raise LabError(
                f"{first.directory} and {store.directory} are not merged, they differ in:\n  "
                + "\n  ".join(apart)
            )
        for key in PER_EXPERIMENT:
            merged.settings[key] = {**merged.settings.get(key, {}), **store.settings.get(key, {})}
        merged.settings["experiments"] = list(
            dict.fromkeys(merged.settings.get("experiments", []) + store.settings.get("experiments", []))
        )
        suffix = f"@{number + 1}" if len(stores) > 1 else ""
        for sample in store.samples:
            leg = sample["leg"] + suffix
            merged.samples.append({**sample, "leg": leg, "pair": f"{sample['round']}{suffix}"})
    return merged
