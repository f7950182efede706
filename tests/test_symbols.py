# SPDX-License-Identifier: Apache-2.0
"""Every function of the C library and every system call by number is classified: none is forgotten silently.

FASTWRITE_TEST_GLIBC: directories with the libraries of other glibc versions (unpacked packages), separated by
colons, to be judged as well.
"""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest
from lib import symbol_table as st
from lib.support import ROOT

TABLES = ROOT / "tests" / "symbols"
DIRECTORIES = [
    str(st.installed_glibc()),
    *filter(None, os.environ.get("FASTWRITE_TEST_GLIBC", "").split(":")),
]


@pytest.fixture(scope="module", params=DIRECTORIES)
def glibc(request) -> st.Glibc:
    return st.read_glibc(Path(request.param))


@pytest.fixture(scope="module")
def libc_table() -> st.Table:
    return st.load(TABLES / "libc.toml")


def complain(without: list[str], several: list[str], stale: list[str], table: str, hooks: str) -> None:
    said = [f"in no place; hook it ({hooks}), or say in {table} why not: {name}" for name in without]
    said += [f"in several places: {text}" for text in several]
    said += [f"entry of {table} that matches nothing: {token}" for token in stale]
    assert not said, "\n".join(said)


def test_every_function_of_the_c_library(glibc, libc_table):
    names = glibc.public()
    assert len(names) > 2000
    complain(
        *st.judge(libc_table, names, set(st.hooked()), glibc.version, glibc.arch),
        "tests/symbols/libc.toml",
        "shim/hooks/hooks.def",
    )


def test_what_covers_is_there(libc_table):
    """A symbol that covers others is hooked itself, and each door is used."""
    hooks = set(st.hooked())
    used = {by for entry in libc_table.entries for by in entry.by}
    assert used - hooks - set(libc_table.doors) == set()
    assert set(libc_table.doors) - used == set()


def test_hooked_functions_exist(glibc):
    """A hook that no C library needs is not there: it would hide a spelling mistake."""
    kinds = st.hooked()
    missing = {name for name in kinds if name not in glibc.symbols}
    required = {name for name in missing if kinds[name] != "OPTIONAL"}
    # of glibc 2.33 and later; their hooks are not called where nobody can have been linked with them
    newer = {
        "_Fork",
        "execveat",
        "stat",
        "stat64",
        "lstat",
        "lstat64",
        "fstat",
        "fstat64",
        "fstatat",
        "fstatat64",
    }
    of_one_machine = {"llseek", "vlimit"} if glibc.arch != "x86_64" else set()
    assert required - (newer if glibc.version < (2, 34) else set()) - of_one_machine == set()


def test_functions_of_several_versions(glibc):
    """dlsym before glibc 2.36 finds the oldest: those that differ are asked for by version."""
    text = (ROOT / "shim" / "hooks" / "real.c").read_text()
    by_version = dict(re.findall(r'\{"(\w+)", "(GLIBC_[\d.]+)"\}', text))
    looked_up = {name for name, kind in st.hooked().items() if kind != "ALIAS"}
    for name in looked_up & set(glibc.symbols):
        nodes = {node: where for node, where in glibc.symbols[name].items() if node != "GLIBC_PRIVATE"}
        if len(set(nodes.values())) < 2 or glibc.arch != "x86_64":
            continue
        assert name in by_version, (
            f"{name} has several versions: {nodes}; add it to `versioned` in shim/hooks/real.c"
        )
        newest = max(nodes, key=lambda node: [int(part) for part in node[6:].split(".")])
        assert nodes[by_version[name]] == nodes[newest], f"{name}: {by_version[name]} of {nodes}"


def test_functions_of_64_bits(glibc):
    """A name that ends in 64 is an alias of ours where it is one in the C library, or does the same there."""
    same = {"__open64_2", "__openat64_2", "__pread64_chk", "posix_fallocate64", "freopen64"}
    if glibc.version < (2, 34):
        same |= {"fcntl64", "lockf64"}
    text = (ROOT / "shim" / "hooks" / "hooks.def").read_text()
    for name, base in re.findall(r"^ALIAS\(auto, (\w*64\w*), (\w+)\)", text, re.MULTILINE):
        if name in same or name not in glibc.symbols or base not in glibc.symbols:
            continue
        assert set(glibc.symbols[name].values()) & set(glibc.symbols[base].values()), f"{name}, {base}"


