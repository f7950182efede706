# SPDX-License-Identifier: Apache-2.0
"""MariaDB: the whole data directory below a rule: InnoDB, Aria, the binary log and the log of all statements."""

from __future__ import annotations

import signal
from typing import ClassVar

from programs.case import Case
from programs.place import Place, Process

CLIENTS = 3
# A small buffer pool, so that pages go to the files and come back all the time.  With its defaults InnoDB writes
# pages asynchronously past the page cache, which is the kernel's; here as on file systems that know neither.
SERVER_OPTIONS = {
    "skip-networking": "on",
    "innodb-buffer-pool-size": "6M",
    "innodb-log-file-size": "16M",
    "innodb-flush-method": "fsync",
    "innodb-use-native-aio": "off",
    "innodb-flush-log-at-trx-commit": "1",
    "sync-binlog": "1",
    "server-id": "1",
    "general-log": "on",
}
LOOK = "SELECT COUNT(*), SUM(n), SUM(CRC32(payload)) FROM t.work; SELECT COUNT(*), SUM(CRC32(payload)) FROM t.aria;"
WORK = """
CREATE PROCEDURE t.work(first INT, number INT)
BEGIN
  DECLARE i INT DEFAULT 0;
  WHILE i < number DO
    INSERT INTO t.work VALUES (first + i, i, REPEAT(MD5(first + i), 1 + i % 40));
    UPDATE t.work SET n = n + 1, payload = REPEAT(MD5(n), 30) WHERE k = first + i DIV 2;
    IF i % 9 = 0 THEN INSERT INTO t.aria VALUES (first + i, REPEAT(MD5(i), 10)); END IF;
    IF i % 11 = 0 THEN DELETE FROM t.work WHERE k = first + i - 5; END IF;
    SET i = i + 1;
  END WHILE;
END
"""


