"""What does a chunk of records do to the requests? Each event is replayed through the proven accounting.

One pass over the rows, the same source interpreted and compiled. A request is a line of an int64 table: its
ledger and ghosts as the accounting and the specification lead them, and how far its records have been read.
Of each event the guard is asked, the transition is run (the very function of `draftproof.impl.accounting`),
and what the engine told is compared. A request whose records are incomplete, or that has diverged, is not
judged further; what is needed to say why is noted in `findings`, and the caller explains it in words.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from draftproof.impl import accounting
from draftproof.impl.contracts import plain
from draftproof.impl.traces import conditions
from draftproof.impl.traces.columns import (
    CODE,
    DROP,
    FIRST_ARGUMENT,
    FIRST_COUNTER,
    INDEX,
    LOOK_UP,
    NUM_ACCEPTED,
    NUM_CHUNK,
    NUM_DRAFTS,
    NUM_HIT_TOKENS,
    NUM_KEPT,
    NUM_NEW_TOKENS,
    NUM_RETURNED,
    PROMPT,
    REGISTERED,
    REQUEST_NUMBER,
    STATUS_LINE,
    STEP,
    STOPPED,
)
from draftproof.impl.traces.format import ABSENT, ARGUMENTS, COUNTERS, EVENT_NAMES, EXIT, REQUEST
from draftproof.spec.algebra import floor_to_block
from draftproof.spec.events import (
    Admit,
    ChunkOutput,
    Draft,
    Fold,
    Output,
    Preempt,
    Schedule,
    StaleOutput,
)
from draftproof.spec.ghosts import Ghosts, State
from draftproof.spec.ledger import FINISHED, STATUS_NAMES, Ledger, Rules

(
    _ADMIT,
    _SCHEDULE,
    _DRAFT,
    _CHUNK_OUTPUT,
    _OUTPUT,
    _PREEMPT,
    _STALE_OUTPUT,
    _END_TURN,
    _FOLD,
    _FINISH,
    _ABORT,
) = range(len(EVENT_NAMES))
NUM_ARGUMENTS, NUM_COUNTERS, NUM_STATUSES = len(ARGUMENTS), len(COUNTERS), len(STATUS_NAMES)

NUM_LEDGER = len(Ledger._fields)
NUM_GHOSTS = len(Ghosts._fields)
NUM_COUNTS = NUM_LEDGER + NUM_GHOSTS
NUMBER, NEXT_INDEX, FLAGS, LAST_CODE = range(NUM_COUNTS, NUM_COUNTS + 4)
TABLE_WIDTH = NUM_COUNTS + 6
"""Words of a request in the table."""

TAINTED, LOST, VIOLATED, REPEATED = 1, 2, 4, 8
"""Flags of a request: a record of it lies under a failed checksum; records of it are missing; it has
diverged; a record came twice or too late."""

(
    NOT_ALLOWED,
    DIVERGED,
    EXIT_DIFFERS,
    UNKNOWN_REQUEST,
    OUT_OF_PLACE,
    MISSING,
    MALFORMED,
    KNOWN_REQUEST,
    TOO_MANY,
) = range(9)
"""Kinds of findings. The first three are violations, the others damage."""
NUM_VIOLATIONS = 3
FINDING_WIDTH = 4 + NUM_COUNTS
"""Kind, row, flags, last code, then the ledger and ghosts before the record."""

EMPTY, REMOVED = -1, -2
"""Keys of the hash table that are no request's number."""
NUM_LIVE, NUM_FREE, RING_PLACE, NUM_FINDINGS, NUM_JUDGED, NUM_OPENED, NUM_REMOVED, NUM_SKIPPED = range(8)
"""Places of `counts`: requests in the table; slots in `free`; finished requests that are remembered; findings
noted; records that were judged; requests seen; keys removed since the table was laid out; records of requests
that are not judged any more."""
NUM_KERNEL_COUNTS = 8


