# SPDX-License-Identifier: Apache-2.0
"""`fastwrite enable` and `disable`: what they write, what they refuse, and a service under a real systemd."""

from __future__ import annotations

import os
import pty
import re
import shutil
import subprocess
from pathlib import Path

import pytest
from lib.support import ROOT, disk_dir
from power.workload import FailedError
from surroundings import container, rootfs
from surroundings.run import CACHE

UNITS = "etc/systemd/system"
FILE = f"{UNITS}/logger.service.d/50-fastwrite.conf"
TEXT = """\
# Written by `fastwrite enable'.  `fastwrite disable logger.service' removes it.
[Unit]
Wants=fastwrite-recover.service
After=fastwrite-recover.service

[Service]
Environment="LD_PRELOAD=/usr/lib/libfastwrite.so"
Environment="FASTWRITE_PATHS=/var/log/fw/**"
"""


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """An image with the library."""
    path = tmp_path / "root"
    (path / "usr/lib").mkdir(parents=True)
    (path / "usr/lib/libfastwrite.so").touch()
    return path


@pytest.fixture
def cli(fastwrite: Path):
    def run(*arguments: object, **more) -> subprocess.CompletedProcess:
        more.setdefault("stdin", subprocess.DEVNULL)
        return subprocess.run(
            [fastwrite, *map(str, arguments)], capture_output=True, text=True, check=False, timeout=60, **more
        )

    return run


@pytest.fixture
def enable(cli, root):
    def run(*arguments: object, **more) -> subprocess.CompletedProcess:
        return cli("enable", f"--root={root}", *arguments, **more)

    return run


LOGGER = ("logger", "--paths", "/var/log/fw/**")


# ---- the file ----


def test_shows_writes_and_removes(cli, enable, root):
    path = root / FILE
    old = os.umask(0o077)
    try:
        done = enable(*LOGGER, "--yes")
    finally:
        os.umask(old)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == f"{path}:\n\n{TEXT}\nwritten\n"
    assert path.read_text() == TEXT
    assert path.stat().st_mode & 0o777 == 0o644
    assert [entry.name for entry in path.parent.iterdir()] == [path.name]
    # again, with other settings
    assert enable("logger.service", "-p", "/x/**", "-o", "sync=off", "-y").returncode == 0
    assert path.read_text().endswith('_PATHS=/x/**"\nEnvironment="FASTWRITE_SYNC=off"\n')
    done = cli("disable", "logger", "--root", root, "--yes")
    assert (done.returncode, done.stderr) == (0, "")
    assert str(path) in done.stdout
    assert not path.parent.exists()
    done = cli("disable", "logger", "--root", root, "--yes")
    assert done.returncode == 1
    assert "No such file" in done.stderr


def test_only_what_is_on_the_command_line(enable, root):
    done = enable(*LOGGER, "-y", env={**os.environ, "FASTWRITE_SYNC": "off", "FASTWRITE_NONE": "1"})
    assert done.returncode == 0
    assert (root / FILE).read_text() == TEXT


def test_configuration_lies_below_the_root(enable, root):
    (root / "etc").mkdir()
    ini = root / "etc/fastwrite.ini"
    ini.write_text("[rule x]\npaths = /x/**\nsync = no\n")
    done = enable("logger", "-c", "/etc/fastwrite.ini", "-y")
    assert done.returncode == 2
    assert f"{ini}:3" in done.stderr
    ini.write_text("[rule x]\npaths = /x/**\n")
    assert enable("logger", "-c", "/etc/fastwrite.ini", "-y").returncode == 0
    assert 'Environment="FASTWRITE_CONFIG=/etc/fastwrite.ini"' in (root / FILE).read_text()
    assert "absolute" in enable("logger", "-c", "fastwrite.ini", "-y").stderr


