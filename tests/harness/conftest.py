# SPDX-License-Identifier: Apache-2.0
"""Fixtures of the laboratory's tests. The harness is imported from the checkout."""

import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent.parent
sys.path.insert(0, str(ROOT))

import pytest  # noqa: E402

from harness.core import build  # noqa: E402
from harness.core.cell import Place  # noqa: E402
from harness.core.executor import RealExecutor  # noqa: E402
from harness.run import catalog  # noqa: E402


@pytest.fixture(scope="session")
def programs(tmp_path_factory):
    """The workload programs, built from the checkout into a scratch directory."""
    return build.programs(RealExecutor(), tmp_path_factory.mktemp("programs"))


@pytest.fixture
def place(programs, tmp_path):
    """Where a leg of a benchmark runs."""
    for name in ("stage", "control", "keep"):
        (tmp_path / name).mkdir()
    return Place(tmp_path / "stage", tmp_path / "control", programs, tmp_path / "keep", {})


@pytest.fixture(scope="session")
def experiments():
    """All experiments of the catalog by id."""
    return {e.id: e for e in catalog.load().experiments}