class Table(NamedTuple):
    """The requests of one shard."""

    requests: Any
    """int64[capacity, TABLE_WIDTH]"""
    keys: Any
    """int32[2^k]: requests' numbers, hashed."""
    slots: Any
    """int32[2^k]: where each is in `requests`."""
    free: Any
    """int32[capacity]: unused slots."""
    finished: Any
    """int32[n]: the slots of the last finished requests, for what is still said about them."""
    counts: Any
    """int64[NUM_KERNEL_COUNTS]"""
    told: Any
    """int64[events + 2, 2^counters]: how often which counters came with which event."""
    findings: Any
    """int64[n, FINDING_WIDTH]"""


def place_of(keys: Any, number: int) -> int:
    """Where a number's key is or would be: the first place with it or an empty one."""
    mask: int = keys.shape[0] - 1
    place = (number * 2654435769 >> 7) & mask
    while keys[place] != number and keys[place] != EMPTY:
        place = (place + 1) & mask
    return place


def load_ledger(requests: Any, slot: int) -> Ledger:
    """The ledger of a slot."""
    return Ledger(
        requests[slot, 0],
        requests[slot, 1],
        requests[slot, 2],
        requests[slot, 3],
        requests[slot, 4],
        requests[slot, 5],
        requests[slot, 6],
        requests[slot, 7],
        requests[slot, 8],
        requests[slot, 9],
        requests[slot, 10],
        requests[slot, 11],
        requests[slot, 12] != 0,
    )


def load_ghosts(requests: Any, slot: int) -> Ghosts:
    """The ghosts of a slot."""
    return Ghosts(
        requests[slot, 13], requests[slot, 14], requests[slot, 15], requests[slot, 16], requests[slot, 17]
    )


def store_state(requests: Any, slot: int, ledger: Ledger, ghosts: Ghosts) -> None:
    """Ledger and ghosts into a slot."""
    requests[slot, 0] = ledger.num_prompt_tokens
    requests[slot, 1] = ledger.num_tokens
    requests[slot, 2] = ledger.num_computed_tokens
    requests[slot, 3] = ledger.num_output_placeholders
    requests[slot, 4] = ledger.num_in_flight_tokens
    requests[slot, 5] = ledger.num_stale_tokens
    requests[slot, 6] = ledger.num_draft_tokens
    requests[slot, 7] = ledger.num_registered_tokens
    requests[slot, 8] = ledger.num_trimmed_tokens
    requests[slot, 9] = ledger.stop_pending
    requests[slot, 10] = ledger.num_registered_at_preemption
    requests[slot, 11] = ledger.status
    requests[slot, 12] = ledger.drop_stale
    requests[slot, 13] = ghosts.num_awaited_samples
    requests[slot, 14] = ghosts.num_prefill_in_flight
    requests[slot, 15] = ghosts.completes_prompt
    requests[slot, 16] = ghosts.num_valid_tokens
    requests[slot, 17] = ghosts.num_settled_tokens


C_PLACE = Ledger._fields.index("num_computed_tokens")
F_PLACE = Ledger._fields.index("num_in_flight_tokens")
R_PLACE = Ledger._fields.index("num_registered_tokens")
X_PLACE = Ledger._fields.index("num_registered_at_preemption")
N_PLACE = Ledger._fields.index("num_tokens")
P_PLACE = Ledger._fields.index("num_output_placeholders")
D_PLACE = Ledger._fields.index("num_draft_tokens")
S_PLACE = Ledger._fields.index("num_stale_tokens")
STATUS_PLACE = Ledger._fields.index("status")
W_PLACE = NUM_LEDGER + Ghosts._fields.index("num_settled_tokens")


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


