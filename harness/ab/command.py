# SPDX-License-Identifier: Apache-2.0
"""The verb `ab`: from its options to what is printed and written."""

from __future__ import annotations

import json
import shutil
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console
from rich.markup import escape

from harness.ab import session, show
from harness.ab.advice import DURABILITY
from harness.ab.runs import Job
from harness.ab.session import APPLY, Record, Settings
from harness.core.model import LabError

JSON, MARKDOWN = "ab.json", "ab.md"


def settings(
    argv: Sequence[str],
    source: Path | None,
    prepare: str,
    pairs: int,
    paths: Sequence[str] | None,
    keys: Sequence[str] | None,
    config: Path | None,
    compare: Sequence[str] | None,
    durability: str,
    apply: str,
    ignore_failure: bool,
    stdin: Path | None = None,
) -> Settings:
    """What was asked for, checked. LabError."""
    for name, value, allowed in (("durability", durability, tuple(DURABILITY)), ("apply", apply, APPLY)):
        if value not in allowed:
            raise LabError(f"--{name}: '{value}' is none of {', '.join(allowed)}")
    found = {}
    for text in keys or ():
        key, sign, value = text.partition("=")
        if not sign or not key.strip():
            raise LabError(f"--rule: '{text}' is not KEY=VALUE")
        found[key.strip()] = value.strip()
    if found and not paths and not config:
        raise LabError("--rule: which files? give --paths, or --config")
    if source is not None and not source.is_dir():
        raise LabError(f"{source}: not a directory")
    if stdin is not None and not stdin.is_file():
        raise LabError(f"--stdin: {stdin}: not a file")
    first = argv[0] if argv else ""
    if shutil.which(first) is None and not (source and (source / first).exists()) and "{dir}" not in first:
        raise LabError(f"{first}: not found")
    patterns = tuple(p for text in paths or () for p in text.split(":") if p)
    job = Job(tuple(argv), source, prepare, tuple(compare or ()), stdin and stdin.absolute())
    return Settings(job, pairs, patterns, found, config, durability, apply, ignore_failure)


def run(console: Console, asked: Settings, directory: Path, out: Path | None) -> Record:
    """The comparison, printed, and written to `out` when one is given."""
    record = session.run(console, asked, directory)
    for block in show.blocks(record):
        console.print(show.table(block))
    for sentence in show.sentences(record):
        console.print(escape(sentence), soft_wrap=True, highlight=False)
    if show.ini(record):
        console.print(f"\n{show.ini(record)}", markup=False, soft_wrap=True, highlight=False)
        console.print(show.command(record), markup=False, soft_wrap=True, highlight=False)
    if out:
        try:
            out.mkdir(parents=True, exist_ok=True)
            (out / JSON).write_text(json.dumps(record.as_dict(), indent=1) + "\n", encoding="utf-8")
            (out / MARKDOWN).write_text(show.markdown(record), encoding="utf-8", errors="backslashreplace")
        except OSError as error:
            raise LabError(f"{out}: {error.strerror}") from error
    return record
