"""The trace search finds shortest traces, no unreal ones, and none where there is nothing to find."""

from __future__ import annotations

import random
from collections import Counter

import pytest
import z3

from draftproof.proofs import search
from draftproof.proofs.carrier_z3 import as_terms
from draftproof.proofs.faults import find
from draftproof.proofs.faults.checking import find_trace, limits_of, size_of
from draftproof.proofs.faults.patching import Code, patched, right_code
from draftproof.proofs.faults.predicates import of_step
from draftproof.proofs.faults.replay import walk
from draftproof.proofs.faults.trace import committed
from draftproof.proofs.search import NAMES, Limits, Unanswered, Unrolling, agrees_with_head, shortest
from draftproof.spec.events import ChunkOutput, Event, Output, StaleOutput, event_name
from draftproof.spec.ghosts import State
from draftproof.spec.ledger import Rules
from draftproof.spec.queue import Run, advance, head_agrees, start
from draftproof.spec.walks import Sizes, choices

QUICK = (
    "trim-uncounted",
    "finish-forgets-trimmed",
    "stale-rejection-rolls-back",
    "awaited-drafts-count-as-accepted",
)


@pytest.mark.parametrize("name", QUICK)
def test_a_trace_found_anew_is_as_short_as_the_committed_one_and_real(name: str) -> None:
    found = find_trace(find(name))
    assert found.replayed
    assert found.as_short


def shortest_by_enumeration(
    code: Code, path: str, rules: Rules, num_prompt_tokens: int, most_events: int
) -> int | None:
    """Every run of up to `most_events` events, breadth first: the length of the first to break `path`."""
    sizes = Sizes(max_num_tokens=8, max_num_chunk_tokens=1, max_num_steps_in_flight=3)
    name = path.partition("/")[0]
    runs = {start(num_prompt_tokens)}
    for length in range(1, most_events + 1):
        following: set[Run] = set()
        for run in runs:
            for event in choices(run, rules, sizes):
                after = advance(run, rules, event, code.transitions)
                if event_name(event) == name and not of_step(path, run.state, rules, event, after.state):
                    return length
                following.add(after)
        runs = following
    return None


@pytest.mark.parametrize(
    ("name", "drafts", "asynchronous"),
    [
        ("trim-uncounted", 2, False),
        ("finish-forgets-trimmed", 1, False),
        ("finish-registers-in-flight", 1, True),
        ("fold-cuts-at-computed", 0, True),
    ],
)
def test_no_shorter_trace_exists_by_plain_enumeration(name: str, drafts: int, asynchronous: bool) -> None:
    fault = find(name)
    length = shortest_by_enumeration(
        patched(fault.changes), fault.trace_breaks, Rules(drafts, 2, asynchronous, 0), 1, 7
    )
    assert length == len(committed(name).events)


@pytest.mark.parametrize(
    "path",
    ["fold/theorem/T1/computed_is_known_at_fold", "fold/theorem/T7/fold_keeps_all_but_one"],
)
def test_there_is_nothing_to_find_in_the_right_code(path: str) -> None:
    assert shortest(right_code(), path, Limits(depth=6)) is None


@pytest.mark.parametrize(
    "path", ["fold/theorem/T1/computed_is_known_at_fold", "fold/theorem/T3/kept_is_settled"]
)
def test_trim_uncounted_on_neither_side_is_harmless_to_an_asynchronous_fold(path: str) -> None:
    """C and P keep the same tokens, and the fold takes C - P: only the counter itself is wrong."""
    leaked = find("trim-placeholders-leaked")
    assert shortest(patched(leaked.changes), path, Limits(depth=7, asynchronous=True)) is None
    # The search does reach such a fold, and synchronously the same change is the trim fault.
    in_flight = find("turn-end-counts-in-flight")
    assert shortest(patched(in_flight.changes), path, Limits(depth=7, asynchronous=True)) is not None
    assert shortest(patched(leaked.changes), path, Limits(depth=6, asynchronous=False)) is not None


def test_a_trace_passes_the_event_it_must_pass() -> None:
    """Without the limit the shortest trace is one of a prompt in flight; the way over an output is longer."""
    fault = find("scheduled-before-its-token")
    limits = limits_of(fault)
    assert limits.passes == "output"
    free = shortest(patched(fault.changes), fault.trace_breaks, limits._replace(passes=""))
    bound = shortest(patched(fault.changes), fault.trace_breaks, limits)
    assert free is not None and bound is not None
    assert "output" not in map(event_name, free.events)
    assert "output" in map(event_name, bound.events[:-1])
    assert len(free.events) < len(bound.events)


