"""What a vLLM or SGLang server says of its KV cache in /metrics, whatever its release.

`read_metrics` takes any bytes and never raises. What a text does not say is None, never 0; what keeps a text from being
read is a named state. Names by release, and what a usage is a share of: docs/telemetry-foreign.md.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

from kvengine.telemetry import sglang_metrics, vllm_metrics
from kvengine.telemetry.engine_reading import EngineReading
from kvengine.telemetry.prometheus import MetricsText, parse_text


class MetricsState(StrEnum):
    """What came of asking a server for its metrics."""

    OK = "ok"
    PARTIAL = "partial"
    """Cut, or with lines that are no metrics: what is whole in it was read."""
    NOT_METRICS = "not-metrics"
    """An answer that is no metrics text: empty, HTML, binary."""
    NO_ENGINE_METRICS = "no-engine-metrics"
    """A metrics text of something else."""
    HTTP_ERROR = "http-error"
    TIMED_OUT = "timed-out"
    UNREACHABLE = "unreachable"


@dataclass(frozen=True, slots=True, kw_only=True)
class MetricsReading:
    """One answer of a server, understood."""

    state: MetricsState
    detail: str = ""
    """What is wrong, in words for the screen; empty when nothing is."""
    server: str | None = None
    """`vllm` or `sglang`."""
    engines: Sequence[EngineReading] = ()
    """One for each data-parallel rank, in order of rank."""
    total: EngineReading | None = None
    """The engines together: counts added, None where one of them is missing."""
    process_start_unix_s: float | None = None
    """When the answering process started; not published by servers of several processes."""


def read_metrics(body: bytes, *, truncated: bool = False) -> MetricsReading:
    """Read the body of a /metrics answer with status 200.

    Args:
        truncated: The body is known to be shorter than it should be. A cut inside a line is noticed without.
    """
    if refusal := _not_a_text(body):
        return MetricsReading(state=MetricsState.NOT_METRICS, detail=refusal)
    text = parse_text(body, truncated=truncated)
    for server, prefix, read in _SERVERS:
        if any(name.startswith(prefix) for name in text.names()):
            return _reading(text, server, *read(text, prefix))
    return _nothing_found(text)


_SERVERS = (
    ("vllm", vllm_metrics.PREFIX, vllm_metrics.read),
    ("sglang", sglang_metrics.PREFIX, sglang_metrics.read),
    ("sglang", sglang_metrics.SIDECAR_PREFIX, sglang_metrics.read),
)


def _reading(text: MetricsText, server: str, engines: list[EngineReading], total: EngineReading) -> MetricsReading:
    damage = _damage(text)
    return MetricsReading(
        state=MetricsState.PARTIAL if damage else MetricsState.OK,
        detail=damage,
        server=server,
        engines=engines,
        total=total,
        process_start_unix_s=_process_start(text),
    )


def _nothing_found(text: MetricsText) -> MetricsReading:
    if text.num_good_lines <= text.num_bad_lines:
        return MetricsReading(state=MetricsState.NOT_METRICS, detail="the answer is not a metrics text")
    if text.truncated:
        return MetricsReading(state=MetricsState.PARTIAL, detail="cut before the first vLLM or SGLang metric")
    return MetricsReading(state=MetricsState.NO_ENGINE_METRICS, detail="a metrics text without vLLM or SGLang metrics")


def _damage(text: MetricsText) -> str:
    parts = ["cut in the middle"] if text.truncated else []
    if text.num_bad_lines:
        parts.append(f"{text.num_bad_lines} lines are no metrics" if text.num_bad_lines > 1 else "1 line is no metric")
    return ", ".join(parts)


def _process_start(text: MetricsText) -> float | None:
    samples = text.samples.get("process_start_time_seconds", ())
    if len(samples) != 1 or not 0 < samples[0].value < math.inf:
        return None
    return samples[0].value


def _not_a_text(body: bytes) -> str:
    """What a body is that is plainly no metrics text; empty if it may be one."""
    head = body.lstrip()[:2]
    if not head:
        return "the answer is empty"
    if head.startswith(b"<"):
        return "the answer is an HTML page"
    if head[:1] in b"{[":
        return "the answer is JSON"
    return "the answer is compressed" if head in _COMPRESSED else ""


_COMPRESSED = (b"\x1f\x8b", b"\x28\xb5")
"""How gzip and zstd begin."""
