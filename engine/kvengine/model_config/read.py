"""The configuration of a model, in whichever form it lies on disk."""

from pathlib import Path

from kvengine.gguf_file import read_gguf
from kvengine.model_config.decoder import DecoderConfig
from kvengine.model_config.gguf import config_from_gguf
from kvengine.model_config.huggingface import config_from_json
from kvengine.model_files import ModelFormat, model_format


def read_config(path: Path) -> DecoderConfig:
    """Read the configuration of a model folder, a `config.json` or a GGUF file; weights are not read.

    Raises:
        ConfigError: The file is missing or broken, a field is missing or impossible, or the model needs something that
            is not built here; the message names file and key.
    """
    if path.suffix == ".json" and path.is_file():
        return config_from_json(path)
    if model_format(path) is ModelFormat.FOLDER:
        return config_from_json(path / "config.json")
    return config_from_gguf(read_gguf(path))
