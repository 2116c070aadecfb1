"""What was stored is found (T13) and all of it is stored (T4): what is wrong is refuted."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import pytest

from draftproof.impl import accounting
from draftproof.impl import decisions as running
from draftproof.impl.contracts import plain
from draftproof.proofs.faults import pinned
from draftproof.proofs.faults.patching import right_code
from draftproof.proofs.faults.pinned import FINISH_CASES, complete_walk
from draftproof.proofs.obligations import Obligation, formulas
from draftproof.proofs.solvers import ask_z3
from draftproof.proofs.stored import follow_the_hit, stop_then_finish, store_then_look_up
from draftproof.spec import lookups, queue
from draftproof.spec.algebra import floor_to_block, maximum, minimum, where
from draftproof.spec.events import Finish
from draftproof.spec.ledger import RUNNING, Ledger, Rules
from draftproof.spec.walks import WEIGHTS, Sizes, choices, pick

CODE = {name: plain(function) for name, function in accounting.TRANSITIONS.items()}


def refuted(claims: list[Obligation]) -> set[str]:
    """The names of the claims that z3 finds a counterexample to; it may be undecided about none."""
    verdicts = {claim.name: ask_z3(formulas(claim)).verdict for claim in claims}
    assert "unknown" not in verdicts.values()
    return {name for name, verdict in verdicts.items() if verdict == "sat"}


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


EXACT = {"T13/exact/hit_is_closed_form", "T13/exact_without_fence/hit_is_closed_form"}
WRONG_LOOK_UPS: dict[Callable[..., int], set[str]] = {
    uses_the_last_token: {"T13/may_be_used/leaves_a_token", *EXACT},
    believes_the_request: {
        "T13/may_be_used/was_settled",
        "T13/may_be_used/beyond_the_fence_only_what_was_published_before",
        *EXACT,
    },
    keeps_the_block: {"T13/any_cache/drop_costs_one_block", *EXACT},
    always_gives_back: {
        "T13/any_cache/drop_costs_one_block",
        "T13/is_found/less_than_a_block_is_missed",
        "T13/longer_look_up/finds_every_settled_block",
        *EXACT,
    },
    cuts_a_block: {"T13/may_be_used/whole_blocks", *EXACT},
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
        *EXACT,
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


# ---- the closed form, and the hit that came first --------------------------------------------------------


def test_the_closed_form_is_the_finish_table() -> None:
    """The numbers of the first seed: registered, exact repeat, extended, in both modes."""
    for case in FINISH_CASES:
        for asynchronous in (False, True):
            rules = Rules(3, 16, asynchronous, max(0, case.lookahead - 1))
            events = pinned.finish_events(case, asynchronous)
            runs = complete_walk(right_code(), rules, case.num_prompt_tokens, events).runs
            settled, left = runs[-2].state.ghosts.num_settled_tokens, runs[-1].state.ledger
            for more in (0, 40):
                expected = lookups.closed_form(settled, left.num_tokens + more, rules, case.lookahead > 0)
                assert pinned.hit(case, left, more) == expected


def test_numbers_of_the_closed_form() -> None:
    plain_rules, fenced = Rules(3, 16, False, 0), Rules(3, 16, False, 2)
    assert lookups.closed_form(48, 88, plain_rules, False) == 48
    assert lookups.closed_form(48, 48, plain_rules, False) == 32  # the last token is computed again
    assert lookups.closed_form(47, 88, plain_rules, False) == 32
    assert lookups.closed_form(34, 74, fenced, True) == 16  # 32 less the block after the hit
    assert lookups.closed_form(33, 73, fenced, True) == 0  # only 31 lie before the fence
    assert lookups.closed_form(33, 73, fenced, False, num_hit_tokens=32) == 32  # published before it came


@pytest.mark.parametrize("fence", [0, 2])
def test_every_finish_of_random_runs_leaves_the_closed_form(fence: int) -> None:
    """Whole runs over the exact queue, with hits, preemptions and turns: what a look-up finds is the form."""
    chosen = random.Random(fence)
    num_finished = num_with_hit = 0
    weights = WEIGHTS | {"end_turn": 10}  # not every stop ends a turn
    while num_finished < 400:
        rules = Rules(3, chosen.randint(1, 4), chosen.random() < 0.5, fence)
        run, hit = queue.start(chosen.randint(1, 9)), 0
        for _ in range(60):
            options = choices(run, rules, Sizes(40, 5, 3))
            if not options:
                break
            event = pick(options, chosen.randrange(1_000_000), lambda option: option, weights)
            before, hit = run, lookups.hit_of_life(run.state, event, hit)
            run = queue.advance(run, rules, event, CODE)
            if not isinstance(event, Finish) or before.state.ledger.status != RUNNING:
                continue
            num_finished += 1
            num_with_hit += hit > 0
            ledger, settled = run.state.ledger, before.state.ghosts.num_settled_tokens
            for num_tokens in range(1, ledger.num_tokens + 9):
                asking = ledger._replace(num_tokens=num_tokens)
                found = minimum(ledger.num_registered_tokens, floor_to_block(num_tokens, rules.block_size))
                for drops in (False, True):
                    assert running.lookup_hit(asking, rules, found, drops) == lookups.closed_form(
                        settled, num_tokens, rules, drops, hit
                    )
    assert num_with_hit > 20


def test_a_fence_that_an_output_forgets_breaks_the_closed_form() -> None:
    def beyond_the_fence(ledger: Ledger, rules: Rules, *event: Any) -> Ledger:
        after: Ledger = plain(accounting.output)(ledger, rules._replace(registration_fence=0), *event)
        return after

    assert refuted(follow_the_hit({"output": beyond_the_fence})) == {
        "T13/hit/output/rest_is_behind_the_fence",
        "T13/hit/output/so_it_is_once_stopped",
    }


def test_a_hit_that_is_not_published_breaks_the_closed_form() -> None:
    def forgets(ledger: Ledger, rules: Rules, num_hit_tokens: int) -> Ledger:
        after: Ledger = plain(accounting.admit)(ledger, rules, num_hit_tokens)
        return after._replace(num_registered_tokens=0)

    assert "T13/hit/admit/hit_is_published" in refuted(follow_the_hit({"admit": forgets}))
