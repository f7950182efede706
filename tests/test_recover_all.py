# SPDX-License-Identifier: Apache-2.0
"""`fastwrite recover --all` and `--config`: every place of a configuration; the systemd unit that runs it at boot."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from pathlib import Path

import pytest
from lib.recovery_lab import COUNT, NOBODY, Lab, as_user, lines, root_only
from lib.support import ROOT


class Site:
    """Several rules, a configuration for them, and what dead programs left under it."""

    def __init__(self, lab: Lab) -> None:
        self.lab = lab
        self.config = lab.base / "fastwrite.ini"
        self.targets: list[Path] = []

    def rules(self, text: str) -> None:
        self.config.write_text("[defaults]\nmem = 1M\nblock = 64K\nlag_ms = 60000\n" + text)

    def leave(self, *targets: Path, user: int | None = None) -> None:
        """Kills all at once: a program that starts recovers what an earlier one left."""
        programs = []
        for target in targets:
            target.parent.mkdir(parents=True, exist_ok=True)
            program = subprocess.Popen(
                [self.lab.program, "write", "pause", "0", str(COUNT), target],
                env={
                    **os.environ,
                    "LD_PRELOAD": str(self.lab.library),
                    "FASTWRITE_CONFIG": str(self.config),
                    "FASTWRITE_ADAPT": "off",
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


@pytest.mark.parametrize(
    "where", ["data/sub", "data/sub/wal", "data/sub/", "link", "link/wal", "file", "data/./sub"]
)
def test_bytes_that_wait_above_are_named(site: Site, where: str) -> None:
    """A user names the directory of a database; the rule names another one for staging.  After the answer "nothing
    there" the user would start the database without the library, and staged bytes would be lost."""
    base = site.lab.base
    site.rules(f"[rule data]\npaths = {base}/data/**\n")
    site.leave(base / "data/sub/wal")
    assert len(list((base / "data/.fastwrite").glob("*.arena"))) == 1
    (base / "link").symlink_to(base / "data/sub")
    (base / "file").symlink_to(base / "data/sub/wal")
    for how in ((), ("--dry-run",)):
        report = site.recover(*how, f"{base}/{where}", status=1)
        assert report["arenas"] == 0
        assert (
            f"bytes for it are staged in {base}/data/.fastwrite; to write them: fastwrite recover {base}/data\n"
            in report["stderr"]
        )
    assert site.recover(base / "data")["recovered"] == 1
    site.check()
    assert site.recover(f"{base}/{where}")["arenas"] == 0


@pytest.mark.parametrize("where", ["", "/wal", "/sub", "/sub/log"])
@pytest.mark.parametrize("place", ["first pattern", "staging"])
def test_bytes_that_wait_in_another_place_of_the_rule_are_named(site: Site, place: str, where: str) -> None:
    """PATH lies below the second pattern, or `staging` is elsewhere: only the configuration tells where."""
    base = site.lab.base
    staging = base / "central"
    staging.mkdir(mode=0o700)
    (base / "data").mkdir(exist_ok=True)
    key = f"staging = {staging}\n" if place == "staging" else ""
    site.rules(f"[rule two]\npaths = {base}/data/**:{base}/more/**\n{key}")
    site.leave(base / "more/wal", base / "more/sub/log")
    named = staging if key else base / "data"
    assert len(list((staging if key else named / ".fastwrite").glob("*.arena"))) == 2
    given = f"{base}/more{where}"
    told = site.recover(given, status=1, FASTWRITE_CONFIG=str(site.config))["stderr"]
    assert told == (
        f"fastwrite recover: {given}: bytes for it are staged in {staging if key else named / '.fastwrite'}; "
        f"to write them: fastwrite recover {named}\n"
    )
    (base / "more/other").touch()
    # a file that has no such bytes, and a configuration that has other files
    assert site.recover(base / "more/other", FASTWRITE_CONFIG=str(site.config))["stderr"] == ""
    assert site.recover(given, FASTWRITE_PATHS=f"{base}/else/**")["stderr"] == ""
    assert site.recover(named)["recovered"] == 2
    site.check()
    assert site.recover(given, FASTWRITE_CONFIG=str(site.config))["stderr"] == ""


