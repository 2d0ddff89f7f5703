"""What can never work: limits out of range, and requests that could not be finished even alone."""

from kvengine.config import EngineConfig, PreemptionMode
from kvengine.errors import ConfigError, RejectedError
from kvengine.kv_groups.demand import most_blocks_at_a_time
from kvengine.kv_groups.kinds import FullAttention
from kvengine.kv_groups.sizes import group_sizes
from kvengine.request import Request, RequestStatus
from kvengine.units import cdiv

MAX_TOKEN_ID = 2**32 - 1
"""Token ids are hashed as 4-byte unsigned numbers."""


def check_config(config: EngineConfig) -> None:
    """Refuse limits that no step could be planned with.

    Raises:
        ConfigError: A limit is out of range; the message names it.
    """
    limits = config.scheduler
    lowest = (
        ("num_blocks", config.num_blocks, 2),
        ("block_size", config.block_size, 1),
        ("max_num_seqs", limits.max_num_seqs, 1),
        ("max_num_batched_tokens", limits.max_num_batched_tokens, 1),
        ("max_model_len", limits.max_model_len, 2),
        ("long_prefill_token_threshold", limits.long_prefill_token_threshold, 0),
        ("num_lookahead_tokens", limits.num_lookahead_tokens, 0),
        ("context_parallel_size", config.context_parallel_size, 1),
        ("max_waiting", 1 if limits.max_waiting is None else limits.max_waiting, 1),
    )
    for name, value, minimum in lowest:
        if value < minimum:
            raise ConfigError(f"{name}: expected at least {minimum}, got {value}")
    swaps = config.preemption is PreemptionMode.SWAP
    if swaps != (config.num_host_blocks > 0):
        raise ConfigError(
            f"num_host_blocks: expected {'at least 1' if swaps else '0'} with preemption {config.preemption}, "
            f"got {config.num_host_blocks}"
        )
    if not 0 <= limits.watermark < 1:
        raise ConfigError(f"watermark: expected a fraction from 0 up to 1, got {limits.watermark}")


def check_request(request: Request, config: EngineConfig) -> None:
    """Refuse a request that no scheduler could take in.

    Raises:
        ConfigError: It has ended or runs already, has no prompt or a token that is no id, or asks for no output.
        RejectedError: Its prompt leaves no room for output within `max_model_len`.
    """
    if request.status is not RequestStatus.WAITING:
        raise ConfigError(f"request {request.request_id!r} is {request.status} and cannot be added again")
    num_prompt, max_tokens = request.num_prompt_tokens, request.sampling.max_tokens
    if num_prompt < 1 or max_tokens < 1:
        raise ConfigError(
            f"request {request.request_id!r}: expected at least 1 prompt token and max_tokens >= 1, "
            f"got {num_prompt} and {max_tokens}"
        )
    if request.sampling.n < 1:
        raise ConfigError(f"request {request.request_id!r}: n: expected at least 1 sequence, got {request.sampling.n}")
    _check_media(request)
    lowest, highest = min(request.all_token_ids), max(request.all_token_ids)
    if lowest < 0 or highest > MAX_TOKEN_ID:
        raise ConfigError(
            f"request {request.request_id!r}: expected token ids from 0 to {MAX_TOKEN_ID}, "
            f"got {lowest if lowest < 0 else highest}"
        )
    too_long = _leaves_no_room_for_output(request, config)
    if too_long is not None:
        raise too_long


def _check_media(request: Request) -> None:
    end = 0
    for item in request.media:
        if item.num_tokens < 1 or not end <= item.offset <= request.num_prompt_tokens - item.num_tokens:
            raise ConfigError(
                f"request {request.request_id!r}: media {item.content!r}: expected at least 1 of the prompt's tokens "
                f"{end} to {request.num_prompt_tokens - 1}, got {item.num_tokens} from {item.offset} on"
            )
        end = item.offset + item.num_tokens


def never_fits(request: Request, config: EngineConfig) -> RejectedError | None:
    """Why a request cannot be relied on to finish even if it has the pool to itself; None if it can.

    With one full-attention group such a request could never finish. Where groups give blocks back while they run, it
    might, if it is never preempted; if it is, it may need more blocks to start again than there are.
    """
    return (
        _leaves_no_room_for_output(request, config)
        or _needs_more_blocks_than_there_are(request, config)
        or _needs_more_than_a_step(request, config)
    )


def max_num_tokens(request: Request, config: EngineConfig) -> int:
    """Prompt and output tokens at which a request ends at the latest."""
    return min(request.num_prompt_tokens + request.sampling.max_tokens, config.scheduler.max_model_len)


def _leaves_no_room_for_output(request: Request, config: EngineConfig) -> RejectedError | None:
    num_prompt, max_model_len = request.num_prompt_tokens, config.scheduler.max_model_len
    if num_prompt < max_model_len:
        return None
    return RejectedError(
        f"request {request.request_id!r}: a prompt of {num_prompt} tokens leaves no room for output "
        f"within max_model_len {max_model_len}",
        status=400,
        hint=f"set max_model_len to {num_prompt + 1} or more, or shorten the prompt",
    )


def _needs_more_blocks_than_there_are(request: Request, config: EngineConfig) -> RejectedError | None:
    num_tokens = max_num_tokens(request, config)
    needed, unit = _blocks_needed_alone(request, config, num_tokens)
    usable = config.num_blocks - 1
    if needed <= usable:
        return None
    return RejectedError(
        f"request {request.request_id!r} needs {needed} blocks {unit} for {num_tokens} tokens, "
        f"and the pool has {usable}",
        status=503,
        hint=f"give it at least {needed + 1} blocks, or lower max_tokens or max_model_len",
    )


def _blocks_needed_alone(request: Request, config: EngineConfig, num_tokens: int) -> tuple[int, str]:
    """Most blocks that a request may need at a time, and what kind of blocks they are."""
    sizes = group_sizes(config)
    # The last token is sampled and never computed.
    num_computed = num_tokens - 1
    match sizes.groups:
        case (FullAttention(),):
            (size,) = sizes.block_sizes
            num_slots = min(num_computed + config.scheduler.num_lookahead_tokens, config.scheduler.max_model_len)
            return cdiv(num_slots, size), f"of {size}"
        case _:
            return most_blocks_at_a_time(request, config, sizes, num_computed), "at a time"


def _needs_more_than_a_step(request: Request, config: EngineConfig) -> RejectedError | None:
    num_prompt, budget = request.num_prompt_tokens, config.scheduler.max_num_batched_tokens
    if config.scheduler.enable_chunked_prefill or num_prompt <= budget:
        return None
    return RejectedError(
        f"request {request.request_id!r} has a prompt of {num_prompt} tokens, a step takes {budget}, "
        "and chunked prefill is off",
        status=503,
        hint=f"turn chunked prefill on, or set max_num_batched_tokens to {num_prompt} or more",
    )
