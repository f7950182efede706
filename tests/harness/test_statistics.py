# SPDX-License-Identifier: Apache-2.0
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from harness.core import statistics

FIGURES = st.lists(st.floats(1, 1e6), min_size=2, max_size=12)


@settings(max_examples=25, deadline=None)
@given(FIGURES)
def test_interval_holds_its_median(values):
    found = statistics.interval(values)
    assert found.low <= found.median <= found.high
    if len(values) >= statistics.RANKS_MIN:
        assert min(values) * 0.999 <= found.low and found.high <= max(values) * 1.001


def test_interval_of_one_and_of_equal_values():
    assert statistics.interval([5.0]) == statistics.Interval(1, 5, 5, 5)
    assert statistics.interval([5.0] * 4) == statistics.Interval(4, 5, 5, 5)
    with pytest.raises(ValueError):
        statistics.interval([])


def test_a_clear_gain_is_faster_and_its_reverse_slower():
    native, shim = [500, 520, 480], [1000, 1010, 990]
    found = statistics.compare(native, shim)
    assert found.verdict == statistics.FASTER
    assert found.ratio == pytest.approx(2.0, rel=0.1)
    assert found.test == "paired t on log ratios"
    assert statistics.compare(shim, native).verdict == statistics.SLOWER


def test_wilcoxon_decides_from_six_pairs_on():
    native = [500, 520, 480, 510, 505, 495, 490]
    found = statistics.compare(native, [1.2 * n for n in native])
    assert found.test == "wilcoxon" and found.p < 0.05
    assert found.verdict == statistics.FASTER


@pytest.mark.parametrize("count", [3, 4, 5, 6, 7, 12])
def test_verdict_interval_and_test_say_the_same(count):
    rng = np.random.default_rng(count)
    for shift in (0.0, 0.1, 0.3):
        for _ in range(50):
            found = statistics.compare(
                list(rng.lognormal(0, 0.1, count)), list(rng.lognormal(shift, 0.1, count))
            )
            assert (found.p < statistics.SIGNIFICANCE) == (found.verdict != statistics.INCONCLUSIVE)
            assert (found.verdict == statistics.INCONCLUSIVE) == (found.low <= 1 <= found.high)


@pytest.mark.parametrize("count", [2, 3, 4, 7])
def test_two_sessions_are_judged_by_their_interval(count):
    rng = np.random.default_rng(count)
    for shift in (0.0, 0.2, 1.0):
        for _ in range(50):
            one, other = list(rng.lognormal(0, 0.1, count)), list(rng.lognormal(shift, 0.1, count + 1))
            found = statistics.compare_independent(one, other)
            certain = count >= statistics.PAIRS_MIN and not found.low <= 1 <= found.high
            assert (found.verdict != statistics.INCONCLUSIVE) == certain
            assert not certain or found.p < statistics.SIGNIFICANCE


def test_an_interval_of_counts_does_not_go_below_nothing():
    assert statistics.interval([0.0, 0.0, 3.0]).low == 0


def test_a_comparison_says_what_it_could_have_found():
    assert statistics.compare([1, 1], [2, 3]).detectable is None
    few, more = (statistics.compare([100] * n, [98, 101, 103, 99, 100, 102, 97][:n]) for n in (3, 7))
    assert 1 < more.detectable < few.detectable < 1.2
    rng = np.random.default_rng(3)
    noise = rng.lognormal(0, 0.1, (400, 5))
    asked = float(np.median([statistics.compare([1] * 5, list(v)).detectable for v in noise]))
    verdicts = [statistics.compare([1] * 5, list(asked * v)).verdict for v in noise]
    assert 0.74 < verdicts.count(statistics.FASTER) / len(verdicts) < 0.86


def test_one_pair_and_equal_pairs_decide_nothing():
    assert statistics.compare([100], [300]).verdict == statistics.INCONCLUSIVE
    assert statistics.compare([100] * 4, [100] * 4).verdict == statistics.INCONCLUSIVE


@pytest.mark.parametrize(("one", "other"), [([1, 2], [1]), ([], []), ([0, 1], [1, 1])])
def test_what_makes_no_pairs_is_refused(one, other):
    with pytest.raises(ValueError):
        statistics.compare(one, other)


@pytest.mark.parametrize("pairs", [3, 5, 8])
def test_identical_legs_rarely_differ(pairs):
    rng = np.random.default_rng(7)
    false = 0
    for _ in range(60):
        one, other = rng.lognormal(6, 0.1, pairs), rng.lognormal(6, 0.1, pairs)
        false += statistics.compare(list(one), list(other)).verdict != statistics.INCONCLUSIVE
    assert false <= 6


def test_ratios_do_not_see_a_drift_that_pairs_share():
    drift = [1, 2, 4, 8]
    found = statistics.compare([100 * d for d in drift], [150 * d for d in drift])
    assert found.ratio == pytest.approx(1.5) and found.low == pytest.approx(1.5)


def test_rates_and_jitter_of_an_even_series():
    times, counts = [0, 1, 2, 3, 4], [0, 10, 20, 30, 40]
    assert statistics.rates(times, counts) == [10, 10, 10, 10]
    found = statistics.jitter(times, counts)
    assert found.cv == 0 and found.p1_p50 == 1 and found.stall_seconds == 0 and found.longest_gap_seconds == 0


def test_jitter_sees_a_stall_and_the_longest_gap():
    found = statistics.jitter([0, 1, 2, 3, 4, 5, 6], [0, 10, 20, 20, 20, 30, 40])
    assert found.stall_seconds == 2 and found.longest_gap_seconds == 2 and found.cv > 0.5


def test_jitter_needs_three_intervals_and_progress():
    assert statistics.jitter([0, 1, 2], [0, 1, 2]) is None
    assert statistics.jitter([0, 1, 2, 3], [5, 5, 5, 5]) is None


def test_noise_and_drift_are_said():
    assert statistics.noise_warnings("x", [100, 101, 99]) == []
    assert any("spread" in w for w in statistics.noise_warnings("x", [100, 160, 90]))
    assert any("factor" in w for w in statistics.noise_warnings("x", [100, 160, 90]))
    assert statistics.noise_warnings("x", [1]) == []
    assert statistics.drift_warning("x", [1, 2, 3, 4, 5, 6]) and not statistics.drift_warning("x", [1, 2, 3])
