#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Runs unit tests, hook programs and kill tests in machines of qemu: other kernels of Debian, and aarch64.

The kernel is fetched from Debian's archive, not installed.  The guest's root is this system, read-only.  For another
architecture it is a small Debian that is unpacked below the user's cache directory, and the library and the tests are
cross-compiled against it.  Tests run on an ext4 disk.  Every instruction is emulated, so the longest tests are left
out.  With --kvm (which not every virtual machine has) the processors are this machine's, and all run.

Ends with `N passed, N failed, N skipped`.  A machine that cannot be had counts as one skipped test with its reason.
Needs no root.  Uses the standard library only; the hook programs and kill tests need the Python parts in .venv.
"""

from __future__ import annotations

import argparse
import os
import platform
import re
import shutil
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

from lib.release import MIRROR, UnavailableError, cache_base, call, last_line, only_one, prepare, update
from lib.tap import Totals
from power import system
from surroundings.machine import Archive, modules_of

ROOT = Path(__file__).resolve().parent.parent
MODULES = (
    *("virtio_pci", "virtio_blk", "9pnet_virtio", "9p"),
    *("crc32c_generic", "crc32c_arm64", "ext4", "overlay", "loop", "fuse", "virtio_rng"),
)
# What a guest of another architecture needs to build and to run.
PACKAGES = (
    *(
        "libc6",
        "dash",
        "bash",
        "coreutils",
        "grep",
        "sed",
        "findutils",
        "procps",
        "util-linux",
        "mount",
        "e2fsprogs",
    ),
    *("gcc", "libc6-dev", "libcmocka-dev", "libinih-dev", "libaio-dev", "liburing-dev", "python3"),
)
USERS = "root:x:0:0:root:/root:/bin/sh\nnobody:x:65534:65534:nobody:/nonexistent:/usr/sbin/nologin\n"
GROUPS = "root:x:0:\nnogroup:x:65534:\n"
DISK_BYTES = 8 << 30
MEMORY_MB = 3072
TIMEOUT_SECONDS = {True: 3600, False: 4 * 3600}  # with KVM, and without: ends what hangs
TOTALS = re.compile(r"^(\d+) passed, (\d+) failed, (\d+) skipped$")
UNITS = "--units build-debug"
HOOKS = "tests/test_hooks.py"
KILL = "tests/test_kill_points.py tests/test_kill_random.py"
# Those that end within minutes where each instruction is emulated.
HOOKS_FEW = "--hooks build --without test_step test_preempt test_pointer"
KILL_FEW = "test_every_step[sequential] or test_every_step[append-auto] or test_random_kills"
KILLS_FEW = 20  # of test_random_kills


@dataclass(frozen=True)
class Kind:
    """A machine: a release's kernel, and the architecture."""

    name: str
    release: str
    architecture: str  # as Debian calls it
    root_release: str = ""  # "": this system


KINDS = {
    kind.name: kind
    for kind in (
        Kind("bullseye", "bullseye", "amd64"),
        Kind("bookworm", "bookworm", "amd64"),
        Kind("trixie", "trixie", "amd64"),
        Kind("arm64", "bookworm", "arm64", "bookworm"),
        Kind("trixie-arm64", "trixie", "arm64", "bookworm"),
    )
}
OURS = {"x86_64": "amd64", "aarch64": "arm64"}[platform.machine()]
EMULATORS = {
    "amd64": ("qemu-system-x86_64", "q35", "ttyS0"),
    "arm64": ("qemu-system-aarch64", "virt", "ttyAMA0"),
}
TRIPLETS = {"amd64": "x86_64-linux-gnu", "arm64": "aarch64-linux-gnu"}

# The first program of the guest.  {console}, {shares}, {script} are filled in.
INIT = """#!/bin/busybox sh
/bin/busybox --install -s /bin
export PATH=/bin
mount -t proc proc /proc
mount -t sysfs sys /sys
mount -t devtmpfs dev /dev
for module in /modules/*; do insmod $module; done
until [ -b /dev/vda ]; do sleep 0.1; done
share() {{ mount -t 9p -o trans=virtio,version=9p2000.L,msize=262144,cache=loose,ro $1 $2 || echo "no share $1"; }}
share root /root
mount -t ext4 /dev/vda /disk
mkdir -p /disk/tmp /disk/build /disk/build-debug
chmod 1777 /disk/tmp
mount --bind /disk/tmp /root/tmp
mkdir -p /root/tmp/var
mount --bind /disk/tmp /root/var/tmp
mount -t tmpfs run /root/run
mkdir -p /root/run/repo /root/run/packages /root/run/lock
share repo /root/run/repo
share packages /root/run/packages
for build in build build-debug; do
	[ -d /root/run/repo/$build ] || continue
	from=/root/run/repo/$(cat /etc/$build)
	for name in libfastwrite.so fastwrite exports.map tests fuzz-corpus; do
		[ -e $from/$name ] && cp -r $from/$name /disk/$build
	done
	[ -e /disk/$build/fuzz-corpus ] || cp -r /root/run/repo/build/fuzz-corpus /disk/$build
	mount --bind /disk/$build /root/run/repo/$build
done
ln -s /proc/self/fd /dev/fd
mount --move /dev /root/dev
mkdir -p /root/dev/shm /root/dev/pts
mount -t tmpfs shm /root/dev/shm
mount -t devpts pts /root/dev/pts
mount --move /proc /root/proc
mount --move /sys /root/sys
ip link set lo up
hostname machine
cp /etc/tests /root/run/tests
exec switch_root -c /dev/{console} /root /bin/sh /run/tests
"""

