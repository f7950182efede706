# SPDX-License-Identifier: Apache-2.0
"""What the tests share: the build under test, and an environment that steers nothing."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
from lib.recovery_lab import KILL, Lab
from lib.support import default_signals, disk_dir

ROOT = Path(__file__).resolve().parent.parent


def pytest_configure(config: pytest.Config) -> None:
    """Tests must not run under the library by accident, nor with its settings, nor with signals ignored."""
    default_signals()
    for name in [n for n in os.environ if n.startswith("FASTWRITE_") and not n.startswith("FASTWRITE_TEST_")]:
        del os.environ[name]
    os.environ.pop("LD_PRELOAD", None)


@pytest.fixture(scope="session")
def build() -> Path:
    """The release build directory; build-debug by FASTWRITE_TEST_BUILD_DEBUG likewise."""
    return Path(os.environ.get("FASTWRITE_TEST_BUILD", ROOT / "build"))


@pytest.fixture(scope="session")
def build_debug() -> Path:
    """The debug build, which has the kill steps."""
    return Path(os.environ.get("FASTWRITE_TEST_BUILD_DEBUG", ROOT / "build-debug"))


@pytest.fixture(scope="session")
def library(build: Path) -> Path:
    path = build / "libfastwrite.so"
    if not path.exists():
        pytest.fail(f"{path} is not there; run make")
    return path


@pytest.fixture(scope="session")
def fastwrite(build: Path) -> Path:
    path = build / "fastwrite"
    if not path.exists():
        pytest.fail(f"{path} is not there; run make")
    return path


@pytest.fixture(scope="session")
def compile_c(tmp_path_factory: pytest.TempPathFactory):
    """Compiles C text to a program, once per text and flags: compile_c(source, *flags) -> path."""
    directory = tmp_path_factory.mktemp("programs")
    made: dict[tuple[str, ...], Path] = {}

    def compile_one(source: str, *flags: str) -> Path:
        key = (source, *flags)
        if key not in made:
            path = directory / f"program{len(made)}"
            done = subprocess.run(
                ["cc", "-O1", "-x", "c", "-", "-x", "none", "-o", str(path), *flags],
                input=source,
                text=True,
                capture_output=True,
                check=False,
            )
            if done.returncode != 0:
                pytest.fail(f"cc: {done.stderr}")
            made[key] = path
        return made[key]

    return compile_one


@pytest.fixture
def lab(library: Path, fastwrite: Path, compile_c: Callable[..., Path]):
    program = compile_c((KILL / "leave.c").read_text())
    with disk_dir() as base:
        base.chmod(0o755)
        yield Lab(base, library, fastwrite, program)