def test_quotes_for_systemd(enable, root):
    pattern = '/a "b"/c\\[d/%i/$HOME/\t\'e/ü*'
    assert enable("logger", "-p", pattern, "-y").returncode == 0
    line = (root / FILE).read_text().splitlines()[-1]
    assert line == 'Environment="FASTWRITE_PATHS=/a \\"b\\"/c\\\\[d/%%i/$HOME/\\x09\'e/ü*"'


def test_keeps_other_files(cli, enable, root):
    assert enable(*LOGGER, "-y").returncode == 0
    other = root / FILE.replace("50-fastwrite", "60-mine")
    other.write_text("[Service]\n")
    assert cli("disable", "logger", "--root", root, "-y").returncode == 0
    assert list(other.parent.iterdir()) == [other]


@pytest.mark.parametrize("text", ["", "[Service]\n", "# mine\n" + TEXT])
def test_leaves_a_foreign_file_alone(cli, enable, root, text):
    path = root / FILE
    path.parent.mkdir(parents=True)
    path.write_text(text)
    for done in (enable(*LOGGER, "-y"), cli("disable", "logger", "--root", root, "-y")):
        assert done.returncode == 1
        assert "not written by" in done.stderr
    assert path.read_text() == text


def test_a_failed_write_leaves_nothing(enable, root):
    """The file under its temporary name cannot be renamed over a directory."""
    assert enable(*LOGGER, "-y", preexec_fn=limit_files).returncode == 1
    assert not (root / FILE).parent.exists()


def limit_files() -> None:
    """No byte can be written to a file."""
    import resource
    import signal

    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))


# ---- what is refused ----


@pytest.mark.parametrize(
    ("arguments", "part"),
    [
        ([], "a UNIT is missing"),
        (["../x", "-p", "/x/*"], "is no name of a unit"),
        (["a b", "-p", "/x/*"], "is no name of a unit"),
        (["", "-p", "/x/*"], "is no name of a unit"),
        (["@x", "-p", "/x/*"], "is no name of a unit"),
        ([".service", "-p", "/x/*"], "is no name of a unit"),
        (["x" * 249, "-p", "/x/*"], "is no name of a unit"),
        (["x.socket", "-p", "/x/*"], "only services"),
        (["x", "-p", "/x/*", "/y/*"], 'unexpected argument "/y/*"'),
        (["x"], "give --paths or --config"),
        (["x", "-p", "y"], "must be absolute"),
        (["x", "-p", "/x/*", "-o", "sync=no"], 'FASTWRITE_SYNC = "no": allowed: fdatasync'),
        (["x", "-p", "/x/*", "-o", "sink=off"], 'unknown key "sink"'),
        (["x", "-p", b"/x/\xff*"], "not UTF-8"),
        (["x", "-p", "/x/*", "--root=/not/there"], "--root=/not/there: No such file"),
    ],
)
def test_refuses(fastwrite, root, arguments, part):
    done = subprocess.run(
        [fastwrite, "enable", f"--root={root}", "--yes", *arguments],
        stdin=subprocess.DEVNULL, capture_output=True, check=False, timeout=60,
    )  # fmt: skip
    assert done.returncode == 2
    assert part in done.stderr.decode(errors="replace")
    assert done.stdout == b""
    assert not (root / "etc").exists()


def test_without_a_library_in_the_image(enable, root):
    (root / "usr/lib/libfastwrite.so").unlink()
    done = enable(*LOGGER, "-y")
    assert done.returncode == 1
    assert "FASTWRITE_LIB" in done.stderr
    (root / "opt").mkdir()
    (root / "opt/libfastwrite.so").touch()
    done = enable(*LOGGER, "-y", env={**os.environ, "FASTWRITE_LIB": "/opt/libfastwrite.so"})
    assert done.returncode == 0
    assert '"LD_PRELOAD=/opt/libfastwrite.so"' in (root / FILE).read_text()


@pytest.mark.parametrize("place", ["usr/lib64", "usr/local/lib64"])
def test_library_of_an_rpm_in_the_image(enable, root, place):
    (root / place).mkdir(parents=True)
    (root / "usr/lib/libfastwrite.so").rename(root / place / "libfastwrite.so")
    assert f'"LD_PRELOAD=/{place}/libfastwrite.so"' in enable(*LOGGER, "-y").stdout


