# SPDX-License-Identifier: Apache-2.0
"""The documents name what is there: files, headings, functions, keys and their defaults."""

from __future__ import annotations

import json
import os
import re
import subprocess
from pathlib import Path

import pytest
from lib.command_line import CONFIGURATION, MANUAL, key_table
from lib.support import ROOT

DOCUMENTS = sorted(
    path
    for path in ROOT.rglob("*.md")
    if not {part for part in path.relative_to(ROOT).parts[:-1] if part.startswith((".", "build", "lab-work"))}
    and "results" not in path.relative_to(ROOT).parts[:1]
)
ARCHITECTURE = ROOT / "docs" / "architecture.md"
EXAMPLE = ROOT / "configs" / "fastwrite.ini.example"
NAME = lambda path: str(path.relative_to(ROOT))  # noqa: E731


def without_code(text: str) -> str:
    return re.sub(r"^```.*?^```$", "", text, flags=re.M | re.S)


def anchors(path: Path) -> set[str]:
    """The names that GitHub gives to headings."""
    found: set[str] = set()
    for heading in re.findall(r"^#+ (.+)$", without_code(path.read_text()), re.M):
        plain = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading)
        slug = re.sub(r"[^\w\- ]", "", plain.lower()).replace(" ", "-")
        number = 0
        while (name := f"{slug}-{number}" if number else slug) in found:
            number += 1
        found.add(name)
    return found


@pytest.mark.parametrize("path", DOCUMENTS, ids=NAME)
def test_links_lead_somewhere(path):
    text = without_code(path.read_text())
    targets = re.findall(r"\]\(([^)\s]+)\)|(?:src|srcset|href)=\"([^\"]+)\"", text)
    for target in (first or second for first, second in targets):
        if re.match(r"[a-z]+:", target):
            continue
        file, _, anchor = target.partition("#")
        to = (path.parent / file) if file else path
        assert to.exists(), f"{target}: no such file"
        if anchor and to.suffix == ".md":
            assert anchor in anchors(to), f"{target}: no such heading"


def sources() -> str:
    return "\n".join(
        p.read_text() for p in sorted((ROOT / "shim").rglob("*")) if p.suffix in (".c", ".h", ".S")
    )


@pytest.mark.parametrize("path", DOCUMENTS, ids=NAME)
def test_files_that_are_named_exist(path):
    """A path counts from the root or from shim/; a name alone may stand in any folder of the sources."""
    if path.name == "CHANGELOG.md":
        pytest.skip("tells of files that are gone")
    names = set(
        re.findall(r"`([\w./-]+/[\w.-]+\.\w+|[\w-]+\.(?:c|h|S|def|py))`", without_code(path.read_text()))
    )
    for name in sorted(names):
        if (
            {"X", "NAME"} & set(Path(name).stem.split("_"))
            or name.startswith(("/", ".", "~"))
            or name.isupper()
        ):
            continue
        if "/" in name:
            assert (ROOT / name).exists() or (ROOT / "shim" / name).exists(), f"{name}: no such file"
        else:
            found = [p for folder in ("shim", "tests", "harness") for p in (ROOT / folder).rglob(name)]
            assert found, f"{name}: no such file"


def test_functions_that_are_named_exist():
    code = sources()
    for name in sorted(set(re.findall(r"\b([a-z][a-z0-9_]+)\(\)", ARCHITECTURE.read_text()))):
        assert re.search(rf"\b{name}\(", code), f"{name}(): not in shim/"
    for name in sorted(set(re.findall(r"`([A-Z]+(?:_[A-Z]+)+)`", ARCHITECTURE.read_text()))):
        assert re.search(rf"\b{name}\b", code), f"{name}: not in shim/"


def test_lock_order_is_that_of_the_code():
    lock = (ROOT / "shim" / "base" / "lock.h").read_text()
    order = re.findall(r"LOCK_[A-Z]+", re.search(r"enum lock_rank \{(.*?)\}", lock, re.S)[1])
    assert re.findall(r"^\| `(LOCK_[A-Z]+)`", ARCHITECTURE.read_text(), re.M) == order


def test_layers_are_those_of_the_makefile():
    layers = re.search(r"^LAYERS := (.+)$", (ROOT / "Makefile").read_text(), re.M)[1].split()
    assert re.findall(r"^\| `([a-z]+)/`", ARCHITECTURE.read_text(), re.M) == layers


# ---- every key in every document ----


@pytest.fixture
def cli(fastwrite):
    def run(*arguments: object, **more) -> subprocess.CompletedProcess:
        return subprocess.run(
            [fastwrite, *map(str, arguments)], capture_output=True, text=True, check=False, timeout=60, **more
        )

    return run


