"""What numbers come out where a report prints them? Each cell is computed by running code, faulty or right.

Three things: a fault's own pin (`measure`), the session table of the seed pair (`session_table`) and the
table of what a finished request leaves in the prefix cache (`finish_table`).
"""

from __future__ import annotations

from typing import Any, NamedTuple

from draftproof.proofs.faults.fault import Change, Decision, Fault, Pin
from draftproof.proofs.faults.patching import Code, patched, right_code
from draftproof.proofs.faults.registry_exits import FINISH_FORGETS_TRIMMED, FINISH_REGISTERS_NOTHING
from draftproof.proofs.faults.registry_output import TRIM_STAYS_COUNTED, VLLM_FOLD
from draftproof.proofs.faults.registry_sessions import TURN_COUNTS_IN_FLIGHT
from draftproof.proofs.faults.replay import Walk, ask, walk
from draftproof.spec.decision_inputs import LookupHit
from draftproof.spec.events import (
    Admit,
    Draft,
    EndTurn,
    Event,
    Finish,
    Fold,
    Output,
    Preempt,
    Schedule,
    StaleOutput,
)
from draftproof.spec.guards import num_schedulable
from draftproof.spec.ledger import Ledger, Rules


class Measured(NamedTuple):
    """The figure of a pin, on the faulty and on the right code."""

    figure: str
    wrong: Any
    right: Any


def measure(fault: Fault) -> Measured | None:
    """What the fault's pin comes to when it is run; None if it has no pin.

    Raises ValueError if an event of the pin is not possible: then it is not a real run.
    """
    pin = fault.pin
    if pin is None:
        return None
    faulty = patched((*fault.changes, *fault.engine_rules))
    wrong = _figure(pin, faulty, pin.events)
    right = _figure(pin, right_code(), pin.right_events or pin.events)
    return Measured(pin.figure, wrong, right)


def complete_walk(code: Code, rules: Rules, num_prompt_tokens: int, events: tuple[Event, ...]) -> Walk:
    """The walk of all the events. Raises ValueError if one of them is not possible."""
    done = walk(code, rules, num_prompt_tokens, events)
    if done.refused is not None:
        raise ValueError(f"{done.refused} is not possible: {', '.join(done.refusal)}")
    return done


def _figure(pin: Pin, code: Code, events: tuple[Event, ...]) -> Any:
    run = complete_walk(code, pin.rules, pin.num_prompt_tokens, events).runs[-1]
    name, _, part = pin.figure.partition(".")
    if name != "decision":
        return getattr(run.state.ledger, name)
    assert pin.decision is not None
    answer = ask(code, run, pin.rules, pin.decision)
    return getattr(answer, part) if part else answer


# ---- the session of the seed pair ------------------------------------------------------------------------

SEED_RULES = Rules(num_speculative_tokens=2, block_size=16, asynchronous=False, registration_fence=0)
SEED_PROMPT = (1, 2, 3)
SEED_CHUNK = (7, 8)
SEED_GENERATED = (10, 11, 12, 13)
"""The first step samples 10; the drafts 11 and 12 are right, and 13 is sampled after them. 11 stops."""
SEED_EVENTS: tuple[Event, ...] = (
    Admit(0),
    Schedule(3),
    Output(3, 0, 0, 1, 0),
    Draft(2),
    Schedule(3),
    Output(3, 2, 2, 1, 1),
    EndTurn(),
)


class SessionRow(NamedTuple):
    """One row of the session table."""

    computed_at_fold: int
    known_at_fold: int
    all_tokens: tuple[int, ...]
    computed: int
    next_step_computes: tuple[int, ...]
    reused_positions: tuple[int, ...]
    """Positions of the chunk whose KV is taken as computed, though it is that of a draft."""


def session_row(changes: tuple[Change, ...], num_chunk_tokens: int = len(SEED_CHUNK)) -> SessionRow:
    """The seed's session under the code with these changes; tokens as a client would list them."""
    code = patched(changes) if changes else right_code()
    before = complete_walk(code, SEED_RULES, len(SEED_PROMPT), SEED_EVENTS).runs[-1].state.ledger
    events = (*SEED_EVENTS, Fold(num_chunk_tokens), Admit(0))
    after = complete_walk(code, SEED_RULES, len(SEED_PROMPT), events).runs[-1].state.ledger
    known = (SEED_PROMPT + SEED_GENERATED)[: before.num_tokens]
    kept = after.num_tokens - num_chunk_tokens
    tokens = known[:kept] + SEED_CHUNK[:num_chunk_tokens]
    computed = after.num_computed_tokens
    return SessionRow(
        computed_at_fold=before.num_computed_tokens,
        known_at_fold=before.num_tokens,
        all_tokens=tokens,
        computed=computed,
        next_step_computes=tokens[computed : computed + max(num_schedulable(after), 0)],
        reused_positions=tuple(range(kept, min(computed, len(tokens)))),
    )


def session_table() -> dict[str, SessionRow]:
    """The trim fault with vLLM's fold against the right code."""
    return {
        "trim not uncounted, with vLLM's fold": session_row((TRIM_STAYS_COUNTED, VLLM_FOLD)),
        "correct": session_row(()),
    }


def clamp_to_prompt(ledger: Ledger) -> int:
    """C if a fold clamped it to the new prompt's length, a remedy that was proposed."""
    return min(ledger.num_computed_tokens, ledger.num_prompt_tokens)


