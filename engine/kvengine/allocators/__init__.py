"""Other ways of handing out KV memory, side by side under the same engine.

    Engine ──> EngineScheduler                          protocol.py
               ├─ Scheduler ──> KVMemory
               │                ├─ KVCacheManager       paged: blocks as tokens come
               │                └─ ReservingManager     one extent for all that a request may ever need
               │                   ├─ SlabPool          contiguous: equal slabs of `max_model_len`
               │                   └─ BuddyPool         buddy: powers of two, split and merged
               └─ RadixScheduler                        token_level: slots or pages in a radix tree (`kvengine.radix`)

`select.make_scheduler` builds any of the four from one `EngineConfig`. `memory_use` says what each makes of its memory
at a moment and over a run.
"""
