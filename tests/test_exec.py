# SPDX-License-Identifier: Apache-2.0
"""Programs that start others with a staged file at hand: what both write is where it is natively."""

from __future__ import annotations

import os
import shutil
import sys

import pytest
from lib.support import assert_staged, disk_dir, leftovers, run_native, run_preloaded

# Parent and children write in turns to one description that the children get as their standard output.
PYTHON = """
import os, subprocess, sys
flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | (os.O_APPEND if "append" in sys.argv else 0)
log = os.open("log", flags, 0o644)
other = os.open("other", flags, 0o644)
n = 0
def write(count=20):
    global n
    for _ in range(count):
        os.write(log, b"parent %06d\\n" % n)
        os.write(other, b"parent %06d\\n" % n)
        n += 1
child = ["sh", "-c", "for i in 1 2 3; do echo child $i; done"]
write(2 if "early" in sys.argv else 20)
for round in range(5):
    subprocess.run(child, stdout=log, check=True)
    write()
    subprocess.run(child, stdout=log, env={}, close_fds=False, check=True)
    write()
    pid = os.posix_spawnp("sh", child, os.environ, file_actions=[(os.POSIX_SPAWN_DUP2, log, 1)])
    os.waitpid(pid, 0)
    write()
    p = subprocess.Popen(
        ["sh", "-c", "while read x; do echo child $x; echo ok >&2; done"],
        stdin=subprocess.PIPE, stdout=log, stderr=subprocess.PIPE)
    for turn in range(5):
        write(1)
        p.stdin.write(b"%d\\n" % turn)
        p.stdin.flush()
        p.stderr.readline()
    p.communicate()
    write()
    # a program that cannot be started
    try:
        subprocess.run(["./none"], stdout=log)
    except FileNotFoundError:
        pass
    write()
"""


@pytest.mark.parametrize("how", ["plain", "append", "early"])
def test_python_subprocess(library, how):
    with disk_dir() as place:
        run = run_native([sys.executable, "-c", PYTHON, how], place)
        assert run.returncode == 0, run.stderr
        native = [(place / name).read_bytes() for name in ("log", "other")]
        run = run_preloaded(library, [sys.executable, "-c", PYTHON, how], place, lag_ms=60000)
        assert (run.returncode, run.stderr) == (0, "")
        assert [(place / name).read_bytes() for name in ("log", "other")] == native
        # no child has the other one
        assert_staged(run.stats, len(native[1]) - 200)
        assert run.stats.through.get("inherited descriptor", 0) == 1
        assert not leftovers(place)


RAW = r"""
#include <fcntl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

static long raw(long number, long a, long b, long c)
{
#if defined(__x86_64__)
	long r;
	__asm__ volatile("syscall" : "=a"(r) : "a"(number), "D"(a), "S"(b), "d"(c) : "rcx", "r11", "memory");
	return r;
#else
	register long x8 __asm__("x8") = number;
	register long x0 __asm__("x0") = a;
	register long x1 __asm__("x1") = b;
	register long x2 __asm__("x2") = c;
	__asm__ volatile("svc 0" : "+r"(x0) : "r"(x8), "r"(x1), "r"(x2) : "memory");
	return x0;
#endif
}

int main(void)
{
	int fd = open("a", O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
	static char *argv[] = {"echo", "child", NULL};
	pid_t pid;
	for (int round = 0; round < 3; round++) {
		for (int i = 0; i < 50; i++)
			write(fd, "parent\n", 7);
		pid = vfork();
		if (pid == 0) {
			raw(SYS_dup3, fd, 1, 0);
			raw(SYS_execve, (long)"/bin/echo", (long)argv, 0);
			raw(SYS_exit, 9, 0, 0);
		}
		waitpid(pid, 0, 0);
	}
	write(fd, "end\n", 4);
	return 0;
}
"""


def test_system_calls_that_no_hook_sees(library, compile_c):
    program = compile_c(RAW, "-D_GNU_SOURCE", "-w")
    with disk_dir() as place:
        run = run_preloaded(library, [program], place, lag_ms=60000)
        assert run.returncode == 0
        assert (place / "a").read_bytes() == (b"parent\n" * 50 + b"child\n") * 3 + b"end\n"
        assert_staged(run.stats, 300)


@pytest.mark.parametrize("writers", ["auto", "exclusive"])
def test_what_a_child_writes_is_not_cut_off(library, compile_c, writers):
    """The child appends while the parent is just about to give reserved space back."""
    if not shutil.which("strace"):
        pytest.skip("strace is not installed")
    late = RAW.replace('"echo", "child"', '"sh", "-c", "sleep 0.3; echo child"').replace(
        "/bin/echo", "/bin/sh"
    )
    program = compile_c(late, "-D_GNU_SOURCE", "-w")
    holds = ["strace", "-qq", "-o", "/dev/null", "-e", "trace=ftruncate"]
    holds += ["-e", "inject=ftruncate:delay_enter=900000"]
    with disk_dir() as place:
        run = run_preloaded(library, [*holds, program], place, lag_ms=60000, writers=writers)
        assert (run.returncode, run.stderr) == (0, "")
        assert (place / "a").read_bytes() == (b"parent\n" * 50 + b"child\n") * 3 + b"end\n"
        assert (place / "a").stat().st_blocks * 512 <= 4096  # given back before the child ran
        assert_staged(run.stats, 300)
        assert not leftovers(place)


