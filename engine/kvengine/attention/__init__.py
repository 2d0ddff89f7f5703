"""Attention backends: one protocol, one choice of implementation."""
