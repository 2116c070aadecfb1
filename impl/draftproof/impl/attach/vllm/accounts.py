"""Do the engine's counters say what the proven core says? The events of each call are replayed and compared.

As long as they agree, every theorem about the core's ledger holds for the engine's: that is what was proved.
Where they part, `naming` says which theorem the engine's numbers break.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from draftproof.impl.attach.vllm import engine_view, naming
from draftproof.impl.attach.vllm.engine_view import View
from draftproof.impl.attach.vllm.kernel import DIFFERS, FIRST_FOUND, NUM_FOUND, PUBLISHED, VALID, VERDICT
from draftproof.impl.attach.vllm.ledgers import Ledgers
from draftproof.impl.attach.vllm.recording import Recording
from draftproof.impl.attach.vllm.reports import Report, Violation
from draftproof.impl.attach.vllm.watched import Party, Watched
from draftproof.impl.ledger_table import (
    NUM_COMPUTED_TOKENS,
    NUM_DRAFT_TOKENS,
    NUM_IN_FLIGHT_TOKENS,
    NUM_OUTPUT_PLACEHOLDERS,
    NUM_STALE_TOKENS,
    NUM_TOKENS,
    STATUS,
)
from draftproof.spec.ghosts import State
from draftproof.spec.guards import num_schedulable
from draftproof.spec.ledger import PAUSED, PREEMPTED, RUNNING, STATUS_NAMES, WAITING

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
COMPUTED_LINE, STATUS_LINE = 1, 6
"""Of a request that waits for KV from outside: what is to come is counted as computed."""
FINISHED_LINES = 5
"""Of a request that has left, only N, C, P, F and S are still what its last output made them."""


class Accounts:
    """The reference ledgers of one scheduler's requests, and what is compared with them."""

    def __init__(self, view: View, report: Report, codes: dict[Any, int]) -> None:
        self.view, self.report, self.codes = view, report, codes
        self.ledgers = Ledgers(view.rules)
        self.statuses = engine_view.status_table(codes)
        self.step = 0
        self.generation = 0
        """Raised whenever a request starts or leaves."""
        self.recording: Recording | None = None
        """Told of every event, and of what the engine says then."""

    def begin(self) -> None:
        """A call of the engine begins."""
        self.ledgers.begin()

    def start(self, request: Any) -> Watched:
        """A request has arrived."""
        self.report.count("requests")
        self.generation += 1
        num_prompt_tokens = max(1, int(request.num_prompt_tokens))
        return Watched(request, self.ledgers.start(num_prompt_tokens), self.ledgers)

    def leave(self, watched: Watched) -> None:
        """A request is gone."""
        self.generation += 1
        self.ledgers.release(watched.row)
        watched.leave()

    def move(self, name: str, several: Sequence[Watched], *arguments: Any) -> None:
        """The event comes to these requests."""
        if not several:
            return
        rows = np.array([watched.row for watched in several])
        move = self.ledgers.move(name, rows, *arguments)
        self._count(len(several), move.rows, move.work)

    def moved(self, rows: Any, work: Any, count: int) -> None:
        """A pass of `kernel` has moved these rows; so many of them had an event."""
        self.ledgers.note(rows, work)
        self._count(count, rows, work)

    def _count(self, count: int, rows: Any, work: Any) -> None:
        self.report.count("events", count)
        if self.recording is not None:
            self.recording.note(rows, work, self.step)

    def told(self, rows: Any, work: Any, published: Any = None) -> None:
        """What a pass has read of the engine's counters is for the trace, too; and the published blocks."""
        if self.recording is not None:
            found = np.ascontiguousarray(work[FIRST_FOUND : FIRST_FOUND + NUM_FOUND])
            tokens = None if published is None else published * self.view.rules.block_size
            self.recording.tell(rows, found, published=tokens)

    def party(self, several: list[Watched]) -> Party:
        """These requests side by side."""
        return Party(
            self.generation,
            [watched.request_id for watched in several],
            several,
            [watched.request for watched in several],
            np.array([watched.row for watched in several], np.int64),
        )

    def state(self, watched: Watched) -> State:
        """A request's ledger and ghosts."""
        return self.ledgers.one(watched.row)

    def too_many(self, watched: Watched, number: int) -> None:
        """Say that a step takes more tokens of a request than there are."""
        if not watched.judged or not self.view.counts:
            return
        wanted = int(num_schedulable(self.state(watched).ledger))
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

    def compare(self, several: Sequence[Watched], *, left: bool = False) -> None:
        """Hold the engine's counters against the core's; `left`: these requests have left just now."""
        if not several:
            return
        found, rows = self.read(several), np.array([watched.row for watched in several])
        if self.recording is not None:
            self.recording.tell(rows, np.ascontiguousarray(found.T), left=left)
        if not self.view.counts:
            return
        expected = self.ledgers.table[LINES[:, None], rows].T
        different = found != expected
        if left:
            different[:, FINISHED_LINES:] = False
        different &= self.ledgers.judged[rows][:, None]
        if self.view.connected:
            waits = np.isin(self.ledgers.table[STATUS, rows], (WAITING, PREEMPTED))
            different[:, (COMPUTED_LINE, STATUS_LINE)] &= ~waits[:, None]
        if not different.any():
            return
        for place in np.nonzero(different.any(axis=1))[0].tolist():
            numbers = np.where(different[place], found[place], expected[place])
            self._differs(several[place], numbers.tolist())

    def explain(self, several: Sequence[Watched], work: Any, published: Any) -> None:
        """Put the verdicts of a pass into words, where a counter was wrong or too much was published."""
        verdicts = work[VERDICT]
        if self.view.counts:
            for place in np.nonzero(verdicts & DIFFERS)[0].tolist():
                if several[place].judged:
                    found = work[FIRST_FOUND : FIRST_FOUND + NUM_FOUND, place].tolist()
                    self._differs(several[place], found)
        for place in np.nonzero(verdicts & PUBLISHED)[0].tolist():
            if several[place].judged:
                self._published(several[place], int(published[place]) * self.view.rules.block_size)

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

    def _published(self, watched: Watched, found: int) -> None:
        """Say that something is published that is not valid, or that the drafter's fence keeps back."""
        allowed = int(self.ledgers.table[VALID, watched.row]) - self.view.rules.registration_fence
        self.tell(
            watched,
            "accounting",
            ("T3", "T12"),
            ("registered_is_valid",),
            f"{found} tokens are published and {allowed} may be",
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
