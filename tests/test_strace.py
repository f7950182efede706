# SPDX-License-Identifier: Apache-2.0
"""Which system calls are made, where that is the point."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections import Counter
from pathlib import Path

import pytest
from lib.straced import straced
from lib.support import disk_dir, leftovers, run_native, run_preloaded

pytestmark = pytest.mark.skipif(shutil.which("strace") is None, reason="strace is not installed")

WRITER = r"""
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
static int letter_flag(char letter)
{
	switch (letter) {
	case 'c': return O_CREAT;
	case 't': return O_TRUNC;
	case 'a': return O_APPEND;
	case 's': return O_SYNC;
	case 'd': return O_DSYNC;
	}
	return 0;
}
/* writer PATH OPEN COUNT SIZE SYNCS: OPEN of letters c(reate) t(runcate) a(ppend) s(O_SYNC) d(O_DSYNC) */
int main(int argc, char **argv)
{
	int flags = O_WRONLY, count = atoi(argv[3]), syncs = atoi(argv[5]);
	size_t size = (size_t)atol(argv[4]);
	char *buffer = malloc(size);
	(void)argc;
	memset(buffer, 'x', size);
	for (const char *p = argv[2]; *p; p++)
		flags |= letter_flag(*p);
	int fd = open(argv[1], flags, 0644);
	if (fd < 0)
		return 2;
	for (int i = 0; i < count; i++)
		if (write(fd, buffer, size) != (ssize_t)size)
			return 3;
	for (int i = 0; i < syncs; i++) {
		if (fsync(fd) != 0)
			return 4;
		if (i + 1 < syncs && write(fd, buffer, size) != (ssize_t)size)
			return 3;
	}
	return close(fd) != 0;
}
"""
WRITES = ("write", "pwrite64", "writev", "pwritev", "pwritev2", "io_uring_enter")
CALL = re.compile(r"^(?:\[pid +\d+\] |\d+ +)?(\w+)\((.*)$")


@pytest.fixture(scope="module")
def writer(compile_c) -> Path:
    return compile_c(WRITER)


@pytest.fixture
def place():
    with disk_dir() as path:
        (path / "data").mkdir()
        yield path


@pytest.fixture
def trace(library, writer, place):
    """trace(file, open, number, size, syncs, **settings) -> lines, calls since its open, statistics."""

    def run(name: str, how: str, number: int, size: int, syncs: int, paths: str | None = None, **settings):
        command = [writer, place / "data" / name, how, str(number), str(size), str(syncs)]
        done, lines = straced(library, command, place, paths=paths, **settings)
        opened = next(
            i for i, line in enumerate(lines) if "openat(" in line and f'"{place}/data/{name}"' in line
        )
        start, calls = count(lines[:opened]), count(lines[opened:])
        assert start["execve"] == 1
        assert start["clone"] + start["clone3"] == 0
        return lines, calls, done.stats

    return run


def existing(place: Path, name: str = "a", size: int = 5000) -> Path:
    path = place / "data" / name
    path.write_bytes(b"0" * size)
    subprocess.run(["sync", str(path)], check=True)
    return path


def count(lines: list[str]) -> Counter:
    return Counter(match[1] for line in lines if (match := CALL.match(line)))


def writes_of(calls: Counter) -> int:
    return sum(calls[name] for name in WRITES)


def arenas(lines: list[str]) -> list[str]:
    return [line for line in lines if ".arena" in line or ".fastwrite" in line]


@pytest.mark.parametrize("how", ["", "a"])
def test_small_writes_and_a_sync(trace, place, how):
    path = existing(place)
    _, calls, stats = trace("a", how, 2000, 100, 1)
    assert 0 < writes_of(calls) < 60, calls
    assert calls["fsync"] == 0
    assert calls["fdatasync"] >= 1
    assert calls["fallocate"] >= 1
    assert stats.writes > 1900
    assert path.stat().st_size == (205_000 if how else 200_000)
    assert path.read_bytes().endswith(b"x" * 200_000 if how else b"x" * 195_000)


def test_one_write_costs_nothing(trace, place):
    lines, calls, stats = trace("new", "ct", 1, 100, 0)
    assert not any(".arena" in line for line in lines)
    assert calls["clone"] + calls["clone3"] == 0
    assert calls["fallocate"] + calls["ftruncate"] + calls["mkdir"] + calls["mkdirat"] == 0
    assert (stats.writes, writes_of(calls)) == (0, 1)  # the program's; there is nothing to tell at its end
    assert not leftovers(place)


def test_nothing_matches(trace, place):
    lines, calls, stats = trace("a", "c", 200, 100, 0, paths="/nowhere/at/all/**")
    opened = next(i for i, line in enumerate(lines) if "/data/a" in line and "openat(" in line)
    after = count(lines[opened:])
    assert calls["clone"] + calls["clone3"] == 0
    assert after["mmap"] == 0
    assert not arenas(lines[opened:])
    assert not any("MAP_SHARED" in line for line in lines)
    assert after["write"] >= 200
    assert stats.writes == 0


@pytest.mark.parametrize(
    ("sync", "expected"),
    [
        ("fdatasync", {"fsync": 0, "fdatasync": 3}),
        ("fsync", {"fsync": 3, "fdatasync": 0}),
        ("off", {"fsync": 0, "fdatasync": 0}),
    ],
)
def test_sync_policies(trace, place, sync, expected):
    existing(place)
    _, calls, stats = trace("a", "", 100, 100, 3, sync=sync)
    assert {name: calls[name] for name in expected} == expected
    assert stats.writes > 90


def test_relaxed_sync_follows(trace, place):
    existing(place)
    _, calls, _ = trace("a", "", 100, 100, 3, sync="relaxed", relaxed_ms=20)
    assert calls["fsync"] == 0
    assert 1 <= calls["fdatasync"] <= 3


def test_relaxed_sync_is_done_at_exit(library, place, compile_c):
    """Nobody is left to do it later."""
    program = compile_c(
        r"""
        #include <fcntl.h>
        #include <unistd.h>
        int main(int argc, char **argv)
        {
            int fd = open(argv[1], O_WRONLY);
            (void)argc;
            for (int i = 0; i < 100; i++)
                if (write(fd, "x", 1) != 1)
                    return 2;
            return fsync(fd) != 0;
        }
        """
    )
    existing(place)
    out = place / "strace.txt"
    done = run_preloaded(
        library,
        ["strace", "-f", "-qq", "-o", out, "-E", f"LD_PRELOAD={library}", program, place / "data" / "a"],
        place,
        paths=f"{place}/data/**",
        env={"LD_PRELOAD": ""},
        sync="relaxed",
        relaxed_ms=60_000,
    )
    assert done.returncode == 0, done.stderr
    calls = count(out.read_text().splitlines())
    assert calls["fdatasync"] + calls["fsync"] == 1, calls


def test_a_new_name_is_made_durable_first(trace, place):
    _, calls, stats = trace("new", "c", 100, 100, 3)
    assert (calls["fsync"], calls["fdatasync"]) == (1, 2)
    assert stats.writes > 90


@pytest.mark.parametrize("how", ["s", "d"])
def test_synchronous_opens_pass_through(trace, place, how):
    existing(place)
    lines, calls, stats = trace("a", how, 50, 100, 0)
    assert stats.writes == 0
    assert not any(".arena" in line for line in lines)
    assert sum("xxxx" in line for line in lines) == 50
    assert writes_of(calls) == 51


@pytest.mark.parametrize("how", ["s", "d", "sa"])
@pytest.mark.parametrize("sync", ["relaxed", "off"])
def test_synchronous_opens_follow_the_policy(trace, place, how, sync):
    """What the rule lets an fsync do is enough for O_SYNC: one sync for many writes, or none."""
    path = existing(place)
    _, calls, stats = trace("a", how, 500, 100, 0, sync=sync, relaxed_ms=60_000, lag_ms=60_000)
    if sync == "relaxed":
        assert stats.writes >= 498
        assert writes_of(calls) < 10, calls
        assert calls["fdatasync"] == 1, calls
    else:  # each in the kernel when it returns; appends as natively
        assert stats.writes >= (0 if "a" in how else 498)
        assert 498 <= writes_of(calls) < 510, calls
        assert calls["fdatasync"] + calls["fsync"] == 0, calls
    assert path.read_bytes() == (b"0" * 5000 if "a" in how else b"") + b"x" * 50_000


def test_relaxed_synchronous_writes_reach_the_device_in_time(library, place, compile_c):
    program = compile_c(
        r"""
        #include <fcntl.h>
        #include <string.h>
        #include <unistd.h>
        int main(int argc, char **argv)
        {
            int fd = open(argv[1], O_WRONLY | O_DSYNC);
            (void)argc;
            for (int i = 0; i < 100; i++)
                if (write(fd, "x", 1) != 1)
                    return 2;
            /* until the trace has a sync behind the last write, however late the timer is */
            static char text[1 << 20];
            for (int i = 0; i < 6000; i++) {
                int trace = open(argv[2], O_RDONLY);
                ssize_t n = read(trace, text, sizeof text - 1);
                char *at = text, *wrote = NULL;
                close(trace);
                text[n > 0 ? n : 0] = 0;
                while ((at = strstr(at, "pwritev(")))
                    wrote = at++;
                if (wrote && strstr(wrote, "fdatasync("))
                    _exit(0);
                usleep(10000);
            }
            _exit(3);
        }
        """
    )
    existing(place)
    out = place / "strace.txt"
    done = run_preloaded(
        library,
        [
            "strace",
            "-f",
            "-qq",
            "-ttt",
            "-o",
            out,
            "-E",
            f"LD_PRELOAD={library}",
            program,
            place / "data/a",
            out,
        ],
        place,
        paths=f"{place}/data/**",
        env={"LD_PRELOAD": ""},
        sync="relaxed",
        relaxed_ms=500,
        lag_ms=60_000,
    )
    assert done.returncode == 0, done.stderr
    lines = out.read_text().splitlines()
    calls = [line.split()[2].split("(")[0] for line in lines]
    wrote = max(i for i, line in enumerate(lines) if "pwritev(" in line and '"x' in line)
    synced = wrote + calls[wrote:].index("fdatasync")
    ended = next(i for i, line in enumerate(lines) if "exit_group(" in line)
    assert wrote < synced < ended


RWF = r"""
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>
static struct iovec one = {"x", 1};
static long by_number(int fd, int flags)
{
	return syscall(SYS_pwritev2, fd, &one, 1L, -1L, -1L, (long)flags);
}
/* rwf PATH FLAGS BY_NUMBER */
int main(int argc, char **argv)
{
	int fd = open(argv[1], O_WRONLY), flags = atoi(argv[2]), number = atoi(argv[3]);
	(void)argc;
	for (int i = 0; i < 300; i++)
		if ((number ? by_number(fd, flags) : pwritev2(fd, &one, 1, -1, flags)) != 1)
			return perror("pwritev2"), 2;
	return close(fd) != 0;
}
"""


@pytest.mark.parametrize("by_number", [0, 1])
@pytest.mark.parametrize("flag", [2, 4], ids=["RWF_DSYNC", "RWF_SYNC"])
@pytest.mark.parametrize("sync", ["fdatasync", "relaxed", "off"])
def test_synchronous_calls_follow_the_policy(library, place, compile_c, sync, flag, by_number):
    program = compile_c(RWF)
    path = existing(place, size=10)
    out = place / "strace.txt"
    trace_it = ["strace", "-f", "-qq", "-o", out, "-E", f"LD_PRELOAD={library}"]
    done = run_preloaded(
        library,
        [*trace_it, program, path, str(flag), str(by_number)],
        place,
        paths=f"{place}/data/**",
        env={"LD_PRELOAD": ""},
        sync=sync,
        relaxed_ms=60_000,
    )
    assert done.returncode == 0, done.stderr
    calls = count(out.read_text().splitlines())
    assert path.read_bytes() == b"x" * 300
    if sync == "fdatasync" or by_number:  # a file that is written by number is bypassed
        assert calls["pwritev2"] == 300
        assert done.stats.writes == 0
    else:
        assert calls["pwritev2"] < 3, calls
        assert done.stats.writes >= 297
        assert calls["fdatasync"] + calls["fsync"] == (sync == "relaxed")


def test_staging_is_private_and_goes(trace, place):
    existing(place)
    lines, _, stats = trace("a", "", 100, 100, 0)
    assert stats.writes > 90
    made = [line for line in lines if re.search(r"mkdir(at)?\(", line) and ".fastwrite" in line]
    opened = [line for line in lines if ".arena" in line and "O_CREAT" in line]
    # another thread may have made a call meanwhile: "<unfinished ...>"
    assert len(made) == 1 and re.search(r", 0700(\) += 0$| <unf)", made[0].rstrip()), made
    assert len(opened) == 1 and re.search(r", 0600(\)| <unf)", opened[0]), opened
    assert "O_EXCL" in opened[0] and "O_NOFOLLOW" in opened[0] and "O_CLOEXEC" in opened[0]
    assert not leftovers(place)


def test_no_table_of_descriptors_grows_while_threads_share_it(trace, place):
    """The kernel waits for all processors then: 15 to 20 ms, of a process that may last one."""
    existing(place)
    lines, _, stats = trace("a", "", 100, 100, 0)
    assert stats.writes > 90
    made = [i for i, line in enumerate(lines) if re.search(r"\bclone3?\(", line)]
    grown = [i for i, line in enumerate(lines) if re.search(r"F_DUPFD(_CLOEXEC)?, \d{3,}", line)]
    assert made and grown and grown[0] < made[0], lines


def test_a_staging_area_reads_nothing_ahead(library, place, compile_c):
    """Its pages would be cleared and counted, megabytes of them, for a program that stages some bytes."""
    program = compile_c(
        r"""
        #include <dirent.h>
        #include <fcntl.h>
        #include <stdio.h>
        #include <string.h>
        #include <sys/mman.h>
        #include <sys/stat.h>
        #include <unistd.h>
        int main(int argc, char **argv)
        {
            static unsigned char there[1 << 16];
            char path[4096];
            struct stat st;
            struct dirent *entry;
            size_t count = 0, pages;
            int fd = open(argv[1], O_WRONLY | O_CREAT | O_CLOEXEC, 0644);
            DIR *dir;
            void *map;
            (void)argc;
            for (int i = 0; i < 100; i++)
                if (write(fd, "x", 1) != 1)
                    return 2;
            dir = opendir(argv[2]);
            while (dir && (entry = readdir(dir)) && !strstr(entry->d_name, ".arena"))
                ;
            if (!dir || !entry)
                return 3;
            snprintf(path, sizeof path, "%s/%s", argv[2], entry->d_name);
            fd = open(path, O_RDONLY | O_CLOEXEC);
            if (fd < 0 || fstat(fd, &st) != 0)
                return 4;
            map = mmap(NULL, (size_t)st.st_size, PROT_READ, MAP_SHARED, fd, 0);
            pages = (size_t)st.st_size / 4096;
            if (map == MAP_FAILED || pages > sizeof there || mincore(map, (size_t)st.st_size, there) != 0)
                return 5;
            for (size_t i = 0; i < pages; i++)
                count += there[i] & 1;
            printf("%zu %zu\n", count, pages);
            return 0;
        }
        """
    )
    done = run_preloaded(
        library, [program, place / "data/a", place / "data/.fastwrite"], place, paths=f"{place}/data/**"
    )
    assert done.returncode == 0, done.stderr
    assert done.stats.writes > 90
    count, pages = map(int, done.stdout.split())
    assert pages > 2000 and 0 < count < pages // 8, (count, pages)


def test_staging_modes_while_it_lives(library, place, compile_c):
    program = compile_c(
        r"""
        #include <fcntl.h>
        #include <stdlib.h>
        #include <unistd.h>
        int main(int argc, char **argv)
        {
            int fd = open(argv[1], O_WRONLY | O_CREAT | O_CLOEXEC, 0644);
            (void)argc;
            for (int i = 0; i < 100; i++)
                if (write(fd, "x", 1) != 1)
                    return 2;
            return system(argv[2]) != 0;
        }
        """
    )
    show = f"umask; stat -c '%a %n' {place}/data/.fastwrite {place}/data/.fastwrite/* > {place}/modes"
    done = run_preloaded(
        library,
        ["sh", "-c", f'umask 0; exec {program} {place}/data/a "{show}"'],
        place,
        paths=f"{place}/data/**",
    )
    assert done.returncode == 0, done.stderr
    modes = [line.split()[0] for line in (place / "modes").read_text().splitlines()]
    assert modes[0] == "700"
    assert modes[1:] and set(modes[1:]) == {"600"}
    assert not leftovers(place)


@pytest.mark.parametrize("sync", ["fdatasync", "journal"])
def test_the_first_sync_after_a_rename_is_an_fsync_whatever_was_asked(library, compile_c, place, sync):
    """The next one who syncs the file, and knows nothing of its name, may make it an fdatasync."""
    existing(place, "before")
    program = compile_c(r"""
        #include <fcntl.h>
        #include <stdio.h>
        #include <unistd.h>
        int main(void)
        {
            int fd = open("data/before", O_WRONLY);
            for (int i = 0; i < 50; i++)
                if (write(fd, "0123456789", 10) != 10)
                    return 1;
            return rename("data/before", "data/after") || fdatasync(fd) || write(fd, "x", 1) != 1 || fdatasync(fd);
        }""")
    out = place / "strace.txt"
    command = ["strace", "-f", "-qq", "-o", out, "-E", f"LD_PRELOAD={library}", program]
    done = run_preloaded(library, command, place, env={"LD_PRELOAD": ""}, sync=sync, writers="exclusive")
    assert done.returncode == 0, done.stderr
    lines = out.read_text().splitlines()
    renamed = next(i for i, line in enumerate(lines) if "rename" in line)
    calls = [match[1] for line in lines[renamed:] if (match := CALL.match(line))]
    assert [call for call in calls if call in ("fsync", "fdatasync")][:2] == ["fsync", "fdatasync"]


ATTRIBUTES = r"""
#define _GNU_SOURCE
#include <fcntl.h>
#include <linux/fs.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <sys/xattr.h>
#include <unistd.h>
#include <utime.h>
static int fd, other, flags;
static const char *path;
static struct timespec then[2] = {{1, 0}, {2, 0}};
static struct timeval old[2] = {{1, 0}, {2, 0}};
static int in_child(void)
{
	int status;
	pid_t child = fork();
	if (child == 0)
		_exit(chmod(path, 0600) != 0);
	return waitpid(child, &status, 0) < 0 || status;
}
static int change(const char *how)
{
#define IS(name, call) if (strcmp(how, name) == 0) return (int)(call)
	IS("fchmod", fchmod(fd, 0600));
	IS("fchmod a duplicate", fchmod(dup(fd), 0600));
	IS("fchmod by a reader", fchmod(other, 0600));
	IS("chmod", chmod(path, 0600));
	IS("chmod in a child", in_child());
	IS("fchmodat", fchmodat(AT_FDCWD, path, 0600, 0));
	IS("fchown", fchown(fd, getuid(), getgid()));
	IS("chown", chown(path, getuid(), getgid()));
	IS("lchown", lchown(path, getuid(), getgid()));
	IS("fchownat", fchownat(AT_FDCWD, path, getuid(), getgid(), 0));
	IS("futimens", futimens(fd, then));
	IS("utimensat", utimensat(AT_FDCWD, path, then, 0));
	IS("futimes", futimes(fd, old));
	IS("utimes", utimes(path, old));
	IS("utime", utime(path, NULL));
	IS("fsetxattr", fsetxattr(fd, "user.a", "1", 1, 0));
	IS("setxattr", setxattr(path, "user.b", "1", 1, 0));
	IS("lsetxattr", lsetxattr(path, "user.c", "1", 1, 0));
	IS("fremovexattr", fremovexattr(fd, "user.a"));
	IS("removexattr", removexattr(path, "user.b"));
	IS("lremovexattr", lremovexattr(path, "user.c"));
	IS("ioctl", ioctl(fd, FS_IOC_GETFLAGS, &flags) || (flags |= FS_NOATIME_FL, ioctl(fd, FS_IOC_SETFLAGS, &flags)));
	IS("fchmod by number", syscall(SYS_fchmod, fd, 0640));
	IS("fchmodat by number", syscall(SYS_fchmodat, AT_FDCWD, path, 0600));
	IS("utimensat by number", syscall(SYS_utimensat, AT_FDCWD, path, then, 0));
	IS("fsetxattr by number", syscall(SYS_fsetxattr, fd, "user.d", "1", 1, 0));
	IS("ioctl by number", (flags &= ~FS_NOATIME_FL, syscall(SYS_ioctl, fd, FS_IOC_SETFLAGS, &flags)));
	return 1;
}
/* attributes PATH CALL...: writes, an fsync, and for each the call and three syncs; `before`: chmod before the open */
int main(int argc, char **argv)
{
	path = argv[1];
	if (argc > 2 && strcmp(argv[2], "before") == 0 && (argc = 2, chmod(path, 0600)))
		return 1;
	fd = open(path, O_WRONLY);
	other = open(path, O_RDONLY);
	for (int i = 0; i < 100; i++)
		if (write(fd, "0123456789", 10) != 10)
			return 2;
	if (fsync(fd))
		return 3;
	for (int i = 2; i < argc; i++) {
		if (change(argv[i]))
			return perror(argv[i]), 4;
		/* what was asked for less does not count as the one that is due */
		if (fdatasync(fd) || write(fd, "0123456789", 10) != 10 || fsync(fd))
			return 5;
		if (write(fd, "0123456789", 10) != 10 || fsync(fd))
			return 6;
	}
	return 0;
}
"""


@pytest.fixture(scope="module")
def attributes(compile_c) -> Path:
    return compile_c(ATTRIBUTES)


def synced_by(library, place, program, *arguments, **settings) -> list[str]:
    """The sync calls that the program's process makes while it runs."""
    out = place / "strace.txt"
    command = ["strace", "-f", "-qq", "-o", out, "-E", f"LD_PRELOAD={library}", program]
    done = run_preloaded(library, [*command, *arguments], place, env={"LD_PRELOAD": ""}, **settings)
    assert done.returncode == 0, done.stderr
    calls = [match[1] for line in out.read_text().splitlines() if (match := CALL.match(line))]
    return [call for call in calls if call in ("fsync", "fdatasync")]


