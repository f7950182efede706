# SPDX-License-Identifier: Apache-2.0
"""One leg: prepare, run and sample, verify; or run, kill, recover, verify.

No rate is reported for a leg whose files do not verify.
"""

from __future__ import annotations

import os
import random
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from harness.core import sampler, variants
from harness.core.cgroup import Cgroup, Cgroups
from harness.core.clock import Clock
from harness.core.executor import Command, Completed, Executor
from harness.core.model import (
    FAILED,
    KILL,
    MEMORY,
    OK,
    Experiment,
    Leg,
    MountSpec,
    Outcome,
    Plan,
    UnavailableError,
    Verification,
    rate_mb_s,
)  # fmt: skip
from harness.core.mounts import Mounted, Mounts, check_free
from harness.core.progress import DONE, WRITING, Progress, ProgressReader
from harness.core.shim import ABSENT, Shim, arena_bytes, counters, is_mapped
from harness.core.workdir import WorkDir
from harness.tools import TOOLS, Place

if TYPE_CHECKING:
    from harness.run.hosts import Hosts

TICK_SECONDS = {"tiny": 0.05, "small": 0.1}
TICK_SECONDS_DEFAULT = 1.0
KILL_TICK_SECONDS = 0.001
DRAIN_SECONDS_MAX = 10.0
DRAIN_SLACK_KB = 16 * 1024
EXIT_SKIPPED = 77
"""Exit status of a workload that the machine cannot run; its last line on stderr is the reason."""


class Observer(Protocol):
    """Told what happens; a leg's ticks carry bytes done so far (None when the tool does not say)."""

    def leg_started(self, leg: Leg, number: int, total_bytes: int) -> None: ...

    def leg_ticked(self, done_bytes: int | None) -> None: ...

    def leg_ended(self, sample: dict) -> None: ...


@dataclass(frozen=True)
class Bench:
    """What a run stands on; everything that touches the system is in here, so that tests can replace it."""

    executor: Executor
    clock: Clock
    work: WorkDir
    place: Place
    cgroups: Cgroups
    shim: Shim | str
    device: tuple[str, str] | None
    throttles: Cgroups
    disk: str | None
    sync: Callable[[], None] = os.sync
    read: Callable[[str], str] = sampler.read_text
    mounts: Mounts | None = None
    hosts: Hosts | None = None


