"""What was settled when a request left is found by the next one: every block, at every length (T4, T13).

The truth beside the scheduler knows W, the tokens whose KV had really been computed; `closed_form` says what
a look-up of any length then hits. The table of finished requests stands in `test_finished_table`.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import pytest
from tests.impl import request_truth
from tests.impl.findable import Exit
from tests.impl.request_truth import Choices
from tests.impl.watched import WatchedScheduler

from draftproof.impl.scheduler import lifecycle, pressure
from draftproof.impl.scheduler import settle as settle_room
from draftproof.impl.scheduler.config import SchedulerConfig
from draftproof.impl.scheduler.layout import NUM_ARRIVED, State
from draftproof.impl.scheduler.scheduler import Scheduler
from draftproof.proofs.faults.patching import patched
from draftproof.proofs.faults.registry import find
from draftproof.spec.lookups import closed_form

STOP, WORD, OTHER, FIRST_NUMBER = 1, 5, 6, 1_000
VOCAB_SIZE = 100_000
NUM_DRAFTS = range(5)
BOTH_MODES = pytest.mark.parametrize("asynchronous", [False, True], ids=["synchronous", "asynchronous"])


class Drafter(NamedTuple):
    """What a kind of drafter asks of the prefix cache."""

    name: str
    lookahead: str = "drop"

    def num_lookahead_tokens(self, num_drafts: int) -> int:
        """A."""
        return {"none": 0, "EAGLE": 1, "MTP": num_drafts, "MTP, by hash": num_drafts}[self.name]


DRAFTERS = (Drafter("none"), Drafter("EAGLE"), Drafter("MTP"), Drafter("MTP, by hash", "hash"))


class Case(NamedTuple):
    """One request: its prompt is computed, one token is sampled; a verification step may end it."""

    num_prompt_tokens: int
    num_accepted: int
    num_kept: int
    """Of the verification step; 0 if the first sampled token ends the request."""
    stops: bool
    """By a stop token; else by its length."""

    @property
    def num_tokens(self) -> int:
        """N when it finishes."""
        return self.num_prompt_tokens + 1 + self.num_kept


def cases(num_drafts: int, num_tokens: int) -> Iterator[Case]:
    """Every request that ends with so many tokens."""
    for stops in (False, True):
        if num_tokens >= 2:
            yield Case(num_tokens - 1, 0, 0, stops)
        for num_accepted in range(num_drafts + 1):
            for num_kept in range(1, num_accepted + 2):
                if num_tokens - 1 - num_kept >= 1:
                    yield Case(num_tokens - 1 - num_kept, num_accepted, num_kept, stops)


def scheduler_for(block_size: int, num_drafts: int, drafter: Drafter, asynchronous: bool) -> WatchedScheduler:
    """With room for everything: nothing is evicted."""
    lookahead = drafter.num_lookahead_tokens(num_drafts)
    config = SchedulerConfig(
        max_model_len=5 * block_size + 8,
        num_blocks=20_000,
        block_size=block_size,
        max_num_seqs=4,
        num_speculative_tokens=num_drafts,
        asynchronous=asynchronous,
        num_lookahead_tokens=num_drafts if lookahead else 0,
        num_prefill_lookahead_tokens=lookahead,
        lookahead=drafter.lookahead,
        vocab_size=VOCAB_SIZE,
        hash_seed=1,
    )
    return WatchedScheduler(config, Scheduler(config), checks=False)


def finish(watched: WatchedScheduler, case: Case) -> Exit:
    """Let the case's request come and go; a step of it may still be in flight."""
    num_drafts, last = watched.config.num_speculative_tokens, case.num_tokens - 1
    number = int(watched.scheduler.state.counts[NUM_ARRIVED])
    request = watched.add(
        str(number),
        [FIRST_NUMBER + number, *[WORD] * (case.num_prompt_tokens - 1)],  # cases share nothing
        lambda position, _: STOP if case.stops and position == last else OTHER,
        max_tokens=64 if case.stops else 1 + case.num_kept,
        stop_token_ids=(STOP,),
    )
    verify = Choices(num_drafts - case.num_accepted)
    watched.schedule(Choices(0))
    if watched.config.asynchronous:
        if case.num_kept > 0 or case.stops:
            watched.schedule(verify)
        watched.settle()
        if case.num_kept > 0:
            watched.schedule(Choices(0))
            watched.settle()
    else:
        watched.settle()
        if case.num_kept > 0:
            words = [request.words(case.num_prompt_tokens + 1 + place, verify) for place in range(num_drafts)]
            watched.propose([request.row], [words])
            watched.schedule(verify)
            watched.settle()
    (left,) = watched.exits
    assert (left.kind, len(left.token_ids)) == ("finish", case.num_tokens)
    watched.exits.clear()
    return left


