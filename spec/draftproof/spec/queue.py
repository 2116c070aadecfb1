"""The exact queue of steps in flight: what was dispatched returns in order, exactly as dispatched.

The ledger and its ghosts keep only sums of it. A `Run` keeps the queue itself, so that an event is
possible only if the step it speaks about is really at the head. Runs are what trace search, replay and
the tests walk; that the sums follow from the queue is theorem R1 (`draftproof.proofs.refinement_queue`).
Plain Python integers only, but for `dispatched`, which the proof of R1 runs on solver terms.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from draftproof.spec import ghosts, guards
from draftproof.spec.algebra import both, maximum
from draftproof.spec.events import ChunkOutput, Event, Output, Schedule, StaleOutput, event_name
from draftproof.spec.ghosts import State, initial_state
from draftproof.spec.ledger import Ledger, Rules

Transitions = Mapping[str, Callable[..., Ledger]]
"""The code to run, by transition name."""


class Step(NamedTuple):
    """One dispatched step of a request, as its output will be reported."""

    num_tokens: int
    num_drafts: int
    samples: bool
    prefill: bool

    @property
    def num_generated_at_most(self) -> int:
        """Tokens the step can return: all drafts and the one after them, or none for a prefill chunk."""
        return 1 + self.num_drafts if self.samples else 0


class Run(NamedTuple):
    """A request with its truth and its steps in flight, oldest first."""

    state: State
    queue: tuple[Step, ...] = ()


def start(num_prompt_tokens: int) -> Run:
    """A request that has just arrived."""
    return Run(initial_state(num_prompt_tokens))


def dispatched(state: State, event: Schedule) -> Step:
    """The step that a schedule dispatches, told from where it starts to write."""
    ledger, truth = state
    begin = ledger.num_computed_tokens - truth.num_awaited_samples
    end = begin + event.num_new_tokens
    prefill = both(truth.num_awaited_samples == 0, begin < ledger.num_tokens - 1)
    return Step(
        num_tokens=event.num_new_tokens,
        num_drafts=maximum(end - ledger.num_tokens, 0),
        samples=end >= ledger.num_tokens,
        prefill=prefill,
    )


def head_agrees(run: Run, event: Event) -> bool:
    """A returning event speaks about the step at the head of the queue, as it was dispatched."""
    if not isinstance(event, ChunkOutput | Output | StaleOutput):
        return True
    if not run.queue:
        return False
    head = run.queue[0]
    if event.num_returned != head.num_tokens:
        return False
    if isinstance(event, ChunkOutput):
        return not head.samples
    if isinstance(event, Output):
        return head.samples and event.num_drafts == head.num_drafts
    # A step that sampled delivers something unless its output is dropped.
    return event.num_kept <= head.num_generated_at_most and (
        event.num_kept >= 1 or not head.samples or run.state.ledger.drop_stale
    )


def possible(run: Run, rules: Rules, event: Event) -> bool:
    """The event's control conditions hold and the queue agrees. No ledger fact is consulted."""
    control = guards.CONTROL[event_name(event)](run.state, rules, event)
    return all(control.values()) and head_agrees(run, event)


def advance(run: Run, rules: Rules, event: Event, transitions: Transitions) -> Run:
    """The run after a possible event, under the given code."""
    name = event_name(event)
    ghosts_of: Any = getattr(ghosts, name)
    after = State(
        Ledger(*transitions[name](run.state.ledger, rules, *event)), ghosts_of(run.state, rules, event)
    )
    if isinstance(event, Schedule):
        return Run(after, (*run.queue, dispatched(run.state, event)))
    if isinstance(event, ChunkOutput | Output | StaleOutput):
        return Run(after, run.queue[1:])
    return Run(after, run.queue)
