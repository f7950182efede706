# SPDX-License-Identifier: Apache-2.0
"""A whole run, from settings to result files; the verbs run, suite, experiment, bench and aa use it."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from harness.apps import cells as app_cells
from harness.core import build, cgroup, environment, interrupt, shim, variants, warm
from harness.core.clock import RealClock
from harness.core.executor import RealExecutor
from harness.core.model import KINDS, VARIANTS, Experiment, LabError, MountSpec, Plan
from harness.core.mounts import Mounts
from harness.core.samples import Samples
from harness.core.store import RunStore, merge
from harness.core.workdir import WORK, WorkDir
from harness.report import control as aa
from harness.report import outputs, present, summary, variant_table
from harness.run import hosts, live, plan
from harness.run.execution import Bench
from harness.run.runner import Runner
from harness.tools import Place

RESULTS = Path("results")
WARNINGS_SHOWN = 20
ROWS_NAMED_MAX = 4


@dataclass(frozen=True)
class Settings:
    """What the user asked for. suite names the result; pairs, kills: rounds of measured and killed legs;
    rounds_per_run: of an A/A session, which is many comparisons in one (0: it is none); sysctls: settings of
    the whole machine that are in force while the run goes on; hosts: where fio runs instead of here, as the
    options give it (servers, servers under the shim, directory)."""

    suite: str
    scale: str = "small"
    seed: int = 1
    pairs: int = 5
    kills: int = 2
    memory_limit_bytes: int = 64 << 20
    variants: tuple[str, ...] = VARIANTS
    kinds: tuple[str, ...] = KINDS
    warm: bool = True
    rounds_per_run: int = 0
    sysctls: Mapping[str, str] = field(default_factory=dict)
    hosts: tuple[str, str, str] = ("", "", "")


def measured_by(settings: Mapping, catalog_experiments: Sequence[Experiment]) -> list[Experiment]:
    """The catalog as a run (its run.json) has used it: an A/A session compares rows with themselves."""
    if not settings.get("rounds_per_run"):
        return list(catalog_experiments)
    return [aa.control_of(e) for e in catalog_experiments if e.id in settings["experiments"]]


def make_plan(settings: Settings, experiments: Sequence[Experiment]) -> Plan:
    return plan.make(
        experiments,
        suite=settings.suite,
        scale=settings.scale,
        seed=settings.seed,
        pairs=settings.pairs,
        kills=settings.kills,
        memory_limit_bytes=settings.memory_limit_bytes,
        variants=settings.variants,
        kinds=settings.kinds,
    )


def dry_run(console: Console, settings: Settings, experiments: Sequence[Experiment]) -> None:
    """Say what would be written and how long it might take; touch nothing."""
    made = make_plan(settings, experiments)
    for experiment in experiments:
        legs = tuple(leg for leg in made.legs if leg.experiment == experiment.id)
        if legs:
            part = plan.estimate(Plan(**{**made.__dict__, "legs": legs}), experiments)
            console.print(
                f"  {experiment.id:<12} {part.legs:>4} legs  {present.byte_count(part.bytes):>10}"
                f"  about {part.seconds:5.0f} s  {experiment.title}",
                highlight=False,
            )
    total = plan.estimate(made, experiments)
    if len({e.suite for e in experiments}) > 1:
        console.print(_by_suite(made, experiments))
    console.print(
        f"{total.legs} legs, {present.byte_count(total.bytes)} to be written, about "
        f"{present.duration(total.seconds)}; "
        f"at most {present.byte_count(total.footprint_bytes)} on the disk at one time. Nothing was written.",
        highlight=False,
    )


def _by_suite(made: Plan, experiments: Sequence[Experiment]) -> Table:
    """Rows, legs, bytes and time of every suite."""
    out = Table(title="By suite", title_justify="left")
    for name in ("suite", "rows", "legs", "bytes", "about"):
        out.add_column(name, justify="left" if name == "suite" else "right")
    for suite in dict.fromkeys(e.suite for e in experiments):
        rows = {e.id for e in experiments if e.suite == suite}
        legs = tuple(leg for leg in made.legs if leg.experiment in rows)
        part = plan.estimate(replace(made, legs=legs), experiments)
        out.add_row(suite, str(len(rows)), str(part.legs), present.byte_count(part.bytes),
                    present.duration(part.seconds))  # fmt: skip
    return out


def run(
    console: Console, settings: Settings, experiments: Sequence[Experiment], directory: Path, out: Path | None
) -> RunStore:
    """A new run. LabError for everything that the user can mend; KeyboardInterrupt leaves a resumable run."""
    return _run(console, settings, experiments, directory, out, resume=False)


def resume(
    console: Console, catalog_experiments: Sequence[Experiment], directory: Path | None, out: Path
) -> RunStore:
    """Go on with an interrupted run, with its own settings; directory: None for the one that it had."""
    stored = RunStore.open(out).settings
    directory = directory or Path(stored.get("directory", WORK))
    settings = Settings(
        suite=stored["suite"],
        scale=stored["scale"],
        seed=stored["seed"],
        pairs=stored["pairs"],
        kills=stored["kills"],
        memory_limit_bytes=stored["memory_limit_bytes"],
        variants=tuple(stored["variants"]),
        kinds=tuple(stored["kinds"]),
        warm=stored["warm"],
        rounds_per_run=stored.get("rounds_per_run", 0),
        sysctls=stored.get("sysctls", {}),
        hosts=tuple(stored.get("hosts", ("", "", ""))),
    )
    by_id = {e.id: e for e in measured_by(stored, catalog_experiments)}
    missing = [i for i in stored["experiments"] if i not in by_id]
    if missing:
        raise LabError(f"{out}: experiment '{missing[0]}' is no longer in the catalog")
    experiments = [by_id[i] for i in stored["experiments"]]
    if (_sizes(settings, experiments), _params(experiments)) != (stored["sizes"], stored.get("params")):
        raise LabError(f"{out}: sizes or parameters of its experiments have changed since; start a new run")
    return _run(console, settings, experiments, directory, out, resume=True)


def _run(
    console: Console,
    settings: Settings,
    experiments: Sequence[Experiment],
    directory: Path,
    out: Path | None,
    resume: bool,
) -> RunStore:
    made = make_plan(settings, experiments)
    estimate = plan.estimate(made, experiments)
    elsewhere = hosts.parse(*settings.hosts)
    if elsewhere:
        hosts.check(elsewhere, experiments, settings.kinds)
    executor, clock = RealExecutor(), RealClock()
    programs = build.programs(executor)
    work = WorkDir(directory)
    interrupt.watch()
    with work:
        work.check_space(estimate.footprint_bytes, estimate.files)
        found = shim.find()
        if any(map(variants.shimmed, settings.variants)):
            if isinstance(found, str):
                console.print(f"[yellow]shim legs are skipped:[/] {found}", soft_wrap=True)
            else:
                shim.preload(found.library)  # refuses a path before the first leg
        work.set_sysctls(settings.sysctls)
        machine = environment.gather(work.path, app_cells.versions())
        if resume:
            store = RunStore.resume(out, machine)
        else:
            store = RunStore.create(
                out or default_out(settings.suite), _stored(settings, experiments, machine, directory)
            )
        with _resumable(console, store):
            bench = Bench(
                executor=executor,
                clock=clock,
                work=work,
                place=Place(work.data, work.control, programs),
                cgroups=cgroup.Cgroups(),
                shim=found,
                device=environment.block_device(work.path),
                throttles=cgroup.Cgroups(controller=cgroup.IO),
                disk=environment.whole_disk(work.path),
                mounts=Mounts(executor, work.path, work.note_queues),
                hosts=elsewhere,
            )
            by_id = {e.id: e for e in experiments}
            observer = live.Live(console, clock, made, by_id)
            runner = Runner(bench, made, by_id, store, observer)
            for reason, rows in runner.skipped().items():
                console.print(
                    f"[yellow]skipped:[/] {_few(rows)}: {escape(reason)}", highlight=False, soft_wrap=True
                )
            console.print(
                f"{estimate.legs} legs, {present.byte_count(estimate.bytes)}, about "
                f"{present.duration(estimate.seconds)}; samples go to {store.directory}",
                highlight=False,
                soft_wrap=True,
            )
            if elsewhere:
                hosts.sweep(
                    elsewhere, max(e.sizes[settings.scale]["jobs"] for e in experiments), work.control
                )
                store.note(
                    "the legs ran on other hosts by their fio servers; the environment is this machine's"
                )
            elif settings.warm:
                warm.touch(warm.amount(estimate.footprint_bytes))
            with observer:
                runner.run()
            after = shim.find()
            if (
                isinstance(found, shim.Shim)
                and isinstance(after, shim.Shim)
                and after.digest != machine["shim"]
            ):
                store.note("the shim was rebuilt while the run went on: its figures mix two builds")
    return store


@contextmanager
def _resumable(console: Console, store: RunStore) -> Iterator[None]:
    try:
        yield
    except KeyboardInterrupt:
        interrupt.say(console, escape(f"\ngo on with: python -m harness run --resume {store.directory}"))
        raise


def _few(rows: Sequence[str]) -> str:
    more = f" and {len(rows) - ROWS_NAMED_MAX} more" if len(rows) > ROWS_NAMED_MAX else ""
    return ", ".join(rows[:ROWS_NAMED_MAX]) + more


def conclude(
    console: Console, stores: Sequence[RunStore], catalog_experiments: Sequence[Experiment], directory: Path
) -> summary.Summary:
    """Tables, warnings and result files from one or several runs."""
    from harness.report import page as report  # (its charts load matplotlib, which only this needs)

    store = merge(stores)
    settings = store.settings
    experiments = measured_by(settings, catalog_experiments)
    cpus = settings["environment"].get("cpus") or 1
    found = summary.summarize(experiments, store.samples, settings["scale"], cpus)
    found = replace(found, warnings=(*settings["notes"], *found.warnings))
    for suite in dict.fromkeys(row.experiment.suite for row in found.rows):
        rows = tuple(row for row in found.rows if row.experiment.suite == suite)
        console.print(live.table(rows, f"Suite {suite}, scale {settings['scale']}"))
        for table in variant_table.terminal(rows, Samples(store.samples)):
            console.print(table)
    reasons = dict.fromkeys(reason for row in found.rows for reason in row.reasons)
    for reason in reasons:
        console.print(f"[yellow]·[/] {reason}", highlight=False, soft_wrap=True)
    for warning in found.warnings[:WARNINGS_SHOWN]:
        console.print(f"[dim]warning: {warning}[/]", highlight=False, soft_wrap=True)
    if len(found.warnings) > WARNINGS_SHOWN:
        console.print(f"[dim]and {len(found.warnings) - WARNINGS_SHOWN} more warnings: see the report[/]")
    page = report.render(settings, found, store.samples)
    outputs.write_all(directory, settings, found, store.samples, page)
    counts = found.counts
    console.print(
        f"{counts['ok']} legs ok, {counts['failed']} failed, {counts['skipped']} skipped; "
        f"{present.byte_count(found.bytes_verified)} verified. Report: {directory / 'report.html'}",
        highlight=False,
        soft_wrap=True,
    )
    return found


def default_out(suite: str) -> Path:
    return RESULTS / f"{time.strftime('%Y%m%d-%H%M%S')}-{suite}"


def _sizes(settings: Settings, experiments: Sequence[Experiment]) -> dict:
    return {e.id: dict(e.sizes[settings.scale]) for e in experiments}


def _params(experiments: Sequence[Experiment]) -> dict:
    """What makes samples of one id comparable beside its sizes, as JSON gives it back."""
    fields = ("tool", "params", "shim_env", "throttle", "mount")
    return {
        e.id: json.loads(json.dumps({f: getattr(e, f) for f in fields}, default=_plain)) for e in experiments
    }


def _plain(value: Mapping | MountSpec) -> dict:
    return asdict(value) if isinstance(value, MountSpec) else dict(value)


def _stored(settings: Settings, experiments: Sequence[Experiment], machine: dict, directory: Path) -> dict:
    return {
        "suite": settings.suite,
        "scale": settings.scale,
        "seed": settings.seed,
        "pairs": settings.pairs,
        "kills": settings.kills,
        "memory_limit_bytes": settings.memory_limit_bytes,
        "variants": list(settings.variants),
        "kinds": list(settings.kinds),
        "warm": settings.warm,
        "experiments": [e.id for e in experiments],
        "sizes": _sizes(settings, experiments),
        "params": _params(experiments),
        "rounds_per_run": settings.rounds_per_run,
        "sysctls": dict(settings.sysctls),
        "hosts": list(settings.hosts),
        "directory": str(directory.absolute()),
        "started": RealClock().now(),
        "environment": machine,
    }
