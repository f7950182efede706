# SPDX-License-Identifier: Apache-2.0
"""The probe of every knob, by the id that configs/doctor.toml gives it."""

from __future__ import annotations

from harness.doctor import probes_disk as disk
from harness.doctor import probes_host as host
from harness.doctor.scene import Probe

PROBES: dict[str, Probe] = {
    "filesystem": disk.filesystem,
    "layers": disk.layers,
    "writable": disk.writable,
    "atime": disk.atime,
    "lazytime": disk.lazytime,
    "barrier": disk.barrier,
    "journal": disk.journal,
    "data": disk.data_mode,
    "async_commit": disk.async_commit,
    "commit": disk.commit,
    "delalloc": disk.delalloc,
    "auto_da_alloc": disk.auto_da_alloc,
    "inode_readahead": disk.inode_readahead,
    "discard": disk.discard,
    "fast_commit": disk.fast_commit,
    "features": disk.features,
    "space": disk.space,
    "inodes": disk.inodes,
    "dirty_background": host.dirty_background,
    "dirty": host.dirty,
    "writeback_interval": host.writeback_interval,
    "dirty_expire": host.dirty_expire,
    "swap": host.swap,
    "swappiness": host.swappiness,
    "cgroup_memory": host.cgroup_memory,
    "cgroup_io": host.cgroup_io,
    "scheduler": disk.scheduler,
    "nr_requests": disk.nr_requests,
    "read_ahead": disk.read_ahead,
    "write_cache": disk.write_cache,
    "fua": disk.fua,
    "rotational": disk.rotational,
    "staging": disk.staging,
    "leases": disk.leases,
    "sync_journal": disk.sync_journal,
}
