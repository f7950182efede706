# SPDX-License-Identifier: Apache-2.0
"""Containers as Docker and Kubernetes start them: a user without capabilities, Docker's default filter of system calls,
an overlay as root directory, read-only, and a limit of memory."""

from __future__ import annotations

import contextlib
import json
import os
import shlex
import shutil
import subprocess
from pathlib import Path

from lib.symbol_table import kernel_calls

from surroundings.container import CGROUPS, Container
from surroundings.rootfs import MERGED

UID = 1000
MIB = 1 << 20
EPERM, ENOSYS = 1, 38
ALLOW, REFUSE = "SCMP_ACT_ALLOW", "SCMP_ACT_ERRNO"
NAMESPACES = ("pid", "mount", "ipc", "uts", "network")
# What Docker leaves; a program of another user than root has none of them, and may get none (no_new_privileges).
CAPABILITIES = (
    "AUDIT_WRITE CHOWN DAC_OVERRIDE FOWNER FSETID KILL MKNOD NET_BIND_SERVICE NET_RAW SETFCAP SETGID SETPCAP SETUID "
    "SYS_CHROOT"
)
# What Docker's default filter refuses to a container without further capabilities.
REFUSED = """
_sysctl acct add_key afs_syscall bpf clock_settime create_module delete_module fanotify_init finit_module fsconfig
fsmount fsopen fspick get_kernel_syms get_mempolicy getpmsg init_module io_uring_enter io_uring_register io_uring_setup
ioperm iopl kcmp kexec_file_load kexec_load keyctl lookup_dcookie mbind migrate_pages mount mount_setattr move_mount
move_pages nfsservctl open_by_handle_at open_tree perf_event_open pidfd_getfd pivot_root process_madvise putpmsg
query_module quotactl quotactl_fd reboot request_key security set_mempolicy set_mempolicy_home_node setdomainname
sethostname setns settimeofday swapoff swapon sysfs syslog tuxcall umount2 unshare uselib userfaultfd ustat vhangup
vserver
"""
WITH_ARGUMENTS = {"clone", "clone3", "personality", "socket"}
NEW_NAMESPACES = 0x7E020000  # the flags of clone
AF_VSOCK = 40
MASKED = ("/proc/acpi", "/proc/kcore", "/proc/keys", "/proc/timer_list", "/proc/scsi", "/sys/firmware")
READ_ONLY = ("/proc/bus", "/proc/fs", "/proc/irq", "/proc/sys", "/proc/sysrq-trigger")
TMPFS = ["nosuid", "nodev", "noexec", "mode=1777", "size=64m"]


def _rule(name: str, index: int, value: int, op: str, other: int = 0) -> dict:
    test = {"index": index, "value": value, "valueTwo": other, "op": f"SCMP_CMP_{op}"}
    return {"names": [name], "action": ALLOW, "args": [test]}


def seccomp() -> dict:
    """Docker's default filter: a list of what is allowed, here of all that the kernel's headers have but REFUSED."""
    allowed = sorted(kernel_calls()[0] - set(REFUSED.split()) - WITH_ARGUMENTS)
    return {
        "defaultAction": REFUSE,
        "defaultErrnoRet": EPERM,
        "syscalls": [
            {"names": allowed, "action": ALLOW},
            _rule("socket", 0, AF_VSOCK, "NE"),
            *(_rule("personality", 0, value, "EQ") for value in (0, 8, 0x20000, 0x20008, 0xFFFFFFFF)),
            _rule("clone", 0, NEW_NAMESPACES, "MASKED_EQ"),
            {"names": ["clone3"], "action": REFUSE, "errnoRet": ENOSYS},
        ],
    }


def make_root(place: Path, tools: dict[Path, str]) -> Path:
    """An image: what a container has below its writable layer.  This system's /usr is mounted there."""
    root = place / "image"
    for name in ("data", "dev", "etc", "fw", "proc", "scratch", "staging", "sys", "tmp", "usr"):
        (root / name).mkdir(parents=True)
    for name in MERGED:
        if Path("/", name).is_symlink():
            (root / name).symlink_to(f"usr/{name}")
    for name in ("scratch", "staging", "tmp"):
        (root / name).chmod(0o1777)
    for source, inside in tools.items():
        to = root / inside.lstrip("/")
        to.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(source, to)
    return root


