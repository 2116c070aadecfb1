"""What is known of a request beside its ledger? How it is sampled, what it has said, and what comes of it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, NamedTuple

from draftproof.gpu.sampling.parameters import SamplingParameters


class TokenLogprobs(NamedTuple):
    """How likely an output token was to the model, before temperature and filters."""

    token_id: int
    logprob: float
    rank: int
    """1 for the most likely token."""
    top: tuple[tuple[int, float], ...]
    """As many most likely tokens as were asked for, with their log-probabilities."""


@dataclass(frozen=True)
class RequestResult:
    """What a request came to. Counts are tokens."""

    request_id: str
    prompt_token_ids: tuple[int, ...]
    token_ids: tuple[int, ...]
    finish_reason: str
    """`stop`: EOS or a stop token, which is the last of `token_ids`; `length`; or `error`: the model's logits
    were not numbers, and `token_ids` ends before that."""
    logprobs: tuple[TokenLogprobs, ...] | None
    """One for each of `token_ids`; None if not asked for."""
    num_cached_tokens: int
    """Of the prompt, found in the prefix cache when the request first started."""
    num_draft_tokens: int
    """Drafts verified, null ones not counted."""
    num_accepted_tokens: int


@dataclass
class Request:
    """One that has not finished."""

    request_id: str
    prompt_token_ids: tuple[int, ...]
    parameters: SamplingParameters
    seed: int
    token_ids: list[int] = field(default_factory=list)
    logprobs: list[TokenLogprobs] = field(default_factory=list)
    failed: bool = False
    """Whether its logits were not numbers."""

    def result(self, finish_reason: str, metrics: Any) -> RequestResult:
        """What it came to; `metrics` are the scheduler's."""
        wants_logprobs = self.parameters.logprobs is not None
        return RequestResult(
            request_id=self.request_id,
            prompt_token_ids=self.prompt_token_ids,
            token_ids=tuple(self.token_ids),
            finish_reason="error" if self.failed else finish_reason,
            logprobs=tuple(self.logprobs) if wants_logprobs else None,
            num_cached_tokens=metrics.num_cached_tokens,
            num_draft_tokens=metrics.num_drafts_verified,
            num_accepted_tokens=metrics.num_drafts_accepted,
        )