CHANGES = re.findall(r'IS\("([^"]+)"', ATTRIBUTES)


def test_the_fsync_after_a_change_of_attributes_is_one(library, place, attributes):
    """fdatasync leaves modes, owners, times and extended attributes out."""
    existing(place)
    for change in CHANGES:
        synced = synced_by(library, place, attributes, "data/a", change, paths=f"{place}/data/**")
        assert synced == ["fdatasync", "fdatasync", "fsync", "fdatasync"], (change, synced)


def test_the_fsync_after_a_change_of_attributes_before_the_open_is_one(library, place, attributes):
    existing(place)
    assert synced_by(library, place, attributes, "data/a") == ["fdatasync"]
    assert synced_by(library, place, attributes, "data/a", "before") == ["fsync"]


@pytest.mark.parametrize("change", ["fchmod", "chmod", "utimensat", "fsetxattr by number"])
@pytest.mark.parametrize("sync", ["journal", "relaxed"])
def test_a_change_of_attributes_is_synced_by_every_policy(library, place, attributes, sync, change):
    existing(place)
    synced = synced_by(
        library, place, attributes, "data/a", change, sync=sync, relaxed_ms=60_000, writers="exclusive"
    )
    assert "fsync" in synced, synced


AGAIN = r"""
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>
/* again PATH CALL TIMES WRITES: the same calls again and again, after so many small writes */
int main(int argc, char **argv)
{
	int fd = open(argv[1], O_RDWR | O_CREAT, 0644), times = atoi(argv[3]), writes = atoi(argv[4]);
	struct flock lock = {.l_whence = SEEK_SET, .l_start = 1 << 30, .l_len = 1};
	(void)argc;
	if (fd < 0 || ftruncate(fd, 1 << 20) != 0)
		return 2;
	while (writes-- > 0)
		if (write(fd, "0123456789", 10) != 10)
			return 3;
	for (int i = 0; i < times; i++) {
		if (strcmp(argv[2], "append") == 0) {
			int again = open(argv[1], O_WRONLY | O_CREAT | O_APPEND, 0644);
			if (again < 0 || write(again, "0123456789", 10) != 10 || close(again) != 0)
				return 6;
			continue;
		}
		if (strcmp(argv[2], "journal") == 0) {
			int journal = open(argv[1], O_RDWR | O_CREAT, 0644);
			for (int n = 0; n < 14; n++) {
				if (write(journal, "0123456789", 10) != 10)
					return 7;
				if (n % 7 == 6 && fdatasync(journal) != 0)
					return 8;
			}
			close(journal);
			continue;
		}
		if (strcmp(argv[2], "map") == 0) {
			char *window = mmap(NULL, 65536, PROT_READ | PROT_WRITE, MAP_SHARED, fd, (i % 16) * 65536);
			if (window == MAP_FAILED)
				return 4;
			memset(window, 'x', 100);
			munmap(window, 65536);
			continue;
		}
		for (int unlock = 0; unlock < 2; unlock++) {
			lock.l_type = unlock ? F_UNLCK : F_WRLCK;
			lock.l_pid = 0;
			if (fcntl(fd, strcmp(argv[2], "own") == 0 ? F_OFD_SETLK : F_SETLK, &lock) != 0)
				return 5;
		}
	}
	return 0;
}
"""


