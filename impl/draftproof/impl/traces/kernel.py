"""What does a chunk of records do to the requests? Each event is replayed through the proven accounting.

One pass over the rows, the same source interpreted and compiled. Of each event the guard is asked, the
transition is run (`transitions`), and what the engine told is compared (`agreement`). A request whose records
are incomplete, or that has diverged, is not judged further; what is needed to say why is noted in the table's
`findings` (`request_table`), and the caller explains it in words.
"""

from __future__ import annotations

from typing import Any

from draftproof.impl.traces.agreement import agrees, exit_agrees, told_mask
from draftproof.impl.traces.columns import (
    CODE,
    DROP,
    FIRST_ARGUMENT,
    INDEX,
    LOOK_UP,
    NUM_NEW_TOKENS,
    NUM_RETURNED,
    PROMPT,
    REGISTERED,
    REQUEST_NUMBER,
    STATUS_LINE,
    STEP,
    STOPPED,
)
from draftproof.impl.traces.format import ABSENT, ARGUMENTS, EXIT, REQUEST
from draftproof.impl.traces.request_table import (
    DIVERGED,
    EXIT_DIFFERS,
    F_PLACE,
    FLAGS,
    KNOWN_REQUEST,
    LAST_CODE,
    LOST,
    MALFORMED,
    MISSING,
    NEXT_INDEX,
    NOT_ALLOWED,
    NUM_FINDINGS,
    NUM_JUDGED,
    NUM_LEDGER,
    NUM_SKIPPED,
    OUT_OF_PLACE,
    REPEATED,
    STATUS_PLACE,
    TAINTED,
    TOO_MANY,
    UNKNOWN_REQUEST,
    VIOLATED,
    Table,
    close_request,
    note,
    open_request,
    place_of,
)
from draftproof.impl.traces.transitions import (
    ABORT,
    CHUNK_OUTPUT,
    END_TURN,
    FINISH,
    OUTPUT,
    PREEMPT,
    SCHEDULE,
    STALE_OUTPUT,
    advance,
)
from draftproof.spec.ledger import FINISHED, STATUS_NAMES, Rules

NUM_ARGUMENTS, NUM_STATUSES = len(ARGUMENTS), len(STATUS_NAMES)

__all__ = (
    "DIVERGED",
    "EXIT_DIFFERS",
    "KNOWN_REQUEST",
    "MALFORMED",
    "MISSING",
    "NOT_ALLOWED",
    "NUM_LEDGER",
    "OUT_OF_PLACE",
    "REPEATED",
    "TAINTED",
    "TOO_MANY",
    "UNKNOWN_REQUEST",
    "exit_agrees",
    "is_well_formed",
    "replay",
)
"""What a finding is made of belongs to who explains it, too."""


def is_well_formed(lines: Any, masks: Any, row: int) -> bool:
    """Whether a row's integers are those of its kind, within their bounds."""
    code = lines[CODE, row]
    if code < 0 or code > EXIT or lines[REQUEST_NUMBER, row] < 0 or lines[STEP, row] < 0:
        return False
    if code == REQUEST:
        return lines[PROMPT, row] >= 1 and lines[INDEX, row] == 0  # type: ignore[no-any-return]
    if lines[INDEX, row] < 1:
        return False
    if code == EXIT:
        return lines[REGISTERED, row] != ABSENT  # type: ignore[no-any-return]
    mask = masks[code]
    for offset in range(NUM_ARGUMENTS):
        value = lines[FIRST_ARGUMENT + offset, row]
        if mask >> offset & 1:
            if value < 0:
                return False
        elif value != ABSENT:
            return False
    if mask >> (STOPPED - FIRST_ARGUMENT) & 1 and lines[STOPPED, row] > 1:
        return False
    if mask >> (DROP - FIRST_ARGUMENT) & 1 and lines[DROP, row] > 1:
        return False
    status = lines[STATUS_LINE, row]
    return status == ABSENT or 0 <= status < NUM_STATUSES  # type: ignore[no-any-return]


