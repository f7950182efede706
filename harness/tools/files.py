# SPDX-License-Identifier: Apache-2.0
"""lab-files: many small files, each opened, written once and closed."""

from __future__ import annotations

import json

from harness.executor import Command, Executor
from harness.model import LabError, Leg, Outcome, Verification
from harness.tools.base import Params, Place, Size, verification


class FilesTool:
    """Params: bytes (per file), rounds (repetitions whose median counts). Sizes: files."""

    PARAMS = frozenset({"bytes", "rounds"})
    SIZES = frozenset({"files"})

    def leg_size(self, size: Size, leg: Leg) -> Size:
        return size

    def total_bytes(self, params: Params, size: Size) -> int:
        return size["files"] * 4096 * int(params.get("rounds", 1))

    def file_count(self, params: Params, size: Size) -> int:
        return size["files"]

    def prepare(self, executor: Executor, place: Place, params: Params, size: Size) -> None:
        return None

    def argv(self, place: Place, params: Params, size: Size) -> tuple[str, ...]:
        return (
            str(place.programs / "lab-files"),
            "--dir", str(place.data),
            "--files", str(size["files"]),
            "--bytes", str(params["bytes"]),
            "--rounds", str(params.get("rounds", 1)),
        )  # fmt: skip

    def parse(self, stdout: str, params: Params) -> Outcome:
        try:
            raw = json.loads(stdout)
            return Outcome(raw["bytes"], raw["seconds"], raw["seconds_with_sync"], raw)
        except (ValueError, KeyError) as error:
            raise LabError(f"lab-files printed no result: {stdout[:200]!r}") from error

    def recover(self, executor: Executor, place: Place, params: Params, size: Size) -> dict | None:
        return None

    def verify(
        self, executor: Executor, place: Place, params: Params, size: Size, outcome: Outcome | None
    ) -> Verification:
        done = executor.run(Command((*self.argv(place, params, size), "--verify")))
        try:
            return verification(done.stdout)
        except (ValueError, KeyError) as error:
            raise LabError(f"lab-files --verify ended with {done.returncode}: {done.stderr[:300]}") from error

    def expected_exit_loss(self, params: Params, size: Size) -> int:
        return 0
