"""Decisions, the way through the prefix cache, the slots of a dispatch: what is wrong is refuted."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from draftproof.impl import accounting
from draftproof.impl import decisions as running
from draftproof.impl.contracts import plain
from draftproof.proofs.controls import Control, decide_control
from draftproof.proofs.decisions import (
    controls,
    decision_obligations,
    obligations,
    reserve_for_dispatch,
    stop_then_finish,
    store_then_look_up,
)
from draftproof.proofs.obligations import Obligation, decide, formulas, satisfiable
from draftproof.proofs.solvers import ask_z3
from draftproof.spec.algebra import both, floor_to_block, maximum, minimum, where
from draftproof.spec.ledger import RUNNING, Ledger, Rules


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


# ---- look-ups that are wrong -----------------------------------------------------------------------------


def uses_the_last_token(ledger: Ledger, rules: Rules, num_matching_tokens: int, drops_block: bool) -> int:
    """Nothing is left to compute, so no logits are there to sample from."""
    run = minimum(num_matching_tokens, floor_to_block(ledger.num_tokens, rules.block_size))
    return where(drops_block, maximum(run - rules.block_size, 0), run)


def believes_the_request(ledger: Ledger, rules: Rules, num_matching_tokens: int, drops_block: bool) -> int:
    """What was found does not matter."""
    run = floor_to_block(ledger.num_tokens - 1, rules.block_size)
    return where(drops_block, maximum(run - rules.block_size, 0), run)


def keeps_the_block(ledger: Ledger, rules: Rules, num_matching_tokens: int, drops_block: bool) -> int:
    """The drafter's block is not given back."""
    return minimum(num_matching_tokens, floor_to_block(ledger.num_tokens - 1, rules.block_size))


def always_gives_back(ledger: Ledger, rules: Rules, num_matching_tokens: int, drops_block: bool) -> int:
    """A block is given back whether the drafter needs it or not."""
    run = minimum(num_matching_tokens, floor_to_block(ledger.num_tokens - 1, rules.block_size))
    return maximum(run - rules.block_size, 0)


def cuts_a_block(ledger: Ledger, rules: Rules, num_matching_tokens: int, drops_block: bool) -> int:
    """The cap is not rounded to whole blocks."""
    run = minimum(num_matching_tokens, ledger.num_tokens - 1)
    return where(drops_block, maximum(run - rules.block_size, 0), run)


WRONG_LOOK_UPS: dict[Callable[..., int], set[str]] = {
    uses_the_last_token: {"T13/may_be_used/leaves_a_token", "T13/exact/hit_is_closed_form"},
    believes_the_request: {
        "T13/may_be_used/was_settled",
        "T13/may_be_used/beyond_the_fence_only_what_was_published_before",
        "T13/exact/hit_is_closed_form",
    },
    keeps_the_block: {"T13/any_cache/drop_costs_one_block"},
    always_gives_back: {
        "T13/any_cache/drop_costs_one_block",
        "T13/is_found/less_than_a_block_is_missed",
        "T13/longer_look_up/finds_every_settled_block",
        "T13/exact/hit_is_closed_form",
    },
    cuts_a_block: {"T13/may_be_used/whole_blocks", "T13/exact/hit_is_closed_form"},
}


@pytest.mark.parametrize("code", WRONG_LOOK_UPS, ids=lambda code: code.__name__)
def test_a_wrong_look_up_refutes_the_claims_about_it_and_no_others(code: Callable[..., int]) -> None:
    assert refuted(store_then_look_up(lookup_hit=code)) == WRONG_LOOK_UPS[code]


# ---- a finish that is wrong ------------------------------------------------------------------------------


def finishing(num_settled: Callable[[Ledger], Any]) -> Callable[[Ledger, Rules], Ledger]:
    """The running finish, but for what it takes as settled."""

    def finish(ledger: Ledger, rules: Rules) -> Ledger:
        right: Ledger = plain(accounting.finish)(ledger, rules)
        published = maximum(
            ledger.num_registered_tokens,
            accounting.registrable(minimum(num_settled(ledger), ledger.num_tokens), rules),
        )
        return right._replace(
            num_registered_tokens=where(ledger.status == RUNNING, published, ledger.num_registered_tokens)
        )

    return finish


def test_finishing_as_the_code_does_is_proved() -> None:
    right = finishing(
        lambda ledger: ledger.num_computed_tokens + ledger.num_trimmed_tokens - ledger.num_in_flight_tokens
    )
    assert refuted(store_then_look_up(finish=right) + stop_then_finish(finish=right)) == set()


def test_a_finish_without_the_trimmed_tokens_loses_a_block() -> None:
    wrong = finishing(lambda ledger: ledger.num_computed_tokens - ledger.num_in_flight_tokens)
    assert refuted(store_then_look_up(finish=wrong)) == {
        "T4/finish/registers_the_settled",
        "T4/finish_without_fence/registered_is_exact",
        "T13/is_found/less_than_a_block_is_missed",
        "T13/longer_look_up/finds_every_settled_block",
        "T13/exact/hit_is_closed_form",
    }
    assert refuted(stop_then_finish(finish=wrong)) == {
        "T13/stop_without_fence/stored_is_closed_form_of_known"
    }


def test_a_finish_that_counts_what_is_in_flight_publishes_what_is_not_there() -> None:
    wrong = finishing(lambda ledger: ledger.num_computed_tokens + ledger.num_trimmed_tokens)
    found = refuted(store_then_look_up(finish=wrong))
    assert {"T4/finish/registers_the_settled", "T13/may_be_used/was_settled"} <= found
    assert "T13/is_found/less_than_a_block_is_missed" not in found  # nothing is lost, and that is no excuse
    assert refuted(stop_then_finish(finish=wrong)) == {
        "T13/stop_without_fence/stored_is_closed_form_of_known"
    }


# ---- the slots of a dispatch, and what else is tied to the ghosts ----------------------------------------


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
