"""Where a prefill chunk ends: it leaves nothing or all of the look-ahead, is aligned, and no smaller."""

from __future__ import annotations

import itertools
from typing import Any

from draftproof.impl import decisions as running
from draftproof.proofs.chunks import GROUP, obligations
from draftproof.proofs.obligations import Obligation, formulas
from draftproof.proofs.solvers import ask_z3
from draftproof.spec.algebra import maximum, minimum
from draftproof.spec.decision_inputs import TokensToSchedule
from draftproof.spec.ledger import Ledger, Rules, initial


def refuted(claims: list[Obligation]) -> set[str]:
    """The names of the claims that z3 finds a counterexample to; it may be undecided about none."""
    verdicts = {claim.name: ask_z3(formulas(claim)).verdict for claim in claims}
    assert "unknown" not in verdicts.values()
    return {name for name, verdict in verdicts.items() if verdict == "sat"}


def asked_before_lookahead(num_left: int, num_new_tokens: int, num_lookahead_tokens: int) -> int:
    """The running decision, of a request with so many known tokens left to compute."""
    return running.tokens_before_lookahead(
        initial(num_left), Rules(4, 16, False, 3), num_new_tokens, num_lookahead_tokens
    )


def test_a_chunk_leaves_nothing_or_all_of_the_look_ahead() -> None:
    assert asked_before_lookahead(10, 8, 3) == 7  # 8 would leave 2
    assert asked_before_lookahead(10, 7, 3) == 7
    assert asked_before_lookahead(10, 10, 3) == 10
    assert asked_before_lookahead(10, 12, 3) == 12  # drafts follow the known tokens
    assert asked_before_lookahead(3, 2, 3) == 0  # waits for an offer of 3
    assert asked_before_lookahead(10, 9, 1) == 9  # one token of look-ahead is always there


def test_the_chunk_is_the_largest_that_may_be() -> None:
    for num_left, offered, lookahead in itertools.product(range(1, 9), range(10), range(6)):
        allowed = [
            size
            for size in range(offered + 1)
            if size >= num_left or num_left - size >= lookahead or size == 0
        ]
        assert asked_before_lookahead(num_left, offered, lookahead) == max(allowed)


def cuts_anywhere(ledger: Ledger, rules: Rules, num_new_tokens: int, num_lookahead_tokens: int) -> int:
    """The drafter's look-ahead does not matter."""
    return num_new_tokens


def waits_at_the_end(ledger: Ledger, rules: Rules, num_new_tokens: int, num_lookahead_tokens: int) -> int:
    """The last chunk too must leave the look-ahead."""
    room = ledger.num_tokens - ledger.num_computed_tokens - num_lookahead_tokens
    return maximum(minimum(num_new_tokens, room), 0)


def ignores_alignment(ledger: Ledger, rules: Rules, *asked: Any) -> int:
    """Chunks end anywhere."""
    unaligned = TokensToSchedule(*asked)._replace(chunk_alignment=1)
    return running.tokens_to_schedule(ledger, rules, *unaligned)


def test_alignment_and_look_ahead_hold_together_or_are_refuted() -> None:
    assert refuted(obligations(cuts_anywhere)) == {f"{GROUP}/leaves_none_or_the_lookahead"}
    assert refuted(obligations(waits_at_the_end)) == {f"{GROUP}/turn/is_not_passed_over"}
    assert refuted(obligations(None, ignores_alignment)) == {f"{GROUP}/ends_on_the_alignment"}


def test_each_budget_gives_every_prompt_its_turn_and_one_token_less_does_not() -> None:
    rules, lookahead, alignment = Rules(3, 16, False, 2), 3, 4
    enough = lookahead + alignment - 1
    for budget, served in ((enough, True), (enough - 1, False)):
        sizes = []
        for num_tokens, num_computed in itertools.product(range(1, 20), range(19)):
            if num_computed >= num_tokens:
                continue
            ledger = initial(num_tokens)._replace(num_computed_tokens=num_computed)
            cut = running.tokens_before_lookahead(ledger, rules, budget, lookahead)
            size = running.tokens_to_schedule(ledger, rules, cut, 32, 32, 0, alignment)
            end = num_computed + size
            sizes.append(size)
            assert size == 0 or end == num_tokens or (num_tokens - end >= 3 and end % 4 == 0)
        assert (min(sizes) >= 1) is served
