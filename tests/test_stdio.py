# SPDX-License-Identifier: Apache-2.0
"""Streams: what they write is staged, at what cost; what happens when the C library is not as expected."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
from collections import Counter
from pathlib import Path

import pytest
from lib.straced import straced
from lib.support import assert_staged, disk_dir, leftovers, preload_env, run_native, run_preloaded, wait_for

LINES = 3000
# writer DIRECTORY: 4 x LINES line-buffered lines, by fprintf, printf, fwprintf and dprintf
WRITER = r"""
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>
#include <wchar.h>
int main(int argc, char **argv)
{
	int lines = atoi(argv[2]), fd;
	FILE *narrow, *wide;
	(void)argc;
	if (chdir(argv[1]) < 0 || !(narrow = fopen("fprintf", "w")) || !(wide = fopen("fwprintf", "a")))
		return 2;
	fd = open("dprintf", O_WRONLY | O_CREAT | O_APPEND, 0644);
	if (!freopen("printf", "w", stdout) || fd < 0)
		return 2;
	setvbuf(narrow, NULL, _IOLBF, 0);
	setvbuf(wide, NULL, _IOLBF, 0);
	setvbuf(stdout, NULL, _IOLBF, 0);
	for (int i = 0; i < lines; i++) {
		fprintf(narrow, "%d: a line of a program that logs\n", i);
		printf("%d: a line of a program that prints\n", i);
		fwprintf(wide, L"%d: a line of wide characters\n", i);
		dprintf(fd, "%d: a line for a descriptor\n", i);
	}
	return fclose(narrow) || fclose(wide) || close(fd);
}
"""
NAMES = ("fprintf", "printf", "fwprintf", "dprintf")
STEPS = ("find", "books", "exchange", "try")
MESSAGE = "fastwrite: files with a stream (FILE) are bypassed: "


@pytest.fixture(scope="module")
def writer(compile_c) -> Path:
    return compile_c(WRITER)


@pytest.fixture(scope="module")
def expected(writer) -> dict[str, bytes]:
    """What the writer leaves natively."""
    with disk_dir() as place:
        assert run_native([writer, place, str(LINES)], place).returncode == 0
        return read_all(place)


@pytest.fixture
def place():
    with disk_dir() as path:
        yield path


@pytest.fixture
def library_debug(build_debug: Path) -> Path:
    path = build_debug / "libfastwrite.so"
    if not path.exists():
        pytest.skip(f"{path} is not built (make DEBUG=1 library)")
    return path


def read_all(place: Path) -> dict[str, bytes]:
    return {name: (place / name).read_bytes() for name in NAMES}


def test_lines_cost_no_calls(library, writer, expected, place):
    """The issue's figure: 4 x 3,000 line-buffered lines in fewer than 200 write system calls."""
    if shutil.which("strace") is None:
        pytest.skip("strace is not installed")
    (place / "data").mkdir()
    done, lines = straced(library, [writer, place / "data", str(LINES)], place, "-c")
    calls: Counter[str] = Counter()
    for line in lines:
        if match := re.match(r"\s*[\d.]+\s+[\d.]+\s+\d+\s+(\d+)(?:\s+\d+)?\s+(\w+)$", line):
            calls[match[2]] += int(match[1])
    assert calls["execve"] == 1
    assert sum(calls[name] for name in calls if "write" in name) < 200, calls
    assert done.stats.writes > 4 * (LINES - 10)
    assert read_all(place / "data") == expected


@pytest.mark.parametrize("step", STEPS)
def test_a_failed_check_leaves_streams_native(library_debug, writer, expected, place, step):
    done = run_preloaded(
        library_debug, [writer, place, str(LINES)], place, env={"FASTWRITE_TEST_SLOTS": step}
    )
    assert done.returncode == 0
    assert done.stderr.startswith(MESSAGE) and done.stderr.count("\n") == 1, done.stderr
    assert read_all(place) == expected
    assert done.stats.writes == 0, "nothing but streams wrote"
    assert not leftovers(place)


def test_the_debug_library_stages_otherwise(library_debug, writer, expected, place):
    done = run_preloaded(library_debug, [writer, place, str(LINES)], place)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stats.writes > 4 * (LINES - 10)
    assert read_all(place) == expected


