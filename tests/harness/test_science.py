# SPDX-License-Identifier: Apache-2.0
"""The A/A control, two runs against each other, the table of claims, and what is said about noise."""

import io
from dataclasses import replace

import lab_fakes as fakes
import numpy as np
import pytest
from rich.console import Console

from harness.core import noise, statistics
from harness.core.model import CONTROL, HIGHER, LOWER, NATIVE, Claim, LabError
from harness.core.store import RunStore
from harness.report import claims, comparison
from harness.report import control as aa
from harness.run import live, plan, session


def store(directory, samples=(), **changes):
    made = RunStore.create(directory, fakes.settings(**changes))
    for sample in samples:
        made.append(sample)
    return made


def legs(experiment, variant, rates):
    return [fakes.measured(experiment, variant, n, rate) for n, rate in enumerate(rates, 1)]


# A/A


def test_runs_of_a_control_are_cut_from_the_rounds_and_false_verdicts_counted(experiments):
    control = aa.control_of(experiments["E1"])
    assert control.variants == (NATIVE, CONTROL) and control.kinds == ("measure",) and not control.claims
    rng = np.random.default_rng(3)
    native = list(500 * rng.lognormal(0, 0.02, 18))
    other = [n * 1.2 if 6 <= i < 12 else n * rng.lognormal(0, 0.02) for i, n in enumerate(native)]
    found = aa.runs(control, legs("E1", NATIVE, native) + legs("E1", CONTROL, other), 6)
    assert [run.rounds for run in found] == [(1, 6), (7, 12), (13, 18)]
    assert [run.wrong for run in found] == [False, True, False]
    assert aa.sentence(found).startswith("1 false verdicts in 3 runs of 6 pairs (at most 0 allowed)")
    assert aa.table(control, found).row_count == 3
    assert aa.allowed(20) == 2


def test_what_is_never_measured_natively_is_no_control(experiments):
    with pytest.raises(LabError, match="cannot be its own control"):
        aa.control_of(replace(experiments["E1"], variants=("shim",)))


def test_a_session_of_controls_is_read_back_as_one(experiments):
    rows = list(experiments.values())
    (one,) = session.measured_by({"rounds_per_run": 6, "experiments": ["E1"]}, rows)
    assert one.variants == (NATIVE, CONTROL)
    assert session.measured_by({"rounds_per_run": 0}, rows) == rows


# independent samples


def test_independent_samples_differ_or_not():
    one, other = [100, 101, 99, 100, 102], [150, 151, 149, 150, 152]
    found = statistics.compare_independent(one, other)
    assert found.verdict == statistics.FASTER and found.test == "Mann-Whitney"
    assert found.low <= found.ratio <= found.high and found.ratio == pytest.approx(1.5)
    assert statistics.compare_independent(one, other, better=LOWER).verdict == statistics.SLOWER
    assert statistics.compare_independent(one, one).verdict == statistics.INCONCLUSIVE
    few = statistics.compare_independent(one[:3], other[:3])
    assert few.test.startswith("Welch") and few.verdict == statistics.FASTER
    single = statistics.compare_independent([100], [300])
    assert single.verdict == statistics.INCONCLUSIVE and single.low == single.high == 3
    with pytest.raises(ValueError):
        statistics.compare_independent([], [1])


@pytest.mark.parametrize("count", [3, 6])
def test_independent_samples_of_one_distribution_rarely_differ(count):
    rng = np.random.default_rng(11)
    false = 0
    for _ in range(60):
        one, other = rng.lognormal(6, 0.1, count), rng.lognormal(6, 0.1, count)
        false += statistics.compare_independent(list(one), list(other)).verdict != statistics.INCONCLUSIVE
    assert false <= 6


# two runs


def test_two_runs_are_compared_row_by_row(tmp_path, experiments):
    native = [500, 505, 495, 502, 498]
    one = store(tmp_path / "a", legs("E1", "native", native) + legs("E1", "shim", [n * 2 for n in native]))
    other = store(
        tmp_path / "b",
        legs("E1", "native", native) + legs("E1", "shim", [n * 3 for n in native]),
        environment=fakes.environment(shim="newer"),
    )
    apart = comparison.check(one, other, anyway=False)
    assert apart == ["shim: 'same' and 'newer'"]
    found = {line.variant: line for line in comparison.lines([experiments["E1"]], one, other)}
    assert found["native"].found.verdict == statistics.INCONCLUSIVE
    assert found["shim"].found.verdict == statistics.FASTER
    # the sessions' own drift is in every plain figure: only what was paired inside each of them is judged
    assert [comparison.verdict(line) for line in found.values()] == ["–", "–", "faster"]
    assert found["shim / native"].found.ratio == pytest.approx(1.5) and found["shim / native"].unit == "×"
    text = comparison.markdown(one, other, apart, list(found.values()))
    assert "shim: 'same' and 'newer'" in text and "1.50×" in text
    assert comparison.table(list(found.values())).row_count == 3


