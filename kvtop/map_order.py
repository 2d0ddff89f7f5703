"""The orders in which the map can show the blocks, and what its colours can stand for."""

from dataclasses import dataclass
from enum import StrEnum

import numpy as np
from numpy.typing import NDArray

from kvengine.telemetry.schema import REF_COUNT_SHIFT
from kvengine.telemetry.state import BlockState
from kvtop.map_cells import Tints
from kvtop.picture import Picture

Ids = NDArray[np.int64]


class MapOrder(StrEnum):
    """How blocks follow one another on the map."""

    ID = "id"
    REQUEST = "request"
    PREFIX = "prefix"
    AGE = "age"


class MapColour(StrEnum):
    """What a colour stands for."""

    STATE = "state"
    OWNER = "owner"
    AGE = "age"
    SHARERS = "sharers"


@dataclass(frozen=True, slots=True)
class BlockOrder:
    """Which block stands where; places count from 0."""

    blocks: Ids
    """The block at each place."""
    places: Ids
    """The place of each block."""


NUM_OWNER_TINTS = 12
SEVERAL_OWNERS = NUM_OWNER_TINTS + 1
"""Tint of a shared block, and of a cell whose blocks have different owners."""
AGE_LIMITS = (1, 10, 100, 1000)
"""A block that was touched within so many steps gets tint 6, 5, 4, 3; within more 2, and before the stream began 1."""
SHARER_LIMITS = (1, 2, 4, 8, 16)
"""A block with at most so many owners gets tint 1, 2, 3, 4, 5; with more 6."""
NUM_RAMP_TINTS = 6


def order_blocks(order: MapOrder, picture: Picture) -> BlockOrder | None:
    """Where each block stands; None for the order by id."""
    match order:
        case MapOrder.ID:
            return None
        case MapOrder.REQUEST:
            first = _by_request(picture)
        case MapOrder.PREFIX:
            first = picture.tree.order
        case MapOrder.AGE:
            touched = picture.pool.columns.touched.astype(np.int64)
            touched[0] = -1
            return _order_of(np.argsort(-touched, kind="stable"))
    return _order_of(np.concatenate((first, _rest(picture, first))))


def tints_of_blocks(colour: MapColour, picture: Picture) -> Tints | None:
    """The tint of each block, by id; None where the state alone decides."""
    match colour:
        case MapColour.STATE:
            return None
        case MapColour.OWNER:
            return _owner_tints(picture)
        case MapColour.AGE:
            return _age_tints(picture)
        case MapColour.SHARERS:
            counts = picture.pool.columns.codes >> REF_COUNT_SHIFT
            return np.where(counts > 0, np.searchsorted(SHARER_LIMITS, counts) + 1, 0).astype(np.uint8)


def owner_tint(handle: int) -> int:
    """The tint of a request's own blocks; twelve requests further it comes again."""
    return handle % NUM_OWNER_TINTS + 1


def _order_of(blocks: Ids) -> BlockOrder:
    places = np.empty(len(blocks), dtype=np.int64)
    places[blocks] = np.arange(len(blocks))
    return BlockOrder(blocks, places)


def _by_request(picture: Picture) -> Ids:
    """Each held block once, at its first owner."""
    blocks, first_seen = np.unique(picture.holdings.blocks, return_index=True)
    in_order = blocks[np.argsort(first_seen)]
    held: Ids = in_order[in_order != 0]
    return held


def _rest(picture: Picture, first: Ids) -> Ids:
    """The other blocks: what is cached, what is free, then the null block."""
    states = picture.pool.states.copy()
    states[first] = 255
    held = np.flatnonzero((states == BlockState.USED) | (states == BlockState.SHARED))
    groups = [np.flatnonzero(states == state) for state in (BlockState.CACHED_FREE, BlockState.FREE, BlockState.NULL)]
    return np.concatenate((held, *groups))


def _owner_tints(picture: Picture) -> Tints:
    tints = np.zeros(len(picture.pool), dtype=np.uint8)
    by_request = np.array([owner_tint(request.handle) for request in picture.requests], dtype=np.uint8)
    if len(by_request):
        tints[picture.holdings.blocks] = by_request[picture.holdings.owners]
    tints[picture.pool.states == BlockState.SHARED] = SEVERAL_OWNERS
    tints[0] = 0
    return tints


def _age_tints(picture: Picture) -> Tints:
    touched = picture.pool.columns.touched
    age = picture.step - touched.astype(np.int64)
    tints = (NUM_RAMP_TINTS - np.searchsorted(AGE_LIMITS, np.maximum(age, 1))).astype(np.uint8)
    tints[touched == 0] = 1
    tints[(picture.pool.states == BlockState.FREE) | (picture.pool.states == BlockState.NULL)] = 0
    return tints