class Restricted(Container):
    """`volumes` are directories of this machine, by their path in the container; `layer` is the writable layer, which
    a container that is started again has and a new one has not."""

    def __init__(
        self,
        root: Path,
        shared: Path,
        command: list[object],
        volumes: dict[Path, str],
        *,
        env: dict[str, str] | None = None,
        memory: int = 64 * MIB,
        layer: Path | None = None,
        read_only: bool = True,
        tmpfs: tuple[str, ...] = (),
        groups: tuple[int, ...] = (),
        pids_of: Container | None = None,
        with_sys: bool = True,
    ) -> None:
        self.command = [str(part) for part in command]
        self.env = env or {}
        self.memory = memory
        self.read_only = read_only
        self.tmpfs = ("/dev/shm", *tmpfs)
        self.groups = groups
        self.pids_of = pids_of
        self.with_sys = with_sys
        self.shared = shared
        self.layer = layer or shared / "layer"
        for name in ("upper", "work", "merged"):
            (self.layer / name).mkdir(parents=True, exist_ok=True)
        super().__init__("runc", root, shared, volumes, same_boot=True)

    def runc(self, root: Path, binds: dict[Path, str]) -> list[str]:
        bundle = self.place / self.name
        bundle.mkdir()
        merged = self.layer / "merged"
        (bundle / "config.json").write_text(json.dumps(self.config(merged, binds)))
        options = f"lowerdir={root},upperdir={self.layer}/upper,workdir={self.layer}/work"
        # the mount goes with its namespace, whatever ends it
        mount = shlex.join(["mount", "-t", "overlay", "overlay", "-o", options, str(merged)])
        run = shlex.join([*self.runc_command(), "run", "--keep", "--bundle", str(bundle), self.name])
        return ["unshare", "--mount", "sh", "-c", f"{mount} && exec {run}"]

    def config(self, root: Path, binds: dict[Path, str]) -> dict:
        bounding = [f"CAP_{name}" for name in CAPABILITIES.split()]
        namespaces: list[dict[str, str]] = [{"type": kind} for kind in NAMESPACES]
        if self.pids_of:
            namespaces[0]["path"] = f"/proc/{self.pids_of.outer_pid(1)}/ns/pid"
        memory = {"limit": self.memory}
        if (
            not Path(CGROUPS, "memory").is_dir()
            or Path(CGROUPS, "memory/memory.memsw.limit_in_bytes").exists()
        ):
            memory["swap"] = self.memory
        mounts = [("/proc", "proc", "proc", []), ("/dev", "tmpfs", "tmpfs", ["nosuid", "mode=755"])]
        mounts += [("/sys", "sysfs", "sysfs", ["nosuid", "noexec", "nodev", "ro"])] if self.with_sys else []
        mounts += [(path, "tmpfs", "tmpfs", TMPFS) for path in self.tmpfs]
        mounts += [("/usr", "bind", "/usr", ["rbind", "ro"])]
        mounts += [(inside, "bind", str(outside), ["rbind", "rw"]) for outside, inside in binds.items()]
        return {
            "ociVersion": "1.0.2",
            "process": {
                "user": {"uid": UID, "gid": UID, "additionalGids": list(self.groups)},
                "args": self.command,
                "env": ["PATH=/usr/bin:/bin", *(f"{name}={value}" for name, value in self.env.items())],
                "cwd": "/",
                "capabilities": {"bounding": bounding},
                "noNewPrivileges": True,
            },
            "root": {"path": str(root), "readonly": self.read_only},
            "hostname": "container",
            "mounts": [
                dict(zip(("destination", "type", "source", "options"), mount, strict=True))
                for mount in mounts
            ],
            "linux": {
                "namespaces": namespaces,
                "cgroupsPath": f"/{self.name}",
                "resources": {"memory": memory},
                "seccomp": seccomp(),
                "maskedPaths": MASKED,
                "readonlyPaths": READ_ONLY,
            },
        }

    # ---- what one does with it ----

    def runc_command(self, *arguments: object) -> list[str]:
        return ["runc", "--root", str(self.place / "runc"), *map(str, arguments)]

    def do(self, *arguments: object) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            self.runc_command(*arguments), capture_output=True, text=True, check=False, timeout=60
        )

    def run_inside(self, *command: object, env: dict[str, str] | None = None) -> str:
        """Another program, with the rights of the first one."""
        options = [word for name, value in (env or {}).items() for word in ("--env", f"{name}={value}")]
        done = self.do("exec", *options, self.name, *command)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    def kill_it(self) -> None:
        done = self.do("kill", self.name, "KILL")
        assert done.returncode == 0, done.stderr
        self.wait()

    def killed_for_memory(self) -> int:
        """How often the kernel has killed one of its processes because the limit was reached."""
        for path in (
            CGROUPS / "memory" / self.name / "memory.oom_control",
            CGROUPS / self.name / "memory.events",
        ):
            with contextlib.suppress(FileNotFoundError):
                counts = dict(line.split() for line in path.read_text().splitlines())
                return int(counts["oom_kill"])
        return 0


def why_not(place: Path) -> str:
    """Why such containers cannot run here; empty when they can."""
    if os.geteuid() != 0:
        return "only root starts containers"
    for program, package in (("runc", "runc"), ("unshare", "util-linux")):
        if not shutil.which(program):
            return f"{program} is missing (package {package}; scripts/deps surroundings)"
    shared = place / "trial"
    shared.mkdir()
    with Restricted(make_root(place / "trial", {}), shared, ["/bin/true"], {}) as box:
        return "" if box.wait() == 0 else f"runc cannot run a container here: {box.text()[-300:]}"
