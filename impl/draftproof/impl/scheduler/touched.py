"""Is what a call has touched in order? Debug mode asks after every call, for the price of what changed.

What was touched is not what the code says: copies of the arrays are compared with what is there now. Of every
row the queue and the counters are checked, all at once; of the touched rows what they hold, of the touched
blocks their owners, links and content. What must not change from one call to the next is in `between_calls`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from draftproof.impl.journal import ObservedTable
from draftproof.impl.ledger_table import NUM_FIELDS, NUM_PROMPT_TOKENS, NUM_REGISTERED_TOKENS, load_plain
from draftproof.impl.pool import sentinel
from draftproof.impl.scheduler import problems, snapshot, sweep
from draftproof.impl.scheduler.between_calls import Call, problem_between
from draftproof.impl.scheduler.checks import new_scratch
from draftproof.impl.scheduler.counter_checks import counter_problem, state_of
from draftproof.impl.scheduler.layout import interpreted
from draftproof.impl.scheduler.ownership import Owner, Ownership, num_copy_ends
from draftproof.impl.scheduler.problems import BY_NUMBER, Problem
from draftproof.impl.scheduler.queue_sweep import FINE, IDLE, queues_problem
from draftproof.spec.ghosts import Ghosts, State

if TYPE_CHECKING:
    from draftproof.impl.scheduler.scheduler import Scheduler


class Touched:
    """What was there after the last call, and what follows from it."""

    def __init__(self, scheduler: Scheduler, table: ObservedTable) -> None:
        self.scheduler = scheduler
        self.table = table
        settings = scheduler.settings
        self.state = interpreted(scheduler.state)
        self.before = snapshot.copy_of(scheduler.state)
        self.ownership = Ownership(settings.num_blocks)
        self._scratch = interpreted(new_scratch(scheduler))
        self._num_copy_ends = num_copy_ends(scheduler)
        self._stamp = 0
        self._num_verified = [0] * settings.num_rows
        """Of each row's digests, how many have been computed from its tokens."""

    def has_changed(self) -> bool:
        """Whether anything differs from what was there after the last call."""
        return snapshot.has_changed(self.scheduler.state, self.before)

    def state_before(self, row: int) -> State:
        """The row's counters and ghosts after the last call."""
        return state_of(self.before.requests.ledgers, row)

    def problem_after(self, call: str) -> Problem | None:
        """The first check that fails of what the call touched; if none does, all is remembered as it is."""
        problem = self._queues() or counter_problem(self.scheduler) or self._touched(call)
        if problem is None:
            self.before = snapshot.copy_of(self.scheduler.state)
        return problem

    def _queues(self) -> Problem | None:
        number, row, block = queues_problem(self.state, self._scratch.places)
        return None if number == FINE else Problem(BY_NUMBER[number], row, block)

    def _touched(self, call: str) -> Problem | None:
        now, before = self.scheduler.state, self.before
        rows = snapshot.changed_rows(now, before)
        self.ownership.begin()
        self._num_copy_ends = num_copy_ends(self.scheduler)
        for row in rows:
            problem = self._row(row)
            if problem is not None:
                return problem
        for block in sorted(self.ownership.changed().union(snapshot.changed_blocks(now, before))):
            problem = self._block(block)
            if problem is not None:
                return problem
        return problem_between(Call(call, self.scheduler, self.state, before, self.ownership, rows))

    # ---- one row ----

    def _row(self, row: int) -> Problem | None:
        """A touched row: its tables, its digests, and what it newly holds or has registered."""
        state = self.state
        self._stamp += 1
        number, _, block = sweep.holding_problem(state, row, self._scratch.holders, self._stamp)
        if number != FINE:
            return Problem(BY_NUMBER[number], row, block)
        renewed = self.ownership.update(self.scheduler.state, row)
        if not self._agrees(row):
            return Problem(problems.STRAY_WRITE, row)
        if self._scratch.places[row] == IDLE:
            self._num_verified[row] = 0
            return None
        number = sweep.hashed_problem(state, row) or self._digests(row) or sweep.capacity_problem(state, row)
        if number != FINE:
            return Problem(BY_NUMBER[number], row)
        return self._content(renewed + self._newly_registered(row))

    def _agrees(self, row: int) -> bool:
        """Whether the table holds what a transition stored there last."""
        journal = self.table.journals.get(row)
        ledger = load_plain(self.table.table, row)
        ghosts = tuple(self.table.table[NUM_FIELDS + line, row] for line in range(len(Ghosts._fields)))
        return journal.state == (ledger, ghosts) if journal is not None else ledger.num_tokens == 0

    def _digests(self, row: int) -> int:
        """Digests that were not computed anew before."""
        now, before = self.scheduler.state.requests, self.before.requests
        # Another request, or a chunk: its tokens may differ.
        if (
            before.arrival[row] != now.arrival[row]
            or before.ledgers[NUM_PROMPT_TOKENS, row] != now.ledgers[NUM_PROMPT_TOKENS, row]
        ):
            self._num_verified[row] = 0
        num_hashed = self.state.requests.num_hashed_blocks[row]
        start = min(self._num_verified[row], num_hashed)
        self._num_verified[row] = num_hashed
        return sweep.digest_problem(self.state, row, start, self._scratch.window)

    def _newly_registered(self, row: int) -> list[Owner]:
        """Entries of the row's tables that count as registered and did not before."""
        before = self.before.requests.ledgers[NUM_REGISTERED_TOKENS, row].item()
        now = self.state.requests.ledgers[NUM_REGISTERED_TOKENS, row]
        found = []
        for group in range(self.scheduler.settings.num_groups):
            size, held = self.state.groups.block_size[group], self.state.tables.num_blocks[group, row]
            found += [Owner(row, group, index) for index in range(before // size, min(now // size, held))]
        return found

    def _content(self, owners: list[Owner]) -> Problem | None:
        """Whether blocks hold what their owners know."""
        for row, group, index in owners:
            number = sweep.content_problem(self.state, row, group, index)
            if number != FINE:
                return Problem(BY_NUMBER[number], row, self.state.tables.block_ids[group, row, index])
        return None

    # ---- one block ----

    def _block(self, block: int) -> Problem | None:
        """A touched block: its count and links, and its content for each of its owners."""
        if block == 0:
            return None
        owners = self.ownership.owners[block]
        number = sweep.block_problem(self.state, block, len(owners) + self._num_copy_ends[block])[0]
        if number == FINE and not self._is_in_its_chain(block):
            number = sweep.POOL + sweep.CHAIN_LINKS
        return self._content(sorted(owners)) if number == FINE else Problem(BY_NUMBER[number], -1, block)

    def _is_in_its_chain(self, block: int) -> bool:
        """Whether the chain of its digest, walked once around, meets the block exactly if it is published."""
        pool = self.state.pool
        start = sentinel(pool, pool.digest_first[block])
        met = False
        previous, node = start, pool.next_in_chain[start]
        for _ in range(self.scheduler.settings.num_blocks + 1):
            if (
                node == start
                or not 0 < node < pool.ref_count.shape[0]
                or pool.previous_in_chain[node] != previous
            ):
                break
            met |= node == block
            previous, node = node, pool.next_in_chain[node]
        is_ring = node == start and pool.previous_in_chain[start] == previous
        return bool(is_ring and met == (pool.next_in_chain[block] != 0))
