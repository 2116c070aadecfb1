"""Do the counters say what is in flight, and do the invariants hold? All rows at once, as columns.

Which steps are in flight is known from their batches, so what a row awaits can be computed without asking its
ledger: these are the specification's ghosts. With them the specification's own invariants are evaluated on
the columns of the ledger table; nothing is stated here a second time. In debug mode the table holds the
ghosts that the transitions tracked, too, and both must agree.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

import draftproof.impl.carrier_numpy  # noqa: F401 - the algebra on columns
from draftproof.impl import ledger_table
from draftproof.impl.contracts import DEBUG
from draftproof.impl.ledger_table import NUM_FIELDS
from draftproof.impl.scheduler import problems
from draftproof.impl.scheduler.batch import STEP_MASK
from draftproof.impl.scheduler.layout import NUM_DISPATCHED, NUM_IDLE, NUM_SETTLED
from draftproof.impl.scheduler.problems import Problem
from draftproof.spec.algebra import minimum
from draftproof.spec.decision_inputs import Metrics
from draftproof.spec.ghosts import Ghosts, State
from draftproof.spec.invariants import invariants, num_live_in_flight
from draftproof.spec.ledger import FINISHED, RUNNING, Ledger, Rules

if TYPE_CHECKING:
    from draftproof.impl.scheduler.scheduler import Scheduler


class InFlight(NamedTuple):
    """What the steps in flight hold of each row: int64[rows], tokens unless said."""

    num_tokens: Any
    num_awaited_outputs: Any
    """Live steps that sample."""
    num_awaited_samples: Any
    num_prefill: Any
    completes_prompt: Any
    num_cut_steps: Any
    """Steps inside which the row's stale tokens end."""


def counter_problem(scheduler: Scheduler) -> Problem | None:
    """The first check of counters that fails; the queues must be in order."""
    problem = batches_problem(scheduler)
    if problem is not None:
        return problem
    state = scheduler.state
    num_rows = scheduler.settings.num_rows
    lines = state.requests.ledgers[:, :num_rows]
    ledger = ledger_of(lines)
    live = np.ones(num_rows, np.bool_)
    live[state.queues.idle[: state.counts[NUM_IDLE]]] = False
    flight = in_flight(scheduler, ledger)
    ghosts = ghosts_of(lines) if tracks_ghosts(scheduler) else derived_ghosts(ledger, flight)
    checks = (*flight_checks(scheduler, ledger, flight, ghosts), *record_checks(scheduler, ledger))
    for check, wrong in checks:
        found = first_row(live & wrong)
        if found >= 0:
            return Problem(check, found)
    asked = live if tracks_ghosts(scheduler) else live & (ledger.status != FINISHED)
    return invariant_problem(State(ledger, ghosts), rules_of(scheduler), asked)


def rules_of(scheduler: Scheduler) -> Rules:
    """The rules, as Python numbers."""
    config = scheduler.config
    return Rules(
        num_speculative_tokens=config.num_speculative_tokens,
        block_size=config.rules_block_size,
        asynchronous=config.asynchronous,
        registration_fence=config.registration_fence,
    )


def tracks_ghosts(scheduler: Scheduler) -> bool:
    """Whether the ledger table holds the ghosts: in debug mode, which interprets."""
    return DEBUG and not scheduler.is_compiled


def first_row(wrong: Any) -> int:
    """The first row for which it holds; -1 if there is none."""
    return int(wrong.argmax()) if wrong.any() else -1


def ledger_of(lines: Any) -> Ledger:
    """The ledger table as one ledger of columns."""
    fields = list(lines[:NUM_FIELDS])
    fields[ledger_table.DROP_STALE] = fields[ledger_table.DROP_STALE] != 0
    return Ledger(*fields)


def ghosts_of(lines: Any) -> Ghosts:
    """The ghosts in the table, as columns."""
    return Ghosts(*lines[NUM_FIELDS : NUM_FIELDS + len(Ghosts._fields)])


def state_of(lines: Any, row: int) -> State:
    """One row's counters and ghosts, as Python numbers. Only debug mode fills the ghosts."""
    values = lines[:, row].tolist()
    values[ledger_table.DROP_STALE] = values[ledger_table.DROP_STALE] != 0
    return State(Ledger(*values[:NUM_FIELDS]), ghosts_of(values))


def batches_in_flight(scheduler: Scheduler) -> list[Any]:
    """The batches of the steps in flight, the oldest first; no more than may be, whatever is counted."""
    first, last = (int(scheduler.state.counts[index]) for index in (NUM_SETTLED, NUM_DISPATCHED))
    steps = range(first, min(last, first + scheduler.config.max_in_flight_steps))
    return [scheduler.batch_of(step) for step in steps]


