# SPDX-License-Identifier: Apache-2.0
"""The command: verbs, exit statuses, messages about wrong input."""

from __future__ import annotations

import json
import os
import platform
import re
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from lib.command_line import COMMON, MANUAL, VERBS, options_of
from lib.support import disk_dir, too_slow, wait_for

ROOT = Path(__file__).resolve().parent.parent
KEYS = [
    "sync",
    "relaxed_ms",
    "ordered_ms",
    "journal",
    "mem",
    "block",
    "lag_ms",
    "visibility",
    "writers",
    "flush",
    "prealloc",
    "prealloc_mode",
    "staging",
    "small",
    "adapt",
    "stdio",
]
HANGS = 300  # seconds; ends only what hangs
NOTHING = "int main(void) { return 0; }"
# In front of the library's path: musl's loader does not fill in $LIB, and passes over the entry.
GLIBC_ONLY = "/$LIB/../../../../../.."


@pytest.fixture
def cli(fastwrite: Path, tmp_path: Path):
    """cli(*arguments, env={...}) runs the command and returns its result."""

    def run(*arguments: object, env: dict[str, str] | None = None, **keywords) -> subprocess.CompletedProcess:
        keywords.setdefault("timeout", 60)
        return subprocess.run(
            [str(fastwrite), *map(str, arguments)],
            env={**os.environ, "TMPDIR": str(tmp_path), **(env or {})},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            check=False,
            **keywords,
        )

    return run


def one_line(text: str) -> str:
    """The only line of text."""
    assert text.endswith("\n")
    assert text.count("\n") == 1, text
    return text[:-1]


# ---- usage ----


def test_help_and_version(cli, build):
    done = cli("--help")
    assert done.returncode == 0
    assert all(re.search(rf"^  {verb} ", done.stdout, re.M) for verb in VERBS)
    assert "Exit status" in done.stdout
    done = cli("--version")
    assert (done.returncode, done.stderr) == (0, "")
    commit = subprocess.run([ROOT / "scripts" / "commit"], capture_output=True, text=True, check=True).stdout
    assert re.fullmatch(r"([0-9a-f]{12}(-dirty)?\n)?", commit)
    assert commit or not (ROOT / ".git").exists()
    # what the build knew: the sources may have changed since
    built = (build / ".commit").read_text()
    assert re.fullmatch(r"( \([0-9a-f]{12}(-dirty)?\))?\n" if commit else r"\n", built)
    assert re.fullmatch(r"fastwrite \d+\.\d+\.\d+" + re.escape(built), done.stdout)
    assert cli("help").stdout == cli("--help").stdout
    assert cli("version").stdout == done.stdout
    assert cli("help").returncode == cli("version").returncode == 0
    assert cli("help", "run").stdout == cli("run", "--help").stdout != ""
    assert cli("help", "walk").returncode == 2
    assert cli("version", "x").returncode == 2


@pytest.mark.parametrize("verb", VERBS)
def test_every_verb_has_help(cli, verb):
    done = cli(verb, "--help")
    assert done.returncode == 0
    assert done.stdout.startswith(f"Usage: fastwrite {verb}")
    assert "Exit status: " in done.stdout


@pytest.mark.parametrize(
    ("arguments", "part"),
    [
        ([], "a verb is missing"),
        (["frobnicate"], 'unknown verb "frobnicate"; allowed: run, recover'),
        (["--frobnicate"], "--frobnicate"),
        (["run"], "a program is missing"),
        (["run", "--frobnicate", "true"], "--frobnicate"),
        (["run", "-o", "sink=1", "true"], 'unknown key "sink"; allowed: sync, relaxed_ms'),
        (["run", "-o", "sync", "true"], "KEY=VALUE"),
        (["run", "--stats=/not/there/x", "true"], "/not/there/x"),
        (["recover"], "a PATH is missing"),
        (["status", "x"], 'unexpected argument "x"'),
        (["run", "--on-error=never", "true"], "allowed: warn, stop"),
        (["config", "x"], 'unexpected argument "x"'),
        (["check"], "a PROGRAM or PATH is missing"),
    ],
)
def test_wrong_usage(cli, arguments, part):
    done = cli(*arguments)
    assert done.returncode == 2
    assert done.stdout == ""
    assert part in done.stderr
    assert done.stderr.startswith("fastwrite")


# ---- the manual ----


def test_manual_agrees_with_help(cli):
    manual = (ROOT / "docs" / "fastwrite.1").read_text().replace("\\-", "-")
    verbs = manual.split(".SH VERBS", 1)[1].split(".SH ", 1)[0]
    sections = dict(re.findall(r"^\.SS (.+?)\n(.*?)(?=^\.SS |\Z)", verbs, re.M | re.S))
    assert set(sections) == {*VERBS, "All verbs"}
    assert re.findall(r"^  ([a-z]+)  ", cli("--help").stdout, re.M) == VERBS

    common = options_of(sections["All verbs"])
    assert common == COMMON
    settings = {"--config", "--paths", "--set"}
    for verb in VERBS:
        wanted = options_of(cli(verb, "--help").stdout.split("\n\n", 1)[1]) - common
        found = options_of(sections[verb])
        if verb in ("config", "check"):
            wanted -= settings
        assert found == wanted, verb


def test_manual_names_every_status(cli):
    manual = (ROOT / "docs" / "fastwrite.1").read_text()
    for status in ("0", "1", "2", "3", "125", "126", "127"):
        assert re.search(rf"^\.B {status}$", manual, re.M)


