"""A request: its tokens, and how far it has come."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import NewType
from zlib import crc32

from kvengine.sampling_params import SamplingParams as SamplingParams

RequestId = NewType("RequestId", str)
TokenId = NewType("TokenId", int)


class RequestStatus(StrEnum):
    """Where a request stands."""

    WAITING = "waiting"
    RUNNING = "running"
    PREEMPTED = "preempted"
    FINISHED = "finished"


class FinishReason(StrEnum):
    """Why a request ended."""

    STOP = "stop"
    LENGTH = "length"
    ABORT = "abort"
    DEADLINE = "deadline"
    """It had not ended when its deadline came."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MediaItem:
    """An image, a clip, or whatever else stands behind placeholder tokens of a prompt."""

    content: str
    """Names what it is: equal names are taken as equal content."""
    offset: int
    """Its first placeholder token."""
    num_tokens: int


class Request:
    """One sequence of tokens that the engine extends.

    Attributes:
        num_computed_tokens: Tokens whose K/V is in the cache.
        num_cached_tokens: Those of them that came free from a prefix hit at the last admission.
        num_encoder_tokens: Tokens that the decoder attends to by cross-attention.
        adapter: The adapter (LoRA) that it runs with, its weights included: only requests with the same one share
            blocks. Empty for none.
        media: What stands behind placeholder tokens of the prompt, by offset, none overlapping another.
        deadline_s: Time on the engine's clock from which on it is ended; None for no such time.
        deadline_step: The engine's step before which it is ended; None for no such step.
        parent_id: The request that it was forked from; None if it came by itself.
        draft_token_ids: Guesses at the next tokens, to be computed behind the known ones.
        seed: Decides its draws; see `SamplingParams.seed`.
        needs_sampler: Whether anything but the highest of the raw logits is asked for.
        output_token_ids: Tokens produced so far; read it, and append with `append_output`.
    """

    __slots__ = (
        "adapter",
        "all_token_ids",
        "arrival_index",
        "arrival_s",
        "cache_salt",
        "deadline_s",
        "deadline_step",
        "draft_token_ids",
        "finish_reason",
        "max_num_tokens",
        "media",
        "needs_sampler",
        "num_cached_tokens",
        "num_computed_tokens",
        "num_encoder_tokens",
        "num_preemptions",
        "num_prompt_tokens",
        "parent_id",
        "priority",
        "request_id",
        "sampling",
        "seed",
        "status",
    )

    def __init__(
        self,
        request_id: RequestId,
        prompt_token_ids: Sequence[int],
        sampling: SamplingParams,
        *,
        priority: int = 0,
        cache_salt: str = "",
        arrival_s: float = 0.0,
        num_encoder_tokens: int = 0,
        adapter: str = "",
        media: Sequence[MediaItem] = (),
        deadline_s: float | None = None,
        deadline_step: int | None = None,
    ) -> None:
        self.request_id = request_id
        self.all_token_ids = list(prompt_token_ids)
        self.num_prompt_tokens = len(self.all_token_ids)
        self.sampling = sampling
        self.seed = crc32(request_id.encode()) if sampling.seed is None else sampling.seed
        self.needs_sampler = not sampling.is_plain_greedy
        self.priority = priority
        self.cache_salt = cache_salt
        self.arrival_s = arrival_s
        self.num_encoder_tokens = num_encoder_tokens
        self.adapter = adapter
        self.media = media
        self.deadline_s = deadline_s
        self.deadline_step = deadline_step
        self.parent_id: RequestId | None = None
        self.arrival_index = 0
        """Order of arrival at the scheduler; it sets this and breaks priority ties with it."""
        self.max_num_tokens = self.num_prompt_tokens + sampling.max_tokens
        """Prompt plus output end here at the latest; the scheduler lowers it to what the model takes."""
        self.status = RequestStatus.WAITING
        self.finish_reason: FinishReason | None = None
        self.num_computed_tokens = 0
        self.num_cached_tokens = 0
        self.num_preemptions = 0
        self.draft_token_ids: Sequence[int] = ()

    @property
    def num_tokens(self) -> int:
        """Prompt tokens plus output tokens so far."""
        return len(self.all_token_ids)

    @property
    def num_output_tokens(self) -> int:
        """Output tokens so far."""
        return len(self.all_token_ids) - self.num_prompt_tokens

    @property
    def prompt_token_ids(self) -> list[int]:
        """A copy of the prompt."""
        return self.all_token_ids[: self.num_prompt_tokens]

    @property
    def output_token_ids(self) -> list[int]:
        """A copy of the output so far."""
        return self.all_token_ids[self.num_prompt_tokens :]

    @property
    def sample_ids(self) -> tuple[RequestId, ...]:
        """Ids of the further sequences that are sampled from its prompt: `a/1` and `a/2` for `a` with `n` = 3."""
        return tuple(RequestId(f"{self.request_id}/{index}") for index in range(1, self.sampling.n))

    @property
    def is_to_be_sampled_from(self) -> bool:
        """Whether further sequences part from it with its next token, which is its first."""
        return self.sampling.n > 1 and self.num_output_tokens == 0

    def fork(self, request_id: RequestId, index: int = 0) -> "Request":
        """Another request with the same tokens, which has computed nothing yet and is one sequence only.

        Args:
            request_id: Its id.
            index: Its number among those that part here, from 1 on, so that it draws otherwise; 0 to draw the same.
        """
        child = Request(
            request_id,
            self.all_token_ids,
            replace(self.sampling, n=1) if self.sampling.n > 1 else self.sampling,
            priority=self.priority,
            cache_salt=self.cache_salt,
            arrival_s=self.arrival_s,
            num_encoder_tokens=self.num_encoder_tokens,
            adapter=self.adapter,
            media=self.media,
            deadline_s=self.deadline_s,
            deadline_step=self.deadline_step,
        )
        child.num_prompt_tokens = self.num_prompt_tokens
        child.max_num_tokens = self.max_num_tokens
        child.parent_id = self.request_id
        child.seed = self.seed + index
        return child

    def append_output(self, token_id: int) -> None:
        """Add one output token."""
        self.all_token_ids.append(token_id)


def reason_to_end(request: Request) -> FinishReason | None:
    """Why a request ends with the output token it has last; None if it goes on."""
    if request.all_token_ids[-1] in request.sampling.stop_token_ids:
        return FinishReason.STOP
    if request.num_tokens >= request.max_num_tokens:
        return FinishReason.LENGTH
    return None
