# SPDX-License-Identifier: Apache-2.0
"""Handlers of pthread_atfork that a library registers whose constructor runs before that of libfastwrite."""

from __future__ import annotations

import os
import subprocess

import pytest
from lib.support import disk_dir, run_preloaded

OLDER = r"""
#include <pthread.h>
void (*older_prepare)(void), (*older_child)(void);
static void prepare(void) { if (older_prepare) older_prepare(); }
static void child(void) { if (older_child) older_child(); }
__attribute__((constructor)) static void start(void) { pthread_atfork(prepare, NULL, child); }
"""

START = r"""
#define _GNU_SOURCE
#include <fcntl.h>
#include <pthread.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>
extern void (*older_prepare)(void), (*older_child)(void);
static int fd;
static const char *path;
static void open_it(void) { fd = open(path, O_RDWR | O_CREAT | O_TRUNC, 0644); }
static void many(const char *text, int n)
{
	char line[32];
	for (int i = 0; i < n; i++)
		if (write(fd, line, sprintf(line, "%s %d\n", text, i)) < 0)
			abort();
}
static void end(void) { printf("position %ld\n", (long)lseek(fd, 0, SEEK_CUR)); }
"""

CHILD_WRITES = (
    START
    + r"""
static void child(void) { many("handler", 1); }
int main(int argc, char **argv)
{
	path = argv[1];
	open_it();
	many("line", 2000);
	older_child = child;
	if (fork() == 0) {
		many("child", 1);
		_exit(0);
	}
	wait(NULL);
	many("parent", 1);
	end();
	return 0;
}
"""
)

PREPARE_OPENS = (
    START
    + r"""
int main(int argc, char **argv)
{
	int go[2];
	char byte;
	path = argv[1];
	older_prepare = open_it;
	if (pipe(go) < 0)
		return 1;
	if (fork() == 0) {
		if (read(go[0], &byte, 1) == 1)
			many("child", 2000);
		_exit(0);
	}
	many("first", 3000);
	if (write(go[1], "x", 1) != 1)
		return 1;
	wait(NULL);
	many("last", 1000);
	end();
	return 0;
}
"""
)

# The owner of the mutex waits for the handler, and then a moment: the handler waits for the mutex.
PREPARE_LOCKS = (
    START
    + r"""
static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
static pthread_barrier_t both;
static volatile int forks;
static const char *kind;
static void prepare(void)
{
	forks = 1;
	pthread_mutex_lock(&mutex);
	pthread_mutex_unlock(&mutex);
}
static void *own(void *arg)
{
	char *none[] = {"none", NULL};
	pthread_mutex_lock(&mutex);
	pthread_barrier_wait(&both);
	while (!forks)
		;
	usleep(100000);
	if (strcmp(kind, "execve fails") == 0)
		execve("/none", none, none);
	if (strcmp(kind, "execve") == 0)
		execl("/bin/true", "true", NULL);
	if (strcmp(kind, "unshare") == 0)
		unshare(CLONE_FS);
	if (strcmp(kind, "seteuid") == 0)
		seteuid(geteuid());
	pthread_mutex_unlock(&mutex);
	return arg;
}
int main(int argc, char **argv)
{
	pthread_t thread;
	alarm(60);
	path = argv[1];
	kind = argv[2];
	open_it();
	fcntl(fd, F_SETFD, FD_CLOEXEC);
	many("line", 3000);
	older_prepare = prepare;
	pthread_barrier_init(&both, NULL, 2);
	pthread_create(&thread, NULL, own, NULL);
	pthread_barrier_wait(&both);
	if (fork() == 0)
		_exit(0);
	wait(NULL);
	pthread_join(thread, NULL);
	return 0;
}
"""
)


# As some allocators do it: nobody allocates from the first handler on.
ALLOCATOR = r"""
#define _GNU_SOURCE
#include <pthread.h>
#include <stddef.h>
extern void *__libc_malloc(size_t), *__libc_calloc(size_t, size_t), *__libc_realloc(void *, size_t);
extern void __libc_free(void *);
static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
#define LOCKED(type, call) \
	{ \
		pthread_mutex_lock(&mutex); \
		type r = call; \
		pthread_mutex_unlock(&mutex); \
		return r; \
	}
void *malloc(size_t n) LOCKED(void *, __libc_malloc(n))
void *calloc(size_t n, size_t each) LOCKED(void *, __libc_calloc(n, each))
void *realloc(void *p, size_t n) LOCKED(void *, __libc_realloc(p, n))
void free(void *p) LOCKED(int, (__libc_free(p), 0))
static void prepare(void) { pthread_mutex_lock(&mutex); }
static void after(void) { pthread_mutex_unlock(&mutex); }
__attribute__((constructor)) static void start(void) { pthread_atfork(prepare, after, after); }
"""

