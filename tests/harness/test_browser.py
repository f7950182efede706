# SPDX-License-Identifier: Apache-2.0
"""The page in a real browser: headless Chromium opens the file, and is asked what a reader would see."""

import gzip
import json
import shutil
from dataclasses import replace

import lab_fakes as fakes
import pytest

from harness.report import page as report
from harness.report import summary

sync_api = pytest.importorskip("playwright.sync_api", reason="playwright is not installed (make deps)")

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="no chromium (scripts/deps browser installs it)")

ROWS = "Array.from(document.querySelectorAll('#suite-many table.rows tbody tr'))"
DESKTOP, PHONE = {"width": 1280, "height": 900}, {"width": 390, "height": 844}


def measured(name, ratio, **more):
    """Three rounds, natively and under the shim; an even third of the native rate apart from each other."""
    return [
        fakes.measured(name, variant, n, (500 + 7 * n) * factor, **more)
        for n in (1, 2, 3)
        for variant, factor in (("native", 1), ("shim", ratio))
    ]


@pytest.fixture(scope="module")
def run(experiments):
    """Rows of two suites, one of them in µs; kills; a leg that failed; enough rows that suites are folded."""
    latency = replace(
        experiments["E1"],
        id="commit",
        suite="apps",
        figure="p99_us",
        figure_unit="µs",
        figure_better="lower",
        claims=(),
    )
    many = [replace(experiments["E1"], id=f"row-{i}", suite="many", claims=()) for i in range(60)]
    outcome = [{"p50_us": 9.0 * f, "p99_us": 40.0 * f, "p99_9_us": 90.0 * f} for f in (1.0, 0.5)]
    samples = measured("E1", 2.0) + measured("E2", 3.0) + measured("B2", 1.0)[::2]
    samples += [{**s, "outcome": outcome[s["variant"] == "shim"]} for s in measured("commit", 1.0)]
    samples += [s for i, row in enumerate(many) for s in measured(row.id, 0.5 + i / 20)]
    samples += [fakes.killed("E1", v, n) for v in ("native", "shim") for n in (1, 2)]
    samples.append(fakes.killed("E2", "shim", 1, lost=4096, status="failed", reason="<lost> & gone"))
    rows = [*experiments.values(), latency, *many]
    return summary.summarize(rows, samples, "small", 2), samples


@pytest.fixture(scope="module")
def address(run, tmp_path_factory):
    path = tmp_path_factory.mktemp("page") / "report.html"
    path.write_text(report.render(fakes.settings(suite="all"), *run))
    return path.as_uri()


@pytest.fixture(scope="module")
def browser():
    with sync_api.sync_playwright() as playwright:
        # Chromium's own sandbox does not work for root; what it opens here is our own file
        started = playwright.chromium.launch(
            executable_path=CHROMIUM, args=["--no-sandbox", "--disable-dev-shm-usage"]
        )
        yield started
        started.close()


@pytest.fixture(params=["light", "dark"])
def scheme(request):
    return request.param


@pytest.fixture
def open_page(browser, address):
    """Opens the page at a size; whatever the console or the network says fails the test."""
    opened, said, asked = [], [], []

    def go(size=DESKTOP, scheme="light"):
        context = browser.new_context(viewport=size, color_scheme=scheme, accept_downloads=True)
        page = context.new_page()
        page.on("console", lambda message: said.append(message.text))
        page.on("pageerror", lambda error: said.append(str(error)))
        page.on("request", lambda request: asked.append(request.url))
        page.goto(address)
        opened.append(context)
        return page

    yield go
    for context in opened:
        context.close()
    assert said == []
    assert [url for url in asked if not url.startswith(("file:", "data:", "blob:"))] == []