def note(table: Table, kind: int, row: int, slot: int) -> None:
    """A finding, with the request's state before the record; slot -1 if there is none."""
    place = table.counts[NUM_FINDINGS]
    table.findings[place, 0] = kind
    table.findings[place, 1] = row
    for offset in range(2, FINDING_WIDTH):
        table.findings[place, offset] = 0
    if slot >= 0:
        table.findings[place, 2] = table.requests[slot, FLAGS]
        table.findings[place, 3] = table.requests[slot, LAST_CODE]
        for offset in range(NUM_COUNTS):
            table.findings[place, 4 + offset] = table.requests[slot, offset]
    table.counts[NUM_FINDINGS] = place + 1


def open_request(table: Table, lines: Any, row: int, is_tainted: bool) -> None:
    """A request arrives."""
    number = lines[REQUEST_NUMBER, row]
    place = place_of(table.keys, number)
    if table.keys[place] == number:
        slot = table.slots[place]
        note(table, KNOWN_REQUEST, row, slot)
        table.requests[slot, FLAGS] |= REPEATED
        return
    if table.counts[NUM_FREE] == 0:
        note(table, TOO_MANY, row, -1)
        return
    table.counts[NUM_FREE] -= 1
    slot = table.free[table.counts[NUM_FREE]]
    table.keys[place], table.slots[place] = number, slot
    for offset in range(TABLE_WIDTH):
        table.requests[slot, offset] = 0
    table.requests[slot, 0] = lines[PROMPT, row]
    table.requests[slot, N_PLACE] = lines[PROMPT, row]
    table.requests[slot, NUMBER] = number
    table.requests[slot, NEXT_INDEX] = 1
    table.requests[slot, LAST_CODE] = REQUEST
    if is_tainted:
        table.requests[slot, FLAGS] = TAINTED
    table.counts[NUM_LIVE] += 1
    table.counts[NUM_OPENED] += 1


def close_request(table: Table, slot: int) -> None:
    """A request has left and nothing of it is in flight: remember it for a while."""
    size = table.finished.shape[0]
    place = table.counts[RING_PLACE] % size
    former = table.finished[place]
    if former >= 0:
        key = place_of(table.keys, table.requests[former, NUMBER])
        table.keys[key] = REMOVED
        table.free[table.counts[NUM_FREE]] = former
        table.counts[NUM_FREE] += 1
        table.counts[NUM_REMOVED] += 1
        table.counts[NUM_LIVE] -= 1
    table.finished[place] = slot
    table.counts[RING_PLACE] += 1
    table.requests[slot, LAST_CODE] = -table.requests[slot, LAST_CODE] - 1  # remembered once only


def follow_unjudged(table: Table, lines: Any, row: int, slot: int) -> None:
    """Of a request that is not judged: when does it leave the table? From sizes alone."""
    code = lines[CODE, row]
    requests = table.requests
    if requests[slot, LAST_CODE] < 0:
        return
    if code == _SCHEDULE:
        requests[slot, F_PLACE] += lines[NUM_NEW_TOKENS, row]
    elif code in (_OUTPUT, _CHUNK_OUTPUT, _STALE_OUTPUT):
        requests[slot, F_PLACE] -= lines[NUM_RETURNED, row]
    elif code in (_FINISH, _ABORT):
        requests[slot, STATUS_PLACE] = FINISHED
    lost = requests[slot, FLAGS] & LOST
    if requests[slot, STATUS_PLACE] == FINISHED and (requests[slot, F_PLACE] <= 0 or lost):
        close_request(table, slot)


def told_mask(lines: Any, row: int) -> int:
    """Which counters came with the event, a bit each."""
    mask = 0
    for offset in range(NUM_COUNTERS):
        if lines[FIRST_COUNTER + offset, row] != ABSENT:
            mask |= 1 << offset
    return mask


def differs(told: int, expected: int) -> bool:
    """Whether the engine tells another number."""
    return told != ABSENT and told != expected


