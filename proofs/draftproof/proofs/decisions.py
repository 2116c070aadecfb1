"""Every decision satisfies its relation, in every state the invariants allow.

The same two solvers, all sizes symbolic. The slots of T10 are claimed here of the running decision, after the
running dispatch. What decisions do together has modules of its own: `chunks`, `stored`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import z3

from draftproof.impl import decisions as code_of
from draftproof.proofs import chunks, stored
from draftproof.proofs.carrier_z3 import (
    as_terms,
    rules_hold,
    symbolic_event,
    symbolic_rules,
    symbolic_state,
    symbols,
)
from draftproof.proofs.controls import Control
from draftproof.proofs.induction import hypotheses, step
from draftproof.proofs.obligations import Obligation
from draftproof.proofs.terms import integer
from draftproof.spec.decision_inputs import DECISIONS, Metrics
from draftproof.spec.decisions import ASSUMPTIONS, RELATIONS
from draftproof.spec.invariants import frontier, invariants

Decide = Callable[..., Any]


def symbolic_inputs(name: str) -> Any:
    """Any inputs of a decision."""
    kind = DECISIONS[name]
    inputs = symbols(kind, "input.")
    if "metrics" in kind._fields:
        inputs = inputs._replace(metrics=symbols(Metrics, "metrics."))
    return inputs


def decision_obligations(name: str, code: Decide | None = None) -> list[Obligation]:
    """Everything claimed about one decision; `code` replaces the running function (faults, mutants)."""
    state, rules, inputs = symbolic_state(), symbolic_rules(), symbolic_inputs(name)
    run: Decide = code or code_of.FUNCTIONS[name]
    result = run(state.ledger, rules, *inputs)
    if isinstance(result, Metrics):
        result = as_terms(result)
    assumed = {f"invariant:{key}": fact for key, fact in invariants(state, rules).items()}
    assumed |= {f"assumed:{key}": fact for key, fact in ASSUMPTIONS[name](state, rules, inputs).items()}
    assumed |= {f"rules:{index}": fact for index, fact in enumerate(rules_hold(rules))}
    return [
        Obligation(f"{name}/relation/{key}", "decision", "decisions", assumed, goal, name)
        for key, goal in RELATIONS[name](state, rules, inputs, result).items()
    ]


def reserve_for_dispatch(reserve: Decide | None = None) -> list[Obligation]:
    """T10 of the running decision: asked right after the running dispatch, it covers what the step writes,
    wherever between the frontier and C the device is, and the drafter's look-ahead beyond."""
    before, rules, event = symbolic_state(), symbolic_rules(), symbolic_event("schedule")
    after = step("schedule", before, rules, event)
    num_generated, lookahead = integer("num_generated_in_flight"), integer("num_lookahead_tokens")
    slots = (reserve or code_of.slots_to_reserve)(after.ledger, rules, lookahead)
    end = frontier(before) + num_generated + event.num_new_tokens
    facts = hypotheses("schedule", before, rules, event) | {
        "device:generated": z3.And(num_generated >= 0, num_generated <= before.ghosts.num_awaited_samples),
        "lookahead": lookahead >= 0,
    }
    group, goal = "T10/slots_to_reserve", end + lookahead <= slots
    return [Obligation(f"{group}/covers_the_step", "theorem", "T10", facts, goal, group)]


def obligations() -> list[Obligation]:
    """All decisions, the slots of a dispatch, the ends of prefill chunks, and what was stored is found."""
    found = [claim for name in DECISIONS for claim in decision_obligations(name)]
    return found + reserve_for_dispatch() + chunks.obligations() + stored.obligations()


def controls() -> list[Control]:
    """What must not be provable of decisions together."""
    return chunks.controls() + stored.controls()
