# SPDX-License-Identifier: Apache-2.0
"""From samples to verdicts, tables and the page."""

import base64
import csv
import gzip
import io
import json
import re
from dataclasses import replace
from html.parser import HTMLParser

import lab_fakes as fakes
import pytest

from harness.core import statistics
from harness.core.model import Claim
from harness.core.samples import Samples, latencies
from harness.report import charts, judge, outputs, overview, present, summary
from harness.report import page as report
from harness.run import live


def rounds(experiment, variant, *rates, **more):
    return [fakes.measured(experiment, variant, n, rate, **more) for n, rate in enumerate(rates, 1)]


@pytest.fixture
def samples():
    found = rounds("B2", "native", 2000, 2100, 1900) + rounds("B1", "native", 2500, 2400, 2600)
    found += rounds("E1", "native", 500, 520, 480) + rounds("E1", "shim", 1500, 1510, 1490)
    found += rounds("E2", "native", 700, 720, 690)
    found += rounds("AA", "native", 500, 510, 490) + rounds("AA", "control", 505, 500, 495)
    found += [fakes.killed("E1", v, n) for v in ("native", "shim") for n in (1, 2)]
    found += [fakes.killed("E4", "native", 1, lost=8192), fakes.killed("E4", "native", 2)]
    return found


def summed(experiments, samples, scale="small", cpus=2):
    return summary.summarize(list(experiments.values()), samples, scale, cpus)


def row(found, name):
    return next(r for r in found.rows if r.experiment.id == name)


def test_rows_compare_within_rounds(experiments, samples):
    found = summed(experiments, samples)
    assert row(found, "E1").comparison.ratio == pytest.approx(3.0, rel=0.05)
    assert row(found, "E1").comparison.verdict == "faster"
    assert row(found, "AA").comparison.verdict == "inconclusive"
    assert row(found, "E1").kills["shim"].kills == 2 and not found.failed


def test_a_round_that_lost_a_leg_makes_no_pair(experiments, samples):
    kept = [s for s in samples if s["leg"] != "E1/measure/2/native"]
    assert row(summed(experiments, kept), "E1").comparison.n == 2


def test_jitter_is_compared_within_rounds(experiments):
    def uneven(experiment, number, swing):
        """A leg whose bandwidth alternates around its mean by `swing` of it."""
        sample = fakes.measured(experiment, "native", number, 1000)
        steps = [2e8 * (1 + swing * (-1) ** i) / 512 for i in range(10)]
        sectors = [int(sum(steps[:i])) for i in range(11)]
        return {**sample, "series": {**sample["series"], "written_sectors": sectors}}

    swings = {1: 0.1, 2: 0.2, 3: 0.4, 4: 0.8}
    ours = [uneven("E1", n, 0.5 * swing) for n, swing in swings.items()]
    theirs = [uneven("E2", n, swing) for n, swing in swings.items() if n != 1]
    claim = Claim("half as uneven", "cv_over", of="E2", low=0.4, high=0.6)
    found = judge.judge(experiments["E1"], claim, Samples(ours + theirs), "small", 2)
    assert (found.low, found.ours, found.high) == pytest.approx((0.5, 0.5, 0.5), rel=0.01)
    assert found.verdict == judge.REPRODUCES


def test_claims_by_share(experiments, samples):
    found = summed(experiments, samples)
    (e2,) = row(found, "E2").claims
    assert e2.verdict == judge.REPRODUCES and e2.ours == pytest.approx(0.35, rel=0.05) and len(e2.legs) == 6
    assert row(found, "E1").claims[0].verdict == judge.CONTRADICTS
    assert row(found, "B2").verdict == judge.NOT_COMPARABLE


def test_a_share_below_its_band_is_not_held_against_the_article_when_the_processors_were_busy(experiments):
    busy = {"user_seconds": 2.0, "system_seconds": 1.8}
    samples = rounds("B2", "native", 2000, 2000, 2000) + rounds("E1", "native", 500, 500, 500, outcome=busy)
    claim = row(summed(experiments, samples, cpus=2), "E1").claims[0]
    assert claim.verdict == judge.NOT_COMPARABLE and "busy" in claim.reason
    assert row(summed(experiments, samples, cpus=64), "E1").claims[0].verdict == judge.CONTRADICTS


