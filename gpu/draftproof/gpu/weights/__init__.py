"""Where do weights come from? A folder of safetensors, a GGUF file, or random numbers: never a pickle.

Every loader returns a `ModelShape` and the tensors by their Hugging Face names, and checks names and shapes
before it takes memory for any of them.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from draftproof.gpu.errors import ModelError
from draftproof.gpu.models.shape import ModelShape


def load_weights(path: str | Path, dtype: Any, device: Any = "cpu") -> tuple[ModelShape, dict[str, Any]]:
    """The model in a folder or in a `.gguf` file, in `dtype` on `device`. Raises `ModelError`."""
    path = Path(path)
    if path.is_dir():
        from draftproof.gpu.weights.safetensors_folder import load_safetensors_folder

        return load_safetensors_folder(path, dtype, device)
    if not path.is_file():
        raise ModelError(f"{path} is neither a folder with a model nor a GGUF file: check the path")
    if path.suffix.lower() != ".gguf":
        raise ModelError(
            f"{path} is not a GGUF file: give a .gguf file, or the folder that holds config.json"
        )
    from draftproof.gpu.weights.gguf_file import load_gguf_file

    return load_gguf_file(path, dtype, device)
