"""Does the decoder compute what Hugging Face's models compute? Shapes, rotary embeddings, logits."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")
from torch.nn import functional  # noqa: E402

from draftproof.gpu.errors import ModelError  # noqa: E402
from draftproof.gpu.models.decoder import Decoder  # noqa: E402
from draftproof.gpu.models.rope import cosine_and_sine, inverse_frequencies, rotate  # noqa: E402
from draftproof.gpu.models.shape import ModelShape, RopeScaling, shape_of  # noqa: E402
from draftproof.gpu.weights.random_weights import random_weights  # noqa: E402
from draftproof.gpu.weights.safetensors_folder import load_safetensors_folder  # noqa: E402

SIZES: dict[str, Any] = {
    "vocab_size": 97,
    "hidden_size": 48,
    "intermediate_size": 80,
    "num_hidden_layers": 3,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "max_position_embeddings": 256,
}
LLAMA3 = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
    "rope_theta": 500.0,
}
YARN = {
    "rope_type": "yarn",
    "factor": 4.0,
    "original_max_position_embeddings": 64,
    "beta_fast": 4.0,
    "rope_theta": 100.0,
}
LINEAR = {"rope_type": "linear", "factor": 2.0, "rope_theta": 10000.0}
DEFAULT = {"rope_type": "default", "rope_theta": 10000.0}

# Name: class of the configuration, what differs from SIZES.
FAMILIES: dict[str, tuple[str, dict[str, Any]]] = {
    "llama": ("LlamaConfig", {"rope_parameters": DEFAULT}),
    "llama-tied": ("LlamaConfig", {"tie_word_embeddings": True, "rope_parameters": DEFAULT}),
    "llama-biased": ("LlamaConfig", {"attention_bias": True, "rope_parameters": DEFAULT}),
    "llama-single-kv-head": ("LlamaConfig", {"num_key_value_heads": 1, "rope_parameters": DEFAULT}),
    "llama-llama3": ("LlamaConfig", {"rope_parameters": LLAMA3}),
    "llama-linear": ("LlamaConfig", {"rope_parameters": LINEAR}),
    "llama-yarn": ("LlamaConfig", {"rope_parameters": YARN}),
    "llama-yarn-mscale": ("LlamaConfig", {"rope_parameters": YARN | {"mscale": 1.0, "mscale_all_dim": 0.5}}),
    "llama-yarn-factor": (
        "LlamaConfig",
        {"rope_parameters": YARN | {"attention_factor": 1.3, "truncate": False}},
    ),
    "qwen2": ("Qwen2Config", {"rope_parameters": DEFAULT | {"rope_theta": 1e6}}),
    "qwen2-tied": ("Qwen2Config", {"tie_word_embeddings": True, "rope_parameters": DEFAULT}),
    "qwen3": ("Qwen3Config", {"rope_parameters": DEFAULT}),
    "qwen3-tied-biased": (
        "Qwen3Config",
        {"tie_word_embeddings": True, "attention_bias": True, "rope_parameters": DEFAULT},
    ),
}


def dense_attend(layer: int, query: Any, key: Any, value: Any) -> Any:
    """Causal attention of one sequence over itself."""
    del layer
    # (head, position, head_dim), as torch wants it.
    query, key, value = (tensor.transpose(0, 1)[None] for tensor in (query, key, value))
    attended = functional.scaled_dot_product_attention(query, key, value, is_causal=True, enable_gqa=True)
    return attended[0].transpose(0, 1)


def dense_logits(decoder: Decoder, token_ids: Any) -> Any:
    positions = torch.arange(len(token_ids), device=token_ids.device)
    return decoder.logits(decoder.forward(token_ids, positions, dense_attend))


def peer_model(configuration: str, changes: dict[str, Any]) -> Any:
    """A model of transformers whose every weight, bias and norm differs from what it would be by default."""
    transformers = pytest.importorskip("transformers")
    torch.manual_seed(0)
    config = getattr(transformers, configuration)(**(SIZES | changes))
    model = transformers.AutoModelForCausalLM.from_config(config, attn_implementation="eager").eval()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            parameter.normal_(1.0 if "norm" in name else 0.0, 0.2)
    return model


@pytest.mark.parametrize("name", FAMILIES)
def test_logits_are_those_of_transformers(name: str, tmp_path: Path) -> None:
    pytest.importorskip("safetensors")
    model = peer_model(*FAMILIES[name])
    model.save_pretrained(tmp_path)
    token_ids = torch.randint(0, SIZES["vocab_size"], (150,), generator=torch.Generator().manual_seed(1))
    with torch.no_grad():
        expected = model(token_ids[None]).logits[0]
    shape, weights = load_safetensors_folder(tmp_path, torch.float32)
    actual = dense_logits(Decoder(shape, weights), token_ids)
    assert actual.dtype == torch.float32
    assert expected.std() > 0.3  # else a tolerance would prove nothing
    torch.testing.assert_close(actual, expected, atol=1e-4, rtol=0)


def small_shape(**changes: Any) -> ModelShape:
    return replace(shape_of({"architectures": ["Qwen3ForCausalLM"], **SIZES}), **changes)


def test_rows_of_a_flat_batch_know_only_their_position() -> None:
    """The order of rows and gaps in their positions change nothing: attention alone connects rows."""
    decoder = Decoder(small_shape(), random_weights(small_shape(), seed=3))
    token_ids, positions = torch.tensor([5, 6, 7, 8]), torch.tensor([200, 3, 17, 0])

    def own_value(layer: int, query: Any, key: Any, value: Any) -> Any:
        del layer, key
        return value.repeat_interleave(query.shape[1] // value.shape[1], 1)

    together = decoder.forward(token_ids, positions, own_value)
    order = torch.tensor([2, 0, 3, 1])
    again = decoder.forward(token_ids[order], positions[order], own_value)
    torch.testing.assert_close(again, together[order], atol=1e-5, rtol=0)


def test_a_rotation_keeps_lengths_and_knows_only_distances() -> None:
    frequencies, factor = inverse_frequencies(small_shape())
    heads = torch.randn(2, 1, SIZES["head_dim"], generator=torch.Generator().manual_seed(0))

    def score(first: int, second: int) -> Any:
        turned = rotate(
            heads, *cosine_and_sine(torch.tensor([first, second]), frequencies, factor, torch.float32)
        )
        torch.testing.assert_close(turned.norm(dim=-1), heads.norm(dim=-1))
        return (turned[0] * turned[1]).sum()

    torch.testing.assert_close(score(3, 10), score(103, 110), atol=1e-4, rtol=0)
    assert abs(score(3, 10) - score(3, 11)) > 1e-2


def test_frequency_factors_divide() -> None:
    factors = tuple(float(1 + index) for index in range(SIZES["head_dim"] // 2))
    plain, _ = inverse_frequencies(small_shape())
    scaled, factor = inverse_frequencies(
        small_shape(rope_scaling=RopeScaling("factors", frequency_factors=factors))
    )
    torch.testing.assert_close(scaled * torch.tensor(factors), plain)
    assert factor == 1.0


def test_norms_are_computed_in_float32() -> None:
    """In bfloat16, a norm is within one rounding of the exact one, although its sum of squares is large."""
    shape = small_shape(hidden_size=4096)
    decoder = Decoder(small_shape(), random_weights(small_shape(), 0, torch.bfloat16))
    hidden = (torch.randn(3, shape.hidden_size, generator=torch.Generator().manual_seed(0)) * 30).bfloat16()
    weight = torch.ones(shape.hidden_size, dtype=torch.bfloat16)
    exact = hidden.double() / (hidden.double().pow(2).mean(-1, keepdim=True) + shape.rms_norm_eps).sqrt()
    torch.testing.assert_close(decoder._norm(hidden, weight).double(), exact, atol=0, rtol=2.0**-8)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_lower_precision_stays_near_float32(dtype: Any) -> None:
    shape = small_shape()
    weights = random_weights(shape, 5)
    token_ids = torch.arange(60)
    exact = dense_logits(Decoder(shape, weights), token_ids)
    rounded = dense_logits(Decoder(shape, random_weights(shape, 5, dtype)), token_ids)
    assert rounded.dtype == torch.float32
    torch.testing.assert_close(rounded, exact, atol=0.15, rtol=0)


def test_a_decoder_refuses_weights_that_do_not_fit() -> None:
    shape = small_shape()
    weights = random_weights(shape, 0)
    key = "model.layers.1.self_attn.k_proj.weight"
    with pytest.raises(ModelError, match=r"lack model\.norm\.weight"):
        Decoder(shape, {name: tensor for name, tensor in weights.items() if name != "model.norm.weight"})
    with pytest.raises(ModelError, match="unknown tensor extra"):
        Decoder(shape, weights | {"extra": torch.zeros(1)})
    with pytest.raises(ModelError, match=rf"{key} has shape \(2, 2\)"):
        Decoder(shape, weights | {key: torch.zeros(2, 2)})
    with pytest.raises(ModelError, match=rf"{key} is torch.float16"):
        Decoder(shape, weights | {key: weights[key].half()})
    with pytest.raises(ModelError, match=r"must be float32.*not torch.int8"):
        Decoder(shape, {name: tensor.to(torch.int8) for name, tensor in weights.items()})


LLAMA: dict[str, Any] = {"architectures": ["LlamaForCausalLM"], **SIZES}


def test_a_configuration_in_the_old_way_of_writing() -> None:
    old = LLAMA | {"rope_theta": 5e5, "rope_scaling": {"type": "linear", "factor": 4}, "eos_token_id": [3, 4]}
    shape = shape_of(old)
    assert (shape.family, shape.rope_theta, shape.rope_scaling) == (
        "llama",
        5e5,
        RopeScaling("linear", 4, 256),
    )
    assert (shape.eos_token_ids, shape.bos_token_id) == ((3, 4), None)


def test_absent_keys_have_the_defaults_of_transformers() -> None:
    few = {key: value for key, value in LLAMA.items() if key not in ("head_dim", "num_key_value_heads")}
    shape = shape_of(few)
    assert (shape.num_kv_heads, shape.head_dim, shape.rms_norm_eps, shape.rope_theta) == (6, 8, 1e-6, 10000.0)
    assert not shape.tie_word_embeddings and not shape.attention_bias and not shape.qk_norm
    assert shape_of(few | {"architectures": ["Qwen3ForCausalLM"]}).head_dim == 128
    assert shape_of(few | {"architectures": ["Qwen2ForCausalLM"]}).attention_bias


def test_the_number_of_parameters_is_that_of_the_tensors() -> None:
    shape = small_shape()
    assert shape.num_parameters == sum(tensor.numel() for tensor in random_weights(shape, 0).values())


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"architectures": ["GPT2LMHeadModel"]}, "architecture 'GPT2LMHeadModel' is not supported"),
        ({"architectures": [7]}, "architecture 7 is not supported"),
        ({"vocab_size": None}, "lacks vocab_size"),
        ({"num_hidden_layers": 0}, "num_layers must be an integer from 1"),
        ({"num_hidden_layers": True}, "num_layers must be an integer from 1"),
        ({"hidden_size": 10**30}, "hidden_size must be an integer from 1"),
        ({"intermediate_size": "80"}, "intermediate_size must be an integer from 1"),
        ({"num_attention_heads": 5}, "num_heads 5 must be a multiple of num_kv_heads 2"),
        ({"head_dim": 15}, "head_dim must be even"),
        ({"head_dim": None, "hidden_size": 50}, "hidden_size 50 must be a multiple of num_attention_heads 6"),
        ({"rms_norm_eps": float("nan")}, "rms_norm_eps must be a number above 0 and below 1"),
        ({"hidden_size": 10**5000}, "not a number of thousands of digits"),
        ({"rope_theta": 10**400}, "rope_theta must be a number above 1"),
        (
            {"rope_scaling": {"type": "dynamic", "factor": 2.0}},
            "'dynamic' is not supported: its frequencies change",
        ),
        ({"rope_scaling": {"type": "longrope"}}, "'longrope' is not supported"),
        ({"rope_scaling": {"type": "factors"}}, "'factors' is not supported"),
        ({"rope_scaling": {"type": "linear"}}, "'linear' lacks its factor"),
        (
            {"rope_scaling": {"type": "linear", "factor": -1}},
            "factor of the RoPE scaling must be a number above 0",
        ),
        ({"rope_scaling": LLAMA3 | {"high_freq_factor": 1.0}}, "must be below high_freq_factor"),
        ({"rope_scaling": LLAMA3 | {"low_freq_factor": None}}, "'llama3' lacks its low_freq_factor"),
        (
            {"rope_scaling": YARN | {"original_max_position_embeddings": 0}},
            "original_max_position_embeddings must",
        ),
        ({"rope_scaling": [1]}, "must be an object"),
        ({"partial_rotary_factor": 0.5}, "partial_rotary_factor 0.5 is not supported"),
        ({"use_sliding_window": True, "sliding_window": 8}, "sliding-window attention is not supported"),
        (
            {"layer_types": ["full_attention", "sliding_attention"]},
            "sliding-window attention is not supported",
        ),
        ({"hidden_act": "gelu"}, "activation 'gelu' is not supported"),
        ({"mlp_bias": True}, "mlp_bias"),
        ({"quantization_config": {"bits": 4}}, "quantised weights"),
        ({"tie_word_embeddings": 1}, "tie_word_embeddings must be true or false"),
        ({"layer_types": 3}, "sliding-window attention is not supported"),
        ({"rope_scaling": {"type": ["yarn"]}}, "RoPE scaling of kind ['yarn'] is not supported"),
        (
            {
                "max_position_embeddings": 10**400,
                "rope_scaling": {"type": "yarn", "original_max_position_embeddings": 1},
            },
            "max_position_embeddings must be an integer from 1",
        ),
        ({"eos_token_id": "</s>"}, "a special token's id must be an integer >= 0, not '</s>'"),
    ],
)
def test_a_configuration_that_cannot_run_is_refused_in_a_sentence(
    changes: dict[str, Any], sentence: str
) -> None:
    with pytest.raises(ModelError) as refusal:
        shape_of(LLAMA | changes)
    assert sentence in str(refusal.value)
    assert "\n" not in str(refusal.value)
