"""What does the model compute? Tokens and positions in, hidden states and logits out; attention is a guest.

One decoder for the Llama, Qwen2 and Qwen3 families, over a flat batch: T rows of any requests, in any mix of
prefill and speculative rows. Keys and values are never kept here: `attend` stores and reads them. A step asks
the device nothing (no value is read back), so it can be captured in a graph.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import torch
from torch.nn import functional

from draftproof.gpu.errors import ModelError
from draftproof.gpu.models.projection import Matrix, product
from draftproof.gpu.models.rope import cosine_and_sine, inverse_frequencies, rotate
from draftproof.gpu.models.shape import ModelShape

# From the layer's index, query [T, num_heads, head_dim], key and value [T, num_kv_heads, head_dim], all of
# them views with the strides of the fused matrix, to the attended values [T, num_heads, head_dim].
Attend = Callable[[int, Any, Any, Any], Any]
DTYPES = (torch.float32, torch.bfloat16, torch.float16)


class Layer(NamedTuple):
    """One layer's tensors; what reads the same input is one matrix, so that it is one kernel."""

    input_norm: Any  # [hidden_size]
    qkv: Matrix  # [(num_heads + 2 num_kv_heads) head_dim, hidden_size]
    qk_norm: Any | None  # [num_heads + num_kv_heads, head_dim]: a head's own row of weights
    output: Matrix  # [hidden_size, num_heads head_dim]
    mlp_norm: Any  # [hidden_size]
    gate_up: Matrix  # [2 intermediate_size, hidden_size]
    down: Matrix  # [hidden_size, intermediate_size]


class Decoder:
    """A model ready to run, on the device and in the dtype of its weights."""

    def __init__(self, shape: ModelShape, weights: Mapping[str, Any]) -> None:
        """From the tensors that `shape.tensor_shapes()` names, all of one dtype on one device.

        The fused matrices are copies, and on a CPU there are packed ones: drop `weights` afterwards. Raises
        `ModelError` for a missing, unknown or misshapen tensor, or for mixed dtypes or devices.
        """
        check_weights(shape, weights)
        self.shape = shape
        self.embedding = weights["model.embed_tokens.weight"]
        self.final_norm = weights["model.norm.weight"]
        self.head = self.embedding if shape.tie_word_embeddings else weights["lm_head.weight"]
        self._epsilon = torch.tensor(shape.rms_norm_eps, dtype=torch.float32, device="cpu")
        # With the head that it was made of, when logits are first asked for: not every decoder's are.
        self._packed_head: tuple[Any, Matrix] | None = None
        self.layers = [_layer(shape, weights, f"model.layers.{index}.") for index in range(shape.num_layers)]
        self.frequencies, self.attention_factor = inverse_frequencies(shape, self.embedding.device)

    @property
    def device(self) -> Any:
        return self.embedding.device

    @property
    def dtype(self) -> Any:
        return self.embedding.dtype

    def forward(self, token_ids: Any, positions: Any, attend: Attend) -> Any:
        """Hidden states [T, hidden_size] after the last norm, for token_ids and positions int64[T].

        Token ids must be in the vocabulary: a placeholder such as -1 is the caller's to replace.
        """
        return self.forward_hidden(functional.embedding(token_ids, self.embedding), positions, attend)

    def forward_hidden(self, hidden: Any, positions: Any, attend: Attend) -> Any:
        """The same from what enters the first layer, [T, hidden_size]."""
        cosine, sine = cosine_and_sine(positions, self.frequencies, self.attention_factor, self.dtype)
        for index, layer in enumerate(self.layers):
            hidden = hidden + self._attention(index, layer, hidden, cosine, sine, attend)
            hidden = hidden + self._mlp(layer, hidden)
        return self._norm(hidden, self.final_norm)

    def logits(self, hidden: Any) -> Any:
        """float32[R, vocab_size] for the rows of `forward` that are sampled from, [R, hidden_size]."""
        if self._packed_head is None or self._packed_head[0] is not self.head:
            self._packed_head = self.head, Matrix(self.head)
        return self._packed_head[1].product(hidden).float()

    def _attention(
        self, index: int, layer: Layer, hidden: Any, cosine: Any, sine: Any, attend: Attend
    ) -> Any:
        shape = self.shape
        num_rotated = shape.num_heads + shape.num_kv_heads
        qkv = layer.qkv.product(self._norm(hidden, layer.input_norm))
        heads = qkv.view(-1, num_rotated + shape.num_kv_heads, shape.head_dim)
        query_and_key, value = heads[:, :num_rotated], heads[:, num_rotated:]
        if layer.qk_norm is not None:
            query_and_key = self._norm(query_and_key, None) * layer.qk_norm
        query_and_key = rotate(query_and_key, cosine, sine)
        query, key = query_and_key[:, : shape.num_heads], query_and_key[:, shape.num_heads :]
        attended = attend(index, query, key, value).reshape(-1, shape.num_heads * shape.head_dim)
        return layer.output.product(attended)

    def _mlp(self, layer: Layer, hidden: Any) -> Any:
        gate, up = product(self._norm(hidden, layer.mlp_norm), layer.gate_up).chunk(2, -1)
        return product(functional.silu(gate) * up, layer.down)

    def _norm(self, hidden: Any, weight: Any | None) -> Any:
        """RMSNorm over the last dimension; the squares are summed in float32, whatever the dtype."""
        if hidden.device.type != "cpu":
            return functional.rms_norm(hidden, hidden.shape[-1:], weight, self.shape.rms_norm_eps)
        # The same in half the kernels that torch takes for it on a CPU.
        length = torch.linalg.vector_norm(hidden, dim=-1, keepdim=True, dtype=torch.float32)
        scale = torch.addcmul(self._epsilon, length, length, value=1 / hidden.shape[-1]).rsqrt_()
        scaled = hidden * scale
        return (scaled if weight is None else scaled * weight).to(hidden.dtype)


