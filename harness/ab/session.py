# SPDX-License-Identifier: Apache-2.0
"""A whole comparison: plain runs, a trace, advice, calibration, prediction, pairs, and what came of them."""

from __future__ import annotations

import json
import math
import shutil
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from dataclasses import asdict, dataclass, field
from pathlib import Path

from rich.console import Console
from rich.status import Status

from harness.ab import advice, equality, predict, profile, story, trace, twin
from harness.ab.advice import NO, USE, Advice, Rule
from harness.ab.predict import Prediction
from harness.ab.profile import Profile
from harness.ab.runs import PLACEHOLDER, Bench, Job, Run
from harness.core import build, environment, interrupt, shim, statistics
from harness.core.clock import RealClock
from harness.core.executor import Command, RealExecutor
from harness.core.model import LabError
from harness.core.workdir import WorkDir

FORMAT = 1
APPLY = ("auto", "always", "never")
PLAIN_RUNS = 2
ROUNDS_MIN, ROUNDS_MAX = 5, 15
FIT_REPEATS_MAX, FIT_SECONDS = 5, 0.6
ROUND = COMMAND, REPLAY_NATIVE, REPLAY_SHIM = "command", "replayed natively", "replayed under the rule"
FAILED_SHARE = 0.01
SPACE_FACTOR = 3
SPACE_BYTES = 64 << 20


@dataclass(frozen=True)
class Settings:
    """What the user asked for. paths, keys, config: a rule of the user's (none: one is recommended)."""

    job: Job
    pairs: int = 5
    paths: tuple[str, ...] = ()
    keys: Mapping[str, str] = field(default_factory=dict)
    config: Path | None = None
    durability: str = "same"
    apply: str = "auto"
    ignore_failure: bool = False

    @property
    def own_rule(self) -> bool:
        return bool(self.paths or self.config)


@dataclass
class Calibration:
    """The replay. scale: turns of a loop per nanosecond of its own work; overhead: seconds of strace per call.

    rounds: seconds of the command, its replay, its replay under the rule, and of processor time; costs: seconds per
    call of a kind, natively and under the rule.
    """

    operations: int
    overhead: float
    scale: float
    rounds: list[tuple[float, float, float]]
    processor_rounds: list[tuple[float, float, float]]
    costs: dict[str, tuple[float | None, float | None]]


@dataclass
class Record:
    """All that was found. native, shimmed: measured runs in pairs; plain: native runs before, the first to warm up."""

    settings: Settings
    environment: dict
    root: str
    plain: list[Run] = field(default_factory=list)
    profile: Profile | None = None
    cannot: dict[str, str] = field(default_factory=dict)
    advice: Advice | None = None
    rule: Rule | None = None
    calibration: Calibration | None = None
    prediction: Prediction | None = None
    processor_prediction: Prediction | None = None
    verdict: str = NO
    sentence: str = ""
    counts: dict[str, dict[str, int]] = field(default_factory=dict)
    native: list[Run] = field(default_factory=list)
    shimmed: list[Run] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    @property
    def natives(self) -> list[Run]:
        return [*self.plain, *self.native]

    @property
    def comparison(self) -> statistics.Comparison | None:
        """Native time over time under the rule, paired (above 1: faster)."""
        return self._compare(lambda run: run.seconds)

    @property
    def processor_comparison(self) -> statistics.Comparison | None:
        """The same of processor time, which other programs on the machine change less."""
        return self._compare(lambda run: run.processor_seconds)

    def _compare(self, get: Callable[[Run], float]) -> statistics.Comparison | None:
        if not self.shimmed:
            return None
        return statistics.compare([1 / get(r) for r in self.native], [1 / get(r) for r in self.shimmed])

    @property
    def differences(self) -> list[str]:
        native = [run.left for run in self.natives]
        found = [line for run in self.shimmed for line in equality.differences(native, run.left)]
        return list(dict.fromkeys(found))

    def as_dict(self) -> dict:
        """For JSON. Sets become lists; what was left is there by digest."""
        comparison, processor = self.comparison, self.processor_comparison
        return json.loads(
            json.dumps(
                {
                    "format": FORMAT,
                    "kind": "ab",
                    **asdict(self),
                    "comparison": asdict(comparison) if comparison else None,
                    "processor_comparison": asdict(processor) if processor else None,
                    "within_prediction": self.within,
                    "recommended": self.recommended,
                    "compared": equality.ways([run.left for run in self.natives]),
                    "differences": self.differences,
                },
                default=_plain,
            )
        )

    @property
    def recommended(self) -> bool:
        """The measurement has the last word; without one the prediction. Never where outputs differ."""
        comparison = self.comparison
        if comparison is None:
            return self.verdict == USE
        return advice.gains(comparison) and not self.differences

    @property
    def within(self) -> bool | None:
        """Whether the measured ratio lies in the predicted interval; None when one of them is not there."""
        comparison = self.comparison
        return self.prediction.covers(comparison.ratio) if self.prediction and comparison else None


