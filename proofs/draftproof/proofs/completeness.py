"""Do the effects say everything? Two results that satisfy them agree on every field.

If they do, nothing that a transition changes escapes the specification: a version of the code that
satisfies the effects and the frame computes what the running code computes. The ghosts after a step are
the specification's own in both results.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from draftproof.proofs.carrier_z3 import as_terms, symbolic_event, symbolic_rules, symbolic_state, symbols
from draftproof.proofs.induction import hypotheses
from draftproof.proofs.obligations import Obligation
from draftproof.spec import effects, ghosts
from draftproof.spec.events import EVENTS
from draftproof.spec.ghosts import State
from draftproof.spec.ledger import Ledger

RESULTS = ("first", "second")


class Results(NamedTuple):
    """A step with two results of which only the effects are known."""

    assumed: dict[str, Any]
    effects: dict[str, dict[str, Any]]
    """By result, then by the effect's name."""
    agreement: dict[str, Any]
    """By field: the two results have the same value."""


def results(name: str) -> Results:
    """Two results of the transition `name` from the same state, by the same event."""
    before, rules, event = symbolic_state(), symbolic_rules(), symbolic_event(name)
    ghosts_after = as_terms(getattr(ghosts, name)(before, rules, event))
    first, second = (symbols(Ledger, f"{result}.") for result in RESULTS)
    return Results(
        hypotheses(name, before, rules, event),
        {
            result: effects.effects(name, before, rules, event, State(ledger, ghosts_after))
            for result, ledger in zip(RESULTS, (first, second), strict=True)
        },
        {field: getattr(first, field) == getattr(second, field) for field in Ledger._fields},
    )


def transition_obligations(name: str, without: str = "") -> list[Obligation]:
    """The effects of one transition determine every field; `without` leaves one of them out."""
    found = results(name)
    facts = dict(found.assumed)
    for result in RESULTS:
        facts |= {f"{result}:{key}": fact for key, fact in found.effects[result].items() if key != without}
    path = f"completeness/{name}" + (f"/without_{without}" if without else "")
    return [
        Obligation(f"{path}/{field}", "completeness", "effects", facts, goal, path)
        for field, goal in found.agreement.items()
    ]


def obligations() -> list[Obligation]:
    """The effects of every transition determine every field."""
    return [claim for name in EVENTS for claim in transition_obligations(name)]
