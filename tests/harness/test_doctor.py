# SPDX-License-Identifier: Apache-2.0
"""The doctor on made-up machines (trees of /proc and /sys), on a real file system, and as somebody without rights.

`CASES` has one change to a healthy machine for every case of configs/doctor.toml; a case without one is an error.
"""

import json
import os
import re
import shutil
import subprocess
import sys
import traceback
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace

import pytest
from lib.disks import disk, run_or_skip
from lib.support import ROOT, disk_dir
from rich.console import Console

from harness.core.model import LabError
from harness.doctor import examination as doctor
from harness.doctor import view as doctor_view
from harness.doctor.examination import LEVELS
from harness.doctor.system import System

MIB, GIB = 1 << 20, 1 << 30
HERE = "/srv/data"
EXT4 = "rw barrier delalloc auto_da_alloc data=ordered commit=5 inode_readahead_blks=32 nodiscard"
DUMPE2FS = """Filesystem features:      has_journal ext_attr dir_index extent metadata_csum
Default mount options:    user_xattr acl
Total journal size:       64M
"""
XFS_INFO = """meta-data=/dev/sda1 isize=512 agcount=4
         =                       crc=1        finobt=1, sparse=1, rmapbt=0
log      =internal log           bsize=4096   blocks=16384, version=2
"""


@dataclass
class Machine(System):
    """A machine below `root`. tools: what a command prints. free, total: bytes and inodes of every file system."""

    tools: dict[str, str] = field(default_factory=dict)
    mounts: list[str] = field(default_factory=list)
    free: int = 500 * GIB
    total: int = 1000 * GIB
    inodes: tuple[int, int] = (900_000, 1_000_000)
    writer: bool = True

    def tool(self, *command):
        name = " ".join(command)
        if name not in self.tools:
            self.unread[name] = "Permission denied"
        return self.tools.get(name)

    def space(self, path):
        free, total = self.free // 4096, self.total // 4096
        favail, files = self.inodes
        return SimpleNamespace(f_frsize=4096, f_bavail=free, f_blocks=total, f_favail=favail, f_files=files)

    def may_write(self, path):
        return self.writer

    def put(self, path, text=""):
        self.at(path).parent.mkdir(parents=True, exist_ok=True)
        self.at(path).write_text(f"{text}\n")

    def drop(self, path):
        self.at(path).unlink()

    def mount(self, point, kind, source, device, options="rw,relatime", more="rw"):
        """A line of mountinfo; a point mounted twice hides the first, as it does in the kernel."""
        self.at(point).mkdir(parents=True, exist_ok=True)
        self.mounts.append(f"{len(self.mounts) + 20} 1 {device} / {point} {options} - {kind} {source} {more}")
        self.put("/proc/self/mountinfo", "\n".join(self.mounts))

    def block(self, name, number, parent="", **queue):
        """A device as sysfs has it: a directory, linked from class/block and dev/block."""
        at = f"/sys/devices/{parent}/{name}" if parent else f"/sys/devices/{name}"
        self.put(f"{at}/dev", number)
        for link in (f"/sys/class/block/{name}", f"/sys/dev/block/{number}"):
            self.at(link).parent.mkdir(parents=True, exist_ok=True)
            self.at(link).symlink_to(self.at(at))
        self.put(f"/dev/{name}")
        if parent:
            self.put(f"{at}/partition", 1)
        else:
            usual = {"scheduler": "none [mq-deadline]", "nr_requests": 256, "read_ahead_kb": 128, "fua": 0,
                     "write_cache": "write back", "rotational": 0}  # fmt: skip
            for key, value in {**usual, **queue}.items():
                self.put(f"{at}/queue/{key}", value)

    def slave(self, upper, lower):
        self.put(f"/sys/class/block/{upper}/slaves/{lower}")

    def queue(self, key, value, name="sda"):
        self.put(f"/sys/class/block/{name}/queue/{key}", value)

    def ext4(self, options, device="sda1"):
        self.put(f"/proc/fs/ext4/{device}/options", options.replace(" ", "\n"))

    def data_on(self, kind, source="/dev/sda1", device="8:1", options="rw,relatime", more="rw"):
        """The directory under inspection is on this from now on."""
        self.mount("/srv", kind, source, device, options, more)
        self.at(HERE).mkdir(parents=True, exist_ok=True)

    def loop_on(self, kind, device="0:99", ext4=None):
        """The directory is on an image in a file system of that kind."""
        self.block("loop0", "7:0")
        self.put("/sys/class/block/loop0/loop/backing_file", "/images/disk.img")
        self.mount("/images", kind, "/dev/sdb" if device != "0:99" else kind, device)
        if device != "0:99":
            self.block("sdb", device)
            if ext4:
                self.ext4(ext4, "sdb")
        self.ext4(EXT4, "loop0")
        self.data_on("ext4", "/dev/loop0", "7:0")

    def group(self, version, limits):
        kind, names = ("cgroup", "memory,blkio") if version == 1 else ("cgroup2", "")
        self.mount("/sys/fs/cgroup", kind, kind, "0:30", more=f"rw,{names}" if names else "rw")
        self.put("/proc/self/cgroup", f"{5 if version == 1 else 0}:{names}:/user/job")
        self.at("/sys/fs/cgroup/user/job").mkdir(parents=True)
        for path, text in limits.items():
            self.put(f"/sys/fs/cgroup/{path}", text)

    def swap(self, lines):
        self.put("/proc/swaps", "Filename Type Size Used Priority\n" + lines)


