"""Does any of 200 requests lose a block that was settled? Of different lengths and ends, however they run."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")

from tests.gpu.llm_world import Trims, hit, modes, put_in, without_other_checks  # noqa: E402
from tests.gpu.runner_world import BLOCK_SIZE, CONFIGURATIONS, VOCAB_SIZE, llm  # noqa: E402

from draftproof.gpu.llm import LLM  # noqa: E402
from draftproof.gpu.runner import RequestResult  # noqa: E402
from draftproof.gpu.sampling import SamplingParameters  # noqa: E402

NUM_REQUESTS, NUM_AT_ONCE = 25, 5
"""Of each of four configurations, synchronously and asynchronously."""
EXTENSION = [1, 2, 3, 4, 5]
ONE_TOKEN = SamplingParameters(temperature=0, max_tokens=1)


class Found(NamedTuple):
    """Of a finished request with more behind it: how many tokens are found by the closed form, and indeed."""

    expected: int
    indeed: int


def requests(seed: int) -> list[tuple[list[int], SamplingParameters]]:
    generator = np.random.default_rng(seed)
    found = []
    for _ in range(NUM_REQUESTS):
        prompt = generator.integers(0, VOCAB_SIZE, generator.integers(6, 40)).tolist()
        prompt += prompt[: int(generator.integers(0, 9))]  # something to look up
        is_greedy = generator.random() < 0.6
        parameters = SamplingParameters(
            temperature=0 if is_greedy else 0.4,
            seed=int(generator.integers(1000)),
            max_tokens=int(generator.integers(1, 30)),
            stop_token_ids=tuple(generator.integers(0, VOCAB_SIZE, generator.integers(0, 2)).tolist()),
            ignore_eos=bool(generator.random() < 0.7),
        )
        found.append((prompt, parameters))
    return found


def watch(one: LLM, trims: Trims) -> dict[str, Found]:
    """By request, what is found at the moment that it finishes, before others can take its blocks."""
    engine, found = one.engine, dict[str, Found]()
    step = engine.step

    def watched() -> Any:
        outputs = step()
        for result in [output.result for output in outputs]:
            if result is not None:
                text = extended(result)
                expected = hit(trims.num_settled(result), len(text), BLOCK_SIZE)
                indeed = engine.scheduler.num_cached_tokens(text)
                found[result.request_id] = Found(expected, indeed)
        return outputs

    engine.step = watched  # type: ignore[method-assign]
    return found


def extended(result: RequestResult) -> list[int]:
    return [*result.prompt_token_ids, *result.token_ids, *EXTENSION]


def run(configuration: str, asynchronous: bool) -> list[Found]:
    """What is found of 25 requests; and by real repeats, where nothing is evicted."""
    options = dict(CONFIGURATIONS[configuration])
    is_roomy = "preempted" != configuration != "both"
    if is_roomy:
        options["num_blocks"] = 1000
    one = llm("ngram:3", asynchronous=asynchronous, **options)
    trims = Trims(one)
    found, all_found = watch(one, trims), list[Found]()
    given = requests(list(CONFIGURATIONS).index(configuration) + 10 * asynchronous)
    for begin in range(0, NUM_REQUESTS, NUM_AT_ONCE):
        prompts, parameters = zip(*given[begin : begin + NUM_AT_ONCE], strict=True)
        results = one.generate(prompts, parameters)
        these = [found[result.request_id] for result in results]
        if is_roomy:
            again = one.generate([extended(result) for result in results], ONE_TOKEN)
            assert [result.num_cached_tokens for result in again] == [one.indeed for one in these]
        all_found += these
    totals = one.engine.totals
    assert totals.num_accepted_drafts > 0 and totals.num_rejected_drafts > 0 and trims.num_trimmed > 0
    assert (totals.num_preemptions > 0) == (not is_roomy)
    assert (totals.num_prefill_chunks > 0) == (configuration in ("chunked", "both"))
    assert len(all_found) == NUM_REQUESTS and sum(one.expected > 0 for one in all_found) > NUM_REQUESTS / 2
    return all_found


@modes
@pytest.mark.parametrize("configuration", CONFIGURATIONS)
def test_no_request_loses_a_block(configuration: str, asynchronous: bool) -> None:
    """0 of 25 here, of 200 in all eight; and nothing is found that was not settled."""
    for found in run(configuration, asynchronous):
        assert found.indeed == found.expected


FAULTY = ("plain", "both")
"""Configurations that show a fault."""


@without_other_checks
@modes
def test_requests_lose_blocks_without_the_registration(
    asynchronous: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    put_in(monkeypatch, f"finish-registers-nothing-{'a' * asynchronous}synchronous")
    found = [one for configuration in FAULTY for one in run(configuration, asynchronous)]
    num_lost = sum(one.indeed < one.expected for one in found)
    assert num_lost >= (1 if asynchronous else 5)  # asynchronously only those that stop at a block's end
    assert not any(one.indeed > one.expected for one in found)


@without_other_checks
@modes
def test_requests_lose_blocks_without_the_trimmed_tokens(
    asynchronous: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    put_in(monkeypatch, "finish-forgets-trimmed")
    found = [one for configuration in FAULTY for one in run(configuration, asynchronous)]
    assert any(one.indeed < one.expected for one in found)
