"""How the weights of a quantised checkpoint are stored, and the KV element type that it states.

method                        bits   with each group                      what stays in 16 bits
awq, gptq (group 128)         4 (8)  a 16-bit scale and a zero point      head, embeddings, norms, routers
fp8, fbgemm_fp8               8      a 32-bit scale per block of 128^2    those that are named
compressed-tensors, modelopt  4..8   scale by format                      those that `ignore` names
mxfp4                         4      an 8-bit scale per 32                attention, routers, head
nvfp4                         4      an 8-bit scale per 16                those that are named
bitsandbytes                  4, 8   a 32-bit scale per 64, itself packed head, embeddings, norms
"""

import re
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from fractions import Fraction

from kvplan.config_reader import ConfigReader, shown
from kvplan.parameters import Role

_SAMPLE_MODULES: Mapping[Role, tuple[str, ...]] = {
    Role.ATTENTION: ("model.layers.7.self_attn.q_proj", "model.layers.7.self_attn.o_proj"),
    Role.STATE: (
        "model.layers.7.linear_attn.in_proj_qkv",
        "model.layers.7.mixer.in_proj",
        "model.layers.7.mamba.in_proj",
    ),
    Role.MLP: ("model.layers.7.mlp.gate_proj", "model.layers.7.mlp.down_proj"),
    Role.SHARED_EXPERT: ("model.layers.7.mlp.shared_experts.gate_proj", "model.layers.7.mlp.shared_expert.gate_proj"),
    Role.EXPERT: ("model.layers.7.mlp.experts.7.gate_proj", "model.layers.7.mlp.experts"),
}
"""Names under which checkpoints keep the matrices of a role, to try the patterns of exceptions on."""


_SAMPLE_LAYER = "layers.7."
_ONE_LAYER = re.compile(r"(?:^|\.)layers\.(\d{1,4})\.(\S+)$")
_FEWEST_NAMED_LAYERS = 4
"""A first and a last layer may be left out without the others."""
_LONGEST_PATTERN = 200
_REPEATED_GROUP = re.compile(r"\)[*+?{]")
"""Groups that repeat can take for ever to match, and no checkpoint needs them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Quantization:
    """What a checkpoint says of its weights."""

    method: str
    bits: Fraction | None
    """Bits of one quantised parameter, scales and zero points included; None where they cannot be told."""
    roles: frozenset[Role] = field(default_factory=lambda: frozenset(_SAMPLE_MODULES))
    """Roles whose matrices are quantised."""
    role_bits: Mapping[Role, Fraction] = field(default_factory=dict)
    """Bits of one parameter of a role, where they are not those of the others."""
    kv_scheme: str = ""
    """`fp8`, the words of another KV element type, or nothing."""

    def size_bytes(self, role: Role, params: int, *, plain_bytes: int) -> int:
        """Return the bytes of parameters of a role; those that are not quantised have `plain_bytes` each."""
        assert self.bits is not None, "asked only where the bits are known"
        if role not in self.roles:
            return params * plain_bytes
        bits = self.role_bits.get(role, self.bits)
        return -(-params * bits.numerator // (8 * bits.denominator))


def read_quantization(reader: ConfigReader) -> Quantization | None:
    """Read what a configuration says of its weights; None for plain ones.

    Raises:
        ConfigError: It is no object, or its numbers make no sense.
    """
    key = "quantization_config" if reader.has("quantization_config") else "compression_config"
    if not reader.has(key):
        return None
    said = reader.nested(key)
    method = _method(said)
    if _algorithm(said) == _MIXED:
        return _mixed_quantization(said, method)
    return Quantization(
        method=method,
        bits=_bits(said, method),
        roles=_roles(said, method),
        # DeepSeek-V4 states it beside the object.
        role_bits={Role.EXPERT: _USUAL_BITS["mxfp4"]} if reader.get("expert_dtype") == "fp4" else {},
        kv_scheme=stated_kv_scheme(said.get("kv_cache_scheme") or said.get("kv_cache_quant_algo")),
    )


def modelopt_quantization(said: ConfigReader) -> Quantization:
    """Read the `quantization` object of an `hf_quant_config.json`."""
    algorithm = _algorithm(said)
    if algorithm == _MIXED:
        return _mixed_quantization(said, f"modelopt {algorithm}")
    return Quantization(
        method=f"modelopt {algorithm}".strip(),
        bits=_algorithm_bits(algorithm),
        roles=_roles(said, "modelopt"),
        kv_scheme=stated_kv_scheme(said.get("kv_cache_quant_algo")),
    )


def _mixed_quantization(said: ConfigReader, method: str) -> Quantization:
    """Read modelopt's list of modules, each with its algorithm: a role has the one that most of its modules have."""
    counted: dict[Role, Counter[str]] = {}
    for name, entry in said.mapping("quantized_layers").items():
        role = _role_of_module(name)
        algorithm = entry.get("quant_algo") if isinstance(entry, Mapping) else None
        if role is not None and isinstance(algorithm, str):
            counted.setdefault(role, Counter())[algorithm[:40].upper()] += 1
    bits = {role: _algorithm_bits(algorithms.most_common(1)[0][0]) for role, algorithms in counted.items()}
    known = {role: size for role, size in bits.items() if size is not None}
    return Quantization(
        method=method,
        bits=max(known.values(), default=None) if len(known) == len(bits) else None,
        roles=frozenset(known),
        role_bits=known,
        kv_scheme=stated_kv_scheme(said.get("kv_cache_quant_algo")),
    )


