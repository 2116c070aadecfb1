"""Decisions: what a scheduler computes from a ledger without changing it. Branch-free, like the accounting.

Each is called `(ledger, rules, *inputs)` (inputs and relations: `draftproof.spec.decisions`). A few ask
no particular request; they keep the signature of the others. All counts are tokens unless said.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from draftproof.spec.algebra import both, floor_to_block, maximum, minimum, where
from draftproof.spec.decision_inputs import Metrics
from draftproof.spec.guards import num_schedulable
from draftproof.spec.ledger import Ledger, Rules


def tokens_to_schedule(
    ledger: Ledger,
    rules: Rules,
    token_budget: int,
    max_model_len: int,
    max_num_tokens: int,
    num_awaited_outputs: int,
    chunk_alignment: int,
) -> int:
    """How large the request's next step is; 0 leaves it out of this step.

    As much as is wanted, within the budget and the model's length; a prefill chunk that does not reach
    the known end stops on the alignment (recurrent state is stored there), also for a resumed request.
    A request whose awaited outputs alone must reach its limit is left out; one whose drafts may all be
    rejected is not. Sources: vLLM #27922, #29542, #33706; TensorRT-LLM #15187.
    """
    unaligned = minimum(
        minimum(num_schedulable(ledger), token_budget), max_model_len - 1 - ledger.num_computed_tokens
    )
    end = ledger.num_computed_tokens + unaligned
    aligned = floor_to_block(end, chunk_alignment) - ledger.num_computed_tokens
    at_limit = ledger.num_tokens + num_awaited_outputs >= max_num_tokens
    return where(at_limit, 0, maximum(where(end < ledger.num_tokens, aligned, unaligned), 0))


def tokens_before_lookahead(
    ledger: Ledger, rules: Rules, num_new_tokens: int, num_prefill_lookahead_tokens: int
) -> int:
    """The largest prefill chunk within `num_new_tokens` that does not cut the drafter's look-ahead, or 0.

    A drafter of several modules reads the A tokens after a position: a chunk leaves none of the known tokens,
    or at least A. Cut the budget with it before `tokens_to_schedule` aligns: what both give together is in
    `draftproof.spec.chunks`. Source: vLLM's multi-module MTP.
    """
    num_left = ledger.num_tokens - ledger.num_computed_tokens - num_new_tokens
    cuts_lookahead = both(num_left > 0, num_left < num_prefill_lookahead_tokens)
    before_lookahead = maximum(num_new_tokens - (num_prefill_lookahead_tokens - num_left), 0)
    return where(cuts_lookahead, before_lookahead, num_new_tokens)


def drafts_allowed(ledger: Ledger, rules: Rules, max_model_len: int) -> int:
    """Drafts the drafter may propose: N + drafts stays within the model's length. Source: vLLM #42533."""
    return minimum(rules.num_speculative_tokens, max_model_len - ledger.num_tokens)


def tokens_to_keep(
    ledger: Ledger, rules: Rules, num_generated: int, stop_index: int, max_num_tokens: int
) -> int:
    """Generated tokens that stay: up to the first index at which any stop rule fires. SGLang #33758."""
    return minimum(minimum(num_generated, stop_index + 1), max_num_tokens - ledger.num_tokens)


def slots_to_reserve(ledger: Ledger, rules: Rules, num_lookahead_tokens: int) -> int:
    """KV slots a request holds once a step is dispatched: every counted position, plus look-ahead (T10).

    C already counts everything in flight, so nothing is added for it again. Sources: TensorRT-LLM
    #16280 (too few), SGLang #32574 and vLLM #49548 (too many).
    """
    return ledger.num_computed_tokens + num_lookahead_tokens


def slots_to_admit(ledger: Ledger, rules: Rules, num_lookahead_tokens: int) -> int:
    """KV slots that must be free before a request starts or resumes: all it knows. Source: vLLM #25538."""
    return ledger.num_tokens + num_lookahead_tokens


def window_to_prune(ledger: Ledger, rules: Rules, window: int) -> int:
    """Leading tokens, in whole blocks, that a sliding-window layer never reads again.

    Counted from what has returned: a step in flight still reads its window. Sources: vllm-ascend
    #13501, SGLang #22900.
    """
    settled = ledger.num_computed_tokens - (ledger.num_in_flight_tokens - ledger.num_stale_tokens)
    return floor_to_block(maximum(settled - window + 1, 0), rules.block_size)


def may_release(ledger: Ledger, rules: Rules, num_pending_transfers: int) -> bool:
    """Whether a request's blocks may go to others: no step in flight, no transfer pending.

    Sources: vllm-ascend #14055, vLLM #32255, #46240.
    """
    return both(ledger.num_in_flight_tokens == 0, num_pending_transfers == 0)


