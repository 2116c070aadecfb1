"""May a request's blocks be found again after every step in flight has failed? (T3, T4)

Whatever was published since the failed step was dispatched is withdrawn. What the request's returned steps
had computed is published again, up to `publishable_if_all_in_flight_fails`: never more than is settled, less
the drafter's fence, and less than a block of it is left out. For every live request, all sizes, both modes.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import z3

from draftproof.impl import accounting
from draftproof.impl import dispatch as running
from draftproof.proofs.carrier_z3 import symbolic_event, symbolic_rules, symbolic_state
from draftproof.proofs.controls import Control
from draftproof.proofs.induction import hypotheses
from draftproof.proofs.obligations import Obligation
from draftproof.spec.ledger import Ledger, Rules


def obligations(code: Callable[..., Any] = running.publishable_if_all_in_flight_fails) -> list[Obligation]:
    """Sound and complete; `code` replaces the running function (controls)."""
    before, rules = symbolic_state(), symbolic_rules()
    facts = hypotheses("abort", before, rules, symbolic_event("abort"))  # live, and no stop to be handled
    limit, settled = code(before.ledger, rules), before.ghosts.num_settled_tokens
    return [
        Obligation(
            "failed_step/only_what_is_settled",
            "refinement",
            "T3",
            facts,
            z3.Or(limit <= 0, limit + rules.registration_fence <= settled),
            "failed_step",
        ),
        Obligation(
            "failed_step/less_than_a_block_is_left_out",
            "refinement",
            "T4",
            facts,
            settled - rules.registration_fence - limit < rules.block_size,
            "failed_step",
        ),
    ]


def _in_flight_counts(ledger: Ledger, rules: Rules) -> int:
    return accounting.registrable(ledger.num_computed_tokens, rules)


def _stale_is_subtracted(ledger: Ledger, rules: Rules) -> int:
    return accounting.registrable(ledger.num_computed_tokens - ledger.num_in_flight_tokens, rules)


def controls() -> list[Control]:
    """Wrong versions, each of which must be refuted."""
    return [
        Control(f"failed_step/{name}", sentence, "statement", obligations(code))
        for name, sentence, code in (
            ("in_flight_counts", "what is in flight counts as settled", _in_flight_counts),
            ("stale_is_subtracted", "stale work is taken off the present life", _stale_is_subtracted),
        )
    ]
