# SPDX-License-Identifier: Apache-2.0
"""The figure of the README: drawn from its samples, and nothing else."""

from __future__ import annotations

import json
import xml.etree.ElementTree as ET
from pathlib import Path

import pytest

from harness.report import figure

RESULTS = Path(__file__).parents[2] / "docs" / "results"


def bench(cell: str, variant: str, number: int, rate: float, **more) -> dict:
    found = {"experiment": cell, "variant": variant, "round": number, "rate_mb_s": rate}
    return {"kind": "measure", "status": "ok", **found, **more}


def sync(cell: str, variant: str, number: int, rate: float) -> dict:
    return {"cell": cell, "variant": variant, "round": number, "rate": rate, "status": "ok"}


def samples() -> tuple[list[dict], list[dict]]:
    benches, syncs = [], []
    for source in figure.ROWS:
        to, make = (syncs, sync) if source.synced else (benches, bench)
        for number in (1, 2, 3):
            to.append(make(source.cell, "native", number, 100.0))
            to.append(make(source.cell, source.library, number, 100.0 * (number + 1)))
    return benches, syncs


def test_drawings_are_of_the_samples():
    lines = figure.read(RESULTS / figure.SAMPLES)
    assert list(dict.fromkeys(line["row"] for line in lines)) == [s.title for s in figure.ROWS]
    for theme, name in figure.DRAWINGS.items():
        text = (RESULTS / name).read_text()
        assert text == figure.draw(lines, figure.PALETTES[theme])
        ET.fromstring(text)


def test_main_writes_all_three(tmp_path):
    benches, syncs = samples()
    (tmp_path / "samples.jsonl").write_text("".join(json.dumps(s) + "\n" for s in benches))
    (tmp_path / "sync.json").write_text(json.dumps({"samples": syncs}))
    assert figure.main([str(tmp_path), str(tmp_path / "sync.json"), str(tmp_path)]) == 0
    lines = figure.read(tmp_path / figure.SAMPLES)
    assert len(lines) == 3 * len(figure.ROWS)
    assert {(bar.ratio, bar.low, bar.high) for bar in figure.bars(lines)} == {(3.0, 2.0, 4.0)}
    for theme, name in figure.DRAWINGS.items():
        assert (tmp_path / name).read_text() == figure.draw(lines, figure.PALETTES[theme])


def test_a_row_without_samples_is_an_error(tmp_path, capsys):
    benches, _ = samples()
    (tmp_path / "samples.jsonl").write_text("".join(json.dumps(s) + "\n" for s in benches))
    (tmp_path / "sync.json").write_text(json.dumps({"samples": []}))
    assert figure.main([str(tmp_path), str(tmp_path / "sync.json"), str(tmp_path)]) == 1
    assert "fsync" in capsys.readouterr().err
    assert not (tmp_path / figure.SAMPLES).exists()


@pytest.mark.parametrize(
    "change",
    [{"status": "failed"}, {"kind": "kill"}, {"rate_mb_s": None}],
    ids=lambda change: next(iter(change)),
)
def test_only_whole_rounds_of_measured_legs_count(change):
    benches, syncs = samples()
    benches = [{**s, **(change if s["round"] == 2 and s["variant"] == "shim" else {})} for s in benches]
    lines = figure.collect(benches, syncs)
    title = next(source.title for source in figure.ROWS if not source.synced)
    assert [line["round"] for line in lines if line["row"] == title] == ["1", "3"]
