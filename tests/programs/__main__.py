# SPDX-License-Identifier: Apache-2.0
"""python -m programs (with tests/ on the path; make soak-programs does it): the list of real programs as a table."""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path

from lib.support import ROOT, default_signals

from programs import catalog, table
from programs.case import Row, take
from programs.place import KILL, NATIVE, SHIM, Tools


def tell(row: Row, out) -> None:
    if row.skipped:
        print(f"{row.case.name}: not run: {row.skipped}", file=out, flush=True)
        return
    parts = []
    for name in (NATIVE, SHIM, KILL):
        leg = row.legs.get(name)
        if not leg:
            continue
        word = "ok" if leg.ok else "FAILED"
        parts.append(f"{name} {word} ({leg.runs} in {leg.seconds:.1f} s, {leg.staged} bytes staged)")
    print(f"{row.case.name}: {', '.join(parts)}", file=out, flush=True)
    for name, leg in row.legs.items():
        if not leg.ok:
            print(f"    {name}: {leg.text}", file=out, flush=True)
        if leg.through:
            print(f"    {name}: written through: {leg.through}", file=out, flush=True)


def setting(text: str) -> tuple[str, str]:
    key, found, value = text.partition("=")
    if not found:
        raise argparse.ArgumentTypeError("KEY=VALUE")
    return key, value


def main() -> int:
    parser = argparse.ArgumentParser(prog="programs", description="Runs real programs under the library.")
    parser.add_argument("only", nargs="*", help="cases whose name contains one of these words")
    parser.add_argument("--build", type=Path, default=ROOT / "build", help="build directory to test")
    parser.add_argument("--quick", action="store_true", help="the bounded variants of make test")
    parser.add_argument("--kills", type=int, help="kill -9 rounds per program (default: each one's own)")
    parser.add_argument(
        "--settings", nargs="+", type=setting, metavar="KEY=VALUE", help="instead of each one's own"
    )
    parser.add_argument("--seed", type=int, default=1, help="number of the first kill")
    parser.add_argument("--keep", action="store_true", help="keep the directory of a run that failed")
    parser.add_argument("--list", action="store_true", help="print the names")
    parser.add_argument("--markdown", type=Path, help="write the table to this file, too")
    options = parser.parse_args()

    default_signals()
    for name in [n for n in os.environ if n.startswith("FASTWRITE_") and not n.startswith("FASTWRITE_TEST_")]:
        del os.environ[name]
    cases = [
        case
        for case in catalog.all_cases()
        if (case.in_quick or not options.quick)
        and (not options.only or any(word.lower() in case.name.lower() for word in options.only))
    ]
    if options.list:
        print("\n".join(case.name for case in cases))
        return 0
    build = options.build.resolve()
    tools = Tools(build / "libfastwrite.so", build / "fastwrite")
    for path in (tools.library, tools.command):
        if not path.exists():
            parser.error(f"{path} is not there; run make")
    rows = []
    for case in cases:
        if options.settings:
            case.settings, case.unordered = (dict(options.settings),), "it was asked for others"
        kills = options.kills if options.kills is not None else (2 if options.quick else case.kills)
        row = take(case, tools, quick=options.quick, kills=kills, seed=options.seed, keep=options.keep)
        tell(row, sys.stdout)
        rows.append(row)
    text = table.markdown(rows, quick=options.quick)
    print()
    print(text)
    if options.markdown:
        options.markdown.write_text(text)
    for row in rows:
        if row.skipped:
            print(f"skipped: {row.case.name}: {row.skipped}")
    print(table.totals(rows), flush=True)
    return 1 if any(row.failed for row in rows) else 0


if __name__ == "__main__":
    sys.exit(main())
