"""The accounting: eleven transitions, written once. These functions are proven, compiled and run.

Each takes a ledger, the engine's rules and the event's integers, and returns the next ledger with every
field accounted for. All counts are tokens. There is no `if`: the same source runs on Python integers,
compiled integers, solver terms and columns (`draftproof.spec.algebra`). A transition assumes its guard
(`draftproof.spec.guards`); it never clamps a wrong event into a right one.

With `DRAFTPROOF_DEBUG=1` in the environment every call is checked against its specification
(`draftproof.impl.contracts`); otherwise these are plain functions.
"""

from __future__ import annotations

from collections.abc import Callable

from draftproof.impl.contracts import transition
from draftproof.spec.algebra import both, either, floor_to_block, maximum, minimum, where
from draftproof.spec.ledger import FINISHED, PAUSED, PREEMPTED, RUNNING, WAITING, Ledger, Rules


def registrable(num_tokens: int, rules: Rules) -> int:
    """Whole blocks of the first `num_tokens` that may be published, the drafter's fence kept back (T12)."""
    return floor_to_block(maximum(num_tokens - rules.registration_fence, 0), rules.block_size)


@transition
def admit(ledger: Ledger, rules: Rules, num_hit_tokens: int) -> Ledger:
    """The request starts, or resumes. What the prefix cache holds counts as computed and registered.

    A session that kept its KV (C > 0) starts where it was and looks nothing up.
    """
    starts_at_zero = ledger.num_computed_tokens == 0
    return Ledger(
        num_prompt_tokens=ledger.num_prompt_tokens,
        num_tokens=ledger.num_tokens,
        num_computed_tokens=where(starts_at_zero, num_hit_tokens, ledger.num_computed_tokens),
        num_output_placeholders=ledger.num_output_placeholders,
        num_in_flight_tokens=ledger.num_in_flight_tokens,
        num_stale_tokens=ledger.num_stale_tokens,
        num_draft_tokens=ledger.num_draft_tokens,
        num_registered_tokens=where(starts_at_zero, num_hit_tokens, ledger.num_registered_tokens),
        num_trimmed_tokens=ledger.num_trimmed_tokens,
        stop_pending=ledger.stop_pending,
        num_registered_at_preemption=ledger.num_registered_at_preemption,
        status=RUNNING,
        drop_stale=ledger.drop_stale,
    )


@transition
def schedule(ledger: Ledger, rules: Rules, num_new_tokens: int) -> Ledger:
    """A step is dispatched: its tokens count as computed at once, optimistically.

    A step that reaches the last known position samples; asynchronously it reserves one placeholder for
    the sampled token and one for each draft, and the next step will carry K fresh drafts. Blocks of
    known tokens that this step fills are published now, drafts never (vLLM registers at allocation).
    """
    num_computed_tokens = ledger.num_computed_tokens + num_new_tokens
    num_expected_tokens = ledger.num_tokens + ledger.num_output_placeholders
    samples = num_computed_tokens >= num_expected_tokens
    reserves = both(rules.asynchronous, samples)
    return Ledger(
        num_prompt_tokens=ledger.num_prompt_tokens,
        num_tokens=ledger.num_tokens,
        num_computed_tokens=num_computed_tokens,
        num_output_placeholders=where(
            reserves,
            # The difference first: summed from the left this would leave 32 bits on a device (T11).
            ledger.num_output_placeholders + (num_computed_tokens - num_expected_tokens + 1),
            ledger.num_output_placeholders,
        ),
        num_in_flight_tokens=ledger.num_in_flight_tokens + num_new_tokens,
        num_stale_tokens=ledger.num_stale_tokens,
        num_draft_tokens=where(reserves, rules.num_speculative_tokens, 0),
        num_registered_tokens=maximum(
            ledger.num_registered_tokens,
            registrable(minimum(num_computed_tokens, ledger.num_tokens), rules),
        ),
        num_trimmed_tokens=ledger.num_trimmed_tokens,
        stop_pending=ledger.stop_pending,
        num_registered_at_preemption=ledger.num_registered_at_preemption,
        status=ledger.status,
        drop_stale=ledger.drop_stale,
    )


