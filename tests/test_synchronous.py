# SPDX-License-Identifier: Apache-2.0
"""Where the file system or the file is synchronous, a write that has returned is durable: nothing is staged."""

from __future__ import annotations

import os
import subprocess
import tomllib

import pytest
from lib.disks import disk, run_or_skip, unmount_at_last
from lib.support import ROOT, preload_env, run_native, run_preloaded

PROGRAM = r"""
#include <fcntl.h>
#include <string.h>
#include <unistd.h>
int main(int argc, char **argv)
{
	int fd = open(argv[argc - 1], O_WRONLY | O_CREAT | O_APPEND, 0644);
	for (int i = 0; i < 1000; i++)
		if (write(fd, "0123456789\n", 11) != 11)
			return 1;
	return close(fd);
}
"""


def staged(library, program, place) -> int:
    run = run_preloaded(library, [program, place / "log"], place)
    assert run.returncode == 0, run.stderr
    assert (place / "log").read_bytes() == b"0123456789\n" * 1000
    return run.stats.writes


@pytest.mark.parametrize("options", ["", "sync"])
def test_file_system(library, compile_c, tmp_path, options):
    with disk("ext4", tmp_path / "disk", options=options) as point:
        assert (staged(library, compile_c(PROGRAM), point) > 0) == (options == "")


def test_documents_agree():
    """With the tests here: configs/doctor.toml, docs/guarantees.md."""
    doctor = tomllib.loads((ROOT / "configs" / "doctor.toml").read_text())
    knob = next(k for k in doctor["knob"] if k["id"] == "writable")
    assert "written through" in knob["risk"]
    assert "writes these files through" in knob["case"]["sync"]["text"]
    guarantees = " ".join((ROOT / "docs" / "guarantees.md").read_text().split())
    assert (
        "Where the mount (`sync`) or the file (`chattr +S`) asks for that, nothing is staged." in guarantees
    )


def test_file(library, compile_c, tmp_path):
    with disk("ext4", tmp_path / "disk") as point:
        (point / "log").touch()
        if subprocess.run(["chattr", "+S", point / "log"], capture_output=True, check=False).returncode:
            pytest.skip("no chattr +S here")
        assert staged(library, compile_c(PROGRAM), point) == 0


def append_only(path):
    if subprocess.run(["chattr", "+a", path], capture_output=True, check=False).returncode:
        pytest.skip("no chattr +a here")


@pytest.mark.parametrize(
    "options",
    [{}, {"writers": "exclusive"}, {"sync": "ordered"}, {"sync": "ordered", "writers": "exclusive"}],
)
def test_an_append_only_file(library, compile_c, tmp_path, options):
    """Of what is staged by its offset, each byte would be appended."""
    with disk("ext4", tmp_path / "disk") as point:
        log = point / "log"
        log.write_bytes(b"before\n")
        append_only(log)
        run = run_preloaded(library, [compile_c(PROGRAM), log], point, **options)
        assert run.returncode == 0, run.stderr
        assert log.read_bytes() == b"before\n" + b"0123456789\n" * 1000
        assert (run.stats.writes > 0) == (not options)


BECOMES = PROGRAM.replace("return close(fd)", 'puts("staged"); fflush(stdout); getchar(); return close(fd)')


def test_a_file_becomes_append_only_while_it_is_staged(library, fastwrite, compile_c, tmp_path):
    """The bytes cannot go to their offsets, and wait until they can."""
    with disk("ext4", tmp_path / "disk") as point:
        log = point / "log"
        log.write_bytes(b"before\n")
        with subprocess.Popen(
            [compile_c("#include <stdio.h>\n" + BECOMES), log],
            env=preload_env(library, f"{point}/**", sync="ordered", writers="exclusive", ordered_ms=60000),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        ) as program:
            assert program.stdout.readline() == "staged\n"
            append_only(log)
            program.communicate("\n", timeout=60)
        grown = log.read_bytes()
        subprocess.run(["chattr", "-a", log], check=True)
        subprocess.run([fastwrite, "recover", point], check=True, capture_output=True)
        whole = b"before\n" + b"0123456789\n" * 1000
        assert len(grown) < len(whole) and whole.startswith(grown), "nothing was staged: this tests nothing"
        assert log.read_bytes() == whole


