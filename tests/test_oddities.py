# SPDX-License-Identifier: Apache-2.0
"""Odd surroundings: each program does the same, byte for byte, natively and with the library."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest
from lib.support import ROOT, assert_staged, disk_dir, leftovers, parse_stats, preload_env, run_preloaded

WAITS = r"""
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
/* waits PATH FIRST COUNT: on a line of standard input, appends COUNT lines of 100 bytes */
int main(int argc, char **argv)
{
	char line[101], byte;
	int fd, first = atoi(argv[2]), count = atoi(argv[3]);
	(void)argc;
	if (write(1, "ready\n", 6) != 6 || read(0, &byte, 1) != 1)
		return 2;
	fd = open(argv[1], O_WRONLY | O_APPEND);
	if (fd < 0)
		return perror(argv[1]), 3;
	for (int i = first; i < first + count; i++) {
		snprintf(line, sizeof line, "line %08d ", i);
		memset(line + strlen(line), '.', 100 - strlen(line));
		line[99] = '\n';
		if (write(fd, line, 100) != 100)
			return perror("write"), 4;
	}
	return close(fd) != 0;
}
"""


def lines(first: int, count: int) -> bytes:
    """What `leave` and WAITS write."""
    return b"".join((b"line %08d " % i).ljust(99, b".") + b"\n" for i in range(first, first + count))


FORBIDS = r"""
#include <errno.h>
#include <fcntl.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <stddef.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <unistd.h>
/* forbids ERROR PATH: as a sandbox, then starts itself anew and writes 2000 lines of 100 bytes */
int main(int argc, char **argv)
{
	struct sock_filter code[] = {
		BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
		BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_process_vm_readv, 0, 1),
		BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | (argv[1][0] == 'P' ? EPERM : ENOSYS)),
		BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
	};
	struct sock_fprog program = {.len = sizeof code / sizeof *code, .filter = code};
	char line[100];
	int fd;
	if (argc == 3) {
		prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0);
		if (prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program) != 0)
			return 2;
		execl("/proc/self/exe", argv[0], argv[1], argv[2], "again", (char *)NULL);
		return 4;
	}
	memset(line, '.', sizeof line);
	fd = open(argv[2], O_WRONLY | O_CREAT, 0600);
	for (int i = 0; i < 2000; i++)
		if (write(fd, line, sizeof line) != sizeof line)
			return 3;
	return close(fd) != 0;
}
"""


@pytest.mark.parametrize("error", ["PERM", "NOSYS"])
def test_without_process_vm_readv(library, compile_c, place, error):
    """Sandboxes forbid it, and qemu's user emulation does not have it: bytes are staged all the same."""
    run = run_preloaded(library, [compile_c(FORBIDS), error, place / "a"], place, adapt="off")
    assert (run.returncode, run.stderr) == (0, "")
    assert (place / "a").read_bytes() == b"." * 200000
    assert_staged(run.stats, 150000)


@pytest.fixture
def place():
    with disk_dir() as path:
        yield path


@pytest.fixture(scope="module")
def leave(compile_c) -> Path:
    return compile_c((ROOT / "tests" / "kill" / "leave.c").read_text())


