"""The theorems T1 to T14, as named predicates; what each means is in `draftproof.spec.meanings`.

T1 to T7, T12 and T14 speak about one step (`STEP_THEOREMS`: before, event, after); their induction over
all steps is in `draftproof.proofs.induction`. What T8 (two ledgers), T9 (two orders), T10 (slots) and T11
(machine integers) say is in `draftproof.spec.structural`; each of them has a set-up of its own in the
proofs. T13 composes a finish with a later look-up (`draftproof.spec.lookups`).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from draftproof.spec.algebra import all_of, both, either, floor_to_block, implies, maximum, negate
from draftproof.spec.events import EVENTS
from draftproof.spec.ghosts import State
from draftproof.spec.guards import num_schedulable, schedulable
from draftproof.spec.invariants import frontier, num_live_in_flight
from draftproof.spec.ledger import FINISHED, RUNNING, Rules
from draftproof.spec.meanings import THEOREMS, Theorem

__all__ = ["STEP_THEOREMS", "THEOREMS", "StepTheorem", "Theorem"]


class StepTheorem(NamedTuple):
    """A claim about one step of each of the listed transitions."""

    theorem: str
    name: str
    transitions: tuple[str, ...]
    predicate: Callable[[State, Rules, Any, State], bool]


ALL = tuple(EVENTS)
ALL_BUT_STALE_OUTPUT = tuple(name for name in EVENTS if name != "stale_output")


def returned_work_is_known(before: State, rules: Rules, event: Any, after: State) -> bool:
    """C - (F - S) <= N in every unfinished state."""
    ledger = after.ledger
    return implies(
        ledger.status != FINISHED,
        ledger.num_computed_tokens - num_live_in_flight(ledger) <= ledger.num_tokens,
    )


def optimistic_frontier_is_known(before: State, rules: Rules, event: Any, after: State) -> bool:
    """Asynchronously C - P <= N in every unfinished state."""
    ledger = after.ledger
    return implies(
        both(rules.asynchronous, ledger.status != FINISHED),
        ledger.num_computed_tokens - ledger.num_output_placeholders <= ledger.num_tokens,
    )


def computed_is_known_at_fold(before: State, rules: Rules, event: Any, after: State) -> bool:
    """C <= N when the next chunk arrives."""
    return before.ledger.num_computed_tokens <= before.ledger.num_tokens


def frontier_is_last_known(before: State, rules: Rules, event: Any, after: State) -> bool:
    """With a sample awaited, C - Q = N - 1; asynchronously this is C - P."""
    ledger, ghosts = after
    return implies(
        both(ledger.status != FINISHED, ghosts.num_awaited_samples > 0),
        both(
            frontier(after) == ledger.num_tokens - 1,
            implies(
                rules.asynchronous,
                ledger.num_computed_tokens - ledger.num_output_placeholders == ledger.num_tokens - 1,
            ),
        ),
    )


def output_moves_frontier_by_kept(before: State, rules: Rules, event: Any, after: State) -> bool:
    """C - Q rises by exactly the kept tokens; asynchronously so does C - P."""
    old, new = before.ledger, after.ledger
    return both(
        frontier(after) == frontier(before) + event.num_kept,
        implies(
            rules.asynchronous,
            new.num_computed_tokens - new.num_output_placeholders
            == old.num_computed_tokens - old.num_output_placeholders + event.num_kept,
        ),
    )


def kept_were_scheduled(before: State, rules: Rules, event: Any, after: State) -> bool:
    """Tokens committed by a step never exceed the tokens scheduled in it.

    Says nothing about the code: it follows from the guard and from what the queue knows of the step, and
    is listed because it is what a counter of accepted drafts rests on.
    """
    committed: bool = event.num_kept <= event.num_returned
    return committed


def step_starts_at_known_token(before: State, rules: Rules, event: Any, after: State) -> bool:
    """The first token of a step is known, or a placeholder stands for it (asynchronously)."""
    start: int = after.ledger.num_computed_tokens - event.num_new_tokens
    return start - before.ledger.num_output_placeholders <= after.ledger.num_tokens - 1


def registered_is_valid(before: State, rules: Rules, event: Any, after: State) -> bool:
    """R <= V, and settled <= valid <= known."""
    ledger, ghosts = after
    return all_of(
        ledger.num_registered_tokens <= ghosts.num_valid_tokens,
        ghosts.num_settled_tokens <= ghosts.num_valid_tokens,
        ghosts.num_valid_tokens <= ledger.num_tokens,
    )


def step_reads_valid_kv(before: State, rules: Rules, event: Any, after: State) -> bool:
    """A step that starts at C - Q reads everything below it."""
    return both(frontier(before) >= 0, frontier(before) <= before.ghosts.num_valid_tokens)


def kept_is_settled(before: State, rules: Rules, event: Any, after: State) -> bool:
    """What a fold keeps as computed is settled, and published blocks lie below it."""
    ledger, ghosts = after
    return both(
        ledger.num_computed_tokens <= ghosts.num_settled_tokens,
        ledger.num_registered_tokens <= ledger.num_computed_tokens,
    )


def _registers_settled(before: State, registered: int, rules: Rules) -> bool:
    """max(R, floor_B(W - fence)): all that is settled, and only that; exactly floor_B(W) when idle."""
    old, ghosts = before
    publishable = floor_to_block(
        maximum(ghosts.num_settled_tokens - rules.registration_fence, 0), rules.block_size
    )
    return all_of(
        registered == maximum(old.num_registered_tokens, publishable),
        either(registered == old.num_registered_tokens, registered <= ghosts.num_settled_tokens),
        registered <= ghosts.num_valid_tokens,
        implies(
            all_of(
                negate(rules.asynchronous),
                rules.registration_fence == 0,
                ghosts.num_awaited_samples == 0,
                ghosts.num_prefill_in_flight == 0,
            ),
            registered == publishable,
        ),
    )


def leaving_registers_settled(before: State, rules: Rules, event: Any, after: State) -> bool:
    """Finish and abort of a running request; one that is not running has nothing left to register."""
    registered = after.ledger.num_registered_tokens
    num_not_registered = before.ghosts.num_settled_tokens - rules.registration_fence - registered
    return all_of(
        implies(before.ledger.status == RUNNING, _registers_settled(before, registered, rules)),
        implies(before.ledger.status != RUNNING, registered == before.ledger.num_registered_tokens),
        num_not_registered < rules.block_size,
    )


def preemption_registers_settled(before: State, rules: Rules, event: Any, after: State) -> bool:
    """What a preemption registered, before the new life starts with R = 0; of a session that does not run
    nothing more, since all it kept was registered when its turn ended."""
    registered = after.ledger.num_registered_at_preemption
    return both(
        _registers_settled(before, registered, rules),
        implies(before.ledger.status != RUNNING, registered == before.ledger.num_registered_tokens),
    )


def turn_end_registers_all_kept(before: State, rules: Rules, event: Any, after: State) -> bool:
    """Of a running request exactly floor_B(N - 1) (less the fence), of a preempted one nothing."""
    old, new = before.ledger, after.ledger
    publishable = floor_to_block(maximum(old.num_tokens - 1 - rules.registration_fence, 0), rules.block_size)
    return both(
        implies(
            old.status == RUNNING,
            both(
                new.num_registered_tokens == maximum(old.num_registered_tokens, publishable),
                implies(rules.registration_fence == 0, new.num_registered_tokens == publishable),
            ),
        ),
        implies(old.status != RUNNING, new.num_registered_tokens == 0),
    )


def no_underflow(before: State, rules: Rules, event: Any, after: State) -> bool:
    """No counter is negative, and P <= C."""
    ledger = after.ledger
    return all_of(
        ledger.num_output_placeholders >= 0,
        ledger.num_in_flight_tokens >= 0,
        ledger.num_stale_tokens >= 0,
        num_live_in_flight(ledger) >= 0,
        ledger.num_computed_tokens >= 0,
        ledger.num_computed_tokens - ledger.num_output_placeholders >= 0,
        ledger.num_draft_tokens >= 0,
        ledger.num_trimmed_tokens >= 0,
    )


def something_to_do(before: State, rules: Rules, event: Any, after: State) -> bool:
    """A schedulable request gets at least one token, or a sample is awaited."""
    return implies(
        schedulable(after, rules),
        either(num_schedulable(after.ledger) >= 1, after.ghosts.num_awaited_samples > 0),
    )


def return_makes_progress(before: State, rules: Rules, event: Any, after: State) -> bool:
    """N + W rises with every live step that returns."""
    return (
        after.ledger.num_tokens + after.ghosts.num_settled_tokens
        >= before.ledger.num_tokens + before.ghosts.num_settled_tokens + 1
    )


def stale_return_makes_progress(before: State, rules: Rules, event: Any, after: State) -> bool:
    """N + W does not fall when a stale step returns, and F falls: the second number of the measure."""
    return both(
        after.ledger.num_tokens + after.ghosts.num_settled_tokens
        >= before.ledger.num_tokens + before.ghosts.num_settled_tokens,
        after.ledger.num_in_flight_tokens < before.ledger.num_in_flight_tokens,
    )


def dispatch_loses_nothing(before: State, rules: Rules, event: Any, after: State) -> bool:
    """N + W does not fall when a step is dispatched or drafts are proposed."""
    return (
        after.ledger.num_tokens + after.ghosts.num_settled_tokens
        == before.ledger.num_tokens + before.ghosts.num_settled_tokens
    )


def fold_keeps_all_but_one(before: State, rules: Rules, event: Any, after: State) -> bool:
    """N before, less one, plus the chunk; and nothing above the cut counts as computed."""
    kept = after.ledger.num_tokens - event.num_chunk_tokens
    return both(kept == before.ledger.num_tokens - 1, after.ledger.num_computed_tokens <= kept)


def fence_is_kept_when_enqueued(before: State, rules: Rules, event: Any, after: State) -> bool:
    """What a dispatch or an output registers lies below V - fence."""
    old, new = before.ledger.num_registered_tokens, after.ledger.num_registered_tokens
    return either(new == old, new <= after.ghosts.num_valid_tokens - rules.registration_fence)


def fence_is_kept_at_exits(before: State, rules: Rules, event: Any, after: State) -> bool:
    """What an exit registers lies below W - fence."""
    old, new = before.ledger.num_registered_tokens, after.ledger.num_registered_tokens
    return either(new == old, new <= before.ghosts.num_settled_tokens - rules.registration_fence)


def fence_is_kept_at_preemption(before: State, rules: Rules, event: Any, after: State) -> bool:
    """What a preemption registers lies below W - fence."""
    old, new = before.ledger.num_registered_tokens, after.ledger.num_registered_at_preemption
    return either(new == old, new <= before.ghosts.num_settled_tokens - rules.registration_fence)


def was_not_finished(before: State, rules: Rules, event: Any, after: State) -> bool:
    """None of these events is enabled in a finished request: a property of the guards, not of the code."""
    return before.ledger.status != FINISHED


def leaving_finishes(before: State, rules: Rules, event: Any, after: State) -> bool:
    """Finish and abort end in FINISHED, and leave no work behind that could still change anything."""
    ledger = after.ledger
    return all_of(
        ledger.status == FINISHED, ledger.num_stale_tokens == ledger.num_in_flight_tokens, ledger.drop_stale
    )


def finished_is_left_alone(before: State, rules: Rules, event: Any, after: State) -> bool:
    """A step that returns to a finished request leaves it finished, with the same N, C and R, and no stop."""
    old, new = before.ledger, after.ledger
    return implies(
        old.status == FINISHED,
        all_of(
            new.status == FINISHED,
            new.num_tokens == old.num_tokens,
            new.num_computed_tokens == old.num_computed_tokens,
            new.num_registered_tokens == old.num_registered_tokens,
            new.stop_pending == 0,
        ),
    )


STEP_THEOREMS: tuple[StepTheorem, ...] = (
    StepTheorem("T1", "returned_work_is_known", ALL, returned_work_is_known),
    StepTheorem("T1", "optimistic_frontier_is_known", ALL, optimistic_frontier_is_known),
    StepTheorem("T1", "computed_is_known_at_fold", ("fold",), computed_is_known_at_fold),
    StepTheorem("T2", "frontier_is_last_known", ALL, frontier_is_last_known),
    StepTheorem("T2", "output_moves_frontier_by_kept", ("output",), output_moves_frontier_by_kept),
    StepTheorem("T2", "kept_were_scheduled", ("output",), kept_were_scheduled),
    StepTheorem("T2", "step_starts_at_known_token", ("schedule",), step_starts_at_known_token),
    StepTheorem("T3", "registered_is_valid", ALL, registered_is_valid),
    StepTheorem("T3", "step_reads_valid_kv", ("schedule",), step_reads_valid_kv),
    StepTheorem("T3", "kept_is_settled", ("fold",), kept_is_settled),
    StepTheorem("T4", "leaving_registers_settled", ("finish", "abort"), leaving_registers_settled),
    StepTheorem("T4", "preemption_registers_settled", ("preempt",), preemption_registers_settled),
    StepTheorem("T4", "turn_end_registers_all_kept", ("end_turn",), turn_end_registers_all_kept),
    StepTheorem("T5", "no_underflow", ALL, no_underflow),
    StepTheorem("T6", "something_to_do", ALL, something_to_do),
    StepTheorem("T6", "return_makes_progress", ("chunk_output", "output"), return_makes_progress),
    StepTheorem("T6", "stale_return_makes_progress", ("stale_output",), stale_return_makes_progress),
    StepTheorem("T6", "dispatch_loses_nothing", ("schedule", "draft"), dispatch_loses_nothing),
    StepTheorem("T7", "fold_keeps_all_but_one", ("fold",), fold_keeps_all_but_one),
    StepTheorem("T12", "fence_is_kept_when_enqueued", ("schedule", "output"), fence_is_kept_when_enqueued),
    StepTheorem("T12", "fence_is_kept_at_exits", ("end_turn", "finish", "abort"), fence_is_kept_at_exits),
    StepTheorem("T12", "fence_is_kept_at_preemption", ("preempt",), fence_is_kept_at_preemption),
    StepTheorem("T14", "leaving_finishes", ("finish", "abort"), leaving_finishes),
    StepTheorem("T14", "finished_is_left_alone", ("stale_output",), finished_is_left_alone),
    StepTheorem("T14", "was_not_finished", ALL_BUT_STALE_OUTPUT, was_not_finished),
)
