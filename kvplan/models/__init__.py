"""What model configurations mean: what each layer keeps in memory, and what its weights are made of.

`families` and its siblings hold one entry per model type. An entry names spellings and class defaults, says of which
kind each layer is (`layer_kinds`), and builds every kind from mixers (`attention`, `latent`, `states`) and feeds
(`feeds`). Building a layer gives what it keeps (`layer_parts`) and the pieces of its weights (`kvplan.parameters`).
"""
