"""What happened, event by event? A fault's trace told as plain data, for terminals and the HTML report.

Keys: `fault, title, meaning, reports, theorem, violated, change, changes, pinned, rules,
num_prompt_tokens, rows, outcome, decision`. A row has `event`, the counters and ghosts of the `faulty` and
of the `right` run (null once the right code refuses an event), the symbols that are `wrong`, the statements
that the faulty run `broke`, a `note`, and a `strip` of both runs.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from draftproof.impl.contracts import format_event
from draftproof.proofs.faults.fault import Change, Decision, Fault
from draftproof.proofs.faults.patching import Code, patched, right_code
from draftproof.proofs.faults.predicates import broken_by_step
from draftproof.proofs.faults.registry import find, reports
from draftproof.proofs.faults.replay import Walk, ask, walk
from draftproof.proofs.faults.strip import LONGEST_PROMPT, Tape, as_data, tape
from draftproof.proofs.faults.trace import committed
from draftproof.spec.decision_inputs import Metrics
from draftproof.spec.decisions import RELATIONS
from draftproof.spec.events import Event, Fold, event_name
from draftproof.spec.ghosts import GHOST_SYMBOLS, State
from draftproof.spec.ledger import STATUS_NAMES, SYMBOLS, Rules
from draftproof.spec.queue import Run


class _Script(NamedTuple):
    """What is told: the events on either code, and the decision asked at the end."""

    rules: Rules
    num_prompt_tokens: int
    events: tuple[Event, ...]
    right_events: tuple[Event, ...]
    decision: Decision | None
    faulty: Code


class _Side(NamedTuple):
    """One code's run, and its tokens (None where the request is too long to show them)."""

    walk: Walk
    tape: Tape | None


def tell(name: str, pinned: bool = False) -> dict[str, Any]:
    """The story of a fault: its shortest trace, or with `pinned` the run of its `Pin`.

    Raises UnknownName for a name that no fault has, ValueError if `pinned` is asked of a fault without.
    """
    fault = find(name)
    script = _pinned_script(fault) if pinned else _shortest_script(fault)
    faulty = _side(script.faulty, script, script.events)
    right = _side(right_code(), script, script.right_events)
    applied = (*fault.changes, *fault.engine_rules) if pinned else fault.changes
    told = reports()
    return {
        "fault": fault.name,
        "title": fault.title,
        "meaning": fault.meaning,
        "reports": [
            {key: getattr(told[report], key) for key in ("id", "source", "engine", "area", "what_happens")}
            for report in fault.reports
        ],
        "theorem": fault.theorem,
        "violated": [path.partition("/")[2] for path in fault.violated],
        "change": _change_data(fault.changes[0]),
        "changes": [_change_data(change) for change in applied],
        "pinned": pinned,
        "own_numbers": fault.pin.own_numbers if pinned and fault.pin is not None else "",
        "rules": dict(zip(("K", "B", "asynchronous", "fence"), script.rules, strict=True)),
        "num_prompt_tokens": script.num_prompt_tokens,
        "rows": [_row(index, script, faulty, right) for index in range(len(script.events) + 1)],
        "outcome": _outcome(fault, script, faulty, right),
        "decision": _decision_data(script, faulty, right),
    }


def has_pin(name: str) -> bool:
    """Whether `tell(name, pinned=True)` has something to tell. Raises UnknownName."""
    return find(name).pin is not None


def _shortest_script(fault: Fault) -> _Script:
    trace = committed(fault.name)
    return _Script(
        trace.rules,
        trace.num_prompt_tokens,
        trace.events,
        trace.events,
        trace.decision,
        patched(fault.changes),
    )


def _pinned_script(fault: Fault) -> _Script:
    pin = fault.pin
    if pin is None:
        raise ValueError(f"{fault.name} has no pinned numbers; leave --pinned out for its shortest trace")
    return _Script(
        pin.rules,
        pin.num_prompt_tokens,
        pin.events,
        pin.right_events or pin.events,
        pin.decision,
        patched((*fault.changes, *fault.engine_rules)),
    )


def _side(code: Code, script: _Script, events: tuple[Event, ...]) -> _Side:
    done = walk(code, script.rules, script.num_prompt_tokens, events)
    if script.num_prompt_tokens > LONGEST_PROMPT:
        return _Side(done, None)
    possible = events[: len(done.runs) - 1]
    return _Side(done, tape(code, script.rules, script.num_prompt_tokens, possible))


def _change_data(change: Change) -> dict[str, str]:
    return {"function": change.function, "before": change.before, "after": change.after}


def _run_at(side: _Side, index: int) -> Run | None:
    return side.walk.runs[index] if index < len(side.walk.runs) else None


def symbols_of(state: State) -> dict[str, Any]:
    """Every counter and ghost under its symbol; the status as a word."""
    counters = {symbol: getattr(state.ledger, field) for field, symbol in SYMBOLS.items()}
    counters["status"] = STATUS_NAMES[state.ledger.status]
    return counters | {symbol: getattr(state.ghosts, field) for field, symbol in GHOST_SYMBOLS.items()}


