# SPDX-License-Identifier: Apache-2.0
"""What hook programs cannot see: whether staging goes on, for what reason it ends, what is left behind."""

from __future__ import annotations

import os
import platform
import tempfile
from pathlib import Path

import pytest
from lib.support import assert_staged, disk_dir, file_system, leftovers, run_native, run_preloaded

WRITER = r"""
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>
static void puts_to(int fd, int count)
{
	for (int i = 0; i < count; i++)
		if (write(fd, "0123456789\n", 11) != 11)
			exit(9);
}
static int opened(const char *path)
{
	int fd = open(path, O_WRONLY | O_CREAT | O_TRUNC, 0600);
	if (fd < 0)
		exit(8);
	return fd;
}
"""


@pytest.fixture
def place():
    with disk_dir() as directory:
        yield directory


def program(compile_c, body: str, *flags: str):
    return compile_c(WRITER + body, *flags)


APART = r"""
int main(void)
{
	int fd = opened("a");
	puts_to(fd, 20);
	if (%s < 0)
		return errno == EPERM || errno == ENOSPC || errno == ENOSYS ? 77 : 7;
	puts_to(fd, 2000);
	return 0;
}
"""


@pytest.mark.parametrize(
    "call",
    [
        "unshare(CLONE_NEWUSER)",
        "unshare(CLONE_FILES)",
        "unshare(CLONE_NEWNS)",
        "close_range(500, 600, CLOSE_RANGE_UNSHARE)",
        "syscall(SYS_unshare, CLONE_NEWUTS)",
    ],
)
def test_staging_goes_on_after(library, compile_c, place, call):
    binary = program(compile_c, APART % call)
    native = run_native([binary], place)
    if native.returncode == 77:
        pytest.skip(f"{call} is not allowed here")
    assert native.returncode == 0
    run = run_preloaded(library, [binary], place, lag_ms=60000)
    assert run.returncode == 0, run.stderr
    assert run.stats.writes > 1900
    assert (place / "a").read_bytes() == b"0123456789\n" * 2020
    assert not leftovers(place)


@pytest.mark.parametrize("first", ["parent", "child"])
def test_a_daemon_leaves_nothing_behind(library, compile_c, place, first):
    """The parent ends inside daemon(), where nobody sees it, before the child or long after it."""
    binary = program(
        compile_c,
        r"""
static void be_late(void)
{
	usleep(LATE);
}
int main(void)
{
	int pipes[2], fd;
	char byte;
	if (pipe(pipes) < 0)
		return 7;
	if (fork() == 0) {
		close(pipes[0]);
		fd = opened("a");
		puts_to(fd, 50);
		pthread_atfork(NULL, be_late, NULL);
		if (daemon(1, 0) < 0)
			return 6;
		fd = opened("b");
		puts_to(fd, 50);
		return 0;
	}
	close(pipes[1]);
	while (read(pipes[0], &byte, 1) > 0)
		;
	return 0;
}
""",
        f"-DLATE={300000 if first == 'child' else 0}",
    )
    run = run_preloaded(library, [binary], place)
    assert run.returncode == 0, run.stderr
    for name in ("a", "b"):
        assert (place / name).read_bytes() == b"0123456789\n" * 50
    assert not leftovers(place)
    assert_staged(run.stats, 400)


