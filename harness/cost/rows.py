# SPDX-License-Identifier: Apache-2.0
"""The rows of the suite `cost`: programs and calls that gain little or nothing by staging.

A leg has a number of operations that follows from its seconds and the row's `rate`, so that every variant does the
same. A loop is timed by the program itself, which repeats the operation; a program is timed from its start to its
end, started again for each operation. Every leg's files are verified, also those of a leg that counts system calls.
"""

from __future__ import annotations

import ctypes
import json
import marshal
import os
import shutil
import sys
import tarfile
import zipfile
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from pathlib import Path

from harness import WORKLOADS
from harness.core.cell import Cell, LegError, Measured, Place, Programs, Timing
from harness.core.shim import Shim

LINE, LONG_LINE, STAGED, WINDOW = 50, 100, 2000, 1 << 14
"""As in workloads/costs.c."""
SOURCES = 8
TREE_FILES = 200
ARCHIVE_FILES = 2000
MODULES = 40
LOG_SECONDS = 60.0
PYC_HEADER = 16
OLD = 1_700_000_000
AUTHOR = {"GIT_AUTHOR_NAME": "lab", "GIT_AUTHOR_EMAIL": "lab@localhost"}
GIT = {
    **AUTHOR,
    **{key.replace("AUTHOR", "COMMITTER"): value for key, value in AUTHOR.items()},
    "GIT_CONFIG_GLOBAL": "/dev/null",
    "GIT_CONFIG_SYSTEM": "/dev/null",
}

Trace = Callable[[tuple[str, ...], Place], dict[str, int]]
"""Runs a program under strace; its system calls by name."""


def lines(count: int, size: int, first: int = 0) -> bytes:
    """Numbered lines as workloads/costs.c writes them."""
    return b"".join(b"%0*d\n" % (size - 1, n) for n in range(first, first + count))


def same(path: Path, expected: bytes) -> None:
    """LegError unless the file holds that."""
    try:
        found = path.read_bytes()
    except OSError as error:
        raise LegError(f"{path.name}: {error.strerror}") from error
    if found != expected:
        at = next((i for i, (a, b) in enumerate(zip(found, expected, strict=False)) if a != b), None)
        where = f"byte {at} differs" if at is not None else "its beginning is right"
        raise LegError(f"{path.name}: {len(found)} bytes, {len(expected)} were written; {where}")


def same_tree(root: Path, expected: Mapping[str, bytes], but: str = "") -> None:
    """LegError unless the files below a directory are these; but: a pattern of names that do not count."""
    names = (p for p in root.rglob("*") if p.is_file() and not (but and p.match(but)))
    found = {str(path.relative_to(root)) for path in names}
    if odd := sorted(found ^ expected.keys()):
        raise LegError(f"{root.name}: {odd[0]} {'was not written' if odd[0] in found else 'is missing'}")
    for name, content in expected.items():
        same(root / name, content)


