# SPDX-License-Identifier: Apache-2.0
"""The static probes of the library, and the scripts for bpftrace that use them."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
from dataclasses import dataclass

import pytest
from lib.support import ROOT, disk_dir, preload_env, wait_for

SCRIPTS = sorted((ROOT / "configs" / "bpftrace").glob("*.bt"))
HEADER = ROOT / "shim" / "base" / "probe.h"
# Size in bytes of each argument, negative if it is signed.
PROBES = {
    "stage": (8, 8, 8),
    "flush_begin": (8, 8),
    "flush": (8, 8, 8, -4),
    "sync": (8, 8, -4),
    "attach": (8, 8),
    "detach": (8, 8),
    "bypass": (8, 8, 4),
    "epoch": (8, 8, 8),
}
NOTE = re.compile(
    r"Provider: (\w+)\s+Name: (\w+)\s+Location: (0x\w+), Base: 0x\w+, Semaphore: (0x\w+)\s+Arguments: (.*)"
)

ARGUMENT = re.compile(r"-?\d+@(?:\[[^]]*\]|\S+)")  # aarch64 says 8@[x0, 56]

# Writes 3000 lines, syncs, maps the file and writes once more.
WRITES = r"""
#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>
int main(int argc, char **argv)
{
	int fd = open(argv[1], O_RDWR | O_CREAT | O_TRUNC, 0644);
	(void)argc;
	for (int i = 0; i < 3000; i++)
		if (write(fd, "0123456789", 10) != 10)
			return 1;
	if (fsync(fd) != 0 || mmap(NULL, 1, PROT_READ, MAP_SHARED, fd, 0) == MAP_FAILED)
		return 2;
	return write(fd, "x", 1) != 1;
}
"""


@dataclass
class Probe:
    provider: str
    name: str
    location: int
    semaphore: int
    arguments: list[str]  # "8@%rax", "-4@8(%rbx)", ...

    def sizes(self) -> tuple[int, ...]:
        return tuple(int(argument.split("@")[0]) for argument in self.arguments)


@pytest.fixture(scope="module")
def probes(library) -> list[Probe]:
    notes = subprocess.run(
        ["readelf", "-nW", library],
        capture_output=True,
        text=True,
        check=True,
        env={**os.environ, "LC_ALL": "C"},
    ).stdout
    found = [
        Probe(provider, name, int(at, 16), int(semaphore, 16), ARGUMENT.findall(arguments))
        for provider, name, at, semaphore, arguments in NOTE.findall(notes)
    ]
    assert len(found) == notes.count("NT_STAPSDT")
    if not found:
        pytest.skip("the library was built without <sys/sdt.h> (Debian: systemtap-sdt-dev) and has no probes")
    return found


@pytest.fixture(scope="module")
def bpftrace(probes) -> str:
    """The program, which may trace here."""
    program = shutil.which("bpftrace")
    if program is None:
        pytest.skip("bpftrace is not installed")
    if os.geteuid() != 0:
        pytest.skip("bpftrace needs root")
    done = subprocess.run(
        [program, "-e", "BEGIN { exit(); }"], capture_output=True, text=True, check=False, timeout=300
    )
    if done.returncode != 0:
        pytest.skip(f"bpftrace may not trace here: {done.stderr.strip()}")
    return program


def test_each_has_its_arguments_everywhere(probes):
    assert {probe.provider for probe in probes} == {"fastwrite"}
    assert {probe.name for probe in probes} == set(PROBES)
    for probe in probes:
        assert probe.sizes() == PROBES[probe.name], probe
        assert probe.semaphore == 0


def test_each_is_a_nop(probes, library):
    for probe in probes:
        range_of = [f"--start-address={probe.location}", f"--stop-address={probe.location + 4}"]
        code = subprocess.run(
            ["objdump", "-d", "--no-show-raw-insn", *range_of, library],
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        first = re.search(rf"^ *{probe.location:x}:\s*(.*?)\s*$", code, re.M)
        assert first and first[1] == "nop", code


def test_device_and_inode_are_read_where_they_are(probes):
    """An atomic load would be an instruction in the path of each write."""
    for probe in probes:
        if probe.name != "epoch":
            assert all("(" in place or "[" in place for place in probe.arguments[:2]), probe


def test_header_says_what_they_tell():
    told = re.findall(r"\b(\w+)\(([^)]*)\)", HEADER.read_text().split("#ifndef")[0])
    told = {name: len(arguments.split(",")) for name, arguments in told if name != "PROBE"}
    assert told == {name: len(sizes) for name, sizes in PROBES.items()}


@pytest.mark.parametrize("source", ["attach/attach.c", "flush/epoch.c", "staging/stage.c", "sync/sync.c"])
def test_builds_without_the_header(tmp_path, source):
    flags = ["-std=gnu17", "-D_GNU_SOURCE", "-DFASTWRITE_NO_PROBES", "-O2", "-Wall", "-Wextra", "-Werror"]
    out = tmp_path / "out.o"
    subprocess.run(
        ["cc", *flags, f"-I{ROOT / 'shim'}", "-c", "-o", out, ROOT / "shim" / source], check=True, timeout=300
    )
    assert b"stapsdt" not in out.read_bytes()


def test_scripts_use_what_there_is():
    assert [path.name for path in SCRIPTS] == ["fastwrite-bypass.bt", "fastwrite-flushes.bt"]
    for path in SCRIPTS:
        text = path.read_text()
        for name, body in re.findall(r"^usdt:\$1:fastwrite:(\w+)\n(.*?)^\}", text, re.M | re.S):
            assert max(map(int, re.findall(r"\barg(\d)", body)), default=-1) < len(PROBES[name]), body


def test_reasons_are_those_of_the_code():
    script = next(path for path in SCRIPTS if "bypass" in path.name).read_text()
    code = (ROOT / "shim" / "format" / "counters.c").read_text()
    names = dict(re.findall(r'\[(BYPASS_\w+)\] = "([^"]+)"', code.split("reason_texts[", 1)[0]))
    enum = (ROOT / "shim" / "format" / "counters.h").read_text().split("enum bypass_reason {")[1]
    order = re.findall(r"^\t(BYPASS_\w+),?", enum, re.M)[:-1]
    assert order[0] == "BYPASS_NONE" and len(order) == len(names)
    said = re.findall(r'@reason\[(\d+)\] = "([^"]+)";', script)
    assert said == [(str(i), names[reason]) for i, reason in enumerate(order)]
    left_out = {order[int(number)] for number in re.findall(r"arg2 != (\d+)", script)}
    assert left_out == {"BYPASS_EXEC", "BYPASS_EXIT"}


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda path: path.stem)
def test_bpftrace_understands(bpftrace, library, script):
    done = subprocess.run(
        [bpftrace, "-d", script, library], capture_output=True, text=True, check=False, timeout=300
    )
    assert done.returncode == 0, done.stderr
    assert "AST after: Semantic" in done.stdout + done.stderr


@pytest.mark.parametrize(
    ("script", "at_once", "at_the_end"),
    [
        ("flushes", r"@staged\[\d+, writes\]: 2\d{4}\n", r"@flush_bytes\[\d+, writes\]: *\n"),
        ("bypass", r"^\S+ +\d+ +writes +\d+:\d+ +\d+ +mmap$", r"@bypassed\[mmap\]: \d+\n"),
    ],
)
def test_scripts_say_what_happens(bpftrace, library, compile_c, tmp_path, script, at_once, at_the_end):
    program = tmp_path / "writes"
    shutil.copy(compile_c(WRITES), program)
    out = tmp_path / "out"

    with disk_dir() as place:
        env = {**os.environ, **preload_env(library, f"{place}/**")}

        def is_said() -> bool:
            """The probes are set some time after the first line."""
            subprocess.run([program, place / "data"], env=env, check=True, timeout=300)
            assert tracer.poll() is None, out.read_text()
            return re.search(at_once, out.read_text(), re.M) is not None

        with out.open("w") as file:
            tracer = subprocess.Popen(
                [bpftrace, ROOT / "configs" / "bpftrace" / f"fastwrite-{script}.bt", library],
                stdout=file,
                stderr=file,
            )
        try:
            wait_for(is_said, script)
            tracer.send_signal(signal.SIGINT)
            tracer.wait(timeout=300)
        finally:
            tracer.kill()
            tracer.wait()
    assert re.search(at_the_end, out.read_text()), out.read_text()


def test_scripts_are_installed_and_go(tmp_path):
    documents = tmp_path / "usr" / "share" / "doc" / "fastwrite"
    for target in ("install", "uninstall"):
        subprocess.run(
            ["make", "-s", "-C", ROOT, target, "PREFIX=/usr", f"DESTDIR={tmp_path}"], check=True, timeout=600
        )
        for script in SCRIPTS:
            assert (documents / script.name).is_file() == (target == "install")
