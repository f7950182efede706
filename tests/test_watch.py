# SPDX-License-Identifier: Apache-2.0
"""Numbers to watch: `status --prometheus` and `--watch`; units, alerts and dashboard that use them."""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from lib.support import ROOT, disk_dir, preload_env, wait_for

CONFIGS = ROOT / "configs"
TABLES_MAX = 1000  # ends only what hangs

# Writes 2000 lines of 100 bytes and says so, again after each line of standard input.  `sync`: syncs in
# the middle.  `map`: then maps the file.  `die`: kills itself.
WRITES = r"""
#include <fcntl.h>
#include <signal.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>
int main(int argc, char **argv)
{
	int fd = open(argv[1], O_RDWR | O_CREAT | O_APPEND, 0644);
	char line[100], byte;
	memset(line, '.', sizeof line);
	do {
		for (int i = 0; i < 2000; i++) {
			if (write(fd, line, sizeof line) != sizeof line)
				return 1;
			if (i == 1000 && argc > 2 && strcmp(argv[2], "sync") == 0)
				fdatasync(fd);
		}
		if (argc > 2 && strcmp(argv[2], "map") == 0)
			mmap(NULL, 1, PROT_READ, MAP_SHARED, fd, 0);
		if (argc > 2 && strcmp(argv[2], "die") == 0)
			raise(SIGKILL);
		if (write(1, "ready\n", 6) != 6)
			return 2;
	} while (read(0, &byte, 1) == 1);
	return 0;
}
"""
SETTINGS = {"lag_ms": 60000, "adapt": "off", "block": "64K"}


# ---- the format ----

NAME = r"[a-zA-Z_:][a-zA-Z0-9_:]*"
LABEL = r'([a-zA-Z_][a-zA-Z0-9_]*)="((?:[^"\\\n]|\\[\\"n])*)"'
SAMPLE = re.compile(rf"({NAME})(?:\{{({LABEL}(?:,{LABEL})*)\}})? ([0-9]+(?:\.[0-9]+)?)")


@dataclass
class Metric:
    help: str
    type: str = ""
    samples: dict[frozenset[tuple[str, str]], float] = field(default_factory=dict)


def labels_of(text: str | None) -> dict[str, str]:
    plain = {"\\\\": "\\", '\\"': '"', "\\n": "\n"}
    pairs = re.findall(LABEL, text or "")
    labels = {name: re.sub(r"\\.", lambda m: plain[m[0]], value) for name, value in pairs}
    assert len(labels) == len(pairs), "a label stands twice"
    return labels


def parse(page: bytes) -> dict[str, Metric]:
    """Of each metric HELP, TYPE and all samples, in this order, at one place.  All else is an error."""
    text = page.decode()
    assert text.endswith("\n")
    found: dict[str, Metric] = {}
    now = ""
    for line in text[:-1].split("\n"):
        if match := re.fullmatch(rf"# HELP ({NAME}) ([^\\]+)", line):
            now = match[1]
            assert now not in found, f"{now} stands at two places"
            found[now] = Metric(match[2])
        elif match := re.fullmatch(rf"# TYPE ({NAME}) (counter|gauge)", line):
            assert match[1] == now and not found[now].type and not found[now].samples
            found[now].type = match[2]
        else:
            match = SAMPLE.fullmatch(line)
            assert match, f"not a line of the format: {line}"
            assert match[1] == now and found[now].type
            key = frozenset(labels_of(match[2]).items())
            assert key not in found[now].samples, f"a sample stands twice: {line}"
            found[now].samples[key] = float(match[match.lastindex])
    return found


def checked(page: bytes) -> dict[str, Metric]:
    """The same, with the names that Prometheus asks for."""
    found = parse(page)
    for name, metric in found.items():
        assert name.startswith("fastwrite_") and metric.samples
        assert (metric.type == "counter") == name.endswith("_total"), name
        assert metric.type == "gauge" or f"{name[:-6]}" not in found, name
    return found


