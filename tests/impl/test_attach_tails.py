"""Whose written blocks are looked at closely: never too few, whatever changed since the last step."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np

from draftproof.impl.attach.vllm.kernel import FIRST_BLOCK, LAST_BLOCK, WIDTH
from draftproof.impl.attach.vllm.tails import Tails
from draftproof.impl.attach.vllm.watched import Party


def block(ref_cnt: int = 1, block_hash: bytes | None = None) -> Any:
    """A block as vLLM has them."""
    return SimpleNamespace(ref_cnt=ref_cnt, block_hash=block_hash)


def party(*tables: list[Any], rows: list[int] | None = None) -> Party:
    """Requests with these block tables."""
    several: list[Any] = [SimpleNamespace(table=table) for table in tables]
    return Party(0, [], several, [], np.array(rows or range(len(tables)), np.int64))


def suspects(tails: Tails, step: Party, *written: tuple[int, int]) -> list[int]:
    """A step writes into the blocks from the first to the last of each request."""
    work = np.zeros((WIDTH, len(written)), np.int64)
    work[FIRST_BLOCK], work[LAST_BLOCK] = np.array(written).T
    rows = step.rows
    known = (rows < tails.indices.shape[0]).all() and (tails.indices[rows] == work[LAST_BLOCK]).all()
    return tails.suspects(step, work, not known or (work[FIRST_BLOCK] != work[LAST_BLOCK]).any())


def test_a_block_of_ones_own_is_not_suspicious() -> None:
    tails, step = Tails(), party([block()], [block(), block()])
    for _ in range(2):
        assert suspects(tails, step, (0, 0), (1, 1)) == []


def test_what_becomes_shared_or_published_is() -> None:
    tails, one, other = Tails(), block(), block()
    step = party([one], [other], [block()])
    assert suspects(tails, step, (0, 0), (0, 0), (0, 0)) == []
    one.ref_cnt, other.block_hash = 2, b"published"
    assert suspects(tails, step, (0, 0), (0, 0), (0, 0)) == [0, 1]


def test_several_blocks_and_none_are() -> None:
    tails, step = Tails(), party([block(), block()], [block()], [block()])
    assert suspects(tails, step, (0, 1), (1, 1), (0, 0)) == [0, 1]


def test_the_next_block_is_looked_at_once_it_is_written() -> None:
    tails, shared = Tails(), block(ref_cnt=2)
    step = party([block(), shared], [block()])
    assert suspects(tails, step, (0, 0), (0, 0)) == []
    for _ in range(2):
        assert suspects(tails, step, (1, 1), (0, 0)) == [0]


def test_a_row_that_becomes_anothers_is_looked_up_again() -> None:
    tails = Tails()
    assert suspects(tails, party([block()]), (0, 0)) == []
    tails.forget(0)
    assert suspects(tails, party([block(ref_cnt=2)]), (0, 0)) == [0]


def test_there_may_be_more_rows_than_were_expected() -> None:
    tails = Tails()
    step = party([block()], [block(ref_cnt=2)], rows=[1, 300])
    assert suspects(tails, step, (0, 0), (0, 0)) == [1]