@pytest.mark.parametrize("link", ["directory", "file", "relative"])
def test_bytes_of_the_dead_come_before_a_write_through_a_link(library, compile_c, leave, place, link):
    """A process that runs already opens the file by a path outside of the rule: recovery comes first."""
    (place / "data" / "sub").mkdir(parents=True)
    (place / "other").mkdir()
    target = place / "data" / "sub" / "x"
    target.write_bytes(b"")
    if link == "directory":
        (place / "other" / "linked").symlink_to(target.parent)
        name = str(place / "other" / "linked" / "x")
    else:
        (place / "other" / "linked").symlink_to(target)
        name = str(place / "other" / "linked") if link == "file" else "linked"
    stats = place / "stats"
    env = {**os.environ, **preload_env(library, f"{place}/data/**", lag_ms=60000, stats=stats)}
    with subprocess.Popen(
        [compile_c(WAITS), name, "1000", "30"],
        cwd=place / "other",
        env=env,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    ) as late:
        try:
            assert late.stdout.readline() == b"ready\n"
            dead = subprocess.run([leave, "append", "kill", "0", "30", target], env=env, check=False)
            assert dead.returncode == -9
            assert len(target.read_bytes()) < 3000, "nothing was staged when it died"
            late.stdin.write(b"\n")
            late.stdin.close()
            assert late.wait(60) == 0
        finally:
            late.kill()
    assert target.read_bytes() == lines(0, 30) + lines(1000, 30)
    assert_staged(parse_stats(stats.read_text()), 1000)
    assert not leftovers(place)


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root to be two users")
@pytest.mark.parametrize("link", ["none", "directory", "file"])
def test_bytes_of_the_dead_of_another_user(library, compile_c, leave, place, link):
    """Who may not write to the rule's own directory stages beside the file; others look there, too."""
    place.chmod(0o755)
    sub = place / "data" / "sub"
    sub.mkdir(parents=True)
    os.chown(sub, 65534, 65534)
    target = sub / "x"
    stats = place / "stats"
    env = {**os.environ, **preload_env(library, f"{place}/data/**", lag_ms=60000)}
    dead = subprocess.run(
        [
            "setpriv",
            "--reuid=65534",
            "--regid=65534",
            "--clear-groups",
            leave,
            "append",
            "kill",
            "0",
            "30",
            target,
        ],
        env=env,
        check=False,
    )
    assert dead.returncode == -9
    assert len(target.read_bytes()) < 3000, "nothing was staged when it died"
    assert leftovers(place) == [sub / ".fastwrite"]
    linked = place / "linked"
    if link != "none":
        linked.symlink_to(sub if link == "directory" else target)
    name = {"none": target, "directory": linked / "x", "file": linked}[link]
    done = subprocess.run(
        [leave, "append", "exit", "30", "30", name], env={**env, "FASTWRITE_STATS": str(stats)}, check=False
    )
    assert done.returncode == 0
    assert target.read_bytes() == lines(0, 60)
    assert_staged(parse_stats(stats.read_text()), 1000)


LOOKS = r"""
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>
/* looks PATH HOW: on a line of standard input, shows the size that it sees */
int main(int argc, char **argv)
{
	const char *path = argv[1], *how = argv[2];
	struct stat st = {0};
	struct statx stx = {0};
	static char bytes[10000], moved[5000];
	char byte;
	(void)argc;
	if (write(1, "ready\n", 6) != 6 || read(0, &byte, 1) != 1)
		return 2;
	snprintf(moved, sizeof moved, "%s.moved", path);
	if (strcmp(how, "stat") == 0 && stat(path, &st))
		return 3;
	if (strcmp(how, "lstat") == 0 && lstat(path, &st))
		return 3;
	if (strcmp(how, "number") == 0 && syscall(SYS_newfstatat, AT_FDCWD, path, &st, 0))
		return 3;
	if (strcmp(how, "statx") == 0 && (statx(AT_FDCWD, path, 0, STATX_SIZE, &stx), 0))
		return 3;
	if (stx.stx_size)
		st.st_size = (off_t)stx.stx_size;
	if (strcmp(how, "read") == 0)
		st.st_size = read(open(path, O_RDONLY), bytes, sizeof bytes);
	if (strcmp(how, "fopen") == 0)
		st.st_size = (off_t)fread(bytes, 1, sizeof bytes, fopen(path, "r"));
	if (strcmp(how, "rename") == 0 && (rename(path, moved) || syscall(SYS_newfstatat, AT_FDCWD, moved, &st, 0)))
		return 3;
	if (strcmp(how, "link") == 0 && (link(path, moved) || syscall(SYS_newfstatat, AT_FDCWD, moved, &st, 0)))
		return 3;
	if (strcmp(how, "truncate") == 0 && (truncate(path, 5000) || syscall(SYS_newfstatat, AT_FDCWD, path, &st, 0)))
		return 3;
	printf("%ld\n", (long)st.st_size);
	return 0;
}
"""


