"""A tiny random model, requests for it, and what they must come to by dense recomputation."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")

from tests.gpu.attention_world import DEVICE  # noqa: E402
from tests.gpu.host_reads import no_host_reads  # noqa: E402

from draftproof.gpu.drafters import ScriptedDrafter  # noqa: E402
from draftproof.gpu.drafters.draft_model import DraftModelDrafter  # noqa: E402
from draftproof.gpu.drafters.eagle import EagleDrafter, EagleHead  # noqa: E402
from draftproof.gpu.llm import LLM  # noqa: E402
from draftproof.gpu.models.decoder import Decoder  # noqa: E402
from draftproof.gpu.models.shape import ModelShape  # noqa: E402
from draftproof.gpu.runner import RequestResult  # noqa: E402
from draftproof.gpu.sampling import SamplingParameters  # noqa: E402
from draftproof.gpu.weights.random_weights import random_weights  # noqa: E402

VOCAB_SIZE, EOS, BLOCK_SIZE, MAX_TOKENS = 11, 7, 4, 22
TOLERANCE = 1e-4
SCRIPT = (1, 0, 1, 1)
"""Drafts accepted by step; K may be 1."""
CONFIGURATIONS: dict[str, dict[str, int]] = {
    "plain": {"num_blocks": 200},
    "chunked": {"num_blocks": 200, "long_prefill_token_threshold": 7, "max_num_batched_tokens": 16},
    "preempted": {"num_blocks": 26},
    "both": {"num_blocks": 26, "long_prefill_token_threshold": 7, "max_num_batched_tokens": 16},
}
PARAMETERS = {
    "greedy": [SamplingParameters(temperature=0, max_tokens=MAX_TOKENS, ignore_eos=True, logprobs=2)] * 5,
    "sampled": [
        SamplingParameters(
            temperature=0.7, top_k=4, top_p=0.95, repetition_penalty=penalty, seed=seed,
            max_tokens=MAX_TOKENS, ignore_eos=True, logprobs=0,
        )
        for seed, penalty in enumerate((1.0, 1.0, 1.2, 1.0, 0.9))
    ],
}  # fmt: skip


def shape(**changes: Any) -> ModelShape:
    sizes: dict[str, Any] = {
        "family": "llama", "vocab_size": VOCAB_SIZE, "hidden_size": 32, "num_layers": 2, "num_heads": 4,
        "num_kv_heads": 2, "head_dim": 8, "intermediate_size": 48, "rms_norm_eps": 1e-5,
        "rope_theta": 10000.0, "rope_scaling": None, "max_position_embeddings": 128,
        "tie_word_embeddings": False, "attention_bias": False, "qk_norm": False, "eos_token_ids": (EOS,),
        "bos_token_id": None,
    }  # fmt: skip
    return ModelShape(**(sizes | changes))


@cache
def decoder(seed: int = 3) -> Decoder:
    return Decoder(shape(), random_weights(shape(), seed, device=DEVICE))


def prompts() -> list[list[int]]:
    """Five of 9 to 29 tokens that do not begin alike; long ones before short ones, so that one of them is
    still in prefill before another that samples."""
    generator = np.random.default_rng(11)
    return [generator.integers(0, VOCAB_SIZE, length).tolist() for length in (29, 9, 24, 14, 19)]


def llm(speculate: Any = None, **options: Any) -> LLM:
    """One whose scheduler is interpreted, and whose steps may not wait for the device."""
    given: dict[str, Any] = {"block_size": BLOCK_SIZE, "max_num_seqs": 4, "compiled": False}
    given |= {"num_blocks": 200, "debug": True} | options
    return guarded(LLM(decoder(), speculate=speculate, **given))


def guarded(one: LLM) -> LLM:
    """The same, whose steps raise where they wait for the device."""
    step = one.engine.runner._step

    def watched(*arguments: Any) -> Any:
        with no_host_reads():
            return step(*arguments)

    one.engine.runner._step = watched
    return one


def drafter(kind: str, num_drafts: int, texts: list[list[int]]) -> Any:
    if kind == "draft":
        return DraftModelDrafter(decoder(4), num_drafts)
    if kind == "eagle":
        return EagleDrafter(EagleHead.random(shape(), 4, torch.float32, DEVICE), num_drafts)
    if kind == "scripted":
        return ScriptedDrafter(num_drafts, texts, SCRIPT, VOCAB_SIZE)
    return None if kind == "none" else f"{kind}:{num_drafts}"


def dense_logits(token_ids: list[int]) -> Any:
    """float32[n, V] of a sequence, all computed anew, without a cache."""
    tokens = torch.tensor(token_ids, device=DEVICE)
    places = torch.arange(len(token_ids), device=DEVICE)

    def attend(layer: int, query: Any, key: Any, value: Any) -> Any:
        keys, values = [one.repeat_interleave(2, 1) for one in (key, value)]
        scores = torch.einsum("qhd,khd->hqk", query, keys) / query.shape[-1] ** 0.5
        scores = scores.masked_fill(places[None, :] > places[:, None], float("-inf"))
        return torch.einsum("hqk,khd->qhd", scores.softmax(-1), values)

    return decoder().logits(decoder().forward(tokens, places, attend))


def dense_greedy(
    prompt: list[int], num_tokens: int, repetition_penalty: float = 1.0
) -> tuple[list[int], list[float]]:
    """The most likely tokens and their log-probabilities, one after the other."""
    tokens, logprobs = list(prompt), []
    for _ in range(num_tokens):
        last = dense_logits(tokens)[-1]
        punished = last.clone()
        for token in set(tokens):
            punished[token] *= repetition_penalty if last[token] <= 0 else 1 / repetition_penalty
        tokens.append(int(punished.argmax()))
        logprobs.append(float(last.log_softmax(-1)[tokens[-1]]))
    return tokens[len(prompt) :], logprobs


def largest_difference(results: list[RequestResult], expected: list[RequestResult]) -> float:
    """Of the log-probabilities; the tokens are asserted to be the same."""
    differences = [0.0]
    for result, other in zip(results, expected, strict=True):
        assert result.token_ids == other.token_ids
        assert result.finish_reason == other.finish_reason
        assert result.logprobs is not None and other.logprobs is not None
        assert [one.token_id for one in result.logprobs] == list(result.token_ids)
        differences += [
            abs(one.logprob - two.logprob) for one, two in zip(result.logprobs, other.logprobs, strict=True)
        ]
    return float(np.max(differences))
