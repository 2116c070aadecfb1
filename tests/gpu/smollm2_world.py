"""SmolLM2, loaded once, and what it says without speculation or a prefix cache."""

from __future__ import annotations

import os
from dataclasses import replace
from functools import cache
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")

from tests.gpu.attention_world import DEVICE  # noqa: E402

from draftproof.gpu.errors import ModelError  # noqa: E402
from draftproof.gpu.fetch import fetch  # noqa: E402
from draftproof.gpu.llm import LLM  # noqa: E402
from draftproof.gpu.loading import Loaded, load  # noqa: E402
from draftproof.gpu.runner import RequestResult  # noqa: E402
from draftproof.gpu.sampling import SamplingParameters  # noqa: E402

GREEDY = SamplingParameters(temperature=0, max_tokens=16, ignore_eos=True, logprobs=0)


@cache
def folder() -> str:
    """Where its weights are. Without a network the tests that need them are skipped, but not in CI."""
    try:
        return str(fetch("smollm2"))
    except ModelError as problem:
        if "CI" in os.environ:
            raise
        pytest.skip(f"SmolLM2 is not to be had: {problem}")


@cache
def smollm2() -> Loaded:
    """In float32."""
    return load(folder(), dtype="float32", device=DEVICE)


def tokens(text: str) -> list[int]:
    tokenizer = smollm2().tokenizer
    assert tokenizer is not None
    return tokenizer.encode(text)


def llm(speculate: Any = None, **options: Any) -> LLM:
    """One whose scheduler is interpreted, so that a fault can be put into it."""
    given: dict[str, Any] = {"max_model_len": 512, "num_blocks": 100, "compiled": False, "debug": False}
    return LLM(smollm2().decoder, speculate=speculate, **given | options)


@cache
def fresh(token_ids: tuple[int, ...], max_tokens: int) -> RequestResult:
    """The answer without speculation, of a cache that holds nothing."""
    (result,) = plain_llm().generate([token_ids], replace(GREEDY, max_tokens=max_tokens))
    return result


@cache
def plain_llm() -> LLM:
    return llm(enable_prefix_caching=False)
