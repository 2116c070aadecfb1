"""The refinements R1 and R2 prove what they claim, and notice what is wrong."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import z3

from draftproof.impl import accounting
from draftproof.impl.contracts import plain
from draftproof.proofs import (
    queue_bounds,
    queue_model,
    refinement_consequences,
    refinement_queue,
    refinement_tokens,
    token_identity,
    token_model,
)
from draftproof.proofs.controls import Control, decide_control
from draftproof.proofs.device import ASSUMPTIONS, moved
from draftproof.proofs.obligations import Obligation, decide, formulas, satisfiable
from draftproof.proofs.queue_model import Scope
from draftproof.proofs.solvers import ask_z3
from draftproof.proofs.terms import integer
from draftproof.spec.ghosts import State
from draftproof.spec.ledger import Ledger, Rules

CONTROLS = [
    *refinement_queue.controls(),
    *queue_bounds.controls(),
    *refinement_tokens.controls(),
    *token_identity.controls(),
]
WITNESSES = {
    **refinement_queue.witnesses(),
    **queue_bounds.witnesses(),
    **refinement_tokens.witnesses(),
    **refinement_consequences.witnesses(),
    **token_identity.witnesses(),
}


def test_no_assumption_is_without_a_control_wherever_it_is_used() -> None:
    controlled = {
        tuple(control.name.split("/")[2:])
        for control in CONTROLS
        if control.kind == "assumption" and "/assumption/" in control.name
    }
    used = {(name, transition) for name, known in ASSUMPTIONS.items() for transition in known.transitions}
    assert {pair for pair in controlled if pair[0] != "no_collisions"} == used
    about_identities = {name for name, known in ASSUMPTIONS.items() if not known.transitions}
    assert {name for name, _ in controlled} == {name for name, _ in used} | about_identities


def refuted(obligations: list[Obligation]) -> set[str]:
    """The last parts of the names of the obligations that z3 has a counterexample to."""
    return {
        obligation.name.rpartition("/")[2]
        for obligation in obligations
        if ask_z3(formulas(obligation)).verdict == "sat"
    }


@pytest.mark.parametrize("control", CONTROLS, ids=lambda control: control.name)
def test_control_is_refuted(control: Control) -> None:
    assert decide_control(control) == "refuted", control.sentence


@pytest.mark.parametrize("group", WITNESSES)
def test_hypotheses_can_be_met(group: str) -> None:
    assert satisfiable(WITNESSES[group])


def test_every_group_over_a_queue_has_a_witness() -> None:
    groups = {
        obligation.assumption_group
        for module in (refinement_queue, queue_bounds, refinement_tokens, refinement_consequences)
        for obligation in module.obligations()
        if any(z3.is_quantifier(fact) for fact in obligation.hypotheses.values())
    }
    assert groups <= set(WITNESSES)


def test_both_solvers_prove_a_transition_of_each_refinement() -> None:
    name = "fold"
    obligations = [
        obligation
        for module in (refinement_queue, refinement_tokens)
        for obligation in module.obligations()
        if obligation.name.startswith((f"R1/{name}/", f"R2/complete/{name}/"))
    ]
    assert {decide(obligation).outcome for obligation in obligations} == {"proved"}
    assert len(obligations) > 12


def test_written_out_sentences_say_as_much_as_the_quantified_ones() -> None:
    this = refinement_tokens.setting("output", complete=True, depth=2)
    quantified = {
        **queue_model.relation(this.before, this.rules, this.queue),
        **token_model.relation(this.before, this.queue, this.tokens, complete=True),
    }
    claim = Obligation("as_much", "refinement", "R2", this.facts, z3.And(list(quantified.values())))
    assert ask_z3(formulas(claim)).verdict == "unsat"


def test_each_assumption_on_the_device_is_used_where_it_says() -> None:
    for name in refinement_tokens.TRANSITIONS:
        this = refinement_tokens.setting(name, complete=True, depth=1)
        move = moved(name, this.before, this.event, this.after, this.queue, this.tokens, Scope(1))
        assert set(move.assumed) == {key for key, known in ASSUMPTIONS.items() if name in known.transitions}


def _altered(transition: Callable[..., Ledger], **changes: Callable[[Ledger, Ledger], Any]) -> Any:
    """The running transition with some fields of its result replaced: a planted fault."""

    def faulty(ledger: Ledger, rules: Rules, *event: Any) -> Ledger:
        after: Ledger = plain(transition)(ledger, rules, *event)
        return after._replace(**{field: change(ledger, after) for field, change in changes.items()})

    return faulty


QUEUE_FAULTS = {
    "schedule": (
        _altered(accounting.schedule, num_in_flight_tokens=lambda before, after: before.num_in_flight_tokens),
        "in_flight",
    ),
    "output": (
        _altered(
            accounting.output, num_in_flight_tokens=lambda before, after: after.num_in_flight_tokens + 1
        ),
        "in_flight",
    ),
    "stale_output": (
        _altered(accounting.stale_output, num_stale_tokens=lambda before, after: before.num_stale_tokens),
        "stale",
    ),
    "preempt": (
        _altered(accounting.preempt, num_stale_tokens=lambda before, after: before.num_stale_tokens),
        "stale",
    ),
    "finish": (
        _altered(accounting.finish, num_stale_tokens=lambda before, after: before.num_stale_tokens),
        "stale",
    ),
    "abort": (
        _altered(accounting.abort, num_stale_tokens=lambda before, after: before.num_stale_tokens),
        "stale",
    ),
}


@pytest.mark.parametrize("name", QUEUE_FAULTS)
def test_planted_fault_breaks_the_refinement_of_the_queue(name: str) -> None:
    code, part = QUEUE_FAULTS[name]
    assert refuted(refinement_queue.refuted_by_pinning(name, code)) == {part}


def test_a_trimmed_draft_that_stays_computed_breaks_the_refinement_of_tokens() -> None:
    def trim_stays_counted(before: Ledger, after: Ledger) -> Any:
        return after.num_computed_tokens + after.num_trimmed_tokens

    code = _altered(accounting.output, num_computed_tokens=trim_stays_counted)
    # The device's length no longer follows from the host's; the queue's sums do not see it.
    assert refuted(refinement_tokens.refuted_by_pinning(("output",), code=code)) == {"at_the_tail"}
    assert refuted(refinement_queue.refuted_by_pinning("output", code=code)) == set()


def test_a_ghost_one_too_far_breaks_the_refinement_of_tokens() -> None:
    def too_far(state: State) -> State:
        further = state.ghosts.num_valid_tokens + 1
        return State(state.ledger, state.ghosts._replace(num_valid_tokens=further))

    for name in ("draft", "fold"):
        obligations = refinement_tokens.refuted_by_pinning((name,), alter=too_far)
        assert refuted(obligations) == {"valid_tokens"}, name


def test_a_control_that_notices_nothing_is_told_apart_from_an_unknown() -> None:
    number = integer("number")
    true = Obligation("true", "theorem", "T1", {"above": number > 1}, number > 0)
    hard = z3.ForAll(
        [number], z3.Exists([integer("other")], number * number * number != integer("other") * 7)
    )
    unknown = Obligation("hard", "theorem", "T1", {"some": hard}, integer("sought") ** 3 != 42)
    assert decide_control(Control("holds", "", "statement", [true])) == "not noticed"
    assert decide_control(Control("empty", "", "statement", [])) == "unknown"
    assert decide_control(Control("starved", "", "statement", [true, unknown]), resources=1) == "unknown"