@pytest.fixture
def machine(tmp_path):
    """ext4 on a partition of a flash disk, everything at its default."""
    made = Machine(tmp_path)
    made.block("sda", "8:0")
    made.block("sda1", "8:1", parent="sda")
    made.mount("/", "ext4", "/dev/sda1", "8:1")
    made.data_on("ext4")
    made.ext4(EXT4)
    made.tools["dumpe2fs -h /dev/sda1"] = DUMPE2FS
    made.tools["xfs_info /srv"] = XFS_INFO
    for name, value in {"dirty_ratio": 20, "dirty_background_ratio": 10, "dirty_bytes": 0, "swappiness": 60,
                        "dirty_background_bytes": 0, "dirty_writeback_centisecs": 500,
                        "dirty_expire_centisecs": 3000}.items():  # fmt: skip
        made.put(f"/proc/sys/vm/{name}", value)
    made.put("/proc/sys/fs/leases-enable", 1)
    made.put("/proc/sys/kernel/osrelease", "6.1.0")
    made.put("/proc/meminfo", f"MemTotal: 9 kB\nMemAvailable: {8 * GIB >> 10} kB")
    made.put("/proc/self/cgroup", "0::/")
    made.swap("")
    return made


def findings(machine):
    return {f.id: f for f in doctor.examine(Path(HERE), machine).findings}


def no_journal(m):
    m.ext4(EXT4.replace("data=ordered ", ""))
    m.tools.clear()


def vm(name, value):
    return lambda m: m.put(f"/proc/sys/vm/{name}", value)


def option(old, new):
    return lambda m: m.ext4(EXT4.replace(old, new))


def mounted(options):
    return lambda m: m.data_on("ext4", options=options)


def on(kind, source="x", device="0:50", more="rw"):
    return lambda m: m.data_on(kind, source, device, more=more)


def xfs(m):
    m.data_on("xfs")


def btrfs(more="rw"):
    """Its mounts have a number without a block device; the members are below /sys/fs."""

    def change(m):
        m.put("/sys/fs/btrfs/1234-abcd/devices/sda1")
        m.data_on("btrfs", "/dev/sda1", "0:44", more=more)

    return change


def barrier_off(cache=None):
    def change(m):
        m.ext4(EXT4.replace(" barrier", " nobarrier"))
        if cache:
            m.queue("write_cache", cache)
        elif cache is not None:
            m.drop("/sys/class/block/sda/queue/write_cache")

    return change


def overlay(kind, more="", upper="/upper/u"):
    """An overlay whose upper directory is on the disk, or in memory, or not to be seen."""

    def change(m):
        m.mount("/upper", kind, "/dev/sda1", "8:1" if kind == "ext4" else "0:51")
        m.at("/upper/u").mkdir()
        m.data_on("overlay", "overlay", "0:52", more=f"rw,lowerdir=/l,upperdir={upper},workdir=/w{more}")

    return change


def old_features(m):
    m.tools["dumpe2fs -h /dev/sda1"] = "Filesystem features:      has_journal ext_attr\n"


def fast(m):
    m.tools["dumpe2fs -h /dev/sda1"] = DUMPE2FS.replace("has_journal", "has_journal fast_commit")


def room(**values):
    def change(m):
        for name, value in values.items():
            setattr(m, name, value)

    return change


def stopped(m):
    m.loop_on("ext4", "8:16", EXT4)
    m.queue("write_cache", "write through", "loop0")


def in_zram(m):
    m.block("zram0", "253:0")
    m.ext4(EXT4, "zram0")
    m.data_on("ext4", "/dev/zram0", "253:0")


