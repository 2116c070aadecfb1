"""A trace: the events that lead from a new request to the damage. Kept as data, one file a fault."""

from __future__ import annotations

import importlib.resources
import json
from typing import Any, NamedTuple

from draftproof.proofs.faults.fault import Decision
from draftproof.spec.decision_inputs import DECISIONS, Metrics
from draftproof.spec.events import EVENTS, Event, event_name
from draftproof.spec.ledger import Rules


class Trace(NamedTuple):
    """Under these rules a request with this prompt meets these events; then a decision may be asked."""

    rules: Rules
    num_prompt_tokens: int
    events: tuple[Event, ...]
    decision: Decision | None
    violated: str
    """The statement that is false at the end, on the faulty code."""


def to_data(fault: str, trace: Trace) -> dict[str, Any]:
    """The trace as plain data."""
    return {
        "fault": fault,
        "violated": trace.violated,
        "rules": trace.rules._asdict(),
        "num_prompt_tokens": trace.num_prompt_tokens,
        "events": [[event_name(event), event._asdict()] for event in trace.events],
        "decision": None if trace.decision is None else decision_data(trace.decision),
    }


def decision_data(decision: Decision) -> dict[str, Any]:
    """A decision's name and inputs as plain data."""
    inputs = {
        key: value._asdict() if isinstance(value, Metrics) else value
        for key, value in decision.inputs._asdict().items()
    }
    return {"name": decision.name, "inputs": inputs}


def from_data(data: dict[str, Any]) -> Trace:
    """The trace that plain data describes."""
    events: list[Any] = [EVENTS[name](**arguments) for name, arguments in data["events"]]
    decision = data["decision"]
    if decision is not None:
        inputs = dict(decision["inputs"])
        if "metrics" in inputs:
            inputs["metrics"] = Metrics(**inputs["metrics"])
        decision = Decision(decision["name"], DECISIONS[decision["name"]](**inputs))
    return Trace(Rules(**data["rules"]), data["num_prompt_tokens"], tuple(events), decision, data["violated"])


def committed(fault: str) -> Trace:
    """The committed trace of a fault. Raises FileNotFoundError if there is none."""
    folder = importlib.resources.files("draftproof.proofs.faults").joinpath("traces")
    return from_data(json.loads(folder.joinpath(f"{fault}.json").read_text(encoding="utf-8")))


def to_text(fault: str, trace: Trace) -> str:
    """The trace as the text of its file: one event a line."""
    data = to_data(fault, trace)
    events = ",\n    ".join(json.dumps(event) for event in data.pop("events"))
    head = json.dumps(data, indent=2)
    listed = f"[\n    {events}\n  ]" if events else "[]"
    return f'{head[:-2]},\n  "events": {listed}\n}}\n'
