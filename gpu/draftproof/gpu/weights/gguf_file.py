"""How is a model read from a GGUF file? Its metadata as a configuration, its tensors dequantised and renamed.

GGUF is llama.cpp's format: one file with metadata, tokenizer and (mostly quantised) weights. The sizes in its
header are checked against the length of the file before the package `gguf` is let in, which trusts them.
"""

from __future__ import annotations

import math
import struct
from dataclasses import replace
from pathlib import Path
from typing import Any, BinaryIO

import torch

from draftproof.gpu.errors import ModelError
from draftproof.gpu.models.shape import ModelShape, RopeScaling, shape_of

ARCHITECTURES = {"llama": "LlamaForCausalLM", "qwen2": "Qwen2ForCausalLM", "qwen3": "Qwen3ForCausalLM"}
LIMIT = 1 << 20  # tensors, or metadata keys: far more than any file has
STRING, ARRAY = 8, 9  # kinds of metadata values
SCALAR_BYTES = {0: 1, 1: 1, 2: 2, 3: 2, 4: 4, 5: 4, 6: 4, 7: 1, 10: 8, 11: 8, 12: 8}
ROPE_FACTORS = "rope_freqs.weight"

# Hugging Face's name of a weight: GGUF's, outside and inside of a layer.
MODEL_NAMES = {
    "model.embed_tokens": "token_embd",
    "model.norm": "output_norm",
    "lm_head": "output",
}
LAYER_NAMES = {
    "input_layernorm": "attn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "self_attn.q_norm": "attn_q_norm",
    "self_attn.k_norm": "attn_k_norm",
    "post_attention_layernorm": "ffn_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}


def load_gguf_file(path: str | Path, dtype: Any, device: Any = "cpu") -> tuple[ModelShape, dict[str, Any]]:
    """The shape and the tensors by their Hugging Face names, dequantised to `dtype` on `device`.

    Architectures llama, qwen2 and qwen3. Raises `ModelError` for a truncated or corrupt file, another
    architecture, and a missing, unknown or misshapen tensor, before any tensor is dequantised.
    """
    path = Path(path)
    shape, stored = _examined(path)
    weights = {
        name: _dequantised(path, stored[gguf_name(name)], name, shape).to(device=device, dtype=dtype)
        for name in shape.tensor_shapes()
    }
    return shape, weights


def read_gguf_shape(path: str | Path) -> ModelShape:
    """The shape alone; no tensor is read. Raises `ModelError` as above."""
    return _examined(Path(path))[0]


def _examined(path: Path) -> tuple[ModelShape, dict[str, Any]]:
    """The shape, and the tensors that it asks for, mapped and not read."""
    metadata, stored = _read(path)
    try:
        shape = _shape(metadata, stored)
        _check_tensors(shape, stored)
    except ModelError as error:
        raise ModelError(f"{path}: {error}") from None
    return shape, stored


def gguf_name(name: str) -> str:
    """What GGUF calls the weight that Hugging Face calls `name`."""
    stem, _, kind = name.rpartition(".")
    if stem in MODEL_NAMES:
        return f"{MODEL_NAMES[stem]}.{kind}"
    _, _, layer, inside = stem.split(".", 3)  # model.layers.LAYER.INSIDE
    return f"blk.{layer}.{LAYER_NAMES[inside]}.{kind}"


def _read(path: Path) -> tuple[dict[str, Any], dict[str, Any]]:
    """Metadata and tensors (mapped, not read) by name."""
    try:
        from gguf import GGUFReader
    except ImportError:
        raise ModelError(f"{path} cannot be read without the package gguf: install it") from None
    try:
        with path.open("rb") as stream:
            check_header(stream, path.stat().st_size)
        reader = GGUFReader(path)
        fields = reader.fields.items()
        metadata = {key: field.contents() for key, field in fields if not _is_vocabulary(key)}
        return metadata, {tensor.name: tensor for tensor in reader.tensors}
    except (ValueError, IndexError, KeyError, TypeError, OverflowError, OSError, struct.error) as error:
        reason = (str(error).splitlines() or [type(error).__name__])[0][:200]
        raise ModelError(f"{path} is not a whole GGUF file ({reason}): download it again") from None


def _is_vocabulary(key: str) -> bool:
    """Whether it belongs to the tokenizer, and is no token's id: long lists that no weight needs."""
    return key.startswith("tokenizer.") and not key.endswith("_token_id")


def check_header(stream: BinaryIO, length: int) -> None:
    """Walks over the metadata and raises ValueError if a size in it exceeds the file."""

    def number(form: str) -> int:
        (value,) = struct.unpack("<" + form, stream.read(struct.calcsize(form)))
        return int(value)

    def skip(num_bytes: int) -> None:
        if num_bytes > length - stream.tell():
            raise ValueError("it ends within its metadata")
        stream.seek(num_bytes, 1)

    def skip_value(kind: int, count: int) -> None:
        if kind == STRING:
            for _ in range(count):  # each has 8 bytes at least, so the file's length is a bound
                skip(number("Q"))
        elif kind in SCALAR_BYTES:
            skip(SCALAR_BYTES[kind] * count)
        else:
            raise ValueError(f"unknown kind of metadata {kind}")

    if stream.read(4) != b"GGUF":
        raise ValueError("it does not start with GGUF")
    if number("I") not in (2, 3):
        raise ValueError("only versions 2 and 3, little-endian, can be read")
    num_tensors, num_keys = number("Q"), number("Q")
    if max(num_tensors, num_keys) > LIMIT:
        raise ValueError(f"{num_tensors} tensors and {num_keys} metadata keys cannot be")
    for _ in range(num_keys):
        skip(number("Q"))
        kind = number("I")
        skip_value(number("I"), number("Q")) if kind == ARRAY else skip_value(kind, 1)


def _shape(metadata: dict[str, Any], stored: dict[str, Any]) -> ModelShape:
    """The metadata, said as a `config.json`, so that one place decides what is possible."""
    family = metadata.get("general.architecture")
    if not isinstance(family, str) or family not in ARCHITECTURES:
        raise ModelError(f"architecture {family!r} is not supported: use one of {', '.join(ARCHITECTURES)}")
    if "token_embd.weight" not in stored:
        raise ModelError("the tensor token_embd.weight is missing")

    def of_family(key: str) -> Any:
        return metadata.get(f"{family}.{key}")

    config = {
        "architectures": [ARCHITECTURES[family]],
        "vocab_size": _size(stored["token_embd.weight"])[0],
        "hidden_size": of_family("embedding_length"),
        "num_hidden_layers": of_family("block_count"),
        "num_attention_heads": of_family("attention.head_count"),
        "num_key_value_heads": of_family("attention.head_count_kv"),
        "head_dim": of_family("attention.key_length") or _plain_head_dim(metadata, family),
        "intermediate_size": of_family("feed_forward_length"),
        "rms_norm_eps": of_family("attention.layer_norm_rms_epsilon"),
        "rope_theta": of_family("rope.freq_base"),
        "rope_scaling": _rope_scaling(metadata, family),
        "use_sliding_window": True,
        "sliding_window": of_family("attention.sliding_window") or None,
        "max_position_embeddings": of_family("context_length"),
        "tie_word_embeddings": "output.weight" not in stored,
        "attention_bias": "blk.0.attn_q.bias" in stored,
        "eos_token_id": _end_tokens(metadata),
        "bos_token_id": metadata.get("tokenizer.ggml.bos_token_id"),
    }
    shape = shape_of(config)
    if of_family("rope.dimension_count") not in (None, shape.head_dim):
        raise ModelError(
            f"RoPE on {of_family('rope.dimension_count')} of {shape.head_dim} dimensions is not supported"
        )
    return _with_rope_factors(shape, stored)


def _plain_head_dim(metadata: dict[str, Any], family: str) -> Any:
    """Where a file does not give it: llama.cpp's default, for every family."""
    hidden, heads = metadata.get(f"{family}.embedding_length"), metadata.get(f"{family}.attention.head_count")
    return hidden // heads if type(hidden) is int and type(heads) is int and heads > 0 else None


def _end_tokens(metadata: dict[str, Any]) -> list[Any]:
    """End of text, then end of turn if it is another."""
    found = [metadata.get(f"tokenizer.ggml.{name}_token_id") for name in ("eos", "eot")]
    return list(dict.fromkeys(token for token in found if token is not None))


def _rope_scaling(metadata: dict[str, Any], family: str) -> dict[str, Any] | None:
    prefix = f"{family}.rope.scaling."
    kind = metadata.get(prefix + "type")
    if kind in (None, "none"):
        return None
    factor = metadata.get(prefix + "factor")
    scaling = {
        "rope_type": kind,
        "factor": factor,
        "original_max_position_embeddings": metadata.get(prefix + "original_context_length"),
        "beta_fast": metadata.get(prefix + "yarn_beta_fast"),
        "beta_slow": metadata.get(prefix + "yarn_beta_slow"),
    }
    own = metadata.get(prefix + "yarn_attn_factor") or metadata.get(prefix + "attn_factor")
    if kind == "yarn" and own and factor and factor > 0:
        # llama.cpp multiplies its own factor with YaRN's.
        scaling["attention_factor"] = own * (1.0 + 0.1 * math.log(max(factor, 1.0)))
    return scaling


def _with_rope_factors(shape: ModelShape, stored: dict[str, Any]) -> ModelShape:
    """Llama 3's scaling is stored as one divisor for each frequency."""
    if ROPE_FACTORS not in stored:
        return shape
    if shape.rope_scaling is not None or _size(stored[ROPE_FACTORS]) != (shape.head_dim // 2,):
        raise ModelError(
            f"{ROPE_FACTORS} does not fit the model: it holds one number for two dimensions of a head"
        )
    factors = tuple(float(factor) for factor in stored[ROPE_FACTORS].data)
    return replace(shape, rope_scaling=RopeScaling("factors", frequency_factors=factors))


def _size(tensor: Any) -> tuple[int, ...]:
    """GGUF lists the dimensions from the innermost one."""
    return tuple(int(length) for length in reversed(tensor.shape))


def _check_tensors(shape: ModelShape, stored: dict[str, Any]) -> None:
    expected = {gguf_name(name): size for name, size in shape.tensor_shapes().items()}
    for name, size in expected.items():
        if name not in stored:
            raise ModelError(f"the tensor {name} is missing")
        if _size(stored[name]) != size:
            raise ModelError(f"{name} has shape {_size(stored[name])}, but the metadata asks for {size}")
    for name in stored:
        if name not in expected and name != ROPE_FACTORS:
            raise ModelError(f"the tensor {name} is not known to this model")


def _dequantised(path: Path, tensor: Any, name: str, shape: ModelShape) -> Any:
    """float32 of the shape it has in Hugging Face's checkpoint."""
    import numpy
    from gguf import dequantize

    try:
        values = dequantize(tensor.data, tensor.tensor_type)
    except (NotImplementedError, ValueError) as error:
        raise ModelError(
            f"{path}: {tensor.name} cannot be dequantised from {tensor.tensor_type.name} ({error})"
        ) from None
    weight = torch.from_numpy(numpy.array(values, dtype=numpy.float32)).view(_size(tensor))
    if shape.family == "llama" and ".self_attn.q_proj." in name:
        return _halves(weight, shape.num_heads)
    if shape.family == "llama" and ".self_attn.k_proj." in name:
        return _halves(weight, shape.num_kv_heads)
    return weight


def _halves(weight: Any, num_heads: int) -> Any:
    """Undoes the order of rows in which RoPE turns neighbours, as llama.cpp has it for this architecture.

    Source: `permute` in llama.cpp's converter from Hugging Face checkpoints.
    """
    by_pair = weight.view(num_heads, -1, 2, *weight.shape[1:])
    return by_pair.transpose(1, 2).reshape(weight.shape)
