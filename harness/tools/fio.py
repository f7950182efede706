# SPDX-License-Identifier: Apache-2.0
"""fio: the device's own rate (B1, B2), and the suites that were published as fio jobs (002, 004).

What the files hold is described in fio_blocks.py. A read leg first lays its files out, untimed; a leg with
`overwrite` does so with content that can be told from the new one. After a leg that wrote, its files are compared
whole, and there must be exactly as many bytes of the new content as fio says that it wrote: fio writes every block at
most once (its random map). A write leg ends with a sync of its files, inside fio's own time (end_fsync; `end_sync =
false` leaves it out, as the articles do): both sides of a ratio then end with their bytes on the disk. For buffered
writes fio's log says when the last one had returned, so that the figure without the sync is known, too.

In a stamped read leg fio compares every block that it reads, and ends with an error at
the first that is not as it was laid out; it reads every block at most once, too.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path

from harness.core.executor import Command, Executor
from harness.core.model import LabError, Leg, Outcome, Verification
from harness.tools import fio_blocks
from harness.tools.base import Params, Place, Size, Tool

NAME = "data-fio"
LOG, LOG_TAIL_BYTES = "fio-log", 256
READS = ("read", "randread")
PERCENTILES = {"50": "p50", "95": "p95", "99": "p99", "99.9": "p999", "99.99": "p9999"}


class FioTool(Tool):
    """Params: rw (read, write, randread, randwrite), bs, iodepth, ioengine, direct, fallocate; stamped (contents with
    offsets); overwrite (write into files that are there); end_sync (default true: write legs end with a sync).
    Sizes: jobs, mib_per_job or total_mib (shared evenly by the jobs), runtime_ms (at most so long)."""

    PARAMS = frozenset(
        {"rw", "bs", "iodepth", "ioengine", "direct", "fallocate", "stamped", "overwrite", "end_sync"}
    )
    SIZES = frozenset({"jobs", "mib_per_job", "total_mib", "runtime_ms"})

    def missing(self, params: Params) -> str:
        return "" if shutil.which("fio") else "fio is not installed (Debian: apt-get install fio)"

    def leg_size(self, size: Size, leg: Leg) -> Size:
        return size

    def total_bytes(self, params: Params, size: Size) -> int:
        passes = 2 if params.get("overwrite") else 1
        return passes * size["jobs"] * job_bytes(size)

    def file_count(self, params: Params, size: Size) -> int:
        return size["jobs"]

    def prepare(self, executor: Executor, place: Place, params: Params, size: Size) -> None:
        options = layout_options(params, size)
        if not options:
            return
        done = executor.run(Command(_local(place, options)))
        if done.returncode != 0:
            raise LabError(f"fio could not lay out its files: {done.stderr.strip()[:300]}")

    def argv(self, place: Place, params: Params, size: Size) -> tuple[str, ...]:
        options = timed_options(params, size)
        if logged(params):
            for log in _logs(place):
                log.unlink()
            options += (f"--write_iops_log={place.control / LOG}",)
        return _local(place, options)

    def counted(self, params: Params) -> bool:
        return params["ioengine"] != "io_uring"

    def parse(self, stdout: str, params: Params, place: Place | None = None) -> Outcome:
        raw = printed(stdout)
        try:
            if raw["jobs"][0]["error"]:
                raise LabError(f"fio reports error {raw['jobs'][0]['error']}")
            kept = {"fio": raw["fio version"], **figures(raw["jobs"][0], params)}
        except (KeyError, IndexError) as error:
            raise LabError(f"fio printed no result: {stdout[:200]!r}") from error
        return outcome(kept, written_ms(_logs(place)) if place and logged(params) else None)

    def recover(self, executor: Executor, place: Place, params: Params, size: Size) -> dict | None:
        return None

    def verify(
        self, executor: Executor, place: Place, params: Params, size: Size, outcome: Outcome | None
    ) -> Verification:
        """Check every byte of every file. outcome is never None: fio keeps no log of acknowledged writes."""
        total = size["jobs"] * job_bytes(size)
        owed = total if reads(params) or outcome is None else outcome.bytes
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
                problem = f"{path.name}, offset {found.wrong_at}: a block with unexpected content"
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


def reads(params: Params) -> bool:
    return params["rw"] in READS


def synced(params: Params) -> bool:
    """Has the timed job the sync of its files in its time?"""
    return not reads(params) and bool(params.get("end_sync", True))


def logged(params: Params) -> bool:
    """Does it matter when the last write returned? Buffered writes return long before the sync, direct ones do not."""
    return synced(params) and not params["direct"]


def _logs(place: Place) -> list[Path]:
    return sorted(place.control.glob(f"{LOG}_iops*.log"))


def written_ms(logs: Sequence[Path]) -> int | None:
    """When the last job's last write returned, from the jobs' logs (a line per write, milliseconds first); None when
    there are none."""
    lines = [lines[-1] for log in logs if (lines := _tail(log).splitlines())]
    return max((int(line.split(",")[0]) for line in lines), default=None)


def _tail(log: Path) -> str:
    with open(log, "rb") as file:
        file.seek(max(0, log.stat().st_size - LOG_TAIL_BYTES))
        return file.read().decode().strip()


def printed(stdout: str) -> dict:
    """The JSON in what fio printed, which may have other lines before it. LabError when there is none."""
    try:
        return json.loads(stdout[stdout.index("{\n") :])
    except ValueError as error:
        raise LabError(f"fio printed no result: {stdout[:200]!r}") from error


def timed_options(params: Params, size: Size, limited: bool = True) -> tuple[str, ...]:
    """The measured job; limited: it ends after runtime_ms even when not all of it is done."""
    return (
        *_options(params, size),
        *((f"--runtime={size['runtime_ms']}ms",) if limited else ()),
        *_content(params, fio_blocks.NEW),
        *(("--end_fsync=1",) if synced(params) else ()),
        "--lat_percentiles=1",
        "--clat_percentiles=1",
        f"--percentile_list={':'.join(PERCENTILES)}",
    )


def layout_options(params: Params, size: Size) -> tuple[str, ...]:
    """What writes the files that must be there before; () when none must."""
    if not reads(params) and not params.get("overwrite"):
        return ()
    tag = fio_blocks.NEW if reads(params) else fio_blocks.OLD
    return (*_options({**params, **_PLAIN, "rw": "write"}, size), *_content(params, tag), "--end_fsync=1")


def check_options(params: Params, size: Size) -> tuple[str, ...]:
    """What reads all files, compares them with the new content, and removes them."""
    pattern = (
        fio_blocks.stamp_pattern(fio_blocks.NEW) if params.get("stamped") else f"0x{fio_blocks.FIXED.hex()}"
    )
    options = _options({**params, **_PLAIN, "rw": "read"}, size)
    return (*options, *_comparing(pattern), "--unlink=1")


_PLAIN = {"ioengine": "psync", "direct": False, "iodepth": 1}


def job_bytes(size: Size) -> int:
    return (size["mib_per_job"] << 20) if "mib_per_job" in size else (size["total_mib"] << 20) // size["jobs"]


def _local(place: Place, options: tuple[str, ...]) -> tuple[str, ...]:
    return ("fio", "--output-format=json", f"--name={NAME}", f"--directory={place.data}", *options)


def _options(params: Params, size: Size) -> tuple[str, ...]:
    return (
        f"--ioengine={params['ioengine']}",
        f"--direct={int(bool(params['direct']))}",
        f"--rw={params['rw']}",
        f"--bs={params['bs']}",
        f"--iodepth={params['iodepth']}",
        f"--numjobs={size['jobs']}",
        f"--size={job_bytes(size)}",
        f"--fallocate={params['fallocate']}",
        *(("--overwrite=1",) if params.get("overwrite") else ()),
        "--group_reporting",
    )


def _content(params: Params, tag: bytes) -> tuple[str, ...]:
    if not params.get("stamped"):
        return (f"--buffer_pattern=0x{fio_blocks.FIXED.hex()}",)
    return (*_comparing(fio_blocks.stamp_pattern(tag)), "--refill_buffers=0", "--scramble_buffers=0")


def _comparing(pattern: str) -> tuple[str, ...]:
    """Blocks written are filled with the pattern, blocks read are compared with it."""
    return (
        "--verify=pattern",
        f"--verify_pattern={pattern}",
        "--verify_fatal=1",
        "--do_verify=0",
        "--verify_state_save=0",
    )


def outcome(kept: Mapping, written: int | None = None) -> Outcome:
    """kept: what figures() made; written: milliseconds until the last write, where the final sync came behind it."""
    whole = kept["runtime_ms"]
    written = min(written or whole, whole)
    own = {"iops_without_sync": kept["iops"] * whole / written} if written else {}
    return Outcome(kept["io_bytes"], written / 1000, whole / 1000, {**kept, **own})


def figures(job: Mapping, params: Params) -> dict:
    """What a sample keeps of a job. Latency in microseconds over all of its processes: lat_ with the submission,
    clat_ from the submission's end to the completion, which is what fio prints first."""
    side = job["read" if reads(params) else "write"]
    jobs = int(job["job options"].get("numjobs", 1))
    return {
        "direction": "read" if reads(params) else "write",
        "io_bytes": side["io_bytes"],
        "runtime_ms": side["runtime"],
        "iops": side["iops"],
        "jobs": jobs,
        "iodepth": int(params["iodepth"]),
        "outstanding": jobs * int(params["iodepth"]),
        **_latencies("lat", side["lat_ns"]),
        **_latencies("clat", side["clat_ns"]),
        "user_percent": job["usr_cpu"],
        "system_percent": job["sys_cpu"],
    }


def _latencies(kind: str, told: Mapping) -> dict[str, float]:
    found = {float(k): v for k, v in told.get("percentile", {}).items()}
    shares = {
        f"{kind}_{name}_us": found[float(p)] / 1000 for p, name in PERCENTILES.items() if float(p) in found
    }
    return {f"{kind}_mean_us": told["mean"] / 1000, **shares}
