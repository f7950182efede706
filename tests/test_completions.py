# SPDX-License-Identifier: Apache-2.0
"""The shells' completions name what the command takes, and nothing else."""

from __future__ import annotations

import re
import shutil
import subprocess

import pytest
from lib.command_line import COMMON, MANUAL, VERBS, key_table, options_of
from lib.support import ROOT

COMPLETIONS = ROOT / "configs" / "completions"
# Calls the function of the file as bash does.  It has already cut the line into words.
BASH = """
source "$1"
compopt() { :; }
COMP_LINE=$2 COMP_POINT=${#2} COMP_WORDS=("${@:3}") COMP_CWORD=$(($# - 3))
_fastwrite
printf '%s\\n' "${COMPREPLY[@]}"
"""


def complete(line: str) -> list[str]:
    words = re.findall(r"[=:]+|[^\s=:]+", line) + ([""] if line.endswith(" ") else [])
    done = subprocess.run(
        ["bash", "-c", BASH, "bash", COMPLETIONS / "fastwrite.bash", line, *words],
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )
    assert done.stderr == ""
    return done.stdout.split()


@pytest.fixture(scope="module")
def options(fastwrite) -> dict[str, set[str]]:
    """By verb, as its help says."""
    found = {}
    for verb in VERBS:
        text = subprocess.run([fastwrite, verb, "--help"], capture_output=True, text=True, check=True).stdout
        found[verb] = options_of(text.split("\n\n", 1)[1])
        assert found[verb] > COMMON
    return found


def keys() -> dict[str, list[str]]:
    """Those of --set, with the words that are allowed, where there are words."""
    others = ("paths", "inherit")
    allowed = {key: values.split(", ") for key, (values, _) in key_table().items() if key not in others}
    return {key: words if all(map(str.isalnum, words)) else [] for key, words in allowed.items()}


def test_bash_knows_the_verbs():
    assert complete("fastwrite ") == [*VERBS, "help", "version"]
    assert complete("fastwrite re") == ["recover"]
    assert set(complete("fastwrite --")) == COMMON


@pytest.mark.parametrize("verb", VERBS)
def test_bash_knows_the_options(options, verb):
    assert {word.rstrip("=") for word in complete(f"fastwrite {verb} --")} == options[verb]


def test_the_command_takes_these_keys(fastwrite):
    command = [fastwrite, "config", "-p", "/x/**", "-o", "x=y"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    assert re.search(r"; allowed: (.*)$", done.stderr, re.M)[1].split(", ") == list(keys())


@pytest.mark.parametrize("before", ["--set=", "-o "])
def test_bash_knows_the_keys_and_their_words(before):
    assert complete(f"fastwrite run {before}") == [f"{key}=" for key in keys()]
    for key, words in keys().items():
        if key == "staging":  # a directory
            continue
        assert sorted(complete(f"fastwrite run {before}{key}=")) == sorted(words), key
    assert complete(f"fastwrite run {before}sync=o") == ["off", "ordered"]


def test_bash_looks_for_programs_and_files(tmp_path):
    (tmp_path / "some-file").touch()
    assert complete(f"fastwrite recover {tmp_path}/so") == [f"{tmp_path}/some-file"]
    assert complete(f"fastwrite config --config={tmp_path}/so") == [f"{tmp_path}/some-file"]
    assert "bash" in complete("fastwrite run -c x --set=sync=off ba")
    assert complete(f"fastwrite run -- bash {tmp_path}/so") == [f"{tmp_path}/some-file"]
    assert complete("fastwrite run bash --ve") == []


@pytest.mark.parametrize("name", ["_fastwrite", "fastwrite.fish"])
def test_the_others_name_the_same(options, name):
    text = (COMPLETIONS / name).read_text()
    found = options_of(text)
    if name == "fastwrite.fish":
        found = {f"--{option}" for option in re.findall(r"^complete .*?-l ([a-z-]+)", text, re.M)}
    assert found == set.union(*options.values())
    for key, words in keys().items():
        assert re.search(rf"\b{key}[:=]", text), key
        named = re.search(rf"\b{key}(?:=\{{|:[\w ]*:\()([\w ,]+)[)}}]", text)
        assert sorted(re.split("[ ,]", named[1]) if named else []) == sorted(words), key
    assert "inherit" not in text
    for verb in VERBS:
        assert re.search(rf"\b{verb}\b", text)


SHELLS = {"bash": "fastwrite.bash", "zsh": "_fastwrite", "fish": "fastwrite.fish"}


@pytest.mark.parametrize("shell", SHELLS)
def test_a_shell_reads_its_own(shell):
    if shutil.which(shell) is None:
        pytest.skip(f"{shell} is not installed")
    done = subprocess.run(
        [shell, "-n", COMPLETIONS / SHELLS[shell]], capture_output=True, text=True, timeout=60
    )
    assert (done.returncode, done.stderr) == (0, "")


def test_fish_completes():
    if shutil.which("fish") is None:
        pytest.skip("fish is not installed")
    script = f"source {COMPLETIONS}/fastwrite.fish; complete -C $argv[1]"

    def found(line: str) -> list[str]:
        done = subprocess.run(["fish", "-N", "-c", script, line], capture_output=True, text=True, timeout=60)
        return [text.split("\t")[0] for text in done.stdout.splitlines()]

    assert set(found("fastwrite ")) == {*VERBS, "help", "version"}
    assert found("fastwrite recover --dr") == ["--dry-run"]
    assert "sync=journal" in found("fastwrite config --set sync=")
    assert "--dry-run" not in found("fastwrite run --")


def test_they_and_the_manual_are_installed_and_go(tmp_path):
    for target in ("install", "uninstall"):
        subprocess.run(
            ["make", "-s", "-C", ROOT, target, "PREFIX=/usr", f"DESTDIR={tmp_path}"], check=True, timeout=600
        )
        share = tmp_path / "usr" / "share"
        for place in (
            "bash-completion/completions/fastwrite",
            "zsh/site-functions/_fastwrite",
            "fish/vendor_completions.d/fastwrite.fish",
            *(f"man/man{page.name[-1]}/{page.name}" for page in MANUAL),
        ):
            assert (share / place).is_file() == (target == "install")
