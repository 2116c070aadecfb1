"""Recurrent state as a plain textbook would print it: `if`s and integers, one rule a line.

Never run in production. CrossHair confirms that the branch-free functions of `draftproof.impl.recurrent`
equal their versions here. All counts are tokens.
"""

from __future__ import annotations

from draftproof.spec.ledger import Ledger
from draftproof.spec.recurrent import Recurrent, RecurrentRules
from draftproof.spec.textbook_decisions import smaller, whole_blocks


def boundary_at_most(num_tokens: int, num_checkpoint_tokens: int, rules: RecurrentRules) -> int:
    """The last boundary up to here: a whole block's end, or the checkpoint if that is later."""
    boundary = whole_blocks(num_tokens, rules.block_size)
    if boundary < num_checkpoint_tokens <= num_tokens:
        return num_checkpoint_tokens
    if num_checkpoint_tokens > num_tokens and boundary < 0:
        return 0
    return boundary


def start(
    recurrent: Recurrent, rules: RecurrentRules, num_hit_tokens: int, num_checkpoint_tokens: int
) -> Recurrent:
    return Recurrent(1, num_hit_tokens, 0, 0, 0, 0, 0, num_hit_tokens, num_hit_tokens, num_checkpoint_tokens)


def dispatch(
    recurrent: Recurrent, rules: RecurrentRules, num_new_tokens: int, num_drafts: int, num_tokens: int
) -> Recurrent:
    after = recurrent._replace(
        num_in_flight_tokens=recurrent.num_in_flight_tokens + num_new_tokens,
        num_in_flight_drafts=recurrent.num_in_flight_drafts + num_drafts,
        state_slot=0,
    )
    reach = recurrent.num_state_tokens + recurrent.num_trimmed_tokens + after.num_in_flight_tokens
    if reach <= num_tokens:
        return after  # where the step ends is known: no target is needed
    last = whole_blocks(reach, rules.block_size)
    if last > recurrent.num_reserved_tokens:
        return after._replace(num_reserved_tokens=last)
    return after


def publish(recurrent: Recurrent, rules: RecurrentRules, num_registrable_tokens: int) -> Recurrent:
    published, checkpoint = recurrent.num_published_tokens, recurrent.num_checkpoint_tokens
    end = recurrent.num_state_tokens + recurrent.num_trimmed_tokens + recurrent.num_in_flight_tokens
    key = recurrent.running_key
    is_new = end > published and end > recurrent.num_reserved_tokens  # and no target holds it
    if is_new and 0 < end <= num_registrable_tokens:
        is_boundary = end == checkpoint or whole_blocks(end, rules.block_size) == end
        if is_boundary:
            key = end
    last = boundary_at_most(num_registrable_tokens, checkpoint, rules)
    if last > published:
        published = last
    return recurrent._replace(num_published_tokens=published, running_key=key)


def settle(
    recurrent: Recurrent,
    rules: RecurrentRules,
    num_returned: int,
    num_drafts: int,
    num_accepted: int,
    num_kept: int,
) -> Recurrent:
    num_consumed = 0
    if num_kept > 0:
        num_consumed = num_kept - 1  # the last one is consumed by the next step
    after = recurrent._replace(
        num_state_tokens=recurrent.num_state_tokens + num_returned - num_drafts + num_consumed,
        num_in_flight_tokens=recurrent.num_in_flight_tokens - num_returned,
        num_in_flight_drafts=recurrent.num_in_flight_drafts - num_drafts,
        num_trimmed_tokens=num_accepted - num_consumed,
    )
    if after.num_in_flight_tokens == 0:
        return after._replace(state_slot=num_consumed)
    return after._replace(state_slot=0)


def next_turn(recurrent: Recurrent, rules: RecurrentRules, num_checkpoint_tokens: int) -> Recurrent:
    if num_checkpoint_tokens > recurrent.num_state_tokens:
        return recurrent._replace(num_checkpoint_tokens=num_checkpoint_tokens)
    return recurrent._replace(num_checkpoint_tokens=0)


def first_unreserved(recurrent: Recurrent, rules: RecurrentRules) -> int:
    certain = recurrent.num_state_tokens + recurrent.num_trimmed_tokens
    certain = certain + recurrent.num_in_flight_tokens - recurrent.num_in_flight_drafts
    last = whole_blocks(certain, rules.block_size)
    if last > recurrent.num_reserved_tokens:
        return last
    return recurrent.num_reserved_tokens


def slot_to_read(recurrent: Recurrent, num_last_accepted: int) -> int:
    if recurrent.num_in_flight_tokens == 0:
        return recurrent.state_slot
    return num_last_accepted


def chunk_to_schedule(
    num_start_tokens: int,
    num_wanted: int,
    num_tokens: int,
    num_checkpoint_tokens: int,
    rules: RecurrentRules,
) -> int:
    end = num_start_tokens + num_wanted
    if num_start_tokens < num_checkpoint_tokens < end:
        return num_checkpoint_tokens - num_start_tokens  # stop there first
    if end >= num_tokens:
        return num_wanted  # the last chunk
    boundary = boundary_at_most(end, num_checkpoint_tokens, rules)
    if boundary > num_start_tokens:
        return boundary - num_start_tokens
    return 0


def registrable_at_exit(ledger: Ledger) -> int:
    returned = ledger.num_computed_tokens - (ledger.num_in_flight_tokens - ledger.num_stale_tokens)
    returned = returned + ledger.num_trimmed_tokens
    if returned < 0:
        returned = 0
    return smaller(returned, ledger.num_tokens)