@pytest.fixture(scope="module")
def again(compile_c) -> Path:
    return compile_c(AGAIN)


@pytest.fixture
def each(library, place, again):
    """each(path, call, writes) -> system calls that each further round makes."""

    def counted(path: str, call: str, times: int, writes: int, **settings) -> Counter:
        out = place / "strace.txt"
        command = ["strace", "-f", "-qq", "-o", out, "-E", f"LD_PRELOAD={library}", again, place / path]
        done = run_preloaded(
            library,
            [*command, call, str(times), str(writes)],
            place,
            paths=f"{place}/data/**",
            env={"LD_PRELOAD": ""},
            **settings,
        )
        assert done.returncode == 0, done.stderr
        return count(out.read_text().splitlines())

    def run(path: str, call: str, writes: int = 0, **settings) -> dict[str, float]:
        more = counted(path, call, 1010, writes, **settings)
        more.subtract(counted(path, call, 10, writes, **settings))
        # (the timer and the flush of what was written come when they like)
        return {name: number / 1000 for name, number in more.items() if number > 200}

    return run


def test_an_append_of_its_own_costs_one_call(each):
    """Has a dead process left bytes?"""
    assert each("data/a", "append") == {"openat": 1, "write": 1, "close": 1, "statx": 1}


def test_few_writes_between_syncs_of_the_data_cost_nothing(each):
    """As in a rollback journal: seven writes, a sync, and again.  Nothing asks what the descriptor is."""
    calls = each("data/a", "journal", adapt="on")
    assert calls == {"openat": 1, "write": 14, "fdatasync": 2, "close": 1, "statx": 1}