def expected_hit(watched: WatchedScheduler, left: Exit, num_tokens: int) -> int:
    """What a look-up of the first `num_tokens` tokens hits, or of all and more."""
    config, settled = watched.config, left.num_settled_tokens
    if config.lookahead == "drop":
        return closed_form(settled, num_tokens, watched.rules, config.drops_block)
    # A digest covers the tokens that the drafter read behind its block: both must have been there, and known.
    lookahead, size = config.num_prefill_lookahead_tokens, config.block_size
    return min(max(settled - lookahead, 0), max(num_tokens - max(lookahead, 1), 0)) // size * size


@BOTH_MODES
@pytest.mark.parametrize("drafter", DRAFTERS, ids=lambda drafter: drafter.name)
@pytest.mark.parametrize("block_size", [4, 16])
def test_a_repeat_hits_the_closed_form_at_every_length(
    block_size: int, drafter: Drafter, asynchronous: bool
) -> None:
    num_cases, hits = 0, set()
    for num_drafts in NUM_DRAFTS:
        if drafter.name != "none" and num_drafts == 0:
            continue
        watched = scheduler_for(block_size, num_drafts, drafter, asynchronous)
        for length in range(1, 3 * block_size + 3):
            for case in cases(num_drafts, length):
                left = finish(watched, case)
                longer = [*left.token_ids, *[OTHER + 1] * (block_size + 4)]
                for num_tokens in (*range(1, length + 1), len(longer)):
                    found = watched.scheduler.num_cached_tokens(longer[:num_tokens])
                    expected = expected_hit(watched, left, num_tokens)
                    assert found == expected, f"{case}: {num_tokens} tokens hit {found}, must be {expected}"
                    hits.add(found)
                while watched.steps:  # what was in flight for it returns
                    watched.settle()
                num_cases += 1
    assert hits == {0, block_size, 2 * block_size, 3 * block_size} - (
        {3 * block_size} if drafter.lookahead == "drop" and drafter.name != "none" else set()
    )
    assert num_cases > 700


# ---- six hundred requests ----

NUM_REQUESTS, BLOCK_SIZE = 600, 16
ACCEPTANCE_PERCENT = 70
AMPLE = NUM_REQUESTS * 20
TIGHT = 40
"""Blocks: a request needs up to 19, and sixteen may run."""


def lose(
    asynchronous: bool,
    *,
    abort_percent: int = 0,
    num_blocks: int = AMPLE,
    watching: list[WatchedScheduler] | None = None,
) -> tuple[Counter[str], WatchedScheduler]:
    """Random requests, K=3, B=16, 70% of the drafts right; what each leaves is looked up at once.

    Returns how many left, and lost a block, by kind of exit; and the watched scheduler.
    """

    def look_up() -> None:
        for left in watched.exits:
            counts[left.kind] += 1
            counts[f"{left.kind}, a block lost"] += lost(scheduler, left.token_ids, left.num_settled_tokens)
        watched.exits.clear()

    chosen = random.Random(20)
    config = SchedulerConfig(
        max_model_len=512,
        num_blocks=num_blocks,
        block_size=BLOCK_SIZE,
        max_num_seqs=16,
        max_num_requests=64,
        max_num_batched_tokens=2_048,
        num_speculative_tokens=3,
        asynchronous=asynchronous,
        vocab_size=VOCAB_SIZE,
        hash_seed=1,
    )
    scheduler = Scheduler(config, compiled=False)
    watched = WatchedScheduler(config, scheduler, checks=False, acceptance_percent=ACCEPTANCE_PERCENT)
    if watching is not None:
        watching.append(watched)
    counts: Counter[str] = Counter()
    num_added, last_step = 0, dict[str, int]()
    while num_added < NUM_REQUESTS or watched.by_row:
        if num_added < NUM_REQUESTS and len(watched.by_row) < 40 and chosen.random() < 0.7:
            name, prompt = str(num_added), chosen.choices(range(10, VOCAB_SIZE), k=chosen.randrange(1, 200))
            watched.add(
                name, prompt, lambda _, choices: choices.below(900), max_tokens=chosen.randrange(2, 99)
            )
            num_added += 1
            if chosen.random() < abort_percent / 100:
                last_step[name] = watched.num_steps + chosen.randrange(12)
        for name in [one for one in watched.requests if last_step.get(one) == watched.num_steps]:
            watched.abort(name)
            look_up()
        if watched.can_schedule():
            watched.schedule(Choices(chosen.getrandbits(2_000)))
        if watched.steps and (not watched.can_schedule() or chosen.random() < 0.5):
            batch = watched.settle()
            rows = batch.rows[: batch.num_requests].tolist()
            if not asynchronous:
                watched.propose(rows, [[chosen.randrange(900) for _ in range(3)] for _ in rows])
            look_up()
    return counts, watched


