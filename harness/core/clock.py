# SPDX-License-Identifier: Apache-2.0
"""Time, injected everywhere so that tests decide how it passes."""

from __future__ import annotations

import datetime
import time
from typing import Protocol


class Clock(Protocol):
    def monotonic(self) -> float:
        """Seconds of CLOCK_MONOTONIC (the workloads use the same clock)."""

    def sleep(self, seconds: float) -> None: ...

    def now(self) -> str:
        """Wall time, ISO 8601 with offset."""


class RealClock:
    def monotonic(self) -> float:
        return time.monotonic()

    def sleep(self, seconds: float) -> None:
        time.sleep(seconds)

    def now(self) -> str:
        return datetime.datetime.now().astimezone().isoformat(timespec="seconds")