TESTS = """
export PATH=/usr/sbin:/usr/bin:/sbin:/bin HOME=/tmp LC_ALL=C.UTF-8 TMPDIR=/tmp PYTHONDONTWRITEBYTECODE=1
export PYTHONPATH=/run/packages FASTWRITE_TEST_JOBS={jobs} FASTWRITE_TEST_TIMEOUT=3600 TERM=dumb PY_COLORS=0
cd /run/repo
echo "== Linux $(uname -r) on $(uname -m), $(nproc) processors; begun after $(cut -d' ' -f1 /proc/uptime) s"
{commands}
echo "== ended after $(cut -d' ' -f1 /proc/uptime) s"
echo o >/proc/sysrq-trigger
sleep 60
"""


# ---- what the machine is made of ----


def fetch_kernel(kind: Kind, place: Path, mirror: str) -> Path:
    """A directory with boot/ and lib/modules/, and busybox."""
    with only_one(place):
        kernel = place / "kernel"
        if kernel.exists():
            return kernel
        options = update(kind.release, place / "apt", mirror, kind.architecture)
        depends = call(["apt-cache", *options, "depends", f"linux-image-{kind.architecture}"]).stdout
        names = re.findall(r"Depends: (linux-image-\S+)", depends)
        if not names:
            raise UnavailableError(f"{kind.release} has no linux-image-{kind.architecture}")
        fresh = place / "kernel.new"
        shutil.rmtree(fresh, ignore_errors=True)
        fresh.mkdir()
        # (what newer releases have below usr/lib, the older have in lib)
        (fresh / "usr" / "lib").mkdir(parents=True)
        (fresh / "lib").symlink_to("usr/lib")
        for name in (names[0], "busybox-static"):
            done = subprocess.run(
                ["apt-get", *options, "-qq", "download", name],
                cwd=fresh,
                capture_output=True,
                text=True,
                check=False,
            )
            if done.returncode != 0:
                raise UnavailableError(f"{name} cannot be downloaded: {last_line(done.stderr)}")
        for package in fresh.glob("*.deb"):
            with subprocess.Popen(["dpkg-deb", "--fsys-tarfile", package], stdout=subprocess.PIPE) as content:
                subprocess.run(
                    ["tar", "-x", "-C", fresh, "--keep-directory-symlink", "--no-same-owner"],
                    stdin=content.stdout,
                    check=True,
                )
            package.unlink()
        fresh.rename(kernel)
        return kernel


def busybox_of(kernel: Path) -> Path:
    return next(path for path in (kernel / "bin/busybox", kernel / "usr/bin/busybox") if path.exists())


def make_root(kind: Kind, place: Path, mirror: str) -> Path:
    if not kind.root_release:
        return Path("/")
    root, _ = prepare(kind.root_release, place, mirror, PACKAGES, kind.architecture)
    (root / "etc/passwd").write_text(USERS)
    (root / "etc/group").write_text(GROUPS)
    for name in ("run", "sys", "root", "var/tmp"):
        (root / name).mkdir(parents=True, exist_ok=True)
    compiler = root / "usr/bin/cc"
    if not compiler.exists():
        compiler.symlink_to("gcc")
    return root


def cross_build(kind: Kind, root: Path, build: str, debug: bool) -> None:
    triplet = TRIPLETS[kind.architecture]
    if not shutil.which(f"{triplet}-gcc"):
        raise UnavailableError(f"{triplet}-gcc is not installed (package gcc-{triplet})")
    libraries = root / "usr/lib" / triplet
    compiler = f"{triplet}-gcc --sysroot={root} -B{libraries} -L{libraries}"
    tools = [f"CC={compiler}", f"AR={triplet}-ar", f"BUILD={build}", f"DEBUG={int(debug)}"]
    done = call(
        ["make", "-C", ROOT, "-s", f"-j{os.cpu_count()}", *tools, "build-all", "units", "hooks"], 3600
    )
    if done.returncode != 0:
        raise UnavailableError(f"cross-compiling failed:\n{done.stderr}")