_ROLE_WORDS: tuple[tuple[str, Role], ...] = (
    (".shared_expert", Role.SHARED_EXPERT),
    (".experts.", Role.EXPERT),
    (".self_attn.", Role.ATTENTION),
    (".mixer.q_proj", Role.ATTENTION),
    (".mixer.k_proj", Role.ATTENTION),
    (".mixer.v_proj", Role.ATTENTION),
    (".mixer.o_proj", Role.ATTENTION),
    (".linear_attn.", Role.STATE),
    (".mamba.", Role.STATE),
    (".mixer.", Role.STATE),
    (".mlp.", Role.MLP),
    (".feed_forward.", Role.MLP),
)
"""Words in the name of a module, the first that is there, to the role of its matrix."""


def _role_of_module(name: str) -> Role | None:
    return next((role for word, role in _ROLE_WORDS if word in name), None)


def quantization_named(name: str) -> Quantization | None:
    """Return the usual form of a method that was typed: `awq`, `fp8`, `nvfp4`; None for one that is not known."""
    folded = name.lower()
    bits = _USUAL_BITS.get(folded)
    return None if bits is None else Quantization(method=folded, bits=bits, roles=_usual_roles(folded))


def stated_kv_scheme(stated: object) -> str:
    """Return `fp8` for the spellings of an 8-bit float KV cache, the words of any other, and nothing for none."""
    if stated is None:
        return ""
    if isinstance(stated, Mapping):
        is_fp8 = stated.get("num_bits") == 8 and stated.get("type") in (None, "float")
    else:
        is_fp8 = str(stated).lower() in ("fp8", "fp8_e4m3")
    return "fp8" if is_fp8 else shown(stated)


_USUAL_ROLES: Mapping[str, frozenset[Role]] = {
    "mxfp4": frozenset({Role.EXPERT}),
    # Meta's recipe leaves attention in 16 bits (Llama 3, arXiv:2407.21783, section 6.2).
    "fbgemm_fp8": frozenset({Role.MLP, Role.SHARED_EXPERT, Role.EXPERT}),
}
_MIXED = "MIXED_PRECISION"
_BLOCK_SCALED_FP8 = 8 + Fraction(32, 128 * 128)
_USUAL_BITS: Mapping[str, Fraction] = {
    "awq": 4 + Fraction(16 + 4, 128),
    "awq_marlin": 4 + Fraction(16 + 4, 128),
    "bitsandbytes": 4 + Fraction(8, 64),
    "bitsandbytes_8bit": Fraction(8),
    "fbgemm_fp8": Fraction(8),
    "fp8": Fraction(8),
    "gptq": 4 + Fraction(16 + 4, 128),
    "gptq_marlin": 4 + Fraction(16 + 4, 128),
    "int8": Fraction(8),
    "modelopt_fp8": Fraction(8),
    "modelopt_fp4": 4 + Fraction(8, 16),
    "mxfp4": 4 + Fraction(8, 32),
    "nvfp4": 4 + Fraction(8, 16),
}
QUANTIZATION_NAMES = tuple(_USUAL_BITS)
"""Methods whose usual form is known."""


def _method(said: ConfigReader) -> str:
    stated = said.get("quant_method")
    method = stated[:40].lower().replace("_tensors", "-tensors") if isinstance(stated, str) else ""
    return method or _algorithm(said).lower() or "unknown"


def _algorithm(said: ConfigReader) -> str:
    algorithm = said.get("quant_algo")
    return algorithm[:40].upper() if isinstance(algorithm, str) else ""


