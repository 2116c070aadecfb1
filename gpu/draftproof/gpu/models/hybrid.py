"""What does a hybrid model compute? Some layers attend, the others carry a state from token to token.

Attention layers, MLPs and norms are those of `decoder`. A recurrent layer has one number of state a channel:

    h_t = a_t h_{t-1} + sqrt(1 - a_t^2) i_t u_t        output = W_o (silu(g_t) h_t)

where u, g and the gates are linear in the layer's input. The input gate i_t and the scale that keeps h_t of
one size are the RG-LRU's (Griffin, De et al. 2024), without the convolution before it; the decay
a_t = sigmoid(z_t)^(1/16) is that of gated linear attention (Yang et al. 2024). States are float32 whatever
the weights are, and are never kept here: `recur` reads and stores them, as `attend` does keys and values.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from typing import Any, NamedTuple

import torch
from torch.nn import functional

from draftproof.gpu.errors import ModelError, check_integer, refuse_unless
from draftproof.gpu.models.decoder import Attend, Decoder, check_weights
from draftproof.gpu.models.rope import cosine_and_sine
from draftproof.gpu.models.shape import LIMITS, ModelShape

# From the recurrent layer's index among its kind, decays and what enters the state, both float32[T, size],
# to the state after each token, float32[T, size].
Recur = Callable[[int, Any, Any], Any]
DECAY_TEMPERATURE = 16.0
"""The decay's root: how slowly a state fades at first (Yang et al. 2024, section 4.4)."""
MIXERS = ("self_attn.", "recurrent.")


@dataclass(frozen=True)
class HybridShape(ModelShape):
    """A decoder with recurrent layers. Raises `ModelError` for numbers that no model can have."""

    recurrent_layers: tuple[int, ...]
    """Which of the layers, ascending; at least one, and not all."""
    recurrent_size: int
    """Channels, and so float32 numbers, of one recurrent layer's state."""

    def __post_init__(self) -> None:
        super().__post_init__()
        check_integer("recurrent_size", self.recurrent_size, LIMITS["intermediate_size"])
        layers = self.recurrent_layers
        possible = isinstance(layers, tuple) and all(type(layer) is int for layer in layers)
        refuse_unless(
            possible and 0 < len(layers) < self.num_layers and set(layers) <= set(range(self.num_layers))
            and list(layers) == sorted(set(layers)),
            f"recurrent_layers must be some, not all, of the layers 0 to {self.num_layers - 1}, ascending",
        )  # fmt: skip

    @property
    def num_recurrent_layers(self) -> int:
        return len(self.recurrent_layers)

    @property
    def attention_layers(self) -> tuple[int, ...]:
        """The other layers: those with keys and values."""
        return tuple([layer for layer in range(self.num_layers) if layer not in self.recurrent_layers])

    def attention_part(self) -> ModelShape:
        """The model with its attention layers alone, numbered from 0: what a KV cache is sized by."""
        values: dict[str, Any] = {field.name: getattr(self, field.name) for field in fields(ModelShape)}
        values["num_layers"] = len(self.attention_layers)
        return ModelShape(**values)

    def tensor_shapes(self) -> dict[str, tuple[int, ...]]:
        """Every weight by name. A recurrent layer has `recurrent` where the others have `self_attn`."""
        hidden, size = self.hidden_size, self.recurrent_size
        shapes = super().tensor_shapes()
        for layer in self.recurrent_layers:
            prefix = f"model.layers.{layer}."
            shapes = {name: one for name, one in shapes.items() if not name.startswith(prefix + MIXERS[0])}
            for part in ("input", "gate", "input_gate", "decay"):
                shapes[f"{prefix}recurrent.{part}_proj.weight"] = (size, hidden)
            for part in ("input_gate", "decay"):
                shapes[f"{prefix}recurrent.{part}_proj.bias"] = (size,)
            shapes[f"{prefix}recurrent.output_proj.weight"] = (hidden, size)
        return shapes


class RecurrentLayer(NamedTuple):
    """One recurrent layer's tensors. Norms and MLP have the names that they have in `decoder.Layer`."""

    input_norm: Any  # [hidden_size]
    projections: Any  # [4 recurrent_size, hidden_size]: input, gate, input gate, decay
    input_gate_bias: Any  # [recurrent_size]
    decay_bias: Any  # [recurrent_size]
    output: Any  # [hidden_size, recurrent_size]
    mlp_norm: Any  # [hidden_size]
    gate_up: Any  # [2 intermediate_size, hidden_size]
    down: Any  # [hidden_size, intermediate_size]


