# SPDX-License-Identifier: Apache-2.0
"""Wrong settings: one clear line, and the program runs without staging, or, if asked, not at all."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest
from lib.support import assert_staged, disk_dir, run_preloaded

PROGRAM = r"""
#include <fcntl.h>
#include <string.h>
#include <unistd.h>
int main(int argc, char **argv)
{
	int fd = open(argv[1], O_RDWR | O_CREAT | O_TRUNC, 0644);
	(void)argc;
	for (int i = 0; i < 1000; i++)
		if (write(fd, "0123456789", 10) != 10)
			return 2;
	if (write(1, "said\n", 5) != 5)
		return 3;
	return fsync(fd) != 0 || close(fd) != 0 ? 4 : 7;
}
"""


@pytest.fixture(scope="module")
def program(compile_c) -> Path:
    return compile_c(PROGRAM)


@pytest.fixture
def place():
    with disk_dir() as path:
        path.chmod(0o755)
        (path / "data").mkdir()
        yield path


@pytest.fixture
def start(library, program, place):
    def run(env: dict[str, str], **settings):
        settings.setdefault("paths", f"{place}/data/**")
        return run_preloaded(library, [program, place / "data" / "a"], place, env=env, **settings)

    return run


def check_intact(place: Path, done) -> None:
    assert done.returncode == 7, done.stderr
    assert done.stdout == "said\n"
    assert (place / "data" / "a").read_bytes() == b"0123456789" * 1000


def one_line(done) -> str:
    assert done.stderr.count("\n") == 1 and done.stderr.startswith("fastwrite: "), done.stderr
    return done.stderr


WRONG = {
    "unknown key": ({"FASTWRITE_COLOUR": "red"}, ["FASTWRITE_COLOUR", "unknown key", "SYNC"]),
    "bad size": ({"FASTWRITE_MEM": "16Q"}, ["FASTWRITE_MEM", '"16Q"', "1M..64G"]),
    "too small": ({"FASTWRITE_MEM": "1M", "FASTWRITE_BLOCK": "4M"}, ["FASTWRITE_MEM", "8 x block"]),
    "not a power of two": ({"FASTWRITE_BLOCK": "100K"}, ["FASTWRITE_BLOCK", '"100K"', "power of two"]),
    "bad word": ({"FASTWRITE_SYNC": "often"}, ["FASTWRITE_SYNC", '"often"', "fdatasync"]),
    "small journal": ({"FASTWRITE_JOURNAL": "4K"}, ["FASTWRITE_JOURNAL", '"4K"', "1M..4G"]),
    "bad number": ({"FASTWRITE_LAG_MS": "-1"}, ["FASTWRITE_LAG_MS", '"-1"', "1..60000"]),
    "relative staging": ({"FASTWRITE_STAGING": "here"}, ["FASTWRITE_STAGING", '"here"', "absolute"]),
    "bad stats": ({"FASTWRITE_STATS": "stdout"}, ["FASTWRITE_STATS", '"stdout"', "stderr"]),
    "bad log": ({"FASTWRITE_LOG": "loud"}, ["FASTWRITE_LOG", '"loud"', "debug"]),
    "no such file": ({"FASTWRITE_CONFIG": "/nowhere/at.ini"}, ["FASTWRITE_CONFIG", "/nowhere/at.ini"]),
    "relative pattern": ({"FASTWRITE_PATHS": "data/**"}, ["FASTWRITE_PATHS", "data/**"]),
}


@pytest.mark.parametrize("name", WRONG)
def test_wrong_setting(start, place, name):
    env, words = WRONG[name]
    done = start(env)
    line = one_line(done)
    assert all(word in line for word in words), line
    check_intact(place, done)
    assert done.stats.writes == 0


def test_the_least_memory_stages(start, place):
    """`block` follows `mem` unless it is set."""
    done = start({"FASTWRITE_MEM": "1M", "FASTWRITE_ON_ERROR": "stop"})
    check_intact(place, done)
    assert done.stderr == ""
    assert_staged(done.stats, 9000)


@pytest.mark.parametrize("name", WRONG)
def test_on_error_stop_does_not_start(start, place, name):
    env, words = WRONG[name]
    done = start({**env, "FASTWRITE_ON_ERROR": "stop"})
    line = one_line(done)
    assert all(word in line for word in words), line
    assert done.returncode not in (0, 7)
    assert done.stdout == ""
    assert not (place / "data" / "a").exists()


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("[defaults]\ncolour = red\n", ["colour", ":2"]),
        ("[defaults]\nmem = lots\n", ["mem", '"lots"', ":2"]),
        ("[rule a]\npaths = {place}/**\nsync = never\n", ["sync", '"never"', ":3"]),
        ("[rule a]\nsync = off\n", ["paths"]),
        ("[rules]\n", ["rules"]),
        ("this is no ini file\n", [":1"]),
    ],
)
def test_wrong_file(start, place, text, words):
    config = place / "fastwrite.ini"
    config.write_text(text.format(place=place))
    done = start({"FASTWRITE_CONFIG": str(config)})
    line = one_line(done)
    assert all(word in line for word in ["fastwrite.ini", *words]), line
    check_intact(place, done)
    stopped = start({"FASTWRITE_CONFIG": str(config), "FASTWRITE_ON_ERROR": "stop"})
    assert stopped.returncode not in (0, 7) and stopped.stdout == ""


def test_file_that_cannot_be_read(start, place):
    config = place / "fastwrite.ini"
    config.mkdir()
    done = start({"FASTWRITE_CONFIG": str(config)})
    assert "fastwrite.ini" in one_line(done)
    check_intact(place, done)


def test_pattern_that_cannot_match(start, place):
    (place / "file").write_text("")
    done = start({}, paths=f"{place}/file/**")
    line = one_line(done)
    assert f"{place}/file/**" in line and "cannot match" in line
    check_intact(place, done)


# ---- the staging directory ----


def refused(start, place: Path, staging: Path) -> str:
    done = start({}, staging=staging)
    line = one_line(done)
    check_intact(place, done)
    assert done.stats.writes == 0
    assert "no staging" in line and str(staging) in line and "bypassed" in line
    return line


def test_staging_in_a_place_that_is_not_there(start, place):
    refused(start, place, place / "none" / "staging")


def test_staging_is_a_file(start, place):
    (place / "staging").write_text("mine")
    refused(start, place, place / "staging")
    assert (place / "staging").read_text() == "mine"


@pytest.mark.parametrize("behind", ["", "/", "//", "/.", "/./"])
def test_staging_is_a_link(start, place, behind):
    """With a slash behind it the kernel follows it; recovery would not look there."""
    (place / "elsewhere").mkdir(mode=0o700)
    (place / "staging").symlink_to("elsewhere")
    done = start({}, staging=f"{place}/staging{behind}")
    check_intact(place, done)
    assert done.stats.writes == 0
    assert f"no staging in {place}/staging:" in one_line(done)
    assert os.listdir(place / "elsewhere") == []


def test_staging_that_others_may_write_to(start, place):
    for mode in (0o770, 0o707, 0o777):
        staging = place / f"staging-{mode:o}"
        staging.mkdir()
        staging.chmod(mode)
        assert "others may write" in refused(start, place, staging)
        assert os.listdir(staging) == []


def test_staging_of_somebody_else(start, place):
    if os.geteuid() != 0:
        pytest.skip("needs root for giving a directory away")
    staging = place / "staging"
    staging.mkdir(mode=0o700)
    (staging / "theirs").write_text("kept")
    os.chown(staging, 12345, 12345)
    assert "belongs to somebody else" in refused(start, place, staging)
    assert os.listdir(staging) == ["theirs"]


def test_staging_that_cannot_be_written(library, program, place):
    if os.geteuid() != 0 or not shutil.which("setpriv"):
        pytest.skip("needs root and setpriv for running as somebody else")
    place.chmod(0o755)
    os.chown(place / "data", 12345, 12345)
    staging = place / "staging"
    staging.mkdir(mode=0o500)
    os.chown(staging, 12345, 12345)
    program_copy, library_copy = place / "program", place / "libfastwrite.so"
    shutil.copy(program, program_copy)
    shutil.copy(library, library_copy)
    done = run_preloaded(
        library_copy,
        ["setpriv", "--reuid=12345", "--regid=12345", "--clear-groups", program_copy, place / "data" / "a"],
        place,
        staging=staging,
        stats="stderr",
    )
    lines = [line for line in done.stderr.splitlines() if " pid " not in line]
    assert len(lines) == 1 and "no staging" in lines[0] and "Permission denied" in lines[0], done.stderr
    check_intact(place, done)
