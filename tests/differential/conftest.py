"""Torch tests use one thread: with two on a busy machine, threads wait for each other and minutes pass."""

import pytest


@pytest.fixture(autouse=True, scope="session")
def one_torch_thread() -> None:
    import torch

    torch.set_num_threads(1)
