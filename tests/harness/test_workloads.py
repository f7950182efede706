# SPDX-License-Identifier: Apache-2.0
"""The C programs: what they write is there, and what is not there is noticed."""

import json
import os
import struct
import subprocess

import lab_fakes as fakes
import pytest

from harness.core.progress import DONE, ProgressReader

THREADS, RECORDS, BYTES, WINDOW = 3, 22, 4096, 16384
FILE_BYTES = RECORDS * BYTES
METHODS = {
    "E1": ["--append"],
    "E2": ["--append", "--direct"],
    "E2-prealloc": ["--direct", "--prealloc"],
    "E4-fixed": ["--method", "batch", "--prealloc"],
    "D16": ["--method", "anon", "--prealloc"],
}


def shape(records=RECORDS, size=BYTES, threads=THREADS):
    return ["--threads", str(threads), "--records", str(records), "--record-bytes", str(size)]


def call(program, *args):
    return subprocess.run([program, *map(str, args)], capture_output=True, text=True, timeout=60)


@pytest.fixture
def lab(programs, tmp_path):
    """write(*flags) and verify(*flags) in a directory of their own."""

    class Lab:
        dir = tmp_path / "d"
        progress = tmp_path / "progress"

        def write(self, *flags, **size):
            args = ["--dir", self.dir, "--progress", self.progress, "--sync", *shape(**size), *flags]
            done = call(programs / "lab-writer", *args)
            if "O_DIRECT" in done.stderr or "Invalid argument" in done.stderr:
                pytest.skip("no O_DIRECT on this file system")
            return done

        def verify(self, *flags, **size):
            done = call(programs / "lab-verify", "--dir", self.dir, *shape(**size), *flags)
            return json.loads(done.stdout), done.returncode

        def patch(self, name, offset, data):
            with open(self.dir / name, "r+b") as file:
                file.seek(offset)
                file.write(data)

    Lab.dir.mkdir()
    return Lab()


@pytest.mark.parametrize("name", METHODS)
def test_every_method_writes_every_byte(lab, name):
    done = lab.write(*METHODS[name])
    assert done.returncode == 0, done.stderr
    out = json.loads(done.stdout)
    assert out["bytes"] == THREADS * FILE_BYTES and 0 < out["seconds"] <= out["seconds_with_sync"]
    found, code = lab.verify()
    assert code == 0 and found["ok"] and found["verified_bytes"] == THREADS * FILE_BYTES
    assert (lab.dir / "data0").stat().st_mode & 0o777 == 0o645 & ~current_umask()


def current_umask():
    mask = os.umask(0)
    os.umask(mask)
    return mask


def test_mmap_method(lab):
    done = lab.write("--method", "mmap", "--prealloc", records=24)
    assert done.returncode == 0, done.stderr
    assert lab.verify(records=24)[0]["ok"]


def test_records_of_a_hundred_bytes(lab):
    assert lab.write("--append", size=100, records=1000, threads=1).returncode == 0
    found, _ = lab.verify(size=100, records=1000, threads=1)
    assert found["ok"] and found["verified_bytes"] == 100_000


@pytest.mark.parametrize("records", [20, 22])
def test_e4_as_published_loses_its_last_batch_and_never_writes_the_first_16_kib(lab, records):
    assert lab.write("--method", "batch", "--prealloc", "--verbatim", records=records).returncode == 0
    found, code = lab.verify("--layout", "shifted", "--tail", "zeros", records=records)
    lost = THREADS * BYTES * (records % 4 or 4)
    assert code == 1
    assert found["lost_bytes"] == found["in_batch_bytes"] == lost
    assert found["front_zero_bytes"] == THREADS * WINDOW
    assert found["corrupt_bytes"] == found["unexpected_bytes"] == 0


def test_progress_says_what_was_acknowledged(lab):
    lab.write("--append")
    reader = ProgressReader(lab.progress)
    found = reader.read()
    reader.close()
    assert found.phase == DONE and found.acked_records == THREADS * RECORDS
    assert 0 < found.start_seconds <= found.end_seconds


def test_one_flipped_byte_is_found(lab):
    lab.write("--append")
    lab.patch("data1", 5 * BYTES + 1234, b"\xff")
    found, code = lab.verify()
    assert code == 1 and found["corrupt_bytes"] == BYTES
    assert found["first_problem"].startswith("data1") and "byte 1234" in found["first_problem"]


def test_a_missing_record_and_a_short_file_are_lost(lab):
    lab.write("--append")
    lab.patch("data1", 5 * BYTES, bytes(BYTES))
    os.truncate(lab.dir / "data2", FILE_BYTES - 100)
    found, _ = lab.verify()
    assert found["lost_bytes"] == 2 * BYTES and found["corrupt_bytes"] == 0
    (lab.dir / "data0").unlink()
    assert lab.verify()[0]["lost_bytes"] == 2 * BYTES + FILE_BYTES


def test_a_record_in_the_wrong_place_is_named(lab):
    lab.write("--append")
    data = (lab.dir / "data0").read_bytes()
    lab.patch("data1", 3 * BYTES, data[7 * BYTES : 8 * BYTES])
    found, _ = lab.verify()
    assert "record 3 expected, found record 7 of thread 0" in found["first_problem"]


def test_bytes_behind_the_end_are_unexpected(lab):
    lab.write("--append")
    with open(lab.dir / "data0", "ab") as file:
        file.write(b"x" * 10)
    assert lab.verify()[0]["unexpected_bytes"] == 10