def test_without_a_configuration_the_places_of_rules_are_not_known(site: Site) -> None:
    def say(**env: str) -> tuple[int, str, str]:
        argv = [site.lab.command, "recover", site.lab.base]
        done = subprocess.run(argv, env={**os.environ, **env}, capture_output=True, text=True, check=False)
        return done.returncode, done.stdout, done.stderr

    assert "what is staged elsewhere is found with --config or --all" in say()[1]
    assert "elsewhere" not in say(FASTWRITE_PATHS=f"{site.lab.base}/**")[1]
    # a wrong one keeps no recovery
    status, said, wrong = say(FASTWRITE_PATHS=f"{site.lab.base}/**", FASTWRITE_SYNC="bad")
    assert status == 0 and "elsewhere" in said and "the places of its rules are not looked at" in wrong


@pytest.mark.parametrize("where", ["data/other", "data/sub/wal2", ".", "other"])
def test_bytes_of_others_above_are_not(site: Site, where: str) -> None:
    base = site.lab.base
    site.rules(f"[rule data]\npaths = {base}/data/**\n")
    site.leave(base / "data/sub/wal")
    for name in ("data/other", "other"):
        (base / name).mkdir()
    (base / "data/sub/wal2").touch()
    report = site.recover(base / where)
    assert (report["arenas"], report["stderr"]) == (0, "")
    assert site.recover(base / "data")["recovered"] == 1
    site.check()


def test_a_name_that_was_given_to_a_link(site: Site) -> None:
    base = site.lab.base
    site.rules(f"[rule data]\npaths = {base}/data/**\n")
    site.leave(base / "data/sub/wal")
    (base / "data/sub").rename(base / "elsewhere")
    (base / "data/sub").symlink_to(base / "elsewhere")
    assert (
        f"bytes for it are staged in {base}/data/.fastwrite"
        in site.recover(base / "data/sub/wal", status=1)["stderr"]
    )


def test_copies_of_staging_below_are_left_alone(site: Site) -> None:
    """The arenas in a backup of a directory name the files of the original."""
    base = site.lab.base
    site.rules(f"[rule data]\npaths = {base}/data/**\n")
    site.leave(base / "data/wal")
    subprocess.run(["cp", "-a", base / "data", base / "backup"], check=True)
    assert site.recover(base / "data")["recovered"] == 1
    (base / "data/wal").write_bytes(b"newer")
    assert site.recover(base)["arenas"] == 0
    # nor by its own name
    report = site.recover(base / "backup", status=1)
    assert (report["recovered"], report["failed"]) == (0, 1)
    assert "a copy" in report["events"][0]["detail"]
    assert (base / "data/wal").read_bytes() == b"newer"


def test_a_misspelt_path_is_told_of(site: Site) -> None:
    base = site.lab.base
    site.rules(f"[rule data]\npaths = {base}/data/**\n")
    site.leave(base / "data/wal")
    assert "no such file" in site.recover(base / "data/typo/x", status=1)["stderr"]
    assert "no such file" in site.recover(base / "typo", status=1)["stderr"]
    assert site.recover(base / "data")["recovered"] == 1


@pytest.mark.parametrize("what", ["directory", "link", "file", "junk"])
def test_staging_of_strangers_above_fails_nobody(site: Site, what: str) -> None:
    """Anybody may make a staging directory there.  That must not stop a recovery that runs before a program."""
    root_only()
    base = site.lab.base
    place = base / ".fastwrite"
    base.chmod(0o1777)
    (base / "mine").mkdir()
    match what:
        case "directory" | "junk":
            place.mkdir(mode=0o700)
            if what == "junk":
                (place / "1-a-1.arena").write_bytes(b"x" * 9000)
            for path in (place, *place.iterdir()):
                os.chown(path, NOBODY, NOBODY)
        case "link":
            place.symlink_to("nowhere")
        case "file":
            place.touch()
    assert site.recover(base / "mine")["arenas"] == 0
    shutil.rmtree(place) if place.is_dir() else place.unlink()


