# SPDX-License-Identifier: Apache-2.0
"""PostgreSQL: the whole data directory below a rule."""

from __future__ import annotations

import signal
from pathlib import Path
from typing import ClassVar

from programs.case import Case
from programs.place import Place, Process, children, hit

CLIENTS = 3
# Small buffers, so that pages go to the files and come back from them all the time.
SERVER_OPTIONS = {
    "listen_addresses": "",
    "shared_buffers": "1MB",
    "max_wal_size": "32MB",
    "min_wal_size": "32MB",
    "checkpoint_timeout": "30s",
    "autovacuum_naptime": "1s",
    "autovacuum_vacuum_threshold": "20",
    "bgwriter_delay": "10ms",
    "max_connections": "20",
    "restart_after_crash": "on",
    "update_process_title": "off",
}
LOOK = (
    "SELECT sum(abalance), count(*), md5(string_agg(aid || ':' || abalance, ',' ORDER BY aid)) FROM "
    "pgbench_accounts; SELECT sum(tbalance) FROM pgbench_tellers; SELECT sum(bbalance) FROM pgbench_branches;"
    "SELECT count(*), sum(delta) FROM pgbench_history;"
)


class Postgres(Case):
    name = "PostgreSQL"
    needs: ClassVar[dict[str, str]] = {"postgres": "postgresql", "pg_amcheck": "postgresql"}
    user = "postgres"
    survives = (
        "every row whose INSERT had been answered, of the one under way all or nothing; crash recovery works, "
        "pg_amcheck and pg_checksums find nothing"
    )
    kills = 6

    def bin(self, name: str) -> Path:
        places = sorted(Path("/usr/lib/postgresql").glob(f"*/bin/{name}"), key=lambda p: int(p.parts[4]))
        return places[-1] if places else Path(super().find(name) or name)

    def find(self, command: str) -> str | None:
        path = self.bin(command)
        return str(path) if path.exists() else None

    def prepare(self, place: Place) -> Path:
        cluster = place.data / "pg"
        place.run(
            self.bin("initdb"),
            *(
                "-D",
                cluster,
                "-U",
                "postgres",
                "-A",
                "trust",
                "--no-locale",
                "-E",
                "UTF8",
                "--data-checksums",
            ),
        )
        return cluster

    def start(self, place: Place, cluster: Path) -> Process:
        options = [f"--{key}={value}" for key, value in SERVER_OPTIONS.items()]
        server = place.start(
            self.bin("postgres"), "-D", cluster, f"--unix_socket_directories={place.aside}", *options
        )
        ready = [str(self.bin("pg_isready")), "-q", "-h", str(place.aside)]
        place.until(
            lambda: (
                server.popen.poll() is not None
                or place.run(*ready, shim=False, expect=(0, 1, 2)).returncode == 0
            ),
            "the server answers",
        )
        assert server.popen.poll() is None, f"the server ended: {place.errors()}"
        return server

    def stop(self, place: Place, cluster: Path, server: Process) -> None:
        server.end(signal.SIGINT)
        self.checksums(place, cluster)

    def checksums(self, place: Place, cluster: Path) -> None:
        place.run(self.bin("pg_checksums"), "--check", "-D", cluster, shim=False)

    def psql(self, place: Place, text: str) -> str:
        return place.run(
            self.bin("psql"),
            *("-X", "-q", "-A", "-t", "-v", "ON_ERROR_STOP=1", "-h", place.aside, "-U", "postgres"),
            stdin=text,
            shim=False,
        ).stdout

    def pgbench(self, place: Place, *options: str) -> None:
        connect = ("-h", str(place.aside), "-U", "postgres")
        place.run(self.bin("pgbench"), *connect, *options, "postgres", shim=False)

    def amcheck(self, place: Place) -> None:
        place.run(
            self.bin("pg_amcheck"),
            *("--all", "--install-missing", "--heapallindexed", "--parent-check", "-h", place.aside),
            *("-U", "postgres"),
            shim=False,
        )

    def run(self, place: Place) -> object:
        count = "200" if place.quick else "3000"
        cluster = self.prepare(place)
        server = self.start(place, cluster)
        self.pgbench(place, "-i", "-q", "-s", "1")
        results = []
        # fast, immediate (crash recovery follows), fast
        for seed, how in enumerate((signal.SIGINT, signal.SIGQUIT, signal.SIGINT)):
            self.pgbench(place, "-n", "-c", "4", "-j", "2", "-t", count, f"--random-seed={seed}")
            results.append(self.psql(place, LOOK))
            self.amcheck(place)
            server.end(how)
            if how == signal.SIGINT:
                self.checksums(place, cluster)
            server = self.start(place, cluster)
            again = self.psql(place, LOOK)
            assert again == results[-1], f"after {how.name} other content: {again} instead of {results[-1]}"
        self.psql(
            place,
            "CREATE DATABASE other TEMPLATE template0; VACUUM FULL pgbench_accounts; REINDEX DATABASE postgres;",
        )
        assert self.psql(place, LOOK) == results[-1]
        self.amcheck(place)
        self.stop(place, cluster, server)
        return results

    # ---- kill -9 ----

    def client(self, place: Place, number: int, first: int) -> Process:
        script = place.aside / f"client.{number}.{first}"
        script.write_text(
            "".join(
                f"INSERT INTO kept VALUES ({number}, {n}, repeat(md5('{n}'), {1 + n % 60})) RETURNING n;\n"
                for n in range(first, first + 20000)
            )
        )
        # a terminal, so that each answer comes out at once
        return place.start(
            self.bin("psql"),
            *("-X", "-q", "-A", "-t", "-v", "ON_ERROR_STOP=1", "-h", place.aside, "-U", "postgres"),
            stdin=script,
            terminal=True,
            shim=False,
        )

    def check(self, place: Place, answered: dict[int, int]) -> None:
        bad = self.psql(
            place, "SELECT client, n FROM kept WHERE payload <> repeat(md5(n::text), 1 + n % 60) LIMIT 3;"
        )
        assert not bad, f"rows with another content: {bad}"
        for number, last in answered.items():
            have = self.psql(place, f"SELECT count(*), max(n) FROM kept WHERE client = {number};").strip()
            count, _, highest = have.partition("|")
            assert count == (highest or "0"), f"client {number}: rows are missing in between: {have}"
            assert last <= int(count) <= last + 1, f"client {number}: {last} answered, {count} there"
        self.amcheck(place)

    def kill(self, place: Place) -> None:
        cluster = self.prepare(place)
        server = self.start(place, cluster)
        self.pgbench(place, "-i", "-q", "-s", "1")
        self.psql(place, "CREATE TABLE kept(client INT, n INT, payload TEXT, PRIMARY KEY(client, n));")
        first = dict.fromkeys(range(CLIENTS), 1)
        if place.dice.random() < 0.5:
            first = self.one_backend_dies(place, server, first)
        self.work(place, first, lambda: server.kill())
        answered = self.answered
        place.bring_back()
        server = self.start(place, cluster)
        self.check(place, answered)
        self.pgbench(place, "-n", "-c", "2", "-t", "50")
        self.stop(place, cluster, server)

    def work(self, place: Place, first: dict[int, int], strike) -> None:
        """Load, and `strike` in the middle of it; self.answered: the last row of each client that the server
        had said to be there."""
        load = place.start(
            self.bin("pgbench"),
            *("-n", "-c", "3", "-T", "100", "-h", place.aside, "-U", "postgres", "postgres"),
            shim=False,
        )
        clients = {number: self.client(place, number, n) for number, n in first.items()}
        wanted = place.dice.randrange(20, 150 if place.quick else 1000)
        place.until(lambda: all(len(c.output()) >= wanted for c in clients.values()), "rows are answered")
        place.pause(0.05)
        strike()
        for client in clients.values():
            client.wait()
        load.wait()
        self.answered = {
            number: max((int(line) for line in client.output() if line.isdigit()), default=first[number] - 1)
            for number, client in clients.items()
        }

    def one_backend_dies(self, place: Place, server: Process, first: dict[int, int]) -> dict[int, int]:
        """kill -9 of one of the server's processes: the server restarts by itself, nobody recovers by hand."""

        def strike() -> None:
            victims = [
                pid
                for pid in children(server.wait_program())
                if b"postgres: postgres" in Path(f"/proc/{pid}/cmdline").read_bytes()
            ]
            hit(place.dice.choice(victims), signal.SIGKILL)

        self.work(place, first, strike)
        place.until(
            lambda: (
                place.run(
                    self.bin("pg_isready"), "-q", "-h", place.aside, shim=False, expect=(0, 1, 2)
                ).returncode
                == 0
            ),
            "the server has restarted",
        )
        self.check(place, self.answered)
        return {
            number: int(
                self.psql(place, f"SELECT coalesce(max(n), 0) + 1 FROM kept WHERE client = {number};")
            )
            for number in first
        }


CASES = [Postgres()]
