# SPDX-License-Identifier: Apache-2.0
"""Random operation sequences: the program must see the same with the library as without it.

machine.py makes and runs them, several processes at a time, on five file systems; one that differs is made short,
kept with its setting under build/differential/ and printed.  FASTWRITE_TEST_SEED=N repeats a run,
FASTWRITE_TEST_SECONDS=N makes it longer; `make soak-differential` runs for hours.  Lists that were found this way,
tests/differential/*.ops, run under several settings.
"""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time

import pytest
from lib.support import ROOT, disk_base, too_slow
from tools import machine

SEED = int(os.environ.get("FASTWRITE_TEST_SEED", "0")) or random.SystemRandom().randrange(1, 1 << 32)
SECONDS = float(os.environ.get("FASTWRITE_TEST_SECONDS", "30"))
# However slow the machine is: under some settings and calls little is staged.
BATCHES = 6
FOUND = sorted((ROOT / "tests" / "differential").glob("*.ops"))
SETTINGS = [
    {"mem": "1M", "block": "64K", "lag_ms": 1},
    {"writers": "shared", "flush": "buffered", "lag_ms": 1, "sync": "off"},
    {"mem": "1M", "block": "64K", "flush": "direct", "prealloc_mode": "off"},
    {"mem": "2M", "small": "512", "lag_ms": 5, "prealloc": "0", "sync": "relaxed"},
]
# Loses a byte: what a broken library would do.
LIAR = r"""
#include <dlfcn.h>
#include <unistd.h>
ssize_t pwrite(int fd, const void *buf, size_t n, off_t at)
{
	ssize_t (*next)(int, const void *, size_t, off_t) = dlsym(RTLD_NEXT, "pwrite");

	if (n < 1000)
		return next(fd, buf, n, at);
	return next(fd, buf, n - 1, at) < 0 ? -1 : (ssize_t)n;
}
"""


@pytest.fixture(scope="module", autouse=True)
def clean():
    machine.clean_up_after_the_dead()


@pytest.fixture(scope="module")
def rig(build, build_debug, library, tmp_path_factory) -> machine.Rig:
    return machine.make_rig(tmp_path_factory.mktemp("machine"), build, build_debug, family=False)


def available(kind: str):
    """place_on, but a file system that cannot be had skips the test."""
    context = machine.place_on(kind)
    try:
        return context, context.__enter__()
    except machine.UnavailableError as why:
        pytest.skip(str(why))


@pytest.fixture
def place(request):
    context, made = available(getattr(request, "param", "ext4"))
    yield made
    context.__exit__(None, None, None)


def check(totals: machine.Totals, seed: int) -> None:
    print(f"FASTWRITE_TEST_SEED={seed}: {totals.line()}")
    for note, count in totals.notes.items():
        print(f"{count} × {note}")
    if totals.differences:
        pytest.fail(str(totals.differences[0]), pytrace=False)
    # that the kernel decides differently from run to run is rare: more often, something hides behind it
    assert len(totals.unsteady) <= 1, "\n".join(map(str, totals.unsteady))


@pytest.mark.parametrize("place", machine.KINDS, indirect=True)
def test_random_sequences(rig, place):
    totals = machine.explore(rig, place, SEED, seconds=SECONDS / len(machine.KINDS), batches=BATCHES)
    check(totals, SEED)
    assert totals.sequences >= machine.BATCH
    assert totals.staged > totals.sequences * 1000, "hardly anything was staged: this tested nothing"


ORDERED = {"writers": "exclusive", "visibility": "lag", "sync": "ordered"}


LEASED = {**ORDERED, "writers": "auto"}


# (a fork ends staging for the rest of a batch)
@pytest.mark.parametrize("fixed", [ORDERED, LEASED], ids=["exclusive", "leased"])
def test_random_sequences_in_order(rig, place, fixed):
    totals = machine.explore(
        rig, place, SEED, seconds=SECONDS / 5, batches=BATCHES, fixed=fixed, flags=("alone",)
    )
    check(totals, SEED)
    assert totals.staged > totals.sequences * 1000, "hardly anything was staged: this tested nothing"


def test_random_sequences_in_order_with_forks(rig, place):
    check(machine.explore(rig, place, SEED, seconds=SECONDS / 5, fixed=ORDERED), SEED)


def test_the_machine_agrees_with_itself(rig, place):
    sound = machine.Rig(rig.machine, [None])
    check(machine.explore(sound, place, SEED, sequences=4 * machine.BATCH), SEED)


@pytest.mark.parametrize("path", FOUND, ids=lambda path: path.stem)
def test_found_before(rig, path):
    text = path.read_text()
    header = machine.header_of(text)
    context, place = available(header.pop("fs", "ext4"))
    try:
        staged = 0
        for setting in SETTINGS:
            for library in rig.libraries:
                outcome = machine.run_batch(rig, place, text, setting | header, library, 60)
                assert outcome.difference is None, f"{outcome.difference} with {setting | header}, {library}"
                staged += outcome.staged
        assert staged > 0, "nothing was staged"
    finally:
        context.__exit__(None, None, None)