def test_asks(cli, enable, root):
    done = enable(*LOGGER)
    assert done.returncode == 2
    assert TEXT in done.stdout
    assert done.stderr == "fastwrite enable: nothing was changed: there is no terminal to ask; say --yes\n"
    for answer, status in (("n\n", 1), ("\n", 1), ("y\n", 0)):
        assert not (root / FILE).exists()
        ours, its = pty.openpty()
        os.write(ours, answer.encode())
        done = enable(*LOGGER, stdin=its)
        assert done.returncode == status, done.stderr
        assert done.stdout.split(TEXT)[1].startswith("\nWrite it? [y/N] ")
        os.close(ours)
        os.close(its)
    assert cli("disable", "logger", "--root", root).returncode == 2
    assert (root / FILE).exists()


def test_a_link_does_not_lead_out_of_the_image(cli, enable, root, tmp_path):
    outside = tmp_path / "outside"
    outside.mkdir()
    units = root / "etc/systemd/system"
    units.mkdir(parents=True)
    (units / "logger.service.d").symlink_to(outside)
    done = enable(*LOGGER, "-y")
    assert done.returncode == 1
    assert "leads out of" in done.stderr
    assert cli("disable", f"--root={root}", "logger", "-y").returncode == 1
    assert list(outside.iterdir()) == []


def test_a_library_that_others_may_change_is_warned_about(cli, fastwrite, tmp_path):
    library = tmp_path / "libfastwrite.so"
    library.touch()
    for mode, count in ((0o755, 0), (0o757, 1)):
        tmp_path.chmod(mode)
        done = cli("enable", *LOGGER, env={**os.environ, "FASTWRITE_LIB": str(library)})
        assert done.stderr.count("others than root") == (count if os.geteuid() == 0 else 1)


def test_odd_variables_do_not_come_into_the_unit(enable, root):
    name = "FASTWRITE_TEST_" + "X" * 60
    done = enable(*LOGGER, "-y", env={**os.environ, name: "1", 'FASTWRITE_TEST_"\nExecStartPre #': "1"})
    assert done.returncode == 0
    assert "TEST_" not in (root / FILE).read_text()


# ---- what systemd says about the unit: a systemctl of our own; without --yes nothing is written ----


@pytest.mark.parametrize(
    ("answer", "status", "part"),
    [
        ("LoadState=loaded\nEnvironment=A=b", 2, ""),
        ("LoadState=not-found", 2, "warning: systemd knows no logger.service"),
        ('Environment=A=b "LD_PRELOAD=/x y.so" C=d', 1, "has a setting already: LD_PRELOAD=/x y.so;"),
        (
            "Environment=LD_PRELOAD=/usr/lib/libfastwrite.so:/x.so",
            1,
            "LD_PRELOAD=/usr/lib/libfastwrite.so:/x.so;",
        ),
        ("Environment=LD_PRELOAD=/usr/lib/libfastwrite.so", 2, ""),
        ("Environment=X_LD_PRELOAD=/x.so", 2, ""),
        ("Environment=X_LD_PRELOAD=/x/libfastwrite.so LD_PRELOAD=/y.so", 1, "already: LD_PRELOAD=/y.so;"),
        (
            "EnvironmentFiles=/etc/x (ignore_errors=no)",
            2,
            "warning: the unit reads /etc/x (ignore_errors=no)",
        ),
        ("UnsetEnvironment=A LD_PRELOAD", 2, "UnsetEnvironment=A LD_PRELOAD: the library is not loaded"),
        ("ExecStart={ path=PROGRAM ; argv[]=PROGRAM -x ; ignore_errors=no }", 2, "warning: PROGRAM: static"),
    ],
)
def test_asks_systemctl(cli, tmp_path, compile_c, answer, status, part):
    static = str(compile_c("int main(void) { return 0; }", "-static"))
    systemctl = tmp_path / "systemctl"
    systemctl.write_text(f"#!/bin/sh\ncat <<'END'\n{answer.replace('PROGRAM', static)}\nEND\n")
    systemctl.chmod(0o755)
    done = cli("enable", *LOGGER, env={**os.environ, "PATH": f"{tmp_path}:{os.environ['PATH']}"})
    assert done.returncode == status
    # (the library is where it was built)
    beside = ("does not exist", "terminal", "others than root")
    said = [line for line in done.stderr.splitlines() if not any(text in line for text in beside)]
    assert len(said) == (part != "")
    assert part.replace("PROGRAM", static) in "".join(said)