def test_a_lower_latency_in_b_is_faster(tmp_path, experiments):
    row = replace(
        experiments["E1"], variants=("native",), figure="p99_us", figure_unit="µs", figure_better=LOWER
    )
    assert row.figure_better != HIGHER
    sides = [
        store(
            tmp_path / name,
            [
                {**leg, "outcome": {"p99_us": value + n}}
                for n, leg in enumerate(legs("E1", "native", [1] * 5))
            ],
        )
        for name, value in (("a", 900), ("b", 90))
    ]
    (line,) = comparison.lines([row], *sides)
    assert line.found.verdict == statistics.FASTER and line.found.ratio == pytest.approx(902 / 92)


@pytest.mark.parametrize(
    "changes",
    [
        {"environment": fakes.environment(kernel="9.9")},
        {"scale": "full"},
        {"warm": True},
        {"suite": "all"},
        {"rounds_per_run": 3},
        {"hosts": ["one:8765", "", "/data"]},
    ],
)
def test_unlike_machines_are_refused_unless_asked_for(tmp_path, changes):
    one, other = store(tmp_path / "a"), store(tmp_path / "b", **changes)
    with pytest.raises(LabError, match="not comparable"):
        comparison.check(one, other, anyway=False)
    assert len(comparison.check(one, other, anyway=True)) == 1


def test_rows_that_changed_or_are_missing_are_named(tmp_path, experiments):
    one = store(
        tmp_path / "a", legs("E1", "native", [500, 510]) + legs("E2", "native", [1, 2]), sizes={"E1": 1}
    )
    other = store(tmp_path / "b", legs("E1", "native", [500, 510]), sizes={"E1": 2})
    found = {
        line.experiment.id: line
        for line in comparison.lines([experiments["E1"], experiments["E2"]], one, other)
    }
    assert "differ" in found["E1"].reason and found["E1"].found is None
    assert found["E2"].reason == "not measured in B" and "not compared" in comparison.cells(found["E2"])


# claims


def test_claims_of_all_rows_with_those_that_were_not_measured(tmp_path, experiments):
    samples = [
        s
        for n in (1, 2, 3)
        for s in (fakes.measured("B2", "native", n, 2000), fakes.measured("E2", "native", n, 700))
    ]
    stores = claims.together([store(tmp_path / "a", samples)])
    rows = [experiments[i] for i in ("B2", "E1", "E2")]
    rows.append(
        replace(
            experiments["E1"],
            id="X",
            suite="009",
            claims=(Claim("words | only", "none", reason="no figure"),),
        )
    )
    found = claims.entries(rows, stores)
    by_row = {(e.experiment.id, e.result.claim.measure): e.result for e in found}
    assert by_row["E2", "share"].verdict == "reproduces"
    assert (
        by_row["E1", "share"].verdict == "not decided" and by_row["E1", "share"].reason == claims.NOT_MEASURED
    )
    assert by_row["X", "none"].verdict == "not comparable"
    assert claims.counts(found)["reproduces"] == 1 and sum(claims.counts(found).values()) == len(found)
    text = claims.markdown(found, stores)
    assert "## 000" in text and "## 009" in text and "words \\| only" in text
    assert "(6 legs)" in text and "E2/measure/1/native" in text


def test_claims_beside_the_article_are_counted_apart(tmp_path, experiments):
    row = replace(
        experiments["E1"],
        claims=(
            Claim("said", "none", reason="r", place="a chart"),
            Claim("ours", "none", reason="r", own="ours"),
        ),
    )
    found = claims.entries([row], [])
    text = claims.markdown(found, [store(tmp_path / "a")])
    lines = text.splitlines()
    assert any(line.startswith("| 000 | 0 ") and line.endswith("| 1 |") for line in lines)
    assert any(line.startswith("| beside the articles | 0 ") and line.endswith("| 1 |") for line in lines)
    assert lines.index("Beside the article:") > next(i for i, line in enumerate(lines) if "| said |" in line)
    assert "| ours | not of the article: ours |" in text


def test_claims_of_two_machines_make_no_common_table(tmp_path):
    one = store(tmp_path / "a", suite="000")
    other = store(tmp_path / "b", suite="001", environment=fakes.environment(cpu="other"))
    with pytest.raises(LabError, match="no common table"):
        claims.together([one, other])


