"""What can happen next? All possible events of a run within small sizes: what explorers choose from.

Whether an event is possible is the exact queue's word (`draftproof.spec.queue.possible`). The sizes here
only keep an exploration finite; they are no part of the specification.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import NamedTuple, TypeVar

from draftproof.spec import tokens
from draftproof.spec.events import (
    Abort,
    Admit,
    ChunkOutput,
    Draft,
    EndTurn,
    Event,
    Finish,
    Fold,
    Output,
    Preempt,
    Schedule,
    StaleOutput,
    event_name,
)
from draftproof.spec.guards import num_schedulable
from draftproof.spec.ledger import PAUSED, Rules
from draftproof.spec.queue import Run, possible
from draftproof.spec.tokens import Reference

Choice = TypeVar("Choice")


class Sizes(NamedTuple):
    """How far an exploration goes. All counts are tokens, except for the steps."""

    max_num_tokens: int
    """No step is scheduled, and no chunk folded, beyond this length."""
    max_num_chunk_tokens: int
    max_num_steps_in_flight: int


def candidates(run: Run, rules: Rules, sizes: Sizes) -> Iterator[Event]:
    """Every event within the sizes that could concern the run; `possible` decides."""
    ledger = run.state.ledger
    yield from (Admit(hit) for hit in range(0, ledger.num_tokens, rules.block_size))
    if len(run.queue) < sizes.max_num_steps_in_flight:
        room = sizes.max_num_tokens - ledger.num_computed_tokens
        yield from (Schedule(count) for count in range(1, min(num_schedulable(ledger), room) + 1))
    yield from (Draft(count) for count in range(rules.num_speculative_tokens + 1))
    if run.queue:
        yield from returns(run)
    yield from (Preempt(False), Preempt(True), EndTurn(), Finish(), Abort())
    if ledger.status == PAUSED:
        room = sizes.max_num_tokens - (ledger.num_tokens - 1)
        yield from (Fold(count) for count in range(1, min(sizes.max_num_chunk_tokens, room) + 1))


def returns(run: Run) -> Iterator[Event]:
    """Every way in which the oldest step in flight may return."""
    head = run.queue[0]
    yield ChunkOutput(head.num_tokens)
    for num_accepted in range(head.num_drafts + 1):
        for num_kept in range(1, num_accepted + 2):
            yield from (
                Output(head.num_tokens, head.num_drafts, num_accepted, num_kept, stopped)
                for stopped in (0, 1)
            )
    for num_kept in range(head.num_generated_at_most + 1):
        yield from (StaleOutput(head.num_tokens, num_kept, stopped) for stopped in (0, 1))


def choices(run: Run, rules: Rules, sizes: Sizes) -> list[Event]:
    """Every possible next event within the sizes, in a fixed order."""
    return [event for event in candidates(run, rules, sizes) if possible(run, rules, event)]


class Move(NamedTuple):
    """An event of the token-level reference; `num_accepted` is what the device will find in a new step."""

    event: Event
    num_accepted: int = 0


def moves(reference: Reference, rules: Rules, sizes: Sizes) -> list[Move]:
    """Every possible next move within the sizes, with every outcome of a step that verifies drafts."""
    found = []
    for event in candidates(reference.run, rules, sizes):
        if not tokens.possible(reference, rules, event):
            continue
        num_drafts = tokens.num_drafts_dispatched(reference, event) if isinstance(event, Schedule) else 0
        found += [Move(event, num_accepted) for num_accepted in range(num_drafts + 1)]
    return found


WEIGHTS = {
    "admit": 40,
    "schedule": 40,
    "draft": 40,
    "chunk_output": 40,
    "output": 40,
    "stale_output": 30,
    "stop": 10,
    "preempt": 3,
    "end_turn": 40,
    "fold": 40,
    "finish": 10,
    "abort": 1,
}
"""How often a random walk takes each kind of event: rarely one that ends the walk or starts it over."""


def kind_of(event: Event) -> str:
    """The event's name; an output that stops is a kind of its own, for it comes in the most variants."""
    return "stop" if getattr(event, "stopped", 0) == 1 else event_name(event)


def pick(
    options: Sequence[Choice],
    number: int,
    event_of: Callable[[Choice], Event],
    weights: Mapping[str, int] = WEIGHTS,
) -> Choice:
    """One of the options (at least one), by number >= 0: first a kind, by weight, then within the kind."""
    kinds = list(dict.fromkeys(kind_of(event_of(option)) for option in options))
    rest, place = divmod(number, sum(weights[kind] for kind in kinds))
    for kind in kinds:
        place -= weights[kind]
        if place < 0:
            break
    same = [option for option in options if kind_of(event_of(option)) == kind]
    return same[rest % len(same)]
