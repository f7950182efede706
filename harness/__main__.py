# SPDX-License-Identifier: Apache-2.0
"""`python -m harness`. What must be there is checked here, before anything that needs it is imported."""

import os
import sys

PYTHON_LEAST = (3, 11)

if sys.version_info < PYTHON_LEAST:
    least, own = (".".join(map(str, version[:2])) for version in (PYTHON_LEAST, sys.version_info))
    sys.exit(f"harness: needs Python {least} or newer; this is {own}")

try:
    from harness.cli import EXIT_REFUSED, FULL, app
except ModuleNotFoundError as error:
    if (error.name or "").partition(".")[0] == "harness":
        raise
    sys.exit(
        f"harness: the Python package '{error.name}' is missing; make deps-lab installs all of them into .venv"
    )

if __name__ == "__main__":
    # (names of files may be no text, and the terminal may lack signs)
    for stream in (sys.stdout, sys.stderr):
        stream.reconfigure(errors="backslashreplace")
    try:
        try:
            app(prog_name="python -m harness")
        finally:
            sys.stdout.flush()
    except OSError as error:
        if error.errno not in FULL:
            raise
        # (what standard output still holds would fail again at the exit)
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        print(f"harness: {error.strerror}", file=sys.stderr)
        sys.exit(EXIT_REFUSED)
