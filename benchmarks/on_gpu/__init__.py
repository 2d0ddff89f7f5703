"""The parts of `python -m benchmarks.gpu`; each takes a device and sizes, so that tests can run it small on a CPU."""
