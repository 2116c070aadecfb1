"""What happened to each request? In debug mode a ledger table remembers it, a column at a time.

A journal is a state and the events since: as many as it has room for, the state moving on with the textbook
when the oldest is forgotten. It is what a violation's trace is written from, and it holds the table against
itself: nothing but a transition of what lies in a column may change the column.
"""

from __future__ import annotations

from collections import deque
from typing import Any, NamedTuple

from draftproof.impl.contracts import ObservedLedger
from draftproof.spec import ghosts, textbook
from draftproof.spec.events import Event, event_name
from draftproof.spec.ghosts import Ghosts, State
from draftproof.spec.ledger import Ledger, Rules

NUM_REMEMBERED = 256
"""Events that a request's journal has room for."""


class LostUpdate(AssertionError):
    """A ledger was written that does not follow from the one in its column."""

    def __init__(self, sentence: str, column: int) -> None:
        super().__init__(sentence)
        self.column = column


class Entry(NamedTuple):
    """One event, and the step in which it came."""

    step: int
    event: Event


def followed(state: State, rules: Rules, event: Event) -> State:
    """The state after an event, as the textbook says."""
    name = event_name(event)
    ledger = getattr(textbook, name)(state.ledger, rules, *event)
    return State(ledger, getattr(ghosts, name)(state, rules, event))


class Journal:
    """One request's last events."""

    def __init__(self, start: State) -> None:
        self.start = start
        """What the request was before the events."""
        self.state = start
        """What was stored last."""
        self.entries: deque[Entry] = deque()
        self.version = 0

    def add(self, step: int, ledger: ObservedLedger, rules: Rules) -> None:
        """The events that led to this ledger."""
        for event in ledger.events:
            if len(self.entries) == NUM_REMEMBERED:
                self.start = followed(self.start, rules, self.entries.popleft().event)
            self.entries.append(Entry(step, event))
        self.state = State(Ledger(*ledger), ledger.ghosts)
        self.version += 1


class ObservedTable:
    """A ledger table (`draftproof.impl.ledger_table`) with a journal beside each column."""

    def __init__(self, table: Any, rules: Rules) -> None:
        self.table = table
        self.rules = rules
        self.step = 0
        """The step that is being scheduled or settled; whoever runs the scheduler says so."""
        self.journals: dict[int, Journal] = {}

    def __getitem__(self, place: tuple[int, int]) -> int:
        return self.table[place]  # type: ignore[no-any-return]

    def __setitem__(self, place: tuple[int, int], value: int) -> None:
        self.table[place] = value

    def version(self, column: int) -> int:
        """How often the column's ledger has been stored."""
        journal = self.journals.get(column)
        return 0 if journal is None else journal.version

    def note(self, column: int, ledger: Ledger) -> None:
        """The ledger is being stored. Raises LostUpdate if it was loaded elsewhere, or before another
        store."""
        if not isinstance(ledger, ObservedLedger):  # nothing happened to it yet: a new request
            self.journals[column] = Journal(State(Ledger(*ledger), Ghosts(0, 0, 0, 0, 0)))
            return
        if ledger.column != column:
            raise LostUpdate(f"the ledger of row {ledger.column} was stored in row {column}", column)
        journal = self.journals[column]
        if ledger.version != journal.version:
            raise LostUpdate(
                f"the ledger of row {column} was loaded, then stored by somebody else, then stored again",
                column,
            )
        journal.add(self.step, ledger, self.rules)
