# SPDX-License-Identifier: Apache-2.0
"""shim/hooks/next.c finds the functions behind the hooks: the same ones as dlsym(RTLD_NEXT)."""

from __future__ import annotations

import os
import subprocess

import pytest
from lib.support import ROOT
from lib.symbol_table import hooked

NEXT = """
#define _GNU_SOURCE
#include "hooks/next.c"

#include <dlfcn.h>
#include <stdio.h>

/* For each name: how it was found, and whether dlsym finds the same. */
int main(int argc, char **argv)
{
	for (int i = 1; i < argc; i++) {
		void *expected = dlsym(RTLD_NEXT, argv[i]);
		bool is_data = strncmp(argv[i], "_IO_", 4) == 0 && strstr(argv[i], "_jumps");
		const ElfW(Sym) *symbol = NULL;
		size_t bytes = 0;
		Dl_info info;
		void *found = is_data ? next_object(argv[i], &bytes) : next_function(argv[i]);
		bool known = found != NEXT_UNKNOWN, same = found == expected;

		if (is_data && same && dladdr1(found, &info, (void **)&symbol, RTLD_DL_SYMENT))
			same = symbol && symbol->st_size == bytes;
		printf("%s %s ", argv[i], !known ? "unknown" : found ? "found" : "none");
		puts(!known || same ? "same" : "another");
	}
	return 0;
}
"""
OTHER = """
int write(void) { return 1; }
__asm__(".symver old_dup, dup@OLD_1.0");
int old_dup(void) { return 1; }
"""


def look_up(compile_c, *names: str, preload: str = "") -> dict[str, tuple[str, str]]:
    program = compile_c(NEXT, f"-I{ROOT}/shim", "-ldl")
    env = {**os.environ, "LD_PRELOAD": preload}
    done = subprocess.run([program, *names], env=env, capture_output=True, text=True, check=True)
    return {name: (how, same) for name, how, same in map(str.split, done.stdout.splitlines())}


def test_all_functions_behind_hooks(compile_c):
    kinds = {name: kind for name, kind in hooked().items() if kind in ("HOOK", "OPTIONAL")}
    found = look_up(compile_c, *kinds)
    assert len(found) > 150
    assert [name for name, (_, same) in found.items() if same != "same"] == []
    assert [name for name, (how, _) in found.items() if how == "unknown"] == []
    assert [name for name, (how, _) in found.items() if how == "none" and kinds[name] == "HOOK"] == []


def test_tables_of_streams(compile_c):
    names = ("_IO_file_jumps", "_IO_wfile_jumps", "_IO_file_write")
    assert look_up(compile_c, *names) == dict.fromkeys(names, ("found", "same"))


def test_what_only_dlsym_can_tell(compile_c):
    """A function that is chosen by the processor; one of which only an old version is left."""
    found = look_up(compile_c, "memcpy", "strlen", "sys_errlist", "no_such_function")
    assert found["memcpy"][0] == found["strlen"][0] == "unknown"
    assert found["sys_errlist"][0] in ("unknown", "none")
    assert found["no_such_function"] == ("none", "same")


@pytest.mark.parametrize("hash_style", ["gnu", "sysv"])
def test_another_preloaded_library(compile_c, tmp_path, hash_style):
    """Its functions come first.  An old version of one is not taken, nor is anything of a library without a hash table
    of GNU's."""
    versions = tmp_path / "versions"
    versions.write_text("OLD_1.0 { global: dup; };\nNEW_1.0 { global: write; };\n")
    other = compile_c(
        OTHER, "-shared", "-fPIC", "-Wno-builtin-declaration-mismatch",
        f"-Wl,--hash-style={hash_style}", f"-Wl,--version-script={versions}",
    )  # fmt: skip
    found = look_up(compile_c, "write", "read", "dup", preload=str(other))
    if hash_style == "gnu":
        assert found == {"write": ("found", "same"), "read": ("found", "same"), "dup": ("unknown", "same")}
    else:
        assert {how for how, _ in found.values()} == {"unknown"}
