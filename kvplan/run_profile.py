"""Run profiles: the YAML that says what is run, and one run with all that it refers to."""

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec

from kvengine.allocators.kinds import AllocatorKind
from kvengine.config import MisfitPolicy, PreemptionMode, SchedulingPolicy, VictimPolicy
from kvengine.errors import ConfigError
from kvengine.eviction_policies import EvictionPolicy
from kvengine.presets import PresetName
from kvengine.spec import KVDtype
from kvengine.units import format_bytes
from kvplan.loading import ByteSize, FileSchema
from kvplan.workload import Workload

Setting = str | int | float | bool | None

Target = Literal["engine", "simulated", "openai", "vllm", "sglang"]
"""Where a run happens: our engine with a real model, its scheduler alone without a model, a server over HTTP, or vLLM
or SGLang, started for each point with what the run says."""
SERVED: tuple[Target, ...] = ("openai", "vllm", "sglang")
STARTED: tuple[Target, ...] = ("vllm", "sglang")
Device = Literal["auto", "cpu", "cuda"]
Load = Literal["weights", "random"]
ComputeDtype = Literal["auto", "float32", "float16", "bfloat16"]
QueueOrderName = Literal["fcfs", "lpm", "dfs-weight"]
"""See `kvengine.radix.queue_order`, which is not loaded to read a profile."""
Count = Annotated[int, msgspec.Meta(ge=1)]
Count0 = Annotated[int, msgspec.Meta(ge=0)]
Seed = Annotated[int, msgspec.Meta(ge=0)]
NumBlocks = Annotated[int, msgspec.Meta(ge=2)]
"""One block is the null block, so a pool needs two."""
StepSeconds = Annotated[float, msgspec.Meta(gt=0, le=3600)]
Limit = Annotated[float, msgspec.Meta(gt=0, le=1e6)]
LimitSeconds = Annotated[float, msgspec.Meta(gt=0, le=1e7)]
ModelLen = Annotated[int, msgspec.Meta(ge=2)]
MAX_NUMBER = 2**60
"""An exbibyte, and more than any count: what is larger is a slip of the hand."""


class ServiceLevel(FileSchema, frozen=True, kw_only=True):
    """What a user may expect of one request; a limit that is not given does not count."""

    ttft_s: Limit | None = None
    """From arrival to the first token."""
    tpot_s: Limit | None = None
    """Mean time between tokens."""
    e2e_s: Limit | None = None
    """From arrival to the last token."""

    def __post_init__(self) -> None:
        if self.ttft_s is None and self.tpot_s is None and self.e2e_s is None:
            raise ValueError("expected at least one of ttft_s, tpot_s, e2e_s")


class ServerTarget(FileSchema, frozen=True, kw_only=True):
    """A server that speaks streaming completions, as vLLM and SGLang do: a running one, or one to be started."""

    url: str = ""
    """`http://HOST:PORT`; of a server to be started, 127.0.0.1 and a free port if not given."""
    model: str = ""
    """Name under which it serves the model; the first that it offers if not given."""
    command: str = ""
    """Started for each point and stopped behind it; `{block_size}` and other keys of the run are filled in, and
    `{port}`."""
    weights: str = ""
    """What vLLM or SGLang load: a folder or a Hugging Face id; the run's model, if that is a folder, if not given."""
    program: str = ""
    """How vLLM or SGLang are called, if not by their usual command: `python -m vllm.entrypoints.openai.api_server`."""
    arguments: str = ""
    """More words for the launch line of vLLM or SGLang."""
    ready_s: LimitSeconds = 600.0
    """How long a start may take."""
    api_key_env: str = ""
    """Environment variable with a bearer token."""

    def __post_init__(self) -> None:
        for key in ("program", "arguments"):
            text = getattr(self, key)
            try:
                words = shlex.split(text)
            except ValueError as error:
                raise ValueError(f"{key} is no part of a command line: {str(error).lower()}, got {text!r}") from None
            if text and not words:
                raise ValueError(f"expected words as {key}, got {text!r}")
        if self.url and not self.url.startswith(("http://", "https://")):
            raise ValueError(f"expected an address such as http://127.0.0.1:8000, got {self.url!r}")


class QualityCheck(FileSchema, frozen=True, kw_only=True):
    """Compare what the model says with the run's cache and with one in another type, on the workload's own prompts."""

    prompts: Annotated[int, msgspec.Meta(ge=1, le=100_000)] = 16
    """Most prompts that are compared."""
    reference: KVDtype | None = None
    """Type of the cache that is compared with; the type computed in if not given."""


