# SPDX-License-Identifier: Apache-2.0
"""Applications: what a leg is, what it takes for wrong, what may be lost; and real programs, tiny."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from lib.support import wait_for

from harness import ROOT
from harness.apps import cells as app_cells
from harness.apps import drive
from harness.core import cell, environment, shim, variants
from harness.core.cell import LegError, Measured, Programs, Timing, socket_directory
from harness.core.clock import RealClock
from harness.core.executor import Command, RealExecutor
from harness.core.model import EATMYDATA, NATIVE, OWN, SHIM, SHIM_JOURNAL, LabError, Leg, UnavailableError
from harness.core.samples import Samples
from harness.report import variant_table
from harness.report.summary import summarize
from harness.run import catalog
from harness.tools import TOOLS
from harness.workloads import latency

SHORT = Timing(0.05, 0.2)
APPS = [e for e in catalog.load().experiments if e.suite == "apps"]


def made(app, own=False, **params):
    return app_cells.cell(Programs(RealExecutor(), RealClock()), {"app": app, "clients": 4, **params}, own)


def needs(cell, place):
    reason = cell.missing(place.stage, None)
    if reason:
        pytest.skip(reason)
    return cell


# ---- rows and variants ----


def test_the_catalog_has_every_application():
    assert {e.id for e in APPS} == {
        "APP-SQLITE-DELETE", "APP-SQLITE-WAL", "APP-REDIS-ALWAYS", "APP-REDIS-EVERYSEC", "APP-POSTGRES",
        "APP-MARIADB", "APP-NGINX", "APP-RSYSLOG", "APP-RSYSLOG-SYNC", "APP-PYTHON",
    }  # fmt: skip
    for experiment in APPS:
        for own in (False, True):
            assert app_cells.cell(None, experiment.params, own).unit == experiment.figure_unit


@pytest.mark.parametrize("experiment", APPS, ids=lambda e: e.id)
def test_every_variant_says_what_it_may_lose(experiment):
    for variant in experiment.variants:
        kill, power = variants.losses(experiment, variant)
        assert kill and power, variant


def test_a_variant_is_the_environment_of_the_program(tmp_path, monkeypatch):
    built = shim.Shim(tmp_path / "l.so", tmp_path / "c")
    alone = {"FASTWRITE_WRITERS": "exclusive"}

    def env(name, there=built):
        return variants.environment(name, there, tmp_path, alone, "**")

    assert env(NATIVE) == env(OWN) == {}
    assert env(SHIM)["FASTWRITE_PATHS"] == f"{tmp_path}/**" and "FASTWRITE_SYNC" not in env(SHIM)
    assert env(SHIM_JOURNAL)["FASTWRITE_SYNC"] == "journal"
    assert env(SHIM_JOURNAL)["FASTWRITE_WRITERS"] == "exclusive"
    monkeypatch.setattr(variants, "eatmydata", lambda: Path("/e.so"))
    assert env(EATMYDATA) == {"LD_PRELOAD": "/e.so"}
    monkeypatch.setattr(variants, "eatmydata", lambda: None)
    with pytest.raises(UnavailableError, match="eatmydata"):
        env(EATMYDATA)
    with pytest.raises(UnavailableError, match="not built"):
        env(SHIM, "not built")


def test_only_the_application_is_put_under_a_variant():
    tool = TOOLS["app"]
    found = tool.environment({"LD_PRELOAD": "/l.so"})
    assert "LD_PRELOAD" not in found
    assert json.loads(found[drive.ENVIRONMENT]) == {"LD_PRELOAD": "/l.so"}
    size = {"ms": 1, "warmup_ms": 1, "most": 1}
    assert tool.leg_size(size, Leg("X", "measure", 1, OWN))["own"] == 1
    assert tool.leg_size(size, Leg("X", "measure", 1, SHIM))["own"] == 0


def test_an_unknown_application_is_named():
    with pytest.raises(LabError, match="'cobol' is none of sqlite"):
        made("cobol")
    with pytest.raises(LabError, match="'mode' is missing"):
        made("sqlite")


def test_the_table_has_a_line_per_variant_and_names_what_is_lost():
    experiment = next(e for e in APPS if e.id == "APP-SQLITE-WAL")

    def sample(variant, number, rate, status="ok"):
        return {
            "leg": f"APP-SQLITE-WAL/measure/{number}/{variant}", "experiment": experiment.id, "kind": "measure",
            "variant": variant, "round": number, "status": status, "reason": "x", "rate_mb_s": rate / 1e4,
            "write_rate_mb_s": rate / 1e4, "memory": {}, "drain_seconds": 0, "journal_transactions": None,
            "verification": {"verified_bytes": 1, "checks": "rows: 7"},
            "outcome": {"operations_per_second": rate, "p50_us": 10.0 * number, "max_us": 90.0 * number},
        }  # fmt: skip

    samples = [sample(NATIVE, n, 100.0) for n in (1, 2, 3)] + [sample(SHIM, n, 300.0) for n in (1, 2, 3)]
    samples.append(sample(OWN, 1, 900.0, "failed"))
    (row,) = summarize([experiment], samples, "tiny", 2).rows
    native, under, own = variant_table.lines(row, Samples(samples))
    assert native[:4] == ("native", "100 [100, 100]", "–", "20.0") and native[7] == "270"
    assert under[2] == "3.00 [3.00, 3.00]" and under[8] == "rows: 7"
    assert under[9:] == ("nothing, once recovery has run", "nothing synced")
    assert own[1] == "FAILED" and "consistent" in own[10]
    assert "| shim | 300" in "\n".join(variant_table.markdown([row], Samples(samples)))


def test_percentiles_are_latencies_that_were_measured():
    found = latency.summary(range(1000, 2_001_000, 1000), 1000)
    assert (found["p50_us"], found["p999_us"], found["max_us"]) == (1001, 1999, 2000)
    assert latency.summary([7], 1)["p999_us"] == 7


# ---- what is taken for wrong ----

REDIS = (
    "====== RPUSH lab x ======\n  1000 requests completed in 0.50 seconds\n\nLatency by percentile distribution:\n"
    "0.000% <= 0.039 milliseconds (cumulative count 1)\n87.500% <= 0.150 milliseconds (cumulative count 875)\n"
    "93.750% <= 0.200 milliseconds (cumulative count 938)\n99.902% <= 1.500 milliseconds (cumulative count 1000)\n"
    "100.000% <= 1.503 milliseconds (cumulative count 1000)\n\nSummary:\n  throughput summary: 2000.00 requests per "
    "second\n  latency summary (msec):\n          avg       min       p50       p95       p99       max\n"
    "        0.127     0.032     0.111     0.207     0.343     1.503\n"
)


def test_redis_benchmark_is_understood():
    found = app_cells.redis_result("RPUSH: rps=0.0 (overall: nan)\r" + REDIS, 1000)
    assert (found.rate, found.p50_us, found.p90_us, found.p999_us, found.max_us) == (
        2000,
        111,
        200,
        1500,
        1503,
    )
    at_once = REDIS.replace("2000.00 requests", "inf requests").replace("in 0.50", "in 0.00")
    assert app_cells.redis_result(at_once, 1000).seconds == app_cells.TICK_SECONDS
    for wrong in (REDIS.replace("1000 requests", "999 requests"), "Error: Connection refused"):
        with pytest.raises(LegError):
            app_cells.redis_result(wrong, 1000)


def message(number):
    return f"2026-01-01 00:00:00,000 INFO lab: {number} request from 10.0.0.1 took {number % 977} us\n"


@pytest.mark.parametrize(
    ("lines", "said"),
    [
        ([message(0), message(2)], "message 2 instead of 1"),
        ([message(0), message(0)], "message 0 instead of 1"),
        ([message(0)], "1 lines, 2 were logged"),
        ([message(0), message(1).rstrip("\n")], "line 2"),
        ([message(0), message(1).replace("took 1", "took 2")], "message 1 instead of 1"),
        ([message(0), "\0" * 40 + "\n"], "line 2"),
    ],
)
def test_a_log_that_is_not_whole_is_noticed(place, lines, said):
    (place.stage / "log").write_text("".join(lines))
    with pytest.raises(LegError, match=said):
        made("python-logging").verify(place, Measured(2, 1.0, total=2))


def request_line(connection, number):
    return (
        f'{connection} {number} 127.0.0.1 - - [01/Jan/2026:00:00:00 +0000] "GET / HTTP/1.1" 200 4 "-" "-"\n'
    )


def test_an_access_log_that_is_not_whole_is_noticed(place):
    whole = [request_line(7, 1), request_line(8, 1), request_line(7, 2), request_line(8, 2)]
    nginx = made("nginx")
    for lines, total, said in (
        (whole[:2] + whole[3:] + [request_line(7, 3)], 4, "not the next of its connection"),
        (whole, 5, "4 lines, 5 requests"),
        (whole, 1, "4 lines, 1 requests"),
        ([*whole, whole[0][:40]], 4, "line 5"),
    ):
        (place.stage / "access.log").write_text("".join(lines))
        with pytest.raises(LegError, match=said):
            nginx.verify(place, Measured(total, 1.0, total=total))
    (place.stage / "access.log").write_text("".join(whole))
    assert nginx.verify(place, Measured(3, 1.0, total=3))["lines"] == 4


def test_a_socket_has_a_path_that_fits(tmp_path):
    deep = tmp_path / ("x" * 90)
    deep.mkdir()
    for control in (deep, Path("/tmp") / f"fastwrite-lab-test-{os.getpid()}"):
        control.mkdir(exist_ok=True)
        with socket_directory(control) as found:
            assert len(str(found)) <= 90 and found.is_dir()
    assert (control / "sockets").is_dir()
    (control / "sockets").rmdir()
    control.rmdir()
    assert not found.exists()


# ---- for real ----

SERVERS = [
    ("redis", {"mode": "always"}),
    ("mariadb", {}),
    ("nginx", {}),
    ("rsyslog", {"mode": "buffered"}),
    ("rsyslog", {"mode": "sync"}),
]


@pytest.mark.parametrize("own", [False, True])
@pytest.mark.parametrize(("app", "params"), SERVERS)
def test_a_server_is_measured_and_verified(place, app, params, own):
    cell = needs(made(app, own, **params), place)
    found = cell.run(place, SHORT)
    assert found.total >= found.count > 0 and found.verified
    assert 0 < found.p50_us <= found.p95_us <= found.p99_us <= found.p999_us <= found.max_us


def test_a_server_that_comes_back_with_other_data_is_noticed(place):
    cell = needs(made("redis", mode="always"), place)
    found = cell.measure(place, SHORT)
    log = next((place.stage / "appendonlydir").glob("*.incr.aof"))
    whole = log.read_bytes()
    with log.open("ab") as file:
        file.write(b"*3\r\n$5\r\nRPUSH\r\n$3\r\nlab\r\n$1\r\nx\r\n")
    with pytest.raises(LegError, match="elements"):
        cell.verify(place, found)
    log.write_bytes(whole.replace(b"xxxx", b"xxxy", 1))
    with pytest.raises(LegError, match="other data"):
        cell.verify(place, found)
    log.write_bytes(whole[:-10])
    with pytest.raises(LegError):
        cell.verify(place, found)


STATISTICS = (
    "fastwrite: pid 1 (x), rule env: 7 writes staged, 700 bytes; 3 flushes, 700 bytes, 0 by O_DIRECT; "
    "9 syncs asked, 1 done, {} by the journal; 4 drains\n"
)


class Late:
    """An application under the journal, which is ready after this many seconds."""

    by_journal, served = True, False

    def __init__(self, ready_after: float) -> None:
        self.ready_after, self.warmups, self.found = ready_after, [], []

    def measure(self, place, timing):
        self.warmups.append(timing.warmup)
        self.found.append([path.name for path in place.stage.iterdir()])
        (place.stage / "left").mkdir()
        (place.stage / "left" / "file").write_text("x")
        (place.stage / "log").write_text("x")
        answered = int(timing.warmup + timing.seconds > self.ready_after)
        with Path(place.env["FASTWRITE_STATS"]).open("a") as statistics:
            statistics.write(STATISTICS.format(answered))
        return Measured(5, timing.seconds, total=5)


@pytest.mark.parametrize(("ready_after", "legs"), [(0, 1), (1, 3), (1000, None)])
def test_a_leg_warms_until_the_journal_answers(tmp_path, monkeypatch, ready_after, legs):
    """A thread makes the journal: on a slow disk a short leg ends before it is ready."""
    env = {"FASTWRITE_STATS": str(tmp_path / "statistics"), "FASTWRITE_SYNC": "journal"}
    for name in ("stage", "control"):
        (tmp_path / name).mkdir()
    late = Late(ready_after)
    monkeypatch.setattr(drive.Request, "cell", lambda self: late)
    request = drive.Request({}, False, str(tmp_path / "stage"), str(tmp_path / "control"), "", 0.05, 0.2)
    if legs is None:
        with pytest.raises(LegError, match="not one of 9 syncs"):
            drive.drive(request, env)
        return
    assert drive.drive(request, env)["count"] == 5
    assert late.warmups[0] == 0.05 and late.warmups == sorted(late.warmups) and len(late.warmups) == legs
    assert not any(late.found), "each begins in an empty directory"


@pytest.mark.parametrize(
    ("sync", "served", "why"),
    [
        ("fdatasync", True, ""),
        ("fsync", True, ""),
        ("fdatasync", False, "left no statistics"),
        ("relaxed", True, "left no statistics"),
    ],
)
def test_a_server_that_syncs_each_write_needs_no_statistics(tmp_path, sync, served, why):
    """Its file is never looked at.  That it had the library was seen otherwise."""
    look = lambda: cell.counters({"FASTWRITE_SYNC": sync}, tmp_path / "none", True, served)  # noqa: E731
    if why:
        with pytest.raises(LegError, match=why):
            look()
    else:
        assert look() == shim.Counters()


def test_a_server_without_the_library_is_noticed(tmp_path):
    env = {"LD_PRELOAD": str(tmp_path / "libabsent.so")}
    programs, log = Programs(RealExecutor(), RealClock()), tmp_path / "log"
    with pytest.raises(LegError, match="the library was not there"):
        with programs.server(Command(("sleep", "60"), env), log, lambda: True, stop=signal.SIGKILL):
            pass


def run_harness(*args):
    argv = [sys.executable, "-m", "harness", *map(str, args)]
    return subprocess.run(argv, cwd=ROOT, capture_output=True, text=True, timeout=120)


def test_a_suite_runs_resumes_and_leaves_nothing(tmp_path):
    work, out = tmp_path / "work", tmp_path / "out"
    run = [
        "run",
        "APP-SQLITE-WAL",
        "APP-PYTHON",
        "--scale",
        "tiny",
        "--pairs",
        "1",
        "--no-warm",
        "--dir",
        work,
    ]
    done = run_harness(*run, "--out", out)
    assert done.returncode == 0, done.stdout + done.stderr
    found = [json.loads(line) for line in (out / "samples.jsonl").read_text().splitlines()]
    assert len(found) == 10 and not work.exists()
    good = {s["leg"]: s for s in found if s["status"] == "ok"}
    assert {s["variant"] for s in good.values()} >= {NATIVE, OWN}
    native = good["APP-SQLITE-WAL/measure/1/native"]
    assert (
        native["outcome"]["operations_per_second"] > 0
        and "integrity_check: ok" in native["verification"]["checks"]
    )
    if not isinstance(shim.find(), str):
        assert good["APP-SQLITE-WAL/measure/1/shim-journal"]["shim_counters"]["syncs_by_journal"] > 0
        assert good["APP-SQLITE-WAL/measure/1/shim-ordered"]["shim_counters"]["staged_bytes"] > 0
        assert good["APP-PYTHON/measure/1/shim"]["shim_counters"]["staged_bytes"] > 0
        assert "shim_counters" not in native
    assert "a power loss may lose" in (out / "results.md").read_text()
    assert "a power loss may lose" in (out / "report.html").read_text()
    again = run_harness("run", "--resume", out, "--dir", work)
    assert again.returncode == 0, again.stdout + again.stderr


def running(work):
    """Command lines of processes that name the work directory."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        try:
            words = (process / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
        except OSError:
            continue
        if str(work) in words:
            found.append(words)
    return found


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL])
def test_a_server_does_not_outlive_the_laboratory(tmp_path, place, number):
    needs(made("redis", mode="always"), place)
    work = tmp_path / "work"
    argv = [sys.executable, "-m", "harness", "run", "APP-REDIS-ALWAYS", "--scale", "full", "--no-warm",
            "--dir", str(work), "--out", str(tmp_path / "out")]  # fmt: skip
    process = subprocess.Popen(argv, cwd=ROOT, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:

        def serves() -> bool:
            return any(
                words.startswith("/usr/bin/redis-server") or "redis-benchmark" in words
                for words in running(work)
            )

        wait_for(lambda: serves() or process.poll() is not None, "a server")
        assert process.poll() is None
        process.send_signal(number)
        process.wait(60)
    finally:
        process.kill()
        process.wait()
    wait_for(lambda: not running(work), "the end of all")
    assert work.exists() == (number == signal.SIGKILL)
    if number == signal.SIGKILL:
        done = run_harness("run", "APP-PYTHON", "--scale", "tiny", "--pairs", "1", "--no-warm", "--dir", work,
                           "--out", tmp_path / "second")  # fmt: skip
        assert done.returncode == 0 and not work.exists(), done.stdout


def test_versions_are_part_of_what_must_be_equal():
    assert "applications" in environment.IDENTITY
    found = app_cells.versions()
    for program, name in {"redis-server": "redis-server", "nginx": "nginx", "rsyslogd": "rsyslogd"}.items():
        assert bool(found[name]) == bool(app_cells.find(program))
    assert found["sqlite"][0] == "3"


def test_a_suite_is_run_by_its_name():
    done = run_harness("suite", "apps", "--dry-run", "--pairs", "1")
    assert done.returncode == 0 and "55 legs" in done.stdout and "Nothing was written" in done.stdout
    assert run_harness("suite", "aps", "--dry-run").returncode == 2