def test_a_daemon_that_ends_before_its_parent_goes_on(library, compile_c, place):
    """The kernel may run the new process to its end before the parent's fork returns.  Held so by ptrace."""
    binary = program(
        compile_c,
        r"""
#include <poll.h>
#include <sys/ptrace.h>
#include <sys/syscall.h>
int main(void)
{
	long forked = 0;
	int go[2], status, fd;
	pid_t pid;
	char byte;
	alarm(120);
	if (pipe(go) < 0)
		return 7;
	pid = fork();
	if (pid == 0) {
		if (read(go[0], &byte, 1) != 1)
			return 8;
		fd = opened("a");
		puts_to(fd, 50);
		if (daemon(1, 0) < 0)
			return 6;
		fd = opened("b");
		puts_to(fd, 50);
		return 0;
	}
	if (ptrace(PTRACE_SEIZE, pid, 0, PTRACE_O_TRACEFORK) < 0)
		return errno == EPERM ? 77 : 9;
	if (write(go[1], "", 1) != 1)
		return 10;
	if (waitpid(pid, &status, 0) != pid || status >> 8 != (SIGTRAP | PTRACE_EVENT_FORK << 8))
		return 11;
	if (ptrace(PTRACE_GETEVENTMSG, pid, 0, &forked) < 0 || waitpid((pid_t)forked, &status, __WALL) < 0)
		return 12;
	struct pollfd ends = {.fd = (int)syscall(SYS_pidfd_open, forked, 0), .events = POLLIN};
	if (ends.fd < 0 || ptrace(PTRACE_DETACH, forked, 0, 0) < 0 || poll(&ends, 1, -1) != 1)
		return 13;
	if (ptrace(PTRACE_DETACH, pid, 0, 0) < 0 || waitpid(pid, &status, 0) != pid)
		return 14;
	return WIFEXITED(status) ? WEXITSTATUS(status) : 15;
}
""",
    )
    native = run_native([binary], place)
    if native.returncode == 77:
        pytest.skip("ptrace is not allowed here")
    assert native.returncode == 0
    run = run_preloaded(library, [binary], place)
    assert run.returncode == 0, run.stderr
    for name in ("a", "b"):
        assert (place / name).read_bytes() == b"0123456789\n" * 50
    assert not leftovers(place)
    assert_staged(run.stats, 400)


def test_what_a_member_left_open(library, compile_c, place):
    """A forked process ends with the file open: whoever opens it later, or gets its number, stages again."""
    binary = program(
        compile_c,
        r"""
int main(void)
{
	for (int i = 0; i < 3; i++) {
		if (fork() == 0) {
			puts_to(opened("a"), 100);
			_exit(0);
		}
		wait(NULL);
	}
	unlink("a");
	puts_to(opened("b"), 100);
	return 0;
}
""",
    )
    run = run_preloaded(library, [binary], place, lag_ms=60000)
    assert run.returncode == 0, run.stderr
    assert run.stats.processes == 4
    assert run.stats.writes == 4 * 99
    assert (place / "b").read_bytes() == b"0123456789\n" * 100


def test_standard_output_that_became_a_terminal(library, compile_c, place):
    """The file that it was before is forgotten, and staged again when it is opened anew."""
    binary = program(
        compile_c,
        r"""
#include <pty.h>
#include <utmp.h>
int main(void)
{
	int fd = opened("a"), master, slave;
	if (dup2(fd, 1) != 1 || openpty(&master, &slave, NULL, NULL, NULL) < 0)
		return 77;
	setsid();
	if (login_tty(slave) < 0)
		return 77;
	close(fd);
	puts_to(opened("a"), 1000);
	return 0;
}
""",
        "-lutil",
    )
    run = run_preloaded(library, ["setsid", "--wait", binary], place, lag_ms=60000)
    if run.returncode == 77:
        pytest.skip("no terminals here")
    assert run.returncode == 0, run.stderr
    assert_staged(run.stats, 10000)
    assert (place / "a").read_bytes() == b"0123456789\n" * 1000


RING_BY_NUMBER = r"""
#include <linux/io_uring.h>
int main(void)
{
	static struct io_uring_params params;
	int fd = opened("a");
	puts_to(fd, 20);
	if (syscall(SYS_io_uring_setup, 8, &params) < 0)
		return 77;
	puts_to(fd, 20);
	puts_to(opened("b"), 20);
	return 0;
}
"""

# A plugin's liburing, which only the plugin's own lookups would find.
RING_OF_A_PLUGIN = r"""
#include <dlfcn.h>
int main(void)
{
	static char ring[4096];
	void *liburing = dlopen("liburing.so.2", RTLD_NOW | RTLD_LOCAL);
	int (*first)(unsigned, void *, unsigned) = dlsym(RTLD_DEFAULT, "io_uring_queue_init");
	int fd = opened("a"), r;
	if (!liburing)
		return 77;
	puts_to(fd, 20);
	if (first)
		r = first(8, ring, 0);
	else
		r = ((int (*)(unsigned, void *, unsigned))dlsym(liburing, "io_uring_queue_init"))(8, ring, 0);
	if (r < 0)
		return 77;
	puts_to(fd, 20);
	puts_to(opened("b"), 20);
	return 0;
}
"""


