"""A shrunk trace cannot be made smaller by any one step of the shrinking, and still shows the same."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import msgspec
import pytest
from tests.impl.traces.trace_world import RIGHT, checked, header_for, lived, rules_for, write

from draftproof.impl.traces import shrinking
from draftproof.impl.traces.format import Exit
from draftproof.impl.traces.recorder import TraceWriter
from draftproof.impl.traces.replaying import records_of_request, replayed, rules_of
from draftproof.impl.traces.shrinking import _arguments, _Shrinker
from draftproof.impl.traces.sources import Source
from draftproof.proofs.faults import registry
from draftproof.proofs.faults.patching import patched

FAULTS = (
    "trim-uncounted",
    "fold-cuts-at-computed",
    "idle-session-starts-by-itself",
    "stale-output-releases-placeholders",
    "preempted-keeps-drafts",
    "blocks-counted-as-tokens",
)


def trims(record: Any) -> bool:
    """Whether it is an output of which a stop cut accepted tokens off."""
    return hasattr(record, "num_accepted") and record.num_accepted >= record.num_kept


def uncounted(record: Any, divergence: Any) -> bool:
    """Whether C is too far by exactly what was cut off."""
    expected, found = divergence.counters["num_computed_tokens"]
    return bool(found - expected == record.num_accepted + 1 - record.num_kept > 0)


def smaller_by_one(records: Any, search: Any) -> list[Any]:
    """What is left of the trace with one record or one number less, where that shows the same."""
    found = []
    for place in range(1, len(records) - 1):
        found.append(search.tried([*records[:place], *records[place + 1 :]]))
    for place, record in enumerate(records):
        for name in _arguments(record):
            value = getattr(record, name)
            for less in range(1 if name == "num_prompt_tokens" else 0, value):
                changed = msgspec.structs.replace(record, **{name: less})
                found.append(search.tried([*records[:place], changed, *records[place + 1 :]]))
    return [one for one in found if one is not None]


@pytest.mark.parametrize("asynchronous", [False, True])
@pytest.mark.parametrize("name", FAULTS)
def test_nothing_can_be_left_out(tmp_path: Path, name: str, asynchronous: bool) -> None:
    rng, rules = random.Random(5), rules_for(asynchronous)
    engine = RIGHT | patched(registry.find(name).changes).transitions
    path = write(tmp_path / "a.ndjson", rules, [lived(rng, rules, engine, 60) for _ in range(30)])
    divergences = checked(path).divergences[:2]
    if not divergences:
        pytest.skip("this fault does nothing here")
    for place, found in enumerate(divergences):
        header, whole, _ = records_of_request(Source((str(path),), 0), found.request)
        smallest = shrinking.shrink(whole, header)
        *_, last = replayed(smallest, rules_of(header))
        assert last.divergence is not None and len(smallest) <= 10
        assert set(last.divergence.theorems) == set(found.theorems)
        *_, first = replayed(whole, rules_of(header))
        assert trims(last.record) == trims(first.record)
        assert first.divergence is not None
        if name == "trim-uncounted":
            assert uncounted(first.record, first.divergence) and uncounted(last.record, last.divergence)
        assert not smaller_by_one(smallest, _Shrinker(smallest, rules_of(header)))
        out = tmp_path / f"small{place}.ndjson"
        shrinking.write(smallest, header, out)
        (again,) = checked(out).divergences
        assert set(again.theorems) == set(found.theorems) and again.counters.keys() == found.counters.keys()
        for counter, (expected, told) in found.counters.items():
            less, value = again.counters[counter]
            if isinstance(told, int) and isinstance(expected, int):  # on the same side, and not farther
                assert isinstance(value, int) and isinstance(less, int)
                assert 0 < (value - less) / (told - expected) <= 1


def test_a_look_up_stays_as_short_as_it_was(tmp_path: Path) -> None:
    """T13 alone: what was registered is not found again. A longer prompt is not needed to show it."""
    with TraceWriter(tmp_path / "a.ndjson", header_for(rules_for(False)), in_background=False) as trace:
        number = trace.request("a", 9, step=0)
        trace.emit("admit", number, step=0, num_hit_tokens=0)
        trace.emit("schedule", number, step=0, num_new_tokens=9)
        trace.emit(
            "output", number, step=0, num_returned=9, num_drafts=0, num_accepted=0, num_kept=1, stopped=1
        )
        trace.emit("finish", number, step=0)
        trace.exit(number, step=0, num_registered_tokens=8, look_up=6)
    source = Source((str(tmp_path / "a.ndjson"),), 0)
    header, whole, _ = records_of_request(source, "a")
    smallest = shrinking.shrink(whole, header)
    *_, last = replayed(smallest, rules_of(header))
    assert last.divergence is not None and last.divergence.theorems == ("T13",)
    end = smallest[-1]
    assert isinstance(end, Exit) and (end.num_registered_tokens, end.look_up) == (2, 0)
    assert len(smallest) <= 6 and getattr(smallest[0], "num_prompt_tokens", 0) <= 3


def test_what_a_stop_cut_off_and_what_is_uncounted_get_smaller_together(tmp_path: Path) -> None:
    """Or the small trace would show an engine that forgets some of what it cut off: another fault."""
    rules = rules_for(False)._replace(num_speculative_tokens=3)
    with TraceWriter(tmp_path / "a.ndjson", header_for(rules), in_background=False) as trace:
        number = trace.request("a", 9, step=0)
        trace.emit("admit", number, step=0, num_hit_tokens=0)
        trace.emit("schedule", number, step=0, num_new_tokens=9)
        trace.emit(
            "output", number, step=0, num_returned=9, num_drafts=0, num_accepted=0, num_kept=1, stopped=0
        )
        trace.emit("draft", number, step=1, num_drafts=3)
        trace.emit("schedule", number, step=1, num_new_tokens=4)
        trace.emit(
            "output",
            number,
            step=1,
            num_returned=4,
            num_drafts=3,
            num_accepted=3,
            num_kept=1,
            stopped=1,
            after={"num_computed_tokens": 13},  # of those that are kept 10 are computed
        )
    header, whole, _ = records_of_request(Source((str(tmp_path / "a.ndjson"),), 0), "a")
    smallest = shrinking.shrink(whole, header)
    *_, last = replayed(smallest, rules_of(header))
    assert last.divergence is not None and set(last.divergence.theorems) == {"T1", "T2"}
    assert uncounted(last.record, last.divergence)
    record: Any = last.record
    assert (record.num_accepted, record.num_kept) == (2, 1)
