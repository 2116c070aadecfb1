"""Which drafts stay, and which token follows them? Without changing what is sampled, whoever drafted.

Of a row's drafts a prefix is accepted; then one more token is sampled: the bonus token if all were accepted,
else the one in place of the first rejected draft. Three cases, each exactly as if there were no drafts:

greedy: a draft is accepted if it is the most likely token, which is also the token sampled.
drafts without probabilities (n-gram): a draft is accepted if it is the token that the target samples. For a
    proposal that is certain this *is* rejection sampling: acceptance has probability p(draft), and what else
    is sampled is distributed as p without the draft. Token by token the output is that of no speculation.
drafts with probabilities q: accepted with probability min(1, p / q), else replaced by a sample of
    max(p - q, 0), normalised (Leviathan et al. 2023, theorem 1; Chen et al. 2023, algorithm 2).

A draft of -1, one outside the vocabulary, or one that its own q calls impossible is a null draft: rejected,
and the token is sampled from the target itself with the number that plain sampling uses there.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from draftproof.gpu.sampling.distribution import (
    constrained_logits,
    sample,
    sample_weights,
    seen_before,
    target_probabilities,
    weights_of,
)
from draftproof.gpu.sampling.logprobs import Logprobs, logprobs_of
from draftproof.gpu.sampling.randomness import ACCEPT, CORRECT, SAMPLE, uniform
from draftproof.gpu.sampling.rows import SamplingRows


@dataclass(frozen=True)
class Verified:
    """What `Scheduler.settle` takes, on the device."""

    sampled_token_ids: Any
    """int32[R, 1 + K]: accepted drafts and the token sampled after them; -1 beyond"""
    num_sampled_tokens: Any
    """int32[R]: how many these are, 0 for a row that does not sample"""
    logprobs: Logprobs | None
    """None if no row asks for them."""
    are_numbers: Any
    """bool[R]: whether all of the row's logits are numbers"""


@dataclass(frozen=True)
class Drafts:
    """What is to be verified."""

    token_ids: Any
    """integers [R, K]; -1 for a null draft"""
    num_tokens: Any
    """integers [R]: how many of the K places of each row count"""
    probabilities: Any | None = None
    """float32[R, K, V]: the distributions q that the drafts were sampled from; None if they are certain."""


def verify(
    logits: Any,
    drafts: Drafts,
    rows: SamplingRows,
    first_position: Any,
    *,
    samples: Any | None = None,
    seen: Any | None = None,
) -> Verified:
    """One step's outcome. Nothing is read back to the host.

    `logits`: float32[R, 1 + K, V], the target's, after the last known token and after each draft; beyond a
    row's own drafts they may be anything. `first_position`: int64[R], where in the request the first sampled
    token stands (its number of tokens before the step). `samples`: integers or bool [R], 0 for a prefill
    chunk. `seen`: bool[R, V], tokens of prompt and output; needed if a row has a repetition penalty.
    """
    num_places = logits.shape[1]
    _check_shapes(logits, drafts, rows, first_position)
    positions = first_position[:, None] + torch.arange(num_places, device=logits.device)
    before = seen_before(seen, drafts.token_ids) if rows.any_penalty and seen is not None else None
    constrained = constrained_logits(logits, rows, positions, before)
    # The first of equals, as argmax gives it, in a third of its time on a CPU; and NaN, if there is one.
    largest, most_likely = constrained.max(-1)
    tokens, num_accepted = _choose(constrained, most_likely, drafts, rows, positions)
    num_sampled = num_accepted + 1
    if samples is not None:
        num_sampled = torch.where(samples != 0, num_sampled, 0)
    kept = torch.arange(num_places, device=logits.device) < num_sampled[:, None]
    sampled_token_ids = torch.where(kept, tokens, -1).to(torch.int32)
    logprobs = None
    if rows.max_logprobs is not None:
        logprobs = logprobs_of(logits, sampled_token_ids, rows.max_logprobs)
    are_numbers = ~largest.isnan().any(1)
    return Verified(sampled_token_ids, num_sampled.to(torch.int32), logprobs, are_numbers)


def _check_shapes(logits: Any, drafts: Drafts, rows: SamplingRows, first_position: Any) -> None:
    num_rows, num_places, vocab_size = logits.shape
    if logits.dtype != torch.float32:
        raise TypeError(f"logits must be float32, got {logits.dtype}")
    shapes = {
        "drafts.token_ids": (drafts.token_ids, (num_rows, num_places - 1)),
        "drafts.num_tokens": (drafts.num_tokens, (num_rows,)),
        "first_position": (first_position, (num_rows,)),
        "rows.temperature": (rows.temperature, (num_rows,)),
    }
    if drafts.probabilities is not None:
        shapes["drafts.probabilities"] = drafts.probabilities, (num_rows, num_places - 1, vocab_size)
    for name, (tensor, shape) in shapes.items():
        if tuple(tensor.shape) != shape:
            raise ValueError(f"{name} must have the shape {shape}, got {tuple(tensor.shape)}")