@pytest.mark.parametrize("size", [DESKTOP, PHONE], ids=["desktop", "phone"])
def test_nothing_is_wider_than_the_screen_and_all_charts_are_drawn(open_page, size, scheme):
    page = open_page(size, scheme)
    page.evaluate("document.querySelectorAll('details').forEach(box => { box.open = true; })")
    assert page.evaluate("document.documentElement.scrollWidth") <= size["width"]
    drawn = page.evaluate(
        """Array.from(document.querySelectorAll('figure svg')).map(svg => {
            const box = svg.getBoundingClientRect();
            const count = what => svg.querySelectorAll(what).length;
            return [box.width, box.height, count('path, use'), count('text')];
        })"""
    )
    assert len(drawn) >= 10
    for width, height, shapes, texts in drawn:
        assert 200 < width <= size["width"] and height > 60 and shapes > 5 and texts > 3


def test_texts_stand_out_from_their_ground_in_both_themes(open_page, scheme):
    page = open_page(scheme=scheme)
    colours = page.evaluate(
        """() => { const of = (s) => getComputedStyle(document.querySelector(s));
            const text = document.querySelector('figure svg text');
            return [of('body').backgroundColor, of('h1').color, of('.card').backgroundColor, of('.card p').color,
                    getComputedStyle(text).fill]; }"""
    )
    light = [sum(int(n) for n in c[c.index("(") + 1 : -1].split(",")[:3]) / 3 for c in colours]
    ground, heading, card, words, label = light
    assert (ground > 200 and card > 200) if scheme == "light" else (ground < 60 and card < 60)
    assert min(abs(heading - ground), abs(words - card)) > 120 and abs(label - card) > 60


def test_tables_are_sorted_by_number_both_ways(open_page):
    page = open_page()
    page.evaluate("document.getElementById('suite-many').open = true")
    heading = page.locator("#suite-many table.rows thead button", has_text="ratio")
    ratios = f"{ROWS}.map(row => parseFloat(row.querySelector('[data-label=ratio]').textContent))"
    before = page.evaluate(ratios)
    heading.click()
    rising = page.evaluate(ratios)
    heading.click()
    falling = page.evaluate(ratios)
    assert len(before) == 60 and rising == sorted(before) and falling == sorted(before, reverse=True)
    assert page.locator("#suite-many th[aria-sort=descending]").count() == 1


def test_rows_are_filtered_by_words(open_page):
    page = open_page()
    shown = f"{ROWS}.filter(row => row.offsetHeight).length"
    page.fill("#filter", "row-1")
    assert (
        page.evaluate(shown) == 11 and not page.locator("#suite-apps table.rows tbody tr").first.is_visible()
    )
    page.fill("#filter", "")
    assert page.evaluate(shown) == 60


def test_a_figure_leads_to_its_samples(open_page):
    page = open_page()
    assert not page.locator("#row-row-7").is_visible()
    page.evaluate("document.getElementById('suite-many').open = true")
    page.locator("#suite-many table.rows a", has_text="row-7").first.click()
    sync_api.expect(page.locator("#row-row-7 table.facts")).to_be_visible()
    page.locator("#row-row-7 .legs a").first.click()
    line = page.locator("[id='leg-row-7/measure/1/native']")
    sync_api.expect(line).to_be_visible()
    assert "507 MB/s" in line.inner_text()


def test_the_summary_is_at_the_top_and_says_what_went_wrong(open_page):
    page = open_page()
    cards = page.locator(".card")
    assert cards.count() == 4 and cards.last.bounding_box()["y"] < DESKTOP["height"]
    text = page.inner_text(".cards")
    assert "4.00 KiB" in text and "1 leg failed" in text
    assert "<lost> & gone" in page.content().replace("&lt;", "<").replace("&gt;", ">").replace("&amp;", "&")


def test_the_samples_can_be_saved_from_the_page(open_page, run, tmp_path):
    page = open_page()
    with page.expect_download() as waiting:
        page.click("a[download='samples.jsonl.gz']")
    waiting.value.save_as(tmp_path / "samples.jsonl.gz")
    lines = gzip.decompress((tmp_path / "samples.jsonl.gz").read_bytes()).decode().splitlines()
    assert [json.loads(line)["leg"] for line in lines] == [s["leg"] for s in run[1]]
    assert page.locator("a[download='results.csv']").get_attribute("href").startswith("data:text/csv;base64,")
