"""Engines to record: random walks of requests through the exact queue, counters by right or wrong code."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from draftproof.impl.accounting import TRANSITIONS
from draftproof.impl.contracts import plain
from draftproof.impl.traces.checking import Report, check_source
from draftproof.impl.traces.format import COUNTERS
from draftproof.impl.traces.recorder import TraceWriter, header
from draftproof.impl.traces.sources import Source
from draftproof.spec.events import Event, event_name
from draftproof.spec.ledger import STATUS_NAMES, Ledger, Rules, initial
from draftproof.spec.queue import Run, advance, start
from draftproof.spec.walks import Sizes, choices, pick

Transitions = Mapping[str, Callable[..., Any]]
RIGHT: dict[str, Callable[..., Any]] = {name: plain(function) for name, function in TRANSITIONS.items()}
SIZES = Sizes(max_num_tokens=24, max_num_chunk_tokens=3, max_num_steps_in_flight=3)


class Moment(NamedTuple):
    """An event of a request, and the engine's ledger after it."""

    event: Event
    ledger: Ledger


def rules_for(asynchronous: bool, fence: int = 0) -> Rules:
    """Small numbers, so that every boundary is near."""
    return Rules(num_speculative_tokens=2, block_size=2, asynchronous=asynchronous, registration_fence=fence)


def lived(
    rng: random.Random, rules: Rules, engine: Transitions = RIGHT, num_events: int = 40
) -> list[Moment]:
    """One request's events, right ones, and the ledger an engine with this code has after each."""
    run: Run = start(rng.randrange(1, 7))
    ledger = initial(run.state.ledger.num_prompt_tokens)
    moments = [Moment(event=None, ledger=ledger)]  # type: ignore[arg-type]
    for _ in range(num_events):
        options = choices(run, rules, SIZES)
        if not options:
            break
        event = pick(options, rng.randrange(2**40), lambda option: option)
        ledger = Ledger(*engine[event_name(event)](ledger, rules, *event))
        run = advance(run, rules, event, RIGHT)
        moments.append(Moment(event, ledger))
    return moments


def told(num_prompt_tokens: int, events: Sequence[Event], rules: Rules, engine: Transitions) -> list[Moment]:
    """These events, and the ledger an engine with this code has after each."""
    ledger = initial(num_prompt_tokens)
    moments = [Moment(event=None, ledger=ledger)]  # type: ignore[arg-type]
    for event in events:
        ledger = Ledger(*engine[event_name(event)](ledger, rules, *event))
        moments.append(Moment(event, ledger))
    return moments


def header_for(rules: Rules, **more: Any) -> Any:
    """A header with these rules."""
    return header(engine="walk", engine_version="1", **rules._asdict(), **more)


def write(
    path: Path,
    rules: Rules,
    requests: list[list[Moment]],
    *,
    tells: tuple[str, ...] = COUNTERS,
    exits: bool = True,
    change: Callable[[int, int, dict[str, Any]], None] = lambda request, place, told: None,
    **options: Any,
) -> Path:
    """Record the requests, their events in turn. `change` may change what is told after an event."""
    options = {"in_background": False} | options
    with TraceWriter(path, header_for(rules), **options) as trace:
        numbers = [
            trace.request(f"request {place}", moments[0].ledger.num_prompt_tokens, step=0)
            for place, moments in enumerate(requests)
        ]
        for step in range(1, max(map(len, requests))):
            for request, moments in zip(numbers, requests, strict=True):
                if step < len(moments):
                    _record(trace, request, step, moments[step], tells, exits, change)
    return path


def _record(
    trace: TraceWriter,
    request: int,
    step: int,
    moment: Moment,
    tells: tuple[str, ...],
    exits: bool,
    change: Callable[[int, int, dict[str, Any]], None],
) -> None:
    event, ledger = moment
    name = event_name(event)
    told: dict[str, Any] = {counter: int(getattr(ledger, counter)) for counter in tells}
    change(request, step, told)
    if "status" in told and isinstance(told["status"], int):
        told["status"] = STATUS_NAMES[told["status"]]
    arguments: Any = {key: int(value) for key, value in event._asdict().items()}
    trace.emit(name, request, step=step, after=told, **arguments)
    if exits and name in ("preempt", "finish", "abort", "end_turn"):
        registered = (
            ledger.num_registered_at_preemption if name == "preempt" else ledger.num_registered_tokens
        )
        trace.exit(request, step=step, num_registered_tokens=registered)


def recorded(path: Path, asynchronous: bool, seed: int = 0, count: int = 8, **options: Any) -> Path:
    """A recording of a right engine."""
    rng, rules = random.Random(seed), rules_for(asynchronous)
    return write(path, rules, [lived(rng, rules) for _ in range(count)], **options)


def checked(path: Path, num_threads: int = 1) -> Report:
    """The report on one file."""
    return check_source(Source((str(path),), 0), num_threads=num_threads)