def _choose(
    logits: Any, most_likely: Any, drafts: Drafts, rows: SamplingRows, positions: Any
) -> tuple[Any, Any]:
    """The tokens int64[R, 1 + K], those up to the number of accepted drafts, int64[R], being the outcome."""
    greedy = (rows.temperature == 0)[:, None]
    real = _real_drafts(drafts, logits.shape[-1], greedy)
    if rows.all_greedy:
        return most_likely, _num_leading(real & (drafts.token_ids == most_likely[:, :-1]))
    probabilities = target_probabilities(logits, rows)
    if drafts.probabilities is None:
        sampled = sample(probabilities, uniform(rows.seeds[:, None], positions, SAMPLE))
        tokens = torch.where(greedy, most_likely, sampled)
        return tokens, _num_leading(real & (drafts.token_ids == tokens[:, :-1]))
    accepted = torch.where(
        greedy,
        drafts.token_ids == most_likely[:, :-1],
        _accepted(probabilities, drafts, rows, positions),
    )
    num_accepted = _num_leading(real & accepted)
    last = _token_after(probabilities, drafts, real, num_accepted, rows, positions)
    at_last = torch.arange(logits.shape[1], device=logits.device) == num_accepted[:, None]
    padded = torch.nn.functional.pad(drafts.token_ids.to(torch.int64), (0, 1))
    return torch.where(greedy, most_likely, torch.where(at_last, last[:, None], padded)), num_accepted


def _real_drafts(drafts: Drafts, vocab_size: int, greedy: Any) -> Any:
    """bool[R, K]: the drafts that can be accepted at all; the others are null drafts or no drafts. A greedy
    row, bool[R, 1], does not look at q."""
    tokens = drafts.token_ids
    real = (tokens >= 0) & (tokens < vocab_size)
    real &= torch.arange(tokens.shape[1], device=tokens.device) < drafts.num_tokens[:, None]
    if drafts.probabilities is not None:
        real &= greedy | (_probability_of(drafts.probabilities, tokens) > 0)
    return real


def _num_leading(accepted: Any) -> Any:
    """int64[R]: how many are true before the first that is not."""
    return accepted.to(torch.int64).cumprod(1).sum(1)


def _probability_of(probabilities: Any, token_ids: Any) -> Any:
    """float32[R, K]: each token's own; that of some other token for one outside the vocabulary."""
    inside = token_ids.to(torch.int64).clamp(0, probabilities.shape[-1] - 1)
    return probabilities.gather(-1, inside[..., None])[..., 0]


def _accepted(probabilities: Any, drafts: Drafts, rows: SamplingRows, positions: Any) -> Any:
    """bool[R, K]: accepted with probability min(1, p / q), without the division."""
    number = uniform(rows.seeds[:, None], positions[:, :-1], ACCEPT)
    p = _probability_of(probabilities[:, :-1], drafts.token_ids)
    q = _probability_of(drafts.probabilities, drafts.token_ids)
    return number * q < p


def _token_after(
    probabilities: Any, drafts: Drafts, real: Any, num_accepted: Any, rows: SamplingRows, positions: Any
) -> Any:
    """int64[R]: the bonus token, or the one in place of the first draft that was not accepted."""
    place = num_accepted[:, None]
    position = positions.gather(1, place)[:, 0]
    target = weights_of(_at(probabilities, place))
    num_drafts = real.shape[1]
    if num_drafts == 0:
        return sample_weights(target, uniform(rows.seeds, position, SAMPLE))
    draft_place = place.clamp(max=num_drafts - 1)
    rejected = real.gather(1, draft_place)[:, 0] & (num_accepted < num_drafts)
    residual = (target - weights_of(_at(drafts.probabilities, draft_place))).clamp_min(0)
    # Rounding can reject a draft although p = q everywhere: then nothing is left over, and p itself is right.
    rejected &= residual.sum(-1) > 0
    number = torch.where(
        rejected, uniform(rows.seeds, position, CORRECT), uniform(rows.seeds, position, SAMPLE)
    )
    return sample_weights(torch.where(rejected[:, None], residual, target), number)


def _at(probabilities: Any, place: Any) -> Any:
    """float32[R, V]: of each row the distribution at its place, int64[R, 1]."""
    return probabilities.gather(1, place[:, :, None].expand(-1, 1, probabilities.shape[-1]))[:, 0]
