"""How is a model read from a folder? `config.json`, and safetensors in one file or in shards with an index.

The headers of all files are read first. Only when every tensor is known to be there, once and with the right
shape, is the first one loaded. Nothing is ever unpickled.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from draftproof.gpu.errors import ModelError
from draftproof.gpu.models.shape import ModelShape, shape_of

SINGLE_FILE = "model.safetensors"
INDEX_FILE = "model.safetensors.index.json"
STORED_DTYPES = ("F64", "F32", "F16", "BF16")
JSON_LIMIT = 64 << 20  # bytes; the index of a model of a trillion weights has 10 MB

# Old checkpoints store the rotary frequencies, which the configuration already gives.
IGNORED_SUFFIXES = ("rotary_emb.inv_freq", "self_attn.masked_bias")


def load_safetensors_folder(
    folder: str | Path, dtype: Any, device: Any = "cpu"
) -> tuple[ModelShape, dict[str, Any]]:
    """The shape and the tensors by name, in `dtype` on `device`; they are copies, the files may go.

    Raises `ModelError` for a missing, truncated or corrupt file, a missing, unknown or misshapen tensor, and
    an index that names a file outside the folder.
    """
    folder = Path(folder)
    shape = read_shape(folder)
    optional = {"lm_head.weight": (shape.vocab_size, shape.hidden_size)} if shape.tie_word_embeddings else {}
    return shape, load_tensors(folder, shape.tensor_shapes(), optional, dtype, device)


def load_tensors(
    folder: Path, shapes: Mapping[str, Any], optional: Mapping[str, Any], dtype: Any, device: Any
) -> dict[str, Any]:
    """Tensors of these names and shapes; those that are `optional` may lie beside them and are left out.

    Raises `ModelError` as above; before the first tensor is read, where the headers tell.
    """
    places = _places(folder)
    _check_names(folder, places, shapes, optional)
    for file in sorted(set(places.values())):
        _check_headers(
            folder / file, {name for name in places if places[name] == file}, {**shapes, **optional}
        )
    weights: dict[str, Any] = {}
    for file in sorted(set(places.values())):
        with _opened(folder / file) as tensors:
            for name in (name for name in shapes if places[name] == file):
                weights[name] = _loaded(folder / file, tensors, name, dtype, device)
    return weights


def read_shape(folder: str | Path) -> ModelShape:
    """The shape from `config.json`; `generation_config.json` may add end-of-text tokens. Raises `ModelError`.

    Instruction-tuned models end a turn with tokens that only the second file names (vLLM reads both).
    """
    folder = Path(folder)
    if not folder.is_dir():
        raise ModelError(f"{folder} is not a folder: give the folder that holds config.json")
    try:
        shape = shape_of(_json(folder / "config.json"))
        generation = folder / "generation_config.json"
        more = _json(generation).get("eos_token_id") if generation.is_file() else None
        if more is not None:
            tokens = (*shape.eos_token_ids, *(more if isinstance(more, list) else [more]))
            shape = replace(shape, eos_token_ids=_without_repeats(tokens))
    except ModelError as error:
        raise error if str(folder) in str(error) else ModelError(f"{folder}: {error}") from None
    return shape


def _without_repeats(tokens: tuple[Any, ...]) -> tuple[Any, ...]:
    return tuple(token for index, token in enumerate(tokens) if token not in tokens[:index])


def _json(path: Path) -> dict[str, Any]:
    """An object from a file of bounded size."""
    if not path.is_file():
        raise ModelError(f"{path} is missing: a model's folder needs it")
    if path.stat().st_size > JSON_LIMIT:
        raise ModelError(f"{path} is larger than {JSON_LIMIT} bytes: it cannot be what its name says")
    try:
        content = json.loads(path.read_bytes())
    except (ValueError, RecursionError):
        raise ModelError(f"{path} is not valid JSON: download it again") from None
    if not isinstance(content, dict):
        raise ModelError(f"{path} must hold a JSON object, not {type(content).__name__}")
    return content


def _places(folder: Path) -> dict[str, str]:
    """Which file of the folder holds which tensor."""
    if (folder / SINGLE_FILE).is_file():
        with _opened(folder / SINGLE_FILE) as tensors:
            return dict.fromkeys(tensors.keys(), SINGLE_FILE)
    if (folder / INDEX_FILE).is_file():
        return _index(folder)
    if any(folder.glob("*.bin")) or any(folder.glob("*.pt")) or any(folder.glob("*.pth")):
        raise ModelError(
            f"{folder} has its weights only as pickles (pytorch_model.bin), which can run code when they are "
            "opened: get or convert them as safetensors"
        )
    raise ModelError(f"{folder} has neither {SINGLE_FILE} nor {INDEX_FILE}: is the download complete?")


def _index(folder: Path) -> dict[str, str]:
    places = _json(folder / INDEX_FILE).get("weight_map")
    if not isinstance(places, dict) or not places:
        raise ModelError(f"{folder / INDEX_FILE} has no weight_map that names a file for each tensor")
    for name, file in places.items():
        # A plain file name: no way out of the folder, on any system. (A link in it may lead elsewhere: that
        # is how a Hub cache is built.)
        if (
            not isinstance(file, str)
            or not file.endswith(".safetensors")
            or any(sign in file for sign in "/\\:\0")
        ):
            raise ModelError(
                f"{folder / INDEX_FILE} puts {name} into {file!r}, not a safetensors file of that folder"
            )
    return dict(places)


def _check_names(
    folder: Path, places: dict[str, str], shapes: Mapping[str, Any], optional: Mapping[str, Any]
) -> None:
    for name in shapes:
        if name not in places:
            raise ModelError(f"{folder} lacks the tensor {name}, which config.json asks for")
    for name, file in places.items():
        if name not in shapes and name not in optional and not name.endswith(IGNORED_SUFFIXES):
            raise ModelError(f"{folder / file} has the tensor {name}, which this model does not know")


def _check_headers(path: Path, names: set[str], shapes: Mapping[str, tuple[int, ...]]) -> None:
    """The file holds exactly the tensors it should, of the right shapes, as floating-point numbers."""
    with _opened(path) as tensors:
        present = set(tensors.keys())
        for name in sorted(names ^ present):
            raise ModelError(
                f"{path} {'lacks' if name in names else 'also holds'} {name}, against {INDEX_FILE}"
            )
        for name in sorted(names & shapes.keys()):
            header = tensors.get_slice(name)
            size, stored = tuple(header.get_shape()), header.get_dtype()
            if size != shapes[name]:
                raise ModelError(f"{path}: {name} has shape {size}, but config.json asks for {shapes[name]}")
            if stored not in STORED_DTYPES:
                raise ModelError(
                    f"{path}: {name} is stored as {stored}, not as one of {', '.join(STORED_DTYPES)}"
                )


def _opened(path: Path) -> Any:
    """The file, its header read: the library checks that the header fits the length of the file."""
    try:
        from safetensors import SafetensorError, safe_open
    except ImportError:
        raise ModelError(f"{path} cannot be read without the package safetensors: install it") from None
    if not path.is_file():
        raise ModelError(f"{path} is missing, although {INDEX_FILE} names it: is the download complete?")
    try:
        return safe_open(path, framework="pt", device="cpu")
    except (SafetensorError, OSError, ValueError) as error:
        raise ModelError(
            f"{path} is truncated or corrupt ({_first_line(error)}): download it again"
        ) from None


def _loaded(path: Path, tensors: Any, name: str, dtype: Any, device: Any) -> Any:
    from safetensors import SafetensorError

    try:
        # The library maps the file: the copy keeps the weights as they are when the file changes later.
        return tensors.get_tensor(name).to(device=device, dtype=dtype, copy=True)
    except (SafetensorError, OSError, ValueError) as error:
        raise ModelError(f"{path}: {name} cannot be read ({_first_line(error)}): download it again") from None


def _first_line(error: Exception) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0][:200]