@transition
def draft(ledger: Ledger, rules: Rules, num_drafts: int) -> Ledger:
    """So many drafts wait for the next step, while nothing live is in flight.

    Synchronously they are the drafter's proposal. Asynchronously `schedule` reserves K for the step after it,
    and this sets another number: none or fewer where drafts were invalidated, up to K where a request that
    resumes with one token is padded to the shape of a verification step.
    """
    return Ledger(
        num_prompt_tokens=ledger.num_prompt_tokens,
        num_tokens=ledger.num_tokens,
        num_computed_tokens=ledger.num_computed_tokens,
        num_output_placeholders=ledger.num_output_placeholders,
        num_in_flight_tokens=ledger.num_in_flight_tokens,
        num_stale_tokens=ledger.num_stale_tokens,
        num_draft_tokens=num_drafts,
        num_registered_tokens=ledger.num_registered_tokens,
        num_trimmed_tokens=ledger.num_trimmed_tokens,
        stop_pending=ledger.stop_pending,
        num_registered_at_preemption=ledger.num_registered_at_preemption,
        status=ledger.status,
        drop_stale=ledger.drop_stale,
    )


@transition
def chunk_output(ledger: Ledger, rules: Rules, num_returned: int) -> Ledger:
    """A prefill chunk returned. It sampled nothing, so only the work in flight gets smaller."""
    return Ledger(
        num_prompt_tokens=ledger.num_prompt_tokens,
        num_tokens=ledger.num_tokens,
        num_computed_tokens=ledger.num_computed_tokens,
        num_output_placeholders=ledger.num_output_placeholders,
        num_in_flight_tokens=ledger.num_in_flight_tokens - num_returned,
        num_stale_tokens=ledger.num_stale_tokens,
        num_draft_tokens=ledger.num_draft_tokens,
        num_registered_tokens=ledger.num_registered_tokens,
        num_trimmed_tokens=ledger.num_trimmed_tokens,
        stop_pending=ledger.stop_pending,
        num_registered_at_preemption=ledger.num_registered_at_preemption,
        status=ledger.status,
        drop_stale=ledger.drop_stale,
    )


@transition
def output(
    ledger: Ledger,
    rules: Rules,
    num_returned: int,
    num_drafts: int,
    num_accepted: int,
    num_kept: int,
    stopped: int,
) -> Ledger:
    """A step that sampled has returned: keep what was accepted, take back the rest.

    The step was counted as computed when it was scheduled. Rejected drafts never became text, and a
    stop cuts trimmed tokens off again, so both are uncounted here; forgetting the second is the fault
    that let a session read a draft's KV (`trim-uncounted`). All placeholders of the step are released,
    not only those of kept tokens, so that C - P rises by exactly `num_kept`.

    Source: speculative sampling, Leviathan et al. 2023; vLLM #54979, #58259 and their companion.
    """
    num_generated = num_accepted + 1  # the token sampled after the accepted drafts
    num_rejected = num_drafts - num_accepted
    num_trimmed = num_generated - num_kept
    num_computed_tokens = ledger.num_computed_tokens - num_rejected - num_trimmed
    num_output_placeholders = where(
        rules.asynchronous,
        ledger.num_output_placeholders - num_rejected - num_generated,
        ledger.num_output_placeholders,
    )
    return Ledger(
        num_prompt_tokens=ledger.num_prompt_tokens,
        num_tokens=ledger.num_tokens + num_kept,
        num_computed_tokens=num_computed_tokens,
        num_output_placeholders=num_output_placeholders,
        num_in_flight_tokens=ledger.num_in_flight_tokens - num_returned,
        num_stale_tokens=ledger.num_stale_tokens,
        num_draft_tokens=ledger.num_draft_tokens,
        num_registered_tokens=where(
            rules.asynchronous,
            maximum(
                ledger.num_registered_tokens,
                registrable(num_computed_tokens - num_output_placeholders, rules),
            ),
            ledger.num_registered_tokens,
        ),
        num_trimmed_tokens=num_trimmed,
        stop_pending=stopped,
        num_registered_at_preemption=ledger.num_registered_at_preemption,
        status=ledger.status,
        drop_stale=ledger.drop_stale,
    )


