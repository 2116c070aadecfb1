"""What if there are no weights? Random ones of any shape: for tests, and for speed, which they do not change.

They are spread so that hidden states keep their size through the layers and logits differ by about one: a
fault in the model or its cache then moves the logits visibly.
"""

from __future__ import annotations

from typing import Any

import torch

from draftproof.gpu.models.shape import ModelShape

NORM_SPREAD = 0.1  # around 1, so that a norm that is left out or mixed up shows


def random_weights(
    shape: ModelShape, seed: int, dtype: Any = torch.float32, device: Any = "cpu"
) -> dict[str, Any]:
    """Weights by name as `shape.tensor_shapes()` lists them, the same for the same seed and kind of device.

    They are drawn in float32 on the device (on the CPU, eight billion take minutes) and then rounded, so
    that dtypes agree up to rounding. A CPU and a GPU draw different numbers.
    """
    generator = torch.Generator(device=device).manual_seed(seed)

    def drawn(name: str, size: tuple[int, ...]) -> Any:
        values = torch.randn(size, generator=generator, device=device)
        if name.endswith("norm.weight"):
            values.mul_(NORM_SPREAD).add_(1.0)
        elif name.endswith(".bias"):
            values.mul_(NORM_SPREAD)
        else:
            values.mul_(size[-1] ** -0.5)  # by the number of inputs, so that outputs are of size 1
        return values.to(dtype)

    return {name: drawn(name, size) for name, size in shape.tensor_shapes().items()}
