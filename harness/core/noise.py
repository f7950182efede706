# SPDX-License-Identifier: Apache-2.0
"""Did something else use the machine while a leg ran? Counters of the whole machine, read before and after.

Steal is time in which a virtual processor was ready and the host ran something else; the load before a leg
tells of programs that compete here. Neither changes a figure: they are kept with the sample, and a report
warns of legs that were disturbed.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

STEAL_SHARE_MAX = 0.05

READ_ERRORS = (OSError, IndexError, ValueError)


@dataclass(frozen=True)
class Reading:
    """Ticks of all processors since boot, of those stolen by the host; runnable tasks now."""

    total_ticks: int
    stolen_ticks: int
    runnable: int


def read(read_text: Callable[[str], str]) -> Reading | None:
    """None where the kernel does not tell (no procfs in a container, for example)."""
    try:
        cpu = [int(n) for n in read_text("/proc/stat").split("\n", 1)[0].split()[1:]]
        runnable = int(read_text("/proc/loadavg").split()[3].split("/")[0])
        # guest time is part of user time already
        return Reading(sum(cpu[:8]), cpu[7], runnable)
    except READ_ERRORS:
        return None


def between(before: Reading | None, after: Reading | None) -> dict:
    """What a sample keeps: {} when nothing could be read."""
    if before is None or after is None:
        return {}
    total = after.total_ticks - before.total_ticks
    stolen = (after.stolen_ticks - before.stolen_ticks) / total if total > 0 else 0.0
    return {"noise": {"steal_share": round(stolen, 4), "runnable_before": before.runnable}}


def warnings(samples: Sequence[dict], cpus: int) -> list[str]:
    """One line per kind of disturbance, with the number of legs and the worst of them."""
    told = [(s["leg"], s["noise"]) for s in samples if s.get("noise")]
    found = []
    stolen = [(noise["steal_share"], leg) for leg, noise in told if noise["steal_share"] > STEAL_SHARE_MAX]
    if stolen:
        share, leg = max(stolen)
        found.append(
            f"the host took processors away during {len(stolen)} of {len(told)} legs (steal above "
            f"{STEAL_SHARE_MAX:.0%}; worst {share:.0%} in {leg})"
        )
    busy = [(noise["runnable_before"], leg) for leg, noise in told if noise["runnable_before"] > cpus]
    if busy:
        count, leg = max(busy)
        found.append(
            f"other programs were waiting for a processor before {len(busy)} of {len(told)} legs "
            f"(worst: {count} runnable on {cpus} processors before {leg}); close them and measure again"
        )
    return found