def staged_by_others(m):
    m.at(f"{HERE}/.fastwrite").mkdir()
    m.at(f"{HERE}/.fastwrite").chmod(0o777)


def other_swap(m):
    m.block("sdb", "8:16")
    m.swap("/dev/sdb partition 1 0 -2")


def limited_io(m):
    m.group(2, {"user/io.max": "8:0 rbps=max wbps=1048576 riops=max wiops=max"})


def nothing(m):
    pass


CASES = [
    ("filesystem", "disk", nothing),
    ("filesystem", "copies", btrfs()),
    ("filesystem", "memory", on("tmpfs")),
    ("filesystem", "network", on("nfs4", "host:/x")),
    ("filesystem", "overlay", overlay("ext4")),
    ("filesystem", "overlay-hidden", overlay("ext4", upper="/in/another/namespace")),
    ("filesystem", "overlay-volatile", overlay("ext4", ",volatile")),
    ("filesystem", "overlay-volatile", overlay("ext4", ",fsync=volatile")),
    ("filesystem", "memory", overlay("tmpfs")),
    ("filesystem", "other", on("reiserfs")),
    ("layers", "plain", nothing),
    ("layers", "loop", lambda m: m.loop_on("ext4", "8:16", EXT4)),
    ("layers", "below-risky", lambda m: m.loop_on("tmpfs")),
    ("layers", "below-risky", lambda m: m.loop_on("ext4", "8:16", EXT4.replace(" barrier", " nobarrier"))),
    ("layers", "below-no-journal", lambda m: m.loop_on("ext4", "8:16", EXT4.replace("data=ordered ", ""))),
    ("layers", "none", on("tmpfs")),
    ("layers", "lost", lambda m: m.slave("sda", "sdz")),
    ("writable", "normal", nothing),
    ("writable", "ro", mounted("ro,relatime")),
    ("writable", "sync", mounted("rw,sync,relatime")),
    ("writable", "dirsync", mounted("rw,dirsync,relatime")),
    ("atime", "relatime", nothing),
    ("atime", "noatime", mounted("rw,noatime")),
    ("atime", "strictatime", mounted("rw")),
    ("lazytime", "off", nothing),
    ("lazytime", "on", lambda m: m.data_on("ext4", more="rw,lazytime")),
    ("barrier", "on", nothing),
    ("barrier", "off", barrier_off()),
    (
        "barrier",
        "off",
        lambda m: (m.drop("/proc/fs/ext4/sda1/options"), m.data_on("ext4", more="rw,barrier=0")),
    ),
    ("barrier", "off", btrfs("rw,nobarrier")),
    ("barrier", "off", lambda m: m.data_on("f2fs", more="rw,fsync_mode=nobarrier")),
    ("barrier", "off-through", barrier_off("write through")),
    ("barrier", "off-unknown", barrier_off("")),
    ("barrier", "always", xfs),
    ("journal", "journal", nothing),
    ("journal", "journal", xfs),
    ("journal", "none", no_journal),
    (
        "journal",
        "none",
        lambda m: m.tools.update({"dumpe2fs -h /dev/sda1": "Filesystem features:      extent\n"}),
    ),
    ("journal", "copies", btrfs()),
    ("journal", "skipped", option("data=ordered", "norecovery")),
    ("data", "ordered", nothing),
    ("data", "writeback", option("ordered", "writeback")),
    ("data", "journal", option("ordered", "journal")),
    ("data", "none", no_journal),
    ("async_commit", "off", nothing),
    ("async_commit", "on", option("ordered", "writeback journal_async_commit")),
    ("commit", "default", nothing),
    ("commit", "default", btrfs("rw,commit=30")),
    ("commit", "longer", option("commit=5", "commit=30")),
    ("commit", "long", option("commit=5", "commit=1800")),
    ("delalloc", "on", nothing),
    ("delalloc", "off", option("delalloc", "nodelalloc")),
    ("auto_da_alloc", "on", nothing),
    ("auto_da_alloc", "off", option("auto_da_alloc", "noauto_da_alloc")),
    ("inode_readahead", "on", nothing),
    ("inode_readahead", "off", option("blks=32", "blks=0")),
    ("discard", "off", nothing),
    ("discard", "on", option("nodiscard", "discard")),
    ("discard", "async", btrfs("rw,discard=async")),
    ("fast_commit", "off", nothing),
    ("fast_commit", "on", fast),
    ("fast_commit", "no-journal", no_journal),
    ("features", "listed", nothing),
    ("features", "listed", xfs),
    ("features", "old", old_features),
    ("space", "enough", nothing),
    ("space", "short", room(free=50 * GIB)),
    ("space", "full", room(free=GIB)),
    ("inodes", "enough", nothing),
    ("inodes", "short", room(inodes=(50, 1000))),
    ("inodes", "full", room(inodes=(1, 1000))),
    ("dirty_background", "usual", nothing),
    ("dirty_background", "high", vm("dirty_background_ratio", 15)),
    (
        "dirty_background",
        "very-high",
        lambda m: (vm("dirty_background_ratio", 60)(m), vm("dirty_ratio", 80)(m)),
    ),
    (
        "dirty_background",
        "not-below",
        lambda m: (vm("dirty_background_ratio", 9)(m), vm("dirty_ratio", 5)(m)),
    ),
    ("dirty", "usual", nothing),
    ("dirty", "high", vm("dirty_ratio", 30)),
    ("dirty", "very-high", vm("dirty_ratio", 80)),
    ("dirty", "very-high", vm("dirty_bytes", 4 * GIB)),
    ("dirty", "low", vm("dirty_bytes", MIB)),
    ("writeback_interval", "usual", nothing),
    ("writeback_interval", "long", vm("dirty_writeback_centisecs", 1000)),
    ("writeback_interval", "very-long", vm("dirty_writeback_centisecs", 6000)),
    ("writeback_interval", "off", vm("dirty_writeback_centisecs", 0)),
    ("dirty_expire", "usual", nothing),
    ("dirty_expire", "long", vm("dirty_expire_centisecs", 4000)),
    ("dirty_expire", "very-long", vm("dirty_expire_centisecs", 12000)),
    ("swap", "off", nothing),
    ("swap", "on", other_swap),
    ("swap", "same", lambda m: m.swap("/swapfile file 1 0 -2")),
    ("swappiness", "no-swap", nothing),
    ("swappiness", "usual", other_swap),
    ("swappiness", "high", lambda m: (other_swap(m), vm("swappiness", 180)(m))),
    ("cgroup_memory", "none", nothing),
    (
        "cgroup_memory",
        "none",
        lambda m: m.group(1, {"user/job/memory.limit_in_bytes": "9223372036854771712"}),
    ),
    ("cgroup_memory", "limit", lambda m: m.group(1, {"user/memory.limit_in_bytes": str(GIB)})),
    (
        "cgroup_memory",
        "small",
        lambda m: m.group(2, {"user/memory.max": "max", "user/job/memory.high": "4096"}),
    ),
    ("cgroup_io", "none", nothing),
    ("cgroup_io", "none", lambda m: m.group(1, {"user/job/blkio.throttle.write_bps_device": "9:9 1000"})),
    ("cgroup_io", "limit", lambda m: m.group(1, {"user/job/blkio.throttle.write_bps_device": "8:0 1000"})),
    ("cgroup_io", "limit", limited_io),
    ("scheduler", "fine", nothing),
    ("scheduler", "spinning", lambda m: (m.queue("scheduler", "[none] bfq"), m.queue("rotational", 1))),
    ("scheduler", "bfq", lambda m: m.queue("scheduler", "none [bfq]")),
    ("nr_requests", "usual", nothing),
    ("nr_requests", "low", lambda m: m.queue("nr_requests", 32)),
    ("read_ahead", "usual", nothing),
    ("read_ahead", "low", lambda m: m.queue("read_ahead_kb", 0)),
    ("read_ahead", "high", lambda m: m.queue("read_ahead_kb", 8192)),
    ("write_cache", "volatile", nothing),
    ("write_cache", "volatile-unflushed", barrier_off()),
    ("write_cache", "through", lambda m: m.queue("write_cache", "write through")),
    ("write_cache", "stopped", stopped),
    ("write_cache", "memory", in_zram),
    ("fua", "off", nothing),
    ("fua", "on", lambda m: m.queue("fua", 1)),
    ("fua", "needless", lambda m: m.queue("write_cache", "write through")),
    ("rotational", "flash", nothing),
    ("rotational", "spins", lambda m: m.queue("rotational", 1)),
    ("staging", "beside", nothing),
    ("staging", "copies", btrfs()),
    ("staging", "refused", room(writer=False)),
    ("staging", "read-only", mounted("ro")),
    ("staging", "full", room(free=8 * MIB)),
    ("staging", "distrusted", staged_by_others),
    ("leases", "on", nothing),
    ("leases", "off", lambda m: m.put("/proc/sys/fs/leases-enable", 0)),
    ("leases", "foreign", on("nfs4", "host:/x")),
    ("sync_journal", "usable", nothing),
    ("sync_journal", "elsewhere", on("tmpfs")),
    ("sync_journal", "no-place", btrfs()),
    ("sync_journal", "unflushed", barrier_off()),
]


