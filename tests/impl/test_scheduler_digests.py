"""Digests are derived from tokens: after a fold they are those computed from scratch."""

from __future__ import annotations

from typing import Any

import pytest

from draftproof.impl.scheduler import Scheduler, SchedulerConfig, lifecycle
from draftproof.impl.scheduler.layout import interpreted
from draftproof.impl.scheduler.prefix_cache import hash_row


def digests_after_a_fold(num_prompt_tokens: int) -> tuple[list[Any], list[Any]]:
    """Of a session all of whose digests were asked for before its next chunk came: kept, and from scratch."""
    config = SchedulerConfig(max_model_len=64, num_blocks=20, block_size=4, hash_seed=1)
    scheduler = Scheduler(config, compiled=False)
    row = scheduler.add("s", list(range(1, num_prompt_tokens + 1)), max_tokens=1, resumable=True)
    scheduler.settle(scheduler.schedule(), [[90]], [1])
    state = interpreted(scheduler.state)
    hash_row(state, row, num_prompt_tokens + 1)
    scheduler.append_chunk("s", [50, 51, 52, 53], max_tokens=1)
    found = []
    for _ in range(2):
        num_tokens = num_prompt_tokens + 4  # the last of the turn is gone
        hash_row(state, row, num_tokens)
        blocks = range(num_tokens // 4)
        found.append(
            [(state.requests.digest_first[row, i], state.requests.digest_second[row, i]) for i in blocks]
        )
        state.requests.num_hashed_blocks[row] = 0
    return found[0], found[1]


@pytest.mark.parametrize("num_prompt_tokens", range(1, 15))
def test_digests_after_a_fold_are_those_from_scratch(num_prompt_tokens: int) -> None:
    kept, from_scratch = digests_after_a_fold(num_prompt_tokens)
    assert kept == from_scratch


def test_digests_that_a_fold_does_not_cut_are_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lifecycle, "hashes_to_keep", lambda ledger, rules: ledger.num_tokens)
    kept, from_scratch = digests_after_a_fold(7)
    assert kept != from_scratch
