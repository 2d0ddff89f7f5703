"""How vLLM lays a model's KV cache out in blocks: layers, groups, blocks, and the figures it prints.

`layers` says what one layer keeps, `alignment` what hybrids do to block sizes, `groups` which layers share a block
table, `rules` what differs by engine version, and `capacity` turns memory into blocks, tokens and concurrency.
"""
