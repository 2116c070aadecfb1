"""What followed these tokens the last time? Prompt lookup: the request's own text is the draft model.

The longest n-gram, between a least and a greatest length, that ends the request and also stands earlier in
it; the tokens that followed it there are the drafts (Saxena 2023, "Prompt lookup decoding"; vLLM's
`NgramProposer`, transformers' `prompt_lookup_num_tokens`). Of several places the most recent one that all K
tokens follow is taken, else the earliest, which the most follow: in a loop shorter than K the most recent
place would give few. (vLLM and transformers take the earliest always.)

It looks in the device's own texts, so it also drafts for steps whose outcome the host has not read.
"""

from __future__ import annotations

import torch

from draftproof.gpu.drafters.step import Drafter, DraftStep, Proposal
from draftproof.gpu.errors import ModelError

MIN_NGRAM, MAX_NGRAM = 1, 4


class NgramDrafter(Drafter):
    """Up to K drafts of each request from its own tokens. Raises ModelError for lengths that cannot be."""

    is_capturable = True

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

    def propose(self, step: DraftStep) -> Proposal:
        """Drafts of every row from its own tokens; -1 beyond what was found."""
        num_drafts = self.num_speculative_tokens
        known = step.token_ids[step.row_ids, : step.max_num_tokens]
        # A row in the middle of its prompt knows more than the step reaches; nobody takes its drafts.
        num_tokens = step.num_tokens[:, None].clamp_max(known.shape[1])
        places = torch.arange(known.shape[1], device=known.device)
        lengths = self._lengths(known, num_tokens, places)
        longest = lengths.amax(1, keepdim=True)
        found = (lengths == longest) & (longest >= self.min_ngram)
        # Where the n-gram ends: the last place that K tokens follow, else the first one.
        followed = torch.where(found & (places + num_drafts < num_tokens), places, -1).amax(1)
        first = torch.where(found, places, known.shape[1]).amin(1)
        begin = torch.where(followed >= 0, followed, first)[:, None] + 1
        chosen = begin + torch.arange(num_drafts, device=known.device)
        counts = (num_tokens - begin).clamp(0, num_drafts)
        drafts = known.gather(1, chosen.clamp_max(known.shape[1] - 1))
        return Proposal(torch.where(chosen < num_tokens, drafts, -1), counts[:, 0])

    def _lengths(self, known: torch.Tensor, num_tokens: torch.Tensor, places: torch.Tensor) -> torch.Tensor:
        """int64[R, L]: how many tokens up to each place, at most `max_ngram`, are those that end the row;
        0 at its last token and behind."""
        matches = places < num_tokens - 1
        lengths = torch.zeros_like(known)
        for back in range(min(self.max_ngram, known.shape[1])):
            wanted = known.gather(1, (num_tokens - 1 - back).clamp_min(0))
            shifted = torch.nn.functional.pad(known[:, : known.shape[1] - back], (back, 0))
            matches = matches & (places >= back) & (shifted == wanted)
            lengths += matches
        return lengths