@pytest.mark.parametrize("where", ["rule", "beside", "relative"])
@pytest.mark.parametrize(
    "how", ["stat", "lstat", "number", "statx", "read", "fopen", "rename", "link", "truncate"]
)
def test_bytes_of_the_dead_come_before_a_look(library, compile_c, leave, place, where, how):
    """A process that runs already finds what another one had written before it was killed."""
    sub = place / "data" / "sub"
    sub.mkdir(parents=True)
    target = sub / "x"
    target.write_bytes(b"")
    paths = f"{place}/data/**" if where == "rule" else "/**/sub/x"
    env = {**os.environ, **preload_env(library, paths, lag_ms=60000)}
    with subprocess.Popen(
        [compile_c(LOOKS), "x" if where == "relative" else target, how],
        cwd=sub,
        env=env,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    ) as late:
        try:
            assert late.stdout.readline() == b"ready\n"
            dead = subprocess.run([leave, "append", "kill", "0", "30", target], env=env, check=False)
            assert dead.returncode == -9
            assert len(target.read_bytes()) < 3000, "nothing was staged when it died"
            late.stdin.write(b"\n")
            late.stdin.close()
            seen = late.stdout.read()
            assert late.wait(60) == 0
        finally:
            late.kill()
    assert seen == (b"5000\n" if how == "truncate" else b"3000\n")
    kept = sub / "x.moved" if how == "rename" else target
    assert kept.read_bytes() == lines(0, 30) + bytes(2000 if how == "truncate" else 0)


FIRST = r"""
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <stdio.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>
/* first PATH HOW: on a line of standard input it leaves its pid namespace, for its children.  HOW "execs": it then
 * executes itself.  It appends to PATH and forks. */
int main(int argc, char **argv)
{
	char byte;
	int fd, status;
	pid_t child;
	(void)argc;
	if (strcmp(argv[2], "executed") != 0) {
		if (write(1, "ready\n", 6) != 6 || read(0, &byte, 1) != 1)
			return 2;
		if (unshare(CLONE_NEWPID) < 0)
			return errno == EPERM ? 77 : 3;
		if (strcmp(argv[2], "execs") == 0)
			return execl(argv[0], argv[0], argv[1], "executed", NULL);
	}
	fd = open(argv[1], O_WRONLY | O_APPEND);
	for (int i = 0; i < 100; i++)
		if (write(fd, "own\n", 4) != 4)
			return perror("write"), 4;
	child = fork();
	if (child < 0)
		return perror("fork"), 5;
	if (child == 0)
		_exit(getpid() == 1 ? 0 : 6);
	if (waitpid(child, &status, 0) != child || status != 0)
		return 7;
	return close(fd) != 0;
}
"""


@pytest.mark.parametrize("how", ["stays", "execs"])
def test_a_recovery_does_not_take_the_first_process_of_a_namespace(library, compile_c, leave, place, how):
    """After unshare(CLONE_NEWPID) the next child is process 1 of a namespace, which ends with it."""
    target = place / "log"
    target.write_bytes(b"")
    env = {**os.environ, **preload_env(library, f"{place}/**", lag_ms=60000)}
    with subprocess.Popen(
        [compile_c(FIRST), target, how],
        env=env,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    ) as late:
        try:
            assert late.stdout.readline() == b"ready\n"
            dead = subprocess.run([leave, "append", "kill", "0", "30", target], env=env, check=False)
            assert dead.returncode == -9
            assert len(target.read_bytes()) < 3000, "nothing was staged when it died"
            late.stdin.write(b"\n")
            late.stdin.close()
            said = late.stderr.read().decode()
            status = late.wait(60)
        finally:
            late.kill()
    if status == 77:
        pytest.skip("needs the right to make a pid namespace")
    assert status == 0, said
    assert target.read_bytes() == lines(0, 30) + b"own\n" * 100
    assert not leftovers(place)


# Rounds of: append to DIRECTORY/log through one of two descriptors of one description, close that one while a worker
# thread may flush, and give its number to another file.
REUSED = r"""
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>
enum { LINES = 38, EACH = 218 };
int main(int argc, char **argv)
{
	int rounds = atoi(argv[1]), onto = argc > 2;
	char line[EACH];
	memset(line, 'x', sizeof line);
	for (int i = 0; i < rounds; i++) {
		struct timespec a_while = {.tv_nsec = 400000 + i * 7919 % 1200000};
		int fd, other, victim;
		struct stat st;
		unlink("log");
		unlink("victim");
		fd = open("log", O_RDWR | O_CREAT | O_APPEND, 0644);
		other = dup(fd);
		for (int k = 0; k < LINES; k++)
			if (write(fd, line, EACH) != EACH)
				return 2;
		nanosleep(&a_while, NULL);
		if (onto) {
			int named = open("victim", O_RDWR | O_CREAT, 0644);
			victim = dup2(named, fd);
			close(named);
		} else {
			close(fd);
			victim = open("victim", O_RDWR | O_CREAT, 0644);
		}
		if (victim != fd)
			return 3;
		nanosleep(&a_while, NULL);
		close(other);
		if (fstat(victim, &st) || st.st_size != 0)
			return fprintf(stderr, "round %d: %ld bytes of another file\n", i, (long)st.st_size), 4;
		close(victim);
		if (stat("log", &st) || st.st_size != LINES * EACH)
			return fprintf(stderr, "round %d: %ld bytes\n", i, (long)st.st_size), 5;
	}
	return 0;
}
"""


