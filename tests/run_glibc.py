#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Runs the hook programs against the C libraries of other Debian releases, and says which these were.

For each release a small system (the C library, a shell, cat) is unpacked below the user's cache directory and entered
by chroot in a mount namespace of its own.  Newer C libraries get the programs and the library as built here; for older
ones these are built against that release.  Ends with `N passed, N failed, N skipped`; a release that cannot be had
counts as one skipped test with its reason.  Uses the standard library only.
"""

from __future__ import annotations

import argparse
import ctypes
import os
import platform
import re
import shutil
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from lib.jobs import Job, Outcome, Record, run_jobs
from lib.release import KEYRING, MIRROR, UnavailableError, cache_base, call, prepare
from lib.support import clean_environment, complaints, disk_base, parse_stats, too_slow
from lib.tap import Totals, parse_tap

ROOT = Path(__file__).resolve().parent.parent
RELEASES = ("bullseye", "bookworm", "trixie", "sid")
PACKAGES = ("libc6", "dash", "coreutils")
BUILD_PACKAGES = ("libc6-dev", "libcmocka-dev", "libinih-dev")
PROGRAM_TIMEOUT_SECONDS = 900  # ends what hangs, also on a machine with much else to do
MODES: dict[str, dict[str, str] | None] = {
    "native": None,
    "default": {},
    "smallest": {"FASTWRITE_MEM": "1M", "FASTWRITE_BLOCK": "64K", "FASTWRITE_LAG_MS": "1"},
}
# A directory that no rule matches, for tests of what the library does to other files.
PATHS = "!/data/outside/**:/data/**"
# Writes that must have been staged, so that no program passes with the library asleep.
AT_LEAST = {"test_stdio": 3000, "test_stdio_model": 10000}
# These take longest: begun first.
LONG = ("test_pointer", "test_family", "test_thread", "test_exec")
# Programs that cannot be built against an older C library, or its headers of the kernel.
NEWER = {
    "test_namespaces": ("2.36", "about mount_setattr and others that it does not have"),
    "test_async": ("2.36", "needs a liburing of its time"),
    "test_unhooked": ("2.36", "needs a liburing of its time"),
    "test_handle": ("2.36", "about pidfd_getfd and others that it does not have"),
}
# Programs that are about the library's own instructions, not about the C library's.
NOT_HERE = {
    "test_step": "a minute in each mode, for instructions that are the same with every C library",
    "test_preempt": "a minute in each mode, for system calls that are the same with every C library",
}
LIBC_ITSELF = re.compile(r"^(libc|libm|libdl|librt|libpthread|libutil|ld-linux.*)\.so")
# $1 the system, $2 the working directory, $3 the build; then the command inside
ENTER = """
mkdir -p "$1/data" && mount --bind "$2" "$1/data" && mount --bind "$3" "$1/build" &&
mount --rbind /proc "$1/proc" && mount --rbind /dev "$1/dev" || exit 125
root=$1; shift 3
exec chroot "$root" /usr/bin/env -i -C /data PATH=/usr/bin:/bin "$@"
"""


class BuildError(Exception):
    """What is tested cannot be built against a release."""


@dataclass(frozen=True)
class System:
    """An unpacked release."""

    release: str
    version: str
    root: Path


def prepare_system(release: str, mirror: str) -> System:
    """The release, unpacked."""
    root, names = prepare(release, cache_base("glibc") / release, mirror, PACKAGES + BUILD_PACKAGES)
    version = re.search(r"^libc6_([0-9]+\.[0-9]+)", names, re.MULTILINE)
    if not version:
        raise UnavailableError(f"{release}: no libc6 among its packages")
    return System(release, version[1], root)


# ---- running in it ----


def namespace() -> list[str]:
    """How to get a mount namespace: as root, else as the root of a user namespace."""
    for flags in (["--mount"], ["--mount", "--map-root-user"]):
        if call(["unshare", *flags, "mount", "--bind", "/tmp", "/tmp"]).returncode == 0:
            return ["unshare", *flags]
    raise UnavailableError("neither root nor user namespaces: nothing can be mounted")


def run_program(
    system: System, enter: list[str], build: Path, program: str, mode: str, settings: dict[str, str] | None
) -> Outcome:
    """One program; settings: of the library, None runs natively."""
    variables = ["CMOCKA_MESSAGE_OUTPUT=TAP", "LD_LIBRARY_PATH=/build/lib"]
    if settings is not None:
        settings = {
            "FASTWRITE_PATHS": PATHS,
            "FASTWRITE_STATS": "stderr",
            "FASTWRITE_ADAPT": "off",
            **settings,
        }
        variables += [f"{name}={value}" for name, value in settings.items()]
        variables.append("LD_PRELOAD=/build/libfastwrite.so")
    work = Path(tempfile.mkdtemp(prefix="fastwrite-glibc-", dir=disk_base()))
    try:
        inside = ["sh", "-c", ENTER, "sh", system.root, work, build, *variables, f"/build/tests/{program}"]
        try:
            done = call([*enter, *inside], PROGRAM_TIMEOUT_SECONDS)
        except subprocess.TimeoutExpired:
            return Outcome(Totals(failed=1, wrong=[too_slow(PROGRAM_TIMEOUT_SECONDS, program)]))
        totals = parse_tap(program, done.stdout, done.returncode)
        # a program's children may end a moment after it
        limit = time.monotonic() + 5
        while (left := sorted(os.listdir(work))) and time.monotonic() < limit:
            time.sleep(0.05)
    finally:
        shutil.rmtree(work, ignore_errors=True)
    if totals.passed == 0 and totals.failed == 0:
        totals.fail("nothing was tested")
    if settings is not None:
        stats = parse_stats(done.stderr)
        if said := complaints(program, done.stderr):
            totals.fail(f"the library said: {said[0]}")
        if stats.bytes < 1000 or stats.writes < AT_LEAST.get(program, 0):
            totals.fail(f"only {stats.writes} writes were staged, {stats.bytes} bytes")
    if left:
        totals.fail(f"left behind: {' '.join(left)}")
    totals.notes = [f"glibc {system.version}, {mode}: {note}" for note in totals.notes]
    return Outcome(totals, f"status {done.returncode}\n{done.stdout}\n{done.stderr}")


def build_for(system: System, programs: list[str]) -> Path:
    """The library and the programs, built against an older release."""
    build = ROOT / f"build-glibc-{system.release}"
    libraries = next((system.root / "usr" / "lib").glob("*-linux-gnu"))
    compiler = f"cc --sysroot={system.root} -B{libraries} -L{libraries}"
    targets = ["library", *(f"{build}/tests/{program}" for program in programs)]
    done = call(
        ["make", "-C", ROOT, "-s", f"-j{os.cpu_count()}", f"BUILD={build}", f"CC={compiler}", *targets]
    )
    if done.returncode != 0:
        raise BuildError(f"building against {system.release} failed:\n{done.stderr}")
    return build


def lend_libraries(build: Path, programs: list[str]) -> None:
    """Programs built here keep this system's other libraries: a release may have none, or other versions."""
    (build / "lib").mkdir(exist_ok=True)
    for program in programs:
        listing = call(["ldd", build / "tests" / program]).stdout
        for name, path in re.findall(r"^\s*(\S+) => (/\S+)", listing, re.MULTILINE):
            if not LIBC_ITSELF.match(name):
                shutil.copy(path, build / "lib" / name)


