"""What do the KV slots really hold, step by step? The token-level model as solver terms, and its relation
to the ledger.

One arbitrary position stands for all of them, since every event acts on the KV position by position. A
slot's content is the *identity* of a token in its context, an opaque number: equal identities mean the
same token after the same tokens (`refinement_tokens.hash_lemmas`). The device's own future is fixed for
each life of the request by prophecy: `true_identity` is what its accepted sequence will hold here.

Each life's steps extend the valid prefix in stream order. Where a step will find the prefix
(`valid_before`) and how many tokens steps before it generate (`generated_before`) are sums over the
queue, so that a claim about the queue of any depth stays a claim about single steps.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import z3

from draftproof.proofs.queue_model import EVERY_DEPTH, Queue, Scope
from draftproof.proofs.terms import array, choose, integer
from draftproof.spec.algebra import minimum
from draftproof.spec.ghosts import State
from draftproof.spec.invariants import frontier
from draftproof.spec.ledger import FINISHED, PAUSED, PREEMPTED, RUNNING

Facts = dict[str, Any]

POSITION = integer("position")
"""The one position looked at; any number from 0."""
NO_KV = integer("no_kv")
"""The content of a slot that nothing was written to."""


class Tokens(NamedTuple):
    """The device and the KV at `POSITION`, and what each step in flight does. Identities and counts."""

    true_identity: Any
    """What the device's true sequence of this life holds at the position."""
    committed_identity: Any
    """What the host's committed tokens hold there."""
    enqueued_kv: Any
    """The slot once every dispatched step has run."""
    returned_kv: Any
    """The slot as written by the steps that have returned."""
    device_length: Any
    """Tokens on the device, counting what every dispatched step will have generated."""
    first_unfreed: Any
    """Steps below this number write to blocks that the request has given back."""
    accepted: Any
    """Per step: how many of its drafts the device accepts."""
    write_start: Any
    """Per step: the first position it writes."""
    written_kv: Any
    """Per step: what it writes at the position, if that is in its range."""
    length_before: Any
    """Per step: the device's length when it runs."""
    valid_before: Any
    """Per step: the length of the valid prefix when it runs."""
    generated_before: Any
    """Per step: tokens that the steps before it generate, a running sum."""


ARRAYS = frozenset(
    {"accepted", "write_start", "written_kv", "length_before", "valid_before", "generated_before"}
)


def symbolic_tokens() -> Tokens:
    """Any device and any KV."""
    return Tokens(
        *[
            array(f"tokens.{field}") if field in ARRAYS else integer(f"tokens.{field}")
            for field in Tokens._fields
        ]
    )


def generated(queue: Queue, tokens: Tokens, step: Any) -> Any:
    """Tokens the step generates: those accepted and one more; a prefill chunk generates none."""
    return choose(queue.prefill[step] == 1, queue.completes_prompt[step], 1 + tokens.accepted[step])


def in_written_range(queue: Queue, tokens: Tokens, step: Any) -> Any:
    """The step writes the position: it writes one slot for each of its tokens."""
    start = tokens.write_start[step]
    return z3.And(start <= POSITION, start + queue.num_tokens[step] > POSITION)


SHARPER_WHEN_COMPLETE = ("written_value", "enqueued_kv", "returned_kv", "stale_writes", "true_is_written")
"""The parts of the relation that say more under the assumptions of completeness."""