@pytest.mark.parametrize(
    "staging", ["/tmp/x", "/tmp", "/dev/shm", "/dev/shm/fastwrite", "/var/run/x", "/srv/x"]
)
def test_temporary_staging_is_warned_about(enable, staging):
    done = enable(*LOGGER, "-o", f"staging={staging}", "-y")
    assert done.returncode == 0
    assert done.stderr.count("RemoveIPC") == (staging != "/srv/x")


def test_what_must_recover_is_named_by_its_path(cli, enable, root, fastwrite):
    """A path that does not exist would be passed over, for the "-" before it."""
    staging = ("-o", "staging=/tmp/x")
    assert f"ExecStopPost=-{fastwrite.resolve()} recover --all" in cli("enable", *LOGGER, *staging).stderr
    assert "ExecStopPost=-/usr/bin/fastwrite recover --all" in enable(*LOGGER, *staging).stderr
    (root / "usr/local/bin").mkdir(parents=True)
    shutil.copy(fastwrite, root / "usr/local/bin")
    assert "ExecStopPost=-/usr/local/bin/fastwrite recover --all" in enable(*LOGGER, *staging).stderr


# ---- a service under systemd ----

DRIVER_UNIT = """[Service]
Type=oneshot
ExecStart=/bin/bash /fw/drive.sh
StandardOutput=append:/fw/said
StandardError=append:/fw/said
"""
LOGGER_UNIT = """[Unit]
StartLimitIntervalSec=0
[Service]
ExecStart=/bin/bash /fw/logger.sh
StandardOutput=append:/run/acknowledged
StandardError=append:/run/errors
Restart=always
RestartSec=200ms
TimeoutStopSec=5
"""
# It stays, with its file open, until it is killed.
LOGGER_PROGRAM = """
exec 3>>"${LOG:-/var/log/fw/log}" || exit 1
for ((i = 1; i <= 500; i++)); do echo "line $$ $i" >&3 && echo "line $$ $i"; done
echo ready
read -r _ <>/run/wait
"""
DRIVE = r"""
PATH=$PATH:/usr/local/bin
mkdir -p /var/log/fw /home/fw /var/lib/staging
cp /usr/local/lib/libfastwrite.so /home/
mkfifo -m 666 /run/wait
until_() { for ((n = 0; n < 600; n++)); do "$@" && return; sleep 0.05; done
	echo "waited in vain: $*"; return 1; }
ready() { [ "$(grep -c ready /run/acknowledged)" -ge "$1" ]; }
failed() { [ "$(systemctl show -p NRestarts --value logger)" -gt 0 ]; }
begun() { ready 1 || failed; }
fresh() { systemctl stop logger 2>/dev/null; rm -rf /var/log/fw /var/log/private/fw /home/fw/* /dev/shm/fw
	mkdir /var/log/fw; : >/run/acknowledged; : >/run/errors; systemctl daemon-reload; }
staged() { fastwrite status --json | sed -n 's/.*"staged_bytes": \([0-9]*\).*/\1/p' | tail -n 1; }
try() { # NAME LINES [FILE]
	local log=${3:-/var/log/fw/log} pid
	echo "== $1"
	printf '[Service]\n%b\n' "$2" >/etc/systemd/system/logger.service.d/60-try.conf
	fresh
	[[ $2 == *DynamicUser* ]] && rmdir /var/log/fw
	[[ $2 == *User=nobody* ]] && chown nobody /var/log/fw
	systemctl restart logger
	until_ begun
	if ready 1; then
		echo "staged $(staged)"
		pid=$(systemctl show -p MainPID --value logger)
		kill -9 "$pid" && until_ ready 2
		grep "line $pid " /run/acknowledged >/run/first
		echo "acknowledged $(wc -l </run/first)"
		echo "lost $(grep -cvxFf "$log" /run/first)"
	fi
	sort -u /run/errors
}
echo '== enable'
fastwrite enable logger -p '/var/log/fw/**:/home/fw/**' -o lag_ms=60000 -o adapt=off --yes
systemctl daemon-reload
systemctl show -p Environment -p After logger
"""
DISABLE = """
echo '== disable'
rm /etc/systemd/system/logger.service.d/60-try.conf
fastwrite disable logger --yes
systemctl daemon-reload
systemctl show -p Environment logger
ls /etc/systemd/system
: >/fw/done
"""
RW = r"ProtectSystem=strict\nReadWritePaths=/var/log/fw"
STAGING = r"\nEnvironment=FASTWRITE_STAGING="
POST = r"\nExecStopPost=-/usr/local/bin/fastwrite recover --all"
HOME = r"\nEnvironment=LOG=/home/fw/log"
# What becomes of it, and a part of what it says.
STAGED, BYPASSED, FAILS, LOSES = "staged", "bypassed", "fails", "loses"
RECOVERED = "bytes of a process that died"
TRIES = {
    "nothing": ("", STAGED, RECOVERED),
    "strict": ("ProtectSystem=strict", FAILS, "Read-only file system"),
    "strict, written": (RW, STAGED, RECOVERED),
    "strict, one file": (
        r"ProtectSystem=strict\nReadWritePaths=-/var/log/fw/log\nExecStartPre=+/bin/touch /var/log/fw/log",
        BYPASSED,
        "no staging in /var/log/fw/.fastwrite: Read-only file system",
    ),
    "strict, staging": (RW + STAGING + "/var/lib/staging", BYPASSED, "no staging in /var/lib/staging"),
    "strict, staging written": (RW + " /var/lib/staging" + STAGING + "/var/lib/staging", STAGED, RECOVERED),
    "strict, shared memory": (RW + STAGING + "/dev/shm/fw", STAGED, RECOVERED),
    "user": ("User=nobody", STAGED, RECOVERED),
    "dynamic": (r"DynamicUser=yes\nLogsDirectory=fw", STAGED, RECOVERED),
    "dynamic, shared memory": (
        r"DynamicUser=yes\nLogsDirectory=fw" + STAGING + "/dev/shm/fw", LOSES, ""),
    "user, shared memory": (r"User=nobody" + STAGING + "/dev/shm/fw", STAGED, RECOVERED),
    "user, shared memory, RemoveIPC": (r"User=nobody\nRemoveIPC=yes" + STAGING + "/dev/shm/fw", LOSES, ""),
    "privileges": ("NoNewPrivileges=yes", STAGED, RECOVERED),
    "calls": ("SystemCallFilter=@system-service", STAGED, RECOVERED),
    "execute": ("MemoryDenyWriteExecute=yes", STAGED, RECOVERED),
    "tmp": ("PrivateTmp=yes", STAGED, RECOVERED),
    "tmp, staging": ("PrivateTmp=yes" + STAGING + "/tmp/fw", LOSES, ""),
    "runtime": (r"RuntimeDirectory=fw" + STAGING + "/run/fw", LOSES, ""),
    # recovery before systemd empties the place
    "tmp, staging, recovered": ("PrivateTmp=yes" + STAGING + "/tmp/fw" + POST, STAGED, ""),
    "runtime, recovered": (r"RuntimeDirectory=fw" + STAGING + "/run/fw" + POST, STAGED, ""),
    "dynamic, shared memory, recovered": (
        r"DynamicUser=yes\nLogsDirectory=fw" + STAGING + "/dev/shm/fw" + POST, STAGED, ""),
    "user, shared memory, RemoveIPC, recovered": (
        r"User=nobody\nRemoveIPC=yes" + STAGING + "/dev/shm/fw" + POST, STAGED, ""),
    "suid": ("RestrictSUIDSGID=yes", STAGED, RECOVERED),
    "locked": ("LimitMEMLOCK=0", STAGED, RECOVERED),
    "size": ("LimitFSIZE=1M", BYPASSED, ""),
    "home": ("ProtectHome=yes", STAGED, RECOVERED),
    "home, data": ("ProtectHome=read-only" + HOME, FAILS, "Read-only file system"),
    "home, written": (r"ProtectHome=read-only\nReadWritePaths=/home/fw" + HOME, STAGED, RECOVERED),
    "home, library": (
        r"ProtectHome=yes\nEnvironment=LD_PRELOAD=/home/libfastwrite.so", BYPASSED, "cannot be preloaded"),
    "proc": ("ProcSubset=pid", BYPASSED, "No such file or directory (ENOENT)"),
    "all": (
        RW + r"\nNoNewPrivileges=yes\nSystemCallFilter=@system-service\nMemoryDenyWriteExecute=yes\n"
        r"PrivateTmp=yes\nRestrictSUIDSGID=yes\nLimitMEMLOCK=0\nProtectHome=yes\nPrivateUsers=yes\n"
        r"RestrictNamespaces=yes\nProtectProc=invisible\nCapabilityBoundingSet=\nPrivateDevices=yes",
        STAGED,
        RECOVERED,
    ),
}  # fmt: skip


