"""Hybrid models on the scheduler: full attention, sliding windows and recurrent state share one pool.

Random work beside the truth (`hybrid_world`): every read is right, every hit leads to exactly the state at
its end, what is settled is found as far as a state is to be kept, no block is lost. Each of these checks is
seen failing, on a fault that was made for it.
"""

from __future__ import annotations

import contextlib
import os
import random
import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.impl.device import WrongKV
from tests.impl.hybrid_world import HybridWorld, hybrid_config
from tests.impl.request_truth import Choices
from tests.impl.scheduler_world import Settings, word, written
from tests.impl.test_kv_events import findable
from tests.impl.test_scheduler_compiled import wander
from tests.impl.twin import twin_scheduler

from draftproof.impl.contracts import DEBUG
from draftproof.impl.decisions import window_to_prune
from draftproof.impl.pool import release
from draftproof.impl.scheduler import (
    allocation,
    lifecycle,
    prefix_cache,
    pressure,
    recurrent_blocks,
    recurrent_rows,
    settle,
    step,
)
from draftproof.impl.scheduler.batch import NUM_COPIES
from draftproof.impl.scheduler.config import ConfigError, KVGroup, SchedulerConfig
from draftproof.impl.scheduler.errors import RequestError
from draftproof.impl.scheduler.kv_events import BlockRemoved, BlockStored, read
from draftproof.impl.scheduler.recurrent_rows import leave_states
from draftproof.impl.scheduler.requests import num_state_blocks
from draftproof.impl.scheduler.scheduler import Scheduler
from draftproof.proofs.recurrent_mutant import changed_code

GROUPS: dict[str, tuple[KVGroup, ...]] = {
    "full and recurrent": (KVGroup(4), KVGroup(8, "recurrent")),
    "full and window": (KVGroup(4), KVGroup(4, "sliding_window", 6)),
    "two sizes": (KVGroup(4), KVGroup(8)),
    "all three": (KVGroup(4), KVGroup(4, "sliding_window", 6), KVGroup(8, "recurrent")),
    "two recurrent": (KVGroup(8, "recurrent"), KVGroup(2), KVGroup(8, "recurrent")),
    "recurrent alone": (KVGroup(4, "recurrent"),),
}
RECURRENT = "full and recurrent"
NUM_WORLDS, NUM_TURNS = 5, 50


def some_settings(chosen: random.Random, asynchronous: bool, extra_blocks: tuple[int, ...]) -> Settings:
    """A small scheduler, any."""
    num_drafts = chosen.randint(0, 3)
    return Settings(
        asynchronous=asynchronous,
        depth=chosen.randint(2, 3),
        num_drafts=num_drafts,
        block_size=4,
        lookahead=chosen.choice([one for one in (0, 1, min(num_drafts, 2)) if one <= num_drafts]),
        num_lookahead_slots=chosen.choice((0, num_drafts)),
        extra_blocks=chosen.choice(extra_blocks),
        max_num_seqs=chosen.randint(1, 4),
        extra_budget=chosen.choice((60, 0, 2, 6)),
        threshold=chosen.choice((0, 0, 1, 3)),
        by_priority=chosen.random() < 0.5,
        caching=chosen.random() < 0.9,
        drop_stale=chosen.random() < 0.5,
        release_at_once=chosen.random() < 0.5,
    )


def worlds(
    groups: tuple[KVGroup, ...],
    asynchronous: bool,
    extra_blocks: tuple[int, ...] = (0, 3, 10),
    num_worlds: int = NUM_WORLDS,
    **settings: Any,
) -> Counter[str]:
    """Random work until everybody has come to an end; what happened how often."""
    seen: Counter[str] = Counter()
    for seed in range(num_worlds):
        chosen = random.Random(f"{seed} {len(groups)}")
        world = HybridWorld(some_settings(chosen, asynchronous, extra_blocks)._replace(**settings), groups)
        wander(world, chosen, NUM_TURNS)
        world.finish_all()
        for text in range(3):
            for length in (9, 13, 17, 24):
                world.look_up(length, text=text, switch=chosen.randrange(16))
        free = int(world.watched.scheduler.state.pool.num_free_blocks[0])
        assert free == world.watched.config.num_blocks, "everything was given back"
        seen.update(world.watched.seen)
        seen["exits checked"] += world.num_exits_checked
    return seen


