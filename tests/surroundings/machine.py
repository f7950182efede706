# SPDX-License-Identifier: Apache-2.0
"""A virtual machine: Debian's kernel, an initramfs with a shell, the library and its programs, one disk.

It boots in two seconds without KVM.  Killing it is a loss of power: the next boot is another one, with its own boot id.
"""

from __future__ import annotations

import lzma
import platform
import shutil
import socket
import subprocess
import time
from pathlib import Path

from power import system
from power.workload import FailedError

EMULATOR = "qemu-system-x86_64"
SHELL = "busybox"
MODULES = ("virtio_pci", "virtio_blk", "virtio_console")
KERNEL_PACKAGE = "linux-image-cloud-amd64"
COMMAND_LINE = "console=ttyS0 quiet panic=-1 mitigations=off nokaslr random.trust_cpu=on no_timer_check"
PATIENCE_SECONDS = 300  # an emulated processor on a busy host
START_SECONDS = 120  # of the emulator
OUTBOX_BYTES = 96 << 20
END = b"\x01"
DIRECTORIES = ("bin", "dev", "disk", "etc", "fw", "lib64", "modules", "proc", "root", "run", "sys", "tmp")

INIT = """#!/bin/busybox sh
/bin/busybox --install -s /bin
export PATH=/bin
mount -t proc proc /proc
mount -t sysfs sys /sys
mount -t devtmpfs dev /dev
mkdir -p /dev/shm
for module in /modules/*; do insmod $module; done
until [ -b /dev/vda ] && [ -b /dev/vdb ]; do sleep 0.01; done
until [ -e /dev/vport*p1 ] && [ -e /dev/vport*p2 ]; do sleep 0.01; done
ln -s /dev/vport*p1 /dev/acks
ln -s /dev/vport*p2 /dev/control
exec 3<>/dev/control
while :; do
	IFS= read -r line <&3 || { sleep 0.02; continue; } # the port is not connected yet
	sh -c "$line" >/run/out 2>&1 </dev/null 3<&-
	status=$?
	{ cat /run/out; printf '\\001%d\\n' $status; } >&3
done
"""

# As an init system ends: everybody is asked, then killed, then what is mounted goes.
SHUT_DOWN = """
kill -TERM -1; sleep {grace}; kill -KILL -1
{save}
{recover}
cd /; sync; umount /disk || echo "umount failed" >/dev/ttyS0
poweroff -f
"""


def kernel_of(cache: Path) -> Path | None:
    """A directory with boot/ and lib/modules/, if there is one."""
    found = sorted(cache.glob("kernel/boot/vmlinuz-*"))
    return cache / "kernel" if found else None


def fetch_kernel(cache: Path) -> Path:
    """From Debian's archive, without installing it; once."""
    if kernel := kernel_of(cache):
        return kernel
    fresh = cache / "kernel.new"
    shutil.rmtree(fresh, ignore_errors=True)
    fresh.mkdir(parents=True)
    ask = ["apt-cache", "depends", KERNEL_PACKAGE]
    said = subprocess.run(ask, capture_output=True, text=True, check=False).stdout
    names = [line.split()[-1] for line in said.splitlines() if "Depends: linux-image-" in line]
    if not names:
        raise FailedError(f"{KERNEL_PACKAGE} is not known; apt-get update?")
    for command in (["apt-get", "download", names[0]], ["sh", "-c", "dpkg-deb -x *.deb ."]):
        done = subprocess.run(command, cwd=fresh, capture_output=True, text=True, check=False)
        if done.returncode != 0:
            raise FailedError(f"{' '.join(command)}: {done.stderr}")
    for package in fresh.glob("*.deb"):
        package.unlink()
    fresh.rename(cache / "kernel")
    return cache / "kernel"


def missing() -> str:
    """Why there is no machine; empty when there is one.  (A kernel can be fetched.)"""
    if platform.machine() != "x86_64":
        return f"the virtual machine is an x86_64, this is {platform.machine()}"
    for package, program in (("qemu-system-x86", EMULATOR), ("busybox-static", SHELL)):
        if not shutil.which(program):
            return f"{program} is missing (package {package}; scripts/deps machine)"
    return ""


# ---- what the guest has ----


