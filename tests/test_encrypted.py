# SPDX-License-Identifier: Apache-2.0
"""Files that their file system encrypts (fscrypt): what is staged for them is encrypted, too, or nothing is."""

from __future__ import annotations

import fcntl
import os
import shutil
import struct
import subprocess
from pathlib import Path

import pytest
from lib.support import ROOT, assert_staged, disk_dir, run_preloaded

ADD_KEY, SET_POLICY = 0xC0506617, 0x800C6613
SECRET = b"line 00000"


@pytest.fixture(scope="module")
def leave(compile_c) -> Path:
    return compile_c((ROOT / "tests" / "kill" / "leave.c").read_text())


@pytest.fixture
def disk():
    """A file system whose directories can be encrypted, and the device that it is on."""
    if os.geteuid() != 0 or not shutil.which("mkfs.ext4"):
        pytest.skip("needs root and mkfs.ext4 for a file system of its own")
    with disk_dir() as place:
        image, point = place / "image", place / "mounted"
        point.mkdir()
        subprocess.run(["truncate", "-s", "96M", image], check=True)
        subprocess.run(["mkfs.ext4", "-q", "-O", "encrypt", image], check=True, capture_output=True)
        done = subprocess.run(
            ["mount", "-o", "loop", image, point], capture_output=True, text=True, check=False
        )
        if done.returncode != 0:
            pytest.skip(f"cannot mount: {done.stderr.strip()}")
        try:
            yield point
        finally:
            subprocess.run(["umount", "--lazy", point], check=True)


def encrypt(directory: Path) -> None:
    """Makes a directory that is encrypted by a key of its own."""
    directory.mkdir()
    fd = os.open(directory, os.O_RDONLY)
    try:
        key = bytearray(struct.pack("<II32sII32s", 2, 0, b"", 64, 0, b"") + os.urandom(64))
        fcntl.ioctl(fd, ADD_KEY, key)
        fcntl.ioctl(fd, SET_POLICY, struct.pack("<BBBBB3s16s", 2, 1, 4, 2, 0, b"", bytes(key[8:24])))
    except OSError as error:
        pytest.skip(f"this kernel does not encrypt directories: {error}")
    finally:
        os.close(fd)


def killed(library, leave, disk: Path, target: Path, paths: str, **settings):
    done = run_preloaded(
        library, [leave, "append", "kill", "0", "30", target], disk, paths=paths, lag_ms=60000, **settings
    )
    assert done.returncode == -9, done.stderr
    return done


def in_clear(disk: Path) -> list[Path]:
    """Staging files outside of the encrypted directories that show what was written."""
    arenas = (path for path in disk.glob("**/.fastwrite/*") if path.is_file())
    return [
        path for path in arenas if "secret" not in str(path.relative_to(disk)) and SECRET in path.read_bytes()
    ]


@pytest.mark.parametrize("sync", ["fdatasync", "journal"])
def test_nothing_is_staged_in_clear(library, leave, disk, sync):
    """The rule's directory, where the staging is, is not encrypted."""
    encrypt(disk / "secret")
    (disk / "plain").touch()
    done = killed(library, leave, disk, disk / "secret" / "a", f"{disk}/**", sync=sync)
    assert not in_clear(disk)
    assert (disk / "secret" / "a").read_bytes().count(b"line ") == 30
    assert done.stderr.count("encrypted files are not staged") == 1
    done = run_preloaded(
        library, [leave, "append", "exit", "0", "30", disk / "secret" / "b"], disk, paths=f"{disk}/**"
    )
    assert done.stats.through == {"encrypted": 1}
    # another file of the rule is staged all the same
    assert len((disk / "plain").read_bytes()) == 0
    killed(library, leave, disk, disk / "plain", f"{disk}/**", sync=sync)
    assert in_clear(disk)


def test_a_staging_directory_in_the_encrypted_one_is_used(library, leave, disk):
    encrypt(disk / "secret")
    target = disk / "secret" / "a"
    done = run_preloaded(
        library, [leave, "append", "exit", "0", "30", target], disk, paths=f"{disk}/secret/**"
    )
    assert_staged(done.stats, 2000)
    assert done.stderr == ""
    killed(library, leave, disk, target, f"{disk}/secret/**")
    assert target.read_bytes().count(b"line ") < 60, "nothing was staged when it died"
    subprocess.run(["sync", "-f", disk], check=True)
    assert SECRET not in (disk.parent / "image").read_bytes()
    run_preloaded(library, [leave, "append", "exit", "0", "30", target], disk, paths=f"{disk}/secret/**")
    assert target.read_bytes().count(b"line ") == 90


def test_another_key_is_as_good_as_none(library, leave, disk):
    encrypt(disk / "secret")
    encrypt(disk / "other")
    done = run_preloaded(
        library,
        [leave, "append", "exit", "0", "30", disk / "secret" / "a"],
        disk,
        paths=f"{disk}/secret/**",
        staging=disk / "other" / "staging",
    )
    assert done.stats.through == {"encrypted": 1}
    assert "by another key" in done.stderr
