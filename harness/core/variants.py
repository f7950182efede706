# SPDX-License-Identifier: Apache-2.0
"""How a program is run in a leg: natively, under the library with one of its policies, or by other means.

For each, what it may lose in the worst case, of a program that syncs what it answers for.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from harness.core import shim
from harness.core.model import (
    CONTROL,
    EATMYDATA,
    NATIVE,
    OWN,
    SHIM,
    SHIM_JOURNAL,
    SHIM_ORDERED,
    SHIM_RELAXED,
    Experiment,
    UnavailableError,
)

NOTHING = "nothing synced"
RECOVERED = "nothing synced, once recovery has run"
RELAXED = "at most relaxed_ms, and one device flush"
ORDERED = "the last ordered_ms, of all files at once, once recovery has run"
UNWRITTEN = "everything since the kernel's last write-back"

NO_EATMYDATA = "libeatmydata is not installed (Debian: apt-get install eatmydata)"

NO_BYTE = "nothing"
NO_BYTE_RECOVERED = "nothing, once recovery has run"


@dataclass(frozen=True)
class Variant:
    """settings: of the library (None: without it); preload: libeatmydata; kill, power: what may be lost at kill -9
    and at a power loss."""

    settings: Mapping[str, str] | None
    preload: bool
    kill: str
    power: str


KNOWN: dict[str, Variant] = {
    NATIVE: Variant(None, False, NO_BYTE, NOTHING),
    SHIM: Variant({}, False, NO_BYTE_RECOVERED, NOTHING),
    CONTROL: Variant(None, False, NO_BYTE, NOTHING),
    SHIM_JOURNAL: Variant({"FASTWRITE_SYNC": "journal"}, False, NO_BYTE_RECOVERED, RECOVERED),
    SHIM_RELAXED: Variant({"FASTWRITE_SYNC": "relaxed"}, False, NO_BYTE_RECOVERED, RELAXED),
    SHIM_ORDERED: Variant(
        {"FASTWRITE_SYNC": "ordered", "FASTWRITE_WRITERS": "exclusive"}, False, NO_BYTE_RECOVERED, ORDERED
    ),
    EATMYDATA: Variant(None, True, NO_BYTE, UNWRITTEN),
    # the program's own setting that trades durability for speed; each row says what it is and what it loses
    OWN: Variant(None, False, "", ""),
}


def shimmed(name: str) -> bool:
    return KNOWN[name].settings is not None


def eatmydata() -> Path | None:
    """The library that makes every sync do nothing, if it is installed."""
    for place in ("/usr/lib/*-linux-gnu*", "/usr/lib64", "/usr/lib", "/usr/local/lib"):
        for found in sorted(Path("/").glob(f"{place[1:]}/libeatmydata.so")):
            return found
    return None


def environment(
    name: str, built: shim.Shim | str, data: Path, row_settings: Mapping[str, str], pattern: str
) -> dict[str, str]:
    """Variables that put a program under a variant; row_settings: those of the library that a row has for all.
    UnavailableError when a library that it needs is missing."""
    variant = KNOWN[name]
    if variant.preload:
        library = eatmydata()
        if library is None:
            raise UnavailableError(NO_EATMYDATA)
        return shim.preload(library)
    if variant.settings is None:
        return {}
    if isinstance(built, str):
        raise UnavailableError(built)
    return built.env(data, {**row_settings, **variant.settings}, pattern)


def losses(experiment: Experiment, name: str) -> tuple[str, str]:
    """What this variant of a row may lose at kill -9 and at a power loss."""
    words = experiment.losses.get(name, {})
    return words.get("kill", KNOWN[name].kill), words.get("power", KNOWN[name].power)