def test_the_searchs_queue_is_the_exact_queue() -> None:
    """Over random runs, and with every event tried against every head: they agree on what may return."""
    chance = random.Random(0)
    agreed = Counter[bool]()
    for rules in (Rules(2, 2, False, 0), Rules(2, 2, True, 0)):
        run = start(2)
        for _ in range(60):
            for name, event in _returning_events(run):
                state = State(as_terms(run.state.ledger), as_terms(run.state.ghosts))
                facts = agrees_with_head(name, state, as_terms(run.queue[0]), as_terms(event))
                holds = z3.is_true(z3.simplify(z3.And(*facts)))
                assert holds == head_agrees(run, event)
                agreed[holds] += 1
            sizes = Sizes(max_num_tokens=4, max_num_chunk_tokens=2, max_num_steps_in_flight=3)
            possible = [*choices(run, rules, sizes)]
            if not possible:
                run = start(2)
                continue
            run = advance(run, rules, chance.choice(possible), right_code().transitions)
    assert agreed[True] > 20 and agreed[False] > 20


def _returning_events(run: Run) -> list[tuple[str, Event]]:
    """Events that return the head, or a step that is not quite it."""
    if not run.queue:
        return []
    head = run.queue[0]
    events: list[Event] = []
    for num_returned in (head.num_tokens, head.num_tokens + 1):
        events.append(ChunkOutput(num_returned))
        events += [Output(num_returned, drafts, 0, 1, 0) for drafts in range(head.num_drafts + 2)]
        events += [StaleOutput(num_returned, kept, 0) for kept in range(head.num_drafts + 3)]
    return [(event_name(event), event) for event in events]


def test_a_dispatched_step_enters_the_searchs_queue_as_the_exact_queue_has_it() -> None:
    """A trace that needs three kinds of step in flight is walked by both, and ends with the same queue."""
    fault = find("final-chunk-reserves-nothing")
    trace = committed(fault.name)
    unrolling = Unrolling(patched(fault.changes), limits_of(fault))
    for event in trace.events:
        unrolling.deepen()
        level = unrolling.levels[-1]
        unrolling.solver.add(level.chosen == NAMES.index(event_name(event)))
        integers = [value for value in event if type(value) is int]
        for term, value in zip(level.integers, integers, strict=False):
            unrolling.solver.add(term == value)
        drops = [value for value in event if isinstance(value, bool)]
        unrolling.solver.add(level.drop == bool(drops and drops[0]))
    unrolling.solver.add(unrolling.num_prompt_tokens == trace.num_prompt_tokens)
    unrolling.solver.add(unrolling.rules.num_speculative_tokens == trace.rules.num_speculative_tokens)
    assert str(unrolling.solver.check()) == "sat"
    model = unrolling.solver.model()
    queue = unrolling.queues[-1]
    head, tail = (model.eval(end).as_long() for end in (queue.head, queue.tail))
    walked = walk(patched(fault.changes), trace.rules, trace.num_prompt_tokens, trace.events).runs[-1].queue
    assert [
        (
            model.eval(queue.num_tokens[serial]).as_long(),
            model.eval(queue.num_drafts[serial]).as_long(),
            z3.is_true(model.eval(queue.samples[serial])),
        )
        for serial in range(head, tail)
    ] == [(step.num_tokens, step.num_drafts, step.samples) for step in walked]


def test_giving_up_is_not_finding_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(search, "SEARCH_RESOURCES", 1)
    fault = find("trim-uncounted")
    with pytest.raises(Unanswered):
        shortest(patched(fault.changes), fault.trace_breaks, limits_of(fault))


def test_progress_names_every_depth() -> None:
    fault = find("reset-discards-when-drained")
    said: list[str] = []
    find_trace(fault, said.append)
    assert [line.rpartition(": ")[2] for line in said] == ["none of 1 events", "a trace of 2 events"]


def test_size_counts_events_before_numbers() -> None:
    longer, shorter = committed("trim-uncounted"), committed("reset-discards-when-drained")
    assert size_of(shorter) < size_of(longer)
    assert size_of(shorter)[0] == len(shorter.events)