def packages_of_python() -> Path | None:
    found = sorted((ROOT / ".venv/lib").glob("python3*/site-packages"))
    return found[-1].resolve() if found and (found[-1] / "pytest").exists() else None


def pytest_of(files: str, keyword: str, python: bool) -> str:
    if not python:
        return f"echo 'skipped: {files}: no Python parts in .venv'; echo 0 passed, 0 failed, 1 skipped"
    return f"python3 tests/run_all.py --build build --python -- {files}" + (
        f" -k '{keyword}'" if keyword else ""
    )


def commands_of(suites: list[str], few: bool, keyword: str, python: bool) -> str:
    """Of the shell, one a line."""
    runner = "python3 tests/run_all.py --build build"
    lines = [f"{runner} {UNITS}"] if "units" in suites else []
    if "hooks" in suites and few and not keyword:
        lines.append(f"{runner} {HOOKS_FEW}")
    elif "hooks" in suites:
        lines.append(pytest_of(HOOKS, keyword, python))
    if "kill" in suites:
        lines.append(pytest_of(KILL, keyword or (KILL_FEW if few else ""), python))
    return "\n".join(f'{line}; echo "== status $?"' for line in lines)


def make_initramfs(kind: Kind, kernel: Path, tests: str, builds: tuple[str, str]) -> bytes:
    archive = Archive()
    for name in ("bin", "dev", "disk", "etc", "modules", "proc", "root", "sys"):
        archive.entry(name, 0o40755)
    archive.entry("dev/console", 0o20600, device=(5, 1))
    archive.entry("init", 0o100755, INIT.format(console=EMULATORS[kind.architecture][2]).encode())
    archive.entry("etc/tests", 0o100644, tests.encode())
    for name, place in zip(("build", "build-debug"), builds, strict=True):
        archive.entry(f"etc/{name}", 0o100644, place.encode())
    archive.entry("bin/busybox", 0o100755, busybox_of(kernel).read_bytes())
    for number, module in enumerate(modules_of(kernel, MODULES)):
        archive.entry(f"modules/{number:02}.ko", 0o100644, module)
    return archive.finish()


# ---- running it ----


def share(tag: str, path: Path) -> list[str]:
    local = f"local,id={tag},path={path},security_model=none,readonly=on,multidevs=remap"
    return ["-fsdev", local, "-device", f"virtio-9p-pci,fsdev={tag},mount_tag={tag}"]


def emulator(
    kind: Kind, kernel: Path, place: Path, shares: dict[str, Path], kvm: bool, smp: int
) -> list[str]:
    program, machine, console = EMULATORS[kind.architecture]
    (vmlinuz,) = kernel.glob("boot/vmlinuz-*")
    line = f"console={console} loglevel=1 panic=-1 random.trust_cpu=on mitigations=off sysrq_always_enabled"
    command = [program, "-M", machine, *(["-accel", "kvm", "-cpu", "host"] if kvm else [])]
    if not kvm:
        command += [
            "-accel",
            "tcg,thread=multi",
            "-cpu",
            "max,pauth-impdef=on" if machine == "virt" else "max",
        ]
    command += ["-smp", str(smp), "-m", str(MEMORY_MB), "-no-reboot", "-nodefaults", "-no-user-config"]
    command += ["-display", "none", "-serial", f"file:{place / 'console'}", "-device", "virtio-rng-pci"]
    command += ["-kernel", str(vmlinuz), "-initrd", str(place / "initramfs"), "-append", line]
    command += ["-drive", f"file={place / 'disk'},format=raw,if=none,id=disk,cache=unsafe,discard=unmap"]
    command += ["-device", "virtio-blk-pci,drive=disk"]
    for tag, path in shares.items():
        command += share(tag, path)
    return command


def run(command: list[str], console: Path, seconds: float) -> tuple[list[str], str]:
    """What the machine says, line by line; and why it was ended, if it was.  Shows lines as they come."""
    lines: list[str] = []
    limit = time.monotonic() + seconds
    with subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        preexec_fn=system.die_with_parent,
    ) as process:
        position, rest, why = 0, "", ""
        while True:
            ended = process.poll() is not None
            if console.exists():
                with console.open(errors="replace", newline="") as file:
                    file.seek(position)
                    rest += file.read()
                    position = file.tell()
            *whole, rest = rest.split("\n")
            for line in (part.rstrip("\r") for part in whole):
                lines.append(line)
                print(f"  {line}", flush=True)
            if ended:
                break
            if time.monotonic() > limit:
                why = f"too slow: not done after {seconds:.0f} s"
                process.kill()
            time.sleep(0.2)
        if process.returncode != 0 and not why:
            why = f"{command[0]} ended with status {process.returncode}: {process.stderr.read()[-2000:]}"
    return lines, why


