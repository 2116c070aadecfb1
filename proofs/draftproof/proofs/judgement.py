"""What do the proofs say about one mutant? Killed, equivalent, survived, or not decided.

A mutant is killed if z3 finds a counterexample to a claim about it: to an invariant, to a theorem or to
an effect, asked apart so that each defence can be counted. It is equivalent if z3 proves that every field
comes out the same in every state that the invariants and the guard allow. An `unknown` is neither.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import z3

from draftproof.proofs.carrier_z3 import symbolic_event, symbolic_rules, symbolic_state
from draftproof.proofs.induction import hypotheses, step, transition_obligations
from draftproof.proofs.mutants import Mutant, callers, compiled
from draftproof.proofs.obligations import Obligation, formulas, needed_hypotheses
from draftproof.proofs.solvers import ask_z3
from draftproof.spec.ledger import Ledger

DEFENCES = ("invariant", "theorem", "effect")


class IllFormed(Exception):
    """The mutant cannot run: it mixes truth values with integers, or reads a variable that is not set yet."""


class Judgement(NamedTuple):
    """A mutant and what was found out about it."""

    mutant: Mutant
    outcome: str
    """`killed`, `equivalent`, `survived`, `unknown` or `ill-formed`."""
    killed_by: tuple[str, ...]
    """The defences that alone kill it: `invariant`, else perhaps `theorem`, and `effect`."""
    needed: tuple[str, ...]
    """Of an equivalent mutant: the invariants and guards that a proof of its equality uses."""


def _all(goals: list[Any]) -> Any:
    return z3.And(*[z3.BoolVal(goal) if isinstance(goal, bool) else goal for goal in goals])


def _check_types(ledger: Ledger) -> None:
    for field, value in ledger._asdict().items():
        if z3.is_bool(value) != (field == "drop_stale"):
            raise IllFormed(field)


def _claims(name: str, code: Callable[..., Any]) -> tuple[dict[str, Obligation], Obligation]:
    """The claims about a changed transition, one conjunction per defence; and that it changes nothing."""
    before, rules, event = symbolic_state(), symbolic_rules(), symbolic_event(name)
    try:
        changed = step(name, before, rules, event, code).ledger
        _check_types(changed)
        claims = transition_obligations(name, code)
    except (TypeError, NameError, z3.Z3Exception) as error:
        raise IllFormed(str(error)) from error
    assumed = hypotheses(name, before, rules, event)
    conjunctions = {
        defence: Obligation(
            f"{name}/{defence}s",
            defence,
            "",
            assumed,
            _all([claim.goal for claim in claims if claim.kind == defence]),
        )
        for defence in DEFENCES
    }
    same = _all(
        [one == two for one, two in zip(changed, step(name, before, rules, event).ledger, strict=True)]
    )
    return conjunctions, Obligation(f"{name}/same", "equivalence", "", assumed, same)


def judge(mutant: Mutant) -> Judgement:
    """Judge a mutant in every transition that runs the changed function."""
    code = compiled({mutant.function: mutant.source})
    verdicts: dict[str, list[str]] = {defence: [] for defence in DEFENCES}
    equal: list[str] = []
    needed: list[str] = []
    try:
        for name in callers(mutant.function):
            conjunctions, same = _claims(name, code[name])
            for defence in DEFENCES:
                # Theorems are asked only about what the invariants let pass: the table counts both together.
                if defence != "theorem" or verdicts["invariant"][-1] != "sat":
                    verdicts[defence].append(ask_z3(formulas(conjunctions[defence])).verdict)
            # A result that breaks a claim which the running code keeps cannot be the running code's.
            refuted = any("sat" in found for found in verdicts.values())
            equal.append("sat" if refuted else ask_z3(formulas(same)).verdict)
            if equal[-1] == "unsat":
                needed += needed_hypotheses(same) or ()
    except IllFormed:
        return Judgement(mutant, "ill-formed", (), ())
    killed_by = tuple(defence for defence in DEFENCES if "sat" in verdicts[defence])
    everything = [verdict for found in (*verdicts.values(), equal) for verdict in found]
    if "unknown" in everything:
        return Judgement(mutant, "unknown", killed_by, ())
    if all(verdict == "unsat" for verdict in equal):
        return Judgement(mutant, "equivalent", (), tuple(dict.fromkeys(needed)))
    return Judgement(mutant, "killed" if killed_by else "survived", killed_by, ())
