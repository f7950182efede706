# SPDX-License-Identifier: Apache-2.0
"""Plugins that write are unloaded, and programs load and unload the library themselves."""

from __future__ import annotations

import pytest
from lib.support import assert_staged, disk_dir, leftovers, run_native, run_preloaded

PLUGIN = """
#include <fcntl.h>
#include <stdio.h>
#include <unistd.h>
static FILE *stream;
static int fd = -1;
static char buffer[8192]; /* of the stream: it goes with the plugin */
void write_some(int round)
{
	if (!stream) {
		stream = fopen("stream", "a");
		setvbuf(stream, buffer, _IOFBF, sizeof buffer);
		fd = open("file", O_WRONLY | O_CREAT | O_APPEND, 0644);
	}
	for (int i = 0; i < 3000; i++) {
		fprintf(stream, "%d %d\\n", round, i);
		dprintf(fd, "%d %d\\n", round, i);
	}
}
__attribute__((destructor)) static void end(void)
{
	if (stream) {
		fprintf(stream, "end\\n");
		fclose(stream);
		if (write(fd, "end\\n", 4) != 4)
			_exit(9);
		/* fd stays open */
	}
}
"""
HOST = """
#include <dlfcn.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
int main(int argc, char **argv)
{
	struct stat a, b;
	for (int round = 0; argc == 2 && round < 5; round++) {
		void *plugin = dlopen(argv[1], RTLD_NOW);
		void (*write_some)(int) = (void (*)(int))dlsym(plugin, "write_some");
		if (!plugin || !write_some)
			return 1;
		write_some(round);
		if (dlclose(plugin) != 0 || dlopen(argv[1], RTLD_NOW | RTLD_NOLOAD))
			return 2;
		if (stat("stream", &a) != 0 || stat("file", &b) != 0)
			return 3;
		printf("%lld %lld\\n", (long long)a.st_size, (long long)b.st_size);
	}
	return 0;
}
"""
LOADS = """
#include <dlfcn.h>
#include <fcntl.h>
#include <unistd.h>
int main(int argc, char **argv)
{
	int fd = open("file", O_WRONLY | O_CREAT | O_TRUNC, 0644);
	for (int i = 0; i < 2000; i++) {
		void *library = i % 100 == 0 ? dlopen(argv[argc - 1], RTLD_NOW) : NULL;
		if (write(fd, "0123456789", 10) != 10 || (i % 100 == 0 && (!library || dlclose(library) != 0)))
			return 1;
	}
	return 0;
}
"""


@pytest.mark.parametrize("adapt", ["on", "off"])
def test_a_plugin_that_writes_is_unloaded(library, compile_c, adapt):
    plugin = compile_c(PLUGIN, "-shared", "-fPIC")
    host = compile_c(HOST, "-ldl")
    with disk_dir() as native, disk_dir() as place:
        expected = run_native([host, plugin], native)
        assert expected.returncode == 0, expected.stderr
        run = run_preloaded(library, [host, plugin], place, adapt=adapt, lag_ms=60000)
        assert (run.returncode, run.stderr, run.stdout) == (0, "", expected.stdout)
        for name in ("stream", "file"):
            assert (place / name).read_bytes() == (native / name).read_bytes()
        assert_staged(run.stats, 100_000 if adapt == "off" else 1000)
        assert not leftovers(place)


@pytest.mark.parametrize("preloaded", [True, False])
def test_a_program_unloads_the_library(library, compile_c, preloaded):
    """It is never unmapped.  Loaded late it manages nothing: the program's calls were bound before."""
    program = compile_c(LOADS, "-ldl")
    with disk_dir() as place:
        if preloaded:
            run = run_preloaded(library, [program, library], place)
            assert_staged(run.stats, 10_000)
        else:
            run = run_native([program, library], place, FASTWRITE_PATHS=f"{place}/**", FASTWRITE_ADAPT="off")
        assert (run.returncode, run.stderr) == (0, "")
        assert (place / "file").read_bytes() == b"0123456789" * 2000
        assert not leftovers(place)
