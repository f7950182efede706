# SPDX-License-Identifier: Apache-2.0
"""lab-files: many small files, each opened, written once and closed."""

from __future__ import annotations

from harness.core.executor import Executor
from harness.core.model import Outcome, Verification
from harness.tools import base
from harness.tools.base import Params, Place, Size


class FilesTool(base.Plain):
    """Params: bytes (per file), rounds (repetitions whose median counts). Sizes: files."""

    PARAMS = frozenset({"bytes", "rounds"})
    SIZES = frozenset({"files"})

    def total_bytes(self, params: Params, size: Size) -> int:
        return size["files"] * 4096 * int(params.get("rounds", 1))

    def file_count(self, params: Params, size: Size) -> int:
        return size["files"]

    def argv(self, place: Place, params: Params, size: Size) -> tuple[str, ...]:
        return (
            str(place.programs / "lab-files"),
            "--dir", str(place.data),
            "--files", str(size["files"]),
            "--bytes", str(params["bytes"]),
            "--rounds", str(params.get("rounds", 1)),
        )  # fmt: skip

    def counted(self, params: Params) -> bool:
        return False

    def parse(self, stdout: str, params: Params, place: Place | None = None) -> Outcome:
        return base.outcome("lab-files", stdout)

    def verify(
        self, executor: Executor, place: Place, params: Params, size: Size, outcome: Outcome | None
    ) -> Verification:
        return base.checked(executor, (*self.argv(place, params, size), "--verify"))
