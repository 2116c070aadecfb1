"""Is every turn of a session what a request with all the text would say? And how does a session end?"""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")

from tests.gpu.llm_world import (  # noqa: E402
    TOLERANCE,
    difference,
    is_idle,
    modes,
    put_in,
    without_other_checks,
)
from tests.gpu.runner_world import EOS, VOCAB_SIZE, decoder, drafter, llm, prompts  # noqa: E402
from tests.gpu.session_world import GREEDY, SAMPLED, Conversation, check, talk, truth  # noqa: E402

from draftproof.gpu.canary import CanaryError  # noqa: E402
from draftproof.gpu.drafters import ScriptedDrafter  # noqa: E402
from draftproof.gpu.runner import RequestResult  # noqa: E402
from draftproof.gpu.sampling import ParameterError, SamplingParameters  # noqa: E402
from draftproof.impl.scheduler import RequestError  # noqa: E402


@modes
@pytest.mark.parametrize("parameters", [GREEDY, SAMPLED], ids=["greedy", "sampled"])
@pytest.mark.parametrize("kind", ["none", "null", "ngram", "scripted"])
def test_a_turn_says_what_a_request_with_all_the_text_says(
    kind: str, parameters: SamplingParameters, asynchronous: bool
) -> None:
    conversation = Conversation(1, parameters)
    speculate: Any = drafter(kind, 4, [])
    if kind == "scripted":
        speculate = ScriptedDrafter(4, conversation.texts(), (4, 3, 0, 2), VOCAB_SIZE)
    one = llm(speculate, asynchronous=asynchronous)
    with one.session() as session:
        check(talk(session, conversation), conversation)
    totals = one.engine.totals
    assert totals.num_folds == 3
    assert (totals.num_accepted_drafts > 0) == (kind == "scripted" or (kind == "ngram"))
    assert (totals.num_rejected_drafts > 0) == (kind != "none")
    assert is_idle(one)


@modes
@pytest.mark.parametrize("kind", ["none", "ngram", "draft", "eagle"])
@pytest.mark.parametrize("threshold", [0, 5], ids=["", "chunked"])
def test_sessions_that_are_preempted_say_the_same(threshold: int, kind: str, asynchronous: bool) -> None:
    """Four at once, and requests between them, in a pool that is too small."""
    one = llm(
        drafter(kind, 3, []), asynchronous=asynchronous, num_blocks=16,
        long_prefill_token_threshold=threshold,
    )  # fmt: skip
    conversations = [Conversation(seed) for seed in range(4)]
    sessions = [one.session() for _ in conversations]
    for session, conversation in zip(sessions, conversations, strict=True):
        for chunk, parameters in conversation.turns[:3]:
            session.append(chunk, parameters)
    parameters = replace(GREEDY, max_tokens=20)
    answers = [model.generate([prompts()[0]], parameters)[0] for model in (one, truth())]
    assert difference(answers[0], answers[1]) < TOLERANCE
    for session, conversation in zip(sessions, conversations, strict=True):
        session.append(*conversation.turns[3])
        check([session.turn() for _ in conversation.chunks], conversation)
        session.close()
    totals = one.engine.totals
    assert totals.num_preemptions > 0 and totals.num_folds == 12
    assert (totals.num_prefill_chunks > 0) == (threshold > 0)
    if kind != "none":
        assert totals.num_accepted_drafts > 0 and totals.num_rejected_drafts > 0
    assert is_idle(one)


@modes
def test_chunks_that_wait_are_answered_in_their_turn(asynchronous: bool) -> None:
    """Appended before the first has been answered, and closed before that."""
    conversation = Conversation(2)
    one = llm("ngram:3", asynchronous=asynchronous)
    with one.session() as session:
        for chunk, parameters in conversation.turns:
            session.append(chunk, parameters)
    check([session.turn() for _ in conversation.chunks], conversation)
    with pytest.raises(RequestError, match="no chunk waits for an answer"):
        session.turn()
    with pytest.raises(RequestError, match="has been closed: open another one"):
        session.append([1])
    assert is_idle(one)


