# SPDX-License-Identifier: Apache-2.0
"""The verbs of `python -m harness`.

Exit status: 0 everything ran and verified; 1 a leg failed (or a target of bench, cost or sync was missed, or doctor
found a danger); 2 the request cannot be carried out (one line says why); 130 interrupted (one line says how to go on).
"""

from __future__ import annotations

import errno
import json
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from harness.ab import command as ab_command
from harness.core import interrupt, rounds, shim, sysctls
from harness.core.model import Experiment, LabError
from harness.core.statistics import PAIRS_MIN
from harness.core.store import RunStore
from harness.cost import benchmark as costs
from harness.cost import table as cost_table
from harness.doctor import examination
from harness.doctor import view as doctor_view
from harness.options import Asked, options
from harness.report import claims, comparison
from harness.report import control as aa
from harness.report import targets as bench_targets
from harness.run import catalog, session
from harness.sync import benchmark as syncs
from harness.sync import table as sync_table

EXIT_FAILED, EXIT_REFUSED, EXIT_INTERRUPTED = 1, 2, 130
FULL = (errno.ENOSPC, errno.EDQUOT)
WRONG_PATH = (errno.ENOENT, errno.ENOTDIR, errno.EISDIR, errno.EEXIST, errno.EACCES, errno.EPERM, errno.EROFS,
              errno.ENAMETOOLONG, errno.ELOOP)  # fmt: skip

app = typer.Typer(
    add_completion=False,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    help="The laboratory: published write experiments, natively and under the shim.",
)
console = Console()
if not console.is_terminal:
    console = Console(width=160)


@app.command("list")
def list_experiments(
    ids: Annotated[list[str] | None, typer.Argument(help="Suites or experiment ids (default: all).")] = None,
) -> None:
    """Show experiments: id, what each does, variants, kinds of leg, published figure."""
    _guard(lambda: _list(ids or ()))


def _list(ids: Sequence[str]) -> int:
    loaded = catalog.load()
    table = Table(title="Experiments", title_justify="left")
    for name in ("suite", "id", "what", "variants", "legs", "published"):
        table.add_column(name, overflow="fold")
    for experiment in loaded.select(ids) if ids else loaded.experiments:
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


RUN = ("scale", "pairs", "kills", "seed", "limit_mib", "kinds", "no_shim", "no_warm", "directory", "out",
       "dry_run", "resume")  # fmt: skip


