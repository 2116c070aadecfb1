"""Routers learn what the prefix cache holds: every block once, with its tokens, and nothing in silence."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from draftproof.impl import code_cache
from draftproof.impl.contracts import DEBUG
from draftproof.impl.digest import block_digest
from draftproof.impl.pool import published
from draftproof.impl.scheduler import kv_events, kv_notes
from draftproof.impl.scheduler import scheduler as scheduler_room
from draftproof.impl.scheduler.batch import NUM_PUBLISHED
from draftproof.impl.scheduler.config import KVGroup, SchedulerConfig
from draftproof.impl.scheduler.kv_events import (
    CLEARED,
    NUM_HEADER_WORDS,
    REMOVED,
    STORED,
    AllBlocksCleared,
    BlockRemoved,
    BlockStored,
    KVEventBatch,
    as_json,
    block_hash,
    buffer_size,
    initialise,
    note,
    note_tokens,
    read,
)
from draftproof.impl.scheduler.scheduler import Scheduler

TOKENS = np.arange(40, dtype=np.int32).reshape(2, 20)


def new_buffer(num_events: int, block_size: int) -> Any:
    events = np.zeros(buffer_size(num_events, block_size), np.int64)
    initialise(events, block_size)
    return events


def store(events: Any, digest: int, parent: int, start: int, count: int = 2, group: int = 0) -> None:
    note(events, STORED, 7, digest, -digest, parent, -parent, group)
    note_tokens(events, TOKENS, 1, start, count)


def stored(*digests: int, parent: int | None, token_ids: tuple[int, ...], group: int = 0) -> BlockStored:
    return BlockStored(
        block_hashes=tuple(block_hash(digest, -digest) for digest in digests),
        parent_block_hash=None if parent is None else block_hash(parent, -parent),
        token_ids=token_ids,
        block_size=len(token_ids) // len(digests),
        group_idx=group,
    )


def test_blocks_that_follow_each_other_are_one_event() -> None:
    events = new_buffer(9, 2)
    store(events, 1, 0, 0)
    store(events, 2, 1, 2)
    store(events, 3, 1, 4)  # another child of the first
    store(events, 4, 3, 6, group=1)  # another group
    store(events, 5, 4, 8, count=1, group=1)  # another size
    note(events, REMOVED, 7, 1, -1, 0, 0, 0)
    note(events, REMOVED, 8, 2, -2, 0, 0, 0)
    note(events, CLEARED, 0, 0, 0, 0, 0, 0)
    store(events, 6, 0, 10)
    assert read(events, 1.5) == KVEventBatch(
        ts=1.5,
        events=(
            stored(1, 2, parent=None, token_ids=(20, 21, 22, 23)),
            stored(3, parent=1, token_ids=(24, 25)),
            stored(4, parent=3, token_ids=(26, 27), group=1),
            stored(5, parent=4, token_ids=(28,), group=1),
            BlockRemoved((block_hash(1, -1), block_hash(2, -2))),
            AllBlocksCleared(),
            stored(6, parent=None, token_ids=(30, 31)),
        ),
        sequence=0,
        num_lost=0,
    )
    assert read(events, 2.0) == KVEventBatch(2.0, (), 9, 0)


def test_an_event_does_not_inherit_the_tokens_that_were_there_before() -> None:
    events = new_buffer(1, 2)
    store(events, 1, 0, 0)
    read(events)
    note(events, STORED, 7, 2, -2, 0, 0, 0)
    assert read(events).events == (BlockStored((block_hash(2, -2),), None, (), 0),)


def test_a_hash_is_the_digests_bytes() -> None:
    assert block_hash(1, -1) == bytes([1] + [0] * 7 + [255] * 8)


def test_what_finds_no_room_is_counted_and_ends_in_a_clearing() -> None:
    events = new_buffer(2, 2)
    store(events, 1, 0, 0)
    store(events, 2, 0, 2)
    full = events[NUM_HEADER_WORDS:].tolist()
    store(events, 3, 0, 4)
    note(events, REMOVED, 7, 1, -1, 0, 0, 0)
    assert events[NUM_HEADER_WORDS:].tolist() == full
    batch = read(events, 0.0)
    assert batch.events == (
        stored(1, parent=None, token_ids=(20, 21)),
        stored(2, parent=None, token_ids=(22, 23)),
        AllBlocksCleared(),
    )
    assert (batch.sequence, batch.num_lost) == (0, 2)
    store(events, 4, 0, 0)
    batch = read(events, 0.0)
    assert batch.events == (stored(4, parent=None, token_ids=(20, 21)),)
    assert (batch.sequence, batch.num_lost) == (4, 0)


def test_without_room_for_any_event_all_are_lost() -> None:
    events = new_buffer(0, 2)
    store(events, 1, 0, 0)
    assert read(events, 0.0) == KVEventBatch(0.0, (AllBlocksCleared(),), 0, 1)


def test_a_batch_is_one_line_of_json() -> None:
    events = new_buffer(3, 2)
    store(events, 1, 2, 0)
    note(events, REMOVED, 7, 1, 0, 0, 0, 0)
    note(events, CLEARED, 0, 0, 0, 0, 0, 0)
    line = as_json(read(events, 1.5))
    assert "\n" not in line
    assert json.loads(line) == {
        "ts": 1.5,
        "sequence": 0,
        "num_lost": 0,
        "events": [
            {
                "type": "BlockStored",
                "block_hashes": ["0100000000000000ffffffffffffffff"],
                "parent_block_hash": "0200000000000000feffffffffffffff",
                "token_ids": [20, 21],
                "block_size": 2,
                "lora_id": None,
                "medium": "GPU",
                "group_idx": 0,
            },
            {"type": "BlockRemoved", "block_hashes": ["0100000000000000" + "00" * 8], "medium": "GPU"},
            {"type": "AllBlocksCleared"},
        ],
    }


WORDS = st.integers(-(2**63), 2**63 - 1)
NOTES = st.lists(
    st.tuples(
        st.sampled_from((STORED, REMOVED, CLEARED)), WORDS, WORDS, st.integers(0, 17), st.integers(0, 5)
    ),
    max_size=8,
)


def note_all(events: Any, token_ids: Any, numbers: Any) -> None:
    """Each line of the numbers is one event."""
    for index in range(numbers.shape[0]):
        kind, first, second = numbers[index, 0], numbers[index, 1], numbers[index, 2]
        note(events, kind, index, first, second, second, first, index)
        if kind == STORED:
            note_tokens(events, token_ids, 1, numbers[index, 3], numbers[index, 4])


@settings(max_examples=60, deadline=None, derandomize=True)
@given(NOTES)
def test_compiled_and_interpreted_notes_are_the_same_bytes(
    notes: list[tuple[int, int, int, int, int]],
) -> None:
    for function in (kv_events.place_of, note, note_tokens):
        code_cache.register(function)
    numbers: Any = np.array(notes, dtype=np.int64).reshape(-1, 5)
    left, right = new_buffer(4, 3), new_buffer(4, 3)
    token_ids: Any = np.pad(TOKENS, ((0, 0), (0, 3)))
    note_all(memoryview(left), memoryview(token_ids), memoryview(numbers))
    compiled_notes()(right, token_ids, numbers)
    assert left.tolist() == right.tolist()
    assert read(left, 0.0) == read(right, 0.0)


def compiled_notes(made: list[Any] = []) -> Callable[..., None]:  # noqa: B006 - made once
    if not made:
        made.append(code_cache.compile(note_all))
    return made[0]  # type: ignore[no-any-return]


# ---- a scheduler and a router ----------------------------------------------------------------------------


class Router:
    """What someone who only reads the stream believes."""

    def __init__(self, sees_all: bool = True) -> None:
        self.sees_all = sees_all
        self.hashes: set[bytes] = set()
        self.stored: list[BlockStored] = []
        self.kinds: set[str] = set()

    def take(self, batch: KVEventBatch) -> None:
        for event in batch.events:
            self.kinds.add(type(event).__name__)
            if isinstance(event, BlockStored):
                assert self.hashes.isdisjoint(event.block_hashes), "told twice"
                self.hashes.update(event.block_hashes)
                self.stored.append(event)
            elif isinstance(event, BlockRemoved):
                assert not self.sees_all or self.hashes.issuperset(event.block_hashes), "was not there"
                self.hashes.difference_update(event.block_hashes)
            else:
                self.hashes.clear()


def findable(scheduler: Scheduler) -> list[bytes]:
    """The hash of every published block, twins included."""
    pool = scheduler.state.pool
    blocks = [block for block in range(1, pool.ref_count.shape[0]) if published(pool, block)]
    return [block_hash(int(pool.digest_first[block]), int(pool.digest_second[block])) for block in blocks]


def serve(
    scheduler: Scheduler, seed: int, num_steps: int, see: Callable[[], None], vocabulary: int = 3
) -> None:
    """Random requests with few different tokens, so that contents repeat and blocks are evicted."""
    draw = random.Random(seed)
    for step in range(num_steps):
        if len(scheduler.rows) < 5:
            prompt = [draw.randrange(vocabulary) for _ in range(draw.randint(1, 20))]
            scheduler.add(str(step), prompt, max_tokens=draw.randint(1, 9))
        batch = scheduler.schedule()
        see()
        count = batch.num_requests
        if count > 0 and draw.random() < 0.05:
            scheduler.fail(batch)
        elif count > 0:
            sampled = np.array([[draw.randrange(vocabulary)] for _ in range(count)], np.int32)
            scheduler.settle(batch, sampled, batch.samples[:count].astype(np.int32))
        if scheduler.rows and draw.random() < 0.05:
            scheduler.abort(draw.choice(sorted(scheduler.rows)))
        if draw.random() < 0.02:
            scheduler.reset_prefix_cache(preempt_running=True)
        see()


def small(num_kv_events: int, **more: Any) -> Scheduler:
    config: dict[str, Any] = {"max_model_len": 64, "num_blocks": 14, "block_size": 4, "max_num_seqs": 3}
    config |= {"max_num_requests": 8, "hash_seed": 5, "max_num_batched_tokens": 40}
    return Scheduler(SchedulerConfig(**config | more), compiled=False, num_kv_events=num_kv_events)


slow_in_debug_mode = pytest.mark.skipif(DEBUG, reason="contracts make it take minutes")


def watch(scheduler: Scheduler, seed: int, num_steps: int = 250) -> tuple[Router, int]:
    """Serve, with a router that must know exactly what can be found; and how often there were twins."""
    router, twins = Router(), 0

    def see() -> None:
        nonlocal twins
        router.take(read(scheduler.state.kv_events))
        found = findable(scheduler)
        assert router.hashes == set(found)
        twins += len(found) > len(set(found))

    serve(scheduler, seed, num_steps, see, vocabulary=2)
    return router, twins


@slow_in_debug_mode
@pytest.mark.parametrize("seed", range(3))
def test_a_router_knows_exactly_what_can_be_found(seed: int) -> None:
    router, twins = watch(small(200), seed)
    assert router.kinds == {"BlockStored", "BlockRemoved", "AllBlocksCleared"}
    assert twins > 5, "several copies of one content"


@slow_in_debug_mode
@pytest.mark.parametrize("room", [0, 1, 3])
def test_a_step_that_publishes_more_than_it_has_room_to_note(
    room: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Parents come before children all the same, and if the step fails, everything is withdrawn."""
    right = scheduler_room.settings_for  # type: ignore[attr-defined]
    monkeypatch.setattr(
        scheduler_room, "settings_for", lambda *given: right(*given)._replace(max_num_published=room)
    )
    scheduler = small(200)
    for number in range(2):
        scheduler.add(str(number), [number, *range(17)])
    batch = scheduler.schedule()
    assert batch.counts[NUM_PUBLISHED] == 8 > room
    told = read(scheduler.state.kv_events).events
    known: set[bytes] = set()
    for event in told:
        assert isinstance(event, BlockStored)
        assert event.parent_block_hash is None or event.parent_block_hash in known
        known.update(event.block_hashes)
    assert known == set(findable(scheduler)) and len(known) == 8
    scheduler.fail(batch)
    assert findable(scheduler) == []
    watch(small(200), 0)


