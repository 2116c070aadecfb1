"""Which ledger fields do ghosts look at? The number of tokens, and what the host tells the device."""

from __future__ import annotations

from typing import Any

import pytest

from draftproof.spec import ghosts
from draftproof.spec.events import EVENTS
from draftproof.spec.ghosts import Ghosts, State
from draftproof.spec.ledger import PAUSED, PREEMPTED, RUNNING, WAITING, Ledger, Rules

READS = {
    "admit": {"num_computed_tokens"},
    "schedule": {"num_tokens", "num_computed_tokens"},
    "output": {"num_tokens"},
    "end_turn": {"num_tokens", "status"},
    "fold": {"num_tokens"},
}
"""All that the documentation of `draftproof.spec.ghosts` allows; a transition without an entry reads none."""


class Spy:
    """A ledger that notes which of its fields are read."""

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger
        self.read: set[str] = set()

    def __getattr__(self, field: str) -> Any:
        self.read.add(field)
        return getattr(self._ledger, field)


def fields_read(name: str) -> set[str]:
    """The ledger fields that a ghost update reads over some different states, modes and events."""
    read = set()
    for status in (WAITING, RUNNING, PREEMPTED, PAUSED):
        for truth in (Ghosts(0, 0, 0, 0, 0), Ghosts(2, 3, 1, 5, 2), Ghosts(2, 0, 0, 5, 4)):
            for asynchronous in (False, True):
                for computed in (0, 4):
                    spy: Any = Spy(Ledger(3, 5, computed, 2, 3, 1, 1, 2, 1, 1, 2, status, asynchronous))
                    kind: Any = EVENTS[name]
                    event = kind(*[1] * len(kind._fields))
                    update = getattr(ghosts, name)
                    update(State(spy, truth), Rules(2, 2, asynchronous, 1), event)
                    read |= spy.read
    return read


@pytest.mark.parametrize("name", EVENTS)
def test_ghosts_read_only_what_the_documentation_says(name: str) -> None:
    assert fields_read(name) == READS.get(name, set())


def test_a_ghost_that_reads_a_counter_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    def copied(state: State, rules: Rules, event: Any) -> Ghosts:
        return state.ghosts._replace(num_awaited_samples=state.ledger.num_output_placeholders)

    monkeypatch.setattr(ghosts, "output", copied)
    assert fields_read("output") == {"num_output_placeholders"}
