# SPDX-License-Identifier: Apache-2.0
"""What the documents quote is what the library says."""

import os
import shutil
import subprocess

import pytest

from harness import ROOT
from harness.core import shim


@pytest.fixture(scope="module")
def built():
    found = shim.find()
    if isinstance(found, str):
        pytest.skip(found)
    return found


def said(built, argv, **settings):
    env = {name: value for name, value in os.environ.items() if not name.startswith("FASTWRITE_")}
    env |= {"LD_PRELOAD": str(built.library), **settings}
    return subprocess.run(argv, env=env, capture_output=True, text=True, check=True).stderr


def test_a_wrong_setting_is_quoted_as_it_is_told(built):
    (line,) = said(built, [shutil.which("true")], FASTWRITE_SYNC="bad").splitlines()
    assert f"```\n{line}\n```" in (ROOT / "docs" / "configuration.md").read_text(encoding="utf-8")