class Execution:
    """One leg. `run` returns the fields that the sample gets beyond its head."""

    def __init__(self, bench: Bench, plan: Plan, experiment: Experiment, leg: Leg, size, observer: Observer):
        self._bench = bench
        self._plan = plan
        self._experiment = experiment
        self._leg = leg
        self._size = size
        self._observer = observer
        self._tool = TOOLS[experiment.tool]
        self._group: Cgroup | None = None
        self._groups: list[Cgroup] = []
        self._mounted: Mounted | None = None
        self._progress = ProgressReader(bench.place.progress)

    def run(self) -> dict:
        self._bench.work.fresh()
        if self._experiment.mount:
            self._enter_mount(self._experiment.mount)
        bench = self._bench
        self._tool.prepare(bench.executor, bench.place, self._experiment.params, self._size)
        if self._mounted and self._mounted.spec.cold:
            bench.mounts.cool(self._mounted)
        bench.sync()
        self._enter_groups()
        command = self._command()
        fields = self._killed(command) if self._leg.kind == KILL else self._measured(command)
        if self._experiment.throttle:
            limits = dict(self._experiment.throttle)
            fields["throttle"] = {**limits, "disk": bench.disk, "cgroup_version": bench.throttles.version}
        if self._mounted:
            fields |= {"mount": self._mounted.told, "refused": self._mounted.refused}
        return fields

    def _enter_mount(self, spec: MountSpec) -> None:
        """The rest of the leg happens on a fresh file system; control files stay in the work directory."""
        bench = self._bench
        self._mounted = mounted = bench.mounts.make(spec, spec.mib[self._plan.scale])
        need_bytes = self._tool.disk_bytes(self._experiment.params, self._size)
        check_free(mounted.data, need_bytes, self._tool.file_count(self._experiment.params, self._size))
        place = replace(bench.place, data=mounted.data)
        self._bench = replace(bench, place=place, device=mounted.block_device)

    def clean(self) -> None:
        self._progress.close()
        for group in self._groups:
            group.remove()
        self._bench.work.note_cgroups()
        if self._experiment.mount:
            self._bench.work.unmount()
        self._bench.work.fresh()
        self._bench.sync()

    def _enter_groups(self) -> None:
        """The leg's own group, whose memory is watched and perhaps limited, and one whose disk is slow; where
        version 2 has both controllers they are one group, since a process can be in one only."""
        bench, name = self._bench, f"{os.getpid()}"
        memory = bench.cgroups.path_for(name)
        slow = bench.throttles.path_for(f"{name}-slow") if self._experiment.throttle else None
        if slow and bench.throttles.version == bench.cgroups.version == 2:
            memory = slow
        paths = tuple(dict.fromkeys(p for p in (memory, slow) if p))
        bench.work.note_cgroups(*paths)
        if memory:
            self._group = bench.cgroups.create(memory)
            self._groups.append(self._group)
        if slow:
            group = bench.throttles.create(slow)
            if slow != memory:
                self._groups.append(group)
            group.throttle(bench.disk, self._experiment.throttle)
        if self._group and self._leg.kind == MEMORY:
            self._group.limit(self._plan.memory_limit_bytes)

    def _command(self) -> Command:
        argv = self._tool.argv(self._bench.place, self._experiment.params, self._size)
        env = variants.environment(
            self._leg.variant,
            self._bench.shim,
            self._bench.place.data,
            {"FASTWRITE_STATS": str(self._statistics), **self._experiment.shim_env},
            self._tool.PATTERN,
        )
        return Command(argv, self._tool.environment(env), tuple(group.procs for group in self._groups))

    # measured legs

    def _measured(self, command: Command) -> dict:
        bench = self._bench
        collect = sampler.Sampler(self._sources(), bench.clock.monotonic, bench.read)
        base_kb = self._dirty_kb()
        journal = self._journal()

        def tick(pid: int) -> bool:
            collect.tick(pid)
            self._observer.leg_ticked(collect.series["app_bytes"][-1])
            return False

        interval = TICK_SECONDS.get(self._plan.scale, TICK_SECONDS_DEFAULT)
        done = bench.executor.run(command, interval, tick)
        collect.tick(None)
        if done.returncode == EXIT_SKIPPED:
            raise UnavailableError(done.stderr.strip()[-300:])
        if done.returncode != 0:
            return self._failed(_ending(done, self._group))
        after = self._journal()
        left_kb = max(0, self._dirty_kb() - base_kb)
        drain = self._drain(base_kb)
        extras = self._extras()
        outcome = self._tool.parse(done.stdout, self._experiment.params, bench.place)
        found = self._verify(outcome)
        problem = self._judge_exit(found) or self._judge_library(done.stderr)
        fields = {
            "status": FAILED if problem else OK,
            "reason": problem,
            "verification": asdict(found),
            "series": _trim(collect.series, self._progress.read()),
            "memory": self._memory(outcome, collect),
            "dirty_after_exit_bytes": left_kb * 1024,
            "drain_seconds": drain,
            "journal_transactions": None if journal is None or after is None else after - journal,
            **extras,
        }
        if not problem:
            fields |= times(outcome) | amplification(collect.series["written_sectors"], outcome.bytes)
        if done.stderr.strip():
            fields["stderr"] = done.stderr.strip()[-2000:]
        return fields

    def _sources(self) -> sampler.Sources:
        data = self._bench.place.data
        shimmed = variants.shimmed(self._leg.variant)

        def app() -> int | None:
            found = self._progress.read()
            return found.acked_bytes if found else None

        return sampler.Sources(
            device=self._bench.device[0] if self._bench.device else None,
            app_bytes=app,
            arena_bytes=lambda: arena_bytes(data) if shimmed else None,
            cgroup_bytes=lambda: self._group.usage_bytes() if self._group else None,
        )

    def _dirty_kb(self) -> int:
        found = sampler.parse_meminfo(self._bench.read("/proc/meminfo"), "Dirty", "Writeback")
        return sum(v or 0 for v in found)

    def _journal(self) -> int | None:
        return sampler.journal_transactions(self._bench.device[1]) if self._bench.device else None

    def _drain(self, base_kb: int) -> float:
        """Seconds after the program's end until Dirty + Writeback is back where it was (16 MiB of slack). The
        kernel is asked to write back at once: by itself it would let a few hundred MiB lie for half a minute."""
        clock = self._bench.clock
        start = clock.monotonic()
        self._bench.sync()
        while self._dirty_kb() > base_kb + DRAIN_SLACK_KB and clock.monotonic() - start < DRAIN_SECONDS_MAX:
            clock.sleep(0.02)
        return round(clock.monotonic() - start, 3)

    def _extras(self) -> dict:
        """Fields of some legs only: averages of the leg's own journal, counters of the shim."""
        found: dict = {}
        if self._mounted:
            loop = self._mounted.loop
            found["journal"] = sampler.journal_averages(loop) or sampler.xfs_log(loop)
            found["fast_commits"] = sampler.fast_commits(loop)
        if self._statistics.exists():
            found["shim_counters"] = asdict(counters(self._statistics.read_text(encoding="utf-8")))
        return found

    @property
    def _statistics(self) -> Path:
        return self._bench.place.control / "statistics"

    def _verify(self, outcome: Outcome | None) -> Verification:
        bench = self._bench
        if self._mounted:  # verify the device, not the page cache
            bench.mounts.cool(self._mounted)
        return self._tool.verify(bench.executor, bench.place, self._experiment.params, self._size, outcome)

    def _judge_exit(self, found: Verification) -> str:
        """The problem with the files after a clean exit; "" when they are as the method leaves them at its best."""
        if found.ok:
            return ""
        known = self._tool.expected_exit_loss(self._experiment.params, self._size)
        sound = not found.corrupt_bytes and not found.unexpected_bytes
        if known and sound and found.lost_bytes == found.in_batch_bytes == known:
            return ""
        return f"verification failed: {found.problem}"

    def _judge_library(self, stderr: str) -> str:
        """Why a measured leg cannot have run under the shim; "" when it has, or was not to."""
        if not variants.shimmed(self._leg.variant):
            return ""
        if "cannot be preloaded" in stderr:
            return f"the library was not there: {stderr.strip()[-300:]}"
        missing = self._tool.counted(self._experiment.params) and not self._statistics.exists()
        return ABSENT if missing else ""

    def _memory(self, outcome: Outcome, collect: sampler.Sampler) -> dict:
        """kB and bytes; growth is peak minus what the program had when it began to write."""
        raw = outcome.raw
        out = {
            "vm_hwm_kb": raw.get("vm_hwm_kb"),
            "arena_bytes": collect.peak("arena_bytes"),
            "cgroup_peak_bytes": self._group.peak_bytes() if self._group else None,
            "limit_bytes": self._plan.memory_limit_bytes if self._leg.kind == MEMORY else None,
        }
        for kind in ("anon", "file", "shmem"):
            peak, base = raw.get(f"rss_{kind}_peak_kb"), raw.get(f"rss_{kind}_base_kb")
            out[f"rss_{kind}_growth_kb"] = peak - base if peak is not None and base is not None else None
        staged = self._staged_bytes(out)
        if out["rss_anon_growth_kb"] is not None and staged is not None:
            out["footprint_mb"] = (out["rss_anon_growth_kb"] * 1024 + staged) / 1e6
        return out

    def _staged_bytes(self, memory: dict) -> int | None:
        """Staging of a shim leg: the arena as sampled, or the growth of shared mappings in a leg too short
        to sample; None when neither was seen, since that is no measurement of 0. 0 for other legs."""
        if not variants.shimmed(self._leg.variant):
            return 0
        mapped_kb = (memory["rss_file_growth_kb"] or 0) + (memory["rss_shmem_growth_kb"] or 0)
        return memory["arena_bytes"] or mapped_kb * 1024 or None

    # killed legs

    def _killed(self, command: Command) -> dict:
        """Kill at a random share of the records, recover, and compare with the acknowledged-writes log."""
        bench = self._bench
        share = random.Random(f"{self._plan.seed}/{self._leg.id}").uniform(0.05, 0.95)
        under_shim = True

        def tick(pid: int) -> bool:
            nonlocal under_shim
            found = self._progress.read()
            self._observer.leg_ticked(found.acked_bytes if found else None)
            due = bool(found and found.phase == WRITING and found.acked_bytes >= share * found.total_bytes)
            if due and variants.shimmed(self._leg.variant):
                under_shim = is_mapped(bench.shim.library, bench.read(f"/proc/{pid}/maps"))
            return due

        done = bench.executor.run(command, KILL_TICK_SECONDS, tick)
        found = self._progress.read()
        if not done.killed:
            if done.returncode != 0:
                return self._failed(_ending(done, self._group))
            return self._failed("the program was over before the kill; give it more records (records_kill)")
        if found is None:
            return self._failed("killed before there was a progress file")
        if not under_shim:
            return self._failed("the library was not there: the killed program had not loaded it")
        recovered = self._recover()
        checked = self._verify(None)
        allowed = self._experiment.may_lose.get(self._leg.variant, 0) * found.threads
        problem = ""
        if checked.corrupt_bytes or checked.unexpected_bytes:
            problem = f"after the kill: {checked.problem}"
        elif checked.lost_bytes > allowed:
            problem = f"{checked.lost_bytes} acknowledged bytes lost, {allowed} allowed: {checked.problem}"
        return {
            "status": FAILED if problem else OK,
            "reason": problem,
            "verification": asdict(checked),
            "kill": {
                "at_share": round(share, 4),
                "acked_bytes": found.acked_bytes,
                "lost_bytes": checked.lost_bytes,
                "allowed_bytes": allowed,
                "in_batch_bytes": checked.in_batch_bytes,
                "phase_done": found.phase == DONE,
                "recovery": recovered,
            },
        }

    def _recover(self) -> dict:
        bench = self._bench
        out: dict = {}
        if variants.shimmed(self._leg.variant) and isinstance(bench.shim, Shim):
            out["shim"] = bench.shim.recover(bench.executor, bench.place.data)
        own = self._tool.recover(bench.executor, bench.place, self._experiment.params, self._size)
        return out | ({"own": own} if own else {})

    def _failed(self, reason: str) -> dict:
        return {"status": FAILED, "reason": reason}


