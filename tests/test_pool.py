# SPDX-License-Identifier: Apache-2.0
"""pool = N: files that are ready become those that the program creates, and nobody can tell them from others."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from disks import MIB, disk
from support import disk_dir, leftovers, preload_env, run_native, run_preloaded
from test_zeros import transactions

SOURCE = Path(__file__).resolve().parent / "pool" / "create.c"
POOL = {"prealloc_mode": "zero", "writers": "exclusive", "pool": 2, "lag_ms": 60_000}
NEVER = {
    "simple": {"exists excl", "rdonly", "sync", "setuid mode", "syscall"},
    "places": {"setgid", "dangling", "made by link", "tmpfile", "elsewhere", "other user", "other group"},
    "attributes": {"acl", "sync flag"},
    "forked": {"child", "parent"},
    "watched": {"watched"},
    "handler": {"handler"},
}
ALWAYS = {
    "simple": {
        "wronly",
        "rdwr",
        "excl",
        "trunc",
        "append",
        "creat",
        "openat",
        "nofollow",
        "no mode",
        "umask",
    },
    "places": {"sub", "by link", "longest"},
    "attributes": {"plain"},
    "first": {"read", "large", "hole", "rename", "twice", "stream", "splice"},
    "watched": {"alone"},
    "handler": {"no handler"},
    "forked": {"forked"},
    "shell": {"shell"},
    "synced": {"synced"},
    "race": {"race"},
}


@pytest.fixture
def program(compile_c):
    return compile_c(SOURCE.read_text(), "-pthread")


def made(stderr: str, pooled: int) -> set[str]:
    return set(re.findall(rf"^pooled (.*) {pooled}$", stderr, re.MULTILINE))


def data_in(place: Path) -> Path:
    data = place / "data"
    data.mkdir()
    return data


def run(library, program, data: Path, *arguments: object, **settings):
    command = [program, data, *arguments]
    settings = {**POOL, **settings}
    env = {"POOL": str(settings["pool"])}
    return run_preloaded(library, command, data.parent, paths=f"{data}/**", env=env, **settings)


def prepare_attributes(data: Path) -> None:
    for name in ("acl", "flags", "plain"):
        (data / name).mkdir()
    for command in (["setfacl", "-d", "-m", "u:12:rw", data / "acl"], ["chattr", "+S", data / "flags"]):
        if not shutil.which(command[0]):
            pytest.skip(f"{command[0]} is not installed")
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode != 0:
            pytest.skip(f"{command[0]} does not work here: {done.stderr}")


@pytest.mark.parametrize("what", sorted(ALWAYS))
def test_looks_as_natively(library, program, what):
    outputs = []
    for preloaded in (False, True):
        with disk_dir() as place:
            data = data_in(place)
            if what == "attributes":
                prepare_attributes(data)
            if preloaded:
                done = run(library, program, data, what)
                assert ALWAYS[what] <= made(done.stderr, 1), done.stderr
                assert not NEVER.get(what, set()) & made(done.stderr, 1), done.stderr
                assert "fastwrite:" not in done.stderr, done.stderr
            else:
                done = run_native([program, data, what], place)
            assert done.returncode == 0, done.stderr
            assert not leftovers(place)
            outputs.append(done.stdout.replace(str(place), "PLACE"))
            contents = {
                str(path.relative_to(data)): path.read_bytes()
                for path in sorted(data.rglob("*"))
                if path.is_file() and not re.fullmatch(r"warm\d", path.name)
            }
            outputs.append(repr(contents))
    assert outputs[0] == outputs[2]
    assert outputs[1] == outputs[3]


@pytest.mark.parametrize(
    "settings",
    [
        {"pool": 0},
        {"writers": "auto"},
        {"prealloc_mode": "keep"},
        {"visibility": "strict"},
        {"sync": "off"},
        {"sync": "relaxed"},
        {"sync": "journal", "journal": "1M"},
        {"prealloc": 0},
    ],
    ids=str,
)
def test_not_without_the_promises_that_it_needs(library, program, settings):
    with disk_dir() as place:
        data = data_in(place)
        command = [program, data, "shell"]
        done = run_preloaded(library, command, place, paths=f"{data}/**", **{**POOL, **settings})
        assert done.returncode == 0, done.stderr
        assert not made(done.stderr, 1), done.stderr
        assert not leftovers(place)


def recover(command: Path, data: Path, step: int = 0) -> int:
    env = {**os.environ, **({"FASTWRITE_KILL_STEP": str(step)} if step else {})}
    done = subprocess.run([command, "recover", data], env=env, capture_output=True, text=True, check=False)
    assert done.returncode in ((0, -signal.SIGKILL) if step else (0,)), done.stdout + done.stderr
    return done.returncode


def check_steps(data: Path) -> None:
    assert not leftovers(data)
    for path in data.glob("step*"):
        content = path.read_bytes()
        odd = int(path.name.removeprefix("step")) % 2
        assert content in ((b"", b"stepped\n") if odd else (b"",)), f"{path.name}: {content[:20]!r}"
        assert path.stat().st_mode & 0o777 == 0o640
        assert path.stat().st_blocks * 512 <= 64 * 1024
    names = sorted(path.name for path in data.glob("step*"))
    assert names == [f"step{i}" for i in range(len(names))]


def test_killed_at_any_step(build_debug, program):
    """After recovery there is, under each name, what the program had written, and no file of the pool."""
    seen = {"padded": 0, "pool": 0, "killed": 0}
    recovery_steps = [0, 0, 1, 0, 2, 0, 3, 0, 4, 0, 5]

    def one(step: int) -> bool:
        with disk_dir() as place:
            data = data_in(place)
            env = preload_env(build_debug / "libfastwrite.so", f"{data}/**", **{**POOL, "pool": 1})
            env.update(os.environ, POOL="1", FASTWRITE_KILL_STEP=str(step))
            env["LD_PRELOAD"] = str(build_debug / "libfastwrite.so")
            done = subprocess.run(
                [program, data, "stepped"], env=env, capture_output=True, text=True, timeout=60, check=False
            )
            assert done.returncode in (0, -signal.SIGKILL), f"step {step}: {done.returncode} {done.stderr}"
            killed = done.returncode != 0
            seen["killed"] += killed
            seen["padded"] += any(path.stat().st_size > 8 for path in data.glob("step*"))
            seen["pool"] += any(data.glob(".fastwrite/*.pool"))
            if again := killed and recovery_steps[step % len(recovery_steps)]:
                recover(build_debug / "fastwrite", data, again)
            if killed:
                recover(build_debug / "fastwrite", data)
            check_steps(data)
            return killed

    with ThreadPoolExecutor(2) as pool:
        step, unharmed = 1, 0
        while unharmed < 4 and step < 2000:
            killed = list(pool.map(one, range(step, step + 4)))
            unharmed = 0 if any(killed) else unharmed + len(killed)
            step += 4
    print(seen)
    assert seen["padded"] >= 3, "no kill fell between the hand-over and the cut: this tests nothing"
    assert seen["pool"] >= 3


def test_recovery_removes_what_is_left(library, fastwrite, program):
    with disk_dir() as place:
        data = data_in(place)
        done = run(library, program, data, "synced", 30, "kill", stats="")
        assert done.returncode == -signal.SIGKILL, done.stderr
        assert list(data.glob(".fastwrite/*.pool"))
        assert (data / "log").stat().st_size > 30 * 4096
        recover(fastwrite, data)
        assert (data / "log").read_bytes() == b"r" * (30 * 4096)
        assert not leftovers(place)


def test_run_removes_what_is_left(library, fastwrite, program):
    """`fastwrite run` recovers the arenas that it was told of."""
    with disk_dir() as place:
        data = data_in(place)
        env = {**os.environ, **preload_env(library, f"{data}/**", **POOL), "POOL": "2"}
        del env["LD_PRELOAD"]
        done = subprocess.run(
            [fastwrite, "run", "--", program, data, "synced", "30", "kill"],
            env=env,
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        assert done.returncode in (-signal.SIGKILL, 128 + signal.SIGKILL), done.stderr
        assert (data / "log").read_bytes() == b"r" * (30 * 4096)
        assert not leftovers(place)


def test_the_living_keep_theirs(library, fastwrite, program):
    """Recovery beside a program that runs takes nothing from it, and removes files of an arena that is gone."""
    with disk_dir() as place:
        data = data_in(place)
        staging = data / ".fastwrite"
        env = {**os.environ, **preload_env(library, f"{data}/**", **POOL), "POOL": "2"}
        with subprocess.Popen([program, data, "simple"], env=env, stdout=subprocess.PIPE) as running:
            while not list(staging.glob("*.pool")):
                assert running.poll() is None
            left = [staging / "1-env-1.1.pool", staging / "1-env-1.a.pool"]
            kept = [staging / "1-env-1.x.pool", staging / "mine.pool", staging / "1-env-1..pool"]
            for path in left + kept:
                path.write_bytes(b"")
            while running.poll() is None:
                recover(fastwrite, data)
            assert running.stdout.read().endswith(b"entry warm\n")
            assert running.wait() == 0
        recover(fastwrite, data)
        assert not any(path.exists() for path in left)
        assert sorted(staging.iterdir()) == sorted(kept)


def test_syncs_commit_no_journal(library, program, tmp_path):
    """From the second one on: the first makes the file's name durable, as natively."""
    counts = {}
    with disk("ext4", tmp_path / "disk", 256 * MIB) as point:
        for mode in ("native", "pool"):
            data = point / mode
            data.mkdir()
            before = transactions(point)
            if mode == "native":
                done = run_native([program, data, "synced", "200", "exit"], point)
            else:
                done = run(library, program, data, "synced", "200", "exit")
            assert done.returncode == 0, done.stderr
            assert (data / "log").read_bytes() == b"r" * (200 * 4096)
            counts[mode] = transactions(point) - before
    print(counts)
    assert counts["native"] > 150
    assert counts["pool"] < 60, counts


def test_a_full_disk(library, program, tmp_path):
    """Little is free: nothing is made ready."""
    with disk("ext4", tmp_path / "disk", 16 * MIB) as point:
        data = point / "data"
        data.mkdir()
        command = [program, data, "shell"]
        done = run_preloaded(
            library, command, point, paths=f"{data}/**", **{**POOL, "mem": "1M", "block": "64K"}
        )
        assert done.returncode == 0, done.stderr
        assert not leftovers(point)
