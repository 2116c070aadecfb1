"""Do the engine's counters say what the proven core says? The events of each call are replayed and compared.

As long as they agree, every theorem about the core's ledger holds for the engine's: that is what was proved.
Where they part, `naming` says which theorem the engine's numbers break.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from draftproof.impl.attach.vllm import engine_view, naming
from draftproof.impl.attach.vllm.engine_view import View
from draftproof.impl.attach.vllm.ledgers import Ledgers
from draftproof.impl.attach.vllm.reports import Report, Violation
from draftproof.impl.attach.vllm.watched import Watched
from draftproof.impl.ledger_table import (
    NUM_COMPUTED_TOKENS,
    NUM_DRAFT_TOKENS,
    NUM_FIELDS,
    NUM_IN_FLIGHT_TOKENS,
    NUM_OUTPUT_PLACEHOLDERS,
    NUM_REGISTERED_TOKENS,
    NUM_STALE_TOKENS,
    NUM_TOKENS,
    STATUS,
)
from draftproof.spec.ghosts import State
from draftproof.spec.guards import num_schedulable
from draftproof.spec.ledger import PAUSED, PREEMPTED, RUNNING, STATUS_NAMES
from draftproof.spec.queue import Step, dispatched

LINES = np.array(
    [
        NUM_TOKENS,
        NUM_COMPUTED_TOKENS,
        NUM_OUTPUT_PLACEHOLDERS,
        NUM_IN_FLIGHT_TOKENS,
        NUM_STALE_TOKENS,
        NUM_DRAFT_TOKENS,
        STATUS,
    ]
)
"""In the order of `naming.COMPARED`."""
FINISHED_LINES = 5
"""Of a request that has left, only N, C, P, F and S are still what its last output made them."""
NUM_VALID_TOKENS = NUM_FIELDS + 3
Listener = Callable[[str, Sequence[Watched], Any], None]


class Accounts:
    """The reference ledgers of one scheduler's requests, and what is compared with them."""

    def __init__(self, view: View, report: Report, codes: dict[Any, int]) -> None:
        self.view, self.report, self.codes = view, report, codes
        self.ledgers = Ledgers(view.rules)
        self.step = 0
        self.listener: Listener | None = None
        """Told of every event: name, requests, event with its columns."""

    def begin(self) -> None:
        """A call of the engine begins."""
        self.ledgers.begin()

    def start(self, request: Any) -> Watched:
        """A request has arrived."""
        self.report.count("requests")
        num_prompt_tokens = max(1, int(request.num_prompt_tokens))
        return Watched(request, self.ledgers.start(num_prompt_tokens))

    def leave(self, watched: Watched) -> None:
        """A request is gone."""
        self.ledgers.release(watched.row)
        watched.row = -1

    def move(
        self, name: str, several: Sequence[Watched], *arguments: Any, before: State | None = None
    ) -> State | None:
        """The event comes to these requests; their states before, as columns."""
        if not several:
            return None
        rows = np.array([watched.row for watched in several])
        before = self.ledgers.move(name, rows, *arguments, before=before)
        self.report.count("events", len(several))
        if self.listener is not None:
            self.listener(name, several, self.ledgers.moves[-1].event)
        return before

    def state(self, watched: Watched) -> State:
        """A request's ledger and ghosts."""
        return self.ledgers.one(watched.row)

    def schedule(self, several: Sequence[Watched], num_new_tokens: Any) -> tuple[State, Step]:
        """A step takes these requests: their states before, and what was dispatched, as columns."""
        rows = np.array([watched.row for watched in several])
        before = self.ledgers.columns(rows)
        wanted = num_schedulable(before.ledger)
        if (num_new_tokens > wanted).any():
            for place in np.nonzero(num_new_tokens > wanted)[0].tolist():
                self._too_many(several[place], int(num_new_tokens[place]), int(np.asarray(wanted)[place]))
        found = self.move("schedule", several, num_new_tokens, before=before)
        assert found is not None
        event: Any = self.ledgers.moves[-1].event
        return found, dispatched(found, event)

    def _too_many(self, watched: Watched, number: int, wanted: int) -> None:
        if not watched.judged or not self.view.counts:
            return
        self.tell(
            watched,
            "accounting",
            ("T2",),
            ("at_most_wanted",),
            f"a step of {number} tokens was scheduled and {wanted} are known, drafted or awaited",
        )

    def forbid(self, watched: Watched) -> None:
        """Say so if the last event that came to a request may not come then."""
        happened = self.ledgers.happenings(watched.row)
        if not happened or not watched.judged:
            return
        wrong = naming.forbidden(happened[-1], self.view.rules)
        if wrong:
            self.tell(
                watched,
                "accounting",
                ("guard",),
                tuple(wrong),
                f"{naming.texts(happened[-1:])[0]} came when it may not: {', '.join(wrong)}",
            )

    def read(self, several: Sequence[Watched]) -> Any:
        """The engine's counters of these requests, one row each, in the order of `naming.COMPARED`."""
        codes, counters = self.codes, engine_view.counters
        return np.array([counters(watched.request, codes) for watched in several])

    def compare(self, several: Sequence[Watched], *, left: bool = False, found: Any = None) -> None:
        """Hold the engine's counters against the core's; `left`: these requests have left just now; `found`:
        the counters, if they have been read already."""
        if not several or not self.view.counts:
            return
        asked = [watched for watched in several if watched.judged]
        if found is None:
            found = self.read(asked)
        elif len(asked) < len(several):
            found = found[[watched.judged for watched in several]]
        if not asked:
            return
        rows = np.array([watched.row for watched in asked])
        expected = self.ledgers.table[LINES[:, None], rows].T
        different = found != expected
        if left:
            different[:, FINISHED_LINES:] = False
        if not different.any():
            return
        for place in np.nonzero(different.any(axis=1))[0].tolist():
            numbers = found[place].copy()
            numbers[~different[place]] = expected[place][~different[place]]
            self._differs(asked[place], numbers.tolist())

    def _differs(self, watched: Watched, numbers: list[int]) -> None:
        """The engine's counters are these, and must be others."""
        state = self.state(watched)
        told: dict[str, Any] = dict(zip(naming.COMPARED, numbers, strict=True))
        engine = state.ledger._replace(**told)
        happened = self.ledgers.happenings(watched.row)
        broken = naming.broken(happened, state, engine, self.view.rules)
        message = naming.differences(state.ledger, engine)
        only_drafts = engine._replace(num_draft_tokens=state.ledger.num_draft_tokens) == state.ledger
        if engine.status != state.ledger.status:
            message += f" (status {STATUS_NAMES[engine.status]}, must be {STATUS_NAMES[state.ledger.status]})"
        self.tell(watched, "accounting", broken.theorems, broken.rules, message, numbers)
        if only_drafts:
            # Drafts that should be gone: from here on with the engine's number, or it would hide the rest.
            self.ledgers.table[NUM_DRAFT_TOKENS, watched.row] = engine.num_draft_tokens
            watched.judged = True

    def compare_registered(self, scheduler: Any, several: Sequence[Watched]) -> None:
        """Nothing that is not valid, or that the drafter's fence keeps back, is published (T3, T12)."""
        asked = [watched for watched in several if watched.judged]
        if not asked or not self.view.caching:
            return
        size = self.view.rules.block_size
        blocks = engine_view.num_registered_blocks(scheduler, [watched.request_id for watched in asked])
        found = np.array(blocks) * size
        rows = np.array([watched.row for watched in asked])
        expected = self.ledgers.table[NUM_REGISTERED_TOKENS, rows]
        allowed = self.ledgers.table[NUM_VALID_TOKENS, rows] - self.view.rules.registration_fence
        for place in np.nonzero((found > expected) & (found > allowed))[0].tolist():
            self.tell(
                asked[place],
                "accounting",
                ("T3", "T12"),
                ("registered_is_valid",),
                f"{int(found[place])} tokens are published and {int(allowed[place])} may be",
            )

    def tell(
        self,
        watched: Watched,
        kind: str,
        theorems: tuple[str, ...],
        rules: tuple[str, ...],
        message: str,
        numbers: Sequence[int] | None = None,
    ) -> None:
        """Report a violation, with the counters before, as expected and as found."""
        happened = self.ledgers.happenings(watched.row) if watched.row >= 0 else []
        expected = naming.symbols(self.state(watched).ledger) if watched.row >= 0 else {}
        found = list(numbers or engine_view.counters(watched.request, self.codes))
        before = naming.symbols(happened[0].before.ledger) if happened else dict(expected)
        if kind == "accounting":
            watched.judged = False
        self.report.add(
            Violation(
                kind=kind,
                theorems=theorems,
                rules=rules,
                request_id=watched.request_id,
                step=self.step,
                events=tuple(one.name for one in happened),
                before=before,
                expected=expected,
                found=dict(zip(("N", "C", "P", "F", "S", "D", "status"), found, strict=True)),
                message=message,
            )
        )

    def is_status(self, watched: Watched, status: int) -> bool:
        """Whether the core has the request in this status."""
        return bool(self.ledgers.table[STATUS, watched.row] == status)

    def holds_blocks(self, watched: Watched) -> bool:
        """Whether the request may hold blocks at all."""
        return self.is_status(watched, RUNNING) or not (
            self.is_status(watched, PREEMPTED) or self.ledgers.table[NUM_COMPUTED_TOKENS, watched.row] == 0
        )

    def is_paused(self, watched: Watched) -> bool:
        """Whether it is a session between turns."""
        return self.is_status(watched, PAUSED)
