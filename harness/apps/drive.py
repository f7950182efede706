# SPDX-License-Identifier: Apache-2.0
"""The program that a leg of an application runs: `python -m harness.apps.drive JSON`; prints one JSON object.

It starts the application under the leg's variant, loads it and ends it, so that the whole of it stands in the leg's
control group and dies with the leg. The variables of the variant come in LAB_PROGRAM_ENV and are given to the
application alone: neither this program nor the load is under the library.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

from harness.apps import cells as app_cells
from harness.core import interrupt
from harness.core.cell import LegError, Measured, Place, Programs, Timing, counters
from harness.core.clock import RealClock
from harness.core.executor import RealExecutor
from harness.core.model import LabError

ENVIRONMENT = "LAB_PROGRAM_ENV"


@dataclass(frozen=True)
class Request:
    """What to run and where; warmup and seconds: how long."""

    params: Mapping[str, object]
    own: bool
    stage: str
    control: str
    programs: str
    warmup: float
    seconds: float

    def place(self, env: Mapping[str, str]) -> Place:
        control = Path(self.control)
        return Place(Path(self.stage), control, Path(self.programs), control / "keep", env)

    def cell(self) -> app_cells.Cell:
        return app_cells.cell(Programs(RealExecutor(), RealClock()), self.params, self.own)


def drive(request: Request, env: Mapping[str, str]) -> dict:
    """The figures of one leg. LegError when it was not run as its variant says."""
    place = request.place(env)
    place.keep.mkdir()
    found = request.cell().measure(place, Timing(request.warmup, request.seconds))
    if "FASTWRITE_STATS" in env:
        counters(env, Path(env["FASTWRITE_STATS"]))
    return {**asdict(found), "operations_per_second": found.rate}


def verify(request: Request, raw: Mapping) -> Mapping[str, object]:
    """What was checked of a leg's files; raw is what `drive` said. LegError when anything is wrong."""
    found = Measured(raw["count"], raw["seconds"], total=raw["total"], facts=raw["facts"])
    return request.cell().verify(request.place({}), found)


def main() -> int:
    interrupt.watch()
    env = json.loads(os.environ.pop(ENVIRONMENT, "{}"))
    try:
        answer = drive(Request(**json.loads(sys.argv[1])), env)
    except (LegError, LabError) as error:
        print(error, file=sys.stderr)
        return 1
    print(json.dumps(answer))
    return 0


if __name__ == "__main__":
    sys.exit(main())
