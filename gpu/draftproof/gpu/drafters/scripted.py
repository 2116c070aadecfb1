"""What if the drafts are right exactly as often as a script says? For tests: any acceptance pattern, forced.

The drafter is told what the requests will say, as an earlier run gave it, and spoils one draft of each step.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from draftproof.gpu.drafters.step import Drafter, DraftStep, Proposal
from draftproof.gpu.errors import ModelError

NO_TOKEN = -2
"""Behind a text's end; no token of any request."""


class ScriptedDrafter(Drafter):
    """K drafts of each request, of which the s-th step of its row accepts `script[s % len(script)]`.

    `texts`: prompt and output of every request that will come, and K + 1 tokens more of each, or the drafts
    end with it. A request whose tokens begin none of them gets no drafts. Numbers of the script are 0 to K.
    Raises ModelError for a script that cannot be.
    """

    is_capturable = True

    def __init__(
        self,
        num_speculative_tokens: int,
        texts: Sequence[Sequence[int]],
        script: Sequence[int],
        vocab_size: int,
    ) -> None:
        if not script or not all(0 <= number <= num_speculative_tokens for number in script):
            raise ModelError(f"a script holds numbers from 0 to {num_speculative_tokens}, got {script!r:.80}")
        if vocab_size < 2:
            raise ModelError("no draft can be wrong in a vocabulary of one token")
        self.num_speculative_tokens, self.vocab_size = num_speculative_tokens, vocab_size
        longest = max([len(text) for text in texts], default=0) + num_speculative_tokens
        padded = [[*text, *[NO_TOKEN] * (longest - len(text))] for text in texts]
        self.texts: Any = torch.tensor(padded, dtype=torch.int64).reshape(len(texts), longest)
        self.script: Any = torch.tensor(script)
        self.num_steps: Any = None
        """int64[lines]: steps of each row so far"""

    def propose(self, step: DraftStep) -> Proposal:
        """What follows in the text that begins with each row's tokens, one of it spoiled."""
        if self.num_steps is None:
            device = step.token_ids.device
            self.texts, self.script = self.texts.to(device), self.script.to(device)
            self.num_steps = step.token_ids.new_zeros(len(step.token_ids))
        following, found = self._following(step)
        offsets = torch.arange(self.num_speculative_tokens, device=following.device)
        accepted = self.script[self.num_steps[step.row_ids] % len(self.script)]
        self.num_steps.index_add_(0, step.row_ids, step.samples.to(torch.int64))
        # The first wrong one decides: what follows it is never looked at.
        spoiled = (following + (offsets == accepted[:, None])) % self.vocab_size
        counts = (found[:, None] & (following != NO_TOKEN)).sum(1)
        return Proposal(torch.where(offsets < counts[:, None], spoiled, -1), counts)

    def _following(self, step: DraftStep) -> tuple[Any, Any]:
        """int64[R, K]: the tokens of a text that begins like the row; bool[R]: whether there is one."""
        if len(self.texts) == 0:
            return step.num_tokens.new_zeros((len(step.num_tokens), self.num_speculative_tokens)), (
                step.num_tokens < 0
            )
        width = min(self.texts.shape[1], step.max_num_tokens)
        known = step.token_ids[step.row_ids, None, :width]
        beyond = torch.arange(width, device=known.device) >= step.num_tokens[:, None, None]
        begins = ((self.texts[:, :width] == known) | beyond).all(2)
        texts = self.texts[begins.to(torch.int8).argmax(1)]
        places = step.num_tokens[:, None] + torch.arange(self.num_speculative_tokens, device=known.device)
        inside = places < texts.shape[1]
        following = texts.gather(1, places.clamp_max(texts.shape[1] - 1))
        return torch.where(inside, following, NO_TOKEN), begins.any(1)
