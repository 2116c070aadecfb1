"""Where is a request while its trace is checked? In a line of a table, found by its number.

A line of the int64 table holds a request's ledger and ghosts, as the accounting and the specification lead
them, and how far its records have been read. Numbers are hashed to lines; the last requests that have left
are remembered for a while, for what is still said about them. `findings` collects what is to be explained.
The same source runs interpreted and compiled.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from draftproof.impl.traces.columns import PROMPT, REQUEST_NUMBER
from draftproof.impl.traces.format import COUNTERS, EVENT_NAMES, REQUEST
from draftproof.spec.ghosts import Ghosts
from draftproof.spec.ledger import Ledger

NUM_LEDGER = len(Ledger._fields)
NUM_GHOSTS = len(Ghosts._fields)
NUM_COUNTS = NUM_LEDGER + NUM_GHOSTS
C_PLACE = Ledger._fields.index("num_computed_tokens")
F_PLACE = Ledger._fields.index("num_in_flight_tokens")
R_PLACE = Ledger._fields.index("num_registered_tokens")
X_PLACE = Ledger._fields.index("num_registered_at_preemption")
N_PLACE = Ledger._fields.index("num_tokens")
P_PLACE = Ledger._fields.index("num_output_placeholders")
D_PLACE = Ledger._fields.index("num_draft_tokens")
S_PLACE = Ledger._fields.index("num_stale_tokens")
STATUS_PLACE = Ledger._fields.index("status")
"""Where a request's counters are in its line."""
NUMBER, NEXT_INDEX, FLAGS, LAST_CODE = range(NUM_COUNTS, NUM_COUNTS + 4)
"""What is kept of it besides. The last code is negative, -code - 1, once it is among the finished ones."""
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


def new_table(capacity: int, num_remembered: int, num_findings: int) -> Table:
    """An empty table with room for so many requests."""
    num_keys = 16
    while num_keys < 4 * capacity:
        num_keys *= 2
    counts = np.zeros(NUM_KERNEL_COUNTS, np.int64)
    counts[NUM_FREE] = capacity
    return Table(
        requests=np.zeros((capacity, TABLE_WIDTH), np.int64),
        keys=np.full(num_keys, EMPTY, np.int32),
        slots=np.zeros(num_keys, np.int32),
        free=np.arange(capacity, dtype=np.int32)[::-1].copy(),
        finished=np.full(num_remembered, -1, np.int32),
        counts=counts,
        told=np.zeros((len(EVENT_NAMES) + 2, 1 << len(COUNTERS)), np.int64),
        findings=np.zeros((num_findings, FINDING_WIDTH), np.int64),
    )


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
