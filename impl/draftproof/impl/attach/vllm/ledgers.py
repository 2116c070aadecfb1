"""Where are the reference ledgers? One column per request, moved by the proven transitions, many at a time.

The functions of `draftproof.impl.accounting` and the ghosts of `draftproof.spec.ghosts` are called with whole
columns (`draftproof.impl.carrier_numpy`): one call moves all requests to which the same thing happened in a
step. Nothing about the accounting is said here a second time.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from draftproof.impl import carrier_numpy  # noqa: F401  registers the carrier
from draftproof.impl.accounting import TRANSITIONS
from draftproof.impl.contracts import plain
from draftproof.impl.ledger_table import DROP_STALE, NUM_FIELDS, NUM_LINES
from draftproof.spec import ghosts
from draftproof.spec.events import BOOLEAN_ARGUMENTS, EVENTS, Event
from draftproof.spec.ghosts import Ghosts, State, initial_state
from draftproof.spec.ledger import Ledger, Rules

CODE = {name: plain(function) for name, function in TRANSITIONS.items()}
GHOSTS_OF: dict[str, Any] = {name: getattr(ghosts, name) for name in TRANSITIONS}


class Move(NamedTuple):
    """One event that came to several requests at once."""

    name: str
    rows: Any
    event: Any
    """The event, its arguments as columns or scalars."""
    before: State
    """As columns."""


class Happening(NamedTuple):
    """One event of one request, in plain integers."""

    name: str
    event: Event
    before: State


class Ledgers:
    """The reference ledgers of all requests, with their ghosts."""

    def __init__(self, rules: Rules) -> None:
        self.rules = rules
        self.table = np.zeros((NUM_LINES, 72), np.int64)
        self.moves: list[Move] = []
        """What happened in the call that is being judged; `begin` empties it."""
        self._free = list(range(self.table.shape[1] - 1, -1, -1))

    def start(self, num_prompt_tokens: int) -> int:
        """A row for a new request with a prompt of at least one token."""
        if not self._free:
            count = self.table.shape[1]
            self.table = np.concatenate([self.table, np.zeros_like(self.table)], axis=1)
            self._free = list(range(2 * count - 1, count - 1, -1))
        row = self._free.pop()
        state = initial_state(num_prompt_tokens)
        self.table[:, row] = (*state.ledger, *state.ghosts)
        return row

    def release(self, row: int) -> None:
        """The row's request has left."""
        self._free.append(row)

    def begin(self) -> None:
        """A call of the engine begins: forget what happened in the last one."""
        self.moves.clear()

    def columns(self, rows: Any) -> State:
        """The states of these rows, side by side."""
        part = self.table[:, rows]
        return _state([*part[:DROP_STALE], part[DROP_STALE] != 0, *part[NUM_FIELDS:]])

    def one(self, row: int) -> State:
        """A request's state in plain integers."""
        values = self.table[:, row].tolist()
        return _state([*values[:DROP_STALE], values[DROP_STALE] != 0, *values[NUM_FIELDS:]])

    def move(self, name: str, rows: Any, *arguments: Any, before: State | None = None) -> State:
        """The event comes to these rows (int64[n], each at most once), its arguments scalars or int64[n].
        Returns the states before, as columns; `before`: if they have been read already."""
        before = self.columns(rows) if before is None else before
        event: Any = EVENTS[name]
        event = event(*arguments)
        after = CODE[name](before.ledger, self.rules, *event)
        truth = GHOSTS_OF[name](before, self.rules, event)
        for line, values in enumerate((*after, *truth)):
            self.table[line, rows] = values
        self.moves.append(Move(name, rows, event, before))
        return before

    def happenings(self, row: int) -> list[Happening]:
        """What happened to a request in this call, in order."""
        found = []
        for move in self.moves:
            (places,) = np.nonzero(move.rows == row)
            if len(places):
                found.append(_happening(move, int(places[0])))
        return found


def _state(values: list[Any]) -> State:
    """Ledger and ghosts from the lines of the table."""
    return State(Ledger(*values[:NUM_FIELDS]), Ghosts(*values[NUM_FIELDS:]))


def _happening(move: Move, place: int) -> Happening:
    def at(value: Any) -> Any:
        return value[place].item() if isinstance(value, np.ndarray) else value

    arguments = [
        bool(at(value)) if field in BOOLEAN_ARGUMENTS else int(at(value))
        for field, value in move.event._asdict().items()
    ]
    return Happening(
        move.name,
        type(move.event)(*arguments),
        State(Ledger(*map(at, move.before.ledger)), Ghosts(*map(at, move.before.ghosts))),
    )