def test_another_library_in_between(library, writer, expected, place, compile_c):
    """Somebody else has a function of that name: the entry is not found by its value."""
    other = compile_c(
        "long _IO_file_write(void *f, const void *p, long n) { (void)f; (void)p; return n; }",
        "-shared",
        "-fPIC",
    )
    env = {"LD_PRELOAD": f"{library}:{other}"}
    done = run_preloaded(library, [writer, place, str(LINES)], place, env=env)
    assert done.returncode == 0
    assert done.stderr.startswith(MESSAGE + "their tables were not found"), done.stderr
    assert read_all(place) == expected
    assert done.stats.writes == 0


def test_off(library, writer, expected, place):
    done = run_preloaded(library, [writer, place, str(LINES)], place, stdio="off")
    assert (done.returncode, done.stderr) == (0, "")
    assert read_all(place) == expected
    assert done.stats.writes == 0
    assert not leftovers(place)


MIXED = r"""
#include <fcntl.h>
#include <stdio.h>
#include <unistd.h>
/* first staged by write, then a stream on the same descriptor */
int main(void)
{
	int fd = open("a", O_RDWR | O_CREAT, 0644);
	FILE *stream;
	for (int i = 0; i < 100; i++)
		if (write(fd, "0123456789", 10) != 10)
			return 2;
	stream = fdopen(fd, "r+");
	setvbuf(stream, NULL, _IONBF, 0);
	for (int i = 0; i < 100; i++)
		fputs("abcdefghij", stream);
	return fclose(stream);
}
"""


@pytest.mark.parametrize("stdio", ["on", "off"])
def test_reason_is_counted(library, place, compile_c, stdio):
    done = run_preloaded(library, [compile_c(MIXED)], place, stdio=stdio)
    assert (done.returncode, done.stderr) == (0, "")
    assert (place / "a").read_bytes() == b"0123456789" * 100 + b"abcdefghij" * 100
    assert done.stats.through.get("stdio", 0) == (1 if stdio == "off" else 0)
    assert done.stats.writes == (99 if stdio == "off" else 199)


MAPPED = r"""
#include <fcntl.h>
#include <stdio.h>
#include <unistd.h>
static void put(int fd)
{
	for (int i = 0; i < 100; i++)
		if (write(fd, "0123456789", 10) != 10)
			_exit(2);
}
/* a stream that reads by a mapping closes its descriptor past every table */
int main(void)
{
	int fd = open("a", O_RDWR | O_CREAT, 0644);
	FILE *stream;
	put(fd);
	stream = fdopen(fd, "rm");
	if (!stream || fseek(stream, 0, SEEK_SET) || fgetc(stream) != '0' || fclose(stream))
		return 3;
	if (open("a", O_RDWR | O_TRUNC) != fd)
		return 4;
	put(fd);
	return close(fd);
}
"""


def test_mapped_streams_let_go(library, place, compile_c):
    done = run_preloaded(library, [compile_c(MAPPED)], place)
    assert (done.returncode, done.stderr) == (0, "")
    assert (place / "a").read_bytes() == b"0123456789" * 100
    assert done.stats.through == {"stdio": 1}
    assert done.stats.writes == 2 * 99, "opened again it is a file like any other"


ABORT = r"""
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>
int main(void)
{
	int fd = open("a", O_WRONLY | O_CREAT, 0644);
	dup2(fd, 1);
	dup2(fd, 2);
	for (int i = 0; i < 100; i++)
		fprintf(stderr, "%d\n", i);
	free((void *)(16 + (char *)stderr));
	return 0;
}
"""


def test_last_words_of_the_c_library(library, place, compile_c):
    """It writes them to descriptor 2 by itself: nothing may be staged there."""
    program = compile_c(ABORT, "-w")
    native = run_native([program], place)
    assert native.returncode == -signal.SIGABRT
    expected = (place / "a").read_bytes()
    assert expected.startswith(b"0\n1\n") and b"invalid pointer" in expected.splitlines()[-1]
    (place / "a").unlink()
    done = run_preloaded(library, [program], place)
    assert (done.returncode, done.stderr) == (native.returncode, native.stderr)
    assert (place / "a").read_bytes() == expected