@pytest.mark.parametrize("page", MANUAL, ids=lambda page: page.name)
def test_manual_has_no_markup_errors(page):
    if shutil.which("man") is None or shutil.which("groff") is None:
        pytest.skip("groff is not installed")
    done = subprocess.run(
        ["groff", "-man", "-Tutf8", "-ww", "-z", str(page)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")


def test_manual_pages_name_each_other(cli):
    version = cli("--version").stdout.split()[1]
    for page in MANUAL:
        text = page.read_text()
        name, section = page.name.rsplit(".", 1)
        assert text.splitlines()[1].startswith(f'.TH {name.upper()} {section} "" "libfastwrite {version}"')
        see = re.findall(r"^\.BR ([a-z.]+) \((\d)\)", text.split(".SH SEE ALSO", 1)[1], re.M)
        assert {f"{n}.{s}" for n, s in see} >= {other.name for other in MANUAL if other != page}


def test_manual_has_a_configuration_that_is_right(cli, tmp_path):
    text = (ROOT / "docs" / "fastwrite.ini.5").read_text()
    example = text.split(".SH EXAMPLES\n.nf\n", 1)[1].split(".fi", 1)[0]
    (tmp_path / "fastwrite.ini").write_text(example)
    done = cli("config", f"--config={tmp_path}/fastwrite.ini", "--json")
    assert done.returncode == 0, done.stderr
    assert [rule["name"] for rule in json.loads(done.stdout)["rules"]] == ["logs", "database"]


# ---- config ----


def test_no_file_is_read_that_is_not_named(fastwrite, library, tmp_path):
    """Not even /etc/fastwrite.ini, neither by the command nor by the library."""
    if shutil.which("strace") is None:
        pytest.skip("strace is not installed")
    for command in (
        [fastwrite, "config"],
        ["env", f"LD_PRELOAD={library}", "FASTWRITE_PATHS=/tmp/x", "true"],
    ):
        out = tmp_path / "trace"
        subprocess.run(["strace", "-f", "-o", out, *command], capture_output=True, check=True)
        assert "libc.so.6" in out.read_text()
        assert ".ini" not in out.read_text()


def test_config_text(cli, tmp_path):
    ini = tmp_path / "fw.ini"
    (tmp_path / "wal").mkdir()
    ini.write_text(f"[defaults]\nlag_ms = 7\n[rule wal]\npaths = {tmp_path}/wal/**\nsync = fsync\n")
    done = cli("config", env={"FASTWRITE_CONFIG": str(ini), "FASTWRITE_MEM": "32M"})
    assert (done.returncode, done.stderr) == (0, "")
    assert re.search(rf"^rule wal \({ini}:4\)$", done.stdout, re.M)
    assert re.search(rf"^  sync +fsync +{ini}:5$", done.stdout, re.M)
    assert re.search(rf"^  lag_ms +7 +{ini}:2$", done.stdout, re.M)
    assert re.search(r"^  mem +32M +environment$", done.stdout, re.M)
    assert re.search(r"^  block +128K +default$", done.stdout, re.M)
    assert re.search(r"^inherit +1 \(default\)$", done.stdout, re.M)
    ini.write_text("[defaults]\ninherit = 0\n")
    assert f"\ninherit  0 ({ini}:2)\n" in cli("config", "-c", ini).stdout
    assert "\ninherit  1 (environment)\n" in cli("config", "-c", ini, env={"FASTWRITE_INHERIT": "1"}).stdout


def test_config_json(cli, tmp_path):
    ini = tmp_path / "fw.ini"
    ini.write_text(f"[rule wal]\npaths = !{tmp_path}/a/**:{tmp_path}/**\nsync = fsync\n")
    done = cli(
        "config", "--json", "-c", ini, "-p", "/env/**", "-o", "mem=32M", env={"FASTWRITE_ON_ERROR": "stop"}
    )
    assert done.returncode == 0
    told = json.loads(done.stdout)
    assert told["file"] == str(ini)
    assert (told["on_error"], told["strict"]) == ("stop", True)
    assert told["inherit"] is True
    assert [r["name"] for r in told["rules"]] == ["env", "wal"]
    wal = told["rules"][1]
    assert wal["paths"] == [
        {"glob": f"{tmp_path}/a/**", "exclude": True},
        {"glob": f"{tmp_path}/**", "exclude": False},
    ]
    assert list(wal["settings"]) == KEYS
    assert wal["settings"]["sync"] == {"value": "fsync", "source": "rule", "file": str(ini), "line": 3}
    assert wal["settings"]["mem"] == {"value": "32M", "source": "environment"}
    assert wal["settings"]["block"] == {"value": "128K", "source": "default"}


def test_config_relative_file(cli, tmp_path):
    (tmp_path / "fw.ini").write_text("[rule a]\npaths = /a/**\n")
    for arguments, env in ((["-c", "fw.ini"], {}), ([], {"FASTWRITE_CONFIG": "fw.ini"})):
        done = cli("config", "--json", *arguments, env=env, cwd=tmp_path)
        assert json.loads(done.stdout)["file"] == str(tmp_path / "fw.ini")


def test_config_json_keeps_odd_bytes(cli):
    odd = b'/data/\xff\xc3\xa4"\\t/**'
    env = {os.fsencode(k): os.fsencode(v) for k, v in os.environ.items()} | {
        b"FASTWRITE_PATHS": odd.replace(b"\\", b"\\\\")
    }
    done = cli("config", "--json", env={k.decode(): os.fsdecode(v) for k, v in env.items()})
    glob = json.loads(done.stdout)["rules"][0]["paths"][0]["glob"]
    assert os.fsencode(glob) == odd.replace(b"\\", b"\\\\")


def test_config_without_rules(cli):
    done = cli("config")
    assert done.returncode == 0
    assert "no rule: nothing is staged; set FASTWRITE_PATHS or FASTWRITE_CONFIG" in done.stdout


BAD_CONFIGURATIONS = [
    ({"FASTWRITE_SYNK": "off"}, ["FASTWRITE_SYNK", "unknown key", "SYNC"]),
    ({"FASTWRITE_MEM": "16MX"}, ["FASTWRITE_MEM", '"16MX"', "1M..64G"]),
    ({"FASTWRITE_MEM": "1M", "FASTWRITE_BLOCK": "1M"}, ["FASTWRITE_MEM", "8 x block"]),
    ({"FASTWRITE_BLOCK": "100K"}, ["FASTWRITE_BLOCK", "power of two"]),
    ({"FASTWRITE_SYNC": "journaled"}, ["FASTWRITE_SYNC", "fdatasync, fsync, journal"]),
    ({"FASTWRITE_VISIBILITY": "never"}, ["FASTWRITE_VISIBILITY", "lag, strict"]),
    ({"FASTWRITE_PREALLOC_MODE": "pool"}, ["FASTWRITE_PREALLOC_MODE", "keep, off"]),
    ({"FASTWRITE_PATHS": "logs/*"}, ["FASTWRITE_PATHS", '"logs/*"', "cannot match", "absolute"]),
    ({"FASTWRITE_PATHS": "~/log"}, ["FASTWRITE_PATHS", "'~'"]),
    ({"FASTWRITE_PATHS": "/a/[b"}, ["FASTWRITE_PATHS", "cannot match", "']'"]),
    ({"FASTWRITE_PATHS": "/tmp"}, ["FASTWRITE_PATHS", "directory", "/**"]),
    ({"FASTWRITE_PATHS": "/a/**:!/a/b"}, ["FASTWRITE_PATHS", '"!/a/b"', "first"]),
    ({"FASTWRITE_CONFIG": "/not/there.ini"}, ["FASTWRITE_CONFIG", "/not/there.ini", "no such file"]),
    ({"FASTWRITE_CONFIG": "/tmp"}, ["FASTWRITE_CONFIG", "/tmp", "not a regular file"]),
    ({"FASTWRITE_STAGING": "shm"}, ["FASTWRITE_STAGING", '"shm"', "absolute"]),
    ({"FASTWRITE_LOG": "loud"}, ["FASTWRITE_LOG", "off, error, warn, info, debug"]),
    ({"FASTWRITE_STATS": "stdout"}, ["FASTWRITE_STATS", "stderr"]),
]
BAD_FILES = [
    ("[defaults]\nsynk = off\n", ["{ini}:2:", 'unknown key "synk"', "sync"]),
    ("[defaults]\nmem = lots\n", ["{ini}:2:", 'mem = "lots"', "1M..64G"]),
    ("[defaults]\nwhat is this\n", ["{ini}:2:", "key = value"]),
    ("[rule a]\npaths=/a\n[rule a]\npaths=/b\n", ["{ini}:3:", "twice"]),
    ("[rule a]\nsync=off\n", ["{ini}:1:", "no paths"]),
    ("[wrong]\n", ["{ini}:1:", "[wrong]", "[defaults]"]),
]


@pytest.mark.parametrize(("env", "parts"), BAD_CONFIGURATIONS, ids=lambda v: str(v)[:40])
def test_wrong_configuration(cli, env, parts):
    base = {"FASTWRITE_PATHS": "/data/**"}
    for verb in (["config"], ["config", "--json"], ["check", "--file", "/data/x"]):
        done = cli(*verb, env={**base, **env})
        assert done.returncode == 2
        assert done.stdout in ("", "[\n]\n", "[]\n", "[]")
        line = one_line(done.stderr)
        assert all(part in line for part in parts), line


@pytest.mark.parametrize(("text", "parts"), BAD_FILES, ids=lambda v: str(v)[:40])
def test_wrong_configuration_file(cli, tmp_path, text, parts):
    ini = tmp_path / "fw.ini"
    ini.write_text(text)
    done = cli("config", "-c", ini)
    assert done.returncode == 2
    line = one_line(done.stderr)
    assert all(part.format(ini=ini) in line for part in parts), line


def test_unreadable_configuration_file(cli, fastwrite, tmp_path):
    if os.geteuid() != 0:
        ini = tmp_path / "fw.ini"
        ini.write_text("")
        ini.chmod(0)
        done = cli("config", "-c", ini)
    else:
        # root may read everything: ask as somebody else
        directory = Path(
            subprocess.check_output(["mktemp", "-d", "/tmp/fastwrite-XXXXXX"], text=True).strip()
        )
        try:
            directory.chmod(0o755)
            ini = directory / "fw.ini"
            ini.write_text("")
            ini.chmod(0)
            command = directory / "fastwrite"
            shutil.copy(fastwrite, command)
            done = subprocess.run(
                [str(command), "config", "-c", str(ini)],
                user=65534,
                group=65534,
                capture_output=True,
                text=True,
                check=False,
            )
        finally:
            shutil.rmtree(directory)
    assert done.returncode == 2
    assert "permission" in one_line(done.stderr)


@pytest.mark.parametrize(
    ("variable", "value"),
    [("FASTWRITE_ON_ERROR", "stop"), ("FASTWRITE_STRICT", "1")],
    ids=["new", "old name"],
)
def test_wrong_configuration_in_the_program(library, variable, value):
    """The library reports it in one line and leaves the program alone, or stops it if asked."""
    env = {"PATH": os.environ["PATH"], "LD_PRELOAD": str(library), "FASTWRITE_MEM": "16 MB"}
    done = subprocess.run(["/bin/echo", "ran"], env=env, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, "ran\n")
    line = one_line(done.stderr)
    assert line.startswith("fastwrite: ")
    assert "FASTWRITE_MEM" in line
    env[variable] = value
    done = subprocess.run(["/bin/echo", "ran"], env=env, capture_output=True, text=True, check=False)
    assert done.returncode != 0
    assert done.stdout == ""
    assert "FASTWRITE_MEM" in done.stderr


def test_the_old_name_of_on_error(cli, library):
    """It works, and one line names the new one: from the library, or once from `fastwrite run`."""
    notice = "FASTWRITE_STRICT is the old name of FASTWRITE_ON_ERROR = stop; it still works"
    env = {"FASTWRITE_STRICT": "1", **RULE}
    preloaded = {"PATH": os.environ["PATH"], "LD_PRELOAD": str(library), **env}
    done = subprocess.run(["/bin/true"], env=preloaded, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, f"fastwrite: {notice}\n")
    done = cli("run", "sh", "-c", "/bin/true; /bin/true", env=env)
    assert (done.returncode, done.stderr) == (0, f"fastwrite run: {notice}\n")
    done = cli("config", env=env)
    assert re.search(r"^on_error +stop$", done.stdout, re.M)
    assert done.stderr == f"fastwrite config: {notice}\n"
    done = cli("run", "--strict", "sh", "-c", "echo $FASTWRITE_ON_ERROR", env=RULE)
    assert (done.returncode, done.stdout) == (0, "stop\n")
    assert (
        one_line(done.stderr) == "fastwrite run: --strict is the old name of --on-error=stop; it still works"
    )


def test_example_file_is_right_and_complete(cli, tmp_path):
    text = (ROOT / "configs" / "fastwrite.ini.example").read_text()
    assert cli("config", "-c", ROOT / "configs" / "fastwrite.ini.example").returncode == 0
    ini = tmp_path / "all.ini"
    ini.write_text(re.sub(r"^;(?=[a-z_]+ = )", "", text, flags=re.M))
    told = json.loads(cli("config", "--json", "-c", ini).stdout)
    logs = next(r for r in told["rules"] if r["name"] == "logs")
    defaults = json.loads(cli("config", "--json", "-p", "/x/**").stdout)["rules"][0]["settings"]
    for key in KEYS:
        assert logs["settings"][key]["source"] == "file", key
        if key != "staging":
            assert logs["settings"][key]["value"] == defaults[key]["value"], key


# ---- check: files ----


def test_check_file(cli, tmp_path):
    paths = f"!{tmp_path}/skip/**:{tmp_path}/**.log"
    done = cli("check", tmp_path / "a" / "x.log", "-p", paths)
    assert done.returncode == 1  # its directory is not there
    (tmp_path / "a").mkdir()
    (tmp_path / "skip").mkdir()
    done = cli("check", tmp_path / "a" / "x.log", "-p", paths)
    assert done.returncode == 0
    assert "rule env" in done.stdout
    assert re.search(r"^  sync +fdatasync +default$", done.stdout, re.M)
    for name, part in (("skip/x.log", "excluded by !"), ("x.txt", "no rule applies"), ("a", "directory")):
        done = cli("check", tmp_path / name, "-p", paths)
        assert (done.returncode, part in done.stdout) == (3, True), done.stdout


def test_check_file_through_a_link(cli, tmp_path):
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to("real")
    done = cli("check", "--json", "--file", tmp_path / "link" / "x", "-p", f"{tmp_path}/link/**")
    told = json.loads(done.stdout)[0]
    assert told["managed"] is True
    assert told["file"] == f"{tmp_path}/real/x"
    assert told["rule"] == "env"


@pytest.mark.parametrize("target", ["../other/x.log", "{}/other/x.log", "second"])
def test_check_file_through_a_dangling_link(cli, tmp_path, target):
    """A program that opens it makes the link's target, outside of the rule."""
    for name in ("rule", "other"):
        (tmp_path / name).mkdir()
    link = tmp_path / "rule" / "now.log"
    link.symlink_to(target.format(tmp_path))
    (tmp_path / "rule" / "second").symlink_to("../other/x.log")
    for paths, status in ((f"{tmp_path}/rule/**", 3), (f"{tmp_path}/other/**", 0)):
        done = cli("check", link, env={"FASTWRITE_PATHS": paths})
        assert done.stdout.startswith(f"{tmp_path}/other/x.log: ")
        assert done.returncode == status


def test_check_own_directory(cli, tmp_path):
    (tmp_path / ".fastwrite").mkdir()
    done = cli("check", tmp_path / ".fastwrite" / "x", "-p", f"{tmp_path}/**")
    assert done.returncode == 3
    assert "never managed" in done.stdout


def test_check_without_configuration(cli, tmp_path):
    done = cli("check", tmp_path / "x")
    assert done.returncode == 3
    assert "FASTWRITE_PATHS" in done.stdout


def test_check_unknown_name(cli):
    done = cli("check", "no-such-thing-anywhere")
    assert done.returncode == 1
    assert "neither a program in PATH nor a file" in one_line(done.stderr)


# ---- check: programs ----


def test_check_dynamic_program(cli, compile_c):
    program = compile_c(NOTHING)
    done = cli("check", program)
    assert (done.returncode, done.stderr) == (0, "")
    assert "dynamically linked" in done.stdout
    told = json.loads(cli("check", "--json", program).stdout)[0]
    assert told["kind"] == "dynamic"
    assert told["works"] is True
    assert told["notes"] == []


def test_check_static_program(cli, compile_c):
    for flags in (["-static"], ["-static-pie"]):
        done = cli("check", compile_c(NOTHING, *flags))
        assert done.returncode == 1
        assert "statically linked" in done.stdout


def test_check_go_program(cli, compile_c):
    section = '__attribute__((section(".go.buildinfo"), used)) static const char info[16] = "go";'
    done = cli("check", compile_c(section + NOTHING))
    assert done.returncode == 1
    assert "Go program" in done.stdout
    done = cli("check", compile_c(section + NOTHING, "-static"))
    assert done.returncode == 1
    assert "Go program" in done.stdout


def test_check_musl_program(cli, compile_c):
    loader = Path("/lib/ld-musl-x86_64.so.1")
    if not loader.exists():
        pytest.skip(f"{loader} is not there (package musl)")
    program = compile_c(NOTHING, f"-Wl,--dynamic-linker={loader}")
    done = cli("check", program)
    assert done.returncode == 1
    assert "musl" in done.stdout


@pytest.mark.parametrize(
    ("offset", "value"),
    [(4, b"\x01"), (5, b"\x02"), (18, b"\xf3\x00")],
    ids=["32-bit", "big-endian", "riscv"],
)
def test_check_foreign_program(cli, compile_c, tmp_path, offset, value):
    data = bytearray(compile_c(NOTHING).read_bytes())
    data[offset : offset + len(value)] = value
    program = tmp_path / "foreign"
    program.write_bytes(data)
    program.chmod(0o755)
    done = cli("check", program)
    assert done.returncode == 1
    assert "another machine" in done.stdout


def test_check_damaged_program(cli, compile_c, tmp_path):
    """Cut anywhere, or with any header byte changed: an answer, never a crash."""
    whole = compile_c(NOTHING).read_bytes()
    program = tmp_path / "damaged"
    variants = [whole[:n] for n in (4, 5, 16, 20, 63, 64, 65, 100, 700, 1000, 4096, len(whole) - 1)]
    for at in [*range(16, 64), *range(64, 64 + 56 * 13, 7)]:
        for value in (0x00, 0x7F, 0xFF):
            variants.append(whole[:at] + bytes([value]) + whole[at + 1 :])
    answers = set()
    for data in variants:
        program.write_bytes(data)
        program.chmod(0o755)
        done = cli("check", program)
        assert done.returncode in (0, 1), done
        answers.add(done.stdout.split(": ", 1)[1])
    assert any("damaged" in a for a in answers)


def test_check_setuid_program(cli, compile_c):
    if os.geteuid() != 0:
        pytest.skip("needs root, to make a program that belongs to somebody else")
    directory = Path(subprocess.check_output(["mktemp", "-d", "/tmp/fastwrite-XXXXXX"], text=True).strip())
    try:
        program = directory / "setuid"
        shutil.copy(compile_c(NOTHING), program)
        os.chown(program, 65534, 65534)
        program.chmod(0o4755)
        if os.statvfs(directory).f_flag & os.ST_NOSUID:
            pytest.skip("/tmp is mounted nosuid")
        done = cli("check", program)
        assert done.returncode == 1
        assert "setuid" in done.stdout
        done = cli("run", "-p", "/data/**", "--on-error=stop", "--", program)
        assert done.returncode == 125
        assert "setuid" in done.stderr
        os.chown(program, 0, 0)
        program.chmod(0o4755)
        done = cli("check", program)  # root to root raises nothing
        assert done.returncode == 0
        assert "note: it is setuid" in done.stdout
    finally:
        shutil.rmtree(directory)


def test_check_script(cli, compile_c, tmp_path):
    good, static = compile_c(NOTHING), compile_c(NOTHING, "-static")
    for first, status in (
        (f"#!{good}", 0),
        (f"#! {static} -x", 1),
        (f"#!/usr/bin/env {static.name}", 1),
        (f"#!/usr/bin/env -S A=1 {static.name} -y\r", 1),
        ("#!/no/such/interpreter", 1),
    ):
        script = tmp_path / "script"
        script.write_text(first + "\nx\n")
        script.chmod(0o755)
        done = cli("check", script, env={"PATH": f"{static.parent}:{os.environ['PATH']}"})
        assert done.returncode == status, (first, done)
    script.write_text(f"#!{script}\n")  # itself
    assert cli("check", script).returncode == 1


def test_check_forced(cli, compile_c, tmp_path):
    program = compile_c(NOTHING)
    done = cli("check", "--file", program, "-p", f"{program.parent}/*")
    assert done.returncode == 0
    assert "rule env" in done.stdout
    done = cli("check", "--program", tmp_path)
    assert done.returncode == 1
    text = tmp_path / "text"
    text.write_text("hello")
    text.chmod(0o755)
    assert cli("check", "--program", text).returncode == 1
    assert cli("check", text, "-p", f"{tmp_path}/*").returncode == 0


def test_check_several(cli, compile_c):
    told = json.loads(cli("check", "--json", compile_c(NOTHING), compile_c(NOTHING, "-static")).stdout)
    assert [t["works"] for t in told] == [True, False]


# ---- run ----

RULE = {"FASTWRITE_PATHS": "/tmp/fastwrite-test-none*"}


def test_run_passes_status_and_output(cli):
    done = cli("run", "--", "sh", "-c", "echo out; echo err >&2; exit 7", env=RULE)
    assert (done.returncode, done.stdout, done.stderr) == (7, "out\n", "err\n")
    done = cli("run", "sh", "-c", "exit 0", env=RULE)
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSEGV, signal.SIGTERM, signal.SIGABRT])
def test_run_dies_of_the_same_signal(cli, tmp_path, number):
    done = cli("run", "sh", "-c", f"kill -{number.value} $$", env=RULE, cwd=tmp_path)
    assert done.returncode == -number
    assert not list(tmp_path.glob("core*"))