def count(lines: list[str], why: str, parts: int) -> Totals:
    """Each part ends with a line of totals and its status."""
    totals = Totals()
    if why:
        totals.fail(why)
    found = [TOTALS.match(line) for line in lines]
    sums = [[int(number) for number in match.groups()] for match in found if match]
    for passed, failed, skipped in sums:
        totals.add(Totals(passed, failed, skipped))
    statuses = [int(line.split()[-1]) for line in lines if re.match(r"^== status \d+$", line)]
    if len(sums) != parts or len(statuses) != parts:
        totals.fail(f"{len(sums)} of {parts} parts told their totals")
    if totals.failed == 0 and any(statuses):
        totals.fail("a part failed, although no test did")
    if totals.passed == 0 and totals.failed == 0:
        totals.fail("nothing was tested")
    return totals


def run_kind(kind: Kind, options: argparse.Namespace) -> tuple[Totals, str]:
    """Boots the machine; also what it was, for the table."""
    program = EMULATORS[kind.architecture][0]
    for tool in ("apt-get", "dpkg-deb", "mkfs.ext4", program):
        if shutil.which(tool, path=f"{os.environ['PATH']}:/usr/sbin:/sbin") is None:
            raise UnavailableError(f"{tool} is not installed (scripts/deps machines)")
    kvm = options.kvm and kind.architecture == OURS
    builds = ("build", "build-debug")
    kernel = fetch_kernel(kind, cache_base("machine") / kind.name, options.mirror)
    root = make_root(
        kind, cache_base("machine") / f"root-{kind.root_release}-{kind.architecture}", options.mirror
    )
    if kind.architecture != OURS:
        builds = (f"build-machine-{kind.architecture}", f"build-machine-{kind.architecture}-debug")
        for build, debug in zip(builds, (False, True), strict=True):
            cross_build(kind, root, build, debug)
    python = packages_of_python()
    suites = options.suites
    commands = commands_of(suites, few=not kvm, keyword=options.keyword, python=python is not None)
    tests = TESTS.format(jobs=options.smp + 1, commands=commands)
    if not kvm:
        tests = f"export FASTWRITE_TEST_KILLS={KILLS_FEW}\n{tests}"
    with tempfile.TemporaryDirectory(prefix="fastwrite-machine-", dir=ROOT / "build") as name:
        place = Path(name)
        (place / "initramfs").write_bytes(make_initramfs(kind, kernel, tests, builds))
        with (place / "disk").open("wb") as disk:
            disk.truncate(DISK_BYTES)
        call(["/usr/sbin/mkfs.ext4", "-q", "-E", "lazy_itable_init=1", place / "disk"])
        shares = {"root": root, "repo": ROOT, **({"packages": python} if python else {})}
        begun = time.monotonic()
        command = emulator(kind, kernel, place, shares, kvm, options.smp)
        lines, why = run(command, place / "console", TIMEOUT_SECONDS[kvm])
    totals = count(lines, why, len(suites))
    version = next(
        (line[3:].split(";")[0] for line in lines if line.startswith("== Linux ")), "it did not boot"
    )
    how = "KVM" if kvm else "emulated"
    return totals, f"{kind.name}: {version}, {how}: {totals.line()}, {time.monotonic() - begun:.0f} s"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--mirror", default=MIRROR, help="Debian mirror (%(default)s)")
    parser.add_argument("--kvm", action="store_true", help="use KVM, with which all tests run")
    parser.add_argument("--smp", type=int, default=2, help="processors of a machine (%(default)s)")
    parser.add_argument(
        "--suites", nargs="+", choices=("units", "hooks", "kill"), default=["units", "hooks", "kill"]
    )
    parser.add_argument("-k", dest="keyword", default="", help="only these tests of pytest's")
    parser.add_argument("machines", nargs="*", help=f"of {', '.join(KINDS)} (default: all but the last)")
    options = parser.parse_args()

    chosen = options.machines or list(KINDS)[:-1]
    if wrong := [name for name in chosen if name not in KINDS]:
        parser.error(f"{wrong[0]}: allowed are {', '.join(KINDS)}")
    totals, table = Totals(), []
    for name in chosen:
        print(f"== {name}", flush=True)
        try:
            more, row = run_kind(KINDS[name], options)
        except UnavailableError as reason:
            more, row = Totals(skipped=1, notes=[f"{name}: {reason}"]), f"{name}: {last_line(str(reason))}"
        totals.add(more)
        table.append(row)
    for text in (*(f"skipped: {note}" for note in totals.notes), *totals.wrong, *table):
        print(text)
    print(totals.line(), flush=True)
    return 1 if totals.failed else 0


if __name__ == "__main__":
    sys.exit(main())
