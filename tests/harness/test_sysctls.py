# SPDX-License-Identifier: Apache-2.0
"""The page cache's limits: only what is named, and set back, also after a kill -9."""

import json
import os

import pytest

from harness.core import sysctls
from harness.core.model import LabError
from harness.core.workdir import MARKER, WorkDir

NOW = {
    "dirty_ratio": "20", "dirty_background_ratio": "0", "dirty_bytes": "0",
    "dirty_background_bytes": "4096000", "dirty_writeback_centisecs": "500", "dirty_expire_centisecs": "3000",
}  # fmt: skip


@pytest.fixture
def directory(tmp_path, monkeypatch):
    """Files that stand for /proc/sys/vm."""
    made = tmp_path / "vm"
    made.mkdir()
    for name, value in NOW.items():
        (made / name).write_text(value + "\n")
    for function in (sysctls.read, sysctls.changes, sysctls.apply, sysctls.restore):
        monkeypatch.setattr(function, "__defaults__", (made,))
    return made


def values(directory):
    return {name: (directory / name).read_text().strip() for name in NOW}


def test_the_whole_set_of_the_article_is_understood():
    asked = ["vm.dirty_ratio=80", "dirty_background_ratio=60", "vm.dirty_expire_centisecs=12000"]
    assert sysctls.parse(asked) == {
        "dirty_ratio": "80", "dirty_background_ratio": "60", "dirty_expire_centisecs": "12000",
    }  # fmt: skip


@pytest.mark.parametrize(
    "text", ["vm.swappiness=0", "dirty_ratio", "dirty_ratio=-1", "dirty_ratio=8x", "../x=1"]
)
def test_nothing_else_can_be_changed(text):
    with pytest.raises(LabError, match="--sysctl"):
        sysctls.parse([text])


def test_a_run_sets_them_back(directory, tmp_path):
    with WorkDir(tmp_path / "work") as work:
        work.set_sysctls({"dirty_ratio": "80", "dirty_expire_centisecs": "12000"})
        assert values(directory) == {**NOW, "dirty_ratio": "80", "dirty_expire_centisecs": "12000"}
    assert values(directory) == NOW


def test_a_limit_that_was_given_in_bytes_comes_back_in_bytes(directory):
    (change,) = sysctls.changes({"dirty_background_ratio": "60"})
    assert (change["back"], change["was"]) == ("dirty_background_bytes", "4096000")
    sysctls.apply([change])
    assert sysctls.restore([change]) == ["vm.dirty_background_bytes"]


def test_what_a_killed_run_left_is_set_back_at_the_next_start(directory, tmp_path):
    work = WorkDir(tmp_path / "work")
    work.claim()
    work.set_sysctls({"dirty_ratio": "80"})
    marker = work.path / MARKER
    state = json.loads(marker.read_text())
    marker.write_text(json.dumps({**state, "pid": 2**22 + 1}))  # as if its process were gone
    with WorkDir(tmp_path / "work"):
        assert values(directory) == NOW


def test_what_somebody_else_has_changed_since_stays(directory, tmp_path):
    with WorkDir(tmp_path / "work") as work:
        work.set_sysctls({"dirty_ratio": "80"})
        (directory / "dirty_ratio").write_text("33\n")
    assert values(directory)["dirty_ratio"] == "33"


@pytest.mark.skipif(os.geteuid() == 0, reason="root may change them")
def test_without_root_it_is_refused():
    with pytest.raises(LabError, match="--sysctl"):
        sysctls.apply([{"name": "dirty_ratio", "set": "20"}])
