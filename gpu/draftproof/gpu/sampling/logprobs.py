"""How likely were the tokens that were kept? Log-probabilities of the model itself, before any filter.

As vLLM reports them by default (`raw_logprobs`): they do not depend on temperature or penalty, so they can be
compared between runs that sample differently.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch


@dataclass(frozen=True)
class Logprobs:
    """Of the tokens of a step, in the order in which they were sampled; n of the most likely ones."""

    sampled: Any
    """float32[R, P]: of the sampled tokens; 0 where there is none."""
    ranks: Any
    """int32[R, P]: how many tokens are more likely, plus 1; 0 where there is none."""
    top_token_ids: Any
    """int32[R, P, n], most likely first"""
    top: Any
    """float32[R, P, n]"""


def logprobs_of(logits: Any, token_ids: Any, num_top: int) -> Logprobs:
    """From the model's logits float32[R, P, V] and the tokens, integers [R, P], -1 where there is none.

    A log-probability that is not a number says that the logits were not: the runner ends such a request.
    """
    present = token_ids >= 0
    chosen = logits.gather(-1, token_ids.to(torch.int64).clamp_min(0)[..., None])
    total = logits.logsumexp(-1, keepdim=True)
    top, top_token_ids = logits.topk(min(num_top, logits.shape[-1]), dim=-1)
    return Logprobs(
        sampled=torch.where(present, (chosen - total)[..., 0], 0.0),
        ranks=torch.where(present, (logits > chosen).sum(-1) + 1, 0).to(torch.int32),
        top_token_ids=top_token_ids.to(torch.int32),
        top=top - total,
    )
