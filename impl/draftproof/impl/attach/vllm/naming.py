"""Which rule does a wrong counter break? Theorems and invariants are asked, with the engine's own numbers.

The core has moved its ledger by the events of this call; its ghosts are what is really so. The engine's
counters are put beside those ghosts, and each named predicate of the specification answers for itself.
"""

from __future__ import annotations

from typing import NamedTuple

from draftproof.impl.attach.vllm.ledgers import Happening
from draftproof.impl.contracts import format_event
from draftproof.spec.effects import effects
from draftproof.spec.ghosts import State
from draftproof.spec.guards import CONTROL
from draftproof.spec.invariants import invariants
from draftproof.spec.ledger import SYMBOLS, Ledger, Rules
from draftproof.spec.theorems import STEP_THEOREMS

THEOREM_OF = {
    "no_negative_counter": "T5",
    "placeholders_are_awaited": "T2",
    "frontier_below_known": "T2",
    "frontier_exact_when_sampling": "T2",
    "settled_is_computed_less_live": "T3",
    "valid_is_known_or_computed": "T3",
    "in_flight_is_prefill_and_samples": "T5",
    "paused_keeps_all_but_one": "T7",
}
"""Which theorem an invariant belongs to, where it belongs to one."""
COMPARED = (
    "num_tokens",
    "num_computed_tokens",
    "num_output_placeholders",
    "num_in_flight_tokens",
    "num_stale_tokens",
    "num_draft_tokens",
    "status",
)
"""The counters that an engine tells, in the order of `counters`."""


class Broken(NamedTuple):
    """What does not hold."""

    theorems: tuple[str, ...]
    rules: tuple[str, ...]


def broken(happened: list[Happening], expected: State, found: Ledger, rules: Rules) -> Broken:
    """The theorems and invariants that do not hold between the last event's before and what the engine found.

    If each counter alone is possible, the transition's effects say which of them must be another.
    """
    after = State(found, expected.ghosts)
    theorems: list[str] = []
    names: list[str] = []
    if happened:
        last = happened[-1]
        for theorem in STEP_THEOREMS:
            if last.name in theorem.transitions and not theorem.predicate(
                last.before, rules, last.event, after
            ):
                theorems.append(theorem.theorem)
                names.append(theorem.name)
    for name, holds in invariants(after, rules).items():
        if not holds and name not in names:
            theorems.append(THEOREM_OF.get(name, "invariant"))
            names.append(name)
    if not names and happened:
        last = happened[-1]
        after_effects = effects(last.name, last.before, rules, last.event, after)
        names = [name for name, holds in after_effects.items() if not holds]
        theorems = ["effects"]
    if not names:
        theorems, names = ["effects"], ["nothing happened that could change it"]
    return Broken(tuple(sorted(set(theorems), key=_order)), tuple(names))


def _order(theorem: str) -> tuple[int, str]:
    """T1 before T12, and the effects last."""
    return (int(theorem[1:]), "") if theorem[1:].isdigit() else (99, theorem)


def forbidden(happening: Happening, rules: Rules) -> list[str]:
    """The control conditions under which the event may come and that do not hold."""
    conditions = CONTROL[happening.name](happening.before, rules, happening.event)
    return [name for name, holds in conditions.items() if not holds]


def texts(happened: list[Happening]) -> tuple[str, ...]:
    """`output(n=4, d=3, a=3, k=2, stop=1)`, one for each."""
    return tuple(format_event(one.event, one.name) for one in happened)


def symbols(ledger: Ledger, fields: tuple[str, ...] = COMPARED) -> dict[str, int]:
    """The counters by their symbols."""
    return {SYMBOLS[field]: int(getattr(ledger, field)) for field in fields}


def differences(expected: Ledger, found: Ledger) -> str:
    """`C is 6, must be 4; N is 7, must be 6`."""
    return "; ".join(
        f"{SYMBOLS[field]} is {int(getattr(found, field))}, must be {int(getattr(expected, field))}"
        for field in COMPARED
        if getattr(expected, field) != getattr(found, field)
    )
