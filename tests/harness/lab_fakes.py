# SPDX-License-Identifier: Apache-2.0
"""A clock that only moves when told, an executor that executes nothing, and samples made by hand."""

from __future__ import annotations

import json
import struct
from pathlib import Path

from harness.core.cgroup import IO, Cgroups
from harness.core.environment import IDENTITY
from harness.core.executor import Completed
from harness.core.progress import DONE, HEADER_BYTES, MAGIC, SLOT_BYTES, WRITING
from harness.core.workdir import WorkDir
from harness.run.execution import Bench
from harness.tools import Place


class FakeClock:
    def __init__(self):
        self.time = 1000.0

    def monotonic(self):
        return self.time

    def sleep(self, seconds):
        self.time += seconds

    def now(self):
        return "2026-01-01T00:00:00+00:00"


def write_progress(path: Path, threads, records, record_bytes, acked, phase=WRITING, start=1000.0, end=0.0):
    """The bytes that a workload would have stored; acked records are spread evenly."""
    header = struct.pack(
        "<7Q", MAGIC, threads, records, record_bytes, phase, int(start * 1e9), int(end * 1e9)
    )
    data = bytearray(header.ljust(HEADER_BYTES, b"\0"))
    for i in range(threads):
        share = acked // threads + (1 if i < acked % threads else 0)
        data += struct.pack("<Q", share).ljust(SLOT_BYTES, b"\0")
    if path.exists():
        with open(path, "r+b") as file:
            file.write(data)
    else:
        path.write_bytes(data)


GOOD = {
    "ok": True, "owed_bytes": 100, "verified_bytes": 100, "lost_bytes": 0, "in_batch_bytes": 0,
    "corrupt_bytes": 0, "unexpected_bytes": 0, "front_zero_bytes": 0, "unfinished_bytes": 0,
    "first_problem": "",
}  # fmt: skip


STATISTICS = (
    "fastwrite: pid 1 (lab-writer), rule env: 0 writes staged, 0 bytes; 0 flushes, 0 bytes, 0 by O_DIRECT; "
    "0 syncs asked, 0 done, 0 by the journal; 0 drains\n"
)


class FakeExecutor:
    """Plays lab-writer and lab-verify: `ticks` ticks per run, then a result; `verify` is the verdict."""

    def __init__(self, clock, ticks=5, verify=None, returncode=0, stderr="", statistics=STATISTICS):
        self.clock = clock
        self.ticks = ticks
        self.verify = verify or GOOD
        self.returncode = returncode
        self.stderr = stderr
        self.statistics = statistics
        self.commands = []

    def run(self, command, tick_seconds=0.1, on_tick=None):
        self.commands.append(command)
        program = Path(command.argv[0]).name
        if program == "lab-verify":
            return Completed(0 if self.verify["ok"] else 1, json.dumps(self.verify), "", 0.1)
        if program == "lab-writer" and "--recover" not in command.argv:
            return self._write(command, tick_seconds, on_tick)
        if program == "lab-writer":
            return Completed(0, '{"recovered_bytes": 0}', "", 0.1)
        return Completed(0, "{}", "", 0.1)

    def _write(self, command, tick_seconds, on_tick):
        def option(name):
            return command.argv[command.argv.index(name) + 1]

        threads, records, size = (
            int(option("--threads")),
            int(option("--records")),
            int(option("--record-bytes")),
        )
        start = self.clock.time
        progress = Path(option("--progress"))
        for i in range(self.ticks + 1):
            acked = threads * records * i // self.ticks
            write_progress(progress, threads, records, size, acked, start=start)
            if on_tick and on_tick(1):
                return Completed(-9, "", "", self.clock.time - start, killed=True)
            self.clock.sleep(tick_seconds)
        if self.returncode:
            return Completed(self.returncode, "", self.stderr, self.clock.time - start)
        if self.statistics and "FASTWRITE_STATS" in command.env:
            Path(command.env["FASTWRITE_STATS"]).write_text(self.statistics)
        total = threads * records
        write_progress(progress, threads, records, size, total, phase=DONE, start=start, end=self.clock.time)
        seconds = self.clock.time - start
        raw = {
            "bytes": total * size, "seconds": seconds * 0.9, "seconds_with_sync": seconds, "vm_hwm_kb": 3000,
            "rss_anon_base_kb": 1000, "rss_anon_peak_kb": 1100, "rss_file_base_kb": 0, "rss_file_peak_kb": 0,
            "rss_shmem_base_kb": 0, "rss_shmem_peak_kb": 0, "user_seconds": 0.1, "system_seconds": 0.2,
        }  # fmt: skip
        return Completed(0, json.dumps(raw), "", seconds)


