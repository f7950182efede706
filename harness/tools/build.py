# SPDX-License-Identifier: Apache-2.0
"""lab-build: the files of a parallel compile: many small ones read, written, renamed, and linked at last."""

from __future__ import annotations

from harness.core.executor import Executor
from harness.core.model import Outcome, Verification
from harness.tools import base
from harness.tools.base import Params, Place, Size

FILES_PER_SOURCE = 4
"""The source, its object under two names in turn, its dependencies."""


class BuildTool(base.Plain):
    """Params: jobs, headers, bytes (of an object). Sizes: sources."""

    PARAMS = frozenset({"jobs", "headers", "bytes"})
    SIZES = frozenset({"sources"})

    def total_bytes(self, params: Params, size: Size) -> int:
        return size["sources"] * (2 * (int(params["bytes"]) + 4096) + 3 * 4096)

    def file_count(self, params: Params, size: Size) -> int:
        return size["sources"] * FILES_PER_SOURCE + int(params["headers"])

    def prepare(self, executor: Executor, place: Place, params: Params, size: Size) -> None:
        base.prepared(executor, (*_common(place, params, size), "--prepare"))

    def argv(self, place: Place, params: Params, size: Size) -> tuple[str, ...]:
        return (*_common(place, params, size), "--progress", str(place.progress))

    def parse(self, stdout: str, params: Params, place: Place | None = None) -> Outcome:
        return base.outcome("lab-build", stdout)

    def verify(
        self, executor: Executor, place: Place, params: Params, size: Size, outcome: Outcome | None
    ) -> Verification:
        return base.checked(executor, (*_common(place, params, size), "--verify"))


def _common(place: Place, params: Params, size: Size) -> tuple[str, ...]:
    return (
        str(place.programs / "lab-build"),
        "--dir", str(place.data),
        "--sources", str(size["sources"]),
        *(word for name in sorted(params) for word in (f"--{name}", str(params[name]))),
    )  # fmt: skip