def agrees(requests: Any, slot: int, lines: Any, row: int) -> bool:
    """Whether what the engine tells are the accounting's numbers."""
    return not (
        differs(lines[FIRST_COUNTER, row], requests[slot, N_PLACE])
        or differs(lines[FIRST_COUNTER + 1, row], requests[slot, C_PLACE])
        or differs(lines[FIRST_COUNTER + 2, row], requests[slot, P_PLACE])
        or differs(lines[FIRST_COUNTER + 3, row], requests[slot, D_PLACE])
        or differs(lines[FIRST_COUNTER + 4, row], requests[slot, F_PLACE])
        or differs(lines[FIRST_COUNTER + 5, row], requests[slot, S_PLACE])
        or differs(lines[FIRST_COUNTER + 6, row], requests[slot, R_PLACE])
        or differs(lines[STATUS_LINE, row], requests[slot, STATUS_PLACE])
    )


def exit_agrees(rules: Rules, requests: Any, slot: int, lines: Any, row: int, code: int) -> bool:
    """Whether the engine registered what the accounting did, and finds it again (T4, T13)."""
    expected = requests[slot, R_PLACE]
    if code == _PREEMPT:
        expected = requests[slot, X_PLACE]
    if lines[REGISTERED, row] != expected:
        return False
    if lines[LOOK_UP, row] == ABSENT or code == _PREEMPT:
        return True
    findable = min(expected, floor_to_block(requests[slot, N_PLACE] - 1, rules.block_size))
    return lines[LOOK_UP, row] >= findable  # type: ignore[no-any-return]


_control_admit = conditions.control("admit")
_control_schedule = conditions.control("schedule")
_control_draft = conditions.control("draft")
_control_chunk_output = conditions.control("chunk_output")
_control_output = conditions.control("output")
_control_preempt = conditions.control("preempt")
_control_stale_output = conditions.control("stale_output")
_control_end_turn = conditions.control("end_turn")
_control_fold = conditions.control("fold")
_control_finish = conditions.control("finish")
_control_abort = conditions.control("abort")
_facts_draft = conditions.queue_facts("draft")
_facts_chunk_output = conditions.queue_facts("chunk_output")
_facts_output = conditions.queue_facts("output")
_facts_stale_output = conditions.queue_facts("stale_output")
_ghosts_admit = conditions.ghosts_after("admit")
_ghosts_schedule = conditions.ghosts_after("schedule")
_ghosts_draft = conditions.ghosts_after("draft")
_ghosts_chunk_output = conditions.ghosts_after("chunk_output")
_ghosts_output = conditions.ghosts_after("output")
_ghosts_preempt = conditions.ghosts_after("preempt")
_ghosts_stale_output = conditions.ghosts_after("stale_output")
_ghosts_end_turn = conditions.ghosts_after("end_turn")
_ghosts_fold = conditions.ghosts_after("fold")
_ghosts_finish = conditions.ghosts_after("finish")
_ghosts_abort = conditions.ghosts_after("abort")
_admit, _schedule = plain(accounting.admit), plain(accounting.schedule)
_draft, _chunk_output = plain(accounting.draft), plain(accounting.chunk_output)
_output, _preempt = plain(accounting.output), plain(accounting.preempt)
_stale_output, _end_turn = plain(accounting.stale_output), plain(accounting.end_turn)
_fold, _finish, _abort = plain(accounting.fold), plain(accounting.finish), plain(accounting.abort)