@transition
def preempt(ledger: Ledger, rules: Rules, drop: bool) -> Ledger:
    """The request gives its blocks back and will recompute; what is settled is published first.

    Everything in flight becomes stale: it may be delivered later or dropped, but is never charged to
    the new life. vLLM 0.32 publishes nothing here and loses a block.

    Sessions that do not run hold blocks too, and would lock a pool up if nobody could take them back. One
    between turns stays paused: its blocks were published when the turn ended, and when its next chunk has
    arrived it looks its tokens up. One that waits for that turn to start is preempted like any other.
    """
    settled = ledger.num_computed_tokens - (ledger.num_in_flight_tokens - ledger.num_stale_tokens)
    return Ledger(
        num_prompt_tokens=ledger.num_prompt_tokens,
        num_tokens=ledger.num_tokens,
        num_computed_tokens=0,
        num_output_placeholders=0,
        num_in_flight_tokens=ledger.num_in_flight_tokens,
        num_stale_tokens=ledger.num_in_flight_tokens,
        num_draft_tokens=0,
        num_registered_tokens=0,
        num_trimmed_tokens=ledger.num_trimmed_tokens,
        stop_pending=ledger.stop_pending,
        num_registered_at_preemption=maximum(ledger.num_registered_tokens, registrable(settled, rules)),
        # Not two constants: they would become int64 beside a device's int32 columns.
        status=where(ledger.status == PAUSED, ledger.status, PREEMPTED),
        # Stale work here is of a request that resumed under `drop`, or of an ended turn: it stays dropped.
        drop_stale=either(drop, ledger.num_stale_tokens > 0),
    )


@transition
def stale_output(ledger: Ledger, rules: Rules, num_returned: int, num_kept: int, stopped: int) -> Ledger:
    """A step of an earlier life returned: its tokens may be delivered, C and P are not touched."""
    return Ledger(
        num_prompt_tokens=ledger.num_prompt_tokens,
        num_tokens=where(ledger.drop_stale, ledger.num_tokens, ledger.num_tokens + num_kept),
        num_computed_tokens=ledger.num_computed_tokens,
        num_output_placeholders=ledger.num_output_placeholders,
        num_in_flight_tokens=ledger.num_in_flight_tokens - num_returned,
        num_stale_tokens=ledger.num_stale_tokens - num_returned,
        num_draft_tokens=ledger.num_draft_tokens,
        num_registered_tokens=ledger.num_registered_tokens,
        num_trimmed_tokens=ledger.num_trimmed_tokens,
        stop_pending=stopped,
        num_registered_at_preemption=ledger.num_registered_at_preemption,
        status=ledger.status,
        drop_stale=ledger.drop_stale,
    )


@transition
def end_turn(ledger: Ledger, rules: Rules) -> Ledger:
    """A resumable request stopped: give up what is in flight, keep C - P, publish it.

    Never T here: the next chunk overwrites the last known position. Everything in flight is dropped.
    """
    num_computed_tokens = ledger.num_computed_tokens - ledger.num_output_placeholders
    return Ledger(
        num_prompt_tokens=ledger.num_prompt_tokens,
        num_tokens=ledger.num_tokens,
        num_computed_tokens=num_computed_tokens,
        num_output_placeholders=0,
        num_in_flight_tokens=ledger.num_in_flight_tokens,
        num_stale_tokens=ledger.num_in_flight_tokens,
        num_draft_tokens=0,
        num_registered_tokens=maximum(ledger.num_registered_tokens, registrable(num_computed_tokens, rules)),
        num_trimmed_tokens=0,
        stop_pending=0,
        num_registered_at_preemption=ledger.num_registered_at_preemption,
        status=PAUSED,
        drop_stale=True,
    )


