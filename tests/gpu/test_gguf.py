"""Is a GGUF file read as it was written, and is everything else refused in one sentence?"""

from __future__ import annotations

import struct
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")

from tests.gpu.test_weights import CONFIG, KEY, assert_same, shape  # noqa: E402

from draftproof.gpu.errors import ModelError  # noqa: E402
from draftproof.gpu.models.rope import inverse_frequencies  # noqa: E402
from draftproof.gpu.weights import load_weights  # noqa: E402
from draftproof.gpu.weights.random_weights import random_weights  # noqa: E402

GGUF_FAMILIES = {"llama": "LlamaForCausalLM", "qwen2": "Qwen2ForCausalLM", "qwen3": "Qwen3ForCausalLM"}


def write_gguf(path: Path, family: str, weights: dict[str, Any], **extra: Any) -> Path:
    """As llama.cpp's converter does: GGUF's names, and for llama the rows of q and k in pairs."""
    gguf = pytest.importorskip("gguf")
    from draftproof.gpu.weights.gguf_file import gguf_name

    writer = gguf.GGUFWriter(path, family)
    writer.add_block_count(CONFIG["num_hidden_layers"])
    writer.add_context_length(CONFIG["max_position_embeddings"])
    writer.add_embedding_length(CONFIG["hidden_size"])
    writer.add_feed_forward_length(CONFIG["intermediate_size"])
    writer.add_head_count(CONFIG["num_attention_heads"])
    writer.add_head_count_kv(CONFIG["num_key_value_heads"])
    writer.add_layer_norm_rms_eps(1e-6)
    writer.add_rope_freq_base(10000.0)
    writer.add_key_length(CONFIG["head_dim"])
    writer.add_token_list([f"token {index}" for index in range(CONFIG["vocab_size"])])
    writer.add_eos_token_id(2)
    writer.add_bos_token_id(1)
    for name, tensor in weights.items():
        array = tensor.numpy()
        if family == "llama" and (".q_proj." in name or ".k_proj." in name):
            heads = CONFIG["num_attention_heads" if ".q_proj." in name else "num_key_value_heads"]
            array = array.reshape(heads, 2, -1, *array.shape[1:]).swapaxes(1, 2).reshape(array.shape)
        kind = extra.get("kind") if array.ndim == 2 else None
        stored = gguf.quantize(array, kind) if kind is not None else array
        writer.add_tensor(gguf_name(name), stored, raw_dtype=kind)
    for key, value in extra.get("metadata", {}).items():
        (writer.add_float32 if isinstance(value, float) else writer.add_string)(f"{family}.{key}", value)
    for name, tensor in extra.get("tensors", {}).items():
        writer.add_tensor(name, tensor.numpy())
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


@pytest.mark.parametrize("tied", [False, True])
@pytest.mark.parametrize("family", GGUF_FAMILIES)
def test_a_gguf_file_is_read_as_it_was_written(family: str, tied: bool, tmp_path: Path) -> None:
    expected = shape(architectures=[GGUF_FAMILIES[family]], tie_word_embeddings=tied)
    weights = random_weights(expected, seed=2)
    path = write_gguf(tmp_path / "model.gguf", family, weights)
    read, loaded = load_weights(path, torch.float32)
    assert replace(read, rms_norm_eps=1e-6) == expected
    assert read.rms_norm_eps == pytest.approx(1e-6)
    assert_same(loaded, weights)


def test_biases_of_a_llama_gguf_are_in_the_order_of_their_rows(tmp_path: Path) -> None:
    biased = shape(attention_bias=True)
    weights = random_weights(biased, seed=2)
    _, loaded = load_weights(write_gguf(tmp_path / "model.gguf", "llama", weights), torch.float32)
    assert_same(loaded, weights)


@pytest.mark.parametrize(
    ("kind", "tolerance"), [("Q8_0", 0.01), ("Q4_1", 0.15), ("F16", 1e-3), ("BF16", 1e-2)]
)
def test_a_quantised_gguf_is_dequantised(kind: str, tolerance: float, tmp_path: Path) -> None:
    gguf = pytest.importorskip("gguf")
    weights = random_weights(shape(), seed=2)
    quantised = getattr(gguf.GGMLQuantizationType, kind)
    path = write_gguf(tmp_path / "model.gguf", "llama", weights, kind=quantised)
    _, loaded = load_weights(path, torch.bfloat16)
    for name, tensor in weights.items():
        assert loaded[name].dtype == torch.bfloat16
        torch.testing.assert_close(loaded[name].float(), tensor, atol=tolerance, rtol=2.0**-7)
    assert not torch.equal(loaded[KEY], weights[KEY].bfloat16()) or kind in ("F16", "BF16")