def install_units(units: Path) -> None:
    for source in (ROOT / "configs").glob("fastwrite-recover*.service.in"):
        (units / source.stem).write_text(source.read_text().replace("@BINDIR@", "/usr/local/bin"))


def prepare(place: Path, fastwrite: Path, library: Path) -> dict[Path, str]:
    """What the container gets to see, and where."""
    shared, local, log = place / "shared", place / "local", place / "log"
    units = local / "lib/systemd/system"
    for path in (shared, log, local / "bin", units / "multi-user.target.wants"):
        path.mkdir(parents=True)
    shutil.copy(fastwrite, local / "bin")
    shutil.copy(library, local / "lib")
    install_units(units)
    (units / "driver.service").write_text(DRIVER_UNIT)
    (units / "multi-user.target.wants/driver.service").symlink_to("../driver.service")
    (units / "logger.service").write_text(LOGGER_UNIT)
    (shared / "logger.sh").write_text(LOGGER_PROGRAM)
    tries = [
        f"try '{name}' '{lines}' {'/home/fw/log' if HOME in lines else ''}\n"
        for name, (lines, *_) in TRIES.items()
    ]
    (shared / "drive.sh").write_text(DRIVE + "".join(tries) + DISABLE)
    return {local: "/usr/local", log: "/var/log"}