def test_an_append_of_its_own_elsewhere_costs_nothing(each):
    """Where the path leads is asked once in 50 ms."""
    calls = each("a", "append")
    assert calls.pop("readlinkat", 0) <= 1
    assert calls == {"openat": 1, "write": 1, "close": 1}


@pytest.mark.parametrize("path", ["data/a", "a"])
def test_a_window_that_moves_costs_nothing(each, path):
    assert each(path, "map") == {"mmap": 1, "munmap": 1}


@pytest.mark.parametrize("path", ["data/a", "a"])
@pytest.mark.parametrize("call", ["lock", "own"])
def test_a_lock_of_a_file_that_is_not_staged_costs_nothing(each, path, call):
    assert each(path, call) == {"fcntl": 2}


@pytest.mark.parametrize("call", ["lock", "own"])
def test_a_lock_of_a_staged_file_costs_a_few_calls(each, call):
    """Before a lock the file is drained; after it the library asks for the new size."""
    calls = each("data/a", call, 20)
    # two more where the lock lies in another page of the stack: may it be read?
    assert round(calls.pop("rt_sigprocmask")) in (8, 10)
    assert {name: round(number) for name, number in calls.items()} == {"fcntl": 2, "statx": 1}


SYNC_DIRECTORY = r"""
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <unistd.h>
/* syncs DIRECTORY FLAGS...: once by each call; then what must fail fails, and a file is synced */
int main(int argc, char **argv)
{
	for (int i = 2; i < argc; i++) {
		int fd = open(argv[1], O_RDONLY | atoi(argv[i]));
		if (fd < 0)
			return 2;
		if (fsync(fd) != 0 || fdatasync(fd) != 0)
			return 3;
		close(fd);
		if (fsync(fd) != -1 || errno != EBADF || fdatasync(fd) != -1 || errno != EBADF)
			return 4;
		if (open(argv[1], O_PATH) != fd || fsync(fd) != -1 || errno != EBADF)
			return 5;
		close(fd);
	}
	return 0;
}
"""