@pytest.mark.parametrize(("knob", "case", "change"), CASES, ids=[f"{k}-{c}" for k, c, _ in CASES])
def test_case(machine, knob, case, change):
    change(machine)
    found = findings(machine)
    assert found[knob].case == case, found[knob]
    for finding in found.values():
        for said in (finding.today, finding.effect, finding.risk, finding.command, finding.permanent):
            assert not re.search(r"\{[a-z_]+\}", said), said


def test_every_case_of_the_texts_is_tried():
    common = {"absent", "unread"}
    written = {(knob.id, case) for knob in doctor.load() for case in set(knob.cases) - common}
    assert written == {(knob, case) for knob, case, _ in CASES}


def test_what_is_to_be_measured_is_in_the_catalog(experiments):
    named = [w for knob in doctor.load() for w in knob.measure.split() if re.match(r"\d{3}-", w)]
    assert named and set(named) <= set(experiments)


def test_all_that_is_wrong_with_a_knob_is_said_worst_first(machine):
    machine.loop_on("ext4", "8:16", EXT4.replace("data=ordered ", ""))
    found = findings(machine)["layers"]
    assert found.level == "warning" and found.text.index("no journal") < found.text.index("A loop device")


def test_a_healthy_machine_has_no_danger_and_no_warning(machine):
    assert {f.id for f in findings(machine).values() if f.level in ("warning", "danger")} == set()


