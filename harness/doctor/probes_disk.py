# SPDX-License-Identifier: Apache-2.0
"""Probes of file systems and block devices, and of the library's needs."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from harness.core.environment import bracketed
from harness.core.shim import STAGING_NAME
from harness.doctor.scene import ABSENT, Reading, Scene, absent, one, unread
from harness.doctor.stack import COPIES, EXT, MEMORY, NETWORK, Device
from harness.doctor.system import trusted
from harness.report.present import byte_count

STAGING_BYTES = 16 << 20  # FASTWRITE_MEM as it comes
NO_LEASES = (*NETWORK, "fuse", "fuseblk", "gfs2", "ocfs2")


# ---- file system ----


def filesystem(scene: Scene) -> Reading:
    top = scene.stack.top
    kind = top.kind
    if top.in_memory:
        return one(kind, "memory")
    if kind == "overlay":
        if "volatile" in top.options or top.options.get("fsync") == "volatile":
            return one("overlay, volatile", "overlay-volatile")
        if scene.stack.hidden_upper:
            return one(kind, "overlay-hidden")
        if scene.volume.in_memory:
            return one(f"overlay on {scene.volume.kind}", "memory")
        return one(f"overlay on {scene.volume.kind}", "overlay")
    if kind in COPIES:
        return one(kind, "copies")
    if kind in NETWORK:
        return one(kind, "network")
    return one(kind, "disk" if kind in (*EXT, "xfs", "f2fs") else "other")


def layers(scene: Scene) -> Reading:
    stack = scene.stack
    value = " > ".join(what for _, what, _ in stack.layers)
    data = [{"depth": d, "what": w, "detail": t} for d, w, t in stack.layers]
    cases = []
    if any(v.in_memory or v.flushes() is False for v in stack.below):
        cases.append("below-risky")
    if any(v.kind in EXT and v.journaled() is False for v in stack.below):
        cases.append("below-no-journal")
    if stack.below:
        cases.append("loop")
    if stack.lost:
        cases.append("lost")
    return Reading(value, tuple(cases) or (("plain",) if stack.devices else ("none",)), data)


def writable(scene: Scene) -> Reading:
    options = scene.stack.top.options | scene.options
    for name in ("ro", "sync", "dirsync"):
        if name in options:
            return one(name, name)
    return one("rw", "normal")


def atime(scene: Scene) -> Reading:
    options = scene.stack.top.options
    name = next((n for n in ("noatime", "relatime") if n in options), "strictatime")
    return one(name, name)


def lazytime(scene: Scene) -> Reading:
    return switch(scene, "lazytime", False)


def switch(scene: Scene, name: str, default: bool, kinds: Iterable[str] | None = None) -> Reading:
    if kinds is not None and scene.volume.kind not in kinds:
        return absent(scene)
    on = scene.volume.on(name, default)
    return one("on" if on else "off", "on" if on else "off", on)


def barrier(scene: Scene) -> Reading:
    found = scene.volume.flushes()
    if found is None:
        return absent(scene)
    if found:
        return one("on", "on" if scene.volume.kind in (*EXT, "btrfs", "f2fs") else "always", True)
    caches = set(scene.caches().values())
    if "write back" in caches:
        return one("off", "off", False)
    return one("off", "off-through" if caches == {"write through"} else "off-unknown", False)


def journal(scene: Scene) -> Reading:
    volume = scene.volume
    if volume.kind in COPIES:
        return one("copy on write", "copies")
    if volume.kind == "xfs":
        log = next((f for f in volume.features or () if f.startswith("log=")), "log")
        return one(log.removeprefix("log=").replace(":", ", "), "journal")
    if volume.kind not in EXT:
        return absent(scene)
    if "norecovery" in volume.options or "noload" in volume.options:
        return one("not replayed", "skipped")
    has = volume.journaled()
    if has is None:
        return unread(volume.why_no_features)
    size = f", {byte_count(volume.journal_bytes)}" if has and volume.journal_bytes else ""
    return one(f"jbd2{size}" if has else "none", "journal" if has else "none", has)


def data_mode(scene: Scene) -> Reading:
    if scene.volume.kind not in EXT:
        return absent(scene)
    mode = scene.options.get("data")
    if mode:
        return one(mode, mode)
    has = scene.volume.journaled()
    if has is None:
        return unread(scene.volume.why_no_features)
    # only when /proc/fs/ext4 is hidden: what is not among the mount options is the default
    return one("ordered", "ordered") if has else one("none", "none")


def async_commit(scene: Scene) -> Reading:
    return switch(scene, "journal_async_commit", False, EXT)


COMMIT_LONG_S = 60


def commit(scene: Scene) -> Reading:
    defaults = {**dict.fromkeys(EXT, 5), "btrfs": 30}
    kind = scene.volume.kind
    if kind not in defaults:
        return absent(scene)
    if kind in EXT and scene.volume.journaled() is False:
        return one("no journal", ABSENT)
    seconds = int(scene.options.get("commit") or 0) or defaults[kind]
    case = "long" if seconds > COMMIT_LONG_S else "longer" if seconds > defaults[kind] else "default"
    return one(f"{seconds} s", case, seconds)


def delalloc(scene: Scene) -> Reading:
    return switch(scene, "delalloc", scene.volume.kind == "ext4", EXT)


def auto_da_alloc(scene: Scene) -> Reading:
    return switch(scene, "auto_da_alloc", True, EXT)


def inode_readahead(scene: Scene) -> Reading:
    if scene.volume.kind not in EXT:
        return absent(scene)
    blocks = int(scene.options.get("inode_readahead_blks") or 32)
    return one(blocks, "on" if blocks else "off")


def discard(scene: Scene) -> Reading:
    if scene.volume.device is None:
        return absent(scene)
    mode = scene.options.get("discard")
    if mode == "async":
        return one("async", "async")
    return switch(scene, "discard", False)


def fast_commit(scene: Scene) -> Reading:
    volume = scene.volume
    if volume.kind != "ext4":
        return absent(scene)
    if volume.journaled() is False:
        return one("off", "no-journal", False)
    if volume.features is None:
        return unread(volume.why_no_features)
    on = "fast_commit" in volume.features
    return one("on" if on else "off", "on" if on else "off", on)


def features(scene: Scene) -> Reading:
    volume = scene.volume
    if volume.kind not in (*EXT, "xfs"):
        return absent(scene)
    if volume.features is None:
        return unread(volume.why_no_features)
    checked = "metadata_csum" in volume.features or "crc" in volume.features
    return one(" ".join(volume.features), "listed" if checked else "old", list(volume.features))


def room(free: int, total: int, text: str, data: dict) -> Reading:
    share = free / total
    case = "full" if share < 0.02 else "short" if share < 0.1 else "enough"
    return one(f"{text} ({share:.0%})", case, data)


def space(scene: Scene) -> Reading | None:
    found = scene.system.space(scene.directory)
    if found is None:
        return None
    total, free = found.f_blocks * found.f_frsize, found.f_bavail * found.f_frsize
    if total == 0:
        return absent(scene)
    return room(free, total, f"{byte_count(free)} free", {"free_bytes": free, "total_bytes": total})


def inodes(scene: Scene) -> Reading | None:
    found = scene.system.space(scene.directory)
    if found is None:
        return None
    if found.f_files == 0:
        return absent(scene)
    data = {"free": found.f_favail, "total": found.f_files}
    return room(found.f_favail, found.f_files, f"{found.f_favail:,} free", data)


# ---- device ----


def each(
    scene: Scene,
    devices: list[Device],
    name: str,
    judge: Callable[[str, Device], str],
    show: Callable[[str], str] = str,
) -> Reading | None:
    """A queue setting of every device; None when none of them could be read."""
    if not devices:
        return Reading("no block device", (ABSENT,))
    values = {d: scene.system.read(f"{d.queue}/{name}") for d in devices}
    known = {d: v for d, v in values.items() if v is not None}
    if not known:
        return None
    shown = [show(v) if len(known) == 1 else f"{d.name}: {show(v)}" for d, v in known.items()]
    cases = dict.fromkeys(judge(v, d) for d, v in known.items())
    return Reading(", ".join(shown), tuple(cases), {d.name: show(v) for d, v in known.items()})


def scheduler(scene: Scene) -> Reading | None:
    def judge(text: str, device: Device) -> str:
        if bracketed(text) == "bfq":
            return "bfq"
        spins = scene.system.read(f"{device.queue}/rotational") == "1"
        return "spinning" if bracketed(text) == "none" and spins and device.leaf else "fine"

    return each(scene, scene.stack.devices, "scheduler", judge, lambda text: bracketed(text) or "")


def nr_requests(scene: Scene) -> Reading | None:
    return each(scene, scene.stack.devices, "nr_requests", lambda v, _: "low" if int(v) < 64 else "usual")


def read_ahead(scene: Scene) -> Reading | None:
    def judge(text: str, _: Device) -> str:
        return "low" if int(text) < 128 else "high" if int(text) > 4096 else "usual"

    return each(scene, scene.stack.devices, "read_ahead_kb", judge)


def write_cache(scene: Scene) -> Reading | None:
    volatile = "write back" in scene.caches().values()

    def judge(text: str, device: Device) -> str:
        if device.in_memory:
            return "memory"
        if text == "write through":
            return "through" if device.leaf or not volatile else "stopped"
        return "volatile-unflushed" if scene.unflushed() else "volatile"

    return each(scene, scene.stack.devices, "write_cache", judge)


def fua(scene: Scene) -> Reading | None:
    def judge(text: str, device: Device) -> str:
        if scene.system.read(f"{device.queue}/write_cache") == "write through":
            return "needless"
        return "on" if text == "1" else "off"

    return each(scene, scene.stack.leaves, "fua", judge, lambda text: "yes" if text == "1" else "no")


def rotational(scene: Scene) -> Reading | None:
    return each(
        scene,
        scene.stack.leaves,
        "rotational",
        lambda v, _: "spins" if v == "1" else "flash",
        lambda v: "yes" if v == "1" else "no",
    )


# ---- shim ----


def staging(scene: Scene) -> Reading | None:
    room_there = scene.system.space(scene.directory)
    if room_there is None:
        return None
    if "ro" in scene.stack.top.options or "ro" in scene.options:
        return one("impossible", "read-only")
    if scene.volume.kind in COPIES:
        return one("elsewhere only", "copies")
    there = scene.system.state(scene.directory / STAGING_NAME)
    if there is not None and not trusted(there):
        return one("distrusted", "distrusted")
    if not scene.system.may_write(scene.directory):
        return one("not by this user", "refused")
    if room_there.f_bavail * room_there.f_frsize < STAGING_BYTES:
        return one("no room", "full")
    return one("beside the data", "beside")


def leases(scene: Scene) -> Reading | None:
    enabled = scene.system.number("/proc/sys/fs/leases-enable")
    if enabled is None:
        return None
    if not enabled:
        return one("off", "off", False)
    if scene.stack.top.kind in NO_LEASES or scene.stack.top.kind.startswith("fuse."):
        return one(f"perhaps not on {scene.stack.top.kind}", "foreign", None)
    return one("on", "on", True)


def sync_journal(scene: Scene) -> Reading | None:
    place = staging(scene)
    top = scene.stack.top
    if top.kind in (*MEMORY, *NETWORK) or top.kind.startswith("fuse"):
        return one("not used", "elsewhere")
    if place is None:
        return None
    if place.cases != ("beside",):
        return one("no", "no-place")
    return one("yes", "unflushed" if scene.unflushed() else "usable")
