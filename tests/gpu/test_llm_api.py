"""What does a user get? Texts that end at stop strings, chats, and the numbers beside them."""

from __future__ import annotations

import time
from dataclasses import replace

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")
pytest.importorskip("tokenizers", reason="tokenizers is not installed")
pytest.importorskip("gguf", reason="gguf is not installed")
pytest.importorskip("jinja2", reason="jinja2 is not installed")

from tests.gpu.llm_world import TOLERANCE, difference, hit, is_idle, modes  # noqa: E402
from tests.gpu.test_tokenizer import MESSAGES  # noqa: E402
from tests.gpu.text_world import (  # noqa: E402
    BLOCK_SIZE,
    GREEDY,
    NUM_TOKENS,
    PROMPTS,
    baseline,
    decoder,
    llm,
    same,
    tokenizer,
    truth,
)

from draftproof.gpu.drafters import ScriptedDrafter  # noqa: E402
from draftproof.gpu.runner import RequestResult  # noqa: E402
from draftproof.gpu.sampling import ParameterError  # noqa: E402
from draftproof.impl.scheduler import RequestError  # noqa: E402


def scripted(num_accepted: tuple[int, ...] = (3, 1)) -> ScriptedDrafter:
    """Drafts of which so many are right, step by step."""
    longer = truth().generate(PROMPTS, replace(GREEDY, max_tokens=NUM_TOKENS + 4))
    texts = [[*result.prompt_token_ids, *result.token_ids] for result in longer]
    return ScriptedDrafter(3, texts, num_accepted, decoder().shape.vocab_size)


def parts(text: str) -> list[str]:
    """Pieces of a text that first stand at different places in it."""
    return [text[begin : begin + size] for begin in (3, 9, 17, 24) for size in (1, 2, 5)]


@modes
@pytest.mark.parametrize("speculate", [None, "ngram:3", "scripted"])
def test_a_stop_string_ends_the_text_and_its_tokens(speculate: str | None, asynchronous: bool) -> None:
    """Found on the host, late: wherever it stands, over tokens' borders too; what came behind is dropped."""
    one = llm(scripted() if speculate == "scripted" else speculate, asynchronous=asynchronous)
    num_beyond = num_reused = 0
    for whole in baseline():
        assert whole.text is not None and whole.logprobs is not None
        for stop in parts(whole.text)[::3]:
            assert one.engine.scheduler.reset_prefix_cache()
            before = one.engine.totals.num_accepted_drafts
            result = one.generate([whole.prompt_token_ids], replace(GREEDY, stop=(stop, "no such text")))[0]
            count = first_with(whole, stop)
            assert result.token_ids == whole.token_ids[:count]
            assert result.text == whole.text[: whole.text.index(stop)]
            assert (result.finish_reason, result.stop_reason, result.error) == ("stop", stop, None)
            assert (
                difference(
                    result, replace(whole, token_ids=whole.token_ids[:count], logprobs=whole.logprobs[:count])
                )
                < TOLERANCE
            )
            assert result.num_accepted_tokens <= min(
                count - 1, one.engine.totals.num_accepted_drafts - before
            )
            # The blocks leave by the abort: what had returned is found again, the cut off tokens' KV is not.
            known = [*whole.prompt_token_ids, *result.token_ids]
            again = one.generate([[*known, 5, 6, 7, 8, 9]], replace(GREEDY, max_tokens=3))[0]
            least, most = (
                hit(settled, len(known) + 5, BLOCK_SIZE) for settled in (len(known) - 1, len(known))
            )
            assert least <= again.num_cached_tokens <= most
            num_reused += again.num_cached_tokens
            fresh = truth().generate([[*known, 5, 6, 7, 8, 9]], replace(GREEDY, max_tokens=3))
            assert same([again], fresh)
            num_beyond += count < NUM_TOKENS
    assert num_beyond > 5 and num_reused > 100
    assert (one.engine.totals.num_accepted_drafts > 0) == (speculate is not None)
    assert is_idle(one)


