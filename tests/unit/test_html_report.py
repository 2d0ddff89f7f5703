"""The HTML report: everything in one file, nothing from outside, and drawn by a real browser where there is one."""

import asyncio
import json
import re
import subprocess
from html.parser import HTMLParser
from pathlib import Path

import pytest

from kvplan.heatmap import read_heat_map
from kvplan.html.page import html_page
from kvplan.load_profiles import load_sweep
from kvplan.prepare import prepare
from kvplan.report import split_series
from kvplan.results import PointResult, ResultsFile
from kvplan.run import run_point
from kvplan.run_model import LiveModels
from kvplan.sweep import run_sweep
from tests.chromium import QUIET_FLAGS, a_page, find_chromium, keeping_to
from tests.unit.test_sweep import Log

PROFILE = """
run:
  target: simulated
  workload: {synthetic: {requests: 20, shared_prefix_tokens: 20, prompt_tokens: {low: 4, high: 90}}, max_tokens: 40}
  num_blocks: 60
  max_num_seqs: 8
  max_model_len: 200
grid:
  block_size: [4, 8, 16]
  prefix_caching: [true, false]
repeats: 2
"""


@pytest.fixture
def points(tmp_path: Path) -> list[PointResult]:
    (tmp_path / "s.yaml").write_text(PROFILE)
    with ResultsFile(tmp_path / "r.db", create=True) as file:
        return run_sweep(prepare(load_sweep(str(tmp_path / "s.yaml"))), file, progress=Log())


class _Links(HTMLParser):
    """Collects what a page would load."""

    def __init__(self) -> None:
        super().__init__()
        self.loaded: list[str] = []
        self.tags: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.loaded += [value or "" for key, value in attrs if key in ("src", "href", "action", "background", "poster")]


def data_of(page: str) -> list[dict[str, object]]:
    found = re.search(r'<script type="application/json" id="data">(.*?)</script>', page, re.DOTALL)
    assert found is not None
    return json.loads(found.group(1))  # type: ignore[no-any-return]


def test_a_page_loads_nothing_from_outside(points: list[PointResult]) -> None:
    page = html_page(split_series(points), title="report")
    links = _Links()
    links.feed(page)

    assert links.loaded == []
    assert not {"link", "img", "iframe"} & {*links.tags}
    assert "default-src 'none'" in page
    # The one address in it is a name, which is not loaded.
    assert set(re.findall(r"https?://[^\s\"']+", page)) == {"http://www.w3.org/2000/svg"}


def test_the_data_of_the_page_are_the_results(points: list[PointResult]) -> None:
    (series,) = data_of(html_page(split_series(points), title="report"))

    assert series["axes"] == ["block_size", "prefix_caching"]
    assert isinstance(series["groups"], list)
    assert len(series["groups"]) == 6
    group = next(group for group in series["groups"] if group["label"] == "block_size=8 prefix_caching=true")
    mine = [point for point in points if point.label == group["label"]]
    assert group["values"]["preemptions"] == [point.planned.preemptions for point in mine]
    assert len(mine) == 2


def test_text_of_profiles_cannot_break_out_of_the_page(points: list[PointResult]) -> None:
    import msgspec

    evil = '</script><script>alert("x")</script>'
    changed = [
        msgspec.structs.replace(
            point, name=evil, message=evil, outcome="unfinished", settings={**point.settings, "model": evil}
        )
        for point in points
    ]

    page = html_page([changed], title=evil)
    assert "<script>alert" not in page
    assert data_of(page)


def test_a_heat_map_comes_from_a_recording(tmp_path: Path) -> None:
    (tmp_path / "s.yaml").write_text(PROFILE)
    prepared = prepare(load_sweep(str(tmp_path / "s.yaml")))[0]
    recording = tmp_path / "r.kvrec"
    result = run_point(prepared, prepared.requests(), models=LiveModels(), recording=recording)

    heat = read_heat_map(recording)
    # 60 blocks of which the first is the null block, in rows of one block each.
    assert heat is not None
    assert heat.blocks_per_row == 1
    assert len(heat.used[0]) == 60
    assert all(column[0] == 0 for column in heat.used)
    assert max(sum(column) / 100 for column in heat.used) == pytest.approx(result.planned.peak_blocks_in_use, abs=8)
    assert heat.steps == sorted(heat.steps)
    assert read_heat_map(tmp_path / "gone.kvrec") is None


