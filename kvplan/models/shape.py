"""What builders of layers work from: the sizes of a model and the configuration that may say more."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

from kvplan.config_reader import ConfigReader
from kvplan.models.layer_parts import LayerParts
from kvplan.parameters import Geometry, Pieces


class LayerKind(NamedTuple):
    """A kind of layer; layers of one kind are built alike."""

    name: str
    size: int = 0
    """What tells apart layers of one name that differ in one number: KV heads, or the width of an MLP."""


FULL, SLIDING, CHUNKED = LayerKind("full"), LayerKind("sliding"), LayerKind("chunked")
NOTHING = LayerKind("nothing")
"""A layer without the part in question: no attention, or no MLP."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelShape:
    """One language model on its way from a configuration to layers."""

    reader: ConfigReader
    geometry: Geometry


class Built(NamedTuple):
    """What building one layer, or a part of it, gives."""

    parts: LayerParts = ()
    pieces: Pieces = ()

    def __add__(self, other: object) -> "Built":
        """Put two parts of a layer together."""
        assert isinstance(other, Built), "layers are made of built parts"
        return Built(self.parts + other.parts, self.pieces + other.pieces)


Mixer = Callable[[ModelShape, LayerKind], Built]
"""Builds what mixes tokens in a layer of a kind, and what belongs to it."""

KindRule = Callable[[ConfigReader, int], list[LayerKind]]
"""Says of which kind each of so many layers is."""


def nothing(shape: ModelShape, kind: LayerKind) -> Built:  # noqa: ARG001 - a mixer like the others
    """Build nothing."""
    return Built()


def together(*mixers: Mixer) -> Mixer:
    """Return a mixer of layers that have several parts at once."""

    def build(shape: ModelShape, kind: LayerKind) -> Built:
        built = Built()
        for mixer in mixers:
            built += mixer(shape, kind)
        return built

    return build
