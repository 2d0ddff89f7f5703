"""Kernels for the CPU, compiled on first use by the machine's own C++ compiler."""