class HybridDecoder(Decoder):
    """A hybrid model ready to run, on the device and in the dtype of its weights."""

    shape: HybridShape

    def __init__(self, shape: HybridShape, weights: Mapping[str, Any]) -> None:
        """From the tensors that `shape.tensor_shapes()` names, all of one dtype on one device.

        Raises `ModelError` for a missing, unknown or misshapen tensor, or for mixed dtypes or devices.
        """
        check_weights(shape, weights)  # under their own names: the attention part is numbered differently
        super().__init__(shape.attention_part(), _attention_weights(shape, weights))
        self.shape = shape
        attention, recurrent = iter(enumerate(self.layers)), iter(range(shape.num_recurrent_layers))
        # In the model's order, each with its index among its kind: that is what caches are indexed by.
        self.mixed_layers: list[tuple[int, Any]] = [
            (next(recurrent), _recurrent_layer(weights, f"model.layers.{layer}."))
            if layer in shape.recurrent_layers
            else next(attention)
            for layer in range(shape.num_layers)
        ]

    def forward(self, token_ids: Any, positions: Any, attend: Attend, recur: Recur | None = None) -> Any:
        """Hidden states [T, hidden_size] after the last norm, for token_ids and positions int64[T].

        `attend` and `recur` are called with a layer's index among the layers of its kind. Raises ModelError
        without `recur`; it is optional only because a plain decoder has none.
        """
        if recur is None:
            raise ModelError("a hybrid model runs with a recurrent state: give forward a `recur`")
        hidden = functional.embedding(token_ids, self.embedding)
        cosine, sine = cosine_and_sine(positions, self.frequencies, self.attention_factor, self.dtype)
        for index, layer in self.mixed_layers:
            if isinstance(layer, RecurrentLayer):
                hidden = hidden + self._recurrence(index, layer, hidden, recur)
            else:
                hidden = hidden + self._attention(index, layer, hidden, cosine, sine, attend)
            either: Any = layer
            hidden = hidden + self._mlp(either, hidden)
        return self._norm(hidden, self.final_norm)

    def _recurrence(self, index: int, layer: RecurrentLayer, hidden: Any, recur: Recur) -> Any:
        projected = functional.linear(self._norm(hidden, layer.input_norm), layer.projections)
        value, gate, input_gate, decay = projected.chunk(4, -1)
        log_decay = functional.logsigmoid((decay + layer.decay_bias).float()) / DECAY_TEMPERATURE
        # 1 - a^2, where a may be so near to 1 that the difference would be rounding alone.
        scale = torch.sqrt(-torch.expm1(2 * log_decay))
        update = scale * torch.sigmoid((input_gate + layer.input_gate_bias).float()) * value.float()
        states = recur(index, torch.exp(log_decay), update)
        return functional.linear(functional.silu(gate) * states.to(self.dtype), layer.output)


def _recurrent_layer(weights: Mapping[str, Any], prefix: str) -> RecurrentLayer:
    def tensor(name: str) -> Any:
        return weights[prefix + name]

    def stacked(names: tuple[str, ...]) -> Any:
        return torch.cat([tensor(f"{name}_proj.weight") for name in names])

    return RecurrentLayer(
        input_norm=tensor("input_layernorm.weight"),
        projections=stacked(("recurrent.input", "recurrent.gate", "recurrent.input_gate", "recurrent.decay")),
        input_gate_bias=tensor("recurrent.input_gate_proj.bias"),
        decay_bias=tensor("recurrent.decay_proj.bias"),
        output=tensor("recurrent.output_proj.weight"),
        mlp_norm=tensor("post_attention_layernorm.weight"),
        gate_up=stacked(("mlp.gate", "mlp.up")),
        down=tensor("mlp.down_proj.weight"),
    )


def _attention_weights(shape: HybridShape, weights: Mapping[str, Any]) -> dict[str, Any]:
    """The weights of `shape.attention_part()`, under the names that they have there."""
    found = {name: tensor for name, tensor in weights.items() if not name.startswith("model.layers.")}
    for index, layer in enumerate(shape.attention_layers):
        prefix = f"model.layers.{layer}."
        for name, tensor in weights.items():
            if name.startswith(prefix):
                found[f"model.layers.{index}.{name.removeprefix(prefix)}"] = tensor
    return found