@pytest.mark.parametrize("asynchronous", [False, True])
@pytest.mark.parametrize("name", GROUPS)
def test_random_work_agrees_with_the_truth_after_every_call(name: str, asynchronous: bool) -> None:
    """Pools as small as one request may need: preemption, idle sessions that make room, failed steps."""
    groups = GROUPS[name]
    seen = worlds(groups, asynchronous)
    happens = {"hit", "steps lost", "looked up", "stop inside an accepted run"}
    if any(group.kind != "recurrent" for group in groups):
        happens |= {"preempted"}
    if any(group.kind == "recurrent" for group in groups):
        happens |= {"copy"}
        if not asynchronous:
            happens |= {"another slot", "another slot, no drafts"}
    assert {one for one in happens if seen[one] == 0} == set()


@pytest.mark.parametrize("asynchronous", [False, True])
@pytest.mark.parametrize("name", GROUPS)
def test_what_is_settled_is_found_as_far_as_a_state_is_kept(name: str, asynchronous: bool) -> None:
    """With room for everything nothing is evicted, so that only a missing publication could lose anything."""
    seen = worlds(GROUPS[name], asynchronous, (400,), caching=True)
    assert seen["exits checked"] > 30


def test_two_sizes_of_attention_meet_at_their_common_multiple() -> None:
    """Full attention with blocks of 16 and of 32 tokens: hits are multiples of 32."""
    world = HybridWorld(Settings(block_size=16, extra_blocks=60), (KVGroup(16), KVGroup(32)))
    world.add(69, max_tokens=1, stops=False)
    while world.watched.scheduler.has_unfinished_requests():
        world.schedule(0)
        world.settle()
    for length, hit in ((32, 0), (33, 32), (64, 32), (65, 64), (69, 64)):
        world.look_up(length)
        assert world.watched.scheduler.num_cached_tokens(written(0, 0, 99, length)) == hit


def test_a_row_without_drafts_starts_from_the_slot_of_its_last_accepted_draft() -> None:
    """Two of three drafts are accepted; then no drafts are proposed to one row, and some to the other."""
    world = world_at_its_second_slot()
    batch = world.watched.schedule(Choices(0))
    told = {
        (int(row), int(drafts), int(slot))
        for row, drafts, slot in zip(
            batch.rows[:2], batch.num_draft_tokens[:2], batch.source_slot[:2], strict=True
        )
    }
    rows = [world.hybrid.requests[name].row for name in ("0", "1")]
    assert told == {(rows[0], 0, 2), (rows[1], 3, 2)}
    world.watched.run_device()


def test_a_runner_that_special_cases_rows_without_drafts_is_caught() -> None:
    """vLLM #56531."""
    world = world_at_its_second_slot()
    world.hybrid.ignores_source_slot = True
    world.watched.schedule(Choices(0))
    with pytest.raises(WrongKV, match="from column 0"):
        world.watched.run_device()


def world_at_its_second_slot() -> HybridWorld:
    """Two requests decode; two of the three drafts of each were accepted."""
    world = HybridWorld(Settings(num_drafts=3, block_size=4, extra_blocks=60), GROUPS[RECURRENT])
    for _ in range(2):
        world.add(5, text=world.num_added, max_tokens=15, stops=False)
    world.schedule(0)
    world.settle(proposes=False)
    requests = [world.hybrid.requests[name] for name in ("0", "1")]
    for request in requests:
        position = len(request.token_ids)
        proposal = [word(int(request.request_id), position + place) for place in range(3)]
        world.watched.propose([request.row], [proposal])
        request.accepts = lambda num_right, choices: 2  # type: ignore[method-assign]
    world.schedule(0)
    world.settle(proposes=False)
    world.watched.propose([requests[1].row], [[4, 4, 4]])
    return world