def of_process(metrics: dict[str, Metric], pid: int) -> dict[str, float]:
    """The values of a process with one arena; without the reasons of bypasses."""
    return {
        name: value
        for name, metric in metrics.items()
        for key, value in metric.samples.items()
        if ("pid", str(pid)) in key and name != "fastwrite_bypassed_files_total"
    }


# ---- programs ----


@pytest.fixture
def place():
    with disk_dir() as path:
        yield path


@pytest.fixture(scope="module")
def writes(compile_c) -> Path:
    return compile_c(WRITES)


@pytest.fixture(scope="module")
def status(fastwrite):
    """status(*arguments) -> standard output."""

    def run(*arguments: object, env: dict[str, str] | None = None) -> bytes:
        done = subprocess.run(
            [fastwrite, "status", *map(str, arguments)],
            env={**os.environ, **(env or {})},
            capture_output=True,
            check=False,
            timeout=300,
        )
        assert (done.returncode, done.stderr) == (0, b"")
        return done.stdout

    return run


@contextmanager
def running(
    library: Path, command: list[object], paths: str, **settings: object
) -> Iterator[subprocess.Popen]:
    """A program that has written and now waits."""
    env = {**os.environ, **preload_env(library, paths, **{**SETTINGS, **settings})}
    with subprocess.Popen(command, env=env, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        try:
            assert process.stdout.readline() == b"ready\n"
            yield process
        finally:
            process.kill()


def write_more(process: subprocess.Popen) -> None:
    process.stdin.write(b"\n")
    process.stdin.flush()
    assert process.stdout.readline() == b"ready\n"


def arena_of(status, pid: int) -> dict:
    (arena,) = [a for a in json.loads(status("--json"))["arenas"] if a["pid"] == pid]
    return arena


def idle_page(status, pid: int) -> tuple[dict, bytes]:
    """The arena as JSON and the metrics, between which nothing changed: workers may still flush at first."""
    found = []

    def unchanged() -> bool:
        before, page, after = arena_of(status, pid), status("--prometheus"), arena_of(status, pid)
        found[:] = [before, page]
        return before == after

    wait_for(unchanged, "the program is idle")
    return found[0], found[1]


def escaped(path: Path) -> str:
    """As a pattern."""
    return re.sub(r"([\\*?\[{:])", r"\\\1", str(path))


# ---- metrics ----


def test_values_are_those_of_json(library, writes, status, place):
    paths = f"{place}/**"
    with (
        running(library, [writes, place / "a", "sync"], paths) as one,
        running(library, [writes, place / "b"], paths) as two,
    ):
        arena, page = idle_page(status, one.pid)
        metrics = checked(page)
        for metric in ("staged_bytes", "flushes_total", "blocks"):
            pids = {dict(key)["pid"] for key in metrics[f"fastwrite_{metric}"].samples}
            assert pids >= {str(one.pid), str(two.pid)}
        counters = arena["counters"]
        assert arena["files"][0]["staged_bytes"] > 0
        assert all(counters[name] > 0 for name in ("writes", "bytes", "flushes", "syncs_asked", "syncs_done"))
        assert of_process(metrics, one.pid) == {
            "fastwrite_staged_bytes": arena["files"][0]["staged_bytes"],
            "fastwrite_files": 1,
            "fastwrite_arena_bytes": arena["total_bytes"],
            "fastwrite_blocks": arena["blocks"],
            "fastwrite_blocks_used": arena["blocks_used"],
            "fastwrite_accepted_writes_total": counters["writes"],
            "fastwrite_accepted_bytes_total": counters["bytes"],
            "fastwrite_flushes_total": counters["flushes"],
            "fastwrite_flushed_bytes_total": counters["flush_bytes"],
            "fastwrite_flushed_direct_bytes_total": counters["direct_bytes"],
            "fastwrite_syncs_asked_total": counters["syncs_asked"],
            "fastwrite_syncs_done_total": counters["syncs_done"],
            "fastwrite_syncs_by_journal_total": counters["syncs_by_journal"],
            "fastwrite_drains_total": counters["settles"],
        }
        key = {"program": arena["program"], "pid": str(one.pid), "rule": "env", "arena": arena["arena"]}
        assert frozenset(key.items()) in metrics["fastwrite_staged_bytes"].samples


def test_a_page_without_programs_is_valid(status):
    assert checked(status("--prometheus"))["fastwrite_arenas"].type == "gauge"


def test_a_wrong_configuration_is_seen(status, tmp_path):
    """No alert on waiting bytes can come then."""
    wrong = tmp_path / "wrong.ini"
    wrong.write_text("[x]\npath = /srv/x/*\nsink = off\n")
    for config, valid in (({"FASTWRITE_PATHS": f"{tmp_path}/*"}, 1), ({"FASTWRITE_CONFIG": str(wrong)}, 0)):
        metrics = checked(status("--prometheus", env=config))
        assert list(metrics["fastwrite_config_valid"].samples.values()) == [valid]
        assert list(metrics["fastwrite_waiting_unread_places"].samples.values()) == [0]


def test_strange_names_are_escaped(library, writes, status, place):
    """In the path of the arena; bytes that are not UTF-8 become U+FFFD."""
    directory = place / os.fsdecode(b'a"\\b\xff\xc3\xa4')
    directory.mkdir()
    program = place / 'p"\\é\n'
    program.symlink_to(writes)
    with running(library, [program, directory / "log"], f"{escaped(directory)}/*") as process:
        arena, page = idle_page(status, process.pid)
        (key,) = [
            k for k in checked(page)["fastwrite_staged_bytes"].samples if ("pid", str(process.pid)) in k
        ]
        labels = dict(key)
        assert labels["arena"] == re.sub(r"[\udc80-\udcff]", "\ufffd", arena["arena"])
        assert labels["arena"].startswith(str(place / 'a"\\b\ufffdä'))
        assert labels["program"] == arena["program"]


def leave(library: Path, writes: Path, directory: Path) -> str:
    """Bytes of a program that died; the pattern of its rule."""
    directory.mkdir()
    paths = f"{escaped(directory)}/*"
    env = {**os.environ, **preload_env(library, paths, **SETTINGS)}
    for name in ("a", "b"):
        done = subprocess.run([writes, directory / name, "die"], env=env, check=False)
        assert done.returncode == -signal.SIGKILL
    return paths


def test_bytes_of_the_dead(library, writes, status, place):
    """One sample for each arena of a program that died."""
    paths = leave(library, writes, place / 'w"\\\nx')
    env = {"FASTWRITE_PATHS": paths}
    waiting = json.loads(status("--json", env=env))["waiting"]
    assert waiting
    metrics = checked(status("--prometheus", env=env))
    told = {dict(key)["arena"]: n for key, n in metrics["fastwrite_waiting_bytes"].samples.items()}
    assert told == {w["arena"]: sum(o["bytes"] for o in waiting if o["arena"] == w["arena"]) for w in waiting}
    assert all("\n" in arena for arena in told)
    assert sum(metrics["fastwrite_waiting_files"].samples.values()) == len(waiting)


@pytest.fixture(scope="module")
def full_page(library, writes, status) -> Iterator[bytes]:
    """With a sample of every metric: a log of sync = ordered, a bypassed file, bytes of the dead."""
    with disk_dir() as place:
        env = {"FASTWRITE_PATHS": leave(library, writes, place / "dead")}
        ordered = {"sync": "ordered", "writers": "exclusive", "ordered_ms": 20}
        for name in ("ordered", "mapped"):
            (place / name).mkdir()
        with (
            running(library, [writes, place / "ordered" / "x"], f"{place}/ordered/**", **ordered) as one,
            running(library, [writes, place / "mapped" / "x", "map"], f"{place}/mapped/**") as two,
        ):
            wait_for(lambda: arena_of(status, one.pid).get("order", {}).get("epochs"), "an epoch is durable")
            wait_for(lambda: arena_of(status, one.pid)["order"]["oldest_ms"] == 0, "all is durable")
            assert arena_of(status, two.pid)["through"] == {"mmap": 1}
            page = status("--prometheus", env=env)
            metrics = checked(page)
            order = arena_of(status, one.pid)["order"]
            told = of_process(metrics, one.pid)
            assert told["fastwrite_order_epochs_total"] == order["epochs"]
            assert told["fastwrite_order_log_bytes"] == order["log_bytes"]
            assert told["fastwrite_order_largest_epoch_bytes"] == order["largest_epoch_bytes"]
            assert told["fastwrite_order_oldest_seconds"] == 0
            bypassed = {
                (dict(key)["pid"], dict(key)["reason"]): n
                for key, n in metrics["fastwrite_bypassed_files_total"].samples.items()
            }
            assert bypassed[str(two.pid), "mmap"] == 1
            yield page


def test_alerts_and_dashboard_name_what_there_is(full_page):
    known = set(checked(full_page))
    dashboard = json.loads((CONFIGS / "dashboard.json").read_text())
    texts = [target["expr"] for panel in dashboard["panels"] for target in panel["targets"]]
    alerts = re.findall(r"^ +expr: (?:>-\n +)?(.*)$", (CONFIGS / "alerts.yml").read_text(), re.M)
    assert len(alerts) == 4
    operations = (ROOT / "docs" / "operations.md").read_text()
    named = re.findall(r"(?<!#)\bfastwrite_\w+", "\n".join([*texts, *alerts, operations]))
    assert len(set(named)) > 8
    assert set(named) <= known
    labels = {name for metric in checked(full_page).values() for key in metric.samples for name, _ in key}
    assert labels == {"program", "pid", "rule", "arena", "reason"}


def test_alerts_name_reasons_that_exist():
    (named,) = re.findall(r'reason=~"([^"]+)"', (CONFIGS / "alerts.yml").read_text())
    code = (ROOT / "shim" / "format" / "counters.c").read_text()
    reasons = re.findall(r'\] = "([^"]+)",', code.split("reason_names[", 1)[1].split("};", 1)[0])
    assert [reason for reason in reasons if re.fullmatch(named, reason)] == (
        ["no arena", "no thread", "no fallocate", "synchronous", "no lease", "encrypted", "rights"]
    )


def test_promtool_finds_them_right(full_page):
    if shutil.which("promtool") is None:
        pytest.skip("promtool is not there (Debian: prometheus): the metrics and alerts went unchecked by it")
    for command, page in (
        (["promtool", "check", "metrics"], full_page),
        (["promtool", "check", "rules", "--lint-fatal", CONFIGS / "alerts.yml"], None),
    ):
        done = subprocess.run(command, input=page, capture_output=True, check=False, timeout=300)
        assert (done.returncode, done.stderr) == (0, b""), done.stdout


# ---- the units ----


@pytest.fixture
def unit(fastwrite, tmp_path) -> Path:
    path = tmp_path / "fastwrite-metrics.service"
    text = (CONFIGS / "fastwrite-metrics.service.in").read_text()
    path.write_text(text.replace("@BINDIR@", str(fastwrite.resolve().parent)))
    shutil.copy(CONFIGS / "fastwrite-metrics.timer", tmp_path)
    return path


def test_units_are_sound(unit):
    if shutil.which("systemd-analyze") is None:
        pytest.skip("systemd-analyze is not there")
    for path in (unit, unit.with_suffix(".timer")):
        done = subprocess.run(
            ["systemd-analyze", "verify", "--man=no", path], capture_output=True, text=True, check=False
        )
        said = [line for line in done.stderr.splitlines() if "fastwrite-metrics" in line]
        assert done.returncode == 0 and said == [], done.stderr


def unit_command(unit: Path) -> list[str]:
    line = re.search(r"^ExecStart=(.*)$", unit.read_text(), re.M)[1]
    return [word.replace("$$", "$") for word in shlex.split(line)]


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root to be two users")
@pytest.mark.skipif(shutil.which("setpriv") is None, reason="setpriv is not installed")
def test_unit_has_the_capabilities_that_it_needs(unit, library, writes, place, tmp_path):
    """It sees programs of other users, living and dead."""
    kept = " ".join(re.findall(r"^CapabilityBoundingSet=(.*)$", unit.read_text(), re.M)).lower()
    keep = kept.replace("cap_", "+").replace(" ", ",")
    place.chmod(0o755)
    for name in ("living", "dead"):
        (place / name).mkdir(0o700)
        os.chown(place / name, 65534, 65534)
    user = ["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups"]
    dead = {**os.environ, **preload_env(library, f"{place}/dead/*", **SETTINGS)}
    done = subprocess.run([*user, writes, place / "dead" / "x", "die"], env=dead, check=False)
    assert done.returncode == -signal.SIGKILL
    page = tmp_path / "fastwrite.prom"
    env = {**os.environ, "TEXTFILE": str(page), "FASTWRITE_PATHS": f"{place}/dead/*"}
    with running(library, [*user, writes, place / "living" / "x"], f"{place}/living/*") as process:
        command = ["setpriv", f"--bounding-set=-all,{keep}", "--no-new-privs", *unit_command(unit)]
        subprocess.run(command, env=env, check=True, timeout=300)
        metrics = checked(page.read_bytes())
        assert of_process(metrics, process.pid)
        assert metrics["fastwrite_waiting_bytes"].samples


def test_unit_replaces_the_file_by_a_whole_one(unit, tmp_path):
    """When the command fails, the old file stays."""
    command = unit_command(unit)
    page = tmp_path / "fastwrite.prom"
    env = {**os.environ, "TEXTFILE": str(page)}
    subprocess.run(command, env=env, check=True, timeout=300)
    assert "fastwrite_arenas" in checked(page.read_bytes())
    assert not page.with_name("fastwrite.prom.new").exists()
    page.write_text("old\n")
    broken = [word.replace("--prometheus", "--frobnicate") for word in command]
    done = subprocess.run(broken, env=env, capture_output=True, check=False, timeout=300)
    assert done.returncode != 0
    assert page.read_text() == "old\n"


@pytest.mark.parametrize("when", ["before", "meanwhile"])
def test_unit_follows_no_planted_link(unit, tmp_path, when):
    """The directory may belong to the user of the exporter."""
    command = unit_command(unit)
    page = tmp_path / "fastwrite.prom"
    other = tmp_path / "other"
    other.write_text("other\n")
    page.with_name("fastwrite.prom.new").symlink_to(other)
    if when == "meanwhile":
        command = [word.replace('rm -f "$TEXTFILE.new"', "true") for word in command]
    env = {**os.environ, "TEXTFILE": str(page)}
    done = subprocess.run(command, env=env, capture_output=True, check=False, timeout=300)
    assert other.read_text() == "other\n"
    assert (done.returncode == 0) == (when == "before")
    if when == "before":
        assert not page.is_symlink()
        assert "fastwrite_arenas" in checked(page.read_bytes())


def test_unit_replaces_a_link_to_a_directory(unit, tmp_path):
    page = tmp_path / "fastwrite.prom"
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    page.symlink_to(elsewhere)
    env = {**os.environ, "TEXTFILE": str(page)}
    subprocess.run(unit_command(unit), env=env, check=True, timeout=300)
    assert list(elsewhere.iterdir()) == []
    assert "fastwrite_arenas" in checked(page.read_bytes())


# ---- the table ----


def rows_of(table: list[str], pid: int) -> list[str]:
    return [line for line in table if line.split()[:1] == [str(pid)]]


def tables(text: str) -> list[list[str]]:
    assert text.endswith("\n\n")
    return [table.split("\n") for table in text[:-2].split("\n\n")]


def test_two_tables(library, writes, status, place):
    """The first has no rates, the second has."""
    with running(library, [writes, place / "log", "map"], f"{place}/**") as process:
        first, second = tables(status("--watch=0.1", "--count=2").decode())
        assert first[0].split() == (
            [
                "PID",
                "PROGRAM",
                "RULE",
                "STAGED",
                "BLOCKS",
                "WRITES/S",
                "MB/S",
                "FLUSHES/S",
                "SYNCS/S",
                "LOSS",
                "MS",
                "BYPASSED",
            ]
        )
        blocks = arena_of(status, process.pid)["blocks"]
        (row,) = rows_of(first, process.pid)
        _, program, rule, staged, used, *rates = row.split(maxsplit=10)
        assert (program, rule, staged) == (writes.name[:16], "env", "0")
        assert used == f"0/{blocks}"
        assert rates == ["-"] * 5 + ["mmap 1"]
        (row,) = rows_of(second, process.pid)
        rates = row.split(maxsplit=10)[5:]
        assert all(re.fullmatch(r"\d+(\.\d+)?", rate) for rate in rates[:4])
        assert rates[4:] == ["-", "mmap 1"]


def test_rates_follow_the_program(fastwrite, library, writes, place):
    """Until SIGINT, which is no error."""
    with (
        running(library, [writes, place / "log"], f"{place}/**") as process,
        subprocess.Popen(
            [fastwrite, "status", "--watch=0.1"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        ) as watch,
    ):
        try:
            for _ in range(TABLES_MAX):
                table = list(iter(watch.stdout.readline, "\n"))
                (row,) = rows_of(table, process.pid)
                rates = row.split()[5:8]
                if all(rate != "-" and float(rate) > 0 for rate in rates):
                    break
                write_more(process)
            else:
                pytest.fail(f"no rate: {row}")
            watch.send_signal(signal.SIGINT)
            _, error = watch.communicate(timeout=300)
            assert (watch.returncode, error) == (0, "")
        finally:
            watch.kill()


def on_terminal(command: list[object], columns: int, lines: int) -> str:
    """What it prints on a terminal of that size."""
    script = f"stty cols {columns} rows {lines}; exec {shlex.join(map(str, command))}"
    done = subprocess.run(
        ["script", "-qec", script, "/dev/null"], stdin=subprocess.DEVNULL, capture_output=True, timeout=300
    )
    assert done.returncode == 0, done
    return done.stdout.decode()


def test_a_terminal_is_cleared_and_lines_are_cut(fastwrite, library, writes, place):
    if shutil.which("script") is None:
        pytest.skip("script is not installed")
    with running(library, [writes, place / "log"], f"{place}/**") as process:
        text = on_terminal([fastwrite, "status", "--watch=0.1", "--count=2"], 40, 100)
        before, *shown = text.split("\x1b[H\x1b[J")
        assert before == ""
        assert len(shown) == 2
        for table in shown:
            found = table.splitlines()
            assert rows_of(found, process.pid)
            assert max(map(len, found)) <= 40


# ---- usage ----


@pytest.mark.parametrize(
    ("arguments", "part"),
    [
        (["--json", "--prometheus"], "only one of --json, --prometheus and --watch"),
        (["--watch", "--prometheus"], "only one of"),
        (["--watch", "--json"], "only one of"),
        (["--count=2"], "--count needs --watch"),
        (["--watch=0"], "--watch=0: allowed: 0.1 to 86400"),
        (["--watch="], "--watch=: allowed"),
        (["--watch=-1"], "allowed"),
        (["--watch=1e3"], "allowed"),
        (["--watch=nan"], "allowed"),
        (["--watch=1.2.3"], "allowed"),
        (["--watch=1000000"], "allowed"),
        (["--watch", "--count=0"], "--count=0: allowed: 1 to 1000000000"),
        (["--watch", "--count=-1"], "allowed"),
        (["--watch", "--count=99999999999999999999"], "allowed"),
        (["--watch", "2"], 'unexpected argument "2"'),
    ],
)
def test_wrong_usage(fastwrite, arguments, part):
    done = subprocess.run(
        [fastwrite, "status", *arguments], capture_output=True, text=True, check=False, timeout=300
    )
    assert (done.returncode, done.stdout) == (2, "")
    assert part in done.stderr
