"""Conversations of several turns, and what each turn must say: what a request with all the text says."""

from __future__ import annotations

from dataclasses import replace
from functools import cache

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")

from tests.gpu.llm_world import TOLERANCE, difference  # noqa: E402
from tests.gpu.runner_world import VOCAB_SIZE, llm  # noqa: E402

from draftproof.gpu.llm import LLM  # noqa: E402
from draftproof.gpu.runner import RequestResult  # noqa: E402
from draftproof.gpu.sampling import SamplingParameters  # noqa: E402
from draftproof.gpu.session import Session  # noqa: E402

GREEDY = SamplingParameters(temperature=0, max_tokens=5, ignore_eos=True, logprobs=0)
SAMPLED = SamplingParameters(temperature=0.8, top_k=6, seed=5, max_tokens=6, ignore_eos=True, logprobs=0)


class Conversation:
    """Chunks, the parameters of their answers, and what is known before each of these."""

    def __init__(self, seed: int, parameters: SamplingParameters = GREEDY, count: int = 4) -> None:
        generator = np.random.default_rng(seed)
        self.chunks = [generator.integers(0, VOCAB_SIZE, size).tolist() for size in (13, 1, 6, 9)[:count]]
        lengths = (5, 2, 1, 7)[:count]
        self.parameters = [replace(parameters, max_tokens=length) for length in lengths]

    @property
    def turns(self) -> list[tuple[list[int], SamplingParameters]]:
        return list(zip(self.chunks, self.parameters, strict=True))

    def expected(self) -> list[RequestResult]:
        """Each turn as a request of its own: the text so far but for the last token, and the chunk."""
        known: list[int] = []
        results = []
        for chunk, parameters in self.turns:
            known = [*known[:-1], *chunk]
            result = truth().generate([known], parameters)[0]
            known += result.token_ids
            results.append(result)
        return results

    def texts(self) -> list[list[int]]:
        """What is known after each turn, and more of it, for a scripted drafter."""
        longer = [replace(one, max_tokens=one.max_tokens + 6) for one in self.parameters]
        return [
            [*result.prompt_token_ids, *truth().generate([result.prompt_token_ids], more)[0].token_ids]
            for result, more in zip(self.expected(), longer, strict=True)
        ]


@cache
def truth() -> LLM:
    """Without speculation or a prefix cache."""
    return llm(enable_prefix_caching=False, debug=False)


def check(results: list[RequestResult], conversation: Conversation) -> None:
    for result, expected, chunk in zip(results, conversation.expected(), conversation.chunks, strict=True):
        assert difference(result, expected) < TOLERANCE
        assert result.finish_reason == expected.finish_reason and list(result.prompt_token_ids) == chunk
        assert result.num_accepted_tokens <= min(result.num_draft_tokens, len(result.token_ids))
        assert result.timings.first_token is not None
        assert 0 <= result.timings.first_token <= result.timings.total


def talk(session: Session, conversation: Conversation) -> list[RequestResult]:
    results = []
    for chunk, parameters in conversation.turns:
        session.append(chunk, parameters)
        results.append(session.turn())
    return results
