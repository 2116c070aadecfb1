"""Does each drafter propose what it says?"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

pytest.importorskip("torch", reason="torch is not installed")

from draftproof.gpu.drafters import (
    DraftRequest,
    NgramDrafter,
    NullDrafter,
    ScriptedDrafter,
    drafter_of,
)
from draftproof.gpu.errors import ModelError


def request(token_ids: Any, request_id: str = "a") -> DraftRequest:
    return DraftRequest(request_id, np.array(token_ids, np.int32))


def plain_lookup(tokens: list[int], num_drafts: int, least: int, most: int) -> list[int]:
    """The rule, word for word: longest first; then the latest that K tokens follow, else the earliest."""
    for length in range(most, least - 1, -1):
        suffix = tokens[-length:]
        begins = [begin for begin in range(len(tokens) - length) if tokens[begin : begin + length] == suffix]
        if len(tokens) > length and begins:
            full = [begin for begin in begins if begin + length + num_drafts <= len(tokens)]
            begin = (full[-1] if full else begins[0]) + length
            return tokens[begin : begin + num_drafts]
    return []


@pytest.mark.parametrize(
    ("tokens", "expected"),
    [
        ([1, 2, 3, 9, 1, 2, 4, 8, 5, 5, 1, 2], [4, 8, 5]),  # the most recent of two
        ([3, 1, 2, 6, 7, 8, 9, 2, 5, 5, 3, 1, 2], [6, 7, 8]),  # a longer match before a later one
        ([5, 5, 5, 5, 5], [5, 5]),  # no place with three tokens behind it: the earliest
        ([6, 5, 5, 5, 5, 5, 5, 5], [5, 5, 5]),
        ([1, 2, 3, 4], []),
        ([1], []),
        ([4, 4], [4]),
    ],
)
def test_ngram_proposes_what_followed(tokens: list[int], expected: list[int]) -> None:
    assert NgramDrafter(3).continuation(np.array(tokens, np.int32)).tolist() == expected


def test_ngram_is_the_plain_rule() -> None:
    generator = np.random.default_rng(0)
    found = 0
    for _ in range(400):
        tokens = generator.integers(0, 4, generator.integers(1, 25)).tolist()
        least = int(generator.integers(1, 4))
        most, num_drafts = least + int(generator.integers(0, 3)), int(generator.integers(1, 5))
        answer = NgramDrafter(num_drafts, least, most).continuation(np.array(tokens, np.int32)).tolist()
        assert answer == plain_lookup(tokens, num_drafts, least, most)
        found += len(answer) > 0
    assert 100 < found < 400


def test_proposals_have_one_shape() -> None:
    drafts, counts = NgramDrafter(3).propose([request([1, 2, 1]), request([7, 8])])
    assert drafts.dtype == counts.dtype == np.int32
    assert drafts.tolist() == [[2, 1, -1], [-1, -1, -1]] and counts.tolist() == [2, 0]
    drafts, counts = NullDrafter(2).propose([request([1])])
    assert drafts.tolist() == [[-1, -1]] and counts.tolist() == [2]


def test_scripted_spoils_the_draft_that_the_script_names() -> None:
    drafter = ScriptedDrafter(3, [[1, 2, 3, 4, 5, 6], [9, 9]], [0, 3, 1], vocab_size=10)
    proposals = [drafter.propose([request([1, 2])])[0].tolist()[0] for _ in range(4)]
    assert proposals == [[4, 4, 5], [3, 4, 5], [3, 5, 5], [4, 4, 5]]
    drafts, counts = drafter.propose([request([1, 2], "b"), request([9]), request([3])])
    assert drafts.tolist() == [[4, 4, 5], [9, -1, -1], [-1, -1, -1]] and counts.tolist() == [3, 1, 0]
    drafter.forget("b")
    assert drafter.propose([request([1, 2], "b")])[0].tolist() == [[4, 4, 5]]


def test_options() -> None:
    assert drafter_of(None) is None
    assert isinstance(drafter_of("ngram:3"), NgramDrafter)
    null = drafter_of("null:5")
    assert isinstance(null, NullDrafter) and null.num_speculative_tokens == 5
    assert drafter_of(null) is null
    for wrong in ("ngram:", "ngram:0", "ngram:9999", "ngram:³", "null:65", 3, NullDrafter(0), ["ngram:3"]):
        with pytest.raises(ModelError):
            drafter_of(wrong)
    with pytest.raises(ModelError, match="min_ngram <= max_ngram"):
        NgramDrafter(3, 4, 2)
    with pytest.raises(ModelError, match="from 0 to 3"):
        ScriptedDrafter(3, [], [4], 10)
    with pytest.raises(ModelError, match="vocabulary of one token"):
        ScriptedDrafter(3, [], [0], 1)
