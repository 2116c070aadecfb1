"""The exact queue of steps in flight as solver terms: how it relates to the ledger and its ghosts.

The queue is four arrays over step numbers (tokens, drafts, prefill, completes the prompt) and, for each
sum that a ghost keeps, the array of its prefix sums. Steps `head` to `tail - 1` have not returned; those
below `first_live` belong to an earlier life, an ended turn, or a request that has left. What a dispatch
appends is `spec.queue.dispatched`, the function that trace search runs.

"For every step" is a quantifier for the proofs; for counterexamples and witnesses the queue is pinned
to a small depth and the same sentences are written out step by step (`Scope`).
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any, NamedTuple

import z3

from draftproof.proofs.terms import array, choose, integer, integers
from draftproof.spec.algebra import both, where
from draftproof.spec.events import ChunkOutput, Output, Schedule, StaleOutput
from draftproof.spec.ghosts import State
from draftproof.spec.ledger import FINISHED, Rules
from draftproof.spec.queue import dispatched

Facts = dict[str, Any]


class Scope(NamedTuple):
    """How "for every step" is said: with a quantifier, or written out for a queue of `depth` steps."""

    depth: int | None = None

    def each(self, sentence: Callable[[Any], Any]) -> Any:
        """The sentence holds for every step number. It must guard itself: nothing beyond the tail."""
        if self.depth is None:
            step = integer("step")
            return z3.ForAll([step], sentence(step))
        return z3.And([sentence(z3.IntVal(step)) for step in range(self.depth + 2)])

    def pairs(self, sentence: Callable[[Any, Any], Any]) -> Any:
        """The sentence holds for every two step numbers, the first not above the second."""
        if self.depth is None:
            first, second = integers("first_step second_step")
            return z3.ForAll([first, second], z3.Implies(first <= second, sentence(first, second)))
        numbers = itertools.combinations_with_replacement(range(self.depth + 2), 2)
        return z3.And([sentence(z3.IntVal(first), z3.IntVal(second)) for first, second in numbers])


EVERY_DEPTH = Scope()


class Queue(NamedTuple):
    """Steps by number, oldest first. The `..._before` arrays hold sums over all steps before a number."""

    num_tokens: Any
    num_drafts: Any
    prefill: Any
    """1 for a prefill step."""
    completes_prompt: Any
    """1 for the prefill step that reaches the last prompt token, and so samples."""
    tokens_before: Any
    samples_before: Any
    prefill_before: Any
    completions_before: Any
    head: Any
    first_live: Any
    tail: Any

    @property
    def oldest_live(self) -> Any:
        """The first step of the present life that has not returned; `tail` if there is none."""
        return choose(self.first_live >= self.head, self.first_live, self.head)

    def samples(self, step: Any) -> Any:
        """The step will return at least one token."""
        return z3.Or(self.prefill[step] == 0, self.completes_prompt[step] == 1)

    def in_flight(self, step: Any) -> Any:
        """The step has been dispatched and has not returned."""
        return z3.And(step >= self.head, step < self.tail)

    def live(self, step: Any) -> Any:
        """The step is in flight and belongs to the present life."""
        return z3.And(step >= self.oldest_live, step < self.tail)


QUEUE_ENDS = ("head", "first_live", "tail")


def symbolic_queue() -> Queue:
    """Any queue."""
    return Queue(
        *[
            integer(f"queue.{field}") if field in QUEUE_ENDS else array(f"queue.{field}")
            for field in Queue._fields
        ]
    )


def relation(state: State, rules: Rules, queue: Queue, scope: Scope = EVERY_DEPTH) -> Facts:
    """The ledger's and ghosts' sums are those of the queue, and the queue has the shape it can have."""
    ledger, ghosts = state
    head, tail, oldest = queue.head, queue.tail, queue.oldest_live

    def live_sum(before: Any) -> Any:
        return before[tail] - before[oldest]

    def shape(step: Any) -> Any:
        prefill, completes = queue.prefill[step], queue.completes_prompt[step]
        drafts = queue.num_drafts[step]
        return z3.Implies(
            queue.in_flight(step),
            z3.And(
                queue.num_tokens[step] >= 1,
                drafts >= 0,
                z3.Or(prefill == 0, prefill == 1),
                z3.Or(completes == 0, completes == 1),
                z3.Implies(completes == 1, prefill == 1),
                choose(prefill == 1, drafts == 0, queue.num_tokens[step] == 1 + drafts),
            ),
        )

    def sums(step: Any) -> Any:
        num_tokens = queue.num_tokens[step]
        samples = choose(queue.samples(step), 1 + queue.num_drafts[step], 0)
        return z3.Implies(
            queue.in_flight(step),
            z3.And(
                queue.tokens_before[step + 1] == queue.tokens_before[step] + num_tokens,
                queue.samples_before[step + 1] == queue.samples_before[step] + samples,
                queue.prefill_before[step + 1]
                == queue.prefill_before[step] + choose(queue.prefill[step] == 1, num_tokens, 0),
                queue.completions_before[step + 1]
                == queue.completions_before[step] + queue.completes_prompt[step],
            ),
        )

    def order(step: Any) -> Any:
        """Prefill chunks first, then the step that completes the prompt, then decode steps."""
        prefill_rest = queue.prefill_before[tail] - queue.prefill_before[step]
        completions_rest = queue.completions_before[tail] - queue.completions_before[step]
        num_tokens = queue.num_tokens[step]
        return z3.Implies(
            queue.live(step),
            choose(
                queue.prefill[step] == 0,
                z3.And(prefill_rest == 0, completions_rest == 0),
                choose(
                    queue.completes_prompt[step] == 1,
                    z3.And(prefill_rest == num_tokens, completions_rest == 1),
                    z3.And(
                        num_tokens <= prefill_rest,
                        z3.Implies(completions_rest > 0, num_tokens < prefill_rest),
                    ),
                ),
            ),
        )

    def rising(first: Any, second: Any) -> Any:
        return z3.Implies(
            z3.And(first >= head, second <= tail),
            z3.And(
                *[
                    before[first] <= before[second]
                    for before in (
                        queue.tokens_before,
                        queue.samples_before,
                        queue.prefill_before,
                        queue.completions_before,
                    )
                ],
                z3.Implies(
                    first < second,
                    queue.tokens_before[first] + queue.num_tokens[first] <= queue.tokens_before[second],
                ),
            ),
        )

    def awaited(step: Any) -> Any:
        counted = queue.samples_before[step] + 1 + queue.num_drafts[step] <= queue.samples_before[tail]
        return z3.Implies(z3.And(queue.in_flight(step), queue.samples(step)), counted)

    def last_when_synchronous(step: Any) -> Any:
        return z3.Implies(z3.And(queue.live(step), queue.samples(step)), step == tail - 1)

    finished = ledger.status == FINISHED
    stale = queue.tokens_before[queue.first_live] - queue.tokens_before[head]
    return {
        "ends_in_order": z3.And(head <= tail, queue.first_live <= tail),
        "in_flight": ledger.num_in_flight_tokens == queue.tokens_before[tail] - queue.tokens_before[head],
        "stale": ledger.num_stale_tokens == choose(queue.first_live >= head, stale, 0),
        # A finished request keeps its last ghosts, although nothing of it is live any more.
        "awaited": z3.Or(finished, ghosts.num_awaited_samples == live_sum(queue.samples_before)),
        "prefill_in_flight": z3.Or(finished, ghosts.num_prefill_in_flight == live_sum(queue.prefill_before)),
        "completes_prompt": z3.Or(finished, ghosts.completes_prompt == live_sum(queue.completions_before)),
        "step_shape": scope.each(shape),
        "sums": scope.each(sums),
        "live_order": scope.each(order),
        "sums_rise": scope.pairs(rising),
        "samples_are_awaited": scope.each(awaited),
        "synchronous_sample_is_last": z3.Or(rules.asynchronous, scope.each(last_when_synchronous)),
    }


def pushed(queue: Queue, before: State, event: Schedule) -> Queue:
    """The queue after a dispatch."""
    step = dispatched(before, event)
    tail = queue.tail
    samples = where(step.samples, 1 + step.num_drafts, 0)
    prefill = where(step.prefill, 1, 0)
    completes = where(both(step.prefill, step.samples), 1, 0)
    prefill_tokens = where(step.prefill, step.num_tokens, 0)
    return queue._replace(
        num_tokens=z3.Store(queue.num_tokens, tail, step.num_tokens),
        num_drafts=z3.Store(queue.num_drafts, tail, step.num_drafts),
        prefill=z3.Store(queue.prefill, tail, prefill),
        completes_prompt=z3.Store(queue.completes_prompt, tail, completes),
        tokens_before=_extended(queue.tokens_before, tail, step.num_tokens),
        samples_before=_extended(queue.samples_before, tail, samples),
        prefill_before=_extended(queue.prefill_before, tail, prefill_tokens),
        completions_before=_extended(queue.completions_before, tail, completes),
        tail=tail + 1,
    )


def _extended(before: Any, tail: Any, amount: Any) -> Any:
    return z3.Store(before, tail + 1, before[tail] + amount)


def popped(queue: Queue) -> Queue:
    """The queue after its head has returned."""
    return queue._replace(head=queue.head + 1)


def ended_life(queue: Queue) -> Queue:
    """The queue after everything in it has become stale."""
    return queue._replace(first_live=queue.tail)


def advanced(name: str, queue: Queue, before: State, event: Any) -> Queue:
    """The queue after the transition `name`."""
    if name == "schedule":
        return pushed(queue, before, event)
    if name in ("chunk_output", "output", "stale_output"):
        return popped(queue)
    return ended_life(queue) if name in ("preempt", "end_turn", "finish", "abort") else queue


def returning(queue: Queue, state: State, event: Any) -> Facts:
    """A returning event speaks about the step at the head as it was dispatched: `spec.queue.head_agrees`."""
    if not isinstance(event, ChunkOutput | Output | StaleOutput):
        return {}
    head = queue.head
    samples = queue.samples(head)
    facts = {
        "head:in_flight": queue.in_flight(head),
        "head:tokens": event.num_returned == queue.num_tokens[head],
    }
    if isinstance(event, ChunkOutput):
        return {**facts, "head:samples_nothing": z3.Not(samples)}
    if isinstance(event, Output):
        return {**facts, "head:samples": samples, "head:drafts": event.num_drafts == queue.num_drafts[head]}
    generated_at_most = choose(samples, 1 + queue.num_drafts[head], 0)
    return {
        **facts,
        "head:kept": z3.And(
            event.num_kept <= generated_at_most,
            z3.Or(event.num_kept >= 1, z3.Not(samples), state.ledger.drop_stale),
        ),
    }


def pins(queue: Queue, depth: int) -> Facts:
    """A queue of at most `depth` steps, numbered from 0: what makes written-out sentences complete."""
    return {
        "pin:head": queue.head == 0,
        "pin:tail": z3.And(queue.tail >= 0, queue.tail <= depth),
        "pin:first_live": z3.And(queue.first_live >= 0, queue.first_live <= depth),
    }
