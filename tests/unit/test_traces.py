"""Trace files: what is read, what is summed up, and what is refused by file and line."""

from collections.abc import Callable, Iterator
from pathlib import Path
from statistics import fmean

import pytest

from kvengine.errors import ConfigError
from kvplan.traces.csv_rows import AZURE, BURSTGPT, VIDUR, CsvFormat, read_csv_rows
from kvplan.traces.mooncake import read_mooncake
from kvplan.traces.prefix_reuse import prefix_reuse
from kvplan.traces.rows import TraceRow
from kvplan.traces.servegen import servegen_rows
from kvplan.traces.summary import summarize_arrivals, summarize_lengths
from kvplan.traces.texts import read_benchmark_lines, read_prompts, read_sharegpt


def a_file(folder: Path, content: str | bytes, name: str = "t") -> Path:
    path = folder / name
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return path


def csv_rows(folder: Path, content: str, form: CsvFormat, model: str | None = None) -> list[TraceRow]:
    return list(read_csv_rows(a_file(folder, content), form, model=model))


def mooncake_rows(path: Path) -> list[TraceRow]:
    return list(read_mooncake(path, time_unit="ms", block_tokens=4))


def test_azure_times_are_dates(tmp_path: Path) -> None:
    content = (
        "TIMESTAMP,ContextTokens,GeneratedTokens\r\n"
        "2023-11-16 18:15:46.6805900,374,44\r\n2023-11-16 18:15:50.9951690,396,109\r\n"
        "2024-05-10 00:00:00.009930+02:00,7,8\r\n"
    )
    first, second, zoned = csv_rows(tmp_path, content, AZURE)

    # 50.995169 - 46.680590
    assert (second.arrival_s or 0) - (first.arrival_s or 0) == pytest.approx(4.314579, abs=1e-6)
    assert (first.input_tokens, first.output_tokens) == (374, 44)
    assert zoned.arrival_s == pytest.approx(1715292000.00993, abs=1e-3)  # `date -d 2024-05-09T22:00:00Z +%s`


def test_burstgpt_rows_are_chosen_by_model_and_keep_failures(tmp_path: Path) -> None:
    content = (
        "Timestamp,Model,Request tokens,Response tokens,Total tokens,Log Type\n"
        "5,ChatGPT,472,18,490,Conversation log\n45,GPT-4,1087,0,1087,API log\n118,ChatGPT,417,276,693,API log\n"
    )

    assert [row.input_tokens for row in csv_rows(tmp_path, content, BURSTGPT)] == [472, 1087, 417]
    assert [row.arrival_s for row in csv_rows(tmp_path, content, BURSTGPT, model="ChatGPT")] == [5, 118]
    assert csv_rows(tmp_path, content, BURSTGPT, model="GPT-4")[0].output_tokens == 0


def test_vidur_lengths_may_come_without_times_and_beside_other_columns(tmp_path: Path) -> None:
    content = "num_prefill_tokens,num_decode_tokens,num_total_tokens,pd_ratio\n3772,54,3826,69.8\n"

    assert csv_rows(tmp_path, content, VIDUR) == [TraceRow(input_tokens=3772, output_tokens=54)]


def test_mooncake_numbers_of_any_size_become_small_ones(tmp_path: Path) -> None:
    big = 2**70
    lines = f'{{"timestamp": 1500, "input_length": 6, "output_length": 2, "hash_ids": [{big}, 3], "type": "x"}}\n' * 2
    first, second = mooncake_rows(a_file(tmp_path, lines))

    assert first.arrival_s == 1.5
    assert list(first.block_ids) == list(second.block_ids) == [0, 1]