@pytest.fixture(scope="module")
def sync_directory(compile_c) -> Path:
    return compile_c(SYNC_DIRECTORY)


def rules(place: Path, *sections: tuple[str, str]) -> str:
    path = place / "config"
    text = [f"[rule r{number}]\npaths = {p}\nsync = {s}\n" for number, (p, s) in enumerate(sections)]
    path.write_text("".join(text))
    return str(path)


@pytest.mark.parametrize(
    ("directory", "sections", "syncs"),
    [
        ("data", [("data/**", "off")], 0),
        ("data/sub", [("data/**", "off")], 0),
        ("data", [("data/**", "off"), ("other/**", "fdatasync")], 0),
        ("data", [("data/sub/**", "off")], 1),
        ("data", [("data/*.db", "off")], 1),
        ("data", [("data/*", "off")], 1),
        ("data/sub", [("data/*", "off")], 1),
        ("data/sub", [("data/sub/*", "off")], 0),
        ("other", [("other/*", "off")], 0),
        ("data", [("!data/*.log:data/**", "off")], 1),
        ("data", [("data/*.log", "fdatasync"), ("data/**", "off")], 1),
        ("data", [("data/sub/**", "journal"), ("data/**", "off")], 1),
        ("data", [("data/**", "relaxed")], 1),
        ("data", [("data/**", "fdatasync")], 1),
        ("other", [("data/**", "off")], 1),
    ],
)
def test_directories_below_sync_off_are_not_synced(
    library, place, sync_directory, directory, sections, syncs
):
    (place / "data" / "sub").mkdir()
    (place / "other" / ".fastwrite").mkdir(parents=True)
    config = rules(place, *((re.sub(r"\b(data|other)/", rf"{place}/\1/", p), s) for p, s in sections))
    flags = [str(flag) for flag in (0, os.O_DIRECTORY, os.O_DIRECTORY | os.O_CLOEXEC)]
    out = place / "strace.txt"
    command = ["strace", "-f", "-qq", "-o", out, "-E", f"LD_PRELOAD={library}", sync_directory]
    done = run_native([*command, place / directory, *flags], place, FASTWRITE_CONFIG=config)
    assert (done.returncode, done.stderr) == (0, "")
    lines = out.read_text().splitlines()
    made = [line for line in lines if re.search(r"\bf(data)?sync\(\d+\) += 0", line)]
    assert len(made) == syncs * 2 * len(flags), made
    # Looking at what a descriptor is costs nothing where the rule cannot match.
    if (directory == "other" and syncs) or all(sync != "off" for _, sync in sections):
        opened = next(i for i, line in enumerate(lines) if f'"{place}/{directory}", O_RDONLY)' in line)
        assert not [line for line in lines[opened:] if re.search(r"F_GETFL|readlink|statx", line)]