def _row(index: int, script: _Script, faulty: _Side, right: _Side) -> dict[str, Any]:
    """The row after the first `index` events."""
    run, other = _run_at(faulty, index), _run_at(right, index)
    assert run is not None, "a committed trace is possible on its faulty code"
    event = script.events[index - 1] if index else None
    counters = symbols_of(run.state)
    expected = symbols_of(other.state) if other else None
    wrong = [key for key in SYMBOLS.values() if expected is not None and counters[key] != expected[key]]
    broke: list[str] = []
    if event is not None:
        before = faulty.walk.runs[index - 1].state
        broke = broken_by_step(event_name(event), before, script.rules, event, run.state)
    return {
        "event": _event_text(event) if event is not None else f"arrives(prompt={script.num_prompt_tokens})",
        "faulty": counters,
        "right": expected,
        "wrong": wrong,
        "broke": broke,
        "note": _note(index, script, right, counters, expected, wrong),
        "strip": {
            "faulty": as_data(faulty.tape.cells[index]) if faulty.tape else [],
            "right": as_data(right.tape.cells[index]) if right.tape and other else [],
            "faulty_frontier": _frontier(run),
            "right_frontier": _frontier(other) if other else None,
        },
    }


def _event_text(event: Event) -> str:
    return format_event(event, event_name(event))


def _frontier(run: Run) -> int:
    """Where the code would write the next known token: C - Q."""
    return run.state.ledger.num_computed_tokens - run.state.ghosts.num_awaited_samples


def _note(
    index: int,
    script: _Script,
    right: _Side,
    counters: dict[str, Any],
    expected: dict[str, Any] | None,
    wrong: list[str],
) -> str:
    """One line: what is wrong, or what the right code does instead."""
    notes = []
    if expected is None:
        if index == len(right.walk.runs) and right.walk.refused is not None:
            notes.append(f"the right code refuses this: {', '.join(right.walk.refusal)}")
    elif index and script.right_events[index - 1] != script.events[index - 1]:
        notes.append(f"on the right code this is {_event_text(script.right_events[index - 1])}")
    if wrong and expected is not None:
        notes += [f"{symbol} is {counters[symbol]}, right is {expected[symbol]}" for symbol in wrong]
    return "; ".join(notes)


def next_computed(side_tape: Tape, run: Run) -> list[str]:
    """The known tokens that the next step would compute: those from C on."""
    return list(side_tape.known[-1][run.state.ledger.num_computed_tokens :])


def _outcome(fault: Fault, script: _Script, faulty: _Side, right: _Side) -> str:
    """The wrong value against the right one, in a sentence or two."""
    run, other = faulty.walk.runs[-1], _run_at(right, len(faulty.walk.runs) - 1)
    if script.decision is not None:
        wrong = ask(script.faulty, run, script.rules, script.decision)
        if other is None:
            return f"{script.decision.name} answers {_short(wrong)}; the right code does not get here."
        expected = ask(right_code(), other, script.rules, script.decision)
        return f"{script.decision.name} answers {_answers(wrong, expected)}."
    if other is None:
        refused = right.walk.refused
        assert refused is not None, "the right run is shorter only if it refused an event"
        happened, why = _event_text(script.events[-1]), ", ".join(right.walk.refusal)
        if refused == script.events[-1]:
            return f"{happened} happens, which the right code refuses: {why}."
        return f"{happened} happens; the right code refuses {_event_text(refused)} before it: {why}."
    counters, expected = symbols_of(run.state), symbols_of(other.state)
    differences = [
        f"{symbol} is {counters[symbol]}, right is {expected[symbol]}"
        for symbol in SYMBOLS.values()
        if counters[symbol] != expected[symbol]
    ]
    told = "; ".join(differences) + "." if differences else f"{fault.trace_breaks} is false."
    if isinstance(script.events[-1], Fold) and faulty.tape and right.tape:
        told += (
            f" The next step computes {_listed(next_computed(faulty.tape, run))} "
            f"of {' '.join(faulty.tape.known[-1])}; right is {_listed(next_computed(right.tape, other))} "
            f"of {' '.join(right.tape.known[-1])}."
        )
    return told


def _listed(names: list[str]) -> str:
    return " ".join(names) if names else "nothing"


def _short(answer: Any) -> Any:
    return answer._asdict() if isinstance(answer, Metrics) else answer


def _answers(wrong: Any, expected: Any) -> str:
    """Both answers; of a record only the fields that differ."""
    if not isinstance(wrong, Metrics):
        return f"{wrong}, right is {expected}"
    return ", ".join(
        f"{field} {value}, right is {getattr(expected, field)}"
        for field, value in wrong._asdict().items()
        if value != getattr(expected, field)
    )


def _decision_data(script: _Script, faulty: _Side, right: _Side) -> dict[str, Any] | None:
    """The decision asked at the end, both answers, and what of its relation the faulty one breaks."""
    decision = script.decision
    if decision is None:
        return None
    run, other = faulty.walk.runs[-1], _run_at(right, len(faulty.walk.runs) - 1)
    answer = ask(script.faulty, run, script.rules, decision)
    relation = RELATIONS[decision.name](run.state, script.rules, decision.inputs, answer)
    inputs = ", ".join(
        f"{key}={tuple(value) if isinstance(value, Metrics) else value}"
        for key, value in decision.inputs._asdict().items()
    )
    return {
        "call": f"{decision.name}({inputs})",
        "faulty": _short(answer),
        "right": _short(ask(right_code(), other, script.rules, decision)) if other else None,
        "broken": [key for key, holds in relation.items() if not holds],
    }
