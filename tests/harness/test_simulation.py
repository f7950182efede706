# SPDX-License-Identifier: Apache-2.0
"""The verdicts against effects that are known: rates of false and of missed ones (simulation.py)."""

import functools

import pytest
import simulation
from lib.support import made_once

from harness import ROOT
from harness.report import judge

FALSE_MAX = 0.065  # 5 %, and what 2000 simulated runs spread by


@pytest.fixture(autouse=True, scope="module")
def simulated_once(shared_dir):
    """A simulation is made by whichever process of the tests needs it first."""
    simulate = simulation.comparisons

    @functools.cache
    def comparisons(effect, pairs, noise, runs):
        name = f"simulated-{effect}-{pairs}-{noise}-{runs}"
        return made_once(shared_dir, name, lambda: simulate(effect, pairs, noise, runs))

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(simulation, "comparisons", comparisons)
        yield


@pytest.mark.parametrize("noise", simulation.NOISE)
@pytest.mark.parametrize("pairs", simulation.PAIRS)
def test_a_difference_that_is_not_there_is_rarely_found(pairs, noise):
    assert simulation.rates(1.0, pairs, noise)["false"] <= FALSE_MAX


@pytest.mark.parametrize("noise", simulation.NOISE)
@pytest.mark.parametrize("pairs", simulation.PAIRS)
@pytest.mark.parametrize("effect", simulation.EFFECTS)
def test_an_interval_holds_what_it_promises(effect, pairs, noise):
    assert simulation.rates(effect, pairs, noise)["outside"] <= FALSE_MAX


@pytest.mark.parametrize(
    ("effect", "pairs", "missed"),
    [(1.3, 5, 0.25), (1.3, 7, 0.10), (2.0, 3, 0.15), (2.0, 5, 0.01), (2.0, 7, 0.01)],
)
def test_an_effect_is_found(effect, pairs, missed):
    assert simulation.rates(effect, pairs, "even")["missed"] <= missed


@pytest.mark.parametrize("noise", simulation.NOISE)
@pytest.mark.parametrize("pairs", simulation.PAIRS)
@pytest.mark.parametrize("effect", simulation.EFFECTS)
@pytest.mark.parametrize("claim", simulation.CLAIMS.values(), ids=simulation.CLAIMS)
def test_answers_to_a_claim_are_rarely_false(claim, effect, pairs, noise):
    assert simulation.claim_rates(claim, effect, pairs, noise)["false"] <= FALSE_MAX


@pytest.mark.parametrize("pairs", simulation.PAIRS)
def test_nothing_reproduces_no_claim_of_an_effect(pairs):
    for name in ("faster", "1.3 times", "2 times"):
        assert simulation.claim_rates(simulation.CLAIMS[name], 1.0, pairs, "even")[judge.REPRODUCES] <= 0.04


def test_a_larger_effect_is_no_contradiction():
    found = simulation.claim_rates(simulation.CLAIMS["1.3 times"], 2.0, 7, "even")
    assert found[judge.CONTRADICTS] == 0 and found[judge.STRONGER] >= 0.80


def test_the_document_has_these_tables():
    assert "\n".join(simulation.tables()) in (ROOT / "docs" / "laboratory.md").read_text()
