"""Decoders in torch: one skeleton, the parts that families differ in, and where their weights come from."""
