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


def test_a_rule_without_staging_is_no_sample_but_a_line(built, tmp_path):
    program = f"""
        exec 3>'{tmp_path}/a.log'
        for i in {{1..2000}}; do echo $i; done >&3
        '{built.command}' status --prometheus >'{tmp_path}/page'
        echo $$ >'{tmp_path}/pid'
    """
    settings = {"FASTWRITE_PATHS": f"{tmp_path}/**.log", "FASTWRITE_STAGING": "/proc/nowhere"}
    errors = said(built, ["bash", "-c", program], **settings)
    assert "fastwrite: rule env: no staging in /proc/nowhere: " in errors
    page, pid = ((tmp_path / name).read_text(encoding="utf-8") for name in ("page", "pid"))
    assert "fastwrite_arenas" in page and f'pid="{pid.strip()}"' not in page
    for document in ("configs/alerts.yml", "docs/operations.md"):
        text = " ".join((ROOT / document).read_text(encoding="utf-8").replace("#", " ").split())
        assert "has no arena and so no sample" in text and "`rule R: no staging in DIRECTORY`" in text
