# SPDX-License-Identifier: Apache-2.0
"""fio experiments on several hosts, by fio's own servers (`fio --server` on each) and one client here.

All hosts run the same job at the same time on files of their own in a directory that every host has. A leg is one
timed run; then the files are read back on their hosts, compared with what was written, and removed. A write leg has no
time limit: every block must have been written when the files are compared whole. What a host does natively and under
the shim are two servers on it, the second one started under the shim with a rule for FILES.

Nothing of a host is sampled (memory, disk, write-back); figures are fio's, kept per host.
"""

from __future__ import annotations

import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from harness.core.executor import Command, Completed
from harness.core.model import (
    FAILED,
    MEASURE,
    NATIVE,
    OK,
    SHIM,
    Experiment,
    LabError,
    Leg,
    Plan,
    Verification,
)
from harness.run import execution
from harness.tools import fio

PORT = 8765
FILES = "fastwrite-lab-*"
CLEAN_SECONDS_MAX = 60


@dataclass(frozen=True)
class Host:
    """Where a fio server listens."""

    name: str
    port: int = PORT

    @property
    def label(self) -> str:
        return f"{self.name}:{self.port}"

    @property
    def option(self) -> str:
        return f"--client=ip:{self.name},{self.port}"


@dataclass(frozen=True)
class Hosts:
    """Servers by variant, and the directory that their files are made in (the same on every host)."""

    servers: Mapping[str, tuple[Host, ...]]
    directory: str

    def of(self, variant: str) -> tuple[Host, ...]:
        return self.servers.get(variant, ())


def parse(native: str, shim: str, directory: str) -> Hosts | None:
    """From the options --hosts, --shim-hosts, --remote-dir; None when no host is named. LabError for a mistake."""
    if not native and not shim:
        if directory:
            raise LabError("--remote-dir is for --hosts; name them")
        return None
    if not native:
        raise LabError("--shim-hosts without --hosts: there would be nothing to compare with")
    if not directory.startswith("/"):
        raise LabError("--hosts needs --remote-dir: an absolute path to a directory that every host has")
    found = {NATIVE: _list("--hosts", native), SHIM: _list("--shim-hosts", shim)}
    everywhere = [host for hosts in found.values() for host in hosts]
    for host in everywhere:
        if everywhere.count(host) > 1:
            raise LabError(f"{host.label} is named twice")
    return Hosts(found, directory)


def _list(option: str, text: str) -> tuple[Host, ...]:
    hosts = []
    for part in filter(None, (p.strip() for p in text.split(","))):
        name, _, port = part.partition(":")
        if not name or (port and not port.isdecimal()):
            raise LabError(f"{option}: '{part}' is not a host or host:port")
        hosts.append(Host(name, int(port or PORT)))
    return tuple(hosts)


def check(hosts: Hosts, experiments: Sequence[Experiment], kinds: Sequence[str]) -> None:
    """LabError for what only works on this machine."""
    for experiment in experiments:
        if experiment.tool != "fio":
            raise LabError(f"{experiment.id}: not a fio experiment; on other hosts only these run")
    if MEASURE not in kinds:
        raise LabError("on other hosts only legs of kind 'measure' run: --kinds measure")


def why_skip(hosts: Hosts, experiment: Experiment, leg: Leg) -> str:
    if not hosts.of(leg.variant):
        return f"no fio server for variant '{leg.variant}': name some with --shim-hosts"
    if experiment.throttle:
        return "a slow disk cannot be set up on another host from here"
    return ""


class HostsExecution:
    """One leg on all hosts of its variant; takes the place of execution.Execution."""

    def __init__(
        self, bench: execution.Bench, plan: Plan, experiment: Experiment, leg: Leg, size, observer
    ) -> None:
        self._bench = bench
        self._experiment = experiment
        self._size = size
        self._hosts = bench.hosts.of(leg.variant)

    def run(self) -> dict:
        self._bench.work.fresh()
        params, size = self._experiment.params, self._size
        layout = fio.layout_options(params, size)
        if layout:
            _jobs(self._fio(layout), self._hosts)
        told = _jobs(self._fio(fio.timed_options(params, size, limited=fio.reads(params))), self._hosts)
        by_host = {label: fio.figures(job, params) for label, job in told.items()}
        outcome = fio.outcome(together(by_host))
        found = self._check()
        fields = {
            "status": OK if found.ok else FAILED,
            "reason": "" if found.ok else f"verification failed: {found.problem}",
            "verification": asdict(found),
            "memory": {},
            "drain_seconds": None,
            "journal_transactions": None,
        }
        return fields | (execution.times(outcome) if found.ok else {})

    def _check(self) -> Verification:
        """Every byte on every host."""
        params, size = self._experiment.params, self._size
        owed = len(self._hosts) * size["jobs"] * fio.job_bytes(size)
        try:
            told = _jobs(self._fio(fio.check_options(params, size)), self._hosts)
        except LabError as error:
            return Verification(False, owed, 0, corrupt_bytes=1, problem=str(error))
        read = sum(job["read"]["io_bytes"] for job in told.values())
        problem = "" if read == owed else f"{read} of {owed} bytes could be compared"
        return Verification(not problem, owed, read, lost_bytes=owed - read, problem=problem)

    def _fio(self, options: Sequence[str]) -> Completed:
        control = self._bench.place.control
        return self._bench.executor.run(
            Command(client(self._hosts, self._bench.hosts.directory, options, control))
        )

    def clean(self) -> None:
        remove(self._bench.hosts, self._hosts, self._size["jobs"], self._bench.place.control)
        self._bench.work.fresh()


