"""Our scheduler and vLLM 0.32's do the same on the same workloads, but for differences that have a name."""

from __future__ import annotations

import itertools
from collections import Counter

import pytest
from tests.vllm import by_hand
from tests.vllm.differences import DIFFERENCES, FAULT
from tests.vllm.lockstep import HAPPENINGS, Hits, Split, cause, first_split, hits, what_happens
from tests.vllm.ours import Ours
from tests.vllm.side import events
from tests.vllm.workloads import Settings, Workload, text, workload

AMPLE = 600
"""Blocks with which nothing is evicted."""
ABORT_PERCENT = (0, 20, 0, 50, 20)
"""By seed."""
CASES = list(itertools.product((False, True), (0, 3), (AMPLE, 60, 24), (False, True), (0, 40)))
"""Mode, K, pool (ample to tight), policy and chunk threshold: 48 settings of five workloads each."""


def name_of(case: tuple[bool, int, int, bool, int]) -> str:
    """A case in words."""
    asynchronous, num_drafts, num_blocks, by_priority, threshold = case
    return (
        f"{'asynchronous' if asynchronous else 'synchronous'}, K={num_drafts}, {num_blocks} blocks, "
        f"{'priority' if by_priority else 'fcfs'}, threshold {threshold}"
    )


EXITS = {
    "finish-registers-nothing": "finish",
    "preemption-loses-settled": "preemption",
    "abort-loses-settled": "abort",
}
"""The exit at which a fault of vLLM loses what was settled."""
UNCOMPUTED = "victim-published-uncomputed"


@pytest.fixture(scope="module", params=CASES, ids=name_of)
def workloads(request: pytest.FixtureRequest) -> list[Workload]:
    """The workloads of one case. As a fixture, so that both tests of a case share vLLM's runs."""
    asynchronous, num_drafts, num_blocks, by_priority, threshold = request.param
    settings = Settings(
        num_blocks=num_blocks,
        max_num_seqs=12,
        max_num_batched_tokens=256,
        max_model_len=1_024,
        num_speculative_tokens=num_drafts,
        asynchronous=asynchronous,
        long_prefill_token_threshold=threshold,
        by_priority=by_priority,
    )
    return [workload(seed, settings, abort_percent=percent) for seed, percent in enumerate(ABORT_PERCENT)]


def test_both_do_the_same_once_the_named_differences_are_removed(
    workloads: list[Workload], seen: Counter[str]
) -> None:
    for one in workloads:
        split = first_split(one, DIFFERENCES, compiled=False)
        assert split is None, f"seed {one.seed}: {split}"
        seen.update(what_happens(one))


def test_the_scheduler_as_it_is_differs_first_where_a_named_difference_says_so(
    workloads: list[Workload], first_differences: Counter[str]
) -> None:
    for one in workloads:
        split = first_split(one, (), compiled=True)
        if split is None:
            first_differences["none, identical to the end"] += 1
            continue
        first_differences[" and ".join(cause(one, split))] += 1
        differing = hits(one, split)
        assert differing is None or not differing.ours_found_more or differing.backed, (
            f"seed {one.seed}: {split}"
        )


def test_every_request_gets_the_text_that_the_device_has_for_it(workloads: list[Workload]) -> None:
    """Whatever was preempted, aborted or found in the cache: to the end of the run, which the other tests do
    not look at behind the first difference."""
    for one in workloads:
        ours = Ours(one, compiled=True)
        for _ in events(ours):
            pass
        aborted = {abort.number for abort in one.aborts}
        for arrival in one.arrivals:
            got = tuple(ours.token_ids[arrival.number])
            expected = text(arrival, one.device, one.settings.max_model_len)
            assert got == (expected[: len(got)] if arrival.number in aborted else expected)


def test_a_single_difference_shows_as_what_it_is_called(
    workloads: list[Workload], single_differences: Counter[str]
) -> None:
    """Ours never finds KV that does not exist. Where nothing is evicted, what it finds beyond vLLM was
    settled at the exit that the fault is named for; and vLLM finds more only where nobody has computed it."""
    for one, difference in itertools.product(workloads, DIFFERENCES):
        others = [other for other in DIFFERENCES if other is not difference]
        split = first_split(one, others, compiled=False)
        if split is None:
            continue
        single_differences[difference.name] += 1
        differing = hits(one, split)
        if differing is None:
            continue
        if differing.ours_found_more:
            assert differing.backed, f"seed {one.seed}, {difference.name}: {split}"
        if one.settings.num_blocks == AMPLE and difference.whose == FAULT:
            expected = EXITS.get(difference.name)
            assert differing.ours_found_more == (expected is not None), f"seed {one.seed}: {split}"
            assert expected is None or expected in differing.settled_at, f"seed {one.seed}: {split}"
        if difference.name == UNCOMPUTED and not differing.ours_found_more:
            assert not differing.backed, f"seed {one.seed}: {split}"


BY_HAND = {
    "finish-registers-nothing": (by_hand.when_it_finishes(), Hits(True, True, frozenset({"finish"}))),
    "preemption-loses-settled": (by_hand.when_it_is_preempted(), Hits(True, True, frozenset({"preemption"}))),
    "abort-loses-settled": (by_hand.when_it_is_aborted(), Hits(True, True, frozenset({"abort"}))),
    UNCOMPUTED: (
        by_hand.when_it_stood_in_the_step(),
        Hits(ours_found_more=False, backed=False, settled_at=frozenset()),
    ),
}
"""For each fault of vLLM the workload that shows nothing else, and who found what."""


@pytest.mark.parametrize("name", BY_HAND)
def test_a_fault_shows_in_the_workload_made_for_it(name: str, single_differences: Counter[str]) -> None:
    one, expected = BY_HAND[name]
    assert first_split(one, DIFFERENCES, compiled=False) is None
    assert cause(one, present(first_split(one, (), compiled=True))) == (name,)
    others = [other for other in DIFFERENCES if other.name != name]
    assert hits(one, present(first_split(one, others, compiled=False))) == expected
    single_differences[name] += 1


def present(split: Split | None) -> Split:
    """A split that must be there."""
    assert split is not None
    return split


def test_each_difference_showed_and_the_workloads_are_rich(
    seen: Counter[str], single_differences: Counter[str]
) -> None:
    """Runs last. A comparison of runs in which nothing happens would always succeed."""
    assert {difference.name for difference in DIFFERENCES} == set(single_differences)
    assert not [name for name in HAPPENINGS if seen[name] == 0]