def test_the_settings_of_the_article_are_dangers_and_warnings(machine):
    machine.ext4("rw nobarrier delalloc auto_da_alloc journal_async_commit data=writeback commit=1800 "
                 "inode_readahead_blks=4096")  # fmt: skip
    for name, value in {"dirty_ratio": 80, "dirty_background_ratio": 60, "dirty_writeback_centisecs": 6000,
                        "dirty_expire_centisecs": 12000}.items():  # fmt: skip
        machine.put(f"/proc/sys/vm/{name}", value)
    machine.queue("nr_requests", 1024)
    machine.queue("read_ahead_kb", 512)
    machine.queue("scheduler", "[none]")
    levels = {f.id: f.level for f in findings(machine).values()}
    # the cache is no second danger: it follows from the barriers
    assert {k for k, v in levels.items() if v == "danger"} == {"barrier", "data"}
    assert findings(machine)["write_cache"].text.startswith("Follows from: write barriers")
    assert {k for k, v in levels.items() if v == "warning"} == {
        "async_commit", "commit", "dirty", "dirty_background", "writeback_interval", "dirty_expire", "sync_journal",
    }  # fmt: skip
    assert {levels[k] for k in ("nr_requests", "read_ahead", "scheduler", "inode_readahead", "delalloc")} == {
        "ok"
    }


def test_defaults_come_from_the_kernel_and_not_from_the_mount_options(machine):
    """tune2fs -o nobarrier leaves no trace in mountinfo."""
    machine.ext4(EXT4.replace(" barrier", " nobarrier"))
    assert "nobarrier" not in machine.read("/proc/self/mountinfo")
    assert findings(machine)["barrier"].case == "off"


def test_layers_are_followed_down_to_every_disk(machine):
    """An overlay on LVM on a mirror of two partitions, one of which is a loop device's image."""
    machine.block("sdb", "8:16")
    machine.block("sdb1", "8:17", parent="sdb")
    machine.block("md0", "9:0")
    machine.put("/sys/class/block/md0/md/level", "raid1")
    machine.block("dm-0", "252:0")
    machine.put("/sys/class/block/dm-0/dm/name", "vg-data")
    machine.put("/sys/class/block/dm-0/dm/uuid", "LVM-abc")
    machine.slave("dm-0", "md0")
    machine.slave("md0", "sda1")
    machine.slave("md0", "sdb1")
    machine.mount("/upper", "xfs", "/dev/mapper/vg-data", "252:0")
    machine.at("/upper/u").mkdir()
    machine.data_on("overlay", "overlay", "0:52", more="rw,lowerdir=/l,upperdir=/upper/u,workdir=/w")
    found = doctor.examine(Path(HERE), machine)
    assert [(depth, what) for depth, what, _ in found.layers] == [
        (0, "overlay"), (1, "xfs"), (2, "dm"), (3, "md"), (4, "partition"), (5, "disk"), (4, "partition"), (5, "disk"),
    ]  # fmt: skip
    assert "vg-data LVM" in found.layers[2][2]
    by_id = {f.id: f for f in found.findings}
    assert by_id["rotational"].data == {"sda": "no", "sdb": "no"}
    assert by_id["scheduler"].data.keys() == {"dm-0", "md0", "sda", "sdb"}


