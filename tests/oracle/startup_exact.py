"""Printed start-up figures against each other: from each pair the one must follow from the other.

A figure printed with two decimals is an interval, so each figure allows a range of block counts; two figures agree when
their ranges meet. Every block count inside a printed GiB counts as equal, so where the memory is printed each other
figure is held against it (one record quotes tokens and concurrency of two starts that printed the same GiB). What a
record leaves open (a version with two rules, a step budget that was not shown) is tried in every form that fits the
record, and one form must explain all of its figures.
"""

import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction
from itertools import combinations, product
from math import ceil, floor
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

from kvengine.units import GIB, cdiv, round_up
from kvplan.kv_layout.alignment import Alignment, align_to_states, apply_alignment
from kvplan.kv_layout.capacity import KVLayout
from kvplan.kv_layout.groups import group_layers, without_hybrid_manager
from kvplan.kv_layout.layers import (
    AttentionKind,
    Layer,
    RequestBound,
    StateLayer,
    attention_layer,
    gated_delta_state_bytes,
    kv_heads_per_rank,
    state_blocks_per_request,
)
from kvplan.kv_layout.rules import VllmRules, parse_version, vllm_rules
from tests.oracle.outcome import Mismatch, OracleInputError, Outcome

Fields: TypeAlias = dict[str, Any]

_STEP_BUDGETS = (2048, 8192, 16384)
"""vLLM's own defaults by version and device, tried where a record does not show the budget."""
_SPARSE_MLA_FP8_ROW = 656
_OLD_MLA_ROW_ALIGNMENT = 256
"""Bytes to which vLLM rounded a latent row up in early 2025 (576 elements became 640)."""


def check(path: Path) -> Iterator[Outcome]:
    """Compare the records marked `exact` in a file like `startup_logs.json`; circular ones are counted apart.

    Raises:
        OracleInputError: The file is not such a file.
    """
    try:
        records = json.loads(path.read_text())["records"]
        exact = [record for record in records if record["check"] == "exact"]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise OracleInputError(f"{path}: not a file of start-up records ({error!r})") from None
    for record in exact:
        yield _outcome(record)


def _outcome(record: Fields) -> Outcome:
    case, apart = record["id"], "circular" if record.get("check_is_circular") else ""
    try:
        mismatches = _sglang_mismatches(record) if record["engine"] == "sglang" else _vllm_mismatches(record)
    except _NotModelled as error:
        return Outcome(case=case, apart=apart, unsupported=str(error))
    except KeyError as error:
        return Outcome(case=case, apart=apart, unsupported=f"the record does not state {error}")
    return Outcome(case=case, apart=apart, mismatches=tuple(mismatches))


class _NotModelled(Exception):
    """A record whose layout is not known, or that prints no two figures to compare."""


class Span(NamedTuple):
    """The values that a printed figure stands for, both ends included."""

    low: Fraction
    high: Fraction

    def meets(self, other: "Span") -> bool:
        return self.low <= other.high and other.low <= self.high


def printed(value: float, *, decimals: int = 2) -> Span:
    """The span of a figure that was rounded to at least so many decimals."""
    shown = len(f"{value}".partition(".")[2])
    half = Fraction(1, 2 * 10 ** max(decimals, shown))
    return Span(Fraction(f"{value}") - half, Fraction(f"{value}") + half)


# ---------------------------------------------------------------------------------------------------- vLLM


def _vllm_mismatches(record: Fields) -> list[Mismatch]:
    """Return the mismatches of the form of the record that explains most."""
    return min((form.mismatches() for form in _forms(record)), key=len)


def _forms(record: Fields) -> Iterator["_Form"]:
    flags, architecture = record["flags"], record["architecture"]
    budgets = (flags["max_num_batched_tokens"],) if "max_num_batched_tokens" in flags else _STEP_BUDGETS
    kernel_blocks = (16, 64, 128) if "kv_lora_rank" in architecture else (16,)
    caching = (bool(flags["enable_prefix_caching"]),) if "enable_prefix_caching" in flags else (True, False)
    choices = product(
        _possible_rules(record["version"]),
        budgets,
        kernel_blocks,
        caching if "linear_attention_layers" in architecture else (True,),
        (True, False) if architecture["kv"] == "swa_hybrid" else (True,),
    )
    for rules, budget, kernel_block, cached, hybrid in choices:
        yield _Form(
            record=record,
            rules=rules,
            step_budget=budget,
            kernel_block=kernel_block,
            prefix_caching=cached,
            hybrid_manager=hybrid,
        )