@pytest.mark.parametrize("source", [RING_BY_NUMBER, RING_OF_A_PLUGIN], ids=["by number", "of a plugin"])
def test_a_ring_ends_staging(library, compile_c, place, source):
    binary = program(compile_c, source, "-ldl")
    if run_native([binary], place).returncode == 77:
        pytest.skip("no io_uring here, or no liburing.so.2")
    run = run_preloaded(library, [binary], place, lag_ms=60000)
    assert run.returncode == 0, run.stderr
    assert run.stats.writes == 19
    assert run.stats.through == {"io_uring": 2}
    for name, count in (("a", 40), ("b", 20)):
        assert (place / name).read_bytes() == b"0123456789\n" * count


def test_functions_of_liburing_without_it(library, compile_c, place):
    """They are found under the library, and answer as a kernel without rings would."""
    binary = program(
        compile_c,
        r"""
#include <dlfcn.h>
int main(void)
{
	int (*init)(unsigned, void *, unsigned) = dlsym(RTLD_DEFAULT, "io_uring_queue_init");
	if (dlerror() && !init)
		return 3;
	return init(8, NULL, 0) == -ENOSYS ? 0 : 4;
}
""",
        "-ldl",
    )
    assert run_native([binary], place).returncode == 3
    assert run_preloaded(library, [binary], place).returncode == 0


def test_no_error_of_the_loader_is_left(library, compile_c, place):
    """What the library looked for in vain at its start is not what the program's dlerror() tells."""
    binary = program(
        compile_c,
        "#include <dlfcn.h>\nint main(void) { char *e = dlerror(); if (e) puts(e); return e != NULL; }",
        "-ldl",
    )
    run = run_preloaded(library, [binary], place)
    assert run.returncode == 0, run.stdout


def test_a_process_of_no_rule_keeps_its_threads(library, compile_c, place):
    """unshare(CLONE_NEWUSER) works with one thread only: none of ours is there while nothing is staged."""
    binary = program(compile_c, APART % "unshare(CLONE_NEWUSER)")
    run = run_preloaded(library, [binary], place, paths="/nowhere/**")
    assert run.returncode in (0, 77), run.stderr


def test_the_last_thread_ends_by_number(library, compile_c, place):
    """The process has ended with it: settled, with its status, and with nothing left behind."""
    binary = program(
        compile_c,
        r"""
int main(void)
{
	int status;
	pid_t pid = fork();
	if (pid == 0) {
		puts_to(opened("a"), 100);
		syscall(SYS_exit, 5);
	}
	waitpid(pid, &status, 0);
	return WIFEXITED(status) ? WEXITSTATUS(status) : 99;
}
""",
    )
    run = run_preloaded(library, [binary], place, lag_ms=60000)
    assert run.returncode == 5
    assert_staged(run.stats, 1000)
    assert not leftovers(place)
    assert (place / "a").read_bytes() == b"0123456789\n" * 100


def test_an_arena_that_may_not_be_removed_is_cut(library, compile_c, place):
    """After rights were given up where no call is seen it cannot be unlinked: it holds no space, and goes with the next
    process."""
    if os.geteuid() != 0:
        pytest.skip("needs root, to give it up")
    if platform.machine() != "x86_64":
        pytest.skip("the system call instruction of another machine")
    binary = program(
        compile_c,
        "static long unseen_setuid(long id) { long r; "
        '__asm__ volatile("syscall" : "=a"(r) : "a"(105), "D"(id) : "rcx", "r11", "memory"); return r; }'
        'int main(void) { int fd = opened("a"); puts_to(fd, 100); '
        "if (unseen_setuid(65534)) return 7; puts_to(fd, 100); return 0; }",
    )
    run = run_preloaded(library, [binary], place, stats="stderr")
    assert run.returncode == 0, run.stderr
    assert (place / "a").read_bytes() == b"0123456789\n" * 200
    (arena,) = (place / ".fastwrite").iterdir()
    assert arena.stat().st_size == 0
    again = program(
        compile_c, 'int main(void) { int fd = open("a", O_WRONLY | O_APPEND); puts_to(fd, 100); return 0; }'
    )
    assert run_preloaded(library, [again], place).returncode == 0
    assert not leftovers(place)
    assert (place / "a").read_bytes() == b"0123456789\n" * 300


