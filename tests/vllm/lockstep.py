"""Do both schedulers do the same, call by call? And if not, where, and because of what?"""

from __future__ import annotations

import functools
import itertools
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from tests.vllm.differences import DIFFERENCES, Difference, like_vllm
from tests.vllm.ours import Ours
from tests.vllm.record import Event, Scheduled, Settled
from tests.vllm.side import events
from tests.vllm.theirs import Theirs
from tests.vllm.truth import Truth
from tests.vllm.workloads import Workload


class Split(NamedTuple):
    """The first call after which both sides differ."""

    place: int
    theirs: Event | None
    ours: Event | None


@functools.lru_cache(maxsize=8)
def their_run(workload: Workload) -> tuple[Event, ...]:
    """vLLM's run of a workload, record by record."""
    return tuple(events(Theirs(workload)))


def first_split(
    workload: Workload, removed: Sequence[Difference], *, compiled: bool, last: int | None = None
) -> Split | None:
    """Run our scheduler beside vLLM's run, with some differences removed from ours, to its end or to the call
    `last`; None if they do not differ."""
    theirs = their_run(workload)
    with like_vllm(removed):
        ours = events(Ours(workload, compiled=compiled))
        for place, (first, second) in enumerate(itertools.zip_longest(theirs, ours)):
            if first != second:
                return Split(place, first, second)
            if place == last:
                return None
    return None


def cause(workload: Workload, split: Split) -> tuple[str, ...]:
    """The fewest differences whose removal lets both sides agree up to the split and in it."""
    for difference in DIFFERENCES:
        if agrees(workload, split.place, [difference]):
            return (difference.name,)
    needed = list(DIFFERENCES)
    for difference in DIFFERENCES:
        fewer = [one for one in needed if one is not difference]
        if agrees(workload, split.place, fewer):
            needed = fewer
    return tuple(difference.name for difference in needed)


def agrees(workload: Workload, place: int, removed: Iterable[Difference]) -> bool:
    """Whether the sides agree up to the given call and in it, with these differences removed."""
    return first_split(workload, list(removed), compiled=False, last=place) is None


class Hits(NamedTuple):
    """An admitted request for which one side found more than the other."""

    ours_found_more: bool
    backed: bool
    """Whether the longer hit is KV that was computed, or will be by a step that is enqueued."""
    settled_at: frozenset[str]
    """The exits at which it was settled."""


def hits(workload: Workload, split: Split) -> Hits | None:
    """What the records tell about a split in which hits differ; None if it is of another kind."""
    if not isinstance(split.theirs, Scheduled) or not isinstance(split.ours, Scheduled):
        return None
    pairs = zip(split.theirs.rows, split.ours.rows, strict=False)
    theirs, ours = next((pair for pair in pairs if pair[0] != pair[1]), (None, None))
    if (
        theirs is None
        or ours is None
        or theirs.number != ours.number
        or not (theirs.admitted and ours.admitted)
    ):
        return None
    if theirs.num_computed_tokens == ours.num_computed_tokens:
        return None
    truth = Truth(workload)
    truth.see(their_run(workload)[: split.place])
    longer = max(theirs.num_computed_tokens, ours.num_computed_tokens)
    found = truth.text(ours.number)[:longer]
    return Hits(ours.num_computed_tokens == longer, truth.is_backed(found), truth.exits_of(found))


HAPPENINGS = (
    "steps", "preemptions", "late outputs delivered", "aborts", "hits", "prefill chunks",
    "padded starts", "drafts verified", "stops by a token", "stops by length",
)  # fmt: skip


def what_happens(workload: Workload) -> Counter[str]:
    """How often the things that schedulers get wrong happen in a run."""
    counts: Counter[str] = Counter()
    for event in their_run(workload):
        if isinstance(event, Scheduled):
            counts["steps"] += len(event.rows) > 0
            counts["preemptions"] += len(event.preempted)
            for row in event.rows:
                counts["hits"] += row.admitted and row.num_computed_tokens > 0
                counts["prefill chunks"] += not row.samples
                counts["padded starts"] += row.admitted and len(row.draft_token_ids) > 0
                counts["drafts verified"] += 0 if row.admitted else len(row.draft_token_ids)
        elif isinstance(event, Settled):
            counts["stops by a token"] += sum(one.finish_reason == "stop" for one in event.outputs)
            counts["stops by length"] += sum(one.finish_reason == "length" for one in event.outputs)
        else:
            counts["aborts"] += 1
    truth = Truth(workload)
    truth.see(their_run(workload))
    counts["late outputs delivered"] = truth.num_stale_outputs
    return counts