def own_release() -> str:
    try:
        return platform.freedesktop_os_release().get("VERSION_CODENAME", "")
    except OSError:
        return ""


def number(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in version.split("."))


def jobs_of(
    system: System, enter: list[str], build: Path, own: str, modes: list[str]
) -> tuple[list[Job], Totals]:
    """What is to be run in a release, and what is skipped there."""
    totals = Totals()
    programs = sorted(path.stem for path in (ROOT / "tests" / "hooks").glob("*.c"))
    for program, reason in NOT_HERE.items():
        if program in programs:
            programs.remove(program)
            totals.add(Totals(skipped=1, notes=[f"glibc {system.version}: {program}: {reason}"]))
    if number(system.version) < number(own):
        for program, (needed, reason) in NEWER.items():
            if number(system.version) < number(needed) and program in programs:
                programs.remove(program)
                totals.add(Totals(skipped=1, notes=[f"glibc {system.version}: {program}: {reason}"]))
        build = build_for(system, programs)
    lend_libraries(build, programs)
    jobs = [
        Job(
            f"glibc {system.version}: {program}, {mode}",
            partial(run_program, system, enter, build, program, mode, MODES[mode]),
        )
        for program in sorted(programs, key=lambda program: program not in LONG)
        for mode in modes
    ]
    return jobs, totals


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--build", type=Path, default=ROOT / "build", help="build directory of this system")
    parser.add_argument("--mirror", default=MIRROR, help="Debian mirror (%(default)s)")
    parser.add_argument(
        "--others", action="store_true", help="not this system's own, with which make test runs"
    )
    parser.add_argument("--modes", nargs="+", choices=MODES, default=list(MODES), help="(%(default)s)")
    parser.add_argument("releases", nargs="*", default=RELEASES, help="Debian releases (%(default)s)")
    options = parser.parse_args()

    os.environ.update(clean_environment())
    for name in [n for n in os.environ if re.match("FASTWRITE_(?!TEST_)|LD_PRELOAD$", n)]:
        del os.environ[name]
    libc = ctypes.CDLL(None)
    libc.gnu_get_libc_version.restype = ctypes.c_char_p
    own = libc.gnu_get_libc_version().decode()
    totals, covered, jobs = Totals(), [], []
    for release in options.releases:
        if options.others and release == own_release():
            covered.append(f"{own} ({release}, by make test)")
            continue
        try:
            for tool in ("apt-get", "dpkg-deb", "unshare", "chroot"):
                if shutil.which(tool) is None:
                    raise UnavailableError(f"{tool} is not installed")
            if not KEYRING.exists():
                raise UnavailableError(f"{KEYRING} is not there")
            enter = namespace()
            system = prepare_system(release, options.mirror)
        except UnavailableError as reason:
            totals.add(Totals(skipped=1, notes=[f"{release}: {reason}"]))
            continue
        try:
            more, skipped = jobs_of(system, enter, options.build.resolve(), own, options.modes)
        except BuildError as reason:
            print(reason, flush=True)
            totals.fail(f"{release}: not built")
            continue
        jobs += more
        totals.add(skipped)
        covered.append(f"{system.version} ({release})")
    record = Record()
    totals.add(run_jobs(jobs, record))
    for note in totals.notes:
        print(f"skipped: {note}")
    print(f"covered: glibc {', '.join(covered) or 'none'}; built here with {own}")
    print(record.table())
    record.hand_on()
    print(totals.line(), flush=True)
    return 1 if totals.failed else 0


if __name__ == "__main__":
    sys.exit(main())
