"""What model configurations keep in memory, against figures that were worked out elsewhere (`kv_reference.json`).

A model whose reference calls itself uncertain passes like any other when it agrees; where it does not, that says so.
Parameters must be equal where the reference built the model's own class, and within a part in a thousand where it is a
formula that leaves norms out.
"""

import json
from collections.abc import Iterator
from fractions import Fraction
from pathlib import Path
from typing import Any, TypeAlias

from kvengine.errors import ConfigError
from kvengine.spec import KVDtype
from kvplan.kv_layout.layers import AttentionKind
from kvplan.model_spec import ModelSpec, load_model
from kvplan.models.kv_figures import KVFigures, States, kv_figures
from tests.oracle.outcome import Mismatch, OracleInputError, Outcome

Fields: TypeAlias = dict[str, Any]

_FORMULA_TOLERANCE = 1e-3
"""The reference's formulas leave norms out: less than 0.1 %."""
_SCALE_BYTES = 4
"""Of one index key in fp8."""


def check(path: Path, *, only: str = "") -> Iterator[Outcome]:
    """Compare every model of a folder like `models/`, or one of them.

    Raises:
        OracleInputError: The folder holds no reference.
    """
    try:
        references = json.loads((path / "kv_reference.json").read_text())["models"]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise OracleInputError(f"{path}: no reference figures ({error!r})") from None
    for name, reference in references.items():
        if only and name != only:
            continue
        yield _outcome(path / name, name, reference)


def _outcome(folder: Path, name: str, reference: Fields) -> Outcome:
    case = f"uncertain: {name}" if str(reference.get("confidence", "")).startswith("uncertain") else name
    try:
        model = load_model(str(folder))
    except ConfigError as error:
        return Outcome(case=case, unsupported=str(error))
    compared = _Compared(model, reference)
    mismatches = [Mismatch(what, wanted, got) for what, wanted, got in compared.pairs() if wanted != got]
    return Outcome(case=case, mismatches=tuple(mismatches))


