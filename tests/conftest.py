# SPDX-License-Identifier: Apache-2.0
"""What the tests share: the build under test, and an environment that steers nothing."""

from __future__ import annotations

import fcntl
import hashlib
import os
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
from lib.recovery_lab import KILL, Lab
from lib.support import be_patient, default_signals, disk_dir, on_this_machine, too_slow

ROOT = Path(__file__).resolve().parent.parent


# Tests, and files of tests, that take longest: begun first, so that none of them is left over for the end.
LONG = (
    "test_hooks.py::test_preloaded[test_preempt",
    "test_hooks.py::test_preloaded[test_step",
    "test_hooks.py::test_preloaded[test_pointer",
    "test_hooks.py::test_native[test_preempt",
    "test_hooks.py::test_native[test_step",
    "test_kill_points.py",
    "test_kill_random.py",
    "test_differential.py",
    "test_power.py",
    "test_ab.py",
    "test_end_to_end.py",
    "test_containers.py",
    "test_programs.py",
    "test_machine.py",
    # (these wait more than they compute; the other tests of packages wait for the first one)
    "test_service.py",
    "test_deb.py::test_contents",
    "test_stack.py",
    "test_leased_order.py",
)


def pytest_configure(config: pytest.Config) -> None:
    """Tests must not run under the library by accident, nor with its settings, nor with signals ignored."""
    if hasattr(config.option, "maxschedchunk") and config.option.maxschedchunk is None:
        config.option.maxschedchunk = 1  # a worker that is free takes the next test
    default_signals()
    be_patient()
    for name in [n for n in os.environ if n.startswith("FASTWRITE_") and not n.startswith("FASTWRITE_TEST_")]:
        del os.environ[name]
    os.environ.pop("LD_PRELOAD", None)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    def rank(item: pytest.Item) -> int:
        return next((i for i, name in enumerate(LONG) if f"/{name}" in item.nodeid), len(LONG))

    items.sort(key=rank)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo):
    """A test that failed says how busy the machine was, and one that ran out of time says so."""
    report = yield
    if report.failed:
        report.sections.append(("machine", f"failed after {on_this_machine(call.duration)}"))
        late = call.excinfo and isinstance(call.excinfo.value, subprocess.TimeoutExpired)
        if late and (place := getattr(report.longrepr, "reprcrash", None)):
            place.message = too_slow(call.excinfo.value.timeout, place.message)
    return report


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
def shared_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory that all processes of this run of the tests have."""
    base = tmp_path_factory.getbasetemp()
    return base.parent if "PYTEST_XDIST_WORKER" in os.environ else base


@pytest.fixture(scope="session")
def compile_c(shared_dir: Path):
    """Compiles C text to a program, once in a run per text and flags: compile_c(source, *flags) -> path."""
    directory = shared_dir / "compiled"
    directory.mkdir(exist_ok=True)

    def compile_one(source: str, *flags: str) -> Path:
        path = directory / hashlib.sha256("\0".join((source, *flags)).encode()).hexdigest()[:12]
        with path.with_suffix(".lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if not path.exists():
                made = path.with_suffix(".new")
                done = subprocess.run(
                    ["cc", "-O1", "-x", "c", "-", "-x", "none", "-o", str(made), *flags],
                    input=source,
                    text=True,
                    capture_output=True,
                    check=False,
                )
                if done.returncode != 0:
                    pytest.fail(f"cc: {done.stderr}")
                made.rename(path)
        return path

    return compile_one


@pytest.fixture
def lab(library: Path, fastwrite: Path, compile_c: Callable[..., Path]):
    program = compile_c((KILL / "leave.c").read_text())
    with disk_dir() as base:
        base.chmod(0o755)
        yield Lab(base, library, fastwrite, program)