@pytest.mark.parametrize(
    ("form", "content", "message"),
    [
        (AZURE, "", "t: the file is empty"),
        (AZURE, "a,b\n", "t: column 'ContextTokens' is missing; the columns are 'a', 'b'"),
        (AZURE, "TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:15:46,1\n", "line 2: expected 3 cells, got 2"),
        (
            AZURE,
            "TIMESTAMP,ContextTokens,GeneratedTokens\nyesterday,1,2\n",
            "line 2: TIMESTAMP: expected a date and time .*, got 'yesterday'",
        ),
        (VIDUR, "num_prefill_tokens,num_decode_tokens\n1,2.5\n", "line 2: num_decode_tokens: expected a whole number"),
        (VIDUR, "num_prefill_tokens,num_decode_tokens\n-1,2\n", "line 2: num_prefill_tokens: .* from 0 .*, got '-1'"),
        (VIDUR, "num_prefill_tokens,num_decode_tokens\n1,nan\n", "got 'nan'"),
        (VIDUR, "num_prefill_tokens,num_decode_tokens\n1,1e999\n", "got '1e999'"),
        (
            VIDUR,
            "arrived_at,num_prefill_tokens,num_decode_tokens\nx,1,2\n",
            "line 2: arrived_at: expected a time as a number, got 'x'",
        ),
        (VIDUR, 'num_prefill_tokens,num_decode_tokens\n"1,2\n', "line 2: not valid CSV"),
        (BURSTGPT, "Timestamp,Model,Request tokens\n", "column 'Response tokens' is missing"),
    ],
)
def test_a_table_that_makes_no_sense_is_refused_by_line(
    tmp_path: Path, form: CsvFormat, content: str, message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        csv_rows(tmp_path, content, form)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("{", "line 1: not valid JSON"),
        ('{"input_length": 3}', "line 1: key 'output_length' is missing"),
        ('{"input_length": "3", "output_length": 1}', "line 1: input_length: expected a whole number, got '3'"),
        ('{"input_length": 0, "output_length": 1}', "input_length: expected a whole number from 1 to 16777216, got 0"),
        ('{"input_length": 3, "output_length": -1}', "output_length: expected a whole number from 0"),
        ('{"input_length": 9, "output_length": 1, "hash_ids": [1]}', "1 hash_ids do not go with 9 tokens"),
        ('{"input_length": 3, "output_length": 1, "timestamp": 1e300}', "timestamp: 1e.300 is beyond all measure"),
    ],
)
def test_a_mooncake_line_that_makes_no_sense_is_refused(tmp_path: Path, content: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        mooncake_rows(a_file(tmp_path, content))


Reader = Callable[[Path], Iterator[object]]


@pytest.mark.parametrize("reader", [mooncake_rows, read_benchmark_lines, read_prompts, read_sharegpt])
def test_a_file_that_is_not_text_is_refused(tmp_path: Path, reader: Reader) -> None:
    with pytest.raises(ConfigError, match=r"t.*: not (a text file|valid JSON)"):
        list(reader(a_file(tmp_path, b"\xff\xfe\x00abc")))
    with pytest.raises(ConfigError, match="no such file"):
        list(reader(tmp_path / "gone"))


@pytest.mark.parametrize(
    ("reader", "content", "message"),
    [
        (read_benchmark_lines, '{"prompt": ""}', "line 1: prompt: expected text that is not empty"),
        (read_benchmark_lines, '{"prompt": "a"}\n{"promt": "b"}', "line 2: key 'prompt' is missing"),
        (read_benchmark_lines, '{"prompt": "a", "output_tokens": 0}', "output_tokens: expected a whole number from 1"),
        (read_sharegpt, "{}", "expected a list, got a mapping"),
        (read_sharegpt, '[{"conversations": [{"from": "human"}]}]', r"key '\[0\].conversations\[0\].value' is missing"),
    ],
)
def test_texts_that_make_no_sense_are_refused(tmp_path: Path, reader: Reader, content: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        list(reader(a_file(tmp_path, content)))


def a_client(folder: Path, *, trace: str | None = None, lengths: str | None = None) -> Path:
    """Ten minutes of bursts at 20 a second, ten idle ones, ten calm ones at 5 a second with other lengths."""
    windows = "0,20,3,Weibull,0.4,0.03\n600,0,0,,0,0\n1200,5,1,Gamma,1,0.2\n"
    histograms = (
        '{"0": {"input_tokens": "{10: 0.25, 20: 0.75}", "output_tokens": "{3: 1.0}"},'
        ' "600": {"input_tokens": "{}", "output_tokens": "{}"},'
        ' "1200": {"input_tokens": "{99: 2}", "output_tokens": "{1: 1}"}}'
    )
    a_file(folder, windows if trace is None else trace, "chunk-1-trace.csv")
    a_file(folder, histograms if lengths is None else lengths, "chunk-1-dataset.json")
    return folder


def test_servegen_rates_and_lengths_follow_the_windows(tmp_path: Path) -> None:
    rows = list(servegen_rows(a_client(tmp_path), seed=1))
    times = [row.arrival_s or 0.0 for row in rows]
    busy = [row for row in rows if (row.arrival_s or 0) < 600]
    calm = [row for row in rows if (row.arrival_s or 0) >= 1200]

    assert times == sorted(times)
    assert len(busy) + len(calm) == len(rows)
    # 12,000 with a deviation of 3 x sqrt(12,000) = 330; 3,000 with one of 55.
    assert len(busy) == pytest.approx(12_000, abs=1300)
    assert len(calm) == pytest.approx(3000, abs=220)
    assert fmean(row.input_tokens for row in busy) == pytest.approx(17.5, abs=0.3)
    assert {(row.input_tokens, row.output_tokens) for row in calm} == {(99, 1)}


def test_servegen_bursts_vary_as_their_shape_says(tmp_path: Path) -> None:
    summary = summarize_arrivals(
        [row.arrival_s or 0 for row in servegen_rows(a_client(tmp_path), seed=1, duration_s=600)]
    )

    # Weibull gaps of shape 0.4: sqrt(gamma(6) / gamma(3.5)**2 - 1) = sqrt(120 / 3.3234**2 - 1) = 3.14.
    assert summary is not None
    assert summary.cv_gap == pytest.approx(3.14, rel=0.15)


def test_servegen_is_cut_to_a_part_of_its_time(tmp_path: Path) -> None:
    rows = list(servegen_rows(a_client(tmp_path), seed=1, start_s=1300, duration_s=10))

    assert all(1300 <= (row.arrival_s or 0) < 1310 for row in rows)
    assert len(rows) == pytest.approx(50, abs=30)


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({"trace": "0,20,3,Weibull,0.4,0.03\n"}, "expected at least two windows"),
        ({"trace": "0,20,3,Weibull,0.4\n1,2\n"}, "line 1: expected 6 cells, got 5"),
        ({"trace": "0,20,3,Pareto,0.4,0.03\n600,0,0,,0,0\n"}, "line 1: expected Gamma or Weibull gaps, got 'Pareto'"),
        ({"trace": "0,-2,3,Gamma,0.4,0.03\n600,0,0,,0,0\n"}, "line 1: rate: expected requests a second, got '-2'"),
        ({"trace": "0,2,3,Gamma,0,0.03\n600,0,0,,0,0\n"}, "line 1: shape: expected a number from 0.01"),
        ({"trace": "600,0,0,,0,0\n0,0,0,,0,0\n"}, "line 2: its window begins before that of the line above"),
        ({"lengths": "[]"}, "expected a JSON object, got a list"),
        ({"lengths": '{"0": 3}'}, "0: expected an object with input_tokens and output_tokens"),
        (
            {"lengths": '{"0": {"input_tokens": "__import__(1)", "output_tokens": "{1: 1}"}}'},
            "0.input_tokens: expected a histogram such as",
        ),
        ({"lengths": '{"0": {"input_tokens": "{1: -1}", "output_tokens": "{1: 1}"}}'}, "expected a share for 1 tokens"),
        ({"lengths": '{"0": {"input_tokens": "{}", "output_tokens": "{}"}}'}, "holds no histogram that is not empty"),
    ],
)
def test_servegen_files_that_make_no_sense_are_refused(tmp_path: Path, keys: dict[str, str], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        list(servegen_rows(a_client(tmp_path, **keys), seed=1))


def test_a_servegen_folder_without_its_files_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"holds no file such as chunk-0-trace\.csv"):
        servegen_rows(tmp_path, seed=1)
    with pytest.raises(ConfigError, match="no such folder"):
        servegen_rows(tmp_path / "gone", seed=1)


