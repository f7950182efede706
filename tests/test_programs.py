# SPDX-License-Identifier: Apache-2.0
"""Real programs natively, under the library, and killed: the short ones, shortened.  make soak-programs runs all."""

from __future__ import annotations

import pytest
from programs import catalog
from programs.case import take
from programs.place import Tools

# what `scripts/deps test` installs, and what takes a few seconds at most
NAMES = (
    "sqlite3, delete journal",
    "sqlite3, WAL",
    "sqlite3, WAL, 2 processes",
    "sqlite3, WAL, one of 2 killed",
    "Python, RotatingFileHandler",
    "git, commits and gc",
    "fio --verify, psync",
    "gcc, make -j2",
    "tar",
    "cp -a",
    "rsync",
    "dd, small blocks",
)
CASES = {case.name: case for case in catalog.all_cases()}


@pytest.mark.parametrize("name", NAMES)
def test_program(fastwrite, library, name):
    row = take(CASES[name], Tools(library, fastwrite), quick=True, kills=2)
    if row.skipped:
        pytest.skip(row.skipped)
    wrong = [f"{leg}: {found.text}" for leg, found in row.legs.items() if not found.ok]
    assert not wrong, "\n".join(wrong)
    assert len(row.legs) == 3
