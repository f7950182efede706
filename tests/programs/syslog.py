# SPDX-License-Identifier: Apache-2.0
"""rsyslogd with logrotate: move and reopen, and copytruncate."""

from __future__ import annotations

import re
import signal
import socket
import threading
import time

from programs.case import Case
from programs.place import NEXT, Place, Process

LINE = re.compile(r"(\d+) (x*)\.")


def text_of(number: int) -> str:
    return f"{number} {'x' * (number * 11 % 200)}."


class Receiver:
    """Gets, over UDP, each message that rsyslogd has dealt with: the file comes first in its rules, and its
    queue hands over one message at a time."""

    def __init__(self) -> None:
        self.socket = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 8 << 20)
        self.socket.bind(("127.0.0.1", 0))
        self.socket.settimeout(0.05)
        self.port = self.socket.getsockname()[1]
        self.last = 0
        self.stop = False
        self.thread = threading.Thread(target=self.listen, daemon=True)
        self.thread.start()

    def listen(self) -> None:
        while True:
            try:
                data = self.socket.recv(65536)
            except TimeoutError:
                if self.stop:
                    return
                continue
            if match := LINE.search(data.decode(errors="replace")):
                self.last = max(self.last, int(match[1]))

    def close(self) -> None:
        """Everything that is under way is taken in first."""
        self.stop = True
        self.thread.join()
        self.socket.close()