def test_a_kill_that_lost_something_contradicts_by_its_worst(experiments, samples):
    claims = {c.claim.measure: c for c in row(summed(experiments, samples), "E4").claims}
    assert claims["lost_kill"].verdict == judge.CONTRADICTS and claims["lost_kill"].ours == 8192
    assert row(summed(experiments, samples), "E4").verdict == judge.CONTRADICTS


def test_claims_wait_for_their_scale(experiments, samples):
    dip = row(summed(experiments, samples), "E1").claims[1]
    assert dip.verdict == judge.NOT_COMPARABLE and "--scale full" in dip.reason
    assert row(summed(experiments, samples, scale="full"), "E1").claims[1].verdict == judge.CONTRADICTS


@pytest.mark.parametrize(
    ("values", "low", "high", "verdict"),
    [
        ([1.0, 1.0], 0.9, None, judge.REPRODUCES),
        ([1.0, 1.0], None, 0.9, judge.CONTRADICTS),
        ([0.7, 0.8, 1.0], 0.9, None, judge.UNDECIDED),
    ],
)
def test_bands(values, low, high, verdict):
    claim, ours = Claim("t", "share", low=low, high=high), statistics.interval(values)
    assert judge._verdict(claim, judge.direction_of(claim, ours), judge.size_of(claim, ours))[0] == verdict


@pytest.mark.parametrize(
    ("ours", "low", "high", "direction", "size", "verdict"),
    [
        # the article: 1.5 to 2.7 times as much
        ((1.6, 2.5), 1.5, 2.7, judge.SAME, judge.SAME, judge.REPRODUCES),
        ((3.0, 4.0), 1.5, 2.7, judge.SAME, judge.LARGER, judge.STRONGER),
        ((1.1, 1.4), 1.5, 2.7, judge.SAME, judge.SMALLER, judge.WEAKER),
        ((0.9, 1.4), 1.5, 2.7, judge.OPEN, judge.SMALLER, judge.WEAKER),
        ((0.97, 1.04), 1.5, 2.7, judge.NO_EFFECT, judge.SMALLER, judge.CONTRADICTS),
        ((0.5, 0.9), 1.5, 2.7, judge.OPPOSITE, judge.SMALLER, judge.CONTRADICTS),
        ((1.2, 1.9), 1.5, 2.7, judge.SAME, judge.OPEN, judge.UNDECIDED),
        ((2.0, 9.0), 1.5, 2.7, judge.SAME, judge.OPEN, judge.UNDECIDED),
        ((0.8, 1.9), 1.5, 2.7, judge.OPEN, judge.OPEN, judge.UNDECIDED),
        # the article: a third to two thirds
        ((0.4, 0.6), 0.33, 0.67, judge.SAME, judge.SAME, judge.REPRODUCES),
        ((0.1, 0.2), 0.33, 0.67, judge.SAME, judge.LARGER, judge.STRONGER),
        ((0.7, 0.9), 0.33, 0.67, judge.SAME, judge.SMALLER, judge.WEAKER),
        ((1.1, 1.9), 0.33, 0.67, judge.OPPOSITE, judge.SMALLER, judge.CONTRADICTS),
        # the article: faster, without a figure
        ((1.01, 1.02), 1.0, None, judge.SAME, judge.SAME, judge.REPRODUCES),
        ((0.9, 1.2), 1.0, None, judge.OPEN, judge.OPEN, judge.UNDECIDED),
        ((0.98, 1.01), 1.0, None, judge.NO_EFFECT, judge.OPEN, judge.CONTRADICTS),
        ((0.8, 0.9), 1.0, None, judge.OPPOSITE, judge.SMALLER, judge.CONTRADICTS),
        # the article: about the same
        ((0.9, 1.1), 0.75, 1.33, judge.NOT_ASKED, judge.SAME, judge.REPRODUCES),
        ((1.4, 1.5), 0.75, 1.33, judge.NOT_ASKED, judge.OTHER, judge.CONTRADICTS),
        ((1.1, 1.5), 0.75, 1.33, judge.NOT_ASKED, judge.OPEN, judge.UNDECIDED),
    ],
)
def test_direction_and_size_are_two_answers_by_the_interval(ours, low, high, direction, size, verdict):
    claim = Claim("t", "ratio", low=low, high=high, neutral=1.0)
    for median in ours:  # the median has no say
        found = statistics.Interval(5, median, *ours)
        assert (judge.direction_of(claim, found), judge.size_of(claim, found)) == (direction, size)
        assert judge._verdict(claim, direction, size)[0] == verdict


