"""What do a device, its cache and its clients do at each event, and what is assumed of them?

`moved` says what happens to the token-level model (`token_model`) at an event. Whatever is assumed and
not computed is a named hypothesis, listed with its sentence in `ASSUMPTIONS`; leaving one out leaves
that part of the behaviour free.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import z3

from draftproof.proofs.queue_model import Queue, Scope
from draftproof.proofs.terms import choose, integer, integers
from draftproof.proofs.token_model import NO_KV, POSITION, Tokens, generated
from draftproof.spec.events import Fold, Schedule
from draftproof.spec.ghosts import State
from draftproof.spec.ledger import PREEMPTED, WAITING
from draftproof.spec.queue import dispatched

Facts = dict[str, Any]


class Assumption(NamedTuple):
    """Something that the proof cannot know and takes as given."""

    sentence: str
    transitions: tuple[str, ...]
    """Where it is used; nowhere if it is about identities only."""
    completeness_only: tuple[str, ...] = ()
    """Those of the transitions whose soundness is proved without it."""


ASSUMPTIONS: dict[str, Assumption] = {
    "starts_at_own_length": Assumption(
        "The device starts a decode step at its own length less one, not at the host's optimistic C; a "
        "prefill step starts at C.",
        ("schedule",),
    ),
    "continues_from_accepted": Assumption(
        "After a step the device continues from its accepted tokens and the one sampled after them; it "
        "forgets rejected drafts.",
        ("schedule",),
    ),
    "accepts_drafts_in_order": Assumption(
        "A step accepts a leading part of the drafts it verifies, and a prefill step none.", ("schedule",)
    ),
    "acceptance_is_truthful": Assumption(
        "The acceptance count that the host receives is the device's own.", ("output",)
    ),
    "results_in_order": Assumption(
        "Steps run and return in the order in which they were dispatched.",
        ("chunk_output", "output", "stale_output"),
        # A stale step that returns out of turn makes W too small at worst.
        completeness_only=("stale_output",),
    ),
    "late_output_whole": Assumption(
        "Output delivered to a preempted request is delivered whole, unless a stop cuts it.",
        ("stale_output",),
    ),
    "freed_blocks_left_alone": Assumption(
        "Steps in flight when a request is preempted no longer write to blocks of this request.",
        ("preempt",),
    ),
    "hits_are_valid": Assumption(
        "What the prefix cache returns is the KV of exactly the tokens that were looked up.", ("admit",)
    ),
    "resumes_from_committed": Assumption(
        "A resumed request continues from the committed tokens; one that kept its KV goes on as it was.",
        ("admit",),
    ),
    "chunk_follows_committed": Assumption(
        "The next chunk of a session follows the kept tokens, on the device as on the host.", ("fold",)
    ),
    "rejected_draft_differs": Assumption(
        "A rejected draft is not the token that took its place.",
        ("schedule",),
        completeness_only=("schedule",),
    ),
    "chunk_is_new": Assumption(
        "Where the next chunk is written, its tokens in their context are in no slot and in no step in "
        "flight already.",
        ("fold",),
        completeness_only=("fold",),
    ),
    "no_collisions": Assumption(
        "Two tokens, or one token after different tokens, never get the same identity (`token_identity`).",
        (),
    ),
    "written_is_something": Assumption(
        "The KV of a token is not the content of a slot that nothing was written to.",
        ("admit", "fold"),
        completeness_only=("admit", "fold"),
    ),
}


class Move(NamedTuple):
    """The model after an event, and what was assumed about what happened, by assumption."""

    tokens: Tokens
    assumed: Facts
    possible: Facts
    """What bounds the behaviour even where an assumption is dropped, so that a control is about a device
    that could exist."""


def moved(
    name: str,
    before: State,
    event: Any,
    after: State,
    queue: Queue,
    tokens: Tokens,
    scope: Scope,
) -> Move:
    """What the transition `name` does to slots and steps; `after` is the ledger the running code gives."""
    if name == "schedule":
        return _scheduled(before, event, queue, tokens)
    if name in ("chunk_output", "output", "stale_output"):
        return _returned(name, before, event, queue, tokens)
    if name == "preempt":
        return _preempted(queue, tokens)
    if name == "end_turn":
        kept = z3.Store(tokens.valid_before, queue.tail, after.ledger.num_computed_tokens)
        return Move(tokens._replace(valid_before=kept), {}, {})
    if name == "fold":
        return _folded(event, after, queue, tokens, scope)
    if name == "admit":
        return _admitted(before, event, queue, tokens)
    return Move(tokens, {}, {})


def _scheduled(before: State, event: Schedule, queue: Queue, tokens: Tokens) -> Move:
    """The step is enqueued: it writes one slot a token, true ones up to the last accepted draft."""
    ledger, tail = before.ledger, queue.tail
    step = dispatched(before, event)
    accepted, start, made, rejected = integers(
        "device.accepted device.start device.generated device.rejected_kv"
    )
    completes = choose(step.samples, 1, 0)
    written = choose(
        step.prefill,
        tokens.committed_identity,
        choose(start + accepted >= POSITION, tokens.true_identity, rejected),
    )
    in_range = z3.And(start <= POSITION, start + event.num_new_tokens > POSITION)
    advance = choose(step.prefill, event.num_new_tokens, 1 + accepted)
    moved_tokens = tokens._replace(
        device_length=tokens.device_length + made,
        enqueued_kv=choose(in_range, written, tokens.enqueued_kv),
        accepted=z3.Store(tokens.accepted, tail, accepted),
        write_start=z3.Store(tokens.write_start, tail, start),
        written_kv=z3.Store(tokens.written_kv, tail, written),
        length_before=z3.Store(tokens.length_before, tail, tokens.device_length),
        valid_before=z3.Store(tokens.valid_before, tail + 1, tokens.valid_before[tail] + advance),
        generated_before=z3.Store(tokens.generated_before, tail + 1, tokens.generated_before[tail] + made),
    )
    return Move(
        moved_tokens,
        {
            "starts_at_own_length": start
            == choose(step.prefill, ledger.num_computed_tokens, tokens.device_length - 1),
            "continues_from_accepted": made == choose(step.prefill, completes, 1 + accepted),
            "accepts_drafts_in_order": z3.And(
                accepted >= 0, accepted <= step.num_drafts, z3.Implies(step.prefill, accepted == 0)
            ),
            "rejected_draft_differs": rejected != tokens.true_identity,
        },
        {
            "starts_somewhere": start >= 0,
            "accepts_some": z3.And(accepted >= 0, accepted <= event.num_new_tokens),
            "generates_some": z3.And(made >= 0, made <= 1 + step.num_drafts),
        },
    )


def _returned(name: str, before: State, event: Any, queue: Queue, tokens: Tokens) -> Move:
    """A step's writes become returned ones; the host appends its kept tokens at its own length."""
    ledger, head = before.ledger, queue.head
    returned = integer("device.returned_step")
    start = tokens.write_start[returned]
    in_range = z3.And(start <= POSITION, start + queue.num_tokens[returned] > POSITION)
    slot = choose(in_range, tokens.written_kv[returned], tokens.returned_kv)
    assumed = {"results_in_order": returned == head}
    possible = {"returned_was_in_flight": queue.in_flight(returned)}
    if name == "chunk_output":
        return Move(tokens._replace(returned_kv=slot), assumed, possible)
    # Appended at another length than the device's, a token would stand in another context.
    same_length = tokens.length_before[head] == ledger.num_tokens
    appended = choose(
        z3.And(ledger.num_tokens <= POSITION, ledger.num_tokens + event.num_kept > POSITION),
        choose(same_length, tokens.true_identity, integer("host.misplaced_token")),
        tokens.committed_identity,
    )
    if name == "output":
        assumed["acceptance_is_truthful"] = event.num_accepted == tokens.accepted[head]
        return Move(tokens._replace(returned_kv=slot, committed_identity=appended), assumed, possible)
    num_generated = generated(queue, tokens, head)
    assumed["late_output_whole"] = z3.Or(
        ledger.drop_stale,
        z3.And(
            event.num_kept <= num_generated,
            z3.Implies(event.num_kept < num_generated, event.stopped == 1),
        ),
    )
    return Move(
        tokens._replace(
            returned_kv=choose(head < tokens.first_unfreed, tokens.returned_kv, slot),
            committed_identity=choose(ledger.drop_stale, tokens.committed_identity, appended),
        ),
        assumed,
        possible,
    )


