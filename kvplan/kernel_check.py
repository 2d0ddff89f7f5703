"""What the Triton kernels turn into for each GPU architecture; needs no GPU."""

import importlib.util
from typing import TYPE_CHECKING

from kvengine.errors import DeviceError

if TYPE_CHECKING:
    from kvkernels.compile_table import CompiledVariant


def compile_kernels() -> tuple[str, "list[CompiledVariant]"]:
    """Compile every kernel variant; a minute the first time, a few seconds once Triton has them in its cache.

    Returns:
        The compiler, and the variants with what each uses and what is wrong with it.

    Raises:
        DeviceError: Triton or torch is not installed, or its interpreter is switched on.
    """
    for package in ("torch", "triton"):
        if importlib.util.find_spec(package) is None:
            raise DeviceError(f"kernels cannot be compiled without {package}", hint="pip install 'pagedkv[engine]'")
    from kvkernels.compile_table import compile_table, compiler

    try:
        return compiler(), list(compile_table())
    except RuntimeError as error:
        raise DeviceError(str(error), hint="unset TRITON_INTERPRET") from None
