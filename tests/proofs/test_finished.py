"""Finished is final (T14), and every return is progress (T6): code that breaks either is refuted."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from draftproof.impl import accounting
from draftproof.impl.contracts import plain
from draftproof.proofs import progress
from draftproof.proofs.controls import Control, decide_control
from draftproof.proofs.induction import transition_obligations
from draftproof.proofs.obligations import decide, formulas, satisfiable
from draftproof.proofs.solvers import ask_z3
from draftproof.spec.ledger import RUNNING, WAITING, Ledger, Rules


def refuted(name: str, change: Callable[[Ledger, Ledger], dict[str, Any]]) -> set[str]:
    """The theorems about one transition that are false once its result is changed."""

    def faulty(ledger: Ledger, rules: Rules, *event: Any) -> Ledger:
        after: Ledger = plain(getattr(accounting, name))(ledger, rules, *event)
        return after._replace(**change(ledger, after))

    return {
        claim.name.partition("/theorem/")[2]
        for claim in transition_obligations(name, faulty)
        if claim.kind == "theorem" and ask_z3(formulas(claim)).verdict == "sat"
    }


@pytest.mark.parametrize("name", ["finish", "abort"])
@pytest.mark.parametrize(
    "change",
    [
        lambda before, after: {"status": RUNNING},
        lambda before, after: {"num_stale_tokens": before.num_stale_tokens},
        lambda before, after: {"drop_stale": before.drop_stale},
    ],
    ids=["still running", "steps still live", "late output delivered"],
)
def test_leaving_half_way_is_refuted(name: str, change: Any) -> None:
    assert "T14/leaving_finishes" in refuted(name, change)


@pytest.mark.parametrize(
    "change",
    [
        lambda before, after: {"status": WAITING},
        lambda before, after: {"num_tokens": before.num_tokens + 1},
        lambda before, after: {"num_computed_tokens": before.num_computed_tokens - 1},
        lambda before, after: {"num_registered_tokens": 0},
        lambda before, after: {"stop_pending": 1},
    ],
    ids=["queued again", "delivered", "uncomputed", "unpublished", "stopped"],
)
def test_a_late_output_that_touches_a_finished_request_is_refuted(change: Any) -> None:
    assert "T14/finished_is_left_alone" in refuted("stale_output", change)


def test_a_stale_step_that_stays_in_flight_is_refuted() -> None:
    def kept(before: Ledger, after: Ledger) -> dict[str, Any]:
        return {"num_in_flight_tokens": before.num_in_flight_tokens}

    assert "T6/stale_return_makes_progress" in refuted("stale_output", kept)


def test_the_host_goes_on_and_the_measure_ends() -> None:
    claims = progress.obligations()
    assert {decide(claim).outcome for claim in claims} == {"proved"}
    assert all(satisfiable(claim.hypotheses) for claim in claims)


@pytest.mark.parametrize("control", progress.controls(), ids=lambda control: control.name)
def test_each_condition_on_the_host_is_needed(control: Control) -> None:
    assert decide_control(control) == "refuted", control.sentence