def client(hosts: Sequence[Host], directory: str, options: Sequence[str], control: Path) -> tuple[str, ...]:
    """fio's command line, with one job file per host (written into `control`): file names differ, since two hosts
    may turn out to be one."""
    argv = ["fio", "--output-format=json", "--eta=never"]
    for host in hosts:
        name = FILES.replace("*", f"{host.name}-{host.port}")
        lines = [
            f"[{fio.NAME}]",
            f"directory={directory}",
            f"filename_format={name}.$jobnum",
            "unique_filename=0",
            *(option.removeprefix("--") for option in options),
        ]
        path = control / f"{name}.fio"
        path.write_text("\n".join(lines) + "\n", encoding="utf-8")
        argv += [host.option, str(path)]
    return tuple(argv)


def remove(hosts: Hosts, those: Sequence[Host], jobs: int, control: Path) -> None:
    """Take our files off the hosts, whatever state they are in. Also while an interrupt is on its way, so not by the
    executor. What is on a host that does not answer stays there."""
    options = ("--rw=write", "--bs=4k", "--size=4k", f"--numjobs={jobs}", "--fallocate=none", "--unlink=1")
    argv = client(those, hosts.directory, options, control)
    subprocess.run(argv, capture_output=True, timeout=CLEAN_SECONDS_MAX, check=False, start_new_session=True)


def sweep(hosts: Hosts, jobs: int, control: Path) -> None:
    """Before the first leg: remove the files of a killed run."""
    for those in hosts.servers.values():
        if those:
            remove(hosts, those, jobs, control)


def _jobs(done: Completed, hosts: Sequence[Host]) -> dict[str, dict]:
    """What fio said of each host, by its label. LabError unless every host did its job."""
    words = _words(done)
    if done.returncode != 0 and "{\n" not in done.stdout:
        raise LabError(f"fio --client ended with {done.returncode}: {words}")
    told = {
        f"{job['hostname']}:{job['port']}": job
        for job in fio.printed(done.stdout).get("client_stats", [])
        if job["jobname"] == fio.NAME
    }
    for host in hosts:
        if host.label not in told:
            raise LabError(f"{host.label}: no result: {words}")
        if told[host.label]["error"]:
            raise LabError(f"{host.label}: error {told[host.label]['error']}: {words}")
    return {host.label: told[host.label] for host in hosts}


def _words(done: Completed) -> str:
    """What fio and its servers complained about."""
    lines = (done.stdout.partition("{\n")[0] + done.stderr).splitlines()
    said = [line for line in lines if "fio:" in line or "verify" in line]
    return "; ".join(said)[-300:] or "no message"


def together(by_host: Mapping[str, Mapping]) -> dict:
    """All hosts as one: sums; the longest run; latency percentiles of the slowest host (they cannot be added)."""
    each = list(by_host.values())
    operations = sum(h["iops"] for h in each)
    out = {
        "direction": each[0]["direction"],
        "io_bytes": sum(h["io_bytes"] for h in each),
        "runtime_ms": max(h["runtime_ms"] for h in each),
        "iops": operations,
        "jobs": sum(h["jobs"] for h in each),
        "iodepth": each[0]["iodepth"],
        "outstanding": sum(h["outstanding"] for h in each),
        "lat_mean_us": sum(h["lat_mean_us"] * h["iops"] for h in each) / operations if operations else 0.0,
        "hosts": dict(by_host),
    }
    for name in fio.PERCENTILES.values():
        key = f"lat_{name}_us"
        if all(key in h for h in each):
            out[key] = max(h[key] for h in each)
    return out
