# SPDX-License-Identifier: Apache-2.0
"""What a leg can execute. A tool turns parameters and a size into a command, reads what it printed, and
verifies the files. New kinds of experiment are new tools; the runner knows none of them by name."""

from __future__ import annotations

from harness.tools.app import AppTool
from harness.tools.base import Place, Tool, verification
from harness.tools.build import BuildTool
from harness.tools.files import FilesTool
from harness.tools.fio import FioTool
from harness.tools.passes import PassesTool
from harness.tools.read import ReadTool
from harness.tools.writer import WriterTool

TOOLS: dict[str, Tool] = {
    "writer": WriterTool(),
    "fio": FioTool(),
    "files": FilesTool(),
    "passes": PassesTool(),
    "read": ReadTool(),
    "build": BuildTool(),
    "app": AppTool(),
}

__all__ = ["TOOLS", "Place", "Tool", "verification"]
