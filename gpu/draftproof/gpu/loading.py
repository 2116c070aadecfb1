"""Which model does a name mean, and can it run here? Looked up, examined, and only then loaded.

A model is a name (`smollm2`), a folder of safetensors or a `.gguf` file, random weights
(`random:qwen3,num_layers=2`), or a repository of the Hugging Face Hub (`owner/name@revision`). What its
configuration and its tokenizer tell, and whether it fits into memory, is checked before a weight is read.
"""

from __future__ import annotations

import math
import os
import re
from pathlib import Path
from typing import Any, NamedTuple

import torch

from draftproof.gpu.errors import ModelError, refuse_unless
from draftproof.gpu.fetch import MODELS, fetch, folder_of, is_complete
from draftproof.gpu.memory import free_bytes, num_bytes_to_load
from draftproof.gpu.models.decoder import Decoder
from draftproof.gpu.models.shape import ARCHITECTURES, ModelShape
from draftproof.gpu.tokenizer import NoTokenizer, Tokenizer, load_tokenizer
from draftproof.gpu.weights import load_weights
from draftproof.gpu.weights.gguf_file import read_gguf_shape
from draftproof.gpu.weights.random_weights import random_weights
from draftproof.gpu.weights.safetensors_folder import read_shape
from draftproof.impl.progress_line import progress_line

DTYPES = ("float32", "bfloat16", "float16")
MAX_SEED = (1 << 63) - 1

RANDOM = "random:"
RANDOM_SIZES = {
    "vocab_size": 512,
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_layers": 2,
    "num_heads": 4,
    "num_kv_heads": 2,
    "head_dim": 16,
    "max_position_embeddings": 2048,
}

HUB_NAME = re.compile(r"([A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*)(?:@([A-Za-z0-9][\w./-]*))?", re.ASCII)
HUB_FILES = (
    "config.json",
    "generation_config.json",
    "tokenizer.json",
    "tokenizer_config.json",
    "chat_template.jinja",
    "model.safetensors.index.json",
)
HUB_IGNORED = ("*/*", "consolidated*")  # copies of the weights for other programs
COMMIT = re.compile(r"[0-9a-f]{40}")

DRAFTER_FORMS = '"ngram:3", "null:3", "draft:MODEL:3" or "eagle:FOLDER:3" ("eagle:random:3")'
DRAFTERS_WITH_MODEL = {"ngram": False, "null": False, "draft": True, "eagle": True}


class Loaded(NamedTuple):
    """A model ready to run. Without a tokenizer it takes token ids only."""

    decoder: Any  # a Decoder, or an object that does what one does
    tokenizer: Tokenizer | None
    name: str  # what the user called it, for messages


class DrafterOption(NamedTuple):
    """What an option `speculate` says: `argument` is the model of "draft" or the folder of "eagle"."""

    kind: str
    argument: str | None
    num_speculative_tokens: int


def load(model: Any, *, dtype: Any = None, device: Any = None, seed: int = 0) -> Loaded:
    """The model that a name, a path or a `Decoder` means.

    `dtype` is float32, bfloat16 or float16; None for float32 on a CPU and bfloat16 on CUDA. `device` is None
    for CUDA if there is any. `seed` is that of random weights. A `Decoder` is taken as it is. Raises
    `ModelError` for what cannot be found, loaded or held in memory.
    """
    if not isinstance(model, (str, os.PathLike)):
        return _as_it_is(model, dtype, device)
    name = os.fspath(model)
    device = _device(device)
    dtype = _dtype(dtype, device)
    possible = type(seed) is int and 0 <= seed <= MAX_SEED
    refuse_unless(possible, f"seed must be an integer from 0 to {MAX_SEED}, not {seed!r:.80}")
    if isinstance(model, str) and name in MODELS:
        return _from_files(_built_in(name, dtype), name, dtype, device)
    if isinstance(model, str) and name.startswith(RANDOM):
        return _random(name, dtype, device, seed)
    path = _existing(name)
    if path is not None:
        return _from_files(path, name, dtype, device)
    found = HUB_NAME.fullmatch(name) if isinstance(model, str) and not name.endswith(".gguf") else None
    if found is not None:
        return _from_hub(name, found[1], found[2], dtype, device)
    raise ModelError(
        f"there is no model {name!r:.200}: it is neither built in ({', '.join(MODELS)}) nor a folder or "
        f'.gguf file here, nor written as "{RANDOM}qwen3" or, for the Hugging Face Hub, "owner/name"'
    )


