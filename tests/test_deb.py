# SPDX-License-Identifier: Apache-2.0
"""The Debian packages: what they contain, what lintian says, and a life with them in a root of their own."""

from __future__ import annotations

import fcntl
import hashlib
import os
import platform
import re
import shutil
import subprocess
from pathlib import Path

import pytest
from lib.support import ROOT, disk_dir
from surroundings.rootfs import release

TRIPLET = f"{platform.machine()}-linux-gnu"
NAMES = ("fastwrite", "libfastwrite0")

LIBRARY = {f"usr/lib/{TRIPLET}/libfastwrite.so", "usr/share/man/man7/libfastwrite.7.gz"}
COMMAND = {
    "lib/systemd/system/fastwrite-metrics.service",
    "lib/systemd/system/fastwrite-metrics.timer",
    "lib/systemd/system/fastwrite-recover-shutdown.service",
    "lib/systemd/system/fastwrite-recover.service",
    "usr/bin/fastwrite",
    "usr/share/bash-completion/completions/fastwrite",
    "usr/share/doc/fastwrite/README.Debian",
    "usr/share/doc/fastwrite/examples/fastwrite.ini.example",
    "usr/share/doc/fastwrite/operations.md.gz",
    "usr/share/fish/vendor_completions.d/fastwrite.fish",
    "usr/share/man/man1/fastwrite.1.gz",
    "usr/share/man/man5/fastwrite.ini.5.gz",
    "usr/share/zsh/vendor-completions/_fastwrite",
}

# In the root, with the packages in /debs.  A line that starts with "==" begins a part of the output.
LIFE = r"""
set -eu
part() { echo "== $1"; }
dpkg -i /debs/*.deb >/dev/null
part version; fastwrite --version
part enabled; find /etc/systemd -name '*fastwrite*'
part run
mkdir /var/log/fw
fastwrite run -p '/var/log/fw/**' sh -c 'echo $LD_PRELOAD'
part logged
# The shell keeps the file open; after line 2000 it is killed.
LD_PRELOAD=libfastwrite.so FASTWRITE_PATHS='/var/log/fw/**' FASTWRITE_LAG_MS=60000 FASTWRITE_ADAPT=off bash -c '
exec 3>>/var/log/fw/log
for ((i = 1; i <= 2000; i++)); do echo "line $i" >&3; done
kill -9 $$' || echo "status $?"
wc -l </var/log/fw/log
part recovered; fastwrite recover /var/log/fw
part lines; seq -f "line %.0f" 2000 | cmp - /var/log/fw/log; wc -l </var/log/fw/log
# Another one, whose bytes nobody recovers before the removal.
LD_PRELOAD=libfastwrite.so FASTWRITE_PATHS='/var/log/fw/**' FASTWRITE_LAG_MS=60000 FASTWRITE_ADAPT=off bash -c '
exec 3>>/var/log/fw/late
for ((i = 1; i <= 100; i++)); do echo "late $i" >&3; done
kill -9 $$' || :
echo '# mine' >/etc/fastwrite.ini
dpkg --purge fastwrite libfastwrite0 >/dev/null
part left
find / -xdev \( -path /proc -o -path /debs -o -path /var/lib/dpkg -o -path /var/log/dpkg.log -o -path /var/cache \) \
    -prune -o -newer /before ! -type d -print
find / -xdev -name '*fastwrite*' ! -path '/proc/*' ! -path '/debs/*'
part again
dpkg -i /debs/*.deb >/dev/null
fastwrite recover /var/log/fw >/dev/null
tail -n 1 /var/log/fw/late
"""


def missing(*programs: str) -> None:
    for name in programs:
        if not shutil.which(name):
            pytest.skip(f"{name} is missing; scripts/deps deb surroundings installs it")


def run(*command: str | Path, timeout: float = 300, **more) -> str:
    done = subprocess.run(
        [str(part) for part in command], capture_output=True, text=True, check=False, timeout=timeout, **more
    )
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-4000:]
    return done.stdout


def built(top: Path) -> dict[str, Path]:
    """Both packages, by name."""
    version = re.search(r"^libfastwrite \((.+?)\)", (top / "packaging/debian/changelog").read_text())[1]
    return {name: next((top / "build").glob(f"{name}_{version}_*.deb")) for name in NAMES}


@pytest.fixture(scope="module")
def packages(shared_dir: Path) -> dict[str, Path]:
    if not (ROOT / ".git").exists():
        pytest.skip("this is no checkout")
    # lintian, too: `make deb` would install it
    missing("dpkg-buildpackage", "dh", "lintian")
    # Tests of this file may run at the same time: the first one builds.
    with open(shared_dir / "deb.lock", "a+") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if lock.seek(0, os.SEEK_END) == 0:
            run("make", "-s", "-C", ROOT, "deb")
            lock.write("built\n")
    return built(ROOT)


def contents(package: Path) -> set[str]:
    """Paths of files and links."""
    lines = run("dpkg-deb", "-c", package).splitlines()
    return {line.split()[5].removeprefix("./") for line in lines if not line.startswith("d")}


