"""Does a model with recurrent layers say the same with rejected drafts, and from a kept state, as without?"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import cache
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")

from tests.gpu.attention_world import DEVICE  # noqa: E402
from tests.gpu.runner_world import (  # noqa: E402
    BLOCK_SIZE,
    MAX_TOKENS,
    TOLERANCE,
    VOCAB_SIZE,
    drafter,
    guarded,
    largest_difference,
    prompts,
    shape,
)

from draftproof.gpu.llm import LLM  # noqa: E402
from draftproof.gpu.models.hybrid import HybridDecoder, HybridShape  # noqa: E402
from draftproof.gpu.recurrent import state_moves  # noqa: E402
from draftproof.gpu.runner import RequestResult  # noqa: E402
from draftproof.gpu.runner import runner as runner_module  # noqa: E402
from draftproof.gpu.sampling import SamplingParameters  # noqa: E402
from draftproof.gpu.weights.random_weights import random_weights  # noqa: E402

GREEDY = SamplingParameters(temperature=0, max_tokens=MAX_TOKENS, ignore_eos=True, logprobs=0)
STATE_BLOCK_SIZE = 8
CONFIGURATIONS: dict[str, dict[str, int]] = {
    "plain": {"num_blocks": 300},
    "chunked": {"num_blocks": 300, "long_prefill_token_threshold": 8, "max_num_batched_tokens": 24},
    "preempted": {"num_blocks": 42},
}


@cache
def hybrid() -> HybridDecoder:
    values = vars(shape()) | {"num_layers": 4, "recurrent_layers": (0, 2), "recurrent_size": 24}
    one = HybridShape(**values)
    return HybridDecoder(one, random_weights(one, 6, device=DEVICE))


def llm(speculate: Any = None, **options: Any) -> LLM:
    given: dict[str, Any] = {
        "block_size": BLOCK_SIZE, "recurrent_block_size": STATE_BLOCK_SIZE, "max_num_seqs": 4,
        "num_blocks": 300, "compiled": False, "debug": True,
    }  # fmt: skip
    return guarded(LLM(hybrid(), speculate=speculate, **(given | options)))


@cache
def baseline() -> list[RequestResult]:
    """Without speculation or a cache."""
    return llm(enable_prefix_caching=False).generate(prompts(), GREEDY)


@cache
def texts() -> list[list[int]]:
    found = llm().generate(prompts(), replace(GREEDY, max_tokens=MAX_TOKENS + 6))
    return [[*result.prompt_token_ids, *result.token_ids] for result in found]


@pytest.mark.parametrize("asynchronous", [False, True])
@pytest.mark.parametrize("configuration", CONFIGURATIONS)
@pytest.mark.parametrize(
    ("kind", "num_drafts"), [("ngram", 1), ("ngram", 3), ("scripted", 3), ("scripted", 5), ("null", 3)]
)
def test_speculation_changes_nothing(
    kind: str, num_drafts: int, configuration: str, asynchronous: bool
) -> None:
    speculate = drafter(kind, num_drafts, texts())
    one = llm(speculate, asynchronous=asynchronous, **CONFIGURATIONS[configuration])
    results = one.generate(prompts(), GREEDY)
    assert largest_difference(results, baseline()) < TOLERANCE
    totals = one.engine.totals
    assert totals.num_rejected_drafts > 0 and totals.num_compared > totals.num_steps
    assert totals.num_accepted_drafts > 0 or kind == "null"
    assert totals.num_preemptions > 0 or configuration != "preempted"
    assert totals.num_prefill_chunks > 0 or configuration != "chunked"


@pytest.mark.parametrize("asynchronous", [False, True])
def test_a_kept_state_continues_as_if_recomputed(asynchronous: bool) -> None:
    one = llm(drafter("scripted", 3, texts()), asynchronous=asynchronous)
    one.generate(prompts(), GREEDY)
    extended = [[*text[:-6], 1, 2, 3] for text in texts()]
    found = one.generate(extended, GREEDY)
    assert all(result.num_cached_tokens >= STATE_BLOCK_SIZE for result in found)
    assert all(result.num_cached_tokens % STATE_BLOCK_SIZE == 0 for result in found)
    fresh = llm(enable_prefix_caching=False).generate(extended, GREEDY)
    assert largest_difference(found, fresh) < TOLERANCE
    assert one.engine.totals.num_rejected_drafts > 0


def always_the_first_slot(moves: Callable[..., Any]) -> Callable[..., Any]:
    """Every step starts from the state that no draft is accepted for."""

    def wrong(rows: Any, *rest: Any) -> Any:
        return moves(rows._replace(source_slots=torch.zeros_like(rows.source_slots)), *rest)

    return wrong


def always_the_last_slot(moves: Callable[..., Any]) -> Callable[..., Any]:
    """Every step starts from the state after all of its drafts, rejected ones too."""

    def wrong(rows: Any, *rest: Any) -> Any:
        last = torch.where(rows.starts_anew | (rows.source_slots > 3), rows.source_slots, rows.num_drafts)
        return moves(rows._replace(source_slots=last), *rest)

    return wrong


@pytest.mark.parametrize("asynchronous", [False, True])
@pytest.mark.parametrize("fault", [always_the_first_slot, always_the_last_slot])
def test_a_wrong_state_shows(
    fault: Callable[..., Any], asynchronous: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected, speculate = baseline(), drafter("scripted", 3, texts())
    monkeypatch.setattr(runner_module, "state_moves", fault(state_moves))
    results = llm(speculate, asynchronous=asynchronous).generate(prompts(), GREEDY)
    logprobs = [
        (one.logprob, other.logprob)
        for result, right in zip(results, expected, strict=True)
        for one, other in zip(result.logprobs or (), right.logprobs or (), strict=False)
    ]
    assert max(abs(one - other) for one, other in logprobs) > 100 * TOLERANCE


def test_a_draft_model_and_a_session_beside_recurrent_layers() -> None:
    one = llm(drafter("draft", 2, []), num_blocks=300)
    assert largest_difference(one.generate(prompts(), GREEDY), baseline()) < TOLERANCE
    chunks = [[1, 2, 3, 4, 5], [6, 7], [8, 9, 10]]
    turns = []
    for speculate in (None, "ngram:3"):
        with llm(speculate).session(replace(GREEDY, max_tokens=4)) as session:
            for chunk in chunks:
                session.append(chunk)
            turns.append([session.turn() for _ in chunks])
    assert largest_difference(turns[1], turns[0]) < TOLERANCE
    assert all(token < VOCAB_SIZE for result in turns[0] for token in result.token_ids)
