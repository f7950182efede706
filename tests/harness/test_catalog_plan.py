# SPDX-License-Identifier: Apache-2.0
import itertools
from dataclasses import replace

import pytest

from harness.core.model import KILL, MEASURE, MEMORY, LabError
from harness.run import catalog, plan

GOOD = """
suite = "x"
[[experiment]]
id = "A"
title = "a"
tool = "writer"
variants = ["native", "shim"]
kinds = ["measure", "memory", "kill"]
params = { method = "write" }
published = { text = "none" }
[experiment.size.tiny]
threads = 2
records = 10
records_memory = 5
records_shim = 20
"""


def load(tmp_path, text):
    (tmp_path / "x.toml").write_text(text)
    return catalog.load(tmp_path)


def make(experiments, **changes):
    base = {
        "suite": "x", "scale": "tiny", "seed": 1, "pairs": 4, "kills": 2, "memory_limit_bytes": 1 << 26,
        "variants": ("native", "shim", "control"), "kinds": (MEASURE, MEMORY, KILL),
    }  # fmt: skip
    return plan.make(experiments, **{**base, **changes})


def test_every_row_of_part_000_is_there(experiments):
    wanted = {"B1", "B2", "E1", "E2", "E3", "E4", "E2-prealloc", "E4-fixed", "E4-64k", "E4-128k", "D16", "AA"}
    assert wanted <= set(experiments)
    for name in wanted:
        assert {"tiny", "small", "full"} <= set(experiments[name].sizes)
    assert experiments["E1"].sizes["full"] == {
        "threads": 64, "records": 1_000_000, "records_memory": 100_000, "records_kill": 100_000,
    }  # fmt: skip
    assert experiments["E2"].published.value == 800 and experiments["B2"].published.value == 2181


def test_shares_name_rows_that_exist(experiments):
    for experiment in experiments.values():
        for claim in experiment.claims:
            assert not claim.of or claim.of in experiments
            # a reader can look it up, or is told that it is not the article's
            assert bool(claim.place) != bool(claim.own), f"{experiment.id}: {claim.text}"
            if claim.neutral is not None and claim.published is not None:
                assert (claim.low or 0) < (claim.high or float("inf"))


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ('tool = "writer"', 'tool = "dd"', "tool 'dd' is none of"),
        ('method = "write"', 'metod = "write"', "unknown key 'metod'"),
        ("records = 10", "rekords = 10", "unknown key 'rekords'"),
        ('"shim"]', '"shimm"]', "variants 'shimm'"),
        ('title = "a"', "title = 3", "'title' (str) is missing"),
        ('published = { text = "none" }', "", "'published' (dict) is missing"),
        ('published = { text = "none" }', "published = { figure = 3 }", "unknown key 'figure'"),
        ('suite = "x"', 'sweet = "x"', "unknown key 'sweet'"),
        ('suite = "x"', "suite = ", "x.toml"),
        ('tool = "writer"', 'tool = "writer"\nshim_role = "hope"', "shim_role 'hope'"),
        ('tool = "writer"', 'tool = "writer"\nclaim = [{ text = "t", measure = "luck" }]', "measure 'luck'"),
    ],
)
def test_a_mistake_is_named(tmp_path, old, new, said):
    assert old in GOOD
    with pytest.raises(LabError) as error:
        load(tmp_path, GOOD.replace(old, new))
    assert said in str(error.value) and "x.toml" in str(error.value)


def test_an_id_is_used_once_and_an_unknown_one_refused(tmp_path):
    with pytest.raises(LabError, match="used twice"):
        load(tmp_path, GOOD + GOOD.split('suite = "x"')[1])
    loaded = load(tmp_path, GOOD)
    assert [e.id for e in loaded.select(["a"])] == ["A"]
    with pytest.raises(LabError, match="no experiment 'B'"):
        loaded.select(["B"])
    with pytest.raises(LabError, match="suite 'y' is unknown"):
        loaded.suite("y")


def test_defaults_are_merged_key_by_key(tmp_path):
    text = GOOD.replace(
        "[[experiment]]", "[defaults]\nparams = { append = true, method = 'anon' }\n[[experiment]]", 1
    )
    assert load(tmp_path, text).experiments[0].params == {"append": True, "method": "write"}


def test_sides_alternate_and_stand_together(tmp_path):
    legs = make(load(tmp_path, GOOD).experiments, kinds=(MEASURE,)).legs
    pairs = [tuple(leg.variant for leg in legs[i : i + 2]) for i in range(0, len(legs), 2)]
    assert len(pairs) == 4
    assert all(set(pair) == {"native", "shim"} for pair in pairs)
    assert all(a != b for a, b in itertools.pairwise(pairs))


