"""Can several use an LLM at the same time, and leave it in the middle? Streams, threads, aborts."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from contextlib import aclosing
from dataclasses import replace
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")
pytest.importorskip("tokenizers", reason="tokenizers is not installed")
pytest.importorskip("gguf", reason="gguf is not installed")

from tests.gpu.llm_world import TOLERANCE, difference, hit, is_idle, modes  # noqa: E402
from tests.gpu.text_world import (  # noqa: E402
    BLOCK_SIZE,
    GREEDY,
    NUM_TOKENS,
    PROMPTS,
    baseline,
    decoder,
    llm,
    same,
)

from draftproof.gpu.llm import LLM  # noqa: E402
from draftproof.gpu.runner import RequestOutput, RequestResult, StalledError  # noqa: E402
from draftproof.gpu.sampling import SamplingParameters  # noqa: E402
from draftproof.impl.ledger_table import NUM_COMPUTED_TOKENS  # noqa: E402
from draftproof.impl.scheduler import RequestError  # noqa: E402


@pytest.fixture(autouse=True, scope="module")
def said() -> None:
    """Known before anything runs in another thread: there, tensors may not be read."""
    baseline()


async def collect(one: LLM, prompt: str, count: int | None = None) -> list[RequestOutput]:
    """A stream's outputs; it is left after so many tokens, of many more to come."""
    outputs: list[RequestOutput] = []
    parameters = GREEDY if count is None else replace(GREEDY, max_tokens=200)
    async with aclosing(one.stream(prompt, parameters)) as stream:  # type: ignore[type-var]
        async for output in stream:
            outputs.append(output)
            if count is not None and sum(len(output.token_ids) for output in outputs) >= count:
                break
    assert outputs[0].request_id not in one.engine.scheduler.rows  # it does not go on without a reader
    return outputs


@modes
@pytest.mark.parametrize("speculate", [None, "ngram:3"])
def test_streams_bring_what_generate_brings(speculate: str | None, asynchronous: bool) -> None:
    """Several at once, one of them left in the middle, one cancelled."""
    one = llm(speculate, asynchronous=asynchronous)

    async def everything() -> list[Any]:
        cancelled = asyncio.create_task(collect(one, PROMPTS[3], 190))
        streams = [
            collect(one, prompt, count) for prompt, count in zip(PROMPTS, (None, 6, None), strict=False)
        ]
        tasks = asyncio.gather(*streams)
        await asyncio.sleep(0.05)
        cancelled.cancel()
        with pytest.raises(asyncio.CancelledError):
            await cancelled
        return await tasks

    first, left, last = asyncio.run(everything())
    assert is_idle(one)
    for outputs, whole in ((first, baseline()[0]), (last, baseline()[2])):
        assert [token for output in outputs for token in output.token_ids] == list(whole.token_ids)
        assert "".join(output.text for output in outputs) == whole.text
        assert [output.result is None for output in outputs] == [True] * (len(outputs) - 1) + [False]
        assert difference(outputs[-1].result, whole) < TOLERANCE
        assert tuple(one for output in outputs for one in output.logprobs) == outputs[-1].result.logprobs
    tokens = [token for output in left for token in output.token_ids]
    assert left[-1].result is None and tuple(tokens) == baseline()[1].token_ids[: len(tokens)]
    assert 6 <= len(tokens) <= 9
    assert same(one.generate(PROMPTS, GREEDY), baseline())


def test_an_error_is_told_to_all_streams(monkeypatch: pytest.MonkeyPatch) -> None:
    one, calls = llm("ngram:3"), list[int]()
    forward = decoder().forward

    def failing(*arguments: Any) -> Any:
        calls.append(len(calls))
        if len(calls) == 6:
            raise ZeroDivisionError("the model")
        return forward(*arguments)

    async def everything() -> list[Any]:
        streams = [collect(one, prompt) for prompt in PROMPTS]
        return await asyncio.gather(*streams, return_exceptions=True)

    monkeypatch.setattr(decoder(), "forward", failing)
    found = asyncio.run(everything())
    assert len(found) == len(PROMPTS)
    for problem in found:
        assert isinstance(problem, ZeroDivisionError)
    assert is_idle(one)
    assert same(one.generate(PROMPTS, GREEDY), baseline())


