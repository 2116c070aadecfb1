"""Decisions and the slots of a dispatch: what is wrong is refuted."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from draftproof.impl import decisions as running
from draftproof.proofs.controls import Control, decide_control
from draftproof.proofs.decisions import controls, decision_obligations, obligations, reserve_for_dispatch
from draftproof.proofs.obligations import Obligation, decide, formulas, satisfiable
from draftproof.proofs.solvers import ask_z3
from draftproof.spec.algebra import both, floor_to_block, maximum, minimum
from draftproof.spec.ledger import Ledger, Rules


def refuted(claims: list[Obligation]) -> set[str]:
    """The names of the claims that z3 finds a counterexample to; it may be undecided about none."""
    verdicts = {claim.name: ask_z3(formulas(claim)).verdict for claim in claims}
    assert "unknown" not in verdicts.values()
    return {name for name, verdict in verdicts.items() if verdict == "sat"}


def test_both_solvers_prove_all_and_nothing_is_vacuous() -> None:
    claims = obligations()
    assert len({claim.name for claim in claims}) == len(claims)
    assert [claim.name for claim in claims if decide(claim).outcome != "proved"] == []
    groups = {claim.assumption_group: claim.hypotheses for claim in claims}
    assert [name for name, hypotheses in groups.items() if not satisfiable(hypotheses)] == []


@pytest.mark.parametrize("control", controls(), ids=lambda control: control.name)
def test_control_is_refuted(control: Control) -> None:
    assert decide_control(control) == "refuted", control.sentence


# ---- the slots of a dispatch ------------------------------------------------------------------------------


def from_known(ledger: Ledger, rules: Rules, num_lookahead_tokens: int) -> int:
    """The slots of known tokens and one round: what runs ahead is forgotten."""
    return ledger.num_tokens + num_lookahead_tokens + rules.num_speculative_tokens


def one_less(ledger: Ledger, rules: Rules, num_lookahead_tokens: int) -> int:
    return ledger.num_computed_tokens + num_lookahead_tokens - 1


def twice(ledger: Ledger, rules: Rules, num_lookahead_tokens: int) -> int:
    return running.slots_to_reserve(ledger, rules, num_lookahead_tokens) + ledger.num_output_placeholders


@pytest.mark.parametrize("code", [from_known, one_less], ids=lambda code: code.__name__)
def test_too_few_slots_do_not_cover_a_step(code: Callable[..., int]) -> None:
    assert refuted(reserve_for_dispatch(code)) == {"T10/slots_to_reserve/covers_the_step"}
    assert "slots_to_reserve/relation/covers_every_write" in refuted(
        decision_obligations("slots_to_reserve", code)
    )


def test_too_many_slots_are_noticed_too() -> None:
    assert refuted(reserve_for_dispatch(twice)) == set()
    found = refuted(decision_obligations("slots_to_reserve", twice))
    assert found == {"slots_to_reserve/relation/reserves_no_more"}


# ---- what else is tied to the ghosts ----------------------------------------------------------------------


def without_the_running_step(ledger: Ledger, rules: Rules, num_pending_transfers: int) -> bool:
    """Only steps of earlier lives are waited for."""
    return both(ledger.num_stale_tokens == 0, num_pending_transfers == 0)


def without_the_stale_step(ledger: Ledger, rules: Rules, num_pending_transfers: int) -> bool:
    """Only steps of the present life are waited for."""
    return both(ledger.num_in_flight_tokens == ledger.num_stale_tokens, num_pending_transfers == 0)


@pytest.mark.parametrize(
    "code", [without_the_running_step, without_the_stale_step], ids=lambda code: code.__name__
)
def test_a_release_waits_for_steps_of_every_life(code: Callable[..., bool]) -> None:
    assert refuted(decision_obligations("may_release", code)) == {"may_release/relation/not_while_in_use"}


def pruning(num_settled: Callable[[Ledger], int]) -> Callable[..., int]:
    def window_to_prune(ledger: Ledger, rules: Rules, window: int) -> int:
        return floor_to_block(maximum(num_settled(ledger) - window + 1, 0), rules.block_size)

    return window_to_prune


def test_a_window_ends_below_what_is_settled_and_below_the_last_known_position() -> None:
    optimistic = pruning(lambda ledger: ledger.num_computed_tokens)
    assert "window_to_prune/relation/nothing_still_read" in refuted(
        decision_obligations("window_to_prune", optimistic)
    )
    trimmed = pruning(
        lambda ledger: (
            ledger.num_computed_tokens
            + minimum(ledger.num_trimmed_tokens, 1)
            - (ledger.num_in_flight_tokens - ledger.num_stale_tokens)
        )
    )
    assert refuted(decision_obligations("window_to_prune", trimmed)) == {
        "window_to_prune/relation/within_frontier"
    }
    timid = pruning(lambda ledger: ledger.num_computed_tokens - ledger.num_in_flight_tokens - 1)
    assert refuted(decision_obligations("window_to_prune", timid)) == {
        "window_to_prune/relation/nothing_kept_in_vain"
    }