# ---- as few blocks as a request may need ------------------------------------------------------------------


@pytest.mark.parametrize("num_steps", [1, 2, 3])
@pytest.mark.parametrize("num_drafts", [0, 1, 3])
def test_a_request_that_is_let_in_is_alone_never_short_of_blocks(num_drafts: int, num_steps: int) -> None:
    """Another one shares its beginning, so that it starts on a hit and moves to a copy."""
    settings = Settings(
        asynchronous=num_steps > 1, depth=num_steps, num_drafts=num_drafts, block_size=4, max_num_seqs=1
    )
    for seed in range(12):
        world = HybridWorld(settings, GROUPS["all three"])
        chosen = random.Random(seed)
        for _ in range(3):
            world.add(chosen.randint(1, 20), max_tokens=20, stops=False)
            while world.watched.requests or world.watched.steps:
                world.advance_alone(chosen.getrandbits(32))
        assert world.watched.seen["preempted"] == 0


# ---- each check is seen failing ---------------------------------------------------------------------------

Fault = tuple[Any, str, Callable[..., Any], type[AssertionError], str]


def keeps_nothing_at_exit(ledger: Any) -> int:
    """The terminal publication is left out."""
    return 0


def takes_back_copies_at_once(original: Callable[..., Any]) -> Callable[..., Any]:
    """A copy's claims are given up with the dispatch."""

    def move(state: Any, batch: Any, row: int, group: int, slot: int) -> None:
        original(state, batch, row, group, slot)
        release(state.pool, int(batch.copies[0, batch.counts[NUM_COPIES] - 1]), True)

    return move


FAULTS: dict[str, Fault] = {
    "a hit needs no state": (
        prefix_cache, "has_states", lambda *_: True, AssertionError, "null block|starts from column",
    ),
    "a state is hit in the step that writes it": (
        prefix_cache, "may_hit", lambda *_: True, WrongKV, "starts from column",
    ),
    "the next step overwrites what was published": (
        recurrent_blocks, "copy_needed", lambda *_: False, AssertionError,
        "is published|another content|starts from column",
    ),
    "a failed step's states stay": (
        lifecycle, "withdraw_failed", lambda *_: None, AssertionError, "is published|starts from column",
    ),
    "rows start from slot 0": (recurrent_rows, "slot_to_read", lambda *_: 0, WrongKV, "from column 0"),
    "claims of copies are kept": (
        settle, "finish_copies", lambda *_: None, AssertionError, "given back|owners",
    ),
    "a copy's source may be taken": (
        recurrent_blocks, "move_to_copy", takes_back_copies_at_once(recurrent_blocks.move_to_copy),
        AssertionError, "reference count",
    ),
    "a session's targets are kept": (
        recurrent_rows, "end_turn_row", lambda *_: None, AssertionError, "keeps more than",
    ),
    "chunks pass boundaries": (
        step, "up_to_boundary", lambda *arguments: arguments[-1], AssertionError, "a chunk ends at",
    ),
    "a window forgets a block that it still reads": (
        allocation, "window_to_prune", lambda ledger, rules, size: window_to_prune(ledger, rules, size - 4),
        AssertionError, "reads block 0|has no block",
    ),
    "blocks for states are not counted": (
        step, "num_state_blocks", lambda *_: 0, AssertionError, "the null block is in use",
    ),
}  # fmt: skip
"""By name: where, what is replaced, by what, and how it is noticed."""


