"""Is the text the same with every drafter, in every mode, and is it what the model says?"""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from itertools import product
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")

from tests.gpu.runner_world import (  # noqa: E402
    BLOCK_SIZE,
    CONFIGURATIONS,
    EOS,
    MAX_TOKENS,
    PARAMETERS,
    TOLERANCE,
    VOCAB_SIZE,
    decoder,
    dense_greedy,
    dense_logits,
    drafter,
    largest_difference,
    llm,
    prompts,
)

from draftproof.gpu.drafters import NullDrafter, ScriptedDrafter  # noqa: E402
from draftproof.gpu.errors import ModelError  # noqa: E402
from draftproof.gpu.llm import LLM  # noqa: E402
from draftproof.gpu.runner import RequestResult  # noqa: E402
from draftproof.gpu.sampling import ParameterError, SamplingParameters  # noqa: E402
from draftproof.impl.decisions import lookup_hit  # noqa: E402
from draftproof.impl.scheduler import RequestError  # noqa: E402
from draftproof.spec.ledger import Ledger  # noqa: E402

GREEDY = SamplingParameters(temperature=0, max_tokens=MAX_TOKENS, ignore_eos=True, logprobs=0)


@cache
def baseline(sampling: str) -> list[RequestResult]:
    """Without speculation, chunks or preemption."""
    return llm().generate(prompts(), PARAMETERS[sampling])


@cache
def texts(sampling: str) -> list[list[int]]:
    """Prompts and outputs, and a little more."""
    longer = [replace(one, max_tokens=MAX_TOKENS + 6) for one in PARAMETERS[sampling]]
    found = llm().generate(prompts(), longer)
    return [[*result.prompt_token_ids, *result.token_ids] for result in found]


def check_totals(engine: Any, configuration: str, kind: str) -> None:
    """That what the test is about did happen."""
    totals = engine.totals
    assert totals.num_compared > totals.num_steps  # host and device counted alike
    if kind not in ("none", "null"):
        assert totals.num_accepted_drafts > 0
    if kind != "none":
        assert totals.num_rejected_drafts > 0
    assert (totals.num_prefill_chunks > 0) == (configuration in ("chunked", "both"))
    assert (totals.num_preemptions > 0) == (configuration in ("preempted", "both"))


KINDS = ("null", "ngram", "scripted", "draft", "eagle")
CASES = [
    *product(KINDS, (1, 3, 5), ("chunked", "preempted", "both"), ["greedy"]),
    *product(KINDS, [3], ["plain"], ["greedy"]),
    *product(KINDS, [3], ("plain", "both"), ["sampled"]),
]


@pytest.mark.parametrize("asynchronous", [False, True])
@pytest.mark.parametrize(("kind", "num_drafts", "configuration", "sampling"), CASES)
def test_speculation_changes_nothing(
    kind: str, num_drafts: int, configuration: str, sampling: str, asynchronous: bool
) -> None:
    """Tokens are identical, log-probabilities within 1e-4."""
    speculate = drafter(kind, num_drafts, texts(sampling))
    one = llm(speculate, asynchronous=asynchronous, **CONFIGURATIONS[configuration])
    results = one.generate(prompts(), PARAMETERS[sampling])
    if sampling == "sampled" and kind in ("draft", "eagle"):
        check_logprobs(results)  # sampled from the same distribution, but with other numbers
    else:
        assert largest_difference(results, baseline(sampling)) < TOLERANCE
    check_totals(one.engine, configuration, kind)
    assert sum(result.num_accepted_tokens for result in results) <= one.engine.totals.num_accepted_drafts


@pytest.mark.parametrize("sampling", PARAMETERS)
@pytest.mark.parametrize("configuration", CONFIGURATIONS)
def test_chunks_and_preemptions_change_nothing(configuration: str, sampling: str) -> None:
    one = llm(**CONFIGURATIONS[configuration])
    results = one.generate(prompts(), PARAMETERS[sampling])
    assert largest_difference(results, baseline(sampling)) < TOLERANCE
    check_totals(one.engine, configuration, "none")


def test_greedy_is_what_a_dense_loop_says() -> None:
    for prompt, result in zip(prompts(), baseline("greedy"), strict=True):
        token_ids, logprobs = dense_greedy(prompt, MAX_TOKENS)
        assert list(result.token_ids) == token_ids
        assert result.logprobs is not None
        for one, expected in zip(result.logprobs, logprobs, strict=True):
            assert abs(one.logprob - expected) < TOLERANCE
            assert one.rank == 1 and one.top[0] == (one.token_id, one.logprob) and len(one.top) == 2


