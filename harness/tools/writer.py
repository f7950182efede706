# SPDX-License-Identifier: Apache-2.0
"""lab-writer and lab-verify: E1-E4, their controls, and the one-thread rows of the bench."""

from __future__ import annotations

import json
from collections.abc import Mapping

from harness.core.executor import Command, Executor
from harness.core.model import KILL, MEMORY, SHIM, LabError, Leg, Outcome, Verification
from harness.tools import base
from harness.tools.base import Params, Place, Size, Tool

WINDOW_BYTES = 16384
PACED_RECORDS, PAUSE_US = 512, 1000
_FLAGS = ("append", "direct", "prealloc", "verbatim", "sync")


class WriterTool(Tool):
    """Sizes: threads, records (per thread), and records_memory, records_kill, records_shim where a leg
    needs another number (a leg under the shim that would be over in a few milliseconds, for example).

    Every second kill leg is paced: a pause after every record. Flat out, nearly every thread sits inside a
    write when the kill comes, and the kernel still completes that write; a program that waits for its next
    record, as most do, is met with a half-filled batch.
    """

    PARAMS = frozenset({"method", "window", "record_bytes", *_FLAGS})
    SIZES = frozenset({"threads", "records", "records_memory", "records_kill", "records_shim"})

    def leg_size(self, size: Size, leg: Leg) -> Size:
        records = size["records"]
        if leg.variant == SHIM:
            records = size.get("records_shim", records)
        if leg.kind == MEMORY:
            records = size.get("records_memory", records)
        elif leg.kind == KILL:
            records = size.get("records_kill", records)
            if leg.round % 2 == 0:
                records = min(records, PACED_RECORDS)
                return {"threads": size["threads"], "records": records, "pause_us": PAUSE_US}
        return {"threads": size["threads"], "records": records}

    def total_bytes(self, params: Params, size: Size) -> int:
        return size["threads"] * size["records"] * _record_bytes(params)

    def file_count(self, params: Params, size: Size) -> int:
        return size["threads"] * (2 if params.get("method") == "batch" else 1)

    def prepare(self, executor: Executor, place: Place, params: Params, size: Size) -> None:
        return None

    def argv(self, place: Place, params: Params, size: Size) -> tuple[str, ...]:
        return (
            str(place.programs / "lab-writer"),
            "--progress", str(place.progress),
            *_common(place, params, size),
            *_shape(params),
            *(("--pause-us", str(size["pause_us"])) if "pause_us" in size else ()),
        )  # fmt: skip

    def parse(self, stdout: str, params: Params, place: Place | None = None) -> Outcome:
        return base.outcome("lab-writer", stdout)

    def recover(self, executor: Executor, place: Place, params: Params, size: Size) -> dict | None:
        if params.get("method") != "batch" or params.get("verbatim"):
            return None
        argv = (
            str(place.programs / "lab-writer"),
            "--recover",
            *_common(place, params, size),
            *_shape(params),
        )
        done = executor.run(Command(argv))
        if done.returncode != 0:
            raise LabError(f"the workload's own recovery failed: {done.stderr.strip()}")
        return json.loads(done.stdout)

    def verify(
        self, executor: Executor, place: Place, params: Params, size: Size, outcome: Outcome | None
    ) -> Verification:
        argv = [str(place.programs / "lab-verify"), *_common(place, params, size)]
        if params.get("verbatim"):
            argv += ["--layout", "shifted"]
        if params.get("prealloc") and (outcome is None or params.get("verbatim")):
            killed_in_memcpy = outcome is None and params.get("method") == "mmap"
            argv += ["--tail", "copied" if killed_in_memcpy else "zeros"]
        argv += ["--acked", str(place.progress)] if outcome is None else ["--drop-cache"]
        return base.checked(executor, tuple(argv))

    def expected_exit_loss(self, params: Params, size: Size) -> int:
        """E4 as published leaves the last window of every thread in batchN."""
        if not params.get("verbatim"):
            return 0
        window, written = _window(params), size["records"] * _record_bytes(params)
        return size["threads"] * (written % window or window)


def _record_bytes(params: Params) -> int:
    return int(params.get("record_bytes", 4096))


def _window(params: Params) -> int:
    return int(params.get("window", WINDOW_BYTES))


def _common(place: Place, params: Params, size: Mapping[str, int]) -> tuple[str, ...]:
    return (
        "--dir", str(place.data),
        "--threads", str(size["threads"]),
        "--records", str(size["records"]),
        "--record-bytes", str(_record_bytes(params)),
        "--window", str(_window(params)),
    )  # fmt: skip


def _shape(params: Params) -> tuple[str, ...]:
    return ("--method", str(params.get("method", "write")), *(f"--{f}" for f in _FLAGS if params.get(f)))
