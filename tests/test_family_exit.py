# SPDX-License-Identifier: Apache-2.0
"""Members of a family that end at the same moment: each takes the others for gone, and one removes the arena."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

from lib.support import preload_env

PROGRAM = r"""
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

static void child(const char *dir, int n, int ready, int go)
{
	char path[512], byte;

	snprintf(path, sizeof path, "%s/f%d", dir, n);
	int fd = open(path, O_WRONLY | O_CREAT | O_APPEND, 0644);

	for (int i = 0; i < 10; i++)
		if (write(fd, "0123456789", 10) != 10)
			exit(1);
	if (write(ready, "", 1) != 1 || read(go, &byte, 1) != 0)
		exit(1);
	exit(0);
}

int main(int argc, char **argv)
{
	int bad = 0;

	(void)argc;
	for (int round = 0; round < atoi(argv[2]) && !bad; round++) {
		int ready[2], go[2], status;
		char byte;

		if (pipe(ready) || pipe(go))
			return 2;
		for (int n = 0; n < 6; n++) {
			if (fork() == 0) {
				close(go[1]);
				child(argv[1], n, ready[1], go[0]);
			}
		}
		for (int n = 0; n < 6; n++)
			if (read(ready[0], &byte, 1) != 1)
				return 2;
		close(go[1]);
		while (wait(&status) > 0) {
			if (WIFSIGNALED(status))
				fprintf(stderr, "round %d: signal %d\n", round, WTERMSIG(status));
			bad |= status != 0;
		}
		close(go[0]);
		close(ready[0]);
		close(ready[1]);
	}
	return bad;
}
"""
ROUNDS, MEMBERS = 40, 6


def test_members_that_end_together_end_well(library, compile_c, tmp_path):
    place = tmp_path / "d"
    place.mkdir()
    statistics = tmp_path / "statistics"
    env = {**os.environ, **preload_env(library, f"{place}/**", stats=statistics)}
    done = subprocess.run(
        [compile_c(PROGRAM), place, str(ROUNDS)], env=env, capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stderr
    for n in range(MEMBERS):
        assert (place / f"f{n}").read_bytes() == b"0123456789" * 10 * ROUNDS
    assert _staged(statistics) > 0
    staging = place / ".fastwrite"
    assert not staging.exists() or not list(staging.iterdir())


def _staged(statistics: Path) -> int:
    return sum(int(line.split(": ")[2].split()[0]) for line in statistics.read_text().splitlines())
