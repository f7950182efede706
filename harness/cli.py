# SPDX-License-Identifier: Apache-2.0
"""The verbs of `python -m harness`.

Exit status: 0 everything ran and verified; 1 a leg failed (or a target of bench or sync was missed, or doctor found a
danger); 2 the request cannot be carried out (one line says why); 130 interrupted (one line says how to go on).
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from harness import (
    aa,
    catalog,
    claims,
    comparison,
    doctor_view,
    session,
    shim,
    sync_table,
    syncs,
    sysctls,
)
from harness import bench as bench_targets
from harness import doctor as examination
from harness.ab import command as ab_command
from harness.model import KINDS, NATIVE, VARIANTS, LabError
from harness.store import RunStore
from harness.variants import shimmed

EXIT_FAILED, EXIT_REFUSED, EXIT_INTERRUPTED = 1, 2, 130

app = typer.Typer(
    add_completion=False,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    help="The laboratory: published write experiments, natively and under the shim.",
)
console = Console()
if not console.is_terminal:
    console = Console(width=160)

Dir = Annotated[
    Path, typer.Option("--dir", help="Work directory on the disk under test: new, empty, or left by us.")
]
Out = Annotated[
    Path | None, typer.Option("--out", help="Result directory (default: results/<time>-<suite>).")
]
Scale = Annotated[
    str, typer.Option("--scale", help="tiny (smoke test), small (minutes), full (published size).")
]
Pairs = Annotated[int, typer.Option("--pairs", min=1, max=1000, help="Interleaved rounds of measured legs.")]
Kills = Annotated[int, typer.Option("--kills", min=1, max=1000, help="kill -9 legs per row and variant.")]
Seed = Annotated[int, typer.Option("--seed", help="Decides orders and kill moments.")]
Limit = Annotated[
    int, typer.Option("--limit-mib", min=8, help="Memory limit of the memory-limited legs, MiB.")
]
Only = Annotated[str, typer.Option("--kinds", help="Kinds of leg, comma-separated: measure, memory, kill.")]
ALL_KINDS = ",".join(KINDS)
NoShim = Annotated[bool, typer.Option("--no-shim", help="Native legs only.")]
NoWarm = Annotated[bool, typer.Option("--no-warm", help="Do not touch free memory before the first leg.")]
DryRun = Annotated[
    bool, typer.Option("--dry-run", help="Print bytes to be written and estimated time; touch nothing.")
]
Resume = Annotated[Path | None, typer.Option("--resume", help="Go on with the run in this result directory.")]

WORK = Path("lab-work")


@app.command("list")
def list_experiments() -> None:
    """Show every experiment: id, what it does, variants, published figure."""
    _guard(_list)


def _list() -> int:
    table = Table(title="Experiments", title_justify="left")
    for name in ("suite", "id", "what", "variants", "legs", "published"):
        table.add_column(name, overflow="fold")
    for experiment in catalog.load().experiments:
        table.add_row(
            experiment.suite,
            experiment.id,
            experiment.title,
            ", ".join(experiment.variants),
            ", ".join(experiment.kinds),
            experiment.published.text,
        )
    console.print(table)
    return 0


@app.command()
def run(
    ids: Annotated[list[str] | None, typer.Argument(help="Experiment ids or suites (see list).")] = None,
    every: Annotated[bool, typer.Option("--all", help="All experiments of all article suites.")] = False,
    scale: Scale = "small",
    pairs: Pairs = 3,
    kills: Kills = 2,
    seed: Seed = 1,
    limit_mib: Limit = 64,
    kinds: Only = ALL_KINDS,
    no_shim: NoShim = False,
    no_warm: NoWarm = False,
    directory: Dir = WORK,
    out: Out = None,
    dry_run: DryRun = False,
    resume: Resume = None,
    sysctl: Annotated[
        list[str] | None,
        typer.Option(
            "--sysctl", help="vm.dirty_...=N for the whole machine, set back at the end; repeatable."
        ),
    ] = None,
    hosts: Annotated[
        str, typer.Option("--hosts", help="Run fio experiments there: host[:port] of fio servers, by commas.")
    ] = "",
    shim_hosts: Annotated[
        str, typer.Option("--shim-hosts", help="The same for the shim's legs: servers that run under it.")
    ] = "",
    remote_dir: Annotated[
        str, typer.Option("--remote-dir", help="With --hosts: a directory that every host has.")
    ] = "",
) -> None:
    """Run chosen experiments (--all: every suite but bench), or go on with an interrupted run (--resume)."""

    def go() -> int:
        if resume:
            return _resume(resume, directory)
        loaded = catalog.load()
        if every:
            experiments = tuple(e for e in loaded.experiments if e.suite != "bench")
        elif ids:
            experiments = loaded.select(ids)
        else:
            raise LabError("which experiments? give ids or suites (see `list`), --all, or --resume DIR")
        suites = sorted({e.suite for e in experiments})
        suite = suites[0] if len(suites) == 1 else "all"
        settings = _settings(suite, scale, seed, pairs, kills, limit_mib, kinds, no_shim, no_warm)
        settings = replace(
            settings, sysctls=sysctls.parse(sysctl or ()), hosts=(hosts, shim_hosts, remote_dir)
        )
        return _execute(settings, experiments, directory, out, dry_run)

    _guard(go)


@app.command()
def suite(
    name: Annotated[str, typer.Argument(help="Name of the suite (see list): 000, apps ...")],
    scale: Scale = "small",
    pairs: Pairs = 3,
    kills: Kills = 2,
    seed: Seed = 1,
    limit_mib: Limit = 64,
    kinds: Only = ALL_KINDS,
    no_shim: NoShim = False,
    no_warm: NoWarm = False,
    directory: Dir = WORK,
    out: Out = None,
    dry_run: DryRun = False,
) -> None:
    """All experiments of one suite; go on with an interrupted run by `run --resume`."""

    def go() -> int:
        settings = _settings(name, scale, seed, pairs, kills, limit_mib, kinds, no_shim, no_warm)
        return _execute(settings, catalog.load().suite(name), directory, out, dry_run)

    _guard(go)


@app.command()
def experiment(
    scale: Scale = "small",
    pairs: Pairs = 3,
    kills: Kills = 2,
    seed: Seed = 1,
    limit_mib: Limit = 64,
    kinds: Only = ALL_KINDS,
    no_shim: NoShim = False,
    no_warm: NoWarm = False,
    directory: Dir = WORK,
    out: Out = None,
    dry_run: DryRun = False,
    resume: Resume = None,
) -> None:
    """All of part 000, natively and under the shim, verified, with table and report (make experiment)."""

    def go() -> int:
        if resume:
            return _resume(resume, directory)
        settings = _settings("000", scale, seed, pairs, kills, limit_mib, kinds, no_shim, no_warm)
        return _execute(settings, catalog.load().suite("000"), directory, out, dry_run)

    _guard(go)


@app.command()
def bench(
    scale: Scale = "small",
    pairs: Pairs = 5,
    seed: Seed = 1,
    no_warm: NoWarm = False,
    directory: Dir = WORK,
    out: Out = None,
    dry_run: DryRun = False,
) -> None:
    """Measure the project's targets in one interleaved session: target, measured, interval, pass."""

    def go() -> int:
        loaded = catalog.load()
        settings = session.Settings(
            suite="bench", scale=scale, seed=seed, pairs=pairs, kinds=("measure",), warm=not no_warm
        )
        experiments = loaded.suite("bench")
        if dry_run:
            session.dry_run(console, settings, experiments)
            return 0
        store = session.run(console, settings, experiments, directory, out)
        found = session.conclude(console, [store], experiments, store.directory)
        results = bench_targets.evaluate(loaded.targets, store.samples)
        console.print(bench_targets.table(results))
        missed = [r for r in results if r.verdict != bench_targets.PASS]
        return EXIT_FAILED if found.failed or missed else 0

    _guard(go)


