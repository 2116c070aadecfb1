"""Does the code of recurrent state, as Python runs it, equal its textbook version?

As for the ledger's transitions (`draftproof.proofs.crosshair_targets`): a wrapper around the very function
that runs, one postcondition, any integers but for the named preconditions. Where a position is rounded to
boundaries it is required not to be negative. Functions of a single comparison have no wrapper.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import icontract

from draftproof.impl import recurrent as running
from draftproof.spec import recurrent_textbook as textbook
from draftproof.spec.ledger import Ledger
from draftproof.spec.recurrent import Recurrent, RecurrentRules

CODE: dict[str, Callable[..., Any]] = {**running.TRANSITIONS, **running.DECISIONS}
"""What the wrappers call: the running functions. Looked up at each call, so that a mutant can stand in."""


def block_is_not_empty(rules: RecurrentRules) -> bool:
    """Boundaries are at least one token apart."""
    return rules.block_size >= 1


def positions_are_not_negative(recurrent: Recurrent) -> bool:
    """Invariant `no_negative_count`, and that a step has a token beside its drafts."""
    return (
        recurrent.num_state_tokens >= 0
        and recurrent.num_trimmed_tokens >= 0
        and recurrent.num_in_flight_tokens >= recurrent.num_in_flight_drafts >= 0
        and recurrent.num_checkpoint_tokens >= 0
        and recurrent.num_published_tokens >= 0
    )


def step_is_not_negative(num_new_tokens: int) -> bool:
    """A step has tokens."""
    return num_new_tokens >= 0


def limit_is_not_negative(num_registrable_tokens: int) -> bool:
    """What may be published is a number of tokens."""
    return num_registrable_tokens >= 0


def kept_is_not_negative(num_kept: int) -> bool:
    """A step keeps tokens or none."""
    return num_kept >= 0


def chunk_is_a_chunk(
    num_start_tokens: int, num_wanted: int, num_tokens: int, num_checkpoint_tokens: int
) -> bool:
    """Tokens from a position on, some of them wanted."""
    return num_start_tokens >= 0 and num_wanted >= 0 and num_tokens >= 1 and num_checkpoint_tokens >= 0


def something_is_known(ledger: Ledger) -> bool:
    """A request knows at least one token."""
    return ledger.num_tokens >= 1


def start_is_textbook(
    recurrent: Recurrent,
    rules: RecurrentRules,
    num_hit_tokens: int,
    num_checkpoint_tokens: int,
    result: Recurrent,
) -> bool:
    return result == textbook.start(recurrent, rules, num_hit_tokens, num_checkpoint_tokens)


@icontract.ensure(start_is_textbook)
def start(
    recurrent: Recurrent, rules: RecurrentRules, num_hit_tokens: int, num_checkpoint_tokens: int
) -> Recurrent:
    """Any hit, any record."""
    answer: Recurrent = CODE["start"](recurrent, rules, num_hit_tokens, num_checkpoint_tokens)
    return answer


def dispatch_is_textbook(
    recurrent: Recurrent,
    rules: RecurrentRules,
    num_new_tokens: int,
    num_drafts: int,
    num_tokens: int,
    result: Recurrent,
) -> bool:
    return result == textbook.dispatch(recurrent, rules, num_new_tokens, num_drafts, num_tokens)


@icontract.require(block_is_not_empty)
@icontract.require(positions_are_not_negative)
@icontract.require(step_is_not_negative)
@icontract.ensure(dispatch_is_textbook)
def dispatch(
    recurrent: Recurrent, rules: RecurrentRules, num_new_tokens: int, num_drafts: int, num_tokens: int
) -> Recurrent:
    """Any step, any record of numbers that are not negative."""
    answer: Recurrent = CODE["dispatch"](recurrent, rules, num_new_tokens, num_drafts, num_tokens)
    return answer


def publish_is_textbook(
    recurrent: Recurrent, rules: RecurrentRules, num_registrable_tokens: int, result: Recurrent
) -> bool:
    return result == textbook.publish(recurrent, rules, num_registrable_tokens)


@icontract.require(block_is_not_empty)
@icontract.require(positions_are_not_negative)
@icontract.require(limit_is_not_negative)
@icontract.ensure(publish_is_textbook)
def publish(recurrent: Recurrent, rules: RecurrentRules, num_registrable_tokens: int) -> Recurrent:
    """Any limit, any record of numbers that are not negative."""
    answer: Recurrent = CODE["publish"](recurrent, rules, num_registrable_tokens)
    return answer


def settle_is_textbook(
    recurrent: Recurrent,
    rules: RecurrentRules,
    num_returned: int,
    num_drafts: int,
    num_accepted: int,
    num_kept: int,
    result: Recurrent,
) -> bool:
    expected = textbook.settle(recurrent, rules, num_returned, num_drafts, num_accepted, num_kept)
    return result == expected


@icontract.require(kept_is_not_negative)
@icontract.ensure(settle_is_textbook)
def settle(
    recurrent: Recurrent,
    rules: RecurrentRules,
    num_returned: int,
    num_drafts: int,
    num_accepted: int,
    num_kept: int,
) -> Recurrent:
    """Any output, any record."""
    answer: Recurrent = CODE["settle"](recurrent, rules, num_returned, num_drafts, num_accepted, num_kept)
    return answer


def next_turn_is_textbook(
    recurrent: Recurrent, rules: RecurrentRules, num_checkpoint_tokens: int, result: Recurrent
) -> bool:
    return result == textbook.next_turn(recurrent, rules, num_checkpoint_tokens)


@icontract.ensure(next_turn_is_textbook)
def next_turn(recurrent: Recurrent, rules: RecurrentRules, num_checkpoint_tokens: int) -> Recurrent:
    """Any checkpoint, any record."""
    answer: Recurrent = CODE["next_turn"](recurrent, rules, num_checkpoint_tokens)
    return answer


def first_unreserved_is_textbook(recurrent: Recurrent, rules: RecurrentRules, result: int) -> bool:
    return result == textbook.first_unreserved(recurrent, rules)


@icontract.require(block_is_not_empty)
@icontract.require(positions_are_not_negative)
@icontract.ensure(first_unreserved_is_textbook)
def first_unreserved(recurrent: Recurrent, rules: RecurrentRules) -> int:
    """Any record of numbers that are not negative."""
    answer: int = CODE["first_unreserved"](recurrent, rules)
    return answer


def slot_to_read_is_textbook(recurrent: Recurrent, num_last_accepted: int, result: int) -> bool:
    return result == textbook.slot_to_read(recurrent, num_last_accepted)


@icontract.ensure(slot_to_read_is_textbook)
def slot_to_read(recurrent: Recurrent, num_last_accepted: int) -> int:
    """Any acceptance, any record."""
    answer: int = CODE["slot_to_read"](recurrent, num_last_accepted)
    return answer


def chunk_to_schedule_is_textbook(
    num_start_tokens: int,
    num_wanted: int,
    num_tokens: int,
    num_checkpoint_tokens: int,
    rules: RecurrentRules,
    result: int,
) -> bool:
    return result == textbook.chunk_to_schedule(
        num_start_tokens, num_wanted, num_tokens, num_checkpoint_tokens, rules
    )


@icontract.require(block_is_not_empty)
@icontract.require(chunk_is_a_chunk)
@icontract.ensure(chunk_to_schedule_is_textbook)
def chunk_to_schedule(
    num_start_tokens: int,
    num_wanted: int,
    num_tokens: int,
    num_checkpoint_tokens: int,
    rules: RecurrentRules,
) -> int:
    """Any chunk."""
    answer: int = CODE["chunk_to_schedule"](
        num_start_tokens, num_wanted, num_tokens, num_checkpoint_tokens, rules
    )
    return answer


def registrable_at_exit_is_textbook(ledger: Ledger, result: int) -> bool:
    return result == textbook.registrable_at_exit(ledger)


@icontract.require(something_is_known)
@icontract.ensure(registrable_at_exit_is_textbook)
def registrable_at_exit(ledger: Ledger) -> int:
    """Any ledger."""
    answer: int = CODE["registrable_at_exit"](ledger)
    return answer


TARGETS: dict[str, Callable[..., Any]] = {
    "start": start,
    "dispatch": dispatch,
    "publish": publish,
    "settle": settle,
    "next_turn": next_turn,
    "first_unreserved": first_unreserved,
    "slot_to_read": slot_to_read,
    "chunk_to_schedule": chunk_to_schedule,
    "registrable_at_exit": registrable_at_exit,
}
"""One target for each function that computes more than a comparison, by its name."""
