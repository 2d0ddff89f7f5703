"""What to compute next, decided as SGLang does: a prefill if anything can be admitted, else a decode of all."""

from collections import deque
from collections.abc import Mapping, Sequence
from itertools import islice

from kvengine.errors import CapacityError, ConfigError
from kvengine.radix.admission import MAX_RESERVED_OUTPUT, AdmittedPrefill, PrefillAdmission, Verdict
from kvengine.radix.cache import RadixCache
from kvengine.radix.config import RadixConfig
from kvengine.radix.eviction import EvictionPolicy
from kvengine.radix.new_token_ratio import NewTokenRatio
from kvengine.radix.queue_order import MAX_MATCHED, keeps_queue_order, ordered, refresh_prefixes
from kvengine.radix.retraction import decode_fits, retract
from kvengine.radix.view import RadixView
from kvengine.request import FinishReason, Request, RequestId, RequestStatus
from kvengine.scheduler_output import Admission, ScheduledRequest, SchedulerOutput
from kvengine.units import cdiv

REFRESH_INTERVAL = 32
"""Admissions without a sorted queue, of which every so many-th refreshes the prefixes of waiting requests."""


class RadixScheduler:
    """Decides step by step which requests compute how many tokens, in which slots.

    A step is a prefill or a decode, never both, and the prefill goes first. When the next decode does not fit, some
    requests are retracted: they lose their slots, keep their outputs, and wait at the back of the queue. What was
    published stays cached until it is evicted.

    In `ScheduledRequest`, block ids are pages. A checkpoint may turn earlier pages of a request to the tree's, so a
    block table is not only appended to: after each prefill the request's whole table is written anew.

    Unlike SGLang, which cuts a request's output to what the pool could ever hold, `never_fits` names it.

    Invariants (`check_invariants`): those of the cache; every request is in one place and has the status that
    belongs there; a decoding one has slots for all its tokens but the last.

    Raises:
        ConfigError: A limit is out of range.
    """

    def __init__(self, config: RadixConfig) -> None:
        _check(config)
        self._config = config
        self._cache = RadixCache(
            num_tokens=config.num_tokens,
            page_size=config.page_size,
            max_requests=config.max_num_seqs,
            max_num_tokens=config.max_model_len,
            policy=config.eviction,
            caching=config.caching,
        )
        self._ratio = NewTokenRatio(config.conservativeness)
        self._requests: dict[RequestId, Request] = {}
        self._waiting: deque[Request] = deque()
        self._decoding: list[Request] = []
        # Requests whose prompt is computed to its end in this step, and the one of which a part is left.
        self._joining: list[Request] = []
        self._chunked: Request | None = None
        self._tables: dict[RequestId, list[int]] = {}
        self._rewritten: set[RequestId] = set()
        self._view = RadixView(self._cache, self._tables)
        # Nothing more was let in, and nothing is tried again until a running request leaves.
        self._is_full = False
        self._retired: list[Request] = []
        self._num_arrived = 0
        self._num_steps = 0
        self._num_unsorted = 0

    @property
    def cache(self) -> RadixCache:
        """The slots of all running requests, and the cached prefixes."""
        return self._cache

    @property
    def kv_cache(self) -> RadixView:
        """The same, as the engine and its viewers see any memory."""
        return self._view

    @property
    def running(self) -> Sequence[Request]:
        """Admitted requests: those that decode, then those that are being prefilled."""
        return [*self._decoding, *self._joining, *([] if self._chunked is None else [self._chunked])]

    @property
    def waiting(self) -> Sequence[Request]:
        """Requests that are not admitted, in queue order; a live view, not to be changed."""
        return self._waiting

    @property
    def num_waiting(self) -> int:
        """How many requests are not admitted."""
        return len(self._waiting)

    @property
    def new_token_ratio(self) -> float:
        """Part of their possible output that is set aside for running requests."""
        return self._ratio.current

    @property
    def has_unfinished(self) -> bool:
        """Whether any request is running or waiting."""
        return bool(self._requests)

    def add_request(self, request: Request) -> None:
        """Put a new request into the waiting queue.

        Raises:
            ConfigError: Its id is in use, or it has no prompt or asks for no output.
            CapacityError: Its prompt leaves no room for output within `max_model_len`.
        """
        self._check_request(request)
        request.max_num_tokens = self._max_num_tokens(request)
        request.arrival_index = self._num_arrived
        self._num_arrived += 1
        self._requests[request.request_id] = request
        self._waiting.append(request)

    def abort_request(self, request_id: RequestId, *, reason: FinishReason = FinishReason.ABORT) -> Request | None:
        """End a request at once and free its slots, publishing nothing; None if it is unknown or has ended."""
        request = self._requests.get(request_id)
        if request is None:
            return None
        if request.status is not RequestStatus.RUNNING:
            self._waiting.remove(request)
            self._cache.forget(request_id)
        else:
            if request is self._chunked:
                self._chunked = None
            else:
                (self._joining if request in self._joining else self._decoding).remove(request)
            self._cache.abort(request_id)
            self._is_full = False
        self._end(request, reason)
        return request

    def never_fits(self, request: Request) -> CapacityError | None:
        """Why a request could never be admitted, even alone in an empty pool; None if it could.

        Such a request is accepted and waits for ever; a caller that must end asks first.
        """
        num_prompt, page_size = request.num_prompt_tokens, self._config.page_size
        num_output = min(self._max_num_tokens(request) - num_prompt, MAX_RESERVED_OUTPUT)
        needed = num_prompt + num_output + page_size + 1
        available = self._cache.pool.num_slots
        if needed <= available:
            return None
        return CapacityError(
            f"request {request.request_id!r} is admitted when {needed} slots are free, for {num_prompt} prompt and "
            f"{num_output} output tokens, a page of {page_size} and one more, and the pool has {available}",
            hint=f"give it at least {needed} slots, or lower max_tokens or max_model_len",
        )

    def schedule(self) -> SchedulerOutput:
        """Decide the next step; `update` must follow before the next call."""
        admissions: list[Admission] = []
        scheduled: list[ScheduledRequest] = []
        preempted: list[RequestId] = []
        parts = self._admit()
        if parts:
            admissions = [self._start(part) for part in parts if part.request.status is not RequestStatus.RUNNING]
            scheduled = self._prefill(parts)
        elif self._decoding:
            preempted = self._make_decode_fit()
            scheduled = self._decode()
        output = SchedulerOutput(
            step=self._num_steps,
            scheduled=scheduled,
            admitted=sorted(admissions, key=lambda admission: admission.resumed),
            preempted=preempted,
            block_copies=(),
            num_tokens=sum(item.num_tokens for item in scheduled),
            rewritten=self._rewritten,
        )
        self._rewritten = set()
        self._num_steps += 1
        return output

    def update(self, output: SchedulerOutput, sampled: Mapping[RequestId, int]) -> list[Request]:
        """Take in what a step computed: publish prompts, and end what has come to its end.

        Args:
            output: What `schedule` returned last.
            sampled: The next token of each request whose `ScheduledRequest.samples` is true.

        Returns:
            The requests that ended: first one that was aborted because no decode fitted, then the others in
            scheduled order. Their slots are free or cached.
        """
        finished, self._retired = self._retired, []
        joining, self._joining = self._joining, []
        # Slots that come back in one step come back as one free.
        self._cache.pool.hold_frees()
        for request, start, num_tokens, _, _ in output.scheduled:
            if request.status is not RequestStatus.RUNNING:
                continue  # aborted while the step ran
            request.num_computed_tokens = start + num_tokens
            if request is self._chunked:
                continue
            request.append_output(sampled[request.request_id])
            if self._try_finish(request):
                finished.append(request)
            elif joining:
                self._checkpoint(request)
        self._cache.pool.release_frees()
        if self._chunked is not None:
            self._checkpoint(self._chunked)
            self._is_full = False
        self._decoding += joining
        self._decoding = [request for request in self._decoding if request.status is RequestStatus.RUNNING]
        if finished:
            self._is_full = False
        if not self._requests:
            self._ratio.reset()
        return finished

    def _admit(self) -> list[AdmittedPrefill]:
        """The parts of the next prefill; empty if there is none."""
        if not self._decoding:
            self._is_full = False
        if self._chunked is None:
            if self._is_full or not self._waiting:
                return []
            if self._num_admissible(0) <= 0:
                self._is_full = True
                return []
        self._sort_waiting()
        admission = PrefillAdmission(
            self._cache,
            self._decoding,
            new_token_ratio=self._ratio.current,
            max_prefill_tokens=self._config.max_prefill_tokens,
            chunk_tokens=self._config.chunk_tokens,
        )
        num_held = 0
        if self._chunked is not None:
            num_held = 1
            if not admission.add_chunk(self._chunked).is_chunked:
                self._chunked = None
        self._admit_waiting(admission, num_held)
        return admission.admitted

    def _admit_waiting(self, admission: PrefillAdmission, num_held: int) -> None:
        """Admit from the front of the queue until one does not fit."""
        verdict = admission.verdict()
        while self._waiting and verdict is not Verdict.OTHER:
            if len(admission.admitted) >= self._num_admissible(num_held):
                self._is_full = True
            if self._is_full:
                return
            request = self._waiting[0]
            hit = self._cache.find(request, request.num_tokens - 1)
            verdict = admission.add(request, hit)
            part = admission.admitted[-1] if admission.admitted else None
            if part is not None and part.request is request:
                self._waiting.popleft()
                if part.is_chunked:
                    self._chunked = request
            if verdict is Verdict.NO_TOKEN:
                self._is_full = part is not None or bool(self._decoding)
                return

    def _num_admissible(self, num_held: int) -> int:
        """Requests that a prefill can have, of which `num_held` have a row already."""
        return min(self._config.max_num_seqs - len(self._decoding), self._cache.rows.num_free + num_held)

    def _sort_waiting(self) -> None:
        """Put the queue into the order in which it is tried."""
        config = self._config
        if not keeps_queue_order(config.order, len(self._waiting)):
            self._waiting = deque(ordered(list(self._waiting), config.order, self._cache))
        elif self._waiting and config.eviction is EvictionPolicy.LRU:
            if self._num_unsorted % REFRESH_INTERVAL == 0:
                refresh_prefixes(list(islice(self._waiting, MAX_MATCHED)), self._cache)
            self._num_unsorted += 1

    def _start(self, part: AdmittedPrefill) -> Admission:
        request = part.request
        resumed = request.status is RequestStatus.PREEMPTED
        request.status = RequestStatus.RUNNING
        request.num_computed_tokens = request.num_cached_tokens = part.start
        return Admission(request.request_id, part.start, resumed)

    def _prefill(self, parts: Sequence[AdmittedPrefill]) -> list[ScheduledRequest]:
        shares = self._cache.try_extend([(part.request.request_id, part.start + part.num_new) for part in parts])
        assert shares is not None, "admitted a prefill that does not fit"
        self._joining = [part.request for part in parts if part.request is not self._chunked]
        return [self._scheduled_prefill(part) for part in parts]

    def _scheduled_prefill(self, part: AdmittedPrefill) -> ScheduledRequest:
        table = self._renew_table(part.request.request_id)
        new_pages = table[cdiv(part.start, self._config.page_size) :]
        return ScheduledRequest(part.request, part.start, part.num_new, table, new_pages)

    def _make_decode_fit(self) -> list[RequestId]:
        """Retract requests if the next decode does not fit; returns them in order of retraction."""
        if decode_fits(self._cache, self._decoding):
            self._ratio.fall()
            return []
        done = retract(self._cache, self._decoding)
        self._decoding = done.kept
        self._is_full = False
        self._ratio.current = done.new_token_ratio
        for request in done.retracted:
            request.status = RequestStatus.PREEMPTED
            request.num_computed_tokens = 0
            request.num_preemptions += 1
            del self._tables[request.request_id]
            self._waiting.append(request)
        for request in done.aborted:
            self._end(request, FinishReason.ABORT)
        self._retired = done.aborted
        return [request.request_id for request in done.retracted]

    def _decode(self) -> list[ScheduledRequest]:
        if not self._decoding:
            return []
        slots = self._cache.try_decode([request.request_id for request in self._decoding])
        assert slots is not None, "a decode that was said to fit does not fit"
        page_size = self._config.page_size
        scheduled: list[ScheduledRequest] = []
        for request, slot in zip(self._decoding, slots.tolist(), strict=True):
            table = self._tables[request.request_id]
            start = request.num_computed_tokens
            new_pages: list[int] = []
            if start % page_size == 0:
                new_pages = [slot // page_size]
                table += new_pages
            scheduled.append(ScheduledRequest(request, start, 1, table, new_pages))
        return scheduled

    def _checkpoint(self, request: Request) -> None:
        self._cache.checkpoint(request.request_id)
        self._renew_table(request.request_id)

    def _renew_table(self, request_id: RequestId) -> list[int]:
        """Write a request's table anew, in the list that the step's output has."""
        page_size = self._config.page_size
        table = self._tables.setdefault(request_id, [])
        table[:] = (self._cache.slots_of(request_id)[::page_size] // page_size).tolist()
        self._rewritten.add(request_id)
        return table

    def _try_finish(self, request: Request) -> bool:
        """End a request if its last token was its last, and cache what it computed."""
        if request.all_token_ids[-1] in request.sampling.stop_token_ids:
            reason = FinishReason.STOP
        elif request.num_tokens >= request.max_num_tokens:
            reason = FinishReason.LENGTH
        else:
            return False
        self._cache.finish(request.request_id)
        self._end(request, reason)
        return True

    def _end(self, request: Request, reason: FinishReason) -> None:
        request.status = RequestStatus.FINISHED
        request.finish_reason = reason
        self._tables.pop(request.request_id, None)
        del self._requests[request.request_id]

    def _max_num_tokens(self, request: Request) -> int:
        """Tokens at which a request ends."""
        return min(request.num_prompt_tokens + request.sampling.max_tokens, self._config.max_model_len)

    def _check_request(self, request: Request) -> None:
        name, num_prompt, max_model_len = request.request_id, request.num_prompt_tokens, self._config.max_model_len
        if name in self._requests:
            raise ConfigError(f"request id {name!r} is already in use")
        if num_prompt < 1 or request.sampling.max_tokens < 1:
            raise ConfigError(
                f"request {name!r}: expected at least 1 prompt token and max_tokens >= 1, "
                f"got {num_prompt} and {request.sampling.max_tokens}"
            )
        if request.sampling.n != 1 or request.media:
            raise ConfigError(
                f"request {name!r}: the token-level cache takes prompts of plain tokens and one sequence each: "
                f"expected n 1 and no media, got n {request.sampling.n} and {len(request.media)} media items"
            )
        if num_prompt >= max_model_len:
            raise CapacityError(
                f"request {name!r}: a prompt of {num_prompt} tokens leaves no room for output "
                f"within max_model_len {max_model_len}",
                hint=f"set max_model_len to {num_prompt + 1} or more, or shorten the prompt",
            )

    def check_invariants(self) -> None:
        """Every request is where it belongs; see the class."""
        self._cache.check_invariants()
        running = self.running
        placed = [request.request_id for request in (*running, *self._waiting)]
        assert len(set(placed)) == len(placed), f"a request is in two places: {placed}"
        assert set(placed) == set(self._requests), f"placed {sorted(placed)}, known {sorted(self._requests)}"
        assert len(running) <= self._config.max_num_seqs, f"{len(running)} requests are running"
        assert set(self._tables) == {request.request_id for request in running}, "a table belongs to nobody"
        for request in running:
            assert request.status is RequestStatus.RUNNING, f"{request.request_id} runs as {request.status}"
            self._check_table(request)
        for request in self._decoding:
            num_slots = self._cache.num_slots(request.request_id)
            assert num_slots in (request.num_tokens - 1, request.num_tokens), (
                f"{request.request_id} decodes with {num_slots} slots for {request.num_tokens} tokens"
            )
        for request in self._waiting:
            assert request.status in (RequestStatus.WAITING, RequestStatus.PREEMPTED), (
                f"{request.request_id} waits as {request.status}"
            )

    def _check_table(self, request: Request) -> None:
        page_size = self._config.page_size
        pages = self._cache.slots_of(request.request_id)[::page_size] // page_size
        table = self._tables[request.request_id]
        assert pages.tolist() == table, f"{request.request_id} has pages {pages.tolist()}, its table says {table}"


def _check(config: RadixConfig) -> None:
    """Refuse limits with which nothing could ever run."""
    limits = {
        "page_size": config.page_size,
        "max_num_seqs": config.max_num_seqs,
        "max_prefill_tokens": config.max_prefill_tokens,
    }
    for name, value in limits.items():
        if value < 1:
            raise ConfigError(f"expected at least 1, got {value}", where=name)
    if config.max_model_len < 2:
        raise ConfigError(
            f"expected at least 2, a prompt token and an output token, got {config.max_model_len}",
            where="max_model_len",
        )
    if config.num_tokens < config.page_size:
        raise ConfigError(
            f"expected at least one page of {config.page_size} slots, got {config.num_tokens}", where="num_tokens"
        )
    if config.num_tokens >= 2**31:
        raise ConfigError(f"expected less than 2**31 slots, got {config.num_tokens}", where="num_tokens")
    if config.chunk_tokens is not None and config.chunk_tokens < config.page_size:
        raise ConfigError(
            f"expected at least one page of {config.page_size} tokens, got {config.chunk_tokens}",
            where="chunk_tokens",
        )
    if config.conservativeness <= 0:
        raise ConfigError(f"expected more than 0, got {config.conservativeness}", where="conservativeness")