def test_what_has_changed_since_is_no_contradiction(experiments):
    samples = [{**fakes.measured("E1", "native", n, 500), "outcome": {"refused": 1}} for n in (1, 2, 3)]
    claim = Claim("accepted", "figure", field="refused", high=0, today="refused since Linux 4.0")
    found = judge.judge(experiments["E1"], claim, Samples(samples), "tiny", 2)
    assert found.verdict == judge.NO_LONGER and found.reason.startswith("refused since Linux 4.0")


def test_a_failed_leg_fails_its_row_and_shows_no_verdict(experiments, samples):
    bad = {"leg": "E2/measure/3/native", "experiment": "E2", "kind": "measure", "variant": "native",
           "round": 3, "status": "failed", "reason": "verification failed: <b>data3</b>",
           "started": "x"}  # fmt: skip
    found = summed(experiments, [s for s in samples if s["leg"] != bad["leg"]] + [bad])
    assert (
        found.failed
        and row(found, "E2").status == "failed"
        and present.cells(row(found, "E2"))[-1] == "FAILED"
    )
    page = report.render(fakes.settings(), found, samples)
    assert "<b>data3</b>" not in page and "&lt;b&gt;data3" in page


def test_a_false_difference_of_the_control_is_a_warning(experiments):
    samples = rounds("AA", "native", 500, 510, 490) + rounds("AA", "control", 700, 710, 690)
    assert any("A/A control says 'faster'" in w for w in summed(experiments, samples).warnings)


class Page(HTMLParser):
    VOID = frozenset({"meta", "br", "link", "img", "input", "hr", "path", "use"})

    def __init__(self):
        super().__init__()
        self.ids, self.refs, self.stack, self.tags, self.loads = [], [], [], [], []

    def handle_starttag(self, tag, attrs):
        attrs = dict(attrs)
        self.tags.append(tag)
        if "id" in attrs:
            self.ids.append(attrs["id"])
        if attrs.get("href", "").startswith("#"):
            self.refs.append(attrs["href"][1:])
        if attrs.get("src") or tag in ("link", "iframe", "object", "embed"):
            self.loads.append(tag)
        if tag not in self.VOID:
            self.stack.append(tag)

    def handle_endtag(self, tag):
        if tag in self.VOID:
            return
        assert self.stack.pop() == tag


@pytest.fixture
def page(experiments, samples):
    return report.render(fakes.settings(), summed(experiments, samples), samples)


def test_the_page_is_whole_and_needs_nothing_from_outside(page):
    parsed = Page()
    parsed.feed(page)
    assert not parsed.stack and not parsed.loads
    assert "http" + "://" not in page and "http" + "s://" not in page and "@import" not in page
    assert len(parsed.ids) == len(set(parsed.ids))
    assert set(parsed.refs) <= set(parsed.ids)
    assert parsed.tags.count("svg") >= 6
    assert "prefers-color-scheme: dark" in page and "width=device-width" in page