def test_changelog_has_the_version_of_the_makefile():
    version = re.search(r"^VERSION := (.+)$", (ROOT / "Makefile").read_text(), re.M)[1]
    first = (ROOT / "packaging/debian/changelog").read_text().splitlines()[0]
    assert first.startswith(f"libfastwrite ({version}-")


def test_contents(packages):
    documents = re.compile(r"usr/share/doc/")
    found = {name: contents(package) for name, package in packages.items()}
    assert found["libfastwrite0"] >= LIBRARY
    assert found["fastwrite"] >= COMMAND
    for name, required in (("libfastwrite0", LIBRARY), ("fastwrite", COMMAND)):
        others = {path for path in found[name] - required if not documents.match(path)}
        assert others <= {f"usr/share/lintian/overrides/{name}"}


def test_fields(packages):
    field = lambda name, key: run("dpkg-deb", "-f", packages[name], key).strip()  # noqa: E731
    version = field("libfastwrite0", "Version")
    assert field("libfastwrite0", "Multi-Arch") == "same"
    assert f"libfastwrite0 (= {version})" in field("fastwrite", "Depends").split(", ")
    for name in NAMES:
        assert re.fullmatch(r"libinih \(= \S+\)", field(name, "Built-Using"))


def test_unit_is_neither_enabled_nor_started(packages, tmp_path):
    run("dpkg-deb", "-e", packages["fastwrite"], tmp_path)
    scripts = "".join(path.read_text() for path in tmp_path.glob("p*"))
    assert "deb-systemd-invoke" not in scripts
    assert "was-enabled" in scripts  # it is enabled again only where it was
    assert "rm " not in scripts


def test_hardened_and_with_the_commit(packages, tmp_path):
    for package in packages.values():
        run("dpkg-deb", "-x", package, tmp_path)
    for path in (tmp_path / "usr/bin/fastwrite", tmp_path / f"usr/lib/{TRIPLET}/libfastwrite.so"):
        assert "BIND_NOW" in run("readelf", "-d", path)
        assert "GNU_RELRO" in run("readelf", "-lW", path)
        assert "__stack_chk_fail" in run("readelf", "--dyn-syms", "-W", path)
        assert str(ROOT).encode() not in path.read_bytes()
    commit = run("git", "-C", ROOT, "rev-parse", "HEAD")[:12]
    assert run(tmp_path / "usr/bin/fastwrite", "--version").endswith(f" ({commit})\n")


def test_lintian_is_content(packages):
    said = run("lintian", "--allow-root", "--fail-on", "error,warning", *packages.values())
    assert said == ""


@pytest.mark.skipif(
    os.environ.get("FASTWRITE_TEST_LONG") != "1", reason="builds all again: FASTWRITE_TEST_LONG=1"
)
def test_same_bytes_in_another_directory(packages, tmp_path):
    sums = {name: hashlib.sha256(package.read_bytes()).hexdigest() for name, package in packages.items()}
    run("git", "clone", "-q", ROOT, tmp_path / "another")
    environment = {**os.environ, "TZ": "Asia/Tokyo", "DEBUG": "1"}
    run("make", "-s", "-C", tmp_path / "another", "deb", umask=0o077, env=environment)
    again = built(tmp_path / "another")
    assert {name: hashlib.sha256(package.read_bytes()).hexdigest() for name, package in again.items()} == sums


def test_life_in_a_fresh_root(packages):
    if os.geteuid() != 0:
        pytest.skip("only root makes a root")
    missing("mmdebstrap", "unshare")
    with disk_dir() as place:
        root = place / "root"
        made = subprocess.run(
            ["mmdebstrap", "--quiet", "--variant=essential", release(), str(root)],
            capture_output=True, text=True, check=False, timeout=300,
        )  # fmt: skip
        if made.returncode != 0:
            pytest.skip(f"mmdebstrap made no root; is there a mirror?  {made.stderr[-300:]}")
        (root / "debs").mkdir()
        for package in packages.values():
            shutil.copy(package, root / "debs")
        (root / "before").touch()
        said = run(
            "unshare", "--mount", "--pid", "--fork", f"--mount-proc={root}/proc",
            "chroot", root, "/bin/bash", "-c", LIFE,
        )  # fmt: skip
    print(said)
    parts = dict(re.findall(r"^== (\w+)\n((?:(?!== ).*\n)*)", said, re.M))
    commit = run("git", "-C", ROOT, "rev-parse", "HEAD")[:12]
    assert parts["version"].endswith(f" ({commit})\n")
    assert parts["enabled"] == ""
    assert parts["run"].endswith(f"/usr/lib/{TRIPLET}/libfastwrite.so\n")
    killed, lines = parts["logged"].split("\n")[:2]
    assert killed == "status 137"
    assert int(lines) < 2000
    assert parts["lines"] == "2000\n"
    left = set(parts["left"].split())
    assert {"/etc/fastwrite.ini", "/var/log/fw/late", "/var/log/fw/.fastwrite"} <= left
    assert any(re.fullmatch(r"/var/log/fw/\.fastwrite/.+\.arena", path) for path in left)
    assert parts["again"] == "late 100\n"
