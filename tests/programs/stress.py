# SPDX-License-Identifier: Apache-2.0
"""stress-ng: its file stressors, which verify what they wrote and read."""

from __future__ import annotations

import re

from programs.case import Case
from programs.place import NEXT, Place

DATA = ("hdd", "iomix", "seek", "revio", "readahead", "sync-file", "copy-file", "fallocate", "fpunch")
NAMES = (
    *("access", "chmod", "chown", "dentry", "dir", "dirmany", "dup", "fcntl", "fiemap", "file-ioctl"),
    *("filename", "flock", "fsize", "fstat", "getdent", "inotify", "lease", "link", "locka", "lockf"),
    *("lockofd", "open", "rename", "symlink", "touch", "utime", "verity", "xattr", "sendfile", "sigio"),
)
WAYS_AROUND = ("aio", "aiol", "io-uring", "mmap", "msync", "mmapfork", "mmapfixed", "rmap")
HDD = (
    "wr-seq,rd-seq",
    "wr-rnd,rd-rnd",
    "direct",
    "dsync",
    "sync",
    "iovec,wr-seq",
    "fsync,wr-rnd",
    "fdatasync,wr-seq",
    "syncfs",
    "utimes,noatime",
    "fadv-rnd,rd-seq",
)
FAILURE = re.compile(r"^stress-ng: (?:fail|error): +\[\d+\] (.*)$", re.MULTILINE)
SKIPPED = re.compile(r"skipped|not implemented|not supported", re.IGNORECASE)


class Stress(Case):
    needs = {"stress-ng": "stress-ng"}  # noqa: RUF012
    survives = "nothing is acknowledged; recovery ends without a failure and leaves nothing"
    kills = 6

    def __init__(
        self, name: str, stressors: tuple[str, ...], quick: tuple[str, ...], unstaged: str = ""
    ) -> None:
        self.name = f"stress-ng --verify, {name}"
        self.stressors = stressors
        self.quick = quick
        self.unstaged = unstaged

    def command(self, place: Place, *words: str) -> list[str]:
        return ["stress-ng", "--temp-path", str(place.data), "--verify", "--seed", "1", *words]

    def known(self, place: Place, stressor: str) -> bool:
        """Versions differ in what they have."""
        text = place.run("stress-ng", "--stressors", shim=False).stdout
        return stressor in text.split()

    def one(self, place: Place, stressor: str, *options: str) -> str:
        ops = "60" if place.quick else "300"
        done = place.run(
            *self.command(place, f"--{stressor}", "1", f"--{stressor}-ops", ops, *options),
            *("--timeout", "10" if place.quick else "20"),
            cwd=place.aside,
            expect=(0, 2, 3, 4),
        )
        text = done.stdout + done.stderr
        failures = sorted({re.sub(r"\d+", "N", line) for line in FAILURE.findall(text)})
        return f"{done.returncode} {'skipped ' if SKIPPED.search(text) else ''}{' / '.join(failures)}".strip()

    def run(self, place: Place) -> object:
        found = {}
        for stressor in self.quick if place.quick else self.stressors:
            if not self.known(place, stressor):
                found[stressor] = "not in this version"
            elif stressor == "hdd":
                for options in HDD[:3] if place.quick else HDD:
                    size = ("--hdd-opts", options, "--hdd-bytes", "4m", "--hdd-write-size", "4k")
                    found[f"hdd {options}"] = self.one(place, "hdd", *size)
            else:
                found[stressor] = self.one(place, stressor)
        return found

    def kill(self, place: Place) -> None:
        stressors = [s for s in self.quick if self.known(place, s)]
        words = [word for s in stressors for word in (f"--{s}", "1")]
        if "hdd" in stressors:
            words += ["--hdd-write-size", "4k"]
        process = place.start(*self.command(place, *words, "--timeout", "60"), cwd=place.aside)

        def busy() -> bool:
            place.look()
            return process.popen.poll() is not None or bool(self.unstaged) or place.staged() > 100_000

        place.until(busy, "something is staged", every=0.1)
        place.pause(1.0)
        process.kill()
        place.bring_back()
        if place.way == NEXT:
            place.run("true")


CASES = [
    Stress(
        "writing and reading",
        DATA,
        ("hdd", "iomix", "revio"),
        "it takes the names of its files away before it writes to them",
    ),
    Stress(
        "names, locks, attributes",
        NAMES,
        ("flock", "lockf", "rename", "touch"),
        "these write no file twice, or almost none",
    ),
    Stress(
        "mapped and asynchronous",
        WAYS_AROUND,
        ("aio", "mmap"),
        "mapped files and asynchronous I/O pass to the kernel",
    ),
]
