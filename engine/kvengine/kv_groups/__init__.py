"""KV-cache groups: layers that share a block table, each kind with its own rules, all in one pool.

`kinds` says what there is, `sizes` how the block sizes of several groups fit together, `group`, `windows`, `states` and
`cross` what each kind takes, gives back and keeps, `lookup` and `agreement` what is found in the prefix cache,
`chunk_ends` where prefill chunks end for states, and `copies` the block copies of a step.
"""