# The library's threads have ended by the second fork.
FORKS_LATE = r"""
#include <fcntl.h>
#include <pthread.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>
static int fd;
static void many(int n)
{
	for (int i = 0; i < n; i++)
		if (write(fd, "0123456789\n", 11) != 11)
			abort();
}
static void *beside(void *path)
{
	for (int i = 0; i < 300; i++) {
		int other = open(path, O_WRONLY | O_CREAT | O_APPEND, 0644);
		for (int n = 0; n < 10; n++)
			if (write(other, "beside\n", 7) != 7)
				abort();
		close(other);
		free(malloc(100));
	}
	return NULL;
}
int main(int argc, char **argv)
{
	pthread_t thread;
	alarm(60);
	fd = open(argv[1], O_RDWR | O_CREAT | O_TRUNC, 0644);
	pthread_create(&thread, NULL, beside, argv[2]);
	for (int i = 0; i < 20; i++) {
		many(100);
		if (i == 10)
			usleep(2500000);
		if (fork() == 0) {
			free(malloc(100));
			many(1);
			_exit(0);
		}
		wait(NULL);
	}
	pthread_join(thread, NULL);
	return 0;
}
"""


@pytest.fixture
def place():
    with disk_dir() as path:
        yield path


@pytest.fixture
def program(compile_c):
    older = compile_c(OLDER, "-shared", "-fPIC")
    return lambda text: compile_c(text, "-pthread", str(older))


@pytest.mark.parametrize("sync", ["fdatasync", "off", "relaxed", "journal", "ordered"])
@pytest.mark.parametrize("text", [CHILD_WRITES, PREPARE_OPENS], ids=["child writes", "prepare opens"])
def test_what_a_handler_does_is_seen(library, program, place, text, sync):
    binary = program(text)
    native = subprocess.run(
        [binary, place / "native"], capture_output=True, text=True, timeout=60, check=True
    )
    mine = run_preloaded(
        library, [binary, place / "mine"], place, paths=f"{place}/mine", sync=sync, adapt="off"
    )
    assert (mine.returncode, mine.stdout) == (0, native.stdout), mine.stderr
    assert (place / "mine").read_bytes() == (place / "native").read_bytes()
    if not (sync == "ordered" and text == PREPARE_OPENS):  # (there a file with a shared position is bypassed)
        assert mine.stats.writes > 1900


@pytest.mark.parametrize("kind", ["execve fails", "execve", "unshare", "seteuid"])
def test_a_handler_may_wait_for_a_mutex_of_the_program(library, program, place, kind):
    if kind == "unshare" and os.geteuid() != 0:
        pytest.skip("unshare needs root")
    mine = run_preloaded(library, [program(PREPARE_LOCKS), place / "mine", kind], place)
    assert mine.returncode == 0, f"status {mine.returncode}: {mine.stderr}"
    assert (place / "mine").read_bytes() == b"".join(b"line %d\n" % i for i in range(3000))


@pytest.mark.parametrize("sync", ["fdatasync", "journal", "ordered"])
def test_nothing_is_allocated_while_an_allocator_is_locked(library, compile_c, place, sync):
    allocator = compile_c(ALLOCATOR, "-shared", "-fPIC", "-Wno-implicit-function-declaration")
    program = compile_c(FORKS_LATE, "-pthread", "-Wl,--no-as-needed", str(allocator))
    mine = run_preloaded(
        library,
        [program, place / "a", place / "b"],
        place,
        paths=f"{place}/*",
        sync=sync,
        adapt="off",
        lag_ms=100,
    )
    assert mine.returncode == 0, f"status {mine.returncode}: {mine.stderr}"
    assert (place / "a").read_bytes() == b"0123456789\n" * 2020
    assert (place / "b").read_bytes() == b"beside\n" * 3000
