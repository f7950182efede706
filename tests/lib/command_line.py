# SPDX-License-Identifier: Apache-2.0
"""What the command takes, as its help and the documents say it."""

from __future__ import annotations

import re

from lib.support import ROOT

VERBS = ["run", "recover", "status", "config", "check", "enable", "disable"]
COMMON = {"--help", "--usage", "--version"}  # options of all verbs
MANUAL = [ROOT / "docs" / page for page in ("fastwrite.1", "fastwrite.ini.5", "libfastwrite.7")]
CONFIGURATION = ROOT / "docs" / "configuration.md"


def options_of(text: str) -> set[str]:
    """The long options that it names."""
    return set(re.findall(r"(?<![\w-])--[a-z][a-z-]*", text))


def key_table() -> dict[str, tuple[str, str]]:
    """By key, what is allowed and the default."""
    rows = re.findall(r"^\| \[`([a-z_]+)`\]\(#\1\) \| (.*?) \| (.*?) \|$", CONFIGURATION.read_text(), re.M)
    return {key: (values.replace("`", ""), default.replace("`", "")) for key, values, default in rows}
