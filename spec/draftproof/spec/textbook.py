"""The transitions as a plain textbook would print them: `if`s, integers, one change a line.

Never run in production. CrossHair confirms that each branch-free transition equals its textbook
version for all integers; debug mode compares the two on every call.
"""

from __future__ import annotations

from draftproof.spec.ledger import FINISHED, PAUSED, PREEMPTED, RUNNING, WAITING, Ledger, Rules


def grown(num_registered: int, num_tokens: int, rules: Rules) -> int:
    """Registered tokens after publishing the whole blocks of `num_tokens` less the fence."""
    publishable = num_tokens - rules.registration_fence
    if publishable <= 0:
        return num_registered
    whole = publishable - publishable % rules.block_size
    if whole > num_registered:
        return whole
    return num_registered


def admit(ledger: Ledger, rules: Rules, num_hit_tokens: int) -> Ledger:
    if ledger.num_computed_tokens == 0:
        ledger = ledger._replace(num_computed_tokens=num_hit_tokens, num_registered_tokens=num_hit_tokens)
    return ledger._replace(status=RUNNING)


def schedule(ledger: Ledger, rules: Rules, num_new_tokens: int) -> Ledger:
    computed = ledger.num_computed_tokens + num_new_tokens
    placeholders = ledger.num_output_placeholders
    drafts = 0
    if rules.asynchronous and computed >= ledger.num_tokens + placeholders:
        num_drafts = computed - ledger.num_tokens - placeholders
        placeholders = placeholders + 1 + num_drafts
        drafts = rules.num_speculative_tokens
    publishable = computed
    if publishable > ledger.num_tokens:
        publishable = ledger.num_tokens
    return ledger._replace(
        num_computed_tokens=computed,
        num_in_flight_tokens=ledger.num_in_flight_tokens + num_new_tokens,
        num_output_placeholders=placeholders,
        num_draft_tokens=drafts,
        num_registered_tokens=grown(ledger.num_registered_tokens, publishable, rules),
    )


def draft(ledger: Ledger, rules: Rules, num_drafts: int) -> Ledger:
    return ledger._replace(num_draft_tokens=num_drafts)


def chunk_output(ledger: Ledger, rules: Rules, num_returned: int) -> Ledger:
    return ledger._replace(num_in_flight_tokens=ledger.num_in_flight_tokens - num_returned)


def output(
    ledger: Ledger,
    rules: Rules,
    num_returned: int,
    num_drafts: int,
    num_accepted: int,
    num_kept: int,
    stopped: int,
) -> Ledger:
    computed = ledger.num_computed_tokens - (num_drafts - num_accepted)
    trimmed = 0
    if num_kept != num_accepted + 1:
        trimmed = num_accepted + 1 - num_kept
        computed = computed - trimmed
    placeholders = ledger.num_output_placeholders
    registered = ledger.num_registered_tokens
    if rules.asynchronous:
        placeholders = placeholders - (1 + num_drafts)
        registered = grown(registered, computed - placeholders, rules)
    return ledger._replace(
        num_tokens=ledger.num_tokens + num_kept,
        num_computed_tokens=computed,
        num_output_placeholders=placeholders,
        num_in_flight_tokens=ledger.num_in_flight_tokens - num_returned,
        num_registered_tokens=registered,
        num_trimmed_tokens=trimmed,
        stop_pending=stopped,
    )


def preempt(ledger: Ledger, rules: Rules, drop: bool) -> Ledger:
    live = ledger.num_in_flight_tokens - ledger.num_stale_tokens
    if ledger.num_stale_tokens > 0:
        drop = True
    status = PREEMPTED
    if ledger.status == PAUSED:
        status = PAUSED
    return ledger._replace(
        num_registered_at_preemption=grown(
            ledger.num_registered_tokens, ledger.num_computed_tokens - live, rules
        ),
        num_computed_tokens=0,
        num_output_placeholders=0,
        num_draft_tokens=0,
        num_registered_tokens=0,
        num_stale_tokens=ledger.num_in_flight_tokens,
        status=status,
        drop_stale=drop,
    )


def stale_output(ledger: Ledger, rules: Rules, num_returned: int, num_kept: int, stopped: int) -> Ledger:
    if not ledger.drop_stale:
        ledger = ledger._replace(num_tokens=ledger.num_tokens + num_kept)
    return ledger._replace(
        num_in_flight_tokens=ledger.num_in_flight_tokens - num_returned,
        num_stale_tokens=ledger.num_stale_tokens - num_returned,
        stop_pending=stopped,
    )


def end_turn(ledger: Ledger, rules: Rules) -> Ledger:
    computed = ledger.num_computed_tokens - ledger.num_output_placeholders
    return ledger._replace(
        num_computed_tokens=computed,
        num_output_placeholders=0,
        num_draft_tokens=0,
        num_registered_tokens=grown(ledger.num_registered_tokens, computed, rules),
        num_stale_tokens=ledger.num_in_flight_tokens,
        num_trimmed_tokens=0,
        stop_pending=0,
        status=PAUSED,
        drop_stale=True,
    )


def fold(ledger: Ledger, rules: Rules, num_chunk_tokens: int) -> Ledger:
    kept = ledger.num_tokens - 1
    return ledger._replace(
        num_tokens=kept + num_chunk_tokens,
        num_prompt_tokens=kept + num_chunk_tokens,
        status=WAITING,
    )


def finish(ledger: Ledger, rules: Rules) -> Ledger:
    if ledger.status == RUNNING:
        settled = ledger.num_computed_tokens + ledger.num_trimmed_tokens - ledger.num_in_flight_tokens
        if settled > ledger.num_tokens:
            settled = ledger.num_tokens
        ledger = ledger._replace(num_registered_tokens=grown(ledger.num_registered_tokens, settled, rules))
    return ledger._replace(
        num_draft_tokens=0,
        num_trimmed_tokens=0,
        stop_pending=0,
        num_stale_tokens=ledger.num_in_flight_tokens,
        status=FINISHED,
        drop_stale=True,
    )


def abort(ledger: Ledger, rules: Rules) -> Ledger:
    if ledger.status == RUNNING:
        live = ledger.num_in_flight_tokens - ledger.num_stale_tokens
        ledger = ledger._replace(
            num_registered_tokens=grown(
                ledger.num_registered_tokens, ledger.num_computed_tokens - live, rules
            )
        )
    return ledger._replace(
        num_draft_tokens=0, num_stale_tokens=ledger.num_in_flight_tokens, status=FINISHED, drop_stale=True
    )