class RunProfile(FileSchema, frozen=True, kw_only=True):
    """The decoded form of a file in `profiles/runs`, without its workload: one run of the engine.

    The pool has either a size in bytes, from which the blocks are planned, or a number of blocks.
    """

    about: str = ""
    target: Target = "engine"
    model: str = "smollm2-135m"
    """The demo model, a folder in Hugging Face form, or a GGUF file; a simulated run also takes a model profile."""
    load: Load = "weights"
    """Where the weights come from: the model's files, or a fixed seed; then `model` may be a model profile, or a
    `config.json` alone."""
    seed: Seed = 0
    """Decides everything random of the workload."""
    block_size: Count = 16
    """Tokens per block of the paged allocator; of `num_blocks` in any case."""
    allocator: AllocatorKind = AllocatorKind.PAGED
    """How KV memory is handed out."""
    page_size: Count = 1
    """Tokens per page of the token-level allocator."""
    queue_order: QueueOrderName = "fcfs"
    """In which order the token-level allocator's scheduler tries waiting requests."""
    available_kv: ByteSize | None = None
    """Bytes for KV blocks on each GPU, such as `48MiB`."""
    num_blocks: NumBlocks | None = None
    """Blocks in the pool, the null block included; instead of `available_kv`. Other allocators get their memory."""
    gpu: str | None = None
    """A card whose budget sizes the pool; instead of `available_kv` and `num_blocks`."""
    gpu_memory_utilization: Annotated[float, msgspec.Meta(gt=0, le=1)] | None = None
    """The engine's share of that card; vLLM's default if not given."""
    kv_cache_dtype: KVDtype = KVDtype.FLOAT32
    dtype: ComputeDtype | None = None
    """Type that the model computes in; `auto`: bfloat16 where the device is faster with it, else float32. If not given,
    the type of the cache, and with fp8 `auto`."""
    tensor_parallel: Count = 1
    """GPUs that share the model's heads."""
    prefix_caching: bool = True
    chunked_prefill: bool = True
    max_num_seqs: Count = 256
    """Most requests running at once."""
    max_num_batched_tokens: Count = 2048
    """Most tokens of one step."""
    long_prefill_token_threshold: Count0 = 0
    """Most tokens of one prompt in a step; 0: no such limit."""
    max_model_len: ModelLen | None = None
    """Most tokens of a request, prompt and output; none: as many as the model allows."""
    scheduling_policy: SchedulingPolicy = SchedulingPolicy.FCFS
    """Who is admitted first, and who is preempted first."""
    eviction_policy: EvictionPolicy = EvictionPolicy.LRU
    """Which cached block that nobody holds is given up first."""
    victim_policy: VictimPolicy | None = None
    """Which running request is preempted first; none: as the scheduling policy says."""
    preemption: PreemptionMode = PreemptionMode.RECOMPUTE
    """What becomes of what a preempted request has computed."""
    swap_space: ByteSize | None = None
    """Bytes on the host for swapped-out requests, such as `4GiB`."""
    preset: PresetName = PresetName.VLLM_0_32
    """Whose habits the pool and the scheduler have."""
    misfits: MisfitPolicy | None = None
    """What becomes of a request that could never be finished."""
    max_waiting: Count | None = None
    """Most requests that may wait; one that comes while so many do is refused. None: any number."""
    watermark: Annotated[float, msgspec.Meta(ge=0, lt=1)] = 0.0
    """Share of the pool that an admission must leave free."""
    device: Device = "auto"
    warmup_requests: Count0 = 0
    """Requests that are run beforehand in a pool of their own and not measured."""
    time_limit_s: LimitSeconds | None = None
    """A run that takes longer is ended, and says so."""
    step_s: StepSeconds = 0.05
    """How long a step is taken to last in a simulation whose requests come by time."""

    server: ServerTarget | None = None
    """Of the targets `openai`, `vllm` and `sglang`."""
    slo: ServiceLevel | None = None
    """What a request must keep to count as good."""
    quality: QualityCheck | None = None
    """What a cache in fewer bits does to the output, measured behind the run."""

    @property
    def is_served(self) -> bool:
        """Whether a server is measured."""
        return self.target in SERVED

    @property
    def compute_dtype(self) -> KVDtype | None:
        """Type that the model computes in; None where the device decides."""
        is_open = self.dtype == "auto" or (self.dtype is None and self.kv_cache_dtype is KVDtype.FP8)
        return None if is_open else KVDtype(self.dtype or self.kv_cache_dtype)

    def settings(self) -> dict[str, Setting]:
        """Every key but the description, as plain values; inner ones as `slo.ttft_s`."""
        values: dict[str, Any] = msgspec.to_builtins(self, enc_hook=int)
        del values["about"]
        for group in ("slo", "server", "quality"):
            inner = values.pop(group) or {}
            values |= {f"{group}.{key}": value for key, value in inner.items()}
        return values