def _ending(done: Completed, group: Cgroup | None) -> str:
    words = done.stderr.strip()[-300:] or "no message"
    if group and group.oom_kills():
        return f"out of memory under the limit (exit {done.returncode}): {words}"
    return f"exit {done.returncode}: {words}"


def times(outcome: Outcome) -> dict:
    """Bytes, times, rates and what the tool said, as a sample has them."""
    return {
        "bytes": outcome.bytes,
        "seconds": outcome.seconds,
        "seconds_with_sync": outcome.seconds_with_sync,
        "rate_mb_s": round(rate_mb_s(outcome.bytes, outcome.seconds_with_sync), 3),
        "write_rate_mb_s": round(rate_mb_s(outcome.bytes, outcome.seconds), 3),
        "outcome": dict(outcome.raw),
    }


def amplification(sectors: Sequence[int | None], byte_count: int) -> dict:
    """What the device wrote until the program had ended, over what the program wrote; {} without counters."""
    known = [n for n in sectors if n is not None]
    if len(known) < 2 or not byte_count:
        return {}
    return {"amplification": round((known[-1] - known[0]) * sampler.SECTOR_BYTES / byte_count, 4)}


def _trim(series: dict[str, list], found: Progress | None) -> dict:
    """Times relative to the start of writing (or of the process), and where writing began and ended."""
    begin = found.start_seconds if found and found.start_seconds else (series["t"] or [0.0])[0]
    end = found.end_seconds if found and found.end_seconds else (series["t"] or [0.0])[-1]
    out = {k: v for k, v in series.items() if k == "t" or any(x is not None for x in v)}
    out["t"] = [round(t - begin, 4) for t in series["t"]]
    out["end"] = round(end - begin, 4)
    return out