def test_run_sets_the_environment(cli, library, tmp_path):
    done = cli("run", "env", env={**RULE, "LD_PRELOAD": ""})
    env = dict(line.split("=", 1) for line in done.stdout.splitlines() if "=" in line)
    assert env["LD_PRELOAD"] == GLIBC_ONLY + str(library.resolve())
    assert env["FASTWRITE_REGISTRY"].startswith(str(tmp_path))
    assert not list(tmp_path.glob("fastwrite-run-*"))


def test_run_keeps_other_preloads(cli, library, compile_c):
    other = compile_c("int other_symbol;", "-shared", "-fPIC")
    entry = GLIBC_ONLY + str(library.resolve())
    for before, after in (
        (f"{other}", f"{entry}:{other}"),
        (f"{entry} {other}", f"{entry}:{other}"),
        (f"{library.resolve()} {other}", f"{entry}:{other}"),
    ):
        done = cli("run", "sh", "-c", "echo $LD_PRELOAD", env={**RULE, "LD_PRELOAD": before})
        assert done.stdout.strip() == after


def test_run_finds_the_library(cli, fastwrite, library, tmp_path):
    """Beside the command, in ../lib, Debian's ../lib/TRIPLET, an RPM's ../lib64, or at FASTWRITE_LIB."""

    def preload_of(command: Path, **env: str) -> subprocess.CompletedProcess:
        return subprocess.run(
            [str(command), "run", "sh", "-c", "echo $LD_PRELOAD"],
            env={**os.environ, **RULE, **env},
            capture_output=True,
            text=True,
            check=False,
        )

    (tmp_path / "bin").mkdir()
    (tmp_path / "lib").mkdir()
    command = tmp_path / "bin" / "fastwrite"
    shutil.copy(fastwrite, command)
    shutil.copy(library, tmp_path / "lib" / "libfastwrite.so")
    assert preload_of(command).stdout == f"{GLIBC_ONLY}{tmp_path}/lib/libfastwrite.so\n"
    link = tmp_path / "link"
    link.symlink_to(command)
    assert preload_of(link).stdout == f"{GLIBC_ONLY}{tmp_path}/lib/libfastwrite.so\n"
    assert preload_of(command, FASTWRITE_LIB=str(library)).stdout == f"{GLIBC_ONLY}{library.resolve()}\n"
    done = preload_of(command, FASTWRITE_LIB="/no/such.so")
    assert done.returncode == 125
    assert "FASTWRITE_LIB" in one_line(done.stderr)
    triplet = f"{platform.machine()}-linux-gnu"
    (tmp_path / "lib" / triplet).mkdir()
    (tmp_path / "lib" / "libfastwrite.so").rename(tmp_path / "lib" / triplet / "libfastwrite.so")
    assert preload_of(command).stdout == f"{GLIBC_ONLY}{tmp_path}/lib/{triplet}/libfastwrite.so\n"
    (tmp_path / "lib64").mkdir()
    (tmp_path / "lib" / triplet / "libfastwrite.so").rename(tmp_path / "lib64/libfastwrite.so")
    assert preload_of(command).stdout == f"{GLIBC_ONLY}{tmp_path}/lib64/libfastwrite.so\n"
    places = ("local/lib", "local/lib64", "lib", "lib64", f"lib/{triplet}")
    if not any(Path("/usr", p, "libfastwrite.so").exists() for p in places):
        (tmp_path / "lib64/libfastwrite.so").unlink()
        done = preload_of(command)
        assert done.returncode == 125
        assert "FASTWRITE_LIB=" in one_line(done.stderr)


