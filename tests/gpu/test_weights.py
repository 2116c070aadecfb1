"""Are weights read as they were written, and is everything else refused in one sentence?"""

from __future__ import annotations

import json
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")
from torch.nn import functional  # noqa: E402

from draftproof.gpu.errors import ModelError  # noqa: E402
from draftproof.gpu.models.decoder import Decoder  # noqa: E402
from draftproof.gpu.models.shape import ModelShape, shape_of  # noqa: E402
from draftproof.gpu.weights import load_weights  # noqa: E402
from draftproof.gpu.weights.random_weights import random_weights  # noqa: E402
from draftproof.gpu.weights.safetensors_folder import load_safetensors_folder, read_shape  # noqa: E402

CONFIG: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"],
    "vocab_size": 64,
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "max_position_embeddings": 128,
    "eos_token_id": 2,
    "bos_token_id": 1,
}
KEY = "model.layers.1.self_attn.k_proj.weight"
INDEX = "model.safetensors.index.json"


def shape(**changes: Any) -> ModelShape:
    return shape_of(CONFIG | changes)


def write_folder(
    folder: Path, weights: dict[str, Any], num_shards: int = 1, config: dict[str, Any] = CONFIG
) -> Path:
    """A model's folder as save_pretrained lays it out; with shards, a tensor goes to each in turn."""
    save_file = pytest.importorskip("safetensors.torch").save_file
    (folder / "config.json").write_text(json.dumps(config))
    if num_shards == 1:
        save_file(weights, folder / "model.safetensors")
        return folder
    names = [f"model-{shard + 1:05}-of-{num_shards:05}.safetensors" for shard in range(num_shards)]
    places = {name: names[index % num_shards] for index, name in enumerate(weights)}
    for file in names:
        save_file({name: weights[name] for name in weights if places[name] == file}, folder / file)
    (folder / INDEX).write_text(json.dumps({"metadata": {}, "weight_map": places}))
    return folder


def assert_same(actual: dict[str, Any], expected: dict[str, Any]) -> None:
    assert actual.keys() == expected.keys()
    for name, tensor in expected.items():
        assert torch.equal(actual[name], tensor), name


@pytest.mark.parametrize("num_shards", [1, 3])
def test_a_folder_is_read_as_it_was_written(num_shards: int, tmp_path: Path) -> None:
    weights = random_weights(shape(), seed=1)
    write_folder(tmp_path, weights, num_shards)
    read, loaded = load_safetensors_folder(tmp_path, torch.float32)
    assert read == shape()
    assert_same(loaded, weights)
    _, rounded = load_weights(tmp_path, torch.bfloat16)
    assert_same(rounded, {name: tensor.bfloat16() for name, tensor in weights.items()})