def in_threads(*functions: Callable[[], Any]) -> list[Any]:
    """What they return, run at the same time."""
    results: list[Any] = [None] * len(functions)

    def run(place: int) -> None:
        results[place] = functions[place]()

    threads = [threading.Thread(target=run, args=(place,), daemon=True) for place in range(len(functions))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
        assert not thread.is_alive()
    return results


@modes
def test_threads_may_generate_at_the_same_time(asynchronous: bool) -> None:
    one = llm("ngram:3", asynchronous=asynchronous)
    parts = (PROMPTS[:2], PROMPTS[2:], PROMPTS[::-1])
    first, second, third = in_threads(*[lambda some=some: one.generate(some, GREEDY) for some in parts])
    assert same([*first, *second], baseline()) and same(third[::-1], baseline())
    assert is_idle(one)


@modes
def test_an_abort_in_the_middle_leaves_the_others(asynchronous: bool) -> None:
    """A thread waits for five requests, of which another one ends one that runs and one that waits."""
    one = llm("ngram:3", asynchronous=asynchronous, max_num_seqs=1)
    step, aborted = one.engine.step, list[RequestResult | None]()

    def watched() -> Any:
        outputs = step()
        running = one.engine.requests
        if not aborted and any(len(request.token_ids) > 5 for request in running.values()):
            (request_id,) = [request.request_id for request in running.values() if request.token_ids]
            waiting = one._waiting[-1].request_id if one._waiting else max(one._sinks, key=int)
            aborted.extend(in_threads_of(one, (request_id, waiting)))
        return outputs

    one.engine.step = watched  # type: ignore[method-assign]
    (results,) = in_threads(lambda: one.generate(PROMPTS, GREEDY))
    reasons = [result.finish_reason for result in results]
    assert reasons == ["abort", "length", "length", "length", "abort"]
    assert 5 < len(results[0].token_ids) < NUM_TOKENS and results[4].token_ids == ()
    assert results[0].token_ids == baseline()[0].token_ids[: len(results[0].token_ids)]
    assert aborted == [results[0], results[4]]
    assert same(results[1:4], baseline()[1:4])
    assert one.abort("no such request") is None and one.abort(results[1].request_id) is None
    assert is_idle(one)
    # What had been computed was published as it left.
    known = [*results[0].prompt_token_ids, *results[0].token_ids]
    again = one.generate([known], replace(GREEDY, max_tokens=1))[0]
    assert again.num_cached_tokens >= hit(len(known) - 1, len(known), BLOCK_SIZE) > 0


def in_threads_of(one: LLM, request_ids: tuple[str, ...]) -> list[RequestResult | None]:
    """Aborts between two steps: the lock is held by the step's own thread."""
    return [one.abort(request_id) for request_id in request_ids]


def test_an_aborted_stream_and_session_are_told() -> None:
    """By somebody else than who reads them."""
    one = llm("ngram:3")

    async def listen() -> list[RequestOutput]:
        outputs = []
        async for output in one.stream(PROMPTS[0], replace(GREEDY, max_tokens=150)):
            outputs.append(output)
            if len(outputs) == 3:
                await asyncio.to_thread(one.abort, output.request_id)
        return outputs

    outputs = asyncio.run(asyncio.wait_for(listen(), 60))
    result = outputs[-1].result
    assert result is not None and result.finish_reason == "abort" and len(result.token_ids) < 150
    session = one.session(GREEDY)
    session.append(PROMPTS[1])
    session.append(PROMPTS[2])
    one.step_for(session)
    one.abort(session.request_id)
    assert session.turn().finish_reason == "abort"
    with pytest.raises(RequestError, match="no chunk waits"):
        session.turn()
    with pytest.raises(RequestError, match="has been closed"):
        session.append([1])
    assert is_idle(one)


def test_a_scheduler_that_schedules_nothing_is_no_endless_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    """As a wrong counter can bring about: all who wait are told."""
    one = llm("ngram:3")
    settled = one.engine.scheduler.settle

    def settle(batch: Any, *outcome: Any) -> None:
        settled(batch, *outcome)
        one.engine.scheduler.state.requests.ledgers[NUM_COMPUTED_TOKENS, batch.rows[0]] += 1

    monkeypatch.setattr(one.engine.scheduler, "settle", settle)
    monkeypatch.setattr(one.engine, "_compare_end", lambda *_: None)
    monkeypatch.setattr(one.engine, "_compare_dispatch", lambda *_: None)
    with pytest.raises(StalledError, match="nothing can be scheduled of requests 0"):
        one.generate([[1, 2, 3]], SamplingParameters(temperature=0, max_tokens=8, ignore_eos=True))
    assert not one.engine.has_work()
