# SPDX-License-Identifier: Apache-2.0
"""FASTWRITE_STATS: a line for each process and rule that was used, as text or as JSON."""

from __future__ import annotations

import json

import pytest
from lib.support import disk_dir, parse_stats, run_preloaded

# Writes a line to each argument a thousand times; `mapped` before a file maps it.
PROGRAM = r"""
#include <fcntl.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>
int main(int argc, char **argv)
{
	for (int a = 1; a < argc; a++) {
		int map = strcmp(argv[a], "mapped") == 0 && ++a;
		int fd = open(argv[a], O_RDWR | O_CREAT | O_APPEND, 0644);

		if (map)
			mmap(NULL, 1, PROT_READ, MAP_SHARED, fd, 0);
		for (int i = 0; i < 1000; i++)
			if (write(fd, "0123456789\n", 11) != 11)
				return 1;
	}
	return 0;
}
"""

ONLY_MAPS = r"""
#include <fcntl.h>
#include <sys/mman.h>
int main(void)
{
	int fd = open("m", O_RDWR | O_CREAT, 0644);

	if (posix_fallocate(fd, 0, 4096) != 0)
		return 1;
	return mmap(0, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0) == MAP_FAILED;
}
"""


@pytest.fixture
def place():
    with disk_dir() as path:
        yield path


def test_nothing_to_say(library, compile_c, place):
    """Neither for a program without managed files, nor for the shell in between."""
    run = run_preloaded(library, ["sh", "-c", "true; /bin/true"], place, stats="stderr")
    assert (run.returncode, run.stderr) == (0, "")
    (place / "d").mkdir()
    command = ["sh", "-c", f"'{compile_c(PROGRAM)}' d/a; true"]
    run = run_preloaded(library, command, place, stats="stderr", paths=f"{place}/d/**")
    assert run.stderr.count("\n") == 1, run.stderr


def test_a_program_that_only_maps(library, compile_c, place):
    """Nothing is staged, and yet it is said that a file of the rule was there."""
    run = run_preloaded(library, [compile_c(ONLY_MAPS)], place, stats="stderr")
    assert (run.returncode, run.stderr.count(" rule env: 0 writes staged, ")) == (0, 1), run.stderr


def test_program_and_rule(library, compile_c, place):
    """Files that are open at the end were not "bypassed: exit"."""
    config = place / "fw.ini"
    config.write_text(f"[rule one]\npaths = {place}/a\n[rule two]\npaths = {place}/[bm]\n")
    program = compile_c(PROGRAM)
    command = [program, "a", "b", "mapped", "m"]
    run = run_preloaded(library, command, place, paths="", stats="stderr", config=config)
    lines = run.stderr.splitlines()
    assert len(lines) == 2
    assert f" ({program.name}), rule one: 999 writes staged, " in lines[0]
    assert f" ({program.name}), rule two: 999 writes staged, " in lines[1]
    assert "bypassed" not in lines[0]
    assert lines[1].endswith("; 1 files bypassed: mmap")
    assert parse_stats(run.stderr).through == {"mmap": 1}


def test_json(library, compile_c, place):
    stats = place / "stats.json"
    program = compile_c(PROGRAM)
    name = place / 'a"\\é\n'
    name.symlink_to(program)
    for command in ([program, "a"], [name, "b", "mapped", "m"]):
        run = run_preloaded(
            library, command, place, paths=f"{place}/[abm]", env={"FASTWRITE_STATS": str(stats)}
        )
        assert run.returncode == 0
    first, second = [json.loads(line) for line in stats.read_text().splitlines()]
    assert first.pop("pid") > 1
    assert first == {
        "program": program.name, "rule": "env", "writes": 999, "bytes": 10989, "flushes": 1,
        "flush_bytes": 10989, "direct_bytes": first["direct_bytes"], "syncs_asked": 0, "syncs_done": 0,
        "settles": 1, "syncs_by_journal": 0, "through": {},
    }  # fmt: skip
    assert second["through"] == {"mmap": 1}
    assert second["program"] == "a?????"
