"""SGLang's way with KV memory: slots token by token or page by page, shared through a radix tree.

    waiting ──> queue_order ──> admission ──> RadixCache ──> retraction
                                              ├─ SlotPool      which slots are free, and in which order they go
                                              ├─ RadixTree     which prefixes are kept, and who goes first
                                              └─ RequestRows   which slot holds which token of a request

A **slot** is the place of one token's K/V; page `g` of size `p` holds slots `g * p .. g * p + p - 1`, and page 0 is
padding that is never handed out. A page is what other parts of the engine call a block: with page size 1 every slot
is a block of its own. There is no reference count in the pool: sharing is the tree's business.

Source: the classes of SGLang 0.5.23 (`TokenToKVPoolAllocator`, `PagedTokenToKVPoolAllocator`, `RadixCache`,
`ReqToTokenPool`, `SchedulePolicy`, `PrefillAdder`, `ScheduleBatch.retract_decode`), followed to the slot number.
"""
