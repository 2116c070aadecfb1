"""What if every draft is wrong? All -1: the shapes and the work of speculation, and no draft accepted.

The honest baseline for "the same with and without speculation": matrix products of 1 + K rows may round
differently from those of one row.
"""

from __future__ import annotations

import torch

from draftproof.gpu.drafters.step import Drafter, DraftStep, Proposal


class NullDrafter(Drafter):
    """K null drafts for every request."""

    is_capturable = True

    def __init__(self, num_speculative_tokens: int) -> None:
        self.num_speculative_tokens = num_speculative_tokens

    def propose(self, step: DraftStep) -> Proposal:
        """All -1, and all of them count."""
        drafts = step.num_tokens.new_full((len(step.num_tokens), self.num_speculative_tokens), -1)
        return Proposal(drafts, torch.full_like(step.num_tokens, self.num_speculative_tokens))
