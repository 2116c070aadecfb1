"""Is every row in exactly one queue, the one of its status? Plain loops, interpreted and compiled."""

from __future__ import annotations

from typing import Any

from draftproof.impl.ledger_table import NUM_COMPUTED_TOKENS, NUM_IN_FLIGHT_TOKENS, NUM_TOKENS, STATUS
from draftproof.impl.scheduler.layout import NUM_IDLE, NUM_RUNNING, NUM_WAITING, State
from draftproof.impl.scheduler.queues import is_before
from draftproof.spec.ledger import FINISHED, PAUSED, PREEMPTED, RUNNING, WAITING

(
    FINE,
    QUEUE_COUNT,
    QUEUE_ENTRY,
    TWO_QUEUES,
    IDLE_ROW_IN_USE,
    RUNNING_STATUS,
    WAITING_STATUS,
    WAITING_LINKS,
    WAITING_ORDER,
    NO_QUEUE,
) = range(10)
"""What can be found."""

NOWHERE, IDLE, QUEUE_OF_RUNNING, QUEUE_OF_WAITING = range(4)
"""Where a row is."""

Found = tuple[int, int, int]
"""Problem, row (or -1) and block (or -1)."""


def queues_problem(state: State, places: Any) -> Found:
    """Whether every row is in exactly one queue, the one of its status; notes where it is."""
    counts, queues, num_rows = state.counts, state.queues, state.settings.num_rows
    for row in range(num_rows):
        places[row] = NOWHERE
    for index in (NUM_IDLE, NUM_RUNNING, NUM_WAITING):
        if counts[index] < 0 or counts[index] > num_rows:
            return QUEUE_COUNT, -1, -1
    for index in range(counts[NUM_IDLE] + counts[NUM_RUNNING]):
        place, row = IDLE, 0
        if index < counts[NUM_IDLE]:
            row = queues.idle[index]
        else:
            place, row = QUEUE_OF_RUNNING, queues.running[index - counts[NUM_IDLE]]
        if row < 0 or row >= num_rows:
            return QUEUE_ENTRY, -1, -1
        if places[row] != NOWHERE:
            return TWO_QUEUES, row, -1
        places[row] = place
    found = waiting_problem(state, places)
    if found[0] != FINE:
        return found
    for row in range(num_rows):
        number = place_problem(state, row, places[row])
        if number != FINE:
            return number, row, -1
    return FINE, -1, -1


def waiting_problem(state: State, places: Any) -> Found:
    """Walk the ring of waiting rows once around."""
    queues, num_rows = state.queues, state.settings.num_rows
    met = 0
    previous = num_rows
    row = queues.next_waiting[num_rows]
    while row != num_rows:
        if row < 0 or row > num_rows:
            return QUEUE_ENTRY, -1, -1
        if places[row] != NOWHERE:
            return TWO_QUEUES, row, -1
        places[row] = QUEUE_OF_WAITING
        if queues.previous_waiting[row] != previous:
            return WAITING_LINKS, row, -1
        if previous != num_rows and not may_follow(state, previous, row):
            return WAITING_ORDER, row, -1
        met += 1
        previous = row
        row = queues.next_waiting[row]
    if queues.previous_waiting[num_rows] != previous:
        return WAITING_LINKS, -1, -1
    return (FINE if met == state.counts[NUM_WAITING] else QUEUE_COUNT), -1, -1


def may_follow(state: State, first: int, second: int) -> bool:
    """Whether the second row may wait right behind the first.

    By priority, then arrival. First come, first served: rows that hold blocks come before all that need some,
    preempted rows before those that never ran, and these in the order of their arrival.
    """
    requests = state.requests
    if state.settings.by_priority != 0:
        return not is_before(requests, second, first)
    if requests.ledgers[NUM_COMPUTED_TOKENS, second] > 0:
        return requests.ledgers[NUM_COMPUTED_TOKENS, first] > 0  # type: ignore[no-any-return]
    if requests.metrics[0, first] > 0:  # it has been admitted before
        return True
    if requests.metrics[0, second] > 0:
        return requests.ledgers[STATUS, second] != PREEMPTED  # type: ignore[no-any-return]
    return requests.arrival[first] < requests.arrival[second]  # type: ignore[no-any-return]


def place_problem(state: State, row: int, place: int) -> int:
    """Whether a row in this place has the status that belongs there."""
    ledgers = state.requests.ledgers
    status = ledgers[STATUS, row]
    if place == IDLE:
        in_use = ledgers[NUM_IN_FLIGHT_TOKENS, row] != 0 or (
            status != FINISHED and ledgers[NUM_TOKENS, row] != 0
        )
        for group in range(state.settings.num_groups):
            in_use = in_use or state.tables.num_blocks[group, row] != 0
        return IDLE_ROW_IN_USE if in_use else FINE
    if place == QUEUE_OF_RUNNING:
        return FINE if status == RUNNING else RUNNING_STATUS
    if place == QUEUE_OF_WAITING:
        return FINE if status in (WAITING, PREEMPTED) else WAITING_STATUS
    if status == FINISHED:  # it waits for its last step in flight
        return FINE if ledgers[NUM_IN_FLIGHT_TOKENS, row] > 0 else NO_QUEUE
    return FINE if status == PAUSED else NO_QUEUE
