"""What does a finding say? Which theorem, which counter, expected and found: worked out for the one record.

The compiled loop only says that something is wrong. Here the specification itself is asked, interpreted:
which conditions of the guard do not hold; or, with the engine's counters put in place of the accounting's,
which effects, invariants and theorems do not.
"""

from __future__ import annotations

from typing import Any

import msgspec

from draftproof.impl.contracts import format_event
from draftproof.impl.traces import kernel
from draftproof.impl.traces.columns import (
    INDEX,
    LOOK_UP,
    REGISTERED,
    REQUEST_NUMBER,
    STEP,
    Chunk,
    counters_at,
    event_at,
    name_of,
)
from draftproof.impl.traces.format import ABSENT, EVENT_NAMES, EXIT
from draftproof.spec import effects, ghosts, guards, textbook
from draftproof.spec.algebra import floor_to_block
from draftproof.spec.ghosts import Ghosts, State
from draftproof.spec.invariants import invariants
from draftproof.spec.ledger import STATUS_NAMES, SYMBOLS, Ledger, Rules
from draftproof.spec.theorems import STEP_THEOREMS

ORDER = "order"
"""The group of events that may not come where they come: the accounting has no theorem about those."""
ACCOUNTING = "accounting"
"""The group of counters that differ without any single theorem being broken: an effect is."""


class Divergence(msgspec.Struct, kw_only=True, frozen=True):
    """The first event of a request at which the engine and the accounting part."""

    request: int
    id: str = ""
    sequence: int
    step: int
    index: int
    event: str
    """With its integers: `output(n=4, d=3, a=3, k=2, stop=1)`."""
    theorems: tuple[str, ...]
    """T1 to T14 that do not hold; `order` for an event that cannot come here."""
    checks: tuple[str, ...]
    """The named conditions, effects, invariants and theorems that do not hold."""
    counters: dict[str, tuple[int | str, int | str]]
    """By name: expected, found."""
    before: dict[str, int | str]
    """The accounting's counters before the event."""
    is_suspect: bool = False
    """Damage to the file may have caused it."""
    path: str = ""

    @property
    def sentence(self) -> str:
        """What went wrong, for people."""
        name = f"request {self.id!r}" if self.id else f"request {self.request}"
        told = ", ".join(
            f"{counter} is {found}, expected {expected}"
            for counter, (expected, found) in self.counters.items()
        )
        what = told or f"may not come here: {', '.join(self.checks)}"
        return f"{name}, step {self.step}, {self.event}: {what}"


def state_of(words: Any) -> State:
    """The ledger and ghosts in a finding."""
    values = [int(value) for value in words]
    count = kernel.NUM_LEDGER
    fields: list[Any] = [*values[: count - 1], values[count - 1] != 0]
    ledger = Ledger(*fields)
    return State(ledger, Ghosts(*values[count:]))


def explained(chunk: Chunk, finding: Any, rules: Rules) -> Divergence:
    """A violation in words; `finding` is a row of the table's findings."""
    kind, place, flags, last = (int(value) for value in finding[:4])
    before = state_of(finding[4:])
    lines = chunk.lines
    common: dict[str, Any] = {
        "request": int(lines[REQUEST_NUMBER, place]),
        "sequence": int(chunk.sequences[place]),
        "step": int(lines[STEP, place]),
        "index": int(lines[INDEX, place]),
        "before": shown(before.ledger),
        "is_suspect": bool(flags & (kernel.TAINTED | kernel.REPEATED)) or bool(chunk.tainted[place]),
    }
    if kind == kernel.EXIT_DIFFERS:
        return Divergence(**common, **_exit(chunk, place, before, rules, -last - 1 if last < 0 else last))
    name, event = event_at(chunk, place)
    text = format_event(event, name)
    if kind == kernel.NOT_ALLOWED:
        held = guards.conditions(name, before, rules, event)
        broken = tuple(key for key, holds in held.items() if not holds)
        return Divergence(**common, event=text, theorems=(ORDER,), checks=broken, counters={})
    ledger = getattr(textbook, name)(before.ledger, rules, *event)
    truth = getattr(ghosts, name)(before, rules, event)
    told = counters_at(chunk, place)
    counters = {key: (getattr(ledger, key), value) for key, value in told.items()}
    differing = {key: pair for key, pair in counters.items() if pair[0] != pair[1]}
    claimed = State(ledger._replace(**{key: found for key, (_, found) in differing.items()}), truth)
    theorems, checks = broken_claims(name, before, rules, event, claimed)
    return Divergence(
        **common,
        event=text,
        theorems=theorems or (ACCOUNTING,),
        checks=checks,
        counters={
            key: (_shown(key, first), _shown(key, second)) for key, (first, second) in differing.items()
        },
    )


def broken_claims(
    name: str, before: State, rules: Rules, event: Any, after: State
) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """The theorems, and all named claims, that a state after an event contradicts."""
    steps = [claim for claim in STEP_THEOREMS if name in claim.transitions]
    failed = [claim for claim in steps if not claim.predicate(before, rules, event, after)]
    theorems = tuple(dict.fromkeys(claim.theorem for claim in failed))
    changed = [key for key, holds in effects.effects(name, before, rules, event, after).items() if not holds]
    kept = [key for key, holds in invariants(after, rules).items() if not holds]
    checks = [claim.name for claim in failed] + changed + kept
    return theorems, tuple(dict.fromkeys(checks))


def _exit(chunk: Chunk, place: int, before: State, rules: Rules, last: int) -> dict[str, Any]:
    """An exit at which the engine had registered something else, or does not find it again."""
    ledger = before.ledger
    is_preempted = EVENT_NAMES[last] == "preempt" if last < len(EVENT_NAMES) else False
    expected = ledger.num_registered_at_preemption if is_preempted else ledger.num_registered_tokens
    found = int(chunk.lines[REGISTERED, place])
    counters: dict[str, tuple[int | str, int | str]] = {}
    theorems, checks = [], []
    if found < expected:
        theorems.append("T4")
        checks.append("settled_blocks_are_registered")
    if found > expected:
        theorems.append("T3")
        checks.append("registered_is_settled")
    if found != expected:
        counters["num_registered_tokens"] = (expected, found)
    look_up = int(chunk.lines[LOOK_UP, place])
    findable = min(expected, floor_to_block(ledger.num_tokens - 1, rules.block_size))
    if look_up != ABSENT and look_up < findable and not is_preempted:
        theorems.append("T13")
        checks.append("what_was_stored_is_found")
        counters["look_up"] = (findable, look_up)
    name = name_of(EXIT) if last >= len(EVENT_NAMES) else f"exit after {EVENT_NAMES[last]}"
    return {"event": name, "theorems": tuple(theorems), "checks": tuple(checks), "counters": counters}


def shown(ledger: Ledger) -> dict[str, int | str]:
    """A ledger's counters, the status by name, truth values as 0 and 1."""
    return {name: _shown(name, int(getattr(ledger, name))) for name in SYMBOLS}


def _shown(name: str, value: int) -> int | str:
    if name == "status":
        return STATUS_NAMES[value] if 0 <= value < len(STATUS_NAMES) else value
    return int(value)
