"""The KV layout, blocks and printed figures against vLLM 0.32's own answers."""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any, TypeAlias

from kvplan.kv_layout.alignment import Alignment, align_to_states, apply_alignment
from kvplan.kv_layout.capacity import KVLayout
from kvplan.kv_layout.groups import KVGroup, group_layers, hash_block_size, scheduler_block_size, without_hybrid_manager
from kvplan.kv_layout.layers import (
    AttentionKind,
    AttentionLayer,
    Layer,
    RequestBound,
    StateLayer,
    attention_layer,
    state_blocks_per_request,
)
from kvplan.kv_layout.rules import parse_version, vllm_rules
from tests.oracle.outcome import Mismatch, OracleInputError, Outcome

Fields: TypeAlias = dict[str, Any]

_ELEMENT_BYTES = {
    "float32": 4,
    "bfloat16": 2,
    "float16": 2,
    "uint8": 1,
    "float8_e4m3fn": 1,
    "float8_e5m2": 1,
    "int8": 1,
}
_SPEC_NAMES = {
    AttentionKind.FULL: "FullAttentionSpec",
    AttentionKind.MLA: "MLAAttentionSpec",
    AttentionKind.SLIDING_WINDOW: "SlidingWindowSpec",
    AttentionKind.CHUNKED_LOCAL: "ChunkedLocalAttentionSpec",
    AttentionKind.CROSS: "CrossAttentionSpec",
}
_REFUSAL = "To serve at least one request with the model's max seq len"


def check(path: Path) -> Iterator[Outcome]:
    """Compare every field of the `vllm` answer of every case in a file like `kv_sizing.json`.

    Raises:
        OracleInputError: The file is not such a file.
    """
    try:
        document = json.loads(path.read_text())
        version = parse_version(document["vllm_version"])
        cases = document["cases"]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise OracleInputError(f"{path}: not a file of sizing cases ({error!r})") from None
    if version is None:
        raise OracleInputError(f"{path}: vllm_version {document['vllm_version']!r} is no version")
    for case in cases:
        yield _outcome(case["input"], case["vllm"], version)


def _outcome(given: Fields, wanted: Fields, version: tuple[int, int, int]) -> Outcome:
    try:
        answer = _Case(given=given, version=version).answer()
    except _NotModelled as error:
        return Outcome(case=given["name"], unsupported=str(error))
    keys = [key for key in wanted if key != "error_starts_with"]
    mismatches = [Mismatch(key, wanted[key], answer.get(key)) for key in keys if answer.get(key) != wanted[key]]
    if "error_starts_with" in wanted and not _REFUSAL.startswith(wanted["error_starts_with"]):
        mismatches.append(Mismatch("error_starts_with", wanted["error_starts_with"], _REFUSAL))
    return Outcome(case=given["name"], mismatches=tuple(mismatches))


