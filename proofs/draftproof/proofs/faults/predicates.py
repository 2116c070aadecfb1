"""Is a named statement true of one step? The proofs' paths, evaluated on integers or on solver terms."""

from __future__ import annotations

from typing import Any

from draftproof.spec.decisions import RELATIONS
from draftproof.spec.effects import effects
from draftproof.spec.ghosts import State
from draftproof.spec.invariants import invariants
from draftproof.spec.ledger import Rules
from draftproof.spec.theorems import STEP_THEOREMS


def is_about_decision(path: str) -> bool:
    """`lookup_hit/relation/was_found` is; `output/effect/frontier` is about a transition."""
    return path.split("/")[1] == "relation"


def of_step(path: str, before: State, rules: Rules, event: Any, after: State) -> Any:
    """The truth, or the formula, of a statement about one transition."""
    name, kind, key = path.split("/", 2)
    if kind == "effect":
        return effects(name, before, rules, event, after)[key]
    if kind == "invariant":
        return invariants(after, rules)[key]
    for theorem in STEP_THEOREMS:
        if key == f"{theorem.theorem}/{theorem.name}" and name in theorem.transitions:
            return theorem.predicate(before, rules, event, after)
    raise KeyError(f"no statement {path}")


def of_decision(path: str, state: State, rules: Rules, inputs: Any, result: Any) -> Any:
    """The truth, or the formula, of a statement about one decision."""
    name, _, key = path.split("/", 2)
    return RELATIONS[name](state, rules, inputs, result)[key]


def broken_by_step(name: str, before: State, rules: Rules, event: Any, after: State) -> list[str]:
    """Every statement about a transition that is false of this step, as `effect/frontier`."""
    statements = {f"effect/{key}": holds for key, holds in effects(name, before, rules, event, after).items()}
    statements |= {f"invariant/{key}": holds for key, holds in invariants(after, rules).items()}
    statements |= {
        f"theorem/{theorem.theorem}/{theorem.name}": theorem.predicate(before, rules, event, after)
        for theorem in STEP_THEOREMS
        if name in theorem.transitions
    }
    return [path for path, holds in statements.items() if not holds]