@app.command()
def sync(
    cells: Annotated[
        str,
        typer.Option("--cells", help="Only these, comma-separated: floor, append-1, sqlite, postgres-8 ..."),
    ] = "",
    pairs: Pairs = 7,
    seconds: Annotated[float, typer.Option("--seconds", min=0.01, help="Measured time of a leg.")] = 3.0,
    warmup: Annotated[float, typer.Option("--warmup", min=0, help="Time before it, not counted.")] = 1.0,
    seed: Seed = 1,
    no_warm: NoWarm = False,
    fresh: Annotated[
        str,
        typer.Option(
            "--fresh", help="ext4 or xfs: on a new one on a loop device, not on --dir's own. Needs root."
        ),
    ] = "",
    directory: Dir = WORK,
    out: Annotated[
        Path | None, typer.Option("--out", help="JSON with every sample (default: results/<time>-sync.json).")
    ] = None,
    markdown: Annotated[Path | None, typer.Option("--markdown", help="Write the tables there, too.")] = None,
    record: Annotated[
        Path | None, typer.Option("--from", help="Measure nothing: tables again from such a JSON file.")
    ] = None,
) -> None:
    """What a durable write costs: fsync natively, with each `sync =` of the library, and with libeatmydata."""

    def go() -> int:
        if record:
            found = syncs.Record.load(record)
        else:
            if fresh and fresh not in syncs.FRESH:
                raise LabError(f"--fresh: '{fresh}' is none of {', '.join(syncs.FRESH)}")
            chosen = syncs.choose(cells)
            settings = syncs.Settings(chosen, pairs, seconds, warmup, seed, not no_warm, fresh)
            target = out or session.default_out("sync").with_suffix(".json")
            found = syncs.run(console, settings, directory, target)
        for table in sync_table.terminal(found):
            console.print(table)
        results = sync_table.targets(found)
        if results:
            console.print(bench_targets.table(results))
        if markdown:
            markdown.write_text(sync_table.markdown(found))
        missed = [r for r in results if r.verdict != bench_targets.PASS]
        return EXIT_FAILED if missed or sync_table.Samples(found).failed else 0

    _guard(go)