class Archive:
    """An initramfs, in the newc format of cpio."""

    def __init__(self) -> None:
        self.data = bytearray()
        self.count = 0
        self.there: set[str] = set()

    def entry(self, name: str, mode: int, data: bytes = b"", device: tuple[int, int] = (0, 0)) -> None:
        if name in self.there:
            return
        parent = str(Path(name).parent)
        if parent not in (".", "/"):
            self.entry(parent, 0o40755)
        self.there.add(name)
        self.count += 1
        named = name.encode() + b"\0"
        fields = (self.count, mode, 0, 0, 1, 0, len(data), 0, 0, *device, len(named), 0)
        self.data += b"070701" + b"".join(b"%08x" % field for field in fields) + named
        self.data += bytes(-len(self.data) % 4) + data
        self.data += bytes(-len(self.data) % 4)

    def program(self, name: str, path: Path) -> None:
        """With the libraries that it is linked with, where they are here."""
        self.entry(name, 0o100755, path.read_bytes())
        said = subprocess.run(["ldd", str(path)], capture_output=True, text=True, check=False).stdout
        for word in said.split():
            if word.startswith("/") and Path(word).exists():
                self.entry(word.lstrip("/"), 0o100755, Path(word).read_bytes())

    def finish(self) -> bytes:
        self.entry("TRAILER!!!", 0)
        return bytes(self.data)


def module_bytes(path: Path) -> bytes:
    """A module as the kernel wants it; newer releases keep them compressed."""
    data = path.read_bytes()
    return lzma.decompress(data) if path.suffix == ".xz" else data


def modules_of(kernel: Path, names: tuple[str, ...] = MODULES) -> list[bytes]:
    """Those of these modules that are not built in, and what they need, in the order in which they can be inserted."""
    known = {
        path.name.split(".")[0].replace("-", "_"): path
        for path in kernel.glob("lib/modules/*/kernel/**/*.ko*")
        if path.suffix in (".ko", ".xz")
    }
    order: dict[Path, bytes] = {}

    def add(name: str) -> None:
        path = known.get(name)
        if path is None or path in order:
            return
        data = module_bytes(path)
        begin = data.index(b"\0depends=") + len(b"\0depends=")
        for needed in data[begin : data.index(b"\0", begin)].decode().split(","):
            add(needed.replace("-", "_"))
        order[path] = data

    for name in names:
        add(name)
    return list(order.values())


def make_initramfs(kernel: Path, tools: dict[str, Path]) -> bytes:
    archive = Archive()
    for name in DIRECTORIES:
        archive.entry(name, 0o40755)
    archive.entry("dev/console", 0o20600, device=(5, 1))
    archive.entry("init", 0o100755, INIT.encode())
    archive.entry("etc/passwd", 0o100644, b"root:x:0:0:root:/root:/bin/sh\n")
    archive.entry("etc/group", 0o100644, b"root:x:0:\n")
    archive.entry("bin/busybox", 0o100755, Path(shutil.which(SHELL)).read_bytes())
    for number, module in enumerate(modules_of(kernel)):
        archive.entry(f"modules/{number:02}.ko", 0o100644, module)
    # busybox is static: a shell that can run under the library
    for name, path in {**tools, "sh": Path("/bin/sh").resolve()}.items():
        archive.program(f"fw/{name}", path)
    return archive.finish()


# ---- the machine ----


