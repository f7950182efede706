# SPDX-License-Identifier: Apache-2.0
"""lab-passes: a file allocated in some way, written once and written over, with a sync after each write."""

from __future__ import annotations

from collections.abc import Mapping

from harness.core.executor import Executor
from harness.core.model import SHIM, Leg, Outcome, Verification
from harness.tools import base
from harness.tools.base import Params, Place, Size

_OPTIONS = ("allocate", "sync", "via", "batch", "passes", "segments")
_SCALED = ("records", "pause_ms")


class PassesTool(base.Plain):
    """Params are those of the program (workloads/passes.c). Sizes: records, pause_ms (between the passes), and
    records_shim where a leg under the shim needs another number."""

    PARAMS = frozenset({*_OPTIONS, "record_bytes", "append"})
    SIZES = frozenset({*_SCALED, "records_shim"})

    def leg_size(self, size: Size, leg: Leg) -> Size:
        records = size.get("records_shim", size["records"]) if leg.variant == SHIM else size["records"]
        return {**{k: v for k, v in size.items() if k in _SCALED}, "records": records}

    def total_bytes(self, params: Params, size: Size) -> int:
        times = int(params.get("passes", 1)) + (
            params.get("allocate") == "zeros" or params.get("via") == "pool"
        )
        return size["records"] * _record_bytes(params) * times

    def disk_bytes(self, params: Params, size: Size) -> int:
        return size["records"] * _record_bytes(params) * (2 if params.get("via") == "pool" else 1)

    def file_count(self, params: Params, size: Size) -> int:
        return int(params.get("segments", 1)) + 1

    def argv(self, place: Place, params: Params, size: Size) -> tuple[str, ...]:
        return (*_common(place, params, size), "--progress", str(place.progress))

    def parse(self, stdout: str, params: Params, place: Place | None = None) -> Outcome:
        return base.outcome("lab-passes", stdout)

    def verify(
        self, executor: Executor, place: Place, params: Params, size: Size, outcome: Outcome | None
    ) -> Verification:
        return base.checked(executor, (*_common(place, params, size), "--verify"))


def _record_bytes(params: Params) -> int:
    return int(params.get("record_bytes", 4096))


def _common(place: Place, params: Params, size: Mapping[str, int]) -> tuple[str, ...]:
    argv = [str(place.programs / "lab-passes"), "--dir", str(place.data)]
    argv += ["--record-bytes", str(_record_bytes(params))]
    for name in _SCALED:
        if name in size:
            argv += [f"--{name.replace('_', '-')}", str(size[name])]
    for name in _OPTIONS:
        if name in params:
            argv += [f"--{name}", str(params[name])]
    return (*argv, *(("--append",) if params.get("append") else ()))
