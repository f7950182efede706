# SPDX-License-Identifier: Apache-2.0
"""`fastwrite recover --all`, `--config`: the places that a configuration leads to; the unit that runs it at boot."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from pathlib import Path

import pytest
from recovery_lab import COUNT, NOBODY, Lab, as_user, lines, root_only
from support import ROOT


class Site:
    """Several rules, a configuration for them, and what dead programs left under it."""

    def __init__(self, lab: Lab) -> None:
        self.lab = lab
        self.config = lab.base / "fastwrite.ini"
        self.targets: list[Path] = []

    def rules(self, text: str) -> None:
        self.config.write_text("[defaults]\nmem = 1M\nblock = 64K\nlag_ms = 60000\n" + text)

    def leave(self, *targets: Path, user: int | None = None) -> None:
        """They die together: each would recover what the others left when it starts."""
        programs = []
        for target in targets:
            target.parent.mkdir(parents=True, exist_ok=True)
            program = subprocess.Popen(
                [self.lab.program, "write", "pause", "0", str(COUNT), target],
                env={
                    **os.environ,
                    "LD_PRELOAD": str(self.lab.library),
                    "FASTWRITE_CONFIG": str(self.config),
                },
                stdout=subprocess.PIPE,
                **as_user(user),
            )
            assert program.stdout.readline() == b"ready\n"
            programs.append(program)
        for program in programs:
            program.kill()
            program.wait()
            program.stdout.close()
        for target in targets:
            assert target.read_bytes() == lines(0, 1), "nothing was staged"
        self.targets += targets

    def recover(self, *arguments: object, status: int = 0, **env: str) -> dict:
        done = subprocess.run(
            [self.lab.command, "recover", "--json", *(str(a) for a in arguments)],
            env={**os.environ, **env},
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        assert done.returncode == status, done.stdout + done.stderr
        return {**json.loads(done.stdout), "stderr": done.stderr}

    def check(self) -> None:
        for target in self.targets:
            assert target.read_bytes() == lines(0, COUNT), target
        assert list(self.lab.base.rglob("*.arena")) == []


@pytest.fixture
def site(lab: Lab) -> Site:
    return Site(lab)


def test_every_place_of_every_rule(site: Site) -> None:
    base = site.lab.base
    (base / "central").mkdir(mode=0o700)
    site.rules(
        f"[rule logs]\npaths = {base}/logs/**.log\n"
        f"[rule data]\npaths = {base}/data/*.db:{base}/more/*/wal\n"
        f"[rule central]\npaths = {base}/other/**\nstaging = {base}/central\n"
        f"[rule one]\npaths = {base}/single/file\n"
    )
    names = ("logs/a.log", "logs/deep/er/b.log", "data/x.db", "more/sub/wal", "other/f", "single/file")
    site.leave(*(base / name for name in names))
    assert len(list((base / "central").glob("*.arena"))) == 1
    # as programs stage that may not write to the rule's directory
    (base / "logs/.fastwrite").rename(base / "logs/deep/er/.fastwrite")
    report = site.recover("--config", site.config)
    assert (report["recovered"], report["failed"]) == (len(site.targets), 0)
    site.check()
    assert site.recover("--config", site.config)["arenas"] == 0


@pytest.mark.parametrize("how", ["environment", "paths"])
def test_configuration_of_the_environment(site: Site, how: str) -> None:
    base = site.lab.base
    site.rules(f"[rule logs]\npaths = {base}/logs/**\n")
    site.leave(base / "logs" / "a")
    if how == "environment":
        site.recover("--all", FASTWRITE_CONFIG=str(site.config))
    else:
        site.recover("--paths", f"{base}/logs/**")
    site.check()


def test_only_as_deep_as_the_patterns_reach(site: Site) -> None:
    base = site.lab.base
    site.rules(f"[rule logs]\npaths = {base}/logs/**\n")
    site.leave(base / "logs" / "deep" / "a")
    (base / "logs/.fastwrite").rename(base / "logs/deep/.fastwrite")
    assert site.recover("--paths", f"{base}/logs/*")["arenas"] == 0
    assert site.recover("--paths", f"{base}/logs/*/*")["recovered"] == 1
    site.check()


def test_links_are_not_followed(site: Site) -> None:
    base = site.lab.base
    site.rules(f"[rule logs]\npaths = {base}/logs/**\n")
    site.leave(base / "logs" / "a")
    (base / "searched").mkdir()
    (base / "searched" / "link").symlink_to(base / "logs")
    assert site.recover("--paths", f"{base}/searched/**")["arenas"] == 0
    (base / "searched" / ".fastwrite").symlink_to(base / "logs" / ".fastwrite")
    report = site.recover("--paths", f"{base}/searched/**", status=1)
    assert report["arenas"] == 0 and "not a directory" in report["stderr"]


def test_places_of_several_users(site: Site) -> None:
    root_only()
    base = site.lab.base
    (base / "logs" / "theirs").mkdir(parents=True)
    os.chown(base / "logs" / "theirs", NOBODY, NOBODY)
    site.rules(f"[rule logs]\npaths = {base}/logs/**\n")
    site.leave(base / "logs" / "theirs" / "a", user=NOBODY)
    (base / "logs/theirs/.fastwrite").rename(base / "kept")
    site.leave(base / "logs" / "ours")
    (base / "kept").rename(base / "logs/theirs/.fastwrite")
    assert site.recover("--config", site.config)["recovered"] == 2
    site.check()


def test_what_cannot_be_looked_at_is_told(site: Site) -> None:
    root_only()
    base = site.lab.base
    site.rules(f"[rule logs]\npaths = {base}/logs/**\n")
    (base / "logs" / "closed").mkdir(parents=True)
    (base / "logs" / "closed").chmod(0)
    os.chown(base / "logs", NOBODY, NOBODY)
    site.leave(base / "logs" / "a", user=NOBODY)
    done = subprocess.run(
        [site.lab.command, "recover", "--config", site.config],
        capture_output=True,
        text=True,
        check=False,
        **as_user(NOBODY),
    )
    assert done.returncode == 1
    assert f"{base}/logs/closed" in done.stderr
    site.check()


def test_one_failure_does_not_keep_the_others(site: Site) -> None:
    base = site.lab.base
    site.rules(f"[rule a]\npaths = {base}/a/**\n[rule b]\npaths = {base}/b/**\n")
    site.leave(base / "a" / "f", base / "b" / "f")
    (base / "a/.fastwrite").chmod(0o777)
    report = site.recover("--config", site.config, status=1)
    assert report["recovered"] == 1 and "go-w" in report["stderr"]
    (base / "a/.fastwrite").chmod(0o700)
    site.recover("--config", site.config)
    site.check()


def test_rules_whose_directories_are_not_there(site: Site) -> None:
    site.rules(f"[rule a]\npaths = {site.lab.base}/not/there/**\n")
    assert site.recover("--config", site.config)["arenas"] == 0


def test_wrong_usage(site: Site) -> None:
    def status(*arguments: object) -> tuple[int, str]:
        done = subprocess.run(
            [site.lab.command, "recover", *arguments], capture_output=True, text=True, check=False
        )
        return done.returncode, done.stderr

    assert status("--all")[0] == 2 and "no rule" in status("--all")[1]
    assert status("--config", site.config)[0] == 2
    site.rules(f"[rule a]\npaths = {site.lab.base}/a/**\n")
    assert status("--config", site.config, site.lab.base)[0] == 2
    assert status("--all", site.lab.base)[0] == 2


# ---- the unit ----


@pytest.fixture(scope="module")
def unit(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """As `make install` puts it into a place."""
    place = tmp_path_factory.mktemp("install")
    done = subprocess.run(
        ["make", "-s", "-C", str(ROOT), "install", f"PREFIX={place}"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return place / "lib" / "systemd" / "system" / "fastwrite-recover.service"


def test_unit_is_sound(unit: Path) -> None:
    if not shutil.which("systemd-analyze"):
        pytest.skip("systemd-analyze is not there")
    done = subprocess.run(
        ["systemd-analyze", "verify", "--man=no", str(unit)], capture_output=True, text=True, check=False
    )
    said = [line for line in done.stderr.splitlines() if unit.name in line]
    assert done.returncode == 0 and said == [], done.stderr


def test_unit_recovers(unit: Path, site: Site) -> None:
    """Its command, with the capabilities that it leaves, for another user's file."""
    root_only()
    if not shutil.which("setpriv"):
        pytest.skip("setpriv is not there")
    text = unit.read_text().splitlines()
    command = next(line for line in text if line.startswith("ExecStart=")).split("=", 1)[1].split()
    capabilities = next(line for line in text if line.startswith("CapabilityBoundingSet=")).split("=", 1)[1]
    keep = ",".join("+" + name.lower().removeprefix("cap_") for name in capabilities.split())
    base = site.lab.base
    site.rules(f"[rule logs]\npaths = {base}/logs/**\n")
    (base / "logs").mkdir()
    os.chown(base / "logs", NOBODY, NOBODY)
    (base / "logs").chmod(0o700)
    site.leave(base / "logs" / "a", user=NOBODY)
    command = [part.replace("/etc/fastwrite.ini", str(site.config)) for part in command]
    done = subprocess.run(
        ["setpriv", f"--bounding-set=-all,{keep}", "--no-new-privs", *command],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    site.check()
