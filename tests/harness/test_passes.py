# SPDX-License-Identifier: Apache-2.0
"""lab-passes, lab-read and lab-build: what they write is there, what is wrong is found, and syncs are counted."""

import json
import subprocess

import pytest

RECORDS = 64


def call(program, *args):
    return subprocess.run([str(program), *map(str, args)], capture_output=True, text=True, timeout=60)


def passes(programs, path, *args, records=RECORDS):
    return call(programs / "lab-passes", "--dir", path, "--records", records, *args)


@pytest.mark.parametrize("allocate", ["none", "fallocate", "keep", "zero-range", "zeros", "write-zeroes"])
@pytest.mark.parametrize(("sync", "each"), [("none", 0), ("fsync", 1), ("fdatasync", 1), ("both", 2)])
def test_two_passes_in_every_way(programs, tmp_path, allocate, sync, each):
    args = ["--allocate", allocate, "--sync", sync, "--passes", 2]
    done = passes(programs, tmp_path, *args)
    if done.returncode == 77:
        pytest.skip(done.stderr.strip())
    found = json.loads(done.stdout)
    assert found["bytes"] == 2 * RECORDS * 4096 and found["writes"] == 2 * RECORDS
    assert found["syncs"] == 2 * (RECORDS * each + 1) and found["syncs_first"] == RECORDS * each + 1
    assert found["seconds_with_sync"] == pytest.approx(
        found["seconds_first"] + found["seconds_second"], abs=1e-5
    )
    checked = passes(programs, tmp_path, *args, "--verify")
    assert checked.returncode == 0 and json.loads(checked.stdout)["verified_bytes"] == RECORDS * 4096


@pytest.mark.parametrize(
    ("args", "writes"),
    [
        (["--via", "write", "--append"], 4000),
        (["--via", "batch", "--append"], 125),
        (["--via", "double", "--append"], 1),
        (["--via", "double", "--append", "--sync", "fdatasync"], 1),
    ],
)
def test_small_records_gathered(programs, tmp_path, args, writes):
    args = [*args, "--record-bytes", 128]
    found = json.loads(passes(programs, tmp_path, *args, records=4000).stdout)
    assert found["writes"] == writes if "double" not in args else 1 <= found["writes"] <= 4
    assert passes(programs, tmp_path, *args, "--verify", records=4000).returncode == 0


def test_more_than_the_buffers_hold_is_waited_for(programs, tmp_path):
    args = ["--via", "double", "--append", "--record-bytes", 4096]
    assert json.loads(passes(programs, tmp_path, *args, records=25600).stdout)["writes"] >= 25
    assert passes(programs, tmp_path, *args, "--verify", records=25600).returncode == 0


def test_files_made_ahead(programs, tmp_path):
    args = ["--via", "pool", "--segments", 4, "--sync", "fdatasync"]
    found = json.loads(passes(programs, tmp_path, *args).stdout)
    assert found["syncs"] == RECORDS + 4
    assert sorted(p.name for p in tmp_path.iterdir()) == ["data0", "data1", "data2", "data3"]
    assert passes(programs, tmp_path, *args, "--verify").returncode == 0


@pytest.mark.parametrize(
    ("offset", "data", "said"),
    [(4096 * 7 + 4095, b"?", "record 7 of pass 2"), (RECORDS * 4096, b"\0", "bytes long")],
)
def test_a_wrong_byte_is_found(programs, tmp_path, offset, data, said):
    args = ["--sync", "none", "--passes", 2]
    passes(programs, tmp_path, *args)
    with open(tmp_path / "data0", "r+b") as file:
        file.seek(offset)
        file.write(data)
    done = passes(programs, tmp_path, *args, "--verify")
    assert done.returncode == 1 and said in json.loads(done.stdout)["first_problem"]


def test_bytes_of_the_first_pass_are_not_taken_for_the_second(programs, tmp_path):
    passes(programs, tmp_path, "--passes", 1)
    assert passes(programs, tmp_path, "--passes", 1, "--verify").returncode == 0
    assert passes(programs, tmp_path, "--passes", 2, "--verify").returncode == 1


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (["--allocate", "magic"], "'magic' is unknown"),
        (["--append", "--passes", "2"], "second pass"),
        (["--append", "--allocate", "zeros"], "--append"),
        (["--segments", "3", "--via", "pool"], "multiple"),
        (["--via", "batch", "--record-bytes", "8192"], "--batch"),
    ],
)
def test_what_cannot_be_is_refused(programs, tmp_path, flags, said):
    done = passes(programs, tmp_path, *flags)
    assert done.returncode == 2 and said in done.stderr and not list(tmp_path.iterdir())


@pytest.mark.parametrize("how", ["read", "mmap"])
@pytest.mark.parametrize("ahead", ["default", "none", "call"])
def test_reading_checks_what_it_reads(programs, tmp_path, how, ahead):
    args = ["--dir", tmp_path, "--records", 600, "--how", how, "--ahead", ahead, "--window", 1 << 20]
    assert call(programs / "lab-read", *args, "--prepare").returncode == 0
    found = json.loads(call(programs / "lab-read", *args).stdout)
    assert found["bytes"] == 600 * 4096 and found["seconds"] > 0
    with open(tmp_path / "data0", "r+b") as file:
        file.seek(599 * 4096)
        file.write(b"?")
    done = call(programs / "lab-read", *args)
    assert done.returncode == 1 and "not what the file should hold" in done.stderr


@pytest.mark.parametrize("name", ["data7.o", "data39.d", "data-program"])
def test_a_build_is_checked_whole(programs, tmp_path, name):
    args = ["--dir", tmp_path, "--sources", 40, "--headers", 10, "--bytes", 9000, "--jobs", 4]
    assert call(programs / "lab-build", *args, "--prepare").returncode == 0
    found = json.loads(call(programs / "lab-build", *args).stdout)
    assert found["files"] == 81 and found["bytes"] == 40 * (2 * 9000 + 400)
    assert call(programs / "lab-build", *args, "--verify").returncode == 0
    with open(tmp_path / name, "r+b") as file:
        file.seek(300)
        file.write(b"?")
    done = call(programs / "lab-build", *args, "--verify")
    assert done.returncode == 1 and json.loads(done.stdout)["first_problem"]
