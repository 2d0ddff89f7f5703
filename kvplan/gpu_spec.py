"""A GPU's memory from a profile, from a size that was typed, or from the card itself."""

import re
from contextlib import suppress
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
    vendor: str = ""
    """Empty where only a size is known."""
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
    """A number and where it comes from; beyond 1e9 no card has MiB, GB/s or TFLOPS."""

    value: Annotated[float, msgspec.Meta(gt=0, le=10**9)]
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
    """Read a GPU by the name of its profile, by one of its aliases, or as nvidia-smi calls it.

    Raises:
        ConfigError: There is none, or the profile is invalid; the message names the nearest. A profile of another card
            that is invalid counts only where no valid one has the name.
    """
    folded = name.strip().lower()
    profile = try_find_profile("gpus", folded)
    if profile is not None:
        return load_gpu_profile(profile)
    by_alias: dict[str, Profile] = {}
    problem: ConfigError | None = None
    profiles = find_profiles("gpus")
    for found in profiles.values():
        try:
            data = _read(found)
        except ConfigError as error:
            problem = problem or error
            continue
        by_alias |= dict.fromkeys((*data.aliases, _device_name(data.name)), found)
    found_profile = by_alias.get(folded) or by_alias.get(_device_name(name))
    if found_profile is not None:
        return load_gpu_profile(found_profile)
    raise problem or ConfigError(
        f"no GPU profile named {name[:60]!r}{did_you_mean(folded, [*profiles, *by_alias])}",
        where="--gpu",
        hint="kvplan profiles list gpus; or give its size: --gpu-memory 80GiB",
    )


def known_gpus() -> dict[str, GpuSpec]:
    """Return the cards of all valid profiles by name; `kvplan profiles check` says what is wrong with the others."""
    cards = {}
    for name, profile in find_profiles("gpus").items():
        with suppress(ConfigError):
            cards[name] = load_gpu_profile(profile)
    return cards


def _device_name(name: str) -> str:
    """Return the words of a driver's name: `NVIDIA A100-SXM4-80GB`, and a profile's `NVIDIA H100 80GB HBM3 (SXM)`."""
    return " ".join(re.findall(r"[a-z0-9]+", re.split(r" \(|, ", name.lower())[0]))


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
        vendor=data.vendor,
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
