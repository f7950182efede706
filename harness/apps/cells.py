# SPDX-License-Identifier: Apache-2.0
"""The applications: real programs as they are used, their load, and how what they wrote is checked afterwards.

`own` is a program's own setting that trades durability for speed: what one would turn to without the library.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import signal
import socket
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path

from harness import WORKLOADS
from harness.core.cell import Cell, LegError, Measured, Place, Programs, Timing, socket_directory
from harness.core.executor import Command, RealExecutor
from harness.core.model import LabError
from harness.core.shim import Shim
from harness.sync import cells as sync_cells
from harness.sync.cells import Postgres, Sqlite, measured

PROGRAM_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
INSTALL = "scripts/deps apps"
INSERTS = WORKLOADS / "inserts.py"


def find(name: str) -> str | None:
    """A program, also a daemon that an ordinary user's PATH does not have."""
    return shutil.which(name) or shutil.which(name, path=PROGRAM_PATH)


def absent(*names: str) -> str | None:
    """Which of these programs are not installed, in a sentence."""
    lacking = [name for name in names if find(name) is None]
    return f"not installed: {', '.join(lacking)} (Debian: {INSTALL})" if lacking else None


def _listens(kind: int, family: int, address: object) -> bool:
    with socket.socket(family, kind) as probe:
        return probe.connect_ex(address) == 0


def free_port(kind: int) -> int:
    """Of 127.0.0.1, for a moment."""
    with socket.socket(socket.AF_INET, kind) as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