@app.command()
@options(*RUN)
def run(
    asked: Asked,
    ids: Annotated[list[str] | None, typer.Argument(help="Suites or experiment ids (see list).")] = None,
    every: Annotated[bool, typer.Option("--all", help="All suites but bench.")] = False,
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
    """Run suites or single experiments, or go on with an interrupted run (--resume)."""

    def go() -> int:
        loaded = catalog.load()
        if asked.resume:
            return _resume(asked)
        if every:
            experiments = tuple(e for e in loaded.experiments if e.suite != "bench")
        elif ids:
            experiments = loaded.select(ids)
        else:
            raise LabError("which experiments? give ids or suites (see `list`), --all, or --resume DIR")
        elsewhere = {"sysctls": sysctls.parse(sysctl or ()), "hosts": (hosts, shim_hosts, remote_dir)}
        return _run(asked, experiments, **elsewhere)

    _guard(go)


@app.command()
@options(*RUN)
def suite(asked: Asked, name: Annotated[str, typer.Argument(help="Name of the suite (see list).")]) -> None:
    """The same as `run NAME`."""
    _guard(lambda: _resume(asked, name) if asked.resume else _run(asked, catalog.load().suite(name)))


@app.command()
@options(*RUN)
def experiment(asked: Asked) -> None:
    """The same as `run 000`: part 000, natively and under the shim, verified (make experiment)."""
    _guard(lambda: _resume(asked) if asked.resume else _run(asked, catalog.load().suite("000")))


@app.command()
@options("scale", "seed", "no_warm", "directory", "out", "pairs", "dry_run", "resume")
def bench(asked: Asked) -> None:
    """Measure the project's targets in one interleaved session: target, measured, interval, pass."""

    def go() -> int:
        if asked.resume:
            return _resume(asked)
        return _run(asked, catalog.load().suite("bench"), kinds=("measure",))

    _guard(go)


Fresh = Annotated[
    str,
    typer.Option(
        "--fresh", help="ext4 or xfs: on a new one on a loop device, not on --dir's own. Needs root."
    ),
]
RecordOut = Annotated[
    Path | None, typer.Option("--out", help="JSON with every sample (default: results/<time>-<verb>.json).")
]
RecordMarkdown = Annotated[Path | None, typer.Option("--markdown", help="Write the tables there, too.")]
RecordFrom = Annotated[
    Path | None, typer.Option("--from", help="Measure nothing: tables again from such a JSON file.")
]


@app.command()
@options("seed", "no_warm", "directory", "resume", pairs=7)
def sync(
    asked: Asked,
    cells: Annotated[
        str,
        typer.Option("--cells", help="Only these, comma-separated: floor, append-1, sqlite, postgres-8 ..."),
    ] = "",
    seconds: Annotated[float, typer.Option("--seconds", min=0.01, help="Measured time of a leg.")] = 3.0,
    warmup: Annotated[float, typer.Option("--warmup", min=0, help="Time before it, not counted.")] = 1.0,
    fresh: Fresh = "",
    out: RecordOut = None,
    markdown: RecordMarkdown = None,
    record: RecordFrom = None,
) -> None:
    """What a durable write costs: fsync natively, with each `sync =` of the library, and with libeatmydata."""

    def settings() -> syncs.Settings:
        chosen = rounds.choose(cells, syncs.VARIANTS)
        return syncs.Settings(chosen, asked.pairs, seconds, warmup, asked.seed, not asked.no_warm, fresh)

    _guard(lambda: _rounds(syncs.Benchmark(), sync_table, settings, asked, out, markdown, record))


@app.command()
@options("seed", "no_warm", "directory", "resume", pairs=7)
def cost(
    asked: Asked,
    cells: Annotated[
        str, typer.Option("--cells", help="Only these rows, comma-separated: start, append, sed ...")
    ] = "",
    seconds: Annotated[
        float,
        typer.Option("--seconds", min=0.001, help="About the time of a native leg of short operations."),
    ] = 0.2,
    fresh: Fresh = "",
    out: RecordOut = None,
    markdown: RecordMarkdown = None,
    record: RecordFrom = None,
) -> None:
    """What the library costs a program that gains nothing: starts, forks, small files, locks, builds."""

    def settings() -> costs.Settings:
        chosen = rounds.choose(cells, costs.ROWS)
        return costs.Settings(chosen, asked.pairs, seconds, asked.seed, not asked.no_warm, fresh)

    _guard(lambda: _rounds(costs.Benchmark(), cost_table, settings, asked, out, markdown, record))


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
@options("seed", "no_warm", "directory", "out", "dry_run", "resume", pairs=6, scale="short")
def control(
    asked: Asked,
    ids: Annotated[list[str] | None, typer.Argument(help="Experiments (default: AA).")] = None,
    runs: Annotated[int, typer.Option("--runs", min=1, help="Comparisons of a row with itself.")] = 20,
) -> None:
    """The A/A control: how often does the method find a difference between a program and itself?

    Exit status 1 when more than one verdict in ten is false.
    """

    def go() -> int:
        if asked.resume:
            return _resume(asked)
        if asked.pairs < PAIRS_MIN:
            raise LabError(f"--pairs: a verdict needs at least {PAIRS_MIN}")
        chosen = [aa.control_of(e) for e in catalog.load().select(ids or ["AA"])]
        rounds = {"pairs": runs * asked.pairs, "rounds_per_run": asked.pairs}
        return _run(asked, chosen, suite="aa", kinds=("measure",), **rounds)

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
        if any(line.found for line in found):
            console.print(comparison.table(found))
        else:
            console.print(f"{one} and {other} have no measured row in common")
        if markdown:
            _write(markdown, comparison.markdown(*stores, apart, found))
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
        counted = claims.counts([entry for entry in found if not entry.result.claim.own])
        told = ", ".join(f"{count} {verdict}" for verdict, count in counted.items())
        console.print(told, highlight=False)
        if markdown:
            _write(markdown, claims.markdown(found, stores))
        return 0

    _guard(go)


@app.command()
def doctor(
    directory: Annotated[Path, typer.Argument(help="The directory whose disk is to be looked at.")],
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
    brief: Annotated[bool, typer.Option("--brief", help="The table only, without explanations.")] = False,
    full: Annotated[bool, typer.Option("--full", help="Every knob with all that is known of it.")] = False,
) -> None:
    """Explain what decides how fast and how safe writes to a directory are. Changes nothing."""

    def go() -> int:
        found = examination.examine(directory)
        if as_json:
            typer.echo(json.dumps(found.as_dict(), indent=2))
        else:
            width = console.width if console.is_terminal else 80
            console.print(doctor_view.render(found, brief, full), width=width, highlight=False)
        return EXIT_FAILED if found.level == "danger" else 0

    _guard(go, say=not as_json)


@app.command(context_settings={"allow_interspersed_args": False})
@options("directory", "pairs")
def ab(
    asked: Asked,
    cmd: Annotated[
        list[str], typer.Argument(metavar="-- CMD...", help="The command; {dir} is its directory.")
    ],
    source: Annotated[
        Path | None,
        typer.Option("--in", help="Each run gets a fresh copy of this directory (default: an empty one)."),
    ] = None,
    stdin: Annotated[
        Path | None, typer.Option("--stdin", help="Standard input of each run (default: empty).")
    ] = None,
    prepare: Annotated[
        str, typer.Option("--prepare", help="Shell command before each run, in its directory.")
    ] = "",
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
    out: Annotated[
        Path | None, typer.Option("--out", help="Write ab.json and ab.md into this directory.")
    ] = None,
) -> None:
    """Any command with and without the shim: times, calls, equal output, and a rule recommended for it."""

    def go() -> int:
        settings = ab_command.settings(
            cmd,
            source,
            prepare,
            asked.pairs,
            paths,
            rule,
            config,
            compare,
            durability,
            apply,
            ignore_failure,
            stdin,
        )
        record = ab_command.run(console, settings, asked.work, out)
        return EXIT_FAILED if record.differences else 0

    _guard(go)


def _run(asked: Asked, experiments: Sequence[Experiment], suite: str = "", **more) -> int:
    """A new run of these experiments; more: settings that no option gives."""
    suites = {e.suite for e in experiments}
    settings = asked.settings(suite or (suites.pop() if len(suites) == 1 else "all"), **more)
    if asked.dry_run:
        session.dry_run(console, settings, experiments)
        return 0
    return _conclude(session.run(console, settings, experiments, asked.work, asked.out))


def _resume(asked: Asked, name: str = "") -> int:
    """The rest of a run, with its own settings. name: of the suite that it must be a run of."""
    _only_resumed(asked, "name")
    found = RunStore.open(asked.resume).settings["suite"] if name else ""
    if found != name:
        raise LabError(f"{asked.resume}: a run of {found}, not of {name}")
    return _conclude(session.resume(console, catalog.load().experiments, asked.directory, asked.resume))


def _only_resumed(asked: Asked, *others: str) -> None:
    """A run that goes on keeps its settings: refuse what would be ignored. others: parameters that are heeded."""
    ignored = [word for name, word in asked.words.items() if name not in ("resume", "directory", *others)]
    if ignored:
        raise LabError(f"--resume goes on with the settings of that run; leave out: {', '.join(ignored)}")


def _conclude(store: RunStore) -> int:
    """Tables and result files of a run, and what its kind of run is judged by."""
    loaded = catalog.load()
    found = session.conclude(console, [store], loaded.experiments, store.directory)
    failed = found.failed
    if store.settings["suite"] == "bench":
        results = bench_targets.evaluate(loaded.targets, store.samples)
        console.print(bench_targets.table(results))
        failed |= any(r.verdict != bench_targets.PASS for r in results)
    pairs = store.settings["rounds_per_run"]
    for row in found.rows if pairs else ():
        told = aa.runs(row.experiment, store.samples, pairs)
        if told:
            console.print(aa.table(row.experiment, told))
            console.print(aa.sentence(told), highlight=False)
            failed |= sum(run.wrong for run in told) > aa.allowed(len(told))
    return EXIT_FAILED if failed else 0


def _rounds(
    benchmark: rounds.Benchmark,
    shown,
    settings: Callable,
    asked: Asked,
    out: Path | None,
    markdown: Path | None,
    record: Path | None,
) -> int:
    """`sync` or `cost`: a new run, the rest of one or a record; shown: the module with its tables and targets."""
    if asked.resume:
        _only_resumed(asked, "markdown")
    if record:
        found = benchmark.record.load(record)
    elif asked.resume:
        found = rounds.resume(console, benchmark, asked.directory, asked.resume)
    else:
        target = out or session.default_out(benchmark.record.kind).with_suffix(".json")
        found = rounds.run(console, benchmark, settings(), asked.work, target)
    for table in shown.terminal(found):
        console.print(table)
    results = shown.targets(found)
    if results:
        console.print(bench_targets.table(results))
    if markdown:
        _write(markdown, shown.markdown(found))
    missed = any(r.verdict != bench_targets.PASS for r in results)
    return EXIT_FAILED if missed or rounds.Samples(found).failed else 0


def _write(path: Path, text: str) -> None:
    path.write_text(text, encoding="utf-8", errors="backslashreplace")


def _guard(work: Callable[[], int], say: bool = True) -> None:
    """Run a verb; an error that the user can correct is one line, no traceback."""
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
    except OSError as error:
        if error.errno not in FULL and (error.errno not in WRONG_PATH or error.filename is None):
            raise
        where = f": {escape(str(error.filename))}" if error.filename else ""
        console.print(f"[bold red]harness:[/] {error.strerror}{where}", highlight=False, soft_wrap=True)
        code = EXIT_REFUSED
    except KeyboardInterrupt:
        interrupt.say(console, "[yellow]interrupted; the work directory is clean[/]")
        code = EXIT_INTERRUPTED
    raise typer.Exit(code)