VFORK = r"""
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>
/* vforked HOW FLAGS: stdout is a staged file; a child of vfork gives 1 another meaning and starts a program */
int main(int argc, char **argv)
{
	int fd = open("log", O_WRONLY | O_CREAT | O_TRUNC | (argv[2][0] == 'a' ? O_APPEND : 0) | O_CLOEXEC, 0644);
	int ends[2], got = 0, n;
	char text[4096] = "";
	(void)argc;
	dup2(fd, 1);
	close(fd);
	setvbuf(stdout, NULL, _IOLBF, 0);
	for (int i = 0; i < 50; i++)
		printf("line %d\n", i);
	if (pipe(ends) < 0)
		return 2;
	if (vfork() == 0) {
		if (argv[1][0] == 'd') {
			dup2(ends[1], 1);
		} else {
			close(1);
			if (dup(ends[1]) != 1)
				_exit(9);
		}
		execl("/bin/echo", "echo", "child", (char *)0);
		_exit(9);
	}
	close(ends[1]);
	while ((n = read(ends[0], text + got, sizeof text - 1 - got)) > 0)
		got += n;
	wait(NULL);
	for (int i = 50; i < 100; i++)
		printf("line %d\n", i);
	return strcmp(text, "child\n") != 0;
}
"""


@pytest.mark.parametrize("flags", ["a", "-"])
@pytest.mark.parametrize("how", ["dup2", "close"])
def test_a_vforked_child_with_another_stdout(library, place, compile_c, how, flags):
    done = run_preloaded(library, [compile_c(VFORK, "-w"), how, flags], place)
    assert (done.returncode, done.stderr) == (0, "")
    assert (place / "log").read_text() == "".join(f"line {i}\n" for i in range(100))
    assert done.stats.writes >= 49
    assert not leftovers(place)


LOOK = r"""
#include <dirent.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
/* Everything that the check at the start could have left: errno, descriptors, protections, orientation. */
int main(void)
{
	char line[512], name[256], perms[8];
	struct dirent *entry;
	int found = errno;
	DIR *dir = opendir("/proc/self/fd");
	FILE *maps;
	printf("errno %d\n", found);
	while ((entry = readdir(dir)))
		printf("fd %s\n", entry->d_name);
	closedir(dir);
	maps = fopen("/proc/self/maps", "r");
	while (fgets(line, sizeof line, maps)) {
		char *library = strstr(line, "libc.so");
		if (library && sscanf(line, "%*s %7s %255s", perms, name) == 2)
			printf("%s %s\n", perms, name);
	}
	return fclose(maps);
}
"""


def test_nothing_is_left_of_the_check(library, place, compile_c):
    look = compile_c(LOOK)
    native = run_native([look], place)
    assert native.stdout.count("libc") == 0 and "r--p 001" in native.stdout
    done = run_preloaded(library, [look], place)
    assert (done.stdout, done.stderr) == (native.stdout, "")


@pytest.mark.parametrize("limit", ["-f 0", "-n 4"])
def test_starts_under_limits(library, place, limit):
    """No byte may be written to a file, no descriptor made: the program still starts, and is not killed."""
    env = preload_env(library, f"{place}/**")
    program = ["env", *(f"{name}={value}" for name, value in env.items()), "/bin/echo", "ran"]
    for preloaded in (False, True):
        command = ["sh", "-c", f'ulimit {limit}; exec "$@"', "sh", *program[-2 if not preloaded else 0 :]]
        done = run_native(command, place)
        assert (done.returncode, done.stdout, done.stderr) == (0, "ran\n", "")


def test_without_proc(library, writer, expected, place):
    if os.geteuid() != 0:
        pytest.skip("needs root, to unmount /proc")
    (place / "data").mkdir()
    env = preload_env(library, f"{place}/**")
    shell = f'umount -l /proc && exec env "LD_PRELOAD=$L" {writer} {place}/data {LINES}'
    command = ["unshare", "-m", "sh", "-c", shell]
    if run_native(["unshare", "-m", "umount", "-l", "/proc"], place).returncode != 0:
        pytest.skip("/proc cannot be unmounted here")
    env["L"] = env.pop("LD_PRELOAD")
    done = run_native(command, place, **env)
    assert (done.returncode, done.stderr) == (0, "fastwrite: /proc is not mounted: nothing is staged\n")
    assert read_all(place / "data") == expected


