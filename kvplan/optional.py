"""Packages that only some commands need, loaded when they do."""

from importlib import import_module
from typing import Any

from kvengine.errors import DeviceError


def need(module: str, *, extra: str, purpose: str) -> Any:
    """Import a package of an extra.

    Args:
        module: What is imported.
        extra: The extra of `pagedkv` that installs it.
        purpose: What needs it, as the start of a sentence.

    Raises:
        DeviceError: It is not installed; the hint says how to.
    """
    try:
        return import_module(module)
    except ModuleNotFoundError as error:
        message = f"{purpose} needs {error.name}, which is not installed"
        raise DeviceError(message, hint=f"pip install 'pagedkv[{extra}]'") from None
