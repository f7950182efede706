# SPDX-License-Identifier: Apache-2.0
"""The nouns of the laboratory, all immutable.

Units: bytes, seconds, MB/s = 10^6 bytes per second, kB as the kernel prints it (1024 bytes).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

MEASURE, KILL, MEMORY = "measure", "kill", "memory"
KINDS = (MEASURE, MEMORY, KILL)

NATIVE, SHIM, CONTROL = "native", "shim", "control"
SHIM_JOURNAL, SHIM_RELAXED, SHIM_ORDERED = "shim-journal", "shim-relaxed", "shim-ordered"
EATMYDATA, OWN = "eatmydata", "own"
VARIANTS = (NATIVE, SHIM, CONTROL, SHIM_JOURNAL, SHIM_RELAXED, SHIM_ORDERED, EATMYDATA, OWN)

OK, FAILED, SKIPPED = "ok", "failed", "skipped"

RATE = "rate_mb_s"
HIGHER, LOWER = "higher", "lower"


class LabError(Exception):
    """Something the user can act on: one clear line, no traceback."""


class UnavailableError(LabError):
    """Something that this machine or its kernel does not have: the leg is skipped, with the reason."""


@dataclass(frozen=True)
class MountSpec:
    """A file system of its own for every leg, made anew in an image on a loop device (mounts.py).

    filesystem -- ext4, xfs or btrfs; mkfs -- further options for its mkfs
    mib     -- scale name -> size of the image, MiB
    options -- mount options; remount -- options that are changed afterwards by `mount -o remount`
    queue   -- settings of the loop device's queue: scheduler, nr_requests, read_ahead_kb
    direct  -- the loop device uses O_DIRECT on the image: a flush is the disk's, and nothing is kept in memory twice
    cold    -- nothing of the prepared files is in memory when the leg begins
    may_refuse -- a refused remount or queue setting does not skip the leg: that it is refused is the result
    """

    filesystem: str
    mib: Mapping[str, int]
    mkfs: tuple[str, ...] = ()
    options: str = ""
    remount: str = ""
    queue: Mapping[str, str] = field(default_factory=dict)
    direct: bool = False
    cold: bool = False
    may_refuse: bool = False


@dataclass(frozen=True)
class Published:
    """A figure as the source gives it. `value` is None where the source has only words or a chart. source: whose
    figure it is when it is not the article's."""

    value: float | None
    unit: str
    text: str
    source: str = ""


@dataclass(frozen=True)
class Claim:
    """Something the source says that samples can decide.

    measure -- what is computed from our samples, see judge.MEASURES
    of      -- experiment id that a share or ratio is taken of, or "" (a ratio: the experiment itself)
    field, of_field -- sample fields that are taken instead of the main figures, or ""
    of_variant -- whose legs a ratio is taken of
    among   -- name of the matrix whose best cell is asked for (measure "at_best")
    low, high -- the band that the claim asks for; None = open
    neutral -- the figure of no effect, from which the band lies in the article's direction; None = there is none
    today   -- what has changed since, so that the kernel or device of today may answer otherwise; "" = nothing
    place   -- where the article says it: table and row, chart, or a sentence in our words
    own     -- the claim is not the article's: whose it is, or that it is ours
    needs_scale -- decided only at this scale, otherwise "not comparable" with `reason`
    reason  -- why the figure cannot be compared at all (measure "none"), or the caveat
    """

    text: str
    measure: str
    variant: str = NATIVE
    of: str = ""
    published: float | None = None
    low: float | None = None
    high: float | None = None
    unit: str = ""
    needs_scale: str = ""
    reason: str = ""
    field: str = ""
    of_field: str = ""
    of_variant: str = NATIVE
    among: str = ""
    neutral: float | None = None
    today: str = ""
    place: str = ""
    own: str = ""