class Machine:
    """One boot.  At the end of a `with` it is gone."""

    def __init__(self, place: Path, kernel: Path, initramfs: Path, disk_address: Path) -> None:
        self.console = place / "console"
        self.outbox = place / "outbox"
        if not self.outbox.exists():
            with self.outbox.open("wb") as file:
                file.truncate(OUTBOX_BYTES)
        self.acks = place / "acks"
        self.acks.unlink(missing_ok=True)
        (place / "control").unlink(missing_ok=True)
        # ioeventfd=off, and a file: when a write to the port has returned, its bytes are in the host's kernel
        devices = ["-device", "virtio-serial-pci,ioeventfd=off"]
        devices += ["-chardev", f"file,id=acks,path={self.acks}"]
        devices += ["-chardev", f"socket,id=control,path={place / 'control'}"]
        for number, name in enumerate(("acks", "control"), 1):
            devices += ["-device", f"virtserialport,chardev={name},nr={number}"]
        disk = f"file.driver=nbd,file.server.type=unix,file.server.path={disk_address}"
        disks = ["-drive", f"{disk},format=raw,if=none,id=disk,cache=writeback"]
        disks += ["-drive", f"file={self.outbox},format=raw,if=none,id=outbox,cache=unsafe"]
        for name in ("disk", "outbox"):
            disks += ["-device", f"virtio-blk-pci,drive={name}"]
        (vmlinuz,) = kernel.glob("boot/vmlinuz-*")
        with socket.socket(socket.AF_UNIX) as listener:
            listener.bind(str(place / "control"))
            listener.listen(1)
            self.popen = subprocess.Popen(
                [
                    *(EMULATOR, "-M", "q35", "-accel", "tcg", "-cpu", "qemu64", "-m", "384", "-no-reboot"),
                    *(
                        "-nodefaults",
                        "-no-user-config",
                        "-display",
                        "none",
                        "-serial",
                        f"file:{self.console}",
                    ),
                    *("-kernel", str(vmlinuz), "-initrd", str(initramfs), "-append", COMMAND_LINE),
                    *disks,
                    *devices,
                ],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.PIPE,
                preexec_fn=system.die_with_parent,
            )
            listener.settimeout(START_SECONDS)
            try:
                self.control, _ = listener.accept()
            except TimeoutError:
                self.power_off()
                said = self.popen.stderr.read().decode()
                raise FailedError(f"{EMULATOR} does not start: {said}") from None
        self.control.settimeout(PATIENCE_SECONDS)

    def __enter__(self) -> Machine:
        return self

    def __exit__(self, *_: object) -> None:
        self.power_off()
        self.control.close()
        self.popen.stderr.close()

    def run(self, command: str) -> tuple[int, str]:
        """A line for the guest's shell; its status, and what it said."""
        said = bytearray()
        try:
            self.control.sendall(command.replace("\n", "; ").encode() + b"\n")
            while not (END in said and said.endswith(b"\n")):
                part = self.control.recv(65536)
                if not part:
                    raise FailedError(f"the machine ended in: {command}: {self.text()}")
                said += part
        except TimeoutError:
            raise FailedError(
                f"{PATIENCE_SECONDS} s for: {command}: {bytes(said)!r}: {self.text()}"
            ) from None
        except ConnectionError:
            self.power_off()
            raise FailedError(f"{EMULATOR} ended: {self.popen.stderr.read().decode()}{self.text()}") from None
        text, status = said.rsplit(END, 1)
        return int(status), text.decode(errors="replace")

    def must(self, command: str) -> str:
        status, said = self.run(command)
        if status != 0:
            raise FailedError(f"{command}: status {status}: {said}")
        return said

    def fetch(self, path: str, target: Path) -> None:
        """A directory or file of the guest, as a tar archive through the second disk."""
        parent, name = path.rsplit("/", 1)
        self.must(
            f"cd {parent or '/'} && tar cf - {name} | dd of=/dev/vdb bs=64k conv=fsync 2>/run/dd || cat /run/dd"
        )
        subprocess.run(["tar", "xf", str(self.outbox), "-C", str(target)], check=True, capture_output=True)

    def hear(self) -> bytes:
        """All acknowledgements so far."""
        return self.acks.read_bytes() if self.acks.exists() else b""

    def power_off(self) -> None:
        """As when somebody pulls the plug.  What the guest had said before that is there still."""
        self.popen.kill()
        self.popen.wait()

    def shut_down(self, recover: str = "", save: str = "", grace: float = 0.2) -> None:
        """In order: programs are asked, then killed, the disk is unmounted, power goes."""
        steps = SHUT_DOWN.format(grace=grace, save=save or ":", recover=recover or ":").strip()
        self.control.sendall(steps.replace("\n", "; ").encode() + b"\n")
        try:
            self.popen.wait(PATIENCE_SECONDS)
        except subprocess.TimeoutExpired:
            raise FailedError(f"it does not shut down: {self.text()}") from None
        if "umount failed" in self.text():
            raise FailedError(f"the disk could not be unmounted: {self.text()}")

    def text(self) -> str:
        return self.console.read_text(errors="replace")[-3000:] if self.console.exists() else ""


def wait_until(true, seconds: float) -> bool:
    limit = time.monotonic() + seconds
    while not true():
        if time.monotonic() > limit:
            return False
        time.sleep(0.005)
    return True