@pytest.mark.parametrize("speculate", [None, "ngram:3"])
def test_a_penalty_counts_every_token_so_far(speculate: str | None) -> None:
    parameters = replace(GREEDY, repetition_penalty=1.5)
    # Of few different tokens, or every one would be punished alike.
    few = [[5, 6] * 12, [3] * 9, [1, 2, 2], [10]]
    results = llm(speculate, long_prefill_token_threshold=7).generate(few, parameters)
    for prompt, result in zip(few, results, strict=True):
        assert list(result.token_ids) == dense_greedy(prompt, MAX_TOKENS, 1.5)[0]
    assert any(
        list(result.token_ids) != dense_greedy(prompt, MAX_TOKENS)[0]
        for prompt, result in zip(few, results, strict=True)
    )


def test_drafts_that_are_all_right_are_all_accepted() -> None:
    """So the drafter sees what was said last, and its drafts reach the rows that they are for."""
    one = llm(ScriptedDrafter(3, texts("greedy"), (3,), VOCAB_SIZE))
    results = one.generate(prompts(), PARAMETERS["greedy"])
    assert largest_difference(results, baseline("greedy")) < TOLERANCE
    assert one.engine.totals.num_accepted_drafts > 0 and one.engine.totals.num_rejected_drafts == 0


def test_every_request_gets_the_logprobs_that_it_asked_for() -> None:
    wanted = [0, 3, None, 1, 0]
    parameters = [replace(GREEDY, logprobs=number) for number in wanted]
    for number, result in zip(wanted, llm("ngram:3").generate(prompts(), parameters), strict=True):
        assert (result.logprobs is None) == (number is None)
        for one in result.logprobs or ():
            assert len(one.top) == number


def test_sampled_logprobs_are_the_models_own() -> None:
    """Before temperature, filters and penalty."""
    check_logprobs(baseline("sampled"))
    assert any(one.rank > 1 for result in baseline("sampled") for one in result.logprobs or ())


def check_logprobs(results: list[RequestResult]) -> None:
    """They are what the model says of the tokens, computed anew."""
    for prompt, result in zip(prompts(), results, strict=True):
        logits = dense_logits([*prompt, *result.token_ids])[len(prompt) - 1 : -1]
        expected = logits.log_softmax(-1).gather(
            1, torch.tensor(result.token_ids, device=logits.device)[:, None]
        )
        assert result.logprobs is not None and len(result.logprobs) == MAX_TOKENS
        for one, value in zip(result.logprobs, expected[:, 0].tolist(), strict=True):
            assert abs(one.logprob - value) < TOLERANCE


@pytest.mark.parametrize("kind", ["ngram", "scripted"])
def test_a_repeated_and_an_extended_request_reuse_their_blocks(kind: str) -> None:
    """What is cached is what was settled, by the look-up rule; the answers are those of an empty cache."""
    num_trimmed_at_a_boundary = num_accepted = num_rejected = 0
    for prompt, (beyond, extension) in product(prompts(), ((0, []), (0, [1, 2, 3, 4, 5]), (1, [1, 2]))):
        one = llm(drafter(kind, 3, texts("greedy")))
        num_trimmed = watch_trims(one)
        # Whole blocks, or a token beyond; by the script the last token is a draft or not.
        max_tokens = 20 + -len(prompt) % BLOCK_SIZE + beyond
        first = one.generate([prompt], replace(GREEDY, max_tokens=max_tokens))[0]
        known = [*prompt, *first.token_ids]
        # The last token kept was computed if it was a draft: if another one was sampled after it.
        num_settled = len(known) - (num_trimmed[-1] == 0)
        num_trimmed_at_a_boundary += num_settled == len(known) and len(known) % BLOCK_SIZE == 0
        repeated = one.generate([[*known, *extension]], GREEDY)[0]
        expected = hit(num_settled, len(known) + len(extension))
        assert first.num_cached_tokens == 0 and repeated.num_cached_tokens == expected > 0
        fresh = llm().generate([[*known, *extension]], GREEDY)
        assert largest_difference([repeated], fresh) < TOLERANCE
        num_accepted += one.engine.totals.num_accepted_drafts
        num_rejected += one.engine.totals.num_rejected_drafts
    assert num_accepted > 0 and num_rejected > 0
    assert num_trimmed_at_a_boundary > 0 or kind == "ngram"


def watch_trims(one: LLM) -> list[int]:
    """How many sampled tokens of its first request each step dropped; filled while it generates."""
    settle = one.engine.scheduler.settle
    trims: list[int] = []

    def watched(batch: Any, sampled: Any, num_sampled: Any) -> None:
        settle(batch, sampled, num_sampled)
        trims.append(int(num_sampled[0] - batch.num_kept_tokens[0]))

    one.engine.scheduler.settle = watched  # type: ignore[method-assign, assignment]
    return trims