@dataclass(frozen=True, slots=True, kw_only=True)
class Point:
    """One run of a sweep, or a run of its own."""

    name: str
    """The profile's name."""
    where: str
    """The profile's file, for messages."""
    folder: Path
    """Where a relative model starts."""
    axes: tuple[str, ...] = ()
    """The keys that the sweep varies; empty for a run of its own."""
    profile: RunProfile
    workload: Workload
    settings: Mapping[str, Setting]
    """Every key of the run, `workload` by its name, and keys of the workload that are set beside it."""

    @property
    def label(self) -> str:
        """What sets it apart from the other points: `block_size=16 seed=1`."""
        return label_of(self.settings, self.axes)

    @property
    def title(self) -> str:
        """What a viewer calls it: `block-size block_size=16`."""
        return f"{self.name} {self.label}".strip()


def label_of(settings: Mapping[str, Setting], axes: Sequence[str]) -> str:
    """Name a point by the keys that vary: `block_size=16 available_kv=48.00 MiB`."""
    return " ".join(f"{axis}={show_setting(axis, settings[axis])}" for axis in axes)


def show_setting(key: str, value: Setting) -> str:
    """A value of a profile as text; sizes in binary units, `none` for what is not set."""
    if value is None:
        return "none"
    if key in ("available_kv", "swap_space") and isinstance(value, int):
        return format_bytes(value)
    return str(value).lower() if isinstance(value, bool) else str(value)


def check_profile(profile: RunProfile, workload: Workload | None, *, where: str) -> Workload:
    """Refuse what is missing or does not go together; returns the workload, which is there.

    Raises:
        ConfigError: It names the file and the keys.
    """
    for key, value in profile.settings().items():
        if isinstance(value, int) and value > MAX_NUMBER:
            raise ConfigError(f"{value} is larger than anything that can be run", where=f"{where}: {key}")
    if workload is None:
        message = "key 'workload' is missing: a name under profiles/workloads, or a YAML file"
        raise ConfigError(message, where=where)
    _check_server(profile, where=where)
    _check_quality(profile, workload, where=where)
    _check_allocator(profile, where=where)
    _check_pool(profile, where=where)
    _check_pressure(profile, workload, where=where)
    return workload


def _check_server(profile: RunProfile, *, where: str) -> None:
    """Refuse a server without a target for it, and keys of another target."""
    server = profile.server
    if server is None and profile.target == "openai":
        raise ConfigError("target openai and key server go together", where=where)
    if server is not None and not profile.is_served:
        message = f"it goes with the targets {', '.join(SERVED)}, got {profile.target}"
        raise ConfigError(message, where=f"{where}: server")
    if profile.target == "engine" and profile.tensor_parallel > 1:
        message = f"a live run has one device, got {profile.tensor_parallel}"
        hint = "more can be simulated, or are had by the targets vllm and sglang"
        raise ConfigError(message, where=f"{where}: tensor_parallel", hint=hint)
    if profile.target in STARTED:
        _check_started(profile, where=where)
    if server is None:
        return
    if profile.target == "openai" and not server.url and not server.command:
        raise ConfigError("expected a url or a command", where=f"{where}: server")
    if profile.target in STARTED and server.url:
        raise ConfigError(
            "a server that is started for each point; one that runs is target openai", where=f"{where}: server.url"
        )
    for key in ("weights", "program", "arguments"):
        if getattr(server, key) and (profile.target == "openai" or server.command):
            raise ConfigError("only the launch line of target vllm or sglang has it", where=f"{where}: server.{key}")


_NOT_FOR_SERVERS = ("eviction_policy", "victim_policy", "preemption", "misfits", "max_waiting", "watermark")
_NOT_FOR_SGLANG = ("available_kv", "long_prefill_token_threshold")


def _check_started(profile: RunProfile, *, where: str) -> None:
    """Refuse what cannot be said on the launch line, so that plan and server are of the same run."""
    usual = RunProfile()
    for key in (*_NOT_FOR_SERVERS, *(_NOT_FOR_SGLANG if profile.target == "sglang" else ())):
        value = getattr(profile, key)
        if value != getattr(usual, key):
            raise ConfigError(f"{profile.target} cannot be told so, got {value}", where=f"{where}: {key}")


