"""Do the proofs notice a fault? Its obligations, built from the faulty code, must be refuted.

A refutation needs one solver only: a counterexample speaks for itself. `unknown` is not a refutation.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import z3

from draftproof.proofs.carrier_z3 import symbolic_event, symbolic_rules, symbolic_state
from draftproof.proofs.decisions import decision_obligations
from draftproof.proofs.faults.fault import Fault
from draftproof.proofs.faults.patching import Code, patched
from draftproof.proofs.induction import transition_obligations
from draftproof.proofs.obligations import Obligation, counterexample, formulas
from draftproof.proofs.solvers import Z3_RESOURCES, ask_z3


class Refutation(NamedTuple):
    """What z3 said about one obligation of the faulty code."""

    path: str
    verdict: str
    """`refuted`, `proved`, `unknown`, or `not claimed`: the proofs make no such statement (any more)."""
    counterexample: dict[str, str]


def _function_of(path: str) -> str:
    return path.partition("/")[0]


def faulty_obligations(fault: Fault, function: str) -> list[Obligation]:
    """Everything claimed about one transition or decision, of the faulty code, in the fault's mode."""
    code = patched(fault.changes)
    if function in code.decisions:
        found = decision_obligations(function, code.decisions[function])
    else:
        found = [
            claim._replace(hypotheses=_with_faulty_guard(claim.hypotheses, code, function))
            for claim in transition_obligations(function, code.transitions[function])
        ]
    if fault.asynchronous is None:
        return found
    rules = symbolic_rules()
    mode = rules.asynchronous if fault.asynchronous else z3.Not(rules.asynchronous)
    return [claim._replace(hypotheses={**claim.hypotheses, "rules:mode": mode}) for claim in found]


def _with_faulty_guard(hypotheses: dict[str, Any], code: Code, function: str) -> dict[str, Any]:
    """The hypotheses with the guard as the faulty code has it."""
    state, rules, event = symbolic_state(), symbolic_rules(), symbolic_event(function)
    kept = {key: fact for key, fact in hypotheses.items() if not key.startswith("guard:")}
    guard = code.conditions(function, state, rules, event)
    return kept | {f"guard:{key}": fact for key, fact in guard.items()}


def _decide(claim: Obligation, resources: int) -> Refutation:
    answer = ask_z3(formulas(claim), resources)
    verdict = {"sat": "refuted", "unsat": "proved"}.get(answer.verdict, "unknown")
    model = counterexample(answer.model) if answer.model is not None else {}
    return Refutation(claim.name, verdict, model)


def refute(fault: Fault, resources: int = Z3_RESOURCES) -> list[Refutation]:
    """z3's word on each obligation that the fault says it violates, in the fault's order."""
    claims: dict[str, Obligation] = {}
    for function in dict.fromkeys(_function_of(path) for path in fault.violated):
        claims |= {claim.name: claim for claim in faulty_obligations(fault, function)}
    return [
        _decide(claims[path], resources) if path in claims else Refutation(path, "not claimed", {})
        for path in fault.violated
    ]


def refute_all(fault: Fault, resources: int = Z3_RESOURCES) -> list[Refutation]:
    """z3's word on everything claimed about the functions that the fault changes or violates."""
    functions = [_function_of(path) for path in fault.violated]
    code = patched(fault.changes)
    functions += [c.function for c in fault.changes if c.function in code.transitions | code.decisions]
    return [
        _decide(claim, resources)
        for function in dict.fromkeys(functions)
        for claim in faulty_obligations(fault, function)
    ]
