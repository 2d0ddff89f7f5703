"""A model from the Hugging Face Hub, or from what is cached of it: the configuration and the headers of its weights."""

import os
import socket
from dataclasses import replace
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from kvengine.errors import ConfigError, DeviceError
from kvplan.checkpoint import StoredTensor, StoredWeights, weights_of
from kvplan.loading import nearest
from kvplan.model_spec import ModelSpec, model_from_folder
from kvplan.profiles import find_profiles

_PROXIES = ("HTTPS_PROXY", "https_proxy", "ALL_PROXY", "all_proxy")
_TIMEOUT_S = 5.0
_FILES = ("config.json", "hf_quant_config.json", "model.safetensors.index.json")


def load_hub_model(reference: str, *, assume_standard: bool) -> ModelSpec:
    """Read a model by its Hub id, `organisation/name` or `organisation/name@revision`.

    Args:
        reference: The id.
        assume_standard: Whether a configuration that is not understood is taken as Llama-type attention.

    Raises:
        ConfigError: There is no such model, or its configuration is damaged or not understood.
        DeviceError: The Hub cannot be reached and nothing is cached, or `huggingface_hub` is not installed.
    """
    repository, _, revision = reference.partition("@")
    folder = _fetch(repository, revision or None)
    model = model_from_folder(
        folder, name=repository.rpartition("/")[2], assume_standard=assume_standard, may_lack_files=True
    )
    model = replace(model, hub_id=repository)
    if model.stored_weights is not None and model.stored_weights.tensors:
        return model
    return replace(model, stored_weights=_headers(repository, revision or None) or model.stored_weights)


def _fetch(repository: str, revision: str | None) -> Path:
    """Download the small files, or find them in the cache where the Hub cannot be reached; return their folder."""
    hub = _hub()
    from huggingface_hub import errors

    offline = not _is_reachable()
    folder: Path | None = None
    for name in _FILES:
        try:
            path = hub.hf_hub_download(repository, name, revision=revision, local_files_only=offline)
        except errors.GatedRepoError:
            raise ConfigError("access to this model must be granted", where=repository, hint="hf auth login") from None
        except (errors.RepositoryNotFoundError, errors.RevisionNotFoundError):
            raise ConfigError(
                "no such model on the Hugging Face Hub", where=reference_of(repository, revision)
            ) from None
        except errors.HFValidationError as error:
            raise ConfigError(f"not a model id: {str(error).splitlines()[0][:120]}", where=repository) from None
        except errors.LocalEntryNotFoundError:
            if folder is None:
                raise _unreachable(repository) from None
            continue
        except errors.EntryNotFoundError:
            if name == _FILES[0]:
                raise ConfigError("this model has no config.json", where=repository) from None
            continue
        except OSError:
            if folder is None:
                raise _unreachable(repository) from None
            continue
        folder = Path(path).parent
    assert folder is not None, "the configuration was found"
    return folder


def _headers(repository: str, revision: str | None) -> StoredWeights | None:
    """Read the headers of its safetensors files over the network; None where that is not to be had."""
    hub = _hub()
    from huggingface_hub import errors

    if not _is_reachable():
        return None
    try:
        metadata = hub.get_safetensors_metadata(repository, revision=revision)
    except (errors.HfHubHTTPError, errors.NotASafetensorsRepoError, errors.SafetensorsParsingError, OSError):
        return None
    tensors = [
        StoredTensor(name, info.dtype, tuple(info.shape), info.data_offsets[1] - info.data_offsets[0])
        for file in metadata.files_metadata.values()
        for name, info in file.tensors.items()
    ]
    return weights_of(tensors, source="safetensors headers on the Hub")


def reference_of(repository: str, revision: str | None) -> str:
    """Return an id as it is typed."""
    return f"{repository}@{revision}" if revision else repository


def _hub() -> Any:
    try:
        import huggingface_hub
        from huggingface_hub.utils.tqdm import disable_progress_bars
    except ImportError:
        raise DeviceError(
            "models on the Hugging Face Hub need the package huggingface_hub",
            hint="pip install 'pagedkv[hub]'; or download its config.json and name that file",
        ) from None
    disable_progress_bars()
    return huggingface_hub


def _is_reachable() -> bool:
    """Ask once whether the Hub's machine answers: the library itself tries for half a minute."""
    from huggingface_hub import constants

    if constants.HF_HUB_OFFLINE:
        return False
    if any(os.environ.get(name) for name in _PROXIES):
        return True
    host = urlsplit(constants.ENDPOINT)
    try:
        with socket.create_connection((host.hostname or "", host.port or 443), timeout=_TIMEOUT_S):
            return True
    except OSError:
        return False


def _unreachable(repository: str) -> DeviceError:
    profile = nearest(repository.rpartition("/")[2], find_profiles("models"))
    other = f"; or take a profile: {profile}" if profile else ""
    return DeviceError(
        f"{repository}: the Hugging Face Hub cannot be reached, and nothing of it is cached here",
        hint=f"download its config.json and name that file, or a folder with it{other}",
    )