class Rsyslog(Case):
    needs = {"rsyslogd": "rsyslog", "logrotate": "logrotate"}  # noqa: RUF012
    survives = (
        "every message that rsyslogd had written before it passed it on, in order, over all rotated files"
    )
    kills = 9

    def __init__(self, how: str) -> None:
        self.how = how
        self.name = f"rsyslogd, logrotate with {how}"
        if how == "copytruncate":
            self.unordered = "logrotate cuts the file meanwhile: it is not exclusive"

    def start(self, place: Place, port: int) -> Process:
        config = place.aside / "rsyslog.conf"
        config.write_text(f"""
global(workDirectory="{place.aside}" processInternalMessages="off")
module(load="imuxsock" SysSock.Use="off")
module(load="builtin:omfile")
main_queue(queue.type="FixedArray" queue.dequeueBatchSize="1" queue.workerThreads="1"
	queue.timeoutEnqueue="600000")
input(type="imuxsock" Socket="{place.aside}/log.sock" RateLimit.Interval="0" CreatePath="on")
template(name="plain" type="string" string="%msg:R,ERE,1,FIELD:([0-9]+ x*[.])--end%\\n")
action(type="omfile" file="{place.data}/log" template="plain" flushOnTXEnd="on" asyncWriting="off")
action(type="omfwd" target="127.0.0.1" port="{port}" protocol="udp" template="plain")
""")
        path = place.aside / "log.sock"
        path.unlink(missing_ok=True)
        (place.aside / "pid").unlink(missing_ok=True)
        daemon = place.start("rsyslogd", "-n", "-i", place.aside / "pid", "-f", config)

        def listens() -> bool:
            with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as probe:
                return probe.connect_ex(str(path)) == 0

        place.until(lambda: daemon.popen.poll() is not None or listens(), "rsyslogd listens")
        assert daemon.popen.poll() is None, f"rsyslogd ended: {place.errors()}"
        return daemon

    def rotate(self, place: Place, tell: bool = True) -> None:
        config = place.aside / "logrotate.conf"
        signal_it = f"kill -HUP $(cat {place.aside}/pid)" if tell else "true"
        style = "copytruncate" if self.how == "copytruncate" else "create 0644"
        config.write_text(
            f"{place.data}/log {{\n rotate 1000\n size 1\n nodateext\n {style}\n"
            f" postrotate\n  {signal_it}\n endscript\n}}\n"
        )
        config.chmod(0o644)
        place.run("logrotate", "-s", place.aside / "state", config)

    def text(self, place: Place) -> str:
        """All rotated files, the oldest first."""
        files = [path for path in place.data.glob("log*") if path.is_file()]
        files.sort(key=lambda path: -int(path.suffix[1:] or 0))
        return "".join(path.read_text(errors="replace") for path in files)

    def numbers(self, place: Place) -> list[int]:
        found = []
        for line in self.text(place).splitlines():
            match = LINE.fullmatch(line)
            assert match, f"no line of ours: {line[:200]!r}"
            assert line == text_of(int(match[1])), f"cut: {line[:200]!r}"
            found.append(int(match[1]))
        return found

    def send(self, place: Place, receiver: Receiver, first: int, last: int, pace: int = 500) -> int:
        """Messages first..last, so many of them under way at most; ends early when the daemon is gone.  The last
        that was sent."""
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as out:
            out.settimeout(10)
            try:
                out.connect(str(place.aside / "log.sock"))
                for number in range(first, last + 1):
                    while number > max(receiver.last, first) + pace and not receiver.stop:
                        time.sleep(0.0005)
                    if receiver.stop:
                        return number - 1
                    out.send(f"<13>prog: {text_of(number)}".encode())
            except OSError:
                return number
        return last

    def written(self, place: Place, number: int) -> None:
        """Waits until others see the message in the log."""
        last = text_of(number) + "\n"
        path = place.data / "log"
        place.until(lambda: path.exists() and path.read_text().endswith(last), f"message {number} is there")

    def run(self, place: Place) -> object:
        step = 800 if place.quick else 3000
        receiver = Receiver()
        daemon = self.start(place, receiver.port)
        try:
            # at rest: nothing may be missing, whatever the way of rotating
            for turn in range(3):
                self.send(place, receiver, turn * step + 1, (turn + 1) * step)
                self.written(place, (turn + 1) * step)
                self.rotate(place)
            rest = self.numbers(place)
            assert rest == list(range(1, 3 * step + 1)), f"{len(rest)} of {3 * step} messages"
            # and while messages come
            last = (6 if place.quick else 12) * step
            sender = threading.Thread(target=self.send, args=(place, receiver, 3 * step + 1, last))
            sender.start()
            while sender.is_alive():
                self.rotate(place)
                place.pause(0.05)
            sender.join()
            place.until(lambda: receiver.last == last, "rsyslogd is done")
            daemon.end(signal.SIGTERM)
        finally:
            receiver.close()
        found = self.numbers(place)
        if self.how == "copytruncate":
            # what comes between its copy and its cut is lost, as it says itself
            assert found == sorted(set(found)), "messages changed places, or came twice"
            assert found[: 3 * step] == rest
            return len(rest)
        assert found == list(range(1, last + 1)), f"{len(found)} of {last} messages"
        return len(found)

    def kill(self, place: Place) -> None:
        receiver = Receiver()
        daemon = self.start(place, receiver.port)
        sent: list[int] = []
        try:
            count = place.dice.randrange(20, 300)
            self.send(place, receiver, 1, count)
            self.written(place, count)
            self.rotate(place)
            sender = threading.Thread(
                target=lambda: sent.append(self.send(place, receiver, count + 1, 10_000_000, pace=200))
            )
            sender.start()
            wanted = count + place.dice.randrange(20, 600)
            place.until(lambda: receiver.last >= wanted, "messages are dealt with")
            if self.how == "move" and place.dice.random() < 0.5:
                # it dies with the moved file open, and another stands at its place
                self.rotate(place, tell=False)
                wanted = receiver.last + 20
                place.until(lambda: receiver.last >= wanted, "more messages are dealt with")
            place.pause(0.02)
            daemon.kill()
        finally:
            receiver.close()
        sender.join()
        place.bring_back()
        if place.way == NEXT:
            again = self.start(place, 9)
            again.end(signal.SIGTERM)
        found = self.numbers(place)
        assert found == list(range(1, len(found) + 1)), "not each message once and in order"
        assert receiver.last <= len(found) <= sent[0], (
            f"{receiver.last} were dealt with, {len(found)} are there, {sent[0]} were sent"
        )


CASES = [Rsyslog("move"), Rsyslog("copytruncate")]
