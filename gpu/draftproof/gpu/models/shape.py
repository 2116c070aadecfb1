"""What does a model look like? Its sizes and switches, read from a configuration before any weight is.

The names are those of vLLM and of Hugging Face's `config.json`; the weights are named as there too. A
configuration that asks for something the decoder does not do is refused here, in one sentence.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from draftproof.gpu.errors import ModelError, check_integer, check_number, refuse_unless

ARCHITECTURES = {"LlamaForCausalLM": "llama", "Qwen2ForCausalLM": "qwen2", "Qwen3ForCausalLM": "qwen3"}

# The largest that is believed: far above every published model, low enough that no product overflows.
LIMITS = {
    "vocab_size": 1 << 24,
    "hidden_size": 1 << 18,
    "num_layers": 1 << 12,
    "num_heads": 1 << 12,
    "num_kv_heads": 1 << 12,
    "head_dim": 1 << 12,
    "intermediate_size": 1 << 20,
    "max_position_embeddings": (1 << 31) - 1,
}
SCALING_NUMBERS = ("factor", "low_freq_factor", "high_freq_factor", "attention_factor")
YARN_NUMBERS = ("beta_fast", "beta_slow", "mscale", "mscale_all_dim")
# What a configuration must give for each kind it can name; "factors" is for GGUF files alone.
NEEDED = {
    "linear": ("factor",),
    "yarn": ("factor",),
    "llama3": ("factor", "low_freq_factor", "high_freq_factor"),
}


@dataclass(frozen=True)
class RopeScaling:
    """How the rotary frequencies are changed for a longer context; what each kind reads is in `rope`.

    `frequency_factors` (one divisor a frequency, head_dim / 2 of them) belongs to kind "factors": so does a
    GGUF file store the scaling of Llama 3.
    """

    kind: str
    factor: float = 1.0
    original_max_position_embeddings: int = 0
    low_freq_factor: float = 1.0
    high_freq_factor: float = 4.0
    attention_factor: float | None = None
    beta_fast: float = 32.0
    beta_slow: float = 1.0
    mscale: float | None = None
    mscale_all_dim: float | None = None
    truncate: bool = True
    frequency_factors: tuple[float, ...] = ()

    def __post_init__(self) -> None:
        refuse_unless(
            self.kind in (*NEEDED, "factors"), f"RoPE scaling of kind {self.kind!r} is not supported"
        )
        for name in SCALING_NUMBERS + YARN_NUMBERS:
            if getattr(self, name) is not None:
                check_number(f"{name} of the RoPE scaling", getattr(self, name))
        if self.kind in ("llama3", "yarn"):
            name = "original_max_position_embeddings"
            check_integer(name, getattr(self, name), LIMITS["max_position_embeddings"])
        if self.kind == "llama3":
            low, high = self.low_freq_factor, self.high_freq_factor
            refuse_unless(low < high, f"low_freq_factor {low} must be below high_freq_factor {high}")
        for divisor in self.frequency_factors:
            check_number("each of the RoPE frequency factors", divisor)


@dataclass(frozen=True)
class ModelShape:
    """The sizes of one decoder. Raises `ModelError` for numbers that no model can have."""

    family: str  # "llama", "qwen2" or "qwen3"
    vocab_size: int
    hidden_size: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    intermediate_size: int
    rms_norm_eps: float
    rope_theta: float
    rope_scaling: RopeScaling | None
    max_position_embeddings: int
    tie_word_embeddings: bool
    attention_bias: bool
    qk_norm: bool
    eos_token_ids: tuple[int, ...]
    bos_token_id: int | None

    def __post_init__(self) -> None:
        known = self.family in ARCHITECTURES.values()
        refuse_unless(known, f"model family {self.family!r} is not supported")
        for name, limit in LIMITS.items():
            check_integer(name, getattr(self, name), limit)
        refuse_unless(
            self.num_heads % self.num_kv_heads == 0,
            f"num_heads {self.num_heads} must be a multiple of num_kv_heads {self.num_kv_heads}",
        )
        refuse_unless(self.head_dim % 2 == 0, f"head_dim must be even for RoPE, not {self.head_dim}")
        check_number("rms_norm_eps", self.rms_norm_eps, most=1)
        check_number("rope_theta", self.rope_theta, least=1)
        factors = () if self.rope_scaling is None else self.rope_scaling.frequency_factors
        refuse_unless(
            not factors or 2 * len(factors) == self.head_dim,
            f"there must be head_dim / 2 = {self.head_dim // 2} RoPE frequency factors, not {len(factors)}",
        )
        for token in (*self.eos_token_ids, *(() if self.bos_token_id is None else (self.bos_token_id,))):
            possible = type(token) is int and token >= 0
            refuse_unless(possible, f"a special token's id must be an integer >= 0, not {token!r}")

    @property
    def output_bias(self) -> bool:
        """Whether the attention's output projection has a bias too: with Llama and Qwen3, not with Qwen2."""
        return self.attention_bias and self.family != "qwen2"

    def tensor_shapes(self) -> dict[str, tuple[int, ...]]:
        """Every weight of the model by its Hugging Face name: the one list that loaders and decoder share."""
        hidden = self.hidden_size
        shapes: dict[str, tuple[int, ...]] = {
            "model.embed_tokens.weight": (self.vocab_size, hidden),
            "model.norm.weight": (hidden,),
        }
        if not self.tie_word_embeddings:
            shapes["lm_head.weight"] = (self.vocab_size, hidden)
        for layer in range(self.num_layers):
            for name, size in self._layer_shapes().items():
                shapes[f"model.layers.{layer}.{name}"] = size
        return shapes

    def _layer_shapes(self) -> dict[str, tuple[int, ...]]:
        hidden, wide = self.hidden_size, self.intermediate_size
        query, key = self.num_heads * self.head_dim, self.num_kv_heads * self.head_dim
        shapes: dict[str, tuple[int, ...]] = {
            "input_layernorm.weight": (hidden,),
            "self_attn.q_proj.weight": (query, hidden),
            "self_attn.k_proj.weight": (key, hidden),
            "self_attn.v_proj.weight": (key, hidden),
            "self_attn.o_proj.weight": (hidden, query),
            "post_attention_layernorm.weight": (hidden,),
            "mlp.gate_proj.weight": (wide, hidden),
            "mlp.up_proj.weight": (wide, hidden),
            "mlp.down_proj.weight": (hidden, wide),
        }
        if self.attention_bias:
            shapes |= {
                f"self_attn.{name}_proj.bias": (size,)
                for name, size in zip("qkv", (query, key, key), strict=True)
            }
        if self.output_bias:
            shapes["self_attn.o_proj.bias"] = (hidden,)
        if self.qk_norm:
            shapes |= {
                "self_attn.q_norm.weight": (self.head_dim,),
                "self_attn.k_norm.weight": (self.head_dim,),
            }
        return shapes

    @property
    def num_parameters(self) -> int:
        """How many numbers the weights hold: times the bytes of the dtype, the memory they take."""
        return sum(math.prod(size) for size in self.tensor_shapes().values())