def test_a_seed_makes_one_plan_and_another_seed_another(experiments):
    rows = [e for e in experiments.values() if e.suite == "000"]
    assert make(rows).legs == make(rows).legs
    assert make(rows).legs != make(rows, seed=2).legs
    assert len({leg.id for leg in make(rows).legs}) == len(make(rows).legs)


def test_rounds_come_before_memory_before_kill(experiments):
    kinds = [leg.kind for leg in make(list(experiments.values())).legs]
    assert [k for k, _ in itertools.groupby(kinds)] == [MEASURE, MEMORY, KILL]


def test_estimate_counts_bytes_by_leg_size(tmp_path):
    rows = load(tmp_path, GOOD).experiments
    found = plan.estimate(make(rows, pairs=1, kinds=(MEASURE, MEMORY)), rows)
    native, shim, memory = 2 * 10 * 4096, 2 * 20 * 4096, 2 * 5 * 4096
    assert found.bytes == native + shim + 2 * memory
    assert found.footprint_bytes == 2 * shim and found.files == 2 and found.seconds > 0


def test_missing_scale_and_empty_choice_are_refused(tmp_path):
    rows = load(tmp_path, GOOD).experiments
    with pytest.raises(LabError, match="no size for scale 'huge'"):
        make(rows, scale="huge")
    with pytest.raises(LabError, match="nothing to do"):
        make(rows, variants=())


def test_every_second_kill_is_paced(experiments):
    legs = [leg for leg in make([experiments["E1"]]).legs if leg.kind == KILL]
    sizes = {leg.round: plan.size_of(experiments["E1"], leg, "small") for leg in legs}
    assert "pause_us" not in sizes[1] and sizes[2]["pause_us"] > 0


def test_an_experiment_may_say_itself_how_long_a_leg_takes(experiments):
    rows = [replace(experiments["E1"], estimate_seconds={"tiny": 9.0})]
    made = make(rows, pairs=3, kinds=(MEASURE,))
    assert plan.estimate(made, rows).seconds == pytest.approx(9.0 * len(made.legs))


def test_every_row_of_parts_001_and_003_is_there(experiments):
    published = {
        ("range", "fsync", "nj"): 15.558691, ("range", "fsync", "j"): 15.629009,
        ("range", "fdatasync", "nj"): 15.073506, ("range", "fdatasync", "j"): 15.394414,
        ("range", "nosync", "nj"): 1.299027, ("range", "nosync", "j"): 1.30103,
        ("fallocate", "nosync", "nj"): 1.445625, ("fallocate", "nosync", "j"): 1.304442,
        ("plain", "fsync", "j"): 16.92, ("fallocate", "fsync", "j"): 13.47, ("zeros", "fsync", "j"): 4.03,
    }  # fmt: skip
    for (how, sync, journal), seconds in published.items():
        row = experiments[f"001-{how}-{sync}-{journal}"]
        assert row.published.value == seconds and row.figure == "seconds_first"
        assert (row.mount.mkfs == ("-O", "^has_journal")) == (journal == "nj")
        full = row.sizes["full"]
        assert (
            full["records"] * 4096 == 1 << 30 and full["pause_ms"] == 10000 and row.mount.mib["full"] == 2048
        )
    for how in ("keep", "wzeroes"):
        assert f"001-{how}-fsync-j" in experiments
    techniques = {"batch-4096", "double", "precreate", "plain-both-j", "read-none", "read-default", "read-large",
                  "mmap-large"}  # fmt: skip
    assert {f"001-{name}" for name in techniques} <= set(experiments)
    knobs = {"base", "nojournal", "writeback", "datajournal", "nobarrier", "nodelalloc", "commit", "lazytime",
             "noatime", "fastcommit", "deadline", "requests", "requests-none", "readahead-512", "remount",
             "article"}  # fmt: skip
    assert {f"003-{work}-{knob}" for work in ("build", "append") for knob in knobs} <= set(experiments)


def test_a_suite_can_be_named_instead_of_its_rows():
    loaded = catalog.load()
    chosen = loaded.select(["E1", "003", "003-build-base"])
    assert chosen[0].id == "E1" and {e.suite for e in chosen[1:]} == {"003"}
    assert len(chosen) == 1 + len(loaded.suite("003"))
