# SPDX-License-Identifier: Apache-2.0
"""The laboratory's packages import downwards only; the order is the one of harness/__init__.py."""

import ast
import sys
from pathlib import Path

import harness

ORDER = (
    "core",
    "report",
    "sync",
    "cost",
    "apps",
    "tools",
    "run",
    "doctor",
    "ab",
    "options",
    "cli",
    "__main__",
)
HOME = Path(harness.__file__).resolve().parent
PACKAGES = {path.name for path in HOME.iterdir() if (path / "__init__.py").exists()}
MODULES_OF_TESTS = {"pytest", "hypothesis", "playwright", "ruff"}


def imports(path: Path) -> set[str]:
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and node.module and not node.level:
            found |= {f"{node.module}.{name.name}" for name in node.names}
        elif isinstance(node, ast.Import):
            found |= {name.name for name in node.names}
    return found


def package_of(path: Path) -> str:
    inside = path.relative_to(HOME)
    return inside.parts[0] if len(inside.parts) > 1 else inside.stem


def test_imports_go_down_only():
    upward = []
    for path in HOME.rglob("*.py"):
        own = package_of(path)
        for name in imports(path):
            parts = name.split(".")
            other = parts[1] if parts[0] == "harness" and len(parts) > 1 else ""
            if own in ORDER and other in ORDER and ORDER.index(other) > ORDER.index(own):
                upward.append(f"{path.relative_to(HOME)} imports {name}")
    assert upward == []


def test_the_order_names_every_package_with_code():
    assert set(ORDER) >= PACKAGES
    assert all(name in harness.__doc__ for name in PACKAGES)


def test_a_run_needs_nothing_that_only_tests_need():
    allowed = {"harness", *sys.stdlib_module_names, "rich", "typer", "numpy", "scipy", "matplotlib", "jinja2"}
    for path in HOME.rglob("*.py"):
        needed = {name.split(".")[0] for name in imports(path)}
        assert not needed & MODULES_OF_TESTS, path
        assert needed <= allowed or "workloads" in path.parts, f"{path}: {needed - allowed}"