def test_charts_take_their_colours_from_the_theme(page):
    drawings = re.findall(r"<svg.*?</svg>", page, re.DOTALL)
    for drawing in drawings:
        assert "var(--ink)" in drawing or "var(--muted)" in drawing
        assert not any(colour in drawing for colour in charts.ROLES.values())
        assert set(re.findall(r"#[0-9a-f]{6}\b", drawing)) <= {"#000000", "#ffffff"}
        assert "aria-label" in drawing


def test_the_page_carries_its_samples(page, samples):
    data = dict(re.findall(r'download="([^"]+)" href="data:[^;]+;base64,([^"]+)"', page))
    lines = gzip.decompress(base64.b64decode(data["samples.jsonl.gz"])).decode().splitlines()
    assert [json.loads(line)["leg"] for line in lines] == [s["leg"] for s in samples]
    table = list(csv.DictReader(io.StringIO(base64.b64decode(data["results.csv"]).decode())))
    assert len(table) == len(samples) and table[0]["leg"] == samples[0]["leg"]
    assert json.loads(gzip.decompress(base64.b64decode(data["results.json.gz"])))["rows"]


def test_every_figure_leads_to_its_legs(page, samples):
    for sample in samples:
        assert f'id="leg-{sample["leg"]}"' in page and f'href="#leg-{sample["leg"]}"' in page


def test_outputs_agree(tmp_path, experiments, samples):
    found = summed(experiments, samples)
    paths = outputs.write_all(tmp_path, fakes.settings(), found, samples, "page")
    assert {p.name for p in paths} == {"results.json", "results.csv", "results.md", "report.html"}
    text = (tmp_path / "results.md").read_text()
    for one in found.rows:
        assert f"| {one.experiment.id} |" in text
    assert present.ratio(row(found, "E1").comparison) in text
    assert live.table(found.rows, "t").row_count == len(found.rows)


def test_the_summary_says_what_helps_what_does_not_what_is_lost_and_how_sure(experiments, samples):
    slower = rounds("E3", "native", 500, 510, 490) + rounds("E3", "shim", 400, 409, 391)
    helps, does_not, lost, sure = overview.cards(summed(experiments, samples + slower))
    assert helps.figure == "3.0×" and "most: E1, 3.0×" in helps.sentence and helps.rows == ("E1",)
    assert does_not.figure == "1 slower" and "worst: E3, 0.80×" in does_not.sentence
    assert (
        lost.figure == "0 B" and "2 kills -9 under the shim" in lost.sentence and lost.tone == overview.GOOD
    )
    assert "no leg failed" in sure.sentence and "no false difference" in sure.sentence
    (line,) = overview.suites(summed(experiments, samples + slower).rows)
    assert (line.faster, line.slower, line.same) == (1, 1, 0) and line.best.experiment.id == "E1"
    assert line.reproduced and line.contradicted


def test_the_summary_is_red_where_it_must_be(experiments, samples):
    bad = [fakes.killed("E1", "shim", 3, lost=4096, status="failed", reason="lost")]
    false = rounds("AA", "native", 500, 510, 490) + rounds("AA", "control", 700, 710, 690)
    kept = [s for s in samples if s["experiment"] != "AA"]
    _, _, lost, sure = overview.cards(summed(experiments, kept + bad + false))
    assert lost.figure == "4.00 KiB" and lost.tone == overview.BAD
    assert "1 leg failed" in sure.sentence and "FALSE" in sure.sentence and sure.tone == overview.BAD


def test_kills_that_failed_are_not_read_as_nothing_lost(experiments, samples):
    failed = [fakes.killed("E1", "shim", n, status="failed", reason="no recovery") for n in (3, 4)]
    failed = [{k: v for k, v in sample.items() if k != "kill"} for sample in failed]
    kept = [s for s in samples if (s["kind"], s["variant"]) != ("kill", "shim")]
    lost = overview.cards(summed(experiments, kept + failed))[2]
    assert lost.figure == "2 failed" and lost.tone == overview.BAD
    assert "0 B of acknowledged data after 2 kills -9 under the shim" in lost.sentence
    assert "2 kills failed" in lost.sentence
    page = report.render(fakes.settings(), summed(experiments, kept + failed), kept + failed)
    assert "kill -9, shim: 2 times (2 FAILED)" in page


