# SPDX-License-Identifier: Apache-2.0
"""A device or file system that fails under the program: who meets it is told, and what was accepted is not dropped."""

from __future__ import annotations

import errno
import os
import subprocess
from pathlib import Path

import pytest
from lib.disks import MIB, device_of, disk, remount, run_or_skip, shut_down
from lib.support import assert_staged, preload_env, run_native, run_preloaded, sync_file_system

PROGRAM = r"""
#include <errno.h>
#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
enum { SIZE = 1000 };
static void fill(unsigned char *p, uint64_t at)
{
	for (size_t i = 0; i < SIZE; i++)
		p[i] = (unsigned char)((at + i) * 2654435761u >> 13);
}
static void say(const char *what, long r)
{
	if (r < 0)
		printf("%s %s\n", what, strerrorname_np(errno));
	else
		printf("%s ok\n", what);
	fflush(stdout);
}
/* Tells the test to break it, and waits until that is done. */
static void turn(void)
{
	char line[8];
	printf("turn\n");
	fflush(stdout);
	if (!fgets(line, sizeof line, stdin))
		exit(9);
}
/* fails PATH append|positioned COUNT: COUNT records before the turn; then until an error, at most 20,000 */
int main(int argc, char **argv)
{
	unsigned char record[SIZE];
	int append = strcmp(argv[2], "append") == 0, count = atoi(argv[3]);
	int fd = open(argv[1], O_RDWR | O_CREAT | (append ? O_APPEND : 0), 0644);
	uint64_t at = 0;
	ssize_t r = 0;
	(void)argc;
	for (int i = 0; i < count; i++, at += SIZE) {
		fill(record, at);
		if (write(fd, record, SIZE) != SIZE)
			return perror("write"), 2;
	}
	say("fsync", fsync(fd));
	turn();
	for (int i = 0; i < 20000; i++, at += SIZE) {
		fill(record, at);
		r = append ? write(fd, record, SIZE) : pwrite(fd, record, SIZE, (off_t)at);
		if (r != SIZE)
			break;
	}
	printf("accepted %lu\n", (unsigned long)at);
	say("write", r);
	say("write", write(fd, record, SIZE));
	say("fsync", fsync(fd));
	say("fsync", fsync(fd));
	say("close", close(fd));
	return 0;
}
"""
TWO = r"""
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
static int fds[4];
static void say(int which)
{
	int r = fsync(fds[which]);
	printf("%d %s\n", which, r < 0 ? strerrorname_np(errno) : "ok");
}
/* two PATH RECORDS MILLISECONDS: what fsync of several descriptions says after writeback failed */
int main(int argc, char **argv)
{
	char record[4096];
	(void)argc;
	memset(record, 'x', sizeof record);
	for (int i = 0; i < 2; i++)
		fds[i] = open(argv[1], O_RDWR | O_CREAT, 0644);
	for (int i = 0; i < atoi(argv[2]); i++)
		if (pwrite(fds[0], record, sizeof record, (off_t)(i * sizeof record)) != sizeof record)
			return perror("pwrite"), 2;
	if (atoi(argv[3])) {
		say(0); /* relaxed: all is well so far */
		usleep((unsigned)atoi(argv[3]) * 1000);
	}
	fds[2] = open(argv[1], O_RDWR); /* nobody has been told yet, relaxed; else it is flushed by then or not */
	if (!atoi(argv[3]))
		say(0);
	for (int round = 0; round < 2; round++)
		for (int i = 0; i < 3; i++)
			say(i);
	fds[3] = open(argv[1], O_RDWR);
	say(3);
	return 0;
}
"""


def pattern(size: int) -> bytes:
    return bytes(((at * 2654435761) & 0xFFFFFFFF) >> 13 & 0xFF for at in range(size))