RENAME = r"""
#include <fcntl.h>
#include <stdio.h>
#include <unistd.h>
/* renames FROM TO FILE: while the file is staged; then it is written, and an epoch ends */
int main(int argc, char **argv)
{
	int from = open(argv[1], O_WRONLY | O_CREAT, 0644), file = open(argv[3], O_RDWR | O_CREAT, 0644);
	(void)argc;
	if (from < 0 || close(from) != 0)
		return 2;
	for (int n = 0; n < 100; n++)
		if (pwrite(file, "before", 6, n * 6) != 6)
			return 3;
	usleep(300000);
	if (rename(argv[1], argv[2]) != 0 || pwrite(file, "after", 5, 0) != 5)
		return 4;
	usleep(300000);
	_exit(0);
}
"""


@pytest.mark.parametrize(
    ("old", "new", "written"),
    [
        ("one", "one", "one"),
        ("one", "two", "one"),
        ("one", "two", "two"),
        ("two", "one", "one"),
        ("one", "other", "one"),
        ("other", "one", "one"),
    ],
)
def test_a_name_that_moves_between_rules_comes_before_the_next_epoch(
    library, place, compile_c, old, new, written
):
    for name in ("one", "two", "other"):
        (place / name).mkdir()
    config = rules(place, *((f"{place}/{name}/*", "ordered") for name in ("one", "two")))
    out = place / "strace.txt"
    command = ["strace", "-f", "-qq", "-y", "-o", out, "-E", f"LD_PRELOAD={library}", compile_c(RENAME)]
    names = [place / old / "from", place / new / "to", place / written / "file"]
    done = run_native([*command, *names], place, FASTWRITE_CONFIG=config, FASTWRITE_ADAPT="off")
    assert (done.returncode, done.stderr) == (0, "")
    lines = out.read_text().splitlines()
    renamed = next(i for i, line in enumerate(lines) if "rename" in line and "/to" in line)
    after = re.findall(r"\b(syncfs|pwrite64|pwritev2?)\(", "\n".join(lines[renamed:]))
    assert after[0] == "syncfs" and len(after) > 1, after