def test_devices_that_differ_are_told_apart_and_the_worst_decides(machine):
    machine.block("sdb", "8:16", read_ahead_kb=0)
    machine.block("md0", "9:0")
    machine.slave("md0", "sda")
    machine.slave("md0", "sdb")
    machine.data_on("xfs", "/dev/md0", "9:0")
    found = findings(machine)["read_ahead"]
    assert (found.case, found.level) == ("low", "hint")
    assert "sdb: 0" in found.value and "sda: 128" in found.value


def test_what_cannot_be_read_is_said_with_the_reason(machine):
    machine.tools.clear()
    machine.drop("/proc/sys/vm/dirty_ratio")
    examined = doctor.examine(Path(HERE), machine)
    found = {f.id: f for f in examined.findings}
    for name in ("features", "fast_commit", "dirty", "dirty_background"):
        assert (found[name].case, found[name].level) == ("unread", "hint"), name
    assert "Permission denied" in found["features"].text
    assert "/proc/sys/vm/dirty_ratio: No such file" in found["dirty"].text
    assert examined.unread["dumpe2fs -h /dev/sda1"] == "Permission denied"
    # the journal is still known: the kernel names a data mode only where there is one
    assert found["journal"].case == "journal"


def test_without_proc_fs_ext4_and_without_rights_the_journal_is_unknown(machine):
    machine.tools.clear()
    machine.drop("/proc/fs/ext4/sda1/options")
    found = findings(machine)
    assert found["journal"].case == found["data"].case == "unread"


@pytest.mark.parametrize(
    "change", [nothing, btrfs(), on("tmpfs"), overlay("ext4"), lambda m: m.loop_on("tmpfs")]
)
def test_the_text_fits_80_columns_and_has_everything(machine, change):
    change(machine)
    examined = doctor.examine(Path(HERE), machine)
    console = Console(width=80, file=None, record=True, force_terminal=False)
    with console.capture() as capture:
        console.print(doctor_view.render(examined, full=True), highlight=False)
    text = capture.get()
    assert max(map(len, text.splitlines())) <= 80
    flat = re.sub(r"\s+", "", text)
    for finding in examined.findings:
        if finding.case != "absent":
            for part in (
                finding.value,
                finding.text,
                finding.today,
                finding.effect,
                finding.risk,
                finding.command,
            ):
                assert part == "-" or re.sub(r"\s+", "", part) in flat, (finding.id, part)
    assert text.rstrip().splitlines()[-1].endswith(".")


@pytest.mark.parametrize(
    "change", [nothing, btrfs(), on("tmpfs"), overlay("ext4"), lambda m: m.loop_on("tmpfs")]
)
def test_dangers_are_told_in_full_and_the_rest_in_short(machine, change):
    change(machine)
    examined = doctor.examine(Path(HERE), machine)
    console = Console(width=80, file=None, record=True, force_terminal=False)
    with console.capture() as capture:
        console.print(doctor_view.render(examined), highlight=False)
    text = capture.get()
    assert max(map(len, text.splitlines())) <= 80
    flat = re.sub(r"\s+", "", text)
    for finding in examined.findings:
        if finding.level == "danger":
            assert re.sub(r"\s+", "", finding.risk) in flat
        elif finding.level == "ok":
            assert finding.command == finding.permanent == "-"
            assert finding.today == "-" or re.sub(r"\s+", "", finding.today) not in flat


DANGEROUS = ("mkfs", "umount / ", "hdparm -W /dev/vd", "swapoff")


@pytest.mark.parametrize("change", [nothing, btrfs(), on("tmpfs"), overlay("ext4"), overlay("tmpfs"), xfs])
def test_no_command_fits_badly(machine, change):
    change(machine)
    for finding in findings(machine).values():
        assert not finding.command.startswith(DANGEROUS), finding
        assert finding.level != "ok" or finding.command == "-", finding
        assert "tmpfs" not in finding.command.split(), finding


