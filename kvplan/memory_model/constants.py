"""The numbers of the memory model: fitted to public start-up logs, or stated by a source and checked against them."""

from functools import cache

from kvplan.estimate import Amount, estimated
from kvplan.loading import FileSchema, load_yaml
from kvplan.profiles import find_profile


class Constant(FileSchema, frozen=True, kw_only=True):
    """One number with its range and where it comes from."""

    low: float
    likely: float
    high: float
    records: int
    """Start-up logs that it was fitted to, or checked against where a document states it."""
    spread: float
    """Median distance of those records from `likely`."""
    source: str

    def __post_init__(self) -> None:
        """Refuse a range out of order."""
        if not 0 <= self.low <= self.likely <= self.high:
            raise ValueError("expected 0 <= low <= likely <= high")

    def times(self, factor: float) -> Amount:
        """Return so many times the number, as whole bytes."""
        return estimated(int(self.low * factor), int(self.likely * factor), int(self.high * factor))


class VllmConstants(FileSchema, frozen=True, kw_only=True):
    """`profiles/memory/vllm.yaml`. Sizes are in bytes."""

    fitted_records: str
    """Ids of the start-up logs that the fit used, with spaces between."""
    sorting_bytes_per_entry: Constant
    """Sampling by a sort: bytes per sequence and vocabulary entry."""
    masking_bytes_per_entry: Constant
    """Sampling by a mask."""
    deferred_bytes_per_entry: Constant
    """Where the profiling run samples without top-k and top-p."""
    hidden_copies: Constant
    """Hidden states alive in a dense MLP, beside its own activations."""
    workspace_bytes: Constant
    """What the profiling run holds beside the tensors that are counted: workspaces of matrix multiplications."""
    non_torch_v0_bytes: Constant
    """Outside torch with one GPU, under the V0 engine: kernels, handles, libraries."""
    non_torch_v1_bytes: Constant
    """The same under the V1 engine."""
    context_bytes: Constant
    """The CUDA context, which old versions count as theirs."""
    communication_bytes: dict[str, Constant]
    """What each of several GPUs needs more, by engine and least number of GPUs: `V1-2`, `V1-8`."""
    cuda_graphs_bytes: Constant
    """Graphs of one GPU, as the engine estimates them before it captures them."""
    unaccounted_of_card: Constant
    """Share of the card that logs show beyond the parts: other processes, and what their flags do not say."""


class SglangConstants(FileSchema, frozen=True, kw_only=True):
    """`profiles/memory/sglang.yaml`. Sizes are in bytes."""

    fitted_records: str
    before_load_one_gpu_bytes: Constant
    """What is taken before the weights are loaded: context and libraries."""
    before_load_several_gpus_bytes: Constant
    """The same with communication buffers."""


@cache
def vllm_constants() -> VllmConstants:
    """Read vLLM's numbers: those that come with the package, or the user's own in `profiles/memory`.

    Raises:
        ConfigError: The file is damaged.
    """
    path = find_profile("memory", "vllm").path
    return load_yaml(path, VllmConstants, name=str(path))


@cache
def sglang_constants() -> SglangConstants:
    """Read SGLang's numbers, as `vllm_constants`."""
    path = find_profile("memory", "sglang").path
    return load_yaml(path, SglangConstants, name=str(path))
