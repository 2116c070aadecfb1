"""What will a step bring back? Told from the counters before it is dispatched. Branch-free, and proved.

Asked of the ledger before the dispatch. The exact queue of steps in flight
(`draftproof.spec.queue.dispatched`) says the same from where the device really starts to write; that both
agree in every reachable state is proved with refinement R1 (`draftproof.proofs.dispatch`).
"""

from __future__ import annotations

from draftproof.impl.accounting import registrable
from draftproof.spec.algebra import maximum
from draftproof.spec.ledger import Ledger, Rules


def num_drafts_in_step(ledger: Ledger, num_new_tokens: int) -> int:
    """How many of the step's tokens are drafts to verify: what goes beyond the known and awaited ones.

    No more than wait (`num_draft_tokens`), and none in a chunk of known tokens.
    """
    end = ledger.num_computed_tokens + num_new_tokens
    return maximum(end - ledger.num_tokens - ledger.num_output_placeholders, 0)


def samples_in_step(ledger: Ledger, num_new_tokens: int) -> bool:
    """Whether the step reaches the last known token, and so samples.

    While tokens are awaited C is beyond all known ones already, and every step samples: no more is asked.
    """
    return ledger.num_computed_tokens + num_new_tokens >= ledger.num_tokens


def publishable_if_all_in_flight_fails(ledger: Ledger, rules: Rules) -> int:
    """Up to where a live request's blocks may be found although no step in flight will ever return: whole
    blocks of what has returned, the drafter's fence kept back. It is what an abort would publish."""
    settled = ledger.num_computed_tokens - (ledger.num_in_flight_tokens - ledger.num_stale_tokens)
    return registrable(settled, rules)
