"""Recurrent state: every event keeps every invariant, has its effects, and satisfies M1 to M4.

As for the ledger: all sizes symbolic (drafts, block size, depth of run-ahead, number of blocks), by induction
on events, from the functions that run. One arbitrary block stands for all of them, so nothing is quantified.
The facts that an event's guard takes from the ledger are derived in `recurrent_ledger`.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import z3

from draftproof.proofs import recurrent_ledger
from draftproof.proofs.carrier_z3 import as_terms, rules_hold, symbolic_rules, symbolic_state, symbols
from draftproof.proofs.controls import Control
from draftproof.proofs.obligations import Obligation
from draftproof.proofs.recurrent_mutant import RUNNING_CODE
from draftproof.proofs.terms import integer
from draftproof.spec.invariants import invariants
from draftproof.spec.recurrent import Recurrent, RecurrentRules
from draftproof.spec.recurrent_decisions import Chunk, assume_chunk, chunk_to_schedule, limits
from draftproof.spec.recurrent_effects import recurrent_effects
from draftproof.spec.recurrent_events import HOST_ARGUMENTS, RECURRENT_EVENTS, TRANSITION_OF
from draftproof.spec.recurrent_ghosts import (
    NO_ROLE,
    RecurrentGhosts,
    RecurrentState,
    Role,
    StateBlock,
    block_after,
    ghosts_after,
    initial_recurrent_state,
)
from draftproof.spec.recurrent_guards import RECURRENT_CONTROL, host_conditions, recurrent_facts
from draftproof.spec.recurrent_invariants import recurrent_invariants
from draftproof.spec.recurrent_theorems import RECURRENT_CLAIMS
from draftproof.spec.recurrent_tokens import Code

Facts = dict[str, Any]

TAKES_BLOCKS = ("start", "make_private", "dispatch")
"""Events that may give the watched block a new place."""
FAMILY = "recurrent"
"""The table row of what is no theorem: effects, frames, invariants, and their completeness."""


class Setting(NamedTuple):
    """One event on arbitrary state, with everything that may be assumed."""

    before: RecurrentState
    rules: RecurrentRules
    event: Any
    after: RecurrentState
    hypotheses: Facts


def recurrent_rules_hold(rules: RecurrentRules) -> Facts:
    """What is required of the rules."""
    return {"rules:drafts": rules.num_speculative_tokens >= 0, "rules:block": rules.block_size >= 1}


def setting(name: str, code: Code = RUNNING_CODE) -> Setting:
    """The event `name` under the given code."""
    before = RecurrentState(symbols(Recurrent), symbols(RecurrentGhosts), symbols(StateBlock, "block."))
    rules, event = symbols(RecurrentRules), symbols(RECURRENT_EVENTS[name], "event.")
    role = symbols(Role, "role.") if name in TAKES_BLOCKS else NO_ROLE
    recurrent = before.recurrent
    if name in TRANSITION_OF:
        transition = TRANSITION_OF[name]
        arguments = [getattr(event, field) for field in HOST_ARGUMENTS[transition]]
        recurrent = as_terms(code.transitions[transition](before.recurrent, rules, *arguments))
    block = block_after(name, before, event, role, recurrent, code.decisions["must_withdraw"])
    after = RecurrentState(recurrent, as_terms(ghosts_after(name, before, event)), as_terms(block))
    facts = recurrent_rules_hold(rules)
    for kind, conditions in (
        ("invariant", recurrent_invariants(before, rules)),
        ("guard", RECURRENT_CONTROL[name](before, rules, event, role)),
        ("fact", recurrent_facts(name, before, rules, event, role)),
        ("host", host_conditions(name, before, rules, event, role, recurrent, code.decisions)),
    ):
        facts |= {f"{kind}:{key}": fact for key, fact in conditions.items()}
    return Setting(before, rules, event, after, facts)


def event_obligations(name: str, code: Code = RUNNING_CODE) -> list[Obligation]:
    """Everything claimed about one event; `code` replaces the running functions (faults, mutants)."""
    before, rules, event, after, facts = setting(name, code)
    kept = recurrent_invariants(after, rules)
    if name not in HOST_ARGUMENTS:  # nothing of the record moves: asked together
        together: Any = z3.And(list(kept.values()))
        kept = {"all": together}
    goals = [(f"invariant/{key}", "invariant", FAMILY, goal) for key, goal in kept.items()]
    if name in HOST_ARGUMENTS:
        relations = recurrent_effects(name, before.recurrent, rules, event, after.recurrent)
        frame: Any = [goal for key, goal in relations.items() if key.startswith("frame/")]
        goals += [
            (f"effect/{key}", "effect", FAMILY, goal)
            for key, goal in relations.items()
            if not key.startswith("frame/")
        ]
        if frame:
            goals.append(("effect/frame", "effect", FAMILY, z3.And(frame)))
    goals += [
        (
            f"theorem/{claim.theorem}/{claim.name}",
            "theorem",
            claim.theorem,
            claim.predicate(before, rules, event, after, code.decisions),
        )
        for claim in RECURRENT_CLAIMS
        if name in claim.events
    ]
    return [
        Obligation(f"recurrent/{name}/{path}", kind, theorem, facts, goal, f"recurrent/{name}")
        for path, kind, theorem, goal in goals
    ]


def base_obligations() -> list[Obligation]:
    """A request that has just arrived, and any unused block, satisfy every invariant."""
    known, rules = integer("num_known_tokens"), symbols(RecurrentRules)
    start = initial_recurrent_state(known)
    state = RecurrentState(*[as_terms(part) for part in start])
    facts = recurrent_rules_hold(rules) | {"prompt_is_not_empty": known >= 1}
    return [
        Obligation(
            f"recurrent/initial/invariant/{key}", "invariant", FAMILY, facts, goal, "recurrent/initial"
        )
        for key, goal in recurrent_invariants(state, rules).items()
    ]


def completeness_obligation(name: str, without: str = "") -> Obligation:
    """Two records that satisfy the effects of an event agree on every field; `without` leaves one out."""
    before, rules, event, _, facts = setting(name)
    assumed = {key: fact for key, fact in facts.items() if not key.startswith("host:")}
    first, second = symbols(Recurrent, "first."), symbols(Recurrent, "second.")
    for label, result in (("first", first), ("second", second)):
        relations = recurrent_effects(name, before.recurrent, rules, event, result)
        assumed |= {f"{label}:{key}": fact for key, fact in relations.items() if key != without}
    path = f"recurrent/completeness/{name}" + (f"/without_{without}" if without else "")
    equal = z3.And([getattr(first, field) == getattr(second, field) for field in Recurrent._fields])
    return Obligation(path, "completeness", FAMILY, assumed, equal, path)


def chunk_obligations(code: Code = RUNNING_CODE) -> list[Obligation]:
    """Where a prefill chunk ends (M2), for all sizes."""
    asked, rules = symbols(Chunk, "input."), symbols(RecurrentRules)
    chosen = code.decisions["chunk_to_schedule"](*asked, rules)
    facts = recurrent_rules_hold(rules)
    facts |= {f"assumed:{key}": fact for key, fact in assume_chunk(asked, rules).items()}
    path = "recurrent/chunk_to_schedule"
    return [
        Obligation(f"{path}/{key}", "decision", "M2", facts, goal, path)
        for key, goal in chunk_to_schedule(asked, rules, chosen).items()
    ]


def limit_obligations(code: Code = RUNNING_CODE) -> list[Obligation]:
    """Up to where the ledger lets states be published (M4)."""
    state, rules = symbolic_state(), symbolic_rules()
    facts = {f"invariant:{key}": fact for key, fact in invariants(state, rules).items()}
    facts |= {f"rules:{index}": fact for index, fact in enumerate(rules_hold(rules))}
    names = ("registrable_in_service", "registrable_at_exit", "registrable_at_turn_end")
    results = [code.decisions[name](state.ledger) for name in names]
    return [
        Obligation(f"recurrent/limits/{key}", "decision", "M4", facts, goal, "recurrent/limits")
        for key, goal in limits(state, *results).items()
    ]


def obligations() -> list[Obligation]:
    """Everything about recurrent state."""
    return [
        *base_obligations(),
        *[claim for name in RECURRENT_EVENTS for claim in event_obligations(name)],
        *[completeness_obligation(name) for name in HOST_ARGUMENTS],
        *chunk_obligations(),
        *limit_obligations(),
        *recurrent_ledger.obligations(),
    ]


def controls() -> list[Control]:
    """Faults of the running source that must be refuted, and assumptions that must not be dropped."""
    from draftproof.proofs import recurrent_mutants  # it asks for the claims above

    return [*recurrent_mutants.controls(), *recurrent_ledger.controls()]
