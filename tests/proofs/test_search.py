"""The trace search finds shortest traces, no unreal ones, and none where there is nothing to find."""

from __future__ import annotations

import pytest

from draftproof.proofs import search
from draftproof.proofs.faults import find
from draftproof.proofs.faults.checking import find_trace, limits_of, size_of
from draftproof.proofs.faults.patching import Code, patched, right_code
from draftproof.proofs.faults.predicates import of_step
from draftproof.proofs.faults.trace import committed
from draftproof.proofs.search import Limits, Unanswered, shortest
from draftproof.spec.events import event_name
from draftproof.spec.ledger import Rules
from draftproof.spec.queue import Run, advance, start
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
