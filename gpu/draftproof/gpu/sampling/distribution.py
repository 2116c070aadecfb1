"""From which distribution is a token sampled? The model's logits, after what the request asked for.

In vLLM's order: stop tokens ruled out before min_tokens, repetition penalty, temperature, min-p, top-k,
top-p. (transformers applies min-p last. Min-p and top-k commute; only beside top-p can the two differ,
because top-p counts shares of what is left.) Ties, as both have them: top-k keeps every token as likely as
the k-th; top-p cuts a sorted list, so of equals it keeps those of higher id. The most likely token stays.

Sums that decide something are sums of integers: probabilities in units of 2**-45. They are exact in any
order, so neither the device nor the number of rows can move a boundary.
"""

from __future__ import annotations

from typing import Any

import torch

from draftproof.gpu.sampling.rows import SamplingRows

UNIT = 2.0**45
"""Units of a whole probability: room for sums of 2**18 tokens, far finer than float32 is at 1."""
NEVER = float("-inf")


def constrained_logits(logits: Any, rows: SamplingRows, positions: Any, seen: Any | None = None) -> Any:
    """The logits after min_tokens and the repetition penalty: what greedy rows take the maximum of.

    `logits`: float32[R, P, V], of P positions of each row; `positions`: int64[R, P], where in the request the
    sampled token will stand; `seen`: bool[R, P, V], the tokens before it (needed if a row has a penalty).
    Penalty: a positive logit is divided by it, another multiplied (Keskar et al. 2019).
    """
    if rows.stop_token_ids.shape[1] > 0:
        stops = token_set(rows.stop_token_ids, logits.shape[-1])
        early = positions < rows.first_stop_position[:, None]
        logits = logits.masked_fill(stops[:, None, :] & early[:, :, None], NEVER)
    if rows.any_penalty:
        if seen is None:
            raise ValueError("a row has a repetition penalty: the tokens seen so far are needed")
        penalty = rows.repetition_penalty[:, None, None]
        punished = torch.where(logits > 0, logits / penalty, logits * penalty)
        logits = torch.where(seen, punished, logits)
    return logits


def target_probabilities(logits: Any, rows: SamplingRows) -> Any:
    """float32[R, P, V] from constrained logits of that shape: temperature, then the filters, then softmax.

    A greedy row gets its distribution at temperature 1 without filters: take its most likely token instead.
    """
    greedy = rows.temperature == 0
    logits = logits / torch.where(greedy, 1.0, rows.temperature)[:, None, None]
    if rows.any_min_p:
        logits = _apply_min_p(logits, torch.where(greedy, 0.0, rows.min_p)[:, None, None])
    if rows.max_top_k > 0:
        logits = _apply_top_k(logits, torch.where(greedy, 0, rows.top_k), rows.max_top_k)
    if rows.any_top_p:
        logits = _apply_top_p(logits, torch.where(greedy, 1.0, rows.top_p)[:, None, None])
    return logits.softmax(-1)


def _apply_min_p(logits: Any, min_p: Any) -> Any:
    """Without tokens less likely than min_p times the most likely one. log(0) = -inf removes nothing."""
    return logits.masked_fill(logits < logits.amax(-1, keepdim=True) + min_p.log(), NEVER)


def _apply_top_k(logits: Any, top_k: Any, max_top_k: int) -> Any:
    """Without tokens less likely than the k-th most likely one. Where k is 0, as it was."""
    largest = logits.topk(min(max_top_k, logits.shape[-1]), dim=-1).values
    place = (top_k - 1).clamp(0, largest.shape[-1] - 1)[:, None, None].expand(-1, logits.shape[1], 1)
    threshold = largest.gather(-1, place).masked_fill((top_k == 0)[:, None, None], NEVER)
    return logits.masked_fill(logits < threshold, NEVER)


def _apply_top_p(logits: Any, top_p: Any) -> Any:
    """Without the least likely tokens that together have at most 1 - top_p. Where top_p is 1, as it was."""
    ascending, order = logits.sort(dim=-1, stable=True)
    sums = weights_of(ascending.softmax(-1)).cumsum(-1)
    removed = sums <= (1.0 - top_p.to(torch.float64)) * sums[..., -1:]
    removed[..., -1] = False
    removed &= top_p < 1.0
    return logits.masked_fill(torch.empty_like(removed).scatter_(-1, order, removed), NEVER)


def weights_of(probabilities: Any) -> Any:
    """Probabilities in whole units of 2**-45: int64 of the same shape. Not a number counts as 0."""
    return (probabilities.to(torch.float64) * UNIT).nan_to_num(0.0).to(torch.int64)


def sample_weights(weights: Any, uniforms: Any) -> Any:
    """The token that each number selects: int64[...] from int64[..., V] weights and float64[...] in (0, 1).

    Inversion: the first token whose running sum is above number x total. A token of weight 0 is never
    selected, unless all are 0 (logits that are not numbers); then token 0 is.
    """
    sums = weights.cumsum(-1)
    # The product is rounded: at most to the total itself, which would select nothing.
    wanted = torch.minimum((uniforms * sums[..., -1]).to(torch.int64), sums[..., -1] - 1)
    return torch.searchsorted(sums, wanted[..., None], right=True)[..., 0].clamp(max=weights.shape[-1] - 1)


def sample(probabilities: Any, uniforms: Any) -> Any:
    """A token of each distribution: int64[...] from float[..., V] and float64[...] in (0, 1)."""
    return sample_weights(weights_of(probabilities), uniforms)


def token_set(token_ids: Any, vocab_size: int) -> Any:
    """Rows of token ids as sets: bool[R, V] from integers [R, n]; ids outside the vocabulary are left out."""
    tokens = token_ids.to(torch.int64)
    inside = (tokens >= 0) & (tokens < vocab_size)
    members = torch.zeros(tokens.shape[0], vocab_size + 1, dtype=torch.bool, device=tokens.device)
    # The last column takes what is left out: a mask of varying length would have to be read back.
    return members.scatter_(1, torch.where(inside, tokens, vocab_size), True)[:, :vocab_size]


def seen_before(seen: Any, draft_token_ids: Any) -> Any:
    """What each of a step's tokens has before it: bool[R, 1 + K, V] from bool[R, V], the tokens of prompt and
    output, and the drafts, integers [R, K]: the j-th token comes after the first j drafts."""
    vocab_size = seen.shape[1]
    steps = [seen]
    for place in range(draft_token_ids.shape[1]):
        steps.append(steps[-1] | token_set(draft_token_ids[:, place : place + 1], vocab_size))
    return torch.stack(steps, dim=1)