def test_the_root_is_not_unmounted_from_within():
    words = {"command": "umount / && e2fsck -f /dev/x && tune2fs -O has_journal /dev/x", "permanent": "-"}
    told = doctor._advice(words, "danger", "none", "/")["command"]
    assert told.startswith("e2fsck -f /dev/x && tune2fs") and "rescue system" in told and "umount" not in told
    words = {"command": "umount / && mount -o data=ordered /dev/x /", "permanent": "rootflags="}
    assert doctor._advice(words, "danger", "writeback", "/") == {"command": "-", "permanent": "rootflags="}
    assert doctor._advice(words, "danger", "writeback", "/srv")["command"].startswith("umount / ")
    assert doctor._advice(words, "ok", "ordered", "/srv") == {"command": "-", "permanent": "-"}


@pytest.mark.parametrize(
    ("disk", "command"), [("sda", "hdparm"), ("nvme0n1", "nvme"), ("vda", "-"), ("loop0", "-")]
)
def test_a_disk_is_asked_in_its_own_way(disk, command):
    assert doctor._ask_cache(disk).split()[0] == command


def test_the_json_has_what_the_text_has(machine):
    answer = json.loads(json.dumps(doctor.examine(Path(HERE), machine).as_dict()))
    assert answer["directory"] == HERE and answer["kernel"] == "6.1.0" and answer["level"] in LEVELS
    assert sum(answer["counts"].values()) == len(answer["findings"]) == len(doctor.load())
    assert set(answer["findings"][0]) == {
        "id", "group", "title", "level", "case", "value", "data", "text", "article", "today", "effect", "risk",
        "command", "permanent", "measure",
    }  # fmt: skip


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ('id = "swap"', 'id = "swop"', "probes and texts differ in: swap, swop"),
        ('level = "danger"', 'level = "deadly"', "needs text and a level"),
        ('risk = "None."', 'perl = "None."', "'risk' is missing"),
        ('group = "memory"', 'group = "attic"', "group 'attic' is none of"),
        ("[common.unread]", "[common.unread", "doctor.toml"),
    ],
)
def test_mistakes_in_the_texts_are_named(tmp_path, old, new, message):
    copy = tmp_path / "doctor.toml"
    copy.write_text(doctor.TEXTS.read_text().replace(old, new))
    with pytest.raises(LabError, match=message):
        doctor.load(copy)


def test_what_is_no_directory_is_refused(machine):
    machine.put("/srv/file")
    for path in ("/srv/none", "/srv/file"):
        with pytest.raises(LabError, match="no such directory"):
            doctor.examine(Path(path), machine)


# ---- on this machine ----


def mounted_there(point):
    """The line of mountinfo; the other mounts of the machine are none of this test's business."""
    lines = Path("/proc/self/mountinfo").read_text().splitlines()
    return [line for line in lines if f" {point} " in line]


@pytest.mark.parametrize(
    ("make", "options", "dangers"),
    [
        ((), "nobarrier,data=writeback", {"barrier": "off", "data": "writeback"}),
        (("-O", "^has_journal"), "", {"journal": "none"}),
        ((), "", {}),
    ],
    ids=["nobarrier-writeback", "no-journal", "defaults"],
)
def test_a_real_ext4(tmp_path, make, options, dangers):
    with disk("ext4", tmp_path / "disk", 64 * MIB, options, *make) as point:
        before = mounted_there(point)
        answer = doctor.examine(point).as_dict()
        assert mounted_there(point) == before
    found = {f["id"]: f for f in answer["findings"]}
    cases = {
        "barrier": "on",
        "data": "none" if "journal" in dangers else "ordered",
        "journal": "journal",
        **dangers,
    }
    assert {name: found[name]["case"] for name in cases} == {
        name: case if case != "off" else found["barrier"]["case"] for name, case in cases.items()
    }
    assert found["barrier"]["case"].startswith(cases["barrier"])  # off-through, where the disk has no cache
    assert ("has_journal" in found["features"]["value"]) == ("journal" not in dangers)
    assert [layer["what"] for layer in answer["layers"]][:3] == ["ext4", "loop device", "file"]
    for name in set(dangers) - {"barrier"}:
        assert found[name]["level"] == "danger"


def test_a_real_overlay_on_a_real_xfs(tmp_path):
    with disk("xfs", tmp_path / "disk", 64 * MIB) as point:
        for name in ("lower", "upper", "work"):
            (point / name).mkdir()
        over = tmp_path / "over"
        over.mkdir()
        places = f"lowerdir={point}/lower,upperdir={point}/upper,workdir={point}/work"
        run_or_skip("mount", "-t", "overlay", "overlay", "-o", f"{places},volatile", over)
        try:
            found = doctor.examine(over)
        finally:
            subprocess.run(["umount", over], check=True)
        plain = doctor.examine(point)
    assert [what for _, what, _ in found.layers][:3] == ["overlay", "xfs", "loop device"]
    by_id = {f.id: f for f in found.findings}
    assert (by_id["filesystem"].case, by_id["filesystem"].level) == ("overlay-volatile", "danger")
    assert (by_id["barrier"].case, by_id["journal"].value.split(",")[0]) == ("always", "internal")
    by_id = {f.id: f for f in plain.findings}
    assert by_id["filesystem"].case == "disk" and by_id["data"].case == by_id["commit"].case == "absent"
    assert "crc" in by_id["features"].value