def told(cli) -> dict[str, str]:
    """Key and default, as the command says them."""
    rule = json.loads(cli("config", "--json", "-p", "/x/**").stdout)["rules"][0]
    return {key: setting["value"] for key, setting in rule["settings"].items()}


def allowed(cli, key: str) -> str:
    """The values of a key, as the message says them when it is wrong."""
    done = cli("config", "-p", "/x/**", "-o", f"{key}=!")
    return re.search(r": allowed: (.*)$", done.stderr.strip(), re.M)[1]


OPERATIONS = ROOT / "docs" / "operations.md"
README_DEBIAN = ROOT / "packaging" / "debian" / "fastwrite.README.Debian"


def test_configuration_names_every_key(cli):
    table = key_table()
    assert list(table) == ["paths", *told(cli), "inherit"]
    for key, default in told(cli).items():
        assert table[key][1] == (default or "beside the data"), key
        assert table[key][0] == re.sub(
            r" \((a size|milliseconds|such as|for instance).*\)$", "", allowed(cli, key)
        ), key


def test_configuration_has_an_example_for_every_key():
    sections = re.findall(r"^### ([a-z_]+)\n(.*?)(?=^##)", CONFIGURATION.read_text(), re.M | re.S)
    assert [name for name, _ in sections] == list(key_table())
    for name, text in sections:
        assert re.search(rf"^({name} = |FASTWRITE_{name.upper()}=)", text, re.M), name


def test_examples_of_the_configuration_are_right(cli, tmp_path):
    for block in re.findall(r"^```ini\n(.*?)^```$", CONFIGURATION.read_text(), re.M | re.S):
        ini = tmp_path / "one.ini"
        everywhere = "[rule x]\npaths = /x/**\n[defaults]\n"
        # what an example needs that stands in another section of the page
        ini.write_text(everywhere + block + ("mem = 64M\n" if block.startswith("block") else ""))
        done = cli("config", "-c", ini)
        assert done.returncode == 0, done.stderr


def test_variables_of_the_configuration_are_those_of_the_code(cli):
    """Those that are no keys of a file."""
    done = cli("config", env={**os.environ, "FASTWRITE_NONE": "1"})
    known = set(re.search(r"allowed after FASTWRITE_ are (.*)$", done.stderr, re.M)[1].split(", "))
    documented = set(re.findall(r"^### FASTWRITE_([A-Z_]+)$", CONFIGURATION.read_text(), re.M))
    assert documented == known - {key.upper() for key in key_table()} | {"INHERIT", "LIB"}


def test_example_file_names_every_key(cli):
    text = EXAMPLE.read_text()
    assert re.findall(r"^;([a-z_]+) = ", text, re.M) == list(key_table())[1:]
    for key, value in re.findall(r"^;([a-z_]+) = (.*)$", text, re.M):
        if key not in ("staging", "inherit"):
            assert value == told(cli)[key], key


def test_manual_names_every_key(cli):
    manual = "".join(page.read_text() for page in MANUAL)
    keys = manual.split(".SH KEYS", 1)[1].split(".SH ", 1)[0]
    assert re.findall(r"^\.TP\n\.B ([a-z_]+)$", keys, re.M) == [*told(cli), "inherit"]
    text = re.sub(r"\\f[BIR]|\\", "", manual)
    for variable in ("PATHS", "CONFIG", "ON_ERROR", "STATS", "LOG", "INHERIT", "LIB"):
        assert f"FASTWRITE_{variable}" in text


def test_keys_are_allowed_where_the_configuration_says(cli, tmp_path):
    """All but three everywhere."""
    ini = tmp_path / "one.ini"
    for key, (_, default) in key_table().items():
        value = {"paths": "/x/**", "staging": "/x"}.get(key, default.strip("`"))
        for section in ("[rule x]\npaths = /y/**\n", "[defaults]\n"):
            ini.write_text(f"{section}{key} = {value}\n")
            allowed = (key, section[1]) not in (("paths", "d"), ("stdio", "r"), ("inherit", "r"))
            assert (cli("config", "-c", ini).returncode == 0) == allowed, (key, section)
        assert (cli("config", "-o", f"{key}={value}").returncode == 0) == (key not in ("paths", "inherit"))


def test_what_to_recover_is_named():
    """Without an argument the command refuses."""
    for page in (OPERATIONS, README_DEBIAN):
        assert not re.search(r"run:? `?fastwrite recover[`.,:]", " ".join(page.read_text().split())), page
    for page in (OPERATIONS, README_DEBIAN):
        assert "fastwrite disable UNIT" in page.read_text()


