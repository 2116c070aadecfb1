"""How do the events of a step become records of a trace? A compiled pass writes them, one adds counters.

Records are int32[n, columns] as `TraceWriter.emit_rows` takes them. Where what lies is told by `layout`
(`recording.layout`), so that nothing here needs the extra `traces`: the places of an event's code, of the
request's number, of the step; the word for what there is not; the places of seven counters and of the
published tokens; then for each event of the specification its code and the places of its integers.
"""

from __future__ import annotations

import functools
from typing import Any, NamedTuple

import numpy as np

from draftproof.impl import code_cache
from draftproof.impl.attach.vllm.kernel import (
    ABORT,
    CODE,
    FINISH,
    FIRST_ARGUMENT,
    NOTHING,
    NUM_ARGUMENTS,
    NUM_FOUND,
    SCHEDULE,
)

MOST_ARGUMENTS = NUM_ARGUMENTS
_ABSENT, _COUNTERS, _REGISTERED = 3, 4, 4 + NUM_FOUND
_EVENTS = _REGISTERED + 1
_EVENT_WIDTH = 1 + MOST_ARGUMENTS
_NOT_SCHEDULED = 1 << 40


class Passes(NamedTuple):
    """The two functions below, compiled."""

    write: Any
    tell: Any


def write(
    records: Any, count: int, rows: Any, work: Any, numbers: Any, last: Any, layout: Any, step: int
) -> int:
    """Append the events in `work`; returns how many records there are then.

    `records`: int32[m, columns], `count` of which are there already and enough free; `rows`, `work`: as in
    `kernel.move`; `numbers`: int64, by row, the request's number or -1 if it is not recorded; `last`: int64,
    by row, where its last event is that counters may be added to (plus a flag if that is no `schedule`).
    """
    for place in range(rows.shape[0]):
        row, code = rows[place], work[CODE, place]
        if code == NOTHING or row >= numbers.shape[0] or numbers[row] < 0:
            continue
        for column in range(records.shape[1]):
            records[count, column] = layout[_ABSENT]
        first = _EVENTS + code * _EVENT_WIDTH
        records[count, layout[0]] = layout[first]
        records[count, layout[1]] = numbers[row]
        records[count, layout[2]] = step
        for argument in range(MOST_ARGUMENTS):
            column = layout[first + 1 + argument]
            if column < 0:
                break
            records[count, column] = work[FIRST_ARGUMENT + argument, place]
        # After a request has left, its counters are not told with that event.
        if code != FINISH and code != ABORT:
            last[row] = count if code == SCHEDULE else count + _NOT_SCHEDULED
        count += 1
    return count


def tell(records: Any, rows: Any, found: Any, published: Any, last: Any, layout: Any, num_told: int) -> None:
    """Add the engine's counters, int64[7, n], to the last events of these rows, the first `num_told` of them;
    to a `schedule` also the published tokens, int64[n] or of length 0."""
    for place in range(rows.shape[0]):
        row = rows[place]
        if row >= last.shape[0] or last[row] < 0:
            continue
        record = last[row]
        scheduled = record < _NOT_SCHEDULED
        if not scheduled:
            record -= _NOT_SCHEDULED
        for counter in range(num_told):
            records[record, layout[_COUNTERS + counter]] = found[counter, place]
        if scheduled and published.shape[0]:
            records[record, layout[_REGISTERED]] = published[place]
        last[row] = -1


@functools.cache
def passes() -> Passes:
    """Both, compiled now or loaded."""
    records, lines, words = np.zeros((1, 1), np.int32), np.zeros((1, 1), np.int64), np.zeros(1, np.int64)
    return Passes(
        code_cache.compile(write, records, 0, words, lines, words, words, words, 0),
        code_cache.compile(tell, records, words, lines, words, words, words, 0),
    )