def _plain(value: object) -> object:
    if isinstance(value, set | frozenset):
        return sorted(value)
    if isinstance(value, Path):
        return str(value)
    raise TypeError(f"{type(value)} in a record")


def run(console: Console, settings: Settings, directory: Path) -> Record:
    """The comparison. LabError for everything that the user can mend."""
    interrupt.watch()
    built = shim.find()
    if isinstance(built, str):
        raise LabError(f"no shim: {built}")
    shim.preload(built.library)  # refuses a path before the first run
    if shutil.which("strace") is None:
        raise LabError("strace is not installed (Debian: apt-get install strace)")
    executor = RealExecutor()
    programs = build.programs(executor)
    with WorkDir(directory) as work:
        _check_space(work, settings.job.source)
        device = environment.block_device(work.path)
        bench = Bench(
            work, programs, built, settings.job, executor, RealClock(), device[0] if device else None
        )
        record = Record(settings, environment.gather(work.path), str(bench.root))
        session = _Session(console, settings, bench, built, executor, record)
        session.run()
        return record


def _check_space(work: WorkDir, source: Path | None) -> None:
    files = [p for p in source.rglob("*") if p.is_file()] if source else []
    size = sum(p.stat().st_size for p in files)
    work.check_space(SPACE_FACTOR * size + SPACE_BYTES, SPACE_FACTOR * len(files))


class _Silent:
    """In place of a status where there is no terminal."""

    def update(self, text: str) -> None: ...


