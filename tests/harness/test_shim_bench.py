# SPDX-License-Identifier: Apache-2.0
from pathlib import Path

import lab_fakes as fakes
import pytest

from harness.core import shim, warm
from harness.core.executor import Completed
from harness.core.model import LabError, Target
from harness.report import targets as bench
from harness.run import catalog


class Answers:
    def __init__(self, returncode, stdout="", stderr=""):
        self.done = Completed(returncode, stdout, stderr, 0.0)

    def run(self, command, tick_seconds=0.1, on_tick=None):
        return self.done


def test_a_shim_that_is_not_built_says_what_to_do(tmp_path):
    assert "run `make` first" in shim.find(tmp_path)
    for name in ("libfastwrite.so", "fastwrite"):
        (tmp_path / name).write_text("x")
    found = shim.find(tmp_path)
    digest = found.digest
    (tmp_path / "fastwrite").write_text("y")
    assert found.digest != digest


def test_signs_of_a_pattern_in_the_directory_are_quoted(tmp_path):
    found = shim.Shim(tmp_path / "l.so", tmp_path / "c")
    assert found.env(Path("/a[1]*"), {})["FASTWRITE_PATHS"] == r"/a\[1\]\*/data*"


@pytest.mark.parametrize("name", ["a b", "a:b"])
def test_a_library_that_the_loader_cannot_preload_is_refused(tmp_path, name):
    found = shim.Shim(tmp_path / name / "l.so", tmp_path / "c")
    with pytest.raises(LabError, match="a path with a blank or ':'"):
        found.env(tmp_path, {})


def test_recovery_answers_or_is_an_error(tmp_path):
    found = shim.Shim(tmp_path / "l", tmp_path / "c")
    assert found.recover(Answers(0, '{"a": 1}'), tmp_path) == {"a": 1}
    assert found.recover(Answers(0, "words"), tmp_path) == {"text": "words"}
    with pytest.raises(LabError, match="ended with 4: bad"):
        found.recover(Answers(4, "", "bad"), tmp_path)


def test_arena_is_what_stands_in_the_staging_directory(tmp_path):
    assert shim.arena_bytes(tmp_path) is None
    (tmp_path / ".fastwrite").mkdir()
    (tmp_path / ".fastwrite" / "a").write_bytes(bytes(5000))
    assert shim.arena_bytes(tmp_path) == 5000


def test_scrub_takes_every_variable_of_the_shim():
    environ = {"LD_PRELOAD": "x", "FASTWRITE_MEM": "1M", "PATH": "/bin"}
    assert sorted(shim.scrub(environ)) == ["FASTWRITE_MEM", "LD_PRELOAD"] and environ == {"PATH": "/bin"}


def test_targets_are_ratios_of_the_same_round():
    samples = [fakes.measured("A", "native", n, 500 * n) for n in (1, 2, 3)]
    samples += [fakes.measured("A", "shim", n, 1000 * n) for n in (1, 2, 3)]
    target = Target("a", "t", "A/shim", "A/native", at_least=1.8)
    (found,) = bench.evaluate([target], samples)
    assert found.verdict == bench.PASS and found.measured.median == 2 and found.values == (2, 2, 2)
    (found,) = bench.evaluate([Target("a", "t", "A/shim", "A/native", at_least=2.1)], samples)
    assert found.verdict == bench.MISS


def test_a_figure_of_memory_and_a_missing_leg():
    samples = [fakes.measured("A", "shim", 1, 500)]
    (found,) = bench.evaluate([Target("m", "t", "A/shim.footprint_mb", at_most=18)], samples)
    assert found.verdict == bench.PASS and found.measured.median == 0.01
    (found,) = bench.evaluate([Target("x", "t", "A/shim", "B/native", at_least=1)], samples)
    assert found.verdict == bench.NO_DATA
    assert bench.table([found]).row_count == 1


def test_every_target_of_the_catalog_names_legs_that_exist():
    loaded = catalog.load()
    legs = {(e.id, v) for e in loaded.suite("bench") for v in e.variants}
    assert {t.id for t in loaded.targets} == {
        "a1",
        "a2",
        "a3",
        "a4",
        "b1",
        "b2",
        "b3",
        "b4",
        "b5",
        "b6",
        "c",
        "d",
    }
    for target in loaded.targets:
        assert bench.split(target.numerator)[:2] in legs
        assert not target.denominator or bench.split(target.denominator)[:2] in legs


def test_warming_takes_at_most_half_of_what_is_free():
    meminfo = "MemTotal: 9 kB\nMemAvailable: 1000 kB\n"
    assert warm.amount(100_000, meminfo) == 400_000
    assert warm.amount(1 << 40, meminfo) == 512_000
    warm.touch(1 << 20)