def advance(rules: Rules, requests: Any, slot: int, lines: Any, row: int) -> bool:
    """The row's event happens to the slot's request, if its guard allows it; says whether it does."""
    code = lines[CODE, row]
    ledger, ghosts = load_ledger(requests, slot), load_ghosts(requests, slot)
    state = State(ledger, ghosts)
    if code == _SCHEDULE:
        dispatch = Schedule(lines[NUM_NEW_TOKENS, row])
        if not _control_schedule(state, rules, dispatch):
            return False
        store_state(
            requests,
            slot,
            _schedule(ledger, rules, dispatch.num_new_tokens),
            _ghosts_schedule(state, rules, dispatch),
        )
    elif code == _OUTPUT:
        returned = Output(
            lines[NUM_RETURNED, row],
            lines[NUM_DRAFTS, row],
            lines[NUM_ACCEPTED, row],
            lines[NUM_KEPT, row],
            lines[STOPPED, row],
        )
        if not (_control_output(state, rules, returned) and _facts_output(state, rules, returned)):
            return False
        store_state(
            requests,
            slot,
            _output(
                ledger,
                rules,
                returned.num_returned,
                returned.num_drafts,
                returned.num_accepted,
                returned.num_kept,
                returned.stopped,
            ),
            _ghosts_output(state, rules, returned),
        )
    elif code == _DRAFT:
        proposed = Draft(lines[NUM_DRAFTS, row])
        if not (_control_draft(state, rules, proposed) and _facts_draft(state, rules, proposed)):
            return False
        store_state(
            requests,
            slot,
            _draft(ledger, rules, proposed.num_drafts),
            _ghosts_draft(state, rules, proposed),
        )
    elif code == _CHUNK_OUTPUT:
        chunk = ChunkOutput(lines[NUM_RETURNED, row])
        if not (_control_chunk_output(state, rules, chunk) and _facts_chunk_output(state, rules, chunk)):
            return False
        store_state(
            requests,
            slot,
            _chunk_output(ledger, rules, chunk.num_returned),
            _ghosts_chunk_output(state, rules, chunk),
        )
    elif code == _ADMIT:
        start = Admit(lines[NUM_HIT_TOKENS, row])
        if not _control_admit(state, rules, start):
            return False
        store_state(
            requests, slot, _admit(ledger, rules, start.num_hit_tokens), _ghosts_admit(state, rules, start)
        )
    elif code == _PREEMPT:
        preemption = Preempt(lines[DROP, row] != 0)
        if not _control_preempt(state, rules, preemption):
            return False
        store_state(
            requests,
            slot,
            _preempt(ledger, rules, preemption.drop),
            _ghosts_preempt(state, rules, preemption),
        )
    elif code == _STALE_OUTPUT:
        late = StaleOutput(lines[NUM_RETURNED, row], lines[NUM_KEPT, row], lines[STOPPED, row])
        if not (_control_stale_output(state, rules, late) and _facts_stale_output(state, rules, late)):
            return False
        store_state(
            requests,
            slot,
            _stale_output(ledger, rules, late.num_returned, late.num_kept, late.stopped),
            _ghosts_stale_output(state, rules, late),
        )
    elif code == _FOLD:
        folded = Fold(lines[NUM_CHUNK, row])
        if not _control_fold(state, rules, folded):
            return False
        store_state(
            requests, slot, _fold(ledger, rules, folded.num_chunk_tokens), _ghosts_fold(state, rules, folded)
        )
    elif code == _END_TURN:
        if not _control_end_turn(state, rules, None):
            return False
        store_state(requests, slot, _end_turn(ledger, rules), _ghosts_end_turn(state, rules, None))
    elif code == _FINISH:
        if not _control_finish(state, rules, None):
            return False
        store_state(requests, slot, _finish(ledger, rules), _ghosts_finish(state, rules, None))
    else:
        if not _control_abort(state, rules, None):
            return False
        store_state(requests, slot, _abort(ledger, rules), _ghosts_abort(state, rules, None))
    return True


def judge(rules: Rules, table: Table, lines: Any, row: int, slot: int) -> None:
    """The next record of a request that is judged."""
    requests, code = table.requests, lines[CODE, row]
    if code == EXIT:
        last = requests[slot, LAST_CODE]
        last = -last - 1 if last < 0 else last
        has_left = last in (_FINISH, _ABORT, _PREEMPT, _END_TURN)
        if not has_left and requests[slot, STATUS_PLACE] != FINISHED:
            note(table, MALFORMED, row, slot)
            return
        if not exit_agrees(rules, requests, slot, lines, row, last):
            note(table, EXIT_DIFFERS, row, slot)
            requests[slot, FLAGS] |= VIOLATED
        table.told[EXIT, 1 if lines[LOOK_UP, row] != ABSENT else 0] += 1
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
