"""Is a scheduler in order? Every check there is, and what is wrong in words.

```python
from draftproof.impl import assert_accounting

assert_accounting(scheduler)  # in a test
```

Works on compiled and interpreted schedulers, between any two calls; nothing is changed. Debug mode and the
middle mode (`draftproof.impl.scheduler.debug`) call it by themselves.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from draftproof.impl.ledger_table import STATUS
from draftproof.impl.scheduler import problems, sweep
from draftproof.impl.scheduler.counter_checks import counter_problem, state_of
from draftproof.impl.scheduler.layout import NUM_IDLE, State, interpreted
from draftproof.impl.scheduler.ownership import Owner, num_copy_ends
from draftproof.impl.scheduler.problems import Problem
from draftproof.impl.scheduler.queue_sweep import FINE
from draftproof.impl.scheduler.scheduler import Scheduler
from draftproof.spec.ledger import FINISHED, STATUS_NAMES, SYMBOLS, Ledger


class AccountingError(AssertionError):
    """A scheduler's state, or a transition of it, is wrong: what, where, and the counters."""

    def __init__(self, sentence: str, check: str, request_id: str = "", trace: str = "") -> None:
        super().__init__(sentence)
        self.check = check
        """The name of the check, effect or invariant that failed, the first of several."""
        self.request_id = request_id
        """Empty where no request is concerned."""
        self.trace = trace
        """The file with the trace; empty if none was written."""


class Scratch(NamedTuple):
    """Memory that a sweep works in."""

    num_owners: Any
    holders: Any
    places: Any
    window: Any


def assert_accounting(scheduler: Scheduler) -> None:
    """Check everything. Raises AccountingError for the first thing found; it names the request, the block and
    its owners."""
    problem = find_problem(scheduler)
    if problem is not None:
        sentence = describe(scheduler, problem)
        raise AccountingError(sentence, problem.check.name, request_of(scheduler, problem))


def find_problem(scheduler: Scheduler) -> Problem | None:
    """The first check that fails, of all there are."""
    number, row, block = swept(scheduler)
    if number != FINE:
        return Problem(problems.BY_NUMBER[number], row, block)
    return counter_problem(scheduler) or ids_problem(scheduler)


def new_scratch(scheduler: Scheduler) -> Scratch:
    """Memory for a sweep of this scheduler."""
    settings = scheduler.settings
    sizes = (settings.num_blocks + 1, settings.num_rows, settings.pool_block_size)
    return Scratch(num_copy_ends(scheduler), *[np.zeros(size, np.int64) for size in sizes])


def swept(scheduler: Scheduler) -> tuple[int, int, int]:
    """The sweep, run as the scheduler itself is."""
    scratch = new_scratch(scheduler)
    if scheduler.is_compiled:
        from draftproof.impl.scheduler.compiled_sweep import compiled_sweep  # loads the compiler

        return compiled_sweep(scheduler.state.recurrent is not None)(*scheduler.memory, *scratch)  # type: ignore[no-any-return]
    return sweep.sweep(interpreted(scheduler.state), *interpreted(scratch))


def ids_problem(scheduler: Scheduler) -> Problem | None:
    """Whether the known ids are exactly those of the rows in use, and chunks wait for sessions only."""
    state, rows = scheduler.state, scheduler.rows
    in_use = state.requests.ledgers[STATUS, : scheduler.settings.num_rows] != FINISHED
    in_use[state.queues.idle[: state.counts[NUM_IDLE]]] = False
    for request_id, row in rows.items():
        if not 0 <= row < in_use.size or scheduler.request_ids[row] != request_id or not in_use[row]:
            return Problem(problems.REQUEST_IDS, row)
    known = set(rows.values())
    for row in np.flatnonzero(in_use).tolist():
        if row not in known:
            return Problem(problems.REQUEST_IDS, row)
    for row in scheduler.rows_with_chunks():
        if row not in known or state.requests.resumable[row] == 0:
            return Problem(problems.WAITING_CHUNKS, row)
    return None


def owners_of(state: State, block: int) -> list[Owner]:
    """Who holds a block, as the tables have it."""
    found = []
    for group, row in np.argwhere((state.tables.block_ids == block).any(axis=2)).tolist():
        held = state.tables.block_ids[group, row, : max(state.tables.num_blocks[group, row], 0)]
        found += [Owner(row, group, index) for index in np.flatnonzero(held == block).tolist()]
    return found


def request_of(scheduler: Scheduler, problem: Problem) -> str:
    """The id of the request that a problem concerns: its row's, or that of the block's first owner."""
    row = row_of(scheduler, problem)
    return scheduler.request_ids[row] if row >= 0 else ""


def row_of(scheduler: Scheduler, problem: Problem) -> int:
    """The row that a problem concerns, or the block's first owner; -1 for none."""
    if problem.row >= 0 or problem.block <= 0:
        return problem.row
    owners = owners_of(scheduler.state, problem.block)
    return owners[0].row if owners else -1


def describe(scheduler: Scheduler, problem: Problem) -> str:
    """`reference_count (P2): the reference count is not the number of owners: block 7 ...`."""
    check = problem.check
    parts = [f"{check.name} ({check.theorem}): {check.sentence}"]
    if problem.row >= 0:
        parts.append(describe_row(scheduler, problem.row))
    if problem.block > 0:
        parts.append(describe_block(scheduler, problem.block))
    return "; ".join(parts)


def name_of(scheduler: Scheduler, row: int) -> str:
    """`request 'a' (row 3)`."""
    request_id = scheduler.request_ids[row] if 0 <= row < len(scheduler.request_ids) else ""
    return f"request {request_id!r} (row {row})" if request_id else f"row {row}"


def name_of_owner(scheduler: Scheduler, owner: Owner) -> str:
    """`request 'a' (row 3) as block 4 of group 0`."""
    return f"{name_of(scheduler, owner.row)} as block {owner.place} of group {owner.group}"


def format_ledger(ledger: Ledger) -> str:
    """`N 46, C 49, ...`, the status by name."""
    pairs = [(symbol, getattr(ledger, field)) for field, symbol in SYMBOLS.items()]
    words = {"status": dict(enumerate(STATUS_NAMES))}
    return ", ".join(f"{symbol} {words.get(symbol, {}).get(value, value)}" for symbol, value in pairs)


def describe_row(scheduler: Scheduler, row: int) -> str:
    """The request and its counters."""
    ledger = state_of(scheduler.state.requests.ledgers, row).ledger
    return f"{name_of(scheduler, row)} has {format_ledger(ledger)}"


def describe_block(scheduler: Scheduler, block: int) -> str:
    """The block, how often it is referenced, and every owner by name."""
    pool = scheduler.state.pool
    if not 0 <= block < pool.ref_count.shape[0]:
        return f"block {block} does not exist"
    owners = [name_of_owner(scheduler, owner) for owner in owners_of(scheduler.state, block)]
    owners += ["a copy in flight"] * int(num_copy_ends(scheduler)[block])
    published = "published" if pool.next_in_chain[block] != 0 else "not published"
    return (
        f"block {block} is {published} with {pool.ref_count[block]} references and {len(owners)} owners"
        f"{': ' + ', '.join(owners) if owners else ''}"
    )