def test_after_a_kill_one_unfinished_record_is_allowed_and_no_more(lab):
    lab.write("--append")
    fakes.write_progress(lab.progress, THREADS, RECORDS, BYTES, THREADS * (RECORDS - 1))
    found, code = lab.verify("--acked", lab.progress)
    assert code == 0 and found["unfinished_bytes"] == THREADS * BYTES
    os.truncate(lab.dir / "data1", FILE_BYTES - 1000)
    found, code = lab.verify("--acked", lab.progress)
    assert code == 0 and found["unfinished_bytes"] == THREADS * BYTES - 1000
    fakes.write_progress(lab.progress, THREADS, RECORDS, BYTES, THREADS * (RECORDS - 2))
    found, code = lab.verify("--acked", lab.progress)
    assert code == 1 and found["unexpected_bytes"] > 0


def test_after_a_kill_an_acknowledged_record_must_be_there(lab):
    lab.write("--append")
    os.truncate(lab.dir / "data1", FILE_BYTES - BYTES - 1)
    fakes.write_progress(lab.progress, THREADS, RECORDS, BYTES, THREADS * RECORDS)
    found, code = lab.verify("--acked", lab.progress)
    assert code == 1 and found["lost_bytes"] == 2 * BYTES


def test_preallocated_zeros_are_allowed_behind_only_when_asked(lab):
    lab.write("--append")
    os.truncate(lab.dir / "data0", FILE_BYTES + 5000)
    assert lab.verify("--tail", "zeros")[1] == 0
    assert lab.verify("--tail", "none")[0]["unexpected_bytes"] == 5000
    lab.patch("data0", FILE_BYTES + 4000, b"\1")
    assert lab.verify("--tail", "zeros")[1] == 1


def test_a_record_that_memcpy_was_killed_in_may_have_gaps(lab):
    """Its first bytes may be stored last; anything but its own bytes and zeros is wrong as before."""
    lab.write("--append")
    fakes.write_progress(lab.progress, THREADS, RECORDS, BYTES, THREADS * (RECORDS - 1))
    lab.patch("data0", FILE_BYTES - BYTES, bytes(64))
    lab.patch("data0", FILE_BYTES - 500, bytes(500))
    assert lab.verify("--acked", lab.progress, "--tail", "zeros")[0]["unexpected_bytes"] > 0
    found, code = lab.verify("--acked", lab.progress, "--tail", "copied")
    assert code == 0 and found["unfinished_bytes"] == THREADS * BYTES - 500
    lab.patch("data0", FILE_BYTES - 100, b"\1")
    assert lab.verify("--acked", lab.progress, "--tail", "copied")[0]["unexpected_bytes"] > 0
    lab.patch("data0", FILE_BYTES - 2 * BYTES, bytes(64))
    assert lab.verify("--acked", lab.progress, "--tail", "copied")[0]["corrupt_bytes"] == BYTES


def test_recovery_of_the_corrected_e4_puts_the_batch_where_it_belongs(lab, programs):
    lab.write(*METHODS["E4-fixed"])
    # As if killed with two of four records of window 2 accepted and nothing of it written.
    flushed, accepted = 2 * WINDOW, 2 * WINDOW + 2 * BYTES
    data = (lab.dir / "data0").read_bytes()
    lab.patch("batch0", 0, data[flushed:accepted])
    lab.patch("batch0", WINDOW, struct.pack("<QQ", accepted, flushed))
    lab.patch("data0", flushed, bytes(FILE_BYTES - flushed))
    flags = ["--dir", lab.dir, *shape(), *METHODS["E4-fixed"], "--recover"]
    for _ in range(2):
        assert json.loads(call(programs / "lab-writer", *flags).stdout)["recovered_bytes"] in (2 * BYTES, 0)
    fakes.write_progress(lab.progress, 1, RECORDS, BYTES, 10)
    found, code = lab.verify("--acked", lab.progress, "--tail", "zeros", threads=1)
    assert code == 0 and found["verified_bytes"] == 10 * BYTES


def test_a_nonsense_batch_header_is_refused(lab, programs):
    lab.write(*METHODS["E4-fixed"])
    lab.patch("batch0", WINDOW, struct.pack("<QQ", 5, 10**6))
    done = call(programs / "lab-writer", "--dir", lab.dir, *shape(), *METHODS["E4-fixed"], "--recover")
    assert done.returncode == 2 and "cannot be" in done.stderr


def test_small_files(programs, tmp_path):
    args = ["--dir", tmp_path, "--files", 50, "--bytes", 1000]
    assert json.loads(call(programs / "lab-files", *args).stdout)["files"] == 50
    assert call(programs / "lab-files", *args, "--verify").returncode == 0
    (tmp_path / "data7").write_bytes(b"x" * 1000)
    done = call(programs / "lab-files", *args, "--verify")
    assert done.returncode == 1 and json.loads(done.stdout)["first_problem"] == "data7"


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (["--threads", "0"], "--threads"),
        (["--records", "x"], "--records"),
        (["--method", "magic"], "'magic'"),
        (["--method", "mmap"], "--prealloc"),
        (["--append", "--prealloc"], "exclude each other"),
        (["--method", "batch", "--window", "5000"], "--window"),
        (["--record-bytes", "100", "--direct"], "--direct"),
        (["surplus"], "surplus"),
    ],
)
def test_wrong_usage_is_named(programs, tmp_path, flags, said):
    done = call(programs / "lab-writer", "--dir", tmp_path, *flags)
    assert done.returncode == 2 and said in done.stderr and not list(tmp_path.iterdir())


def test_an_unwritable_directory_is_a_clear_error(programs, tmp_path):
    done = call(programs / "lab-writer", "--dir", tmp_path / "no", "--records", 1)
    assert done.returncode == 1 and "No such file" in done.stderr