def _preempted(queue: Queue, tokens: Tokens) -> Move:
    """The blocks are gone; what is in flight writes to blocks that are no longer the request's."""
    first_unfreed = integer("device.first_unfreed")
    return Move(
        tokens._replace(
            enqueued_kv=NO_KV,
            returned_kv=NO_KV,
            first_unfreed=first_unfreed,
            valid_before=z3.Store(tokens.valid_before, queue.tail, 0),
        ),
        {"freed_blocks_left_alone": first_unfreed == queue.tail},
        {"some_are_freed": z3.And(first_unfreed >= tokens.first_unfreed, first_unfreed <= queue.tail)},
    )


def _folded(event: Fold, after: State, queue: Queue, tokens: Tokens, scope: Scope) -> Move:
    """Tokens above what is kept are new ones, and the device's true sequence starts over from them."""
    true, chunk = integers("device.next_true_identity client.chunk_identity")
    num_tokens = after.ledger.num_tokens
    kept = num_tokens - event.num_chunk_tokens
    committed = choose(kept > POSITION, tokens.committed_identity, chunk)

    def not_in_flight(step: Any) -> Any:
        writes = z3.And(step >= queue.head, step >= tokens.first_unfreed, step < queue.first_live)
        return z3.Implies(writes, true != tokens.written_kv[step])

    return Move(
        tokens._replace(true_identity=true, committed_identity=committed),
        {
            "chunk_follows_committed": z3.Implies(num_tokens > POSITION, true == committed),
            "written_is_something": true != NO_KV,
            "chunk_is_new": z3.Implies(
                kept <= POSITION,
                z3.And(true != tokens.enqueued_kv, true != tokens.returned_kv, scope.each(not_in_flight)),
            ),
        },
        {},
    )


def _admitted(before: State, event: Any, queue: Queue, tokens: Tokens) -> Move:
    """A hit fills the leading slots; the device is given the committed tokens."""
    ledger, tail = before.ledger, queue.tail
    true, hit = integers("device.next_true_identity cache.hit_kv")
    starts_at_zero = ledger.num_computed_tokens == 0
    filled = z3.And(starts_at_zero, event.num_hit_tokens > POSITION)
    length = choose(starts_at_zero, event.num_hit_tokens, tokens.valid_before[tail])
    return Move(
        tokens._replace(
            true_identity=true,
            enqueued_kv=choose(filled, hit, tokens.enqueued_kv),
            returned_kv=choose(filled, hit, tokens.returned_kv),
            device_length=ledger.num_tokens,
            valid_before=z3.Store(tokens.valid_before, tail, length),
        ),
        {
            "hits_are_valid": hit == true,
            "resumes_from_committed": z3.And(
                z3.Implies(ledger.status == WAITING, true == tokens.true_identity),
                z3.Implies(
                    z3.And(ledger.status == PREEMPTED, ledger.num_tokens > POSITION),
                    true == tokens.committed_identity,
                ),
            ),
            "written_is_something": true != NO_KV,
        },
        {},
    )