def test_a_row_with_a_corrupt_leg_shows_no_ratio(experiments, samples):
    bad = fakes.measured("E1", "shim", 4, 1500, status="failed", reason="verification failed: data3")
    found = row(summed(experiments, [*samples, bad]), "E1")
    cells = dict(zip(present.HEADERS, present.cells(found), strict=True))
    assert (cells["ratio"], cells["could find"], cells["article"]) == (present.NONE, present.NONE, "FAILED")
    page = report.render(fakes.settings(), summed(experiments, [*samples, bad]), samples)
    assert "shim against native:" not in page


def test_what_a_method_loses_by_itself_is_named_beside_what_is_lost(experiments, samples):
    kills = [fakes.killed("E4", "shim", n, lost=65536) for n in (1, 2)]
    lost = overview.cards(summed(experiments, samples + kills))[2]
    assert lost.figure == "0 B" and lost.tone == overview.GOOD
    assert "Not counted: E4," in lost.sentence
    assert "they lost 8.00 KiB natively, 128 KiB under the shim" in lost.sentence


def test_what_helps_is_what_the_median_row_gains(experiments, samples):
    more = rounds("E2", "shim", 700, 720, 690) + rounds("E2-prealloc", "native", 100, 101, 102)
    more += rounds("E2-prealloc", "shim", 50, 51, 50)
    helps, does_not = overview.cards(summed(experiments, samples + more))[:2]
    assert helps.figure == "1.00×" and helps.tone == overview.PLAIN
    assert "1 certainly faster, 1 slower, 1 open; most: E1, 3.0×" in helps.sentence
    assert "least: E2-prealloc, 0.50×" in helps.sentence
    assert "worst: E2-prealloc, 0.50×" in does_not.sentence and "could have found 1.00×" in does_not.sentence


def test_a_row_that_is_faster_by_surprise_is_named(experiments):
    expected = rounds("E1", "native", 500, 510, 490) + rounds("E1", "shim", 505, 500, 495)
    surprise = rounds("E3", "native", 500, 510, 490) + rounds("E3", "shim", 600, 612, 588)
    helps = overview.cards(summed(experiments, expected + surprise))[0]
    assert helps.figure == "0 of 1" and "faster where no gain is expected: E3, 1.20×" in helps.sentence


def test_the_table_says_which_claim_decided(page):
    assert '<small class="decided">kill -9 loses nothing</small>' in page


def test_the_summary_of_nothing(experiments):
    cards = overview.cards(summed(experiments, rounds("E1", "native", 500)))
    assert [c.figure for c in cards[:3]] == ["–", "–", "–"]


def test_numbers_read_well():
    assert [present.number(v) for v in (0.1234, 12.34, 1234.5)] == ["0.12", "12.3", "1,234"]
    assert [present.number(v) for v in (0, 0.0512, 0.00123)] == ["0.00", "0.051", "0.0012"]
    assert [present.byte_count(v) for v in (None, 0, 1023, 4096, 5 << 20)] == [
        "–",
        "0 B",
        "1023 B",
        "4.00 KiB",
        "5.00 MiB",
    ]
    assert live.sparkline([0, 1, 2]) == "▁▅█" and live.sparkline([]) == ""


def test_a_run_of_skipped_legs_still_has_a_page(experiments):
    skipped = {"leg": "E1/measure/1/shim", "experiment": "E1", "kind": "measure", "variant": "shim",
               "round": 1, "status": "skipped", "reason": "no shim", "started": "x"}  # fmt: skip
    found = summed(experiments, [skipped])
    assert row(found, "E1").status == "skipped"
    assert "no shim" in report.render(fakes.settings(), found, [skipped])
    assert replace(found, rows=()).rows == ()