def verdict(said: str) -> str:
    number = {key: int(value) for key, value in re.findall(r"^(staged|acknowledged|lost) (\d+)$", said, re.M)}
    if "acknowledged" not in number:
        return FAILS
    assert number["acknowledged"] == 500
    if number["lost"]:
        return LOSES
    return STAGED if number.get("staged", 0) > 1000 else BYPASSED


@pytest.fixture(scope="module")
def debian() -> Path:
    """A root with systemd."""
    if os.geteuid() != 0:
        pytest.skip("only root starts containers")
    for name in ("systemd-nspawn", "mmdebstrap"):
        if not shutil.which(name):
            pytest.skip(f"{name} is missing; scripts/deps surroundings installs it")
    try:
        return rootfs.keep_debian(CACHE)
    except FailedError as error:
        pytest.skip(f"no Debian was made; is there a mirror?  {error}")


def test_service_under_systemd(fastwrite, library, debian):
    """Its main process is killed with bytes staged, under one setting of systemd after the other."""
    with disk_dir() as place:
        place.chmod(0o755)
        binds = prepare(place, fastwrite, library)
        shared = place / "shared"
        options = ("--volatile=overlay", "--private-network")  # the Debian stays as it is
        with container.Container("nspawn", debian, shared, binds, options=options) as box:
            box.until((shared / "done").exists, "the service had been tried")
        container.sweep()
        said = (shared / "said").read_text()
    print(said)
    parts = dict(re.findall(r"^== (.+)\n((?:(?!== ).*\n)*)", said, re.M))
    assert "waited in vain" not in said
    assert "systemctl restart logger.service\n" in parts["enable"]
    assert re.search(r"^After=.*fastwrite-recover\.service", parts["enable"], re.M)
    assert re.search(r'^Environment="?LD_PRELOAD=.*FASTWRITE_ADAPT=off', parts["enable"], re.M)
    assert {name: verdict(parts[name]) for name in TRIES} == {name: row[1] for name, row in TRIES.items()}
    for name, (_, _, part) in TRIES.items():
        assert part in parts[name], name
    afterwards = parts["disable"].split("\nremoved\n")[1]
    assert "\nEnvironment=\n" in afterwards
    assert "logger.service.d" not in afterwards


