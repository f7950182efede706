# SPDX-License-Identifier: Apache-2.0
"""fio: the device's own rate (B1, B2), with the parameters of the source.

What is written is a fixed 64-byte pattern, so that the files can be checked whole without fio's own
verification, which would change the timed work. A read leg first lays its files out with that pattern,
untimed; afterwards the files are checked (what fio read into its buffers is not kept by fio).
"""

from __future__ import annotations

import json
from pathlib import Path

from harness.executor import Command, Executor
from harness.model import LabError, Leg, Outcome, Verification
from harness.tools.base import Params, Place, Size

PATTERN = bytes.fromhex(
    "8f3c1ad95e7724b0c1e84f1360d5aa92397be60d58c2f4811d97a3be4c066fd2"
    "e05b39f78a124dc6b3791e64ac0fd8527e91c45a38b6027fd10ce59bf7463a88"
)
NAME = "data-fio"
CHUNK = PATTERN * (1 << 14)  # 1 MiB


class FioTool:
    """Params: rw (read or write), bs, iodepth, ioengine, direct, fallocate, runtime_seconds.
    Sizes: jobs, mib_per_job."""

    PARAMS = frozenset({"rw", "bs", "iodepth", "ioengine", "direct", "fallocate", "runtime_seconds"})
    SIZES = frozenset({"jobs", "mib_per_job"})

    def leg_size(self, size: Size, leg: Leg) -> Size:
        return size

    def total_bytes(self, params: Params, size: Size) -> int:
        return size["jobs"] * size["mib_per_job"] << 20

    def file_count(self, params: Params, size: Size) -> int:
        return size["jobs"]

    def prepare(self, executor: Executor, place: Place, params: Params, size: Size) -> None:
        if params["rw"] != "read":
            return
        layout = {**params, "rw": "write", "bs": "1m"}
        done = executor.run(Command((*self.argv(place, layout, size), "--end_fsync=1")))
        if done.returncode != 0:
            raise LabError(f"fio could not lay out its files: {done.stderr.strip()[:300]}")

    def argv(self, place: Place, params: Params, size: Size) -> tuple[str, ...]:
        return (
            "fio",
            f"--name={NAME}",
            f"--directory={place.data}",
            f"--ioengine={params['ioengine']}",
            f"--direct={int(bool(params['direct']))}",
            f"--rw={params['rw']}",
            f"--bs={params['bs']}",
            f"--iodepth={params['iodepth']}",
            f"--numjobs={size['jobs']}",
            f"--size={size['mib_per_job']}m",
            f"--runtime={params['runtime_seconds']}",
            f"--fallocate={params['fallocate']}",
            f"--buffer_pattern=0x{PATTERN.hex()}",
            "--group_reporting",
            "--output-format=json",
        )

    def parse(self, stdout: str, params: Params) -> Outcome:
        try:
            raw = json.loads(stdout[stdout.index("{") :])
            side = raw["jobs"][0][params["rw"]]
            if raw["jobs"][0]["error"]:
                raise LabError(f"fio reports error {raw['jobs'][0]['error']}")
            seconds = side["runtime"] / 1000
            kept = {"io_bytes": side["io_bytes"], "runtime_ms": side["runtime"], "fio": raw["fio version"]}
            return Outcome(side["io_bytes"], seconds, seconds, kept)
        except (ValueError, KeyError, IndexError) as error:
            raise LabError(f"fio printed no result: {stdout[:200]!r}") from error

    def recover(self, executor: Executor, place: Place, params: Params, size: Size) -> dict | None:
        return None

    def verify(
        self, executor: Executor, place: Place, params: Params, size: Size, outcome: Outcome | None
    ) -> Verification:
        """Files hold the pattern from the start; one that --runtime cut short ends in zeros."""
        owed = outcome.bytes if outcome and params["rw"] == "write" else self.total_bytes(params, size)
        verified, problem = 0, ""
        files = sorted(place.data.glob(f"{NAME}.*"))
        if len(files) != size["jobs"]:
            problem = f"{len(files)} files, {size['jobs']} expected"
        for path in files:
            good, wrong_at = check_pattern(path)
            verified += good
            if wrong_at is not None and not problem:
                problem = f"{path.name}, offset {wrong_at}: neither the pattern nor zeros after it"
        lost = max(0, owed - verified)
        if lost and not problem:
            problem = f"{lost} of {owed} bytes are not in the files"
        return Verification(
            not problem,
            owed,
            min(verified, owed),
            lost_bytes=lost,
            corrupt_bytes=int(bool(problem)),
            problem=problem,
        )

    def expected_exit_loss(self, params: Params, size: Size) -> int:
        return 0


def check_pattern(path: Path) -> tuple[int, int | None]:
    """(bytes of pattern from the start, offset of the first chunk that is neither it nor trailing zeros)."""
    good, ended = 0, False
    nothing = bytes(len(CHUNK))
    with open(path, "rb", buffering=0) as file:
        offset = 0
        while chunk := file.read(len(CHUNK)):
            if not ended and chunk == CHUNK[: len(chunk)]:
                good += len(chunk)
            elif chunk == nothing[: len(chunk)]:
                ended = True
            else:
                return good, offset
            offset += len(chunk)
    return good, None
