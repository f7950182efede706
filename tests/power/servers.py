# SPDX-License-Identifier: Apache-2.0
"""servers.py NAME DIRECTORY ACKS SYNC: numbered transactions of a database server.

Each changes some rows of either table.  The server's memory is small: pages go to the files all the time.
ACKS is as in steps.c.  It runs by itself, under the library or natively, and waits to be killed; the server goes
with it."""

from __future__ import annotations

import ctypes
import ctypes.util
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

from power.numbered import make_steps

ROWS = 1009  # of each table; a prime, so that both orders meet each row
CHANGES = 2  # rows of either table in a transaction
BODY = 700  # bytes: a few rows a page
CHECKPOINT_EVERY = 150  # transactions
START_SECONDS = 60
CRASH_SECONDS = 10  # its report takes a while
SAID_MAX = 3000  # characters


def rows_of(number: int) -> list[tuple[int, int]]:
    """Which rows of either table transaction `number` changes."""
    return [(at % ROWS, at * 7 % ROWS) for at in range(number * CHANGES, (number + 1) * CHANGES)]


def expected_after(number: int) -> list[dict[int, int]]:
    """Row -> the last transaction that changed it, of either table."""
    tables = [dict.fromkeys(range(ROWS), 0) for _ in "ab"]
    for one in range(max(1, number - ROWS // CHANGES - 1), number + 1):
        for changed in rows_of(one):
            for table, row in zip(tables, changed, strict=True):
                table[row] = one
    return tables


class CrashError(OSError):
    """A signal has ended the server, and it was not ours."""


class Client(ABC):
    """One connection.  OSError: what the server says."""

    @abstractmethod
    def run(self, *statements: str) -> list[list[str]]:
        """One after the other; the rows of the last one."""

    @abstractmethod
    def close(self) -> None: ...


class Server(ABC):
    name: str
    user: str  # of the system: it does not run as root
    programs: tuple[str, ...]
    begin: str
    checkpoint: str

    @abstractmethod
    def find(self, program: str) -> str | None:
        """Its path."""

    @abstractmethod
    def make(self, directory: Path) -> None:
        """Its files, without a table of ours."""

    @abstractmethod
    def command(self, directory: Path, place: Path, sync: bool) -> list[str]:
        """Of the server, which listens in `place`."""

    @abstractmethod
    def connect(self, place: Path) -> Client:
        """OSError: not yet."""

    def checked(self, client: Client, directory: Path, newest: int) -> str:
        """What is wrong beside the rows."""
        return ""

    def nudged(self, directory: Path) -> Path:
        """The directory with the files of the tables."""
        return directory

    def missing(self) -> str:
        return next((f"{p} is not installed" for p in self.programs if not self.find(p)), "")

    def as_user(self, command: list[str]) -> list[str]:
        return ["setpriv", f"--reuid={self.user}", f"--regid={self.user}", "--clear-groups", *command]


# ---- PostgreSQL ----


class Pq(Client):
    """By the C library: psql does not say at once that a transaction is over."""

    DONE = (1, 2)  # PGRES_COMMAND_OK, PGRES_TUPLES_OK

    def __init__(self, place: Path) -> None:
        name = ctypes.util.find_library("pq")
        assert name, "missing() has looked for it"
        self.lib = ctypes.CDLL(name)
        for function in ("PQconnectdb", "PQexec"):
            getattr(self.lib, function).restype = ctypes.c_void_p
        for function in ("PQerrorMessage", "PQgetvalue"):
            getattr(self.lib, function).restype = ctypes.c_char_p
        words = f"host={place} user=postgres dbname=postgres"
        self.connection = ctypes.c_void_p(self.lib.PQconnectdb(words.encode()))
        if self.lib.PQstatus(self.connection) != 0:
            error = self.error()
            self.close()
            raise OSError(error)

    def error(self) -> str:
        return self.lib.PQerrorMessage(self.connection).decode().strip()

    def run(self, *statements: str) -> list[list[str]]:
        rows: list[list[str]] = []
        for statement in statements:
            result = ctypes.c_void_p(self.lib.PQexec(self.connection, statement.encode()))
            try:
                if self.lib.PQresultStatus(result) not in self.DONE:
                    raise OSError(self.error())
                columns = range(self.lib.PQnfields(result))
                rows = [
                    [self.lib.PQgetvalue(result, row, column).decode() for column in columns]
                    for row in range(self.lib.PQntuples(result))
                ]
            finally:
                self.lib.PQclear(result)
        return rows

    def close(self) -> None:
        self.lib.PQfinish(self.connection)


class PostgreSQL(Server):
    name = "postgresql"
    user = "postgres"
    programs = ("postgres", "initdb")
    begin = "BEGIN"
    checkpoint = "CHECKPOINT"
    OPTIONS = (
        ("listen_addresses", ""),
        ("shared_buffers", "1MB"),
        ("min_wal_size", "2MB"),
        ("max_wal_size", "8MB"),
        ("bgwriter_delay", "10ms"),
        ("autovacuum_naptime", "1s"),
        ("max_connections", "10"),
        ("update_process_title", "off"),
    )

    def find(self, program: str) -> str | None:
        places = sorted(Path("/usr/lib/postgresql").glob(f"*/bin/{program}"), key=lambda p: int(p.parts[4]))
        return str(places[-1]) if places else shutil.which(program)

    def missing(self) -> str:
        return super().missing() or ("" if ctypes.util.find_library("pq") else "libpq is not installed")

    def make(self, directory: Path) -> None:
        words = ["-U", "postgres", "-A", "trust", "--no-locale", "-E", "UTF8", "--data-checksums", "-N"]
        run(self.as_user([self.find("initdb"), "-D", str(directory), "--wal-segsize=1", *words]))

    def command(self, directory: Path, place: Path, sync: bool) -> list[str]:
        options = [f"--{key}={value}" for key, value in self.OPTIONS]
        syncs = f"--fsync={'on' if sync else 'off'}"
        (directory / "postmaster.pid").unlink(missing_ok=True)  # the number may be another process's by now
        return [
            self.find("postgres"),
            *("-D", str(directory), f"--unix_socket_directories={place}", syncs, *options),
        ]

    def connect(self, place: Path) -> Client:
        return Pq(place)

    def checked(self, client: Client, directory: Path, newest: int) -> str:
        # (reads each page, whose checksums are checked)
        client.run("CREATE EXTENSION IF NOT EXISTS amcheck")
        client.run(
            "SELECT bt_index_check(c.oid, true) FROM pg_class c WHERE c.relkind = 'i' AND c.relam = 403"
        )
        return ""

    def nudged(self, directory: Path) -> Path:
        bases = [int(path.name) for path in (directory / "base").iterdir() if path.name.isdigit()]
        return directory / "base" / str(max(bases))  # of "postgres", the last one that initdb makes


# ---- MariaDB ----


class Pipe(Client):
    """Its own client, which says each answer at once."""

    def __init__(self, command: list[str]) -> None:
        self.process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        )
        self.run("SELECT 1")

    def run(self, *statements: str) -> list[list[str]]:
        try:
            self.process.stdin.write("".join(f"{s};\n" for s in statements) + "SELECT 'end';\n")
            self.process.stdin.flush()
        except BrokenPipeError:
            pass  # what it says comes below
        lines = []
        for line in self.process.stdout:
            if line == "end\n":
                return [one.split("\t") for one in lines]
            lines.append(line.rstrip("\n"))
        raise OSError(" ".join(lines) or "the server has gone")

    def close(self) -> None:
        self.process.kill()
        self.process.communicate()


class MariaDB(Server):
    name = "mariadb"
    user = "mysql"
    programs = ("mariadbd", "mariadb-install-db", "mariadb", "mariadb-binlog")
    begin = "START TRANSACTION"
    checkpoint = "FLUSH BINARY LOGS"
    OPTIONS = (
        ("skip-networking", "on"),
        ("innodb-buffer-pool-size", "6M"),
        ("innodb-log-file-size", "4M"),
        ("innodb-max-dirty-pages-pct", "0"),  # the pages go to the files at once
        ("aria-pagecache-buffer-size", "1M"),
        ("server-id", "1"),
        ("binlog-format", "STATEMENT"),
        ("max-connections", "10"),
    )
    # how it writes pages; past the page cache
    writes: tuple[tuple[str, str], ...] = (("innodb-use-native-aio", "off"),)

    def find(self, program: str) -> str | None:
        return shutil.which(program, path=f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin")

    def make(self, directory: Path) -> None:
        words = ["--skip-test-db", "--auth-root-authentication-method=normal", "--innodb-log-file-size=4M"]
        run(
            self.as_user([self.find("mariadb-install-db"), "--no-defaults", f"--datadir={directory}", *words])
        )

    def command(self, directory: Path, place: Path, sync: bool) -> list[str]:
        syncs = self.writes if sync else (("innodb-flush-method", "nosync"), ("debug-no-sync", "1"))
        options = [f"--{key}={value}" for key, value in (*self.OPTIONS, *syncs)]
        return [
            self.find("mariadbd"),
            *("--no-defaults", f"--datadir={directory}", f"--log-bin={directory}/binlog"),
            *(f"--socket={place}/socket", f"--pid-file={place}/pid"),
            *(f"--innodb-flush-log-at-trx-commit={2 - sync}", f"--sync-binlog={int(sync)}", *options),
        ]

    def connect(self, place: Path) -> Client:
        words = ["--no-defaults", f"--socket={place}/socket", "-uroot", "-N", "-B", "-n"]
        return Pipe([self.find("mariadb"), *words])

    def checked(self, client: Client, directory: Path, newest: int) -> str:
        for _, _, kind, said in client.run("CHECK TABLE t.a, t.b EXTENDED"):
            if (kind, said) != ("status", "OK"):
                return f"CHECK TABLE: {said}"
        logs = sorted(directory.glob("binlog.[0-9]*"))
        text = run([self.find("mariadb-binlog"), "--no-defaults", *map(str, logs)])
        last = max(map(int, re.findall(r"UPDATE t\.b SET number = (\d+)", text)), default=0)
        return (
            f"the binary log ends with transaction {last}, the newest is {newest}" if last != newest else ""
        )

    def nudged(self, directory: Path) -> Path:
        return directory / "t"


class MariaDBBuffered(MariaDB):
    name = "mariadb-buffered"
    writes = (*MariaDB.writes, ("innodb-flush-method", "fsync"))


class MariaDBUring(MariaDB):
    """With an io_uring, where it is built for that: nothing is staged."""

    name = "mariadb-uring"
    writes = ()


SERVERS: dict[str, Server] = {
    server.name: server for server in (PostgreSQL(), MariaDB(), MariaDBBuffered(), MariaDBUring())
}


def run(command: list[str]) -> str:
    done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise OSError(f"{command[0]}: status {done.returncode}: {done.stdout}{done.stderr}")
    return done.stdout


def end_all(server: Server) -> None:
    """Kills the processes of its user in our namespace; some may still wait for their files."""
    subprocess.run(server.as_user(["kill", "-KILL", "--", "-1"]), stderr=subprocess.DEVNULL, check=False)


@contextmanager
def running(server: Server, directory: Path, sync: bool) -> Iterator[Client]:
    """The server on its directory; it is killed at the end."""
    with tempfile.TemporaryDirectory() as place:
        shutil.chown(place, server.user, server.user)
        said = Path(place) / "said"
        command = ["setpriv", "--pdeathsig", "KILL", *server.command(directory, Path(place), sync)]
        with (
            said.open("wb") as file,
            subprocess.Popen(
                server.as_user(command), stdin=subprocess.DEVNULL, stdout=file, stderr=file
            ) as process,
        ):
            try:
                client = connected(server, Path(place), process)
                try:
                    yield client
                finally:
                    client.close()
            except OSError as error:
                kind = CrashError if has_crashed(process) else OSError
                raise kind(f"{error}; the server: {complaint(said.read_text())}") from error
            finally:
                process.kill()


def has_crashed(process: subprocess.Popen) -> bool:
    try:
        return process.wait(CRASH_SECONDS) < 0
    except subprocess.TimeoutExpired:
        return False


def complaint(said: str) -> str:
    """What a server said, from its first error on; a report of a crash goes on for pages."""
    at = re.search(r"\[ERROR\]|FATAL|PANIC", said)
    return said[at.start() :][:SAID_MAX] if at else said[-SAID_MAX:]


def connected(server: Server, place: Path, process: subprocess.Popen) -> Client:
    limit = time.monotonic() + START_SECONDS
    while True:
        try:
            return server.connect(place)
        except OSError:
            if process.poll() is not None or time.monotonic() > limit:
                raise
        time.sleep(0.02)


def prepare(server: Server, directory: Path, template: Path) -> None:
    """As the first call has made it, in `template`."""
    if not template.exists():
        template.mkdir()
        shutil.chown(template, server.user, server.user)
        server.make(template)
        with running(server, template, sync=True) as client:
            client.run("CREATE SCHEMA t")
            for table in "ab":
                client.run(f"CREATE TABLE t.{table} (id INTEGER PRIMARY KEY, number INTEGER, body TEXT)")
                rows = ", ".join(f"({row}, 0, repeat('0', {BODY}))" for row in range(ROWS))
                client.run(f"INSERT INTO t.{table} VALUES {rows}")
    run(["cp", "-a", f"{template}/.", str(directory)])


def look(server: Server, directory: Path) -> tuple[int, str]:
    """The last transaction that is there, and what is wrong.

    MariaDB has crashed natively in a start, once.  Bytes that are wrong would make it crash again.
    """
    try:
        try:
            return rows_there(server, directory)
        except CrashError as error:
            print(f"started once more after a crash: {error}", flush=True)
            return rows_there(server, directory)
    except OSError as error:
        return 0, str(error)


def rows_there(server: Server, directory: Path) -> tuple[int, str]:
    with running(server, directory, sync=False) as client:
        found = [
            {int(row): int(number) for row, number in client.run(f"SELECT id, number FROM t.{table}")}
            for table in "ab"
        ]
        newest = max(max(rows.values(), default=0) for rows in found)
        if found != expected_after(newest):
            return newest, f"tables of different transactions, the newest is {newest}"
        return newest, server.checked(client, directory, newest)


def transact(server: Server, client: Client, number: int) -> None:
    updates = [
        f"UPDATE t.{table} SET number = {number}, body = repeat('{number % 10}', {BODY}) WHERE id = {row}"
        for changed in rows_of(number)
        for table, row in zip("ab", changed, strict=True)
    ]
    client.run(server.begin, *updates, "COMMIT")
    if number % CHECKPOINT_EVERY == 0:
        client.run(server.checkpoint)


def main() -> int:
    name, directory, acks, sync = sys.argv[1:]
    server = SERVERS[name]

    @contextmanager
    def steps() -> Iterator[Callable[[int], None]]:
        with running(server, Path(directory), sync == "1") as client:
            yield partial(transact, server, client)

    return make_steps(acks, steps())


if __name__ == "__main__":
    sys.exit(main())
