# SPDX-License-Identifier: Apache-2.0
"""The options that several verbs have, each declared once.

A verb takes a parameter `asked: Asked` and is decorated with `options(...)`, which names the options that it has and
the defaults in which it differs; typer then sees one parameter for each of them.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Annotated, get_type_hints

import typer

from harness.core.model import KINDS, NATIVE, VARIANTS, LabError
from harness.core.variants import shimmed
from harness.core.workdir import WORK
from harness.run import session


@dataclass(frozen=True)
class Asked:
    """What was asked for on the command line. An option that a verb does not have keeps its default."""

    scale: Annotated[
        str, typer.Option("--scale", help="tiny (smoke test), small (minutes), full (published size).")
    ] = "small"
    pairs: Annotated[
        int, typer.Option("--pairs", min=1, max=1000, help="Interleaved rounds of measured legs.")
    ] = 5
    kills: Annotated[
        int, typer.Option("--kills", min=1, max=1000, help="kill -9 legs per row and variant.")
    ] = 2
    seed: Annotated[int, typer.Option("--seed", help="Decides orders and kill moments.")] = 1
    limit_mib: Annotated[
        int, typer.Option("--limit-mib", min=8, help="Memory limit of the memory-limited legs, MiB.")
    ] = 64
    kinds: Annotated[
        str, typer.Option("--kinds", help="Kinds of leg, comma-separated: measure, memory, kill.")
    ] = ",".join(KINDS)
    no_shim: Annotated[bool, typer.Option("--no-shim", help="Native legs only.")] = False
    no_warm: Annotated[
        bool, typer.Option("--no-warm", help="Do not touch free memory before the first leg.")
    ] = False
    directory: Annotated[
        Path | None,
        typer.Option(
            "--dir",
            help="Work directory on the disk under test: new, empty, or left by us.",
            show_default=f"{WORK}; with --resume that of the run",
        ),
    ] = None
    out: Annotated[
        Path | None, typer.Option("--out", help="Result directory (default: results/<time>-<suite>).")
    ] = None
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Print bytes to be written and estimated time; touch nothing.")
    ] = False
    resume: Annotated[
        Path | None, typer.Option("--resume", help="Go on with the run in this result directory.")
    ] = None

    words: dict[str, str] = field(default_factory=dict)
    """What stands on the command line: of each parameter its option, or the arguments themselves."""

    @property
    def work(self) -> Path:
        """The work directory of a new run."""
        return self.directory or WORK

    def settings(self, suite: str, **more) -> session.Settings:
        """A run's settings; more: fields that no option gives. LabError for an unknown kind of leg."""
        kinds = tuple(k.strip() for k in self.kinds.split(",") if k.strip())
        for kind in kinds:
            if kind not in KINDS:
                raise LabError(f"--kinds: '{kind}' is none of {', '.join(KINDS)}")
        variants = tuple(v for v in VARIANTS if not (self.no_shim and shimmed(v)))
        asked = {
            "scale": self.scale,
            "seed": self.seed,
            "pairs": self.pairs,
            "kills": self.kills,
            "memory_limit_bytes": self.limit_mib << 20,
            "variants": variants or (NATIVE,),
            "kinds": kinds,
            "warm": not self.no_warm,
        }
        return session.Settings(suite, **{**asked, **more})


ALL = tuple(f.name for f in fields(Asked) if f.name != "words")
_ANNOTATIONS = get_type_hints(Asked, include_extras=True)
_DEFAULTS = {f.name: f.default for f in fields(Asked)}


def _words(context: typer.Context) -> dict[str, str]:
    found = {}
    for param in context.command.params:
        source = context.get_parameter_source(param.name)
        if source is None or source.name != "COMMANDLINE":
            continue
        value = context.params[param.name]
        is_option = param.param_type_name == "option"
        found[param.name] = (
            param.opts[0] if is_option else " ".join([value] if isinstance(value, str) else value)
        )
    return found


def options(*names: str, **defaults) -> Callable:
    """Give a verb these options of Asked; defaults: where the verb differs, which names the option, too."""
    chosen = [name for name in ALL if name in names or name in defaults]

    def decorate(verb: Callable) -> Callable:
        @functools.wraps(verb)
        def wrapper(context: typer.Context, **given):
            asked = Asked(**{name: given.pop(name) for name in chosen}, words=_words(context))
            return verb(asked=asked, **given)

        signature = inspect.signature(verb, eval_str=True)
        own = [p for p in signature.parameters.values() if p.name != "asked"]
        shared = [
            inspect.Parameter(
                name,
                inspect.Parameter.KEYWORD_ONLY,
                default=defaults.get(name, _DEFAULTS[name]),
                annotation=_ANNOTATIONS[name],
            )
            for name in chosen
        ]
        own.append(inspect.Parameter("context", inspect.Parameter.KEYWORD_ONLY, annotation=typer.Context))
        own = [p.replace(kind=inspect.Parameter.KEYWORD_ONLY) for p in own]
        wrapper.__signature__ = signature.replace(parameters=[*own, *shared])
        wrapper.__annotations__ = {p.name: p.annotation for p in (*own, *shared)}
        del wrapper.__wrapped__  # typer would look through it
        return wrapper

    return decorate
