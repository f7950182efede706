# SPDX-License-Identifier: Apache-2.0
"""Programs that are started with an environment of their own get the library all the same."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from lib.support import assert_staged, disk_dir, leftovers, parse_stats, run_native, run_preloaded

# Prints its environment and writes a file in small pieces: argv[1] is the file.
WRITER = r"""
#include <fcntl.h>
#include <stdio.h>
#include <unistd.h>
extern char **environ;
int main(int argc, char **argv)
{
	int fd = open(argv[argc - 1], O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
	for (char **e = environ; *e; e++)
		puts(*e);
	for (int i = 0; i < 1000; i++)
		if (write(fd, "0123456789\n", 11) != 11)
			return 1;
	return 0;
}
"""

# Starts argv[2..] in the way that argv[1] names.
STARTER = r"""
#include <errno.h>
#include <fcntl.h>
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>
extern char **environ;
static char *own[] = {"OWN=1", "PATH=/usr/bin:/bin", NULL};

static void become(const char *how, char **argv)
{
	if (!strcmp(how, "execve"))
		execve(argv[0], argv, own);
	if (!strcmp(how, "execve-null"))
		execve(argv[0], argv, NULL);
	if (!strcmp(how, "execle"))
		execle(argv[0], argv[0], argv[1], (char *)NULL, own);
	if (!strcmp(how, "execvpe"))
		execvpe(argv[0], argv, own);
	if (!strcmp(how, "fexecve"))
		fexecve(open(argv[0], O_RDONLY | O_CLOEXEC), argv, own);
	if (!strcmp(how, "execveat"))
		execveat(AT_FDCWD, argv[0], argv, own, 0);
	environ = own;
	if (!strcmp(how, "execv"))
		execv(argv[0], argv);
	if (!strcmp(how, "execvp"))
		execvp(argv[0], argv);
	if (!strcmp(how, "execl"))
		execl(argv[0], argv[0], argv[1], (char *)NULL);
	if (!strcmp(how, "execlp"))
		execlp(argv[0], argv[0], argv[1], (char *)NULL);
	_exit(99);
}

static int ended(pid_t pid)
{
	int status;

	return pid <= 0 || waitpid(pid, &status, 0) != pid || status != 0;
}

int main(int argc, char **argv)
{
	char **rest = argv + 2;
	const char *how = argv[1];
	pid_t pid;

	if (!strcmp(how, "posix_spawn"))
		return posix_spawn(&pid, rest[0], NULL, NULL, rest, own) || ended(pid);
	if (!strcmp(how, "posix_spawnp"))
		return posix_spawnp(&pid, rest[0], NULL, NULL, rest, own) || ended(pid);
	if (!strncmp(how, "vfork-", 6)) {
		pid = vfork();
		if (pid == 0)
			become(how + 6, rest);
		return ended(pid);
	}
	become(how, rest);
	return 98;
}
"""

HOWS = [
    "execve",
    "execve-null",
    "execle",
    "execvpe",
    "fexecve",
    "execveat",
    "execv",
    "execvp",
    "execl",
    "execlp",
    "posix_spawn",
    "posix_spawnp",
    "vfork-execve",
    "vfork-execl",
    "vfork-execvp",
]


@pytest.fixture(scope="module")
def writer(compile_c) -> Path:
    return compile_c(WRITER, "-D_GNU_SOURCE")


@pytest.fixture(scope="module")
def starter(compile_c) -> Path:
    return compile_c(STARTER, "-D_GNU_SOURCE")


def split(text: str) -> tuple[set[str], set[str]]:
    """Lines of an environment: what the library put in, and the rest."""
    lines = {line for line in text.splitlines() if "=" in line}
    ours = {line for line in lines if line.startswith(("LD_PRELOAD=", "FASTWRITE_"))}
    return ours, lines - ours


def is_ours(put_in: set[str], library: Path, place: Path) -> bool:
    return f"LD_PRELOAD={library}" in put_in and f"FASTWRITE_PATHS={place}/**" in put_in


@pytest.mark.parametrize("how", HOWS)
def test_every_way_to_start_a_program(library, starter, writer, how):
    with disk_dir() as place:
        out = place / "out"
        native = run_native([starter, how, writer, out], place)
        assert native.returncode == 0, native.stderr
        run = run_preloaded(library, [starter, how, writer, out], place)
        assert (run.returncode, run.stderr) == (0, "")
        put_in, rest = split(run.stdout)
        native_put_in, native_rest = split(native.stdout)
        assert native_put_in == set()
        # a shell has its own to say about _, PWD and the like, natively too
        assert rest == native_rest
        assert is_ours(put_in, library, place)
        assert out.read_bytes() == b"0123456789\n" * 1000
        assert_staged(run.stats, 10000)
        off = run_preloaded(library, [starter, how, writer, out], place, inherit=0)
        assert (off.returncode, off.stderr) == (0, "")
        assert split(off.stdout) == (set(), native_rest)
        assert off.stats.bytes == 0
        assert not leftovers(place)


PYTHON = """
import os, subprocess, sys
how, program, out = sys.argv[1:]
if how == "run":
    sys.exit(subprocess.run([program, out], env={}).returncode)
if how == "run-fork":
    sys.exit(subprocess.run([program, out], env={"A": "b"}, preexec_fn=lambda: None).returncode)
if how == "shell":
    sys.exit(subprocess.run(f"'{program}' '{out}'", shell=True, env={"A": "b"}).returncode)
if how == "spawn":
    pid = os.posix_spawn(program, [program, out], {})
    sys.exit(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
if how == "exec":
    os.execve(program, [program, out], {"A": "b"})
"""

CHAINS = {
    "sh": ["sh", "-c", "env -i '{program}' '{out}'"],
    "exec": ["sh", "-c", "exec env -i A=b '{program}' '{out}'"],
    "unset": ["sh", "-c", "unset LD_PRELOAD; '{program}' '{out}'"],
    "twice": ["env", "-i", "/bin/sh", "-c", "exec /usr/bin/env -i '{program}' '{out}'"],
    "own preload": ["env", "-i", "LD_PRELOAD=libm.so.6", "{program}", "{out}"],
    "perl": ["perl", "-e", "%ENV = (); exit(system('{program}', '{out}') >> 8)"],
    "make": ["env", "-i", "PATH=/usr/bin:/bin", "make", "-s", "-f", "{makefile}"],
    **{how: [sys.executable, "-c", PYTHON, how, "{program}", "{out}"]
       for how in ("run", "run-fork", "shell", "spawn", "exec")},
}  # fmt: skip


@pytest.mark.parametrize("chain", CHAINS)
def test_real_programs(library, writer, chain):
    with disk_dir() as place:
        makefile = place / "Makefile"
        makefile.write_text(f"all:\n\t@env -i '{writer}' '{place / 'out'}'\n")
        words = [w.replace("{program}", str(writer)) for w in CHAINS[chain]]
        words = [w.replace("{out}", str(place / "out")).replace("{makefile}", str(makefile)) for w in words]
        if shutil.which(words[0]) is None:
            pytest.skip(f"{words[0]} is not installed")
        native = run_native(words, place)
        assert native.returncode == 0, native.stderr
        run = run_preloaded(library, words, place, sync="off")
        assert (run.returncode, run.stderr) == (0, "")
        put_in, rest = split(run.stdout)
        assert rest == split(native.stdout)[1]
        assert "FASTWRITE_SYNC=off" in put_in
        assert any(line.startswith("LD_PRELOAD=") and str(library) in line for line in put_in)
        assert (place / "out").read_bytes() == b"0123456789\n" * 1000
        assert_staged(run.stats, 10000)


def test_own_choices_stay(library, writer):
    """Variables that the program sets itself, and its switch, are respected."""
    with disk_dir() as place:
        out = place / "out"
        run = run_preloaded(
            library, ["env", "-u", "FASTWRITE_STATS", "FASTWRITE_LOG=error", writer, out], place
        )
        put_in, _ = split(run.stdout)
        assert "FASTWRITE_LOG=error" in put_in
        assert not any(line.startswith("FASTWRITE_STATS") for line in put_in)
        run = run_preloaded(library, ["env", "-i", "FASTWRITE_INHERIT=0", writer, out], place)
        assert split(run.stdout) == ({"FASTWRITE_INHERIT=0"}, set())
        assert run.stats.bytes == 0
        # several entries: behind what was in front of ours
        other = place / "libother.so"
        subprocess.run(["cc", "-shared", "-x", "c", "-", "-o", other], input=b"int other;", check=True)
        run = run_preloaded(
            library,
            ["env", f"LD_PRELOAD={other}", writer, out],
            place,
            env={"LD_PRELOAD": f"{other} {library}"},
        )
        assert f"LD_PRELOAD={other}:{library}" in split(run.stdout)[0]
        assert run.stderr == ""


def test_relative_configuration(library, writer):
    """Paths that were relative to where the program started mean the same elsewhere."""
    with disk_dir() as place:
        (place / "fw.ini").write_text(f"[rule all]\npaths = {place}/**\n")
        (place / "lib.so").symlink_to(library)
        env = {"LD_PRELOAD": "./lib.so", "FASTWRITE_CONFIG": "fw.ini", "FASTWRITE_PATHS": ""}
        env["FASTWRITE_STATS"] = "stats"
        code = f"import os; os.chdir('/'); os.execve('{writer}', ['writer', '{place}/out'], {{}})"
        run = run_preloaded(library, [sys.executable, "-c", code], place, env=env)
        put_in, _ = split(run.stdout)
        assert {f"LD_PRELOAD={place}/./lib.so", f"FASTWRITE_CONFIG={place}/fw.ini"} <= put_in
        assert f"FASTWRITE_STATS={place}/stats" in put_in
        assert (run.returncode, run.stderr) == (0, "")
        assert_staged(parse_stats((place / "stats").read_text()), 10000)


def test_no_loop(library, writer):
    """A script that runs itself again until LD_PRELOAD is gone comes to an end."""
    with disk_dir() as place:
        script = place / "script"
        script.write_text(
            '#!/bin/sh\nif [ -n "$LD_PRELOAD" ]; then unset LD_PRELOAD; exec "$0" "$@"; fi\n'
            f"'{writer}' out\n"
        )
        script.chmod(0o755)
        run = run_preloaded(library, [script], place, timeout=30)
        assert run.returncode == 0
        assert not any(line.startswith("LD_PRELOAD") for line in split(run.stdout)[0])
        again = (
            "import os, sys\n"
            "if 'LD_PRELOAD' in os.environ:\n"
            "    del os.environ['LD_PRELOAD']\n"
            "    os.execv(sys.executable, [sys.executable, *sys.orig_argv[1:]])\n"
            "print('ended')\n"
        )
        run = run_preloaded(library, [sys.executable, "-c", again], place, timeout=30)
        assert (run.returncode, run.stdout, run.stderr) == (0, "ended\n", "")


def test_set_user_id(library, writer):
    with disk_dir() as place:
        program = place / "program"
        shutil.copy(writer, program)
        program.chmod(0o4755)
        native = run_native(["env", "-i", "A=b", program, place / "out"], place)
        run = run_preloaded(library, ["env", "-i", "A=b", program, place / "out"], place)
        assert (run.returncode, run.stdout, run.stderr) == (0, native.stdout, "")


def test_chroot(library, compile_c):
    """Where the library is out of reach the loader would complain."""
    if os.geteuid() != 0:
        pytest.skip("chroot needs root")
    static = compile_c(WRITER, "-D_GNU_SOURCE", "-static")
    with disk_dir() as place:
        shutil.copy(static, place / "program")
        code = (
            "import os, sys\n"
            f"os.chroot('{place}'); os.chdir('/')\n"
            "os.execve('/program', ['program', 'out'], {'A': 'b'})\n"
        )
        run = run_preloaded(library, [sys.executable, "-c", code], place)
        assert (run.returncode, run.stdout, run.stderr) == (0, "A=b\n", "")


E2BIG = r"""
#include <errno.h>
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

static char **environment(size_t bytes)
{
	enum { EACH = 1000 };
	size_t n = bytes / (EACH + sizeof(char *));
	char **env = calloc(n + 2, sizeof(char *));
	for (size_t i = 0; i <= n; i++) {
		size_t length = i < n ? EACH : bytes % (EACH + sizeof(char *)) + 1;
		env[i] = malloc(length);
		memset(env[i], 'x', length - 1);
		env[i][length - 1] = 0;
	}
	return env;
}

/* 1: the kernel took it */
static int by_exec(char **env)
{
	char *argv[] = {"true", NULL};
	int status;
	pid_t pid = vfork();
	if (pid == 0) {
		execve("/bin/true", argv, env);
		_exit(errno);
	}
	waitpid(pid, &status, 0);
	if (WEXITSTATUS(status) != 0 && WEXITSTATUS(status) != E2BIG)
		abort();
	return status == 0;
}

static int by_spawn(char **env)
{
	char *argv[] = {"true", NULL};
	int status, r;
	pid_t pid;
	r = posix_spawn(&pid, "/bin/true", NULL, NULL, argv, env);
	if (r == 0)
		waitpid(pid, &status, 0);
	else if (r != E2BIG)
		abort();
	return r == 0 && status == 0;
}

int main(void)
{
	struct rlimit limit = {1 << 20, RLIM_INFINITY};
	size_t low = 1000, high = 1 << 20;
	setrlimit(RLIMIT_STACK, &limit);
	/* the largest environment that goes, exactly */
	while (high - low > 1) {
		size_t middle = (low + high) / 2;
		if (by_exec(environment(middle)))
			low = middle;
		else
			high = middle;
	}
	printf("%zu\n", low);
	for (long more = -1500; more < 100; more += 50)
		printf("%d%d", by_exec(environment(low + more)), by_spawn(environment(low + more)));
	puts("");
	return 0;
}
"""


def test_too_large(library, compile_c):
    """What the kernel takes without the library's variables is taken with them."""
    program = compile_c(E2BIG, "-D_GNU_SOURCE")
    with disk_dir() as place:
        native = run_native([program], place)
        limit, outcomes = native.stdout.splitlines()
        assert "11" in outcomes
        assert "00" in outcomes
        run = run_preloaded(library, [program], place, env={"FASTWRITE_STATS": ""})
        assert (run.returncode, run.stderr) == (0, "")
        assert run.stdout.splitlines() == [limit, outcomes]


def test_registry_survives(build, library, fastwrite, compile_c):
    """`fastwrite run` finds the staging of a killed program that had an empty environment."""
    program = compile_c(
        r"""
        #include <fcntl.h>
        #include <signal.h>
        #include <unistd.h>
        int main(int argc, char **argv)
        {
            int fd = open(argv[1], O_WRONLY | O_CREAT, 0644);
            for (int i = 0; i < 1000; i++)
                if (write(fd, "0123456789\n", 11) != 11)
                    return 1;
            kill(getpid(), SIGKILL);
        }
        """
    )
    with disk_dir() as place:
        done = subprocess.run(
            [*f"{fastwrite} run -v -p {place}/** -o lag_ms=60000 -- env -i {program} {place}/out".split()],
            capture_output=True,
            text=True,
            check=False,
            timeout=60,
        )
        assert done.returncode == -signal.SIGKILL
        assert "recovered" in done.stderr
        assert (place / "out").read_bytes() == b"0123456789\n" * 1000
        assert not leftovers(place)


GOES_ON = r"""
#include <fcntl.h>
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>
extern char **environ;
int main(int argc, char **argv)
{
	int fd = open("a", O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644), status;
	char *true_argv[] = {"true", NULL};
	posix_spawn_file_actions_t actions;
	pid_t pid;
	for (int i = 0; i < 5000; i++) {
		if (write(fd, "0123456789\n", 11) != 11)
			return 1;
		if (i % 1000 != 500)
			continue;
		if (!strcmp(argv[1], "vfork")) {
			pid = vfork();
			if (pid == 0) {
				execvp("true", true_argv);
				_exit(1);
			}
		} else if (!strcmp(argv[1], "posix_spawn")) {
			posix_spawn_file_actions_init(&actions);
			posix_spawn_file_actions_adddup2(&actions, 2, 1);
			if (posix_spawnp(&pid, "true", &actions, NULL, true_argv, environ))
				return 2;
			posix_spawn_file_actions_destroy(&actions);
		} else if (!strcmp(argv[1], "system")) {
			if (system("true"))
				return 3;
			continue;
		} else {
			execvp("no-such-program", true_argv);
			continue;
		}
		if (waitpid(pid, &status, 0) != pid || status)
			return 4;
	}
	return 0;
}
"""


@pytest.mark.parametrize("how", ["vfork", "posix_spawn", "system", "failing exec"])
def test_staging_goes_on(library, compile_c, how):
    """Programs that inherit none of our files do not end the staging of these."""
    program = compile_c(GOES_ON, "-D_GNU_SOURCE")
    with disk_dir() as place:
        run = run_preloaded(library, [program, how], place, lag_ms=60000)
        assert run.returncode == 0
        assert (place / "a").read_bytes() == b"0123456789\n" * 5000
        # all but the first ones, after each exec that failed as well
        assert_staged(run.stats, 5000 * 11 - 20 * 11)
        assert run.stats.through.get("inherited descriptor", 0) == 0


def test_statistics_say_why(library, compile_c):
    program = compile_c(GOES_ON.replace("O_CLOEXEC", "0"), "-D_GNU_SOURCE")
    with disk_dir() as place:
        run = run_preloaded(library, [program, "vfork"], place, lag_ms=60000)
        assert run.returncode == 0
        assert (place / "a").read_bytes() == b"0123456789\n" * 5000
        assert run.stats.through == {"inherited descriptor": 1}
        assert 400 * 11 <= run.stats.bytes <= 501 * 11
