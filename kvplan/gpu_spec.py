"""A GPU's memory from a profile, from a size that was typed, or from the card itself."""

import re
from dataclasses import dataclass
from typing import Annotated

import msgspec

from kvengine.errors import ConfigError
from kvengine.units import MIB
from kvplan.estimate import Amount, Evidence, estimated, sure
from kvplan.loading import FileSchema, did_you_mean, load_yaml
from kvplan.profiles import Profile, find_profiles, try_find_profile

UNKNOWN_RESERVE = estimated(250 * MIB, 500 * MIB, 900 * MIB)
"""What a driver keeps where it is not known: 265 (T4) to 870 MiB (A100) on the 15 cards for which both totals are."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuSpec:
    """One card."""

    name: str
    total_bytes: int
    """Memory of the card, as its tools print it."""
    driver_reserve: Amount
    """Part of it that a process never sees; engines take their fraction of the rest."""
    compute_capability: float | None = None
    """CUDA's; None where it is not known, or the card is not one of NVIDIA's."""
    is_unified: bool = False
    """Whether it shares the host's memory; its driver then tells no total."""
    used_bytes: int = 0
    """Held by other processes, where the card itself was asked."""
    count_there: int | None = None
    """GPUs of this machine that an engine would see, where the machine was asked."""
    notes: tuple[str, ...] = ()
    """What else is to be said of them."""

    @property
    def process_bytes(self) -> int:
        """The total that a process sees."""
        return self.total_bytes - self.driver_reserve.size_bytes


class Figure(FileSchema, frozen=True, kw_only=True):
    """A number and where it comes from."""

    value: Annotated[float, msgspec.Meta(gt=0)]
    source: Annotated[str, msgspec.Meta(min_length=1)]


class GpuProfile(FileSchema, frozen=True, kw_only=True):
    """`profiles/gpus/*.yaml`."""

    name: str
    vendor: str
    aliases: tuple[str, ...] = ()
    memory_mib: Figure | None = None
    """Total as nvidia-smi prints it."""
    process_memory_mib: Figure | None = None
    """Total that a CUDA or HIP process sees."""
    bandwidth_gb_per_s: Figure | None = None
    """Nominal, in 1e9 bytes per second."""
    bf16_tflops: Figure | None = None
    """Nominal, dense."""
    fp8_tflops: Figure | None = None
    compute_capability: str = ""
    """CUDA compute capability, or the gfx name of an AMD card."""
    unified_memory: bool = False
    """Whether it shares the host's memory."""


def load_gpu(name: str) -> GpuSpec:
    """Read a GPU by the name of its profile or by one of its aliases.

    Raises:
        ConfigError: There is none, or the profile is invalid; the message names the nearest.
    """
    folded = name.strip().lower()
    profile = try_find_profile("gpus", folded)
    if profile is not None:
        return load_gpu_profile(profile)
    profiles = find_profiles("gpus")
    by_alias = {alias: found for found in profiles.values() for alias in _read(found).aliases}
    if folded in by_alias:
        return load_gpu_profile(by_alias[folded])
    raise ConfigError(
        f"no GPU profile named {name!r}{did_you_mean(folded, [*profiles, *by_alias])}",
        where="--gpu",
        hint="kvplan profiles list gpus; or give its size: --gpu-memory 80GiB",
    )


def load_gpu_profile(profile: Profile) -> GpuSpec:
    """Read a GPU from its profile.

    Raises:
        ConfigError: The profile is invalid.
    """
    data = _read(profile)
    if data.memory_mib is None and data.process_memory_mib is None:
        raise ConfigError("one of memory_mib and process_memory_mib must be there", where=str(profile.path))
    if data.memory_mib is None or data.process_memory_mib is None:
        total = data.memory_mib or data.process_memory_mib
        assert total is not None, "one of them is there"
        reserve = UNKNOWN_RESERVE if data.memory_mib else sure(0, Evidence.TABLE)
    else:
        total = data.memory_mib
        reserve_mib = data.memory_mib.value - data.process_memory_mib.value
        if reserve_mib < 0:
            raise ConfigError("process_memory_mib is more than memory_mib", where=str(profile.path))
        reserve = sure(int(reserve_mib * MIB), Evidence.TABLE)
    return GpuSpec(
        name=data.name,
        total_bytes=int(total.value * MIB),
        driver_reserve=reserve,
        compute_capability=_cuda_capability(data.compute_capability),
        is_unified=data.unified_memory,
    )


def gpu_of_size(size_bytes: int) -> GpuSpec:
    """Return a card of a size that was typed, taken as the total that a process sees."""
    return GpuSpec(name="", total_bytes=size_bytes, driver_reserve=sure(0, Evidence.GIVEN))


def _cuda_capability(text: str) -> float | None:
    return float(text) if re.fullmatch(r"\d+\.\d+", text) else None


def _read(profile: Profile) -> GpuProfile:
    return load_yaml(profile.path, GpuProfile, name=str(profile.path))
