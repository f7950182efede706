# SPDX-License-Identifier: Apache-2.0
"""Where the file system or the file is synchronous, a write that has returned is durable: nothing is staged."""

from __future__ import annotations

import subprocess
import tomllib

import pytest
from lib.disks import disk
from lib.support import ROOT, run_preloaded

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
