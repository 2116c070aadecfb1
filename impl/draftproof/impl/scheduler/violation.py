"""What is left when a check fails? A trace: one request's last events, to be replayed through the accounting.

A trace is NDJSON, one record a line: `config`; `request` with the counters and ghosts that it had before the
events; `event`, oldest first, with the step in which it came; and `violation`. Where a transition is at fault
its event is the last one, and `replay` shows the same violation. Where something else is (a block with two
owners, a row in two queues) the replay tells whether the counters are those that the events lead to.
"""

from __future__ import annotations

import dataclasses
import importlib.metadata
import json
import os
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from draftproof.impl import accounting
from draftproof.impl.contracts import ObservedLedger, checked, format_changes, plain
from draftproof.impl.journal import Entry, Journal
from draftproof.impl.scheduler.config import SchedulerConfig
from draftproof.spec.events import EVENTS, Event, event_name
from draftproof.spec.ghosts import Ghosts, State
from draftproof.spec.ledger import Ledger, Rules

SCHEMA = 1


class Violation(NamedTuple):
    """What failed, and in which call."""

    call: str
    step: int
    request_id: str
    row: int
    checks: tuple[str, ...]
    """The names of the checks, effects, invariants and theorems that do not hold."""
    sentence: str
    state: State | None
    """What the ledger table holds of the request now; None where no request is concerned."""
    block_ids: list[list[int]]
    """Of each group, the blocks that it holds now."""


class Replayed(NamedTuple):
    """What came of a trace's events."""

    num_events: int
    sentence: str
    """The violation; empty if the accounting is right with these events."""
    state: State
    """The counters and ghosts after the last event that was in order."""


def trace_path(request_id: str, step: int) -> Path:
    """Where a trace is written to: in `DRAFTPROOF_TRACE_DIR`, else the current folder, over no other."""
    name = re.sub(r"[^A-Za-z0-9._-]", "_", request_id)[:80] or "scheduler"
    folder = Path(os.environ.get("DRAFTPROOF_TRACE_DIR") or ".")
    path = folder / f"draftproof-violation-{name}-{step}.ndjson"
    number = 1
    while path.exists():
        number += 1
        path = folder / f"draftproof-violation-{name}-{step}-{number}.ndjson"
    return path


def write_trace(
    config: SchedulerConfig,
    rules: Rules,
    violation: Violation,
    journal: Journal | None,
    failed: tuple[Event, ...],
) -> Path:
    """Write the trace of a violation; of the events `failed` the last broke something. Raises OSError."""
    path = trace_path(violation.request_id, violation.step)
    path.parent.mkdir(parents=True, exist_ok=True)
    settings = dataclasses.asdict(config) | {
        "hash_seed": None
    }  # whoever knows the seed can make prompts collide
    version = importlib.metadata.version("draftproof")
    records: list[dict[str, Any]] = [
        {"kind": "config", "schema": SCHEMA, "version": version, "config": settings, "rules": rules._asdict()}
    ]
    if journal is not None:
        records.append(
            {"kind": "request", "request": violation.request_id, "row": violation.row}
            | _counters(journal.start)
        )
        entries = [*journal.entries, *[Entry(violation.step, event) for event in failed]]
        records += [
            {"kind": "event", "step": step, "event": event_name(event), "arguments": event._asdict()}
            for step, event in entries
        ]
    records.append(
        {
            "kind": "violation",
            "call": violation.call,
            "step": violation.step,
            "request": violation.request_id,
            "checks": list(violation.checks),
            "sentence": violation.sentence,
            "num_failed_events": len(failed),
            "block_ids": violation.block_ids,
        }
        | ({} if violation.state is None else _counters(violation.state))
    )
    path.write_text("".join(json.dumps(record) + "\n" for record in records), encoding="utf-8")
    return path


def replay(
    path: Path | str, transitions: Mapping[str, Callable[..., Ledger]] = accounting.TRANSITIONS
) -> Replayed:
    """Run a trace's events through the accounting, or through these transitions, with all contracts on.

    Raises ValueError for a file that is no trace, or has no events because no request was concerned.
    """
    records = [json.loads(line) for line in Path(path).read_text(encoding="utf-8").splitlines()]
    by_kind: dict[str, list[Any]] = {}
    for record in records:
        by_kind.setdefault(record.get("kind", ""), []).append(record)
    if "config" not in by_kind or by_kind["config"][0].get("schema") != SCHEMA:
        raise ValueError(f"{path} is no trace of schema {SCHEMA}")
    if "request" not in by_kind:
        raise ValueError(f"{path} concerns no request: there are no events to replay")
    rules, start = Rules(**by_kind["config"][0]["rules"]), _state(by_kind["request"][0])
    functions = {name: checked(plain(function)) for name, function in transitions.items()}
    ledger: Ledger = ObservedLedger.of(start.ledger, start.ghosts)
    state = start
    events = by_kind.get("event", [])
    for index, record in enumerate(events):
        name = record["event"]
        try:
            ledger = functions[name](ledger, rules, *EVENTS[name](**record["arguments"]))
        except AssertionError as violation:
            return Replayed(index, str(violation), state)
        assert isinstance(ledger, ObservedLedger)
        state = State(Ledger(*ledger), ledger.ghosts)
    found = by_kind["violation"][0]
    if found["num_failed_events"] == 0 and "ledger" in found and _state(found) != state:
        sentence = f"the table differs from what the events lead to: {format_changes(state, _state(found))}"
        return Replayed(len(events), sentence, state)
    return Replayed(len(events), "", state)


def _counters(state: State) -> dict[str, Any]:
    return {"ledger": state.ledger._asdict(), "ghosts": state.ghosts._asdict()}


def _state(record: Any) -> State:
    return State(Ledger(**record["ledger"]), Ghosts(**record["ghosts"]))
