# SPDX-License-Identifier: Apache-2.0
"""repository.py DIRECTORY ACKS SYNC: numbered commits to a Git repository, each by processes of their own.

Each adds a line to one file, and changes another one.  ACKS is as in steps.c.  It runs by itself, under the
library or natively, and waits to be killed."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from contextlib import nullcontext
from pathlib import Path

from power.numbered import make_steps

FILES = 7
PACK_EVERY = 40  # commits
CONFIG = {
    "user.name": "nobody",
    "user.email": "nobody@localhost",
    "gc.auto": "0",
    "core.fsyncMethod": "fsync",
}


def missing() -> str:
    return "" if shutil.which("git") else "git is not installed"


def git(directory: Path, *words: str, sync: bool = True) -> str:
    settings = {**CONFIG, "core.fsync": "all" if sync else "none"}
    options = [word for key, value in settings.items() for word in ("-c", f"{key}={value}")]
    done = subprocess.run(
        ["git", "-C", str(directory), *options, *words],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode != 0:
        raise OSError(f"git {words[0]}: status {done.returncode}: {done.stdout}{done.stderr}")
    return done.stdout


def lines(number: int) -> str:
    return "".join(f"{n}\n" for n in range(1, number + 1))


def content(number: int) -> dict[str, str]:
    """Name -> content, of commit `number`."""
    last = {f"file{n % FILES}": f"{n}\n" * 50 for n in range(max(1, number - FILES + 1), number + 1)}
    return {"lines": lines(number), **last}


def sync_directory(path: Path) -> None:
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def prepare(directory: Path) -> None:
    git(directory, "init", "-q", "-b", "main")
    (directory / "lines").write_text("")
    git(directory, "add", "lines")
    git(directory, "commit", "-q", "-m", "0")


def look(directory: Path) -> tuple[int, str]:
    """The last commit that is there, and what is wrong."""
    try:
        git(directory, "fsck", "--full", "--strict", "--no-dangling")
        newest = int(git(directory, "log", "-1", "--format=%s"))
        if int(git(directory, "rev-list", "--count", "HEAD")) != newest + 1:
            return newest, f"commit {newest} has another history"
        for name, text in content(newest).items():
            if git(directory, "show", f"HEAD:{name}") != text:
                return newest, f"commit {newest} has another {name}"
        return newest, wrong_files(directory, newest)
    except OSError as error:
        return 0, str(error)


def wrong_files(directory: Path, newest: int) -> str:
    """The files beside the repository are of the last commit, or on the way to the next one."""
    for name, text in content(newest).items():
        path = directory / name
        found = path.read_text() if path.exists() else "nothing"
        if found not in (text, content(newest + 1).get(name, text)):
            return f"after commit {newest} {name} has {len(found)} bytes: ...{found[-40:]!r}"
    return ""


def write(path: Path, text: str, sync: bool) -> None:
    """A new file in place of the old one, as editors do it."""
    fresh = path.with_suffix(".new")
    with fresh.open("w") as file:
        file.write(text)
        file.flush()
        if sync:
            os.fsync(file.fileno())
    fresh.rename(path)


def commit(directory: Path, number: int, sync: bool) -> None:
    with (directory / "lines").open("a") as file:
        file.write(f"{number}\n")
        file.flush()
        if sync:
            os.fsync(file.fileno())
    name = f"file{number % FILES}"
    write(directory / name, content(number)[name], sync)
    git(directory, "add", "lines", name, sync=sync)
    git(directory, "commit", "-q", "-m", str(number), sync=sync)
    if number % PACK_EVERY == 0:
        git(directory, "repack", "-q", "-a", "-d", sync=sync)
        git(directory, "pack-refs", "--all", sync=sync)
    if sync:  # Git syncs files, and no names
        sync_directory(directory / ".git" / "refs" / "heads")


def main() -> int:
    directory, acks, sync = sys.argv[1:]
    return make_steps(acks, nullcontext(lambda number: commit(Path(directory), number, sync == "1")))


if __name__ == "__main__":
    sys.exit(main())
