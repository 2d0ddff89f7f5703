"""A server that is started for one point, waited for, and stopped with all its processes."""

import os
import shlex
import signal
import socket
import string
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path

from kvengine.errors import CapacityError, ConfigError, KVError
from kvplan.loading import did_you_mean

_STOP_S = 30.0
_POLL_S = 0.5
_LOG_TAIL = 2000


def fill_command(template: str, values: Mapping[str, object], *, where: str) -> list[str]:
    """Put the keys of a run into a command line: `vllm serve … --block-size {block_size} --port {port}`.

    Raises:
        ConfigError: It names a key that is not there, or cannot be split into words.
    """
    try:
        names = [name for _, name, _, _ in string.Formatter().parse(template) if name is not None]
        for name in names:
            if values.get(name) is None:
                raise ConfigError(f"no value for {{{name}}}{did_you_mean(name, values)}", where=where)
        # Words first, values second: a value never becomes two words.
        return [_fill(word, values) for word in shlex.split(template)]
    except ValueError as error:
        raise ConfigError(f"not a command line: {error}", where=where) from None


def _fill(word: str, values: Mapping[str, object]) -> str:
    parts = []
    for text, name, _, _ in string.Formatter().parse(word):
        parts.append(text)
        if name is not None:
            parts.append(str(values[name]))
    return "".join(parts)


def free_port() -> int:
    """A port that nobody listened on a moment ago."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])


@contextmanager
def started(command: list[str], url: str, *, log: Path, ready_s: float) -> Iterator[None]:
    """Start a server, wait until it is ready, and stop it and all that it started at the end.

    Args:
        command: Its words.
        url: Where it will answer `/health`, or `/v1/models`.
        log: File for what it prints.
        ready_s: How long it may take.

    Raises:
        ConfigError: There is no such command.
        CapacityError: It ended or was not ready in time; the message says why, as far as its log tells.
    """
    with log.open("wb") as output:
        try:
            process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT, start_new_session=True
            )
        except OSError as error:
            raise ConfigError(f"cannot be started: {error.strerror}", where=command[0]) from None
    try:
        _wait_until_ready(process, url, ready_s, log)
        yield
    finally:
        _stop(process)


def _wait_until_ready(process: "subprocess.Popen[bytes]", url: str, ready_s: float, log: Path) -> None:
    end_s = time.monotonic() + ready_s
    while time.monotonic() < end_s:
        code = process.poll()
        if code is not None:
            raise _failed_start(f"the server ended with code {code} before it was ready", log)
        if _answers(f"{url}/health") or _answers(f"{url}/v1/models"):
            return
        time.sleep(_POLL_S)
    raise _failed_start(f"the server was not ready after {ready_s:g} s", log)


def _answers(url: str) -> bool:
    try:
        with urllib.request.build_opener(urllib.request.ProxyHandler({})).open(url, timeout=2.0) as response:
            return bool(response.status == 200)
    except (OSError, urllib.error.URLError, ValueError):
        return False


def _failed_start(what: str, log: Path) -> CapacityError:
    """Say why, in the words of `kvplan explain`, or else with the log's last line."""
    from kvplan.explain.report import explain

    content = log.read_bytes()
    hint = f"see {log}"
    try:
        engines = explain(content, where=str(log))["engines"]
        reasons = [reason["text"] for reason in engines[-1]["reasons"]]
        hints = [f"{entry['option']}: {entry['effect']}" for entry in engines[-1]["hints"]]
        if reasons:
            return CapacityError(f"{what}: {reasons[0]}", hint=hints[0] if hints else hint)
    except KVError:
        pass  # no start-up log that is understood; its end may still help
    lines = content[-_LOG_TAIL:].decode(errors="replace").strip().splitlines()
    return CapacityError(f"{what}: {lines[-1].strip()[:300] if lines else 'it printed nothing'}", hint=hint)


def _stop(process: "subprocess.Popen[bytes]") -> None:
    """End the server's whole session: its workers outlive it when only it is killed."""
    _signal(process, signal.SIGTERM)
    with suppress(subprocess.TimeoutExpired):
        process.wait(_STOP_S)
    _signal(process, signal.SIGKILL)
    process.wait()


def _signal(process: "subprocess.Popen[bytes]", number: int) -> None:
    try:
        os.killpg(process.pid, number)
    except ProcessLookupError:
        return


def log_facts(log: Path) -> dict[str, str]:
    """What a server's start-up log says of itself: engine, version, and the figures of its KV cache."""
    from kvplan.explain.report import explain

    try:
        engine = explain(log.read_bytes(), where=str(log))["engines"][-1]
    except KVError:
        return {}
    facts = {"server": " ".join(filter(None, (engine["engine"], engine["version"])))}
    wanted = ("num_gpu_blocks", "kv_cache_tokens", "available_kv_gib", "max_concurrency")
    return facts | {
        f"log_{figure['name']}": str(figure["value"]) for figure in engine["figures"] if figure["name"] in wanted
    }