@pytest.mark.parametrize("what", ["text", "empty", "cut", "program", "word size", "machine"])
def test_run_with_a_library_that_is_none(cli, library, tmp_path, what):
    """The loader says so in each program, and starts it all the same."""
    path = tmp_path / "libfastwrite.so"
    content = bytearray(library.read_bytes())
    if what == "word size":
        content[4] = 1
    elif what == "machine":
        content[18:20] = b"\xf3\x00"
    elif what == "program":
        content = Path(shutil.which("true")).read_bytes()
    path.write_bytes({"text": b"root:x:0:0\n" * 20, "empty": b"", "cut": content[:40]}.get(what, content))
    env = {**RULE, "FASTWRITE_LIB": str(path)}
    said = f"fastwrite run: {path}: not a shared library of this machine; nothing is staged"
    done = cli("run", "--on-error=stop", "echo", "started", env=env)
    assert (done.returncode, done.stdout) == (125, "")
    assert done.stderr.splitlines() == [said, "fastwrite run: not started (FASTWRITE_ON_ERROR = stop)"]
    done = cli("run", "sh", "-c", "echo started; /bin/true", env=env)
    assert (done.returncode, done.stdout, done.stderr) == (0, "started\n", f"{said}\n")


def test_run_refuses_a_library_path_the_loader_cannot_take(fastwrite, library, tmp_path):
    odd = tmp_path / "with blank"
    odd.mkdir()
    shutil.copy(library, odd / "lib.so")
    done = subprocess.run(
        [str(fastwrite), "run", "true"],
        env={**os.environ, **RULE, "FASTWRITE_LIB": str(odd / "lib.so")},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 125
    assert "blank" in done.stderr


def test_run_missing_program(cli, tmp_path):
    for name in ("no-such-program-anywhere", tmp_path / "missing", ""):
        done = cli("run", name, env=RULE)
        assert done.returncode == 127
        assert "no such program" in one_line(done.stderr)
    assert not list(tmp_path.glob("fastwrite-run-*"))


def test_run_not_executable(cli, tmp_path):
    text = tmp_path / "text"
    text.write_text("#!/bin/sh\nexit 0\n")
    for path in (text, tmp_path):
        done = cli("run", path, env=RULE)
        assert done.returncode == 126
        assert "not executable" in one_line(done.stderr)
    text.chmod(0o755)
    text.write_text("exit 9\n")  # no #! line: the shell runs it, as execvp does
    assert cli("run", text, env=RULE).returncode == 9


def test_missing_interpreter(cli, compile_c, tmp_path):
    """The message names the interpreter, not the program."""
    script, second = tmp_path / "script", tmp_path / "second"
    script.write_text("#!/no/such/interpreter -x\n")
    second.write_text(f"#!{script}\n")
    for path in (script, second):
        path.chmod(0o755)
    elf = compile_c(NOTHING, "-Wl,--dynamic-linker=/no/such/interpreter")
    for program in (script, second, elf):
        done = cli("run", program, env=RULE)
        assert done.returncode == 126
        line = one_line(done.stderr)
        assert "its interpreter /no/such/interpreter does not exist" in line
        assert str(program) in line
        done = cli("check", program)
        assert done.returncode == 1
        assert "its interpreter /no/such/interpreter does not exist" in done.stdout + done.stderr


def test_run_makes_paths_absolute(cli, compile_c, tmp_path):
    """A relative path would mean another file where the program, or a child of it, starts."""
    (tmp_path / "fw.ini").write_text("")
    done = cli(
        "run",
        *["sh", "-c", "cd /; env"],
        env={"FASTWRITE_STATS": "stats.json", "FASTWRITE_CONFIG": "fw.ini"},
        cwd=tmp_path,
    )
    assert {f"FASTWRITE_STATS={tmp_path}/stats.json", f"FASTWRITE_CONFIG={tmp_path}/fw.ini"} <= set(
        done.stdout.splitlines()
    )


def test_run_static_program(cli, compile_c):
    program = compile_c("int main(void) { return 5; }", "-static")
    done = cli("run", program, env=RULE)
    assert done.returncode == 5
    assert "statically linked" in done.stderr
    for env, options in (({"FASTWRITE_ON_ERROR": "stop"}, []), ({}, ["--on-error=stop"])):
        done = cli("run", *options, program, env={**RULE, **env})
        assert done.returncode == 125
        assert "statically linked" in done.stderr
        assert "not started" in done.stderr


# Writes a line to argv[1] a thousand times, then becomes argv[2] with the arguments behind it, if there is one.
WRITES_THEN_BECOMES = r"""
#include <fcntl.h>
#include <unistd.h>
int main(int argc, char **argv)
{
	int fd = open(argv[1], O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0644);
	for (int i = 0; i < 1000; i++)
		if (write(fd, "0123456789\n", 11) != 11)
			return 1;
	close(fd);
	if (argc > 2)
		execv(argv[2], argv + 2);
	return argc > 2 ? 2 : 7;
}
"""


@pytest.fixture(scope="session")
def musl_program(tmp_path_factory):
    """WRITES_THEN_BECOMES, linked with musl."""
    if not shutil.which("musl-gcc"):
        pytest.skip("musl-gcc is not installed (package musl-tools)")
    path = tmp_path_factory.mktemp("musl") / "program"
    subprocess.run(["musl-gcc", "-x", "c", "-", "-o", path], input=WRITES_THEN_BECOMES, text=True, check=True)
    return path


def test_run_musl_program(cli, musl_program, compile_c):
    """It runs as it is; the programs that it starts have the library again."""
    glibc = compile_c(WRITES_THEN_BECOMES)
    with disk_dir() as place:
        stats = place / "stats"
        settings = ["-p", f"{place}/[a-n]", f"--stats={stats}"]
        done = cli("run", "-o", "adapt=off", *settings, musl_program, place / "m", glibc, place / "g")
        assert (done.returncode, done.stdout) == (7, ""), done.stderr
        assert "linked with musl" in done.stderr
        assert done.stderr.count("\n") == 2, done.stderr
        assert stats.read_text().count(" 999 writes staged") == 1, stats.read_text()
        assert (place / "m").read_bytes() == (place / "g").read_bytes() == b"0123456789\n" * 1000
        done = cli("run", "--on-error=stop", *settings, musl_program, place / "n")
        assert done.returncode == 125
        assert not (place / "n").exists()


@pytest.mark.parametrize("how", ["run", "LD_PRELOAD"])
def test_musl_child(cli, library, musl_program, compile_c, how):
    """glibc starts musl starts glibc: the second starts, and the last, which alone exits, has staged."""
    glibc = compile_c(WRITES_THEN_BECOMES)
    with disk_dir() as place:
        stats = place / "stats"
        command = [glibc, place / "a", musl_program, place / "b", glibc, place / "c"]
        env = {"FASTWRITE_PATHS": f"{place}/[abc]", "FASTWRITE_STATS": str(stats), "FASTWRITE_ADAPT": "off"}
        if how == "run":
            done = cli("run", "--", *command, env=env)
        else:
            # as the manual has it
            env["LD_PRELOAD"] = f"{GLIBC_ONLY}{library.resolve()}"
            done = subprocess.run(
                command, env={**os.environ, **env}, capture_output=True, text=True, check=False
            )
        assert (done.returncode, done.stderr) == (7, "")
        assert stats.read_text().count(" 999 writes staged") == 1, stats.read_text()
        assert {(place / name).read_bytes() for name in "abc"} == {b"0123456789\n" * 1000}


def test_musl_child_with_an_environment_of_its_own(library, musl_program):
    """The library does not add an entry that would keep the program from starting."""
    with disk_dir() as place:
        done = subprocess.run(
            ["env", "-i", musl_program, place / "b"],
            env={"PATH": os.environ["PATH"], "LD_PRELOAD": str(library), "FASTWRITE_PATHS": f"{place}/b"},
            capture_output=True,
            text=True,
            check=False,
        )
        assert (done.returncode, done.stderr) == (7, "")


def test_run_program_of_another_word_size(cli):
    """Its loader would complain about the library."""
    programs = [p for p in (Path("/lib32/libc.so.6"), Path("/lib/i386-linux-gnu/libc.so.6")) if p.exists()]
    if not programs:
        pytest.skip("no 32-bit program here (package libc6-i386 has one: the C library itself)")
    done = cli("run", programs[0], env=RULE)
    assert done.returncode == 0
    assert "GNU C Library" in done.stdout
    assert "another machine or word size" in done.stderr
    assert "ld.so: object" not in done.stderr
    assert done.stderr.count("\n") == 2, done.stderr


def test_no_noise_of_32_bit_children(cli, library, tmp_path):
    """With $LIB in FASTWRITE_LIB and a library without content, as in docs/operations.md."""
    loader = Path("/lib32/ld-linux.so.2")
    if not loader.exists():
        pytest.skip("no 32-bit loader here (package libc6-i386)")
    for name in ("lib/x86_64-linux-gnu", "lib32", "lib/i386-linux-gnu"):
        (tmp_path / name).mkdir(parents=True)
    (tmp_path / "lib/x86_64-linux-gnu/libfastwrite.so").symlink_to(library.resolve())
    entry = f"{tmp_path}/$LIB/libfastwrite.so"
    child = "/lib32/libc.so.6 | head -n 1; echo $LD_PRELOAD"
    arguments = ("run", "-p", f"{tmp_path}/x", "--", "sh", "-c", child)

    done = cli(*arguments, env={"FASTWRITE_LIB": entry})
    assert "GNU C Library" in done.stdout
    assert done.stdout.endswith(f"{entry}\n")
    assert done.stderr.count("ld.so: object") == 1, done.stderr
    stub = tmp_path / "lib32/libfastwrite.so"
    subprocess.run(["as", "--32", "-o", tmp_path / "empty.o", "/dev/null"], check=True)
    subprocess.run(["ld", "-m", "elf_i386", "-shared", "-o", stub, tmp_path / "empty.o"], check=True)
    shutil.copy(stub, tmp_path / "lib/i386-linux-gnu")
    done = cli(*arguments, env={"FASTWRITE_LIB": entry})
    assert (done.returncode, done.stderr) == (0, "")
    assert "GNU C Library" in done.stdout
    with disk_dir() as place:
        stats = place / "stats"
        write = f"i=0; while [ $i -lt 2000 ]; do echo $i; i=$((i + 1)); done >{place}/a"
        done = cli(
            *("run", "-o", "adapt=off", "-p", f"{place}/a", f"--stats={stats}", "--", "sh", "-c", write),
            env={"FASTWRITE_LIB": entry},
        )
        assert (done.returncode, done.stderr) == (0, "")
        assert "writes staged" in stats.read_text()


def test_run_wrong_configuration(cli):
    bad = {**RULE, "FASTWRITE_SYNC": "sometimes"}
    done = cli("run", "echo", "ran", env=bad)
    assert (done.returncode, done.stdout) == (0, "ran\n")
    assert "FASTWRITE_SYNC" in one_line(done.stderr)
    done = cli("run", "--on-error=stop", "echo", "ran", env=bad)
    assert (done.returncode, done.stdout) == (125, "")
    assert "FASTWRITE_SYNC" in done.stderr


def test_run_says_when_nothing_is_configured(cli):
    done = cli("run", "true")
    assert done.returncode == 0
    assert "no rule: nothing will be staged" in one_line(done.stderr)


def test_run_options_reach_the_program(cli, tmp_path):
    done = cli(
        "run",
        "-p",
        "/a/**",
        "-o",
        "sync=off",
        "-o",
        "relaxed_ms=9",
        f"--stats={tmp_path}/s",
        "--on-error=stop",
        "env",
    )
    assert {
        "FASTWRITE_PATHS=/a/**",
        "FASTWRITE_SYNC=off",
        "FASTWRITE_RELAXED_MS=9",
        f"FASTWRITE_STATS={tmp_path}/s",
        "FASTWRITE_ON_ERROR=stop",
    } <= set(done.stdout.splitlines())
    # options behind the program are the program's
    assert cli("run", "echo", "-p", "x", "--verbose", env=RULE).stdout == "-p x --verbose\n"


def start(fastwrite: Path, tmp_path: Path, *command: str, **keywords) -> subprocess.Popen:
    """A running `fastwrite run`, once its program has written its first line."""
    process = subprocess.Popen(
        [str(fastwrite), "run", "--", *command],
        env={**os.environ, **RULE, "TMPDIR": str(tmp_path)},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        **keywords,
    )
    assert process.stdout.readline() == "ready\n"
    return process


TRAP = "trap 'echo {0}; exit 3' {0}; echo ready; while :; do sleep 0.05; done"


@pytest.mark.parametrize("name", ["TERM", "INT", "HUP", "QUIT", "USR1", "USR2", "WINCH", "ALRM"])
def test_run_forwards_signals(fastwrite, tmp_path, name):
    process = start(fastwrite, tmp_path, "sh", "-c", TRAP.format(name))
    process.send_signal(getattr(signal, f"SIG{name}"))
    out, _ = process.communicate(timeout=HANGS)
    assert (process.returncode, out) == (3, f"{name}\n")


def test_run_sends_terminal_signals_once(fastwrite, tmp_path):
    """Ctrl-C reaches the whole foreground group; the program must not see it twice."""
    import pty

    pid, terminal = pty.fork()
    if pid == 0:
        os.environ.update(RULE, TMPDIR=str(tmp_path))
        count = "n=0; trap 'n=$((n+1))' INT; echo ready"
        script = f"{count}; while [ $n = 0 ]; do sleep 0.05; done; sleep 0.3; sleep 0.3; echo n=$n"
        os.execv(str(fastwrite), ["fastwrite", "run", "sh", "-c", script])
    text = b""
    sent = False
    deadline = time.monotonic() + HANGS
    while time.monotonic() < deadline:
        try:
            data = os.read(terminal, 1000)
        except OSError:
            break
        if not data:
            break
        text += data
        if not sent and b"ready" in text:
            os.write(terminal, b"\x03")
            sent = True
    os.waitpid(pid, 0)
    os.close(terminal)
    assert b"n=1" in text, text


def test_run_passes_a_hang_up_on(fastwrite, tmp_path):
    """As with `ssh -t host fastwrite run ...`: the kernel tells the leader of the session alone."""
    import pty

    told = tmp_path / "told"
    pid, terminal = pty.fork()
    if pid == 0:
        os.environ.update(RULE, TMPDIR=str(tmp_path))
        script = f"trap 'echo HUP >>{told}; exit 3' HUP; echo ready; while :; do sleep 0.05; done"
        os.execv(str(fastwrite), ["fastwrite", "run", "sh", "-c", script])
    try:
        assert os.read(terminal, 5) == b"ready"
        os.close(terminal)
        wait_for(lambda: os.waitpid(pid, os.WNOHANG)[0], "the end after the hang-up", 20)
        pid = 0
    finally:
        if pid != 0:
            os.kill(child_of(pid), signal.SIGKILL)
            os.waitpid(pid, 0)
    assert told.read_text() == "HUP\n"


def child_of(pid: int) -> int:
    return int(Path(f"/proc/{pid}/task/{pid}/children").read_text().split()[0])


def state_of(pid: int) -> str:
    return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0]


