"""In bfloat16, where sums of another shape round otherwise: does every drafter say what null drafts say?"""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")

from tests.gpu.attention_world import DEVICE  # noqa: E402
from tests.gpu.runner_world import (  # noqa: E402
    BLOCK_SIZE,
    CONFIGURATIONS,
    PARAMETERS,
    SCRIPT,
    VOCAB_SIZE,
    guarded,
    prompts,
    shape,
)

from draftproof.gpu.drafters import ScriptedDrafter  # noqa: E402
from draftproof.gpu.drafters.draft_model import DraftModelDrafter  # noqa: E402
from draftproof.gpu.drafters.eagle import EagleDrafter, EagleHead  # noqa: E402
from draftproof.gpu.llm import LLM  # noqa: E402
from draftproof.gpu.models.decoder import Decoder  # noqa: E402
from draftproof.gpu.runner import RequestResult  # noqa: E402
from draftproof.gpu.weights.random_weights import random_weights  # noqa: E402

TOLERANCE = 0.05
"""Of log-probabilities: a few times bfloat16's distance between neighbours of the size of these logits."""


@cache
def decoder(seed: int = 3) -> Decoder:
    return Decoder(shape(), random_weights(shape(), seed, dtype=torch.bfloat16, device=DEVICE))


def llm(speculate: Any, **options: Any) -> LLM:
    given: dict[str, Any] = {"block_size": BLOCK_SIZE, "max_num_seqs": 4, "compiled": False, "debug": True}
    given |= {"num_blocks": 200} | options
    return guarded(LLM(decoder(), speculate=speculate, **given))


@cache
def baseline(num_drafts: int) -> list[RequestResult]:
    return llm(f"null:{num_drafts}").generate(prompts(), PARAMETERS["greedy"])


@cache
def texts() -> list[list[int]]:
    longer = [replace(one, max_tokens=one.max_tokens + 6) for one in PARAMETERS["greedy"]]
    found = llm("null:1").generate(prompts(), longer)
    return [[*result.prompt_token_ids, *result.token_ids] for result in found]


def drafter(kind: str, num_drafts: int) -> Any:
    if kind == "scripted":
        return ScriptedDrafter(num_drafts, texts(), SCRIPT, VOCAB_SIZE)
    if kind == "draft":
        return DraftModelDrafter(decoder(4), num_drafts)
    if kind == "eagle":
        return EagleDrafter(EagleHead.random(shape(), 4, torch.bfloat16, DEVICE), num_drafts)
    return f"{kind}:{num_drafts}"


@pytest.mark.parametrize(
    ("num_drafts", "configuration", "asynchronous"),
    [(1, "plain", True), (3, "plain", False), (3, "both", False), (5, "both", True)],
)
@pytest.mark.parametrize("kind", ["ngram", "scripted", "draft", "eagle"])
def test_every_drafter_says_what_null_drafts_say(
    kind: str, num_drafts: int, configuration: str, asynchronous: bool
) -> None:
    one = llm(drafter(kind, num_drafts), asynchronous=asynchronous, **CONFIGURATIONS[configuration])
    results = one.generate(prompts(), PARAMETERS["greedy"])
    for result, expected in zip(results, baseline(num_drafts), strict=True):
        assert result.token_ids == expected.token_ids
        assert result.logprobs is not None and expected.logprobs is not None
        for found, other in zip(result.logprobs, expected.logprobs, strict=True):
            assert abs(found.logprob - other.logprob) < TOLERANCE
    totals = one.engine.totals
    assert totals.num_accepted_drafts > 0 and totals.num_rejected_drafts > 0
    assert (totals.num_preemptions > 0) == (configuration == "both")
