# SPDX-License-Identifier: Apache-2.0
"""Loggers of three languages.  Each writes numbered records and says on standard output after every call that
has returned which record that was; the kernel lives on, so that is what must be in the files after a kill."""

from __future__ import annotations

import re
from pathlib import Path

from programs.case import Case
from programs.place import Place, Process

AFTERWARDS = 100_000_001
RECORD = re.compile(r"(\d+) (x*)\.$")

PYTHON = """
import logging, logging.handlers, os, sys
path, first, last = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
handler = logging.handlers.RotatingFileHandler(path, maxBytes=60000, backupCount=500)
handler.setFormatter(logging.Formatter("%(message)s"))
log = logging.getLogger("log")
log.addHandler(handler)
for number in range(first, last + 1):
    log.error("%d %s.", number, "x" * (number * 7 % 150))
    os.write(1, b"%d\\n" % number)
logging.shutdown()
"""

# with its own descriptors for what is said, since console.log would wait for nobody
NODE_SYNC = """
const fs = require('fs');
const [path, first, last] = [process.argv[2], +process.argv[3], +process.argv[4]];
const fd = fs.openSync(path, 'a');
for (let n = first; n <= last; n++) {
  fs.writeSync(fd, `${n} ${'x'.repeat(n * 7 % 150)}.\\n`);
  fs.writeSync(1, `${n}\\n`);
}
fs.closeSync(fd);
"""

NODE_STREAM = """
const fs = require('fs');
const [path, first, last] = [process.argv[2], +process.argv[3], +process.argv[4]];
const out = fs.createWriteStream(path, { flags: 'a' });
let n = first;
function next() {
  if (n > last) { out.end(); return; }
  const number = n++;
  // several are under way at once; the callback says that this one was written
  const more = out.write(`${number} ${'x'.repeat(number * 7 % 150)}.\\n`, () => fs.writeSync(1, `${number}\\n`));
  if (!more) out.once('drain', next); else if (number % 8) next(); else setImmediate(next);
}
next();
"""

JAVA_STREAM = """
import java.io.FileOutputStream;
public class Log {
    public static void main(String[] a) throws Exception {
        int first = Integer.parseInt(a[1]), last = Integer.parseInt(a[2]);
        FileOutputStream said = new FileOutputStream(java.io.FileDescriptor.out);
        try (FileOutputStream out = new FileOutputStream(a[0], true)) {
            for (int n = first; n <= last; n++) {
                out.write((n + " " + "x".repeat(n * 7 % 150) + ".\\n").getBytes());
                said.write((n + "\\n").getBytes());
            }
        }
    }
}
"""

JAVA_LOGGING = """
import java.io.FileOutputStream;
import java.util.logging.*;
public class Log {
    public static void main(String[] a) throws Exception {
        int first = Integer.parseInt(a[1]), last = Integer.parseInt(a[2]);
        FileOutputStream said = new FileOutputStream(java.io.FileDescriptor.out);
        // rotates; a later start begins a new file, so that its name says which start it was
        FileHandler handler = new FileHandler(a[0] + "." + first + ".%g", 60000, 500, true);
        handler.setFormatter(new Formatter() {
            public String format(LogRecord r) { return r.getMessage() + "\\n"; }
        });
        Logger log = Logger.getAnonymousLogger();
        log.setUseParentHandlers(false);
        log.addHandler(handler);
        for (int n = first; n <= last; n++) {
            log.info(n + " " + "x".repeat(n * 7 % 150) + ".");
            said.write((n + "\\n").getBytes());
        }
        handler.close();
    }
}
"""


