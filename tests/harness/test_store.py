# SPDX-License-Identifier: Apache-2.0
import json
import shutil

import lab_fakes as fakes
import pytest

from harness.core.model import LabError
from harness.core.store import RUN, SAMPLES, RunStore, merge, read_samples


def test_samples_survive_and_are_done(tmp_path):
    store = RunStore.create(tmp_path / "r", fakes.settings())
    store.append({"leg": "E1/measure/1/native", "status": "ok"})
    again = RunStore.open(tmp_path / "r")
    assert again.done == {"E1/measure/1/native"} and again.settings["suite"] == "000"


def test_notes_are_kept_once_and_merged(tmp_path):
    stores = [RunStore.create(tmp_path / name, fakes.settings(started=name)) for name in ("a", "b")]
    stores[0].note("rebuilt")
    stores[0].note("rebuilt")
    assert RunStore.open(tmp_path / "a").settings["notes"] == ["rebuilt"]
    assert merge(stores).settings["notes"] == ["rebuilt"] and merge(stores[1:]).settings["notes"] == []


def test_a_directory_with_a_run_is_not_taken(tmp_path):
    RunStore.create(tmp_path, fakes.settings())
    with pytest.raises(LabError, match="holds a run already"):
        RunStore.create(tmp_path, fakes.settings())


def test_a_torn_last_line_is_cut_on_resume(tmp_path):
    store = RunStore.create(tmp_path, fakes.settings())
    store.append({"leg": "a"})
    with open(tmp_path / SAMPLES, "a") as file:
        file.write('{"leg": "b", "stat')
    resumed = RunStore.resume(tmp_path, fakes.environment())
    assert resumed.done == {"a"}
    resumed.append({"leg": "c"})
    assert [s["leg"] for s in read_samples(tmp_path / SAMPLES)] == ["a", "c"]


def test_damage_in_the_middle_is_not_passed_over(tmp_path):
    (tmp_path / SAMPLES).write_text('{"leg": "a"}\n{"le\n{"leg": "c"}\n')
    with pytest.raises(LabError, match="line 2 is damaged"):
        read_samples(tmp_path / SAMPLES)


def test_resume_elsewhere_is_refused_and_says_why(tmp_path):
    RunStore.create(tmp_path, fakes.settings())
    with pytest.raises(LabError, match=r"kernel: 'same' and '9\.9'"):
        RunStore.resume(tmp_path, fakes.environment(kernel="9.9"))


@pytest.mark.parametrize("text", ["", "{}", '{"format": 99}', "[]x"])
def test_what_is_no_run_is_refused(tmp_path, text):
    (tmp_path / RUN).write_text(text)
    with pytest.raises(LabError):
        RunStore.open(tmp_path)
    with pytest.raises(LabError, match="not a run"):
        RunStore.open(tmp_path / "nowhere")


def test_runs_of_one_machine_are_merged_with_their_own_pairs(tmp_path):
    stores = []
    for name in ("a", "b"):
        store = RunStore.create(tmp_path / name, fakes.settings(started=name))
        store.append(fakes.measured("E1", "native", 1, 500))
        stores.append(store)
    merged = merge(stores)
    assert len({s["leg"] for s in merged.samples}) == 2 and len({s["pair"] for s in merged.samples}) == 2


def test_runs_of_other_experiments_are_merged(tmp_path):
    one = RunStore.create(tmp_path / "a", fakes.settings(sizes={"E1": {"mib": 1}}, experiments=["E1"]))
    two = RunStore.create(
        tmp_path / "b",
        fakes.settings(started="later", sizes={"E1": {"mib": 1}, "E2": {"mib": 2}}, experiments=["E1", "E2"]),
    )
    merged = merge([one, two])
    assert merged.settings["sizes"] == {"E1": {"mib": 1}, "E2": {"mib": 2}}
    assert merged.settings["experiments"] == ["E1", "E2"]
    other = RunStore.create(
        tmp_path / "c", fakes.settings(started="last", sizes={"E2": {"mib": 9}}, experiments=["E2"])
    )
    with pytest.raises(LabError, match="sizes of E2"):
        merge([one, two, other])


@pytest.mark.parametrize(
    "changes", [{"environment": fakes.environment(shim="other")}, {"scale": "full"}, {"warm": True}]
)
def test_unlike_runs_are_not_merged(tmp_path, changes):
    one = RunStore.create(tmp_path / "a", fakes.settings())
    other = RunStore.create(tmp_path / "b", fakes.settings(started="later", **changes))
    with pytest.raises(LabError, match="not merged"):
        merge([one, other])


def test_a_run_is_not_merged_with_itself_nor_with_its_copy(tmp_path):
    one = RunStore.create(tmp_path / "a", fakes.settings())
    (tmp_path / "link").symlink_to("a")
    for again in (one, RunStore.open(tmp_path / "link")):
        with pytest.raises(LabError, match="is given twice"):
            merge([one, again])
    shutil.copytree(tmp_path / "a", tmp_path / "copy")
    with pytest.raises(LabError, match="are copies of one run"):
        merge([one, RunStore.open(tmp_path / "copy")])


def test_lines_are_plain_json(tmp_path):
    store = RunStore.create(tmp_path, fakes.settings())
    store.append(fakes.measured("E1", "native", 1, 500))
    line = (tmp_path / SAMPLES).read_text()
    assert line.endswith("\n") and json.loads(line)["rate_mb_s"] == 500
