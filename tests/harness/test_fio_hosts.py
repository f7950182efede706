# SPDX-License-Identifier: Apache-2.0
"""fio experiments on several hosts: two real fio servers on the loopback address."""

import json
import shutil
import socket
import subprocess
import sys
import time
from dataclasses import replace

import lab_fakes as fakes
import pytest

from harness import ROOT
from harness.core.executor import Completed
from harness.core.model import LabError
from harness.report import page as report
from harness.report import summary
from harness.run import catalog, hosts

needs_fio = pytest.mark.skipif(shutil.which("fio") is None, reason="no fio here")


def test_hosts_are_parsed():
    found = hosts.parse("a, b:7", "a:9", "/data")
    assert [h.label for h in found.of("native")] == ["a:8765", "b:7"] and found.of("shim") == (
        hosts.Host("a", 9),
    )
    assert found.of("control") == () and hosts.parse("", "", "") is None


@pytest.mark.parametrize(
    ("native", "shim", "directory", "said"),
    [
        ("a:b", "", "/d", "not a host or host:port"),
        ("a", "", "", "needs --remote-dir"),
        ("a", "", "d", "an absolute path"),
        ("", "a", "/d", "without --hosts"),
        ("", "", "/d", "is for --hosts"),
        ("a,a", "", "/d", "named twice"),
        ("a", "a", "/d", "named twice"),
    ],
)
def test_mistakes_are_named(native, shim, directory, said):
    with pytest.raises(LabError, match=said):
        hosts.parse(native, shim, directory)


def test_only_measured_fio_rows_run_elsewhere(experiments):
    elsewhere = hosts.parse("a", "", "/d")
    hosts.check(elsewhere, [experiments["002-1"]], ("measure",))
    with pytest.raises(LabError, match="E1: not a fio experiment"):
        hosts.check(elsewhere, [experiments["E1"]], ("measure",))
    with pytest.raises(LabError, match="--kinds measure"):
        hosts.check(elsewhere, [experiments["002-1"]], ("kill",))


def test_a_host_that_says_nothing_is_named():
    done = Completed(0, '<vm> fio: /d is not a directory\n{\n "client_stats": []\n}\n', "", 1.0)
    with pytest.raises(LabError, match=r"b:7: no result: .*not a directory"):
        hosts._jobs(done, (hosts.Host("b", 7),))


def test_figures_of_several_hosts():
    one = {"direction": "write", "io_bytes": 10, "runtime_ms": 5, "iops": 100.0, "jobs": 2, "iodepth": 4,
           "outstanding": 8, "lat_mean_us": 10.0, "lat_p99_us": 50.0}  # fmt: skip
    other = {**one, "iops": 300.0, "lat_mean_us": 30.0, "lat_p99_us": 20.0, "runtime_ms": 9}
    found = hosts.together({"a": one, "b": other})
    assert (found["iops"], found["io_bytes"], found["runtime_ms"], found["outstanding"]) == (400, 20, 9, 16)
    assert found["lat_mean_us"] == 25 and found["lat_p99_us"] == 50 and found["hosts"]["b"] == other


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


@pytest.fixture
def servers(tmp_path):
    """host:port of two servers, whose jobs run in a scratch directory."""
    ports = [free_port(), free_port()]
    started = [
        subprocess.Popen(["fio", f"--server=ip:127.0.0.1,{port}"], cwd=tmp_path, stdout=subprocess.DEVNULL,
                         stderr=subprocess.DEVNULL) for port in ports
    ]  # fmt: skip
    deadline = time.monotonic() + 10
    for port in ports:
        while True:
            try:
                socket.create_connection(("127.0.0.1", port), 1).close()
                break
            except OSError:
                assert time.monotonic() < deadline, "fio server does not listen"
                time.sleep(0.05)
    yield [f"127.0.0.1:{port}" for port in ports]
    for process in started:
        process.kill()
        process.wait()


@needs_fio
def test_two_servers_are_measured_verified_and_left_empty(tmp_path, servers):
    remote, out = tmp_path / "remote", tmp_path / "out"
    remote.mkdir()
    (remote / "letter").write_text("dear")
    (remote / f"fastwrite-lab-{servers[0].replace(':', '-')}.0").write_text("left by a killed run")
    done = subprocess.run(
        [sys.executable, "-m", "harness", "run", "002-5", "004-R-psync-1x1", "--scale", "tiny", "--pairs", "1",
         "--kinds", "measure", "--hosts", ",".join(servers), "--remote-dir", str(remote),
         "--dir", str(tmp_path / "work"), "--out", str(out)],
        cwd=ROOT, capture_output=True, text=True, timeout=100,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    samples = {s["leg"]: s for s in map(json.loads, (out / "samples.jsonl").read_text().splitlines())}
    assert samples["002-5/measure/1/shim"]["status"] == "skipped"
    for name in ("002-5/measure/1/native", "004-R-psync-1x1/measure/1/native"):
        sample = samples[name]
        assert sample["status"] == "ok", sample
        by_host = sample["outcome"]["hosts"]
        assert list(by_host) == servers and all(
            h["iops"] > 0 and h["lat_p99_us"] > 0 for h in by_host.values()
        )
        assert sample["outcome"]["iops"] == pytest.approx(sum(h["iops"] for h in by_host.values()))
        assert sample["verification"]["verified_bytes"] == sample["verification"]["owed_bytes"] > 0
    assert samples["002-5/measure/1/native"]["bytes"] == 2 * (4 << 20)
    assert [p.name for p in remote.iterdir()] == ["letter"] and not (tmp_path / "work").exists()

    found = summary.summarize(catalog.load().experiments, list(samples.values()), "tiny", 2)
    row = next(r for r in found.rows if r.experiment.id == "002-5")
    assert list(row.figures["native"].hosts) == servers
    assert f"IOPS of {servers[1]}" in report.render(fakes.settings(), found, list(samples.values()))


@needs_fio
def test_what_is_not_as_written_on_a_host_fails_the_leg(tmp_path, servers, experiments):
    """The files of one host are damaged between the run and the check, on the host's side."""
    from harness.core.clock import RealClock
    from harness.core.executor import RealExecutor
    from harness.core.model import Leg
    from harness.run.plan import size_of

    remote = tmp_path / "remote"
    remote.mkdir()

    class Damaging(RealExecutor):
        def run(self, command, *args, **kwargs):
            for path in sorted(remote.glob("fastwrite-lab-*"))[-1:]:
                with open(path, "r+b") as file:
                    file.seek(8192)
                    file.write(b"damaged")
            return super().run(command, *args, **kwargs)

    bench = fakes.fake_bench(tmp_path)
    bench = replace(
        bench, executor=Damaging(RealClock()), hosts=hosts.parse(",".join(servers), "", str(remote))
    )
    row, leg = experiments["002-5"], Leg("002-5", "measure", 1, "native")
    one = hosts.HostsExecution(bench, None, row, leg, size_of(row, leg, "tiny"), None)
    sample = one.run()
    assert (
        sample["status"] == "failed"
        and "verification failed" in sample["reason"]
        and "rate_mb_s" not in sample
    )
    assert any(server in sample["reason"] for server in servers)
    one.clean()
    assert not list(remote.iterdir())
