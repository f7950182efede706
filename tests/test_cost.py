# SPDX-License-Identifier: Apache-2.0
"""What a program pays that matches nothing: counted here, timed by `make bench` (tests/tools/cost.py)."""

from __future__ import annotations

import shutil

import pytest
from lib.support import disk_dir
from tools import cost


@pytest.fixture(scope="module")
def costs(library):
    with disk_dir() as place:
        yield cost.Costs(library.resolve(), place)


@pytest.mark.parametrize("call", cost.CALLS)
def test_instructions(costs, call):
    """An unmatched `write` costs at most 30 instructions more."""
    if not shutil.which("valgrind"):
        pytest.skip("valgrind is not installed")
    measured = costs.instructions(call, 200)
    print(cost.table([measured]))
    assert measured.native > 10, "the call was not counted"
    assert measured.more > 0, "the library was not there"
    assert measured.kept, cost.table([measured])


def test_no_thread(costs):
    measured = costs.threads()
    assert measured.native == 1
    assert measured.kept, cost.table([measured])


def test_no_mapping(costs):
    measured = costs.mappings()
    assert measured.native > 5
    assert measured.kept, cost.table([measured])
