"""Where may a prefill chunk end? What alignment and the drafter's look-ahead guarantee together.

Two decisions compose: the budget is cut first (`tokens_before_lookahead`), and the step is sized within it
(`tokens_to_schedule`, which aligns). Aligning only moves a chunk's end down, away from the known end, so the
look-ahead stays; the other order would end chunks off their alignment. That the two give this is proved of
the running functions (`draftproof.proofs.chunks`).
"""

from __future__ import annotations

from draftproof.spec.algebra import any_of, floor_to_block, maximum
from draftproof.spec.decision_inputs import TokensToSchedule
from draftproof.spec.guards import num_schedulable
from draftproof.spec.ledger import Ledger

Conditions = dict[str, bool]


def fits_the_model(ledger: Ledger, asked: TokensToSchedule) -> bool:
    """What is known leaves room for a token to sample: more than that is refused when a request is added.
    Otherwise the model's length itself may cut a chunk short of the known end."""
    return ledger.num_tokens <= asked.max_model_len - 1


def chunk_end(
    ledger: Ledger, asked: TokensToSchedule, num_prefill_lookahead_tokens: int, chosen: int
) -> Conditions:
    """A step of `chosen` tokens reaches all known tokens, or leaves the drafter its look-ahead and ends on
    the alignment. `asked` holds the budget before it was cut. Needs `fits_the_model`."""
    end = ledger.num_computed_tokens + chosen
    num_left = ledger.num_tokens - end
    return {
        "leaves_none_or_the_lookahead": any_of(
            chosen == 0, num_left <= 0, num_left >= num_prefill_lookahead_tokens
        ),
        "ends_on_the_alignment": any_of(
            chosen == 0, num_left <= 0, end == floor_to_block(end, asked.chunk_alignment)
        ),
    }


def gets_its_turn(ledger: Ledger, asked: TokensToSchedule, num_prefill_lookahead_tokens: int) -> Conditions:
    """Progress: a request is scheduled with at least one token if it has something to compute, is short of
    its limits, and the budget is that of one aligned chunk and the look-ahead behind it, less one token. A
    budget that is always as large leaves no request out for ever. Needs `fits_the_model`."""
    needed = maximum(num_prefill_lookahead_tokens, 1) + asked.chunk_alignment - 1
    return {
        "something_to_compute": num_schedulable(ledger) >= 1,
        "short_of_its_limit": ledger.num_tokens + asked.num_awaited_outputs < asked.max_num_tokens,
        "within_model_length": ledger.num_computed_tokens < asked.max_model_len - 1,
        "budget": asked.token_budget >= needed,
    }