@app.command()
def report(
    runs: Annotated[
        list[Path], typer.Argument(help="Result directories; several are merged if they may be.")
    ],
    out: Annotated[
        Path | None, typer.Option("--out", help="Where to write (default: the first directory).")
    ] = None,
) -> None:
    """Write tables and page again from the recorded samples; merge runs of the same machine and settings."""

    def go() -> int:
        stores = [RunStore.open(path) for path in runs]
        target = out or runs[0]
        if len(runs) > 1 and out is None:
            raise LabError("several runs are merged into a new directory: give --out")
        target.mkdir(parents=True, exist_ok=True)
        found = session.conclude(console, stores, catalog.load().experiments, target)
        return EXIT_FAILED if found.failed else 0

    _guard(go)


@app.command("aa")
def control(
    ids: Annotated[list[str] | None, typer.Argument(help="Experiments (default: AA).")] = None,
    runs: Annotated[int, typer.Option("--runs", min=1, help="Comparisons of a row with itself.")] = 20,
    pairs: Annotated[int, typer.Option("--pairs", min=2, help="Interleaved pairs of each.")] = 6,
    scale: Scale = "short",
    seed: Seed = 1,
    no_warm: NoWarm = False,
    directory: Dir = WORK,
    out: Out = None,
    dry_run: DryRun = False,
) -> None:
    """The A/A control: how often does the method find a difference between a program and itself?

    Exit status 1 when more than one verdict in ten is false. Go on with an interrupted one by `run --resume`.
    """

    def go() -> int:
        chosen = [aa.control_of(e) for e in catalog.load().select(ids or ["AA"])]
        settings = session.Settings(
            "aa", scale, seed, runs * pairs, kinds=("measure",), warm=not no_warm, rounds_per_run=pairs
        )
        return _execute(settings, chosen, directory, out, dry_run)

    _guard(go)


@app.command("compare")
def compare_runs(
    one: Annotated[Path, typer.Argument(metavar="A", help="Result directory: the baseline.")],
    other: Annotated[Path, typer.Argument(metavar="B", help="Result directory: the candidate.")],
    anyway: Annotated[
        bool, typer.Option("--anyway", help="Also when machine or settings differ; says in what.")
    ] = False,
    markdown: Annotated[Path | None, typer.Option("--markdown", help="Write the table there, too.")] = None,
) -> None:
    """B against A, row by row: ratio, interval, verdict. Another build of the shim is what may differ."""

    def go() -> int:
        stores = RunStore.open(one), RunStore.open(other)
        apart = comparison.check(*stores, anyway)
        for line in apart:
            console.print(f"[yellow]the runs differ:[/] {escape(line)}", highlight=False, soft_wrap=True)
        experiments = session.measured_by(stores[0].settings, catalog.load().experiments)
        found = comparison.lines(experiments, *stores)
        console.print(comparison.table(found))
        if markdown:
            markdown.write_text(comparison.markdown(*stores, apart, found))
        return 0

    _guard(go)


@app.command("claims")
def claims_of_articles(
    runs: Annotated[list[Path], typer.Argument(help="Result directories of one machine.")],
    markdown: Annotated[Path | None, typer.Option("--markdown", help="Write it there, too.")] = None,
) -> None:
    """What the articles claim: reproduces, contradicts, not comparable or not decided, with our figure."""

    def go() -> int:
        stores = claims.together([RunStore.open(path) for path in runs])
        found = claims.entries(catalog.load().experiments, stores)
        table = Table(title="Claims", title_justify="left")
        for name in ("article", *claims.HEADERS):
            table.add_column(name, overflow="fold")
        for entry in found:
            table.add_row(entry.experiment.suite, *(escape(cell) for cell in claims.cells(entry)))
        console.print(table)
        told = ", ".join(f"{count} {verdict}" for verdict, count in claims.counts(found).items())
        console.print(told, highlight=False)
        if markdown:
            markdown.write_text(claims.markdown(found, stores))
        return 0

    _guard(go)


