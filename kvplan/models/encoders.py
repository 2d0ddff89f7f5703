"""Model types with cross-attention: encoder-decoders, and decoders that look at pictures.

An encoder's own layers keep nothing between steps. Each decoder layer with cross-attention keeps K and V of the
encoder's positions once per request.

Source: the configuration and model classes of transformers 5.24.
"""

from collections.abc import Callable, Mapping
from dataclasses import replace
from types import MappingProxyType

from kvplan.config_reader import ConfigReader
from kvplan.kv_layout.layers import AttentionKind
from kvplan.models.attention import Attention
from kvplan.models.family import Family, defaults
from kvplan.models.feeds import Mlp, mlp_pieces
from kvplan.models.layer_kinds import all_of, at_layers
from kvplan.models.shape import FULL, Built, LayerKind, ModelShape, together
from kvplan.models.traits import YES
from kvplan.parameters import Piece, Pieces

_TILE_POSITIONS, _TILES = 1_601, 4
"""Positions of one picture tile of Llama 3.2 Vision, and most tiles of a picture."""

_BIASED = Attention(qkv_bias=YES, output_bias=YES)
_PLAIN = Attention()


def _decoder_layer(attention: Attention) -> Callable[[ModelShape, LayerKind], Built]:
    return together(attention, replace(attention, kind=AttentionKind.CROSS))


def _encoder(shape: ModelShape, attention: Attention, *, norms: int, norm_bias: bool, extra: int) -> Pieces:
    """Return the weights of an encoder of BART's kind."""
    reader, hidden = shape.reader, shape.geometry.hidden_size
    layers = min(reader.count("encoder_layers"), 1_000)
    width = reader.count("encoder_ffn_dim")
    norm = Piece(norms * hidden * (2 if norm_bias else 1))
    layer = attention(shape, FULL).pieces + mlp_pieces(shape, width, matrices=2, bias=True) + (norm,)
    return layer * layers + (Piece(extra),)


def _bart_beside(*, rows: int | None, embedding_norms: bool, final_norms: bool) -> Callable[[ModelShape], Pieces]:
    """Return what BART and its kin have beside the decoder's layers, the encoder included.

    Args:
        rows: Rows of each side's position table beyond the longest length; None where positions are computed.
        embedding_norms: Whether each side's embedding has a norm.
        final_norms: Whether each side ends in a norm.
    """

    def beside(shape: ModelShape) -> Pieces:
        hidden = shape.geometry.hidden_size
        positions = 0 if rows is None else 2 * (shape.geometry.max_model_len + rows) * hidden
        norms = 4 * hidden * (int(embedding_norms) + int(final_norms))
        return _encoder(shape, _BIASED, norms=2, norm_bias=True, extra=positions + norms)

    return beside


def _whisper_encoder(shape: ModelShape) -> Pieces:
    """Two convolutions over mel bins, learned positions of both sides, a norm at the end."""
    reader, hidden = shape.reader, shape.geometry.hidden_size
    bins, sources = reader.count("num_mel_bins"), reader.count("max_source_positions")
    convolutions = 3 * hidden * (bins + hidden) + 2 * hidden
    positions = (sources + reader.count("max_target_positions")) * hidden
    extra = convolutions + positions + 2 * hidden
    return _encoder(shape, _WHISPER_ATTENTION, norms=2, norm_bias=True, extra=extra)


def _t5_encoder(shape: ModelShape) -> Pieces:
    """T5 has no positions but a bias per head and distance on each side."""
    reader, hidden, heads = shape.reader, shape.geometry.hidden_size, shape.geometry.num_attention_heads
    layers = min(reader.count("num_layers"), 1_000)
    layer = _PLAIN(shape, FULL).pieces + _t5_mlp(shape, FULL).pieces + (Piece(2 * hidden),)
    buckets = reader.optional_count("relative_attention_num_buckets") or 32
    return layer * layers + (Piece(hidden), Piece(2 * buckets * heads, shards=heads))


def _t5_mlp(shape: ModelShape, kind: LayerKind) -> Built:
    gated = (shape.reader.text("feed_forward_proj") or "relu").startswith("gated")
    return Mlp(width=("d_ff",), matrices=3 if gated else 2)(shape, LayerKind(kind.name))