@pytest.mark.parametrize("how", [[], ["onto"]], ids=["close", "dup2"])
def test_a_number_gets_another_file_while_its_old_one_is_flushed(library, compile_c, place, how):
    env = {**os.environ, **preload_env(library, f"{place}/*", lag_ms=1, flush="direct", stats="stderr")}
    done = subprocess.run(
        [compile_c(REUSED), "500", *how], cwd=place, env=env, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert_staged(parse_stats(done.stderr))


def test_ordered_file_is_no_hole(library):
    """A new file with staged pages has blocks: GNU tar takes one with a size and none for a hole."""
    code = """if 1:
        import os
        f = os.open('a', os.O_RDWR | os.O_CREAT)
        for _ in range(50):
            os.write(f, b'x' * 100)
        st = os.stat('a')
        assert st.st_size == 5000 and st.st_blocks == 10, st
        os.ftruncate(f, 0)
        os.ftruncate(f, 5000)
        st = os.stat('a')
        assert st.st_size == 5000 and st.st_blocks == 0, st
    """
    with disk_dir() as place:
        settings = {"sync": "ordered", "writers": "exclusive", "prealloc_mode": "off", "ordered_ms": 60000}
        run = run_preloaded(library, ["python3", "-c", code], place, **settings)
        assert (run.returncode, run.stderr) == (0, ""), run.stderr
        assert run.stats.writes > 40


LINKED = r"""
#include <fcntl.h>
#include <signal.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
static int fd;
static void put(int count)
{
	char line[100];
	memset(line, 'x', sizeof line);
	while (count-- > 0)
		if (write(fd, line, sizeof line) != sizeof line)
			_exit(2);
}
int main(void)
{
	if (mkdir("tmp", 0755) != 0 || mkdir("new", 0755) != 0)
		return 2;
	fd = open("tmp/m", O_WRONLY | O_CREAT | O_EXCL, 0644);
	put(1);
	if (fd < 0 || link("tmp/m", "new/m") != 0)
		return 2;
	put(200);
	if (unlink("tmp/m") != 0)
		return 2;
	put(50);
	return kill(getpid(), SIGKILL);
}
"""


@pytest.mark.parametrize("sync", ["fdatasync", "journal", "ordered"])
def test_killed_when_another_name_is_left(library, fastwrite, compile_c, place, sync):
    """Of a link and an unlink, as a mail server renames, recovery could not find the name that is left."""
    program = compile_c(LINKED)
    env = preload_env(library, f"{place}/**", sync=sync, adapt="off", lag_ms=60000)
    done = subprocess.run([program], cwd=place, env={**os.environ, **env}, timeout=60, check=False)
    assert done.returncode == -9
    assert leftovers(place), "nothing was staged: this tests nothing"
    recovered = subprocess.run(
        [fastwrite, "recover", place], capture_output=True, text=True, timeout=60, check=False
    )
    assert recovered.returncode == 0, recovered
    assert (place / "new" / "m").stat().st_size == 25100, recovered.stdout


GO = r"""
#include <fcntl.h>
#include <unistd.h>
#ifdef GO
struct note {
	unsigned name, description, type;
	char owner[4], text[8];
};
__attribute__((used, section(".note.go.buildid"))) static const struct note note = {4, 8, 4, "Go", "an id"};
#endif
int main(int argc, char **argv)
{
	int fd = open(argv[1], O_WRONLY | O_CREAT | O_APPEND, 0644);
	(void)argc;
	for (int i = 0; i < 1000; i++)
		if (write(fd, "0123456789\n", 11) != 11)
			return 1;
	return 0;
}
"""


def test_nothing_is_staged_where_go_makes_system_calls_itself(library, compile_c, place):
    """Its C parts write by the C library; what the rest looks at, starts and ends goes past all hooks."""
    for options, staged in (((), True), (("-DGO",), False)):
        program = compile_c(GO, *options)
        run = run_preloaded(library, [program, place / "log"], place, adapt="off", log="info")
        assert run.returncode == 0, run.stderr
        assert (run.stats.writes > 900, "a Go program" in run.stderr) == (staged, not staged), run.stderr