def any_word(position: int, choices: Choices) -> int:
    """The model says anything."""
    return choices.below(900)


def lost(scheduler: Scheduler, token_ids: Sequence[int], num_settled_tokens: int) -> bool:
    """Whether somebody who goes on from there finds less than was settled."""
    settled = num_settled_tokens // BLOCK_SIZE * BLOCK_SIZE
    return scheduler.num_cached_tokens([*token_ids[:settled], STOP]) < settled


@BOTH_MODES
@pytest.mark.parametrize("abort_percent", [0, 20])
def test_of_600_random_requests_none_loses_a_block(asynchronous: bool, abort_percent: int) -> None:
    counts, _ = lose(asynchronous, abort_percent=abort_percent)
    assert sum(counts.values()) == NUM_REQUESTS  # of which none lost anything
    assert (counts["abort"] > NUM_REQUESTS / 10) == (abort_percent > 0)


@BOTH_MODES
def test_under_pressure_none_of_them_loses_a_block_either(asynchronous: bool) -> None:
    counts, watched = lose(asynchronous, abort_percent=20, num_blocks=TIGHT)
    assert sum(counts.values()) == NUM_REQUESTS
    assert watched.seen["preempted"] > NUM_REQUESTS / 10


def lose_by_preemption(asynchronous: bool, monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """The same requests under pressure; what each preempted one leaves is looked up before others take it."""
    counts: Counter[str] = Counter()
    watched: list[WatchedScheduler] = []
    give_back = pressure.give_back

    def gives_back(state: State, row: int, drop: bool) -> None:
        give_back(state, row, drop)
        request = watched[0].by_row[row]  # as it was before the step
        counts["preempted"] += request.num_settled_tokens >= BLOCK_SIZE
        counts["a block lost"] += lost(watched[0].scheduler, request.token_ids, request.num_settled_tokens)

    monkeypatch.setattr(pressure, "give_back", gives_back)
    lose(asynchronous, num_blocks=TIGHT, watching=watched)
    return counts


@BOTH_MODES
def test_no_preemption_loses_a_block(asynchronous: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    counts = lose_by_preemption(asynchronous, monkeypatch)
    assert counts["a block lost"] == 0
    assert counts["preempted"] > 20


@BOTH_MODES
def test_registration_at_the_finish_is_what_saves_them(
    asynchronous: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    fault = find("finish-registers-nothing-synchronous")  # the change is the same in both modes
    monkeypatch.setattr(settle_room, "finish", patched(fault.changes).transitions["finish"])
    monkeypatch.setitem(request_truth.TEXTBOOK, "finish", patched(fault.changes).transitions["finish"])
    counts, _ = lose(asynchronous)
    assert counts["finish, a block lost"] > NUM_REQUESTS / 50


# Asynchronously each output publishes what it settles, so that these exits add nothing.


def test_publication_at_a_preemption_is_what_saves_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pressure, "publish_row", lambda *_: None)
    assert lose_by_preemption(False, monkeypatch)["a block lost"] > 0


def test_publication_at_an_abort_is_what_saves_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lifecycle, "publish_row", lambda *_: None)
    counts, _ = lose(False, abort_percent=20)
    assert counts["abort, a block lost"] > 0
    assert counts["finish, a block lost"] == 0