def _possible_rules(version: str) -> list[VllmRules]:
    """The rules of the versions that a record names, or all rules where it is a guess ("0.2x", "nightly")."""
    named = [parsed for part in re.findall(r"\d+\.\d+(?:\.\d+)?(?!\w)", version) if (parsed := parse_version(part))]
    candidates = named or [(0, 16, 0), (0, 21, 0), (0, 27, 0), (0, 32, 0)]
    return list(dict.fromkeys(map(vllm_rules, candidates)))


def _pairs(facts: Sequence[str]) -> Iterator[tuple[str, str]]:
    """The pairs to compare: with the memory where it is printed, else each with each; counts always with each other."""
    for pair in combinations(facts, 2):
        if "available memory" in pair or "available memory" not in facts or "concurrency" not in pair:
            yield pair


@dataclass(frozen=True, slots=True, kw_only=True)
class _Form:
    """A record read under one set of rules, step budget, kernel block, caching mode and manager."""

    record: Fields
    rules: VllmRules
    step_budget: int
    kernel_block: int
    prefix_caching: bool
    hybrid_manager: bool

    def mismatches(self) -> list[Mismatch]:
        alignment = align_to_states(self._requested(), kernel_block=self.kernel_block)
        layout = self._layout(alignment)
        facts = self._block_spans(layout)
        found = [
            Mismatch(f"blocks by {first} and by {second}", _text(facts[first]), _text(facts[second]))
            for first, second in _pairs(list(facts))
            if not facts[first].meets(facts[second])
        ]
        lone = [*self._length_mismatches(layout), *self._alignment_mismatches(alignment)]
        if len(facts) < 2 and not self._has_lone_figures():
            raise _NotModelled("no two printed figures follow from each other")
        return found + lone

    @property
    def _seen(self) -> Fields:
        observed: Fields = self.record["observed"]
        return observed

    @property
    def _flags(self) -> Fields:
        flags: Fields = self.record.get("inferred_flags", {}) | self.record["flags"]
        return flags

    def _block_size(self, default: int) -> int:
        return int(self._seen.get("block_size") or default)

    def _has_lone_figures(self) -> bool:
        return bool({"needed_kv_gib", "estimated_max_model_len", "mamba_page_padding_pct"} & set(self._seen))

    def _bound(self, *, max_model_len: int | None = None) -> RequestBound:
        batches = 2 if self.rules.windows_hold_all_batches else 1
        return RequestBound(
            max_model_len=max_model_len or self._seen.get("max_model_len") or self._flags.get("max_model_len") or 1,
            tokens_in_flight=self.step_budget * batches,
            context_parallel_size=self._flags.get("decode_context_parallel_size", 1),
        )

    def _block_spans(self, layout: KVLayout) -> dict[str, Span]:
        spans = {}
        if available := self._available():
            low, high = (floor(size / layout.bytes_per_block) for size in available)
            spans["available memory"] = Span(Fraction(low), Fraction(high))
        if "num_blocks" in self._seen:
            spans["block count"] = Span(*[Fraction(self._seen["num_blocks"])] * 2)
        if "kv_tokens" in self._seen:
            spans["tokens"] = self._blocks_by_tokens(layout, self._seen["kv_tokens"])
        if "max_concurrency" in self._seen and self._bound().max_model_len > 1:
            spans["concurrency"] = self._blocks_by_concurrency(layout)
        return spans

    def _available(self) -> Span | None:
        if "available_kv_bytes" in self._seen:
            return Span(*[Fraction(self._seen["available_kv_bytes"])] * 2)
        if "available_kv_gib" not in self._seen:
            return None
        low, high = printed(self._seen["available_kv_gib"])
        return Span(low * GIB, high * GIB)

    def _blocks_by_tokens(self, layout: KVLayout, tokens: int) -> Span:
        """The block counts for which the engine prints this token figure; an empty span when there is none."""
        bound = self._bound()
        low, high = 0, tokens + 1
        while low < high:
            middle = (low + high) // 2
            if layout.printed_tokens(middle, bound) < tokens:
                low = middle + 1
            else:
                high = middle
        last = low
        while layout.printed_tokens(last, bound) == tokens:
            last += 1
        return Span(Fraction(low), Fraction(last - 1))

    def _blocks_by_concurrency(self, layout: KVLayout) -> Span:
        """By whole blocks of one request, or as the oldest versions do by its tokens."""
        bound = self._bound()
        low, high = printed(self._seen["max_concurrency"])
        needed = [Fraction(layout.blocks_per_request(bound))]
        if len(layout.groups) == 1:
            needed.append(Fraction(bound.max_model_len, layout.groups[0].block_size))
        return Span(Fraction(ceil(low * min(needed))), Fraction(floor(high * max(needed))))

    def _length_mismatches(self, layout: KVLayout) -> list[Mismatch]:
        found = []
        if "needed_kv_gib" in self._seen:
            needed = Fraction(layout.needed_bytes(self._bound()), GIB)
            if not printed(self._seen["needed_kv_gib"]).meets(Span(needed, needed)):
                found.append(Mismatch("memory of one request", self._seen["needed_kv_gib"], float(needed)))
        if "estimated_max_model_len" in self._seen and (available := self._available()):
            low, high = (layout.estimated_max_model_len(self._bound(), floor(size)) for size in available)
            if not low <= self._seen["estimated_max_model_len"] <= high:
                found.append(Mismatch("estimated length", self._seen["estimated_max_model_len"], (low, high)))
        return found

    def _alignment_mismatches(self, alignment: Alignment | None) -> list[Mismatch]:
        found = []
        if alignment and self._seen.get("block_size", alignment.block_size) != alignment.block_size:
            found.append(Mismatch("attention block", self._seen["block_size"], alignment.block_size))
        if alignment and "mamba_page_padding_pct" in self._seen:
            percent = Fraction(100 * (alignment.page_bytes - alignment.state_bytes), alignment.state_bytes)
            if not printed(self._seen["mamba_page_padding_pct"]).meets(Span(percent, percent)):
                found.append(Mismatch("state padding", self._seen["mamba_page_padding_pct"], float(percent)))
        return found

    def _layout(self, alignment: Alignment | None) -> KVLayout:
        state_block_size = None if self.prefix_caching else self._bound().max_model_len
        layers = apply_alignment(self._requested(), alignment, state_block_size=state_block_size)
        kept = layers if self.hybrid_manager else without_hybrid_manager(layers)
        return KVLayout(groups=tuple(group_layers(kept)), rules=self.rules)

    def _requested(self) -> list[Layer]:
        architecture = self.record["architecture"]
        match architecture["kv"]:
            case "gqa":
                return self._attention(architecture["num_hidden_layers"] + self._draft_layers())
            case "mla":
                return self._latent(architecture["num_hidden_layers"] + self._draft_layers())
            case "swa_hybrid":
                return self._sliding()
            case _ if "linear_attention_layers" in architecture:
                return self._with_states()
            case other:
                raise _NotModelled(f"a KV cache of kind {other!r}")

    def _draft_layers(self) -> int:
        """Layers that a multi-token-prediction head adds to the target model's own."""
        return 1 if str(self._flags.get("speculative", "")).startswith("mtp") else 0

    def _speculative_tokens(self) -> int:
        digits = str(self._flags.get("speculative", "")).rpartition("n=")[2]
        return int(digits) if digits.isdecimal() else 0

    def _element_bytes(self) -> int:
        return 1 if str(self._flags.get("kv_cache_dtype", "auto")).startswith("fp8") else 2

    def _tensor_parallel(self) -> int:
        return int(self._flags.get("tensor_parallel_size") or self._flags.get("tp") or 1)

    def _attention(self, count: int, block_size: int = 0) -> list[Layer]:
        architecture = self.record["architecture"]
        layer = attention_layer(
            AttentionKind.FULL,
            num_kv_heads=kv_heads_per_rank(architecture["num_key_value_heads"], self._tensor_parallel()),
            head_size=architecture["head_dim"],
            element_bytes=self._element_bytes(),
            block_size=block_size or self._block_size(16),
        )
        return [layer] * count

    def _latent(self, count: int, block_size: int = 0) -> list[Layer]:
        architecture = self.record["architecture"]
        block_size = block_size or self._block_size(64)
        sparse = "indexer_head_dim" in architecture
        row = architecture["kv_lora_rank"] + architecture["qk_rope_head_dim"]
        packed = _SPARSE_MLA_FP8_ROW if sparse and self._element_bytes() == 1 else None
        if "V0" in self.record["version"]:
            packed = round_up(row * self._element_bytes(), _OLD_MLA_ROW_ALIGNMENT)
        latent = attention_layer(
            AttentionKind.MLA,
            num_kv_heads=1,
            head_size=row,
            element_bytes=self._element_bytes(),
            block_size=block_size,
            packed_token_bytes=packed,
        )
        if not sparse:
            return [latent] * count
        index_row = architecture["indexer_head_dim"] + 4  # one float32 scale per token
        indexer = attention_layer(
            AttentionKind.MLA, num_kv_heads=1, head_size=index_row, element_bytes=1, block_size=block_size
        )
        return [latent, indexer] * count

    def _sliding(self) -> list[Layer]:
        architecture = self.record["architecture"]
        layers: list[Layer] = []
        for kind, prefix in ((AttentionKind.SLIDING_WINDOW, "sliding"), (AttentionKind.FULL, "full")):
            count = architecture["sliding_layers" if prefix == "sliding" else "full_attention_layers"]
            layer = attention_layer(
                kind,
                num_kv_heads=kv_heads_per_rank(architecture[f"{prefix}_kv_heads"], self._tensor_parallel()),
                head_size=architecture[f"{prefix}_head_dim"],
                element_bytes=self._element_bytes(),
                block_size=self._block_size(16),
                reach=architecture["sliding_window"] if kind is AttentionKind.SLIDING_WINDOW else 0,
            )
            layers += [layer] * count
        return layers

    def _with_states(self) -> list[Layer]:
        architecture = self.record["architecture"]
        full = architecture["full_attention_layers"] + self._draft_layers()
        attention = self._latent if "kv_lora_rank" in architecture else self._attention
        state = StateLayer(
            state_bytes=gated_delta_state_bytes(
                num_key_heads=architecture["linear_num_key_heads"],
                num_value_heads=architecture["linear_num_value_heads"],
                key_head_size=architecture["linear_key_head_dim"],
                value_head_size=architecture["linear_value_head_dim"],
                conv_kernel=architecture["linear_conv_kernel_dim"],
                tensor_parallel_size=self._tensor_parallel(),
                speculative_tokens=self._speculative_tokens(),
                state_element_bytes=architecture.get("ssm_state_dtype_bytes", 4),
            ),
            block_size=16,
            blocks_per_request=state_blocks_per_request(
                prefix_caching=self.prefix_caching, speculative_tokens=self._speculative_tokens()
            ),
        )
        return [state] * architecture["linear_attention_layers"] + attention(full, block_size=16)