def drafter_option(speculate: Any) -> DrafterOption:
    """The parts of `"ngram:3"`, `"null:3"`, `"draft:MODEL:3"` and `"eagle:FOLDER:3"`.

    A model's name may hold colons. Raises `ModelError` for anything else, naming what there is.
    """
    from draftproof.gpu.drafters.step import MAX_SPECULATIVE_TOKENS  # its package imports this file

    if isinstance(speculate, str):
        kind, _, rest = speculate.partition(":")
        argument, colon, number = rest.rpartition(":")
        whole = number.isascii() and number.isdecimal() and len(number) <= 3
        has_model = DRAFTERS_WITH_MODEL.get(kind)
        fits = bool(argument) if has_model else not colon
        if has_model is not None and fits and whole and 1 <= int(number) <= MAX_SPECULATIVE_TOKENS:
            return DrafterOption(kind, argument or None, int(number))
    raise ModelError(
        f"speculate must be {DRAFTER_FORMS}, with 1 to {MAX_SPECULATIVE_TOKENS} drafts a step, "
        f"got {speculate!r:.200}"
    )


def _as_it_is(decoder: Any, dtype: Any, device: Any) -> Loaded:
    known = all(hasattr(decoder, name) for name in ("shape", "forward", "logits", "dtype", "device"))
    refuse_unless(known, f"a model must be a name, a path or a Decoder, got {decoder!r:.80}")
    same = dtype is None or _dtype(dtype, decoder.device) == decoder.dtype
    refuse_unless(same, f"the Decoder is {decoder.dtype}: convert its weights instead of giving a dtype")
    wanted = decoder.device if device is None else _device(device)
    same = wanted.type == decoder.device.type and wanted.index in (None, decoder.device.index)
    refuse_unless(same, f"the Decoder is on {decoder.device}: move its weights instead of giving a device")
    return Loaded(decoder, None, str(decoder.shape.family))


def _device(device: Any) -> Any:
    if device is None:
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        found = torch.device(device)
    except (RuntimeError, TypeError, ValueError):
        found = None
    if found is None or found.type not in ("cpu", "cuda"):
        raise ModelError(f'device must be "cpu", "cuda" or "cuda:1", got {device!r:.80}')
    there = torch.cuda.device_count() if torch.cuda.is_available() else 0
    if found.type == "cuda" and (found.index or 0) >= there:
        raise ModelError(f'device {str(found)!r} is not there (CUDA devices found: {there}): use "cpu"')
    return found


def _dtype(dtype: Any, device: Any) -> Any:
    if dtype is None:
        return torch.bfloat16 if device.type == "cuda" else torch.float32
    for name in DTYPES:
        if dtype in (name, getattr(torch, name)):
            return getattr(torch, name)
    raise ModelError(f"dtype must be one of {', '.join(DTYPES)}, got {dtype!r:.80}")


def _built_in(name: str, dtype: Any) -> Path:
    """Its folder, fetched if need be: float32 serves for all, bfloat16 if it is there and wanted."""
    smaller = folder_of(name, "bfloat16")
    return smaller if dtype == torch.bfloat16 and is_complete(smaller) else fetch(name, "float32")


def _existing(name: str) -> Path | None:
    try:
        path = Path(name).expanduser()
        return path if name and path.exists() else None
    except (OSError, ValueError, RuntimeError):  # too long a part, a NUL, no home
        return None


def _from_files(path: Path, name: str, dtype: Any, device: Any) -> Loaded:
    tokenizer = _examined(path, name, dtype, device)
    return _loaded(lambda: load_weights(path, dtype, device), tokenizer, name, device)


def _examined(path: Path, name: str, dtype: Any, device: Any) -> Tokenizer | None:
    """Everything that can be refused without reading a weight; the tokenizer, if there is one."""
    shape = read_shape(path) if path.is_dir() else _gguf_shape(path)
    _check_memory(shape, name, dtype, device)
    try:
        tokenizer = load_tokenizer(path)
    except NoTokenizer:
        return None
    refuse_unless(
        tokenizer.vocab_size <= shape.vocab_size,
        f"{name} has a tokenizer of {tokenizer.vocab_size} tokens and a model of {shape.vocab_size}: they do "
        "not belong together",
    )
    return tokenizer


def _gguf_shape(path: Path) -> ModelShape:
    if path.suffix.lower() != ".gguf":
        raise ModelError(f"{path} is no model: give a .gguf file, or the folder that holds config.json")
    return read_gguf_shape(path)


