# SPDX-License-Identifier: Apache-2.0
"""The interface of a tool, and what all tools share."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from harness.core.executor import Command, Executor
from harness.core.model import LabError, Leg, Outcome, Verification

Params = Mapping[str, object]
Size = Mapping[str, int]


@dataclass(frozen=True)
class Place:
    """Where a leg happens: its directories and the directory of the built workload programs."""

    data: Path
    control: Path
    programs: Path

    @property
    def progress(self) -> Path:
        return self.control / "progress"


class Tool(Protocol):
    """A tool is a subclass, so that it has what most tools have in common."""

    PARAMS: frozenset[str]
    SIZES: frozenset[str]
    PATTERN = "data*"  # of the files that a leg under the shim manages, below place.data

    def leg_size(self, size: Size, leg: Leg) -> Size: ...

    def missing(self, params: Params) -> str:
        """What it needs and this machine does not have, known before anything runs; "" for nothing."""
        return ""

    def total_bytes(self, params: Params, size: Size) -> int:
        """All bytes that one leg writes, preparation included."""

    def disk_bytes(self, params: Params, size: Size) -> int:
        """Peak disk use; below total_bytes where files are overwritten."""
        return self.total_bytes(params, size)

    def file_count(self, params: Params, size: Size) -> int: ...

    def prepare(self, executor: Executor, place: Place, params: Params, size: Size) -> None:
        """What must be there before the timed command, untimed."""

    def argv(self, place: Place, params: Params, size: Size) -> tuple[str, ...]: ...

    def environment(self, env: Mapping[str, str]) -> Mapping[str, str]:
        """Environment of the leg's command, given the variables of the leg's variant."""
        return env

    def counted(self, params: Params) -> bool:
        """Has the library statistics of such a leg? It has none of files that are only read, written once,
        or written by a ring."""
        return True

    def parse(self, stdout: str, params: Params, place: Place | None = None) -> Outcome:
        """What the timed command printed, and left below `place.control`. LabError when it is not the tool's."""

    def recover(self, executor: Executor, place: Place, params: Params, size: Size) -> dict | None:
        """The workload's own recovery after a kill, if it has one."""

    def verify(
        self, executor: Executor, place: Place, params: Params, size: Size, outcome: Outcome | None
    ) -> Verification:
        """Every byte. outcome None: the leg was killed, what counts is the acknowledged-writes log."""

    def expected_exit_loss(self, params: Params, size: Size) -> int:
        """Bytes that the published method leaves out of its files at a clean exit (0 for a sound one)."""


class Plain(Tool):
    """What tools have in common whose legs need no preparation and no recovery, and lose nothing."""

    def leg_size(self, size: Size, leg: Leg) -> Size:
        return size

    def prepare(self, executor: Executor, place: Place, params: Params, size: Size) -> None:
        return None

    def recover(self, executor: Executor, place: Place, params: Params, size: Size) -> dict | None:
        return None

    def expected_exit_loss(self, params: Params, size: Size) -> int:
        return 0


def prepared(executor: Executor, argv: tuple[str, ...]) -> None:
    """Run what must be there before the timed command. LabError when it fails."""
    done = executor.run(Command(argv))
    if done.returncode != 0:
        raise LabError(f"{Path(argv[0]).name} could not prepare its files: {done.stderr.strip()[:300]}")


def outcome(program: str, stdout: str) -> Outcome:
    """From the JSON that the workload programs print. LabError when it is none."""
    try:
        raw = json.loads(stdout)
        return Outcome(raw["bytes"], raw["seconds"], raw["seconds_with_sync"], raw)
    except (ValueError, KeyError) as error:
        raise LabError(f"{program} printed no result: {stdout[:200]!r}") from error


def checked(executor: Executor, argv: tuple[str, ...]) -> Verification:
    """What a verifying program found. LabError when it says nothing."""
    done = executor.run(Command(argv))
    try:
        return verification(done.stdout)
    except (ValueError, KeyError) as error:
        raise LabError(f"{Path(argv[0]).name} ended with {done.returncode}: {done.stderr[:300]}") from error


def verification(stdout: str) -> Verification:
    """From the JSON that the verifying programs print. ValueError when it is none."""
    found = json.loads(stdout)
    return Verification(
        ok=bool(found["ok"]),
        owed_bytes=found["owed_bytes"],
        verified_bytes=found["verified_bytes"],
        lost_bytes=found["lost_bytes"],
        corrupt_bytes=found["corrupt_bytes"],
        unexpected_bytes=found["unexpected_bytes"],
        in_batch_bytes=found.get("in_batch_bytes", 0),
        front_zero_bytes=found.get("front_zero_bytes", 0),
        unfinished_bytes=found.get("unfinished_bytes", 0),
        problem=found["first_problem"],
    )
