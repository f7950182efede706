# SPDX-License-Identifier: Apache-2.0
"""Which rule of the shim suits what a command does, or why none does. Pure.

Durability is never weakened unless it was asked for: `same` leaves `sync` at its default, `recovered` may use the
journal (nothing synced is lost, once recovery has run), `relaxed` and `off` are what they say (docs/guarantees.md).
"""

from __future__ import annotations

import posixpath
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from harness.ab.predict import Prediction
from harness.ab.profile import SMALL_BYTES, File, Profile
from harness.core.shim import quote
from harness.core.statistics import FASTER, SLOWER, Comparison

DURABILITY = {"same": None, "recovered": "journal", "relaxed": "relaxed", "off": "off"}
PATTERNS_MAX = 6
GAIN_MIN = 1.03
"""A rule is recommended when the whole predicted interval is above this: less is not worth deploying it."""
USE, TRY, NO = "use", "try", "no"


@dataclass(frozen=True)
class Rule:
    """paths: patterns as FASTWRITE_PATHS has them; keys: as a [rule] section has them; notes: what to know."""

    paths: tuple[str, ...]
    keys: Mapping[str, str] = field(default_factory=dict)
    notes: tuple[str, ...] = ()

    def env(self) -> dict[str, str]:
        """The variables that put the rule in force."""
        return {
            "FASTWRITE_PATHS": ":".join(self.paths),
            **{f"FASTWRITE_{k.upper()}": v for k, v in self.keys.items()},
        }

    def ini(self, name: str = "ab") -> str:
        """The section of a configuration file."""
        lines = [f"[rule {name}]", *(f"paths = {p}" for p in self.paths)]
        return "\n".join([*lines, *(f"{k} = {v}" for k, v in self.keys.items())]) + "\n"


@dataclass(frozen=True)
class Advice:
    """rule: what to try (None: there is nothing); obstacles: why the shim cannot take what is left out."""

    rule: Rule | None
    obstacles: tuple[str, ...]


def advise(profile: Profile, cannot: Mapping[str, str], durability: str = "same") -> Advice:
    """The rule for a profile. cannot: programs into which nothing can be preloaded, with the reason."""
    taken = [f for f in profile.files if f.stageable and not f.programs <= set(cannot)]
    obstacles = _obstacles(profile, cannot)
    if not taken:
        return Advice(None, tuple(obstacles) or ("it writes no file below its working directory",))
    keys, notes = _keys(taken, durability)
    left_out = [f.path for f in profile.files if f not in taken]
    return Advice(Rule(patterns([f.path for f in taken], left_out), keys, tuple(notes)), tuple(obstacles))


def anyway(root: str) -> Rule:
    """A rule for everything below the directory, to show what it does where none is recommended."""
    return Rule((f"{quote(root)}/**",))


def _keys(taken: Sequence[File], durability: str) -> tuple[dict[str, str], list[str]]:
    keys, notes = {}, []
    syncs = sum(f.syncs for f in taken) + sum(f.writes for f in taken if f.synchronous)
    wanted = DURABILITY[durability]
    if wanted and syncs:
        keys["sync"] = wanted
        notes.append(_LOSES[wanted])
    elif syncs:
        notes.append(
            f"{syncs:,} syncs stay as durable as they are; `--durability recovered` would allow the journal"
        )
    if any(f.watched for f in taken):
        keys["visibility"] = "strict"
        notes.append(
            "other processes of the command read these files while it writes: they see everything at once"
        )
    elif any(f.appended for f in taken) and all(len(f.writers) == 1 for f in taken):
        notes.append(
            "one process appends to each file: if no other program does, `writers = exclusive` is faster still"
        )
    return keys, notes


_LOSES = {
    "journal": "after a power loss the files are complete once `fastwrite recover` has run",
    "relaxed": "a power loss takes at most relaxed_ms of what was synced, and the order between files",
    "off": "a power loss takes whatever the kernel had not written back, synced or not",
}


def _obstacles(profile: Profile, cannot: Mapping[str, str]) -> list[str]:
    """What keeps the shim from helping, the largest first."""
    found: list[tuple[int, str]] = []

    def note(files: Sequence[File], weight: int, words: str) -> None:
        if weight:
            found.append((weight, f"{_names(files)}: {words}"))

    files = profile.files
    for program, reason in cannot.items():
        by = [f for f in files if program in f.programs]
        note(by, sum(f.writes for f in by), f"written by {program}, which is {reason}")
    mapped = [f for f in files if f.shared_maps]
    note(
        mapped,
        sum(1 + f.writes for f in mapped),
        "mapped shared and writable: stores into memory are no calls",
    )
    spliced = [f for f in files if f.spliced]
    note(spliced, sum(1 + f.writes for f in spliced), "written by splice, sendfile or copy_file_range")
    handed = [f for f in files if f.inherited]
    note(
        handed,
        sum(f.inherited for f in handed),
        "written by a program that was given the open file (a redirection)",
    )
    large = [f for f in files if f.writes > f.small]
    note(large, sum(f.writes - f.small for f in large),
         f"writes of more than {SMALL_BYTES >> 10} KiB, which are large already")  # fmt: skip
    plain = (f for f in files if f.small and not f.shared_maps and not f.spliced and not f.inherited)
    once = [f for f in plain if not f.stageable]
    note(once, sum(f.small for f in once), "one small write per open file, and the first is never staged")
    if profile.special.rings:
        found.append((1, "it makes an io_uring: from then on a process stages nothing"))
    if profile.special.aio:
        found.append((1, "it uses asynchronous I/O (io_submit), which passes to the kernel"))
    return [words for _, words in sorted(found, key=lambda item: -item[0])]


