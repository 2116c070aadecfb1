"""What is a fault? A named, minimal source change, the reports it comes from, and what it must break.

The running code has no switch for faults: a change is a piece of text in one function's source and what
replaces it, applied in memory (`patching`). A fault counts as found if the obligations it names are
refuted (`checking`) and its committed trace reaches the damage from a new request (`replay`).
"""

from __future__ import annotations

from typing import Any, NamedTuple

from draftproof.spec.events import Event
from draftproof.spec.ledger import Rules

ACCOUNTING = "draftproof.impl.accounting"
DECISIONS = "draftproof.impl.decisions"
GUARDS = "draftproof.spec.guards"


class Change(NamedTuple):
    """In the source of `module.function`, `before` (it occurs exactly once) becomes `after`."""

    module: str
    function: str
    before: str
    after: str


class Decision(NamedTuple):
    """A decision and the inputs it is asked with."""

    name: str
    inputs: Any


class Pin(NamedTuple):
    """A run with printed numbers: these events under these rules, and the figure that comes out wrong.

    The figure, or the counts it follows from, are those of the report unless `own_numbers` says why not.
    The rest of a run (a prompt's length, which draft was refused) is ours where a report does not say.
    `figure` is a ledger field after the last event, or `decision`: the result of the decision asked then.
    """

    rules: Rules
    num_prompt_tokens: int
    events: tuple[Event, ...]
    figure: str
    wrong: Any
    right: Any
    decision: Decision | None = None
    right_events: tuple[Event, ...] = ()
    """What happens instead on the right code, where it would not let the last event happen."""
    own_numbers: str = ""
    """Why the numbers are ours, or from where else they are; empty: they are a report's."""


class Fault(NamedTuple):
    """One fault. Paths of obligations are those of the proofs, for example `output/effect/frontier`."""

    name: str
    title: str
    meaning: str
    """What goes wrong for a user, in plain language."""
    reports: tuple[str, ...]
    """Public reports of it, by id (`reports.json`); empty for faults of the two upstream fixes, and for a few
    of our own that no report tells."""
    changes: tuple[Change, ...]
    violated: tuple[str, ...]
    """Obligations that the change must refute."""
    shown_by: str = ""
    """The predicate that the trace breaks at its end, where the harm shows later than in the changed step."""
    asynchronous: bool | None = None
    """The mode it is claimed for; None: either."""
    pin: Pin | None = None
    engine_rules: tuple[Change, ...] = ()
    """Changes to an engine's own rule that a pinned run applies too: ours would mask part of the fault."""
    query_after: str = ""
    """For a decision: the event that the trace's query must follow."""
    limits: tuple[tuple[str, int | str], ...] = ()
    """Other than usual limits of the trace search, by name (`draftproof.proofs.search.Limits`)."""

    @property
    def theorem(self) -> str:
        """What the change contradicts first: a theorem, or `effects`, `invariants`, `decisions`."""
        return theorem_of(self.violated[0])

    @property
    def trace_breaks(self) -> str:
        """The predicate that is false at the end of the trace."""
        return self.shown_by or self.violated[0]


def theorem_of(path: str) -> str:
    """The theorem, or the family of statements, that an obligation's path belongs to."""
    _, kind, name = path.split("/", 2)
    if kind == "theorem":
        return name.split("/")[0]
    return {"effect": "effects", "invariant": "invariants", "relation": "decisions"}[kind]