def test_the_factors_of_llama_3_are_read_from_their_tensor(tmp_path: Path) -> None:
    factors = torch.tensor([1.0, 1.0, 3.5, 8.0])
    path = write_gguf(
        tmp_path / "model.gguf", "llama", random_weights(shape(), 2), tensors={"rope_freqs.weight": factors}
    )
    read, _ = load_weights(path, torch.float32)
    torch.testing.assert_close(inverse_frequencies(read)[0] * factors, inverse_frequencies(shape())[0])


def test_the_scaling_in_the_metadata_is_read(tmp_path: Path) -> None:
    scaling: dict[str, Any] = {"rope.scaling.type": "linear", "rope.scaling.factor": 4.0}
    path = write_gguf(tmp_path / "model.gguf", "llama", random_weights(shape(), 2), metadata=scaling)
    read, _ = load_weights(path, torch.float32)
    torch.testing.assert_close(inverse_frequencies(read)[0] * 4, inverse_frequencies(shape())[0])
    yarn = {**scaling, "rope.scaling.type": "yarn", "rope.scaling.attn_factor": 0.5}
    path = write_gguf(tmp_path / "yarn.gguf", "llama", random_weights(shape(), 2), metadata=yarn)
    assert inverse_frequencies(load_weights(path, torch.float32)[0])[1] == pytest.approx(0.5 * 1.1386294)


def _gguf_header(*values: tuple[str, Any]) -> bytes:
    return b"GGUF" + b"".join(struct.pack("<" + form, value) for form, value in values)


LONG_ARRAY = (("Q", 1), ("c", b"a"), ("I", 9), ("I", 4), ("Q", 1 << 50))
LONG_STRING = (("Q", 1), ("c", b"a"), ("I", 8), ("Q", 1 << 63))


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        (b"", "does not start with GGUF"),
        (b"pickle", "does not start with GGUF"),
        (b"GGUF\3", "is not a whole GGUF file"),
        (_gguf_header(("I", 1), ("Q", 0), ("Q", 0)), "only versions 2 and 3"),
        (_gguf_header(("I", 3), ("Q", 1 << 60), ("Q", 0)), "cannot be"),
        (_gguf_header(("I", 3), ("Q", 0), ("Q", 1), *LONG_ARRAY), "ends within its metadata"),
        (_gguf_header(("I", 3), ("Q", 0), ("Q", 1), *LONG_STRING), "ends within its metadata"),
        (_gguf_header(("I", 3), ("Q", 5), ("Q", 0)), "is not a whole GGUF file"),
        (_gguf_header(("I", 3), ("Q", 0), ("Q", 0)), "architecture None is not supported"),
    ],
    ids=lambda value: value if isinstance(value, str) else "file",  # bytes make unreadable names
)
def test_a_gguf_file_that_is_wrong_is_refused(content: bytes, sentence: str, tmp_path: Path) -> None:
    pytest.importorskip("gguf")
    path = tmp_path / "model.gguf"
    path.write_bytes(content)
    with pytest.raises(ModelError) as refusal:
        load_weights(path, torch.float32)
    assert sentence in str(refusal.value)
    assert "\n" not in str(refusal.value)


def test_a_gguf_file_cut_anywhere_is_refused(tmp_path: Path) -> None:
    path = write_gguf(tmp_path / "model.gguf", "llama", random_weights(shape(), 2))
    whole = path.read_bytes()
    for length in (*range(0, 4000, 37), *range(4000, len(whole) - 1, 4999), len(whole) - 40):
        path.write_bytes(whole[:length])
        with pytest.raises(ModelError, match=r"is not a whole GGUF file|not supported|is missing"):
            load_weights(path, torch.float32)


def test_a_gguf_file_of_other_tensors_is_refused(tmp_path: Path) -> None:
    weights = random_weights(shape(), 2)
    path = tmp_path / "model.gguf"
    write_gguf(path, "llama", {name: tensor for name, tensor in weights.items() if name != KEY})
    with pytest.raises(ModelError, match=r"the tensor blk\.1\.attn_k\.weight is missing"):
        load_weights(path, torch.float32)
    write_gguf(path, "llama", weights | {KEY: torch.zeros(16, 16)})
    with pytest.raises(ModelError, match=r"has shape \(16, 16\), but the metadata asks for \(16, 32\)"):
        load_weights(path, torch.float32)
    write_gguf(path, "llama", weights, tensors={"blk.0.ffn_gate_inp.weight": torch.zeros(4)})
    with pytest.raises(ModelError, match=r"ffn_gate_inp\.weight is not known"):
        load_weights(path, torch.float32)
    write_gguf(path, "gemma", weights)
    with pytest.raises(ModelError, match="architecture 'gemma' is not supported"):
        load_weights(path, torch.float32)