def _names(files: Sequence[File]) -> str:
    first = posixpath.basename(files[0].path) if files else "its files"
    return first if len(files) == 1 else f"{first} and {len(files) - 1:,} more"


def patterns(paths: Sequence[str], others: Sequence[str]) -> tuple[str, ...]:
    """Patterns for these files and, as far as few patterns can, for no others.

    A directory's files with one ending become DIR/*.ending; where that makes too many, everything with these endings
    below the directory that they have in common, or simply everything there.
    """
    groups: dict[str, list[str]] = defaultdict(list)
    for path in paths:
        directory, name = posixpath.split(path)
        ending = posixpath.splitext(name)[1]
        groups[f"{quote(directory)}/*{quote(ending)}" if ending else quote(path)].append(path)
    made = [quote(found[0]) if len(found) == 1 else pattern for pattern, found in groups.items()]
    if len(made) > PATTERNS_MAX:
        below = quote(posixpath.commonpath([posixpath.dirname(p) for p in paths]))
        endings = {posixpath.splitext(p)[1] for p in paths}
        only = endings.isdisjoint(posixpath.splitext(p)[1] for p in others) and "" not in endings
        made = (
            [f"{below}/**{quote(ending)}" for ending in endings]
            if only and len(endings) <= PATTERNS_MAX
            else []
        )
        made = made or [f"{below}/**"]
    return tuple(sorted(made))


def verdict(advice: Advice, prediction: Prediction | None, profile: Profile) -> tuple[str, str]:
    """(USE, TRY or NO, the sentence that says so)."""
    if advice.rule is None:
        return NO, "The shim will not help: " + "; ".join(advice.obstacles) + "."
    if prediction is None:
        return TRY, "A rule can be tried, but no prediction could be made."
    if prediction.low >= GAIN_MIN:
        return USE, f"Recommended: predicted to run {_figures(prediction)}."
    writes = profile.total("stageable")
    word = "save" if prediction.saved >= 0 else "cost"
    share = f"{abs(prediction.saved):.1%} of {_seconds(prediction)}"
    gain = f"the {writes:,} small writes that can be staged would {word} {share}"
    if prediction.ratio >= GAIN_MIN:
        return TRY, f"Perhaps: {gain}, predicted to run {_figures(prediction)}; more --pairs tell it apart."
    besides = " Besides: " + "; ".join(advice.obstacles) + "." if advice.obstacles else ""
    return NO, f"The shim will not help: {gain}, predicted to run {_figures(prediction)}.{besides}"


def gains(comparison: Comparison) -> bool:
    """Is what was measured worth a rule?"""
    return comparison.verdict == FASTER and comparison.ratio >= GAIN_MIN


def measured(comparison: Comparison, predicted: str, differences: bool) -> str:
    """The sentence once there is a measurement, which has the last word; predicted: the sentence before it."""
    figures = f"{comparison.ratio:.2f} times as fast [{comparison.low:.2f}, {comparison.high:.2f}]"
    before = f" Before that: {predicted[0].lower()}{predicted[1:]}" if predicted else ""
    if differences:
        return f"Not recommended: under the rule the command left something else.{before}"
    if gains(comparison):
        return f"Recommended: measured to run {figures}.{before}"
    if comparison.verdict == SLOWER:
        return f"Not recommended: measured to run {figures}.{before}"
    if comparison.verdict == FASTER:
        return f"Not worth a rule: measured to run {figures}.{before}"
    least = f"; {comparison.detectable:.2f} times would have been found" if comparison.detectable else ""
    return f"Not decided: measured to run {figures}{least}; more --pairs tell it apart.{before}"


def _seconds(prediction: Prediction) -> str:
    return f"{prediction.native_seconds:.3g} s"


def given(prediction: Prediction | None) -> str:
    """The sentence about a rule that the user gave."""
    if prediction is None:
        return "The rule that was given: no prediction could be made."
    return f"The rule that was given: predicted to run {_figures(prediction)}."


def _figures(prediction: Prediction) -> str:
    return f"{prediction.ratio:.2f} times as fast [{prediction.low:.2f}, {prediction.high:.2f}]"