# ---- the reasons ----


def test_guarantees_name_every_reason():
    code = (ROOT / "shim" / "format" / "counters.c").read_text()
    names = re.search(r"reason_names\[.*?\] = \{(.*?)\};", code, re.S)[1]
    text = (ROOT / "docs" / "guarantees.md").read_text()
    table = text.split("| reason |", 1)[1].split("\n\n", 1)[0]
    documented = set(
        re.findall(r"`([^`]+)`", "\n".join(line.split("|")[1] for line in table.splitlines()[2:]))
    )
    assert documented == set(re.findall(r'"([^"]+)"', names)) - {"none"}


# ---- the known gaps ----


def gaps() -> dict[int, str]:
    """Number and text of each gap; its group, such as Rights, stands before the text."""
    section = (ROOT / "docs" / "guarantees.md").read_text().split("\n## Known gaps\n", 1)[1]
    found: dict[int, str] = {}
    group = ""
    for part in re.split(r"\n(?=\S)", section):
        if number := re.match(r"(\d+)\. ", part):
            assert int(number[1]) == len(found) + 1, f"the gap after {len(found)} has the number {number[1]}"
            found[int(number[1])] = f"{group} {part[number.end() :]}"
        elif part.rstrip().endswith(":"):
            group = part.split()[0]
    return found


def named_numbers(text: str) -> set[int]:
    """Of "4, 7 and 28 to 31"."""
    numbers: set[int] = set()
    for first, last in re.findall(r"(\d+)(?: to (\d+))?", text):
        numbers |= set(range(int(first), int(last or first) + 1))
    return numbers


def test_security_names_the_gaps_of_rights():
    security = (ROOT / "docs" / "security.md").read_text().split("\n## Known gaps\n", 1)[1]
    expected = {number for number, text in gaps().items() if text.startswith("Rights ") or "**Ids " in text}
    assert len(expected) > 3
    assert named_numbers(security.split("numbers", 1)[1]) == expected


def test_gaps_that_are_named_exist():
    known = gaps()
    for path in [*DOCUMENTS, *(ROOT / "shim").rglob("*.[ch]"), *(ROOT / "tests").rglob("*.[cp]*")]:
        if path.suffix == ".pyc" or path.name == "CHANGELOG.md":
            continue
        for name in re.findall(r"\bgaps? (\d[\d, ]*(?:(?:and|to) \d+)*)", path.read_text(errors="replace")):
            assert named_numbers(name) <= known.keys(), f"{path}: gap {name}"


# ---- the README's try ----


def run_readme(after: str, fastwrite: Path, place: Path, **env: str) -> subprocess.CompletedProcess[str]:
    """The first block of commands after this line, in another directory."""
    text = (ROOT / "README.md").read_text()
    commands = re.search(rf"^{re.escape(after)}.*?^```sh\n(.*?)^```$", text, re.M | re.S)[1]
    (place / "build").symlink_to(fastwrite.parent)
    done = subprocess.run(
        ["bash", "-c", commands.replace("/tmp/", f"{place}/")],
        cwd=place,
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
        env={**os.environ, **env},
    )
    assert done.returncode == 0, done.stderr
    return done


def test_try_of_the_readme(fastwrite, tmp_path):
    """The library stages, and recovery brings what a killed program had staged."""
    # a busy machine flushes before the kill
    done = run_readme("## Try it", fastwrite, tmp_path, FASTWRITE_LAG_MS="60000")
    writes, bytes_ = map(int, re.search(r"(\d+) writes staged, (\d+) bytes", done.stdout).groups())
    assert bytes_ == 100 * writes
    # the first ones go to the kernel: more of them on a busy machine, which flushes slowly
    assert 900_000 < writes < 1_000_000
    told, before, *recovered, after = done.stdout.splitlines()[1:]
    assert (told, after) == ("100000", "100000")
    assert int(before) < 100000
    assert re.search(r"recovered +\S+/fw/count +\d+ bytes", "\n".join(recovered))
    assert not (tmp_path / "fw").exists()


def test_database_of_the_readme(fastwrite, tmp_path):
    """Both databases have the same bytes, and the second was staged."""
    stats = tmp_path / "stats"
    done = run_readme("A database, the same way", fastwrite, tmp_path, FASTWRITE_STATS=str(stats))
    assert re.fullmatch(r"([\d,]+ commits per second\n){2}", done.stdout)
    assert int(re.search(r"(\d+) writes staged", stats.read_text())[1]) > 2000  # one or more of each commit
    assert not (tmp_path / "fw").exists()
