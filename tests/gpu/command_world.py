"""A tiny model with a tokenizer for the commands, and the commands without a compiler."""

from __future__ import annotations

import functools
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")
gguf = pytest.importorskip("gguf", reason="gguf is not installed")
pytest.importorskip("tokenizers", reason="tokenizers is not installed")
pytest.importorskip("jinja2", reason="jinja2 is not installed")

from tests.gpu.test_tokenizer import add_tokenizer, tiny  # noqa: E402
from tests.gpu.test_weights import CONFIG, shape  # noqa: E402

from draftproof.gpu import llm as llm_module  # noqa: E402
from draftproof.gpu.weights.gguf_file import gguf_name  # noqa: E402
from draftproof.gpu.weights.random_weights import random_weights  # noqa: E402
from draftproof.impl.scheduler import Scheduler  # noqa: E402

# The command in a process of its own, its scheduler interpreted.
COMMAND = """
import functools, sys
from draftproof.gpu import llm
from draftproof.impl import cli
llm.Scheduler = functools.partial(llm.Scheduler, compiled=False)
sys.exit(cli.command())
"""


def interpret(monkeypatch: pytest.MonkeyPatch) -> None:
    """Schedulers are interpreted: nothing here waits for a compiler."""
    monkeypatch.setattr(llm_module, "Scheduler", functools.partial(Scheduler, compiled=False))


def write_model(folder: Path) -> str:
    """A Llama of two layers with a tokenizer and a chat template, and room for 1,024 tokens."""
    path = folder / "tiny.gguf"
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_block_count(CONFIG["num_hidden_layers"])
    writer.add_context_length(1024)
    writer.add_embedding_length(CONFIG["hidden_size"])
    writer.add_feed_forward_length(CONFIG["intermediate_size"])
    writer.add_head_count(CONFIG["num_attention_heads"])
    writer.add_head_count_kv(CONFIG["num_key_value_heads"])
    writer.add_layer_norm_rms_eps(1e-5)
    add_tokenizer(writer, "smollm")
    expected = shape(vocab_size=tiny("smollm").get_vocab_size(), tie_word_embeddings=True)
    for name, tensor in random_weights(expected, seed=3).items():
        writer.add_tensor(gguf_name(name), tensor.numpy())
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return str(path)


def process(code: str, *arguments: str) -> Any:
    """Python code in another process, its outputs as texts."""
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    environment.pop("PYTHONUNBUFFERED", None)  # a user's output waits in a buffer
    return subprocess.Popen(
        [sys.executable, "-c", code, *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        stdin=subprocess.PIPE,
        env=environment,
    )
