"""Recurrent state: everything is proved, the proofs are about something, and every fault is noticed."""

from __future__ import annotations

import pytest
import z3

from draftproof.proofs import recurrent, recurrent_ledger, recurrent_mutants
from draftproof.proofs.controls import decide_control
from draftproof.proofs.obligations import Obligation, decide, formulas, satisfiable
from draftproof.proofs.recurrent_faults import FAULTS, UNMODELLED
from draftproof.proofs.recurrent_mutant import RecurrentFault, changed_code, sources
from draftproof.proofs.results import TEXTS
from draftproof.proofs.solvers import ask_z3
from draftproof.proofs.sources import built, to_satisfy
from draftproof.spec.recurrent import Recurrent
from draftproof.spec.recurrent_effects import recurrent_effects
from draftproof.spec.recurrent_events import HOST_ARGUMENTS, RECURRENT_EVENTS
from draftproof.spec.recurrent_theorems import RECURRENT_CLAIMS, RECURRENT_THEOREMS


def verdict(claim: Obligation) -> str:
    return ask_z3(formulas(claim)).verdict


def test_everything_is_proved_for_all_sizes() -> None:
    verdicts = {claim.name: verdict(claim) for claim in built("recurrent")}
    assert len(verdicts) > 450
    assert {name for name, found in verdicts.items() if found != "unsat"} == set()


@pytest.mark.parametrize("theorem", RECURRENT_THEOREMS)
def test_the_second_solver_agrees_on_the_theorems(theorem: str) -> None:
    """On the rest it is asked in a run of the proofs."""
    claims = [claim for claim in built("recurrent") if claim.theorem == theorem]
    asked = claims[:: max(1, len(claims) // 4)]
    assert {decide(claim).outcome for claim in asked} == {"proved"}


def test_names_are_unique_and_every_theorem_event_and_claim_is_there() -> None:
    claims = built("recurrent")
    names = [claim.name for claim in claims]
    assert len(names) == len(set(names))
    assert {claim.theorem for claim in claims} == {*RECURRENT_THEOREMS, recurrent.FAMILY}
    assert set(RECURRENT_THEOREMS) <= set(TEXTS) and recurrent.FAMILY in TEXTS
    for claim in RECURRENT_CLAIMS:
        for event in claim.events:
            assert f"recurrent/{event}/theorem/{claim.theorem}/{claim.name}" in names
    for event in RECURRENT_EVENTS:
        assert any(name.startswith(f"recurrent/{event}/invariant/") for name in names)


def test_no_group_of_hypotheses_is_a_contradiction() -> None:
    asked = to_satisfy("recurrent")
    assert len(asked) > 30
    assert [group for group, facts in asked.items() if not satisfiable(facts)] == []


def test_every_invariant_is_needed_somewhere() -> None:
    """Without it some claim about some event is not proved any more."""
    claims = [claim for claim in built("recurrent") if claim.name.split("/")[1] in RECURRENT_EVENTS]
    groups: dict[str, list[Obligation]] = {}
    for claim in claims:
        groups.setdefault(claim.assumption_group, []).append(claim)
    invariants = {key for claim in claims for key in claim.hypotheses if key.startswith("invariant:")}
    assert len(invariants) > 25
    idle = []
    for name in sorted(invariants):
        for group in groups.values():
            hypotheses = {key: fact for key, fact in group[0].hypotheses.items() if key != name}
            together = group[0]._replace(hypotheses=hypotheses, goal=z3.And([claim.goal for claim in group]))
            if verdict(together) != "unsat":
                break
        else:
            idle.append(name)
    assert idle == []


# ---- the effects are complete


EFFECTS = [
    (event, effect)
    for event in HOST_ARGUMENTS
    for effect in recurrent_effects(
        event,
        Recurrent(*[0] * 10),
        recurrent.setting(event).rules,
        recurrent.setting(event).event,
        Recurrent(*[0] * 10),
    )
]


def test_every_effect_is_needed_for_completeness() -> None:
    """Left out, two records that satisfy the others may differ; but for relations that others imply."""
    spare = [
        f"{event}/{effect}"
        for event, effect in EFFECTS
        if verdict(recurrent.completeness_obligation(event, without=effect)) == "unsat"
    ]
    assert spare == []


# ---- faults


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.name)
def test_a_fault_is_refuted_by_its_claim_and_the_running_code_is_not(fault: RecurrentFault) -> None:
    broken = recurrent_mutants.named_claims(fault)
    assert [claim.name for claim in broken] == [f"recurrent/{fault.refuted_by}"]
    assert verdict(broken[0]) == "sat"
    assert verdict(next(claim for claim in built("recurrent") if claim.name == broken[0].name)) == "unsat"


HARMFUL = [fault for fault in FAULTS if fault.harm]


@pytest.mark.parametrize("fault", HARMFUL, ids=lambda fault: fault.name)
def test_a_fault_does_its_harm_to_a_new_request(fault: RecurrentFault) -> None:
    explored = recurrent_mutants.shortest_harm(fault)
    assert any(harm.startswith(fault.harm) for harm in explored.found), explored


def test_faults_have_names_of_their_own_and_reports_are_told_or_explained() -> None:
    names = [fault.name for fault in FAULTS]
    assert len(names) == len(set(names)) >= 25
    assert len(HARMFUL) >= 17
    assert {fault.refuted_by.split("/")[2] for fault in FAULTS if "/theorem/" in fault.refuted_by} == set(
        RECURRENT_THEOREMS
    )
    assert all(reason for reason in UNMODELLED.values())


def test_a_change_that_does_not_fit_the_source_is_an_error() -> None:
    with pytest.raises(ValueError, match="publish has 'nowhere' 0 times"):
        changed_code("publish", (("nowhere", ""),))
    assert "publish" in sources() and "chunk_to_schedule" in sources()


def test_the_relation_of_ledger_and_record_is_needed() -> None:
    controls = recurrent_ledger.controls()
    assert len(controls) == 3
    assert {decide_control(control) for control in controls} == {"refuted"}
