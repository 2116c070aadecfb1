"""The theorems T1 to T14, as named predicates with what they mean and where they come from.

Most speak about one step (`STEP_THEOREMS`: before, event, after); their induction over all steps is in
`draftproof.proofs.induction`. Those about two ledgers (T8), two orders (T9), slots (T10), machine
integers (T11) and the look-up (T13) have predicates here too and set-ups of their own in the proofs.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from draftproof.spec.algebra import all_of, both, either, floor_to_block, implies, maximum, negate
from draftproof.spec.events import EVENTS
from draftproof.spec.ghosts import State
from draftproof.spec.guards import num_schedulable, schedulable
from draftproof.spec.invariants import frontier, num_live_in_flight
from draftproof.spec.ledger import FINISHED, RUNNING, Ledger, Rules


class Theorem(NamedTuple):
    """What a theorem says, in a sentence for an engineer, and the source of the rule."""

    name: str
    meaning: str
    source: str


THEOREMS: dict[str, Theorem] = {
    "T1": Theorem(
        "computed never exceeds known",
        "Work that has returned is never counted beyond the known tokens: C - (F - S) <= N, so C <= N "
        "whenever nothing live is in flight, in particular when the next chunk of a session arrives.",
        "the trim fault; vLLM #58259, #44526",
    ),
    "T2": Theorem(
        "the frontier is exact",
        "While a sample is awaited the next known token goes to position N - 1, and an output moves the "
        "frontier C - Q by exactly the tokens it kept, whether or not a stop trimmed any.",
        "speculative sampling, Leviathan et al. 2023; the trim fault",
    ),
    "T3": Theorem(
        "nothing unreal is read, kept or published",
        "Registered, settled and kept tokens never exceed the positions whose KV is really theirs, and "
        "a step starts to write where valid KV ends.",
        "vLLM #49377, #58259",
    ),
    "T4": Theorem(
        "nothing settled is lost",
        "At all four exits (finish, preempt, abort, end of turn) every whole block of settled KV has "
        "been published, and nothing that is not settled is added.",
        "vLLM #54979 and its composition with the trim fix",
    ),
    "T5": Theorem(
        "no counter underflows",
        "No counter goes below zero, and P never exceeds C.",
        "vLLM #48245, #52765, #50692",
    ),
    "T6": Theorem(
        "progress",
        "A running request either can be scheduled with at least one token or awaits output, and every "
        "returned step brings 2M - N - W closer to 0 (M the limit on N), so if every dispatched step "
        "returns, the request ends unless it is preempted for ever.",
        "vLLM #44526, #53970",
    ),
    "T7": Theorem(
        "a fold keeps all but the last token",
        "The next chunk of a session follows exactly N - 1 known tokens, also if the session stopped "
        "while it was preempted (C = 0).",
        "vLLM #58259",
    ),
    "T8": Theorem(
        "speculation leaves no trace",
        "Two unpreempted runs with equal committed tokens have equal (N, C, P, D, T, E, L, R) after the "
        "turn ends, whether or how they speculated, synchronously or not.",
        "the purpose of the accounting",
    ),
    "T9": Theorem(
        "host and device commute",
        "For the same step size, the host's order (schedule the next step, then process the output) and "
        "the device's (the output first) agree on every field but R, where "
        "floor_B(N - 1) <= R_host <= R_device <= floor_B(N).",
        "asynchronous scheduling (vLLM, SGLang overlap, TensorRT-LLM)",
    ),
    "T10": Theorem(
        "capacity",
        "Slots for every position below C + n, reserved when a step of n is scheduled, cover all it "
        "writes at any run-ahead depth; one slot less does not. A drafter's look-ahead comes on top.",
        "TensorRT-LLM #16280",
    ),
    "T11": Theorem(
        "machine integers suffice",
        "With J undelivered steps, max_model_len + J(1+K) and J * max_num_batched_tokens + fence below 2^31, "
        "no integer sub-term of any transition leaves 32 bits.",
        "the device ledger runs on int32",
    ),
    "T12": Theorem(
        "the drafter's fence",
        "With prefill look-ahead A, nothing within the last A - 1 valid tokens is registered: those "
        "positions still change when the drafter sees the tokens after them.",
        "multi-module MTP; vLLM #54979",
    ),
    "T13": Theorem(
        "what was stored is found",
        "With no eviction in between, a look-up that starts with a finished sequence hits exactly a "
        "closed form of its settled length, the look-up's length, the block size and the drop rule.",
        "vLLM #54979",
    ),
    "T14": Theorem(
        "finished is final",
        "A finished request takes no further event, so it is finished, and its blocks are freed, once.",
        "vLLM #33377",
    ),
}


class StepTheorem(NamedTuple):
    """A claim about one step of each of the listed transitions."""

    theorem: str
    name: str
    transitions: tuple[str, ...]
    predicate: Callable[[State, Rules, Any, State], bool]


ALL = tuple(EVENTS)


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


def _exit_registers_settled(before: State, registered: int, rules: Rules) -> bool:
    """max(R, floor_B(W - fence)): all that is settled, and only that; exactly floor_B(W) when idle."""
    old, ghosts = before
    publishable = floor_to_block(
        maximum(ghosts.num_settled_tokens - rules.registration_fence, 0), rules.block_size
    )
    return implies(
        old.status == RUNNING,
        all_of(
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
        ),
    )


def leaving_registers_settled(before: State, rules: Rules, event: Any, after: State) -> bool:
    """Finish and abort of a running request; one that is not running registers nothing."""
    registered = after.ledger.num_registered_tokens
    return both(
        _exit_registers_settled(before, registered, rules),
        implies(before.ledger.status != RUNNING, registered == before.ledger.num_registered_tokens),
    )


def preemption_registers_settled(before: State, rules: Rules, event: Any, after: State) -> bool:
    """What a preemption registered, before the new life starts with R = 0."""
    return _exit_registers_settled(before, after.ledger.num_registered_at_preemption, rules)


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
    """No event is enabled in a finished request."""
    return before.ledger.status != FINISHED


STEP_THEOREMS: tuple[StepTheorem, ...] = (
    StepTheorem("T1", "returned_work_is_known", ALL, returned_work_is_known),
    StepTheorem("T1", "optimistic_frontier_is_known", ALL, optimistic_frontier_is_known),
    StepTheorem("T1", "computed_is_known_at_fold", ("fold",), computed_is_known_at_fold),
    StepTheorem("T2", "frontier_is_last_known", ALL, frontier_is_last_known),
    StepTheorem("T2", "output_moves_frontier_by_kept", ("output",), output_moves_frontier_by_kept),
    StepTheorem("T3", "registered_is_valid", ALL, registered_is_valid),
    StepTheorem("T3", "step_reads_valid_kv", ("schedule",), step_reads_valid_kv),
    StepTheorem("T3", "kept_is_settled", ("fold",), kept_is_settled),
    StepTheorem("T4", "leaving_registers_settled", ("finish", "abort"), leaving_registers_settled),
    StepTheorem("T4", "preemption_registers_settled", ("preempt",), preemption_registers_settled),
    StepTheorem("T4", "turn_end_registers_all_kept", ("end_turn",), turn_end_registers_all_kept),
    StepTheorem("T5", "no_underflow", ALL, no_underflow),
    StepTheorem("T6", "something_to_do", ALL, something_to_do),
    StepTheorem("T6", "return_makes_progress", ("chunk_output", "output"), return_makes_progress),
    StepTheorem("T6", "dispatch_loses_nothing", ("schedule", "draft"), dispatch_loses_nothing),
    StepTheorem("T7", "fold_keeps_all_but_one", ("fold",), fold_keeps_all_but_one),
    StepTheorem("T12", "fence_is_kept_when_enqueued", ("schedule", "output"), fence_is_kept_when_enqueued),
    StepTheorem("T12", "fence_is_kept_at_exits", ("end_turn", "finish", "abort"), fence_is_kept_at_exits),
    StepTheorem("T12", "fence_is_kept_at_preemption", ("preempt",), fence_is_kept_at_preemption),
    StepTheorem("T14", "was_not_finished", ALL, was_not_finished),
)


def turns_end_equal(first: Ledger, second: Ledger) -> bool:
    """T8: the two ledgers agree on (N, C, P, D, T, E, L, R)."""
    return all_of(
        first.num_tokens == second.num_tokens,
        first.num_computed_tokens == second.num_computed_tokens,
        first.num_output_placeholders == second.num_output_placeholders,
        first.num_draft_tokens == second.num_draft_tokens,
        first.num_trimmed_tokens == second.num_trimmed_tokens,
        first.stop_pending == second.stop_pending,
        first.num_prompt_tokens == second.num_prompt_tokens,
        first.num_registered_tokens == second.num_registered_tokens,
    )
