"""Does a fault's trace really happen? It is walked on plain integers, with the exact queue.

Neither a proof nor a search is trusted here: every event must be possible (the faulty code's own guards
and the queue), the named statement must be false at the end, and the right code, given the same events,
must keep it or refuse an event that only the fault allows.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from draftproof.proofs.faults.fault import Decision, Fault
from draftproof.proofs.faults.patching import Code, patched, right_code
from draftproof.proofs.faults.predicates import of_decision, of_step
from draftproof.proofs.faults.trace import Trace, committed
from draftproof.spec.decision_inputs import TokensToSchedule
from draftproof.spec.decisions import ASSUMPTIONS
from draftproof.spec.events import Event, event_name
from draftproof.spec.ledger import Rules
from draftproof.spec.queue import Run, advance, head_agrees, start


class Walk(NamedTuple):
    """Runs by number of events so far; `refused` is the first event that was not possible."""

    runs: tuple[Run, ...]
    refused: Event | None
    refusal: tuple[str, ...]
    """The guard's conditions that did not hold, or `queue`."""


class Replay(NamedTuple):
    """A fault's trace on the faulty and on the right code."""

    trace: Trace
    faulty: Walk
    right: Walk
    faulty_result: Any
    """What the decision answered, if the trace asks one."""
    right_result: Any
    breaks: bool
    """The statement is false at the end, on the faulty code."""
    right_holds: bool
    """On the right code the statement is true, or an event was refused before it could be asked."""

    @property
    def reproduced(self) -> bool:
        """The trace shows the fault."""
        return self.faulty.refused is None and self.breaks and self.right_holds


def refusal(code: Code, run: Run, rules: Rules, event: Event) -> tuple[str, ...]:
    """Why the event is not possible under this code's guards; empty if it is."""
    control = code.control[event_name(event)](run.state, rules, event)
    failed = tuple(key for key, holds in control.items() if not holds)
    return failed if head_agrees(run, event) else (*failed, "queue")


def walk(code: Code, rules: Rules, num_prompt_tokens: int, events: tuple[Event, ...]) -> Walk:
    """The events from a new request on, as long as each is possible."""
    runs = [start(num_prompt_tokens)]
    for event in events:
        failed = refusal(code, runs[-1], rules, event)
        if failed:
            return Walk(tuple(runs), event, failed)
        runs.append(advance(runs[-1], rules, event, code.transitions))
    return Walk(tuple(runs), None, ())


def ask(code: Code, run: Run, rules: Rules, decision: Decision) -> Any:
    """What the code decides in the run's present state."""
    return code.decisions[decision.name](run.state.ledger, rules, *decision.inputs)


def _holds(trace: Trace, done: Walk, result: Any) -> bool:
    """Whether the trace's statement is true at the end of a complete walk."""
    state = done.runs[-1].state
    if trace.decision is not None:
        inputs = trace.decision.inputs
        return bool(of_decision(trace.violated, state, trace.rules, inputs, result))
    before = done.runs[-2].state
    return bool(of_step(trace.violated, before, trace.rules, trace.events[-1], state))


def _may_be_asked(trace: Trace, done: Walk) -> bool:
    """The decision's caller keeps its promises in the last state."""
    if trace.decision is None:
        return True
    inputs = trace.decision.inputs
    assumed = ASSUMPTIONS[trace.decision.name](done.runs[-1].state, trace.rules, inputs)
    if isinstance(inputs, TokensToSchedule):
        # No ledger field counts the outputs a host awaits; the queue does.
        awaited = sum(step.samples for step in done.runs[-1].queue)
        assumed["awaited_outputs_as_dispatched"] = inputs.num_awaited_outputs == awaited
    return all(assumed.values())


def replay_trace(trace: Trace, faulty: Code, right: Code) -> Replay:
    """The trace on two codes."""
    walks, results = [], []
    for code in (faulty, right):
        done = walk(code, trace.rules, trace.num_prompt_tokens, trace.events)
        asked = trace.decision is not None and done.refused is None
        walks.append(done)
        results.append(
            ask(code, done.runs[-1], trace.rules, trace.decision) if asked and trace.decision else None
        )
    complete = walks[0].refused is None and _may_be_asked(trace, walks[0])
    return Replay(
        trace,
        walks[0],
        walks[1],
        results[0],
        results[1],
        breaks=complete and not _holds(trace, walks[0], results[0]),
        right_holds=walks[1].refused is not None
        or not _may_be_asked(trace, walks[1])
        or _holds(trace, walks[1], results[1]),
    )


def replay(fault: Fault, trace: Trace | None = None) -> Replay:
    """The fault's committed trace, or the one given. Raises FileNotFoundError if none is committed."""
    trace = committed(fault.name) if trace is None else trace
    return replay_trace(trace, patched(fault.changes), right_code())