def test_a_row_may_be_about_another_figure_of_which_less_is_better(experiments):
    latency = replace(experiments["E1"], figure="p99_us", figure_unit="µs", figure_better="lower", claims=())
    samples = [
        {**fakes.measured("E1", variant, n, 500), "outcome": {"p99_us": value + n}}
        for variant, value in (("native", 1000), ("shim", 100))
        for n in (1, 2, 3)
    ]
    found = summary.summarize([latency], samples, "small", 2)
    (one,) = found.rows
    assert one.figures["native"].figure.median == 1002 and one.figures["native"].rate.median == 500
    assert one.comparison.verdict == statistics.FASTER and one.comparison.ratio == pytest.approx(
        9.82, abs=0.01
    )
    cells = dict(zip(present.HEADERS, present.cells(one), strict=True))
    assert cells["unit"] == "µs" and cells["native"].startswith("1,002") and cells["shim"].startswith("102")
    assert "p99_us" in report.render(fakes.settings(), found, samples)


def test_latencies_are_found_by_name_and_drawn(experiments):
    outcome = {"lat_p50_us": 10.0, "lat_p99_us": 50.0, "lat_p999_us": 90.0, "p90_us": None, "mean_us": 3.0}
    samples = [
        {**fakes.measured("E1", v, n, 500), "outcome": outcome} for v in ("native", "shim") for n in (1, 2, 3)
    ]
    assert latencies(samples[0]) == {50.0: 10.0, 99.0: 50.0, 99.9: 90.0}
    page = report.render(fakes.settings(), summed(experiments, samples), samples)
    assert "Latency: E1" in page and "p99.9" in page


def test_claims_on_fields_of_a_sample_and_their_ratios(experiments):
    samples = [
        {**fakes.measured("E1", "native", n, 500), "outcome": {"first_us": 180.0, "second_us": 100.0}}
        for n in (1, 2, 3)
    ]
    reuse = Claim("reuse is 1.8 times faster", "ratio", field="first_us", of_field="second_us", low=1.5)
    result = judge.judge(experiments["E1"], reuse, Samples(samples), "small", 2)
    assert result.verdict == judge.REPRODUCES and result.ours == pytest.approx(1.8) and len(result.legs) == 3
    first = Claim("t", "figure", field="first_us", high=100)
    assert judge.judge(experiments["E1"], first, Samples(samples), "small", 2).verdict == judge.CONTRADICTS


def test_a_single_sample_decides_no_claim_about_speed(experiments):
    one = rounds("B2", "native", 2000) + rounds("E1", "native", 500)
    claim = row(summed(experiments, one), "E1").claims[0]
    assert claim.verdict == judge.UNDECIDED and "1 of the 3 samples" in claim.reason and claim.ours == 0.25
    assert any(w.startswith("single samples have no spread") for w in summed(experiments, one).warnings)


def test_legs_that_are_too_short_are_named_in_one_line(experiments):
    found = summed(
        experiments, rounds("E1", "native", 30000, 31000, 30500) + rounds("E2", "native", 500, 510, 505)
    )
    (short,) = [w for w in found.warnings if "50 ms" in w]
    assert short.endswith(": E1 native")


def test_too_few_pairs_are_named_as_the_reason(experiments):
    few = rounds("E1", "native", 500, 510) + rounds("E1", "shim", 1500, 1530)
    card = overview.cards(summed(experiments, few))[0]
    assert card.figure == "0 faster" and "Fewer than 3 pairs decide nothing" in card.sentence


def test_headings_count_the_pairs_of_the_samples(experiments):
    found = rounds("E1", "native", 500, 520, 480, 490) + rounds("E1", "shim", 500, 520, 480)
    found += rounds("E2", "native", *range(500, 506))
    made = summed(experiments, found)
    for text in (outputs.markdown(fakes.settings(pairs=99), made, found),
                 report.render(fakes.settings(pairs=99), made, found)):  # fmt: skip
        assert "over 3 to 6 interleaved pairs" in text
    assert Samples(found[:4]).pair_counts() == "4" and Samples([]).pair_counts() == "0"