def test_threads_of_the_library_take_no_low_number(library, compile_c, place):
    """The next descriptor of the program is the lowest free one, whatever background threads open."""
    program = compile_c(
        r"""
        #include <fcntl.h>
        #include <unistd.h>
        int main(int argc, char **argv)
        {
            int fd = open(argv[1], O_WRONLY | O_CREAT, 0644);
            (void)argc;
            for (int i = 0; i < 50; i++)
                if (write(fd, "x", 1) != 1)
                    return 2;
            close(fd);
            /* a thread removes the staging area, and the directory */
            while (access(argv[2], F_OK) == 0)
                usleep(20000);
            return 0;
        }
        """
    )
    (place / ".git").mkdir()  # (then the staging directory has a .gitignore, which goes with it)
    command = [program, place / "data" / "a", place / "data" / ".fastwrite"]
    done, lines = straced(library, command, place, "-e", "trace=openat,close_range,unlinkat,execve")
    assert done.stats.writes > 40
    # (a process that has its own descriptors closes its copies first)
    apart = {line.split()[0] for line in lines if "close_range(3," in line}
    threads = [line for line in lines if line.split()[0] not in apart | {lines[0].split()[0]}]
    opened = [found for line in threads if (found := re.search(r"openat.* = (\d+)$", line))]
    assert not [found[0] for found in opened if int(found[1]) < 256]
    assert any('".gitignore"' in line for line in lines if line.split()[0] in apart)