def _layer(shape: ModelShape, weights: Mapping[str, Any], prefix: str) -> Layer:
    def tensor(name: str) -> Any:
        return weights[prefix + name]

    def stacked(names: tuple[str, ...], kind: str) -> Any:
        return torch.cat([tensor(f"{name}.{kind}") for name in names])

    projections = ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj")
    qk_norm = None
    if shape.qk_norm:
        per_head = (("q", shape.num_heads), ("k", shape.num_kv_heads))
        qk_norm = torch.cat(
            [tensor(f"self_attn.{name}_norm.weight").expand(count, -1) for name, count in per_head]
        )
    return Layer(
        input_norm=tensor("input_layernorm.weight"),
        qkv=Matrix(
            stacked(projections, "weight"), stacked(projections, "bias") if shape.attention_bias else None
        ),
        qk_norm=qk_norm,
        output=Matrix(
            tensor("self_attn.o_proj.weight"),
            tensor("self_attn.o_proj.bias") if shape.output_bias else None,
        ),
        mlp_norm=tensor("post_attention_layernorm.weight"),
        gate_up=Matrix(stacked(("mlp.gate_proj", "mlp.up_proj"), "weight")),
        down=Matrix(tensor("mlp.down_proj.weight")),
    )


def check_weights(shape: ModelShape, weights: Mapping[str, Any]) -> None:
    """Raises `ModelError` unless the weights are exactly those that the shape names."""
    expected = shape.tensor_shapes()
    for name in expected.keys() ^ weights.keys():
        raise ModelError(f"the weights {'lack' if name in expected else 'have an unknown tensor'} {name}")
    like = weights["model.embed_tokens.weight"]
    if like.dtype not in DTYPES:
        raise ModelError(f"the weights must be float32, bfloat16 or float16, not {like.dtype}")
    for name, size in expected.items():
        tensor = weights[name]
        if tuple(tensor.shape) != size:
            raise ModelError(f"{name} has shape {tuple(tensor.shape)}, but this model needs {size}")
        if tensor.dtype != like.dtype or tensor.device != like.device:
            raise ModelError(
                f"{name} is {tensor.dtype} on {tensor.device}, the embedding {like.dtype} on {like.device}"
            )