PROC = {
    "/proc/stat": "cpu  100 0 100 800 0 0 0 0 0 0\ncpu0 100 0 100 800 0 0 0 0 0 0\n",
    "/proc/loadavg": "0.10 0.10 0.10 1/100 4242\n",
    "/proc/meminfo": "MemTotal: 1000 kB\nDirty:              40 kB\nWriteback:          0 kB\n",
    "/proc/diskstats": " 254 0 vda 10 0 800 5 20 0 1600 9 0 0 0\n",
    "/proc/1/maps": "7f00-7f01 r-xp 00000000 fe:00 9 /somewhere/lib.so\n",
    "/proc/1/status": "Name:\tlab\nVmHWM:\t 9 kB\nRssAnon:\t 5 kB\nRssFile:\t 3 kB\nRssShmem:\t 1 kB\n",
}


def fake_bench(tmp_path, shim="no shim here", **kwargs) -> Bench:
    """A bench on a real scratch directory, with everything else faked."""
    clock = FakeClock()
    work = WorkDir(tmp_path / "work")
    work.claim()
    nowhere = tmp_path / "no-cgroups"
    return Bench(
        executor=FakeExecutor(clock, **kwargs),
        clock=clock,
        work=work,
        place=Place(work.data, work.control, tmp_path / "programs"),
        cgroups=Cgroups(nowhere, nowhere / "self"),
        shim=shim,
        device=("254:0", "vda"),
        throttles=Cgroups(nowhere, nowhere / "self", IO),
        disk="254:0",
        sync=lambda: None,
        read=lambda path: PROC[path],
    )


def environment(**changes) -> dict:
    return {**dict.fromkeys(IDENTITY, "same"), "cpus": 2, **changes}


def settings(**changes) -> dict:
    base = {
        "suite": "000", "scale": "small", "seed": 1, "pairs": 3, "kills": 2, "memory_limit_bytes": 64 << 20,
        "variants": ["native", "shim"], "kinds": ["measure"], "warm": False,
        "experiments": ["E1"], "sizes": {},
        "started": "2026-01-01T00:00:00+00:00", "environment": environment(),
    }  # fmt: skip
    return {**base, **changes}


def measured(experiment, variant, number, rate, **more) -> dict:
    """A sample as a measured leg leaves it: 1 GB at `rate` MB/s, ten even intervals."""
    seconds = 1000 / rate
    times = [seconds * i / 10 for i in range(11)]
    return {
        "leg": f"{experiment}/measure/{number}/{variant}", "experiment": experiment, "kind": "measure",
        "variant": variant, "round": number, "status": "ok", "reason": "",
        "started": "2026-01-01T00:00:00+00:00",
        "bytes": 10**9, "seconds": seconds, "seconds_with_sync": seconds, "rate_mb_s": rate,
        "write_rate_mb_s": rate, "drain_seconds": 0.0, "journal_transactions": None,
        "outcome": {"user_seconds": 0.1, "system_seconds": 0.1},
        "verification": {"verified_bytes": 10**9, "lost_bytes": 0},
        "memory": {"vm_hwm_kb": 3000, "rss_anon_growth_kb": 10, "arena_bytes": None, "footprint_mb": 0.01,
                   "cgroup_peak_bytes": None},
        "series": {"t": times, "app_bytes": [int(1e8 * i) for i in range(11)],
                   "written_sectors": [int(1e8 / 512 * i) for i in range(11)], "end": seconds},
        **more,
    }  # fmt: skip


def killed(experiment, variant, number, lost=0, status="ok", reason="") -> dict:
    return {
        "leg": f"{experiment}/kill/{number}/{variant}", "experiment": experiment, "kind": "kill",
        "variant": variant, "round": number, "status": status, "reason": reason,
        "started": "2026-01-01T00:00:00+00:00", "verification": {"verified_bytes": 1000, "lost_bytes": lost},
        "kill": {"at_share": 0.5, "acked_bytes": 1000, "lost_bytes": lost, "allowed_bytes": 0,
                 "in_batch_bytes": 0},
    }  # fmt: skip