@pytest.fixture
def memory_group():
    """A memory control group of its own, of the kind that this system has."""
    root = Path("/sys/fs/cgroup")
    old = (root / "memory").is_dir()
    group = (root / "memory" if old else root) / f"fastwrite-test-{os.getpid()}"
    try:
        group.mkdir()
    except OSError as e:
        pytest.skip(f"no control group can be made: {e}")
    limit = group / ("memory.limit_in_bytes" if old else "memory.max")
    try:
        if not limit.exists():
            pytest.skip("control groups have no memory controller here")
        yield group, limit
    finally:
        group.rmdir()


@pytest.mark.parametrize(("limit", "warned"), [(32 << 20, True), (256 << 20, False)])
def test_staging_in_memory_under_a_limit(library, compile_c, place, memory_group, limit, warned):
    """Who stages in memory is told when the control group's limit leaves little for the program."""
    group, file = memory_group
    if file_system(Path("/dev/shm")) != "tmpfs":
        pytest.skip("/dev/shm is no tmpfs")
    file.write_text(str(limit))
    program = compile_c(WRITER + 'int main(void) { puts_to(opened("a"), 100); return 0; }')
    command = ["sh", "-c", f"echo $$ > {group}/cgroup.procs && exec {program}"]
    with tempfile.TemporaryDirectory(dir="/dev/shm") as staging:
        result = run_preloaded(library, command, place, STAGING=f"{staging}/s", MEM="16M")
    assert result.returncode == 0, result.stderr
    assert_staged(result.stats)
    assert ("is in memory" in result.stderr) == warned, result.stderr


SWITCHED = r"""
#include <dirent.h>
#include <limits.h>
#include <signal.h>
#include <spawn.h>
extern char **environ;
static const char *name(const char *path)
{
	static char whole[PATH_MAX];
	snprintf(whole, sizeof whole, "%s/%s", getenv("PLACE"), path);
	return whole;
}
static int left(void)
{
	DIR *staging = opendir("data/.fastwrite");
	struct dirent *d;
	int arenas = 0;
	while (staging && (d = readdir(staging)) != NULL)
		arenas += strstr(d->d_name, ".arena") != NULL;
	return staging && closedir(staging) == 0 ? arenas : 0;
}
int main(int argc, char **argv)
{
	char *again[] = {argv[0], "killed", NULL};
	pid_t child;
	int fd;
	if (argc > 1) {
		puts_to(opened("data/a"), 100);
		raise(SIGKILL);
	}
	if (posix_spawn(&child, argv[0], NULL, NULL, again, environ) != 0 || waitpid(child, NULL, 0) != child)
		return 8;
	if (left() != 1)
		return 4;
	for (int i = 0; i < 10; i++) {
		fd = open(name("other/log"), O_WRONLY | O_CREAT | O_APPEND, 0600);
		if (fd < 0 || write(fd, "outside\n", 8) != 8 || close(fd) != 0)
			return 7;
	}
	if (unlink("other/log") != 0 || symlink("../data/a", "other/log") != 0)
		return 6;
	fd = open(name("other/log"), O_WRONLY | O_APPEND);
	return fd < 0 || write(fd, "inside\n", 7) != 7 || close(fd) != 0 ? 5 : 0;
}
"""


def test_a_path_outside_comes_to_lead_inside(library, compile_c, place):
    """What a dead process has left for the file comes before what is written through the new link."""
    binary = program(compile_c, SWITCHED)
    for part in ("data", "other"):
        (place / part).mkdir()
    run = run_preloaded(
        library, [binary], place, paths=f"{place}/data/**", lag_ms=60000, env={"PLACE": str(place)}
    )
    assert run.returncode == 0, run.stderr
    assert (place / "data" / "a").read_bytes() == b"0123456789\n" * 100 + b"inside\n"
    assert not leftovers(place)