def seed_ledger_after_fold(changes: tuple[Change, ...], num_chunk_tokens: int = len(SEED_CHUNK)) -> Ledger:
    """The seed session's ledger after its fold."""
    code = patched(changes) if changes else right_code()
    events = (*SEED_EVENTS, Fold(num_chunk_tokens))
    return complete_walk(code, SEED_RULES, len(SEED_PROMPT), events).runs[-1].state.ledger


def asynchronous_fold(changes: tuple[Change, ...] = ()) -> Ledger:
    """At the fold of an asynchronous session (K = 2, prompt 7) whose next step is in flight when it stops."""
    events = (
        Admit(0),
        Schedule(7),
        Output(7, 0, 0, 1, 0),
        Schedule(3),
        Schedule(3),
        Output(3, 2, 2, 3, 1),
        EndTurn(),
    )
    code = patched(changes) if changes else right_code()
    return complete_walk(code, Rules(2, 16, True, 0), 7, events).runs[-1].state.ledger


def stopped_while_preempted() -> Ledger:
    """At the fold of a session whose stop arrived late, while it was preempted."""
    events = (
        Admit(0),
        Schedule(3),
        Schedule(1),
        Output(3, 0, 0, 1, 0),
        Preempt(False),
        StaleOutput(1, 1, 1),
        EndTurn(),
    )
    return complete_walk(right_code(), Rules(0, 16, True, 0), 3, events).runs[-1].state.ledger


IN_FLIGHT_COUNTED = (TURN_COUNTS_IN_FLIGHT,)

# ---- what a finished request leaves in the cache ---------------------------------------------------------


class FinishCase(NamedTuple):
    """K = 3, B = 16: prefill, one token, then a last step with three drafts."""

    title: str
    num_prompt_tokens: int
    num_accepted: int
    num_kept: int
    lookahead: int
    """A: 0 ordinary attention, 1 EAGLE, 3 multi-module MTP."""


FINISH_CASES = (
    FinishCase("ordinary attention, N=49, last response fully accepted", 44, 3, 4, 0),
    FinishCase("stop on an accepted draft, N=48 (bonus trimmed)", 44, 3, 3, 0),
    FinishCase("two drafts and the bonus trimmed, N=48", 46, 3, 1, 0),
    FinishCase("multi-module MTP, look-ahead 3, N=35", 30, 3, 4, 3),
    FinishCase("the same, stop on an accepted draft, N=34", 30, 3, 3, 3),
    FinishCase("EAGLE (look-ahead 1), N=35", 30, 3, 4, 1),
    FinishCase("MTP safety boundary (C=33, look-ahead 3)", 29, 3, 4, 3),
    FinishCase("final sampled token never written (C=47, N=48)", 43, 3, 4, 0),
    FinishCase("every draft rejected (N=46)", 44, 0, 1, 0),
    FinishCase("stop cuts inside the block (C=49 counted, N=47)", 45, 3, 1, 0),
)


class FinishRow(NamedTuple):
    """What a case leaves: registered tokens, and hits of two look-ups, in tokens."""

    registered: int
    exact_repeat: int
    extended: int
    extended_without: tuple[int, int]
    """Without terminal registration: synchronous, asynchronous."""


def finish_events(case: FinishCase, asynchronous: bool, ahead: bool = False) -> tuple[Event, ...]:
    """The case's events. `ahead`: one more step is in flight when the request stops (asynchronous only)."""
    prefill = Schedule(case.num_prompt_tokens)
    first = Output(case.num_prompt_tokens, 0, 0, 1, 0)
    last = Output(4, 3, case.num_accepted, case.num_kept, 1)
    if not asynchronous:
        return (Admit(0), prefill, first, Draft(3), Schedule(4), last, Finish())
    run_ahead = (Schedule(4),) if ahead else ()
    return (Admit(0), prefill, Schedule(4), first, *run_ahead, last, Finish())


def finished(
    case: FinishCase, asynchronous: bool, changes: tuple[Change, ...] = (), ahead: bool = False
) -> Ledger:
    """The case's ledger once it has finished."""
    code = patched(changes) if changes else right_code()
    rules = Rules(3, 16, asynchronous, max(0, case.lookahead - 1))
    events = finish_events(case, asynchronous, ahead)
    return complete_walk(code, rules, case.num_prompt_tokens, events).runs[-1].state.ledger


def hit(case: FinishCase, ledger: Ledger, num_more_tokens: int) -> int:
    """What a look-up of the finished tokens and `num_more_tokens` others hits, by the running code."""
    asking = ledger._replace(num_tokens=ledger.num_tokens + num_more_tokens)
    rules = Rules(3, 16, False, max(0, case.lookahead - 1))
    asked = Decision("lookup_hit", LookupHit(ledger.num_registered_tokens, drops_block=case.lookahead > 0))
    return int(right_code().decisions["lookup_hit"](asking, rules, *asked.inputs))


def finish_row(case: FinishCase) -> FinishRow:
    """One row of the table, on the right code; the last column on code that registers nothing at a finish."""
    leaves = finished(case, asynchronous=False)
    without = [hit(case, finished(case, mode, (FINISH_REGISTERS_NOTHING,)), 40) for mode in (False, True)]
    return FinishRow(
        registered=leaves.num_registered_tokens,
        exact_repeat=hit(case, leaves, 0),
        extended=hit(case, leaves, 40),
        extended_without=(without[0], without[1]),
    )


def finish_table() -> dict[str, FinishRow]:
    """The whole table, by the cases' titles."""
    return {case.title: finish_row(case) for case in FINISH_CASES}


def composed_row(case: FinishCase) -> int:
    """Registered tokens where both upstream fixes are composed without the trimmed count (synchronous)."""
    return finished(case, False, (FINISH_FORGETS_TRIMMED,)).num_registered_tokens
