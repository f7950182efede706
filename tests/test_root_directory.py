# SPDX-License-Identifier: Apache-2.0
"""A program changes its root directory while it stages, and is killed: a recovery outside finds all files."""

from __future__ import annotations

import os

import pytest
from lib.support import disk_dir, leftovers, run_native, run_preloaded

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="chroot needs root")

PROGRAM = r"""
#define _GNU_SOURCE
#include <fcntl.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mount.h>
#include <sys/syscall.h>
#include <unistd.h>
#define MUST(what) \
	do \
		if (!(what)) \
			return perror(#what), 9; \
	while (0)
static void put(int fd, int count)
{
	for (int i = 0; i < count; i++)
		if (fd < 0 || write(fd, "0123456789\n", 11) != 11)
			exit(8);
}
static int opened(const char *path) { return open(path, O_WRONLY | O_CREAT | O_APPEND, 0644); }
/* It begins where out.log is to be; jail/logs/ is there, and jail/ is a mount. */
int main(void)
{
	int out = opened("out.log"), moved = opened("jail/logs/moved.log"), late = opened("jail/logs/late.log"), home;
	put(out, 100);
	put(moved, 100);
	home = open("/proc/self/ns/mnt", O_RDONLY);
	(void)home;
	CHANGE;
	put(opened("/logs/in.log"), 100);
	put(late, 100);
	MUST(rename("/logs/moved.log", "/logs/new.log") == 0);
	put(moved, 100);
	put(out, 100);
	BACK;
	kill(getpid(), SIGKILL);
}
"""

CHANGES = {
    "chroot": 'MUST(chroot("jail") == 0 && chdir("/") == 0)',
    "number": 'MUST(syscall(SYS_chroot, "jail") == 0 && chdir("/") == 0)',
    "pivot_root": """
	MUST(chdir("jail") == 0);
	MUST(syscall(SYS_pivot_root, ".", "old") == 0 && chdir("/") == 0)
""",
}


# The program has a mount namespace of its own.  It finds the names of its descriptors in jail/proc.
PREPARE = 'mount --bind jail jail && mount --rbind /proc jail/proc && exec "$@"'


@pytest.mark.parametrize(("change", "back"), [*((change, False) for change in CHANGES), ("chroot", True)])
def test_killed_in_another_root(library, fastwrite, compile_c, change, back):
    line = b"0123456789\n"
    again = "MUST(setns(home, CLONE_NEWNS) == 0); put(opened(AGAIN), 100)" if back else "(void)0"
    with disk_dir() as place:
        for name in ("logs", "proc", "old"):
            (place / "jail" / name).mkdir(parents=True)
        source = PROGRAM.replace("CHANGE;", CHANGES[change] + ";").replace("BACK;", again + ";")
        program = compile_c(source, f'-DAGAIN="{place}/again.log"')
        command = ["unshare", "-m", "sh", "-c", PREPARE, "sh", program]
        if run_native(["unshare", "-m", "true"], place).returncode != 0:
            pytest.skip("needs the right to make a mount namespace")
        run = run_preloaded(library, command, place, paths="/**/*.log", lag_ms=60000)
        assert run.returncode == -9, run.stderr
        names = {"out.log": 200, "jail/logs/new.log": 200, "jail/logs/in.log": 100, "jail/logs/late.log": 100}
        if back:
            names["again.log"] = 100
        written = {name: (place / name).stat().st_size for name in names if (place / name).exists()}
        assert sum(written.values()) < sum(names.values()) * len(line), "nothing was staged"
        for directory in (place, place / "jail" / "logs"):
            done = run_native([fastwrite, "recover", directory], place)
            assert done.returncode == 0, done.stdout + done.stderr
        assert {name: (place / name).read_bytes() for name in names} == {
            name: line * count for name, count in names.items()
        }
        assert not leftovers(place)
