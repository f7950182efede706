# SPDX-License-Identifier: Apache-2.0
"""FASTWRITE_LOG_TO: what an operator must see reaches the system's log, and a program never waits for it."""

from __future__ import annotations

import os
import re
import socket
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from lib.disks import MIB, disk
from lib.recovery_lab import COUNT, LINE, Lab, root_only
from lib.support import clean_environment, preload_env, run_native

WRONG = {"FASTWRITE_SYNC": "often"}


class Listener:
    """What syslogd is: a socket for datagrams."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self.socket.setblocking(False)
        self.socket.bind(str(path))
        path.chmod(0o666)

    def fill(self) -> None:
        """Until a sender would have to wait."""
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sender:
            sender.setblocking(False)
            with pytest.raises(BlockingIOError):
                while True:
                    sender.sendto(b"filling", str(self.path))

    def heard(self) -> list[str]:
        lines = []
        while True:
            try:
                lines.append(self.socket.recv(4096).decode())
            except BlockingIOError:
                return lines


@pytest.fixture
def listener() -> Iterator[Listener]:
    with tempfile.TemporaryDirectory(prefix="fw-log-") as directory:
        Path(directory).chmod(0o755)
        one = Listener(Path(directory, "log"))
        yield one
        one.socket.close()


@pytest.fixture
def debug(build_debug: Path) -> Path:
    """The build in which tests choose the socket."""
    return build_debug / "libfastwrite.so"


def settings(listener: Listener, to: str = "syslog") -> dict[str, str]:
    return {"FASTWRITE_LOG_TO": to, "FASTWRITE_TEST_SYSLOG": str(listener.path)}


def only(lines: list[str], priority: int, program: str) -> str:
    """The text of the one line."""
    (line,) = lines
    parts = re.fullmatch(rf"<{priority}>fastwrite\[\d+\]: {program}: (.+)", line)
    assert parts, line
    return parts[1]


def start(lab: Lab, debug: Path, env: dict[str, str], *command: object) -> subprocess.CompletedProcess:
    command = command or (lab.program, "append", "exit", "0", str(COUNT), lab.data / "another")
    return run_native(list(command), lab.data, **{**lab.env(), "LD_PRELOAD": str(debug), **env})


# ---- what is heard ----


@pytest.mark.parametrize(("to", "on_stderr"), [("syslog", 0), ("both", 1), ("stderr", 1)])
def test_a_wrong_configuration(lab: Lab, debug: Path, listener: Listener, to: str, on_stderr: int) -> None:
    done = start(lab, debug, {**settings(listener, to), **WRONG})
    assert done.returncode == 0
    assert done.stderr.count("FASTWRITE_SYNC") == done.stderr.count("\n") == on_stderr
    if to == "stderr":
        assert listener.heard() == []
    else:
        assert 'FASTWRITE_SYNC = "often": allowed: ' in only(listener.heard(), 11, "leave")


def test_a_wrong_target_is_on_standard_error(lab: Lab, debug: Path, listener: Listener) -> None:
    done = start(lab, debug, settings(listener, "nowhere"))
    assert 'FASTWRITE_LOG_TO = "nowhere": allowed: stderr, syslog, both' in done.stderr
    assert listener.heard() == []


def test_a_recovery_that_put_bytes_aside(lab: Lab, debug: Path, listener: Listener) -> None:
    lab.leave()
    with lab.target.open("r+b") as file:
        file.write(b"N" * (3 * LINE))
    done = start(lab, debug, settings(listener))
    assert (done.returncode, done.stderr) == (0, "")
    said = only(list(set(listener.heard())), 12, "leave")  # (each look says it)
    assert f"recovery: {lab.target}: {(COUNT - 1) * LINE} bytes" in said and "--force" in said


def test_a_recovery_that_failed(lab: Lab, debug: Path, listener: Listener) -> None:
    lab.leave()
    os.truncate(lab.arena(), 5000)
    done = start(lab, debug, settings(listener))
    assert (done.returncode, done.stderr) == (0, "")
    heard = set(listener.heard())  # (it looks again at each open)
    assert f"recovery: {lab.arena()} : failed" in only(list(heard), 12, "leave")


FULL = r"""
#include <fcntl.h>
#include <stdio.h>
#include <unistd.h>
/* full PATH BALLAST: writes more than there is room for, then makes room */
int main(int argc, char **argv)
{
	static char line[4096];
	int fd = open(argv[1], O_WRONLY | O_CREAT, 0600), failed = 0;
	for (int i = 0; i < 4096 && !failed; i++)
		failed = write(fd, line, sizeof line) != sizeof line || (i % 64 == 63 && fsync(fd) != 0);
	return !failed || argc != 3 || unlink(argv[2]) != 0 || fsync(fd) == 0;
}
"""


def test_a_disk_that_is_full(lab: Lab, debug: Path, listener: Listener, compile_c) -> None:
    """At a flush; a write that meets it gets the error itself."""
    root_only()
    with disk("ext4", lab.base / "disk", 24 * MIB) as point:
        (point / "ballast").write_bytes(bytes(6 * MIB))
        env = preload_env(debug, f"{point}/data", prealloc_mode="off", mem="1M", flush="buffered")
        program = compile_c(FULL)
        done = run_native(
            [program, point / "data", point / "ballast"],
            lab.base,
            **{**clean_environment(), **env},
            **settings(listener),
        )
        assert "flush" not in done.stderr
        heard = listener.heard()
        assert any(
            re.search(r"^<12>.* flush of \d+ bytes failed: error 28; they stay staged$", line)
            for line in heard
        ), heard


def test_what_is_no_warning_stays_on_standard_error(lab: Lab, debug: Path, listener: Listener) -> None:
    done = start(lab, debug, {**settings(listener), "FASTWRITE_LOG": "debug", "FASTWRITE_STATS": "stderr"})
    assert "fastwrite: pid" in done.stderr
    assert listener.heard() == []


def test_a_program_without_standard_error(lab: Lab, debug: Path, listener: Listener) -> None:
    done = start(
        lab,
        debug,
        {**settings(listener), **WRONG},
        "sh",
        "-c",
        'exec 2>&-; exec "$0" append exit 0 1 x',
        lab.program,
    )
    assert done.returncode == 0
    heard = listener.heard()
    assert [re.sub(r"\d+", "N", line.split(": ")[0]) for line in heard] == [
        "<N>fastwrite[N]"
    ] * 2  # sh, leave
    assert heard[1].split(": ")[1] == "leave"


# ---- nobody hears ----


def test_a_full_queue_does_not_stop_a_program(lab: Lab, debug: Path, listener: Listener) -> None:
    listener.fill()
    done = start(lab, debug, {**settings(listener), **WRONG})
    assert done.returncode == 0
    assert done.stderr.count("FASTWRITE_SYNC") == 1
    assert set(listener.heard()) == {"filling"}


@pytest.mark.parametrize("gone", ["closed", "removed"])
def test_nobody_listens(lab: Lab, debug: Path, listener: Listener, gone: str) -> None:
    listener.socket.close()
    if gone == "removed":
        listener.path.unlink()
    done = start(lab, debug, {**settings(listener), **WRONG})
    assert done.returncode == 0
    assert done.stderr.count("FASTWRITE_SYNC") == 1


# ---- the real name ----


@pytest.fixture
def with_dev_log(listener: Listener) -> list[str]:
    """A command that runs what follows where /dev/log is the listener."""
    root_only()
    nodes = "mknod -m 666 /dev/null c 1 3 && mknod -m 666 /dev/urandom c 1 9"
    script = f'mount -t tmpfs none /dev && {nodes} && ln -s {listener.path} /dev/log && exec "$@"'
    command = ["unshare", "-m", "sh", "-c", script, "sh"]
    if subprocess.run([*command, "true"], capture_output=True, check=False).returncode != 0:
        pytest.skip("no mount namespaces here")
    return command


def test_dev_log(lab: Lab, listener: Listener, with_dev_log: list[str]) -> None:
    """The release build knows no other name, whatever the environment says."""
    env = {"FASTWRITE_TEST_SYSLOG": "/nowhere", "FASTWRITE_LOG_TO": "syslog", **WRONG}
    program = ["env", f"LD_PRELOAD={lab.library}", lab.program, "append", "exit", "0", "1", lab.target]
    done = run_native([*with_dev_log, *program], lab.data, **{**lab.env(), "LD_PRELOAD": "", **env})
    assert (done.returncode, done.stderr) == (0, "")
    assert "FASTWRITE_SYNC" in only(listener.heard(), 11, "leave")
    assert lab.target.stat().st_size == LINE


def test_the_command_stays_on_standard_error(lab: Lab, listener: Listener, with_dev_log: list[str]) -> None:
    lab.leave()
    os.truncate(lab.arena(), 5000)
    env = {"FASTWRITE_LOG_TO": "syslog", **clean_environment()}
    done = run_native([*with_dev_log, lab.command, "recover", lab.data], lab.base, **env)
    assert done.returncode == 1
    assert "failed" in done.stderr
    assert listener.heard() == []
    done = run_native([*with_dev_log, lab.command, "config", "--json"], lab.base, **env)
    assert '"log_to": "syslog"' in done.stdout
