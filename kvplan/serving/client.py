"""One streaming completion over HTTP: its tokens as they come."""

import json
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from typing import Any

from kvengine.errors import DeviceError, KVError
from kvplan.optional import need
from kvplan.requests.spec import RequestSpec

_MAX_DETAIL = 200


class RequestFailed(KVError):
    """A server did not answer a request as it should."""

    exit_code = 1


@dataclass(frozen=True, slots=True)
class Tokens:
    """Some tokens of an output, usually one."""

    count: int
    token_ids: Sequence[int]
    """Empty if the server does not tell them."""


class CompletionClient:
    """Asks a server for completions of token ids.

    Args:
        url: `http://HOST:PORT`, without a path.
        api_key: Sent as a bearer token; empty for none.

    Raises:
        DeviceError: httpx is not installed.
    """

    def __init__(self, url: str, *, api_key: str = "") -> None:
        self._httpx: Any = need("httpx", extra="serving", purpose="measuring a server")
        self._url = url.rstrip("/")
        headers = {"Authorization": f"Bearer {api_key}"} if api_key else {}
        limits = self._httpx.Limits(max_connections=None, max_keepalive_connections=None)
        timeout = self._httpx.Timeout(30.0, read=None, pool=None)
        self._client = self._httpx.AsyncClient(headers=headers, limits=limits, timeout=timeout)

    async def close(self) -> None:
        """Close all connections."""
        await self._client.aclose()

    async def first_model(self) -> str:
        """Name of the first model that the server offers.

        Raises:
            DeviceError: No such server answers.
        """
        try:
            response = await self._client.get(f"{self._url}/v1/models")
            response.raise_for_status()
            return str(response.json()["data"][0]["id"])
        except self._httpx.HTTPError as error:
            raise DeviceError(f"no server answers at {self._url}: {error or type(error).__name__}") from None
        except (ValueError, LookupError, TypeError):
            raise DeviceError(f"what answers at {self._url} offers no model under /v1/models") from None

    async def stream(
        self, model: str, prompt: Sequence[int], spec: RequestSpec, *, ignore_eos: bool
    ) -> AsyncIterator[Tokens]:
        """Ask for one completion and yield its tokens as they come.

        Raises:
            RequestFailed: The server refused it, broke off, or answers something else.
        """
        body = {
            "model": model,
            "prompt": list(prompt),
            "max_tokens": spec.max_tokens,
            "temperature": 0,
            "ignore_eos": ignore_eos,
            "priority": spec.priority,
            "stream": True,
            "stream_options": {"include_usage": True, "continuous_usage_stats": True},
            "return_token_ids": True,
        }
        if spec.sampling is not None:
            body |= {**spec.sampling.settings(), "seed": spec.seed}
        if not spec.priority:
            del body["priority"]  # a server that does not schedule by priority refuses any other
        try:
            async with self._client.stream("POST", f"{self._url}/v1/completions", json=body) as response:
                if response.status_code != 200:
                    await response.aread()
                    raise RequestFailed(f"HTTP {response.status_code}: {_detail(response.text)}")
                reader = _StreamReader()
                async for line in response.aiter_lines():
                    tokens = reader.read(line)
                    if tokens is not None:
                        yield tokens
                if not reader.is_done:
                    raise RequestFailed("the answer broke off")
        except self._httpx.HTTPError as error:
            raise RequestFailed(f"{type(error).__name__}: {error}".rstrip(": ")) from None


class _StreamReader:
    """Reads the lines of an event stream."""

    def __init__(self) -> None:
        self.is_done = False
        self._num_tokens = 0

    def read(self, line: str) -> Tokens | None:
        if not line.startswith("data:"):
            return None
        text = line.removeprefix("data:").strip()
        if text == "[DONE]":
            self.is_done = True
            return None
        try:
            event = json.loads(text)
            if event.get("error"):
                raise RequestFailed(_detail(str(event["error"])))
            return self._tokens(event)
        except (ValueError, AttributeError, TypeError, LookupError):
            raise RequestFailed(f"an event that is no completion: {_detail(text)}") from None

    def _tokens(self, event: dict[str, Any]) -> Tokens | None:
        usage, choices = event.get("usage") or {}, event.get("choices") or []
        token_ids = (choices[0].get("token_ids") or []) if choices else []
        total = usage.get("completion_tokens")
        if total is not None:
            count = max(int(total) - self._num_tokens, 0)
        else:
            count = len(token_ids) or int(bool(choices and choices[0].get("text")))
        self._num_tokens += count
        return Tokens(count, token_ids) if count else None


def _detail(text: str) -> str:
    line = " ".join(text.split())
    return line if len(line) <= _MAX_DETAIL else f"{line[:_MAX_DETAIL]}…"