BECOMES = r"""
#include <fcntl.h>
#include <stdlib.h>
#include <unistd.h>
int main(int argc, char **argv)
{
	int fd = open("a", O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
	for (int i = 0; i < 1000; i++)
		if (write(fd, "0123456789\n", 11) != 11)
			return 1;
	execl(argv[1], argv[1], (char *)NULL);
	return 99;
}
"""
COUNTS = r"""
#include <sys/stat.h>
int main(void)
{
	struct stat st;
	return stat("a", &st) != 0 || st.st_size != 11000;
}
"""


@pytest.mark.parametrize("mode", [0o755, 0o4755])
@pytest.mark.parametrize("static", [[], ["-static"]])
def test_programs_without_the_library(library, compile_c, static, mode):
    """Static and set-user-id programs find everything in place, and nothing left over."""
    before = compile_c(BECOMES, "-D_GNU_SOURCE")
    with disk_dir() as place:
        after = place / "after"
        shutil.copy(compile_c(COUNTS, *static), after)
        after.chmod(mode)
        run = run_preloaded(library, [before, after], place, lag_ms=60000)
        assert (run.returncode, run.stderr) == (0, "")
        assert sorted(os.listdir(place)) == ["a", "after"]


def test_two_threads_exec_at_once(library, compile_c):
    """While one exec fails another one is under way: nothing is staged in between that it would lose."""
    program = compile_c(
        r"""
        #include <fcntl.h>
        #include <pthread.h>
        #include <stdatomic.h>
        #include <stdio.h>
        #include <stdlib.h>
        #include <sys/mman.h>
        #include <unistd.h>
        static _Atomic unsigned *done;
        static void *fails(void *arg)
        {
            for (;;)
                execl("./none", "none", (char *)0);
        }
        static void *writes(void *arg)
        {
            int fd = open("a", O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
            for (;;) {
                if (write(fd, "0123456789\n", 11) != 11)
                    _exit(98);
                (*done)++;
            }
        }
        int main(int argc, char **argv)
        {
            int fd = open("count", O_RDWR | O_CREAT | O_TRUNC, 0644);
            pthread_t t;
            ftruncate(fd, 4096);
            done = mmap(0, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
            pthread_create(&t, 0, fails, 0);
            pthread_create(&t, 0, fails, 0);
            pthread_create(&t, 0, writes, 0);
            while (*done < 3000)
                sched_yield();
            execl("/bin/true", "true", (char *)0);
            return 99;
        }
        """,
        "-D_GNU_SOURCE",
        "-pthread",
        "-w",
    )
    for _ in range(10):
        with disk_dir() as place:
            run = run_preloaded(library, [program], place, paths=f"{place}/a", lag_ms=60000)
            assert (run.returncode, run.stderr) == (0, "")
            count = int.from_bytes((place / "count").read_bytes()[:4], sys.byteorder)
            data = (place / "a").read_bytes()
            assert count <= len(data) // 11 <= count + 1
            assert data[: count * 11] == b"0123456789\n" * count
            assert not leftovers(place)


def test_vfork_stays_vfork(library):
    """A large Python process starts programs without copying its page tables (hooks/vfork.h has the figures)."""
    code = (
        "import os, subprocess\n"
        "fd = os.open('a', os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC)\n"
        "for _ in range(5):\n"
        "    [os.write(fd, b'0123456789') for _ in range(50)]\n"
        "    subprocess.run(['true'], check=True)\n"
    )
    with disk_dir() as place:
        trace = place.parent / f"{place.name}.strace"
        try:
            run = run_preloaded(
                library,
                [
                    "strace",
                    "-qq",
                    "-o",
                    trace,
                    "-e",
                    "trace=process",
                    "-E",
                    f"LD_PRELOAD={library}",
                    sys.executable,
                    "-c",
                    code,
                ],
                place,
                env={"LD_PRELOAD": ""},
                lag_ms=60000,
            )
            assert run.returncode == 0, run.stderr
            children = [
                line
                for line in trace.read_text().splitlines()
                if "fork(" in line or ("SIGCHLD" in line and "clone" in line)
            ]
        finally:
            trace.unlink(missing_ok=True)
        assert len(children) == 5
        assert all("vfork(" in line or "CLONE_VFORK" in line for line in children), children
        assert (place / "a").read_bytes() == b"0123456789" * 250
        assert_staged(run.stats, 2000)
