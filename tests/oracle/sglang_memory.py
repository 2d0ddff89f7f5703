"""Drives pool, tree and requests through the operations of a memory case and compares every record."""

import hashlib
import json
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from kvengine.radix.cache import RadixCache
from kvengine.radix.eviction import EvictionPolicy
from kvengine.radix.free_list import Ids
from kvengine.radix.node import RadixNode
from kvengine.radix.retraction import retract_one
from kvengine.radix.slot_pool import Growth
from kvengine.radix.token_key import Namespace, pack_tokens, unpack_tokens
from kvengine.request import Request, RequestId, SamplingParams
from tests.oracle.outcome import Mismatch, Outcome
from tests.oracle.sglang_case import MemoryCase, Operation, Scenario, tokens_of

DEFAULT_MAX_NEW = 128

# These requests may end early, as far as the scheduler knows: their output is estimated, not certain.
_STOP_TOKEN = 2**31 - 1

Record = dict[str, Any]


def compare(case: MemoryCase) -> Outcome:
    """Run one case and list all that differs."""
    scenario = case.scenario
    replay = Replay(scenario.page_size, scenario.pool_tokens, scenario.eviction_policy, need_sort=scenario.need_sort)
    records = [replay.run(operation) for operation in scenario.ops]
    return Outcome(case=scenario.name, mismatches=tuple(_differences(case, records, replay)))


