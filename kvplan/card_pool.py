"""The pool that a card leaves to our engine: the budget of `kvplan budget`, without what the engine does not have."""

from dataclasses import replace

from kvengine.errors import ConfigError
from kvengine.spec import KVDtype
from kvplan.budget import MemoryBudget, MemoryFraction
from kvplan.engine_inputs import EngineInputs
from kvplan.gpu_spec import load_gpu
from kvplan.model_spec import ModelSpec
from kvplan.plan import MemoryInputs, PlanInputs, make_plan
from kvplan.run_profile import RunProfile


def budget_of_card(
    profile: RunProfile, model: ModelSpec, *, block_size: int, max_model_len: int, where: str
) -> MemoryBudget:
    """Divide the card that a profile names.

    Weights are counted in the type that the engine computes in, however they are stored. The parts beside weights and
    cache are vLLM's, without CUDA graphs: an estimate, until our engine has been measured on such a card.

    Raises:
        ConfigError: There is no such card, or the model's weights cannot be told from its configuration.
    """
    assert profile.gpu is not None, "asked only with a card"
    try:
        gpu = load_gpu(profile.gpu)
    except ConfigError as error:
        message = error.message.removeprefix(f"{error.where}: ")
        raise ConfigError(message, where=f"{where}: gpu", hint="kvplan profiles list gpus") from None
    share = profile.gpu_memory_utilization
    engine = EngineInputs(
        tensor_parallel=profile.tensor_parallel,
        block_size=block_size,
        dtype=profile.compute_dtype or KVDtype.BFLOAT16,
        kv_dtype=profile.kv_cache_dtype,
        max_model_len=max_model_len,
        max_num_seqs=profile.max_num_seqs,
        max_num_batched_tokens=profile.max_num_batched_tokens,
        prefix_caching=profile.prefix_caching,
        enforce_eager=True,
    )
    plain = replace(model, quantization=None, stored_weights=None)
    memory = MemoryInputs(gpu=gpu, fraction=None if share is None else MemoryFraction(of_total=share))
    return make_plan(PlanInputs(model=plain, memory=memory, engine=engine)).budget
