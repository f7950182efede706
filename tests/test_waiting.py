# SPDX-License-Identifier: Apache-2.0
"""After a crash `status` and `check FILE` name the bytes that wait, by file, and change nothing."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from lib.recovery_lab import COUNT, LINE, REBOOTED, Lab, lines, root_only

STAGED = (COUNT - 1) * LINE


def ask(lab: Lab, *words: object, **settings: object) -> subprocess.CompletedProcess:
    env = {**os.environ, "FASTWRITE_PATHS": f"{lab.data}/**", **settings}
    return subprocess.run(
        [lab.command, *map(str, words)], env=env, capture_output=True, text=True, timeout=60, check=False
    )


@pytest.mark.parametrize("words", [["status"], ["check", "FILE"]], ids=["status", "check"])
@pytest.mark.parametrize("aside", [False, True], ids=["dead", "aside"])
def test_waiting_bytes_are_named(lab: Lab, words: list[str], aside: bool) -> None:
    lab.leave()
    if aside:
        with lab.target.open("r+b") as file:
            file.write(b"N" * (3 * LINE))
        lab.recover(status=1)
    before = lab.target.read_bytes()
    words = [str(lab.target) if word == "FILE" else word for word in words]
    done = ask(lab, *words)
    assert done.returncode == 0, done.stderr
    (line,) = [one for one in done.stdout.splitlines() if one.startswith("waiting")]
    assert f"{lab.target}  {STAGED} bytes" in line
    assert "fastwrite recover" in line and ("--force" in line) == aside
    said = json.loads(ask(lab, words[0], "--json", *words[1:]).stdout)
    (told,) = (said if words[0] == "status" else said[0])["waiting"]
    assert (told["path"], told["bytes"]) == (str(lab.target), STAGED)
    assert lab.target.read_bytes() == before


@pytest.mark.parametrize("place", ["rule", "beside", "same"])
def test_bytes_that_are_older_than_the_key_staging(lab: Lab, place: str) -> None:
    """They are still beside the data; each place is named once."""
    lab.target = lab.data / "sub" / "log"
    lab.target.parent.mkdir()
    lab.leave()
    staging = lab.staging if place == "same" else lab.base / "central"
    if place == "beside":
        lab.staging.rename(lab.target.parent / ".fastwrite")
    for words in (["status"], ["check", lab.target]):
        said = ask(lab, *words, FASTWRITE_STAGING=str(staging)).stdout
        assert said.count(f"{lab.target}  {STAGED} bytes of a process that died") == 1
    page = ask(lab, "status", "--prometheus", FASTWRITE_STAGING=str(staging)).stdout
    assert samples(page, "waiting_bytes") == [STAGED]


def test_nothing_waits(lab: Lab) -> None:
    lab.leave(end="exit")
    assert lab.target.read_bytes() == lines(0, COUNT)
    for words in (["status"], ["check", lab.target]):
        assert "waiting" not in ask(lab, *words).stdout


def test_another_file_of_the_rule_is_not_meant(lab: Lab) -> None:
    lab.leave()
    assert "waiting" not in ask(lab, "check", lab.data / "other").stdout


def test_without_a_configuration_nobody_knows_where(lab: Lab) -> None:
    lab.leave()
    assert "waiting" not in ask(lab, "status", FASTWRITE_PATHS="").stdout


# ---- what cannot be read ----


def samples(page: str, name: str) -> list[int]:
    return [int(n) for n in re.findall(rf"^fastwrite_{name}(?:{{.*}})? (\d+)$", page, re.M)]


def damage(arena: Path) -> None:
    with arena.open("r+b") as file:
        file.write(b"X" * 16)


@pytest.mark.parametrize("spoil", [damage, lambda arena: arena.chmod(0o666)], ids=["damaged", "rights"])
def test_an_arena_that_cannot_be_read_is_named(lab: Lab, spoil) -> None:
    """Bytes may wait in it: it counts as unread."""
    lab.leave()
    arena = lab.arena()
    spoil(arena)
    for words in (["status"], ["status", "--json"], ["status", "--prometheus"], ["check", lab.target]):
        done = ask(lab, *words)
        assert done.returncode == 0
        (said,) = done.stderr.splitlines()
        assert str(arena) in said and "left alone" in said
        assert f"{STAGED} bytes" not in done.stdout
    page = ask(lab, "status", "--prometheus").stdout
    assert samples(page, "waiting_unread_places") == [1]
    assert samples(page, "waiting_bytes") == []


@pytest.mark.parametrize("boot", ["this", "another"])
@pytest.mark.parametrize("sync", ["fdatasync", "journal", "ordered"])
def test_bytes_on_a_read_only_file_system_are_seen(lab: Lab, sync: str, boot: str) -> None:
    """As after an error of its device."""
    root_only()
    lab.leave(sync=sync, writers="exclusive")
    staged = COUNT * LINE - lab.target.stat().st_size
    before = {path: path.read_bytes() for path in lab.data.rglob("*") if path.is_file()}
    script = 'mount --bind "$1" "$1" && mount -o remount,bind,ro "$1" || exit 99; shift; exec "$@"'
    read_only = ["unshare", "--mount", "sh", "-c", script, "sh", lab.data]
    if boot == "another":
        read_only += [sys.executable, REBOOTED, lab.base / "boot_id"]
    env = {**os.environ, "FASTWRITE_PATHS": f"{lab.data}/**"}

    def look(*words: object) -> subprocess.CompletedProcess:
        argv = [str(word) for word in (*read_only, lab.command, *words)]
        done = subprocess.run(argv, env=env, capture_output=True, text=True, timeout=60, check=False)
        if done.returncode == 99:
            pytest.skip(f"no mount: {done.stderr}")
        return done

    done = look("status", "--prometheus")
    assert done.returncode == 0, done.stderr
    if boot == "this":
        assert samples(done.stdout, "waiting_bytes") == [staged]
        assert samples(done.stdout, "waiting_unread_places") == [0]
        for words in (("status",), ("check", lab.target)):
            assert f"{lab.target}  {staged} bytes" in look(*words).stdout
    else:
        assert sum(samples(done.stdout, "waiting_bytes")) > 0
    # it cannot be recovered now, and the dry run says so
    done = look("recover", "--dry-run", lab.data)
    assert done.returncode == 1 and "Read-only file system" in done.stderr
    assert {path: path.read_bytes() for path in lab.data.rglob("*") if path.is_file()} == before