def test_claims_of_two_suites_stand_side_by_side_and_of_one_are_merged(tmp_path, experiments):
    leg = [fakes.measured("E1", "native", 1, 500)]
    same = [store(tmp_path / "a", leg), store(tmp_path / "b", leg, started="later")]
    assert len(claims.together(same)) == 1 and len(claims.together(same)[0].samples) == 2
    twice = claims.together([same[0], store(tmp_path / "c", leg, suite="all")])
    with pytest.raises(LabError, match="row E1 is in"):
        claims.entries([experiments["E1"]], twice)


# noise


def test_noise_is_read_from_the_kernels_counters():
    texts = iter(
        [
            "cpu  100 0 100 700 0 0 0 100 9 9\n",
            "0.0 0.0 0.0 3/99 1\n",
            "cpu  150 0 150 740 0 0 0 160 9 9\n",
            "0 0 0 1/99 1\n",
        ]
    )
    before = noise.read(lambda _: next(texts))
    after = noise.read(lambda _: next(texts))
    assert noise.between(before, after) == {"noise": {"steal_share": 0.3, "runnable_before": 3}}

    def nothing(_):
        raise FileNotFoundError

    assert noise.between(noise.read(nothing), after) == {}


def test_disturbed_legs_are_counted_and_the_worst_named():
    samples = [
        {"leg": "a", "noise": {"steal_share": 0.2, "runnable_before": 1}},
        {"leg": "b", "noise": {"steal_share": 0.0, "runnable_before": 9}},
        {"leg": "c"},
    ]
    stolen, busy = noise.warnings(samples, cpus=2)
    assert "1 of 2 legs" in stolen and "20% in a" in stolen and "9 runnable" in busy and "before b" in busy
    assert noise.warnings(samples, cpus=16)[1:] == []


# what is seen meanwhile


class Clock:
    def __init__(self):
        self.time = 0.0

    def monotonic(self):
        return self.time


def text_of(console, what):
    with console.capture() as captured:
        console.print(what)
    return captured.get()


def test_time_left_follows_the_pace_of_the_legs_so_far():
    left = live.TimeLeft({str(n): 10.0 for n in range(10)})
    assert left.seconds == 100
    left.ended("0", None)
    assert left.seconds == 90
    for n in range(1, 6):
        left.ended(str(n), 30.0)
    assert left.seconds == pytest.approx(40 * 160 / 60)
    left.ended("6", 30.0)
    left.ended("6", 30.0)
    assert left.seconds < 100


def test_a_terminal_shows_the_legs_their_bandwidth_and_the_time_left(experiments):
    rows = [experiments["E1"]]
    made = plan.make(rows, suite="t", scale="tiny", seed=1, pairs=2, kills=1, memory_limit_bytes=1 << 26,
                     variants=("native", "shim"), kinds=("measure",))  # fmt: skip
    console = Console(force_terminal=True, width=100, file=io.StringIO(), color_system=None)
    clock = Clock()
    observer = live.Live(console, clock, made, experiments)
    with observer:
        first, second = made.legs[:2]
        observer.leg_started(first, 1, 10**9)
        for done in range(6):
            clock.time += 1
            observer.leg_ticked(done * 10**8)
        running = text_of(console, observer.view())
        observer.leg_ended({**fakes.measured("E1", first.variant, 1, 500), "leg_seconds": 6.0})
        observer.leg_started(second, 2, 10**9)
        ended = text_of(console, observer.view())
    assert first.id in running and "100 MB/s" in running and "0 of 4 legs" in running and "left" in running
    assert "█" in running
    assert "500 MB/s" in ended and second.id in ended and "1 of 4 legs" in ended


def test_without_a_terminal_every_leg_is_a_line_with_its_own_unit(experiments):
    row = replace(experiments["E1"], figure="p99_us", figure_unit="µs", figure_better=LOWER)
    made = plan.make([row], suite="t", scale="tiny", seed=1, pairs=1, kills=1, memory_limit_bytes=1 << 26,
                     variants=("native",), kinds=("measure",))  # fmt: skip
    console = Console(width=100, file=io.StringIO())
    observer = live.Live(console, Clock(), made, {"E1": row})
    with observer:
        observer.leg_started(made.legs[0], 1, 10**9)
        observer.leg_ended({**fakes.measured("E1", "native", 1, 500), "outcome": {"p99_us": 42.0}})
    assert console.file.getvalue().split()[:4] == ["1/1", "E1/measure/1/native", "ok", "42.0"]