def test_repair_writes_to_no_low_number(build_debug, compile_c, place):
    """What a killed child staged is written through a number at which the program puts nothing by dup2."""
    program = compile_c(
        r"""
        #include <fcntl.h>
        #include <sys/wait.h>
        #include <unistd.h>
        int main(int argc, char **argv)
        {
            char line[200] = "line";
            int fd = open(argv[1], O_RDWR | O_CREAT, 0644);
            (void)argc;
            for (int i = 0; i < 50; i++)
                if (write(fd, line, sizeof line) < 0)
                    return 2;
            if (fork() == 0) {
                for (int i = 0; i < 500; i++)
                    if (write(fd, line, sizeof line) < 0)
                        return 2;
                _exit(0);
            }
            usleep(600000);
            return 0;
        }
        """
    )
    opened = {}
    for step in range(1, 20):
        _, lines = straced(
            build_debug / "libfastwrite.so",
            [program, place / "data" / "a"],
            place,
            *("-e", "trace=openat,pwritev,pwritev2,execve"),
            env={"FASTWRITE_KILL_CHILD_STEP": str(step)},
            lag_ms=100,
            block="64K",
        )
        threads = [line for line in lines if line.split()[0] != lines[0].split()[0]]
        opened = {
            (line.split()[0], found[1])
            for line in threads
            if (found := re.search(r"openat.*/proc/self/fd/\d.* = (\d+)$", line))
        }
        if opened:
            break
    assert opened, "no step of the child left a repair to the background thread"
    written = {
        (line.split()[0], found[1]) for line in threads if (found := re.search(r"pwritev2?\((\d+),", line))
    }
    assert not opened & written
    assert written


@pytest.mark.parametrize("by", ["open", "call"])
def test_a_synchronous_write_over_staged_ones_is_noted_first(library, compile_c, place, by):
    """After a power loss the arena must not bring back what was staged before it, and says so durably."""
    program = compile_c(
        r"""
        #define _GNU_SOURCE
        #include <fcntl.h>
        #include <string.h>
        #include <sys/stat.h>
        #include <sys/uio.h>
        #include <unistd.h>
        int main(int argc, char **argv)
        {
            int flags = strcmp(argv[2], "open") == 0 ? O_DSYNC : 0;
            int one = open(argv[1], O_RDWR), two = open(argv[1], O_RDWR | flags);
            struct iovec iov = {"durable", 7};
            struct stat st;
            (void)argc;
            for (int i = 0; i < 100; i++)
                if (pwrite(one, "staged.", 7, 7L * i) != 7)
                    return 2;
            if (fstat(one, &st))
                return 3;
            return (flags ? pwritev(two, &iov, 1, 70) : pwritev2(two, &iov, 1, 70, RWF_DSYNC)) != 7;
        }
        """
    )
    done, lines = straced(library, [program, existing(place), by], place)
    assert done.stats.writes > 90
    noted = next((i for i, line in enumerate(lines) if re.search(r"\bmsync\(", line)), None)
    written = next(i for i, line in enumerate(lines) if "durable" in line)
    assert noted is not None and noted < written, lines[-40:]
