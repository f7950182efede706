# SPDX-License-Identifier: Apache-2.0
"""fio: the device's own rate (B1, B2), and the suites that were published as fio jobs (002, 004).

What the files hold is described in fio_blocks.py. A read leg first lays its files out, untimed; a leg with
`overwrite` does so with content that can be told from the new one. After a leg that wrote, its files are compared
whole, and there must be exactly as many bytes of the new content as fio says that it wrote: fio writes every block at
most once (its random map). In a stamped read leg fio compares every block that it reads, and ends with an error at
the first that is not as it was laid out; it reads every block at most once, too.
"""

from __future__ import annotations

import json
from collections.abc import Mapping

from harness.executor import Command, Executor
from harness.model import LabError, Leg, Outcome, Verification
from harness.tools import fio_blocks
from harness.tools.base import Params, Place, Size, Tool

NAME = "data-fio"
READS = ("read", "randread")
PERCENTILES = {"50": "p50", "95": "p95", "99": "p99", "99.9": "p999", "99.99": "p9999"}


class FioTool(Tool):
    """Params: rw (read, write, randread, randwrite), bs, iodepth, ioengine, direct, fallocate; stamped (contents with
    offsets); overwrite (write into files that are there).
    Sizes: jobs, mib_per_job or total_mib (shared evenly by the jobs), runtime_ms (at most so long)."""

    PARAMS = frozenset({"rw", "bs", "iodepth", "ioengine", "direct", "fallocate", "stamped", "overwrite"})
    SIZES = frozenset({"jobs", "mib_per_job", "total_mib", "runtime_ms"})

    def leg_size(self, size: Size, leg: Leg) -> Size:
        return size

    def total_bytes(self, params: Params, size: Size) -> int:
        return size["jobs"] * _job_bytes(size)

    def file_count(self, params: Params, size: Size) -> int:
        return size["jobs"]

    def prepare(self, executor: Executor, place: Place, params: Params, size: Size) -> None:
        if not _reads(params) and not params.get("overwrite"):
            return
        layout = {**params, "rw": "write", "ioengine": "psync", "direct": False, "iodepth": 1}
        tag = fio_blocks.NEW if _reads(params) else fio_blocks.OLD
        argv = (*_job(place, layout, size), *_content(layout, tag), "--end_fsync=1")
        done = executor.run(Command(argv))
        if done.returncode != 0:
            raise LabError(f"fio could not lay out its files: {done.stderr.strip()[:300]}")

    def argv(self, place: Place, params: Params, size: Size) -> tuple[str, ...]:
        return (
            *_job(place, params, size),
            f"--runtime={size['runtime_ms']}ms",
            *_content(params, fio_blocks.NEW),
            "--lat_percentiles=1",
            "--clat_percentiles=0",
            f"--percentile_list={':'.join(PERCENTILES)}",
        )

    def parse(self, stdout: str, params: Params) -> Outcome:
        try:
            raw = json.loads(stdout[stdout.index("{") :])
            if raw["jobs"][0]["error"]:
                raise LabError(f"fio reports error {raw['jobs'][0]['error']}")
            kept = {"fio": raw["fio version"], **_figures(raw["jobs"][0], params)}
            seconds = kept["runtime_ms"] / 1000
            return Outcome(kept["io_bytes"], seconds, seconds, kept)
        except (ValueError, KeyError, IndexError) as error:
            raise LabError(f"fio printed no result: {stdout[:200]!r}") from error

    def recover(self, executor: Executor, place: Place, params: Params, size: Size) -> dict | None:
        return None

    def verify(
        self, executor: Executor, place: Place, params: Params, size: Size, outcome: Outcome | None
    ) -> Verification:
        """Every byte of every file. outcome None cannot be: fio keeps no log of what was acknowledged."""
        total = self.total_bytes(params, size)
        owed = total if _reads(params) or outcome is None else outcome.bytes
        new = held = 0
        problem = ""
        files = sorted(place.data.glob(f"{NAME}.*"))
        if len(files) != size["jobs"]:
            problem = f"{len(files)} files, {size['jobs']} expected"
        for path in files:
            found = fio_blocks.count(
                path, fio_blocks.block_bytes(str(params["bs"])), bool(params.get("stamped"))
            )
            new += found.new
            held += found.new + found.old
            if found.wrong_at is not None and not problem:
                problem = f"{path.name}, offset {found.wrong_at}: a block that nobody wrote so"
        lost, extra = max(0, owed - new), max(0, new - owed)
        if params.get("overwrite"):
            lost = max(lost, total - held)
        if not problem and (lost or extra):
            problem = f"{lost} of {owed} bytes are not in the files, {extra} more than were written are"
        return Verification(
            not problem,
            owed,
            min(new, owed),
            lost_bytes=lost,
            corrupt_bytes=int(bool(problem) and not lost),
            unexpected_bytes=extra,
            problem=problem,
        )

    def expected_exit_loss(self, params: Params, size: Size) -> int:
        return 0


def _reads(params: Params) -> bool:
    return params["rw"] in READS


def _job_bytes(size: Size) -> int:
    return (size["mib_per_job"] << 20) if "mib_per_job" in size else (size["total_mib"] << 20) // size["jobs"]


def _job(place: Place, params: Params, size: Size) -> tuple[str, ...]:
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
        f"--size={_job_bytes(size)}",
        f"--fallocate={params['fallocate']}",
        *(("--overwrite=1",) if params.get("overwrite") else ()),
        "--group_reporting",
        "--output-format=json",
    )


def _content(params: Params, tag: bytes) -> tuple[str, ...]:
    if not params.get("stamped"):
        return (f"--buffer_pattern=0x{fio_blocks.FIXED.hex()}",)
    return (
        "--verify=pattern",
        f"--verify_pattern={fio_blocks.stamp_pattern(tag)}",
        "--verify_fatal=1",
        "--do_verify=0",
        "--verify_state_save=0",
        "--refill_buffers=0",
        "--scramble_buffers=0",
    )


def _figures(job: Mapping, params: Params) -> dict:
    """What a sample keeps. Latency in microseconds, submission included, over all jobs."""
    side = job["read" if _reads(params) else "write"]
    latency, jobs = side["lat_ns"], int(job["job options"].get("numjobs", 1))
    found = {float(k): v for k, v in latency.get("percentile", {}).items()}
    return {
        "direction": "read" if _reads(params) else "write",
        "io_bytes": side["io_bytes"],
        "runtime_ms": side["runtime"],
        "iops": side["iops"],
        "jobs": jobs,
        "iodepth": int(params["iodepth"]),
        "outstanding": jobs * int(params["iodepth"]),
        "lat_mean_us": latency["mean"] / 1000,
        **{f"lat_{name}_us": found[float(p)] / 1000 for p, name in PERCENTILES.items() if float(p) in found},
        "user_percent": job["usr_cpu"],
        "system_percent": job["sys_cpu"],
    }