def captions_in_browser(page: str, folder: Path) -> tuple[list[str], str]:
    """Draw a page in a real browser; gives the titles of its plots, and the whole of what was drawn."""
    browser = find_chromium()
    if browser is None:
        pytest.skip("needs chromium, which is not installed")
    file = folder / "report.html"
    file.write_text(page)
    flags = ["--headless", "--no-sandbox", "--disable-gpu", "--no-first-run", f"--user-data-dir={folder / 'user'}"]
    command = [browser, *flags, *QUIET_FLAGS, "--dump-dom", file.as_uri()]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, env=keeping_to(folder))
    assert "NaN" not in re.sub(r"<script.*?</script>", "", done.stdout, flags=re.DOTALL)
    return re.findall(r"<figcaption>([^<]+)<", done.stdout), done.stdout


def test_a_browser_draws_every_plot(points: list[PointResult], tmp_path: Path) -> None:
    captions, drawn = captions_in_browser(html_page(split_series(points), title="report"), tmp_path)

    assert captions[0] == "output tokens a step"
    assert {"preemptions", "waste in the last blocks", "prefix hit rate", "the pool over time"} <= {*captions}
    assert "output tokens a step against latency" in captions
    assert drawn.count("<svg") == len(captions)


async def test_nothing_is_cut_off_on_paper_or_a_narrow_screen(points: list[PointResult], tmp_path: Path) -> None:
    pytest.importorskip("aiohttp", reason="needs aiohttp, which drives the browser")
    browser = find_chromium()
    if browser is None:
        pytest.skip("needs chromium, which is not installed")
    file = tmp_path / "report.html"
    file.write_text(html_page(split_series(points), title="report"))
    parts = "[...document.querySelectorAll('figure, p, li, table')]"
    wider = f"{parts}.filter(e => e.getBoundingClientRect().right > innerWidth)"
    async with a_page(browser, file.as_uri(), tmp_path / "user") as page:
        for _ in range(100):
            if await page.evaluate("document.readyState === 'complete' && document.querySelector('svg') !== null"):
                break
            await asyncio.sleep(0.1)
        for media, width, allowed in (("print", 720, set()), ("screen", 400, {"TABLE"})):
            await page.call("Emulation.setEmulatedMedia", media=media)
            await page.call(
                "Emulation.setDeviceMetricsOverride", width=width, height=900, deviceScaleFactor=1, mobile=False
            )
            found = await page.evaluate(f"{wider}.map(e => e.tagName).join(' ')")
            # On a screen a wide table is scrolled in its own box; the page itself never is.
            assert {*found.split()} <= allowed, (media, found)
            assert await page.evaluate("document.documentElement.scrollWidth <= innerWidth"), media


def test_a_browser_draws_what_only_live_points_have(points: list[PointResult], tmp_path: Path) -> None:
    import msgspec

    from kvplan.quality_figures import PositionSpan, QualityFigures

    spans = [
        PositionSpan(start=start, num_positions=9, kl_mean=kl, top1_agreement=0.9)
        for start, kl in ((0, 0.0), (16, 1e-4), (32, 0.02))
    ]
    quality = QualityFigures(
        reference="float32",
        num_texts=1,
        num_positions=27,
        kl_mean=0.007,
        kl_p50=0.001,
        kl_p99=0.02,
        kl_max=0.02,
        top1_agreement=0.9,
        perplexity=20.0,
        reference_perplexity=19.0,
        by_position=spans,
    )
    live = [
        msgspec.structs.replace(point, measured=msgspec.structs.replace(point.planned, quality=quality))
        for point in points
    ]
    page = html_page(split_series(live), title="report")
    captions, drawn = captions_in_browser(page, tmp_path)

    assert {"measured over planned", "divergence by position"} <= {*captions}
    # A mean of 0 has no place on a logarithmic scale, and no mark.
    assert drawn.count("from 16 tokens on: 0.0001 nats") == 6
    assert "from 0 tokens on" not in drawn
    assert "<h3>quality</h3>" in page


def test_a_browser_draws_where_the_slots_of_each_allocator_were(tmp_path: Path) -> None:
    profile = PROFILE.replace("block_size: [4, 8, 16]", "allocator: [contiguous, paged]")
    (tmp_path / "s.yaml").write_text(profile.replace("  prefix_caching: [true, false]\n", ""))
    with ResultsFile(tmp_path / "r.db", create=True) as file:
        points = run_sweep(prepare(load_sweep(str(tmp_path / "s.yaml"))), file, progress=Log())
    captions, drawn = captions_in_browser(html_page(split_series(points), title="report"), tmp_path)

    assert "where the slots were" in captions
    first = next(point for point in points if point.settings["allocator"] == "contiguous").planned.memory
    assert first is not None
    share = 100 * first.reserved_slots_mean / first.total_slots
    assert share > 10
    assert re.search(rf"reserved: [\d,.]+ slots, {float(f'{share:.3g}'):g} % of the pool", drawn)
