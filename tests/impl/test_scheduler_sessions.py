"""May the stop rules of a session change from turn to turn?"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from draftproof.impl.scheduler import RequestError, Scheduler, SchedulerConfig


def turn(scheduler: Scheduler, token_ids: list[int]) -> list[int]:
    """The tokens that a turn keeps of those, one a step."""
    kept = []
    for token in token_ids:
        batch = scheduler.schedule()
        scheduler.settle(batch, np.array([[token]], np.int32), np.ones(1, np.int32))
        kept += [token] * int(batch.num_kept_tokens[0])
        if batch.finish_reason[0]:
            break
    return kept


@pytest.mark.parametrize("waits", [False, True])
def test_a_chunk_may_say_anew_what_stops_its_turn(waits: bool) -> None:
    """Whether it is folded in at once, or waits for the end of the turn before."""
    scheduler = Scheduler(SchedulerConfig(64, num_blocks=20, block_size=4, vocab_size=50), compiled=False)
    scheduler.add("s", [1, 2, 3], max_tokens=9, stop_token_ids=[7], eos_token_id=9, resumable=True)
    chunks: list[dict[str, object]] = [
        {},
        {"stop_token_ids": [8, 20]},
        {"stop_token_ids": (), "eos_token_id": 9},
        {"stop_token_ids": (), "eos_token_id": 9, "ignore_eos": True},
    ]
    if waits:
        for chunk in chunks:
            scheduler.append_chunk("s", [4, 5], max_tokens=5, **chunk)  # type: ignore[arg-type]
    assert turn(scheduler, [6, 7, 6]) == [6, 7]
    expected = [[8, 20, 6, 9], [7, 9, 20], [7, 8, 20, 9], [7, 8, 9, 9, 6]]
    for chunk, kept in zip(chunks, expected, strict=True):
        if not waits:
            scheduler.append_chunk("s", [4, 5], max_tokens=5, **chunk)  # type: ignore[arg-type]
        assert turn(scheduler, [*kept, 30, 30]) == kept


def test_a_chunk_that_changes_eos_alone_is_refused() -> None:
    scheduler = Scheduler(SchedulerConfig(64, num_blocks=20, block_size=4, vocab_size=50), compiled=False)
    scheduler.add("s", [1, 2, 3], resumable=True)
    mistakes: list[tuple[dict[str, Any], str]] = [
        ({"eos_token_id": 3}, "says its stop tokens too"),
        ({"ignore_eos": True}, "says its stop tokens too"),
        ({"stop_token_ids": (50,)}, "token 50 at position 0 of stop_token_ids"),
        ({"stop_token_ids": (), "eos_token_id": 50}, "eos_token_id=50 is outside"),
    ]
    for wrong, sentence in mistakes:
        with pytest.raises(RequestError, match=sentence):
            scheduler.append_chunk("s", [4], **wrong)