_WHISPER_ATTENTION = replace(_BIASED, key_bias=False)
_BART = Family(
    layers=("decoder_layers",),
    heads="decoder_attention_heads",
    hidden="d_model",
    defaults={
        "decoder_layers": 12,
        "encoder_layers": 12,
        "decoder_attention_heads": 16,
        "d_model": 1024,
        "decoder_ffn_dim": 4096,
        "encoder_ffn_dim": 4096,
        "vocab_size": 50265,
        "max_position_embeddings": 1024,
    },
    kinds=all_of("decoder"),
    mixers={"decoder": _decoder_layer(_BIASED)},
    feed=Mlp(width=("decoder_ffn_dim",), matrices=2, bias=YES),
    layer_norms=3,
    final_norms=0,
    norm_bias=True,
    tied=True,
    beside=_bart_beside(rows=2, embedding_norms=True, final_norms=False),
    encoder_tokens=lambda reader: reader.count("max_position_embeddings"),
    ignored=("is_encoder_decoder",),
)
_T5_LENGTH = {"n_positions": 512}
_T5 = Family(
    layers=("num_decoder_layers", "num_layers"),
    heads="num_heads",
    hidden="d_model",
    head_dim=("d_kv",),
    defaults={
        "num_layers": 6,
        "num_heads": 8,
        "d_model": 512,
        "d_kv": 64,
        "d_ff": 2048,
        "vocab_size": 32128,
        "n_positions": 512,
    },
    kinds=all_of("decoder"),
    mixers={"decoder": _decoder_layer(_PLAIN)},
    feed=lambda shape, kind: _t5_mlp(shape, kind),
    layer_norms=3,
    tied=True,
    beside=_t5_encoder,
    encoder_tokens=lambda reader: reader.count("n_positions"),
    ignored=("is_encoder_decoder",),
)


def _picture_positions(reader: ConfigReader) -> int:  # noqa: ARG001 - a rule like the others
    return _TILE_POSITIONS * _TILES


FAMILIES: Mapping[str, Family] = MappingProxyType(
    {
        "bart": _BART,
        "blenderbot": replace(_BART, defaults={}, beside=_bart_beside(rows=0, embedding_norms=False, final_norms=True)),
        "m2m_100": replace(_BART, defaults={}, beside=_bart_beside(rows=None, embedding_norms=False, final_norms=True)),
        "marian": replace(_BART, defaults={}, beside=_bart_beside(rows=0, embedding_norms=False, final_norms=False)),
        "mbart": replace(_BART, beside=_bart_beside(rows=2, embedding_norms=True, final_norms=True)),
        "mllama_text_model": Family(
            defaults=defaults(40, 32, 4096, 14336, 128256, 131072, num_key_value_heads=8),
            kinds=at_layers("cross_attention_layers", LayerKind("cross"), FULL, default=(3, 8, 13, 18, 23, 28, 33, 38)),
            mixers={"cross": Attention(kind=AttentionKind.CROSS)},
            encoder_tokens=_picture_positions,
            exact=False,
            towers=True,
        ),
        "mt5": replace(_T5, defaults=_T5_LENGTH),
        "pegasus": replace(_BART, beside=_bart_beside(rows=0, embedding_norms=False, final_norms=True)),
        "t5": _T5,
        "umt5": replace(_T5, defaults=_T5_LENGTH, exact=False),
        "whisper": replace(
            _BART,
            defaults={
                "decoder_layers": 4,
                "encoder_layers": 4,
                "decoder_attention_heads": 6,
                "d_model": 384,
                "decoder_ffn_dim": 1536,
                "encoder_ffn_dim": 1536,
                "vocab_size": 51865,
                "num_mel_bins": 80,
                "max_source_positions": 1500,
                "max_target_positions": 448,
            },
            mixers={"decoder": _decoder_layer(_WHISPER_ATTENTION)},
            final_norms=1,
            beside=_whisper_encoder,
            encoder_tokens=lambda reader: reader.count("max_source_positions"),
        ),
    }
)
"""By `model_type`."""
