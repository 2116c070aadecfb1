"""What if the drafts are right exactly as often as a script says? For tests: any acceptance pattern, forced.

The drafter is told what the requests will say, as an earlier run gave it, and spoils one draft of each step.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from draftproof.gpu.errors import ModelError


class ScriptedDrafter:
    """K drafts of each request, of which its s-th step accepts `script[s % len(script)]`.

    `texts`: prompt and output of every request that will come, and K + 1 tokens more of each, or the drafts
    end with it. A request whose tokens begin none of them gets no drafts. Numbers of the script are 0 to K.
    Raises ModelError for a script that cannot be.
    """

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
        self.texts = [np.array(text, np.int32) for text in texts]
        self.script = tuple(script)
        self.num_steps: dict[str, int] = {}

    def propose(self, requests: Sequence[Any]) -> tuple[Any, Any]:
        """int32[m, K] drafts, -1 beyond a text's end, and int32[m], how many count."""
        drafts = np.full((len(requests), self.num_speculative_tokens), -1, np.int32)
        counts = np.zeros(len(requests), np.int32)
        for place, request in enumerate(requests):
            following = self._following(request.token_ids)
            step = self.num_steps.get(request.request_id, 0)
            self.num_steps[request.request_id] = step + 1
            num_accepted = self.script[step % len(self.script)]
            # The first wrong one decides: what follows it is never looked at.
            following[num_accepted : num_accepted + 1] += 1
            counts[place] = len(following)
            drafts[place, : len(following)] = following % self.vocab_size
        return drafts, counts

    def _following(self, token_ids: Any) -> Any:
        """At most K tokens that follow in the text that begins with these; a copy."""
        for text in self.texts:
            begin = len(token_ids)
            if np.array_equal(text[:begin], token_ids):
                return text[begin : begin + self.num_speculative_tokens].copy()
        return np.zeros(0, np.int32)

    def forget(self, request_id: str) -> None:
        """Its steps need not be counted any more."""
        self.num_steps.pop(request_id, None)
