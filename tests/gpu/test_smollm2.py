"""Does a real model find again what was settled, and does a session stay true after a stop?"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from typing import Any, NamedTuple

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")

from tests.gpu.llm_world import (  # noqa: E402
    TOLERANCE,
    Trims,
    difference,
    hit,
    modes,
    put_in,
    without_other_checks,
)
from tests.gpu.smollm2_world import GREEDY, fresh, llm, smollm2, tokens  # noqa: E402

from draftproof.gpu.canary import CanaryError  # noqa: E402
from draftproof.gpu.drafters import ScriptedDrafter  # noqa: E402
from draftproof.gpu.llm import LLM  # noqa: E402
from draftproof.gpu.runner import RequestResult  # noqa: E402

BLOCK_SIZE, NUM_DRAFTS, NUM_AHEAD = 16, 3, 12
STORY = (
    "The old lighthouse keeper climbed the stairs every evening, lit the lamp, and wrote the names of the "
    "ships that passed into a book. One night in November no ship came, and he wrote down the weather "
    "instead. In the morning a boy came up with bread."
)
EXTENSION = (
    "\n\nQuestion: what did the keeper write into his book when no ship came along that night, and why did "
    "he write it? Answer in one short sentence, please, and do not explain."
)


class Finished(NamedTuple):
    """How a request ends, and what of it is found again: by itself, and with more tokens behind it."""

    num_prompt_tokens: int
    max_tokens: int
    num_accepted: int
    """Of the K drafts of each step."""
    repeated: int
    extended: int
    without: tuple[int, int]
    """Extended, if a finishing request registers nothing; synchronously and asynchronously."""


FINISHED = {
    "N=49, all drafts accepted": Finished(44, 5, 3, 48, 48, (32, 48)),
    "N=48, the token after the drafts is cut off": Finished(44, 4, 3, 32, 48, (32, 32)),
    "N=48, two drafts and a token are cut off": Finished(46, 2, 3, 32, 48, (32, 32)),
    "N=48, the last token was no draft": Finished(44, 4, 0, 32, 32, (32, 32)),
    "N=46, every draft rejected": Finished(44, 2, 0, 32, 32, (32, 32)),
    "N=47, a cut inside the block": Finished(44, 3, 3, 32, 32, (32, 32)),
}


def scripted(num_prompt_tokens: int, num_accepted: int) -> tuple[list[int], ScriptedDrafter]:
    prompt = tokens(STORY)[:num_prompt_tokens]
    assert len(prompt) == num_prompt_tokens
    text = [*prompt, *fresh(tuple(prompt), NUM_AHEAD).token_ids]
    return prompt, ScriptedDrafter(NUM_DRAFTS, [text], (num_accepted,), smollm2().decoder.shape.vocab_size)


def extension() -> list[int]:
    return tokens(EXTENSION)[:40]


def reused(case: Finished, asynchronous: bool, extension: Sequence[int]) -> int:
    """How many tokens a repeat of a finished request reuses, with these behind it."""
    prompt, drafter = scripted(case.num_prompt_tokens, case.num_accepted)
    one = llm(drafter, asynchronous=asynchronous, block_size=BLOCK_SIZE)
    first = one.generate([prompt], replace(GREEDY, max_tokens=case.max_tokens))[0]
    whole = fresh(tuple(prompt), NUM_AHEAD)
    assert first.token_ids == whole.token_ids[: case.max_tokens] and first.num_cached_tokens == 0
    totals = one.engine.totals
    assert (totals.num_accepted_drafts > 0) == (case.num_accepted > 0)
    assert totals.num_rejected_drafts > 0 or case.num_accepted > 0
    text = [*prompt, *first.token_ids, *extension]
    again = one.generate([text], replace(GREEDY, max_tokens=1))[0]
    # Blocks that were not computed, or from other tokens, would change the answer.
    assert difference(again, fresh(tuple(text), 1)) < TOLERANCE
    return again.num_cached_tokens


@modes
@pytest.mark.parametrize("name", FINISHED)
def test_a_finished_request_leaves_its_last_block(name: str, asynchronous: bool) -> None:
    """Repeated and extended: 48 tokens where they are settled; the answers are those of an empty cache."""
    case = FINISHED[name]
    assert reused(case, asynchronous, []) == case.repeated
    assert reused(case, asynchronous, extension()) == case.extended


@without_other_checks
@modes
@pytest.mark.parametrize("name", FINISHED)
def test_without_the_registration_at_the_end_the_block_is_lost(
    name: str, asynchronous: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """48 become 32, and nothing else tells: the answers are the same."""
    put_in(monkeypatch, f"finish-registers-nothing-{'a' * asynchronous}synchronous")
    assert reused(FINISHED[name], asynchronous, extension()) == FINISHED[name].without[asynchronous]


@without_other_checks
@modes
def test_without_the_trimmed_tokens_the_block_is_lost(
    asynchronous: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The two upstream fixes composed: only where a stop cuts drafts off at a block's end."""
    put_in(monkeypatch, "finish-forgets-trimmed")
    accepted, cut = list(FINISHED.values())[:2]
    assert (accepted.extended, cut.extended) == (48, 48)
    assert reused(accepted, asynchronous, extension()) == 48
    assert reused(cut, asynchronous, extension()) == 32


