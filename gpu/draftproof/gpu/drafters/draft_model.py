"""What would a smaller model say next? It follows the target token by token, in a KV cache of its own.

Any decoder with the target's vocabulary drafts (Leviathan et al. 2023; Chen et al. 2023). In every step it
first reads what the target was fed, then goes on alone: K forward passes of one token a row.
"""

from __future__ import annotations

from typing import Any

import torch

from draftproof.gpu.drafters.draft_rows import (
    DraftCache,
    DraftList,
    check_device,
    check_fit,
    check_num_speculative_tokens,
)
from draftproof.gpu.drafters.step import Drafter, DraftStep, Proposal
from draftproof.gpu.models.decoder import Decoder
from draftproof.gpu.models.shape import ModelShape


class DraftModelDrafter(Drafter):
    """K drafts of each request from another model.

    Behind a text of N tokens its passes write positions N - 1 to N + K - 2, of which the step that was
    verified may have had none: hence K slots of look-ahead. Raises ModelError for a K that cannot be.
    """

    is_capturable = True

    def __init__(self, decoder: Decoder, num_speculative_tokens: int) -> None:
        check_num_speculative_tokens(num_speculative_tokens)
        self.decoder = decoder
        self.num_speculative_tokens = num_speculative_tokens
        self.num_lookahead_tokens = num_speculative_tokens
        self.cache = DraftCache(decoder.shape, decoder.dtype, decoder.device)

    def check(self, shape: ModelShape) -> None:
        """Raises ModelError unless vocabularies are equal and the draft model knows the model's positions."""
        check_fit("draft model", self.decoder.shape, shape)

    def bytes_per_block(self, block_size: int) -> int:
        """Bytes of the draft model's KV in one block of so many tokens."""
        return self.cache.bytes_per_block(block_size)

    def prepare(self, num_blocks: int, block_size: int, decoder: Any, attention_backend: Any) -> None:
        """Take memory for its KV. Raises ModelError if that does not suffice, or for another device."""
        check_device("draft model", self.decoder.device, decoder.device)
        self.cache.take_memory(num_blocks, block_size, attention_backend)

    def propose(self, step: DraftStep) -> Proposal:
        """K drafts of the rows that sampled; of the others only the KV is written."""
        self._follow(step)
        drafts = DraftList(step)
        last = step.num_tokens.clamp_min(1) - 1
        token_ids = torch.where(step.samples, step.token_ids[step.row_ids, last], 0)
        for place in range(self.num_speculative_tokens):
            rows = self.cache.rows_behind(step, place)
            hidden = self.decoder.forward(token_ids, rows.positions, self.cache.attend(rows))
            token_ids = drafts.add(self.decoder.logits(hidden), rows.sequence_lengths > 0)
        return drafts.proposal()

    def _follow(self, step: DraftStep) -> None:
        """Write KV wherever the target did, the drafts that it was fed included.

        The passes of `propose` feed the last token and all drafts but the K-th. If all K are accepted, the
        next text begins behind the K-th, whose KV they never wrote: a known fault of draft models, which
        costs accepted drafts and shows in no text. Here the K-th draft is read with the step that verified
        it. A rejected draft's KV is overwritten before anybody reads it, as the target's own is.
        """
        self.decoder.forward(step.fed_token_ids, step.rows.positions, self.cache.attend(step.rows))

    def poison(self, block_ids: Any) -> None:
        """Debug mode: nobody may read these blocks any more."""
        self.cache.poison(block_ids)