def test_the_command_on_a_real_tmpfs(tmp_path):
    """Exit status 1 for a danger; nothing but JSON, also when there is something to warn of."""
    with disk("tmpfs", tmp_path / "disk") as point:
        done = subprocess.run(
            [sys.executable, "-m", "harness", "doctor", "--json", str(point)],
            capture_output=True,
            text=True,
            cwd=ROOT,
            env={**os.environ, "PYTHONDONTWRITEBYTECODE": "1", "FASTWRITE_LOG": "off"},
            check=False,
        )
    assert done.returncode == 1, done.stderr
    found = {f["id"]: f for f in json.loads(done.stdout)["findings"]}
    assert found["filesystem"]["case"] == "memory"
    assert found["barrier"]["case"] == found["journal"]["case"] == found["write_cache"]["case"] == "absent"


CHANGING = (
    "mount", "umount", "swapo", "fsmount", "fsconfig", "move_mount", "mkdir", "rmdir", "rename", "unlink", "link",
    "symlink", "mknod", "chmod", "fchmod", "chown", "fchown", "setxattr", "truncate", "ftruncate", "fallocate", "utim",
)  # fmt: skip


def test_it_changes_nothing(tmp_path):
    """Every file is opened for reading alone, and no call that changes mounts, swap or names is made."""
    if shutil.which("strace") is None:
        pytest.skip("strace is not installed")
    trace, fonts, place = tmp_path / "trace", tmp_path / "fonts", tmp_path / "place"
    place.mkdir()
    # the drawing library keeps a list of fonts, whatever the verb
    env = {**os.environ, "PYTHONDONTWRITEBYTECODE": "1", "MPLCONFIGDIR": str(fonts)}
    done = subprocess.run(
        ["strace", "-f", "-qq", "-o", trace, "-e", "trace=%file,%desc", "-s", "256",
         sys.executable, "-m", "harness", "doctor", "--brief", place],
        capture_output=True, text=True, cwd=ROOT, env=env, check=False,
    )  # fmt: skip
    assert done.returncode in (0, 1), done.stderr
    lines = [line.split(maxsplit=1)[1] for line in trace.read_text().splitlines()]
    lines = [line for line in lines if f'"{fonts}' not in line]
    opened = [line for line in lines if line.startswith(("open", "creat"))]
    assert any('"/proc/sys/vm/dirty_ratio"' in line for line in opened), "the trace shows nothing"
    writing = [
        line for line in opened if re.search(r"O_WRONLY|O_RDWR|O_CREAT|O_TRUNC|O_TMPFILE|^creat", line)
    ]
    assert [line for line in writing if '"/dev/null"' not in line] == []
    assert [line for line in lines if re.match(rf"({'|'.join(CHANGING)})\w*\(", line)] == []
    assert not list(place.iterdir())


def test_without_root_it_says_what_it_could_not_read():
    if os.geteuid() != 0:
        pytest.skip("needs root to give it up")
    knobs = doctor.load()
    with disk_dir() as place:
        place.chmod(0o755)
        with disk("ext4", place / "disk", 64 * MIB) as point:
            answer = examined_as_nobody(point, knobs)
    found = {f["id"]: f for f in answer["findings"]}
    assert found["features"]["case"] == "unread" and "Permission denied" in found["features"]["text"]
    assert found["journal"]["case"] == "journal" and found["barrier"]["case"] == "on"
    assert found["staging"]["case"] == "refused"


def examined_as_nobody(point, knobs):
    """In a child of its own: who gives up root does not get it back."""
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        code = 1
        try:
            os.setgroups([])
            os.setresgid(65534, 65534, 65534)
            os.setresuid(65534, 65534, 65534)
            with os.fdopen(writer, "w") as out:
                json.dump(doctor.examine(point, knobs=knobs).as_dict(), out)
            code = 0
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(code)
    os.close(writer)
    with os.fdopen(reader) as said:
        text = said.read()
    assert os.waitpid(child, 0)[1] == 0
    return json.loads(text)