def test_shards_of_transformers_hold_the_weights_of_transformers(tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers")
    pytest.importorskip("safetensors")
    torch.manual_seed(0)
    sizes = {name: value for name, value in CONFIG.items() if name != "architectures"}
    model = transformers.AutoModelForCausalLM.from_config(transformers.LlamaConfig(**sizes)).eval()
    model.save_pretrained(tmp_path, max_shard_size="30KB")
    assert len(list(tmp_path.glob("*.safetensors"))) > 1
    _, loaded = load_safetensors_folder(tmp_path, torch.float32)
    assert_same(loaded, {name: tensor.detach() for name, tensor in model.state_dict().items()})


def test_weights_are_copies_of_the_file(tmp_path: Path) -> None:
    """Another download into the same file does not change a model that runs."""
    weights = random_weights(shape(), seed=1)
    write_folder(tmp_path, weights)
    _, loaded = load_safetensors_folder(tmp_path, torch.float32)
    file = tmp_path / "model.safetensors"
    with file.open("r+b") as stream:
        stream.seek(-4096, 2)
        stream.write(bytes(4096))
    assert_same(loaded, weights)


def test_a_tied_model_ignores_a_head_that_was_stored(tmp_path: Path) -> None:
    tied = shape(tie_word_embeddings=True)
    weights = random_weights(tied, seed=1)
    extra = {
        "lm_head.weight": torch.zeros(64, 32),
        "model.layers.0.self_attn.rotary_emb.inv_freq": torch.zeros(4),
    }
    write_folder(tmp_path, weights | extra, config=CONFIG | {"tie_word_embeddings": True})
    _, loaded = load_safetensors_folder(tmp_path, torch.float32)
    assert_same(loaded, weights)
    decoder = Decoder(tied, loaded)
    assert decoder.head is decoder.embedding


def test_the_generation_configuration_adds_end_of_text_tokens(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(CONFIG))
    (tmp_path / "generation_config.json").write_text(json.dumps({"eos_token_id": [7, 2]}))
    assert read_shape(tmp_path).eos_token_ids == (2, 7)


def _edit_json(file: str, **changes: Any) -> Callable[[Path], None]:
    def edit(folder: Path) -> None:
        content = json.loads((folder / file).read_text())
        (folder / file).write_text(json.dumps(content | changes))

    return edit


def _place(name: str, file: Any) -> Callable[[Path], None]:
    def edit(folder: Path) -> None:
        content = json.loads((folder / INDEX).read_text())
        content["weight_map"][name] = file
        (folder / INDEX).write_text(json.dumps(content))

    return edit


def _write(file: str, content: bytes) -> Callable[[Path], None]:
    def edit(folder: Path) -> None:
        (folder / file).write_bytes(content)

    return edit


def _cut(folder: Path) -> None:
    file = folder / "model-00003-of-00003.safetensors"
    file.write_bytes(file.read_bytes()[:-100])


def _only_pickles(folder: Path) -> None:
    for file in (*folder.glob("*.safetensors"), folder / INDEX):
        file.unlink()
    (folder / "pytorch_model.bin").write_bytes(b"cos\nsystem\n(S'exit 1'\ntR.")


def _remove(file: str) -> Callable[[Path], None]:
    return lambda folder: (folder / file).unlink()


FIRST = "model-00001-of-00003.safetensors"
LAST = "model-00003-of-00003.safetensors"
LONG_HEADER = struct.pack("<Q", 1 << 62) + b"{}"
SMALLER_DATA = struct.pack("<Q", 64) + json.dumps(
    {KEY: {"dtype": "F32", "shape": [1 << 40, 1 << 40], "data_offsets": [0, 4]}}
).encode().ljust(64)


@pytest.mark.parametrize(
    ("edit", "sentence"),
    [
        (_remove("config.json"), "config.json is missing"),
        (_write("config.json", b'{"a": '), "config.json is not valid JSON"),
        (_write("config.json", b"\xff\xfe"), "config.json is not valid JSON"),
        (_write("config.json", b"[" * 100_000), "config.json is not valid JSON"),
        (_write("config.json", b"[]"), "must hold a JSON object, not list"),
        (
            _edit_json("config.json", architectures=["OtherModel"]),
            "architecture 'OtherModel' is not supported",
        ),
        (_edit_json("config.json", num_hidden_layers=3), "lacks the tensor model.layers.2."),
        (_edit_json("config.json", num_hidden_layers=1), "which this model does not know"),
        (
            _edit_json("config.json", intermediate_size=65),
            "has shape (64, 32), but config.json asks for (65, 32)",
        ),
        (_edit_json("config.json", vocab_size=1 << 23), "but config.json asks for (8388608, 32)"),
        (_edit_json(INDEX, weight_map={}), "has no weight_map"),
        (_edit_json(INDEX, weight_map=[]), "has no weight_map"),
        (_place(KEY, "../model.safetensors"), "not a safetensors file of that folder"),
        (_place(KEY, "/tmp/model.safetensors"), "not a safetensors file of that folder"),
        (_place(KEY, "..\\model.safetensors"), "not a safetensors file of that folder"),
        (_place(KEY, "weights.bin"), "not a safetensors file of that folder"),
        (_place(KEY, 5), "not a safetensors file of that folder"),
        (_place(KEY, "absent.safetensors"), "absent.safetensors is missing"),
        (_place("model.norm.weight", FIRST), f"{FIRST} lacks model.norm.weight"),
        (_remove(LAST), f"{LAST} is missing"),
        (_remove(INDEX), f"has neither model.safetensors nor {INDEX}"),
        (_cut, f"{LAST} is truncated or corrupt"),
        (_write(LAST, b""), f"{LAST} is truncated or corrupt"),
        (_write(LAST, b"x" * 1000), f"{LAST} is truncated or corrupt"),
        (_write(LAST, LONG_HEADER), f"{LAST} is truncated or corrupt"),
        (_write(LAST, SMALLER_DATA), f"{LAST} is truncated or corrupt"),
        (_only_pickles, "only as pickles"),
    ],
)
def test_a_folder_that_is_wrong_is_refused_before_anything_is_loaded(
    edit: Callable[[Path], None], sentence: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_folder(tmp_path, random_weights(shape(), seed=1), num_shards=3)
    edit(tmp_path)

    def no_loading(*arguments: Any) -> Any:
        raise AssertionError("a tensor was loaded before all were checked")

    monkeypatch.setattr("draftproof.gpu.weights.safetensors_folder._loaded", no_loading)
    with pytest.raises(ModelError) as refusal:
        load_safetensors_folder(tmp_path, torch.float32)
    assert sentence in str(refusal.value)
    assert "\n" not in str(refusal.value)


def test_integers_are_no_weights(tmp_path: Path) -> None:
    weights = random_weights(shape(), seed=1)
    write_folder(tmp_path, weights | {KEY: weights[KEY].to(torch.int8)})
    with pytest.raises(ModelError, match=f"{KEY} is stored as I8"):
        load_safetensors_folder(tmp_path, torch.float32)


def test_a_path_that_is_no_model_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="check the path"):
        load_weights(tmp_path / "absent", torch.float32)
    (tmp_path / "model.bin").write_bytes(b"")
    with pytest.raises(ModelError, match="is not a GGUF file"):
        load_weights(tmp_path / "model.bin", torch.float32)
    with pytest.raises(ModelError, match="is not a folder"):
        read_shape(tmp_path / "model.bin")


def test_random_weights_are_those_of_their_seed() -> None:
    first = random_weights(shape(), 7)
    assert_same(random_weights(shape(), 7), first)
    assert not torch.equal(random_weights(shape(), 8)[KEY], first[KEY])
    assert_same(random_weights(shape(), 7, torch.bfloat16), {name: first[name].bfloat16() for name in first})
    assert {name: tuple(tensor.shape) for name, tensor in first.items()} == shape().tensor_shapes()


@pytest.mark.parametrize("family", ["LlamaForCausalLM", "Qwen2ForCausalLM", "Qwen3ForCausalLM"])
def test_random_models_have_logits_of_size_one(family: str) -> None:
    random_shape = shape(architectures=[family], num_hidden_layers=6)
    decoder = Decoder(random_shape, random_weights(random_shape, 0))

    def attend(layer: int, query: Any, key: Any, value: Any) -> Any:
        query, key, value = (tensor.transpose(0, 1) for tensor in (query, key, value))
        attended = functional.scaled_dot_product_attention(query, key, value, is_causal=True, enable_gqa=True)
        return attended.transpose(0, 1)

    hidden = decoder.forward(torch.arange(40), torch.arange(40), attend)
    assert 0.5 < decoder.logits(hidden).std() < 2.0
