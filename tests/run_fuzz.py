#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Runs the fuzzers for a given time in all and ends with one line: `N passed, N failed, N skipped`.

Each BUILD/fuzz_NAME begins with the inputs that tests/fuzz/make_corpus.py makes.  New inputs are kept in
BUILD/corpus/NAME, and what breaks a target in BUILD/found/NAME-*: `BUILD/fuzz_NAME FILE` runs it again, and says what
it does with FASTWRITE_FUZZ_SHOW=1.
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
CORPUS = ROOT / "build" / "fuzz-corpus"
INPUT_SECONDS = 10
START_SECONDS = 120
STATISTIC = re.compile(r"^stat::(\w+):\s+(\d+)", re.M)


def run(target: Path, seconds: int, build: Path) -> bool:
    name = target.name.removeprefix("fuzz_")
    own, found = build / "corpus" / name, build / "found"
    own.mkdir(parents=True, exist_ok=True)
    found.mkdir(exist_ok=True)
    kept = CORPUS / name
    if not any(kept.glob("*")):
        print(f"{target.name}: no corpus in {kept.relative_to(ROOT)}")
        return False
    command = [
        target,
        f"-max_total_time={seconds}",
        f"-timeout={INPUT_SECONDS}",
        "-max_len=600",
        "-print_final_stats=1",
        "-verbosity=0",
        f"-artifact_prefix={found}/{name}-",
        own,
        kept,
    ]
    begun = time.monotonic()
    # a target that dies does not clear up
    with tempfile.TemporaryDirectory(prefix="fastwrite-fuzz-", dir="/dev/shm") as place:
        Path(place).chmod(0o755)
        try:
            done = subprocess.run(
                [str(part) for part in command],
                cwd=ROOT,
                env={**os.environ, "FASTWRITE_FUZZ_DIR": place},
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                errors="replace",
                timeout=seconds + START_SECONDS,
                check=False,
            )
            said, status = done.stdout, done.returncode
        except subprocess.TimeoutExpired as stopped:
            said, status = (stopped.stdout or b"").decode(errors="replace"), -1
    numbers = dict(STATISTIC.findall(said))
    print(
        f"{target.name}: {numbers.get('number_of_executed_units', '?')} inputs in "
        f"{time.monotonic() - begun:.0f} s, {len(list(own.iterdir()))} kept: "
        f"{'nothing found' if status == 0 else f'status {status}'}",
        flush=True,
    )
    if status != 0:
        print(said[-8000:], flush=True)
    return status == 0


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--build", type=Path, default=ROOT / "build-fuzz")
    parser.add_argument("--seconds", type=int, default=60, help="for all targets together")
    parser.add_argument("targets", nargs="*", help="names, without fuzz_; all of them by default")
    options = parser.parse_args()
    targets = sorted(p for p in options.build.glob("fuzz_*") if p.suffix == "")
    sources = {p.stem for p in (ROOT / "tests" / "fuzz").glob("fuzz_*.c")}
    if options.targets:
        sources &= {f"fuzz_{name}" for name in options.targets}
    targets = [p for p in targets if p.name in sources]
    missing = sources - {p.name for p in targets}
    failed = len(missing)
    for name in sorted(missing):
        print(f"{name}: not built")
    build = options.build.resolve()
    for target in targets:
        failed += not run(target.resolve(), max(1, options.seconds // len(targets)), build)
    print(f"{len(targets) + len(missing) - failed} passed, {failed} failed, 0 skipped")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
