"""What is known of a request beside its ledger? How it is sampled, what it has said, and what comes of it."""

from __future__ import annotations

import time
from collections import deque
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol

from draftproof.gpu.sampling.parameters import SamplingParameters


class TokenLogprobs(NamedTuple):
    """How likely an output token was to the model, before temperature and filters."""

    token_id: int
    logprob: float
    rank: int
    """1 for the most likely token."""
    top: tuple[tuple[int, float], ...]
    """As many most likely tokens as were asked for, with their log-probabilities."""


class Timings(NamedTuple):
    """Seconds since the request, or the turn's chunk, was handed in."""

    first_token: float | None
    """Until its first token was known to the host; None without any."""
    total: float


class TextOutput(Protocol):
    """What makes text of tokens: `draftproof.gpu.output_text.OutputText`."""

    stopped: str | None
    """The stop string that was found."""
    num_tokens_to_keep: int
    """How many tokens hold the text up to its end."""

    def push(self, token_ids: list[int]) -> str:
        """The text that is certain with these tokens."""
        ...

    def finish(self) -> str:
        """The rest of it."""
        ...


@dataclass(frozen=True)
class RequestResult:
    """What a request, or one turn of a session, came to. Counts are tokens."""

    request_id: str
    prompt_token_ids: tuple[int, ...]
    """Of a later turn: its chunk."""
    token_ids: tuple[int, ...]
    text: str | None
    """Special tokens and stop strings left out; None without a tokenizer."""
    finish_reason: str
    """`stop`: EOS or a stop token, which is the last of `token_ids`, or a stop string, which the last of them
    ends; `length`; `abort`; or `error`: see there."""
    stop_reason: str | int | None
    """The stop string or token id that ended it; None for EOS."""
    error: str | None
    """Why it could not go on: the model's logits were not numbers, or memory did not suffice. `token_ids`
    ends before that."""
    logprobs: tuple[TokenLogprobs, ...] | None
    """One for each of `token_ids`; None if not asked for."""
    num_cached_tokens: int
    """Of the prompt, found in the prefix cache when the request first started."""
    num_draft_tokens: int
    """Drafts verified, null ones not counted."""
    num_accepted_tokens: int
    """Of these, accepted and kept."""
    timings: Timings


class RequestOutput(NamedTuple):
    """What a step brought to one request."""

    request_id: str
    token_ids: tuple[int, ...]
    text: str
    """What has become certain of it: it may lag behind the tokens."""
    logprobs: tuple[TokenLogprobs, ...]
    result: RequestResult | None
    """What the request or the turn came to, if this ended it."""


class Kept(NamedTuple):
    """What a request took in of a step."""

    token_ids: tuple[int, ...]
    logprobs: tuple[TokenLogprobs, ...]
    text: str
    is_end: bool
    """Whether a stop string was found."""


class Turn(NamedTuple):
    """A chunk that waits for the end of the turn before, and how its answer is sampled."""

    token_ids: tuple[int, ...]
    parameters: SamplingParameters
    seed: int
    output: TextOutput | None
    arrived_at: float


@dataclass
class Request:
    """One that has not finished; of a session, its present turn."""

    request_id: str
    prompt_token_ids: tuple[int, ...]
    parameters: SamplingParameters
    seed: int
    output: TextOutput | None = None
    is_session: bool = False
    token_ids: list[int] = field(default_factory=list)
    logprobs: list[TokenLogprobs] = field(default_factory=list)
    text: str = ""
    error: str | None = None
    turns: deque[Turn] = field(default_factory=deque)
    arrived_at: float = field(default_factory=time.monotonic)
    first_token_at: float | None = None
    is_paused: bool = False
    """Whether the session waits for its next chunk."""
    num_counted: tuple[int, int] = (0, 0)
    """Drafts verified and accepted in the turns before."""
    num_dropped_drafts: int = 0
    """Drafts of the last step that the scheduler kept, and a stop string or an error cut off."""

    def keep(self, token_ids: list[int], logprobs: list[TokenLogprobs], is_stopped: bool) -> Kept:
        """Take new tokens in; of them stays what comes before the end of a stop string.

        `is_stopped`: the last one is the EOS or stop token that ends the request, and no part of its text
        (as in vLLM).
        """
        if token_ids and self.first_token_at is None:
            self.first_token_at = time.monotonic()
        text, is_end, num_before = "", False, len(self.token_ids)
        self.token_ids += token_ids
        self.logprobs += logprobs
        if self.output is not None:
            text = self.output.push(token_ids[:-1] if is_stopped else token_ids)
            if self.output.stopped is not None:
                is_end = True
                del self.token_ids[self.output.num_tokens_to_keep :]
                del self.logprobs[self.output.num_tokens_to_keep :]
        self.text += text
        count = len(self.token_ids) - num_before
        return Kept(tuple(token_ids[:count]), tuple(logprobs[:count]), text, is_end)

    def finish(self) -> str:
        """The rest of the text."""
        text = "" if self.output is None or self.output.stopped is not None else self.output.finish()
        self.text += text
        return text

    def begin(self, turn: Turn) -> None:
        """The session's next turn."""
        self.prompt_token_ids, self.parameters, self.seed = turn.token_ids, turn.parameters, turn.seed
        self.output, self.arrived_at = turn.output, turn.arrived_at
        self.token_ids, self.logprobs, self.text = [], [], ""
        self.first_token_at, self.is_paused = None, False

    def result(self, finish_reason: str, metrics: Any) -> RequestResult:
        """What it came to; `metrics` are the scheduler's, over all turns."""
        now = time.monotonic()
        first = None if self.first_token_at is None else self.first_token_at - self.arrived_at
        before = self.num_counted
        self.num_counted = metrics.num_drafts_verified, metrics.num_drafts_accepted
        return RequestResult(
            request_id=self.request_id,
            prompt_token_ids=self.prompt_token_ids,
            token_ids=tuple(self.token_ids),
            text=None if self.output is None else self.text,
            finish_reason="error" if self.error else finish_reason,
            stop_reason=self._stop_reason(finish_reason),
            error=self.error,
            logprobs=None if self.parameters.logprobs is None else tuple(self.logprobs),
            num_cached_tokens=metrics.num_cached_tokens,
            num_draft_tokens=self.num_counted[0] - before[0],
            num_accepted_tokens=self.num_counted[1] - before[1] - self.num_dropped_drafts,
            timings=Timings(first, now - self.arrived_at),
        )

    def _stop_reason(self, finish_reason: str) -> str | int | None:
        if finish_reason != "stop" or self.error:
            return None
        if self.output is not None and self.output.stopped is not None:
            return self.output.stopped
        last = self.token_ids[-1]
        return last if last in self.parameters.stop_token_ids else None


def token_logprobs(
    logprobs: tuple[Any, Any, Any, Any], index: int, token_ids: list[int], num_top: int
) -> list[TokenLogprobs]:
    """Of one request's tokens of a step; the arrays hold as many likely tokens as any row wants."""
    sampled, ranks, top_token_ids, top = logprobs
    found = []
    for place, token_id in enumerate(token_ids):
        likeliest = zip(
            top_token_ids[index, place, :num_top].tolist(), top[index, place, :num_top].tolist(), strict=True
        )
        found.append(
            TokenLogprobs(token_id, float(sampled[index, place]), int(ranks[index, place]), tuple(likeliest))
        )
    return found