def first_with(whole: RequestResult, stop: str) -> int:
    """How many tokens it takes until their text holds the string."""
    counts = range(1, len(whole.token_ids) + 1)
    return next(count for count in counts if stop in tokenizer().decode(whole.token_ids[:count]))


def test_the_rules_of_stop_strings() -> None:
    """A stop string within min_tokens is none; of two the first counts; one for each request."""
    one, whole = llm("ngram:3"), baseline()[2]
    assert whole.text is not None
    early, late = whole.text[1:3], whole.text[12:15]
    results = one.generate(
        [PROMPTS[2]] * 3,
        [
            replace(GREEDY, stop=(late, early)),
            replace(GREEDY, stop=(early,), min_tokens=first_with(whole, early)),
            replace(GREEDY, stop=(late,)),
        ],
    )
    assert [result.stop_reason for result in results[::2]] == [early, late]
    assert len(results[1].token_ids) > len(results[0].token_ids)
    with pytest.raises(ParameterError, match="stop"):
        replace(GREEDY, stop=("",))


@modes
def test_texts_and_chats(asynchronous: bool) -> None:
    """A prompt may be a text, its tokens, or a conversation; one may be given alone."""
    one = llm("ngram:3", asynchronous=asynchronous)
    assert same(one.generate(PROMPTS, GREEDY), baseline())
    token_ids = [tokenizer().encode(prompt) for prompt in PROMPTS]
    assert same(one.generate(token_ids, GREEDY), baseline())
    assert same(one.generate(PROMPTS[0], GREEDY), baseline()[:1])
    assert same(one.generate(token_ids[0], GREEDY), baseline()[:1])
    for result in baseline():
        assert result.text == tokenizer().decode(result.token_ids)
    chat = one.chat(MESSAGES, GREEDY)
    assert chat.prompt_token_ids == tuple(tokenizer().encode_chat(MESSAGES))
    assert same([chat], one.generate([chat.prompt_token_ids], GREEDY))
    one.tokenizer = None
    for wrong in (lambda: one.chat(MESSAGES), lambda: one.generate("a text")):
        with pytest.raises(RequestError, match=r"no tokenizer.* give token ids"):
            wrong()
    assert one.generate(token_ids, GREEDY)[0].text is None
    with pytest.raises(ParameterError, match="use stop_token_ids"):
        one.generate(token_ids, replace(GREEDY, stop=("a",)))


@modes
def test_results_come_in_the_prompts_order_with_their_numbers(asynchronous: bool) -> None:
    """Requests that end in another order; their tokens, cached tokens, drafts and timings are their own."""
    one = llm(scripted((3, 3, 0)), asynchronous=asynchronous)
    lengths = [30, 2, 17, 1, 9]
    begin = time.monotonic()
    results = one.generate(PROMPTS, [replace(GREEDY, max_tokens=length) for length in lengths])
    took = time.monotonic() - begin
    for result, whole, length in zip(results, baseline(), lengths, strict=True):
        assert result.prompt_token_ids == whole.prompt_token_ids
        assert result.token_ids == whole.token_ids[:length] and result.finish_reason == "length"
        assert result.num_accepted_tokens <= min(result.num_draft_tokens, length)
        assert result.num_cached_tokens == 0
        first = result.timings.first_token
        assert first is not None and 0 < first <= result.timings.total <= took
    assert results[3].num_accepted_tokens == 0  # its only token was sampled by its prompt's step
    totals = one.engine.totals
    assert 0 < sum(result.num_accepted_tokens for result in results) < totals.num_accepted_drafts
    assert totals.num_rejected_drafts > 0
    again = one.generate(PROMPTS, GREEDY)
    assert same(again, baseline())
    for result in again:
        assert result.num_cached_tokens == hit(1000, len(result.prompt_token_ids), BLOCK_SIZE)