class Row(Cell):
    """title: what one operation is; rate: about how many make a second; needs: programs.

    loops -- the program itself repeats the operation; stages -- with a matching rule it must have an arena;
    more_env -- its variables in every variant
    """

    title = ""
    rate = 1.0
    needs: tuple[str, ...] = ()
    loops = False
    stages = False
    more_env: Mapping[str, str] = {}

    def __init__(self, programs: Programs | None) -> None:
        self.programs = programs

    def missing(self, work: Path, built: Shim | None) -> str | None:
        lacking = [name for name in self.needs if shutil.which(name) is None]
        return f"{', '.join(lacking)}: not installed" if lacking else None

    def count(self, seconds: float) -> int:
        return max(1, round(self.rate * seconds))

    def prepare(self, place: Place, count: int) -> None:
        """Make natively, not timed, what the program needs."""

    def argv(self, place: Place, count: int) -> tuple[str, ...]:
        raise NotImplementedError

    def timed(self, place: Place, count: int) -> Measured:
        """Here by the program itself, which prints its seconds."""
        answer = json.loads(self.programs.run(self.argv(place, count), env=place.env).stdout)
        return Measured(count, answer["seconds"], total=count, facts={"arena": answer["arena"]})

    def measure(self, place: Place, timing: Timing) -> Measured:
        count = self.count(timing.seconds)
        return self.timed(self._ready(place, count), count)

    def calls(
        self, place: Place, timing: Timing, trace: Trace, fresh: Callable[[], None]
    ) -> dict[str, float]:
        """System calls of one operation by name; of a loop, those of a long run less those of a short one."""
        if not self.loops:
            return self._counted(place, 1, trace)
        short = self.count(timing.seconds / 10)
        few = self._counted(place, short, trace)
        fresh()
        many = self._counted(place, 2 * short, trace)
        return {name: (many[name] - few.get(name, 0)) / short for name in many}

    def _ready(self, place: Place, count: int) -> Place:
        self.prepare(place, count)
        return replace(place, env={**self.more_env, **place.env})

    def _counted(self, place: Place, count: int, trace: Trace) -> dict[str, int]:
        place = self._ready(place, count)
        found = trace(self.argv(place, count), place)
        self.verify(place, Measured(count, 1.0, total=count))
        return found


class Program(Row):
    """A command that is timed from outside, and started again for each operation unless it loops."""

    def timed(self, place: Place, count: int) -> Measured:
        result, said = place.control / "launched", place.control / "stdout"
        env = [word for name, value in place.env.items() for word in ("--env", f"{name}={value}")]
        argv = (
            str(place.programs / "lab-launch"), "--result", str(result), "--stdout", str(said),
            "--times", str(1 if self.loops else count), *env, "--", *self.argv(place, count),
        )  # fmt: skip
        done = self.programs.run(argv, cwd=str(place.stage))
        answer = json.loads(result.read_text(encoding="utf-8"))
        if answer["status"] or answer["signal"]:
            words = (done.stderr or said.read_text(encoding="utf-8", errors="replace")).strip()[-300:]
            raise LegError(f"ended with {answer['status']}, signal {answer['signal']}: {words}")
        return Measured(count, answer["seconds"], total=count)


class Whole(Program):
    """A command that is run once a leg: it does many things, or needs a fresh directory."""

    def count(self, seconds: float) -> int:
        return 1


# ---- loops of lab-costs ----


