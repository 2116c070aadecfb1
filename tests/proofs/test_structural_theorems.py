"""T8 to T11 and the floor's axioms: proved by both solvers, and refuted where they say too much."""

from __future__ import annotations

from typing import Any

import pytest
import z3

from draftproof.impl import accounting
from draftproof.impl.contracts import plain
from draftproof.proofs import capacity, commutation, floor, integers, sessions
from draftproof.proofs.carrier_z3 import floor_facts
from draftproof.proofs.controls import Control, decide_control
from draftproof.proofs.obligations import Obligation, decide, formulas, satisfiable
from draftproof.proofs.solvers import ask_z3
from draftproof.proofs.terms import choose, integer
from draftproof.spec.ledger import Ledger, Rules
from draftproof.spec.theorems import THEOREMS

MODULES = (floor, commutation, sessions, capacity, integers)
CONTROLS = [control for module in MODULES for control in module.controls()]


@pytest.mark.parametrize("control", CONTROLS, ids=lambda control: control.name)
def test_control_is_refuted(control: Control) -> None:
    assert decide_control(control) == "refuted", control.sentence


@pytest.mark.parametrize("module", [floor, sessions], ids=["floor", "sessions"])
def test_both_solvers_prove_all(module: Any) -> None:
    assert {decide(obligation).outcome for obligation in module.obligations()} == {"proved"}


@pytest.mark.parametrize("module", MODULES, ids=lambda module: module.__name__.rpartition(".")[2])
def test_names_are_unique_and_hypotheses_can_be_met(module: Any) -> None:
    obligations = module.obligations()
    assert len({obligation.name for obligation in obligations}) == len(obligations)
    assert {obligation.theorem for obligation in obligations} <= {*THEOREMS, "axioms"}
    witnesses = module.witnesses() if hasattr(module, "witnesses") else {}
    groups = {obligation.assumption_group: obligation.hypotheses for obligation in obligations}
    for group, hypotheses in groups.items():
        assert satisfiable(witnesses.get(group, hypotheses)), group


def test_every_fact_that_proofs_use_about_the_floor_is_proved() -> None:
    claims = {obligation.name.rpartition("/")[2] for obligation in floor.obligations()}
    assert "all_as_used" in claims
    block_size = integer("block_size")
    wrong = z3.Implies(block_size >= 1, floor.real_floor(integer("first"), block_size) == integer("first"))
    claim = Obligation("wrong", "axiom", "axioms", {"size": block_size >= 1}, wrong)
    assert decide(claim).outcome == "refuted"
    assert floor_facts([wrong]) == []  # the real floor needs no facts: nothing is assumed about it here


def _publishing_drafts(ledger: Ledger, rules: Rules, num_new_tokens: int) -> Ledger:
    """A fault: a dispatch publishes blocks up to C, drafts included."""
    after: Ledger = plain(accounting.schedule)(ledger, rules, num_new_tokens)
    registered = accounting.registrable(after.num_computed_tokens, rules)
    return after._replace(num_registered_tokens=registered)


def test_a_dispatch_that_publishes_drafts_breaks_commutation() -> None:
    obligations = commutation.obligations({"schedule": _publishing_drafts})
    broken = {obligation.name for obligation in obligations if ask_z3(formulas(obligation)).verdict == "sat"}
    assert "T9/output/registered_between" in broken
    assert "T9/output/all_but_registered_equal" not in broken


def _summed_from_the_left(ledger: Ledger, rules: Rules, num_new_tokens: int) -> Ledger:
    """The same numbers, but added in an order whose intermediate sum is too large for a device."""
    after: Ledger = plain(accounting.schedule)(ledger, rules, num_new_tokens)
    sum_of_all = ledger.num_output_placeholders + after.num_computed_tokens + 1
    too_large = sum_of_all - (ledger.num_tokens + ledger.num_output_placeholders)
    return after._replace(num_draft_tokens=too_large)


def test_the_order_of_additions_matters_on_a_device() -> None:
    obligations = integers.row_obligations("schedule", integers.GUARDED, _summed_from_the_left)
    verdicts = {
        obligation.name.rpartition("/")[2]: ask_z3(formulas(obligation)).verdict for obligation in obligations
    }
    assert {field for field, verdict in verdicts.items() if verdict == "sat"} == {"num_draft_tokens"}


def test_every_operand_of_a_formula_is_looked_at() -> None:
    first, second = integer("first"), integer("second")
    terms = integers.integer_terms(choose(first + second > 3, first * 2, 7))
    assert {str(term) for term in terms} == {
        "first",
        "second",
        "first + second",
        "first*2",
        "If(first + second > 3, first*2, 7)",
    }
