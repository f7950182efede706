# SPDX-License-Identifier: Apache-2.0
"""One interface for containers of runc and of systemd-nspawn.

A container has pid, mount, ipc and uts namespaces of its own, and runs /fw/run.sh as its first process.  The directory
that the caller shares with it is /fw.  Each start has a boot id of its own: nspawn makes one; for runc a file with one
is mounted over the kernel's.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
import time
import uuid
from collections.abc import Iterator
from pathlib import Path

from power import system
from power.workload import FailedError

ENGINES = {"runc": "runc", "nspawn": "systemd-nspawn"}
NAMESPACES = ("pid", "mount", "ipc", "uts")
CAPABILITIES = (
    "CHOWN",
    "DAC_OVERRIDE",
    "DAC_READ_SEARCH",
    "FOWNER",
    "KILL",
    "LEASE",
    "SETGID",
    "SETUID",
    "SYS_ADMIN",
)
PATH = "PATH=/usr/sbin:/usr/bin:/sbin:/bin"
# A killed process leaves up to two leases (its own thread's and the flusher's) on descriptions that its worker keeps
# open.  An open for writing waits 45 s for each, and after an open for reading it waits once more.
PATIENCE_SECONDS = 150
OWN = "fastwrite-"
TOKEN = uuid.uuid4().hex[:8]  # two drivers may run at a time, each with the pid 1
CGROUPS = Path("/sys/fs/cgroup")
NSPAWN_LEAVES = ("payload", "supervisor")
OLD_SECONDS = 60
OTHER_BOOT = "mount --bind /fw/boot_id /proc/sys/kernel/random/boot_id || exit 90\n"


def missing() -> str:
    """Why there are no containers here; empty when there are."""
    for package, program in (
        ("runc", "runc"),
        ("systemd-container", "systemd-nspawn"),
        ("util-linux", "setpriv"),
    ):
        if not shutil.which(program):
            return f"{program} is missing (package {package}; scripts/deps surroundings)"
    return ""


def sweep() -> None:
    """Empty control groups: all that is left of a driver that was killed, and what nspawn leaves."""
    for parent in (CGROUPS, *CGROUPS.glob("*/")):
        for path in (*parent.glob(f"{OWN}*"), *(parent / name for name in NSPAWN_LEAVES)):
            with contextlib.suppress(OSError):  # gone, or somebody is in it
                if path.name.startswith(OWN + TOKEN) or time.time() - path.stat().st_mtime > OLD_SECONDS:
                    path.rmdir()


class Container:
    """A running one.  At the end of a `with` it is gone."""

    count = 0

    def __init__(
        self,
        engine: str,
        root: Path,
        shared: Path,
        binds: dict[Path, str],
        script: str = "",
        *,
        same_boot: bool = False,
        options: tuple[str, ...] = (),
    ) -> None:
        """Without a script the root's own init system is started, with these options (nspawn only)."""
        Container.count += 1
        self.engine = engine
        self.place = shared.parent
        self.name = f"{OWN}{TOKEN}-{Container.count}"
        self.said = shared / "container.out"
        (shared / "boot_id").write_text(f"{uuid.uuid4()}\n")
        (shared / "run.sh").write_text((OTHER_BOOT if engine == "runc" and not same_boot else "") + script)
        self.booted = not script
        self.options = options
        everything = {shared: "/fw", **binds}
        for inside in everything.values():
            (root / inside.lstrip("/")).mkdir(parents=True, exist_ok=True)
        command = getattr(self, engine)(root, everything)
        with self.said.open("wb") as said:
            self.popen = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=said, stderr=said, preexec_fn=system.die_with_parent
            )

    def __enter__(self) -> Container:
        return self

    def __exit__(self, *_: object) -> None:
        self.kill_all()
        if self.engine == "runc":
            state = str(self.place / "runc")
            subprocess.run(
                ["runc", "--root", state, "delete", "--force", self.name], capture_output=True, check=False
            )

    def nspawn(self, root: Path, binds: dict[Path, str]) -> list[str]:
        return [
            *("systemd-nspawn", "--quiet", "--register=no", "--keep-unit", "--console=pipe"),
            *(f"--directory={root}", f"--machine={self.name}"),
            *(f"--bind={outside}:{inside}" for outside, inside in binds.items()),
            *self.options,
            *(("--boot",) if self.booted else ("--", "/bin/sh", "/fw/run.sh")),
        ]

    def runc(self, root: Path, binds: dict[Path, str]) -> list[str]:
        bundle = self.place / "bundle"
        bundle.mkdir(exist_ok=True)
        rights = [f"CAP_{name}" for name in CAPABILITIES]
        config = {
            "ociVersion": "1.0.2",
            "process": {
                "user": {"uid": 0, "gid": 0},
                "args": ["/bin/sh", "/fw/run.sh"],
                "env": [PATH],
                "cwd": "/",
                "capabilities": dict.fromkeys(("bounding", "effective", "permitted"), rights),
            },
            "root": {"path": str(root)},
            "hostname": "container",
            "mounts": [
                {"destination": "/proc", "type": "proc", "source": "proc"},
                {
                    "destination": "/dev",
                    "type": "tmpfs",
                    "source": "tmpfs",
                    "options": ["nosuid", "mode=755"],
                },
                *(
                    {
                        "destination": inside,
                        "type": "bind",
                        "source": str(outside),
                        "options": ["rbind", "rw"],
                    }
                    for outside, inside in binds.items()
                ),
            ],
            "linux": {"namespaces": [{"type": kind} for kind in NAMESPACES]},
        }
        (bundle / "config.json").write_text(json.dumps(config))
        return ["runc", "--root", str(self.place / "runc"), "run", "--bundle", str(bundle), self.name]

    # ---- its processes ----

    def descendants(self) -> Iterator[int]:
        """Pids as we see them."""
        waiting = [self.popen.pid]
        while waiting:
            pid = waiting.pop()
            with contextlib.suppress(OSError):
                for task in Path(f"/proc/{pid}/task").iterdir():
                    children = [int(one) for one in (task / "children").read_text().split()]
                    waiting += children
                    yield from children

    def has(self, inner: int) -> bool:
        try:
            return bool(self.outer_pid(inner))
        except FailedError:
            return False

    def outer_pid(self, inner: int) -> int:
        """Our pid of the process that the container knows by `inner`."""
        for pid in self.descendants():
            with contextlib.suppress(OSError):
                for line in Path(f"/proc/{pid}/status").read_text().splitlines():
                    numbers = line.split()[1:] if line.startswith("NSpid:") else []
                    if len(numbers) > 1 and int(numbers[-1]) == inner and self.is_inside(numbers):
                        return pid
        raise FailedError(f"{self.name}: no process {inner}: {self.text()}")

    @staticmethod
    def is_inside(numbers: list[str]) -> bool:
        """One level below us; we may be in a pid namespace ourselves."""
        ours = next(
            line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("NSpid:")
        )
        return len(numbers) == len(ours.split()[1:]) + 1

    def kill(self, inner: int, number: int = signal.SIGKILL) -> None:
        os.kill(self.outer_pid(inner), number)

    def shut_down(self) -> None:
        """The init system stops its units, in order."""
        self.kill(1, signal.SIGRTMIN + 4)
        self.wait()

    def kill_all(self) -> None:
        """As when the container's first process is killed: the kernel kills the others."""
        if self.popen.poll() is None:
            try:
                self.kill(1)
            except (FailedError, ProcessLookupError):
                self.popen.terminate()
        self.wait()

    def wait(self) -> int:
        try:
            return self.popen.wait(PATIENCE_SECONDS)
        except subprocess.TimeoutExpired:
            self.popen.kill()
            self.popen.wait()
            raise FailedError(f"{self.engine}: the container does not end: {self.text()}") from None

    def text(self) -> str:
        return self.said.read_text(errors="replace")[-2000:]

    def until(self, true, what: str) -> None:
        """Waits; the container must not end meanwhile."""
        limit = time.monotonic() + PATIENCE_SECONDS
        while not true():
            if self.popen.poll() is not None:
                raise FailedError(
                    f"{self.engine}: ended with {self.popen.returncode} before {what}: {self.text()}"
                )
            if time.monotonic() > limit:
                raise FailedError(f"{self.engine}: {PATIENCE_SECONDS} s, and not {what}: {self.text()}")
            time.sleep(0.002)
