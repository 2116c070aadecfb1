"""Where does a token stand? Rotary position embeddings: each pair of a head's numbers turned by its position.

The pairs are (i, i + head_dim / 2), the half-rotation of Hugging Face's checkpoints. Source: Su et al. 2021
(RoFormer); scaling: linear (position interpolation, Chen et al. 2023), YaRN (Peng et al. 2023), and the rule
of Llama 3.1. The frequencies are fixed for a model's life, so that KV once computed stays right.
"""

from __future__ import annotations

import math
from typing import Any

import torch

from draftproof.gpu.models.shape import ModelShape, RopeScaling


def inverse_frequencies(shape: ModelShape, device: Any = "cpu") -> tuple[Any, float]:
    """float32[head_dim / 2] radians per position, and the factor on cosine and sine (1 but for YaRN)."""
    exponents = torch.arange(0, shape.head_dim, 2, dtype=torch.float32) / shape.head_dim
    plain = 1.0 / shape.rope_theta**exponents
    scaling = shape.rope_scaling
    attention_factor = 1.0
    if scaling is None:
        scaled = plain
    elif scaling.kind == "linear":
        scaled = plain / scaling.factor
    elif scaling.kind == "llama3":
        scaled = _llama3(plain, scaling)
    elif scaling.kind == "yarn":
        scaled = _yarn(plain, scaling, shape.rope_theta)
        attention_factor = yarn_attention_factor(scaling)
    else:  # "factors": the only other kind that a RopeScaling can have
        scaled = plain / torch.tensor(scaling.frequency_factors, dtype=torch.float32)
    return scaled.to(device), attention_factor


def _llama3(plain: Any, scaling: RopeScaling) -> Any:
    """Long waves are stretched, short ones kept, those between blended by how often they fit."""
    turns = scaling.original_max_position_embeddings * plain / (2 * math.pi)  # in the original context
    share_kept = (turns - scaling.low_freq_factor) / (scaling.high_freq_factor - scaling.low_freq_factor)
    share_kept = share_kept.clamp(0, 1)
    return (1 - share_kept) * plain / scaling.factor + share_kept * plain


def _yarn(plain: Any, scaling: RopeScaling, theta: float) -> Any:
    """Frequencies below `low` are kept, above `high` stretched, between them a linear ramp."""
    head_dim = 2 * len(plain)

    def dimension(num_rotations: float) -> float:
        """The index of the frequency that turns so often in the original context."""
        wave = scaling.original_max_position_embeddings / (num_rotations * 2 * math.pi)
        return head_dim * math.log(wave) / (2 * math.log(theta))

    low, high = dimension(scaling.beta_fast), dimension(scaling.beta_slow)
    if scaling.truncate:
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, head_dim - 1)
    width = high - low or 0.001  # no division by zero when the ramp is a cliff
    share_stretched = ((torch.arange(len(plain), dtype=torch.float32) - low) / width).clamp(0, 1)
    return share_stretched * plain / scaling.factor + (1 - share_stretched) * plain


def yarn_attention_factor(scaling: RopeScaling) -> float:
    """What YaRN multiplies cosine and sine with: given, or 0.1 ln(factor) + 1 (equation 22 of the paper).

    With both `mscale` and `mscale_all_dim`, the quotient of the two, as DeepSeek's configurations have it.
    """
    if scaling.attention_factor is not None:
        return scaling.attention_factor

    def magnitude(weight: float) -> float:
        return 1.0 if scaling.factor <= 1 else 0.1 * weight * math.log(scaling.factor) + 1.0

    if scaling.mscale and scaling.mscale_all_dim:
        return magnitude(scaling.mscale) / magnitude(scaling.mscale_all_dim)
    return magnitude(1.0)


def cosine_and_sine(positions: Any, frequencies: Any, attention_factor: float, dtype: Any) -> tuple[Any, Any]:
    """Both [T, 1, head_dim] in `dtype`, for positions int64[T]; the sine of the first half is negated.

    Computed in float32, once a step; with that sign `rotate` needs no negation in any layer.
    """
    angles = positions[:, None].float() * frequencies
    cosine, sine = angles.cos() * attention_factor, angles.sin() * attention_factor
    both = torch.cat((cosine, cosine), -1), torch.cat((-sine, sine), -1)
    return both[0][:, None].to(dtype), both[1][:, None].to(dtype)


def rotate(heads: Any, cosine: Any, signed_sine: Any) -> Any:
    """Heads [T, num, head_dim] turned by their position: three kernels, whatever `num` is."""
    swapped = heads.roll(heads.shape[-1] // 2, -1)
    return torch.addcmul(heads * cosine, swapped, signed_sine)