def test_staging_above_that_others_may_write_to_is_a_failure(site: Site) -> None:
    base = site.lab.base
    site.rules(f"[rule data]\npaths = {base}/data/**\n")
    site.leave(base / "data/sub/wal")
    (base / "data/.fastwrite").chmod(0o770)
    assert "permission is missing" in site.recover(base / "data/sub", status=1)["stderr"]
    (base / "data/.fastwrite").chmod(0o700)
    assert site.recover(base / "data")["recovered"] == 1
    site.check()


def test_staging_of_somebody_else_above_is_told_of(site: Site) -> None:
    root_only()
    base = site.lab.base
    site.rules(f"[rule data]\npaths = {base}/data/**\n")
    site.leave(base / "data/sub/wal")
    (base / "data/sub").chmod(0o755)
    done = subprocess.run(
        [site.lab.command, "recover", base / "data/sub"],
        capture_output=True,
        text=True,
        check=False,
        **as_user(NOBODY),
    )
    assert done.returncode == 0
    assert f"{base}/data/.fastwrite: not looked at: it belongs to another user" in done.stderr
    site.recover(base / "data")
    site.check()


@pytest.mark.parametrize("name", ["2024.journal", "x-1.journal", "1-x-1z.journal"])
def test_journals_of_others_are_left_alone(site: Site, name: str) -> None:
    """Short files of another program with the same suffix."""
    base = site.lab.base
    (base / "data").mkdir(exist_ok=True)
    ledger = base / "data" / name
    ledger.write_bytes(b"2024-01-01 opening balance 100.00\n")
    site.recover(base / "data")
    site.recover(ledger)
    # beside what is ours, too, in a directory that `staging` names
    (base / "data").chmod(0o700)
    (base / "data/short.arena").write_bytes(b"x" * 9000)
    site.recover(base / "data", status=1)
    assert ledger.read_bytes() == b"2024-01-01 opening balance 100.00\n"


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


def test_arenas_that_are_older_than_the_key_staging(site: Site) -> None:
    """They are still beside the data: in the rule's directory, or beside a file."""
    base = site.lab.base
    rules = f"[rule logs]\npaths = {base}/logs/**\n"
    site.rules(rules)
    site.leave(base / "logs/deep/a")
    (base / "logs/.fastwrite").rename(base / "logs/deep/.fastwrite")
    site.leave(base / "logs/b")
    (base / "central").mkdir(mode=0o700)
    site.rules(rules + f"staging = {base}/central\n")
    assert site.recover("--config", site.config)["recovered"] == 2
    site.check()


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
    """The unit as `make install` installs it."""
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
    units = sorted(unit.parent.glob("fastwrite-recover*.service"))
    assert len(units) == 2
    done = subprocess.run(
        ["systemd-analyze", "verify", "--man=no", *map(str, units)],
        capture_output=True,
        text=True,
        check=False,
    )
    said = [line for line in done.stderr.splitlines() if "fastwrite-recover" in line]
    assert done.returncode == 0 and said == [], done.stderr


def test_unit_of_the_shutdown_does_the_same(unit: Path) -> None:
    """The same command with the same rights."""

    def service(path: Path) -> set[str]:
        text = path.read_text().split("[Service]")[1].split("[Install]")[0]
        lines = (line.replace("ExecStop=", "ExecStart=") for line in text.splitlines())
        return {line for line in lines if line and not line.startswith(("#", "Timeout"))}

    assert service(unit) == service(unit.with_name("fastwrite-recover-shutdown.service"))


def test_unit_recovers(unit: Path, site: Site) -> None:
    """The unit's command with the unit's capabilities, for another user's file."""
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