class Replay:
    """The state that operations act on: a cache, and the registers, nodes and locks that they name."""

    def __init__(self, page_size: int, pool_tokens: int, policy: str = "lru", *, need_sort: bool = False) -> None:
        self.cache = RadixCache(
            num_tokens=pool_tokens,
            page_size=page_size,
            max_requests=256,
            max_num_tokens=pool_tokens,
            policy=EvictionPolicy(policy),
            need_sort=need_sort,
            on_evict=self._note_evicted,
        )
        self.requests: dict[RequestId, Request] = {}
        self.evicted_tokens = 0
        self._extra_keys: dict[RequestId, str | None] = {}
        self._registers: dict[str, Ids] = {}
        self._nodes: dict[str, RadixNode] = {}
        self._locks: dict[str, RadixNode] = {}
        self._evicted: list[list[Any]] = []

    def run(self, operation: Operation) -> Record:
        """Do one operation; returns its record."""
        run: Callable[[Operation], Record | None] = getattr(self, f"_{operation['op']}")
        self._evicted = []
        fields = run(operation) or {}
        record = {"op": operation["op"], **fields, **self.counters()}
        if self._evicted:
            record["evicted"] = self._evicted
        if not self._registers:
            # Registers hold slots that the cache does not know of; without them its books must balance.
            self.cache.check_invariants()
        return record

    def counters(self) -> Record:
        """What every record ends with."""
        pool, tree = self.cache.pool, self.cache.tree
        return {
            "available": pool.num_free,
            "evictable": tree.num_evictable,
            "protected": tree.num_protected,
            "tree_tokens": tree.num_tokens,
            "nodes": tree.num_nodes,
        }

    def free_list(self) -> list[list[int]]:
        """Free pages, and those that wait aside."""
        pool = self.cache.pool
        return [pool.free_pages().tolist(), pool.waiting_pages().tolist()]

    def tree_list(self) -> list[list[Any]]:
        """Every node as `[start, tokens, slots, locks]`, depth first, children by extra key and tokens."""
        return [
            [node.start, unpack_tokens(node.key), node.slots.tolist(), node.lock_count]
            for node in _depth_first(self.cache.tree.root)
        ]

    def _note_evicted(self, nodes: Sequence[RadixNode]) -> None:
        self.evicted_tokens += sum(node.num_tokens for node in nodes)
        self._evicted += [[node.start, unpack_tokens(node.key), node.slots.tolist()] for node in nodes]

    # Slots by register.

    def _register(self, name: str) -> Ids:
        return self._registers.get(name, np.empty(0, np.int32))

    def _slice(self, operation: Operation) -> Ids:
        return self._register(operation["reg"])[operation.get("from", 0) : operation.get("to")]

    def _alloc(self, operation: Operation) -> Record:
        slots = self.cache.pool.try_allocate(operation["n"])
        self._registers[operation["as"]] = np.empty(0, np.int32) if slots is None else slots
        return {"slots": None if slots is None else slots.tolist()}

    def _extend(self, operation: Operation) -> Record:
        names = [item["reg"] for item in operation["items"]]
        growths = [
            Growth(len(slots), int(slots[-1]) if len(slots) else -1, item["add"])
            for item in operation["items"]
            for slots in [self._register(item["reg"])]
        ]
        if operation.get("evict"):
            self.cache.make_room(self.cache.pool.demand(sum(item.num_new for item in growths), len(growths)))
        shares = self.cache.pool.try_extend(growths)
        if shares is None:
            return {"slots": None}
        self._grow(names, shares)
        return {"slots": [share.tolist() for share in shares]}

    def _decode(self, operation: Operation) -> Record:
        names = operation["regs"]
        registers = [self._register(name) for name in names]
        if operation.get("evict"):
            self.cache.make_room(len(names) * self.cache.page_size)
        slots = self.cache.pool.try_extend_by_one(
            np.array([len(slots) for slots in registers], np.int32),
            np.array([slots[-1] if len(slots) else -1 for slots in registers], np.int32),
        )
        if slots is None:
            return {"slots": None}
        self._grow(names, slots[:, None])
        return {"slots": slots.tolist()}

    def _grow(self, names: Sequence[str], shares: Sequence[Ids] | Ids) -> None:
        for name, share in zip(names, shares, strict=True):
            self._registers[name] = np.concatenate((self._register(name), share))

    def _free(self, operation: Operation) -> None:
        self.cache.pool.free(self._slice(operation))

    def _free_segment(self, operation: Operation) -> None:
        self.cache.pool.free_stretch(self._slice(operation))

    def _free_group_begin(self, operation: Operation) -> None:
        self.cache.pool.hold_frees()

    def _free_group_end(self, operation: Operation) -> None:
        self.cache.pool.release_frees()

    def _sort_free(self, operation: Operation) -> None:
        self.cache.pool.merge_waiting()

    def _total(self, operation: Operation) -> Record:
        return {"free_list": self.free_list()}

    # The tree.

    def _match(self, operation: Operation) -> Record:
        tree = self.cache.tree
        match = tree.match(pack_tokens(tokens_of(operation["tokens"])), _namespace(operation.get("extra_key")))
        slots = tree.slots_of(match.node)
        if "as" in operation:
            self._nodes[operation["as"]] = match.node
            self._registers[operation["as"]] = slots
        return {"len": match.num_tokens, "slots": slots.tolist()}

    def _insert(self, operation: Operation) -> Record:
        slots = self._register(operation["reg"])
        match = self.cache.tree.insert(
            pack_tokens(tokens_of(operation["tokens"])),
            slots,
            _namespace(operation.get("extra_key")),
            priority=operation.get("priority") or 0,
            num_counted=operation.get("inserted_len", 0),
        )
        self.cache.pool.free_stretch(slots[operation.get("owned_from", 0) : match.num_tokens])
        return {"prefix_len": match.num_tokens}

    def _lock(self, operation: Operation) -> None:
        node = self._nodes[operation["node"]]
        self._locks[operation["as"]] = node
        self.cache.tree.lock(node)

    def _unlock(self, operation: Operation) -> None:
        self.cache.tree.unlock(self._locks.pop(operation["lock"]))

    def _evict(self, operation: Operation) -> Record:
        return {"freed": self.cache.evict(operation["n"])}

    def _evict_for(self, operation: Operation) -> None:
        self.cache.make_room(operation["n"])

    # Requests.

    def build(self, operation: Operation) -> Request:
        """A request as `req_start` and the waiting lists of decisions describe it."""
        request = Request(
            RequestId(operation["id"]),
            tokens_of(operation["prompt"]),
            SamplingParams(
                max_tokens=operation.get("max_new", DEFAULT_MAX_NEW), stop_token_ids=frozenset({_STOP_TOKEN})
            ),
            priority=operation.get("priority") or 0,
        )
        self._extra_keys[request.request_id] = operation.get("extra_key")
        return request

    def _req_start(self, operation: Operation) -> Record:
        name = RequestId(operation["id"])
        if name not in self.requests:
            self.requests[name] = self.build(operation)
        request = self.requests[name]
        hit = self.cache.find(request, request.num_tokens - 1, extra_key=self._extra_keys[name])
        self.cache.admit(request, hit)
        return {"len": hit.num_tokens, "slots": self.cache.slots_of(name).tolist()}

    def _req_extend(self, operation: Operation) -> Record:
        names = [RequestId(name) for name in operation["ids"]]
        shares = self.cache.try_extend(list(zip(names, operation["upto"], strict=True)))
        return {"oom": True} if shares is None else {"slots": [share.tolist() for share in shares]}

    def _req_decode(self, operation: Operation) -> Record:
        names = [RequestId(name) for name in operation["ids"]]
        slots = self.cache.try_decode(names)
        if slots is None:
            return {"oom": True}
        for name, token in zip(names, operation["out"], strict=True):
            self.requests[name].append_output(token)
        return {"slots": slots.tolist()}

    def _req_checkpoint(self, operation: Operation) -> Record:
        name = RequestId(operation["id"])
        self.cache.checkpoint(name)
        return {"row": self.cache.slots_of(name).tolist(), "cached_len": self.cache.num_shared(name)}

    def _req_finish(self, operation: Operation) -> None:
        name = RequestId(operation["id"])
        self.cache.finish(name)
        del self.requests[name]

    def _req_abort(self, operation: Operation) -> None:
        name = RequestId(operation["id"])
        self.cache.abort(name)
        del self.requests[name]

    def _req_retract(self, operation: Operation) -> None:
        retract_one(self.cache, self.requests[RequestId(operation["id"])], num_remaining=operation["remaining"])