def shape_of(config: Mapping[str, Any]) -> ModelShape:
    """The shape that a Hugging Face `config.json` describes, in the old or the new way of writing RoPE.

    Absent keys have the defaults of transformers. Raises `ModelError` for another architecture, for a feature
    the decoder lacks (sliding windows, quantised weights, biases in the MLP) and for impossible numbers.
    """
    family = _family(config)
    _refuse_features(config)
    num_heads = _required(config, "num_attention_heads")
    rope = _rope_parameters(config)
    max_position_embeddings = _required(config, "max_position_embeddings")
    eos = _given(config, "eos_token_id", ())
    return ModelShape(
        family=family,
        vocab_size=_required(config, "vocab_size"),
        hidden_size=_required(config, "hidden_size"),
        num_layers=_required(config, "num_hidden_layers"),
        num_heads=num_heads,
        num_kv_heads=_given(config, "num_key_value_heads", num_heads),
        head_dim=_head_dim(config, family),
        intermediate_size=_required(config, "intermediate_size"),
        rms_norm_eps=_given(config, "rms_norm_eps", 1e-6),
        rope_theta=_given(rope, "rope_theta", _given(config, "rope_theta", 10000.0)),
        rope_scaling=_rope_scaling(rope, max_position_embeddings),
        max_position_embeddings=max_position_embeddings,
        tie_word_embeddings=_switch(config, "tie_word_embeddings"),
        attention_bias=family == "qwen2" or _switch(config, "attention_bias"),
        qk_norm=family == "qwen3",
        eos_token_ids=tuple(eos) if isinstance(eos, list | tuple) else (eos,),
        bos_token_id=config.get("bos_token_id"),
    )


