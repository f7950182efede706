# SPDX-License-Identifier: Apache-2.0
"""nginx: the access log, moved away and reopened by signal while requests come."""

from __future__ import annotations

import os
import re
import signal
import socket
import threading
import time
from pathlib import Path

from programs.case import Case
from programs.place import NEXT, Place, Process

CLIENTS = 3
LINE = re.compile(r"/(\d+)/(\d+)/(x*) 200")


class Requests:
    """One connection with one request after the other.  nginx logs a request after it has sent the answer, and
    before it looks at the next one of the connection."""

    def __init__(self, path: Path, who: int, last: int) -> None:
        self.path = path
        self.who = who
        self.last = last
        self.answered = 0
        self.thread = threading.Thread(target=self.work, daemon=True)
        self.thread.start()

    def work(self) -> None:
        try:
            with socket.socket(socket.AF_UNIX) as connection:
                connection.settimeout(60)
                connection.connect(str(self.path))
                stream = connection.makefile("rb")
                for number in range(1, self.last + 1):
                    target = f"/{self.who}/{number}/{'x' * (number * 13 % 180)}"
                    connection.sendall(f"GET {target} HTTP/1.1\r\nHost: here\r\n\r\n".encode())
                    length = -1
                    while (line := stream.readline()) not in (b"\r\n", b""):
                        if line.lower().startswith(b"content-length:"):
                            length = int(line.split(b":")[1])
                    if length < 0 or len(stream.read(length)) != length:
                        return
                    self.answered = number
        except OSError:
            pass


class Nginx(Case):
    needs = {"nginx": "nginx-light"}  # noqa: RUF012
    survives = (
        "the line of every request that another one on the same connection followed, each client's in order"
    )
    kills = 9

    def __init__(self, workers: int) -> None:
        self.workers = workers
        self.name = f"nginx, {workers} workers" if workers else "nginx, one process"

    def start(self, place: Place) -> Process:
        config = place.aside / "nginx.conf"
        user = "user root;" if os.geteuid() == 0 else ""
        process = (
            f"master_process on; worker_processes {self.workers};" if self.workers else "master_process off;"
        )
        config.write_text(f"""
daemon off; {user} {process}
pid {place.aside}/nginx.pid;
error_log {place.data}/error.log info;
events {{ worker_connections 64; }}
http {{
	log_format plain "$request_uri $status";
	map $request_method $ours {{ GET 1; default 0; }}
	access_log {place.data}/access.log plain if=$ours;
	client_body_temp_path {place.aside}/body; proxy_temp_path {place.aside}/proxy;
	fastcgi_temp_path {place.aside}/fastcgi; uwsgi_temp_path {place.aside}/uwsgi;
	scgi_temp_path {place.aside}/scgi;
	keepalive_requests 100000000;
	server {{ listen unix:{place.aside}/http.sock; location / {{ return 200 "well"; }} }}
}}
""")
        path = place.aside / "http.sock"
        path.unlink(missing_ok=True)
        server = place.start("nginx", "-e", place.data / "error.log", "-c", config)

        def answers() -> bool:
            with socket.socket(socket.AF_UNIX) as probe:
                probe.settimeout(1)
                try:
                    probe.connect(str(path))
                    probe.sendall(b"OPTIONS / HTTP/1.0\r\n\r\n")
                    return probe.recv(100).startswith(b"HTTP")
                except OSError:
                    return False

        place.until(lambda: server.popen.poll() is not None or answers(), "nginx answers")
        assert server.popen.poll() is None, f"nginx ended: {place.errors()}"
        return server

    def rotate(self, place: Place, server: Process, turn: int) -> None:
        """What logrotate does; done when every process has reopened."""
        path = place.data / "access.log"
        path.rename(f"{path}.{turn}")
        server.send(signal.SIGUSR1)
        place.until(path.exists, "nginx makes a new log")

    def numbers(self, place: Place) -> dict[int, list[int]]:
        """Per client, in the order of the files."""
        found: dict[int, list[int]] = {who: [] for who in range(CLIENTS)}
        files = list(place.data.glob("access.log*"))
        files.sort(key=lambda path: int(path.suffix[1:]) if path.suffix != ".log" else 1 << 30)
        for path in files:
            text = path.read_text(errors="replace")
            assert not text or text.endswith("\n"), f"{path.name} ends in the middle of a line"
            for line in text.splitlines():
                match = LINE.fullmatch(line)
                assert match, f"{path.name}: no line of ours: {line[:200]!r}"
                number = int(match[2])
                assert len(match[3]) == number * 13 % 180, f"{path.name}: cut: {line[:200]!r}"
                found[int(match[1])].append(number)
        return found

    def run(self, place: Place) -> object:
        count = 2000 if place.quick else 20000
        server = self.start(place)
        clients = [Requests(place.aside / "http.sock", who, count) for who in range(CLIENTS)]
        turn = 0
        while any(client.thread.is_alive() for client in clients):
            turn += 1
            self.rotate(place, server, turn)
            time.sleep(0.1)
        server.end(signal.SIGQUIT)
        found = self.numbers(place)
        for who, client in enumerate(clients):
            assert client.answered == count, f"client {who}: {client.answered} answers; {place.errors()}"
            # workers reopen one after the other: lines of one connection never change places all the same
            assert found[who] == list(range(1, count + 1)), (
                f"client {who}: {len(found[who])} of {count} lines"
            )
        return count

    def kill(self, place: Place) -> None:
        server = self.start(place)
        clients = [Requests(place.aside / "http.sock", who, 100_000_000) for who in range(CLIENTS)]
        for turn in range(3):
            wanted = max(c.answered for c in clients) + place.dice.randrange(20, 500)
            place.until(lambda wanted=wanted: all(c.answered >= wanted for c in clients), "answers come")
            if turn < 2:
                self.rotate(place, server, turn + 1)
        place.pause(0.02)
        server.kill()
        for client in clients:
            client.thread.join()
        place.bring_back()
        if place.way == NEXT:
            (place.aside / "nginx.pid").unlink(missing_ok=True)
            self.start(place).end(signal.SIGQUIT)
        found = self.numbers(place)
        for who, client in enumerate(clients):
            have = len(found[who])
            assert found[who] == list(range(1, have + 1)), f"client {who}: not each line once and in order"
            assert client.answered - 1 <= have <= client.answered + 1, (
                f"client {who}: {client.answered} answers, {have} lines"
            )


CASES = [Nginx(0), Nginx(2)]
