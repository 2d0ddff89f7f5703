"""What tests need of the machine they run on."""

from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
SHARED = ROOT.parent / "shared"
"""Files of known answers that lie beside the checkout where they are present."""


def shared_path(name: str) -> Path:
    """A file or folder of `../shared`; the test is skipped where it is not there."""
    path = SHARED / name
    if not path.exists():
        pytest.skip(f"needs ../shared/{name}, which is not on this machine")
    return path