def hit(num_settled: int, num_tokens: int) -> int:
    """Of a request of so many tokens, of which as many are settled in the cache."""
    rules = llm().engine.scheduler.state.rules
    nothing: Any = dict.fromkeys(Ledger._fields, 0)
    ledger = Ledger(**nothing)._replace(num_tokens=num_tokens)
    return int(lookup_hit(ledger, rules, num_settled // BLOCK_SIZE * BLOCK_SIZE, False))


@pytest.mark.parametrize("speculate", [None, "ngram:3", "scripted"])
def test_where_a_request_ends(speculate: Any) -> None:
    """EOS, stop tokens, ignore_eos, min_tokens, max_tokens: at the token that ends it, drafts or not."""
    found = texts("greedy")
    prompt, text = prompts()[2], found[2][len(prompts()[2]) : -6]
    if speculate == "scripted":
        speculate = drafter("scripted", 3, found)
    # A token that first comes in the middle of the text.
    stop = next(token for place, token in enumerate(text) if place > 2 and token not in text[:place])
    place = text.index(stop)
    one = llm(speculate)

    def run(**changes: Any) -> Any:
        result = one.generate([prompt], replace(GREEDY, **changes))[0]
        return list(result.token_ids), result.finish_reason

    assert run(stop_token_ids=(stop,)) == (text[: place + 1], "stop")
    assert run(max_tokens=place) == (text[:place], "length")
    assert run(max_tokens=place + 1, stop_token_ids=(stop,)) == (text[: place + 1], "stop")
    assert run(min_tokens=place, stop_token_ids=(stop,)) == (text[: place + 1], "stop")
    tokens, reason = run(min_tokens=place + 2, stop_token_ids=(stop,))
    assert tokens[:place] == text[:place] and stop not in tokens[: place + 2] and len(tokens) >= place + 2
    assert reason in ("stop", "length")


@pytest.mark.parametrize("speculate", [None, "ngram:3"])
def test_every_eos_token_ends_a_request_that_does_not_ignore_it(speculate: str | None) -> None:
    # Flat enough that every token comes up.
    parameters = [
        SamplingParameters(temperature=3.0, seed=index, max_tokens=MAX_TOKENS) for index in range(5)
    ]
    original = decoder().shape
    results = llm(speculate).generate(prompts(), parameters)
    ends = [result.token_ids[-1] for result in results if result.finish_reason == "stop"]
    assert ends and set(ends) == {EOS}
    for result in results:
        assert EOS not in result.token_ids[:-1]
    try:
        decoder().shape = replace(original, eos_token_ids=(EOS, 2))
        ends = [result.token_ids[-1] for result in llm(speculate).generate(prompts(), parameters)]
        assert 2 in ends
        ignoring = [replace(one, ignore_eos=True) for one in parameters]
        for result in llm(speculate).generate(prompts(), ignoring):
            assert result.finish_reason == "length"
    finally:
        decoder().shape = original


def test_a_seed_gives_the_same_text_alone_and_in_a_batch() -> None:
    for index, prompt in enumerate(prompts()):
        alone = llm("ngram:3", num_blocks=40).generate([prompt], PARAMETERS["sampled"][index])
        assert largest_difference(alone, baseline("sampled")[index : index + 1]) < TOLERANCE
    other = llm().generate(prompts(), [replace(one, seed=99) for one in PARAMETERS["sampled"]])
    assert [one.token_ids for one in other] != [one.token_ids for one in baseline("sampled")]


def test_more_prompts_than_rows() -> None:
    one = llm("ngram:3", max_num_seqs=1)
    results = one.generate(prompts() * 3, PARAMETERS["greedy"] * 3)
    assert one.config.max_num_requests < len(results)
    assert largest_difference(results, baseline("greedy") * 3) < TOLERANCE


@pytest.mark.parametrize("asynchronous", [False, True])
def test_a_step_without_memory_ends_one_request(monkeypatch: pytest.MonkeyPatch, asynchronous: bool) -> None:
    """The largest; the others start over, and nothing that the step was to compute is taken for computed."""
    one = llm("ngram:3", max_num_batched_tokens=16, asynchronous=asynchronous)
    forward = decoder().forward
    calls: list[int] = []

    def failing(*arguments: Any) -> Any:
        calls.append(len(calls))
        if len(calls) == 4:
            raise torch.OutOfMemoryError("CUDA out of memory")
        return forward(*arguments)

    monkeypatch.setattr(decoder(), "forward", failing)
    results = one.generate(prompts(), PARAMETERS["greedy"])
    (failed,) = [result for result in results if result.finish_reason == "error"]
    assert failed.error is not None and "lower max_num_batched_tokens" in failed.error
    pairs = list(zip(results, baseline("greedy"), strict=True))
    rest = [pair for pair in pairs if pair[0] is not failed]
    assert len(rest) == 4
    assert largest_difference([one for one, _ in rest], [other for _, other in rest]) < TOLERANCE
    assert not one.engine.requests and not one.engine.has_work()
    assert largest_difference(one.generate(prompts(), PARAMETERS["greedy"]), baseline("greedy")) < TOLERANCE


@pytest.mark.parametrize("asynchronous", [False, True])
def test_a_step_that_fails_leaves_the_engine_usable(
    monkeypatch: pytest.MonkeyPatch, asynchronous: bool
) -> None:
    one = llm("ngram:3", max_num_batched_tokens=16, asynchronous=asynchronous)
    forward = decoder().forward
    calls: list[int] = []

    def failing(*arguments: Any) -> Any:
        calls.append(len(calls))
        if len(calls) == 4:
            raise ZeroDivisionError("the model")
        return forward(*arguments)

    monkeypatch.setattr(decoder(), "forward", failing)
    with pytest.raises(ZeroDivisionError, match="the model"):
        one.generate(prompts(), PARAMETERS["greedy"])
    assert not one.engine.requests and not one.engine.has_work()
    assert largest_difference(one.generate(prompts(), PARAMETERS["greedy"]), baseline("greedy")) < TOLERANCE


def test_logits_that_are_no_numbers_end_their_request_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    one = llm("ngram:3", enable_prefix_caching=False)
    original = decoder().logits
    calls: list[int] = []

    def broken(hidden: Any) -> Any:
        logits = original(hidden)
        calls.append(len(calls))
        if len(calls) == 3:
            logits[0] = float("nan")
        return logits

    monkeypatch.setattr(decoder(), "logits", broken)
    results = one.generate(prompts(), PARAMETERS["greedy"])
    assert [result.finish_reason for result in results].count("error") == 1
    for result, expected in zip(results, baseline("greedy"), strict=True):
        count = len(result.token_ids)
        assert result.token_ids == expected.token_ids[:count]
        assert (count < MAX_TOKENS) == (result.finish_reason == "error")


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"speculate": "ngram"}, "speculate must be"),
        ({"speculate": "eagle:3"}, "speculate must be"),
        ({"speculate": "ngram:-1"}, "speculate must be"),
        ({"speculate": "ngram:0"}, "1 to 64 drafts a step"),
        ({"speculate": NullDrafter(65)}, "a drafter proposes from 1 to 64"),
        ({"asynchronous": 1}, "asynchronous must be True or False"),
        ({"attention_backend": "flash"}, "attention_backend must be"),
        ({"speculate": 3}, "speculate must be None"),
        ({"speculate": "ngram:20", "max_num_batched_tokens": 16}, "less than one decode step"),
        ({"speculate": "ngram:20", "max_model_len": 16}, "does not fit max_model_len"),
        ({"max_model_len": 4096}, "max_model_len must be an integer from 1 to 128"),
        ({"num_blocks": 0}, "num_blocks must be an integer from 1"),
        ({"num_blocks": None, "kv_cache_bytes": 1000}, "does not hold one request"),
        ({"block_size": 2.5, "num_blocks": None}, "block_size must be an integer"),
    ],
)
def test_options_that_cannot_be(options: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ModelError, match=sentence):
        llm(**options)


def test_prompts_that_cannot_be() -> None:
    one = llm(max_model_len=64)
    for wrong, sentence in (
        ([[1], []], "prompt 1: the prompt is empty"),
        ([[1], [VOCAB_SIZE]], "prompt 1: token 11 at position 0"),
        ([[1] * 64], "prompt 0: 64 tokens leave no room"),
        ("text", "prompt 0 is a text, and this model has no tokenizer"),
        (7, "a list of texts or of lists of token ids"),
    ):
        with pytest.raises(RequestError, match=sentence):
            one.generate(wrong, GREEDY)  # type: ignore[arg-type]
    for parameters, sentence in (
        (replace(GREEDY, stop=("a",)), "use stop_token_ids"),
        ([GREEDY], "one for each prompt, got 1 for 2 prompts"),
        ({"temperature": 0}, "parameters must be one SamplingParameters"),
    ):
        with pytest.raises(ParameterError, match=sentence):
            one.generate([[1], [2]], parameters)  # type: ignore[arg-type]
    with pytest.raises(RequestError, match="token 11 at position 0 of stop_token_ids"):
        one.generate([[1]], replace(GREEDY, stop_token_ids=(VOCAB_SIZE,)))
    assert one.generate([]) == []
    assert not one.engine.requests