# ---- system calls ----


def handled() -> set[str]:
    source = (ROOT / "shim" / "hooks" / "syscall.c").read_text()
    return set(re.findall(r"^\t\[SYS_(\w+)\] = ", source, re.MULTILINE))


def test_every_system_call():
    names, version = st.kernel_calls()
    assert len(names) > 250
    table = st.load(TABLES / "syscalls.toml")
    arch = os.uname().machine
    without, several, stale = st.judge(table, names, handled(), version, arch)
    complain(without, several, stale, "tests/symbols/syscalls.toml", "shim/hooks/syscall.c")


def test_every_handler_is_called():
    """Each number with a handler is used by a hook program (vfork cannot be: it returns twice; a filter would refuse
    what the other tests call)."""
    paths = [*(ROOT / "tests" / "hooks").glob("*.c"), ROOT / "tests" / "test_seccomp.py"]
    text = "".join(path.read_text() for path in paths)
    used = set(re.findall(r"syscall\((?:how \? )?SYS_(\w+)", text)) | set(re.findall(r": SYS_(\w+)", text))
    used |= set(re.findall(r"syscall\(\d+ /\* (\w+) \*/", text)) | set(
        re.findall(r": syscall\(SYS_(\w+)", text)
    )
    assert handled() - used == {"vfork"}


def test_every_handler_gets_wild_pointers():
    """Each number with a handler that gets a pointer has a line in test_pointer (every hook has one: see there)."""
    text = (ROOT / "tests" / "hooks" / "test_pointer.c").read_text()
    without = """close close_range dup dup2 dup3 pidfd_getfd fanotify_init lseek fsync fdatasync sync syncfs
        sync_file_range mmap flock ftruncate fallocate fchmod fchown exit exit_group unshare setns setuid setgid
        setreuid setregid setresuid setresgid setfsuid setfsgid fork vfork prctl seccomp"""
    assert handled() - set(re.findall(r"^\tNUMBER\((\w+)", text, re.MULTILINE)) == set(without.split())


# ---- the judgement itself ----

SAMPLE = """
[doors]
[[harmless]]
why = "memory"
names = "str* memcpy newer@2.50 older@<2.20"
[[harmless]]
arch = "aarch64"
why = "one machine"
names = "only_there"
"""


@pytest.fixture
def sample(tmp_path) -> st.Table:
    path = tmp_path / "sample.toml"
    path.write_text(SAMPLE)
    return st.load(path)


def test_a_new_function_is_named(sample):
    names = {"strlen", "memcpy", "write", "frobnicate"}
    assert st.judge(sample, names, {"write"}, (2, 36), "x86_64") == (["frobnicate"], [], [])


def test_an_entry_that_matches_nothing_is_named(sample):
    assert st.judge(sample, {"strlen"}, set(), (2, 36), "x86_64") == ([], [], ["memcpy"])
    names = {"strlen", "memcpy"}
    assert st.judge(sample, names, set(), (2, 50), "x86_64")[2] == ["newer@2.50"]
    assert st.judge(sample, names, set(), (2, 19), "x86_64")[2] == ["older@<2.20"]
    assert st.judge(sample, names, set(), (2, 36), "aarch64")[2] == ["only_there"]


def test_two_places_are_named(sample):
    without, several, stale = st.judge(sample, {"strlen", "memcpy"}, {"strlen"}, (2, 36), "x86_64")
    assert (without, stale) == ([], [])
    assert several == ["strlen: hooks.def, str*"]


@pytest.mark.parametrize(
    "entry",
    [
        '[[harmless]]\nnames = "a"',
        '[[covered]]\nnames = "a"\nby = []',
        '[[harmless]]\nwhy = "x"\nnames = ""',
        '[[harmless]]\nwhy = "x"\nnames = "a@"',
        '[[harmless]]\nwhy = "x"\nnames = "a"\nbecause = "y"',
    ],
)
def test_a_table_of_wrong_form(tmp_path, entry):
    path = tmp_path / "wrong.toml"
    path.write_text(entry)
    with pytest.raises((AssertionError, KeyError, ValueError)):
        st.load(path)
