# SPDX-License-Identifier: Apache-2.0
"""Power loss by shutting the file system down: what is in the page cache and in its log does not reach the disk."""

from __future__ import annotations

import os
import subprocess
import time
from contextlib import nullcontext
from random import Random

from power.acks import ACK, Acks
from power.content import Content
from power.disk import make_image
from power.system import DISK, PLACE, another_boot, loop, mounted, shut_down
from power.workload import (
    DATA,
    RELAXED,
    FailedError,
    Job,
    Look,
    Tools,
    Writer,
    pace_us,
    recover_and_check,
    syncs_of,
)


def lose_power(job: Job, tools: Tools, spare_ns: int, same_boot: bool = False) -> Look:
    """One run, one loss.  Under `relaxed`, syncs of the last `spare_ns` may be lost.  `same_boot`: the kernel goes on,
    and mounts the file system again."""
    dice = Random(job.seed)
    content = Content(job.seed)
    image, acks = PLACE / "image", PLACE / "acks"
    make_image(image, job.fs)
    acks.write_bytes(b"")
    syncs = syncs_of(job)
    wanted = dice.randrange(syncs * 2 * ACK.size)
    with loop(image) as device:
        with mounted(device, job.fs):
            DATA.mkdir()
            subprocess.run(["sync", "-f", str(DISK)], check=True)
            with Writer(job, tools, acks, syncs=syncs, pace_us=pace_us(job), linger=True) as writer:
                begin = time.monotonic()
                while acks.stat().st_size < wanted and time.monotonic() - begin < 5:
                    if writer.popen.poll() is not None:
                        raise FailedError(
                            f"{job}: ended by itself, status {writer.popen.returncode}: {writer.said()}"
                        )
                    time.sleep(0.0003)
                time.sleep(dice.random() * 0.003)
                loss_ns = time.monotonic_ns()
                shut_down(DISK)
                gone_ns = time.monotonic_ns()
                # whoever says now that a sync has succeeded is to be found out
                time.sleep(0.02)
        device.forget()
        with nullcontext() if same_boot else another_boot(), mounted(device, job.fs):
            # a sync that was under way in that moment may have been told that it succeeded, by the kernel itself
            if job.policy == RELAXED:
                known = Acks.of([acks.read_bytes()], loss_ns - spare_ns)
            else:
                known = Acks.of([acks.read_bytes()], loss_ns, gone_ns)
            look = recover_and_check(job, tools, content, known)
    os.unlink(image)
    look.synced = known.count
    return look
