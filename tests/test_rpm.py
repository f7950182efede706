# SPDX-License-Identifier: Apache-2.0
"""The RPM packages: what they contain and need, and that two builds are the same."""

from __future__ import annotations

import fcntl
import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest
from lib.support import ROOT

SPEC = ROOT / "packaging/rpm/libfastwrite.spec"
NAMES = ("fastwrite", "libfastwrite")
COMMAND = {
    "/usr/bin/fastwrite",
    "/usr/lib/systemd/system/fastwrite-metrics.service",
    "/usr/lib/systemd/system/fastwrite-metrics.timer",
    "/usr/lib/systemd/system/fastwrite-recover-shutdown.service",
    "/usr/lib/systemd/system/fastwrite-recover.service",
    "/usr/share/bash-completion/completions/fastwrite",
    "/usr/share/doc/fastwrite/fastwrite.ini.example",
    "/usr/share/fish/vendor_completions.d/fastwrite.fish",
    "/usr/share/man/man1/fastwrite.1",
    "/usr/share/man/man5/fastwrite.ini.5",
    "/usr/share/zsh/site-functions/_fastwrite",
}
LIBRARY = {"/usr/lib64/libfastwrite.so", "/usr/share/man/man7/libfastwrite.7"}


def run(*command: str | Path) -> str:
    done = subprocess.run(
        [str(part) for part in command], capture_output=True, text=True, check=False, timeout=300
    )
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-4000:]
    return done.stdout


def version() -> str:
    return re.search(r"^VERSION := (.+)$", (ROOT / "Makefile").read_text(), re.M)[1]


def built() -> dict[str, Path]:
    run("make", "-s", "-C", ROOT, "rpm")
    return {name: next((ROOT / "build").glob(f"{name}-{version()}-*.rpm")) for name in NAMES}


@pytest.fixture(scope="module")
def packages(shared_dir: Path) -> dict[str, Path]:
    if not (ROOT / ".git").exists():
        pytest.skip("this is no checkout")
    # rpmlint, too: `make rpm` would install it
    for name in ("rpmbuild", "rpmlint"):
        if not shutil.which(name):
            pytest.skip(f"{name} is missing; scripts/deps rpm installs it")
    kept = shared_dir / "rpm"
    # Tests of this file may run at the same time: the first one builds.
    with open(shared_dir / "rpm.lock", "a+") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if lock.seek(0, os.SEEK_END) == 0:
            kept.mkdir()
            for name, package in built().items():
                shutil.copy(package, kept / name)
            lock.write("built\n")
    return {name: kept / name for name in NAMES}


def test_changelog_has_the_version_of_the_makefile():
    assert re.search(r"^%changelog\n\* .* - (\S+)-1$", SPEC.read_text(), re.M)[1] == version()


def test_contents(packages):
    found = {name: set(run("rpm", "-qpl", package).split()) for name, package in packages.items()}
    for name, required in (("fastwrite", COMMAND), ("libfastwrite", LIBRARY)):
        paths = {re.sub(r"(?<=\.[157])\.(gz|zst)$", "", path) for path in found[name]}
        assert paths >= required
        others = re.compile(r"/usr/(share/(doc|licenses)/|lib/\.build-id)")
        assert not [path for path in paths - required if not others.match(path)]


def test_needs_the_same_version_and_nothing_private(packages):
    needs = {name: run("rpm", "-qp", "--requires", package) for name, package in packages.items()}
    assert re.search(rf"^libfastwrite.* = {re.escape(version())}-1", needs["fastwrite"], re.M)
    assert "GLIBC_PRIVATE" not in "".join(needs.values())


def test_unit_is_neither_enabled_nor_started(packages):
    scripts = "".join(run("rpm", "-qp", "--scripts", package) for package in packages.values())
    assert not re.search(r"systemctl\s+(enable|start)|rm ", scripts)


def test_installed_into_a_root(packages, tmp_path):
    run("rpm", "--root", tmp_path, "--nodeps", "--noscripts", "--nosignature", "-i", *packages.values())
    assert version() in run(tmp_path / "usr/bin/fastwrite", "--version")
    assert (tmp_path / "usr/lib64/libfastwrite.so").stat().st_mode & 0o777 == 0o755
    run("rpm", "--root", tmp_path, "--nodeps", "--noscripts", "-e", *NAMES)
    assert not [path for path in tmp_path.rglob("*fastwrite*") if "/usr/lib/sysimage/" not in str(path)]


def test_the_specification_has_no_errors(packages):
    assert " 0 errors" in run("rpmlint", SPEC)


def test_two_builds_are_the_same(packages):
    assert {name: path.read_bytes() for name, path in built().items()} == {
        name: path.read_bytes() for name, path in packages.items()
    }
