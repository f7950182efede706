# SPDX-License-Identifier: Apache-2.0
"""The tables in tests/symbols: every name has one entry, and every entry has a name."""

from __future__ import annotations

import re
import subprocess
import tomllib
from collections import defaultdict
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent.parent
HOOK = re.compile(r"^(HOOK|OPTIONAL|VARIADIC|ALIAS)\([^,]*, *(\w+)", re.MULTILINE)
TOKEN = re.compile(r"^(?P<pattern>[\w*?\[\]-]+)(?:@(?P<before><)?(?P<version>\d+\.\d+))?$")
# Where the C library's functions are; what 2.34 merged into libc keeps a name and no function of its own.
LIBRARIES = ("libc.so.6", "libpthread.so.0", "librt.so.1", "libutil.so.1", "libdl.so.2", "libanl.so.1")
PLACEHOLDER = re.compile(r"^__lib\w+_version_placeholder$")

Version = tuple[int, int]


def version_of(text: str) -> Version:
    major, minor = text.split(".")
    return int(major), int(minor)


@dataclass(frozen=True)
class Token:
    """One name or pattern of an entry; `since` and `before` excuse its absence from other versions."""

    text: str
    pattern: str
    since: Version | None
    before: Version | None

    def expected(self, version: Version) -> bool:
        if self.since and version < self.since:
            return False
        return not (self.before and version >= self.before)

    def matches(self, name: str) -> bool:
        return fnmatchcase(name, self.pattern)


@dataclass
class Entry:
    kind: str
    tokens: list[Token]
    by: list[str] = field(default_factory=list)
    why: str = ""
    arch: str = ""


@dataclass
class Table:
    entries: list[Entry]
    doors: dict[str, str]


def parse_token(text: str) -> Token:
    match = TOKEN.match(text)
    if not match:
        raise ValueError(f"not a name, a pattern, name@VERSION or name@<VERSION: {text}")
    version = version_of(match["version"]) if match["version"] else None
    before = version if match["before"] else None
    return Token(text, match["pattern"], None if match["before"] else version, before)


def load(path: Path) -> Table:
    """Reads a table and checks its form."""
    data = tomllib.loads(path.read_text())
    table = Table([], data.pop("doors", {}))
    for kind, entries in data.items():
        for entry in entries:
            wanted = {"covered": "by", "harmless": "why"}[kind]
            assert set(entry) <= {"names", wanted, "arch"}, f"{path.name}: {kind}: {sorted(entry)}"
            assert entry[wanted], f"{path.name}: {kind} without {wanted}: {entry['names'][:60]}"
            tokens = [parse_token(word) for word in entry["names"].split()]
            assert tokens, f"{path.name}: {kind} without names"
            table.entries.append(
                Entry(kind, tokens, entry.get("by", []), entry.get("why", ""), entry.get("arch", ""))
            )
    return table


def hooked() -> dict[str, str]:
    """Name -> kind, of everything in hooks.def."""
    return {m[2]: m[1] for m in HOOK.finditer((ROOT / "shim" / "hooks" / "hooks.def").read_text())}


def judge(
    table: Table, names: set[str], hooks: set[str], version: Version, arch: str
) -> tuple[list[str], list[str], list[str]]:
    """Names without an entry, names with several, and tokens that match nothing though they should."""
    found: dict[str, list[str]] = defaultdict(list)
    stale = []
    for name in names & hooks:
        found[name].append("hooks.def")
    for entry in table.entries:
        if entry.arch and entry.arch != arch:
            continue
        for token in entry.tokens:
            matched = [name for name in names if token.matches(name)]
            for name in matched:
                found[name].append(token.text)
            if not matched and token.expected(version):
                stale.append(token.text)
    without = sorted(name for name in names if not found[name])
    several = sorted(f"{name}: {', '.join(places)}" for name, places in found.items() if len(places) > 1)
    return without, several, sorted(stale)


# ---- the C library ----


@dataclass
class Glibc:
    version: Version
    arch: str
    # name -> {version node: address}, functions only, all versions
    symbols: dict[str, dict[str, str]]

    def public(self) -> set[str]:
        """Names that a program can be linked with, or could when it was built."""
        return {name for name, nodes in self.symbols.items() if set(nodes) != {"GLIBC_PRIVATE"}}


def read_glibc(directory: Path) -> Glibc:
    """What the libraries of one glibc export."""
    libc = directory / "libc.so.6"
    banner = re.search(
        rb"GNU C Library [^\n]*? (?:stable|development) release version (\d+\.\d+)", libc.read_bytes()
    )
    assert banner, f"{libc}: no glibc"
    glibc = Glibc(version_of(banner[1].decode()), "", defaultdict(dict))
    for library in LIBRARIES:
        path = directory / library
        if not path.exists():
            continue
        listing = subprocess.run(
            ["readelf", "-W", "--file-header", "--dyn-syms", str(path)],
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        machine = re.search(r"Machine:\s+(.*)", listing)
        glibc.arch = {"Advanced Micro Devices X86-64": "x86_64", "AArch64": "aarch64"}.get(
            machine[1], machine[1]
        )
        for line in listing.splitlines():
            parts = line.split()
            # Num: Value Size Type Bind Vis Ndx Name
            if len(parts) < 8 or parts[3] not in ("FUNC", "IFUNC") or parts[6] == "UND":
                continue
            name, _, node = parts[7].partition("@")
            if not PLACEHOLDER.match(name):
                glibc.symbols[name][node.lstrip("@")] = f"{library}:{parts[1]}"
    return glibc


def installed_glibc() -> Path:
    """The directory of the C library that this interpreter runs with."""
    for line in Path("/proc/self/maps").read_text().splitlines():
        path = line.split(maxsplit=5)[-1]
        if re.search(r"/libc(\.so\.6|-2\.\d+\.so)$", path):
            return Path(path).parent
    raise AssertionError("this interpreter has no glibc")


def kernel_calls() -> tuple[set[str], Version]:
    """The names in the kernel's headers, and their version."""
    done = subprocess.run(
        ["cc", "-E", "-dM", "-x", "c", "-"],
        input="#include <asm/unistd.h>\n#include <linux/version.h>\n",
        text=True,
        capture_output=True,
        check=True,
    ).stdout
    code = int(re.search(r"define LINUX_VERSION_CODE (\d+)", done)[1])
    # beside the calls there are a few macros that are none
    names = set(re.findall(r"define __NR_(\w+) ", done)) - {"syscalls", "arch_specific_syscall"}
    return names, (code >> 16, code >> 8 & 255)