def follow_unjudged(table: Table, lines: Any, row: int, slot: int) -> None:
    """Of a request that is not judged: when does it leave the table? From sizes alone."""
    code = lines[CODE, row]
    requests = table.requests
    if requests[slot, LAST_CODE] < 0:
        return
    if code == SCHEDULE:
        requests[slot, F_PLACE] += lines[NUM_NEW_TOKENS, row]
    elif code in (OUTPUT, CHUNK_OUTPUT, STALE_OUTPUT):
        requests[slot, F_PLACE] -= lines[NUM_RETURNED, row]
    elif code in (FINISH, ABORT):
        requests[slot, STATUS_PLACE] = FINISHED
    lost = requests[slot, FLAGS] & LOST
    if requests[slot, STATUS_PLACE] == FINISHED and (requests[slot, F_PLACE] <= 0 or lost):
        close_request(table, slot)


def judge(rules: Rules, table: Table, lines: Any, row: int, slot: int) -> None:
    """The next record of a request that is judged."""
    requests, code = table.requests, lines[CODE, row]
    if code == EXIT:
        last = requests[slot, LAST_CODE]
        last = -last - 1 if last < 0 else last
        has_left = last in (FINISH, ABORT, PREEMPT, END_TURN)
        if not has_left and requests[slot, STATUS_PLACE] != FINISHED:
            note(table, MALFORMED, row, slot)
            return
        if not exit_agrees(rules, requests, slot, lines, row, last):
            note(table, EXIT_DIFFERS, row, slot)
            requests[slot, FLAGS] |= VIOLATED
        is_compared = lines[LOOK_UP, row] != ABSENT and last != PREEMPT
        table.told[EXIT, 1 if is_compared else 0] += 1
        table.counts[NUM_JUDGED] += 1
        return
    note(table, DIVERGED, row, slot)  # kept only if it is needed
    place = table.counts[NUM_FINDINGS] - 1
    if not advance(rules, requests, slot, lines, row):
        table.findings[place, 0] = NOT_ALLOWED
        requests[slot, FLAGS] |= VIOLATED
        follow_unjudged(table, lines, row, slot)
        return
    table.told[code, told_mask(lines, row)] += 1
    table.counts[NUM_JUDGED] += 1
    if not agrees(requests, slot, lines, row):
        requests[slot, FLAGS] |= VIOLATED
    else:
        table.counts[NUM_FINDINGS] = place
    was_closed = requests[slot, LAST_CODE] < 0
    if was_closed:
        return
    requests[slot, LAST_CODE] = code
    if requests[slot, STATUS_PLACE] == FINISHED and requests[slot, F_PLACE] <= 0:
        close_request(table, slot)


def replay(
    rules: Rules,
    lines: Any,
    tainted: Any,
    masks: Any,
    table: Table,
    start: int,
    shard: int,
    num_shards: int,
) -> int:
    """Replay the rows from `start` on that belong to the shard; returns the row to go on with.

    It stops early when there is no room for findings. Rows with a negative code are skipped.
    """
    num_rows: int = lines.shape[1]
    room = table.findings.shape[0] - 1
    for row in range(start, num_rows):
        code = lines[CODE, row]
        if code == -1:
            continue
        number = lines[REQUEST_NUMBER, row]
        if number % num_shards != shard:
            continue
        if table.counts[NUM_FINDINGS] >= room:
            return row
        if not is_well_formed(lines, masks, row):
            note(table, MALFORMED, row, -1)
            continue
        if code == REQUEST:
            open_request(table, lines, row, tainted[row])
            continue
        place = place_of(table.keys, number)
        if table.keys[place] != number:
            note(table, UNKNOWN_REQUEST, row, -1)
            continue
        slot = table.slots[place]
        flags = table.requests[slot, FLAGS]
        if flags & (LOST | VIOLATED):
            table.counts[NUM_SKIPPED] += 1
            follow_unjudged(table, lines, row, slot)
            continue
        expected = table.requests[slot, NEXT_INDEX]
        if lines[INDEX, row] < expected:
            if not flags & REPEATED:
                note(table, OUT_OF_PLACE, row, slot)
            table.requests[slot, FLAGS] |= REPEATED
            continue
        if lines[INDEX, row] > expected:
            note(table, MISSING, row, slot)
            table.requests[slot, FLAGS] |= LOST
            table.counts[NUM_SKIPPED] += 1
            follow_unjudged(table, lines, row, slot)
            continue
        if tainted[row]:
            table.requests[slot, FLAGS] |= TAINTED
        table.requests[slot, NEXT_INDEX] = expected + 1
        judge(rules, table, lines, row, slot)
    return num_rows