NOTHING = r"""
#include <errno.h>
#include <fcntl.h>
#include <linux/fs.h>
#include <stdio.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/stat.h>
#include <unistd.h>
int main(int argc, char **argv)
{
	int fd = open(argv[argc - 1], O_RDWR | O_CREAT, 0644), flags = 0;
	for (int i = 0; i < 1000; i++)
		if (write(fd, "0123456789\n", 11) != 11)
			return 1;
	if (ioctl(fd, FS_IOC_GETFLAGS, &flags) < 0)
		return 2;
	flags |= FS_IMMUTABLE_FL;
	if (ioctl(fd, FS_IOC_SETFLAGS, &flags) < 0)
		return 2;
	printf("write %zd", write(fd, "", 0));
	printf(" %s\n", strerrorname_np(errno));
	printf("pwrite %zd", pwrite(fd, "", 0, 5));
	printf(" %s\n", strerrorname_np(errno));
	flags &= ~FS_IMMUTABLE_FL;
	return ioctl(fd, FS_IOC_SETFLAGS, &flags) < 0;
}
"""


@pytest.mark.parametrize("options", [{}, {"sync": "ordered", "writers": "exclusive"}])
def test_a_write_of_no_bytes_fails_as_natively(library, compile_c, tmp_path, options):
    """The file system is asked: of a vector without bytes the kernel itself says that all is well."""
    with disk("ext4", tmp_path / "disk") as point:
        program = compile_c(NOTHING, "-D_GNU_SOURCE")
        native = run_native([program, point / "native"], point)
        if native.returncode == 2:
            pytest.skip("no chattr +i here")
        assert native.stdout == "write -1 EPERM\npwrite -1 EPERM\n"
        run = run_preloaded(library, [program, point / "log"], point, **options)
        assert (run.returncode, run.stdout) == (0, native.stdout), run.stderr
        assert run.stats.writes > 0


COMMANDS = r"""
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>
/* writes that the kernel takes and ones that it refuses */
int main(void)
{
	static const char *const said[] = {"10", "junk", "2000", "20", "5000", "30"};
	char now[16];
	int fd = open("/proc/self/oom_score_adj", O_RDWR);
	for (int i = 0; i < 30; i++) {
		ssize_t r = pwrite(fd, said[i % 6], strlen(said[i % 6]), 0);
		ssize_t n = pread(fd, now, sizeof now - 1, 0);
		printf("%zd %s %.*s", r, r < 0 ? strerrorname_np(errno) : "", (int)n, now);
	}
	return 0;
}
"""


@pytest.mark.parametrize("options", [{}, {"sync": "ordered", "writers": "exclusive"}])
def test_a_write_that_is_a_command(library, compile_c, tmp_path, options):
    """Whatever the settings, the kernel is told at once, and its refusal is the program's."""
    program = compile_c(COMMANDS, "-D_GNU_SOURCE")
    native = run_native([program], tmp_path)
    assert "-1 EINVAL" in native.stdout
    settings = {"paths": "/**", "staging": tmp_path, "prealloc_mode": "off", **options}
    run = run_preloaded(library, [program], tmp_path, **settings)
    assert (run.returncode, run.stdout) == (0, native.stdout), run.stderr
    assert run.stats.writes == 0


@pytest.mark.parametrize("kind", ["tmpfs", "ramfs"])
def test_memory_without_a_limit(library, compile_c, tmp_path, kind):
    """These file systems have no number of blocks either."""
    point = tmp_path / "mounted"
    point.mkdir()
    if os.geteuid() != 0:
        pytest.skip("needs root for mounting")
    run_or_skip("mount", "-t", kind, *(["-o", "size=0"] if kind == "tmpfs" else []), kind, point)
    try:
        assert os.statvfs(point).f_blocks == 0
        run = run_preloaded(
            library, [compile_c(PROGRAM), point / "log"], point, staging=tmp_path, prealloc_mode="off"
        )
        assert run.returncode == 0, run.stderr
        assert (point / "log").read_bytes() == b"0123456789\n" * 1000
        assert run.stats.writes > 0
    finally:
        unmount_at_last(point)
