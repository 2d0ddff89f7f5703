"""A workload to the demand of a budget: the lengths of its requests, and what their prompts have in common."""

from collections.abc import Hashable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from kvengine.errors import ConfigError
from kvengine.model_files import find_demo_model
from kvengine.request import RequestId
from kvengine.tokenizer import load_tokenizer
from kvengine.units import cdiv
from kvplan.demand import Demand, workload_demand
from kvplan.load_profiles import load_workload
from kvplan.loading import did_you_mean
from kvplan.profiles import find_profiles, try_find_profile
from kvplan.requests.build import request_specs
from kvplan.requests.prompts import BlockPrompt, Prompt, StreamPrompt
from kvplan.requests.spec import RequestSpec
from kvplan.run_model import DEMO_MODEL
from kvplan.shared_prefixes import Chain, find_shared_prefixes
from kvplan.traces.formats import guess_block_tokens, guess_format
from kvplan.workload import Tokenize, TraceSource, Workload

if TYPE_CHECKING:
    from kvplan.model_spec import ModelSpec

_SEED = 0
"""The seed of a run profile that names none: the same requests."""
_MOST_REQUESTS = 1_000_000
"""No more are made up to find out how many fit."""
_SERVEGEN_SECONDS = 600.0
"""ServeGen's files stand for weeks; so much is drawn where nothing says how much."""


def demand_of_workload(target: str, model: "ModelSpec", *, source: str, requests: int | None) -> Demand:
    """Return the demand of a workload.

    Args:
        target: The name of a workload profile, a YAML workload, or a trace file or folder.
        model: The model that gets the requests.
        source: How the model was named: a folder may have the tokenizer that a workload of text needs.
        requests: How many of its requests shall be there at the same time; None: an engine lets them wait.

    Raises:
        ConfigError: There is no such workload, it is not valid, or it has fewer requests.
        DeviceError: It is text, and the package that reads tokenizers is not installed.
    """
    specs = _turn_by_turn(_requests(_find_workload(target), model, source, at_least=requests or 1))
    if requests is not None and requests > len(specs):
        raise ConfigError(
            f"the workload has {len(specs):,} requests, and {requests:,} shall be there together",
            where=target,
            hint=f"--requests {len(specs)}, or a longer workload",
        )
    return workload_demand(
        Path(target).name,
        tuple(spec.num_tokens for spec in specs),
        tuple(spec.num_prompt_tokens for spec in specs),
        find_shared_prefixes(_chains(specs)),
        requests=requests,
    )


def _find_workload(target: str) -> Workload:
    path = Path(target)
    if (profile := try_find_profile("workloads", target)) is not None:
        return load_workload(profile.path)
    if path.suffix in (".yaml", ".yml"):
        return load_workload(path)
    if not target.strip() or not path.exists():
        names = find_profiles("workloads")
        raise ConfigError(
            f"no workload named {target[:60]!r}{did_you_mean(target, names)}, and no such file",
            where="--workload",
            hint="kvplan profiles list workloads",
        )
    trace_format = guess_format(path)
    duration_s = _SERVEGEN_SECONDS if trace_format == "servegen" else None
    blocks_of = guess_block_tokens(path) if trace_format == "mooncake" else None
    return Workload(
        trace=TraceSource(file=str(path), format=trace_format, duration_s=duration_s, block_tokens=blocks_of)
    )


def _tokenizer(source: str) -> Tokenize:
    """Load what turns text into tokens, from the folder that the model was named by."""
    path = find_demo_model() if source == DEMO_MODEL else Path(source)
    if not path.exists():
        raise ConfigError(
            "its requests are text, which only a model's tokenizer turns into tokens, and the model has none here",
            where="--workload",
            hint="name a model folder with tokenizer.json, or a workload of lengths such as chat",
        )
    return load_tokenizer(path.parent if path.suffix == ".json" else path).encode


def _requests(workload: Workload, model: "ModelSpec", source: str, *, at_least: int) -> list[RequestSpec]:
    """Make the requests; of random ones as many as are needed."""
    tokenize = _tokenizer(source) if workload.needs_tokenizer else None
    make = partial(request_specs, seed=_SEED, vocab_size=model.geometry.vocab_size or 2**16, tokenize=tokenize)
    specs = make(workload)
    synthetic = workload.synthetic
    if synthetic is None or len(specs) >= at_least or at_least > _MOST_REQUESTS:
        return specs
    enough = msgspec.structs.replace(synthetic, requests=synthetic.requests * (cdiv(at_least, len(specs)) + 1))
    return make(msgspec.structs.replace(workload, synthetic=enough))


def _turn_by_turn(specs: Sequence[RequestSpec]) -> list[RequestSpec]:
    """Put first turns before second ones: requests of one conversation are not there at the same time."""
    turns: dict[RequestId, int] = {}
    for spec in specs:
        turns[spec.request_id] = 0 if spec.after is None else turns[spec.after] + 1
    return sorted(specs, key=lambda spec: turns[spec.request_id])


def _chains(specs: Sequence[RequestSpec]) -> Iterator[Chain]:
    """Return each prompt part by part; later turns repeat what was said before, outputs included."""
    whole: dict[RequestId, Sequence[tuple[Hashable, int]]] = {}
    for spec in specs:
        history = whole.get(spec.after, ()) if spec.history_tokens and spec.after is not None else ()
        prompt = [*history, *_parts(spec.prompt)]
        whole[spec.request_id] = [*prompt, (("output of", spec.request_id), spec.max_tokens)]
        yield prompt


def _parts(prompt: Prompt) -> Iterator[tuple[Hashable, int]]:
    match prompt:
        case StreamPrompt():
            yield from prompt.parts
        case BlockPrompt():
            rest = prompt.num_tokens
            for block in prompt.block_ids[: cdiv(rest, prompt.block_tokens)]:
                yield ("block", block), min(prompt.block_tokens, rest)
                rest -= min(prompt.block_tokens, rest)
            if rest:
                yield prompt.own_stream, rest
        case _:
            yield from ((token, 1) for token in prompt.token_ids())
