# SPDX-License-Identifier: Apache-2.0
"""Runs a plan, leg by leg, and records each leg as it ends. A leg that fails does not end the run."""

from __future__ import annotations

from harness.core import noise
from harness.core.model import FAILED, MEMORY, SKIPPED, Experiment, LabError, Leg, Plan, UnavailableError
from harness.core.store import RunStore
from harness.core.variants import shimmed
from harness.run import hosts
from harness.run.execution import Bench, Execution, Observer
from harness.run.hosts import HostsExecution
from harness.run.plan import size_of
from harness.tools import TOOLS


class Runner:
    """Executes the legs of a plan that the store does not have yet."""

    def __init__(
        self,
        bench: Bench,
        plan: Plan,
        experiments: dict[str, Experiment],
        store: RunStore,
        observer: Observer,
    ) -> None:
        self._bench = bench
        self._plan = plan
        self._experiments = experiments
        self._store = store
        self._observer = observer

    def run(self) -> None:
        done = self._store.done
        for number, leg in enumerate(self._plan.legs, 1):
            if leg.id in done:
                continue
            experiment = self._experiments[leg.experiment]
            size = size_of(experiment, leg, self._plan.scale)
            total = TOOLS[experiment.tool].total_bytes(experiment.params, size)
            self._observer.leg_started(leg, number, total)
            begun, before = self._bench.clock.monotonic(), noise.read(self._bench.read)
            sample = self._leg(experiment, leg, size)
            sample |= noise.between(before, noise.read(self._bench.read))
            sample["leg_seconds"] = round(self._bench.clock.monotonic() - begun, 3)
            self._store.append(sample)
            self._observer.leg_ended(sample)

    def skipped(self) -> dict[str, list[str]]:
        """Rows that cannot be run here at all, known before the first leg, by reason."""
        found: dict[str, dict[str, None]] = {}
        for leg in self._plan.legs:
            if not shimmed(leg.variant) and (
                reason := self._why_skip(self._experiments[leg.experiment], leg)
            ):
                found.setdefault(reason, {})[leg.experiment] = None
        return {reason: list(rows) for reason, rows in found.items()}

    def _leg(self, experiment: Experiment, leg: Leg, size) -> dict:
        head = {
            "leg": leg.id,
            "experiment": leg.experiment,
            "kind": leg.kind,
            "variant": leg.variant,
            "round": leg.round,
            "started": self._bench.clock.now(),
            "size": dict(size),
            **({"matrix": experiment.matrix} if experiment.matrix else {}),
        }
        reason = self._why_skip(experiment, leg)
        if reason:
            return {**head, "status": SKIPPED, "reason": reason}
        where = HostsExecution if self._bench.hosts else Execution
        execution = where(self._bench, self._plan, experiment, leg, size, self._observer)
        try:
            return {**head, **execution.run()}
        except UnavailableError as error:
            return {**head, "status": SKIPPED, "reason": str(error)}
        except LabError as error:
            return {**head, "status": FAILED, "reason": str(error)}
        finally:
            execution.clean()

    def _why_skip(self, experiment: Experiment, leg: Leg) -> str:
        if self._bench.hosts:
            return hosts.why_skip(self._bench.hosts, experiment, leg)
        if missing := TOOLS[experiment.tool].missing(experiment.params):
            return missing
        if shimmed(leg.variant) and isinstance(self._bench.shim, str):
            return f"no shim: {self._bench.shim}"
        if leg.kind == MEMORY and self._bench.cgroups.parent is None:
            return f"no memory limit possible here: {self._bench.cgroups.why_not}"
        if experiment.throttle and self._bench.throttles.parent is None:
            return f"no slow disk possible here: {self._bench.throttles.why_not}"
        if experiment.throttle and self._bench.disk is None:
            return "no slow disk possible here: the work directory is not on a disk that can be limited"
        if experiment.mount:
            return self._bench.mounts.why_not(experiment.mount)
        return ""
