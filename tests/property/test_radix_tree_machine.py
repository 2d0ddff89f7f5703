"""Any order of matches, inserts, locks and evictions leaves what the plain tree leaves."""

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from kvengine.radix.eviction import EvictionPolicy
from kvengine.radix.node import RadixNode
from kvengine.radix.reference import PlainNode, PlainRadixTree
from kvengine.radix.slot_pool import as_ids
from kvengine.radix.token_key import Namespace, pack_tokens, unpack_tokens
from kvengine.radix.tree import RadixTree

# Few tokens: most sequences share something, and part somewhere.
sequences = st.lists(st.integers(0, 1), max_size=24) | st.lists(st.sampled_from([0, 0, 0, 0, 1]), max_size=40)
namespaces = st.sampled_from([None, None, None, Namespace("adapter"), Namespace(None, "salt")])


class TreeMachine(RuleBasedStateMachine):
    """The tree of bytes beside the tree of lists."""

    @initialize(page_size=st.sampled_from([1, 1, 2, 4]), policy=st.sampled_from(EvictionPolicy))
    def build(self, page_size: int, policy: EvictionPolicy) -> None:
        self.tree = RadixTree(page_size, policy)
        self.plain = PlainRadixTree(page_size, policy)
        self.locked: list[tuple[RadixNode, PlainNode]] = []
        self.next_slot = 1
        self.content: dict[int, tuple[object, ...]] = {}

    @rule(tokens=sequences, namespace=namespaces, lock=st.booleans())
    def match(self, tokens: list[int], namespace: Namespace | None, lock: bool) -> None:
        match = self.tree.match(pack_tokens(tokens), namespace)
        num_tokens, plain_node = self.plain.match(tokens, namespace)
        assert match.num_tokens == num_tokens
        slots = self.tree.slots_of(match.node).tolist()
        assert slots == self.plain.slots_of(plain_node)
        for position, slot in enumerate(slots):
            assert self.content[slot] == (namespace, *tokens[: position + 1]), f"slot {slot} holds something else"
        if lock:
            self.tree.lock(match.node)
            self.plain.lock(plain_node)
            self.locked.append((match.node, plain_node))

    @rule(tokens=sequences, namespace=namespaces, priority=st.integers(0, 2), data=st.data())
    def insert(self, tokens: list[int], namespace: Namespace | None, priority: int, data: st.DataObject) -> None:
        slots = list(range(self.next_slot, self.next_slot + len(tokens)))
        self.next_slot += len(tokens)
        counted = data.draw(st.integers(0, len(tokens)))
        match = self.tree.insert(pack_tokens(tokens), as_ids(slots), namespace, priority=priority, num_counted=counted)
        num_there, plain_node = self.plain.insert(tokens, slots, namespace, priority=priority, num_counted=counted)
        assert match.num_tokens == num_there
        kept = self.tree.slots_of(match.node).tolist()
        assert kept == self.plain.slots_of(plain_node)
        for position in range(num_there, len(kept)):
            self.content[kept[position]] = (namespace, *tokens[: position + 1])

    @precondition(lambda self: self.locked)
    @rule(data=st.data())
    def unlock(self, data: st.DataObject) -> None:
        node, plain_node = self.locked.pop(data.draw(st.integers(0, len(self.locked) - 1)))
        self.tree.unlock(node)
        self.plain.unlock(plain_node)

    @rule(num_tokens=st.integers(0, 30))
    def evict(self, num_tokens: int) -> None:
        evicted = self.tree.evict(num_tokens)
        expected = self.plain.evict(num_tokens)
        assert [(unpack_tokens(node.key), node.slots.tolist()) for node in evicted] == [
            (node.tokens, node.slots) for node in expected
        ]
        assert not any(node.lock_count for node in evicted), "evicted what was locked"

    @invariant()
    def trees_agree(self) -> None:
        if not hasattr(self, "tree"):
            return
        self.tree.check_invariants()
        nodes = self.plain.nodes()
        got = sorted(
            (node.slots.tolist(), unpack_tokens(node.key), node.lock_count, node.num_hits, node.priority)
            for node in self.tree.walk()
        )
        assert got == sorted((node.slots, node.tokens, node.lock_count, node.num_hits, node.priority) for node in nodes)
        assert self.tree.num_nodes == len(nodes)
        assert self.tree.num_protected == sum(len(node.tokens) for node in nodes if node.lock_count)
        assert self.tree.num_evictable == sum(len(node.tokens) for node in nodes if not node.lock_count)


TestTree = TreeMachine.TestCase
TestTree.settings = settings(max_examples=50, stateful_step_count=40, deadline=None)