def test_parameters_change_between_turns() -> None:
    """Stop tokens, seed and temperature, EOS: those of a turn are its own, and stay until others come."""
    conversation = Conversation(3, replace(GREEDY, max_tokens=20))
    first = truth().generate([conversation.chunks[0]], replace(GREEDY, max_tokens=20))[0].token_ids
    stop = first[2]
    conversation.parameters = [
        replace(GREEDY, max_tokens=20, stop_token_ids=(stop,)),
        replace(GREEDY, max_tokens=9),
        replace(SAMPLED, seed=1, max_tokens=12),
        replace(SAMPLED, seed=2, max_tokens=12, temperature=3.0, top_k=0, ignore_eos=False),
    ]
    expected = conversation.expected()
    assert [result.finish_reason for result in expected][:3] == ["stop", "length", "length"]
    one = llm("ngram:3")
    with one.session() as session:
        results = talk(session, conversation)
        check(results, conversation)
        assert (results[0].stop_reason, results[0].token_ids[-1]) == (stop, stop)
        assert results[1].stop_reason is None and len(results[1].token_ids) == 9
        # Said nothing of, the last ones stay: many turns, flat enough that EOS comes up.
        reasons = []
        for _ in range(4):
            session.append([1, 2])
            result = session.turn()
            reasons.append(result.finish_reason)
            assert result.logprobs is not None and len(result.token_ids) <= 12
            said = list(result.token_ids)
            assert EOS not in said[:-1]
            assert (said[-1] == EOS) == (result.finish_reason == "stop")
        assert "stop" in reasons


def test_an_empty_chunk_is_refused_and_changes_nothing() -> None:
    one = llm("ngram:3")
    conversation = Conversation(4)
    with one.session() as session:
        with pytest.raises(RequestError, match="empty"):
            session.append([])
        results = []
        for chunk, parameters in conversation.turns:
            session.append(chunk, parameters)
            with pytest.raises(RequestError, match="empty") as info:
                session.append([])
            assert "\n" not in str(info.value)
            results.append(session.turn())
        check(results, conversation)


def test_chunks_and_parameters_that_cannot_be() -> None:
    one = llm("ngram:3")
    with pytest.raises(ParameterError, match="a session's parameters must be SamplingParameters"):
        one.session({"temperature": 0})  # type: ignore[arg-type]
    with one.session(GREEDY) as session:
        for wrong, sentence in (([VOCAB_SIZE], "token 11 at position 0"), ("text", "no tokenizer")):
            with pytest.raises(RequestError, match=sentence):
                session.append(wrong)
        with pytest.raises(ParameterError, match="cannot end at stop strings: use stop_token_ids"):
            session.append([1], replace(GREEDY, stop=("a",)))
        with pytest.raises(ParameterError, match="a turn's parameters must be SamplingParameters"):
            session.append([1], 3)  # type: ignore[arg-type]
        session.append([1, 2, 3])
        with pytest.raises(ParameterError, match="cannot end at stop strings"):
            session.append([1], replace(GREEDY, stop=("a",)))
        assert len(session.turn().token_ids) == 5
    assert is_idle(one)


@modes
def test_a_session_that_is_aborted_ends_and_leaves_the_others(asynchronous: bool) -> None:
    conversation, other = Conversation(5), Conversation(6)
    one = llm("ngram:3", asynchronous=asynchronous)
    ended, kept = one.session(), one.session()
    ended.append([1, 2, 3, 4, 5, 6], replace(GREEDY, max_tokens=40))
    ended.append([7, 8])
    kept.append(*other.turns[0])
    for _ in range(4):
        one.step_for(ended)
    result = ended.abort()
    assert result is not None and result.finish_reason == "abort" and 0 < len(result.token_ids) < 40
    whole = truth().generate([[1, 2, 3, 4, 5, 6]], replace(GREEDY, max_tokens=40))[0]
    assert result.token_ids == whole.token_ids[: len(result.token_ids)]
    assert result.logprobs is not None and len(result.logprobs) == len(result.token_ids)
    with pytest.raises(RequestError, match="no chunk waits"):
        ended.turn()
    with pytest.raises(RequestError, match="has been closed"):
        ended.append([1])
    assert ended.abort() is None
    rest = Conversation(6)
    rest.chunks, rest.parameters = other.chunks[1:], other.parameters[1:]
    check([kept.turn(), *talk(kept, rest)], other)
    assert kept.abort() is not None  # between two turns
    with one.session() as session:
        check(talk(session, conversation), conversation)
    assert is_idle(one)


