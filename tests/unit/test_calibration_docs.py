"""The file in the document is what the command writes for that log."""

from pathlib import Path

import yaml

from kvplan.calibration.capture import Known, calibration_of
from kvplan.calibration.store import as_yaml
from kvplan.explain.report import read_log
from kvplan.gpu_spec import load_gpu
from tests.sample_logs import V1_READY

DOCUMENT = Path(__file__).parents[2] / "docs" / "calibration.md"


def test_the_document_shows_a_file_as_it_is_written() -> None:
    log = V1_READY.replace("org/llama-8b", "meta-llama/Llama-3.1-8B-Instruct")
    (reading,) = read_log(log.encode(), where="start.log")
    known = Known(gpu=load_gpu("l40s"))
    written = as_yaml(calibration_of(reading, known, log="/var/log/start.log", saved="2026-11-30"))
    shown = DOCUMENT.read_text(encoding="utf-8").partition("```yaml\n")[2].partition("```")[0]

    assert shown == written.partition("\n")[2]  # but for the comment in its first line
    assert yaml.safe_load(shown)["pool"]["kv_cache_tokens"] == 189_808
