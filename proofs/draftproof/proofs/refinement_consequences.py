"""What does the refinement say about KV, in the words of an engineer? (consequences of R2)

Every state that the relation admits: what is below V and W is the KV of the committed tokens, what a
step reads is, nothing that is settled is written again, and (completeness) V and W are not too small.
"""

from __future__ import annotations

from typing import Any

import z3

from draftproof.proofs.obligations import Obligation
from draftproof.proofs.queue_model import pins
from draftproof.proofs.refinement_tokens import STRENGTHS, Setting, setting
from draftproof.proofs.terms import integer
from draftproof.proofs.token_model import POSITION
from draftproof.spec.ledger import FINISHED, PAUSED, RUNNING

Facts = dict[str, Any]


def _state_only(this: Setting) -> Facts:
    """The hypotheses about a state, without those about an event."""
    return {
        key: fact
        for key, fact in this.facts.items()
        if key.startswith(("rules:", "invariant:", "queue:", "tokens:", "pin:"))
    }


def _reads(this: Setting) -> Facts:
    """A step reads every position below the one where it starts."""
    start = integer("device.start")
    return {
        "reads_valid_kv": z3.Implies(start > POSITION, this.tokens.enqueued_kv == this.tokens.true_identity)
    }


def _sound(this: Setting) -> Facts:
    (ledger, ghosts), queue, tokens = this.before, this.queue, this.tokens
    unfinished = ledger.status != FINISHED
    any_step = integer("any_step")
    still_writes = z3.And(any_step >= queue.head, any_step >= tokens.first_unfreed, any_step < queue.tail)
    oldest = queue.oldest_live
    return {
        "valid_is_valid": z3.Implies(
            z3.And(unfinished, ghosts.num_valid_tokens > POSITION),
            tokens.enqueued_kv == tokens.committed_identity,
        ),
        "settled_is_valid": z3.Implies(
            z3.And(unfinished, ghosts.num_settled_tokens > POSITION),
            tokens.returned_kv == tokens.committed_identity,
        ),
        "settled_is_not_written_again": z3.Implies(
            z3.And(unfinished, still_writes), tokens.write_start[any_step] >= ghosts.num_settled_tokens
        ),
        "device_ahead_by_trimmed": z3.Implies(
            z3.And(ledger.status == RUNNING, oldest < queue.tail),
            tokens.length_before[oldest] == ledger.num_tokens + ledger.num_trimmed_tokens,
        ),
    }


def _complete(this: Setting) -> Facts:
    (ledger, ghosts), tokens = this.before, this.tokens
    exact = z3.And(ledger.status != FINISHED, ledger.status != PAUSED)
    valid, settled = ghosts.num_valid_tokens, ghosts.num_settled_tokens

    def first_missing(length: Any) -> Any:
        return z3.And(exact, length == POSITION, length < ledger.num_tokens)

    return {
        "valid_is_all": z3.Implies(first_missing(valid), tokens.enqueued_kv != tokens.committed_identity),
        "settled_is_all": z3.Implies(first_missing(settled), tokens.returned_kv != tokens.committed_identity),
        "one_missing_between_turns": z3.Implies(
            z3.And(ledger.status == PAUSED, ledger.num_computed_tokens > 0),
            z3.And(valid >= ledger.num_tokens - 1, settled >= ledger.num_tokens - 1),
        ),
    }


def obligations() -> list[Obligation]:
    """The consequences; those of a state do not mention an event."""
    sound, complete = (setting("schedule", complete=strength) for strength in STRENGTHS.values())
    found = []
    for group, facts, claims in (
        ("R2/sound/schedule", sound.facts, _reads(sound)),
        ("R2/sound/state", _state_only(sound), _sound(sound)),
        ("R2/complete/state", _state_only(complete), _complete(complete)),
    ):
        found += [
            Obligation(f"{group}/{key}", "refinement", "R2", facts, goal, group)
            for key, goal in claims.items()
        ]
    return found


def witnesses() -> dict[str, Facts]:
    """A pinned witness for each group, and states worth meeting: they are not excluded by the relation."""
    found = {"R2/sound/schedule": setting("schedule", complete=False, depth=1).facts}
    for strength, complete in STRENGTHS.items():
        found[f"R2/{strength}/state"] = _state_only(setting("schedule", complete=complete, depth=1))
    one, two = (setting("fold", complete=True, depth=depth) for depth in (1, 2))
    (ledger, ghosts), queue, tokens = one.before, one.queue, one.tokens
    states: dict[str, tuple[Setting, list[Any]]] = {
        "a trimmed stop with a later step in flight": (
            one,
            [
                one.rules.asynchronous,
                ledger.stop_pending == 1,
                ledger.num_trimmed_tokens == 1,
                ghosts.num_awaited_samples > 0,
            ],
        ),
        "rejected drafts in the head and a step behind it": (
            two,
            [
                two.rules.asynchronous,
                ledger.status == RUNNING,
                queue.first_live == 0,
                queue.num_drafts[0] == 3,
                tokens.accepted[0] == 0,
                ghosts.num_awaited_samples == 8,
            ],
        ),
        "a new life running with a stale step of the old one": (
            two,
            [ledger.status == RUNNING, ledger.num_stale_tokens > 0, queue.first_live == 1],
        ),
        "a next turn waiting with a step of the last one still writing": (
            one,
            [
                ledger.num_computed_tokens > 0,
                ledger.num_stale_tokens > 0,
                queue.first_live == 1,
                tokens.first_unfreed == 0,
                ledger.status != RUNNING,
            ],
        ),
        "a prefill chunk in flight with a decode step behind it": (
            two,
            [
                ghosts.num_prefill_in_flight > 0,
                ghosts.num_awaited_samples > 0,
                ledger.status == RUNNING,
                queue.prefill[0] == 1,
                queue.prefill[1] == 0,
            ],
        ),
    }
    for name, (this, facts) in states.items():
        named = {f"state:{index}": fact for index, fact in enumerate(facts)}
        found[f"R2/state/{name}"] = _state_only(this) | pins(this.queue, 1 if this is one else 2) | named
    return found
