"""What follows the mixing of tokens in a layer: an MLP, or experts."""

from dataclasses import dataclass

from kvplan.config_reader import ConfigReader
from kvplan.models.shape import Built, LayerKind, ModelShape
from kvplan.models.traits import NO, Flag
from kvplan.parameters import Piece, Role

DENSE, SPARSE = LayerKind("dense"), LayerKind("sparse")


@dataclass(frozen=True, slots=True, kw_only=True)
class Mlp:
    """Builds an MLP. The defaults are Llama's: gated, without bias."""

    width: tuple[str, ...] = ("intermediate_size",)
    """Keys of the width; the first that is there counts."""
    width_per_hidden: int = 0
    """Width over hidden size where no key is there; 0 where one must be."""
    halves: int = 1
    """What to divide the key's width by: 2 where it counts both halves of a gated MLP."""
    multiple: int = 1
    """Width is rounded up to a multiple of this."""
    matrices: int = 3
    """3 for gated MLPs, 2 for plain ones."""
    bias: Flag = NO

    def __call__(self, shape: ModelShape, kind: LayerKind) -> Built:
        """Build one layer's MLP; a layer kind of a size is of that width."""
        width = kind.size or self._width(shape.reader, shape.geometry.hidden_size)
        return Built(pieces=mlp_pieces(shape, width, matrices=self.matrices, bias=self.bias.read(shape.reader)))

    def _width(self, reader: ConfigReader, hidden: int) -> int:
        key = next((key for key in self.width if reader.has(key) or reader.has_default(key)), None)
        if key is None and self.width_per_hidden:
            return self.width_per_hidden * hidden
        width = reader.count(key or self.width[0]) // self.halves
        return -(-width // self.multiple) * self.multiple


def mlp_pieces(
    shape: ModelShape, width: int, *, matrices: int = 3, bias: bool = False, role: Role = Role.MLP
) -> tuple[Piece, ...]:
    """Return the pieces of an MLP of a width."""
    hidden = shape.geometry.hidden_size
    pieces: tuple[Piece, ...] = (Piece(matrices * hidden * width, role, width),)
    return (*pieces, Piece((matrices - 1) * width, shards=width), Piece(hidden)) if bias else pieces


@dataclass(frozen=True, slots=True, kw_only=True)
class Experts:
    """Builds a mixture of experts: a router, experts, and what every token goes through beside them."""

    count: tuple[str, ...] = ("num_experts",)
    """Keys of the number of experts; the first that is there counts. A list has an entry for each layer."""
    width: tuple[str, ...] = ("moe_intermediate_size",)
    matrices: int = 3
    bias: bool = False
    """Whether router and experts have biases."""
    shared_width: tuple[str, ...] = ()
    """Keys of the width of what every token goes through."""
    shared_count: tuple[str, ...] = ("n_shared_experts",)
    """Keys of how many shared experts there are, where no width is stated."""
    shared_width_default: tuple[str, ...] = ()
    """Keys of the width of one shared expert, where it is not that of the others."""
    shared_gate: bool = False
    router_bias: bool = False

    def __call__(self, shape: ModelShape, kind: LayerKind) -> Built:  # noqa: ARG002 - all layers are alike
        """Build one layer's experts."""
        reader, hidden = shape.reader, shape.geometry.hidden_size
        count, width = reader.first_count(self.count), reader.first_count(self.width)
        params = count * self.matrices * hidden * width
        pieces = [Piece(params, Role.EXPERT, width, experts=count), Piece(hidden * count)]
        if self.bias:
            biases = count * ((self.matrices - 1) * width + hidden)
            pieces += [Piece(biases, experts=count), Piece(count)]
        if self.router_bias:
            pieces.append(Piece(count))
        shared = self._shared_width(reader, width)
        if shared:
            pieces += mlp_pieces(shape, shared, matrices=self.matrices, role=Role.SHARED_EXPERT)
            if self.shared_gate:
                pieces.append(Piece(hidden))
        return Built(pieces=tuple(pieces))

    def _shared_width(self, reader: ConfigReader, width: int) -> int:
        for key in self.shared_width:
            if reader.has(key):
                return reader.optional_first_count((key,), minimum=0) or 0
            if reader.has_default(key):
                return reader.count(key)
        count = reader.optional_first_count(self.shared_count, minimum=0)
        if count is None and any(reader.has_default(key) for key in self.shared_count):
            count = reader.first_count(self.shared_count)
        return (count or 0) * (reader.optional_first_count(self.shared_width_default) or width)
