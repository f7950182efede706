# SPDX-License-Identifier: Apache-2.0
"""Packages of a Debian release, of this or another architecture, downloaded and unpacked into a directory.

Nothing is installed: apt gets lists, a cache and a state of its own.  What runs in the directory is up to the caller.
Uses the standard library only.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

MIRROR = "http://deb.debian.org/debian"
KEYRING = Path("/usr/share/keyrings/debian-archive-keyring.gpg")
FRESH_SECONDS = 7 * 24 * 3600


class UnavailableError(Exception):
    """A release cannot be had here, and why."""


def call(command: list[str | Path], timeout: float = 600) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [str(part) for part in command],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        errors="replace",
        timeout=timeout,
        check=False,
    )


def cache_base(name: str) -> Path:
    chosen = os.environ.get("XDG_CACHE_HOME")
    return (Path(chosen) if chosen else Path.home() / ".cache") / "fastwrite" / name


@contextmanager
def only_one(directory: Path) -> Iterator[None]:
    """Two runs must not unpack into each other."""
    directory.mkdir(parents=True, exist_ok=True)
    with (directory / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def last_line(text: str) -> str:
    lines = [line for line in text.splitlines() if line.strip()]
    return lines[-1].strip() if lines else "no message"


def apt_options(apt: Path, architecture: str) -> list[str]:
    """apt with lists, packages and knowledge of what is installed (nothing) of its own; architecture "": this one."""
    for part in ("state/lists/partial", "cache/archives/partial", "etc"):
        (apt / part).mkdir(parents=True, exist_ok=True)
    options = [
        f"-oDir::Etc::sourcelist={apt}/etc/sources.list",
        "-oDir::Etc::sourceparts=-",
        f"-oDir::State={apt}/state",
        f"-oDir::Cache={apt}/cache",
        "-oDir::State::status=/dev/null",
        "-oAPT::Sandbox::User=root",
        "-oAPT::Install-Recommends=false",
        "-oAPT::Update::Post-Invoke-Success::=/bin/true",
        "-oAcquire::Languages=none",
        "-oAcquire::IndexTargets::deb::DEP-11::DefaultEnabled=false",
        "-oAcquire::Retries=2",
    ]
    if architecture:
        options += [f"-oAPT::Architecture={architecture}", f"-oAPT::Architectures::={architecture}"]
    return options


def update(release: str, apt: Path, mirror: str, architecture: str = "") -> list[str]:
    """Gets the lists of a release.  The options with which apt uses them."""
    options = apt_options(apt, architecture)
    source = f"deb [signed-by={KEYRING}] {mirror} {release} main\n"
    (apt / "etc" / "sources.list").write_text(source)
    done = call(["apt-get", *options, "-qq", "--error-on=any", "update"])
    if done.returncode != 0:
        raise UnavailableError(f"{release} cannot be downloaded: {last_line(done.stderr)}")
    return options


def download(
    release: str, apt: Path, mirror: str, packages: tuple[str, ...], architecture: str = ""
) -> list[Path]:
    """The packages, with everything that they need."""
    options = update(release, apt, mirror, architecture)
    for command in (["-y", "--download-only", "install", *packages], ["autoclean"]):
        done = call(["apt-get", *options, "-qq", *command])
        if done.returncode != 0:
            raise UnavailableError(f"{release} cannot be downloaded: {last_line(done.stderr)}")
    return sorted((apt / "cache" / "archives").glob("*.deb"))


def make_links_relative(root: Path) -> None:
    """A link to /lib/... would lead the linker, which is outside, to this system's files."""
    for directory in (root / "usr" / "lib", root / "usr" / "lib64"):
        for path in directory.rglob("*"):
            if path.is_symlink() and (target := os.readlink(path)).startswith("/"):
                path.unlink()
                path.symlink_to(os.path.relpath(str(root) + target, path.parent))


def unpack_package(package: Path, root: Path) -> None:
    with subprocess.Popen(["dpkg-deb", "--fsys-tarfile", package], stdout=subprocess.PIPE) as content:
        done = subprocess.run(
            ["tar", "-x", "-C", root, "--keep-directory-symlink", "--no-same-owner"],
            stdin=content.stdout,
            check=False,
        )
    if done.returncode != 0 or content.returncode != 0:
        raise UnavailableError(f"{package.name} cannot be unpacked")


def unpack(packages: list[Path], root: Path) -> None:
    shutil.rmtree(root, ignore_errors=True)
    for name in ("bin", "sbin", "lib", "lib64"):
        (root / "usr" / name).mkdir(parents=True)
        (root / name).symlink_to(f"usr/{name}")
    for package in packages:
        unpack_package(package, root)
    make_links_relative(root)
    for name in ("data", "build", "proc", "dev", "tmp"):
        (root / name).mkdir(exist_ok=True)
    shell = root / "usr" / "bin" / "sh"
    if not shell.exists():
        shell.symlink_to("dash")


def prepare(
    release: str, place: Path, mirror: str, packages: tuple[str, ...], architecture: str = ""
) -> tuple[Path, str]:
    """The release, unpacked below `place`, and the names of its packages, one a line.  An old copy will do when there
    is no network."""
    root, stamp = place / "root", place / "packages"
    with only_one(place):
        if not stamp.exists() or time.time() - stamp.stat().st_mtime > FRESH_SECONDS:
            try:
                files = download(release, place / "apt", mirror, packages, architecture)
                names = "".join(f"{file.name}\n" for file in files)
                if not stamp.exists() or stamp.read_text() != names:
                    stamp.unlink(missing_ok=True)
                    unpack(files, root)
                stamp.write_text(names)
            except UnavailableError as reason:
                if not stamp.exists():
                    raise
                print(f"{release}: as of {time.ctime(stamp.stat().st_mtime)}: {reason}", flush=True)
    return root, stamp.read_text()