@transition
def fold(ledger: Ledger, rules: Rules, num_chunk_tokens: int) -> Ledger:
    """The next chunk of a session arrives: keep all but the last known token, append the chunk.

    The last sampled token has no KV and is not the client's to resend. Cutting at C instead goes wrong
    for a session that stopped while preempted: there C is 0 and all its tokens are known.
    """
    num_tokens = ledger.num_tokens - 1 + num_chunk_tokens
    return Ledger(
        num_prompt_tokens=num_tokens,
        num_tokens=num_tokens,
        num_computed_tokens=ledger.num_computed_tokens,
        num_output_placeholders=ledger.num_output_placeholders,
        num_in_flight_tokens=ledger.num_in_flight_tokens,
        num_stale_tokens=ledger.num_stale_tokens,
        num_draft_tokens=ledger.num_draft_tokens,
        num_registered_tokens=ledger.num_registered_tokens,
        num_trimmed_tokens=ledger.num_trimmed_tokens,
        stop_pending=ledger.stop_pending,
        num_registered_at_preemption=ledger.num_registered_at_preemption,
        status=WAITING,
        drop_stale=ledger.drop_stale,
    )


@transition
def finish(ledger: Ledger, rules: Rules) -> Ledger:
    """A stopped request leaves: publish every settled block before the blocks are freed.

    C + T - F is what has returned: the last kept token of a trimmed stop was an accepted draft, so its
    KV exists although the trim uncounted it (T); later steps' speculative work is not settled (F); and
    trimmed positions hold KV of tokens nobody received (the cap at N). A request that is not running
    has no KV to publish. Without T, the two upstream fixes composed lose a block when B divides N.
    Steps in flight become stale: what they still bring is dropped, and once they have returned the
    blocks may go to others.
    """
    settled = minimum(
        ledger.num_computed_tokens + ledger.num_trimmed_tokens - ledger.num_in_flight_tokens,
        ledger.num_tokens,
    )
    return Ledger(
        num_prompt_tokens=ledger.num_prompt_tokens,
        num_tokens=ledger.num_tokens,
        num_computed_tokens=ledger.num_computed_tokens,
        num_output_placeholders=ledger.num_output_placeholders,
        num_in_flight_tokens=ledger.num_in_flight_tokens,
        num_stale_tokens=ledger.num_in_flight_tokens,
        num_draft_tokens=0,
        num_registered_tokens=where(
            ledger.status == RUNNING,
            maximum(ledger.num_registered_tokens, registrable(settled, rules)),
            ledger.num_registered_tokens,
        ),
        num_trimmed_tokens=0,
        stop_pending=0,
        num_registered_at_preemption=ledger.num_registered_at_preemption,
        status=FINISHED,
        drop_stale=True,
    )


@transition
def abort(ledger: Ledger, rules: Rules) -> Ledger:
    """A request leaves without having stopped: what is settled of a running one is not thrown away.

    What is still in flight becomes stale and is dropped, as at a finish.
    """
    settled = ledger.num_computed_tokens - (ledger.num_in_flight_tokens - ledger.num_stale_tokens)
    return Ledger(
        num_prompt_tokens=ledger.num_prompt_tokens,
        num_tokens=ledger.num_tokens,
        num_computed_tokens=ledger.num_computed_tokens,
        num_output_placeholders=ledger.num_output_placeholders,
        num_in_flight_tokens=ledger.num_in_flight_tokens,
        num_stale_tokens=ledger.num_in_flight_tokens,
        num_draft_tokens=0,
        num_registered_tokens=where(
            ledger.status == RUNNING,
            maximum(ledger.num_registered_tokens, registrable(settled, rules)),
            ledger.num_registered_tokens,
        ),
        num_trimmed_tokens=ledger.num_trimmed_tokens,
        stop_pending=ledger.stop_pending,
        num_registered_at_preemption=ledger.num_registered_at_preemption,
        status=FINISHED,
        drop_stale=True,
    )


TRANSITIONS: dict[str, Callable[..., Ledger]] = {
    "admit": admit,
    "schedule": schedule,
    "draft": draft,
    "chunk_output": chunk_output,
    "output": output,
    "preempt": preempt,
    "stale_output": stale_output,
    "end_turn": end_turn,
    "fold": fold,
    "finish": finish,
    "abort": abort,
}
"""The code, by event name."""
