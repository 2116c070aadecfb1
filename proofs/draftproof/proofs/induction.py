"""Induction: every transition keeps every invariant, has its effects, and satisfies every step theorem.

All sizes are symbolic: prompt, block size, drafts, fence, depth of run-ahead. The hypotheses of a step
are the invariants before it and its guard; the base case is a request that has just arrived.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from draftproof.impl import accounting
from draftproof.impl.contracts import plain
from draftproof.proofs.carrier_z3 import as_terms, rules_hold, symbolic_event, symbolic_rules, symbolic_state
from draftproof.proofs.obligations import Obligation
from draftproof.spec import effects, ghosts, guards
from draftproof.spec.events import EVENTS
from draftproof.spec.ghosts import State, initial_state
from draftproof.spec.invariants import invariants
from draftproof.spec.ledger import Ledger, Rules
from draftproof.spec.theorems import STEP_THEOREMS

import z3  # isort: skip

Code = Callable[..., Ledger]


def hypotheses(name: str, before: State, rules: Rules, event: Any) -> dict[str, Any]:
    """What a step may assume, by name: the invariants, the guard's conditions and the rules."""
    facts = {f"invariant:{key}": fact for key, fact in invariants(before, rules).items()}
    facts |= {f"guard:{key}": fact for key, fact in guards.conditions(name, before, rules, event).items()}
    facts |= {f"rules:{index}": fact for index, fact in enumerate(rules_hold(rules))}
    return facts


def step(name: str, before: State, rules: Rules, event: Any, code: Code | None = None) -> State:
    """The state after the transition: the running code for the ledger, the specification for the ghosts."""
    run = plain(getattr(accounting, name)) if code is None else code
    return State(
        as_terms(run(before.ledger, rules, *event)),
        as_terms(getattr(ghosts, name)(before, rules, event)),
    )


def transition_obligations(name: str, code: Code | None = None) -> list[Obligation]:
    """Everything claimed about one transition; `code` replaces the running function (faults, mutants)."""
    before, rules, event = symbolic_state(), symbolic_rules(), symbolic_event(name)
    after = step(name, before, rules, event, code)
    assumed = hypotheses(name, before, rules, event)
    claims = [
        (f"effect/{key}", "effect", "effects", goal)
        for key, goal in effects.effects(name, before, rules, event, after).items()
    ]
    claims += [
        (f"invariant/{key}", "invariant", "invariants", goal)
        for key, goal in invariants(after, rules).items()
    ]
    claims += [
        (
            f"theorem/{theorem.theorem}/{theorem.name}",
            "theorem",
            theorem.theorem,
            theorem.predicate(before, rules, event, after),
        )
        for theorem in STEP_THEOREMS
        if name in theorem.transitions
    ]
    return [
        Obligation(f"{name}/{path}", kind, theorem, assumed, goal, name)
        for path, kind, theorem, goal in claims
    ]


def base_obligations() -> list[Obligation]:
    """A request that has just arrived satisfies every invariant."""
    num_prompt_tokens: Any = z3.Int("num_prompt_tokens")
    rules = symbolic_rules()
    assumed = {f"rules:{index}": fact for index, fact in enumerate(rules_hold(rules))}
    assumed["prompt_is_not_empty"] = num_prompt_tokens >= 1
    start = initial_state(num_prompt_tokens)
    state = State(as_terms(start.ledger), as_terms(start.ghosts))
    return [
        Obligation(f"initial/invariant/{key}", "invariant", "invariants", assumed, goal, "initial")
        for key, goal in invariants(state, rules).items()
    ]


def all_obligations() -> list[Obligation]:
    """The whole induction."""
    return base_obligations() + [claim for name in EVENTS for claim in transition_obligations(name)]
