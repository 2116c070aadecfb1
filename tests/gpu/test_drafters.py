"""Does each drafter propose what it says?"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")

from tests.gpu.attention_world import DEVICE  # noqa: E402
from tests.gpu.host_reads import no_host_reads  # noqa: E402

from draftproof.gpu.drafters import (  # noqa: E402
    Drafter,
    DraftStep,
    NgramDrafter,
    NullDrafter,
    ScriptedDrafter,
    drafter_of,
)
from draftproof.gpu.errors import ModelError  # noqa: E402

JUNK = 77
"""Behind the end of every text; so nothing there may be looked at."""


def propose(drafter: Drafter, texts: list[list[int]], lines: list[int] | None = None) -> tuple[Any, Any]:
    """Drafts for rows with these tokens, which all sampled; counts."""
    nothing: Any = None
    lines = list(range(len(texts))) if lines is None else lines
    longest = max(map(len, texts)) + 1
    table = torch.full((max(lines) + 2, longest + 5), JUNK, device=DEVICE)
    for line, text in zip(lines, texts, strict=True):
        table[line, : len(text)] = torch.tensor(text, device=DEVICE)
    step = DraftStep(
        row_ids=torch.tensor(lines, device=DEVICE),
        num_tokens=torch.tensor([len(text) for text in texts], device=DEVICE),
        token_ids=table,
        samples=torch.ones(len(texts), dtype=torch.bool, device=DEVICE),
        num_sampled=torch.ones(len(texts), dtype=torch.int64, device=DEVICE),
        rows=nothing,
        fed_token_ids=nothing,
        hidden=nothing,
        sampling=nothing,
        max_num_tokens=longest,
    )
    with no_host_reads():
        proposal = drafter.propose(step)
    assert proposal.token_ids.dtype == proposal.num_tokens.dtype == torch.int64
    return proposal.token_ids.tolist(), proposal.num_tokens.tolist()


def continuation(drafter: NgramDrafter, tokens: list[int]) -> list[int]:
    """Of one text, beside another one."""
    (drafts, _), (count, _) = propose(drafter, [tokens, [1, 2, 3, 4, 5, 6, 1, 2, 3]])
    assert drafts[count:] == [-1] * (len(drafts) - count)
    return list(drafts[:count])


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
        ([6, 5, 5, 5, 5, 5, 5], [5, 5]),  # no place with three tokens behind it: the earliest
        ([6, 5, 5, 5, 5, 5, 5, 5, 5], [5, 5, 5]),
        ([1, 2, 3, 4], []),
        ([1], []),
        ([4, 4], [4]),
    ],
)
def test_ngram_proposes_what_followed(tokens: list[int], expected: list[int]) -> None:
    assert continuation(NgramDrafter(3), tokens) == expected


def test_ngram_is_the_plain_rule() -> None:
    generator = np.random.default_rng(0)
    found = 0
    for _ in range(400):
        tokens = generator.integers(0, 4, generator.integers(1, 25)).tolist()
        least = int(generator.integers(1, 4))
        most, num_drafts = least + int(generator.integers(0, 3)), int(generator.integers(1, 5))
        answer = continuation(NgramDrafter(num_drafts, least, most), tokens)
        assert answer == plain_lookup(tokens, num_drafts, least, most)
        found += len(answer) > 0
    assert 100 < found < 400


def test_proposals_have_one_shape() -> None:
    assert propose(NgramDrafter(3), [[1, 2, 1], [7, 8]]) == ([[2, 1, -1], [-1, -1, -1]], [2, 0])
    assert propose(NullDrafter(2), [[1]]) == ([[-1, -1]], [2])


def test_scripted_spoils_the_draft_that_the_script_names() -> None:
    drafter = ScriptedDrafter(3, [[1, 2, 3, 4, 5, 6], [9, 9]], [0, 3, 1], vocab_size=10)
    proposals = [propose(drafter, [[1, 2]], [2])[0][0] for _ in range(4)]
    assert proposals == [[4, 4, 5], [3, 4, 5], [3, 5, 5], [4, 4, 5]]
    other = ScriptedDrafter(3, [[1, 2, 3, 4, 5, 6], [9, 9]], [0, 3, 1], vocab_size=10)
    drafts = propose(other, [[1, 2], [9], [3], [1, 2, 3, 4, 5, 6, 7]])
    assert drafts == ([[4, 4, 5], [0, -1, -1], [-1] * 3, [-1] * 3], [3, 1, 0, 0])
    # The steps of each row are counted apart.
    assert propose(other, [[1, 2], [1, 2]], [0, 4])[0] == [[3, 4, 5], [4, 4, 5]]


def test_options() -> None:
    assert drafter_of(None) is None
    assert isinstance(drafter_of("ngram:3"), NgramDrafter)
    null = drafter_of("null:5")
    assert isinstance(null, NullDrafter) and null.num_speculative_tokens == 5
    assert drafter_of(null) is null
    for wrong in (
        "ngram:",
        "ngram:0",
        "ngram:9999",
        "ngram:³",
        "null:65",
        3,
        NullDrafter(0),
        NullDrafter(65),
        ["ngram:3"],
    ):
        with pytest.raises(ModelError):
            drafter_of(wrong)
    with pytest.raises(ModelError, match="min_ngram <= max_ngram"):
        NgramDrafter(3, 4, 2)
    with pytest.raises(ModelError, match="from 0 to 3"):
        ScriptedDrafter(3, [], [4], 10)
    with pytest.raises(ModelError, match="vocabulary of one token"):
        ScriptedDrafter(3, [], [0], 1)
