"""What followed these tokens the last time? Prompt lookup: the request's own text is the draft model.

The longest n-gram, between a least and a greatest length, that ends the request and also stands earlier in
it; the tokens that followed it there are the drafts (Saxena 2023, "Prompt lookup decoding"; vLLM's
`NgramProposer`, transformers' `prompt_lookup_num_tokens`). Of several places the most recent one that all K
tokens follow is taken, else the earliest, which the most follow: in a loop shorter than K the most recent
place would give few. (vLLM and transformers take the earliest always.)
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from draftproof.gpu.errors import ModelError

MIN_NGRAM, MAX_NGRAM = 1, 3


class NgramDrafter:
    """Up to K drafts of each request from its own tokens. Raises ModelError for lengths that cannot be."""

    def __init__(
        self, num_speculative_tokens: int, min_ngram: int = MIN_NGRAM, max_ngram: int = MAX_NGRAM
    ) -> None:
        if not (type(min_ngram) is int and type(max_ngram) is int and 1 <= min_ngram <= max_ngram):
            raise ModelError(
                "n-grams need lengths 1 <= min_ngram <= max_ngram, "
                f"got {min_ngram!r:.40} and {max_ngram!r:.40}"
            )
        self.num_speculative_tokens = num_speculative_tokens
        self.min_ngram, self.max_ngram = min_ngram, max_ngram

    def propose(self, requests: Sequence[Any]) -> tuple[Any, Any]:
        """int32[m, K] drafts, -1 beyond what was found, and int32[m], how many were."""
        drafts = np.full((len(requests), self.num_speculative_tokens), -1, np.int32)
        counts = np.zeros(len(requests), np.int32)
        for place, request in enumerate(requests):
            found = self.continuation(request.token_ids)
            counts[place] = len(found)
            drafts[place, : len(found)] = found
        return drafts, counts

    def continuation(self, token_ids: Any) -> Any:
        """What followed the end of these tokens, int32[n], where it stood before: at most K tokens."""
        wanted = min(self.max_ngram, len(token_ids) - 1)
        # Where an earlier n-gram may end: those that share one token with the suffix, then two, and so on.
        ends, length = np.flatnonzero(token_ids[:-1] == token_ids[-1]), 1
        while length < wanted:
            longer = ends[ends >= length]
            longer = longer[token_ids[longer - length] == token_ids[-1 - length]]
            if len(longer) == 0:
                break
            ends, length = longer, length + 1
        if len(ends) == 0 or length < self.min_ngram:
            return token_ids[:0]
        followed = ends[ends + self.num_speculative_tokens < len(token_ids)]
        begin = int(followed[-1] if len(followed) else ends[0]) + 1
        return token_ids[begin : begin + self.num_speculative_tokens]

    def forget(self, request_id: str) -> None:
        """Nothing is kept."""