class _Compared:
    """Pairs of what the reference wants and what the model says."""

    def __init__(self, model: ModelSpec, reference: Fields) -> None:
        self._model, self._reference = model, reference
        self._figures: KVFigures = kv_figures(model.layers)

    def pairs(self) -> Iterator[tuple[str, Any, Any]]:
        wanted, figures = self._reference, self._figures
        yield "bytes per token", wanted["kv_bytes_per_token"], figures.bytes_per_token
        yield "naive bytes per token", wanted["naive_kv_bytes_per_token"], figures.naive_bytes_per_token
        yield from self._layers()
        yield from self._limits("sliding", "window", AttentionKind.SLIDING_WINDOW)
        yield from self._limits("chunked", "chunk", AttentionKind.CHUNKED_LOCAL)
        yield from self._latents()
        yield from self._states()
        yield from self._cross()
        yield from self._extra()
        yield from self._quantization()
        yield from self._parameters()

    def _layers(self) -> Iterator[tuple[str, Any, Any]]:
        wanted, layers = self._reference["layers"], self._model.layers
        yield "layers that keep every token", wanted["growing_attention"], self._figures.growing_layers
        recurrent = {state.kind.value: state.layers for state in self._figures.states}
        yield "layers with states", wanted["recurrent"], recurrent
        cross_only = sum(1 for layer in layers if layer and not _keeps_own(layer))
        nothing = sum(not layer for layer in layers)
        if wanted["without_own_kv"] or not cross_only:
            yield "layers without KV of their own", wanted["without_own_kv"], nothing

    def _limits(self, key: str, reach_key: str, kind: AttentionKind) -> Iterator[tuple[str, Any, Any]]:
        got = [
            {
                reach_key: limit.reach,
                "layers": limit.layers,
                "bytes_per_token": limit.bytes_per_token,
                "max_bytes_per_seq": limit.reach * limit.bytes_per_token,
            }
            for limit in self._figures.limited(kind)
        ]
        yield key, self._reference[key] or [], got

    def _latents(self) -> Iterator[tuple[str, Any, Any]]:
        wanted, rows = self._reference["mla"], self._figures.latent_rows
        if any(row.tokens_per_row > 1 for row in rows):
            return  # compressed streams are counted in `extra`
        got = None
        if rows:
            row_bytes = self._figures.amount(rows[:1])
            got = {
                "layers": len(rows),
                "latent_elems_per_layer": rows[0].key_size,
                "latent_bytes_per_token_per_layer": row_bytes,
                "latent_bytes_per_token": self._figures.amount(rows),
            }
        yield "latent attention", {key: wanted[key] for key in got} if wanted and got else wanted, got

    def _states(self) -> Iterator[tuple[str, Any, Any]]:
        wanted = self._reference["fixed_state"] or {}
        got = {state.kind.value: state for state in self._figures.states}
        yield "kinds of states", sorted(wanted), sorted(got)
        for kind in wanted.keys() & got.keys():
            yield from self._state(kind, wanted[kind], got[kind])

    def _state(self, kind: str, wanted: Fields, state: States) -> Iterator[tuple[str, Any, Any]]:
        chosen = (state.dtype or KVDtype.BFLOAT16).num_bytes
        got = {
            "layers": state.layers,
            "conv_elems_per_layer": state.conv_elements,
            "ssm_elems_per_layer": state.head_elements,
            "bytes_per_seq_ssm2": state.bytes_per_sequence(conv_bytes=2, head_bytes=2),
            "bytes_per_seq_ssm4": state.bytes_per_sequence(conv_bytes=2, head_bytes=4),
            "bytes_per_seq_vllm_default": state.bytes_per_sequence(conv_bytes=2, head_bytes=chosen),
        }
        for key, value in got.items():
            if wanted.get(key) is not None:
                yield f"state {kind}: {key}", wanted[key], value

    def _cross(self) -> Iterator[tuple[str, Any, Any]]:
        wanted, rows = self._reference["cross_attention"], self._figures.cross_rows
        yield "cross-attention layers", (wanted or {}).get("layers", 0), len(rows)
        if wanted:
            row_bytes = self._figures.amount(rows)
            yield "cross-attention bytes per position", wanted["bytes_per_source_token"], row_bytes
            if "bytes_per_seq" in wanted:
                yield "cross-attention bytes", wanted["bytes_per_seq"], row_bytes * self._model.encoder_tokens

    def _extra(self) -> Iterator[tuple[str, Any, Any]]:
        wanted = self._reference["extra"] or {}
        yield from self._drafts(wanted.get("mtp"))
        yield from self._index(wanted.get("indexer"))
        if "deepseek_v4" in wanted:
            yield from self._compressed(wanted["deepseek_v4"])

    def _drafts(self, wanted: Fields | None) -> Iterator[tuple[str, Any, Any]]:
        drafts = self._model.draft_layers
        yield "draft layers", (wanted or {}).get("layers", 0), len(drafts) if wanted else 0
        if wanted and wanted.get("kv_bytes_per_token_if_served") is not None:
            served = kv_figures(drafts)
            yield "bytes per token of draft layers", wanted["kv_bytes_per_token_if_served"], served.bytes_per_token

    def _index(self, wanted: Fields | None) -> Iterator[tuple[str, Any, Any]]:
        rows = [row for row in self._figures.index_rows if row.tokens_per_row == 1]
        yield "layers with an index", (wanted or {}).get("layers", 0), len(rows)
        if wanted and rows:
            yield "elements of an index key", wanted["key_elems_per_token_per_layer"], rows[0].key_size
            yield "index bytes in 16 bits", wanted["bytes_per_token_bf16"], self._figures.amount(rows)
            packed = len(rows) * (rows[0].key_size + _SCALE_BYTES)
            yield "index bytes in fp8", wanted["bytes_per_token_fp8_plus_scale"], packed

    def _compressed(self, wanted: Fields) -> Iterator[tuple[str, Any, Any]]:
        figures = self._figures
        streams = [row for row in figures.latent_rows if row.tokens_per_row > 1]
        by_ratio = [row.tokens_per_row for row in streams]
        yield "layers of ratio 4", wanted["csa_ratio4_layers"], by_ratio.count(4)
        yield "layers of ratio 128", wanted["hca_ratio128_layers"], by_ratio.count(128)
        yield "layers of a window only", wanted["sliding_only_layers"], len(self._model.layers) - len(streams)
        stream_bytes = sum(Fraction(figures.amount([row]), row.tokens_per_row) for row in streams)
        index_bytes = sum(Fraction(figures.amount([row]), row.tokens_per_row) for row in figures.index_rows)
        yield "compressed bytes per token", wanted["compressed_bytes_per_token"], float(stream_bytes)
        yield "index bytes per token", wanted["indexer_bytes_per_token"], float(index_bytes)

    def _quantization(self) -> Iterator[tuple[str, Any, Any]]:
        wanted, got = self._reference["quantization"], self._model.quantization
        yield "quantised weights", wanted is not None, got is not None
        if not wanted or not got:
            return
        outside = (wanted.get("hf_quant_config") or {}).get("kv_cache_quant_algo")
        states_fp8 = bool(wanted.get("kv_cache_scheme")) or outside == "FP8"
        yield "KV cache in fp8", states_fp8, self._model.kv_scheme == "fp8"
        if isinstance(wanted["weights"], str):
            yield "method of quantisation", wanted["weights"].lower(), got.method

    def _parameters(self) -> Iterator[tuple[str, Any, Any]]:
        wanted, weights = self._reference["parameters"], self._model.weights
        if wanted["total"] is None:
            return
        got = weights.parameters if weights else None
        is_formula = wanted["method"].startswith("formula")
        close = got is not None and abs(got - wanted["total"]) <= _FORMULA_TOLERANCE * wanted["total"]
        yield "parameters", wanted["total"], wanted["total"] if is_formula and close else got


def _keeps_own(layer: tuple[Any, ...]) -> bool:
    return any(getattr(part, "kind", None) is not AttentionKind.CROSS for part in layer)
