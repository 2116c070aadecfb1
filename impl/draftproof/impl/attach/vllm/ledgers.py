"""Where are the reference ledgers? One column per request, moved by the proven transitions, many at a time.

One compiled call moves all requests to which something happened in a step (`kernel`). What happened in the
call that is being judged is kept with the states before, for those who have to say what went wrong.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from draftproof.impl.attach.vllm.compiled import passes
from draftproof.impl.attach.vllm.kernel import (
    CODE,
    FIRST_ARGUMENT,
    FIRST_BEFORE,
    MOVE_WIDTH,
    NAMES,
    NOTHING,
)
from draftproof.impl.ledger_table import DROP_STALE, NUM_FIELDS, NUM_LINES
from draftproof.spec.events import BOOLEAN_ARGUMENTS, EVENTS, Event
from draftproof.spec.ghosts import Ghosts, State, initial_state
from draftproof.spec.ledger import Ledger, Rules


class Move(NamedTuple):
    """What happened to several requests at once."""

    rows: Any
    """int64[n]"""
    work: Any
    """int64[MOVE_WIDTH or more, n]: the lines of `kernel`."""


class Happening(NamedTuple):
    """One event of one request, in plain integers."""

    name: str
    event: Event
    before: State


class Ledgers:
    """The reference ledgers of all requests, with their ghosts."""

    def __init__(self, rules: Rules) -> None:
        self.rules = rules
        self.words = np.array([int(value) for value in rules], np.int64)
        """The rules, as compiled code takes them."""
        self.passes = passes()
        self.table = np.zeros((NUM_LINES, 72), np.int64)
        self.judged = np.zeros(72, np.bool_)
        """Whose counters are judged."""
        self.moves: list[Move] = []
        """What happened in the call that is being judged; `begin` empties it."""
        self._free = list(range(self.table.shape[1] - 1, -1, -1))

    def start(self, num_prompt_tokens: int) -> int:
        """A row for a new request with a prompt of at least one token."""
        if not self._free:
            count = self.table.shape[1]
            self.table = np.concatenate([self.table, np.zeros_like(self.table)], axis=1)
            self.judged = np.concatenate([self.judged, np.zeros_like(self.judged)])
            self._free = list(range(2 * count - 1, count - 1, -1))
        row = self._free.pop()
        state = initial_state(num_prompt_tokens)
        self.table[:, row] = (*state.ledger, *state.ghosts)
        self.judged[row] = True
        return row

    def release(self, row: int) -> None:
        """The row's request has left."""
        self._free.append(row)

    def begin(self) -> None:
        """A call of the engine begins: forget what happened in the last one."""
        self.moves.clear()

    def one(self, row: int) -> State:
        """A request's state in plain integers."""
        return _state(self.table[:, row].tolist())

    def move(self, name: str, rows: Any, *arguments: Any) -> Move:
        """The event comes to these rows (int64[n], each at most once), its arguments scalars or int64[n]."""
        work = np.empty((MOVE_WIDTH, rows.shape[0]), np.int64)
        work[CODE] = NAMES.index(name)
        for place, values in enumerate(arguments):
            work[FIRST_ARGUMENT + place] = values
        self.passes.move(self.table, self.words, rows, work)
        return self.note(rows, work)

    def note(self, rows: Any, work: Any) -> Move:
        """A pass has moved these rows."""
        move = Move(rows, work)
        self.moves.append(move)
        return move

    def happenings(self, row: int) -> list[Happening]:
        """What happened to a request in this call, in order."""
        found = []
        for move in self.moves:
            for place in np.nonzero(move.rows == row)[0].tolist():
                if move.work[CODE, place] != NOTHING:
                    found.append(_happening(move.work[:MOVE_WIDTH, place].tolist()))
        return found


def _state(values: list[Any]) -> State:
    """Ledger and ghosts from the lines of the table."""
    ledger: list[Any] = [*values[:DROP_STALE], values[DROP_STALE] != 0]
    return State(Ledger(*ledger), Ghosts(*values[NUM_FIELDS:]))


def _happening(lines: list[int]) -> Happening:
    name = NAMES[lines[CODE]]
    kind: Any = EVENTS[name]
    arguments = [
        value != 0 if field in BOOLEAN_ARGUMENTS else value
        for field, value in zip(kind._fields, lines[FIRST_ARGUMENT:], strict=False)
    ]
    before = lines[FIRST_BEFORE : FIRST_BEFORE + NUM_LINES]
    return Happening(name, kind(*arguments), _state(before))
