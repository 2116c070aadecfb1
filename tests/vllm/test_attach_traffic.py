"""On a corrected vLLM the checks are silent, whatever clients do; a correction taken out is seen."""

from __future__ import annotations

import itertools
from collections import Counter
from typing import Any

import pytest
from tests.vllm.attach_corrected import Corrections
from tests.vllm.attach_traffic import Plan, Traffic
from tests.vllm.attach_world import EVERY_STEP, World, world
from tests.vllm.losses import random_requests
from tests.vllm.side import events
from tests.vllm.test_losses import THEIR_LOSSES
from tests.vllm.theirs import Theirs
from tests.vllm.workloads import Settings

from draftproof.impl.attach.vllm.around import Around
from draftproof.impl.attach.vllm.install import Installed
from draftproof.impl.attach.vllm.leaving import ABORT, FINISH, TRIMMED
from draftproof.impl.attach.vllm.reports import Report

AMPLE, TIGHT = 2_000, 40
NUM_REQUESTS = 70
CASES = [
    (asynchronous, num_drafts, num_blocks, lookahead)
    for asynchronous, num_drafts, num_blocks in itertools.product((False, True), (0, 3), (AMPLE, TIGHT))
    for lookahead in ((0, 1, 3) if num_drafts else (0,))
]
"""Mode, K, pool and the drafter's look-ahead: 16 settings of 70 requests, 1,120 in all."""
HAPPENINGS = (
    "plain requests", "sessions", "aborts", "resets", "preemptions", "hits", "drafts accepted",
    "trimmed stops", "chunks after the turn", "chunks before the end of the turn",
)  # fmt: skip


def name_of(case: tuple[bool, int, int, int]) -> str:
    """A case in words."""
    asynchronous, num_drafts, num_blocks, lookahead = case
    mode = "asynchronous" if asynchronous else "synchronous"
    return f"{mode}, K={num_drafts}, {num_blocks} blocks, look-ahead {lookahead}"


def settings(case: tuple[bool, int, int, int]) -> Settings:
    """A case as settings: a tight pool also cuts prompts into chunks."""
    asynchronous, num_drafts, num_blocks, lookahead = case
    return Settings(
        num_blocks=num_blocks,
        max_num_seqs=12,
        max_num_batched_tokens=128,
        max_model_len=1_024,
        num_speculative_tokens=num_drafts,
        asynchronous=asynchronous,
        long_prefill_token_threshold=40 if num_blocks == TIGHT else 0,
        num_prefill_lookahead_tokens=lookahead,
    )


@pytest.fixture(scope="module")
def happened() -> Counter[str]:
    """What happened in all runs together."""
    return Counter()


@pytest.mark.parametrize("case", CASES, ids=name_of)
def test_a_corrected_vllm_raises_no_alarm(case: tuple[bool, int, int, int], happened: Counter[str]) -> None:
    there = world(settings(case), corrected=True)
    seed = CASES.index(case)
    happened.update(Traffic(Plan(seed, settings(case), num_requests=NUM_REQUESTS), there.scheduler).run())
    assert list(there.report.violations) == []
    assert there.report.unjudged == {}
    assert there.report.total("requests") == NUM_REQUESTS
    assert (
        not there.watch.watched and not there.watch.in_flight and not any(there.watch.owners.counts.values())
    )


def test_the_traffic_was_rich(happened: Counter[str]) -> None:
    """Runs last of these. Silence about runs in which nothing happens says nothing."""
    assert not [name for name in HAPPENINGS if happened[name] == 0]
    assert happened["plain requests"] + happened["sessions"] == NUM_REQUESTS * len(CASES) >= 1_000


CAUGHT = {
    "_update_request_with_output": {"accounting"},
    "_update_request_as_session": {"accounting"},
    "_free_request_blocks": {"completeness"},
    "update_from_output": {"queues"},
}
"""By correction: what is found without it, at least."""


@pytest.mark.parametrize("correction", CAUGHT)
def test_a_correction_that_is_left_out_is_noticed(correction: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(Corrections, correction)
    found: set[str] = set()
    for seed, asynchronous in itertools.product(range(6), (True, False)):
        case = (asynchronous, 3, TIGHT, 0)
        there = world(settings(case), corrected=True)
        run_until_it_breaks(there, Plan(seed, settings(case), session_percent=60))
        found |= {violation.kind for violation in there.report.violations}
        if found >= CAUGHT[correction]:
            return
    raise AssertionError(f"found only {found}")


def run_until_it_breaks(there: World, plan: Plan) -> None:
    """An uncorrected engine may well assert, or lose a request for ever."""
    try:
        Traffic(plan, there.scheduler).run()
    except AssertionError:
        assert there.report.violations


def test_a_wrong_block_table_is_noticed() -> None:
    """What no fault of vLLM 0.32 shows: two requests are given one block, whose references do not agree."""
    case = (False, 0, AMPLE, 0)
    there = world(settings(case), corrected=True)
    pool: Any = there.scheduler.kv_cache_manager.block_pool
    original = pool.get_new_blocks
    taken: list[Any] = []

    def twice(count: int, *args: Any, **kwargs: Any) -> Any:
        blocks = original(count, *args, **kwargs)
        taken.extend(blocks)
        if len(taken) > 30 and len(blocks) == 1:
            blocks[0] = taken[-5]
        return blocks

    pool.get_new_blocks = twice
    run_until_it_breaks(there, Plan(3, settings(case), num_requests=30, session_percent=0))
    rules = {rule for violation in there.report.violations for rule in violation.rules}
    assert {"writable_block_has_one_owner", "reference_count_is_owners"} <= rules


@pytest.mark.parametrize("asynchronous", [False, True], ids=["synchronous", "asynchronous"])
def test_the_losses_counted_live_are_those_that_a_look_up_finds_later(asynchronous: bool) -> None:
    """Six hundred requests and a fifth of them aborted: as many as `test_losses` finds from outside."""
    report = Report()
    installed = Installed(Around(EVERY_STEP._replace(content=False, sweep_interval=64), report))
    try:
        for _ in events(Theirs(random_requests(asynchronous, abort_percent=26))):
            pass
    finally:
        installed.remove()
    finished, lost_finished, aborted, lost_aborted = THEIR_LOSSES[asynchronous, 26]
    exits, lost = "exits", "exits_with_lost_blocks"
    assert sum(report.total(exits, exit=kind) for kind in (FINISH, TRIMMED)) == finished
    assert sum(report.total(lost, exit=kind) for kind in (FINISH, TRIMMED)) == lost_finished
    assert report.total(exits, exit=ABORT) == aborted
    assert report.total(lost, exit=ABORT) == lost_aborted
    # Asynchronously vLLM 0.32 publishes after each output, so only what a stop has trimmed is lost.
    assert asynchronous == (report.total(lost, exit=FINISH) == 0)