def batches_problem(scheduler: Scheduler) -> Problem | None:
    """Whether as many steps are in flight as may be, each with its batch and every row once."""
    if not 0 <= scheduler.num_in_flight_steps() <= scheduler.config.max_in_flight_steps:
        return Problem(problems.STEPS_IN_FLIGHT)
    settled = int(scheduler.state.counts[NUM_SETTLED])
    for place, batch in enumerate(batches_in_flight(scheduler)):
        if (
            batch.step != (settled + place) & STEP_MASK
            or not 0 < batch.num_requests <= scheduler.config.max_num_seqs
        ):
            return Problem(problems.STEP_OF_BATCH)
        rows = batch.rows[: batch.num_requests]
        if rows.min() < 0 or rows.max() >= scheduler.settings.num_rows or np.unique(rows).size != rows.size:
            return Problem(problems.ROWS_OF_BATCH)
    return None


def in_flight(scheduler: Scheduler, ledger: Ledger) -> InFlight:
    """What each row has in flight. A row's stale steps are its oldest ones: S tokens of them."""
    stale: Any = ledger.num_stale_tokens
    num_rows = stale.shape[0]
    columns: list[Any] = [np.zeros(num_rows, np.int64) for _ in InFlight._fields]
    found = InFlight(*columns)
    for batch in batches_in_flight(scheduler):
        count = batch.num_requests
        rows, num_tokens = batch.rows[:count], batch.num_scheduled_tokens[:count].astype(np.int64)
        samples, width = batch.samples[:count] != 0, 1 + batch.num_draft_tokens[:count].astype(np.int64)
        before = found.num_tokens[rows]
        is_live = before >= stale[rows]
        found.num_tokens[rows] += num_tokens
        found.num_cut_steps[rows] += ~is_live & (before + num_tokens > stale[rows])
        # A step that samples is the end of a prefill if it is longer than its sample and drafts.
        is_prefill = is_live & (~samples | (num_tokens > width))
        found.num_awaited_outputs[rows] += is_live & samples
        found.num_awaited_samples[rows] += np.where(is_live & samples, width, 0)
        found.num_prefill[rows] += np.where(is_prefill, num_tokens, 0)
        found.completes_prompt[rows] += is_prefill & samples
    return found


def derived_ghosts(ledger: Ledger, flight: InFlight) -> Ghosts:
    """The ghosts as the steps in flight have it. What is valid and settled is read off the invariants that
    say so, which therefore hold; the others do not follow from them."""
    trimmed = minimum(ledger.num_trimmed_tokens, 1)
    known_or_computed: Any = np.where(
        flight.num_awaited_samples > 0, ledger.num_tokens, ledger.num_computed_tokens + trimmed
    )
    return Ghosts(
        num_awaited_samples=flight.num_awaited_samples,
        num_prefill_in_flight=flight.num_prefill,
        completes_prompt=flight.completes_prompt,
        num_valid_tokens=known_or_computed,
        num_settled_tokens=ledger.num_computed_tokens - num_live_in_flight(ledger) + trimmed,
    )


def flight_checks(scheduler: Scheduler, ledger: Ledger, flight: InFlight, ghosts: Ghosts) -> list[Any]:
    """The counters against the steps in flight: each check, and the rows for which it fails."""
    awaited = scheduler.state.requests.num_awaited_outputs[: scheduler.settings.num_rows]
    unfinished: Any = ledger.status != FINISHED
    others = (
        (ghosts.num_awaited_samples != flight.num_awaited_samples)
        | (ghosts.num_prefill_in_flight != flight.num_prefill)
        | (ghosts.completes_prompt != flight.completes_prompt)
    )
    return [
        (problems.IN_FLIGHT_TOKENS, ledger.num_in_flight_tokens != flight.num_tokens),
        (problems.STALE_TOKENS, (flight.num_cut_steps > 0) | (ledger.num_stale_tokens > flight.num_tokens)),
        (problems.AWAITED_OUTPUTS, awaited != flight.num_awaited_outputs),
        (problems.GHOSTS, unfinished & others),
    ]


def record_checks(scheduler: Scheduler, ledger: Ledger) -> list[Any]:
    """What else a row keeps: each check, and the rows for which it fails."""
    requests, num_rows = scheduler.state.requests, scheduler.settings.num_rows
    finished: Any = ledger.status == FINISHED
    running: Any = ledger.status == RUNNING
    invalid = requests.num_invalid_drafts[:num_rows]
    metrics = Metrics(*requests.metrics[:, :num_rows])
    not_left = (ledger.num_draft_tokens != 0) | (num_live_in_flight(ledger) != 0)
    too_many: Any = metrics.num_drafts_accepted > metrics.num_drafts_verified
    return [
        (problems.STOP_LEFT, (ledger.stop_pending != 0) | (ledger.num_trimmed_tokens != 0)),
        (problems.LENGTH_LIMIT, ledger.num_tokens > requests.max_num_tokens[:num_rows]),
        (problems.LEAVING, finished & not_left),
        (problems.INVALID_DRAFTS, running & (invalid > ledger.num_draft_tokens)),
        (problems.METRICS, too_many | (np.min(metrics, axis=0) < 0)),
    ]


def invariant_problem(state: State, rules: Rules, asked: Any) -> Problem | None:
    """The first of the specification's invariants that some row breaks."""
    for name, holds in invariants(state, rules).items():
        found = first_row(asked & np.logical_not(holds))
        if found >= 0:
            return Problem(problems.invariant(name), found)
    return None