def relation(
    state: State, queue: Queue, tokens: Tokens, scope: Scope = EVERY_DEPTH, *, complete: bool
) -> Facts:
    """V and W are the lengths of the valid prefixes, and what keeps them so.

    Sound: everything below the ghosts is valid. Complete: nothing at or above them is, except between
    turns. It speaks about unfinished requests.
    """
    ledger, ghosts = state
    tail, oldest = queue.tail, queue.oldest_live
    valid, made = tokens.valid_before, tokens.generated_before
    unfinished = ledger.status != FINISHED
    running = ledger.status == RUNNING
    known_on_device = ledger.num_tokens + ledger.num_trimmed_tokens
    decoding = frontier(state) == ledger.num_tokens - 1
    exact = ledger.status != PAUSED if complete else z3.BoolVal(False)

    def per_live_step(sentence: Any) -> Any:
        return scope.each(lambda step: z3.Implies(queue.live(step), sentence(step)))

    def steps_extend(step: Any) -> Any:
        advance = choose(queue.prefill[step] == 1, queue.num_tokens[step], 1 + tokens.accepted[step])
        return z3.And(
            valid[step + 1] == valid[step] + advance,
            made[step + 1] == made[step] + generated(queue, tokens, step),
        )

    def accepts_drafts(step: Any) -> Any:
        accepted = tokens.accepted[step]
        return z3.And(
            accepted >= 0,
            accepted <= queue.num_drafts[step],
            z3.Implies(queue.prefill[step] == 1, accepted == 0),
        )

    def phase(step: Any) -> Any:
        """A decode step starts one below the device's length; a prefill step ends at it or below it."""
        end = valid[step] + queue.num_tokens[step]
        before_any_sample = z3.And(made[step] == made[oldest], ledger.num_trimmed_tokens == 0)
        return choose(
            queue.prefill[step] == 0,
            valid[step] == tokens.length_before[step] - 1,
            z3.And(
                before_any_sample,
                choose(
                    queue.completes_prompt[step] == 1,
                    end == tokens.length_before[step],
                    end < ledger.num_tokens,
                ),
            ),
        )

    def rises(sum_before: Any) -> Any:
        def rising(first: Any, second: Any) -> Any:
            return z3.Implies(
                z3.And(first >= oldest, second <= tail), sum_before[first] <= sum_before[second]
            )

        return scope.pairs(rising)

    def written_value(step: Any) -> Any:
        """What a step writes is true exactly below the prefix that it leaves valid."""
        true = tokens.written_kv[step] == tokens.true_identity
        below = valid[step + 1] > POSITION
        said = true == below if complete else z3.Implies(below, true)
        return z3.Implies(in_written_range(queue, tokens, step), said)

    def stale_writes(step: Any) -> Any:
        """Steps of an ended turn still write to this request's blocks, but only above what it kept."""
        unfreed = z3.And(step >= queue.head, step >= tokens.first_unfreed, step < queue.first_live)
        harmless = z3.Implies(
            z3.And(exact, in_written_range(queue, tokens, step)),
            tokens.written_kv[step] != tokens.true_identity,
        )
        return z3.Implies(unfreed, z3.And(tokens.write_start[step] >= valid[queue.first_live], harmless))

    def late_step(step: Any) -> Any:
        """A step of a preempted life whose output will be delivered continues the host's tokens."""
        in_step = tokens.length_before[step] == ledger.num_tokens + made[step] - made[queue.head]
        return z3.Implies(
            z3.And(step >= queue.head, step < queue.first_live),
            z3.And(
                made[step + 1] == made[step] + generated(queue, tokens, step),
                tokens.accepted[step] >= 0,
                tokens.accepted[step] <= queue.num_drafts[step],
                z3.Implies(queue.samples(step), in_step),
            ),
        )

    def slot(content: Any, length: Any) -> Any:
        return z3.Implies(
            unfinished,
            z3.And(
                z3.Implies(length > POSITION, content == tokens.true_identity),
                z3.Implies(z3.And(exact, length <= POSITION), content != tokens.true_identity),
            ),
        )

    delivers_late = z3.And(ledger.status == PREEMPTED, z3.Not(ledger.drop_stale), ledger.stop_pending == 0)
    nothing_kept = ledger.num_computed_tokens == 0
    something = {"true_is_written": tokens.true_identity != NO_KV} if complete else {}
    return something | {
        "steps_extend": per_live_step(steps_extend),
        "accepts_drafts": per_live_step(accepts_drafts),
        "starts_where_valid_ends": per_live_step(lambda step: tokens.write_start[step] == valid[step]),
        "length_before": per_live_step(
            lambda step: tokens.length_before[step] == known_on_device + made[step] - made[oldest]
        ),
        "phase": per_live_step(phase),
        "generated_rises": rises(made),
        "valid_rises": rises(valid),
        "written_value": per_live_step(written_value),
        "at_the_tail": z3.Implies(
            running,
            z3.And(
                tokens.device_length == known_on_device + made[tail] - made[oldest],
                choose(
                    decoding,
                    valid[tail] == tokens.device_length - 1,
                    z3.And(valid[tail] == ledger.num_computed_tokens, made[tail] == made[oldest]),
                ),
            ),
        ),
        "not_running": z3.Implies(
            z3.And(unfinished, z3.Not(running)),
            z3.And(
                oldest == tail,
                valid[tail] == ledger.num_computed_tokens,
                z3.Implies(
                    nothing_kept,
                    z3.Or(tokens.first_unfreed >= queue.first_live, queue.head >= queue.first_live),
                ),
            ),
        ),
        "nothing_kept": z3.Implies(
            z3.And(unfinished, z3.Not(running), nothing_kept),
            z3.And(tokens.enqueued_kv == NO_KV, tokens.returned_kv == NO_KV),
        ),
        "prefix_not_negative": valid[oldest] >= 0,
        "valid_tokens": z3.Implies(
            unfinished, ghosts.num_valid_tokens == minimum(valid[tail], ledger.num_tokens)
        ),
        "settled_tokens": z3.Implies(
            unfinished, ghosts.num_settled_tokens == minimum(valid[oldest], ledger.num_tokens)
        ),
        "enqueued_kv": slot(tokens.enqueued_kv, valid[tail]),
        "returned_kv": slot(tokens.returned_kv, valid[oldest]),
        "committed_is_true": z3.Implies(
            z3.And(
                unfinished,
                z3.Or(ledger.status != PAUSED, ledger.num_computed_tokens > 0),
                ledger.num_tokens > POSITION,
            ),
            tokens.committed_identity == tokens.true_identity,
        ),
        "stale_writes": scope.each(stale_writes),
        "late_output": z3.Implies(
            delivers_late,
            z3.And(
                z3.Implies(queue.head < queue.first_live, queue.first_live == tail), scope.each(late_step)
            ),
        ),
        "freed_steps": z3.And(
            tokens.first_unfreed <= tail,
            z3.Or(tokens.first_unfreed <= queue.first_live, tokens.first_unfreed <= queue.head),
        ),
    }
