"""What must not change from one call to the next? Rules of the pool that one state alone cannot show.

What published blocks hold stays (P3); nobody's blocks are withdrawn unless a step failed, and then what its
dispatch had published cannot be found (P6); what a request gives back can be found (T4); and free blocks are
in the order in which they are to be evicted (P7).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from draftproof.impl.ledger_table import (
    NUM_FIELDS,
    NUM_REGISTERED_AT_PREEMPTION,
    NUM_REGISTERED_TOKENS,
    STATUS,
)
from draftproof.impl.pool import published
from draftproof.impl.scheduler import problems, sweep
from draftproof.impl.scheduler.batch import NUM_PUBLISHED
from draftproof.impl.scheduler.config import RECURRENT
from draftproof.impl.scheduler.free_order import order_problem
from draftproof.impl.scheduler.layout import NUM_SETTLED, State
from draftproof.impl.scheduler.ownership import Owner, Ownership
from draftproof.impl.scheduler.problems import BY_NUMBER, Problem
from draftproof.impl.scheduler.queue_sweep import FINE
from draftproof.impl.scheduler.snapshot import published_blocks, rewritten_blocks
from draftproof.spec.ghosts import Ghosts
from draftproof.spec.ledger import PREEMPTED

if TYPE_CHECKING:
    from draftproof.impl.scheduler.scheduler import Scheduler

SETTLED_LINE = NUM_FIELDS + Ghosts._fields.index("num_settled_tokens")


class Call(NamedTuple):
    """A call that is over."""

    name: str
    scheduler: Scheduler
    state: State
    """As it is now, to be interpreted."""
    before: State
    ownership: Ownership
    rows: list[int]
    """Those that the call has touched."""

    @property
    def now(self) -> State:
        """As it is now, as arrays."""
        return self.scheduler.state


def problem_between(call: Call) -> Problem | None:
    """The first rule that is broken."""
    return (
        given_back(call)
        or rewritten(call)
        or withdrawn(call)
        or still_findable(call)
        or order_problem(call.now, call.before, call.ownership, call.name == "reset_prefix_cache")
    )


def was_kept(call: Call, block: int) -> bool:
    """Whether nobody can have taken the block during the call: an owner kept it, or it was free all along."""
    owners, before = call.ownership.owners[block], call.ownership.before(block)
    return bool(before & owners) or not (before or owners)


def rewritten(call: Call) -> Problem | None:
    """Published blocks hold what they held."""
    changed = (
        rewritten_blocks(call.now, call.before) & published_blocks(call.now) & published_blocks(call.before)
    )
    for block in np.flatnonzero(changed).tolist():
        if was_kept(call, block):
            return Problem(problems.CONTENT_CHANGED, -1, block)
    return None


def withdrawn(call: Call) -> Problem | None:
    """Blocks that somebody holds stay published."""
    if call.name in ("fail", "reset_prefix_cache"):
        return None
    gone = published_blocks(call.before) & ~published_blocks(call.now) & (call.before.pool.ref_count != 0)
    for block in np.flatnonzero(gone).tolist():
        if was_kept(call, block):
            return Problem(problems.WITHDRAWN, -1, block)
    return None


def still_findable(call: Call) -> Problem | None:
    """What was published when a failed step was dispatched is found no more, unless steps that have returned
    had computed all of it: a block is published once its last token is known."""
    if call.name != "fail":
        return None
    first, last = int(call.before.counts[NUM_SETTLED]), int(call.now.counts[NUM_SETTLED])
    for step in range(first, last):
        batch = call.scheduler.batch_of(step)
        count = int(batch.counts[NUM_PUBLISHED])
        all_blocks = range(1, call.scheduler.settings.num_blocks + 1)
        # More than there was room to note: then everything was withdrawn.
        for block in all_blocks if count > batch.published.size else batch.published[:count].tolist():
            if published(call.now.pool, block) and not was_settled(call, block, first):
                return Problem(problems.FAILED_STEP, -1, block)
    return None


def was_settled(call: Call, block: int, failed: int) -> bool:
    """Whether one of those who held the block had settled it, in a life that began before the failed step."""
    settled, started_at = call.before.requests.ledgers[SETTLED_LINE], call.now.requests.started_at
    return any(
        settled[row] >= (index + 1) * call.state.groups.block_size[group] and started_at[row] < failed
        for row, group, index in call.ownership.before(block)
    )


def given_back(call: Call) -> Problem | None:
    """What a row newly counts as registered, and gave back in the same call, can be found."""
    ledgers, before, settings = call.state.requests.ledgers, call.before, call.scheduler.settings
    preempted = [row for row in call.rows if ledgers[STATUS, row] == PREEMPTED]
    num_preempted = sum(before.requests.ledgers[STATUS, row] != PREEMPTED for row in preempted)
    # Of two rows preempted in one step, the second may have taken what the first gave back.
    if settings.caching == 0 or call.name == "reset_prefix_cache" or num_preempted > 1:
        return None
    for row in call.rows:
        line = NUM_REGISTERED_AT_PREEMPTION if ledgers[STATUS, row] == PREEMPTED else NUM_REGISTERED_TOKENS
        for group in range(settings.num_groups):
            if call.state.groups.kind[group] == RECURRENT:
                continue
            size = call.state.groups.block_size[group]
            first = int(before.requests.ledgers[NUM_REGISTERED_TOKENS, row]) // size
            for index in range(first, ledgers[line, row] // size):
                problem = lost(call, Owner(row, group, index))
                if problem is not None:
                    return problem
    return None


def lost(call: Call, owner: Owner) -> Problem | None:
    """Whether a block that the row gave back cannot be found, although nobody had to take it: if it was
    published, blocks of the row that were not went first."""
    row, group, index = owner
    block, pool = call.state.tables.block_ids[group, row, index], call.state.pool
    if block == 0 or owner not in call.ownership.before(block) or owner in call.ownership.owners[block]:
        return None
    number = sweep.written_problem(call.state, row, group, index)
    if published(pool, block) and number == FINE:
        return None
    if call.ownership.owners[block]:  # taken, published or not
        left = any(
            pool.ref_count[other] == 0 and not published(pool, other)
            for other in call.ownership.changed()
            if {one.row for one in call.ownership.before(other)} == {row}
        )
        return Problem(problems.LOST, row, block) if left else None
    return Problem(BY_NUMBER[number] if published(pool, block) else problems.LOST, row, block)
