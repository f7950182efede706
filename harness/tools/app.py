# SPDX-License-Identifier: Apache-2.0
"""Applications: a server or program with its load, run for a time and checked with its own means."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from dataclasses import asdict

from harness import ROOT
from harness.apps import drive
from harness.apps.cells import cell
from harness.core import shim
from harness.core.cell import LegError, Programs
from harness.core.clock import RealClock
from harness.core.executor import Executor, RealExecutor
from harness.core.model import LabError, Leg, Outcome, UnavailableError, Verification
from harness.core.variants import OWN
from harness.tools.base import Params, Place, Plain, Size


class AppTool(Plain):
    """Params: app, mode, clients (see app_cells), bytes (about what one operation writes, for the estimate of
    space). Sizes: warmup_ms, ms, and most, about as many operations as a fast machine does in that time (for the same).

    bytes of an outcome are operations times `bytes`; the figure of such a row is operations_per_second.
    """

    PARAMS = frozenset({"app", "mode", "clients", "bytes"})
    SIZES = frozenset({"warmup_ms", "ms", "most"})
    PATTERN = "**"

    def leg_size(self, size: Size, leg: Leg) -> Size:
        return {**size, "own": int(leg.variant == OWN)}

    def total_bytes(self, params: Params, size: Size) -> int:
        return size["most"] * int(params["bytes"])

    def file_count(self, params: Params, size: Size) -> int:
        return 5000 if params["app"] == "postgres" else 50

    def prepare(self, executor: Executor, place: Place, params: Params, size: Size) -> None:
        built = shim.find()
        found = cell(Programs(RealExecutor(), RealClock()), params, bool(size["own"]))
        reason = found.missing(place.data, built if isinstance(built, shim.Shim) else None)
        if reason:
            raise UnavailableError(reason)

    def _request(self, place: Place, params: Params, size: Size) -> drive.Request:
        return drive.Request(
            dict(params), bool(size["own"]), str(place.data), str(place.control), str(place.programs),
            size["warmup_ms"] / 1000, size["ms"] / 1000,
        )  # fmt: skip

    def argv(self, place: Place, params: Params, size: Size) -> tuple[str, ...]:
        return (
            sys.executable,
            "-m",
            "harness.apps.drive",
            json.dumps(asdict(self._request(place, params, size))),
        )

    def environment(self, env: Mapping[str, str]) -> dict[str, str]:
        return {drive.ENVIRONMENT: json.dumps(dict(env)), "PYTHONPATH": str(ROOT)}

    def counted(self, params: Params) -> bool:
        return False  # (`drive` has looked at them)

    def parse(self, stdout: str, params: Params, place: Place | None = None) -> Outcome:
        try:
            raw = json.loads(stdout)
            return Outcome(raw["count"] * int(params["bytes"]), raw["seconds"], raw["seconds"], raw)
        except (ValueError, KeyError) as error:
            raise LabError(f"the driver printed no result: {stdout[:200]!r}") from error

    def verify(
        self, executor: Executor, place: Place, params: Params, size: Size, outcome: Outcome | None
    ) -> Verification:
        """By the application's own means, natively. Bytes are those of the operations, warming included."""
        if outcome is None:
            raise LabError("an application has no acknowledged-writes log")
        owed = outcome.raw["total"] * int(params["bytes"])
        try:
            checked = drive.verify(self._request(place, params, size), outcome.raw)
        except LegError as error:
            return Verification(False, owed, 0, corrupt_bytes=1, problem=str(error))
        return Verification(True, owed, owed, checks=", ".join(f"{k}: {v}" for k, v in checked.items()))