ENDLESS = r"""
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>
#include <wchar.h>
/* endless KIND FILE ACKNOWLEDGED: lines for ever; how many were written stands in the mapped file */
int main(int argc, char **argv)
{
	int fd = open(argv[3], O_RDWR | O_CREAT, 0644);
	volatile unsigned *count;
	FILE *stream = fopen(argv[2], argv[1][0] == 'a' ? "a" : "w");
	(void)argc;
	if (!stream || ftruncate(fd, 4096) < 0)
		return 2;
	count = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	setvbuf(stream, NULL, argv[1][1] == 'n' ? _IONBF : _IOLBF, 4096);
	for (unsigned i = 0;; i++) {
		int n = argv[1][2] == 'w' ? fwprintf(stream, L"%010u\n", i) : fprintf(stream, "%010u\n", i);
		if (n != 11)
			return 3;
		*count = i + 1;
	}
}
"""


@pytest.mark.parametrize("kind", ["wlf", "alf", "wlw", "alw", "anf"])
def test_killed(library, fastwrite, place, compile_c, kind):
    """A line that was written before SIGKILL is there after recovery, and no line is torn or out of order."""
    program = compile_c(ENDLESS)
    (place / "data").mkdir()
    path, acknowledged = place / "data" / "a", place / "count"
    env = preload_env(library, f"{place}/data/**", lag_ms=60000)
    process = subprocess.Popen([program, kind, path, acknowledged], env={**os.environ, **env})
    try:
        wait_for(
            lambda: (acknowledged.exists() and count_of(acknowledged) >= 20000) or process.poll() is not None,
            "20000 records",
        )
        assert process.poll() is None
    finally:
        process.send_signal(signal.SIGKILL)
        process.wait()
    before = path.stat().st_size
    count = count_of(acknowledged)
    done = run_native([fastwrite, "recover", place / "data"], place)
    assert done.returncode == 0, done.stdout + done.stderr
    bytes_ = path.read_bytes()
    assert len(bytes_) > before, "nothing was staged when it was killed"
    assert len(bytes_) % 11 == 0 or kind == "anf"
    lines = bytes_[: len(bytes_) // 11 * 11].split(b"\n")[:-1]
    assert len(lines) >= count
    assert [int(line) for line in lines] == list(range(len(lines)))
    assert not leftovers(place)


def count_of(path: Path) -> int:
    return int.from_bytes(path.read_bytes()[:4] or b"\0", "little")


AT_EXIT = r"""
#include <stdio.h>
#include <stdlib.h>
static FILE *late;
static char buffer[64];
static void last(void) { fputs("from a handler\n", late); }
/* what is in the buffers is written by the C library after everything else */
int main(int argc, char **argv)
{
	FILE *first = fopen("first", "w");
	late = fopen("late", "a");
	(void)argc;
	atexit(last);
	setvbuf(late, buffer, _IOFBF, sizeof buffer);
	for (int i = 0; i < atoi(argv[1]); i++) {
		fprintf(first, "%d\n", i);
		fprintf(late, "%d\n", i);
	}
	return 0;
}
"""


@pytest.mark.parametrize("count", [0, 1, 10, 500, 5000])
def test_buffers_at_exit(library, place, compile_c, count):
    program = compile_c(AT_EXIT)
    (place / "native").mkdir()
    (place / "shim").mkdir()
    assert run_native([program, str(count)], place / "native").returncode == 0
    done = run_preloaded(library, [program, str(count)], place / "shim")
    assert (done.returncode, done.stderr) == (0, "")
    for name in ("first", "late"):
        assert (place / "shim" / name).read_bytes() == (place / "native" / name).read_bytes()
    if count >= 500:
        assert_staged(done.stats, 1000)


def test_config_says_so(fastwrite, place):
    environment = {"FASTWRITE_PATHS": "/x/**"}
    shown = run_native([fastwrite, "config", "-o", "stdio=off"], place, **environment)
    assert re.search(r"^  stdio +off +environment$", shown.stdout, re.M), shown.stdout
