# SPDX-License-Identifier: Apache-2.0
"""lab-read: a file that is not in memory, read from its beginning to its end."""

from __future__ import annotations

from harness.core.executor import Executor
from harness.core.model import Outcome, Verification
from harness.tools import base
from harness.tools.base import Params, Place, Size

RECORD_BYTES = 4096


class ReadTool(base.Plain):
    """Params: how (read, mmap), ahead (default, none, call), window (bytes asked for at a time). Sizes: records."""

    PARAMS = frozenset({"how", "ahead", "window"})
    SIZES = frozenset({"records"})

    def total_bytes(self, params: Params, size: Size) -> int:
        return size["records"] * RECORD_BYTES

    def file_count(self, params: Params, size: Size) -> int:
        return 1

    def prepare(self, executor: Executor, place: Place, params: Params, size: Size) -> None:
        base.prepared(executor, (*_common(place, size), "--prepare"))

    def argv(self, place: Place, params: Params, size: Size) -> tuple[str, ...]:
        return (
            *_common(place, size),
            "--progress", str(place.progress),
            *(word for name in sorted(params) for word in (f"--{name}", str(params[name]))),
        )  # fmt: skip

    def counted(self, params: Params) -> bool:
        return False

    def parse(self, stdout: str, params: Params, place: Place | None = None) -> Outcome:
        return base.outcome("lab-read", stdout)

    def verify(
        self, executor: Executor, place: Place, params: Params, size: Size, outcome: Outcome | None
    ) -> Verification:
        """What was read has been checked by the program (a sum); this is the file."""
        argv = (str(place.programs / "lab-verify"), *_common(place, size)[1:], "--threads", "1")
        return base.checked(executor, argv)


def _common(place: Place, size: Size) -> tuple[str, ...]:
    return (
        str(place.programs / "lab-read"),
        "--dir", str(place.data),
        "--records", str(size["records"]),
        "--record-bytes", str(RECORD_BYTES),
    )  # fmt: skip