@pytest.mark.parametrize("name", FAULTS)
def test_a_fault_is_noticed(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    room, function, replacement, error, words = FAULTS[name]
    monkeypatch.setattr(room, function, replacement)
    with pytest.raises(error, match=words):
        for asynchronous in (False, True):
            worlds(GROUPS["all three"], asynchronous, num_worlds=20, caching=True)


LOSSES: dict[str, tuple[Any, str, Callable[..., Any]]] = {
    "nothing is published at the exit": (recurrent_rows, "registrable_at_exit", keeps_nothing_at_exit),
    "no targets are set aside": (recurrent_blocks, "set_target", lambda *_: None),
}


@pytest.mark.parametrize("name", LOSSES)
def test_a_loss_is_noticed(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing unsafe happens, but less is found than must be."""
    room, function, replacement = LOSSES[name]
    monkeypatch.setattr(room, function, replacement)
    with pytest.raises(AssertionError, match="tokens are found, must be"):
        for asynchronous in (False, True):
            worlds(GROUPS[RECURRENT], asynchronous, (400,), num_worlds=20, caching=True)


# ---- the four corners of M4, on the scheduler: publication at the exit, and its guard

UNGUARDED: Callable[..., Any] = changed_code(
    "publish",
    (
        ("end = num_possible_tokens(recurrent)", "end = recurrent.num_state_tokens"),
        ("end > recurrent.num_published_tokens, ", ""),
    ),
).transitions["publish"]
"""vLLM #54979: what returned last is attached to the slot in use, whatever is in flight."""


def offered_unguarded(state: Any, rows: Any, row: int, ledger: Any) -> None:
    """`leave_states` with that fault."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(recurrent_blocks, "publish_states", UNGUARDED)
        leave_states(state, rows, row, ledger)


@pytest.mark.parametrize(
    ("terminal", "guarded", "words"),
    [
        (False, False, "tokens are found, must be"),
        (False, True, "tokens are found, must be"),
        (True, False, "is published|starts from column"),
        (True, True, ""),
    ],
)
def test_publication_at_the_exit_and_its_guard_are_each_needed(
    terminal: bool, guarded: bool, words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Lost without the one, wrong without the other; without both only lost."""
    if not terminal:
        monkeypatch.setattr(recurrent_rows, "registrable_at_exit", keeps_nothing_at_exit)
    if not guarded:
        for room in (settle, lifecycle, pressure):
            monkeypatch.setattr(room, "leave_states", offered_unguarded)
    expected = pytest.raises(AssertionError, match=words) if words else contextlib.nullcontext()
    with expected:
        worlds(GROUPS[RECURRENT], True, (400,), num_worlds=12, caching=True)


# ---- what is refused --------------------------------------------------------------------------------------

REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"groups": (KVGroup(4), KVGroup(8, "recurrent"), KVGroup(16, "recurrent"))}, r"block sizes \[8, 16\]"),
    ({"groups": (KVGroup(16), KVGroup(24, "recurrent"))}, "block_size=24 must be a multiple of 16"),
    (
        {"groups": (KVGroup(4), KVGroup(4, "recurrent")), "num_speculative_tokens": 4},
        "block_size=4 is less than",
    ),
    (
        {
            "groups": (KVGroup(4), KVGroup(8, "recurrent")),
            "num_speculative_tokens": 2,
            "num_prefill_lookahead_tokens": 1,
            "lookahead": "hash",
        },
        'lookahead="hash" does not go with recurrent groups',
    ),
    ({"groups": (KVGroup(4), KVGroup(64, "recurrent")), "max_num_batched_tokens": 63}, "at least 64"),
]


@pytest.mark.parametrize(("settings", "words"), REFUSED)
def test_a_configuration_that_cannot_be_is_refused(settings: dict[str, Any], words: str) -> None:
    arguments: dict[str, Any] = {"max_model_len": 64, "num_blocks": 100}
    with pytest.raises(ConfigError, match=words):
        SchedulerConfig(**(arguments | settings))


def test_a_session_that_runs_ahead_is_refused_and_nothing_changes() -> None:
    config = hybrid_config(Settings(asynchronous=True, depth=2, block_size=4), GROUPS[RECURRENT])
    scheduler = Scheduler(config, compiled=False)
    before = [memory.copy() for memory in scheduler.memory]
    with pytest.raises(RequestError, match="a session needs the recurrent state of its last token but one"):
        scheduler.add("a", [1, 2, 3], resumable=True)
    assert all(np.array_equal(*pair) for pair in zip(scheduler.memory, before, strict=True))
    scheduler.add("a", [1, 2, 3])


