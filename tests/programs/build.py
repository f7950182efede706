# SPDX-License-Identifier: Apache-2.0
"""make -j2 with gcc: many small files by many processes; the objects equal those of a native build."""

from __future__ import annotations

import hashlib

from programs.case import Case
from programs.place import NEXT, Place

MAKEFILE = """
OBJECTS := $(patsubst %.c,%.o,$(wildcard *.c))
all: program
program: libpart.a main.o
	gcc -o $@ main.o libpart.a
	@echo $@ >> $(DONE)
libpart.a: $(filter-out main.o,$(OBJECTS))
	ar rcsD $@ $^
	@echo $@ >> $(DONE)
%.o: %.c part.h
	gcc -O1 -g0 -save-temps=obj -c -o $@ $<
	@echo $@ >> $(DONE)
"""


class Build(Case):
    name = "gcc, make -j2"
    needs = {"gcc": "gcc", "make": "make"}  # noqa: RUF012
    survives = "every object whose rule was over is the one of a native build; make completes the rest"
    kills = 6
    settings = ({"sync": "fdatasync"}, {"sync": "off", "lag_ms": 1})

    def prepare(self, place: Place, count: int) -> None:
        tree = place.data / "tree"
        tree.mkdir()
        (tree / "Makefile").write_text(MAKEFILE)
        (tree / "part.h").write_text("".join(f"int part{i}(int);\n" for i in range(count)))
        for i in range(count):
            body = "".join(f"\tx = x * {j + i} + part{(i + 1) % count}_{j}(x);\n" for j in range(30))
            helpers = "".join(
                f"static int part{(i + 1) % count}_{j}(int x) {{ return x ^ {i * j}; }}\n" for j in range(30)
            )
            (tree / f"part{i}.c").write_text(
                f'#include <stdio.h>\n#include "part.h"\n{helpers}'
                f'int part{i}(int x)\n{{\n{body}\tprintf("%d\\n", x);\n\treturn x;\n}}\n'
            )
        calls = "".join(f"\tx += part{i}(x);\n" for i in range(count))
        (tree / "main.c").write_text(
            f'#include "part.h"\nint main(void)\n{{\n\tint x = 1;\n{calls}\treturn x == 0;\n}}\n'
        )

    def made(self, place: Place) -> dict[str, str]:
        tree = place.data / "tree"
        files = [path for pattern in ("*.o", "*.a", "*.s", "*.i", "program") for path in tree.glob(pattern)]
        return {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in sorted(files)}

    def make(self, place: Place) -> list[str]:
        done = f"DONE={place.aside}/done"
        return ["make", "-s", "-j2", "-C", str(place.data / "tree"), done]

    def run(self, place: Place) -> object:
        self.prepare(place, 12 if place.quick else 60)
        env = {"TMPDIR": str(place.data)}
        place.run(*self.make(place), env=env)
        output = place.run(place.data / "tree" / "program", env=env).stdout
        return {**self.made(place), "output": hashlib.sha256(output.encode()).hexdigest()}

    def kill(self, place: Place) -> None:
        count = 30
        self.prepare(place, count)
        done = place.aside / "done"
        env = {"TMPDIR": str(place.data)}
        build = place.start(*self.make(place), env=env)
        wanted = place.dice.randrange(1, count - 8)
        place.until(
            lambda: done.exists() and len(done.read_text().splitlines()) >= wanted, "objects are made"
        )
        place.pause(0.1)
        build.kill()
        place.bring_back()
        if place.way == NEXT:
            place.run("true")
        over = done.read_text().splitlines()
        after_kill = self.made(place)
        # what was under way may be half a file, as natively; make would take it for made
        for path in (place.data / "tree").glob("*.o"):
            if path.name not in over:
                path.unlink()
        if "libpart.a" not in over:
            (place.data / "tree" / "libpart.a").unlink(missing_ok=True)
        (place.data / "tree" / "program").unlink(missing_ok=True)
        place.run(*self.make(place), env=env)
        result = self.made(place)
        for path in (place.data / "tree").glob("*"):
            if path.suffix in (".o", ".a", ".s", ".i") or path.name == "program":
                path.unlink()
        place.run(*self.make(place), shim=False, env=env)
        native = self.made(place)
        wrong = [name for name in over if after_kill.get(name) != native[name]]
        assert not wrong, f"made before the kill, and not as natively: {wrong}"
        assert result == native, f"{[name for name in native if native[name] != result.get(name)]} differ"


CASES = [Build()]
