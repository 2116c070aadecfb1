"""How does a scheduler check itself? In debug mode after every call, in the middle mode every so many steps.

`DRAFTPROOF_DEBUG=1` interprets, with contracts on every transition; after each call the rows and blocks that
it touched are checked, and everything every 100 steps and when idle. `DRAFTPROOF_DEBUG=middle` compiles with
bounds checks, and checks everything every 256 steps and when idle: cheap enough for staging. `check_every`,
or `DRAFTPROOF_CHECK_EVERY` in the environment, sets another number of steps.

What is found is an AccountingError: the call, the step, the request, what does not hold, the counters before
and after, and a file with the request's last events (`violation`). The scheduler is not to be used after it.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator, Sequence
from typing import Any

from draftproof.impl.contracts import DEBUG, Breach, breach_of, format_changes
from draftproof.impl.journal import LostUpdate, ObservedTable
from draftproof.impl.scheduler import checks
from draftproof.impl.scheduler.batch import Batch
from draftproof.impl.scheduler.calls import InterpretedCalls
from draftproof.impl.scheduler.checks import AccountingError
from draftproof.impl.scheduler.config import SchedulerConfig
from draftproof.impl.scheduler.counter_checks import rules_of, state_of
from draftproof.impl.scheduler.errors import OutcomeError, RequestError, StepError
from draftproof.impl.scheduler.layout import NUM_DISPATCHED
from draftproof.impl.scheduler.ownership import held_blocks
from draftproof.impl.scheduler.problems import BOUNDS, LOST_UPDATE, REFUSED, Problem
from draftproof.impl.scheduler.scheduler import Scheduler
from draftproof.impl.scheduler.touched import Touched
from draftproof.impl.scheduler.violation import Violation, write_trace
from draftproof.spec.events import Event
from draftproof.spec.ghosts import State
from draftproof.spec.ledger import Ledger
from draftproof.spec.theorems import STEP_THEOREMS, THEOREMS

CHECK_EVERY = 100 if DEBUG else 256
"""Steps between two checks of everything."""


def check_interval(check_every: int | None) -> int:
    """Steps between two checks of everything: as asked, as the environment says, or the mode's own number."""
    chosen = os.environ.get("DRAFTPROOF_CHECK_EVERY") if check_every is None else check_every
    if chosen is None or chosen == "":
        return CHECK_EVERY
    if not str(chosen).isdecimal() or int(chosen) < 1:
        raise ValueError(f"check_every (DRAFTPROOF_CHECK_EVERY) must be an integer from 1, got {chosen!r}")
    return int(chosen)