# ---- the units of the recovery ----

# A program is killed with bytes staged, long after the recovery at boot.
LAST_DAY = """
systemctl show -p ActiveState fastwrite-recover
systemctl show -p ActiveState fastwrite-recover-shutdown
LD_PRELOAD=/usr/local/lib/libfastwrite.so FASTWRITE_CONFIG=/etc/fastwrite.ini bash -c '
exec 3>>/var/log/fw/log
for ((i = 1; i <= 500; i++)); do echo "line $i" >&3; done
kill -9 $$'
echo "lines $(wc -l </var/log/fw/log)"
{}
echo "afterwards $(wc -l </var/log/fw/log)"
: >/fw/done
"""
STOPS = "systemctl stop fastwrite-recover"


@pytest.mark.parametrize("boot", ["active", "failed"])
@pytest.mark.parametrize("stops", ["", STOPS])
def test_recovers_at_shutdown(fastwrite, library, debian, boot, stops):
    """Whatever the recovery at boot has found: its failed state tells the operator, and stays."""
    with disk_dir() as place:
        place.chmod(0o755)
        binds = prepare(place, fastwrite, library)
        shared, units = place / "shared", place / "local/lib/systemd/system"
        (units / "sysinit.target.wants").mkdir()
        (units / "sysinit.target.wants/fastwrite-recover.service").symlink_to("../fastwrite-recover.service")
        rules = "[defaults]\nlag_ms = 60000\nadapt = off\n[rule fw]\npaths = /var/log/fw/**\n"
        (place / "fastwrite.ini").write_text(rules)
        logs = place / "log/fw"
        logs.mkdir()
        if boot == "failed":
            (logs / ".fastwrite").mkdir()
            (logs / ".fastwrite/1-fw-1.arena").write_bytes(b"X" * 65536)
        (shared / "drive.sh").write_text(LAST_DAY.format(stops or ":"))
        options = (
            "--volatile=overlay",
            "--private-network",
            f"--bind-ro={place / 'fastwrite.ini'}:/etc/fastwrite.ini",
        )
        with container.Container("nspawn", debian, shared, binds, options=options) as box:
            box.until((shared / "done").exists, "the program had been killed")
            box.shut_down()
        container.sweep()
        said = (shared / "said").read_text()
        lines = (logs / "log").read_text().splitlines()
    print(said)
    assert said.startswith(f"ActiveState={boot}\nActiveState=active\n")
    assert int(re.search(r"^lines (\d+)$", said, re.M)[1]) < 500
    assert (int(re.search(r"^afterwards (\d+)$", said, re.M)[1]) == 500) == bool(stops)
    assert lines == [f"line {i}" for i in range(1, 501)]
