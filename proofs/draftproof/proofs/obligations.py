"""An obligation: hypotheses, a goal, and what a person needs to know about it.

Deciding one asks both solvers for a counterexample (hypotheses and not goal). Proved means that both
say there is none; where only z3 was asked (`shared_solver`) the verdict says so and is counted apart.
A counterexample is `refuted`, a resource limit or a disagreement is `unknown`; neither ever counts as
proved. Whether the hypotheses can be met at all is decided apart (`vacuity`), so that nothing is proved
from a contradiction.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import z3

from draftproof.proofs.carrier_z3 import facts_about, floor_facts, floor_terms
from draftproof.proofs.solvers import (
    CVC5_RESOURCES,
    MODEL_RESOURCES,
    Z3_RESOURCES,
    answer_of,
    ask_cvc5,
    ask_z3,
    model_solver,
    new_solver,
    script_of,
)
from draftproof.proofs.verdicts import NOT_ASKED


class Obligation(NamedTuple):
    """One claim about the code. `hypotheses` are named, so that the ones a proof needs can be shown."""

    name: str
    """Unique, a path: `output/effect/frontier`."""
    kind: str
    """`effect`, `invariant`, `theorem`, `refinement`, `integers`, `axiom`, ..."""
    theorem: str
    """The theorem it belongs to (`T2`, `R1`, `effects`, `invariants`)."""
    hypotheses: dict[str, Any]
    goal: Any
    assumption_group: str = ""
    """Obligations of one group share their hypotheses: satisfiability is checked once per group."""


class Verdict(NamedTuple):
    """The outcome of one obligation."""

    name: str
    kind: str
    theorem: str
    outcome: str
    """`proved`, `refuted`, `unknown` or `disagreement`."""
    z3: str
    cvc5: str
    """`not asked` if z3 decided alone."""
    z3_seconds: float
    cvc5_seconds: float
    counterexample: dict[str, str]


class _Prepared(NamedTuple):
    """A set of hypotheses as formulas, with the floor terms in them and the facts about those."""

    hypotheses: dict[str, Any]
    stated: list[Any]
    terms: list[Any]
    facts: list[Any]


_LATEST: list[_Prepared] = []
"""The hypotheses prepared last: obligations come in groups that share them."""


def _prepared(hypotheses: dict[str, Any]) -> _Prepared:
    if not _LATEST or _LATEST[0].hypotheses is not hypotheses:
        stated = [_formula(fact) for fact in hypotheses.values()]
        terms = floor_terms(stated)
        _LATEST[:] = [_Prepared(hypotheses, stated, terms, facts_about(terms, []))]
    return _LATEST[0]


def formulas(obligation: Obligation) -> list[Any]:
    """Hypotheses and negated goal, with the floor facts that they need."""
    prepared = _prepared(obligation.hypotheses)
    goal = z3.Not(_formula(obligation.goal))
    known = {term.get_id() for term in prepared.terms}
    new = [term for term in floor_terms([goal]) if term.get_id() not in known]
    return [*prepared.stated, goal, *prepared.facts, *facts_about(new, prepared.terms)]


def _formula(value: Any) -> Any:
    """A z3 formula; a goal that folded to a Python truth value becomes a constant."""
    return z3.BoolVal(value) if isinstance(value, bool) else value


def outcome_of(z3_verdict: str, cvc5_verdict: str) -> str:
    """Proved only if every solver that was asked says so; two contradicting each other is its own failure."""
    verdicts = {z3_verdict, cvc5_verdict} - {NOT_ASKED}
    if verdicts == {"unsat"}:
        return "proved"
    if verdicts == {"sat", "unsat"}:
        return "disagreement"
    if "sat" in verdicts:
        return "refuted"
    return "unknown"


def counterexample(model: Any) -> dict[str, str]:
    """The integers and truth values of a model, by name."""
    return {
        str(declaration): str(model[declaration])
        for declaration in sorted(model.decls(), key=str)
        if declaration.arity() == 0 and "!" not in str(declaration)
    }


def small_model(asked: list[Any], model: Any, resources: int = Z3_RESOURCES) -> Any:
    """A counterexample with small numbers if there is one: a person has to read it."""
    integers = [
        declaration()
        for declaration in model.decls()
        if declaration.arity() == 0 and z3.is_int(declaration())
    ]
    named = {str(integer): integer for integer in integers}
    # A step of real life has at most K drafts (R1); without the hint the smallest K is 0.
    lifelike = []
    if {"event.num_drafts", "num_speculative_tokens"} <= set(named):
        lifelike = [named["event.num_drafts"] <= named["num_speculative_tokens"]]
    for hint in (lifelike, []):
        for limit in (4, 8, 16, 64):
            bounds = [z3.And(integer >= -limit, integer <= limit) for integer in integers]
            answer = ask_z3([*asked, *bounds, *hint], resources)
            if answer.model is not None:
                return answer.model
    return model


def decide(
    obligation: Obligation, z3_resources: int = Z3_RESOURCES, cvc5_resources: int = CVC5_RESOURCES
) -> Verdict:
    """Ask both solvers for a counterexample."""
    asked = formulas(obligation)
    solver = new_solver(asked, z3_resources)
    script = script_of(solver)  # before the check, which may add what it learned
    first = answer_of(solver)
    second = ask_cvc5(script, cvc5_resources)
    return Verdict(
        name=obligation.name,
        kind=obligation.kind,
        theorem=obligation.theorem,
        outcome=outcome_of(first.verdict, second.verdict),
        z3=first.verdict,
        cvc5=second.verdict,
        z3_seconds=first.seconds,
        cvc5_seconds=second.seconds,
        counterexample=counterexample(small_model(asked, first.model)) if first.model is not None else {},
    )


def meeting(hypotheses: Mapping[str, Any]) -> Any:
    """A state that meets the hypotheses, as z3's model; None if there is none, or z3 cannot tell."""
    stated = [_formula(fact) for fact in hypotheses.values()]
    return answer_of(model_solver(stated + floor_facts(stated))).model


def satisfiable(hypotheses: Mapping[str, Any]) -> bool:
    """Whether some state meets the hypotheses: otherwise everything follows from them. z3 must say so."""
    return meeting(hypotheses) is not None


def needed_hypotheses(obligation: Obligation, minimal: bool = True) -> tuple[str, ...] | None:
    """Named hypotheses from which z3 proves the goal (an unsat core); None if it does not prove it.

    `minimal` shrinks the core until nothing in it can go, which takes long where there are quantifiers.
    """
    stated = {name: _formula(fact) for name, fact in obligation.hypotheses.items()}
    goal = z3.Not(_formula(obligation.goal))
    facts = floor_facts([*stated.values(), goal])
    solver = z3.Solver()
    # Several claims are asked together (`tasks`), which needs more than each of them alone.
    solver.set("rlimit", MODEL_RESOURCES)
    solver.set("unsat_core", True)
    solver.set("core.minimize", minimal)
    solver.add(goal, *facts)
    markers = {}
    for name, fact in stated.items():
        marker = z3.Bool(f"hypothesis:{name}")
        markers[str(marker)] = name
        solver.assert_and_track(fact, marker)
    if str(solver.check()) != "unsat":
        return None
    core = {str(marker) for marker in solver.unsat_core()}
    return tuple(markers[marker] for marker in markers if marker in core)
