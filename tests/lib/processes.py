# SPDX-License-Identifier: Apache-2.0
"""Several programs at a time, each natively or under the library, with what the library says about each."""

from __future__ import annotations

import os
import subprocess
import tempfile
from pathlib import Path

from lib.support import ROOT, Stats, parse_stats, preload_env

OTHERS = ROOT / "tests" / "others"


class Program:
    """A running program; `library` None runs it natively.  At the end of a `with` it is gone."""

    def __init__(self, library: Path | None, command: list[object], cwd: Path, **settings: object) -> None:
        self._stats = tempfile.NamedTemporaryFile(prefix="fastwrite-stats-")  # noqa: SIM115
        settings.setdefault("stats", self._stats.name)
        settings.setdefault("paths", f"{cwd}/**")
        extra = preload_env(library, str(settings.pop("paths")), **settings) if library else {}
        self.process = subprocess.Popen(
            [str(part) for part in command],
            cwd=cwd,
            env={**os.environ, **extra},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            errors="replace",
        )

    def __enter__(self) -> Program:
        return self

    def __exit__(self, *_: object) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.communicate()
        self._stats.close()

    @property
    def pid(self) -> int:
        return self.process.pid

    def tell(self, line: str) -> None:
        """One line on its standard input."""
        self.process.stdin.write(line + "\n")
        self.process.stdin.flush()

    def hear(self) -> str:
        """One line of its standard output."""
        line = self.process.stdout.readline()
        if not line:
            _, error = self.process.communicate(timeout=60)
            counted = Path(self._stats.name).read_text()
            raise AssertionError(f"status {self.process.returncode}: {error}{counted}")
        return line.rstrip("\n")

    def ask(self, line: str) -> str:
        self.tell(line)
        return self.hear()

    def finish(self, timeout: float = 120) -> str:
        """Waits for an end with status 0; the rest of the output."""
        out, error = self.process.communicate(timeout=timeout)
        assert self.process.returncode == 0, f"status {self.process.returncode}: {out}{error}"
        self.stderr = error
        return out

    @property
    def stats(self) -> Stats:
        return parse_stats(Path(self._stats.name).read_text())


def compile_other(compile_c, name: str) -> Path:
    """The program tests/others/NAME.c."""
    return compile_c((OTHERS / f"{name}.c").read_text(), "-D_GNU_SOURCE", "-Wall", "-Wextra", "-pthread")
