# SPDX-License-Identifier: Apache-2.0
"""A program under the library and strace.  (strace itself is not under the library.)"""

from __future__ import annotations

from pathlib import Path

import pytest

from lib.support import Run, run_preloaded


def straced(
    library: Path,
    command: list[str | Path],
    place: Path,
    *options: str,
    paths: str | None = None,
    env: dict[str, str] | None = None,
    **settings: object,
) -> tuple[Run, list[str]]:
    """The run, which ended well, and what strace wrote; by default `place`/data is managed."""
    out = place / "strace.txt"
    done = run_preloaded(
        library,
        ["strace", "-f", "-qq", "-o", out, "-E", f"LD_PRELOAD={library}", *options, *command],
        place,
        paths=paths or f"{place}/data/**",
        env={**(env or {}), "LD_PRELOAD": ""},
        **settings,
    )
    if done.returncode != 0 and "ptrace" in done.stderr.lower():
        pytest.skip(f"strace may not trace here: {done.stderr.strip()}")
    assert done.returncode == 0, done.stderr
    return done, out.read_text().splitlines()
