"""The HTML report: everything in one file, nothing from outside, and drawn by a real browser where there is one."""

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
from tests.chromium import QUIET_FLAGS, find_chromium, keeping_to
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


def test_a_browser_draws_every_plot(points: list[PointResult], tmp_path: Path) -> None:
    browser = find_chromium()
    if browser is None:
        pytest.skip("needs chromium, which is not installed")
    file = tmp_path / "report.html"
    file.write_text(html_page(split_series(points), title="report"))
    flags = ["--headless", "--no-sandbox", "--disable-gpu", "--no-first-run", f"--user-data-dir={tmp_path / 'user'}"]
    command = [browser, *flags, *QUIET_FLAGS, "--dump-dom", file.as_uri()]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, env=keeping_to(tmp_path))

    captions = re.findall(r"<figcaption>([^<]+)<", done.stdout)
    assert captions[0] == "output tokens a step"
    assert {"preemptions", "waste in the last blocks", "prefix hit rate", "the pool over time"} <= {*captions}
    assert "output tokens a step against latency" in captions
    assert done.stdout.count("<svg") == len(captions)
    assert "NaN" not in re.sub(r"<script.*?</script>", "", done.stdout, flags=re.DOTALL)
