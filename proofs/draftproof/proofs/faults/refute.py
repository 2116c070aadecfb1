"""Do the proofs notice a fault? Its obligations, built from the faulty code, must be refuted.

A refutation needs one solver only: a counterexample speaks for itself. `unknown` is not a refutation.

The proofs of the right code may assume facts about the queue of steps in flight, which R1 derives from
the right guards. Where a fault changes a guard that derivation is gone, so none of them is assumed: a
returning step is one that the faulty guards let dispatch, and that is all. What is refuted from so little
counts only if the right code proves it from as little; otherwise the missing facts are what is shown.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import z3

from draftproof.proofs.carrier_z3 import symbolic_event, symbolic_rules, symbolic_state, symbols
from draftproof.proofs.decisions import decision_obligations
from draftproof.proofs.faults.fault import GUARDS, Fault
from draftproof.proofs.faults.patching import Code, patched, right_code
from draftproof.proofs.induction import transition_obligations
from draftproof.proofs.obligations import Obligation, counterexample, formulas, small_model
from draftproof.proofs.search import agrees_with_head
from draftproof.proofs.solvers import Z3_RESOURCES, ask_z3
from draftproof.spec.events import Schedule
from draftproof.spec.invariants import invariants
from draftproof.spec.queue import dispatched

RETURNING = ("chunk_output", "output", "stale_output")


class Refutation(NamedTuple):
    """What z3 said about one obligation of the faulty code."""

    path: str
    verdict: str
    """`refuted`, `proved`, `unknown`, `not claimed`: the proofs make no such statement (any more); or
    `about the queue`: without facts about the queue the right code does not prove it either."""
    counterexample: dict[str, str]


def _function_of(path: str) -> str:
    return path.partition("/")[0]


def changes_guard(fault: Fault) -> bool:
    """Whether the fault changes when events may happen, and with it what the queue can hold."""
    return any(change.module == GUARDS for change in fault.changes)


def faulty_obligations(fault: Fault, function: str, code: Code | None = None) -> list[Obligation]:
    """Everything claimed about one transition or decision, of the faulty code, in the fault's mode.

    `code` replaces the faulty code: the right one, to be judged from the same hypotheses.
    """
    code = patched(fault.changes) if code is None else code
    if function in code.decisions:
        found = decision_obligations(function, code.decisions[function])
    else:
        found = transition_obligations(function, code.transitions[function])
        if changes_guard(fault):
            weaker = _without_queue_facts(found[0].hypotheses, code, function)
            found = [claim._replace(hypotheses=weaker) for claim in found]
    if fault.asynchronous is None:
        return found
    rules = symbolic_rules()
    mode = rules.asynchronous if fault.asynchronous else z3.Not(rules.asynchronous)
    return [claim._replace(hypotheses={**claim.hypotheses, "rules:mode": mode}) for claim in found]


def _without_queue_facts(hypotheses: dict[str, Any], code: Code, function: str) -> dict[str, Any]:
    """The guard is this code's control conditions; of the queue only its head is known, as dispatched."""
    state, rules, event = symbolic_state(), symbolic_rules(), symbolic_event(function)
    kept = {key: fact for key, fact in hypotheses.items() if not key.startswith("guard:")}
    control = code.control[function](state, rules, event)
    kept |= {f"guard:{key}": fact for key, fact in control.items()}
    return kept | (_head_was_dispatched(code, function) if function in RETURNING else {})


def _head_was_dispatched(code: Code, function: str) -> dict[str, Any]:
    """The event returns a step that this code let dispatch in some earlier state with the invariants, and
    the step is among what is in flight."""
    state, rules, event = symbolic_state(), symbolic_rules(), symbolic_event(function)
    earlier, schedule = symbolic_state("dispatched."), symbols(Schedule, "dispatched.")
    facts = {f"dispatched:{key}": fact for key, fact in invariants(earlier, rules).items()}
    control = code.control["schedule"](earlier, rules, schedule)
    facts |= {f"dispatched:guard:{key}": fact for key, fact in control.items()}
    head = agrees_with_head(function, state, dispatched(earlier, schedule), event)
    head.append(event.num_returned <= state.ledger.num_in_flight_tokens)
    return facts | {f"head:{index}": fact for index, fact in enumerate(head)}


def _decide(claim: Obligation, resources: int, of_right_code: Obligation | None) -> Refutation:
    asked = formulas(claim)
    answer = ask_z3(asked, resources)
    verdict = {"sat": "refuted", "unsat": "proved"}.get(answer.verdict, "unknown")
    if answer.model is None:
        return Refutation(claim.name, verdict, {})
    if of_right_code is not None and ask_z3(formulas(of_right_code), resources).verdict != "unsat":
        return Refutation(claim.name, "about the queue", {})
    return Refutation(claim.name, verdict, counterexample(small_model(asked, answer.model)))


def _claims(fault: Fault, functions: list[str]) -> dict[str, tuple[Obligation, Obligation | None]]:
    """The claims about some functions by path, each with the right code's where that has to be asked too."""
    found: dict[str, tuple[Obligation, Obligation | None]] = {}
    for function in dict.fromkeys(functions):
        claims = faulty_obligations(fault, function)
        right: list[Obligation | None] = [None] * len(claims)
        if changes_guard(fault):
            right = [*faulty_obligations(fault, function, right_code())]
        found |= {claim.name: (claim, other) for claim, other in zip(claims, right, strict=True)}
    return found


def refute(fault: Fault, resources: int = Z3_RESOURCES) -> list[Refutation]:
    """z3's word on each obligation that the fault says it violates, in the fault's order."""
    claims = _claims(fault, [_function_of(path) for path in fault.violated])
    return [
        _decide(claims[path][0], resources, claims[path][1])
        if path in claims
        else Refutation(path, "not claimed", {})
        for path in fault.violated
    ]


def refute_all(fault: Fault, resources: int = Z3_RESOURCES) -> list[Refutation]:
    """z3's word on everything claimed about the functions that the fault changes or violates."""
    functions = [_function_of(path) for path in fault.violated]
    code = patched(fault.changes)
    functions += [c.function for c in fault.changes if c.function in code.transitions | code.decisions]
    return [_decide(claim, resources, right) for claim, right in _claims(fault, functions).values()]