def _bits(said: ConfigReader, method: str) -> Fraction | None:
    group = said.optional_count("group_size", minimum=-1, maximum=65_536)
    bits = said.optional_count("bits", maximum=32) or said.optional_count("w_bit", maximum=32)
    if method.startswith("modelopt") or _algorithm(said):
        return _algorithm_bits(_algorithm(said)) or _group_bits(said)
    if method == "compressed-tensors":
        return _group_bits(said)
    if method == "bitsandbytes":
        four = said.flag("load_in_4bit", default=not said.flag("load_in_8bit", default=False))
        return _USUAL_BITS["bitsandbytes"] if four else Fraction(8)
    if bits is not None:
        size = group if group and group > 0 else 0
        return Fraction(bits) + (Fraction(16 + bits, size) if size else 0)
    if method == "fp8" and said.has("weight_block_size"):
        return _BLOCK_SCALED_FP8
    return _USUAL_BITS.get(method)


def _algorithm_bits(algorithm: str) -> Fraction | None:
    if "MXFP" in algorithm:
        return (8 if "MXFP8" in algorithm else 4) + Fraction(8, 32)
    if "FP4" in algorithm or "W4A" in algorithm or "INT4" in algorithm:
        return _USUAL_BITS["nvfp4"]
    return Fraction(8) if "FP8" in algorithm or "W8A" in algorithm or "INT8" in algorithm else None


def _group_bits(said: ConfigReader) -> Fraction | None:
    """Read the first group of a compressed-tensors configuration: bits, and a scale for every so many parameters."""
    groups = said.mapping("config_groups")
    first = next(iter(groups.values()), None)
    weights = first.get("weights") if isinstance(first, Mapping) else None
    if not isinstance(weights, Mapping):
        return None
    inner = ConfigReader(weights, "quantization_config: config_groups: weights")
    bits = inner.optional_count("num_bits", maximum=32)
    if bits is None:
        return None
    group = inner.optional_count("group_size", minimum=-1, maximum=65_536) or 0
    is_small_scale = inner.get("type") == "float" and bits == 4
    return Fraction(bits) + (Fraction(8 if is_small_scale else 16, group) if group > 0 else 0)


def _roles(said: ConfigReader, method: str) -> frozenset[Role]:
    patterns = [
        pattern
        for key in ("ignore", "modules_to_not_convert", "exclude_modules", "ignored_layers", "llm_int8_skip_modules")
        if isinstance(said.get(key), list)
        for pattern in said.items(key)
        if isinstance(pattern, str)
    ]
    usual = _usual_roles(method)
    return frozenset(role for role in usual if not _is_left_out(role, patterns))


def _usual_roles(method: str) -> frozenset[Role]:
    return _USUAL_ROLES.get(method, frozenset(_SAMPLE_MODULES))


def _is_left_out(role: Role, patterns: list[str]) -> bool:
    """Whether patterns of exceptions name the matrices of a role: in every layer at once, or layer by layer."""
    modules = _SAMPLE_MODULES[role]
    if any(_matches(pattern, module) for pattern in patterns for module in modules):
        return True
    named = {layer for pattern in patterns if (layer := _named_layer(pattern, modules)) is not None}
    return len(named) >= _FEWEST_NAMED_LAYERS and 2 * len(named) > max(named)


def _named_layer(pattern: str, modules: tuple[str, ...]) -> int | None:
    """Return the one layer in which a pattern such as `model.language_model.layers.3.self_attn*` names a module."""
    match = _ONE_LAYER.search(pattern)
    if match is None or len(pattern) > _LONGEST_PATTERN:
        return None
    names = (module.partition(_SAMPLE_LAYER)[2] for module in modules)
    is_named = any(fnmatchcase(name, match[2]) or fnmatchcase(name, f"{match[2]}.*") for name in names)
    return int(match[1]) if is_named else None


def _matches(pattern: str, module: str) -> bool:
    if len(pattern) > _LONGEST_PATTERN:
        return False
    if pattern.startswith("re:"):
        if _REPEATED_GROUP.search(pattern):
            return False
        try:
            return re.match(pattern[3:], module) is not None
        except re.error:
            return False
    if "*" in pattern:
        return fnmatchcase(module, pattern) or fnmatchcase(module, f"{pattern}.*")
    # A bare word such as `mlp.gate` names modules of every layer; a numbered layer names itself alone.
    return "." not in pattern and pattern in module.split(".")
