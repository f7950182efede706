# SPDX-License-Identifier: Apache-2.0
"""commands.py DIRECTORY ACKS SYNC: numbered commands to a Redis.

Each sets one of KEPT keys.  Now and then the server forks, to write its log anew.  ACKS is as in steps.c.  This
program runs by itself, under the library or natively, and waits to be killed; the server goes with it."""

from __future__ import annotations

import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

from power.numbered import make_steps

KEPT = 500  # keys
REWRITE_EVERY = 4000  # commands
START_SECONDS = 60


def missing() -> str:
    return "" if shutil.which("redis-server") else "redis-server is not installed (scripts/deps apps)"


class Client:
    """One connection; a command after the other."""

    def __init__(self, path: Path) -> None:
        limit = time.monotonic() + START_SECONDS
        while True:
            self.socket = socket.socket(socket.AF_UNIX)
            try:
                self.socket.connect(str(path))
                break
            except OSError:
                self.socket.close()
                if time.monotonic() > limit:
                    raise
                time.sleep(0.01)
        self.answers = self.socket.makefile("rb")

    def ask(self, *words: str, refusable: bool = False) -> bytes | None:
        """The answer: a line or a value; OSError says the server's error, unless the command is refusable."""
        text = b"".join(b"$%d\r\n%s\r\n" % (len(word), word) for word in (w.encode() for w in words))
        self.socket.sendall(b"*%d\r\n%s" % (len(words), text))
        line = self.answers.readline()
        if line[:1] == b"$":
            size = int(line[1:])
            return self.answers.read(size + 2)[:-2] if size >= 0 else None
        if line[:1] not in (b"+", b":") and not (refusable and line[:1] == b"-"):
            raise OSError(line.decode() or "the server has gone")
        return line[1:].strip()

    def close(self) -> None:
        self.answers.close()
        self.socket.close()


@contextmanager
def server(directory: Path, sync: bool) -> Iterator[Client]:
    """A Redis on the directory; it is killed at the end."""
    with tempfile.TemporaryDirectory() as place:
        path = Path(place) / "socket"
        options = {
            "dir": directory,
            "port": 0,
            "unixsocket": path,
            "save": "",
            "appendonly": "yes",
            "appendfsync": "always" if sync else "no",
            "auto-aof-rewrite-percentage": 0,
            "loglevel": "warning",
        }
        words = [word for name, value in options.items() for word in (f"--{name}", str(value))]
        with subprocess.Popen(
            ["setpriv", "--pdeathsig", "KILL", "redis-server", *words],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        ) as process:
            try:
                client = Client(path)
                try:
                    while b"loading:1" in (client.ask("INFO", "persistence") or b""):
                        time.sleep(0.01)
                    yield client
                finally:
                    client.close()
            finally:
                process.kill()


def prepare(directory: Path) -> None:
    with server(directory, sync=True) as client:
        client.ask("SET", "begun", "1")


def look(directory: Path) -> tuple[int, str]:
    """The last command that is there, and what is wrong."""
    try:
        with server(directory, sync=False) as client:
            if client.ask("GET", "begun") != b"1":
                return 0, "the data from before are not there"
            found = {int(value) for value in (client.ask("GET", f"key{i}") for i in range(KEPT)) if value}
    except OSError as error:
        return 0, f"the server does not start: {error}"
    newest = max(found, default=0)
    odd = found.symmetric_difference(range(max(1, newest - KEPT + 1), newest + 1))
    return newest, f"the newest is {newest}, and {len(odd)} others are of different moments" if odd else ""


def command(client: Client, number: int) -> None:
    client.ask("SET", f"key{number % KEPT}", str(number))
    if number % REWRITE_EVERY == 0:
        client.ask("BGREWRITEAOF", refusable=True)  # (the last one may be under way)


def main() -> int:
    directory, acks, sync = sys.argv[1:]

    @contextmanager
    def steps() -> Iterator[Callable[[int], None]]:
        with server(Path(directory), sync == "1") as client:
            yield partial(command, client)

    return make_steps(acks, steps())


if __name__ == "__main__":
    sys.exit(main())