class _NotModelled(Exception):
    """A case uses something that the layout does not know."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Case:
    given: Fields
    version: tuple[int, int, int]

    def answer(self) -> Fields:
        alignment = self._alignment()
        layout = KVLayout(groups=tuple(group_layers(self._layers(alignment))), rules=vllm_rules(self.version))
        bound = self._bound()
        available, override = self._available(layout)
        num_blocks = layout.num_blocks(available, override=override)
        estimated = min(layout.estimated_max_model_len(bound, size) for size in available)
        auto_fit = bool(self.given.get("auto_fit"))
        served = self._bound(max_model_len=estimated) if auto_fit else bound
        return self._aligned(alignment) | {
            "max_in_flight_tokens": bound.tokens_in_flight,
            "bytes_per_block": layout.bytes_per_block,
            "groups": [self._group(group, bound) for group in layout.groups],
            "needed_bytes_one_request": layout.needed_bytes(bound),
            "checked_memory_bytes": min(map(layout.checked_bytes, available)),
            "estimated_max_model_len": estimated,
            "accepted": auto_fit or estimated == bound.max_model_len,
            "max_model_len_after_auto_fit": estimated,
            "num_blocks": num_blocks,
            "usable_blocks": num_blocks - 1,
            "cache_config_block_size": layout.smallest_block_size,
            "kv_cache_size_tokens": layout.printed_tokens(num_blocks, served),
            "max_concurrency": float(layout.max_concurrency(num_blocks, served)),
            "scheduler_block_size": scheduler_block_size(layout.groups),
            "hash_block_size": hash_block_size(layout.groups, prefix_caching=self._caches_prefixes()),
            "allocated_bytes_per_worker": num_blocks * layout.bytes_per_block,
        }

    def _available(self, layout: KVLayout) -> tuple[list[int], int | None]:
        override = self.given.get("num_gpu_blocks_override")
        return ([override * layout.bytes_per_block] if override else self.given["available_memory"]), override

    def _bound(self, *, max_model_len: int | None = None) -> RequestBound:
        return RequestBound(
            max_model_len=max_model_len or self.given["max_model_len"],
            tokens_in_flight=self.given["max_num_batched_tokens"] * self.given.get("concurrent_batches", 1),
            max_encoder_tokens=self.given.get("max_encoder_tokens", 0),
        )

    def _caches_prefixes(self) -> bool:
        return bool(self.given.get("mamba_mode", "align") == "align")

    def _requested(self) -> list[Layer]:
        by_kind = {name: self._layer(fields) for name, fields in self.given["kinds"].items()}
        return [by_kind[name] for name in self.given["layers"]]

    def _layer(self, fields: Fields) -> Layer:
        if fields["type"] == "mamba":
            return StateLayer(
                state_bytes=sum(prod(state["shape"]) * _ELEMENT_BYTES[state["dtype"]] for state in fields["states"]),
                block_size=self.given["block_size"],
                blocks_per_request=state_blocks_per_request(
                    prefix_caching=self._caches_prefixes(),
                    speculative_tokens=self.given.get("num_speculative_tokens", 0),
                ),
            )
        if fields["type"] not in set(AttentionKind):
            raise _NotModelled(f"layer type {fields['type']!r}")
        return attention_layer(
            AttentionKind(fields["type"]),
            num_kv_heads=fields["num_kv_heads"],
            head_size=fields["head_size"],
            head_size_v=fields.get("head_size_v"),
            element_bytes=_ELEMENT_BYTES[fields["dtype"]],
            block_size=int(fields.get("block_size") or self.given["block_size"]),
            reach=fields.get("window") or fields.get("chunk") or 0,
            packed_token_bytes=fields.get("bytes_per_token"),
        )

    def _alignment(self) -> Alignment | None:
        return align_to_states(self._requested(), kernel_block=self.given.get("kernel_block_size", 16))

    def _layers(self, alignment: Alignment | None) -> list[Layer]:
        state_block_size = None if self._caches_prefixes() else self.given["max_model_len"]
        layers = apply_alignment(self._requested(), alignment, state_block_size=state_block_size)
        return without_hybrid_manager(layers) if self.given.get("disable_hybrid") else layers

    def _aligned(self, alignment: Alignment | None) -> Fields:
        if alignment is None:
            return {}
        state_tokens = alignment.block_size if self._caches_prefixes() else self.given["max_model_len"]
        return {
            "aligned": {
                "block_size": alignment.block_size,
                "mamba_block_size": state_tokens,
                "mamba_page_size_padded": alignment.page_bytes,
            }
        }

    def _group(self, group: KVGroup, bound: RequestBound) -> Fields:
        names = [self.given["layers"][index] for index in group.layer_indices]
        return {
            "spec": _spec_name(group),
            "kinds": {name: names.count(name) for name in self.given["kinds"] if name in names},
            "num_layers": len(names),
            "first_layers": list(group.layer_indices[:4]),
            "block_size": group.block_size,
            "page_size_bytes": group.page_bytes,
            "blocks_for_max_model_len": group.blocks_for(bound),
        }


def _spec_name(group: KVGroup) -> str:
    first = group.layers[0]
    if not group.is_uniform:
        return "UniformTypeKVCacheSpecs"
    return _SPEC_NAMES[first.kind] if isinstance(first, AttentionLayer) else "MambaSpec"
