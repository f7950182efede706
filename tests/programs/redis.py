# SPDX-License-Identifier: Apache-2.0
"""redis-server: the append-only file under each of its fsync policies, with rewrites and snapshots."""

from __future__ import annotations

import contextlib
import socket
import threading
from pathlib import Path
from typing import ClassVar

from programs.case import Case
from programs.place import Place, Process


class Client:
    """One connection; requests and answers one by one."""

    def __init__(self, path: Path) -> None:
        self.socket = socket.socket(socket.AF_UNIX)
        self.socket.settimeout(60)
        self.socket.connect(str(path))
        self.file = self.socket.makefile("rb")

    def __call__(self, *words: object) -> object:
        parts = [str(word).encode() for word in words]
        request = b"*%d\r\n" % len(parts) + b"".join(b"$%d\r\n%s\r\n" % (len(p), p) for p in parts)
        self.socket.sendall(request)
        return self.answer()

    def answer(self) -> object:
        line = self.file.readline()
        if not line.endswith(b"\r\n"):
            raise ConnectionError("the server is gone")
        kind, text = line[:1], line[1:-2].decode()
        if kind == b"-":
            raise ValueError(text)
        if kind == b":":
            return int(text)
        if kind == b"$":
            if text == "-1":
                return None
            return self.file.read(int(text) + 2)[:-2].decode()
        if kind == b"*":
            return [self.answer() for _ in range(int(text))]
        return text

    def close(self) -> None:
        self.file.close()
        self.socket.close()


def value(number: int) -> str:
    return f"{number}:" * (1 + number % 97)


class Redis(Case):
    needs: ClassVar[dict[str, str]] = {"redis-server": "redis-server", "redis-check-aof": "redis-server"}
    kills = 9

    def __init__(self, fsync: str) -> None:
        self.name = f"redis-server, appendfsync {fsync}"
        self.fsync = fsync
        self.survives = (
            "every write that was answered; redis-check-aof finds the files valid"
            if fsync == "always"
            else "every answered write that the server had handed to the kernel (aof_buffer_length was 0 "
            "after it), and none without those before it; redis-check-aof finds the files valid"
        )

    def start(self, place: Place) -> Process:
        directory = place.data / "redis"
        directory.mkdir(exist_ok=True)
        path = place.aside / "redis.sock"
        path.unlink(missing_ok=True)
        server = place.start(
            "redis-server",
            *("--port", "0", "--unixsocket", path, "--dir", directory, "--enable-debug-command", "yes"),
            *("--appendonly", "yes", "--appendfsync", self.fsync, "--daemonize", "no"),
            *("--auto-aof-rewrite-percentage", "100", "--auto-aof-rewrite-min-size", "300kb"),
            *("--save", "5", "1000", "--aof-load-truncated", "no"),
        )
        place.until(lambda: server.popen.poll() is not None or self.answers(path), "the server answers")
        assert server.popen.poll() is None, f"the server ended: {server.out.read_text()[-2000:]}"
        return server

    def answers(self, path: Path) -> bool:
        try:
            client = Client(path)
        except OSError:
            return False
        try:
            return client("PING") == "PONG"
        except ValueError:
            return False  # it is loading
        finally:
            client.close()

    def connect(self, place: Place) -> Client:
        return Client(place.aside / "redis.sock")

    def check_aof(self, place: Place) -> None:
        manifest = place.data / "redis" / "appendonlydir" / "appendonly.aof.manifest"
        text = place.run("redis-check-aof", manifest, shim=False).stdout
        assert "valid" in text and "not valid" not in text, text[-800:]

    def write(self, client: Client, who: int, number: int) -> None:
        client("SET", f"key:{who}:{number}", value(number))
        client("RPUSH", f"list:{who}", number)
        client("SET", f"last:{who}", number)

    def rest(self, place: Place, client: Client) -> None:
        """Waits for children that rewrite or save."""
        busy = ("aof_rewrite_in_progress:1", "rdb_bgsave_in_progress:1", "aof_rewrite_scheduled:1")
        place.until(
            lambda: not any(b in str(client("INFO", "persistence")) for b in busy), "children are done"
        )

    def run(self, place: Place) -> object:
        count = 700 if place.quick else 5000
        server = self.start(place)
        client = self.connect(place)
        digests = []
        for number in range(1, count + 1):
            self.write(client, 0, number)
            if number % 5 == 0:
                client("DEL", f"key:0:{number - 3}")
            if number in (count // 3, count // 2):
                self.rest(place, client)
                client("BGREWRITEAOF")
            if number == count // 4:
                self.rest(place, client)
                client("BGSAVE")
        self.rest(place, client)
        client("SAVE")
        digests.append(client("DEBUG", "DIGEST"))
        client("DEBUG", "LOADAOF")
        digests.append(client("DEBUG", "DIGEST"))
        self.write(client, 0, count + 1)
        digests.append(client("DEBUG", "DIGEST"))
        client.close()
        server.end()
        self.check_aof(place)
        server = self.start(place)
        client = self.connect(place)
        digests.append(client("DEBUG", "DIGEST"))
        client.close()
        server.end()
        self.check_aof(place)
        assert digests[0] == digests[1] and digests[2] == digests[3], digests
        return digests

    def work(self, place: Place, who: int, state: dict[int, list[int]]) -> None:
        """Writes until the server is gone; state[who] = [answered, handed to the kernel]."""
        client = self.connect(place)
        try:
            for number in range(1, 1_000_000):
                self.write(client, who, number)
                state[who][0] = number
                if self.fsync == "always" or "aof_buffer_length:0\r" in str(client("INFO", "persistence")):
                    state[who][1] = number
                if who == 0 and number % 400 == 0:
                    with contextlib.suppress(ValueError):  # one is under way already
                        client("BGREWRITEAOF")
        except (OSError, ValueError):
            pass
        finally:
            client.close()

    def kill(self, place: Place) -> None:
        server = self.start(place)
        state = {who: [0, 0] for who in range(3)}
        threads = [threading.Thread(target=self.work, args=(place, who, state)) for who in state]
        for thread in threads:
            thread.start()
        wanted = place.dice.randrange(20, 300 if place.quick else 3000)
        place.until(
            lambda: server.popen.poll() is not None or all(a >= wanted for a, _ in state.values()),
            "writes are answered",
        )
        place.pause(0.05)
        server.kill()
        for thread in threads:
            thread.join()
        place.bring_back()
        self.check_aof(place)
        server = self.start(place)
        client = self.connect(place)
        for who, (answered, kept) in state.items():
            have = int(client("GET", f"last:{who}") or 0)
            assert kept <= have <= answered + 1, (
                f"client {who}: {answered} answered, {kept} kept, {have} there"
            )
            numbers = [int(number) for number in client("LRANGE", f"list:{who}", 0, -1)]
            # of the unfinished group of three writes the second may be there without the third
            assert numbers in ([*range(1, have + 1)], [*range(1, have + 2)]), f"client {who}: another list"
            for number in range(1, have + 1):
                got = client("GET", f"key:{who}:{number}")
                assert got == value(number), f"client {who}: key {number} has another value"
        for number in range(100):
            self.write(client, 9, number)
        client.close()
        server.end()
        self.check_aof(place)


CASES = [Redis("always"), Redis("everysec"), Redis("no")]
