# SPDX-License-Identifier: Apache-2.0
"""`python -m harness`."""

from harness.cli import app

if __name__ == "__main__":
    app(prog_name="python -m harness")