def test_a_request_that_needs_more_blocks_for_states_than_there_are_is_refused() -> None:
    config = hybrid_config(Settings(num_drafts=3, block_size=4, extra_blocks=-1), GROUPS[RECURRENT])
    assert num_state_blocks(config, config.groups[1]) > 1 + config.num_speculative_tokens
    scheduler = Scheduler(config, compiled=False)
    with pytest.raises(RequestError, match=f"can need {config.num_blocks + 1} blocks"):
        scheduler.add("a", [4] * 10, max_tokens=20)


# ---- what routers are told --------------------------------------------------------------------------------


def test_a_router_knows_exactly_which_states_can_be_found() -> None:
    config = hybrid_config(Settings(block_size=4, extra_blocks=2), GROUPS["all three"])
    scheduler = Scheduler(config, compiled=False, num_kv_events=400)
    world = HybridWorld(Settings(block_size=4, extra_blocks=2), GROUPS["all three"], scheduler)
    known: set[bytes] = set()
    groups: set[int] = set()
    chosen = random.Random(0)
    for _ in range(60):
        wander(world, chosen, 1)
        for event in read(scheduler.state.kv_events).events:
            if isinstance(event, BlockStored):
                known.update(event.block_hashes)
                groups.add(event.group_idx)
            elif isinstance(event, BlockRemoved):
                assert known.issuperset(event.block_hashes)
                known.difference_update(event.block_hashes)
            else:
                known.clear()
        assert known == set(findable(scheduler))
    assert groups == {0, 1, 2}


# ---- compiled ---------------------------------------------------------------------------------------------


@pytest.mark.skipif(DEBUG, reason="debug mode interprets")
@pytest.mark.parametrize("asynchronous", [False, True])
def test_every_call_does_the_same_compiled(asynchronous: bool) -> None:
    num_calls: Counter[str] = Counter()
    for seed in range(10):
        chosen = random.Random(seed)
        groups = GROUPS[("full and recurrent", "all three", "two recurrent")[seed % 3]]
        settings = some_settings(chosen, asynchronous, (0, 5, 20))
        scheduler, twin = twin_scheduler(hybrid_config(settings, groups))
        world = HybridWorld(settings, groups, scheduler, checks=False)
        wander(world, chosen, NUM_TURNS)
        world.finish_all()
        num_calls.update(twin.num_calls)
    assert num_calls["schedule_step"] > 300 and num_calls["give_up_step"] > 0


COMPILED = """
import sys
from numba.core import event
from draftproof.impl.scheduler.compiled import entry_point

with event.install_recorder("numba:compile") as recorder:
    entry_point("abort_row", has_recurrent_groups=sys.argv[1] == "yes")
functions = {one.data["dispatcher"].py_func for _, one in recorder.buffer}
print(*sorted(f"{one.__module__.split('.')[-1]}.{one.__name__}" for one in functions))
"""


@pytest.mark.skipif(DEBUG, reason="debug mode interprets")
def test_without_recurrent_groups_nothing_of_them_is_compiled(tmp_path: Path) -> None:
    """Only what asks for them first is, and leaves the rest out."""
    environment = os.environ | {"DRAFTPROOF_CACHE_DIR": str(tmp_path), "DRAFTPROOF_DEBUG": ""}
    compiled = {
        answer: subprocess.run(
            [sys.executable, "-c", COMPILED, answer],
            env=environment,
            capture_output=True,
            text=True,
            check=True,
        ).stdout.split()
        for answer in ("no", "yes")
    }
    about = {answer: {one for one in names if "recurrent" in one} for answer, names in compiled.items()}
    assert about["no"] == {"layout.recurrent_views", "recurrent_rows.leave_states"}
    assert {"recurrent_blocks.publish_kept", "recurrent.leave"} <= about["yes"]
    assert "settle.leave" in compiled["no"], "the recorder sees what is compiled"
