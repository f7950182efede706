# SPDX-License-Identifier: Apache-2.0
"""One directory under two names, by a bind mount: rules, names and recovery.  As root, in mount namespaces."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from lib.recovery_lab import LINE, lines
from lib.support import assert_staged, disk_dir, leftovers, run_native, run_preloaded

LEAVE = Path(__file__).resolve().parent / "kill" / "leave.c"
COUNT = 1000


def can_mount() -> bool:
    return subprocess.run(["unshare", "-m", "true"], check=False, capture_output=True).returncode == 0


pytestmark = pytest.mark.skipif(not can_mount(), reason="needs the right to make a mount namespace")

# Writes through both names in turns, and asks each of them about the other.
BOTH = """
import errno, os
one = os.open("one/file", os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o644)
two = os.open("two/file", os.O_RDWR | os.O_APPEND)
own = os.open("two/own", os.O_RDWR | os.O_CREAT, 0o644)
for n in range(3000):
    os.write(one if n % 3 else two, b"%08d\\n" % n)
    os.write(own, b"%08d\\n" % n)
    if n % 500 == 0:
        print(os.stat("one/file").st_size, os.stat("two/file").st_size, os.fstat(one).st_size)
        print(os.pread(two, 9, n // 2 * 9), os.stat("one/own").st_size)
for call in (os.rename, os.link):
    try:
        call("one/file", "two/other")
    except OSError as error:
        print(call.__name__, errno.errorcode[error.errno])
os.rename("two/own", "two/renamed")
os.write(own, b"behind\\n")
print(os.stat("one/renamed").st_size)
os.ftruncate(one, 100)
os.write(two, b"cut\\n")
print(os.stat("two/file").st_size)
"""


def mounted(command: list[object]) -> list[object]:
    """`command` where two/ is one/."""
    return ["unshare", "-m", "sh", "-c", 'mount --bind one two && exec "$@"', "sh", *command]


def make(place: Path) -> None:
    for name in ("one", "two"):
        (place / name).mkdir()


@pytest.mark.parametrize("rules", [("one",), ("two",), ("one", "two")], ids="+".join)
@pytest.mark.parametrize("adapt", ["on", "off"])
def test_two_names_of_one_file(library, rules, adapt):
    command = mounted([sys.executable, "-c", BOTH])
    with disk_dir() as native, disk_dir() as place:
        make(native)
        make(place)
        expected = run_native(command, native)
        assert expected.returncode == 0, expected.stderr
        paths = ":".join(f"{place}/{rule}/**" for rule in rules)
        run = run_preloaded(library, command, place, paths=paths, adapt=adapt, lag_ms=60000)
        assert (run.returncode, run.stderr, run.stdout) == (0, "", expected.stdout)
        for name in ("file", "renamed"):
            assert (place / "one" / name).read_bytes() == (native / "one" / name).read_bytes()
        if adapt == "off":
            assert_staged(run.stats, 1000)
        assert not leftovers(place)


@pytest.mark.parametrize("written", ["one", "two"])
@pytest.mark.parametrize("recovered", ["one", "two"])
def test_killed_under_one_name_and_recovered_under_the_other(
    library, fastwrite, compile_c, written, recovered
):
    program = compile_c(LEAVE.read_text())
    with disk_dir() as place:
        make(place)
        leave = [program, "append", "kill", 0, COUNT, place / written / "log"]
        script = '"$@"; export LD_PRELOAD=; stat -c %s "$LOG"; exec "$FASTWRITE" recover "$DIR"'
        env = {
            "FASTWRITE": str(fastwrite),
            "DIR": str(place / recovered),
            "LOG": str(place / "one" / "log"),
        }
        run = run_preloaded(
            library,
            mounted(["sh", "-c", script, "sh", *leave]),
            place,
            paths=f"{place}/{written}/**",
            lag_ms=60000,
            inherit=0,
            env=env,
        )
        assert run.returncode == 0, run.stdout + run.stderr
        before = int(run.stdout.split()[0])
        assert before < COUNT * LINE, "nothing was staged"
        assert (place / "one" / "log").read_bytes() == lines(0, COUNT)
        assert not leftovers(place)
        assert os.listdir(place / "two") == []