COUNTED = "Count: one two three four five, one two three four five, one two three four five, one two three"


def repeats_that_lose_a_block(asynchronous: bool) -> int:
    """Prompt lookup, as it comes: of four requests that end at a block's end, how many lose the block."""
    num_lost, behind, end = 0, extension()[:7], 2 * BLOCK_SIZE
    one = llm("ngram:3", asynchronous=asynchronous, block_size=BLOCK_SIZE)
    trims = Trims(one)
    for begin in range(4):  # so that the last step cuts off this and that
        prompt = tokens(COUNTED)[begin:]
        first = one.generate([prompt], replace(GREEDY, max_tokens=end - len(prompt)))[0]
        text = [*prompt, *first.token_ids, *behind]
        again = one.generate([text], replace(GREEDY, max_tokens=1))[0]
        assert difference(again, fresh(tuple(text), 1)) < TOLERANCE
        expected = hit(trims.num_settled(first), len(text), BLOCK_SIZE)
        assert again.num_cached_tokens <= expected
        num_lost += again.num_cached_tokens < expected
    totals = one.engine.totals
    assert totals.num_accepted_drafts > 0 and totals.num_rejected_drafts > 0 and trims.num_trimmed > 0
    return num_lost


@modes
def test_prompt_lookup_loses_no_block(asynchronous: bool) -> None:
    assert repeats_that_lose_a_block(asynchronous) == 0


@without_other_checks
@modes
def test_prompt_lookup_loses_blocks_without_the_registration(
    asynchronous: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    put_in(monkeypatch, f"finish-registers-nothing-{'a' * asynchronous}synchronous")
    assert repeats_that_lose_a_block(asynchronous) > 0


ANIMALS = "the red fox, the green frog, the blue bird, the black cat, "
CHUNKS = [ANIMALS * 4 + "the red"] + [" green frog, the blue bird, the black cat, the red"] * 5


def converse(speculate: str | None, **options: Any) -> tuple[list[RequestResult], LLM]:
    """A session of six chunks, two tokens said to each."""
    one = llm(speculate, **options)
    results = []
    with one.session(replace(GREEDY, max_tokens=2)) as session:
        for chunk in CHUNKS:
            session.append(tokens(chunk))
            results.append(session.turn())
    return results, one


@cache
def conversation() -> list[RequestResult]:
    return converse(None)[0]


def differences(results: list[RequestResult]) -> list[float]:
    return [difference(*pair) for pair in zip(results, conversation(), strict=True)]


@modes
@pytest.mark.parametrize("debug", [False, True], ids=["", "debug"])
def test_a_session_is_the_same_with_prompt_lookup(asynchronous: bool, debug: bool) -> None:
    """Six turns that stop in the middle of accepted drafts."""
    results, one = converse("ngram:4", asynchronous=asynchronous, debug=debug)
    assert max(differences(results)) < TOLERANCE
    totals = one.engine.totals
    assert totals.num_accepted_drafts > 0 and totals.num_rejected_drafts > 0 and totals.num_folds == 5
    assert sum(result.num_accepted_tokens for result in results) < totals.num_accepted_drafts  # some cut off
    assert [len(result.token_ids) for result in results] == [2] * 6


@without_other_checks
@modes
def test_a_session_that_counts_trimmed_tokens_diverges(
    asynchronous: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """From the second chunk on: its first tokens are not computed, and read the KV of drafts cut off."""
    put_in(monkeypatch, "trim-uncounted")
    results, _ = converse("ngram:4", asynchronous=asynchronous)
    found = differences(results)
    assert found[0] < TOLERANCE
    assert min(found[1:]) > 100 * TOLERANCE


@without_other_checks
@modes
def test_the_canary_names_trimmed_tokens_that_stay_counted(
    asynchronous: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    put_in(monkeypatch, "trim-uncounted")
    first_end = len(tokens(CHUNKS[0])) + 1  # the turn's first token has KV, its second one is replaced
    with pytest.raises(
        CanaryError, match=f"reads position {first_end} of request 0 .* rejected draft"
    ) as info:
        converse("ngram:4", asynchronous=asynchronous, debug=True)
    assert info.value.position == first_end
