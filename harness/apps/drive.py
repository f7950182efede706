# SPDX-License-Identifier: Apache-2.0
"""The program that a leg of an application runs: `python -m harness.apps.drive JSON`; prints one JSON object.

It starts the application under the leg's variant, loads it and ends it, so that the whole of it stands in the leg's
control group and dies with the leg. The variables of the variant come in LAB_PROGRAM_ENV and are given to the
application alone: neither this program nor the load is under the library.
"""

from __future__ import annotations

import json
import os
import shutil
import sys
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

from harness.apps import cells as app_cells
from harness.core import interrupt
from harness.core.cell import LegError, Measured, NotYetError, Place, Programs, Timing, counters
from harness.core.clock import RealClock
from harness.core.executor import RealExecutor
from harness.core.model import LabError

ENVIRONMENT = "LAB_PROGRAM_ENV"
LONGER_WARMUPS = (0.2, 1, 5, 30)  # of legs in which the journal answered no sync, in seconds


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
    longer = [seconds for seconds in LONGER_WARMUPS if seconds > request.warmup]
    warmup = request.warmup
    while True:
        cell = request.cell()
        found = cell.measure(place, Timing(warmup, request.seconds))
        try:
            if "FASTWRITE_STATS" in env:
                counters(env, Path(env["FASTWRITE_STATS"]), cell.by_journal, cell.served)
            return {**asdict(found), "operations_per_second": found.rate}
        except NotYetError:
            # a thread makes the journal while the program writes, which takes longer on a slow disk
            if not longer:
                raise
        warmup = longer.pop(0)
        _clear(place, env)


def _clear(place: Place, env: Mapping[str, str]) -> None:
    """As before the leg."""
    for path in place.stage.iterdir():
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        else:
            path.unlink()
    Path(env["FASTWRITE_STATS"]).unlink()


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
