# SPDX-License-Identifier: Apache-2.0
"""Ctrl-C and a plain `kill` as a KeyboardInterrupt that cannot get lost.

Python raises it wherever the main thread happens to be. That may be a callback whose exceptions go nowhere: what
modules have registered to run after a fork (a fork of a large process takes long, so a signal often comes then),
a destructor. So the signal is noted, too; code that starts a program or waits for one asks for it.
"""

from __future__ import annotations

import signal

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


def check() -> None:
    """Raise what came and got lost."""
    if _seen:
        raise KeyboardInterrupt
