# SPDX-License-Identifier: Apache-2.0
"""Ctrl-C and a plain `kill` as a KeyboardInterrupt that cannot get lost.

Python raises it wherever the main thread happens to be. That may be a callback whose exceptions go nowhere: what
modules have registered to run after a fork (a fork of a large process takes long, so a signal often comes then),
a destructor. So the signal is noted, too; code that starts a program or waits for one asks for it.
"""

from __future__ import annotations

import signal

from rich.console import Console

_seen = False


def _interrupt(number: int, frame: object) -> None:
    global _seen
    _seen = True
    raise KeyboardInterrupt


def watch() -> None:
    """From now on; an interrupt that is ignored (a job in the background of a script) stays so."""
    global _seen
    _seen = False
    if signal.getsignal(signal.SIGINT) is not signal.SIG_IGN:
        signal.signal(signal.SIGINT, _interrupt)
    signal.signal(signal.SIGTERM, _interrupt)


def say(console: Console, text: str) -> None:
    """Print a line about an interrupt. One that came within a print left the console in the middle of it,
    and such a console keeps all that follows for itself."""
    fresh = Console(file=console.file, width=console.width)
    fresh.show_cursor()
    fresh.print(text, highlight=False, soft_wrap=True)


def check() -> None:
    """Raise what came and got lost."""
    if _seen:
        raise KeyboardInterrupt