@dataclass(frozen=True)
class Experiment:
    """One row of a suite.

    params -- what the tool is told (tools/*.py name and check the keys)
    sizes  -- scale name -> the tool's size keys (threads, records, ...)
    may_lose -- bytes per thread that a kill may cost, by variant; 0 = nothing acknowledged may be lost
    shim_role -- "gain" (the shim should be faster) or "regression" (nothing to gain: ratio 1 expected)
    estimate_mb_s -- rough rate by variant, for --dry-run; estimate_seconds instead: by scale, for one whole leg
                     (preparation, verification and cleaning up included)
    mount    -- the legs have a fresh file system each; None: they use the work directory
    figure   -- sample field that is compared and shown: top level of a sample, or in its "outcome"
    figure_unit, figure_better -- its unit, and whether a "higher" or a "lower" value is better
    losses   -- what a variant may lose, where it is not what variants.py says of it: variant -> "kill" (kill -9)
                and "power" (power loss), in words
    throttle -- limits that make the disk slow for the leg: write_mb_s, write_iops, read_mb_s, read_iops
    matrix, cell -- name of the matrix that the row is a cell of, and its value on every axis
    """

    id: str
    suite: str
    title: str
    tool: str
    variants: tuple[str, ...]
    kinds: tuple[str, ...]
    params: Mapping[str, object]
    sizes: Mapping[str, Mapping[str, int]]
    published: Published
    claims: tuple[Claim, ...] = ()
    note: str = ""
    shim_role: str = "gain"
    shim_env: Mapping[str, str] = field(default_factory=dict)
    may_lose: Mapping[str, int] = field(default_factory=dict)
    estimate_mb_s: Mapping[str, float] = field(default_factory=dict)
    estimate_seconds: Mapping[str, float] = field(default_factory=dict)
    source: str = ""
    figure: str = RATE
    figure_unit: str = "MB/s"
    figure_better: str = HIGHER
    losses: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    throttle: Mapping[str, float] = field(default_factory=dict)
    matrix: str = ""
    cell: Mapping[str, object] = field(default_factory=dict)
    mount: MountSpec | None = None


@dataclass(frozen=True)
class Target:
    """A promise that `bench` checks: numerator / denominator (or a plain figure) against a bound.

    Figures are written EXPERIMENT/VARIANT, with .rate_mb_s understood; EXPERIMENT/VARIANT.FIELD else.
    """

    id: str
    text: str
    numerator: str
    denominator: str = ""
    at_least: float | None = None
    at_most: float | None = None
    unit: str = ""


@dataclass(frozen=True)
class Leg:
    """One execution: an experiment, what is done to it, which variant, in which round."""

    experiment: str
    kind: str
    round: int
    variant: str

    @property
    def id(self) -> str:
        return f"{self.experiment}/{self.kind}/{self.round}/{self.variant}"


@dataclass(frozen=True)
class Plan:
    """What a run will do, in order. The same settings and seed give the same plan."""

    suite: str
    scale: str
    seed: int
    pairs: int
    kills: int
    memory_limit_bytes: int
    legs: tuple[Leg, ...]


@dataclass(frozen=True)
class Outcome:
    """What a tool says about an execution that it has finished. seconds_with_sync includes the final sync."""

    bytes: int
    seconds: float
    seconds_with_sync: float
    raw: Mapping[str, object]


@dataclass(frozen=True)
class Verification:
    """What is in the files. Bytes; `ok` means that nothing owed is lost or corrupt and nothing is extra; `checks`:
    what an application's own means have found good."""

    ok: bool
    owed_bytes: int
    verified_bytes: int
    lost_bytes: int = 0
    corrupt_bytes: int = 0
    unexpected_bytes: int = 0
    in_batch_bytes: int = 0
    front_zero_bytes: int = 0
    unfinished_bytes: int = 0
    problem: str = ""
    checks: str = ""


def rate_mb_s(byte_count: float, seconds: float) -> float:
    """MB/s (10^6 bytes); 0 for no time at all."""
    return byte_count / seconds / 1e6 if seconds > 0 else 0.0
