"""A tiny random model with a tiny tokenizer: texts, and what they must come to."""

from __future__ import annotations

from functools import cache
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")
pytest.importorskip("tokenizers", reason="tokenizers is not installed")
pytest.importorskip("gguf", reason="gguf is not installed")

from tests.gpu.attention_world import DEVICE  # noqa: E402
from tests.gpu.llm_world import TOLERANCE, difference  # noqa: E402
from tests.gpu.runner_world import guarded, shape  # noqa: E402
from tests.gpu.test_tokenizer import TEMPLATE, tiny  # noqa: E402

from draftproof.gpu.llm import LLM  # noqa: E402
from draftproof.gpu.models.decoder import Decoder  # noqa: E402
from draftproof.gpu.runner import RequestResult  # noqa: E402
from draftproof.gpu.sampling import SamplingParameters  # noqa: E402
from draftproof.gpu.tokenizer import Tokenizer  # noqa: E402
from draftproof.gpu.weights.random_weights import random_weights  # noqa: E402

BLOCK_SIZE, NUM_TOKENS = 4, 30
GREEDY = SamplingParameters(temperature=0, max_tokens=NUM_TOKENS, ignore_eos=True, logprobs=1)
PROMPTS = ["the cat and the hat", "it's 2024!", "that sat  and the  hat", "e", "naïve café 日本 🤖"]


@cache
def tokenizer() -> Tokenizer:
    return Tokenizer(tiny("smollm"), {"eos": "<|im_end|>"}, TEMPLATE)


@cache
def decoder() -> Decoder:
    """One whose every token is one of the tokenizer's."""
    size = shape(vocab_size=tokenizer().vocab_size, max_position_embeddings=256, eos_token_ids=(2,))
    return Decoder(size, random_weights(size, 3, device=DEVICE))


def llm(speculate: Any = None, **options: Any) -> LLM:
    given: dict[str, Any] = {"block_size": BLOCK_SIZE, "max_num_seqs": 4, "num_blocks": 200, "debug": True}
    one = guarded(LLM(decoder(), speculate=speculate, compiled=False, **given | options))
    one.tokenizer = tokenizer()
    return one


@cache
def truth() -> LLM:
    """Without speculation or a prefix cache."""
    return llm(enable_prefix_caching=False, debug=False)


@cache
def baseline() -> list[RequestResult]:
    return truth().generate(PROMPTS, GREEDY)


def same(results: list[RequestResult], expected: list[RequestResult]) -> bool:
    return all(difference(*pair) < TOLERANCE for pair in zip(results, expected, strict=True))
