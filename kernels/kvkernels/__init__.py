"""Paged-KV kernels and the plain-torch references that define them."""
