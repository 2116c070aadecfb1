"""Does each decision, as Python runs it, equal its textbook version? The contracts CrossHair confirms.

As for the transitions (`draftproof.proofs.crosshair_targets`): one wrapper per decision around the very
function that runs, one postcondition, any integers but for the named preconditions. No block size is
fixed. Where a number is rounded to blocks, it is required not to be negative: CrossHair does not finish on
the remainder of a negative number by a symbolic block size.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import icontract

from draftproof.impl import decisions
from draftproof.spec import textbook_decisions as textbook
from draftproof.spec.decision_inputs import Metrics
from draftproof.spec.ledger import Ledger, Rules

CODE: dict[str, Callable[..., Any]] = dict(decisions.FUNCTIONS)
"""What the wrappers call: the running functions. Looked up at each call, so that a mutant can stand in."""


def block_is_not_empty(rules: Rules) -> bool:
    """A block holds at least one token."""
    return rules.block_size >= 1


def something_is_known(ledger: Ledger) -> bool:
    """A request knows at least one token (invariants `prompt_is_known` and `no_negative_counter`)."""
    return ledger.num_tokens >= 1


def prompt_is_not_empty(ledger: Ledger) -> bool:
    """A prompt has at least one token (invariant `no_negative_counter`)."""
    return ledger.num_prompt_tokens >= 1


def alignment_is_positive(chunk_alignment: int) -> bool:
    """Chunks end on multiples of at least one token."""
    return chunk_alignment >= 1


def end_is_not_negative(ledger: Ledger, token_budget: int, max_model_len: int) -> bool:
    """A step ends at or above position 0: counters, budget and model length are what they count."""
    return (
        ledger.num_tokens >= 1
        and ledger.num_computed_tokens >= 0
        and ledger.num_draft_tokens >= 0
        and ledger.num_output_placeholders >= 0
        and token_budget >= 0
        and max_model_len >= 1
    )


def tokens_to_schedule_is_textbook(
    ledger: Ledger,
    rules: Rules,
    token_budget: int,
    max_model_len: int,
    max_num_tokens: int,
    num_awaited_outputs: int,
    chunk_alignment: int,
    result: int,
) -> bool:
    return result == textbook.tokens_to_schedule(
        ledger, rules, token_budget, max_model_len, max_num_tokens, num_awaited_outputs, chunk_alignment
    )


@icontract.require(alignment_is_positive)
@icontract.require(end_is_not_negative)
@icontract.ensure(tokens_to_schedule_is_textbook)
def tokens_to_schedule(
    ledger: Ledger,
    rules: Rules,
    token_budget: int,
    max_model_len: int,
    max_num_tokens: int,
    num_awaited_outputs: int,
    chunk_alignment: int,
) -> int:
    """Any inputs, any ledger."""
    answer: int = CODE["tokens_to_schedule"](
        ledger, rules, token_budget, max_model_len, max_num_tokens, num_awaited_outputs, chunk_alignment
    )
    return answer


def tokens_before_lookahead_is_textbook(
    ledger: Ledger, rules: Rules, num_new_tokens: int, num_prefill_lookahead_tokens: int, result: int
) -> bool:
    return result == textbook.tokens_before_lookahead(
        ledger, rules, num_new_tokens, num_prefill_lookahead_tokens
    )


@icontract.ensure(tokens_before_lookahead_is_textbook)
def tokens_before_lookahead(
    ledger: Ledger, rules: Rules, num_new_tokens: int, num_prefill_lookahead_tokens: int
) -> int:
    """Any inputs, any ledger."""
    answer: int = CODE["tokens_before_lookahead"](ledger, rules, num_new_tokens, num_prefill_lookahead_tokens)
    return answer


def drafts_allowed_is_textbook(ledger: Ledger, rules: Rules, max_model_len: int, result: int) -> bool:
    return result == textbook.drafts_allowed(ledger, rules, max_model_len)


@icontract.ensure(drafts_allowed_is_textbook)
def drafts_allowed(ledger: Ledger, rules: Rules, max_model_len: int) -> int:
    """Any inputs, any ledger."""
    answer: int = CODE["drafts_allowed"](ledger, rules, max_model_len)
    return answer


def tokens_to_keep_is_textbook(
    ledger: Ledger, rules: Rules, num_generated: int, stop_index: int, max_num_tokens: int, result: int
) -> bool:
    return result == textbook.tokens_to_keep(ledger, rules, num_generated, stop_index, max_num_tokens)


@icontract.ensure(tokens_to_keep_is_textbook)
def tokens_to_keep(
    ledger: Ledger, rules: Rules, num_generated: int, stop_index: int, max_num_tokens: int
) -> int:
    """Any inputs, any ledger."""
    answer: int = CODE["tokens_to_keep"](ledger, rules, num_generated, stop_index, max_num_tokens)
    return answer


def slots_to_reserve_is_textbook(
    ledger: Ledger, rules: Rules, num_lookahead_tokens: int, result: int
) -> bool:
    return result == textbook.slots_to_reserve(ledger, rules, num_lookahead_tokens)


@icontract.ensure(slots_to_reserve_is_textbook)
def slots_to_reserve(ledger: Ledger, rules: Rules, num_lookahead_tokens: int) -> int:
    """Any inputs, any ledger."""
    answer: int = CODE["slots_to_reserve"](ledger, rules, num_lookahead_tokens)
    return answer


def slots_to_admit_is_textbook(ledger: Ledger, rules: Rules, num_lookahead_tokens: int, result: int) -> bool:
    return result == textbook.slots_to_admit(ledger, rules, num_lookahead_tokens)


@icontract.ensure(slots_to_admit_is_textbook)
def slots_to_admit(ledger: Ledger, rules: Rules, num_lookahead_tokens: int) -> int:
    """Any inputs, any ledger."""
    answer: int = CODE["slots_to_admit"](ledger, rules, num_lookahead_tokens)
    return answer


def window_to_prune_is_textbook(ledger: Ledger, rules: Rules, window: int, result: int) -> bool:
    return result == textbook.window_to_prune(ledger, rules, window)


@icontract.require(block_is_not_empty)
@icontract.ensure(window_to_prune_is_textbook)
def window_to_prune(ledger: Ledger, rules: Rules, window: int) -> int:
    """Any inputs, any ledger."""
    answer: int = CODE["window_to_prune"](ledger, rules, window)
    return answer


def may_release_is_textbook(ledger: Ledger, rules: Rules, num_pending_transfers: int, result: bool) -> bool:
    return result == textbook.may_release(ledger, rules, num_pending_transfers)


@icontract.ensure(may_release_is_textbook)
def may_release(ledger: Ledger, rules: Rules, num_pending_transfers: int) -> bool:
    """Any inputs, any ledger."""
    answer: bool = CODE["may_release"](ledger, rules, num_pending_transfers)
    return answer


def lookup_hit_is_textbook(
    ledger: Ledger, rules: Rules, num_matching_tokens: int, drops_block: bool, result: int
) -> bool:
    return result == textbook.lookup_hit(ledger, rules, num_matching_tokens, drops_block)


@icontract.require(block_is_not_empty)
@icontract.require(something_is_known)
@icontract.ensure(lookup_hit_is_textbook)
def lookup_hit(ledger: Ledger, rules: Rules, num_matching_tokens: int, drops_block: bool) -> int:
    """Any inputs, any ledger."""
    answer: int = CODE["lookup_hit"](ledger, rules, num_matching_tokens, drops_block)
    return answer


def checkpoint_to_keep_is_textbook(ledger: Ledger, rules: Rules, drops_block: bool, result: int) -> bool:
    return result == textbook.checkpoint_to_keep(ledger, rules, drops_block)


@icontract.require(block_is_not_empty)
@icontract.require(prompt_is_not_empty)
@icontract.ensure(checkpoint_to_keep_is_textbook)
def checkpoint_to_keep(ledger: Ledger, rules: Rules, drops_block: bool) -> int:
    """Any inputs, any ledger."""
    answer: int = CODE["checkpoint_to_keep"](ledger, rules, drops_block)
    return answer


def window_to_save_is_textbook(
    ledger: Ledger, rules: Rules, num_boundary_tokens: int, drops_block: bool, result: int
) -> bool:
    return result == textbook.window_to_save(ledger, rules, num_boundary_tokens, drops_block)


@icontract.ensure(window_to_save_is_textbook)
def window_to_save(ledger: Ledger, rules: Rules, num_boundary_tokens: int, drops_block: bool) -> int:
    """Any inputs, any ledger."""
    answer: int = CODE["window_to_save"](ledger, rules, num_boundary_tokens, drops_block)
    return answer


def hashes_to_keep_is_textbook(ledger: Ledger, rules: Rules, result: int) -> bool:
    return result == textbook.hashes_to_keep(ledger, rules)


@icontract.require(block_is_not_empty)
@icontract.require(something_is_known)
@icontract.ensure(hashes_to_keep_is_textbook)
def hashes_to_keep(ledger: Ledger, rules: Rules) -> int:
    """Any inputs, any ledger."""
    answer: int = CODE["hashes_to_keep"](ledger, rules)
    return answer


def known_lookahead_is_textbook(
    ledger: Ledger, rules: Rules, num_end_tokens: int, num_lookahead_tokens: int, result: int
) -> bool:
    return result == textbook.known_lookahead(ledger, rules, num_end_tokens, num_lookahead_tokens)


@icontract.ensure(known_lookahead_is_textbook)
def known_lookahead(ledger: Ledger, rules: Rules, num_end_tokens: int, num_lookahead_tokens: int) -> int:
    """Any inputs, any ledger."""
    answer: int = CODE["known_lookahead"](ledger, rules, num_end_tokens, num_lookahead_tokens)
    return answer


def draft_buffer_is_textbook(
    ledger: Ledger, rules: Rules, max_num_batched_tokens: int, max_num_seqs: int, result: int
) -> bool:
    return result == textbook.draft_buffer(ledger, rules, max_num_batched_tokens, max_num_seqs)


@icontract.ensure(draft_buffer_is_textbook)
def draft_buffer(ledger: Ledger, rules: Rules, max_num_batched_tokens: int, max_num_seqs: int) -> int:
    """Any inputs, any ledger."""
    answer: int = CODE["draft_buffer"](ledger, rules, max_num_batched_tokens, max_num_seqs)
    return answer


def seats_free_is_textbook(
    ledger: Ledger,
    rules: Rules,
    num_scheduled_requests: int,
    num_resident_requests: int,
    max_num_seqs: int,
    result: int,
) -> bool:
    return result == textbook.seats_free(
        ledger, rules, num_scheduled_requests, num_resident_requests, max_num_seqs
    )


@icontract.ensure(seats_free_is_textbook)
def seats_free(
    ledger: Ledger, rules: Rules, num_scheduled_requests: int, num_resident_requests: int, max_num_seqs: int
) -> int:
    """Any inputs, any ledger."""
    answer: int = CODE["seats_free"](
        ledger, rules, num_scheduled_requests, num_resident_requests, max_num_seqs
    )
    return answer


def count_admission_is_textbook(
    ledger: Ledger,
    rules: Rules,
    metrics: Metrics,
    num_hit_tokens: int,
    num_external_tokens: int,
    result: Metrics,
) -> bool:
    return result == textbook.count_admission(ledger, rules, metrics, num_hit_tokens, num_external_tokens)


@icontract.ensure(count_admission_is_textbook)
def count_admission(
    ledger: Ledger, rules: Rules, metrics: Metrics, num_hit_tokens: int, num_external_tokens: int
) -> Metrics:
    """Any inputs, any ledger."""
    answer: Metrics = CODE["count_admission"](ledger, rules, metrics, num_hit_tokens, num_external_tokens)
    return answer


def count_output_is_textbook(
    ledger: Ledger,
    rules: Rules,
    metrics: Metrics,
    num_drafts: int,
    num_accepted: int,
    num_kept: int,
    result: Metrics,
) -> bool:
    return result == textbook.count_output(ledger, rules, metrics, num_drafts, num_accepted, num_kept)


@icontract.ensure(count_output_is_textbook)
def count_output(
    ledger: Ledger, rules: Rules, metrics: Metrics, num_drafts: int, num_accepted: int, num_kept: int
) -> Metrics:
    """Any inputs, any ledger."""
    answer: Metrics = CODE["count_output"](ledger, rules, metrics, num_drafts, num_accepted, num_kept)
    return answer


TARGETS: dict[str, Callable[..., Any]] = {
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
"""One target per decision, by its name."""
