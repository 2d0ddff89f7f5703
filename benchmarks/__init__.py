"""Benchmarks: each prints device, versions, medians and a baseline of the same run."""
