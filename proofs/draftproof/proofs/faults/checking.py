"""Is a fault found? Refuted by the statements it names, and reached from a new request: both."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, NamedTuple

from draftproof.proofs.faults.fault import Fault
from draftproof.proofs.faults.patching import SourceMoved, patched
from draftproof.proofs.faults.refute import refute
from draftproof.proofs.faults.replay import Replay, replay
from draftproof.proofs.faults.trace import Trace, committed
from draftproof.proofs.search import Limits, shortest
from draftproof.spec.decision_inputs import Metrics


class FaultVerdict(NamedTuple):
    """What became of one fault. `detail` says in words what is missing, or what was seen."""

    name: str
    refuted: bool
    replayed: bool
    found: bool
    seconds: float
    detail: str


class FoundTrace(NamedTuple):
    """A trace searched anew, held against the committed one."""

    name: str
    trace: Trace | None
    replayed: bool
    as_short: bool
    """It has as many events, and as large numbers, as the committed trace."""
    seconds: float


def check_fault(fault: Fault) -> FaultVerdict:
    """Refute the fault's statements on its code, and replay its committed trace.

    A fault whose source text is gone (the code was edited) is not found, and the detail says so.
    """
    begin = time.perf_counter()
    try:
        verdicts = refute(fault)
    except SourceMoved as moved:
        return FaultVerdict(fault.name, False, False, False, time.perf_counter() - begin, str(moved))
    refuted = all(verdict.verdict == "refuted" for verdict in verdicts)
    problems = [
        f"{verdict.path} is {verdict.verdict}" for verdict in verdicts if verdict.verdict != "refuted"
    ]
    try:
        done = replay(fault)
    except FileNotFoundError:
        problems.append("no trace is committed")
        replayed = False
    else:
        problems += replay_problems(fault, done)
        replayed = not replay_problems(fault, done)
    return FaultVerdict(
        fault.name,
        refuted,
        replayed,
        refuted and replayed,
        time.perf_counter() - begin,
        "; ".join(problems) or f"refuted by {', '.join(fault.violated)}",
    )


def replay_problems(fault: Fault, done: Replay) -> list[str]:
    """Why a replay does not show the fault; empty if it does."""
    trace = done.trace
    if trace.violated != fault.trace_breaks:
        return [f"the trace is about {trace.violated}, the fault about {fault.trace_breaks}"]
    if fault.asynchronous is not None and trace.rules.asynchronous is not fault.asynchronous:
        return ["the trace is in the other mode"]
    problems = []
    if done.faulty.refused is not None:
        problems.append(f"{done.faulty.refused} is not possible: {', '.join(done.faulty.refusal)}")
    elif not done.breaks:
        problems.append(f"{trace.violated} holds at the end of the trace")
    if not done.right_holds:
        problems.append(f"{trace.violated} is false on the right code too")
    return problems


def limits_of(fault: Fault) -> Limits:
    """Where the fault's trace is searched."""
    others: dict[str, Any] = dict(fault.limits)
    return Limits(asynchronous=fault.asynchronous, query_after=fault.query_after)._replace(**others)


def find_trace(fault: Fault, progress: Callable[[str], None] | None = None) -> FoundTrace:
    """Search the fault's shortest trace anew and replay it. `progress` is told each depth that was searched.

    Raises `draftproof.proofs.search.Unanswered` if the solver gives up.
    """
    begin = time.perf_counter()
    trace = shortest(patched(fault.changes), fault.trace_breaks, limits_of(fault), progress)
    if trace is None:
        return FoundTrace(fault.name, None, False, False, time.perf_counter() - begin)
    replayed = not replay_problems(fault, replay(fault, trace))
    try:
        as_short = size_of(trace) == size_of(committed(fault.name))
    except FileNotFoundError:
        as_short = False
    return FoundTrace(fault.name, trace, replayed, as_short, time.perf_counter() - begin)


def size_of(trace: Trace) -> tuple[int, int]:
    """Events, then the sum that the search makes smallest."""
    numbers = [int(value) for event in trace.events for value in event]
    if trace.decision is not None:
        for value in trace.decision.inputs:
            numbers += list(value) if isinstance(value, Metrics) else [value] if type(value) is int else []
    rules = trace.rules
    weight = 4 * trace.num_prompt_tokens + 4 * rules.num_speculative_tokens + int(rules.asynchronous)
    return len(trace.events), weight + sum(numbers)