@app.command()
def doctor(
    directory: Annotated[Path, typer.Argument(help="The directory whose disk is to be looked at.")],
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
    brief: Annotated[bool, typer.Option("--brief", help="The table only, without explanations.")] = False,
) -> None:
    """Explain what decides how fast and how safe writes to a directory are. Changes nothing."""

    def go() -> int:
        found = examination.examine(directory)
        if as_json:
            typer.echo(json.dumps(found.as_dict(), indent=2))
        else:
            width = console.width if console.is_terminal else 80
            console.print(doctor_view.render(found, brief), width=width, highlight=False)
        return EXIT_FAILED if found.level == "danger" else 0

    _guard(go, say=not as_json)


@app.command(context_settings={"allow_interspersed_args": False})
def ab(
    cmd: Annotated[
        list[str], typer.Argument(metavar="-- CMD...", help="The command; {dir} is its directory.")
    ],
    source: Annotated[
        Path | None,
        typer.Option("--in", help="Each run gets a fresh copy of this directory (default: an empty one)."),
    ] = None,
    prepare: Annotated[
        str, typer.Option("--prepare", help="Shell command before each run, in its directory.")
    ] = "",
    pairs: Pairs = 7,
    paths: Annotated[
        list[str] | None,
        typer.Option("--paths", help="Patterns of a rule of yours, relative ones below the copy."),
    ] = None,
    rule: Annotated[
        list[str] | None, typer.Option("--rule", help="KEY=VALUE of that rule: sync=journal.")
    ] = None,
    config: Annotated[
        Path | None, typer.Option("--config", help="Configuration file, {dir} replaced.")
    ] = None,
    compare: Annotated[
        list[str] | None,
        typer.Option("--compare", help="Compare only outputs of these patterns (default: all)."),
    ] = None,
    durability: Annotated[
        str, typer.Option("--durability", help="What a rule may do: same, recovered, relaxed, off.")
    ] = "same",
    apply: Annotated[
        str, typer.Option("--apply", help="Measure the rule: auto (when recommended), always, never.")
    ] = "auto",
    ignore_failure: Annotated[
        bool, typer.Option("--ignore-failure", help="CMD may end with any status.")
    ] = False,
    directory: Dir = WORK,
    out: Annotated[
        Path | None, typer.Option("--out", help="Write ab.json and ab.md into this directory.")
    ] = None,
) -> None:
    """Any command with and without the shim: times, calls, equal output, and a rule recommended for it."""

    def go() -> int:
        settings = ab_command.settings(
            cmd, source, prepare, pairs, paths, rule, config, compare, durability, apply, ignore_failure
        )
        record = ab_command.run(console, settings, directory, out)
        return EXIT_FAILED if record.differences else 0

    _guard(go)


def _settings(suite, scale, seed, pairs, kills, limit_mib, kinds, no_shim, no_warm) -> session.Settings:
    chosen = tuple(k.strip() for k in kinds.split(",") if k.strip())
    for kind in chosen:
        if kind not in KINDS:
            raise LabError(f"--kinds: '{kind}' is none of {', '.join(KINDS)}")
    variants = tuple(v for v in VARIANTS if not (no_shim and shimmed(v)))
    return session.Settings(
        suite, scale, seed, pairs, kills, limit_mib << 20, variants or (NATIVE,), chosen, not no_warm
    )


def _execute(settings, experiments, directory: Path, out: Path | None, dry: bool) -> int:
    if dry:
        session.dry_run(console, settings, experiments)
        return 0
    return _conclude(session.run(console, settings, experiments, directory, out), experiments)


def _resume(out: Path, directory: Path) -> int:
    experiments = catalog.load().experiments
    return _conclude(session.resume(console, experiments, directory, out), experiments)


def _conclude(store: RunStore, experiments) -> int:
    found = session.conclude(console, [store], experiments, store.directory)
    pairs = store.settings["rounds_per_run"]
    wrong = False
    for row in found.rows if pairs else ():
        told = aa.runs(row.experiment, store.samples, pairs)
        if told:
            console.print(aa.table(row.experiment, told))
            console.print(aa.sentence(told), highlight=False)
            wrong |= sum(run.wrong for run in told) > aa.allowed(len(told))
    return EXIT_FAILED if found.failed or wrong else 0


def _guard(work: Callable[[], int], say: bool = True) -> None:
    """One line instead of a traceback for what the user can mend."""
    removed = shim.scrub(os.environ)
    if removed and say:
        console.print(f"[dim]not passed on to the legs: {', '.join(removed)}[/]")
    try:
        code = work()
    except LabError as error:
        console.print(
            f"[bold red]harness:[/] {escape(str(error))}", highlight=False, soft_wrap=True, markup=True
        )
        code = EXIT_REFUSED
    except KeyboardInterrupt:
        console.print("[yellow]interrupted; the work directory is clean[/]")
        code = EXIT_INTERRUPTED
    raise typer.Exit(code)