class Redis(Cell):
    """A server with an append-only file; redis-benchmark appends to a list, so that each request is an element."""

    unit = "requests/s"
    served = True
    REQUESTS_MAX = 400_000
    PAYLOAD = "item:__rand_int__:" + "x" * 82

    def __init__(self, programs: Programs, appendfsync: str, clients: int) -> None:
        self._programs, self._appendfsync, self._clients = programs, appendfsync, clients

    def missing(self, work: Path, built: Shim | None) -> str | None:
        return absent("redis-server", "redis-benchmark", "redis-cli", "redis-check-aof")

    def measure(self, place: Place, timing: Timing) -> Measured:
        with self._server(place, place.env) as at:
            total, counted = self._warm(at, timing.warmup)
            count = self._requests(counted.rate, timing.seconds)
            found = self._bench(at, count)
            digest = self._ask(at, "DEBUG", "DIGEST")
        return replace(found, total=total + count, facts={"digest": digest})

    def verify(self, place: Place, measured: Measured) -> dict:
        """The file's own check; then a server that has read it holds every element, and the same as before."""
        manifest = place.stage / "appendonlydir" / "appendonly.aof.manifest"
        said = self._programs.run((find("redis-check-aof"), str(manifest))).stdout
        if "valid" not in said or "not valid" in said:
            raise LegError(f"redis-check-aof: {said.strip()[-300:]}")
        with self._server(place, {}) as at:
            length = int(self._ask(at, "LLEN", "lab"))
            digest = self._ask(at, "DEBUG", "DIGEST")
        if length != measured.total:
            raise LegError(f"the list has {length} elements, {measured.total} were answered")
        if digest != measured.facts["digest"]:
            raise LegError("the restarted server holds other data than the one before")
        return {"elements": length, "redis-check-aof": "valid", "digest": "same after restart"}

    @contextlib.contextmanager
    def _server(self, place: Place, env: Mapping[str, str]) -> Iterator[str]:
        """The server on the stage; its socket."""
        with socket_directory(place.control) as directory:
            at = str(directory / "redis.sock")
            argv = (
                find("redis-server"), "--port", "0", "--unixsocket", at, "--dir", str(place.stage),
                "--appendonly", "yes", "--appendfsync", self._appendfsync, "--save", "",
                "--auto-aof-rewrite-percentage", "0", "--aof-load-truncated", "no",
                "--enable-debug-command", "yes", "--daemonize", "no",
            )  # fmt: skip
            log = place.control / "redis.log"
            with self._programs.server(Command(argv, env), log, lambda: self._answers(at)):
                yield at

    def _answers(self, at: str) -> bool:
        if not _listens(socket.SOCK_STREAM, socket.AF_UNIX, at):
            return False
        return self._ask(at, "PING") == "PONG"  # not while it is loading

    def _ask(self, at: str, *words: str) -> str:
        return self._programs.run((find("redis-cli"), "-s", at, *words)).stdout.strip()

    def _warm(self, at: str, seconds: float) -> tuple[int, Measured]:
        """Requests so far, and how fast the last ones went."""
        total, count = 0, 50 * self._clients
        while True:
            found = self._bench(at, count)
            total += count
            if found.seconds >= seconds or count >= self.REQUESTS_MAX // 4:
                return total, found
            count = min(self.REQUESTS_MAX // 4, max(2 * count, self._requests(found.rate, 1.2 * seconds)))

    def _requests(self, rate: float, seconds: float) -> int:
        return min(self.REQUESTS_MAX, max(20 * self._clients, round(rate * seconds)))

    def _bench(self, at: str, count: int) -> Measured:
        argv = (
            find("redis-benchmark"), "-s", at, "-c", str(self._clients), "-n", str(count),
            "-r", "1000000000", "--precision", "3", "RPUSH", "lab", self.PAYLOAD,
        )  # fmt: skip
        return redis_result(self._programs.run(argv).stdout, count)


TICK_SECONDS = 0.001
"""The clock of redis-benchmark: a shorter run has no rate."""


def redis_result(out: str, count: int) -> Measured:
    """From what redis-benchmark prints. Its percentiles are those of a histogram; of the one above 99.9 % the next
    that it prints. LegError when it does not say what is asked."""
    text = out.replace("\r", "\n")
    done = re.search(r"^\s*(\d+) requests completed in [\d.]+ seconds", text, re.MULTILINE)
    rate = re.search(r"throughput summary: ([\d.]+|inf) requests per second", text)
    summary = re.search(r"latency summary \(msec\):\n.*\n\s*([\d.]+(?:\s+[\d.]+){5})", text)
    steps = re.findall(r"^([\d.]+)% <= ([\d.]+) milliseconds \(cumulative count \d+\)", text, re.MULTILINE)
    if not (done and rate and summary and steps) or int(done[1]) != count:
        raise LegError(f"redis-benchmark: {text.strip()[-300:]}")
    mean, _, p50, p95, p99, most = (float(word) * 1000 for word in summary[1].split())

    def at_least(share: float) -> float:
        return next(float(ms) * 1000 for percent, ms in steps if float(percent) >= share)

    seconds = max(count / float(rate[1]), TICK_SECONDS)
    return Measured(
        count, seconds, p50, at_least(90), mean, p95_us=p95, p99_us=p99, p999_us=at_least(99.9), max_us=most
    )  # fmt: skip


class MariaDB(Cell):
    """A server on a copy of one initial data directory; one client inserts a small row per commit."""

    unit = "commits/s"
    # With an io_uring, as it is built for Debian, it would read and write unseen: nothing would be staged.
    OPTIONS = (
        "--no-defaults", "--skip-networking", "--innodb-use-native-aio=OFF", "--innodb-log-file-size=16M",
        "--innodb-buffer-pool-size=64M", "--sync-binlog=1",
    )  # fmt: skip

    def __init__(self, programs: Programs, flush: int) -> None:
        self._programs, self._flush = programs, flush
        # (it does not run as root unless told so)
        self._user = ("--user=root",) if os.geteuid() == 0 else ()

    def missing(self, work: Path, built: Shim | None) -> str | None:
        return absent("mariadbd", "mariadb-install-db", "mariadb-admin")

    def measure(self, place: Place, timing: Timing) -> Measured:
        data = self._data(place)
        with self._server(data, place, place.env) as at:
            argv = (
                sys.executable, str(INSERTS), "write", at,
                "--warmup", str(timing.warmup), "--seconds", str(timing.seconds),
            )  # fmt: skip
            done = self._programs.run(argv, timing.warmup + timing.seconds)
        return measured(json.loads(done.stdout))

    def verify(self, place: Place, measured: Measured) -> dict:
        """One row per commit, in order and with its content, for a new server; the table's own check."""
        with self._server(place.stage / "data", place, {}) as at:
            argv = (sys.executable, str(INSERTS), "verify", at, "--commits", str(measured.total))
            found = json.loads(self._programs.run(argv).stdout)
        if not found["ok"]:
            raise LegError(f"the database: {found['first_problem']}")
        return {"rows": found["rows"], "CHECK TABLE": "ok"}

    def _data(self, place: Place) -> Path:
        """A copy of the initial directory, which the first leg makes, natively."""
        first = place.keep / "data"
        if not first.exists():
            half = place.keep / "data.new"
            shutil.rmtree(half, ignore_errors=True)
            argv = (
                find("mariadb-install-db"), "--no-defaults", f"--datadir={half}", "--skip-test-db",
                "--auth-root-authentication-method=normal", *self._user,
            )  # fmt: skip
            self._programs.run(argv)
            half.rename(first)
        data = place.stage / "data"
        self._programs.run(("cp", "-a", str(first), str(data)))
        os.sync()
        return data

    @contextlib.contextmanager
    def _server(self, data: Path, place: Place, env: Mapping[str, str]) -> Iterator[str]:
        """The server on its data; its socket."""
        with socket_directory(place.control) as directory:
            at = str(directory / "mariadb.sock")
            argv = (
                find("mariadbd"), *self.OPTIONS, f"--datadir={data}", f"--log-bin={data}/binlog",
                f"--socket={at}", f"--pid-file={place.control}/mariadb.pid",
                f"--innodb-flush-log-at-trx-commit={self._flush}", *self._user,
            )  # fmt: skip
            log = place.control / "mariadb.log"
            ready = lambda: self._answers(at)  # noqa: E731
            with self._programs.server(Command(argv, env), log, ready, stop=signal.SIGTERM):
                yield at

    def _answers(self, at: str) -> bool:
        with contextlib.suppress(LegError):
            self._programs.run((find("mariadb-admin"), "--no-defaults", "-S", at, "-u", "root", "ping"))
            return True
        return False


class Nginx(Cell):
    """One worker with an access log; wrk asks for a small page over connections that stay open."""

    unit = "requests/s"
    LINE = re.compile(r'(\d+) (\d+) 127\.0\.0\.1 - - \[[^]]+\] "GET / HTTP/1\.1" 200 4 "-" "-"')

    def __init__(self, programs: Programs, clients: int, buffer: str = "") -> None:
        self._programs, self._clients, self._buffer = programs, clients, buffer

    def missing(self, work: Path, built: Shim | None) -> str | None:
        return absent("nginx", "wrk")

    def measure(self, place: Place, timing: Timing) -> Measured:
        port = free_port(socket.SOCK_STREAM)
        config = place.control / "nginx.conf"
        config.write_text(self._config(place, port), encoding="utf-8")
        log = place.control / "server.log"
        argv = (find("nginx"), "-e", str(place.control / "error.log"), "-c", str(config))
        address = ("127.0.0.1", port)
        ready = lambda: _listens(socket.SOCK_STREAM, socket.AF_INET, address)  # noqa: E731
        with self._programs.server(Command(argv, place.env), log, ready, stop=signal.SIGQUIT):
            warm = self._load(port, timing.warmup)["requests"] if timing.warmup > 0 else 0
            found = self._load(port, timing.seconds)
        latencies = {name: value for name, value in found.items() if name.endswith("_us")}
        return Measured(found["requests"], found["seconds"], total=warm + found["requests"], **latencies)

    def verify(self, place: Place, measured: Measured) -> dict:
        """Each connection's requests in order and without a gap, as many lines as answers; wrk ends with a request
        under way on every connection, and does not count its answer."""
        last: dict[int, int] = {}
        lines = 0
        with (place.stage / "access.log").open(encoding="utf-8") as log:
            for line in log:
                found = self.LINE.fullmatch(line.rstrip("\n"))
                if not found or not line.endswith("\n"):
                    raise LegError(f"access.log, line {lines + 1}: {line[:200]!r}")
                connection, number = int(found[1]), int(found[2])
                if number != last.get(connection, 0) + 1:
                    raise LegError(
                        f"access.log, line {lines + 1}: request {number} is not the next of its connection"
                    )
                last[connection] = number
                lines += 1
        if not measured.total <= lines <= measured.total + len(last):
            raise LegError(f"access.log has {lines} lines, {measured.total} requests were answered")
        return {"lines": lines, "order": "ok"}

    def _config(self, place: Place, port: int) -> str:
        control = place.control
        temporary = "".join(
            f"{kind}_temp_path {control}/{kind};"
            for kind in ("client_body", "proxy", "fastcgi", "uwsgi", "scgi")
        )
        return f"""
daemon off; master_process off; pid {control}/nginx.pid; error_log {control}/error.log warn;
events {{ worker_connections 512; }}
http {{
	log_format lab '$connection $connection_requests $remote_addr - $remote_user [$time_local] "$request" '
		'$status $body_bytes_sent "$http_referer" "$http_user_agent"';
	access_log {place.stage}/access.log lab {self._buffer};
	{temporary}
	keepalive_requests 1000000000;
	server {{ listen 127.0.0.1:{port}; location / {{ return 200 "well"; }} }}
}}
"""

    def _load(self, port: int, seconds: float) -> dict:
        """wrk counts whole seconds."""
        whole = max(1, round(seconds))
        argv = (
            find("wrk"), "-t", "1", "-c", str(self._clients), "-d", str(whole),
            "-s", str(WORKLOADS / "wrk.lua"), f"http://127.0.0.1:{port}/",
        )  # fmt: skip
        out = self._programs.run(argv, whole).stdout
        try:
            found = json.loads(out.strip().splitlines()[-1])
        except (ValueError, IndexError) as error:
            raise LegError(f"wrk: {out.strip()[-300:]}") from error
        if found["failed"] or not found["requests"]:
            raise LegError(f"wrk: {found['failed']} of {found['requests']} requests failed")
        return found


class Rsyslog(Cell):
    """A daemon that writes what comes over its socket to a file, and passes it on once that is done."""

    unit = "messages/s"
    LINE = re.compile(r"\w{3} [ \d]\d [\d:]{8} \S+ lab\[1\]: (\d+) request from 10\.0\.0\.1 took (\d+) us, "
                      r"status 200, 2326 bytes")  # fmt: skip

    def __init__(self, programs: Programs, window: int, action: str) -> None:
        self._programs, self._window, self._action = programs, window, action

    def missing(self, work: Path, built: Shim | None) -> str | None:
        return absent("rsyslogd")

    def measure(self, place: Place, timing: Timing) -> Measured:
        port = free_port(socket.SOCK_DGRAM)
        with socket_directory(place.control) as directory:
            at = str(directory / "log.sock")
            config = place.control / "rsyslog.conf"
            config.write_text(self._config(place, at, port), encoding="utf-8")
            argv = (find("rsyslogd"), "-n", "-i", str(place.control / "pid"), "-f", str(config))
            ready = lambda: _listens(socket.SOCK_DGRAM, socket.AF_UNIX, at)  # noqa: E731
            log = place.control / "server.log"
            with self._programs.server(Command(argv, place.env), log, ready, stop=signal.SIGTERM):
                load = (
                    str(place.programs / "lab-syslog"), "--socket", at, "--port", str(port),
                    "--window", str(self._window), "--warmup-ms", str(round(timing.warmup * 1000)),
                    "--ms", str(max(1, round(timing.seconds * 1000))),
                )  # fmt: skip
                done = self._programs.run(load, timing.warmup + timing.seconds)
        return measured(json.loads(done.stdout))

    def verify(self, place: Place, measured: Measured) -> dict:
        """Each message once, whole and in order."""
        return {"lines": count_lines(place.stage / "log", self.LINE, measured.total), "order": "ok"}

    def _config(self, place: Place, at: str, port: int) -> str:
        return f"""
global(workDirectory="{place.control}" processInternalMessages="off")
module(load="imuxsock" SysSock.Use="off")
input(type="imuxsock" Socket="{at}" RateLimit.Interval="0")
template(name="plain" type="string" string="%msg%\\n")
action(type="omfile" file="{place.stage}/log" template="RSYSLOG_TraditionalFileFormat" {self._action})
action(type="omfwd" target="127.0.0.1" port="{port}" protocol="udp" template="plain")
"""


class PythonLogging(Cell):
    """The standard library's FileHandler, which writes out every line."""

    unit = "lines/s"
    LINE = re.compile(
        r"\d{4}-\d\d-\d\d [\d:]{8},\d{3} INFO lab: (\d+) request from 10\.0\.0\.1 took (\d+) us"
    )

    def __init__(self, programs: Programs, buffered: bool) -> None:
        self._programs, self._buffered = programs, buffered

    def measure(self, place: Place, timing: Timing) -> Measured:
        argv = (
            sys.executable, str(WORKLOADS / "log_lines.py"), str(place.stage / "log"),
            "--warmup", str(timing.warmup), "--seconds", str(timing.seconds),
            *(("--buffered",) if self._buffered else ()),
        )  # fmt: skip
        done = self._programs.run(argv, timing.warmup + timing.seconds, env=place.env)
        return measured(json.loads(done.stdout))

    def verify(self, place: Place, measured: Measured) -> dict:
        """Each line once, whole and in order."""
        return {"lines": count_lines(place.stage / "log", self.LINE, measured.total), "order": "ok"}


def count_lines(path: Path, pattern: re.Pattern, expected: int) -> int:
    """Lines that the pattern takes whole, numbered from 0 without a gap; group 2 follows from the number. LegError."""
    number = 0
    with path.open(encoding="utf-8") as log:
        for line in log:
            found = pattern.fullmatch(line.rstrip("\n"))
            if not found or not line.endswith("\n"):
                raise LegError(f"{path.name}, line {number + 1}: {line[:200]!r}")
            if int(found[1]) != number or int(found[2]) != number % 977:
                raise LegError(f"{path.name}, line {number + 1}: message {found[1]} instead of {number}")
            number += 1
    if number != expected:
        raise LegError(f"{path.name} has {number} lines, {expected} were logged")
    return number


_VERSION_OPTIONS = {
    "redis-server": "--version", "mariadbd": "--version", "nginx": "-v", "wrk": "-v", "rsyslogd": "-v",
}  # fmt: skip


def versions() -> dict[str, str | None]:
    """Of the applications and their load; None: not installed."""
    found = sync_cells.versions()
    executor = RealExecutor()
    for name, option in _VERSION_OPTIONS.items():
        path = find(name)
        done = executor.run(Command((path, option))) if path else None
        said = re.search(r"\d+(\.\d+)+", done.stdout + done.stderr) if done else None
        found[name] = said[0] if said else None
    return found


def _sqlite(programs: Programs, params: Mapping, own: bool) -> Cell:
    relaxed = {"delete": "off", "wal": "normal"}[params["mode"]]
    return Sqlite(programs, params["mode"], relaxed if own else "full")


def _redis(programs: Programs, params: Mapping, own: bool) -> Cell:
    relaxed = {"always": "everysec", "everysec": "no"}[params["mode"]]
    return Redis(programs, relaxed if own else params["mode"], int(params["clients"]))


def _postgres(programs: Programs, params: Mapping, own: bool) -> Cell:
    return Postgres(programs, int(params["clients"]), "off" if own else "on")


def _mariadb(programs: Programs, params: Mapping, own: bool) -> Cell:
    return MariaDB(programs, 2 if own else 1)


def _nginx(programs: Programs, params: Mapping, own: bool) -> Cell:
    return Nginx(programs, int(params["clients"]), "buffer=64k flush=1s" if own else "")


def _rsyslog(programs: Programs, params: Mapping, own: bool) -> Cell:
    buffered = 'asyncWriting="on" ioBufferSize="64k" flushOnTXEnd="off" flushInterval="1"'
    actions = {"buffered": ("", buffered), "sync": ('sync="on"', "")}
    return Rsyslog(programs, int(params["clients"]), actions[params["mode"]][own])


def _python(programs: Programs, params: Mapping, own: bool) -> Cell:
    return PythonLogging(programs, own)


APPS: dict[str, Callable[[Programs, Mapping, bool], Cell]] = {
    "sqlite": _sqlite,
    "redis": _redis,
    "postgres": _postgres,
    "mariadb": _mariadb,
    "nginx": _nginx,
    "rsyslog": _rsyslog,
    "python-logging": _python,
}


def cell(programs: Programs, params: Mapping, own: bool) -> Cell:
    """The application that an experiment names (params: app, mode, clients), or with its own setting for speed."""
    if params["app"] not in APPS:
        raise LabError(f"app '{params['app']}' is none of {', '.join(APPS)}")
    try:
        return APPS[params["app"]](programs, params, own)
    except KeyError as error:
        raise LabError(
            f"app '{params['app']}': {error} is missing or unknown among its parameters"
        ) from error