class SelfCheckingScheduler(Scheduler):
    """A scheduler that checks itself after its calls. `Scheduler(...)` makes one where it is asked for."""

    def __init__(
        self,
        config: SchedulerConfig,
        *,
        compiled: bool = not DEBUG,
        num_kv_events: int = 0,
        check_every: int | None = None,
    ) -> None:
        if DEBUG and compiled:
            raise ValueError("with DRAFTPROOF_DEBUG=1 the scheduler is interpreted: leave compiled out")
        super().__init__(config, compiled=compiled, num_kv_events=num_kv_events)
        self.check_every = check_interval(check_every)
        self._num_unchecked_steps = 0
        self._in_call = False
        self._table: ObservedTable | None = None
        self._touched: Touched | None = None
        checks.find_problem(self)  # where the sweep is compiled, now and not in the midst of work
        if DEBUG and isinstance(self._calls, InterpretedCalls):
            requests = self._calls.state.requests
            self._table = ObservedTable(requests.ledgers, rules_of(self))
            observed = requests._replace(ledgers=self._table)
            self._calls.state = self._calls.state._replace(requests=observed)
            self._touched = Touched(self, self._table)

    def add(self, request_id: str, prompt_token_ids: Sequence[int] | Any, **options: Any) -> int:
        """See `Scheduler.add`."""
        with self._watching("add"):
            return super().add(request_id, prompt_token_ids, **options)

    def append_chunk(self, request_id: str, token_ids: Sequence[int] | Any, **limits: Any) -> None:
        """See `Scheduler.append_chunk`."""
        with self._watching("append_chunk"):
            super().append_chunk(request_id, token_ids, **limits)

    def close_session(self, request_id: str) -> None:
        """See `Scheduler.close_session`."""
        with self._watching("close_session"):
            super().close_session(request_id)

    def abort(self, request_id: str) -> None:
        """See `Scheduler.abort`."""
        with self._watching("abort"):
            super().abort(request_id)

    def schedule(self) -> Batch:
        """See `Scheduler.schedule`."""
        with self._watching("schedule"):
            return super().schedule()

    def settle(self, batch: Batch, sampled_token_ids: Any, num_sampled_tokens: Any) -> None:
        """See `Scheduler.settle`."""
        with self._watching("settle", batch):
            super().settle(batch, sampled_token_ids, num_sampled_tokens)
            self._num_unchecked_steps += 1

    def take_drafts(self, rows: Any, draft_token_ids: Any, num_draft_tokens: Any) -> None:
        """See `Scheduler.take_drafts`."""
        with self._watching("take_drafts"):
            super().take_drafts(rows, draft_token_ids, num_draft_tokens)

    def fail(self, batch: Batch) -> list[str]:
        """See `Scheduler.fail`."""
        with self._watching("fail", batch):
            self._num_unchecked_steps += 1
            return super().fail(batch)

    def num_cached_tokens(self, token_ids: Sequence[int] | Any, cache_salt: str = "") -> int:
        """See `Scheduler.num_cached_tokens`."""
        with self._watching("num_cached_tokens"):
            return super().num_cached_tokens(token_ids, cache_salt)

    def reset_prefix_cache(self, *, preempt_running: bool = False) -> bool:
        """See `Scheduler.reset_prefix_cache`."""
        with self._watching("reset_prefix_cache"):
            return super().reset_prefix_cache(preempt_running=preempt_running)

    @contextlib.contextmanager
    def _watching(self, call: str, batch: Batch | None = None) -> Iterator[None]:
        """What is checked around a call. A call within a call is part of it."""
        if self._in_call:
            yield
            return
        step = int(self._counts[NUM_DISPATCHED]) if batch is None else batch.step
        if self._table is not None:
            self._table.step = step
        self._in_call = True
        try:
            yield
            problem = self._problem_after(call)
        except (RequestError, StepError, OutcomeError):
            if self._touched is not None and self._touched.has_changed():
                raise self._violated(call, step, Problem(REFUSED)) from None
            raise
        except (AssertionError, IndexError) as error:
            raise self._broken(call, step, error) from error
        finally:
            self._in_call = False
        if problem is not None:
            raise self._violated(call, step, problem)

    def _problem_after(self, call: str) -> Problem | None:
        """What is wrong after a call: with what it touched, and with anything if it is time to look."""
        problem = None if self._touched is None else self._touched.problem_after(call)
        idle = not self.has_unfinished_requests() and self.num_in_flight_steps() == 0
        if problem is None and self._num_unchecked_steps >= (1 if idle else self.check_every):
            self._num_unchecked_steps = 0
            problem = checks.find_problem(self)
        return problem

    def _violated(self, call: str, step: int, problem: Problem) -> AccountingError:
        """The error for a check that failed after a call."""
        row = checks.row_of(self, problem)
        sentence = checks.describe(self, problem)
        if self._touched is not None and problem.block > 0:
            former = sorted(self._touched.ownership.before(problem.block))
            names = ", ".join(checks.name_of_owner(self, owner) for owner in former)
            sentence += f"; before this call it was held by {names or 'nobody'}"
            row = former[0].row if row < 0 and former else row
        if self._touched is not None and row >= 0:
            before, after = self._touched.state_before(row), self._state_of(row)
            if before != after:
                sentence += f"; this call changed {format_changes(before, after)}"
        return self._error(call, step, row, (problem.check.name, problem.check.theorem), sentence, ())

    def _broken(self, call: str, step: int, error: Exception) -> AccountingError:
        """The error for a contract that was broken within a call, for a lost update, or for an index outside
        its array."""
        breach = breach_of(error)
        if breach is not None:
            row = getattr(breach.before, "column", -1)
            theorems = broken_theorems(breach)
            names = ", ".join(f"{key} {THEOREMS[key].name!r}" for key in theorems)
            sentence = f"{error}{'; contradicts ' + names if names else ''}; before: "
            sentence += checks.format_ledger(Ledger(*breach.before))
            events = (*getattr(breach.before, "events", ()), breach.event)
            return self._error(call, step, row, (*breach.broken, *theorems), sentence, events)
        check = LOST_UPDATE if isinstance(error, LostUpdate) else BOUNDS
        if isinstance(error, AssertionError) and not isinstance(error, LostUpdate):
            raise error  # somebody else's
        row = error.column if isinstance(error, LostUpdate) else -1
        sentence = f"{check.name} ({check.theorem}): {check.sentence}: {error}"
        return self._error(call, step, row, (check.name, check.theorem), sentence, ())

    def _error(
        self, call: str, step: int, row: int, names: tuple[str, ...], sentence: str, failed: tuple[Event, ...]
    ) -> AccountingError:
        """The error, its trace written."""
        request_id = self.request_ids[row] if row >= 0 else ""
        where = f"in {call}, step {step}"
        if row >= 0:
            where += f", {checks.name_of(self, row)}"
        state = self._state_of(row) if row >= 0 else None
        block_ids = held_blocks(self.state, row) if row >= 0 else []
        violation = Violation(call, step, request_id, row, names, sentence, state, block_ids)
        journal = None if self._table is None else self._table.journals.get(row)
        try:
            path = str(write_trace(self.config, rules_of(self), violation, journal, failed))
        except OSError as problem:
            return AccountingError(f"{where}: {sentence}. No trace: {problem}", names[0], request_id)
        return AccountingError(f"{where}: {sentence}. Trace: {path}", names[0], request_id, path)

    def _state_of(self, row: int) -> State:
        """The row's counters now, and its ghosts where they are tracked."""
        return state_of(self.state.requests.ledgers, row)


def broken_theorems(breach: Breach) -> tuple[str, ...]:
    """Which theorems about one step the breach contradicts."""
    ghosts, ghosts_after = getattr(breach.before, "ghosts", None), breach.ghosts_after
    if breach.after is None or ghosts is None or ghosts_after is None:
        return ()
    name = breach.name
    states = State(Ledger(*breach.before), ghosts), State(breach.after, ghosts_after)
    found = [
        claim.theorem
        for claim in STEP_THEOREMS
        if name in claim.transitions and not claim.predicate(states[0], breach.rules, breach.event, states[1])
    ]
    return tuple(dict.fromkeys(found))
