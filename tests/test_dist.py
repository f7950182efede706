# SPDX-License-Identifier: Apache-2.0
"""The source as it is handed on."""

from __future__ import annotations

import subprocess
import tarfile

import pytest
from lib.support import ROOT


def git(*arguments: str) -> str:
    return subprocess.run(["git", "-C", ROOT, *arguments], capture_output=True, text=True, check=True).stdout


def make_dist() -> bytes:
    done = subprocess.run(
        ["make", "-s", "-C", ROOT, "dist"], capture_output=True, text=True, check=True, timeout=120
    )
    return (ROOT / done.stdout.strip()).read_bytes()


def test_source_is_the_commit_and_the_same_each_time(tmp_path):
    if not (ROOT / ".git").exists():
        pytest.skip("this is no checkout")
    found = make_dist()
    assert found == make_dist()
    (tmp_path / "dist.tar.gz").write_bytes(found)
    with tarfile.open(tmp_path / "dist.tar.gz") as archive:
        script = archive.extractfile(
            next(n for n in archive.getnames() if n.endswith("/scripts/commit"))
        ).read()
        names = {name.split("/", 1)[1] for name in archive.getnames() if not archive.getmember(name).isdir()}
    (tmp_path / "scripts").mkdir()
    (tmp_path / "scripts" / "commit").write_bytes(script)
    known = subprocess.run(
        ["sh", tmp_path / "scripts" / "commit"], capture_output=True, text=True, check=True
    ).stdout
    assert known == git("rev-parse", "HEAD")[:12] + "\n"
    assert names == set(git("ls-tree", "-r", "--name-only", "HEAD").split("\n")) - {""}
