# SPDX-License-Identifier: Apache-2.0
"""The layers of shim/, read from the objects of the release build: calls go down only.

`LAYERS` in the Makefile is the order of the folders, from the top to the bottom.
"""

from __future__ import annotations

import re
import subprocess
from collections import defaultdict
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent

FILES_MAX = 40
CIRCLE_MAX = 3


def layers() -> dict[str, int]:
    """Each folder's height; the lowest has 0."""
    found = re.search(r"^LAYERS := (.+)$", (ROOT / "Makefile").read_text(), re.MULTILINE)
    assert found, "the Makefile has no LAYERS"
    return {name: height for height, name in enumerate(reversed(found[1].split()))}


def symbols(*files: Path) -> dict[str, list[list[str]]]:
    """What nm says of each file, by path."""
    out = subprocess.run(["nm", "-A", *files], capture_output=True, text=True, check=True).stdout
    result: dict[str, list[list[str]]] = defaultdict(list)
    for line in out.splitlines():
        name, rest = line.split(":", 1)
        result[name].append(rest.split())
    return result


class Objects:
    """The objects of one build, and the symbols that lead from one to another."""

    def __init__(self, build: Path) -> None:
        base = build / "obj"
        exported = set(re.findall(r"^\t(\w+);$", (build / "exports.map").read_text(), re.MULTILINE))
        paths = [
            base / source.relative_to(ROOT / "shim").with_suffix(".o")
            for source in sorted((ROOT / "shim").glob("*/*.[cS]"))
        ]
        self.defined: dict[str, str] = {}
        wanted: dict[str, set[str]] = {}
        for path, rows in symbols(*paths).items():
            module = str(Path(path).relative_to(base).with_suffix(""))
            wanted[module] = {row[1] for row in rows if len(row) == 2 and row[0] in "Uw"}
            for row in rows:
                if len(row) == 3 and row[1] in "TDBRVWC":
                    self.defined.setdefault(row[2], module)
        # Names of the C library mean the C library, also where a hook exports them.
        for name in exported & self.defined.keys():
            if self.defined[name].startswith("hooks/"):
                del self.defined[name]
        self.edges: dict[tuple[str, str], set[str]] = defaultdict(set)
        for module, names in wanted.items():
            for name in names:
                other = self.defined.get(name, module)
                if other != module:
                    self.edges[module, other].add(name)

    def circles(self) -> list[list[str]]:
        """Modules that can all reach each other (Tarjan)."""
        after: dict[str, list[str]] = defaultdict(list)
        for module, other in self.edges:
            after[module].append(other)
        order: dict[str, int] = {}
        low: dict[str, int] = {}
        stack: list[str] = []
        found: list[list[str]] = []

        def visit(module: str) -> None:
            order[module] = low[module] = len(order)
            stack.append(module)
            for other in after[module]:
                if other not in order:
                    visit(other)
                    low[module] = min(low[module], low[other])
                elif other in stack:
                    low[module] = min(low[module], order[other])
            if low[module] == order[module]:
                at = stack.index(module)
                found.append(sorted(stack[at:]))
                del stack[at:]

        for module in list(after):
            if module not in order:
                visit(module)
        return [circle for circle in found if len(circle) > 1]


@pytest.fixture(scope="module")
def objects(build: Path) -> Objects:
    return Objects(build)


def test_each_folder_is_a_layer() -> None:
    assert {path.name for path in (ROOT / "shim").iterdir() if path.is_dir()} == set(layers())


def test_no_folder_is_too_full() -> None:
    full = {name: len(list((ROOT / "shim" / name).iterdir())) for name in layers()}
    assert {name: n for name, n in full.items() if n > FILES_MAX} == {}


def test_calls_go_down(objects: Objects) -> None:
    height = layers()
    up = {
        edge: names
        for edge, names in objects.edges.items()
        if height[edge[0].split("/")[0]] < height[edge[1].split("/")[0]]
    }
    told = [f"{a} -> {b}: {', '.join(sorted(names))}" for (a, b), names in sorted(up.items())]
    assert not told, "calls that point up:\n" + "\n".join(told)


def test_includes_go_down() -> None:
    height = layers()
    up = [
        f"{path.relative_to(ROOT)} -> {header}"
        for path in sorted((ROOT / "shim").glob("*/*.[ch]"))
        for header in re.findall(r'^#include "(.+)"$', path.read_text(), re.MULTILINE)
        if "/" in header and height[path.parent.name] < height[header.split("/")[0]]
    ]
    assert not up, "includes that point up:\n" + "\n".join(up)


def test_no_large_circle(objects: Objects) -> None:
    circles = [circle for circle in objects.circles() if not circle[0].startswith("command/")]
    assert [circle for circle in circles if len(circle) > CIRCLE_MAX] == []


def test_the_command_is_not_in_the_library(objects: Objects, library: Path) -> None:
    commands = {name for name, module in objects.defined.items() if module.startswith("command/")}
    assert commands
    inside = {row[-1] for row in symbols(library)[str(library)]}
    assert sorted(commands & inside) == []


def test_only_sections_block_signals():
    """Elsewhere the raw call would not know of a short section around it (base/signals.h)."""
    allowed = {"base/sys.h", "base/sys.c", "base/signals.h", "base/signals.c"}
    found = {
        str(path.relative_to(ROOT / "shim"))
        for path in (ROOT / "shim").glob("*/*.[ch]")
        if "sys_block_signals" in path.read_text()
    }
    assert found == allowed
