from kvengine.telemetry.cached_blocks import BlockKey, CachedBlocks
from kvengine.telemetry.kv_events import BlockHash, decode_batch
from tests.foreign_servers import CLEARED, a_payload, removed, stored


def folded(*events: object, into: CachedBlocks | None = None, rank: int | None = 0) -> CachedBlocks:
    """A state after one batch of events, its books checked."""
    blocks = into or CachedBlocks()
    batch = decode_batch(a_payload(*events, rank=rank))
    assert batch is not None
    blocks.apply(batch)
    blocks.check_invariants()
    return blocks


def key(block_hash: BlockHash, *, rank: int | None = 0, medium: str = "GPU", group: int | None = None) -> BlockKey:
    return BlockKey(rank, medium, group, block_hash)


def hashes(keys: object) -> list[BlockHash]:
    return [found.block_hash for found in keys]  # type: ignore[attr-defined]


def test_the_blocks_of_one_event_form_a_chain() -> None:
    blocks = folded(stored([1, 2, 3]))
    assert [blocks.parent(key(h)) for h in (1, 2, 3)] == [None, key(1), key(2)]
    assert hashes(blocks.below(key(1))) == [1, 2, 3]


def test_a_shared_prefix_has_two_children() -> None:
    blocks = folded(stored([1, 2]), stored([3], 2), stored([4], 2))
    assert hashes(blocks.children(key(2))) == [3, 4]
    assert hashes(blocks.tops()) == [1]


def test_children_outlive_an_evicted_parent_as_orphans() -> None:
    blocks = folded(stored([1, 2, 3]), removed([2]))
    assert (blocks.num_blocks, blocks.num_orphans, hashes(blocks.tops())) == (2, 1, [1, 3])
    assert hashes(blocks.children(key(2))) == [3]


def test_a_parent_that_comes_back_takes_its_children_in() -> None:
    blocks = folded(stored([1, 2, 3]), removed([2]), stored([2], 1))
    assert (blocks.num_orphans, hashes(blocks.below(key(1)))) == (0, [1, 2, 3])


def test_equal_blocks_are_counted_so_that_one_eviction_leaves_the_other() -> None:
    blocks = folded(stored([1]), stored([1]), removed([1]))
    assert (blocks.num_blocks, blocks.num_distinct, blocks.totals.repeats) == (1, 1, 1)
    assert key(1) in blocks
    assert key(1) not in folded(removed([1]), into=blocks)


def test_one_hash_below_two_parents_hangs_below_the_older_until_that_copy_goes() -> None:
    blocks = folded(stored([1]), stored([2]), stored([9], 1), stored([9], 2))
    assert blocks.parent(key(9)) == key(1)
    folded(removed([9]), into=blocks)
    assert blocks.parent(key(9)) == key(2)


def test_ranks_media_and_groups_are_kept_apart() -> None:
    blocks = folded(stored([1]), stored([1], medium="CPU"), stored([1], group_idx=1))
    folded(stored([1]), into=blocks, rank=1)
    assert (blocks.num_blocks, blocks.num_distinct) == (4, 4)
    folded(removed([1], medium="CPU"), into=blocks)
    assert key(1, medium="CPU") not in blocks
    assert key(1) in blocks


def test_clearing_is_of_one_rank() -> None:
    blocks = folded(stored([1, 2]))
    folded(stored([3, 4]), into=blocks, rank=1)
    folded(CLEARED, into=blocks)
    assert hashes(blocks) == [3, 4]
    assert blocks.totals.cleared_blocks == 2


def test_an_event_after_the_clearing_in_its_batch_counts() -> None:
    assert hashes(folded(stored([1]), CLEARED, stored([2]))) == [2]


def test_what_is_not_known_is_counted_and_changes_nothing() -> None:
    blocks = folded(removed([5]), stored([6], 7), ["BlockMoved", [1]])
    assert (blocks.totals.unknown_removals, blocks.totals.unknown_parents, blocks.num_blocks) == (1, 1, 1)
    assert blocks.totals.events == {"BlockRemoved": 1, "BlockStored": 1, "BlockMoved": 1}


def test_a_block_keeps_its_tokens_and_what_else_made_its_hash() -> None:
    block = folded(stored([1, 2], extra_keys=[None, ["salt"]], lora_name="l")).get(key(2))
    assert block is not None
    assert (block.token_ids, block.extra_key, block.lora_name, block.stored_unix_s) == (
        [4, 5, 6, 7],
        ["salt"],
        "l",
        1000.0,
    )


def test_a_block_that_is_its_own_parent_does_no_harm() -> None:
    blocks = folded(stored([1], 1))
    assert hashes(blocks.below(key(1))) == [1]
    assert folded(removed([1]), into=blocks).num_blocks == 0


def test_the_most_blocks_ever_are_remembered() -> None:
    assert folded(stored([1, 2, 3]), removed([1, 2]), stored([4])).totals.most_blocks == 3