def _namespace(extra_key: str | None) -> Namespace | None:
    return None if extra_key is None else Namespace(extra_key)


def _depth_first(node: RadixNode) -> Iterator[RadixNode]:
    def place(child: RadixNode) -> tuple[str, list[int]]:
        extra_key = None if isinstance(child.edge, bytes) else child.edge[0].extra_key
        return str(extra_key), unpack_tokens(child.key)

    for child in sorted(node.children.values(), key=place):
        yield child
        yield from _depth_first(child)


def _compact(value: object) -> str:
    return json.dumps(value, sort_keys=True, separators=(",", ":"))


def _differences(case: MemoryCase, records: list[Record], replay: Replay) -> Iterator[Mismatch]:
    golden = case.golden
    for index, (expected, got) in enumerate(zip(golden.steps, records, strict=False)):
        for key in expected.keys() | got.keys():
            if expected.get(key) != got.get(key):
                yield Mismatch(f"op {index} ({got['op']}) {key}", expected.get(key), got.get(key))
    digest, chain = "", []
    for index, record in enumerate(records):
        digest = hashlib.sha256((digest + _compact(record)).encode()).hexdigest()
        if (index + 1) % golden.chain_every == 0:
            chain.append(digest[:16])
    for index, (expected_link, link) in enumerate(zip(golden.chain, chain, strict=True)):
        if expected_link != link:
            first = index * golden.chain_every
            yield Mismatch(f"chain of ops {first} .. {first + golden.chain_every - 1}", expected_link, link)
            break
    got_end = _end(case.scenario, replay)
    for key, value in golden.end.items():
        if value != got_end.get(key):
            yield Mismatch(f"end {key}", value, got_end.get(key))
    if golden.digest != digest:
        yield Mismatch("digest", golden.digest, digest)
    if golden.evicted_tokens != replay.evicted_tokens:
        yield Mismatch("evicted_tokens", golden.evicted_tokens, replay.evicted_tokens)


def _end(scenario: Scenario, replay: Replay) -> Record:
    tree: object = replay.tree_list()
    if not isinstance(scenario.detail, str):
        tree = hashlib.sha256(_compact(tree).encode()).hexdigest()
    return {**replay.counters(), "free_list": replay.free_list(), "tree": tree}