def test_run_waits_for_a_stopped_program(fastwrite, tmp_path):
    go = tmp_path / "go"
    os.mkfifo(go)
    process = start(fastwrite, tmp_path, "sh", "-c", f"echo ready; read -r _ <{go}; exit 6")
    child = child_of(process.pid)
    os.kill(child, signal.SIGSTOP)
    wait_for(lambda: state_of(child) == "T", "the child to stop")
    with open(go, "r+b", buffering=0) as writer:
        writer.write(b"\n")
        time.sleep(0.5)  # (a child that is not stopped ends meanwhile)
        assert process.poll() is None
        assert state_of(process.pid) != "T"
        process.send_signal(signal.SIGCONT)  # passed on
        process.communicate(timeout=HANGS)
    assert process.returncode == 6


def test_run_notices_death_while_stopped(fastwrite, tmp_path):
    process = start(fastwrite, tmp_path, "sh", "-c", "echo ready; exec sleep 30")
    child = child_of(process.pid)
    os.kill(child, signal.SIGSTOP)
    wait_for(lambda: state_of(child) == "T", "the child to stop")
    os.kill(child, signal.SIGKILL)
    process.communicate(timeout=HANGS)
    assert process.returncode == -signal.SIGKILL


def test_run_with_ignored_child_signal(cli, fastwrite):
    done = subprocess.run(
        ["sh", "-c", f"trap '' CHLD; exec {fastwrite} run sh -c 'exit 4'"],
        env={**os.environ, **RULE},
        capture_output=True,
        timeout=HANGS,
        check=False,
    )
    assert done.returncode == 4