def difference(have: bytes, want: bytes) -> str | None:
    """Where they differ first, since a dump of all of it helps nobody."""
    if have == want:
        return None
    at = next(
        (i for i, (a, b) in enumerate(zip(have, want, strict=False)) if a != b), min(len(have), len(want))
    )
    return (
        f"{len(have)} bytes, wanted {len(want)}; differs at {at}: {have[at : at + 8]!r} {want[at : at + 8]!r}"
    )


def accepted_of(output: str) -> int:
    return next(int(line.split()[1]) for line in output.splitlines() if line.startswith("accepted "))


class Session:
    """A program that stops at its turn, so that the test can break its disk there."""

    def __init__(self, library: Path, command: list, cwd: Path, **settings) -> None:
        self.process = subprocess.Popen(
            [str(part) for part in command],
            cwd=cwd,
            env={**os.environ, **preload_env(library, **settings)},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        self.before = []
        for line in self.process.stdout:
            if line == "turn\n":
                break
            self.before.append(line)

    def go_on(self) -> tuple[str, str]:
        out, err = self.process.communicate("go\n", timeout=60)
        assert self.process.returncode == 0, f"{self.process.returncode}: {err}"
        return out, err


@pytest.fixture
def program(compile_c):
    return compile_c(PROGRAM, "-D_GNU_SOURCE")


@pytest.mark.parametrize("how", ["append", "positioned"])
@pytest.mark.parametrize("kind", ["ext4", "xfs"])
def test_shut_down_and_recovered(library, fastwrite, program, tmp_path, kind, how):
    """EIO in the middle: the write is told, and what was accepted comes back with `fastwrite recover`."""
    staging = tmp_path / "staging"
    with disk(kind, tmp_path / "disk") as point:
        data = point / "a"
        session = Session(
            library, [program, data, how, 3000], tmp_path, paths=f"{point}/**", staging=staging, lag_ms=60000
        )
        shut_down(point)
        out, err = session.go_on()
        accepted = accepted_of(out)
        assert session.before == ["fsync ok\n"]
        assert out.splitlines()[1:] == ["write EIO", "write EIO", "fsync EIO", "fsync EIO", "close EIO"]
        assert accepted > 3_000_000
        assert "stay in" in err
        remount(point)
        done = subprocess.run(
            [fastwrite, "recover", staging], capture_output=True, text=True, check=False, cwd=tmp_path
        )
        assert done.returncode == 0, done.stdout + done.stderr
        assert difference(data.read_bytes(), pattern(accepted)) is None, done.stdout
        assert not staging.exists()


def test_shut_down_with_the_arena(library, program, tmp_path):
    """The arena is on the same file system: what was synced is there, and errors are told."""
    with disk("ext4", tmp_path / "disk") as point:
        session = Session(library, [program, point / "a", "append", 3000], tmp_path, paths=f"{point}/**")
        shut_down(point)
        out, _ = session.go_on()
        assert out.splitlines()[1:] == ["write EIO", "write EIO", "fsync EIO", "fsync EIO", "close EIO"]
        remount(point)
        assert (point / "a").read_bytes()[:3_000_000] == pattern(3_000_000)


def test_errors_remount_read_only(library, fastwrite, program, tmp_path):
    """ext4 found an error and made itself read-only: EROFS, as natively."""
    staging = tmp_path / "staging"
    with disk("ext4", tmp_path / "disk", 64 * MIB, "errors=remount-ro") as point:
        trigger = Path("/sys/fs/ext4", Path(device_of(point)).name, "trigger_fs_error")
        if not trigger.exists():
            pytest.skip(f"no {trigger}")
        data = point / "a"
        session = Session(
            library, [program, data, "append", 3000], tmp_path, paths=f"{point}/**", staging=staging
        )
        trigger.write_text("test")
        out, _ = session.go_on()
        words = [line.split()[1] for line in out.splitlines()[1:]]
        assert words[:2] == ["EROFS", "EROFS"], out
        assert set(words[2:]) <= {"EROFS", "EIO"}, out
        remount(point, repair=True)
        done = subprocess.run(
            [fastwrite, "recover", staging], capture_output=True, text=True, check=False, cwd=tmp_path
        )
        assert done.returncode == 0, done.stdout + done.stderr
        assert data.read_bytes() == pattern(accepted_of(out))


def test_recovery_waits_for_a_writable_disk(library, fastwrite, program, tmp_path):
    """Killed with bytes staged, then read-only: recovery fails and says so; writable again, it brings them."""
    with disk("ext4", tmp_path / "disk") as point:
        data = point / "a"
        # the turn comes after a sync: more records, so that something is staged when it is killed
        source = PROGRAM.replace('say("fsync", fsync(fd));\n\tturn();', "turn();")
        assert source != PROGRAM
        killed = tmp_path / "killed"
        subprocess.run(
            ["cc", "-D_GNU_SOURCE", "-x", "c", "-", "-o", killed], input=source, text=True, check=True
        )
        session = Session(library, [killed, data, "append", 100], tmp_path, paths=f"{point}/**", lag_ms=60000)
        session.process.kill()
        session.process.communicate()
        assert data.stat().st_size < 100_000
        run_or_skip("mount", "-o", "remount,ro", point)
        refused = subprocess.run([fastwrite, "recover", point], capture_output=True, text=True, check=False)
        assert refused.returncode == 1, refused.stdout + refused.stderr
        run_or_skip("mount", "-o", "remount,rw", point)
        done = subprocess.run([fastwrite, "recover", point], capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout + done.stderr
        assert data.read_bytes() == pattern(100_000)


@pytest.fixture
def failing(tmp_path):
    """A file system whose device takes no more data: its image lies, with holes, on a disk that is full."""
    with disk("tmpfs", tmp_path / "below", 32 * MIB) as below:
        # no journal: data fails, and the file system goes on
        with disk("ext4", below, 256 * MIB, "", "-O", "^has_journal", "-E", "lazy_itable_init=0") as point:
            (point / "a").touch()
            sync_file_system(point)
            with (below / "ballast").open("wb", buffering=0) as file, pytest.raises(OSError) as caught:
                while True:
                    file.write(b"b" * 65536)
            assert caught.value.errno == errno.ENOSPC
            try:
                yield point
            finally:
                (below / "ballast").unlink(missing_ok=True)


@pytest.mark.parametrize("sync", ["fdatasync", "fsync"])
def test_failed_writeback_is_told_to_each(library, compile_c, failing, tmp_path, sync):
    """Once to every description that was there, as the kernel does it."""
    two = compile_c(TWO, "-D_GNU_SOURCE")
    native = run_native([two, failing / "a", "2000", "0"], tmp_path)
    assert native.returncode == 0, native.stderr
    assert native.stdout.splitlines()[0] in ("0 EIO", "0 ENOSPC")
    mine = run_preloaded(
        library,
        [two, failing / "a", "2000", "0"],
        tmp_path,
        paths=f"{failing}/**",
        staging=tmp_path / "staging",
        sync=sync,
        flush="buffered",
        prealloc_mode="off",
    )
    assert mine.returncode == 0, mine.stderr
    assert mine.stdout == native.stdout
    assert_staged(mine.stats, 4 * MIB)


def test_failed_background_sync_is_told_to_each(library, compile_c, failing, tmp_path):
    two = compile_c(TWO, "-D_GNU_SOURCE")
    mine = run_preloaded(
        library,
        [two, failing / "a", "2000", "300"],
        tmp_path,
        paths=f"{failing}/**",
        staging=tmp_path / "staging",
        sync="relaxed",
        relaxed_ms=50,
        flush="buffered",
        prealloc_mode="off",
    )
    assert mine.returncode == 0, mine.stderr
    lines = mine.stdout.splitlines()
    error = lines[1].split()[1]
    assert error in ("EIO", "ENOSPC")
    told = [f"{which} {error}" for which in range(3)]
    assert lines == ["0 ok", *told, "0 ok", "1 ok", "2 ok", "3 ok"]
    assert_staged(mine.stats, 4 * MIB)