def lookup_hit(ledger: Ledger, rules: Rules, num_matching_tokens: int, drops_block: bool) -> int:
    """Of a run of matching whole blocks, how much may be used: at most N - 1, whole blocks.

    `drops_block`: EAGLE and MTP drafters need the block after the hit, so one is given back (vLLM).
    """
    run = minimum(num_matching_tokens, floor_to_block(ledger.num_tokens - 1, rules.block_size))
    return where(drops_block, maximum(run - rules.block_size, 0), run)


def checkpoint_to_keep(ledger: Ledger, rules: Rules, drops_block: bool) -> int:
    """The prompt boundary at which a recurrent layer keeps its state. Sources: vLLM #52244, #56615."""
    return where(
        drops_block,
        maximum(floor_to_block(ledger.num_prompt_tokens, rules.block_size) - rules.block_size, 0),
        floor_to_block(ledger.num_prompt_tokens - 1, rules.block_size),
    )


def window_to_save(ledger: Ledger, rules: Rules, num_boundary_tokens: int, drops_block: bool) -> int:
    """Up to where window layers store blocks for a hit at the boundary. Source: vLLM #44082."""
    return where(drops_block, num_boundary_tokens + rules.block_size, num_boundary_tokens)


def hashes_to_keep(ledger: Ledger, rules: Rules) -> int:
    """Leading tokens whose block hashes stay valid when the next chunk arrives. Source: vLLM #49377."""
    return floor_to_block(ledger.num_tokens - 1, rules.block_size)


def known_lookahead(ledger: Ledger, rules: Rules, num_end_tokens: int, num_lookahead_tokens: int) -> int:
    """Known tokens after a chunk's end that the drafter reads. Source: SGLang #28254."""
    return minimum(num_lookahead_tokens, ledger.num_tokens - num_end_tokens)


def draft_buffer(ledger: Ledger, rules: Rules, max_num_batched_tokens: int, max_num_seqs: int) -> int:
    """Tokens a drafter's input buffers must hold. Sources: vLLM #53970, #32591."""
    return maximum(max_num_batched_tokens + max_num_seqs, max_num_seqs * (1 + rules.num_speculative_tokens))


def seats_free(
    ledger: Ledger,
    rules: Rules,
    num_scheduled_requests: int,
    num_resident_requests: int,
    max_num_seqs: int,
) -> int:
    """Requests this step may still take; residents that only await output take no seat. vLLM #45257."""
    return max_num_seqs - num_scheduled_requests


def count_admission(
    ledger: Ledger, rules: Rules, metrics: Metrics, num_hit_tokens: int, num_external_tokens: int
) -> Metrics:
    """Cached tokens are counted at the first admission only. Sources: SGLang #11900, vLLM #43517."""
    first = metrics.num_admissions == 0
    return Metrics(
        num_admissions=metrics.num_admissions + 1,
        num_cached_tokens=where(
            first, minimum(num_hit_tokens, ledger.num_prompt_tokens), metrics.num_cached_tokens
        ),
        num_external_tokens=where(
            first, minimum(num_external_tokens, ledger.num_prompt_tokens), metrics.num_external_tokens
        ),
        num_verified_steps=metrics.num_verified_steps,
        num_drafts_verified=metrics.num_drafts_verified,
        num_drafts_accepted=metrics.num_drafts_accepted,
        num_emitted_tokens=metrics.num_emitted_tokens,
    )


def count_output(
    ledger: Ledger, rules: Rules, metrics: Metrics, num_drafts: int, num_accepted: int, num_kept: int
) -> Metrics:
    """Acceptance counts what was verified, accepted and kept. Sources: vLLM #56101, SGLang #13212."""
    verified = num_drafts > 0
    return Metrics(
        num_admissions=metrics.num_admissions,
        num_cached_tokens=metrics.num_cached_tokens,
        num_external_tokens=metrics.num_external_tokens,
        num_verified_steps=metrics.num_verified_steps + where(verified, 1, 0),
        num_drafts_verified=metrics.num_drafts_verified + num_drafts,
        num_drafts_accepted=metrics.num_drafts_accepted + minimum(num_accepted, num_kept),
        num_emitted_tokens=metrics.num_emitted_tokens + where(verified, num_kept, 0),
    )


FUNCTIONS: dict[str, Callable[..., Any]] = {
    "tokens_to_schedule": tokens_to_schedule,
    "tokens_before_lookahead": tokens_before_lookahead,
    "drafts_allowed": drafts_allowed,
    "tokens_to_keep": tokens_to_keep,
    "slots_to_reserve": slots_to_reserve,
    "slots_to_admit": slots_to_admit,
    "window_to_prune": window_to_prune,
    "may_release": may_release,
    "lookup_hit": lookup_hit,
    "checkpoint_to_keep": checkpoint_to_keep,
    "window_to_save": window_to_save,
    "hashes_to_keep": hashes_to_keep,
    "known_lookahead": known_lookahead,
    "draft_buffer": draft_buffer,
    "seats_free": seats_free,
    "count_admission": count_admission,
    "count_output": count_output,
}
"""The code, by decision name."""