class MariaDB(Case):
    name = "MariaDB"
    needs: ClassVar[dict[str, str]] = {"mariadbd": "mariadb-server", "mariadb": "mariadb-client"}
    user = "mysql"
    survives = (
        "every row whose INSERT had been answered, of the one under way all or nothing, and its event in the binary "
        "log; crash recovery works, CHECK TABLE ... EXTENDED and innochecksum find nothing"
    )
    settings = ({"sync": "fdatasync"}, {"sync": "journal"})
    kills = 6

    def start(self, place: Place) -> Process:
        options = [f"--{key}={value}" for key, value in SERVER_OPTIONS.items()]
        data, aside = place.data / "my", place.aside
        server = place.start(
            self.find("mariadbd"),
            *("--no-defaults", f"--datadir={data}", f"--socket={aside}/socket", f"--pid-file={aside}/pid"),
            *(
                f"--log-bin={data}/log",
                f"--general-log-file={data}/all.log",
                f"--log-error={aside}/err.server",
            ),
            *options,
        )

        def answers() -> bool:
            return self.sql(place, "SELECT 1;", expect=(0, 1)).strip() == "1"

        place.until(lambda: server.popen.poll() is not None or answers(), "the server answers", every=0.05)
        assert server.popen.poll() is None, f"the server ended: {place.errors()}"
        return server

    def prepare(self, place: Place) -> Process:
        place.run(
            self.find("mariadb-install-db"),
            *("--no-defaults", f"--datadir={place.data / 'my'}", "--skip-test-db"),
            "--auth-root-authentication-method=normal",
        )
        server = self.start(place)
        self.sql(
            place,
            "CREATE DATABASE t;"
            "CREATE TABLE t.work(k INT PRIMARY KEY, n INT, payload TEXT, KEY(n)) ENGINE=InnoDB;"
            "CREATE TABLE t.aria(k INT PRIMARY KEY, payload TEXT) ENGINE=Aria TRANSACTIONAL=1;"
            "CREATE TABLE t.kept(client INT, n INT, payload TEXT, PRIMARY KEY(client, n)) ENGINE=InnoDB;"
            f"\nDELIMITER //\n{WORK}//\n",
        )
        return server

    def client(self, place: Place) -> tuple[str, ...]:
        return (
            self.find("mariadb"),
            "--no-defaults",
            f"--socket={place.aside}/socket",
            "-uroot",
            "-N",
            "-B",
            "-n",
        )

    def sql(self, place: Place, text: str, expect: tuple[int, ...] = (0,)) -> str:
        return place.run(*self.client(place), stdin=text, shim=False, expect=expect).stdout

    def check(self, place: Place) -> None:
        for line in self.sql(place, "CHECK TABLE t.work, t.aria, t.kept EXTENDED;").splitlines():
            assert line.endswith("status\tOK"), line

    def stop(self, place: Place, server: Process, how: int = signal.SIGTERM) -> None:
        server.end(how)
        # (not the system's tablespace: the copies of pages in its doublewrite buffer have no sum of their own)
        for path in sorted((place.data / "my/t").glob("*.ibd")):
            place.run(self.find("innochecksum"), path, shim=False)

    def run(self, place: Place) -> object:
        count = 150 if place.quick else 2000
        server = self.prepare(place)
        results = []
        for turn in range(3):
            self.sql(place, f"CALL t.work({turn * 100000}, {count});")
            results.append(self.sql(place, LOOK))
            self.check(place)
            self.stop(place, server)
            server = self.start(place)
            again = self.sql(place, LOOK)
            assert again == results[-1], f"after a restart other content: {again} instead of {results[-1]}"
        self.sql(place, "ALTER TABLE t.work FORCE; OPTIMIZE TABLE t.aria; FLUSH BINARY LOGS;")
        assert self.sql(place, LOOK) == results[-1]
        self.check(place)
        self.stop(place, server)
        return results

    # ---- kill -9 ----

    def insert(self, place: Place, number: int) -> Process:
        script = place.aside / f"client.{number}"
        script.write_text(
            "".join(
                f"INSERT INTO t.kept VALUES ({number}, {n}, REPEAT(MD5({n}), {1 + n % 60})); SELECT {n};\n"
                for n in range(1, 20001)
            )
        )
        # a terminal, so that each answer comes out at once
        return place.start(*self.client(place), stdin=script, terminal=True, shim=False)

    def logged(self, place: Place) -> int:
        """INSERTs that the binary logs hold."""
        logs = sorted((place.data / "my").glob("log.[0-9]*"))
        text = place.run(self.find("mariadb-binlog"), "--no-defaults", *logs, shim=False).stdout
        return text.count("INSERT INTO t.kept")

    def kill(self, place: Place) -> None:
        server = self.prepare(place)
        clients = {number: self.insert(place, number) for number in range(CLIENTS)}
        load = place.start(*self.client(place), "-e", "CALL t.work(1, 1000000)", shim=False)
        wanted = place.dice.randrange(20, 150 if place.quick else 1000)
        place.until(lambda: all(len(c.output()) >= wanted for c in clients.values()), "rows are answered")
        place.pause(0.05)
        server.kill()
        for client in (*clients.values(), load):
            client.wait()
        place.bring_back()
        server = self.start(place)
        bad = self.sql(
            place,
            "SELECT client, n FROM t.kept WHERE BINARY payload <> BINARY REPEAT(MD5(n), 1 + n % 60) LIMIT 3;",
        )
        assert not bad, f"rows with another content: {bad}"
        rows = 0
        for number, client in clients.items():
            last = max((int(line) for line in client.output() if line.isdigit()), default=0)
            have = self.sql(
                place, f"SELECT COUNT(*), COALESCE(MAX(n), 0) FROM t.kept WHERE client = {number};"
            )
            count, highest = map(int, have.split())
            assert count == highest, f"client {number}: rows are missing in between: {have}"
            assert last <= count <= last + 1, f"client {number}: {last} answered, {count} there"
            rows += count
        assert self.logged(place) == rows, f"{rows} rows, and {self.logged(place)} in the binary log"
        self.check(place)
        self.sql(place, "CALL t.work(2000000, 50);")
        self.check(place)
        self.stop(place, server)


CASES = [MariaDB()]
