"""Who runs, who waits, which rows are unused?

The running rows are a list in the order in which they are served. The waiting rows are a ring around a
sentinel, next to be admitted first: first come first served with preempted rows in front, or by priority and
arrival. A live row is in exactly one place: running, waiting, or nowhere while a session is paused.
"""

from __future__ import annotations

from typing import Any

from draftproof.impl.ledger_table import NUM_COMPUTED_TOKENS
from draftproof.impl.pool import link, unlink
from draftproof.impl.scheduler.layout import NUM_IDLE, NUM_RUNNING, NUM_WAITING, Queues, Requests


def is_before(requests: Requests, first: int, second: int) -> bool:
    """Whether the first row is to be served before the second: lower priority value, then earlier arrival."""
    if requests.priority[first] != requests.priority[second]:
        return requests.priority[first] < requests.priority[second]  # type: ignore[no-any-return]
    return requests.arrival[first] < requests.arrival[second]  # type: ignore[no-any-return]


def enqueue(queues: Queues, counts: Any, requests: Requests, row: int, by_priority: int, first: bool) -> None:
    """Let a row wait: by priority; else behind all others, or in front of them (`first`: it was served
    before), but not before rows that hold blocks while they wait (sessions that go on)."""
    sentinel = queues.next_waiting.shape[0] - 1
    before = queues.previous_waiting[sentinel]
    if by_priority != 0:
        while before != sentinel and is_before(requests, row, before):
            before = queues.previous_waiting[before]
    elif first:
        before = sentinel
        following = queues.next_waiting[before]
        while following != sentinel and requests.ledgers[NUM_COMPUTED_TOKENS, following] > 0:
            before, following = following, queues.next_waiting[following]
    link(queues.previous_waiting, queues.next_waiting, before, row, True)
    counts[NUM_WAITING] += 1


def dequeue(queues: Queues, counts: Any, row: int) -> None:
    """Take a waiting row out of the ring."""
    unlink(queues.previous_waiting, queues.next_waiting, row, True)
    counts[NUM_WAITING] -= 1


def run(queues: Queues, counts: Any, row: int) -> None:
    """Append a row to the running ones."""
    queues.running[counts[NUM_RUNNING]] = row
    counts[NUM_RUNNING] += 1


def stop_running(queues: Queues, counts: Any, row: int) -> int:
    """Take a row out of the running ones, whose order stays; returns the place it had."""
    num_running = counts[NUM_RUNNING]
    place = 0
    while queues.running[place] != row:
        place += 1
    for index in range(place, num_running - 1):
        queues.running[index] = queues.running[index + 1]
    counts[NUM_RUNNING] = num_running - 1
    return place


def retire(queues: Queues, counts: Any, row: int) -> None:
    """The row is unused again."""
    queues.idle[counts[NUM_IDLE]] = row
    counts[NUM_IDLE] += 1


def unused_row(queues: Queues, counts: Any) -> int:
    """A row for a new request, the one that was last in use; -1 when there is none."""
    if counts[NUM_IDLE] == 0:
        return -1
    counts[NUM_IDLE] -= 1
    return queues.idle[counts[NUM_IDLE]]  # type: ignore[no-any-return]


def lowest(queues: Queues, counts: Any, requests: Requests) -> int:
    """The running row to be served last: the highest priority value, then the latest arrival."""
    last = queues.running[0]
    for index in range(1, counts[NUM_RUNNING]):
        if is_before(requests, last, queues.running[index]):
            last = queues.running[index]
    return last  # type: ignore[no-any-return]