def _check_quality(profile: RunProfile, workload: Workload, *, where: str) -> None:
    """Refuse to measure quality where no model says anything, or on nonsense."""
    if profile.quality is None:
        return
    if profile.target != "engine":
        message = f"it is measured on our own engine's logits: target engine, got {profile.target}"
        raise ConfigError(message, where=f"{where}: quality")
    if not workload.needs_tokenizer:
        message = "random tokens say nothing of quality: name a workload of texts"
        raise ConfigError(message, where=f"{where}: quality")


def _check_pool(profile: RunProfile, *, where: str) -> None:
    """Refuse no size of the pool, and several."""
    if profile.gpu_memory_utilization is not None and profile.gpu is None and not profile.is_served:
        raise ConfigError("it is a share of a card, and key gpu names none", where=f"{where}: gpu_memory_utilization")
    pools = {"available_kv": profile.available_kv, "num_blocks": profile.num_blocks, "gpu": profile.gpu}
    given = [key for key, value in pools.items() if value is not None]
    if len(given) == 1 or (not given and profile.is_served):  # a server says what its pool is
        return
    said = " and ".join(given) or "none of them"
    raise ConfigError(f"expected one of available_kv (such as 48MiB), num_blocks and gpu, got {said}", where=where)


def _check_pressure(profile: RunProfile, workload: Workload, *, where: str) -> None:
    """Refuse keys about running out of memory that do not go together."""
    swaps = profile.preemption is PreemptionMode.SWAP
    if swaps and profile.swap_space is None:
        raise ConfigError("preemption swap needs it: bytes on the host, such as 4GiB", where=f"{where}: swap_space")
    if not swaps and profile.swap_space is not None:
        raise ConfigError(f"it has no meaning with preemption {profile.preemption}", where=f"{where}: swap_space")
    if workload.deadline_s is not None and profile.target == "simulated" and not workload.is_timed:
        message = "requests come by steps here, and a step has no length; use deadline_steps"
        raise ConfigError(message, where=f"{where}: workload.deadline_s")
    usual = RunProfile()
    if profile.target == "openai":
        for key in ("deadline_s", "deadline_steps"):
            if getattr(workload, key) is not None:
                message = "a server is not told of deadlines; cancel ends requests there"
                raise ConfigError(message, where=f"{where}: workload.{key}")
        for key in ("eviction_policy", "preemption", "victim_policy", "preset", "misfits", "max_waiting"):
            if getattr(profile, key) != getattr(usual, key):
                message = f"a server has its own way, and is started with it, got {getattr(profile, key)}"
                raise ConfigError(message, where=f"{where}: {key}")
    if profile.allocator is AllocatorKind.PAGED:
        return
    is_token_level = profile.allocator is AllocatorKind.TOKEN_LEVEL
    keys = ("victim_policy", "misfits", "max_waiting", "preset") if is_token_level else ("eviction_policy",)
    for key in ("preemption", *keys):
        if getattr(profile, key) != getattr(usual, key):
            message = f"allocator {profile.allocator} has no such thing, got {getattr(profile, key)}"
            raise ConfigError(message, where=f"{where}: {key}")


def _check_allocator(profile: RunProfile, *, where: str) -> None:
    """Refuse keys that the allocator has no use for."""
    kind = profile.allocator
    if profile.is_served and kind is not AllocatorKind.PAGED:
        raise ConfigError(f"a server has an allocator of its own, got {kind}", where=f"{where}: allocator")
    if kind is not AllocatorKind.TOKEN_LEVEL:
        for key, value, usual in (("page_size", profile.page_size, 1), ("queue_order", profile.queue_order, "fcfs")):
            if value != usual:
                raise ConfigError(
                    f"only allocator token_level has it, got {value} with {kind}", where=f"{where}: {key}"
                )
        return
    own = "allocator token_level has SGLang's scheduler, which has no such thing"
    if profile.scheduling_policy is not SchedulingPolicy.FCFS:
        raise ConfigError(f"{own}: {profile.scheduling_policy}", where=f"{where}: scheduling_policy")
    for key, limit in (
        ("watermark", profile.watermark),
        ("long_prefill_token_threshold", profile.long_prefill_token_threshold),
    ):
        if limit:
            raise ConfigError(f"{own}: {limit}", where=f"{where}: {key}")
    if profile.max_num_batched_tokens < profile.page_size:
        message = f"expected at least one page of {profile.page_size} tokens, got {profile.max_num_batched_tokens}"
        raise ConfigError(message, where=f"{where}: max_num_batched_tokens")
