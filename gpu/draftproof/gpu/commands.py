"""The commands of the runner: generate, demo, fetch, doctor. torch is imported when one runs, not before."""

from __future__ import annotations

import argparse
import importlib.metadata
import importlib.util
import json
import os
import platform
import tempfile
from pathlib import Path
from typing import Any

from draftproof.gpu import generate_arguments
from draftproof.gpu.command_errors import INSTALL, pipe_may_close, told_in_a_sentence
from draftproof.impl.cli import UserError

Subparsers = Any

PACKAGES = ("draftproof", "torch", "numba", "numpy", "tokenizers", "safetensors", "gguf", "triton")


def register(commands: Subparsers) -> None:
    """Add the commands to the parser of `draftproof`."""
    generate_arguments.add_parser(commands).set_defaults(run=_generate)

    demo = commands.add_parser("demo", help="see what speculation does: smollm2 with and without, a minute")
    demo.add_argument("--model", default="smollm2", help="another one, with a chat template")
    demo.add_argument("--max-tokens", type=int, default=40, metavar="N", help="of each answer (40)")
    demo.set_defaults(run=_demo)

    fetch = commands.add_parser("fetch", help="download a small model that needs no account (smollm2)")
    fetch.add_argument("name", help="the model: smollm2")
    fetch.add_argument(
        "--dtype", choices=("float32", "bfloat16"), default="float32", help="what its weights are stored in"
    )
    fetch.add_argument("--json", action="store_true", help="print a line of JSON about the folder")
    fetch.set_defaults(run=_fetch)

    doctor = commands.add_parser("doctor", help="say which versions, device and attention would be used")
    doctor.add_argument("--json", action="store_true", help="print it as JSON")
    doctor.set_defaults(run=_doctor)


def _generate(options: argparse.Namespace) -> int:
    from draftproof.gpu import generate_command

    return generate_command.run(options)


def _demo(options: argparse.Namespace) -> int:
    with told_in_a_sentence(), pipe_may_close():
        from draftproof.gpu import demo

        return demo.run(options.model, options.max_tokens)
    return 0  # the reader has gone


def _fetch(options: argparse.Namespace) -> int:
    with told_in_a_sentence():
        from draftproof.gpu.fetch import MODELS, fetch

        if options.name not in MODELS:
            names = ", ".join(MODELS)
            raise UserError(f"there is no built-in model {options.name!r}: choose one of {names}", 2)
        folder = fetch(options.name, options.dtype)
    size = sum(file.stat().st_size for file in folder.iterdir())
    if options.json:
        print(json.dumps({"folder": str(folder), "bytes": size, "license": MODELS[options.name].license}))
    else:
        print(f"{folder} ({size / 2**20:.0f} MiB, {MODELS[options.name].license})")
    return 0


def _doctor(options: argparse.Namespace) -> int:
    found = examine()
    if options.json:
        print(json.dumps(found, indent=2))
        return 0
    for title, content in found.items():
        lines = content if isinstance(content, dict) else {"": content}
        print(title)
        for name, value in lines.items():
            print(f"  {name:<12} {value}" if name else f"  {value}")
    return 0


def examine() -> dict[str, Any]:
    """What there is to run models with: versions, device, attention backends, the cache and models in it.

    Every entry is a text or a mapping of texts; one that says "no: ..." gives the reason.
    """
    torch = _torch()
    return {
        "versions": {"Python": platform.python_version()} | {name: _version(name) for name in PACKAGES},
        "device": _device(torch),
        "attention": _attention(torch),
        "compiled code": _compiled_code(),
        "models": _models(),
    }


def _torch() -> Any:
    try:
        import torch
    except (ImportError, OSError):  # a library of it that cannot be loaded
        return None
    return torch


def _version(package: str) -> str:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return "no: not installed"


def _device(torch: Any) -> dict[str, str]:
    if torch is None:
        return {"in use": f"no: torch cannot be imported; install it with {INSTALL}"}
    threads = f"{torch.get_num_threads()} threads of {os.cpu_count()} cores, {platform.machine()}"
    if not torch.cuda.is_available():
        built = "this torch is built for a CPU only" if torch.version.cuda is None else "no device is found"
        return {"in use": f"cpu ({threads})", "CUDA": f"no: {built}"}
    about = torch.cuda.get_device_properties(0)
    memory, capability = about.total_memory / 2**30, f"{about.major}.{about.minor}"
    cuda = f"{torch.version.cuda}, {torch.cuda.device_count()} device(s)"
    return {
        "in use": f"cuda: {about.name} ({memory:.0f} GiB, compute capability {capability})",
        "CUDA": cuda,
        "CPU": threads,
    }


def _attention(torch: Any) -> dict[str, str]:
    if torch is None:
        return {"gather": "no: torch is missing", "triton": "no: torch is missing"}
    if importlib.util.find_spec("triton") is None:
        triton = "no: the package triton is not installed"
    elif torch.cuda.is_available():
        triton = "yes"
    elif os.environ.get("TRITON_INTERPRET") == "1":
        triton = "yes, but interpreted: for tests only"
    else:
        triton = "no: there is no CUDA device"
    return {"gather": "yes", "triton": triton}


def _compiled_code() -> dict[str, str]:
    """Where compiled code is kept, and whether it can be."""
    from draftproof.impl import code_cache

    base = code_cache.base_folder()
    try:
        base.mkdir(parents=True, exist_ok=True)
        tempfile.TemporaryFile(dir=base).close()
        kept = sum(1 for entry in base.iterdir() if code_cache.NAME.fullmatch(entry.name))
        state = f"yes: {kept} version(s)"
    except OSError as error:
        state = f"no: {error.strerror or error}, so every start compiles; set DRAFTPROOF_CACHE_DIR"
    return {"folder": str(base), "kept": state}


def _models() -> dict[str, str]:
    """The built-in models that are in the cache already."""
    from draftproof.gpu.fetch import DTYPES, MODELS, folder_of, is_complete

    found = {}
    for name in MODELS:
        folders: list[Path] = [folder for dtype in DTYPES if is_complete(folder := folder_of(name, dtype))]
        found[name] = ", ".join(map(str, folders)) or f"no: draftproof fetch {name}"
    return found
