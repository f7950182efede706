# SPDX-License-Identifier: Apache-2.0
"""After a crash `status` and `check FILE` name the bytes that wait, by file, and change nothing."""

from __future__ import annotations

import json
import os
import subprocess

import pytest
from lib.recovery_lab import COUNT, LINE, Lab, lines

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