def _loaded(read: Any, tokenizer: Tokenizer | None, name: str, device: Any) -> Loaded:
    try:
        with progress_line(f"draftproof: loading {name}"):
            return Loaded(Decoder(*read()), tokenizer, name)
    except (RuntimeError, MemoryError) as error:  # what torch raises where memory ends
        raise ModelError(f"{name} cannot be loaded on {device} ({_reason(error)})") from None


def _check_memory(shape: ModelShape, name: str, dtype: Any, device: Any) -> None:
    needed, free = num_bytes_to_load(shape, dtype, device), free_bytes(device)
    refuse_unless(
        free is None or needed <= free,
        f"{name} needs {_gib(needed)} to load its weights as {str(dtype).removeprefix('torch.')}, but "
        f"{device} has {_gib(free or 0)} free: use a smaller model{_smaller(dtype)}",
    )


def _random(name: str, dtype: Any, device: Any, seed: int) -> Loaded:
    shape = random_shape(name)
    _check_memory(shape, name, dtype, device)
    return _loaded(lambda: (shape, random_weights(shape, seed, dtype, device)), None, name, device)


def random_shape(name: str) -> ModelShape:
    """The shape that `random:FAMILY,SIZE=NUMBER,...` describes. Raises `ModelError`."""
    family, *changes = name.removeprefix(RANDOM).split(",")
    families = list(ARCHITECTURES.values())
    refuse_unless(family in families, f"{name!r:.200} must name one of {', '.join(families)} after {RANDOM}")
    given: dict[str, int] = {}
    for change in changes:
        key, _, number = change.partition("=")
        whole = number.isascii() and number.isdecimal() and len(number) <= 10
        if key not in RANDOM_SIZES or not whole or key in given:
            raise ModelError(
                f"{name!r:.200} has {change!r:.80}, which is no size: write {', '.join(RANDOM_SIZES)} once "
                "each, with =NUMBER"
            )
        given[key] = int(number)
    sizes = {**RANDOM_SIZES, **given}
    if sizes["num_heads"]:
        given.setdefault("head_dim", sizes["hidden_size"] // sizes["num_heads"])
        given.setdefault("num_kv_heads", math.gcd(sizes["num_kv_heads"], sizes["num_heads"]))
    return ModelShape(
        family=family,
        **{**sizes, **given},
        rms_norm_eps=1e-6,
        rope_theta=10000.0,
        rope_scaling=None,
        tie_word_embeddings=False,
        attention_bias=family == "qwen2",
        qk_norm=family == "qwen3",
        eos_token_ids=(),
        bos_token_id=None,
    )


def _from_hub(name: str, repository: str, revision: str | None, dtype: Any, device: Any) -> Loaded:
    """Small files first; the weights of the same commit when those have been examined."""
    folder = _downloaded(name, repository, revision, HUB_FILES)
    if COMMIT.fullmatch(folder.name):
        revision = folder.name
    tokenizer = _examined(folder, name, dtype, device)
    folder = _downloaded(name, repository, revision, (*HUB_FILES, "*.safetensors"))
    if not any(folder.glob("*.safetensors")):
        raise ModelError(f"{name} has no safetensors on the Hugging Face Hub, and pickles are never loaded")
    return _loaded(lambda: load_weights(folder, dtype, device), tokenizer, name, device)


def _downloaded(name: str, repository: str, revision: str | None, patterns: tuple[str, ...]) -> Path:
    try:
        import huggingface_hub
    except ImportError:
        raise ModelError(
            f"{name} is no folder or file here, and the Hugging Face Hub needs the package huggingface_hub: "
            "install it, or give a path"
        ) from None
    try:
        folder = huggingface_hub.snapshot_download(
            repository,
            revision=revision,
            allow_patterns=list(patterns),
            ignore_patterns=list(HUB_IGNORED),
        )
    except Exception as error:  # the network's, the library's and the disk's
        raise ModelError(
            f"{name} is no folder or file here, and cannot be had from the Hugging Face Hub "
            f"({type(error).__name__}: {_reason(error)}): check its name and the network"
        ) from None
    return Path(folder)


def _smaller(dtype: Any) -> str:
    return " or dtype bfloat16" if dtype.itemsize > 2 else ""


def _gib(num_bytes: int) -> str:
    return f"{num_bytes / 2**30:.2f} GiB"


def _reason(error: Exception) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0][:200]