def test_an_error_within_the_with_statement_aborts() -> None:
    one = llm("ngram:3")
    with pytest.raises(ZeroDivisionError), one.session(GREEDY) as session:
        session.append([1, 2, 3])
        raise ZeroDivisionError
    assert is_idle(one) and not session.is_open


@modes
def test_a_session_that_has_become_too_long_ends(asynchronous: bool) -> None:
    """A chunk that cannot fit is refused at once; one that does not when its turn comes is answered so."""
    one = llm("ngram:3", asynchronous=asynchronous, max_model_len=40)
    session = one.session(replace(GREEDY, max_tokens=10))
    with pytest.raises(RequestError, match="40"):
        session.append([1] * 40)
    session.append([1] * 15)
    session.append([2] * 14)  # 15 + 9 + 14 = 38
    session.append([3] * 9)
    session.append([4])
    assert len(session.turn().token_ids) == 10
    second = session.turn()
    assert second.finish_reason == "length" and 0 < len(second.token_ids) <= 2
    for _ in range(2):
        result = session.turn()
        assert result.finish_reason == "error" and result.token_ids == ()
        assert result.error is not None and "too long" in result.error
    with pytest.raises(RequestError, match="has been closed"):
        session.append([1])
    assert is_idle(one)


def test_a_failing_step_is_told_to_the_session(monkeypatch: pytest.MonkeyPatch) -> None:
    one = llm("ngram:3")
    session = one.session(GREEDY)
    session.append([1, 2, 3])
    session.turn()

    def fail(*_: Any) -> Any:
        raise ZeroDivisionError("the model")

    with monkeypatch.context() as context:
        context.setattr(decoder(), "forward", fail)
        session.append([4, 5])
        with pytest.raises(ZeroDivisionError, match="the model"):
            session.turn()
    with pytest.raises(ZeroDivisionError, match="the model"):
        session.append([1])
    assert is_idle(one)
    conversation = Conversation(7)
    with one.session() as session:
        check(talk(session, conversation), conversation)


@modes
def test_sessions_on_an_event_loop(asynchronous: bool) -> None:
    """Three at the same time, and a stream beside them."""
    one = llm("ngram:3", asynchronous=asynchronous)
    conversations = [Conversation(seed) for seed in (8, 9, 10)]

    async def hold(conversation: Conversation) -> list[RequestResult]:
        results = []
        with one.session() as session:
            for chunk, parameters in conversation.turns:
                session.append(chunk, parameters)
                results.append(await session.next_turn())
        return results

    async def listen() -> list[int]:
        outputs = [output async for output in one.stream(prompts()[1], GREEDY)]
        return [token for output in outputs for token in output.token_ids]

    async def everything() -> list[Any]:
        return await asyncio.gather(*[hold(conversation) for conversation in conversations], listen())

    *results, streamed = asyncio.run(everything())
    assert is_idle(one)  # and no thread steps any more
    for result, conversation in zip(results, conversations, strict=True):
        check(result, conversation)
    assert streamed == list(truth().generate([prompts()[1]], GREEDY)[0].token_ids)


@without_other_checks
@modes
def test_trimmed_tokens_that_stay_counted_are_noticed(
    asynchronous: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """So the tests above can fail: the canary names it, and without the canary another text comes."""
    conversation = Conversation(1)
    conversation.chunks[1] = [
        3,
        1,
        4,
        1,
        5,
        9,
    ]  # longer than what is cut off: else nothing is left to compute
    texts, expected = conversation.texts(), conversation.expected()
    put_in(monkeypatch, "trim-uncounted")
    for debug in (True, False):
        script = ScriptedDrafter(4, texts, (4,), VOCAB_SIZE)
        session = llm(script, asynchronous=asynchronous, debug=debug).session()
        if debug:
            with pytest.raises(CanaryError, match="rejected draft"):
                talk(session, conversation)
        else:
            results = talk(session, conversation)
            assert max(difference(*pair) for pair in zip(results, expected, strict=True)) > 100 * TOLERANCE