def test_a_difference_is_found_and_made_short(rig, place, compile_c):
    liar = compile_c(LIAR, "-D_GNU_SOURCE", "-shared", "-fPIC", "-ldl")
    text = rig.generate(7, 0, 30, "alone")
    found = machine.run_batch(rig, place, text, {}, liar, 60)
    assert found.difference
    assert found.operation is not None
    short, what = machine.reduce(rig, place, text, {}, liar, found)
    assert what
    assert len(short.splitlines()) <= 6, short
    assert any(f"{name} " in short for name in ("pwrite", "scatter", "dwrite", "race")), short


@pytest.mark.parametrize("natively", [False, True])
def test_what_differs_without_the_library_too_is_told_apart(rig, place, monkeypatch, natively):
    """A batch whose preloaded run differs is judged by native runs of the same list."""
    whole = machine.run_batch

    def differs(rig, place, text, setting, library, seconds):
        if library is None and not natively:
            return whole(rig, place, text, setting, library, seconds)
        return machine.Outcome(difference="says so", staged=1)

    monkeypatch.setattr(machine, "run_batch", differs)
    monkeypatch.setattr(machine, "KEPT", place.base / "kept")
    monkeypatch.setattr(machine.Difference, "__str__", lambda self: self.what)
    totals = machine.explore(rig, place, 3, sequences=machine.BATCH)
    assert (len(totals.differences), len(totals.unsteady)) == ((0, 1) if natively else (1, 0))


def test_a_list_that_does_not_end_is_found(rig, place, compile_c):
    stuck = compile_c("int fdatasync(int fd) { (void)fd; for (;;) ; }", "-shared", "-fPIC")
    text = "begin\nopen 0 0 66\nwrite 0 10 1\nfdatasync 0\nwrite 0 10 2\n"
    outcome = machine.run_batch(rig, place, text, {}, stuck, 2)
    assert outcome.difference.startswith("does not end")
    assert outcome.operation == 3


def test_a_process_that_dies_unasked_is_found(rig, place, compile_c):
    deadly = compile_c("void abort(void); int fdatasync(int fd) { (void)fd; abort(); }", "-shared", "-fPIC")
    text = "begin\nopen 0 0 66\nfork 2\n@2 fork 3\n@3 fdatasync 0\nwrite 0 10 2\n"
    outcome = machine.run_batch(rig, place, text, {}, deadly, 60)
    assert "process 3 ended with status" in outcome.difference


def test_lists_are_the_same_for_a_seed(rig):
    whole = rig.generate(5, 0, 8)
    assert whole == rig.generate(5, 0, 8)
    assert whole != rig.generate(6, 0, 8)
    assert whole == rig.generate(5, 0, 3) + rig.generate(5, 3, 5)
    assert "fork" not in rig.generate(5, 0, 200, "alone")


def test_mounts_of_the_dead_are_cleaned_up():
    if os.geteuid() != 0:
        pytest.skip("needs root for mounting")
    program = (
        "import time\nfrom tools import machine\n"
        "with machine.place_on('tmpfs') as place:\n"
        "    print(place.base, flush=True)\n"
        "    time.sleep(60)\n"
    )
    running = subprocess.Popen(
        [sys.executable, "-c", program], cwd=ROOT / "tests", stdout=subprocess.PIPE, text=True
    )
    point = running.stdout.readline().strip()
    assert point
    assert os.path.ismount(point)
    running.send_signal(signal.SIGKILL)
    running.communicate()
    machine.clean_up_after_the_dead()
    assert not os.path.ismount(point)
    assert not list(disk_base().glob(f"{machine.PREFIX}{running.pid}-*"))


# ---- making lists short ----


def test_fewer_leaves_what_is_needed():
    def fails(parts: list[int]) -> bool:
        return {3, 17, 40} <= set(parts)

    assert machine.fewer(list(range(50)), fails) == [3, 17, 40]
    assert machine.fewer([1, 2, 3], lambda parts: True) == [3]


def test_numbers_become_small():
    def fails(lines: list[str]) -> bool:
        words = lines[0].split()
        return int(words[2]) >= 100 and int(words[3]) > 6

    assert machine.smaller_numbers(["@1 write 7000 9\n"], fails)[0].split()[2:] == ["100", "7"]


def test_shrinking_ends_in_time():
    text = "begin\n" + "write 0 1 1\n" * 2000
    begun = time.monotonic()

    def slowly(text: str) -> bool:
        time.sleep(0.01)
        return False

    assert machine.shrink(text, 5, slowly, 0.5)
    took = time.monotonic() - begun
    assert took < 30, too_slow(took, "half a second was allowed")
