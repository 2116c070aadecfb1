"""The rows that are compiled are those that numpy makes of the same ledgers, column by column."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from draftproof.impl.traces import columns, compiled
from draftproof.impl.traces.columns import CODE, FIRST_COUNTER, NUM_LINES, REQUEST_NUMBER, STEP
from draftproof.impl.traces.format import ABSENT, COUNTERS, EVENT_NAMES
from draftproof.impl.traces.recording_scheduler import _LEDGER_LINES
from draftproof.spec.ledger import Ledger

NUM_ROWS, NUM_REQUESTS = 40, 17


@pytest.fixture
def world() -> tuple[np.random.Generator, Any, Any, Any]:
    """Ledgers of all rows, the requests' numbers, and the rows of a step."""
    rng = np.random.default_rng(3)
    ledgers = rng.integers(0, 1000, (len(Ledger._fields) + 5, NUM_ROWS))
    numbers = rng.permutation(NUM_ROWS).astype(np.int32)
    return rng, ledgers, numbers, rng.permutation(NUM_ROWS)[:NUM_REQUESTS].astype(np.int64)


def expected_rows(ledgers: Any, numbers: Any, rows: Any, tells: Any) -> Any:
    lines = np.full((NUM_REQUESTS, NUM_LINES), ABSENT, np.int32)
    lines[:, STEP], lines[:, REQUEST_NUMBER] = 9, numbers[rows]
    told = np.stack([ledgers[Ledger._fields.index(name), rows] for name in COUNTERS], 1)
    lines[:, FIRST_COUNTER:] = np.where(np.broadcast_to(tells, NUM_REQUESTS)[:, None], told, ABSENT)
    return lines


@pytest.mark.parametrize("tells", [False, True])
def test_an_event_of_many_requests(world: Any, tells: bool) -> None:
    _, ledgers, numbers, rows = world
    out = np.zeros((NUM_REQUESTS, NUM_LINES), np.int32)
    compiled.fill()(out, 4, 9, rows, numbers, ledgers, _LEDGER_LINES, tells)
    lines = expected_rows(ledgers, numbers, rows, tells)
    lines[:, CODE] = 4
    assert np.array_equal(out, lines)


def test_outputs_of_each_kind(world: Any) -> None:
    rng, ledgers, numbers, rows = world
    num_stale = rng.integers(0, 2, NUM_REQUESTS) * 3
    sampled, reasons = (rng.integers(0, 3, NUM_REQUESTS).astype(np.int32) for _ in range(2))
    returned, drafts, kept = (rng.integers(1, 9, NUM_REQUESTS).astype(np.int32) for _ in range(3))
    out = np.zeros((NUM_REQUESTS, NUM_LINES), np.int32)
    compiled.fill_outputs()(
        out, 9, rows, numbers, ledgers, _LEDGER_LINES, num_stale, sampled, returned, drafts, kept, reasons
    )
    stale, prefill = num_stale > 0, (num_stale == 0) & (sampled == 0)
    samples = ~stale & ~prefill
    assert stale.any() and prefill.any() and samples.any()
    lines = expected_rows(ledgers, numbers, rows, reasons == 0)
    names = np.select([stale, prefill], ["stale_output", "chunk_output"], "output")
    lines[:, CODE] = [EVENT_NAMES.index(name) for name in names]
    lines[:, columns.NUM_RETURNED] = returned
    lines[samples, columns.NUM_DRAFTS] = drafts[samples]
    lines[samples, columns.NUM_ACCEPTED] = sampled[samples] - 1
    lines[~prefill, columns.NUM_KEPT] = kept[~prefill]
    lines[~prefill, columns.STOPPED] = (reasons != 0)[~prefill]
    assert np.array_equal(out, lines)