@slow_in_debug_mode
def test_a_stream_that_forgets_twins_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    """With each copy told by itself, a router forgets a block of which a copy is still there."""
    monkeypatch.setattr(kv_notes, "is_findable", lambda *_: False)
    with pytest.raises(AssertionError):
        watch(small(200), 0)


@slow_in_debug_mode
def test_a_stored_blocks_hash_is_that_of_its_tokens_after_its_parent() -> None:
    """Also of blocks that were evicted and written anew before anybody read the stream."""
    scheduler = small(3000)
    serve(scheduler, 1, 250, lambda: None)
    router = Router()
    router.take(read(scheduler.state.kv_events))
    key = scheduler.settings.key_first, scheduler.settings.key_second
    assert len(router.stored) > 100
    for event in router.stored:
        parent = event.parent_block_hash or bytes(16)
        assert event.block_size == 4 and len(event.token_ids) == 4 * len(event.block_hashes)
        for index, found in enumerate(event.block_hashes):
            first, second = [int.from_bytes(half, "little", signed=True) for half in (parent[:8], parent[8:])]
            tokens = event.token_ids[4 * index : 4 * index + 4]
            assert block_hash(*block_digest(*key, first, second, tokens, 4)) == found
            parent = found


@slow_in_debug_mode
def test_a_router_that_missed_events_believes_nothing_false() -> None:
    scheduler, router, lost = small(3), Router(sees_all=False), 0

    def see() -> None:
        nonlocal lost
        batch = read(scheduler.state.kv_events)
        router.take(batch)
        lost += batch.num_lost
        assert router.hashes <= set(findable(scheduler))

    serve(scheduler, 2, 250, see)
    assert lost > 20 and len(router.stored) > 20


@slow_in_debug_mode
def test_without_a_stream_nothing_is_noted() -> None:
    scheduler = small(0)
    serve(scheduler, 0, 50, lambda: None)
    assert scheduler.state.kv_events.tolist() == [0, 0, 0, 4]


@slow_in_debug_mode
def test_groups_have_their_own_chains() -> None:
    """A group's block names that group's block before it as its parent."""
    scheduler = small(500, groups=(KVGroup(4), KVGroup(8, "sliding_window", 8)), num_blocks=40)
    scheduler.add("a", list(range(20)), max_tokens=1)
    batch = scheduler.schedule()
    scheduler.settle(batch, np.full((1, 1), 1, np.int32), np.ones(1, np.int32))
    events = [event for event in read(scheduler.state.kv_events).events if isinstance(event, BlockStored)]
    assert [(event.group_idx, event.block_size, event.parent_block_hash) for event in events] == [
        (0, 4, None),
        (1, 8, None),
    ]
    assert [event.token_ids for event in events] == [tuple(range(16)), tuple(range(16))]
    assert set(events[0].block_hashes).isdisjoint(events[1].block_hashes)