class Calls(Row):
    """loop: of lab-costs; writes: for each open, of the loops that append."""

    loops = True

    def __init__(
        self, programs: Programs, loop: str, title: str, rate: float, writes: int = 0, stages: bool = False
    ) -> None:
        super().__init__(programs)
        self.loop, self.title, self.rate, self.writes, self.stages = loop, title, rate, writes, stages

    def argv(self, place: Place, count: int) -> tuple[str, ...]:
        more = (str(self.writes),) if self.writes else ()
        return (str(place.programs / "lab-costs"), self.loop, str(place.stage), str(count), *more)

    def verify(self, place: Place, measured: Measured) -> dict:
        checked = {}
        for name, content in self.expected(measured.count):
            same(place.stage / name, content)
            checked[name] = len(content)
        if self.loop == "append-beside":
            beside = place.stage / "beside"
            same(beside, lines(max(STAGED, beside.stat().st_size // LINE), LINE))
        return {"files": len(checked), "bytes": sum(checked.values())}

    def expected(self, count: int) -> Iterable[tuple[str, bytes]]:
        if self.loop.startswith("append"):
            yield "log", lines(count * self.writes, LINE)
        elif self.loop == "fork-staged":
            yield "log", lines(STAGED + count, LINE)
        elif self.loop == "files":
            yield from ((f"f{n}", lines(1, LONG_LINE, n)) for n in range(count))
        elif self.loop == "window":
            one = WINDOW // 8
            yield "windows", b"".join(n.to_bytes(8, sys.byteorder) * one for n in range(count))


class Prefork(Calls):
    def verify(self, place: Place, measured: Measured) -> dict:
        """Four workers append: every line once and whole, in any order."""
        log = place.stage / "log"
        found = log.read_bytes()
        if b"".join(sorted(found.splitlines(keepends=True))) != lines(measured.count, LINE):
            raise LegError(f"log: not {measured.count} whole lines")
        return {"bytes": len(found)}


class Sqlite(Calls):
    def missing(self, work: Path, built: Shim | None) -> str | None:
        try:
            ctypes.CDLL("libsqlite3.so.0")
        except OSError:
            return "libsqlite3.so.0: not installed"
        return None

    def verify(self, place: Place, measured: Measured) -> dict:
        import sqlite3

        owed = measured.count if self.loop == "commit" else 100
        database = sqlite3.connect(place.stage / "lab.db")
        try:
            ok = database.execute("PRAGMA integrity_check").fetchone()[0]
            rows = [row[0] for row in database.execute("SELECT number FROM lab ORDER BY number")]
        except sqlite3.Error as error:
            raise LegError(f"the database: {error}") from error
        finally:
            database.close()
        if ok != "ok" or rows != list(range(owed)):
            raise LegError(f"the database: {ok}, {len(rows)} rows, {owed} were committed")
        return {"rows": len(rows), "integrity_check": ok}


# ---- programs that end soon ----


class Start(Program):
    title = "start and end of a program that does nothing (true)"
    rate = 1000
    needs = ("true",)

    def argv(self, place: Place, count: int) -> tuple[str, ...]:
        return ("true",)

    def verify(self, place: Place, measured: Measured) -> dict:
        return {}


class PythonStart(Start):
    title = "start and end of Python"
    rate = 25
    needs = ()

    def argv(self, place: Place, count: int) -> tuple[str, ...]:
        return (sys.executable, "-c", "pass")


class TenAppends(Program):
    title = "program that appends 10 × 100 B and ends"
    rate = 400

    def argv(self, place: Place, count: int) -> tuple[str, ...]:
        return (str(place.programs / "lab-costs"), "ten", str(place.stage))

    def verify(self, place: Place, measured: Measured) -> dict:
        same(place.stage / "log", lines(10, LONG_LINE) * measured.count)
        return {"bytes": 1000 * measured.count}


class SedInPlace(Program):
    title = "sed -i on a file of 1,000 lines"
    rate = 50
    needs = ("sed",)

    def prepare(self, place: Place, count: int) -> None:
        (place.stage / "text").write_bytes(lines(1000, LINE))

    def argv(self, place: Place, count: int) -> tuple[str, ...]:
        return ("sed", "-i", "s/$/x/", str(place.stage / "text"))

    def verify(self, place: Place, measured: Measured) -> dict:
        same(place.stage / "text", lines(1000, LINE).replace(b"\n", b"x" * measured.count + b"\n"))
        return {"lines": 1000}


class GitCommit(Program):
    title = "git add and commit of one file beside 200"
    rate = 10
    needs = ("git",)
    more_env = GIT

    def prepare(self, place: Place, count: int) -> None:
        """Files of the index's own second would be read again, or not, as time has it: these are old."""
        repository = place.stage / "repository"
        for name, content in tree().items():
            _write(repository / name, content)
            os.utime(repository / name, (OLD, OLD))
        self._git(repository, "init", "-q")
        self._git(repository, "config", "gc.auto", "0")
        self._git(repository, "add", "-A")
        self._git(repository, "commit", "-q", "-m", "first")

    def argv(self, place: Place, count: int) -> tuple[str, ...]:
        return ("sh", "-c", "cd repository && echo line >> changed && git add -A && git commit -q -m next")

    def verify(self, place: Place, measured: Measured) -> dict:
        repository = place.stage / "repository"
        self._git(repository, "fsck", "--strict", "--no-progress")
        commits = int(self._git(repository, "rev-list", "--count", "HEAD"))
        if commits != measured.count + 1 or self._git(repository, "status", "--porcelain"):
            raise LegError(
                f"repository: {commits} commits, {measured.count + 1} were made, or it is not clean"
            )
        if self._git(repository, "show", "HEAD:changed") != "line\n" * measured.count:
            raise LegError("repository: the committed file is another one")
        return {"commits": commits}

    def _git(self, repository: Path, *args: str) -> str:
        return self.programs.run(("git", "-C", str(repository), *args), env=GIT).stdout


# ---- programs that do many things ----


class ShellAppend(Program):
    title = "echo line >> file, in a shell"
    rate = 10_000
    needs = ("sh",)
    loops = True

    def argv(self, place: Place, count: int) -> tuple[str, ...]:
        loop = f'i=0; while [ $i -lt {count} ]; do echo "line $i" >> log; i=$((i+1)); done'
        return ("sh", "-c", loop)

    def verify(self, place: Place, measured: Measured) -> dict:
        same(place.stage / "log", b"".join(b"line %d\n" % n for n in range(measured.count)))
        return {"lines": measured.count}


class FindXargs(Whole):
    title = f"find | sort | xargs -n 4 grep | sort over {TREE_FILES} files"
    needs = ("find", "sort", "xargs", "grep")

    def prepare(self, place: Place, count: int) -> None:
        for name, content in tree().items():
            _write(place.stage / "tree" / name, content)

    def argv(self, place: Place, count: int) -> tuple[str, ...]:
        return (
            "sh",
            "-c",
            "LC_ALL=C; export LC_ALL; find tree -type f | sort | xargs -n 4 grep -c 1 | sort > out",
        )

    def verify(self, place: Place, measured: Measured) -> dict:
        owed = sorted(
            b"tree/%s:%d\n" % (name.encode(), sum(b"1" in line for line in content.splitlines()))
            for name, content in tree().items()
        )
        same(place.stage / "out", b"".join(owed))
        return {"files": TREE_FILES}


class Gcc(Whole):
    title = f"gcc: {SOURCES} sources compiled and linked"
    needs = ("gcc",)
    build = "for f in src/*.c; do gcc -O1 -c -o ${f%.c}.o $f || exit 1; done; gcc -o program src/*.o"

    def prepare(self, place: Place, count: int) -> None:
        """The sources; and in `keep`, once, the program that a native build makes of them."""
        self._sources(place.stage)
        root = place.keep / type(self).__name__
        if not (root / "built").exists():
            shutil.rmtree(root, ignore_errors=True)
            self._sources(root)
            self.programs.run(self.argv(place, count), cwd=str(root))
            said = self.programs.run((str(root / "program"),)).stdout
            if said != f"{sum(range(SOURCES))}\n":
                raise LegError(f"the program that was built natively says {said!r}")
            (root / "program").rename(root / "built")

    def _sources(self, root: Path) -> None:
        for n in range(SOURCES):
            text = f"#include <stdio.h>\n#include <stdlib.h>\n#include <string.h>\nint f{n}(void) {{ return {n}; }}\n"
            _write(root / "src" / f"f{n}.c", text.encode())
        called = " + ".join(f"f{n}()" for n in range(SOURCES))
        declared = "".join(f"int f{n}(void);\n" for n in range(SOURCES))
        main = f'#include <stdio.h>\n{declared}int main(void) {{ printf("%d\\n", {called}); return 0; }}\n'
        _write(root / "src" / "main.c", main.encode())

    def argv(self, place: Place, count: int) -> tuple[str, ...]:
        return ("sh", "-c", self.build)

    def verify(self, place: Place, measured: Measured) -> dict:
        same(place.stage / "program", (place.keep / type(self).__name__ / "built").read_bytes())
        return {"program": "as built natively"}


class CmakeNinja(Gcc):
    title = f"cmake + ninja: {SOURCES} sources configured, compiled and linked"
    needs = ("cmake", "ninja", "gcc")
    build = "cmake -G Ninja -S . -B made && ninja -C made && cp made/program program"

    def _sources(self, root: Path) -> None:
        super()._sources(root)
        names = " ".join(f"src/f{n}.c" for n in range(SOURCES))
        text = f"cmake_minimum_required(VERSION 3.10)\nproject(lab C)\nadd_executable(program src/main.c {names})\n"
        _write(root / "CMakeLists.txt", text.encode())


class TarExtract(Whole):
    title = f"tar x of {ARCHIVE_FILES:,} files"
    needs = ("tar",)

    def prepare(self, place: Place, count: int) -> None:
        archive = place.keep / "archive.tar"
        if not archive.exists():
            root = place.keep / "tree"
            for name, content in tree(ARCHIVE_FILES).items():
                _write(root / name, content)
            with tarfile.open(archive.with_suffix(".new"), "w") as out:
                out.add(root, "tree")
            archive.with_suffix(".new").rename(archive)

    def argv(self, place: Place, count: int) -> tuple[str, ...]:
        return ("tar", "-xf", str(place.keep / "archive.tar"))

    def verify(self, place: Place, measured: Measured) -> dict:
        same_tree(place.stage / "tree", tree(ARCHIVE_FILES))
        return {"files": ARCHIVE_FILES}


class PipInstall(Whole):
    title = f"pip install of a wheel of {MODULES} modules into a directory"
    more_env: Mapping[str, str] = {"PIP_CONFIG_FILE": os.devnull, "PIP_DISABLE_PIP_VERSION_CHECK": "1"}

    def missing(self, work: Path, built: Shim | None) -> str | None:
        try:
            self.programs.run((sys.executable, "-m", "pip", "--version"))
        except LegError:
            return "pip: not installed"
        return None

    def prepare(self, place: Place, count: int) -> None:
        wheel = self._wheel(place)
        if wheel.exists():
            return
        about = {
            "METADATA": "Metadata-Version: 2.1\nName: lab\nVersion: 1\n",
            "WHEEL": "Wheel-Version: 1.0\nGenerator: lab\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
        }
        with zipfile.ZipFile(wheel.with_suffix(".new"), "w") as out:
            for name, content in self._modules().items():
                out.writestr(f"lab/{name}", content)
            for name, text in about.items():
                out.writestr(f"lab-1.dist-info/{name}", text)
            named = [*(f"lab/{name}" for name in self._modules()), *(f"lab-1.dist-info/{n}" for n in about)]
            record = "".join(f"{name},,\n" for name in [*named, "lab-1.dist-info/RECORD"])
            out.writestr("lab-1.dist-info/RECORD", record)
        wheel.with_suffix(".new").rename(wheel)

    def argv(self, place: Place, count: int) -> tuple[str, ...]:
        return (
            sys.executable, "-m", "pip", "install", "-q", "--no-index", "--no-deps", "--no-cache-dir",
            "--target", str(place.stage / "site"), str(self._wheel(place)),
        )  # fmt: skip

    def verify(self, place: Place, measured: Measured) -> dict:
        """The modules as they were packed, and each with its own code compiled."""
        package = place.stage / "site" / "lab"
        same_tree(package, self._modules(), but="*.pyc")
        compiled = {path.name.partition(".")[0]: path for path in package.rglob("*.pyc")}
        for name, content in self._modules().items():
            path = compiled.get(name.removesuffix(".py"))
            if path is None or not _holds_code(path, content):
                raise LegError(f"site: {name} is not compiled, or wrongly")
        return {"modules": MODULES}

    def _wheel(self, place: Place) -> Path:
        return place.keep / "lab-1-py3-none-any.whl"

    def _modules(self) -> dict[str, bytes]:
        return {
            f"m{n}.py": "".join(f"def f{i}(x):\n    return x * {n} + {i}\n\n\n" for i in range(30)).encode()
            for n in range(MODULES)
        }


class PythonLogging(Row):
    title = "a line by Python's logging"
    rate = 15_000
    loops = True

    def argv(self, place: Place, count: int) -> tuple[str, ...]:
        return (
            sys.executable, str(WORKLOADS / "log_lines.py"), str(place.stage / "log"), "--warmup", "0",
            "--seconds", str(LOG_SECONDS), "--most", str(count),
        )  # fmt: skip

    def timed(self, place: Place, count: int) -> Measured:
        answer = json.loads(self.programs.run(self.argv(place, count), LOG_SECONDS, env=place.env).stdout)
        return Measured(answer["syncs"], answer["seconds"], total=answer["syncs"])

    def verify(self, place: Place, measured: Measured) -> dict:
        found = (place.stage / "log").read_text(encoding="utf-8").splitlines(keepends=True)
        for number, line in enumerate(found):
            owed = f" INFO lab: {number} request from 10.0.0.1 took {number % 977} us\n"
            if not line.endswith(owed):
                raise LegError(f"log: line {number} is {line!r}")
        if len(found) != measured.count:
            raise LegError(f"log: {len(found)} lines, {measured.count} were written")
        return {"lines": len(found)}


def _holds_code(compiled: Path, source: bytes) -> bool:
    try:
        return marshal.loads(compiled.read_bytes()[PYC_HEADER:]) == compile(
            source, "", "exec", dont_inherit=True
        )
    except (OSError, EOFError, ValueError, TypeError):
        return False


def tree(count: int = TREE_FILES) -> dict[str, bytes]:
    """Text files of 1 to 40 lines in directories of 50."""
    return {f"d{n // 50}/f{n}.txt": lines(1 + n * 7 % 40, LINE, n) for n in range(count)}


def _write(path: Path, content: bytes) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)


def all_rows(programs: Programs | None = None) -> dict[str, Row]:
    """The rows by name, in the order of the table. Without programs they have names and titles only."""

    def calls(loop: str, title: str, rate: float, writes: int = 0, stages: bool = False, kind=Calls) -> Row:
        return kind(programs, loop, title, rate, writes, stages)

    def appends(writes: int, rate: float) -> dict[str, Row]:
        what = f"open for append, {writes} × 50 B, close"
        return {
            f"append-{writes}": calls("append", what, rate, writes),
            f"append-{writes}-beside": calls(
                "append-beside", f"{what}, beside another process's staging", 5000, writes, True
            ),
        }

    return {
        "start": Start(programs),
        "ten-appends": TenAppends(programs),
        "fork": calls("fork", "fork, exit and wait, nothing managed", 2500),
        "fork-staged": calls("fork-staged", "fork, exit and wait, beside a staged file", 1500, stages=True),
        "shell-append": ShellAppend(programs),
        "mmap-window": calls("window", "stores through a mapping of 16 KiB that moves on", 20_000),
        **appends(1, 25_000),
        **appends(3, 5000),
        **appends(17, 5000),
        "select": calls(
            "select", "SQLite: SELECT beside a database that the process wrote", 25_000, kind=Sqlite
        ),
        "commit": calls("commit", "SQLite: commit of one row, rollback journal", 150, kind=Sqlite),
        "sed": SedInPlace(programs),
        "lock": calls("lock", "F_SETLK and unlock", 200_000),
        "gcc": Gcc(programs),
        "cmake-ninja": CmakeNinja(programs),
        "git": GitCommit(programs),
        "tar": TarExtract(programs),
        "pip": PipInstall(programs),
        "xargs": FindXargs(programs),
        "small-files": calls("files", "new file of 100 B", 50_000),
        "prefork": calls("prefork", "request to a prefork server that logs a line", 10_000, kind=Prefork),
        "python-start": PythonStart(programs),
        "python-logging": PythonLogging(programs),
    }