def _family(config: Mapping[str, Any]) -> str:
    architectures = config.get("architectures") or [config.get("model_type")]
    name = architectures[0] if isinstance(architectures, list) and architectures else architectures
    if isinstance(name, str) and (name in ARCHITECTURES or name in ARCHITECTURES.values()):
        return ARCHITECTURES.get(name, name)
    raise ModelError(f"architecture {name!r} is not supported: use one of {', '.join(ARCHITECTURES)}")


def _refuse_features(config: Mapping[str, Any]) -> None:
    windowed = config.get("use_sliding_window") and config.get("sliding_window") is not None
    layer_types = config.get("layer_types") or ()
    if layer_types:
        windowed = not isinstance(layer_types, list) or any(kind != "full_attention" for kind in layer_types)
    refuse_unless(not windowed, "sliding-window attention is not supported")
    activation = _given(config, "hidden_act", "silu")
    refuse_unless(activation == "silu", f"activation {activation!r} is not supported, only 'silu'")
    refuse_unless(not config.get("mlp_bias"), "biases in the MLP (mlp_bias) are not supported")
    refuse_unless(
        config.get("quantization_config") is None,
        "quantised weights (quantization_config) are not supported: use the unquantised model or a GGUF file",
    )


def _head_dim(config: Mapping[str, Any], family: str) -> Any:
    """As given; else hidden_size / num_attention_heads, except that transformers gives Qwen3 128."""
    given = config.get("head_dim")
    if given is not None:
        return given
    if family == "qwen3":
        return 128
    hidden_size, num_heads = _required(config, "hidden_size"), _required(config, "num_attention_heads")
    check_integer("hidden_size", hidden_size, LIMITS["hidden_size"])
    check_integer("num_attention_heads", num_heads, LIMITS["num_heads"])
    refuse_unless(
        hidden_size % num_heads == 0,
        f"without head_dim, hidden_size {hidden_size} must be a multiple of num_attention_heads {num_heads}",
    )
    return hidden_size // num_heads


def _rope_parameters(config: Mapping[str, Any]) -> Mapping[str, Any]:
    rope = config.get("rope_parameters") or config.get("rope_scaling") or {}
    refuse_unless(isinstance(rope, Mapping), "rope_parameters (or rope_scaling) must be an object")
    share = _given(rope, "partial_rotary_factor", _given(config, "partial_rotary_factor", 1.0))
    refuse_unless(share == 1, f"partial_rotary_factor {share!r} is not supported, only 1")
    return rope


def _rope_scaling(rope: Mapping[str, Any], max_position_embeddings: Any) -> RopeScaling | None:
    kind = rope.get("rope_type") or rope.get("type") or "default"
    if kind == "default":
        return None
    if kind == "dynamic":
        raise ModelError(
            "RoPE scaling of kind 'dynamic' is not supported: its frequencies change as the text grows, "
            "so that KV computed earlier would no longer be right; use 'yarn' or 'linear'"
        )
    if not isinstance(kind, str) or kind not in NEEDED:
        raise ModelError(f"RoPE scaling of kind {kind!r} is not supported")
    check_integer("max_position_embeddings", max_position_embeddings, LIMITS["max_position_embeddings"])
    values = {name: rope[name] for name in SCALING_NUMBERS + YARN_NUMBERS if rope.get(name) is not None}
    original = _given(rope, "original_max_position_embeddings", max_position_embeddings)
    if kind == "yarn" and type(original) is int and original > 0:
        values.setdefault("factor", max_position_embeddings / original)
    for name in NEEDED[kind]:
        refuse_unless(name in values, f"RoPE scaling of kind {kind!r} lacks its {name}")
    return RopeScaling(
        kind=kind,
        original_max_position_embeddings=original,
        truncate=_switch(rope, "truncate", default=True),
        **values,
    )


def _required(config: Mapping[str, Any], key: str) -> Any:
    if config.get(key) is None:
        raise ModelError(f"the model's configuration lacks {key}")
    return config[key]


def _given(config: Mapping[str, Any], key: str, default: Any) -> Any:
    return default if config.get(key) is None else config[key]


def _switch(config: Mapping[str, Any], key: str, default: bool = False) -> bool:
    value = _given(config, key, default)
    if type(value) is bool:
        return value
    raise ModelError(f"{key} must be true or false, not {value!r}")
