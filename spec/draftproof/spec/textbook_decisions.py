"""The decisions as a plain textbook would print them: `if`s and integers, one rule a line.

Never run in production. CrossHair confirms that each branch-free decision of `draftproof.impl.decisions`
equals its version here. All counts are tokens unless said.
"""

from __future__ import annotations

from draftproof.spec.decision_inputs import Metrics
from draftproof.spec.ledger import Ledger, Rules


def whole_blocks(num_tokens: int, block_size: int) -> int:
    """The tokens of the blocks that `num_tokens` fill, the rest of the last one left out."""
    return num_tokens - num_tokens % block_size


def smaller(first: int, second: int) -> int:
    """The smaller of two numbers."""
    if first <= second:
        return first
    return second


def not_negative(num_tokens: int) -> int:
    """The number, or 0 if it is below."""
    if num_tokens > 0:
        return num_tokens
    return 0


def tokens_to_schedule(
    ledger: Ledger,
    rules: Rules,
    token_budget: int,
    max_model_len: int,
    max_num_tokens: int,
    num_awaited_outputs: int,
    chunk_alignment: int,
) -> int:
    if ledger.num_tokens + num_awaited_outputs >= max_num_tokens:
        return 0  # what is awaited reaches the limit by itself
    computed = ledger.num_computed_tokens
    known = ledger.num_tokens
    wanted = known + ledger.num_draft_tokens + ledger.num_output_placeholders - computed
    chosen = smaller(smaller(wanted, token_budget), max_model_len - 1 - computed)
    if computed + chosen < known:  # a prefill chunk that more chunks follow
        chosen = whole_blocks(computed + chosen, chunk_alignment) - computed
    return not_negative(chosen)


def tokens_before_lookahead(
    ledger: Ledger, rules: Rules, num_new_tokens: int, num_prefill_lookahead_tokens: int
) -> int:
    left = ledger.num_tokens - ledger.num_computed_tokens - num_new_tokens
    if left <= 0:
        return num_new_tokens  # all that is known is computed
    if left >= num_prefill_lookahead_tokens:
        return num_new_tokens
    return not_negative(num_new_tokens - (num_prefill_lookahead_tokens - left))


def drafts_allowed(ledger: Ledger, rules: Rules, max_model_len: int) -> int:
    room = max_model_len - ledger.num_tokens
    if room < rules.num_speculative_tokens:
        return room
    return rules.num_speculative_tokens


def tokens_to_keep(
    ledger: Ledger, rules: Rules, num_generated: int, stop_index: int, max_num_tokens: int
) -> int:
    kept = num_generated
    if stop_index + 1 < kept:
        kept = stop_index + 1
    if ledger.num_tokens + kept > max_num_tokens:
        kept = max_num_tokens - ledger.num_tokens
    return kept


def slots_to_reserve(ledger: Ledger, rules: Rules, num_lookahead_tokens: int) -> int:
    return ledger.num_computed_tokens + num_lookahead_tokens


def slots_to_admit(ledger: Ledger, rules: Rules, num_lookahead_tokens: int) -> int:
    return ledger.num_tokens + num_lookahead_tokens


def window_to_prune(ledger: Ledger, rules: Rules, window: int) -> int:
    live = ledger.num_in_flight_tokens - ledger.num_stale_tokens
    first_read = ledger.num_computed_tokens - live - window + 1
    if first_read <= 0:
        return 0
    return whole_blocks(first_read, rules.block_size)


def may_release(ledger: Ledger, rules: Rules, num_pending_transfers: int) -> bool:
    if ledger.num_in_flight_tokens != 0:
        return False
    return num_pending_transfers == 0


def lookup_hit(ledger: Ledger, rules: Rules, num_matching_tokens: int, drops_block: bool) -> int:
    hit = whole_blocks(ledger.num_tokens - 1, rules.block_size)
    if num_matching_tokens < hit:
        hit = num_matching_tokens
    if drops_block:
        hit = not_negative(hit - rules.block_size)
    return hit


def checkpoint_to_keep(ledger: Ledger, rules: Rules, drops_block: bool) -> int:
    if drops_block:
        return not_negative(whole_blocks(ledger.num_prompt_tokens, rules.block_size) - rules.block_size)
    return whole_blocks(ledger.num_prompt_tokens - 1, rules.block_size)


def window_to_save(ledger: Ledger, rules: Rules, num_boundary_tokens: int, drops_block: bool) -> int:
    if drops_block:
        return num_boundary_tokens + rules.block_size
    return num_boundary_tokens


def hashes_to_keep(ledger: Ledger, rules: Rules) -> int:
    return whole_blocks(ledger.num_tokens - 1, rules.block_size)


def known_lookahead(ledger: Ledger, rules: Rules, num_end_tokens: int, num_lookahead_tokens: int) -> int:
    if num_end_tokens + num_lookahead_tokens > ledger.num_tokens:
        return ledger.num_tokens - num_end_tokens
    return num_lookahead_tokens


def draft_buffer(ledger: Ledger, rules: Rules, max_num_batched_tokens: int, max_num_seqs: int) -> int:
    one_more_each = max_num_batched_tokens + max_num_seqs
    in_parallel = max_num_seqs + max_num_seqs * rules.num_speculative_tokens
    if in_parallel > one_more_each:
        return in_parallel
    return one_more_each


def seats_free(
    ledger: Ledger,
    rules: Rules,
    num_scheduled_requests: int,
    num_resident_requests: int,
    max_num_seqs: int,
) -> int:
    return max_num_seqs - num_scheduled_requests


def count_admission(
    ledger: Ledger, rules: Rules, metrics: Metrics, num_hit_tokens: int, num_external_tokens: int
) -> Metrics:
    if metrics.num_admissions == 0:
        metrics = metrics._replace(
            num_cached_tokens=smaller(num_hit_tokens, ledger.num_prompt_tokens),
            num_external_tokens=smaller(num_external_tokens, ledger.num_prompt_tokens),
        )
    return metrics._replace(num_admissions=metrics.num_admissions + 1)


def count_output(
    ledger: Ledger, rules: Rules, metrics: Metrics, num_drafts: int, num_accepted: int, num_kept: int
) -> Metrics:
    if num_drafts > 0:
        metrics = metrics._replace(
            num_verified_steps=metrics.num_verified_steps + 1,
            num_emitted_tokens=metrics.num_emitted_tokens + num_kept,
        )
    return metrics._replace(
        num_drafts_verified=metrics.num_drafts_verified + num_drafts,
        num_drafts_accepted=metrics.num_drafts_accepted + smaller(num_accepted, num_kept),
    )
