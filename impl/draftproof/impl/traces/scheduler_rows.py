"""How do the events of a step of our own scheduler become rows of a trace? Compiled: a row for each request.

A row is int32[NUM_LINES], as `TraceWriter.emit_rows` takes it, with the counters that the request has in the
ledgers now. The integers of an event that all rows have are put in by the caller.
"""

from __future__ import annotations

from typing import Any

from draftproof.impl.traces.columns import (
    CODE,
    FIRST_COUNTER,
    NUM_ACCEPTED,
    NUM_DRAFTS,
    NUM_KEPT,
    NUM_LINES,
    NUM_RETURNED,
    REQUEST_NUMBER,
    STEP,
    STOPPED,
)
from draftproof.impl.traces.format import ABSENT, COUNTERS, EVENT_NAMES

NUM_COUNTERS = len(COUNTERS)
OUTPUT, CHUNK_OUTPUT = EVENT_NAMES.index("output"), EVENT_NAMES.index("chunk_output")
STALE_OUTPUT = EVENT_NAMES.index("stale_output")


def fill(
    out: Any,
    code: int,
    step: int,
    rows: Any,
    numbers: Any,
    ledgers: Any,
    ledger_lines: Any,
    tells: bool,
) -> None:
    """The same event for each of the rows, int64[n], into int32[n, NUM_LINES]; `tells`: with counters.

    `numbers`: int32, by row, the request's number in the trace; `ledger_lines`: where the counters are in
    `ledgers`, int64[fields, rows].
    """
    for place in range(rows.shape[0]):
        row = rows[place]
        for line in range(NUM_LINES):
            out[place, line] = ABSENT
        out[place, CODE], out[place, STEP], out[place, REQUEST_NUMBER] = code, step, numbers[row]
        if tells:
            for counter in range(NUM_COUNTERS):
                out[place, FIRST_COUNTER + counter] = ledgers[ledger_lines[counter], row]


def fill_outputs(
    out: Any,
    step: int,
    rows: Any,
    numbers: Any,
    ledgers: Any,
    ledger_lines: Any,
    num_stale: Any,
    num_sampled: Any,
    num_returned: Any,
    num_drafts: Any,
    num_kept: Any,
    reasons: Any,
) -> None:
    """What a step brought back for each of its rows. `num_stale`: int64[n], stale tokens before it came; the
    others as in the batch. A request that stopped was changed once more since: its counters are not told."""
    for place in range(rows.shape[0]):
        row = rows[place]
        for line in range(NUM_LINES):
            out[place, line] = ABSENT
        out[place, STEP], out[place, REQUEST_NUMBER] = step, numbers[row]
        out[place, NUM_RETURNED] = num_returned[place]
        is_stale, stopped = num_stale[place] > 0, 0 if reasons[place] == 0 else 1
        if is_stale:
            out[place, CODE] = STALE_OUTPUT
        elif num_sampled[place] == 0:
            out[place, CODE] = CHUNK_OUTPUT
        else:
            out[place, CODE] = OUTPUT
            out[place, NUM_DRAFTS], out[place, NUM_ACCEPTED] = num_drafts[place], num_sampled[place] - 1
        if is_stale or num_sampled[place] != 0:
            out[place, NUM_KEPT], out[place, STOPPED] = num_kept[place], stopped
        if not stopped:
            for counter in range(NUM_COUNTERS):
                out[place, FIRST_COUNTER + counter] = ledgers[ledger_lines[counter], row]