# -------------------------------------------------------------------------------------------------- SGLang


def _sglang_mismatches(record: Fields) -> list[Mismatch]:
    seen = record["observed"]
    if "kv_tokens" not in seen:
        raise _NotModelled("no token count is printed")
    found = []
    for name, row_bytes in _sglang_rows(record).items():
        if name not in seen:
            continue
        size = Fraction(seen["kv_tokens"] * row_bytes, GIB)
        if not printed(seen[name]).meets(Span(size, size)):
            found.append(Mismatch(f"tokens x {row_bytes} B by {name}", seen[name], float(size)))
    return found


def _sglang_rows(record: Fields) -> dict[str, int]:
    """Bytes of one token in all layers of one rank, by the figure that prints their sum."""
    architecture, flags = record["architecture"], record["flags"]
    ranks = int(flags.get("tp") or flags.get("tensor_parallel_size") or 1)
    element_bytes = 1 if str(flags.get("kv_cache_dtype", "auto")).startswith("fp8") else 2
    layers = architecture.get("full_attention_layers") or architecture.get("num_hidden_layers")
    if "kv_lora_rank" in architecture:
        row = (architecture["kv_lora_rank"] + architecture["qk_rope_head_dim"]) * element_bytes
        indexer = architecture["indexer_head_dim"] + 4 if "indexer_head_dim" in architecture else 0
        return {"kv_size_gb": layers * (row + indexer)}
    if "num_key_value_heads" not in architecture:
        raise _NotModelled(f"a KV cache of kind {architecture['kv']!r}")
    heads = max(1, cdiv(architecture["num_key_value_heads"], ranks))
    half = layers * heads * architecture["head_dim"] * element_bytes
    return {"k_size_gb": half, "v_size_gb": half, "kv_size_gb": 2 * half}


def _text(span: Span) -> Sequence[int]:
    return [floor(span.low), floor(span.high)]
