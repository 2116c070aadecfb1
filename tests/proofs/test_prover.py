"""The prover itself: what is false is refuted, and nothing undecided ever counts as proved."""

from __future__ import annotations

from typing import Any

import pytest
import z3

from draftproof.proofs import obligations as prover
from draftproof.proofs.controls import Control, decide_control
from draftproof.proofs.induction import base_obligations, transition_obligations
from draftproof.proofs.obligations import (
    Obligation,
    decide,
    formulas,
    needed_hypotheses,
    outcome_of,
    satisfiable,
)
from draftproof.proofs.shared_solver import SharedSolver, decide_by_z3
from draftproof.proofs.solvers import Answer, ask_cvc5, ask_z3, new_solver, to_smtlib

number: Any = z3.Int("number")
other: Any = z3.Int("other")


def claim(goal: Any, **hypotheses: Any) -> Obligation:
    return Obligation("sample", "theorem", "T1", hypotheses, goal)


def hard() -> Obligation:
    """Two factors of a prime: true, but a solver has to search for long."""
    left: Any = z3.Int("left")
    right: Any = z3.Int("right")
    prime = 170141183460469231731687303715884105727
    return claim(left * right != prime, left=z3.And(left > 1, left < prime), right=z3.And(right > 1))


def test_a_true_theorem_is_proved_by_both_solvers() -> None:
    verdict = decide(claim(number + 1 > 1, positive=number > 0))
    assert (verdict.outcome, verdict.z3, verdict.cvc5) == ("proved", "unsat", "unsat")


def test_a_false_theorem_is_refuted_with_the_numbers() -> None:
    verdict = decide(claim(number > 1, positive=number > 0))
    assert verdict.outcome == "refuted"
    assert verdict.counterexample == {"number": "1"}


def test_a_wrong_transition_is_refuted() -> None:
    from draftproof.proofs.mutants import compiled, mutants

    (forgets_the_trim,) = [
        mutant
        for mutant in mutants(("output",))
        if mutant.operator == "dropped term"
        and mutant.before.startswith("ledger.num_computed_tokens - num_rejected - num_trimmed")
        and mutant.after == "ledger.num_computed_tokens - num_rejected"
    ]
    code = compiled({"output": forgets_the_trim.source})["output"]
    refuted = {
        found.name
        for found in map(decide, transition_obligations("output", code))
        if found.outcome == "refuted"
    }
    assert "output/effect/frontier" in refuted
    assert "output/theorem/T2/output_moves_frontier_by_kept" in refuted


def test_a_contradiction_proves_everything_and_is_rejected_as_vacuous() -> None:
    nothing = claim(number == 1234, positive=number > 0, negative=number < 0)
    assert decide(nothing).outcome == "proved"
    assert not satisfiable(nothing.hypotheses)
    assert satisfiable({"positive": number > 0})


def test_a_contradiction_that_needs_the_floor_is_rejected_too() -> None:
    from draftproof.proofs.carrier_z3 import FLOOR

    block: Any = z3.Int("block")
    assert not satisfiable(
        {"block": block >= 1, "above": FLOOR(number, block) > number, "count": number >= 0}
    )


def test_the_hypotheses_of_every_transition_can_be_met() -> None:
    from draftproof.spec.events import EVENTS

    for name in EVENTS:
        assert satisfiable(transition_obligations(name)[0].hypotheses), name
    assert satisfiable(base_obligations()[0].hypotheses)


def test_an_exhausted_resource_is_unknown() -> None:
    verdict = decide(hard(), z3_resources=2_000, cvc5_resources=200)
    assert (verdict.outcome, verdict.z3, verdict.cvc5) == ("unknown", "unknown", "unknown")


@pytest.mark.parametrize(
    ("z3_says", "cvc5_says", "outcome"),
    [
        ("unsat", "unsat", "proved"),
        ("unsat", "unknown", "unknown"),
        ("unknown", "unsat", "unknown"),
        ("unknown", "unknown", "unknown"),
        ("sat", "sat", "refuted"),
        ("sat", "unknown", "refuted"),
        ("unknown", "sat", "refuted"),
        ("sat", "unsat", "disagreement"),
        ("unsat", "sat", "disagreement"),
    ],
)
def test_proved_takes_two(z3_says: str, cvc5_says: str, outcome: str) -> None:
    assert outcome_of(z3_says, cvc5_says) == outcome


def test_a_second_solver_that_gives_up_unproves(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(prover, "ask_cvc5", lambda script, resources: Answer("unknown", 0.0))
    assert decide(claim(number + 1 > 1, positive=number > 0)).outcome == "unknown"


def test_a_second_solver_that_disagrees_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(prover, "ask_cvc5", lambda script, resources: Answer("sat", 0.0))
    assert decide(claim(number + 1 > 1, positive=number > 0)).outcome == "disagreement"


def test_one_solver_says_that_it_was_alone() -> None:
    true, false = claim(number + 1 > number), claim(number > 1, positive=number > 0)
    verdicts = decide_by_z3([true, false, true])
    assert [(one.outcome, one.z3, one.cvc5) for one in verdicts] == [
        ("proved", "unsat", "not asked"),
        ("refuted", "sat", "not asked"),
        ("proved", "unsat", "not asked"),
    ]
    assert verdicts[1].counterexample == {"number": "1"}
    assert [one.outcome for one in decide_by_z3([hard()], resources=2_000)] == ["unknown"]


def test_a_shared_solver_answers_what_a_new_one_does() -> None:
    solver = SharedSolver(new_solver([]))
    above, below, same = number > 5, number < 5, number == other
    questions = [[above], [above, below], [above, same], [same, other > 9], [same], [], [below, same, above]]
    for question in [*questions, *reversed(questions)]:
        assert solver.ask(question).verdict == ask_z3(question).verdict, question


def test_the_second_solver_reads_the_text_for_itself() -> None:
    assert ask_cvc5("(set-logic ALL)(declare-const x Int)(assert (> x x))(check-sat)").verdict == "unsat"
    assert ask_cvc5("(set-logic ALL)(declare-const x Int)(assert (> x 0))(check-sat)").verdict == "sat"
    assert ask_cvc5("(set-logic ALL)(declare-const x Int)(assert (> x x))").verdict == "unknown"


def test_needed_hypotheses_are_minimal_and_none_for_a_false_goal() -> None:
    proved = claim(number > 0, above=number > other, positive=other > 0, idle=number < 10_000)
    assert needed_hypotheses(proved) == ("above", "positive")
    assert needed_hypotheses(claim(number + 1 > number, idle=number < 10_000)) == ()
    assert needed_hypotheses(claim(number > 0, idle=number < 10_000)) is None


def test_a_control_passes_only_on_a_counterexample() -> None:
    def control(*claims: Obligation) -> Control:
        return Control("sample", "A sentence.", "statement", list(claims))

    true, false = claim(number + 1 > number), claim(number > 0)
    assert decide_control(control(true, false)) == "refuted"
    assert decide_control(control(true)) == "not noticed"
    assert decide_control(control()) == "unknown"
    assert decide_control(control(hard()), resources=2_000) == "unknown"


def test_the_exported_text_means_the_same() -> None:
    for obligation in (*transition_obligations("output")[:5], claim(number > 1, positive=number > 0)):
        script = to_smtlib(formulas(obligation), "a comment\nof two lines")
        assert script.startswith("; a comment\n; of two lines\n(set-logic ALL)\n")
        read: Any = z3.parse_smt2_string(script)
        assert ask_z3(list(read)).verdict == ask_z3(formulas(obligation)).verdict