def rows_with(*block_ids: list[int], tokens: int = 4) -> list[TraceRow]:
    return [TraceRow(input_tokens=tokens * len(ids), output_tokens=1, block_ids=ids) for ids in block_ids]


def test_an_endless_cache_finds_what_was_there_from_the_start_without_a_gap() -> None:
    reuse = prefix_reuse(rows_with([1, 2, 3], [1, 2, 4], [9, 2], [1, 2, 3]), block_tokens=4)

    # 0, then 1 and 2, then nothing (2 stands behind 9), then all three.
    assert (reuse.hit_blocks, reuse.total_blocks, reuse.unique_blocks) == (5, 11, 5)
    assert reuse.requests_with_a_hit == 2
    assert reuse.hit_tokens == 20
    # The last token of a prompt is always computed, so the last request can use two of its three blocks.
    assert reuse.usable_hit_tokens == 16


def test_a_partial_last_block_counts_as_a_block_and_not_as_a_full_one() -> None:
    rows = [TraceRow(input_tokens=6, output_tokens=1, block_ids=[1, 2])] * 2
    reuse = prefix_reuse(rows, block_tokens=4)

    assert (reuse.hit_blocks, reuse.hit_tokens, reuse.full_block_hit_tokens) == (2, 6, 4)


def test_a_small_cache_evicts_the_end_of_a_prompt_before_its_start() -> None:
    # Room for 2: of 1 2 3 the last goes first; 4 then pushes out 2; 1 is still there.
    reuse = prefix_reuse(rows_with([1, 2, 3], [4], [1, 2]), block_tokens=4, capacity=2)

    assert (reuse.hit_blocks, reuse.evictions) == (1, 3)


def test_lengths_are_summed_up_by_nearest_rank() -> None:
    summary = summarize_lengths([*range(1, 101)])

    assert (summary.p50, summary.p90, summary.p99, summary.min, summary.max, summary.sum) == (50, 90, 99, 1, 100, 5050)
    assert summary.std == pytest.approx(28.866, abs=1e-3)  # sqrt((100² - 1) / 12)


def test_arrivals_are_summed_up_by_their_gaps() -> None:
    summary = summarize_arrivals([3.0, 0.0, 0.0, 1.0])

    # Gaps 0, 1 and 2.
    assert summary is not None
    assert (summary.duration_s, summary.mean_gap_s, summary.zero_gaps, summary.rate_per_s) == (3, 1, 1, 1)
    assert summary.cv_gap == pytest.approx((2 / 3) ** 0.5)
    assert (summary.peak_in_one_second, summary.peak_in_one_minute) == (2, 4)
    assert summarize_arrivals([1.0]) is None