class _Session:
    def __init__(self, console: Console, settings: Settings, bench: Bench, built: shim.Shim, executor: RealExecutor,
                 record: Record) -> None:  # fmt: skip
        self._console, self._settings, self._bench = console, settings, bench
        self._shim, self._executor, self._record = built, executor, record
        self._config: Path | None = None

    def run(self) -> None:
        record, settings = self._record, self._settings
        own = self._own_rule() if settings.own_rule else None
        self._plain(1)
        with self._step("tracing"):
            told = story.tell(trace.read(self._bench.trace()), record.root)
        record.profile = profile.make(told)
        record.cannot = self._obstacles(record.profile)
        record.advice = advice.advise(record.profile, record.cannot, settings.durability)
        advised = own or record.advice.rule
        if advised is None and settings.apply != "always":
            # nothing to predict and nothing to measure: the trace has answered
            record.verdict, record.sentence = advice.verdict(record.advice, None, record.profile)
            self._note()
            return
        self._plain(PLAIN_RUNS)
        rule = advised or advice.anyway(record.root)
        if record.profile.files:
            self._predict(told, rule)
        if own:
            record.sentence = advice.given(record.prediction)
        else:
            record.verdict, record.sentence = advice.verdict(record.advice, record.prediction, record.profile)
        promising = own is not None or record.verdict != NO
        measured = settings.apply == "always" or (settings.apply == "auto" and promising)
        record.rule = rule if measured else advised
        if measured:
            self._pairs(rule)
            record.sentence = advice.measured(record.comparison, record.sentence, bool(record.differences))
        with self._step("counting system calls"):
            record.counts["native"] = self._bench.count(None)
            if measured:
                record.counts["shim"] = self._bench.count(self._env(rule))
        self._note()

    def _own_rule(self) -> Rule:
        """The user's rule, checked by the shim's own command. Relative patterns are below the working directory."""
        settings, root = self._settings, self._record.root
        paths = tuple(_absolute(p, root) for p in settings.paths)
        if settings.config:
            try:
                text = settings.config.read_text(encoding="utf-8", errors="surrogateescape")
            except OSError as error:
                raise LabError(f"{settings.config}: {error.strerror}") from error
            self._config = self._bench.control / "config.ini"
            self._config.write_text(
                text.replace(PLACEHOLDER, root), encoding="utf-8", errors="surrogateescape"
            )
        rule = Rule(paths, settings.keys)
        command = Command((str(self._shim.command), "config", "--json"), self._env(rule))
        done = self._executor.run(command)
        if done.returncode != 0:
            raise LabError(f"the rule is wrong: {done.stderr.strip()}")
        return rule

    def _env(self, rule: Rule) -> dict[str, str]:
        found = rule.env()
        if self._config:
            found["FASTWRITE_CONFIG"] = str(self._config)
        return found

    def _step(self, text: str) -> Status | nullcontext:
        """What is going on: a line that changes on a terminal, one that stays in a pipe."""
        if self._console.is_terminal:
            return self._console.status(text)
        self._console.print(f"{text} ...", highlight=False, soft_wrap=True)
        return nullcontext(_Silent())

    def _plain(self, count: int) -> None:
        """Native runs, the first to warm up: how long it takes, and whether it leaves the same each time."""
        with self._step("native runs") as status:
            for _ in range(count):
                found = self._bench.run()
                self._record.plain.append(found)
                status.update(f"native run {len(self._record.plain)}: {found.seconds:.3f} s")
                if found.status != 0 and not self._settings.ignore_failure:
                    words = f": {self._bench.said()}" if self._bench.said() else ""
                    raise LabError(
                        f"the command ended with {found.status}{words}\n"
                        "(--ignore-failure compares it all the same)"
                    )

    def _obstacles(self, found: Profile) -> dict[str, str]:
        """Programs of the command that cannot be preloaded, and why."""
        writing = sorted({p for file in found.files for p in file.programs if Path(p).exists()})
        if not writing:
            return {}
        argv = (str(self._shim.command), "check", "--json", "--program", *writing)
        answers = json.loads(self._executor.run(Command(argv)).stdout)
        return {a["name"]: a["obstacle"] for a in answers if not a["works"]}

    def _predict(self, told: story.Story, rule: Rule) -> None:
        """Replay the command's calls, natively fitted to its time, and under the rule, beside the command."""
        record, bench, env = self._record, self._bench, self._env(rule)
        plain = record.plain[1:]
        seconds = statistics.interval([r.seconds for r in plain]).median
        waits = min(1.0, seconds / told.seconds)
        repeats = min(FIT_REPEATS_MAX, math.ceil(FIT_SECONDS / seconds))
        with self._step("calibrating: the command's calls replayed") as status:
            bare = twin.script(told, idle=False)
            prefix = bench.control / "replayed"
            bench.replay(bare, 0.0, traced=prefix)
            overhead = twin.overhead(story.tell(trace.read(prefix), record.root))
            made = twin.script(told, overhead, waits=waits)
            scale = twin.fit(lambda think: self._beside(made, think, repeats))
            costs = self._costs(bare, env)
            rounds, processor, failed = [], [], 0
            for number in range(self._rounds):
                status.update(f"calibrating: round {number + 1} of {self._rounds}")
                runs = {}
                for kind in ROUND if number % 2 == 0 else ROUND[::-1]:
                    if kind == COMMAND:
                        record.plain.append(bench.run())
                        runs[kind] = record.plain[-1]
                        continue
                    runs[kind], tally = bench.replay(made, scale, env if kind == REPLAY_SHIM else None)
                    failed = max(failed, tally.failed)
                rounds.append(tuple(runs[kind].seconds for kind in ROUND))
                processor.append(tuple(runs[kind].processor_seconds for kind in ROUND))
        record.calibration = Calibration(made.operations, overhead, scale, rounds, processor, costs)
        if failed > FAILED_SHARE * made.operations:
            record.notes.append(
                f"{failed:,} of {made.operations:,} calls could not be replayed: no prediction"
            )
            return
        pairs = max(2, self._settings.pairs)
        record.prediction = predict.predict(rounds, pairs)
        record.processor_prediction = predict.predict(processor, pairs)

    def _beside(self, made: twin.Script, think: float, repeats: int) -> float:
        """Processor time of the replay over that of the command, run next to each other."""
        ratios = []
        for _ in range(repeats):
            self._record.plain.append(self._bench.run())
            replayed, _ = self._bench.replay(made, think)
            ratios.append(replayed.processor_seconds / self._record.plain[-1].processor_seconds)
        return statistics.interval(ratios).median

    @property
    def _rounds(self) -> int:
        return min(max(ROUNDS_MIN, self._settings.pairs), ROUNDS_MAX)

    def _costs(
        self, bare: twin.Script, env: Mapping[str, str]
    ) -> dict[str, tuple[float | None, float | None]]:
        """Seconds per call, natively and under the rule, from one timed replay each."""
        tallies = [self._bench.replay(bare, 0.0, rule, timed=True)[1] for rule in (None, env)]
        kinds = {"write": (story.WRITE, story.PWRITE), "sync": (story.FSYNC, story.FDATASYNC),
                 "open": (story.OPEN,), "close": (story.CLOSE,), "stat": (story.STAT, story.STAT_PATH),
                 "started program": (story.EXEC,)}  # fmt: skip
        return {
            name: (tallies[0].mean(found), tallies[1].mean(found))
            for name, found in kinds.items()
            if tallies[0].mean(found) is not None
        }

    def _pairs(self, rule: Rule) -> None:
        """ABBA: the variant that runs first in one pair runs second in the next."""
        record, env = self._record, self._env(rule)
        with self._step("pairs") as status:
            for number in range(self._settings.pairs):
                status.update(f"pair {number + 1} of {self._settings.pairs}")
                for shimmed in (False, True) if number % 2 == 0 else (True, False):
                    (record.shimmed if shimmed else record.native).append(
                        self._bench.run(env if shimmed else None)
                    )

    def _note(self) -> None:
        record = self._record
        ways = equality.ways([run.left for run in record.natives])
        excluded = [name for name, way in ways.items() if way == equality.EXCLUDED]
        if excluded:
            record.notes.append(f"not compared, since native runs differ there: {', '.join(excluded[:8])}"
                                + (f" and {len(excluded) - 8} more" if len(excluded) > 8 else ""))  # fmt: skip
        if any(run.left_processes for run in [*record.natives, *record.shimmed]):
            record.notes.append("the command leaves processes behind; they were killed when it had ended")
        if record.profile and record.profile.special.outside:
            names = ", ".join(list(record.profile.special.outside)[:4])
            record.notes.append(
                f"written outside of its working directory, neither compared nor in the rule: {names}"
            )
        if record.shimmed and not any(run.shim and run.shim.staged_writes for run in record.shimmed):
            record.notes.append("under the rule nothing was staged")
        for name, runs in (("native", record.native), ("shim", record.shimmed)):
            record.notes += statistics.noise_warnings(f"wall time, {name}", [run.seconds for run in runs])


def _absolute(pattern: str, root: str) -> str:
    """A pattern below the command's directory unless it is absolute; {dir} is that directory."""
    mark = "!" if pattern.startswith("!") else ""
    rest = pattern.removeprefix("!").replace(PLACEHOLDER, shim.quote(root))
    return mark + (rest if rest.startswith("/") else f"{shim.quote(root)}/{rest}")


def portable(text: str, root: str, source: Path | None, unknown: str) -> str:
    """A rule's text with the user's directory in place of the one that the runs had; `unknown` when it had none."""
    return text.replace(shim.quote(root), shim.quote(str(source.absolute())) if source else unknown)