class Logger(Case):
    survives = (
        "every record whose call had returned, in order, in the rotated files together; none cut or doubled"
    )
    kills = 9

    def __init__(self, name: str, source: str, package: dict[str, str], gap: str = "") -> None:
        self.name = name
        self.gap = gap
        self.source = source
        self.needs = package
        # the call returns before the write: what counts is the callback, and a write or two may be under way
        self.under_way = 100_000 if source is NODE_STREAM else 1

    def prepare(self, place: Place) -> list[str | Path]:
        """Command without its arguments."""
        if "public class" in self.source:
            (place.aside / "Log.java").write_text(self.source)
            place.run("javac", "-d", place.aside, place.aside / "Log.java", shim=False)
            return [
                "java",
                "-Xshare:auto",
                "-XX:+UseSerialGC",
                "-XX:TieredStopAtLevel=1",
                "-cp",
                place.aside,
                "Log",
            ]
        if "require" in self.source:
            (place.aside / "log.js").write_text(self.source)
            return ["node", place.aside / "log.js"]
        (place.aside / "log.py").write_text(self.source)
        return ["/usr/bin/python3", place.aside / "log.py"]

    def records(self, place: Place) -> list[int]:
        """Numbers in the order of the files; every line must be a whole record."""
        numbers: list[int] = []

        def age(path: Path) -> tuple[int, int]:
            # log.N is older the larger N is, log itself the newest; log.FIRST.N: by start, then likewise
            tail = [int(word) for word in path.name.split(".")[1:]]
            return (tail[0] if len(tail) > 1 else 0, -(tail[-1] if tail else 0))

        files = [path for path in place.data.glob("log*") if not path.name.endswith(".lck")]
        for path in sorted(files, key=age):
            text = path.read_text(errors="replace")
            assert not text or text.endswith("\n"), f"{path.name} ends in the middle of a record"
            for line in text.splitlines():
                match = RECORD.fullmatch(line)
                assert match, f"{path.name}: no record: {line[:200]!r}"
                number = int(match[1])
                assert len(match[2]) == number * 7 % 150, f"{path.name}: cut: {line[:200]!r}"
                numbers.append(number)
        return numbers

    def run(self, place: Place) -> object:
        count = 3000 if place.quick else 30000
        command = self.prepare(place)
        for first, last in ((1, count), (count + 1, count + 50)):
            place.run(*command, place.data / "log", first, last)
        numbers = self.records(place)
        assert numbers == list(range(1, count + 51)), f"{len(numbers)} records"
        return {path.name: path.read_bytes() for path in place.data.glob("log*")}

    def kill(self, place: Place) -> None:
        command = self.prepare(place)
        process = place.start(*command, place.data / "log", 1, 10_000_000)
        wanted = place.dice.randrange(50, 2000 if place.quick else 20000)
        place.until(
            lambda: process.popen.poll() is not None or said(process) >= wanted, "records are written"
        )
        place.pause(0.02)
        process.kill()
        done = said(process)
        place.bring_back()
        # the next start goes on, with numbers that tell its records apart
        place.run(*command, place.data / "log", AFTERWARDS, AFTERWARDS + 19)
        records = self.records(place)
        numbers = records[:-20]
        assert records[-20:] == list(range(AFTERWARDS, AFTERWARDS + 20)), "the next start did not go on"
        assert numbers == list(range(1, len(numbers) + 1)), "not each record once and in order"
        assert done <= len(numbers) <= done + self.under_way, f"{done} had returned, {len(numbers)} are there"


def said(process: Process) -> int:
    """The last number that it reported."""
    lines = process.output()
    return int(lines[-1]) if lines else 0


CASES = [
    Logger(
        "Python, RotatingFileHandler",
        PYTHON,
        {"/usr/bin/python3": "python3"},
        "few bytes: before each record it asks for the state of the file, which puts in place what is staged",
    ),
    Logger("Java, FileOutputStream", JAVA_STREAM, {"javac": "default-jdk-headless"}),
    Logger("Java, java.util.logging FileHandler", JAVA_LOGGING, {"javac": "default-jdk-headless"}),
    Logger("Node, fs.writeSync", NODE_SYNC, {"node": "nodejs"}),
    Logger("Node, fs.createWriteStream", NODE_STREAM, {"node": "nodejs"}),
]