def test_run_keeps_signal_dispositions(fastwrite):
    """The program starts with the mask and the ignored signals of the caller."""
    show = "grep -E '^Sig(Blk|Ign)' /proc/self/status"
    ignore = "trap '' USR1 CHLD; exec"
    direct = subprocess.run(["sh", "-c", f'{ignore} sh -c "{show}"'], capture_output=True, check=False)
    through = subprocess.run(
        ["sh", "-c", f'{ignore} {fastwrite} run sh -c "{show}"'],
        env={**os.environ, **RULE},
        capture_output=True,
        check=False,
    )
    assert through.stdout == direct.stdout != b""


def test_run_without_a_place_for_its_registry(fastwrite, tmp_path):
    done = subprocess.run(
        [str(fastwrite), "run", "true"],
        env={**os.environ, **RULE, "TMPDIR": "/no/such/directory"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0  # /tmp is taken instead


# ---- recover, status ----


def test_recover_missing_path(cli, tmp_path):
    done = cli("recover", tmp_path / "missing")
    assert done.returncode == 1
    assert "no such file or directory" in done.stderr


def test_recover_nothing(cli, tmp_path):
    done = cli("recover", tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == (
        "nothing to recover (directories below are not searched; what is staged elsewhere is found with "
        "--config or --all)\n"
    )
    told = json.loads(cli("recover", "--json", tmp_path).stdout)
    assert told["events"] == []
    assert told["arenas"] == told["failed"] == told["bytes"] == 0


@pytest.mark.parametrize("refused", [False, True])
def test_output_that_is_lost_is_told(fastwrite, tmp_path, refused):
    """A notice on the other stream comes between the write that fails and the end."""
    (tmp_path / "data").mkdir()
    if refused:
        (tmp_path / "data" / ".fastwrite").symlink_to("nowhere")
    with open("/dev/full", "w") as full:
        done = subprocess.run(
            [fastwrite, "status"],
            env={**os.environ, "FASTWRITE_PATHS": f"{tmp_path}/data/**"},
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
            timeout=60,
            check=False,
        )
    assert done.returncode == 1 and "cannot write all of the output" in done.stderr, done


def test_recover_foreign_files(cli, tmp_path):
    """Truncated and foreign files in the staging directory are named and left as they are."""
    staging = tmp_path / ".fastwrite"
    staging.mkdir(mode=0o700)
    data = tmp_path / "data"
    data.write_bytes(b"precious")
    for name, content in (("short.arena", b"FSTW"), ("noise.arena", os.urandom(70000))):
        path = staging / name
        path.write_bytes(content)
        path.chmod(0o600)
        done = cli("recover", path)
        assert done.returncode == 1, done
        assert str(path) in done.stdout + done.stderr
        assert path.read_bytes() == content
    assert data.read_bytes() == b"precious"


WRITER = """
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>
int main(int argc, char **argv)
{
	int fd = open(argv[1], O_WRONLY | O_CREAT | O_APPEND, 0644);
	char record[100];
	for (int i = 0; i < 1000; i++) {
		memset(record, 'a' + i % 26, sizeof(record));
		if (write(fd, record, sizeof(record)) != sizeof(record))
			return 9;
	}
	if (write(1, "ready\\n", 6) != 6)
		return 8;
	if (argc > 2)
		pause();
	raise(SIGKILL);
}
"""
OVERWRITER = WRITER.replace(" | O_APPEND", "")
EXPECTED = b"".join(bytes([ord("a") + i % 26]) * 100 for i in range(1000))


NAMES = [
    "data",
    "a\nb",
    "a\\012b",
]  # the kernel writes the second as \012 in /proc/PID/maps, and the third as it is


def pattern_of(directory: Path) -> str:
    return str(directory).replace("\\", "\\\\") + "/**"


@pytest.mark.parametrize("name", NAMES)
def test_run_recovers_after_sigkill(cli, compile_c, tmp_path, name):
    data = tmp_path / name / "log"
    data.parent.mkdir()
    env = {"FASTWRITE_PATHS": pattern_of(data.parent), "FASTWRITE_LAG_MS": "60000"}
    done = cli("run", compile_c(WRITER), data, env=env)
    assert (done.returncode, done.stdout) == (-signal.SIGKILL, "ready\n")
    assert re.fullmatch(r"fastwrite run: recovered \d+ bytes\n", done.stderr), done.stderr
    assert data.read_bytes() == EXPECTED
    assert [p.name for p in data.parent.iterdir()] == ["log"]


@pytest.mark.parametrize("who", ["root", "user"])
@pytest.mark.parametrize("name", NAMES)
def test_status_of_a_directory_with_any_name(compile_c, fastwrite, library, name, who):
    """Only root reads an arena through the mapping; others need its path."""
    if os.geteuid() != 0 and who == "root":
        pytest.skip("needs root")
    user = {"user": 65534, "group": 65534, "extra_groups": []} if os.geteuid() == 0 and who == "user" else {}
    with disk_dir() as place:
        place.chmod(0o777)
        command, writer = (shutil.copy(path, place) for path in (fastwrite, compile_c(WRITER)))
        data = place / name / "log"
        data.parent.mkdir()
        data.parent.chmod(0o777)
        env = {
            **os.environ,
            "LD_PRELOAD": str(shutil.copy(library, place)),
            "FASTWRITE_PATHS": pattern_of(data.parent),
            "FASTWRITE_LAG_MS": "60000",
            "FASTWRITE_ADAPT": "off",
        }
        with subprocess.Popen([writer, data, "wait"], env=env, stdout=subprocess.PIPE, **user) as process:
            try:
                assert process.stdout.readline() == b"ready\n"
                told = json.loads(subprocess.check_output([command, "status", "--json"], timeout=60, **user))[
                    "arenas"
                ]
                (arena,) = [a for a in told if a["pid"] == process.pid]
                assert Path(arena["arena"]).parent == data.parent / ".fastwrite"
                assert Path(arena["arena"]).exists()
                assert [file["path"] for file in arena["files"]] == [str(data)]
            finally:
                process.kill()


def test_run_names_what_it_puts_aside(fastwrite, compile_c, tmp_path):
    data = tmp_path / "data" / "log"
    data.parent.mkdir()
    env = {"FASTWRITE_PATHS": f"{data.parent}/**", "FASTWRITE_LAG_MS": "60000", "FASTWRITE_ADAPT": "off"}
    with subprocess.Popen(
        [fastwrite, "run", compile_c(OVERWRITER), data, "pause"],
        env={**os.environ, **env},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as program:
        assert program.stdout.readline() == "ready\n"
        with data.open("r+b") as file:
            file.write(b"N" * 300)
        program.terminate()
        said = program.communicate(timeout=60)[1]
    (kept,) = (data.parent / ".fastwrite/aside").iterdir()
    assert re.fullmatch(
        rf"fastwrite run: {data}: \d+ bytes are put aside: [^\n]*; "
        rf"`fastwrite recover --force {kept}` writes them\n",
        said,
    ), said
    assert data.read_bytes() == b"N" * 300


# Servers do this to show a title in `ps`: they move the environment and overwrite its old place.
TITLED = WRITER.replace(
    "	int fd = open",
    """	extern char **environ;
	for (char **e = environ; *e; e++) {
		char *old = *e;
		*e = strdup(old);
		memset(old, 0, strlen(old));
	}
	int fd = open""",
)


def test_run_recovers_a_program_that_overwrote_its_environment(cli, compile_c, tmp_path):
    data = tmp_path / "data" / "log"
    data.parent.mkdir()
    env = {"FASTWRITE_PATHS": f"{data.parent}/**", "FASTWRITE_LAG_MS": "60000"}
    done = cli("run", compile_c(TITLED), data, env=env)
    assert done.returncode == -signal.SIGKILL
    assert re.fullmatch(r"fastwrite run: recovered \d+ bytes\n", done.stderr), done.stderr
    assert data.read_bytes() == EXPECTED


@pytest.mark.parametrize("planted", ["nothing", "fifo", "link", "second name"])
def test_run_whose_registry_others_replaced(cli, compile_c, tmp_path, planted):
    """Once the name in /tmp is free, anyone may put anything there."""
    make = {
        "nothing": "true",
        "fifo": 'mkfifo "$FASTWRITE_REGISTRY"',
        "link": 'ln -s "$0.other" "$FASTWRITE_REGISTRY"',
        "second name": 'ln "$0.other" "$FASTWRITE_REGISTRY"',
    }[planted]
    data = tmp_path / "data" / "log"
    data.parent.mkdir()
    other = tmp_path / "data.other"
    other.touch()
    env = {"FASTWRITE_PATHS": f"{data.parent}/**", "FASTWRITE_LAG_MS": "60000"}
    script = f'rm "$FASTWRITE_REGISTRY"; {make}; exec "$1" "$2"'
    done = cli("run", "sh", "-c", script, data.parent, compile_c(WRITER), data, env=env, timeout=20)
    assert (done.returncode, done.stdout) == (-signal.SIGKILL, "ready\n")
    assert "cannot add to the registry" in done.stderr
    assert other.read_bytes() == b""
    assert cli("recover", data.parent).returncode == 0
    assert data.read_bytes() == EXPECTED


def test_run_reads_the_registry_that_it_made(cli, compile_c, tmp_path):
    program = WRITER.replace("	raise(SIG", '	unlink(getenv("FASTWRITE_REGISTRY"));\n	raise(SIG')
    data = tmp_path / "data" / "log"
    data.parent.mkdir()
    env = {"FASTWRITE_PATHS": f"{data.parent}/**", "FASTWRITE_LAG_MS": "60000"}
    done = cli("run", compile_c("#include <stdlib.h>\n" + program), data, env=env)
    assert done.returncode == -signal.SIGKILL
    assert re.fullmatch(r"fastwrite run: recovered \d+ bytes\n", done.stderr), done.stderr
    assert data.read_bytes() == EXPECTED


# The child writes, the parent is killed first.
LATE = WRITER.replace(
    "	int fd = open", "	if (fork() > 0)\n		pause();\n	int fd = open"
).replace(
    "		pause();\n	raise(SIGKILL);",
    "		kill(getppid(), SIGKILL), usleep(300000);\n	raise(SIGKILL);",
)


def test_run_waits_for_descendants_that_die_with_the_program(cli, compile_c, tmp_path):
    data = tmp_path / "data" / "log"
    data.parent.mkdir()
    env = {"FASTWRITE_PATHS": f"{data.parent}/**", "FASTWRITE_LAG_MS": "60000"}
    done = cli("run", compile_c(LATE), data, "late", env=env)
    assert (done.returncode, done.stdout) == (-signal.SIGKILL, "ready\n")
    assert re.fullmatch(r"fastwrite run: recovered \d+ bytes\n", done.stderr), done.stderr
    assert data.read_bytes() == EXPECTED
    assert [p.name for p in data.parent.iterdir()] == ["log"]


@pytest.mark.parametrize("by", ["arena", "staging", "directory", "file"])
def test_recover_by_hand(cli, compile_c, library, tmp_path, by):
    data = tmp_path / "log"
    env = {
        **os.environ,
        "LD_PRELOAD": str(library),
        "FASTWRITE_PATHS": f"{tmp_path}/**",
        "FASTWRITE_LAG_MS": "60000",
    }
    done = subprocess.run(
        [str(compile_c(WRITER)), str(data)], env=env, stdout=subprocess.DEVNULL, check=False
    )
    assert done.returncode == -signal.SIGKILL
    staging = tmp_path / ".fastwrite"
    (arena,) = staging.glob("*.arena")
    before = data.read_bytes()
    assert EXPECTED.startswith(before)
    assert len(before) < len(EXPECTED), "nothing was staged"
    path = {"arena": arena, "staging": staging, "directory": tmp_path, "file": data}[by]

    told = json.loads(cli("recover", "--dry-run", "--json", path).stdout)
    assert told["dry_run"] is True
    assert told["bytes"] > 0
    assert data.read_bytes() == before
    assert arena.exists()

    done = cli("recover", path)
    assert (done.returncode, done.stderr) == (0, "")
    assert f"recovered  {data}" in done.stdout
    assert data.read_bytes() == EXPECTED
    assert not staging.exists()
    assert cli("recover", path).stdout.startswith("nothing to recover") or by in ("arena", "staging")


def test_status_and_recover_of_a_live_program(compile_c, cli, library, tmp_path):
    data = tmp_path / "log"
    env = {
        **os.environ,
        "LD_PRELOAD": str(library),
        "FASTWRITE_PATHS": f"{tmp_path}/**",
        "FASTWRITE_LAG_MS": "60000",
        "FASTWRITE_ADAPT": "off",
    }
    process = subprocess.Popen(
        [str(compile_c(WRITER)), str(data), "wait"], env=env, stdout=subprocess.PIPE, text=True
    )
    try:
        assert process.stdout.readline() == "ready\n"
        told = json.loads(cli("status", "--json").stdout)
        mine = [a for a in told["arenas"] if a["pid"] == process.pid]
        assert len(mine) == 1
        assert mine[0]["rule"] == "env"
        (file,) = mine[0]["files"]
        assert file["path"] == str(data)
        assert len(EXPECTED) - 300 <= file["staged_bytes"] < len(EXPECTED)  # the first write passes through
        assert str(data) in cli("status").stdout

        done = cli("recover", "--json", tmp_path)
        assert done.returncode == 0
        assert json.loads(done.stdout)["live"] == 1
        assert (tmp_path / ".fastwrite").exists()
    finally:
        process.kill()
        process.communicate()
    assert cli("recover", tmp_path).returncode == 0
    assert data.read_bytes() == EXPECTED


MAPS = """
import fcntl, mmap, os, signal, sys
signal.signal(signal.SIGIO, signal.SIG_IGN)
fd = os.open(sys.argv[1], os.O_RDWR | os.O_CREAT, 0o600)
os.truncate(fd, 1 << 20)
shared = mmap.mmap(fd, 1 << 20)
if sys.argv[2] == "lease":
    fcntl.fcntl(fd, fcntl.F_SETLEASE, fcntl.F_WRLCK)
else:
    os.close(fd)
print("ready", flush=True)
sys.stdin.read()
"""


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root to mount")
@pytest.mark.parametrize("trap", ["lease", "fifo"])
def test_status_waits_for_no_user(fastwrite, tmp_path, trap):
    """A user may map anything by the name of an arena; what is there by that name may be another file."""
    path = tmp_path / "1-x-1.arena"
    os.mkfifo(tmp_path / "fifo")
    command = [fastwrite, "status"]
    if trap == "fifo":
        less = "--bounding-set=-sys_admin,-checkpoint_restore"  # it opens by path then
        inside = f"mount --bind {tmp_path}/fifo {path} && exec setpriv {less} {fastwrite} status"
        command = ["unshare", "-m", "sh", "-c", inside]
    with subprocess.Popen(
        [sys.executable, "-c", MAPS, path, trap], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as user:
        assert user.stdout.readline() == b"ready\n"
        begun = time.monotonic()
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=20)
        took = time.monotonic() - begun
        user.communicate()
    assert done.returncode == 0, done.stderr
    assert took < 20, too_slow(took, "status")
    assert str(path) not in done.stdout


def test_status_tells_a_wrong_configuration(cli):
    done = cli("status", env={"FASTWRITE_SYNC": "bad"})
    assert done.returncode == 0
    assert 'FASTWRITE_SYNC = "bad"' in one_line(done.stderr)


@pytest.mark.parametrize("option", [["-o", "sync="], ["-p", ""], ["-c", ""]])
def test_empty_setting_is_refused(cli, option):
    done = cli("config", *option)
    assert done.returncode == 2
    assert "empty" in done.stderr


def order_of(cli, pid: int) -> dict:
    """What `fastwrite status` says of the log of a program."""
    (arena,) = [a for a in json.loads(cli("status", "--json").stdout)["arenas"] if a["pid"] == pid]
    return arena.get("order", {})


@pytest.mark.parametrize("ordered_ms", [20, 60000])
def test_status_tells_what_a_power_loss_would_take(compile_c, cli, library, ordered_ms):
    with disk_dir() as place:
        env = {
            **os.environ,
            "LD_PRELOAD": str(library),
            "FASTWRITE_PATHS": f"{place}/**",
            "FASTWRITE_SYNC": "ordered",
            "FASTWRITE_WRITERS": "exclusive",
            "FASTWRITE_ORDERED_MS": str(ordered_ms),
        }
        argv = [str(compile_c(WRITER)), str(place / "log"), "wait"]
        process = subprocess.Popen(argv, env=env, stdout=subprocess.PIPE, text=True)
        try:
            assert process.stdout.readline() == "ready\n"
            if ordered_ms == 20:
                wait_for(lambda: order_of(cli, process.pid)["epochs"] >= 1, "an epoch is durable")
                wait_for(lambda: order_of(cli, process.pid)["oldest_ms"] == 0, "all is durable")
                order = order_of(cli, process.pid)
                assert order["epochs"] >= 1
                assert 0 < order["largest_epoch_bytes"] <= order["log_bytes"]
                assert "epochs durable, log of" in cli("status").stdout
            else:
                first = order_of(cli, process.pid)
                wait_for(lambda: order_of(cli, process.pid)["oldest_ms"] > first["oldest_ms"], "it grows old")
                assert first["epochs"] == 0
                assert "power loss would take the last" in cli("status").stdout
        finally:
            process.kill()
            process.communicate()


def test_status_is_valid(cli):
    done = cli("status")
    assert (done.returncode, done.stderr) == (0, "")
    assert isinstance(json.loads(cli("status", "--json").stdout)["arenas"], list)
